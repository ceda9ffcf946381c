use std::{io, sync::Arc, sync::atomic::Ordering, time::Duration};

use axum_server::{
    accept::Accept,
    tls_rustls::{RustlsAcceptor, RustlsConfig},
};
use futures::future::BoxFuture;
use rustls::AlertDescription;
use tokio::{net::TcpStream, sync::Semaphore};

use super::guard::{Counted, Guarded};
use crate::spool::Registry;

/// Takes a connection from the listener to an open TLS session, or notes why not.
#[derive(Clone)]
pub(super) struct Acceptor {
    pub(super) tls: RustlsAcceptor,
    pub(super) registry: Registry,
    /// Connections that may be open.
    pub(super) places: Arc<Semaphore>,
    pub(super) stall: Duration,
}

impl Acceptor {
    pub(super) fn new(config: Arc<rustls::ServerConfig>, registry: Registry, settings: &super::Settings) -> Self {
        let tls = RustlsAcceptor::new(RustlsConfig::from_config(config)).handshake_timeout(settings.handshake_timeout);
        Self { tls, registry, places: Arc::new(Semaphore::new(settings.connections)), stall: settings.stall_timeout }
    }
}

impl<S: Send + 'static> Accept<TcpStream, S> for Acceptor {
    type Stream = <RustlsAcceptor as Accept<Guarded, S>>::Stream;
    type Service = <RustlsAcceptor as Accept<Guarded, S>>::Service;
    type Future = BoxFuture<'static, io::Result<(Self::Stream, Self::Service)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let Self { tls, registry, places, stall } = self.clone();
        Box::pin(async move {
            let peer = stream.peer_addr()?.ip();
            stream.set_nodelay(true)?;
            let Ok(permit) = places.try_acquire_owned() else {
                registry.traffic().connections_refused.fetch_add(1, Ordering::Relaxed);
                return Err(io::Error::other("too many connections"));
            };
            let stream = Guarded::new(stream, stall, Counted::new(registry.clone(), permit));
            tls.accept(stream, service).await.inspect_err(|e| {
                let (certificate_refused, message) = describe(e);
                registry.handshake_failed(peer, certificate_refused, message);
            })
        })
    }
}

/// Whether the peer refused our certificate, and the failure in words that are ours or rustls's, never the peer's.
fn describe(error: &io::Error) -> (bool, String) {
    use AlertDescription as Alert;
    let refused = match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        // The alerts of RFC 8446 section 6.2 by which a client says what it thinks of a certificate. Go's client, which
        // the importer is, sends BadCertificate for all of these.
        Some(rustls::Error::AlertReceived(alert)) => matches!(
            alert,
            Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateRevoked
                | Alert::CertificateExpired
                | Alert::CertificateUnknown
                | Alert::UnknownCA
        ),
        _ => false,
    };
    let message = match error.kind() {
        io::ErrorKind::TimedOut => "the handshake took too long".to_owned(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => "the peer went away during the handshake".to_owned(),
        _ => error.to_string(),
    };
    (refused, message)
}
