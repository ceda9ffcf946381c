//! Who needs a golden, and whether that keeps it from being deleted (R22).
//!
//! Evidence is the spec; an annotation may add a consumer, never remove one.

use std::{collections::BTreeMap, fmt};

use super::{copied::CopyCause, dependence::Dependence, pool::Pool};

/// What kind of thing clones a golden or is set to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConsumerKind {
    /// A machine template of a worker pool, scaled to zero or not.
    MachineTemplate,
    /// A VM whose disks are made from it, running or stopped.
    VirtualMachine,
    /// A worker class whose image it is.
    WorkerClass,
    /// A disk: DataVolume, claim, or both.
    Disk,
    /// CDI's record of a clone in flight whose disk is not known.
    CloneInFlight,
    /// A snapshot of it.
    Snapshot,
    /// A pointer to it, which clones nothing by itself.
    DataSource,
}

impl ConsumerKind {
    /// Kubernetes' name of the kind; a disk is a DataVolume or, where that is gone, its claim.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MachineTemplate => "KubevirtMachineTemplate",
            Self::VirtualMachine => "VirtualMachine",
            Self::WorkerClass => "WorkerClass",
            Self::Disk => "Disk",
            Self::CloneInFlight => "VolumeCloneSource",
            Self::Snapshot => "VolumeSnapshot",
            Self::DataSource => "DataSource",
        }
    }
}

/// What says that a golden is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Evidence {
    /// The spec names the claim, or a snapshot of it.
    Spec,
    /// The spec names a DataSource that leads to it now.
    DataSource,
    /// A worker class names its identity.
    Identity,
    /// CDI's record of a clone names it.
    CloneRecord,
    /// Only the annotation names it: the DataVolume is gone, or a pointer has moved on.
    Mark,
    /// The spec cannot be read, and the golden's name stands in it.
    Unreadable,
    /// It cannot be read, and nothing says that it is not of this golden: unknown is never none.
    Unknown,
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Spec => "by spec",
            Self::DataSource => "by DataSource",
            Self::Identity => "by identity",
            Self::CloneRecord => "by CDI's record",
            Self::Mark => "by mark",
            Self::Unreadable => "by its name in an unreadable spec",
            Self::Unknown => "not known: it cannot be read",
        })
    }
}

/// Why a consumer keeps its golden.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Why {
    /// Its clone has not ended.
    CloneRunning,
    /// It is being deleted, but its clone has not ended: only a matter of waiting.
    OnlyWaiting,
    /// New machines are made from it.
    MakesMachines,
    /// KubeVirt makes its disk again when it goes.
    MakesDisks,
    /// Pools choose it.
    IsChosen,
    /// Its volume is built on the golden's.
    Depends,
    /// Nothing is known of its driver, so its volume may be built on the golden's.
    MayDepend,
    /// Only an annotation says that it was copied over the network, so its volume may be built on the golden's.
    MayBeNoCopy,
    /// It cannot be read.
    Unreadable,
    /// It cannot be read, and may be of any golden.
    MayBeOfAny,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CloneRunning => "its clone has not finished",
            Self::OnlyWaiting => "it is being deleted and only its clone is waited for",
            Self::MakesMachines => "new machines clone the golden",
            Self::MakesDisks => "its disk is made from the golden again when it goes",
            Self::IsChosen => "pools of this class clone the golden",
            Self::Depends => "its volume is built on the golden's",
            Self::MayDepend => "its driver is not known, so its volume may be built on the golden's",
            Self::MayBeNoCopy => {
                "only its annotation says that it was copied over the network, which anybody may have written; its volume may be built on the golden's"
            }
            Self::Unreadable => "it cannot be read",
            Self::MayBeOfAny => "it cannot be read, so it may need any golden: correct or delete it",
        })
    }
}

/// Where a consumer stands towards its golden.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It keeps the golden.
    Blocks(Why),
    /// It is told, but does not keep the golden.
    Listed,
    /// It is going and does not count.
    Gone,
}

/// A disk's DataVolume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskVolume {
    /// Whether CDI is done with it: Succeeded and not unbound again, or lost.
    pub has_ended: bool,
    /// Whether CDI is told that its disk is there, and begins no clone for it.
    pub is_prepopulated: bool,
    /// Whether it is being deleted.
    pub is_terminating: bool,
}

