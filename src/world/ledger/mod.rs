//! The consumer ledger: who needs a golden, answered from memory (R22).
//!
//! A pure index. Watch events go in ([`Ledger::begin`], [`Ledger::apply`], [`Ledger::delete`], [`Ledger::commit`]); look-ups come out, each *known* or *why unknown*. Objects that name no golden and belong to no pool are not stored; the others take a row of about a hundred bytes each, because a cache of their metadata would take 4.5 kB an object.
//!
//! What follows from two objects (a claim's pool from its VM's labels, a clone's golden through a DataSource) is never stored but followed at look-up, so that the order in which events arrive does not matter.

mod answers;
mod clones;
mod facts;
mod links;
mod names;
#[cfg(test)]
mod order_tests;
mod pages;
mod rows;
#[cfg(test)]
mod tests;
mod todo;

use kube::runtime::watcher;

use self::{
    names::{NameId, Names},
    rows::{GroupKey, GroupKind, Link, NONE, ObjectKey, Row, Rows, Side, flag},
};
use super::evidence::{Observe, anything};
use crate::rules::{
    clone::{Known, Unknown},
    pool::PoolClue,
};

pub use answers::{Counts, GoldenKey, Storage};
pub use clones::{CloneEnd, EndedClone, RunningClone};
pub use facts::{DiskProgress, Facts, Kind, Reference, Target, format_uid, parse_uid};
pub use links::Chain;
pub use todo::{MarkRepair, UnrecordedTemplate, Walk};

/// The group of what may refer to anything.
const ANYTHING: GroupKey = GroupKey { kind: GroupKind::Anything, namespace: NameId::NONE, name: NameId::NONE };

/// How well one kind is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KindState {
    /// Nothing has been read yet.
    Unread,
    /// A list is being read; what was known before may be stale.
    Reading,
    /// All is known.
    Ready,
    /// Its watch is broken, refused or silent: what was known may be stale.
    Stale,
    /// The cluster has no such kind, so there are none.
    NotInstalled,
}

impl KindState {
    /// Whether "none" may be said of this kind.
    const fn is_known(self) -> bool {
        matches!(self, Self::Ready | Self::NotInstalled)
    }
}

#[derive(Debug, Clone)]
struct KindEpoch {
    state: KindState,
    epoch: u32,
    /// Why its watch cannot be believed now, whatever it said before.
    doubt: Option<String>,
}

/// The index of consumers.
pub struct Ledger {
    catalog_namespace: String,
    names: Names,
    rows: Rows,
    kinds: [KindEpoch; Kind::ALL.len()],
    ends: Option<clones::Ends>,
}

impl Ledger {
    /// An empty ledger, in which every kind is still to be read.
    pub fn new(catalog_namespace: impl Into<String>) -> Self {
        let unread = || KindEpoch { state: KindState::Unread, epoch: 0, doubt: None };
        Self {
            catalog_namespace: catalog_namespace.into(),
            names: Names::default(),
            rows: Rows::default(),
            kinds: Kind::ALL.map(|_| unread()),
            ends: None,
        }
    }

    /// The namespace the goldens are in.
    pub fn catalog_namespace(&self) -> &str {
        &self.catalog_namespace
    }

