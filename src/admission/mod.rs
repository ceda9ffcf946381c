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

    /// The answer of a webhook that judges and may change nothing. A new disk without a class was judged by the one that the webhook
    /// `disks` writes: where that was not asked, CDI would choose another.
    pub fn validated(self, is_new: bool) -> Self {
        match self {
            Self::Allow { patch, .. } if is_new && patch.iter().any(patch::Operation::is_class) => Self::Later(
                "no verdict yet, try again: the disk states no StorageClass, and the webhook `disks`, which writes it, was not asked, or another one took it off again; state `storageClassName`, or look at the webhook configurations golden-catalog".to_owned(),
            ),
            Self::Allow { warnings, .. } => Self::Allow { patch: Vec::new(), warnings },
            other => other,
        }
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_disk_that_was_judged_by_a_class_it_does_not_have_waits_for_it() {
        let add = |path: &str| patch::Operation::add(path.to_owned(), json!("x"));
        let allow = |patch| Answer::Allow { patch, warnings: vec!["w".to_owned()] };
        for path in ["/spec/storage/storageClassName", "/spec/pvc/storageClassName", "/spec/storageClassName"] {
            let answer = allow(vec![add(path), add("/metadata/annotations")]);
            assert!(matches!(answer.clone().validated(true), Answer::Later(why) if why.contains("`disks`")), "{path}");
            assert_eq!(answer.validated(false), allow(Vec::new()), "it is there already");
        }
        // A pool may have become known between the two questions: its mark is the leader's to write.
        assert_eq!(allow(vec![add("/metadata/annotations")]).validated(true), allow(Vec::new()));
        let refusal = Answer::Refuse("no".to_owned());
        assert_eq!(refusal.clone().validated(true), refusal);
    }
}
