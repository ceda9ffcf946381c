//! The admission role (`docs/admission.md`): every clone of a golden is right or refused with a reason, and no golden in use can be deleted.
//!
//! The API server asks over TLS ([`server`]); a question is read ([`review`]), completed with live reads ([`live`]) and with what the watches know ([`scene`]), and decided by the same functions as `plan` and `explain` (`rules::clone`). Nothing is ever written from here, which is what makes a server-side dry-run free of effect: events and marks are the leader's.

mod clones;
mod credentials;
mod golden_images;
mod goldens;
mod images;
mod live;
mod patch;
pub mod review;
mod scene;
pub mod server;
mod source;
mod view;

pub use clones::{Judged, Way, judge_clones};
pub use credentials::judge_credentials;
pub use golden_images::judge_image;
pub use goldens::{daemon_user, judge_golden, judge_namespace};
pub use images::{GoldenRecord, ImageFacts, Images};
pub use live::Live;
pub use scene::Scene;
pub use source::{Found, source_facts};
pub use view::{View, is_selected, pool_facts, verdict_on};

use crate::rules::clone::Unknown;

/// How a question is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It may be.
    Allow {
        /// Changes to the object, where it is a disk.
        patch: Vec<patch::Operation>,
        /// Told to whoever asks.
        warnings: Vec<String>,
    },
    /// It may not be, and why.
    Refuse(String),
    /// It cannot be said now; the API server's client is told to ask again.
    Later(String),
}

impl Answer {
    /// Allowed without a word.
    pub const fn allow() -> Self {
        Self::Allow { patch: Vec::new(), warnings: Vec::new() }
    }

    /// Every word that [`Self::as_str`] gives.
    pub const WORDS: [&str; 3] = ["allowed", "refused", "unknown"];

    /// The word for metrics.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Allow { .. } => "allowed",
            Self::Refuse(_) => "refused",
            Self::Later(_) => "unknown",
        }
    }
}

impl From<Unknown> for Answer {
    fn from(unknown: Unknown) -> Self {
        Self::Later(format!("no verdict yet, try again: {unknown}"))
    }
}
