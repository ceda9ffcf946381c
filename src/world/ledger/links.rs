//! What follows from several objects: which golden a row leads to, which pool it belongs to, where a DataSource ends.

use super::{
    Ledger,
    facts::Kind,
    names::NameId,
    rows::{GroupKey, GroupKind, ObjectKey, Row, Side, flag},
};
use crate::rules::{
    clone::{Known, Source, Unknown},
    consumers::Evidence,
    pool::{Pool, PoolClue},
};

/// Where a chain of DataSources ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chain {
    /// At a claim or snapshot in the catalog namespace.
    Catalog(Source),
    /// Elsewhere: outside the catalog, at a DataSource that does not exist, or in a circle.
    Elsewhere,
}

/// How a disk is known to be a clone of a golden.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GoldenLink {
    /// The golden's claim.
    pub(super) golden: NameId,
    /// What says so.
    pub(super) evidence: Evidence,
}

impl GoldenLink {
    /// How surely it is known, surest first: a spec or CDI's own record, a mark, a pointer that may have moved.
    pub(super) const fn rank(self) -> u8 {
        match self.evidence {
            Evidence::Spec | Evidence::CloneRecord => 0,
            Evidence::Mark => 1,
            Evidence::DataSource | Evidence::Identity | Evidence::Unreadable | Evidence::Unknown => 2,
        }
    }
}

/// The longest chain of DataSources that is followed; CDI follows one step.
const LONGEST_CHAIN: usize = 8;

impl Ledger {
    /// Follows a DataSource to its end.
    ///
    /// # Errors
    /// While DataSources are not all known, or where one on the way cannot be read.
    pub fn data_source(&self, namespace: &str, first: &str) -> Known<Chain> {
        self.known(&[Kind::DataSource])?;
        let mut next = self.object(Kind::DataSource, namespace, first);
        for _ in 0..=LONGEST_CHAIN {
            let Some(target) = next.and_then(|row| self.rows.get(row)).and_then(|row| self.rows.key_of(row, Side::Target)) else { break };
            let name = || self.names.get(target.name).to_owned();
            match target.kind {
                GroupKind::Claim => return Ok(Chain::Catalog(Source::Claim(name()))),
                GroupKind::Snapshot => return Ok(Chain::Catalog(Source::Snapshot(name()))),
                GroupKind::DataSource => next = self.target_object(target),
                GroupKind::Anything => return Err(Unknown(format!("DataSource {namespace}/{first} leads to one that cannot be read"))),
                _ => break,
            }
        }
        Ok(Chain::Elsewhere)
    }

    /// The pool a clue leads to.
    ///
    /// # Errors
    /// While VirtualMachines are not all known and the clue names one.
    pub fn pool(&self, namespace: &str, clue: &PoolClue) -> Known<Pool> {
        match clue {
            PoolClue::Here(pool) => Ok(pool.clone()),
            PoolClue::Nothing => Ok(Pool::Unknown),
            PoolClue::Machine(machine) => {
                self.known(&[Kind::VirtualMachine])?;
                let row = self.object(Kind::VirtualMachine, namespace, machine).and_then(|row| self.rows.get(row));
                Ok(row.map_or(Pool::Unknown, |row| self.machine_pool(row)))
            }
        }
    }

    /// The pool of a machine template that does not tell its own, by the MachineDeployments and MachineSets that name it.
    ///
    /// # Errors
    /// While those are not all known.
    pub fn template_pool(&self, namespace: &str, name: &str) -> Known<Pool> {
        self.known(&[Kind::MachineDeployment, Kind::MachineSet])?;
        let key = self.names.find(namespace).zip(self.names.find(name));
        Ok(key.map_or(Pool::Unknown, |(namespace, name)| self.held_by(GroupKey { kind: GroupKind::Template, namespace, name })))
    }

    /// The snapshot's golden, by the claim it was taken of.
    ///
    /// # Errors
    /// While VolumeSnapshots are not all known.
    pub fn snapshot_source(&self, snapshot: &str) -> Known<Option<String>> {
        self.known(&[Kind::Snapshot])?;
        let row = self.object(Kind::Snapshot, &self.catalog_namespace, snapshot).and_then(|row| self.rows.get(row));
        let golden = row.and_then(|row| self.golden_of_target(self.rows.key_of(row, Side::Target)?));
        Ok(golden.map(|name| self.names.get(name).to_owned()))
    }

    /// The object a target names, where the target is an object the ledger keeps.
    fn target_object(&self, target: GroupKey) -> Option<u32> {
        let kind = match target.kind {
            GroupKind::Snapshot => Kind::Snapshot,
            GroupKind::CloneSource => Kind::CloneSource,
            GroupKind::DataSource => Kind::DataSource,
            GroupKind::Template => Kind::MachineTemplate,
            GroupKind::Machine => Kind::VirtualMachine,
            GroupKind::Claim | GroupKind::Identity | GroupKind::Pool | GroupKind::Anything => return None,
        };
        let namespace = if target.namespace == NameId::NONE { self.names.find(&self.catalog_namespace)? } else { target.namespace };
        self.rows.find(ObjectKey { kind, namespace, name: target.name })
    }

