//! Clones that do not move, and what holds them.
//!
//! CDI never gives a clone up and rarely says on it what it waits for: an importing golden looks like a failure (`Running=False`, reason `Error`) while all is well, and a golden that a pod holds looks like work (`CSICloneInProgress`). So this rule looks at the golden first, and at CDI's words last.

use std::{fmt, time::Duration};

use crate::model::redact;

/// What a clone clones, now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GoldenState {
    /// It can be cloned.
    Ready,
    /// It is still being made: its clones wait, as they should.
    Coming,
    /// It would be made, and nobody works on it, because its image is suspended.
    Suspended,
    /// It is not there and nobody makes it, or it is being deleted.
    Gone,
    /// It will not be made without somebody's doing.
    Failed,
}

/// A condition as CDI writes it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CdiWords<'a> {
    /// Its reason.
    pub reason: &'a str,
    /// Its message.
    pub message: &'a str,
}

/// A clone that has not ended.
#[derive(Debug, Clone, Copy)]
pub struct CloneFacts<'a> {
    /// The DataVolume's phase; empty for a claim without one.
    pub phase: &'a str,
    /// CDI's condition `Bound`, where it is not True.
    pub bound: CdiWords<'a>,
    /// CDI's condition `Running`, where it is not True.
    pub running: CdiWords<'a>,
    /// How long it has not moved while its golden could be cloned.
    pub still: Duration,
    /// How long it may.
    pub deadline: Duration,
    /// Its golden.
    pub golden: GoldenState,
    /// A pod that can write to the golden (R26).
    pub held_by: Option<&'a str>,
    /// The disk's class and the golden's.
    pub classes: (Option<&'a str>, Option<&'a str>),
}

/// What holds a clone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StuckCause {
    /// A pod uses the golden (R26).
    CloneSourceInUse,
    /// The golden is not there, or going.
    GoldenMissing,
    /// The golden cannot be made.
    GoldenFailed,
    /// The golden is not made while its image is suspended.
    GoldenSuspended,
    /// A ResourceQuota.
    QuotaExceeded,
    /// The disk's class or size does not fit the golden.
    ClassMismatch,
    /// CDI refuses the clone: too small, no right, no token.
    CloneRefused,
    /// Storage does not make the volume.
    Provisioner,
    /// Nothing says what.
    Unexplained,
}

impl StuckCause {
    /// Every cause.
    pub const ALL: [Self; 9] = [
        Self::CloneSourceInUse,
        Self::GoldenMissing,
        Self::GoldenFailed,
        Self::GoldenSuspended,
        Self::QuotaExceeded,
        Self::ClassMismatch,
        Self::CloneRefused,
        Self::Provisioner,
        Self::Unexplained,
    ];

    /// The cause as an Event's reason and a metric's label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::CloneSourceInUse => "CloneSourceInUse",
            Self::GoldenMissing => "GoldenMissing",
            Self::GoldenFailed => "GoldenFailed",
            Self::GoldenSuspended => "GoldenSuspended",
            Self::QuotaExceeded => "QuotaExceeded",
            Self::ClassMismatch => "ClassMismatch",
            Self::CloneRefused => "CloneRefused",
            Self::Provisioner => "Provisioner",
            Self::Unexplained => "Unexplained",
        }
    }

    const fn remedy(self) -> &'static str {
        match self {
            Self::CloneSourceInUse => "Stop that pod; the clone then goes on by itself.",
            Self::GoldenMissing => "Create its GoldenImage again, or delete this disk.",
            Self::GoldenSuspended => "Set `spec.suspend: false` on its GoldenImage; the clone goes on when it is made.",
            Self::GoldenFailed => "See the GoldenImage's Ready condition; the clone goes on when it is made.",
            Self::QuotaExceeded => "Raise the quota named; a clone needs room in this namespace and, for a while, in the catalog's.",
            Self::ClassMismatch => "Delete this disk and make it anew in the golden's class.",
            Self::CloneRefused => "Delete this disk and make it anew as the message says.",
            Self::Provisioner => "Mend storage; the clone then goes on by itself.",
            Self::Unexplained => "Look at the events of the PVC and of the tmp-pvc in the catalog namespace, and at the CSI driver's log.",
        }
    }
}

impl fmt::Display for StuckCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A clone that is stuck.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stuck {
    /// What holds it.
    pub cause: StuckCause,
    /// What happened and what to do.
    pub message: String,
}

