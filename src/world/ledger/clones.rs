//! Clones in flight: disks that are made from a golden and not done; and those whose end was seen.

use std::collections::HashSet;

use super::{
    Ledger,
    facts::{Facts, Kind, format_uid},
    rows::{ObjectKey, flag},
};
use crate::rules::{clone::Known, copied::CopyCause};

/// The most ends that are kept for whoever follows them.
const MOST_ENDS: usize = 4096;

/// That the clone of a DataVolume ended well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloneEnd {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// When it was created, in seconds since 1970.
    pub created: i64,
    /// When CDI was done, in seconds since 1970.
    pub ended: i64,
}

/// A clone that has ended well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedClone {
    /// The UID of its DataVolume.
    pub uid: Option<String>,
    /// The golden.
    pub golden: String,
    /// Its claim's class.
    pub class: Option<String>,
    /// Why its content came over the network, where it did.
    pub copied: Option<CopyCause>,
}

/// Ends of clones since somebody began to follow them.
#[derive(Debug, Default)]
pub(super) struct Ends {
    seen: Vec<CloneEnd>,
    /// Disks that were done once and are filled anew, by UID: from their creation on they did other things too.
    anew: HashSet<u128>,
}

/// A disk whose clone has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningClone {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID, of the DataVolume or, without one, of the claim.
    pub uid: Option<String>,
    /// Whether it has a DataVolume.
    pub has_volume: bool,
    /// The golden.
    pub golden: String,
    /// When it was created, in seconds since 1970.
    pub created: i64,
    /// Its claim's class.
    pub class: Option<String>,
    /// Whether CDI waits for a pod or a person; of a claim alone, whether no node is chosen for it.
    pub waits: bool,
}

impl Ledger {
    /// All clones of goldens outside the catalog namespace that have not ended and are not being deleted, created at `until` (seconds since 1970) or before.
    ///
    /// # Errors
    /// While disks, or what leads from them to a golden, are not all known.
    pub fn running_clones(&self, until: i64) -> Known<Vec<RunningClone>> {
        self.known(&[Kind::DataVolume, Kind::Claim, Kind::DataSource, Kind::Snapshot, Kind::CloneSource])?;
        Ok((0..self.rows.end()).filter_map(|row| self.running_clone(row)).filter(|clone| clone.created <= until).collect())
    }

    /// Begins or ends to keep the ends of clones for [`Self::take_ends`].
    pub fn follow_ends(&mut self, follow: bool) {
        self.ends = follow.then(Ends::default);
    }

    /// The clones whose end was seen since the last call. One that had ended before its first sight is none.
    pub fn take_ends(&mut self) -> Vec<CloneEnd> {
        self.ends.as_mut().map(|ends| std::mem::take(&mut ends.seen)).unwrap_or_default()
    }

    /// Notes the end of a disk, which is to be told by what is known before these facts are taken in.
    pub(super) fn note_end(&mut self, kind: Kind, namespace: &str, name: &str, facts: Option<&Facts>) {
        let Some(facts) = facts.filter(|_| self.ends.is_some() && kind == Kind::DataVolume && namespace != self.catalog_namespace) else {
            return;
        };
        let before = self.object(kind, namespace, name).and_then(|row| self.rows.get(row));
        let uid = facts.uid.unwrap_or(0);
        let Some(was_ended) = before.filter(|row| u128::from_be_bytes(row.uid) == uid).map(|row| row.is(flag::ENDED)) else { return };
        let Some(ends) = &mut self.ends else { return };
        match (was_ended, facts.progress.has_ended) {
            (true, false) => {
                ends.anew.insert(uid);
            }
            (false, true) => {
                let is_anew = ends.anew.remove(&uid);
                if let Some(ended) = facts.progress.filled.filter(|_| !is_anew && ends.seen.len() < MOST_ENDS) {
                    ends.seen.push(CloneEnd { namespace: namespace.to_owned(), name: name.to_owned(), created: facts.created, ended });
                }
            }
            _ => {}
        }
    }

    /// What an end was the end of; `None` where the disk is gone again, or is no clone of a golden.
    pub fn ended_clone(&self, end: &CloneEnd) -> Option<EndedClone> {
        let first = self.object(Kind::DataVolume, &end.namespace, &end.name)?;
        let volume = self.rows.get(first)?;
        let golden = self.golden_of(first)?.golden;
        let claim = self.object(Kind::Claim, &end.namespace, &end.name).and_then(|row| self.rows.get(row));
        let uid = u128::from_be_bytes(volume.uid);
        Some(EndedClone {
            uid: (uid != 0).then(|| format_uid(uid)),
            golden: self.names.get(golden).to_owned(),
            class: claim.and_then(|claim| claim.class.some()).map(|class| self.names.get(class).to_owned()),
            copied: claim.and_then(|claim| claim.copied).or(volume.copied),
        })
    }

    fn running_clone(&self, row: u32) -> Option<RunningClone> {
        let found = self.rows.get(row)?;
        let text = |id| self.names.get(id).to_owned();
        let has_volume = found.kind == Kind::DataVolume;
        let is_going = found.is(flag::TERMINATING) || self.names.get(found.namespace) == self.catalog_namespace;
        if !matches!(found.kind, Kind::DataVolume | Kind::Claim) || is_going || !self.rows.is_first(row) {
            return None;
        }
        let other = |kind| self.rows.find(ObjectKey { kind, namespace: found.namespace, name: found.name });
        let claim = if has_volume { other(Kind::Claim).and_then(|claim| self.rows.get(claim)) } else { Some(found) };
        // A disk with both objects is told once, by its DataVolume.
        let has_ended = match found.kind {
            // CDI clones nothing for a disk that it was told is there.
            Kind::DataVolume => found.is(flag::ENDED) || found.is(flag::PREPOPULATED),
            _ => other(Kind::DataVolume).is_some() || found.is(flag::BOUND) || found.is(flag::LOST),
        };
        if has_ended {
            return None;
        }
        let golden = self.golden_of(row)?.golden;
        let uid = u128::from_be_bytes(found.uid);
        Some(RunningClone {
            namespace: text(found.namespace),
            name: text(found.name),
            uid: (uid != 0).then(|| format_uid(uid)),
            has_volume,
            golden: text(golden),
            created: i64::from(found.created),
            class: claim.and_then(|claim| claim.class.some()).map(text),
            waits: found.is(flag::WAITS),
        })
    }
}
