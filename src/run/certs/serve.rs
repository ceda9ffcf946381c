//! Serving a certificate that may be another one at the next handshake.

use super::{Served, material::provider};
use arc_swap::ArcSwapOption;
use k8s_openapi::jiff::Timestamp;
use rustls::{
    ServerConfig,
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use std::sync::Arc;

/// Hands each handshake the newest certificate. Connections that stand keep the one they began with.
#[derive(Debug, Default)]
pub struct Resolver {
    current: ArcSwapOption<Served>,
}

impl Resolver {
    /// A resolver without a certificate: handshakes fail until one is installed.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Serves this certificate from the next handshake on; says whether it is another one than before.
    pub fn install(&self, served: Served) -> bool {
        let changed = self
            .current
            .load()
            .as_ref()
            .is_none_or(|current| current.pair.certified.cert != served.pair.certified.cert || current.bundle() != served.bundle());
        if changed {
            self.current.store(Some(Arc::new(served)));
        }
        changed
    }

    /// What is served now.
    pub fn served(&self) -> Option<Arc<Served>> {
        self.current.load_full()
    }

    /// Seconds until the served certificate ends, negative afterwards; `None` while there is none.
    pub fn seconds_left(&self, now: Timestamp) -> Option<f64> {
        self.current.load().as_ref().map(|served| served.not_after().duration_since(now).as_secs_f64())
    }
}

impl ResolvesServerCert for Resolver {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.current.load().as_ref().map(|served| served.pair.certified.clone())
    }
}

/// A server that speaks TLS 1.2 and 1.3 with the resolver's certificate and these application protocols (`h2`, `http/1.1`).
///
/// # Errors
/// When the cryptographic provider lacks a suite for these versions, which ours does not.
pub fn server_config(resolver: Arc<Resolver>, protocols: &[&str]) -> Result<Arc<ServerConfig>, rustls::Error> {
    let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let mut config = builder.with_no_client_auth().with_cert_resolver(resolver);
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    Ok(Arc::new(config))
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
