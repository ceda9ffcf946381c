//! Credentials for an upstream: what a Secret holds for it, and the removal of secrets from what upstreams say.

mod dockerconfig;
mod secret;

use std::fmt;

use base64::Engine as _;
use http::HeaderValue;
use zeroize::Zeroizing;

pub use secret::{SecretError, credentials_for};

/// What an upstream is shown in `Authorization`. Sent to the very origin (scheme, host, port) they are given for, nowhere else.
#[derive(Clone)]
pub enum Credentials {
    /// A user and a password (RFC 7617).
    Basic {
        /// The user; must not contain a colon.
        username: String,
        /// The password.
        password: Zeroizing<String>,
    },
    /// A token (RFC 6750).
    Bearer(Zeroizing<String>),
}

impl Credentials {
    /// The header's value, marked as sensitive; `None` where a token holds what no header may.
    pub(super) fn authorization(&self) -> Option<HeaderValue> {
        let text = Zeroizing::new(match self {
            Self::Basic { .. } => format!("Basic {}", *self.encoded()),
            Self::Bearer(token) => format!("Bearer {}", **token),
        });
        let mut value = HeaderValue::from_str(&text).ok()?;
        value.set_sensitive(true);
        Some(value)
    }

    /// The part of the header after the scheme's name.
    fn encoded(&self) -> Zeroizing<String> {
        match self {
            Self::Basic { username, password } => {
                let pair = Zeroizing::new(format!("{username}:{}", **password));
                Zeroizing::new(base64::engine::general_purpose::STANDARD.encode(pair.as_bytes()))
            }
            Self::Bearer(token) => token.clone(),
        }
    }

    /// Every text that must not appear in a message.
    pub(super) fn secrets(&self) -> Vec<Zeroizing<String>> {
        match self {
            Self::Basic { password, .. } => vec![password.clone(), self.encoded()],
            Self::Bearer(token) => vec![token.clone()],
        }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Basic { .. } => "Basic(…)",
            Self::Bearer(_) => "Bearer(…)",
        })
    }
}
