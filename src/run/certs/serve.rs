//! Serving a certificate that may be another one at the next handshake.

use super::{Served, Told, material::provider};
use arc_swap::ArcSwapOption;
use k8s_openapi::jiff::Timestamp;
use rustls::{
    ServerConfig,
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::Notify;

/// How long the CA of a certificate that callers do not trust yet is published before the certificate is served: API servers learn of it by
/// watch. Where it cannot be seen whether it is published, this has to do for the leader too, who fills it in at once, but somebody must lead
/// (a takeover takes up to 20 s).
pub const SETTLE: Duration = Duration::from_secs(60);

/// Hands each handshake the newest certificate. Connections that stand keep the one they began with.
#[derive(Debug, Default)]
pub struct Resolver {
    current: ArcSwapOption<Served>,
    /// By a CA that was not told to callers before: published first, served later.
    coming: Mutex<Option<Coming>>,
    changed: Notify,
}

/// A certificate that waits.
#[derive(Debug)]
struct Coming {
    served: Served,
    /// Since when it may be that its CA is published.
    since: Instant,
    /// Whether callers were last seen not to trust it.
    is_untrusted: bool,
}

/// What became of a certificate that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// It is what is served already.
    Known,
    /// It is served from the next handshake on.
    Served,
    /// Its CA is published, and it is served after this time.
    Waits(Duration),
    /// Callers are not told of its CA yet; it is served this time after they are.
    Untold(Duration),
}

impl Resolver {
    /// A resolver without a certificate: handshakes fail until one is installed.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Takes what a Secret holds. Who was told the present bundle must not meet a certificate that it does not vouch for, so such a one
    /// waits until callers are `told` of its CA and for `settle` then, unless there is none to serve meanwhile.
    pub fn offer(&self, found: Served, told: Told, settle: Duration) -> Offer {
        let mut coming = self.coming.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(current) = self.current.load_full() else { return self.install(&mut coming, found) };
        if current.is_same(&found) {
            *coming = None;
            return Offer::Known;
        }
        let now = Timestamp::now();
        if now >= current.not_after() || found.is_vouched_for(current.bundle().as_bytes(), now) {
            return self.install(&mut coming, found);
        }
        let known = coming.take_if(|coming| coming.served.is_same(&found));
        let is_new = known.is_none();
        let waits = coming.insert(known.unwrap_or_else(|| Coming { served: found.clone(), since: Instant::now(), is_untrusted: false }));
        match told {
            Told::Untrusted => waits.is_untrusted = true,
            Told::Trusted | Told::Nothing => waits.is_untrusted = false,
            // As it was when it was last seen: an API server that does not answer has told nobody.
            Told::Unknown => {}
        }
        if waits.is_untrusted {
            waits.since = Instant::now();
        }
        let (is_untrusted, left) = (waits.is_untrusted, settle.saturating_sub(waits.since.elapsed()));
        if is_new {
            self.changed.notify_one();
        }
        match (is_untrusted, is_new) {
            (true, _) => Offer::Untold(settle),
            (false, true) => Offer::Waits(settle),
            (false, false) if left.is_zero() => self.install(&mut coming, found),
            (false, false) => Offer::Waits(left),
        }
    }

    /// Whether it matters for what was found what callers are told: by the present bundle they would not trust it.
    pub(super) fn asks_callers(&self, found: &Served) -> bool {
        let now = Timestamp::now();
        let of_present = |current: &Served| {
            !current.is_same(found) && now < current.not_after() && !found.is_vouched_for(current.bundle().as_bytes(), now)
        };
        self.current.load().as_ref().is_some_and(|current| of_present(current))
    }

    fn install(&self, coming: &mut Option<Coming>, found: Served) -> Offer {
        *coming = None;
        self.current.store(Some(Arc::new(found)));
        self.changed.notify_one();
        Offer::Served
    }

    /// What is served now.
    pub fn served(&self) -> Option<Arc<Served>> {
        self.current.load_full()
    }

    /// The CAs that callers are to be told, in PEM: of what is served and of what will be.
    pub fn bundle(&self) -> Option<String> {
        let coming = self.coming.lock().unwrap_or_else(PoisonError::into_inner);
        let current = self.current.load_full()?;
        Some(coming.as_ref().map_or_else(|| current.bundle().to_owned(), |coming| coming.served.bundle_with(&current)))
    }

    /// Completes when [`Self::bundle`] or what is served has changed since it did so last; for one who waits.
    pub async fn changed(&self) {
        self.changed.notified().await;
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