/// Whether a DataVolume in this phase waits for a pod or a person, for as long as that takes: the disk of a stopped VM may wait for months.
pub fn waits_for_somebody(phase: &str) -> bool {
    matches!(phase, "PendingPopulation" | "WaitForFirstConsumer" | "Paused")
}

/// Whether a clone is stuck, and on what; `None` while it waits as it should or may still move.
pub fn stuck(golden: &str, clone: &CloneFacts<'_>) -> Option<Stuck> {
    if waits_for_somebody(clone.phase) || clone.golden == GoldenState::Coming || clone.still < clone.deadline {
        return None;
    }
    let (cause, what) = cause(clone);
    let minutes = clone.still.as_secs() / 60;
    let still = if minutes > 0 { format!("{minutes} min") } else { format!("{} s", clone.still.as_secs()) };
    let message = format!("The clone of {golden} has not moved for {still}: {what}. {}", cause.remedy());
    Some(Stuck { cause, message })
}

fn cause(clone: &CloneFacts<'_>) -> (StuckCause, String) {
    let words = [clone.bound, clone.running];
    let says = |word: &str| words.iter().find(|told| told.reason.contains(word) || told.message.to_ascii_lowercase().contains(word));
    let quote = |told: &CdiWords<'_>| format!("CDI says {:?}", shortened(if told.message.is_empty() { told.reason } else { told.message }));
    match clone.golden {
        GoldenState::Gone => return (StuckCause::GoldenMissing, "the golden is not there any more".to_owned()),
        GoldenState::Failed => return (StuckCause::GoldenFailed, "the golden will not be made without somebody's doing".to_owned()),
        GoldenState::Suspended => {
            return (
                StuckCause::GoldenSuspended,
                "the golden is not made, and nobody works on it, because its image is suspended".to_owned(),
            );
        }
        GoldenState::Ready | GoldenState::Coming => {}
    }
    if let Some(pod) = clone.held_by {
        return (StuckCause::CloneSourceInUse, format!("pod {pod} can write to the golden, and CDI waits for it to end"));
    }
    if let Some(told) = says("ErrExceededQuota").or_else(|| says("exceeded quota")) {
        return (StuckCause::QuotaExceeded, quote(told));
    }
    if let (Some(own), Some(golden)) = clone.classes
        && own != golden
    {
        return (StuckCause::ClassMismatch, format!("the disk is in StorageClass {own:?}, the golden in {golden:?}"));
    }
    let refusals = ["ErrClaimNotValid", "CloneValidationFailed", "ErrIncompatiblePVC", "token", "permission", "target resources requests"];
    if let Some(told) = refusals.iter().find_map(|word| says(word)) {
        return (StuckCause::CloneRefused, quote(told));
    }
    // With populators CDI appends the newest event of its temporary claim, which is the provisioner's: `target PVC x Pending and [tmp-pvc-y] : text`.
    let provisioner = clone.bound.message.split_once("] : ").map(|(_, text)| text).filter(|text| !text.is_empty());
    if let Some(text) = provisioner {
        return (StuckCause::Provisioner, format!("storage says {:?}", shortened(text)));
    }
    match words.iter().find(|told| told.reason == "Error" && !told.message.is_empty()) {
        Some(told) => (StuckCause::CloneRefused, quote(told)),
        None if clone.phase.is_empty() => (StuckCause::Unexplained, "nothing says why".to_owned()),
        None => (StuckCause::Unexplained, format!("it stays in phase {:?} and nothing says why", clone.phase)),
    }
}