    /// Takes one watch event.
    pub fn watch_event<K: Observe>(&mut self, event: &watcher::Event<K>) {
        match event {
            watcher::Event::Init => self.begin(K::KIND),
            watcher::Event::InitDone => self.commit(K::KIND),
            watcher::Event::Apply(object) | watcher::Event::InitApply(object) => self.observe(object),
            watcher::Event::Delete(object) => {
                let meta = object.meta();
                self.delete(K::KIND, meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
            }
        }
    }

    /// Takes an object as it is now.
    pub fn observe<K: Observe>(&mut self, object: &K) {
        let facts = object.facts(&self.catalog_namespace);
        let meta = object.meta();
        self.apply(K::KIND, meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default(), facts.as_ref());
    }

    /// A list of this kind begins: what is not seen until [`Self::commit`] is gone.
    pub fn begin(&mut self, kind: Kind) {
        let entry = &mut self.kinds[kind as usize];
        entry.state = KindState::Reading;
        entry.epoch = entry.epoch.wrapping_add(1);
    }

    /// Takes an object's facts as they are now; `None` where nothing of it is to be kept.
    pub fn apply(&mut self, kind: Kind, namespace: &str, name: &str, facts: Option<&Facts>) {
        self.note_end(kind, namespace, name, facts);
        self.delete(kind, namespace, name);
        let Some(facts) = facts else { return };
        let references: Vec<Option<&Reference>> =
            if facts.references.is_empty() { vec![None] } else { facts.references.iter().map(Some).collect() };
        let mut rows = Vec::with_capacity(references.len());
        let mut groups = Vec::with_capacity(references.len());
        for reference in references {
            let target = reference.map(|reference| self.target_key(&reference.target));
            let pool = self.pool_key(namespace, &facts.pool);
            groups.push((target, pool));
            rows.push(self.row(kind, namespace, name, facts, reference));
        }
        // A group's own names are held once, by whichever row makes it.
        let mut made: Vec<GroupKey> = Vec::new();
        for key in groups.iter().flat_map(|(target, pool)| [*target, *pool]).flatten() {
            if self.rows.has_group(key) || made.contains(&key) {
                self.release_group(key);
            } else {
                made.push(key);
            }
        }
        self.rows.insert_chain(rows, groups);
    }

    /// An object is there but cannot be read at all: what was known of it stays, also through the sweep of a list, and it may refer to
    /// anything.
    pub fn unreadable(&mut self, kind: Kind, namespace: &str, name: &str) {
        let epoch = self.kinds[kind as usize].epoch;
        let facts = Facts { references: vec![anything()], ..Facts::default() };
        let Some(first) = self.object(kind, namespace, name) else { return self.apply(kind, namespace, name, Some(&facts)) };
        self.rows.touch(first, epoch);
        let is_told = self.rows.chain(first).any(|(_, row)| self.rows.key_of(row, Side::Target) == Some(ANYTHING));
        if !is_told {
            let row = self.row(kind, namespace, name, &facts, facts.references.first());
            self.rows.append(first, row, ANYTHING);
        }
    }

    /// Forgets an object.
    pub fn delete(&mut self, kind: Kind, namespace: &str, name: &str) {
        let Some(first) = self.object(kind, namespace, name) else { return };
        self.remove(first);
    }

    /// The list of this kind has ended: sweeps what was not seen in it.
    pub fn commit(&mut self, kind: Kind) {
        let epoch = self.kinds[kind as usize].epoch;
        self.sweep(|row| row.kind == kind && row.epoch != epoch);
        self.kinds[kind as usize].state = KindState::Ready;
    }

    /// The cluster has no such kind (any more).
    pub fn not_installed(&mut self, kind: Kind) {
        self.sweep(|row| row.kind == kind);
        self.kinds[kind as usize].state = KindState::NotInstalled;
    }

    /// Says why the kind's watch cannot be believed now, or that it can; look-ups that need it say so until it can.
    pub fn doubt(&mut self, kind: Kind, why: Option<String>) {
        self.kinds[kind as usize].doubt = why;
    }

    /// Why the kind's watch cannot be believed now.
    pub fn doubted(&self, kind: Kind) -> Option<&str> {
        self.kinds[kind as usize].doubt.as_deref()
    }

    /// How well a kind is known.
    pub fn state(&self, kind: Kind) -> KindState {
        let entry = &self.kinds[kind as usize];
        if entry.state.is_known() && entry.doubt.is_some() { KindState::Stale } else { entry.state }
    }

    /// Whether all is known of these kinds.
    ///
    /// # Errors
    /// Names the kinds of which it is not, and why.
    pub fn known(&self, kinds: &[Kind]) -> Known<()> {
        let missing: Vec<String> = kinds
            .iter()
            .filter(|kind| !self.state(**kind).is_known())
            .map(|kind| match (self.doubted(*kind), self.state(*kind)) {
                (Some(why), _) => why.to_owned(),
                (None, KindState::Unread) => format!("{kind}s have not been read yet"),
                (None, _) => format!("{kind}s are being read"),
            })
            .collect();
        if missing.is_empty() { Ok(()) } else { Err(Unknown(missing.join(", "))) }
    }

    /// How many rows there are: one for each reference of each object that is kept.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.rows.len() == 0
    }

    /// Bytes on the heap, counted from the sizes of what is allocated.
    pub fn heap_bytes(&self) -> usize {
        self.names.heap_bytes() + self.rows.heap_bytes()
    }

