//! Conditions that keep their transition time, so that an unchanged state is an unchanged object.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::rules::Reason;

/// The types of conditions on a GoldenImage and its targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConditionType {
    /// The spec is sane and nothing stands in its way.
    Accepted,
    /// Upstream answered and what it offers is known.
    Resolved,
    /// The bytes were verified.
    Verified,
    /// Every target can be cloned.
    Ready,
    /// One target at least can be cloned.
    Available,
    /// Something needs a golden of the image: it must not be deleted. Unknown while not every consumer is known.
    InUse,
    /// Terminally failed: will not come right without a change. Present only when True.
    Stalled,
    /// Work is under way. Present only when True.
    Reconciling,
    /// The cluster's default StorageClass moved. Present only when True.
    DefaultClassDrift,
    /// Upstream serves other bytes now. Present only when True.
    UpstreamChanged,
    /// The entry in values differs in a frozen field. Present only when True.
    EntryEdited,
    /// The entry is no longer in values. Present only when True.
    Unlisted,
    /// A pod uses a golden. Present only when True.
    InUseByPod,
    /// Clones in the StorageClass are slow, limited or impossible. Present only when True.
    CloneLimited,
    /// The StorageProfile would have the golden made otherwise today. Present only when True.
    ProfileChanged,
    /// The goldens are to go when nothing needs them. Present only when True.
    Retiring,
    /// The API server refuses a write that nothing else waits for, or what a retirement takes; it is tried again. Present only when True.
    WriteRefused,
}

impl ConditionType {
    /// Every type, in the order of the documentation.
    pub const ALL: [Self; 17] = [
        Self::Accepted,
        Self::Resolved,
        Self::Verified,
        Self::Ready,
        Self::Available,
        Self::InUse,
        Self::Stalled,
        Self::Reconciling,
        Self::DefaultClassDrift,
        Self::UpstreamChanged,
        Self::EntryEdited,
        Self::Unlisted,
        Self::InUseByPod,
        Self::CloneLimited,
        Self::ProfileChanged,
        Self::Retiring,
        Self::WriteRefused,
    ];

    /// What True means, as a sentence for people.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Accepted => "The spec is sane and nothing stands in its way.",
            Self::Resolved => "Upstream answered, and what it offers is known.",
            Self::Verified => "The bytes were verified. Unknown for a golden that was taken over.",
            Self::Ready => "Every target can be cloned; of a target: it can be cloned.",
            Self::Available => "One target at least can be cloned.",
            Self::InUse => "Something needs a golden of the image. Unknown while not every consumer is known.",
            Self::Stalled => "It will not come right without a change. Present only when True, as all that follow.",
            Self::Reconciling => "Work is under way.",
            Self::DefaultClassDrift => "The cluster's default StorageClass is another than the golden's.",
            Self::UpstreamChanged => "Upstream serves other bytes now than were taken (R6).",
            Self::EntryEdited => "The entry in values differs from its image in a frozen field (R4).",
            Self::Unlisted => "The entry is no longer in values (R24).",
            Self::InUseByPod => "A pod uses a golden, so that clones wait (R26).",
            Self::CloneLimited => "Clones in the StorageClass are slow, limited or impossible.",
            Self::ProfileChanged => "The StorageProfile would have the golden made otherwise today.",
            Self::Retiring => "The goldens, or one of them, are to go when nothing needs them (R23).",
            Self::WriteRefused => {
                "The API server refuses a write that nothing else waits for, or what a retirement takes; it is tried again."
            }
        }
    }

    /// The type as it is written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "Accepted",
            Self::Resolved => "Resolved",
            Self::Verified => "Verified",
            Self::Ready => "Ready",
            Self::Available => "Available",
            Self::InUse => "InUse",
            Self::Stalled => "Stalled",
            Self::Reconciling => "Reconciling",
            Self::DefaultClassDrift => "DefaultClassDrift",
            Self::UpstreamChanged => "UpstreamChanged",
            Self::EntryEdited => "EntryEdited",
            Self::Unlisted => "Unlisted",
            Self::InUseByPod => "InUseByPod",
            Self::CloneLimited => "CloneLimited",
            Self::ProfileChanged => "ProfileChanged",
            Self::Retiring => "Retiring",
            Self::WriteRefused => "WriteRefused",
        }
    }
}

