//! The daemon's own certificates: issued by itself where cert-manager is not, kept in a Secret, renewed in time, reloaded
//! without a failed call.
//!
//! A Secret we issue is a `kubernetes.io/tls` Secret with our mark. `tls.crt` and `tls.key` are what is served, `ca.crt` is the
//! bundle others are told to trust. Besides these it holds the CA that signs (`signing-ca.*`) and, while the CA is being changed,
//! the next one (`next-ca.*`): the next CA is published in the bundle first and signs only after the overlap, when nobody is left
//! who was told to trust the old one alone. A Secret without our mark belongs to cert-manager or to a hand; it is used as it is and
//! never written.
//!
//! A certificate by a CA that callers were not told before (cert-manager's issuer has another one, the Secret was deleted) is not served at
//! once: its CA is published beside the present one first ([`Resolver`]), which callers are seen to have been told ([`Told`]), and the former
//! stays published for a while after ([`Overlap`]).

mod decide;
mod issue;
mod keep;
mod key;
mod material;
mod overlap;
mod serve;
mod told;

pub use decide::{Action, decide};
pub use keep::{Keeper, keep};
pub use key::{KeptSpoolKey, SPOOL_KEY};
pub use material::{Observed, Profile, Served};
pub use overlap::Overlap;
pub use serve::{Offer, Resolver, SETTLE, server_config};
pub use told::Told;

use std::borrow::Cow;

/// The Secret of the spool's certificate.
pub const SPOOL_TLS: &str = "golden-catalog-spool-tls";
/// The Secret of the webhook's certificate.
pub const WEBHOOK_TLS: &str = "golden-catalog-webhook-tls";

/// The annotation that says a Secret is ours to write.
pub const SELF_ISSUED: &str = "kubernetes-worker-image.cozystack.io/self-issued";

/// Why no certificate can be served, or none issued.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A Secret that is not ours lacks something, or holds something unusable.
    #[error(
        "Secret {name}: {trouble}. It was not issued by this daemon, so it is not touched: complete it (cert-manager needs an issuer \
         that fills in ca.crt), or delete it to have a certificate issued"
    )]
    Foreign {
        /// The Secret's name.
        name: String,
        /// What is wrong with it.
        trouble: Trouble,
    },
    /// Our own Secret cannot be used as it is; the leader issues it anew.
    #[error("Secret {name}: {trouble}. The leader issues it anew")]
    Broken {
        /// The Secret's name.
        name: String,
        /// What is wrong with it.
        trouble: Trouble,
    },
    /// There is no Secret yet.
    #[error("Secret {name} does not exist yet; the leader of the controller issues it")]
    Missing {
        /// The Secret's name.
        name: String,
    },
    /// The spool key's Secret holds no key.
    #[error(
        "Secret {name}: key {SPOOL_KEY_FIELD:?} must hold 32 bytes. It is not overwritten, since the addresses of running imports depend on \
         it: restore it, or delete it to have a new one made"
    )]
    SpoolKey {
        /// The Secret's name.
        name: String,
    },
    /// Making keys or certificates failed.
    #[error("the certificate could not be made: {0}")]
    Issue(String),
    /// The API server refused or could not be reached.
    #[error("Secret {name}: {text}")]
    Api {
        /// The Secret's name.
        name: String,
        /// What it said.
        text: String,
        /// The error itself.
        #[source]
        source: Box<kube::Error>,
    },
}

use key::FIELD as SPOOL_KEY_FIELD;

/// What is wrong with the contents of a TLS Secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// A field is not there or empty.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A field does not parse.
    #[error("{0} is no PEM of the expected kind")]
    Unreadable(&'static str),
    /// Certificate and key are not a pair: written half, or by two hands.
    #[error("{0} and {1} do not belong together")]
    Mismatch(&'static str, &'static str),
    /// The certificate would not be trusted by those who are told the bundle.
    #[error("the certificate would be refused by clients: {0}")]
    Untrusted(Cow<'static, str>),
}

impl Error {
    fn api(name: &str, source: kube::Error) -> Self {
        Self::Api { name: name.to_owned(), text: crate::run::api_error(&source), source: Box::new(source) }
    }
}