/// A disk's claim.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskClaim {
    /// Whether it is bound.
    pub is_bound: bool,
    /// Whether its volume is lost.
    pub is_lost: bool,
    /// Whether it is being deleted.
    pub is_terminating: bool,
}

/// The standing of a disk (R22): it blocks while its clone runs, and afterwards while its volume depends on the golden's.
///
/// A disk is going only when its claim is too: a DataVolume deleted with `--cascade=orphan` leaves a live claim. One that CDI was told is there clones nothing while it has no claim; a claim that is not bound yet may be filled by a clone that was begun before CDI was told so.
pub fn disk_standing(volume: Option<DiskVolume>, claim: Option<DiskClaim>, dependence: Dependence) -> Standing {
    let told = volume.filter(|volume| volume.is_prepopulated && !volume.has_ended);
    if told.is_some() && claim.is_none() {
        return if told.is_some_and(|volume| volume.is_terminating) { Standing::Gone } else { Standing::Listed };
    }
    let has_ended = match volume {
        Some(volume) if told.is_none() => volume.has_ended,
        _ => claim.is_none_or(|claim| claim.is_bound || claim.is_lost),
    };
    let is_going = volume.is_none_or(|volume| volume.is_terminating) && claim.is_none_or(|claim| claim.is_terminating);
    match (has_ended, is_going) {
        (false, false) => Standing::Blocks(Why::CloneRunning),
        (false, true) => Standing::Blocks(Why::OnlyWaiting),
        (true, true) => Standing::Gone,
        (true, false) if claim.is_some_and(|claim| claim.is_lost) => Standing::Listed,
        (true, false) => volume_standing(dependence),
    }
}

const fn volume_standing(dependence: Dependence) -> Standing {
    match dependence {
        Dependence::Depends => Standing::Blocks(Why::Depends),
        Dependence::Unknown => Standing::Blocks(Why::MayDepend),
        Dependence::Unproven => Standing::Blocks(Why::MayBeNoCopy),
        Dependence::Independent => Standing::Listed,
    }
}

/// How long a machine template that nothing holds still counts, in seconds: a release creates the template before the MachineDeployment that names it.
pub const TEMPLATE_GRACE: i64 = 60 * 60;

/// The standing of a machine template (R22): it lives while a MachineDeployment or MachineSet names it, or while it is new. `age` is in seconds.
pub const fn template_standing(is_held: bool, is_terminating: bool, age: i64) -> Standing {
    // Cluster API makes machines from a template that is going away too.
    if is_held {
        Standing::Blocks(Why::MakesMachines)
    } else if is_terminating {
        Standing::Gone
    } else if age < TEMPLATE_GRACE {
        Standing::Blocks(Why::MakesMachines)
    } else {
        Standing::Listed
    }
}

/// The standing of everything that is neither disk nor machine template (R22).
///
/// A worker class blocks also while it is being deleted: its finalizer stands as long as pools name it.
pub const fn other_standing(kind: ConsumerKind, is_terminating: bool, dependence: Dependence) -> Standing {
    match kind {
        ConsumerKind::WorkerClass => Standing::Blocks(Why::IsChosen),
        ConsumerKind::CloneInFlight => Standing::Blocks(Why::CloneRunning),
        _ if is_terminating => Standing::Gone,
        ConsumerKind::VirtualMachine => Standing::Blocks(Why::MakesDisks),
        ConsumerKind::MachineTemplate => Standing::Blocks(Why::MakesMachines),
        ConsumerKind::Snapshot => volume_standing(dependence),
        ConsumerKind::Disk => Standing::Blocks(Why::Unreadable),
        ConsumerKind::DataSource => Standing::Listed,
    }
}

/// The standing of what cannot be read and may need any golden (R22): it keeps them all, until somebody corrects or deletes it. A DataSource clones nothing by itself; what follows it counts for itself.
pub const fn unknown_standing(kind: ConsumerKind, is_terminating: bool) -> Standing {
    match kind {
        ConsumerKind::DataSource => Standing::Listed,
        // What has ended cannot be told either, of a disk that is being deleted.
        ConsumerKind::VirtualMachine | ConsumerKind::MachineTemplate | ConsumerKind::Snapshot if is_terminating => Standing::Gone,
        _ => Standing::Blocks(Why::MayBeOfAny),
    }
}