    /// How many texts are stored, for the test that none outlives its objects.
    pub fn names(&self) -> usize {
        self.names.len()
    }

    fn row(&mut self, kind: Kind, namespace: &str, name: &str, facts: &Facts, reference: Option<&Reference>) -> Row {
        let bits = [
            (facts.is_terminating, flag::TERMINATING),
            (facts.progress.has_ended, flag::ENDED),
            (facts.progress.is_bound, flag::BOUND),
            (facts.progress.is_lost, flag::LOST),
            (facts.progress.waits, flag::WAITS),
            (facts.lacks_class, flag::LACKS_CLASS),
            (facts.progress.is_prepopulated, flag::PREPOPULATED),
            (facts.is_block, flag::BLOCK),
        ];
        Row {
            uid: facts.uid.unwrap_or(0).to_be_bytes(),
            namespace: self.names.hold(namespace),
            name: self.names.hold(name),
            next: NONE,
            target: Link::NONE,
            pool: Link::NONE,
            golden_mark: self.names.hold_some(facts.golden_mark.as_deref()),
            pool_mark: self.names.hold_some(facts.pool_mark.as_deref()),
            class: self.names.hold_some(facts.class.as_deref()),
            driver: self.names.hold_some(facts.driver.as_deref()),
            created: u32::try_from(facts.created.max(0)).unwrap_or(u32::MAX),
            epoch: self.kinds[kind as usize].epoch,
            copied: facts.progress.copied,
            kind,
            evidence: reference.map_or(crate::rules::consumers::Evidence::Spec, |reference| reference.evidence),
            flags: bits.iter().filter(|(is, _)| *is).fold(0, |flags, (_, bit)| flags | bit),
        }
    }

    /// The key of a target, with its names held.
    fn target_key(&mut self, target: &Target) -> GroupKey {
        let mut key = |kind, namespace: Option<&str>, name: &str| GroupKey {
            kind,
            namespace: self.names.hold_some(namespace),
            name: self.names.hold(name),
        };
        match target {
            Target::Claim(name) => key(GroupKind::Claim, None, name),
            Target::Snapshot(name) => key(GroupKind::Snapshot, None, name),
            Target::CloneSource(name) => key(GroupKind::CloneSource, None, name),
            Target::DataSource { namespace, name } => key(GroupKind::DataSource, Some(namespace), name),
            Target::Identity(identity) => key(GroupKind::Identity, None, identity),
            Target::Template { namespace, name } => key(GroupKind::Template, Some(namespace), name),
            Target::Anything => ANYTHING,
        }
    }

    /// The key of the group that tells the pool, with its names held.
    fn pool_key(&mut self, namespace: &str, clue: &PoolClue) -> Option<GroupKey> {
        match clue {
            PoolClue::Here(pool) => {
                let name = self.names.hold(&pool.to_string());
                Some(GroupKey { kind: GroupKind::Pool, namespace: NameId::NONE, name })
            }
            PoolClue::Machine(machine) => {
                let (namespace, name) = (self.names.hold(namespace), self.names.hold(machine));
                Some(GroupKey { kind: GroupKind::Machine, namespace, name })
            }
            PoolClue::Nothing => None,
        }
    }

    fn release_group(&mut self, key: GroupKey) {
        self.names.release(key.namespace);
        self.names.release(key.name);
    }

    /// Whether anything is kept of this object.
    pub fn has(&self, kind: Kind, namespace: &str, name: &str) -> bool {
        self.object(kind, namespace, name).is_some()
    }

    /// The first row of an object.
    fn object(&self, kind: Kind, namespace: &str, name: &str) -> Option<u32> {
        let (namespace, name) = (self.names.find(namespace)?, self.names.find(name)?);
        self.rows.find(ObjectKey { kind, namespace, name })
    }

    fn remove(&mut self, first: u32) {
        let (rows, groups) = self.rows.remove_chain(first);
        for row in rows {
            for name in [row.namespace, row.name, row.golden_mark, row.pool_mark, row.class, row.driver] {
                self.names.release(name);
            }
        }
        for key in groups {
            self.release_group(key);
        }
    }

    fn sweep(&mut self, gone: impl Fn(&Row) -> bool) {
        for row in 0..self.rows.end() {
            if self.rows.get(row).is_some_and(&gone) && self.rows.is_first(row) {
                self.remove(row);
            }
        }
    }
}
