//! R23: what stands between a golden and its deletion, and who may write the marks of that fence.

use std::{collections::BTreeMap, fmt};

use super::{
    clone::{Known, Unknown},
    consumers::Consumers,
    marks,
};

/// The most pools a refusal names.
const MOST_POOLS: usize = 10;

/// How far the fence around a golden is, as its annotations tell.
///
/// `retiring` has two values. First it turns new pools away; pools that use the golden go on, so it may stand for months. When nothing seems to need the golden any more it is *closed*: nobody is let in while the leader waits and looks once more, because a pool that was let in a moment ago may not be seen yet.
///
/// It is written on the claim and on the DataVolume, on what there is. Where they differ the stricter one counts, the greater by order: CDI
/// copies annotations to the claim only as it makes it, so a claim may appear open beside a DataVolume that was closed a moment ago.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Fence {
    /// There is none.
    #[default]
    Open,
    /// No new pools.
    Retiring,
    /// Nobody, for the moment.
    Closed,
    /// Nobody, for good: it may be deleted.
    Retired,
}

impl Fence {
    /// How the value of `retiring` begins while the fence is closed.
    const CLOSED: &str = "closed since ";

    /// Reads the fence off a golden's annotations.
    pub fn of(annotations: &BTreeMap<String, String>) -> Self {
        match annotations.get(marks::RETIRING) {
            _ if annotations.contains_key(marks::RETIRED) => Self::Retired,
            Some(value) if value.starts_with(Self::CLOSED) => Self::Closed,
            Some(_) => Self::Retiring,
            None => Self::Open,
        }
    }

    /// The annotations that say it; `at` is a time for people. An absent value takes the annotation away.
    pub fn annotations(self, at: impl fmt::Display) -> [(&'static str, Option<String>); 2] {
        let (retiring, retired) = match self {
            Self::Open => (None, None),
            Self::Retiring => (Some(format!("since {at}")), None),
            Self::Closed => (Some(format!("{}{at}", Self::CLOSED)), None),
            Self::Retired => (Some(format!("{}{at}", Self::CLOSED)), Some(at.to_string())),
        };
        [(marks::RETIRING, retiring), (marks::RETIRED, retired)]
    }
}

/// What of a golden a write touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Touch {
    /// It is to be deleted.
    Delete,
    /// Our mark is to be taken off it.
    Unmark,
    /// The marks of its fence are to be written.
    MarkFence,
}

/// What a golden holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    /// A disk that can be cloned.
    Disk,
    /// A disk whose DataVolume is gone: Kubernetes' garbage collector asks for it.
    DiskWithoutItsVolume,
    /// Nothing yet, or nothing any more: an import that never ended, a DataVolume whose claim is gone, or a claim that lost its volume.
    Nothing,
}

/// What of a golden's claim tells whether it holds a disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClaimHolds<'a> {
    /// `Pending`, `Bound` or `Lost`.
    pub phase: &'a str,
    /// Whether CDI binds it before it is filled, as it does where the class has no CSI driver, and has not said that it is.
    pub is_being_filled: bool,
    /// Whether a GoldenImage has it on record.
    pub is_recorded: bool,
}

/// The DataVolume that controls a golden's claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Controller<'a> {
    /// None does: CDI's former garbage collection leaves a finished import so.
    None,
    /// It is there, in this phase.
    There(&'a str),
    /// It is there no more, or never was: an owner can be written on a claim by hand, and a DataVolume be deleted while nobody asked here.
    Gone,
}

/// What would be lost with a golden: what went through the fence carries its last mark, and is not asked about.
pub fn holds(claim: ClaimHolds<'_>, volume: Controller<'_>) -> Holds {
    // CDI binds a golden's claim as the last step, a moment before its DataVolume says so.
    let is_filled = claim.phase == "Bound" && !claim.is_being_filled;
    match volume {
        // Its volume is gone, and the disk with it: deleting what is left is how it is made anew.
        _ if claim.phase == "Lost" => Holds::Nothing,
        Controller::Gone if claim.is_recorded || is_filled => Holds::DiskWithoutItsVolume,
        _ if claim.is_recorded => Holds::Disk,
        Controller::Gone => Holds::Nothing,
        Controller::None => Holds::Disk,
        Controller::There("Succeeded") if claim.phase == "Bound" => Holds::Disk,
        Controller::There("Failed") => Holds::Nothing,
        Controller::There(_) if is_filled => Holds::Disk,
        Controller::There(_) => Holds::Nothing,
    }
}

