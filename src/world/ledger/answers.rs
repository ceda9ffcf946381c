//! Who needs a golden, and what a pool is like.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::{
    ANYTHING, Ledger,
    facts::{Kind, format_uid},
    links::pool_unknown,
    names::NameId,
    rows::{GroupKey, GroupKind, ObjectKey, Row, Side, flag},
};
use crate::{
    model::Identity,
    rules::{
        class::Classes,
        clone::{Known, PoolFacts},
        consumers::{
            Consumer, ConsumerKind, Consumers, DiskClaim, DiskVolume, Evidence, Standing, disk_standing, other_standing, template_standing,
            unknown_standing,
        },
        copied::CopyCause,
        dependence::{CloneVolume, Copied, Dependence, Make, dependence},
        freeze::{PoolDisk, PoolTemplate, frozen_class},
        pool::Pool,
    },
};

/// A golden, as consumers name it.
#[derive(Debug, Clone, Copy)]
pub struct GoldenKey<'a> {
    /// Its claim's name.
    pub name: &'a str,
    /// Its image's identity, by which worker classes name it.
    pub identity: Option<&'a Identity>,
}

impl<'a> GoldenKey<'a> {
    /// A golden without a known identity.
    pub const fn named(name: &'a str) -> Self {
        Self { name, identity: None }
    }
}

/// What tells whether a finished clone depends on its golden, and the time.
#[derive(Debug, Clone, Copy)]
pub struct Storage<'a> {
    /// The cluster's classes, for disks whose driver is not recorded on them.
    pub classes: &'a Classes,
    /// Classes whose clones stand alone, by the hoster's word.
    pub independent: &'a BTreeSet<String>,
    /// Now, in seconds since 1970.
    pub now: i64,
}

/// A golden's consumers in numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Disks.
    pub clones: usize,
    /// Pools that are known by name.
    pub pools: usize,
    /// VirtualMachines.
    pub virtual_machines: usize,
    /// Machine templates.
    pub templates: usize,
    /// Namespaces.
    pub namespaces: usize,
    /// Consumers that keep the golden.
    pub blocking: usize,
    /// All consumers.
    pub all: usize,
    /// When the newest disk was created, in seconds since 1970.
    pub last_clone: Option<i64>,
    /// Consumers by kind, for metrics.
    pub by_kind: BTreeMap<ConsumerKind, usize>,
    /// Disks that came over the network, by cause, for metrics.
    pub copied: BTreeMap<CopyCause, usize>,
}

impl Counts {
    /// Counts consumers.
    pub fn of(consumers: &Consumers) -> Self {
        let mut counts = Self { blocking: consumers.blocking(), ..Self::default() };
        let mut namespaces = BTreeSet::new();
        for consumer in consumers.iter() {
            counts.all += 1;
            *counts.by_kind.entry(consumer.kind).or_default() += 1;
            if !consumer.namespace.is_empty() {
                namespaces.insert(&consumer.namespace);
            }
            if let Some(cause) = consumer.copied {
                *counts.copied.entry(cause).or_default() += 1;
            }
            if consumer.kind == ConsumerKind::Disk {
                counts.last_clone = counts.last_clone.max(Some(consumer.created));
            }
        }
        let of = |kind| counts.by_kind.get(&kind).copied().unwrap_or_default();
        (counts.clones, counts.virtual_machines) = (of(ConsumerKind::Disk), of(ConsumerKind::VirtualMachine));
        counts.templates = of(ConsumerKind::MachineTemplate);
        counts.namespaces = namespaces.len();
        counts.pools = consumers.pools.iter().filter(|pool| pool.pool != Pool::Unknown).count();
        counts
    }
}

/// Kinds of which something must be known before a pool's class or use of a golden is.
const POOL_KINDS: [Kind; 6] =
    [Kind::DataVolume, Kind::Claim, Kind::VirtualMachine, Kind::MachineTemplate, Kind::MachineDeployment, Kind::MachineSet];

/// A disk's two objects.
#[derive(Default, Clone, Copy)]
struct Disk<'a> {
    volume: Option<&'a Row>,
    claim: Option<&'a Row>,
}

impl Disk<'_> {
    /// Why it came over the network; the claim tells the cause, the DataVolume only that it did.
    fn copied(self) -> Option<CopyCause> {
        self.claim.and_then(|claim| claim.copied).or_else(|| self.volume?.copied)
    }
}