/// One consumer of a golden.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Consumer {
    /// Its kind.
    pub kind: ConsumerKind,
    /// Its namespace; empty for a cluster-scoped kind.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Whom it belongs to.
    pub pool: Pool,
    /// What says that it uses the golden.
    pub evidence: Evidence,
    /// Where it stands.
    pub standing: Standing,
    /// When it was created, in seconds since 1970.
    pub created: i64,
    /// Why a disk's content came over the network instead of by a clone in storage.
    pub copied: Option<CopyCause>,
}

impl Consumer {
    /// Why it keeps the golden, if it does.
    pub const fn blocks(&self) -> Option<Why> {
        match self.standing {
            Standing::Blocks(why) => Some(why),
            Standing::Listed | Standing::Gone => None,
        }
    }
}

impl fmt::Display for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.kind.as_str())?;
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)?;
        self.blocks().map_or(Ok(()), |why| write!(f, " ({why})"))
    }
}

/// What one pool uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolUse {
    /// The pool.
    pub pool: Pool,
    /// Its consumers, blockers first.
    pub consumers: Vec<Consumer>,
    /// How many of them block.
    pub blocking: usize,
}

/// The consumers of a golden, grouped by pool; pools with blockers first, then by name, the unknown pool last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Consumers {
    /// The pools.
    pub pools: Vec<PoolUse>,
}

impl Consumers {
    /// Groups and orders consumers; those that are gone are left out.
    pub fn group(consumers: impl IntoIterator<Item = Consumer>) -> Self {
        let mut pools: BTreeMap<Pool, Vec<Consumer>> = BTreeMap::new();
        for consumer in consumers {
            if consumer.standing != Standing::Gone {
                pools.entry(consumer.pool.clone()).or_default().push(consumer);
            }
        }
        let mut pools: Vec<PoolUse> = pools
            .into_iter()
            .map(|(pool, mut consumers)| {
                consumers.sort_by(|a, b| key(a).cmp(&key(b)));
                let blocking = consumers.iter().filter(|consumer| consumer.blocks().is_some()).count();
                PoolUse { pool, consumers, blocking }
            })
            .collect();
        pools.sort_by(|a, b| (a.blocking == 0, &a.pool).cmp(&(b.blocking == 0, &b.pool)));
        Self { pools }
    }

    /// The consumers of several goldens as those of one image: what uses two of them is told once, with its strongest standing.
    pub fn merge(all: impl IntoIterator<Item = Self>) -> Self {
        let mut found: BTreeMap<(ConsumerKind, String, String), Consumer> = BTreeMap::new();
        for consumer in all.into_iter().flat_map(|consumers| consumers.pools).flat_map(|pool| pool.consumers) {
            let key = (consumer.kind, consumer.namespace.clone(), consumer.name.clone());
            let known = found.get(&key).is_some_and(|known| known.blocks().is_some() || consumer.blocks().is_none());
            if !known {
                found.insert(key, consumer);
            }
        }
        Self::group(found.into_values())
    }

    /// All consumers, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Consumer> {
        self.pools.iter().flat_map(|pool| &pool.consumers)
    }

    /// How many consumers keep the golden.
    pub fn blocking(&self) -> usize {
        self.pools.iter().map(|pool| pool.blocking).sum()
    }

    /// The blockers in words, by pool: up to `most` pools, then "and N more". `None` where nothing blocks.
    pub fn blockers(&self, most: usize) -> Option<String> {
        let blocking: Vec<&PoolUse> = self.pools.iter().filter(|pool| pool.blocking > 0).collect();
        let told: Vec<String> = blocking
            .iter()
            .take(most)
            .map(|pool| {
                let rest = pool.blocking - 1;
                let rest = if rest > 0 { format!(" and {rest} more") } else { String::new() };
                format!("{}: {}{rest}", pool.pool, pool.consumers[0])
            })
            .collect();
        let more = blocking.len() - told.len();
        let more = if more > 0 { format!("; and {more} more pools") } else { String::new() };
        (!told.is_empty()).then(|| told.join("; ") + &more)
    }
}