/// The GoldenImage that a golden belongs to, as far as retiring by it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retires<'a> {
    /// Its name.
    pub image: &'a str,
    /// How many goldens it has besides this one.
    pub others: usize,
    /// Whether this one's target was taken out of it, so that it is to go anyway.
    pub is_leaving: bool,
}

/// A write that touches a golden.
#[derive(Debug, Clone)]
pub struct GoldenWrite<'a> {
    /// `DataVolume` or `PersistentVolumeClaim`.
    pub kind: &'a str,
    /// The catalog namespace.
    pub namespace: &'a str,
    /// The golden.
    pub name: &'a str,
    /// What it touches.
    pub touch: Touch,
    /// The fence as it is now.
    pub fence: Fence,
    /// Whether it is being deleted already.
    pub is_terminating: bool,
    /// What it holds.
    pub holds: Holds,
    /// Whether this daemon asks.
    pub by_daemon: bool,
    /// The GoldenImage it belongs to; `None` where it stands for no target of one, and is retired by its own name.
    pub image: Option<Retires<'a>>,
    /// Who needs it.
    pub consumers: Known<Consumers>,
}

/// Decides whether a golden may be touched (R23): the fence decides, not a scan, so that what nobody is seen to need still needs to be retired first.
///
/// # Errors
/// Why not, with who needs it and what to do.
pub fn may_touch(write: &GoldenWrite<'_>) -> Result<(), String> {
    let GoldenWrite { kind, namespace, name, .. } = write;
    match write.touch {
        Touch::MarkFence if write.by_daemon => Ok(()),
        Touch::MarkFence => Err(format!(
            "{kind} {namespace}/{name}: the marks `{}` and `{}` of a golden image are written by golden-catalog alone; {} (R23)",
            marks::RETIRING,
            marks::RETIRED,
            command(write)
        )),
        _ if write.fence == Fence::Retired || write.is_terminating => Ok(()),
        // The daemon gives up unfinished imports, and its adoption writes marks; a finished golden it lets go only when retired.
        Touch::Delete if write.holds == Holds::Nothing => Ok(()),
        Touch::Unmark if write.by_daemon => Ok(()),
        Touch::Delete | Touch::Unmark => Err(format!("{} (R23)", refusal(write))),
    }
}

fn refusal(write: &GoldenWrite<'_>) -> String {
    let GoldenWrite { kind, namespace, name, consumers, .. } = write;
    let what = if write.touch == Touch::Delete { "cannot be deleted" } else { "must keep its mark" };
    let needed = match consumers {
        Ok(consumers) => match consumers.blockers(MOST_POOLS) {
            Some(blockers) => format!("it is needed by {blockers}"),
            None => "nothing is seen to need it, but only retiring makes sure of that".to_owned(),
        },
        Err(Unknown(why)) => format!("who needs it is not known now ({why})"),
    };
    let left = match write.holds {
        Holds::DiskWithoutItsVolume => {
            "; the DataVolume that it names as its owner is gone, for which Kubernetes would collect it: to keep it take that off its `metadata.ownerReferences`"
        }
        Holds::Disk | Holds::Nothing => "",
    };
    format!("{kind} {namespace}/{name} is a golden image and {what}: {needed}{left}; {}", command(write))
}

/// How to be rid of this golden: never by what would take others with it unsaid.
fn command(write: &GoldenWrite<'_>) -> String {
    let how = match write.image {
        None => format!("to be rid of it run `golden-catalog retire {}`", write.name),
        Some(Retires { image, is_leaving: true, .. }) => format!("its target was taken out of GoldenImage {image} already"),
        Some(Retires { image, others: 0, .. }) => format!("to be rid of it run `golden-catalog retire {image}`"),
        Some(Retires { image, others, .. }) => format!(
            "to lose only this one take its target out of `storage.targets` of GoldenImage {image}, or run `golden-catalog retire {image}` to lose all {} of the image",
            others + 1
        ),
    };
    format!("{how}: it goes by itself when nothing needs it")
}

