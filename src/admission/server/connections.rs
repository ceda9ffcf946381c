//! Which connections are open. Where there are too many, the one goes that is worth least, and who comes anew is let in: the API server opens
//! one when it has a question.

use std::{
    collections::HashMap,
    io::{self, IoSlice},
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// The connections that are open, by the address of who is at their other end.
pub(super) struct Connections {
    most: usize,
    open: Mutex<State>,
}

#[derive(Default)]
struct State {
    by_peer: HashMap<SocketAddr, Open>,
    /// Counts what happens: what has a higher number was later.
    moment: u64,
}

impl State {
    fn now(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }
}

struct Open {
    id: u64,
    /// Whether a question came over it: by bytes alone, who wants to be in the way looks busy.
    asked: bool,
    /// Questions under way.
    under_way: usize,
    /// When it was opened, or its last question was answered.
    last: u64,
    close: CancellationToken,
}

impl Connections {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, open: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a new connection. Where there is none, one that never asked goes, else one that has not asked for the longest; none where
    /// all have questions under way.
    pub(super) fn admit(self: &Arc<Self>, peer: SocketAddr) -> Option<Place> {
        let mut state = self.state();
        if state.by_peer.len() >= self.most {
            let idle = state.by_peer.iter().filter(|(_, open)| open.under_way == 0);
            let (victim, _) = idle.min_by_key(|(_, open)| (open.asked, open.last))?;
            let victim = *victim;
            if let Some(open) = state.by_peer.remove(&victim) {
                open.close.cancel();
            }
        }
        let (id, close) = (state.now(), CancellationToken::new());
        let closed = Box::pin(close.clone().cancelled_owned());
        state.by_peer.insert(peer, Open { id, asked: false, under_way: 0, last: id, close });
        Some(Place { connections: Arc::clone(self), peer, id, closed })
    }

    /// A question has come over the connection of `peer`, and is under way until this is dropped.
    pub(super) fn ask(self: &Arc<Self>, peer: SocketAddr) -> UnderWay {
        let mut state = self.state();
        let id = state.by_peer.get_mut(&peer).map_or(0, |open| {
            (open.asked, open.under_way) = (true, open.under_way + 1);
            open.id
        });
        UnderWay { connections: Arc::clone(self), peer, id }
    }
}

/// A connection's place among those that may be open.
pub(super) struct Place {
    connections: Arc<Connections>,
    peer: SocketAddr,
    id: u64,
    closed: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Place {
    /// Completes when the place was given to another.
    pub(super) async fn lost(&mut self) {
        self.closed.as_mut().await;
    }

    fn poll_lost(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.closed.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::ErrorKind::ConnectionAborted.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.connections.state();
        if state.by_peer.get(&self.peer).is_some_and(|open| open.id == self.id) {
            state.by_peer.remove(&self.peer);
        }
    }
}

/// A question under way.
pub(super) struct UnderWay {
    connections: Arc<Connections>,
    peer: SocketAddr,
    id: u64,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut state = self.connections.state();
        let now = state.now();
        if let Some(open) = state.by_peer.get_mut(&self.peer).filter(|open| open.id == self.id) {
            (open.under_way, open.last) = (open.under_way.saturating_sub(1), now);
        }
    }
}

/// A connection that ends when its place is given to another.
pub(super) struct Placed<S> {
    stream: S,
    place: Place,
}

impl<S> Placed<S> {
    pub(super) fn new(stream: S, place: Place) -> Self {
        Self { stream, place }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Placed<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.place.poll_lost(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Placed<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.place.poll_lost(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.place.poll_lost(cx)?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
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

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn peer(port: u16) -> SocketAddr {
        ([192, 0, 2, 1], port).into()
    }

    fn is_lost(place: &mut Place) -> bool {
        place.lost().now_or_never().is_some()
    }

    #[test]
    fn whoever_never_asked_goes_first_and_then_whoever_has_not_asked_for_the_longest() {
        let connections = Connections::new(3);
        let mut first = connections.admit(peer(1)).unwrap();
        let mut second = connections.admit(peer(2)).unwrap();
        let mut silent = connections.admit(peer(3)).unwrap();
        drop(connections.ask(peer(2)));
        drop(connections.ask(peer(1)));
        let mut fourth = connections.admit(peer(4)).unwrap();
        assert!(is_lost(&mut silent) && !is_lost(&mut first) && !is_lost(&mut second));
        // The new one has not asked yet either, but all others are worth more.
        let fifth = connections.admit(peer(5)).unwrap();
        assert!(is_lost(&mut fourth));
        drop((silent, fourth));
        let under_way = connections.ask(peer(5));
        let mut sixth = connections.admit(peer(6)).unwrap();
        assert!(is_lost(&mut second) && !is_lost(&mut first), "its last question was before the other's");
        let (_one, _two) = (connections.ask(peer(1)), connections.ask(peer(6)));
        assert!(connections.admit(peer(7)).is_none(), "nobody is cut off in a question");
        drop(under_way);
        assert!(connections.admit(peer(7)).is_some());
        assert!(!is_lost(&mut first) && !is_lost(&mut sixth));
        drop(fifth);
    }

    #[test]
    fn a_place_that_was_given_away_gives_nothing_back() {
        let connections = Connections::new(1);
        let first = connections.admit(peer(1)).unwrap();
        let asked = connections.ask(peer(1));
        drop(asked);
        let mut again = connections.admit(peer(1)).unwrap();
        drop(first);
        assert!(!is_lost(&mut again));
        assert_eq!(connections.state().by_peer.len(), 1);
        drop(again);
        assert_eq!(connections.state().by_peer.len(), 0);
    }
}