/// Others' words, cut, and without what they should not repeat: they may be of any length, and stand in a tenant's Event.
fn shortened(text: &str) -> String {
    let text = &redact(text);
    let cut: String = text.chars().filter(|c| !c.is_control()).take(300).collect();
    if cut.len() < text.len() { cut + "…" } else { cut }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn clone(phase: &'static str) -> CloneFacts<'static> {
        CloneFacts {
            phase,
            bound: CdiWords::default(),
            running: CdiWords::default(),
            still: Duration::from_secs(1800),
            deadline: Duration::from_secs(1800),
            golden: GoldenState::Ready,
            held_by: None,
            classes: (Some("replicated"), Some("replicated")),
        }
    }

    const WAITS_FOR_GOLDEN: CdiWords<'_> = CdiWords { reason: "Error", message: "source pvc not populated" };

    #[rstest]
    #[case::still_moves(CloneFacts { still: Duration::from_secs(1799), ..clone("CSICloneInProgress") }, None)]
    #[case::golden_is_importing(CloneFacts { golden: GoldenState::Coming, running: WAITS_FOR_GOLDEN, ..clone("CloneScheduled") }, None)]
    #[case::stopped_vm(clone("WaitForFirstConsumer"), None)]
    #[case::stopped_vm_with_populators(clone("PendingPopulation"), None)]
    #[case::pod(CloneFacts { held_by: Some("cozy-public/debug"), ..clone("CSICloneInProgress") }, Some((StuckCause::CloneSourceInUse, "pod cozy-public/debug")))]
    #[case::words_with_a_secret(CloneFacts { bound: CdiWords { reason: "Pending", message: "target PVC x Pending and [tmp-pvc-y] : cannot log in at https://u:hunter2@storage/v1" }, ..clone("CSICloneInProgress") }, Some((StuckCause::Provisioner, "cannot log in at https://storage/v1")))]
    #[case::golden_gone(CloneFacts { golden: GoldenState::Gone, ..clone("CloneScheduled") }, Some((StuckCause::GoldenMissing, "not there")))]
    #[case::golden_failed(CloneFacts { golden: GoldenState::Failed, ..clone("CloneScheduled") }, Some((StuckCause::GoldenFailed, "will not be made")))]
    #[case::golden_suspended(CloneFacts { golden: GoldenState::Suspended, running: WAITS_FOR_GOLDEN, ..clone("CloneScheduled") }, Some((StuckCause::GoldenSuspended, "`spec.suspend: false`")))]
    #[case::suspended_a_moment_ago(CloneFacts { golden: GoldenState::Suspended, still: Duration::from_secs(60), ..clone("CloneScheduled") }, None)]
    #[case::quota(CloneFacts { bound: CdiWords { reason: "ErrExceededQuota", message: "exceeded quota: disks" }, ..clone("Pending") }, Some((StuckCause::QuotaExceeded, "exceeded quota: disks")))]
    #[case::quota_of_the_temporary_claim(CloneFacts { running: CdiWords { reason: "Error", message: "pvc is forbidden: exceeded quota: q" }, ..clone("CloneScheduled") }, Some((StuckCause::QuotaExceeded, "exceeded quota: q")))]
    #[case::class(CloneFacts { classes: (Some("local"), Some("replicated")), ..clone("CSICloneInProgress") }, Some((StuckCause::ClassMismatch, "\"local\"")))]
    #[case::too_small(CloneFacts { running: CdiWords { reason: "Error", message: "target resources requests storage size is smaller than the source" }, ..clone("CloneScheduled") }, Some((StuckCause::CloneRefused, "smaller than the source")))]
    #[case::token(CloneFacts { running: CdiWords { reason: "Error", message: "token missing" }, ..clone("CloneScheduled") }, Some((StuckCause::CloneRefused, "token missing")))]
    #[case::provisioner(CloneFacts { bound: CdiWords { reason: "Pending", message: "target PVC d Pending and [tmp-pvc-1] : no space left in pool" }, ..clone("CSICloneInProgress") }, Some((StuckCause::Provisioner, "no space left in pool")))]
    #[case::unexplained(clone("CSICloneInProgress"), Some((StuckCause::Unexplained, "CSICloneInProgress")))]
    #[case::claim_alone(clone(""), Some((StuckCause::Unexplained, "nothing says why")))]
    fn clones(#[case] facts: CloneFacts<'_>, #[case] expected: Option<(StuckCause, &str)>) {
        let found = stuck("g", &facts);
        assert_eq!(found.as_ref().map(|stuck| stuck.cause), expected.map(|(cause, _)| cause), "{found:?}");
        if let (Some(stuck), Some((_, part))) = (found, expected) {
            assert!(
                stuck.message.contains(part) && stuck.message.contains("of g") && stuck.message.contains("30 min"),
                "{}",
                stuck.message
            );
        }
    }

    #[test]
    fn others_words_are_bounded() {
        let long = format!("\u{1b}[2J{}", "x".repeat(5000));
        let facts = CloneFacts { running: CdiWords { reason: "Error", message: &long }, ..clone("CloneScheduled") };
        let message = stuck("g", &facts).expect("stuck").message;
        assert!(message.len() < 600 && !message.contains('\u{1b}'), "{message}");
    }
}
