//! The TLS server that importers pull disks from.
//!
//! CDI's importer opens, closes and opens again (`HEAD`, `GET` closed early, `HEAD`, `GET`; seen of CDI v1.64),
//! asks for gzip and must not get it, and sends its token with each request.

mod accept;
mod body;
mod guard;
mod range;
mod respond;

use std::{
    io,
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::OwnedFd,
    sync::Arc,
    time::Duration,
};

use axum::Router;
use axum_server::Handle;
use rustls::ServerConfig;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use self::{accept::Acceptor, body::Buffers, respond::App};
use super::{Registry, Store};

/// The server's limits. The defaults suit a cluster; each bounds what a client can cost.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How long a request whose disk is being fetched again is held. CDI's importer gives up at ten minutes.
    pub hold: Duration,
    /// How long a TLS handshake may take.
    pub handshake_timeout: Duration,
    /// How long a request's head may take, and how long a connection may be idle before one.
    pub header_timeout: Duration,
    /// How long a client may take next to nothing of a body. An importer whose storage stalls is such a client.
    pub stall_timeout: Duration,
    /// Connections open at once.
    pub connections: usize,
    /// Bodies being sent at once; each holds about half a mebibyte of memory.
    pub transfers: usize,
    /// How long open requests may go on after shutdown.
    pub grace: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            hold: Duration::from_secs(5 * 60),
            handshake_timeout: Duration::from_secs(10),
            header_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(2 * 60),
            connections: 256,
            transfers: 64,
            grace: Duration::from_secs(10),
        }
    }
}

/// The most bytes of a request's head. Importers send a few hundred.
const LONGEST_HEAD: usize = 32 << 10;
/// The most headers of a request.
const MOST_HEADERS: usize = 64;

/// Ends every connection when it goes out of scope: each is a task of its own, which else lives on when the server is dropped, and
/// answers importers for one who does not lead any more.
struct Ends(Handle<SocketAddr>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.shutdown();
    }
}

/// Has connections refused from now on, also those that wait to be accepted: the listener itself goes only when the last request has been
/// answered. Of a listening socket, shutdown(2) does that on Linux.
fn refuse_new(listener: TcpListener) {
    // An error is a socket that does not listen any more.
    let _ = TcpStream::from(OwnedFd::from(listener)).shutdown(Shutdown::Both);
}

/// Serves the disks of `store` to whom `registry` grants them, until `shutdown`, and lets what is being sent go on for a while then.
/// Requests that are held are answered at once, new connections are refused, and dropping this ends everything at once.
///
/// # Errors
/// When the listener cannot be used.
pub async fn serve(
    listener: TcpListener,
    config: Arc<ServerConfig>,
    registry: Registry,
    store: Store,
    settings: Settings,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let acceptor = Acceptor::new(config, registry.clone(), &settings);
    let app = App {
        registry,
        store,
        hold: settings.hold,
        buffers: Buffers::default(),
        transfers: Arc::new(Semaphore::new(settings.transfers)),
        ending: shutdown.clone(),
    };
    let service = Router::new().fallback(respond::answer).with_state(app).into_make_service_with_connect_info::<SocketAddr>();

    let handle = Handle::new();
    let _ends = Ends(handle.clone());
    let door = listener.try_clone()?;
    let mut server = axum_server::from_tcp(listener)?.acceptor(acceptor).handle(handle.clone()).http1_only();
    server.http_builder().http1().header_read_timeout(settings.header_timeout).max_buf_size(LONGEST_HEAD).max_headers(MOST_HEADERS);
    let serving = server.serve(service);
    tokio::pin!(serving);
    tokio::select! {
        ended = &mut serving => ended,
        () = shutdown.cancelled() => {
            handle.graceful_shutdown(Some(settings.grace));
            refuse_new(door);
            serving.await
        }
    }
}