/// Decides whether the catalog namespace may be deleted: never with goldens in it that are not retired.
///
/// # Errors
/// How many there are and what to do.
pub fn may_delete_catalog(namespace: &str, goldens: &Known<Vec<String>>) -> Result<(), String> {
    match goldens {
        Ok(goldens) if goldens.is_empty() => Ok(()),
        Ok(goldens) => {
            let told: Vec<&str> = goldens.iter().take(MOST_POOLS).map(String::as_str).collect();
            let more = goldens.len() - told.len();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            Err(format!(
                "namespace {namespace} holds golden images that are not retired: {}{more}; retire each with `golden-catalog retire`, then delete the namespace (R23)",
                told.join(", ")
            ))
        }
        Err(unknown) => Err(format!("namespace {namespace} may hold golden images, which is not known now ({unknown}); try again (R23)")),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::rules::{
        consumers::{Consumer, ConsumerKind, Evidence, Standing, Why},
        pool::Pool,
    };

    fn blocked() -> Known<Consumers> {
        Ok(Consumers::group([Consumer {
            kind: ConsumerKind::MachineTemplate,
            namespace: "tenant-a".into(),
            name: "t".into(),
            pool: Pool::workers("tenant-a", "kubernetes-demo-md0"),
            evidence: Evidence::Spec,
            standing: Standing::Blocks(Why::MakesMachines),
            created: 0,
            copied: None,
        }]))
    }

    const UBUNTU: Retires<'static> = Retires { image: "ubuntu", others: 0, is_leaving: false };

    #[rstest]
    #[case::its_only_one(Some(UBUNTU), "to be rid of it run `golden-catalog retire ubuntu`: it goes")]
    #[case::one_of_three(
        Some(Retires { others: 2, ..UBUNTU }),
        "to lose only this one take its target out of `storage.targets` of GoldenImage ubuntu, or run `golden-catalog retire ubuntu` to lose all 3 of the image: it goes"
    )]
    #[case::on_its_way(Some(Retires { others: 2, is_leaving: true, ..UBUNTU }), "its target was taken out of GoldenImage ubuntu already: it goes")]
    #[case::of_no_target(None, "to be rid of it run `golden-catalog retire g`: it goes")]
    fn what_is_advised_takes_no_more_than_was_asked_for(#[case] image: Option<Retires<'static>>, #[case] expected: &str) {
        for touch in [Touch::Delete, Touch::Unmark, Touch::MarkFence] {
            let refused = may_touch(&GoldenWrite { image, ..write(touch) }).expect_err("a golden");
            assert!(refused.contains(&format!("; {expected}")), "{refused}");
        }
    }

    fn write(touch: Touch) -> GoldenWrite<'static> {
        GoldenWrite {
            kind: "DataVolume",
            namespace: "cozy-public",
            name: "g",
            touch,
            fence: Fence::Open,
            is_terminating: false,
            holds: Holds::Disk,
            by_daemon: false,
            image: Some(UBUNTU),
            consumers: blocked(),
        }
    }

    #[test]
    fn a_refusal_names_who_needs_it_and_the_command() {
        let refused = may_touch(&write(Touch::Delete)).expect_err("in use");
        for text in ["DataVolume cozy-public/g", "tenant-a/KubernetesNodes/demo-md0", "golden-catalog retire ubuntu", "R23"] {
            assert!(refused.contains(text), "{text}: {refused}");
        }
        let unmanaged = GoldenWrite { image: None, consumers: Ok(Consumers::default()), ..write(Touch::Delete) };
        let refused = may_touch(&unmanaged).expect_err("a fence, not a scan");
        assert!(refused.contains("golden-catalog retire g") && refused.contains("nothing is seen to need it"), "{refused}");
        let unknown = GoldenWrite { consumers: Err(Unknown("Pods are being read".into())), ..write(Touch::Unmark) };
        assert!(may_touch(&unknown).expect_err("unknown is never none").contains("Pods are being read"));
    }

    #[rstest]
    #[case::retired(Touch::Delete, Fence::Retired, Holds::Disk, false, true)]
    #[case::closed(Touch::Delete, Fence::Closed, Holds::Disk, false, false)]
    #[case::retiring(Touch::Delete, Fence::Retiring, Holds::Disk, false, false)]
    #[case::the_daemon_too(Touch::Delete, Fence::Open, Holds::Disk, true, false)]
    #[case::unfinished(Touch::Delete, Fence::Open, Holds::Nothing, false, true)]
    #[case::collected(Touch::Delete, Fence::Open, Holds::DiskWithoutItsVolume, false, false)]
    #[case::collected_when_retired(Touch::Delete, Fence::Retired, Holds::DiskWithoutItsVolume, false, true)]
    #[case::unmarked_unfinished(Touch::Unmark, Fence::Open, Holds::Nothing, false, false)]
    #[case::unmarked_retired(Touch::Unmark, Fence::Retired, Holds::Disk, false, true)]
    #[case::mark_by_hand(Touch::MarkFence, Fence::Open, Holds::Disk, false, false)]
    #[case::mark_of_a_retired_one(Touch::MarkFence, Fence::Retired, Holds::Disk, false, false)]
    #[case::mark_by_us(Touch::MarkFence, Fence::Open, Holds::Disk, true, true)]
    fn r23(#[case] touch: Touch, #[case] fence: Fence, #[case] holds: Holds, #[case] by_daemon: bool, #[case] allowed: bool) {
        assert_eq!(may_touch(&GoldenWrite { fence, holds, by_daemon, ..write(touch) }).is_ok(), allowed);
    }

    #[test]
    fn a_disk_whose_data_volume_is_gone_says_how_to_keep_it() {
        let left = GoldenWrite { kind: "PersistentVolumeClaim", holds: Holds::DiskWithoutItsVolume, ..write(Touch::Delete) };
        let refused = may_touch(&left).expect_err("it is a golden still");
        assert!(refused.contains("metadata.ownerReferences") && refused.contains("golden-catalog retire ubuntu"), "{refused}");
    }

    #[rstest]
    #[case::finished("Bound", false, false, Controller::There("Succeeded"), Holds::Disk)]
    #[case::on_record("Bound", false, true, Controller::There("ImportInProgress"), Holds::Disk)]
    #[case::importing("Pending", false, false, Controller::There("ImportInProgress"), Holds::Nothing)]
    #[case::importing_without_populators("Bound", true, false, Controller::There("ImportInProgress"), Holds::Nothing)]
    #[case::ends_in_this_moment("Bound", false, false, Controller::There("ImportInProgress"), Holds::Disk)]
    #[case::failed("Bound", false, false, Controller::There("Failed"), Holds::Nothing)]
    #[case::begun_again("Pending", false, false, Controller::There("Succeeded"), Holds::Nothing)]
    #[case::lost("Lost", false, true, Controller::There("Succeeded"), Holds::Nothing)]
    #[case::lost_and_its_volume_gone("Lost", false, true, Controller::Gone, Holds::Nothing)]
    #[case::left_by_former_cdi("Bound", false, false, Controller::None, Holds::Disk)]
    #[case::its_volume_vanished("Bound", false, false, Controller::Gone, Holds::DiskWithoutItsVolume)]
    #[case::on_record_and_its_volume_vanished("Bound", false, true, Controller::Gone, Holds::DiskWithoutItsVolume)]
    #[case::a_given_up_attempt("Pending", false, false, Controller::Gone, Holds::Nothing)]
    #[case::a_given_up_attempt_without_populators("Bound", true, false, Controller::Gone, Holds::Nothing)]
    fn r23_what_would_be_lost(
        #[case] phase: &str,
        #[case] is_being_filled: bool,
        #[case] is_recorded: bool,
        #[case] volume: Controller<'_>,
        #[case] expected: Holds,
    ) {
        assert_eq!(holds(ClaimHolds { phase, is_being_filled, is_recorded }, volume), expected);
    }

    #[test]
    fn the_fence_reads_back() {
        for fence in [Fence::Open, Fence::Retiring, Fence::Closed, Fence::Retired] {
            let written = fence.annotations("2026-11-29T10:00:00Z");
            let annotations = written.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect();
            assert_eq!(Fence::of(&annotations), fence);
        }
        // As an older version, or a hand before we were there, wrote it.
        assert_eq!(Fence::of(&[(marks::RETIRING.to_owned(), String::new())].into()), Fence::Retiring);
    }

    #[test]
    fn a_catalog_with_goldens_stays() {
        assert!(may_delete_catalog("c", &Ok(vec![])).is_ok());
        let many = (0..12).map(|n| format!("g{n}")).collect();
        let refused = may_delete_catalog("c", &Ok(many)).expect_err("goldens");
        assert!(refused.contains("g9 and 2 more") && !refused.contains("g10"), "{refused}");
        assert!(may_delete_catalog("c", &Err(Unknown("x".into()))).is_err());
    }
}
