use std::{
    future::Future,
    io::{self, IoSlice},
    pin::Pin,
    sync::atomic::Ordering,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::OwnedSemaphorePermit,
    time::{Instant, Sleep},
};

use crate::spool::Registry;

/// A client's connection below TLS, which ends when the client takes too little for too long.
///
/// What a client sends needs no such guard: it sends request heads only, and those have their own deadline.
pub(super) struct Guarded {
    stream: TcpStream,
    stall: Duration,
    /// Bytes the client took since `deadline` was set.
    taken: usize,
    deadline: Option<Pin<Box<Sleep>>>,
    _counted: Counted,
}

/// A connection's place among the ones that may be open.
pub(super) struct Counted {
    registry: Registry,
    _permit: OwnedSemaphorePermit,
}

impl Counted {
    pub(super) fn new(registry: Registry, permit: OwnedSemaphorePermit) -> Self {
        registry.traffic().connections.fetch_add(1, Ordering::Relaxed);
        Self { registry, _permit: permit }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.registry.traffic().connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Guarded {
    /// The least that a client must take in each span of the stall timeout: a client that sips is no better than one that
    /// has stopped.
    const SIP: usize = 64 << 10;

    pub(super) fn new(stream: TcpStream, stall: Duration, counted: Counted) -> Self {
        Self { stream, stall, taken: 0, deadline: None, _counted: counted }
    }

    fn watch(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(length)) => {
                self.taken = self.taken.saturating_add(length);
                if self.taken >= Self::SIP {
                    self.deadline = None;
                }
                Poll::Ready(Ok(length))
            }
            Poll::Ready(Err(e)) => Poll::Ready(Err(e)),
            Poll::Pending => {
                if self.deadline.is_none() {
                    self.taken = 0;
                }
                let stall = self.stall;
                let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + stall)));
                deadline.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
            }
        }
    }
}

impl AsyncRead for Guarded {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.watch(cx, written)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.watch(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