/// Builds the new conditions of an object from the ones it has.
///
/// A condition that is not set again is dropped, so a cleared state is really cleared.
#[derive(Debug)]
pub struct ConditionSet<'a> {
    old: &'a [Condition],
    new: Vec<Condition>,
    generation: Option<i64>,
    now: Time,
}

impl<'a> ConditionSet<'a> {
    /// The longest message of a condition, in characters (`metav1.Condition` allows 32,768; a person reads less).
    const LONGEST_MESSAGE: usize = 2048;

    /// Starts from the conditions an object has, for its `generation`, at the time `now` (used only where a status flips).
    pub fn new(old: &'a [Condition], generation: Option<i64>, now: Time) -> Self {
        Self { old, new: Vec::new(), generation, now }
    }

    /// Sets a condition that is `True`, `False` or, with `None`, `Unknown`.
    pub fn set(&mut self, kind: ConditionType, status: Option<bool>, reason: Reason, message: impl Into<String>) {
        let status = match status {
            Some(true) => "True",
            Some(false) => "False",
            None => "Unknown",
        };
        let type_ = kind.as_str();
        let since = self.old.iter().find(|old| old.type_ == type_ && old.status == status).map(|old| old.last_transition_time.clone());
        let mut message: String = message.into();
        if let Some((cut, _)) = message.char_indices().nth(Self::LONGEST_MESSAGE) {
            message.truncate(cut);
        }
        self.new.retain(|new| new.type_ != type_);
        self.new.push(Condition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: reason.as_str().to_owned(),
            message,
            observed_generation: self.generation,
            last_transition_time: since.unwrap_or_else(|| self.now.clone()),
        });
    }

    /// The conditions, in a fixed order.
    pub fn finish(mut self) -> Vec<Condition> {
        self.new.sort_by(|a, b| a.type_.cmp(&b.type_));
        self.new
    }
}

/// The condition of a type, if there is one.
pub fn find_condition(conditions: &[Condition], kind: ConditionType) -> Option<&Condition> {
    conditions.iter().find(|condition| condition.type_ == kind.as_str())
}

/// Whether the condition of a type is there and `True`.
pub fn is_true(conditions: &[Condition], kind: ConditionType) -> bool {
    find_condition(conditions, kind).is_some_and(|condition| condition.status == "True")
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

    use super::{ConditionSet, ConditionType, find_condition};
    use crate::rules::Reason;

    fn at(second: i64) -> Time {
        Time(Timestamp::from_second(second).expect("time"))
    }

    #[test]
    fn the_transition_time_moves_only_on_a_flip() {
        let mut first = ConditionSet::new(&[], Some(1), at(10));
        first.set(ConditionType::Ready, Some(false), Reason::Importing, "10 %");
        let first = first.finish();

        let mut second = ConditionSet::new(&first, Some(2), at(20));
        second.set(ConditionType::Ready, Some(false), Reason::Queued, "");
        let second = second.finish();
        assert_eq!(second[0].last_transition_time, at(10));
        assert_eq!((second[0].observed_generation, second[0].message.as_str()), (Some(2), ""));

        let mut third = ConditionSet::new(&second, Some(2), at(30));
        third.set(ConditionType::Ready, Some(true), Reason::Ready, "");
        assert_eq!(third.finish()[0].last_transition_time, at(30));
    }

    #[test]
    fn what_is_not_set_again_is_gone() {
        let mut first = ConditionSet::new(&[], None, at(1));
        first.set(ConditionType::Stalled, Some(true), Reason::InvalidSource, "no");
        let first = first.finish();
        assert!(find_condition(&ConditionSet::new(&first, None, at(2)).finish(), ConditionType::Stalled).is_none());
    }
}
