//! Clones in flight: disks that are made from a golden and not done.

use super::{
    Ledger,
    facts::{Kind, format_uid},
    rows::{ObjectKey, flag},
};
use crate::rules::clone::Known;

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
            Kind::DataVolume => found.is(flag::ENDED),
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
        })
    }
}