impl Ledger {
    /// Who needs this golden, grouped by pool, blockers first (R22).
    ///
    /// # Errors
    /// While any kind is not all known; [`Self::consumers_seen`] tells what is known so far.
    pub fn consumers(&self, golden: GoldenKey<'_>, storage: Storage<'_>) -> Known<Consumers> {
        self.known(&Kind::ALL)?;
        Ok(self.consumers_seen(golden, storage))
    }

    /// Who needs any of these goldens of one image.
    ///
    /// # Errors
    /// As [`Self::consumers`].
    pub fn consumers_of<'a>(&self, goldens: impl IntoIterator<Item = GoldenKey<'a>>, storage: Storage<'_>) -> Known<Consumers> {
        self.known(&Kind::ALL)?;
        Ok(Consumers::merge(goldens.into_iter().map(|golden| self.consumers_seen(golden, storage))))
    }

    /// The consumers that have been seen; there may be more. Enough to say "in use", never to say "free".
    pub fn consumers_seen(&self, golden: GoldenKey<'_>, storage: Storage<'_>) -> Consumers {
        let mut disks: BTreeMap<(NameId, NameId), Evidence> = BTreeMap::new();
        let mut others: BTreeMap<(Kind, NameId, NameId), (u32, Evidence)> = BTreeMap::new();
        for (row, evidence) in self.referring(golden) {
            let Some(found) = self.rows.get(row) else { continue };
            match found.kind {
                Kind::DataVolume | Kind::Claim => {
                    let known = disks.entry((found.namespace, found.name)).or_insert(evidence);
                    *known = evidence.min(*known);
                }
                kind => {
                    let known = others.entry((kind, found.namespace, found.name)).or_insert((row, evidence));
                    known.1 = evidence.min(known.1);
                }
            }
        }
        let mut flying: HashSet<u128> = HashSet::new();
        let mut consumers: Vec<Consumer> = Vec::with_capacity(disks.len() + others.len());
        let golden_name = self.names.find(golden.name);
        let golden_claim = self.object(Kind::Claim, &self.catalog_namespace, golden.name).and_then(|row| self.rows.get(row));
        for ((namespace, name), evidence) in disks {
            let disk = self.disk(namespace, name);
            if evidence >= Evidence::Mark && self.is_another_goldens(disk, golden_name) {
                continue;
            }
            flying.extend(disk.volume.map(|volume| u128::from_be_bytes(volume.uid)));
            consumers.extend(self.disk_consumer(disk, golden_claim, evidence, storage));
        }
        for (row, evidence) in others.into_values() {
            let Some(row) = self.rows.get(row) else { continue };
            if row.kind == Kind::CloneSource && self.clone_source_uid(row).is_some_and(|uid| flying.contains(&uid)) {
                continue;
            }
            consumers.extend(self.other_consumer(row, evidence, storage));
        }
        Consumers::group(consumers)
    }

    /// What a verdict reads of a pool: its frozen class (R15) and whether it uses the golden already (R23).
    ///
    /// # Errors
    /// While kinds that tell it are not all known.
    pub fn pool_facts(&self, pool: &Pool, golden: &str) -> Known<PoolFacts> {
        if *pool == Pool::Unknown {
            return Ok(PoolFacts::default());
        }
        self.known(&POOL_KINDS).map_err(|unknown| pool_unknown(unknown, pool))?;
        let members = self.members(pool);
        let golden = self.names.find(golden);
        let (mut disks, mut templates, mut uses_golden) = (Vec::new(), Vec::new(), false);
        for member in members {
            let Some(row) = self.rows.get(member) else { continue };
            let is_clone = self.golden_of(member).or_else(|| self.golden_of_volume(row));
            uses_golden |= golden.is_some_and(|golden| self.uses(member, row, golden));
            let (class, created) = (self.names.get(row.class), i64::from(row.created));
            match row.kind {
                Kind::Claim => disks.push(PoolDisk { class, is_bound: row.is(flag::BOUND), created, is_clone: is_clone.is_some() }),
                Kind::MachineTemplate => templates.push(PoolTemplate { class: Some(class), created }),
                _ => {}
            }
        }
        Ok(PoolFacts { class: frozen_class(disks, templates), uses_golden })
    }

    /// Whether a member of a pool proves that the pool uses the golden (R23): what it or its DataVolume clones was judged when it was asked
    /// for. Marks and records on a disk may be whatever a tenant writes on it; they keep a golden, and open no way to it. Nor does what is
    /// going away, be it the DataVolume alone.
    fn uses(&self, member: u32, row: &Row, golden: NameId) -> bool {
        let volume = ObjectKey { kind: Kind::DataVolume, namespace: row.namespace, name: row.name };
        let volume = self.rows.find(volume).filter(|_| row.kind == Kind::Claim);
        let stays = |first: u32| self.rows.get(first).is_some_and(|row| !row.is(flag::TERMINATING));
        stays(member) && [Some(member), volume].into_iter().flatten().any(|first| stays(first) && self.asked_for(first, golden))
    }

    /// Whether a DataVolume of this UID asks for a clone of the golden.
    ///
    /// # Errors
    /// While DataVolumes, or where they lead, are not known.
    pub fn is_asked_by(&self, namespace: &str, volume: &str, uid: &str, golden: &str) -> Known<bool> {
        self.known(&[Kind::DataVolume, Kind::DataSource])?;
        let row = self.object(Kind::DataVolume, namespace, volume);
        let of_uid = row.filter(|row| self.rows.get(*row).is_some_and(|row| super::parse_uid(uid) == Some(u128::from_be_bytes(row.uid))));
        Ok(of_uid.zip(self.names.find(golden)).is_some_and(|(row, golden)| self.asked_for(row, golden)))
    }

    /// All rows that refer to the golden, also through snapshots, DataSources and CDI's records, and those of which nobody can say.
    fn referring(&self, golden: GoldenKey<'_>) -> Vec<(u32, Evidence)> {
        let key = |kind, name| GroupKey { kind, namespace: NameId::NONE, name };
        let mut groups: Vec<GroupKey> = self.names.find(golden.name).map(|name| key(GroupKind::Claim, name)).into_iter().collect();
        groups.extend(golden.identity.and_then(|identity| self.names.find(identity.as_str())).map(|name| key(GroupKind::Identity, name)));
        groups.push(ANYTHING);
        let mut seen: HashSet<GroupKey> = groups.iter().copied().collect();
        let mut found = Vec::new();
        while let Some(group) = groups.pop() {
            for (row, entry) in self.rows.group(group, Side::Target) {
                found.push((row, entry.evidence));
                let next = match entry.kind {
                    Kind::Snapshot => key(GroupKind::Snapshot, entry.name),
                    Kind::CloneSource => key(GroupKind::CloneSource, entry.name),
                    Kind::DataSource => GroupKey { kind: GroupKind::DataSource, namespace: entry.namespace, name: entry.name },
                    _ => continue,
                };
                if seen.insert(next) {
                    groups.push(next);
                }
            }
        }
        found
    }

    fn disk(&self, namespace: NameId, name: NameId) -> Disk<'_> {
        let find = |kind| self.rows.find(ObjectKey { kind, namespace, name }).and_then(|row| self.rows.get(row));
        Disk { volume: find(Kind::DataVolume), claim: find(Kind::Claim) }
    }

    /// Whether a disk that only a mark counts here is by its DataVolume's spec a clone of another golden: evidence is the spec.
    fn is_another_goldens(&self, disk: Disk<'_>, golden: Option<NameId>) -> bool {
        let Some(volume) = disk.volume else { return false };
        let key = ObjectKey { kind: Kind::DataVolume, namespace: volume.namespace, name: volume.name };
        let link = self.rows.find(key).and_then(|row| self.golden_of(row));
        link.is_some_and(|link| link.evidence == Evidence::Spec && Some(link.golden) != golden)
    }

    /// The golden a claim's DataVolume is a clone of.
    fn golden_of_volume(&self, row: &Row) -> Option<super::links::GoldenLink> {
        let key = ObjectKey { kind: Kind::DataVolume, namespace: row.namespace, name: row.name };
        self.golden_of(self.rows.find(key).filter(|_| row.kind == Kind::Claim)?)
    }

    fn disk_consumer(&self, disk: Disk<'_>, golden: Option<&Row>, evidence: Evidence, storage: Storage<'_>) -> Option<Consumer> {
        let row = disk.volume.or(disk.claim)?;
        let volume = disk.volume.map(|row| DiskVolume {
            has_ended: row.is(flag::ENDED),
            is_prepopulated: row.is(flag::PREPOPULATED),
            is_terminating: row.is(flag::TERMINATING),
        });
        let claim = disk.claim.map(|row| DiskClaim {
            is_bound: row.is(flag::BOUND),
            is_lost: row.is(flag::LOST),
            is_terminating: row.is(flag::TERMINATING),
        });
        let standing = match evidence {
            Evidence::Unreadable => other_standing(ConsumerKind::Disk, false, Dependence::Unknown),
            Evidence::Unknown => unknown_standing(ConsumerKind::Disk, false),
            _ => disk_standing(volume, claim, self.dependence(disk, golden, storage)),
        };
        // A further target of ours, made from this golden: while it is filled it needs the golden, afterwards it is a golden itself.
        if standing == Standing::Listed && self.names.get(row.namespace) == self.catalog_namespace {
            return None;
        }
        let pools = [disk.volume, disk.claim].into_iter().flatten().map(|row| self.pool_of(row));
        let pool = pools.into_iter().find(|pool| *pool != Pool::Unknown).unwrap_or(Pool::Unknown);
        Some(Consumer { copied: disk.copied(), ..self.consumer(row, ConsumerKind::Disk, pool, evidence, standing) })
    }

    fn other_consumer(&self, row: &Row, evidence: Evidence, storage: Storage<'_>) -> Option<Consumer> {
        let terminating = row.is(flag::TERMINATING);
        let (kind, standing) = match row.kind {
            Kind::MachineTemplate => {
                // What holds templates and cannot be read may hold this one.
                let held = self.holders(row).next().is_some() || self.holding(ANYTHING).next().is_some();
                // Until all holders are known a template counts as held.
                let held = held || self.known(&[Kind::MachineDeployment, Kind::MachineSet]).is_err();
                (ConsumerKind::MachineTemplate, template_standing(held, terminating, storage.now - i64::from(row.created)))
            }
            kind => {
                let kind = match kind {
                    Kind::VirtualMachine => ConsumerKind::VirtualMachine,
                    Kind::WorkerClass => ConsumerKind::WorkerClass,
                    Kind::Snapshot => ConsumerKind::Snapshot,
                    Kind::CloneSource => ConsumerKind::CloneInFlight,
                    Kind::DataSource => ConsumerKind::DataSource,
                    _ => return None,
                };
                // A snapshot's driver is not kept, so it counts as unknown unless its class stands alone.
                (kind, other_standing(kind, terminating, Dependence::Unknown))
            }
        };
        let standing = if evidence == Evidence::Unknown { unknown_standing(kind, terminating) } else { standing };
        Some(self.consumer(row, kind, self.pool_of(row), evidence, standing))
    }

    fn consumer(&self, row: &Row, kind: ConsumerKind, pool: Pool, evidence: Evidence, standing: Standing) -> Consumer {
        let text = |id| self.names.get(id).to_owned();
        let (namespace, name, created) = (text(row.namespace), text(row.name), i64::from(row.created));
        Consumer { kind, namespace, name, pool, evidence, standing, created, copied: None }
    }

    fn dependence(&self, disk: Disk<'_>, golden: Option<&Row>, storage: Storage<'_>) -> Dependence {
        let text = |id: NameId| id.some().map(|id| self.names.get(id));
        let class = disk.claim.and_then(|claim| text(claim.class));
        let provisioner = |claim: &Row| Some(storage.classes.get(text(claim.class)?)?.provisioner.as_str());
        let make = |claim: &Row| Make { provisioner: provisioner(claim), is_block: claim.is(flag::BLOCK) };
        let row = disk.volume.or(disk.claim);
        let copied = match disk.copied() {
            None => Copied::No,
            // Nobody but CDI and this daemon writes there.
            Some(_) if row.is_some_and(|row| self.names.get(row.namespace) == self.catalog_namespace) => Copied::Proven,
            Some(_) => disk.claim.map_or(Copied::Said, |claim| Copied::of(make(claim), golden.map(make))),
        };
        let recorded = disk.claim.and_then(|claim| text(claim.driver));
        dependence(CloneVolume { recorded, provisioner: disk.claim.and_then(provisioner), class, copied }, storage.independent)
    }

    /// The UID of the DataVolume a VolumeCloneSource belongs to, which CDI puts into its name.
    fn clone_source_uid(&self, row: &Row) -> Option<u128> {
        super::parse_uid(self.names.get(row.name).strip_prefix("volume-clone-source-")?)
    }

    /// All objects of a pool, by their first rows: those that say so, and what hangs on them.
    fn members(&self, pool: &Pool) -> HashSet<u32> {
        let pool_key = self.names.find(&pool.to_string()).map(|name| GroupKey { kind: GroupKind::Pool, namespace: NameId::NONE, name });
        let mut todo: Vec<u32> = pool_key.into_iter().flat_map(|key| self.rows.group(key, Side::Pool)).map(|(row, _)| row).collect();
        todo.extend(self.machine_alone(pool));
        let mut found: HashSet<u32> = HashSet::new();
        while let Some(row) = todo.pop() {
            let Some(entry) = self.rows.get(row) else { continue };
            let key = ObjectKey { kind: entry.kind, namespace: entry.namespace, name: entry.name };
            let Some(first) = self.rows.find(key).filter(|first| found.insert(*first)) else { continue };
            // What has a pool of its own is not drawn into another. Asked of each disk of a pool at each verdict: where the row says its
            // pool itself, numbers are compared and no text is made.
            let is_of = |row: &Row| match self.rows.key_of(row, Side::Pool) {
                Some(own) if own.kind == GroupKind::Pool => Some(own) == pool_key,
                _ => self.pool_of(row) == *pool,
            };
            let belongs = |row: &u32| !found.contains(row) && self.rows.get(*row).is_some_and(is_of);
            todo.extend(self.hanging_on(key, first).into_iter().filter(belongs));
        }
        found
    }

    /// The VirtualMachine that is a pool by itself.
    fn machine_alone(&self, pool: &Pool) -> Option<u32> {
        let Pool::Known { namespace, kind, name } = pool else { return None };
        let row = self.object(Kind::VirtualMachine, namespace, name).filter(|_| kind == Pool::VIRTUAL_MACHINE)?;
        self.rows.get(row).filter(|found| self.machine_pool(found) == *pool).map(|_| row)
    }

    /// A VM's disks, a disk's claim, the templates a MachineDeployment or MachineSet names.
    fn hanging_on(&self, key: ObjectKey, first: u32) -> Vec<u32> {
        match key.kind {
            Kind::VirtualMachine => {
                let machine = GroupKey { kind: GroupKind::Machine, namespace: key.namespace, name: key.name };
                self.rows.group(machine, Side::Pool).map(|(row, _)| row).collect()
            }
            Kind::DataVolume => self.rows.find(ObjectKey { kind: Kind::Claim, ..key }).into_iter().collect(),
            Kind::MachineDeployment | Kind::MachineSet => {
                let targets = self.rows.chain(first).filter_map(|(_, row)| self.rows.key_of(row, Side::Target));
                let templates =
                    targets.map(|target| ObjectKey { kind: Kind::MachineTemplate, namespace: target.namespace, name: target.name });
                templates.filter_map(|template| self.rows.find(template)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Everything the ledger knows in lines of text, independent of the order in which it was told: for tests and debugging.
    pub fn dump(&self) -> Vec<String> {
        let text = |id: NameId| id.some().map_or("-", |id| self.names.get(id));
        let group = |key: Option<GroupKey>| {
            key.map_or_else(String::new, |key| format!("{:?} {}/{}", key.kind, text(key.namespace), text(key.name)))
        };
        let line = |row: &Row| {
            let uid = format_uid(u128::from_be_bytes(row.uid));
            let (target, pool) = (group(self.rows.key_of(row, Side::Target)), group(self.rows.key_of(row, Side::Pool)));
            let marks = format!("{} {} {} {}", text(row.golden_mark), text(row.pool_mark), text(row.class), text(row.driver));
            format!(
                "{} {}/{} {uid} -> {target} ({}) of {pool}; {marks} {} {:b}",
                row.kind,
                text(row.namespace),
                text(row.name),
                row.evidence,
                row.created,
                row.flags
            )
        };
        let mut lines: Vec<String> = (0..self.rows.end()).filter_map(|row| self.rows.get(row)).map(line).collect();
        lines.sort();
        lines
    }
}