fn key(consumer: &Consumer) -> (bool, ConsumerKind, &str, &str) {
    (consumer.blocks().is_none(), consumer.kind, &consumer.namespace, &consumer.name)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const INDEPENDENT: Dependence = Dependence::Independent;

    /// `done`, `running`, `told` (that its disk is there), `told-done`, each with `!` while being deleted; `-` for none.
    fn volume(text: &str) -> Option<DiskVolume> {
        (text != "-").then(|| DiskVolume {
            has_ended: text.contains("done"),
            is_prepopulated: text.starts_with("told"),
            is_terminating: text.ends_with('!'),
        })
    }

    fn claim(text: &str) -> Option<DiskClaim> {
        let is = |phase| text.starts_with(phase);
        (text != "-").then(|| DiskClaim { is_bound: is("bound"), is_lost: is("lost"), is_terminating: text.ends_with('!') })
    }

    #[rstest]
    #[case::running("running", "-", INDEPENDENT, Standing::Blocks(Why::CloneRunning))]
    #[case::waits_for_first_consumer("running", "pending", INDEPENDENT, Standing::Blocks(Why::CloneRunning))]
    #[case::finished("done", "bound", INDEPENDENT, Standing::Listed)]
    #[case::finished_on_zfs("done", "bound", Dependence::Depends, Standing::Blocks(Why::Depends))]
    #[case::finished_on_an_unknown_driver("done", "bound", Dependence::Unknown, Standing::Blocks(Why::MayDepend))]
    #[case::said_to_be_copied("done", "bound", Dependence::Unproven, Standing::Blocks(Why::MayBeNoCopy))]
    #[case::claim_not_seen("done", "-", Dependence::Unknown, Standing::Blocks(Why::MayDepend))]
    #[case::volume_gone("-", "bound", INDEPENDENT, Standing::Listed)]
    #[case::volume_gone_dependent("-", "bound", Dependence::Depends, Standing::Blocks(Why::Depends))]
    #[case::claim_alone_waits("-", "pending", INDEPENDENT, Standing::Blocks(Why::CloneRunning))]
    #[case::claim_alone_lost("-", "lost", Dependence::Depends, Standing::Listed)]
    #[case::lost("done", "lost", Dependence::Depends, Standing::Listed)]
    // B28.
    #[case::all_going("done!", "bound!", Dependence::Depends, Standing::Gone)]
    #[case::going_while_cloning("running!", "pending!", INDEPENDENT, Standing::Blocks(Why::OnlyWaiting))]
    #[case::going_before_the_claim("running!", "-", INDEPENDENT, Standing::Blocks(Why::OnlyWaiting))]
    #[case::orphaned("done!", "bound", Dependence::Depends, Standing::Blocks(Why::Depends))]
    #[case::claim_going_alone("-", "bound!", Dependence::Depends, Standing::Gone)]
    #[case::claim_held_back("done", "bound!", Dependence::Depends, Standing::Blocks(Why::Depends))]
    #[case::restored_without_its_claim("told", "-", Dependence::Depends, Standing::Listed)]
    #[case::restored_without_its_claim_and_going("told!", "-", Dependence::Depends, Standing::Gone)]
    #[case::restored_claim_waits("told", "pending", INDEPENDENT, Standing::Blocks(Why::CloneRunning))]
    #[case::restored("told", "bound", Dependence::Depends, Standing::Blocks(Why::Depends))]
    #[case::restored_elsewhere("told", "bound", INDEPENDENT, Standing::Listed)]
    #[case::restored_and_lost("told", "lost", Dependence::Depends, Standing::Listed)]
    #[case::cdi_told_itself("told-done", "bound", Dependence::Depends, Standing::Blocks(Why::Depends))]
    #[case::told_claim_not_seen("told-done", "-", Dependence::Unknown, Standing::Blocks(Why::MayDepend))]
    #[case::restored_and_going("told!", "bound!", Dependence::Depends, Standing::Gone)]
    fn r22_disks(#[case] v: &str, #[case] c: &str, #[case] dependence: Dependence, #[case] expected: Standing) {
        assert_eq!(disk_standing(volume(v), claim(c), dependence), expected);
    }

    #[rstest]
    #[case::held(true, false, 1 << 40, Standing::Blocks(Why::MakesMachines))]
    #[case::new(false, false, 0, Standing::Blocks(Why::MakesMachines))]
    #[case::clock_behind(false, false, -100, Standing::Blocks(Why::MakesMachines))]
    #[case::almost_old(false, false, TEMPLATE_GRACE - 1, Standing::Blocks(Why::MakesMachines))]
    #[case::left_behind(false, false, TEMPLATE_GRACE, Standing::Listed)]
    #[case::going(false, true, 0, Standing::Gone)]
    #[case::going_while_held(true, true, 0, Standing::Blocks(Why::MakesMachines))]
    fn r22_templates(#[case] held: bool, #[case] going: bool, #[case] age: i64, #[case] expected: Standing) {
        assert_eq!(template_standing(held, going, age), expected);
    }

    #[rstest]
    #[case(ConsumerKind::WorkerClass, true, INDEPENDENT, Standing::Blocks(Why::IsChosen))]
    #[case(ConsumerKind::CloneInFlight, true, INDEPENDENT, Standing::Blocks(Why::CloneRunning))]
    #[case(ConsumerKind::VirtualMachine, false, INDEPENDENT, Standing::Blocks(Why::MakesDisks))]
    #[case(ConsumerKind::VirtualMachine, true, INDEPENDENT, Standing::Gone)]
    #[case(ConsumerKind::Snapshot, false, INDEPENDENT, Standing::Listed)]
    #[case(ConsumerKind::Snapshot, false, Dependence::Unknown, Standing::Blocks(Why::MayDepend))]
    #[case(ConsumerKind::Snapshot, true, Dependence::Depends, Standing::Gone)]
    #[case(ConsumerKind::DataSource, false, Dependence::Depends, Standing::Listed)]
    #[case(ConsumerKind::Disk, false, INDEPENDENT, Standing::Blocks(Why::Unreadable))]
    fn r22_others(#[case] kind: ConsumerKind, #[case] going: bool, #[case] dependence: Dependence, #[case] expected: Standing) {
        assert_eq!(other_standing(kind, going, dependence), expected);
    }

    #[rstest]
    #[case(ConsumerKind::VirtualMachine, false, Standing::Blocks(Why::MayBeOfAny))]
    #[case(ConsumerKind::VirtualMachine, true, Standing::Gone)]
    #[case(ConsumerKind::Disk, true, Standing::Blocks(Why::MayBeOfAny))]
    #[case(ConsumerKind::WorkerClass, true, Standing::Blocks(Why::MayBeOfAny))]
    #[case(ConsumerKind::DataSource, false, Standing::Listed)]
    fn r22_what_may_be_of_any_golden(#[case] kind: ConsumerKind, #[case] going: bool, #[case] expected: Standing) {
        assert_eq!(unknown_standing(kind, going), expected);
    }

    fn consumer(pool: &str, name: &str, standing: Standing) -> Consumer {
        let pool = if pool == "?" { Pool::Unknown } else { Pool::new("t", Pool::WORKERS, pool) };
        Consumer {
            kind: ConsumerKind::Disk,
            namespace: "t".into(),
            name: name.into(),
            pool,
            evidence: Evidence::Spec,
            standing,
            created: 0,
            copied: None,
        }
    }

    #[test]
    fn grouped_by_pool_with_blockers_first() {
        let blocks = Standing::Blocks(Why::CloneRunning);
        let listed = [
            ("?", "z", blocks),
            ("a", "1", Standing::Listed),
            ("c", "2", blocks),
            ("b", "3", Standing::Listed),
            ("b", "2", blocks),
            ("b", "1", blocks),
            ("d", "x", Standing::Gone),
        ];
        let all = Consumers::group(listed.map(|(pool, name, standing)| consumer(pool, name, standing)));
        let order: Vec<String> =
            all.iter().map(|c| format!("{}{}", c.pool.to_string().rsplit('/').next().expect("text"), c.name)).collect();
        assert_eq!(order, ["b1", "b2", "b3", "c2", "unknownz", "a1"]);
        assert_eq!(all.blocking(), 4);
        let text = all.blockers(2).expect("blockers");
        assert_eq!(
            text,
            "t/KubernetesNodes/b: Disk t/1 (its clone has not finished) and 1 more; t/KubernetesNodes/c: Disk t/2 (its clone has not finished); and 1 more pools"
        );
        assert_eq!(Consumers::group([consumer("a", "1", Standing::Listed)]).blockers(10), None);
    }
}