    /// The golden's claim a target leads to; of several steps at most [`LONGEST_CHAIN`].
    pub(super) fn golden_of_target(&self, mut target: GroupKey) -> Option<NameId> {
        for _ in 0..=LONGEST_CHAIN {
            if target.kind == GroupKind::Claim {
                return Some(target.name);
            }
            let row = self.rows.get(self.target_object(target)?)?;
            target = self.rows.key_of(row, Side::Target)?;
        }
        None
    }

    /// The golden an object is a clone of: by its spec, else by its mark, else by where its DataSource leads now.
    pub(super) fn golden_of(&self, first: u32) -> Option<GoldenLink> {
        let links = self.rows.chain(first).filter_map(|(_, row)| {
            let golden = self.golden_of_target(self.rows.key_of(row, Side::Target)?)?;
            Some(GoldenLink { golden, evidence: row.evidence })
        });
        links.min_by_key(|link| link.rank())
    }

    /// Whether an object's spec asks for a clone of this golden in a form that is judged: by name, or through DataSources, of which none can
    /// be led there unjudged, and not of a disk that CDI was told is there, which is let in unjudged. Where a disk's mark says that its DataSource led elsewhere when it was made, the mark stands.
    pub(super) fn asked_for(&self, first: u32, golden: NameId) -> bool {
        self.rows.chain(first).any(|(_, row)| {
            let Some(target) = self.rows.key_of(row, Side::Target) else { return false };
            let is_judged = match row.evidence {
                _ if row.is(flag::PREPOPULATED) => false,
                Evidence::Spec => target.kind != GroupKind::CloneSource,
                Evidence::DataSource => row.golden_mark == NameId::NONE || row.golden_mark == golden,
                _ => false,
            };
            is_judged && self.golden_of_target(target) == Some(golden)
        })
    }

    /// The pool an object belongs to (docs/consumers.md), as far as the objects it hangs on are known.
    pub(super) fn pool_of(&self, row: &Row) -> Pool {
        match self.rows.key_of(row, Side::Pool) {
            Some(key) if key.kind == GroupKind::Pool => return self.pool_named(key.name),
            Some(key) => {
                return self.target_object(key).and_then(|row| self.rows.get(row)).map_or(Pool::Unknown, |row| self.machine_pool(row));
            }
            None => {}
        }
        match row.kind {
            Kind::VirtualMachine => self.machine_pool(row),
            Kind::Claim => {
                let volume = self.rows.find(ObjectKey { kind: Kind::DataVolume, namespace: row.namespace, name: row.name });
                volume.and_then(|row| self.rows.get(row)).map_or(Pool::Unknown, |row| self.pool_of(row))
            }
            Kind::MachineTemplate => self.held_by(GroupKey { kind: GroupKind::Template, namespace: row.namespace, name: row.name }),
            _ => Pool::Unknown,
        }
    }

    /// The pool of a VirtualMachine: told by its labels, else the VM itself.
    pub(super) fn machine_pool(&self, row: &Row) -> Pool {
        match self.rows.key_of(row, Side::Pool) {
            Some(key) if key.kind == GroupKind::Pool => self.pool_named(key.name),
            _ => Pool::new(self.names.get(row.namespace), Pool::VIRTUAL_MACHINE, self.names.get(row.name)),
        }
    }

    /// The MachineDeployments and MachineSets that name a machine template.
    pub(super) fn holders(&self, template: &Row) -> impl Iterator<Item = &Row> {
        self.holding(GroupKey { kind: GroupKind::Template, namespace: template.namespace, name: template.name })
    }

    pub(super) fn holding(&self, template: GroupKey) -> impl Iterator<Item = &Row> {
        let rows = self.rows.group(template, Side::Target).map(|(_, row)| row);
        rows.filter(|row| matches!(row.kind, Kind::MachineDeployment | Kind::MachineSet))
    }

    /// The pool of those that name a template; the first by name of several.
    fn held_by(&self, template: GroupKey) -> Pool {
        let pools = self.holding(template).map(|holder| self.pool_of(holder));
        pools.filter(|pool| *pool != Pool::Unknown).min().unwrap_or(Pool::Unknown)
    }

    /// The pool of this text, which was made by a [`Pool`]'s `Display`.
    fn pool_named(&self, name: NameId) -> Pool {
        let mut parts = self.names.get(name).splitn(3, '/');
        match (parts.next(), parts.next(), parts.next()) {
            (Some(namespace), Some(kind), Some(name)) => Pool::new(namespace, kind, name),
            _ => Pool::Unknown,
        }
    }
}

/// The error of a look-up that needs a kind the ledger does not know.
pub(super) fn pool_unknown(unknown: Unknown, pool: &Pool) -> Unknown {
    Unknown(format!("what pool {pool} uses is not known: {}", unknown.0))
}
