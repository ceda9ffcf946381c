//! Who uses an image, as far as its status tells: counts only, never names.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

use crate::{
    api::{ConditionSet, ConditionType, ConsumersStatus, GoldenImageStatus, find_condition},
    rules::Reason,
    world::ledger::Counts,
};

/// What is known of an image's consumers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum UsageView {
    /// Not counted yet, or being read anew: what the status says stays.
    #[default]
    NotCounted,
    /// It has not been known for long, and why.
    Unknown(String),
    /// Counted.
    Counted(Counts),
}

/// Writes consumers and the condition `InUse`.
pub(super) fn tell(set: &mut ConditionSet<'_>, status: &mut GoldenImageStatus, old: &GoldenImageStatus, view: &UsageView, now: Timestamp) {
    match view {
        UsageView::NotCounted => match find_condition(&old.conditions, ConditionType::InUse) {
            Some(known) => {
                let is = match known.status.as_str() {
                    "True" => Some(true),
                    "False" => Some(false),
                    _ => None,
                };
                set.set(ConditionType::InUse, is, known.reason.parse().unwrap_or(Reason::ConsumersUnknown), known.message.clone());
            }
            None => set.set(ConditionType::InUse, None, Reason::ConsumersUnknown, ""),
        },
        UsageView::Unknown(why) => {
            let message = format!("{why}. {}", Reason::ConsumersUnknown.remedy());
            set.set(ConditionType::InUse, None, Reason::ConsumersUnknown, message);
        }
        UsageView::Counted(counts) => {
            status.consumers = Some(consumers(old.consumers.as_ref(), counts, now));
            let is_used = counts.all > 0;
            let reason = match (is_used, counts.blocking > 0) {
                (false, _) => Reason::Unused,
                (true, true) => Reason::InUse,
                (true, false) => Reason::OnlyIndependentClones,
            };
            let message =
                if is_used { format!("{} consumers, {} of which need the golden.", counts.all, counts.blocking) } else { String::new() };
            set.set(ConditionType::InUse, Some(counts.blocking > 0), reason, message);
        }
    }
}

/// The counts as status has them. `old` keeps what counts cannot tell: since when nobody uses the image, and the last clone after that is gone.
fn consumers(old: Option<&ConsumersStatus>, counts: &Counts, now: Timestamp) -> ConsumersStatus {
    let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    let newest = counts.last_clone.and_then(|at| Timestamp::from_second(at).ok());
    let last = [newest, old.and_then(|old| old.last_clone_time.as_ref()).map(|at| at.0)].into_iter().flatten().max();
    let since = || old.and_then(|old| old.unused_since.clone()).unwrap_or_else(|| super::decide::whole_seconds(now));
    ConsumersStatus {
        clones: number(counts.clones),
        pools: number(counts.pools),
        virtual_machines: number(counts.virtual_machines),
        templates: number(counts.templates),
        namespaces: number(counts.namespaces),
        unused_since: (counts.all == 0).then(since),
        last_clone_time: last.map(Time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("time")
    }

    fn after(old: &GoldenImageStatus, view: &UsageView, now: i64) -> GoldenImageStatus {
        let mut status = old.clone();
        let mut set = ConditionSet::new(&old.conditions, Some(1), Time(at(now)));
        tell(&mut set, &mut status, old, view, at(now));
        status.conditions = set.finish();
        status
    }

    fn shown(status: &GoldenImageStatus) -> (String, String) {
        let condition = find_condition(&status.conditions, ConditionType::InUse).expect("InUse");
        (condition.status.clone(), condition.reason.clone())
    }

    #[test]
    fn unused_since_and_the_last_clone_outlive_the_clones() {
        let used = Counts { clones: 2, all: 2, blocking: 1, last_clone: Some(50), ..Counts::default() };
        let first = after(&GoldenImageStatus::default(), &UsageView::NotCounted, 10);
        assert_eq!((shown(&first), &first.consumers), (("Unknown".into(), "ConsumersUnknown".into()), &None));
        let second = after(&first, &UsageView::Counted(used.clone()), 60);
        assert_eq!(shown(&second), ("True".into(), "InUse".into()));
        let third = after(&second, &UsageView::Counted(Counts::default()), 70);
        let consumers = third.consumers.clone().expect("counted");
        assert_eq!((consumers.unused_since, consumers.last_clone_time), (Some(Time(at(70))), Some(Time(at(50)))));
        assert_eq!(after(&third, &UsageView::Counted(Counts::default()), 90), third, "nothing changed, nothing is written");
        assert_eq!(after(&third, &UsageView::NotCounted, 90), third, "a relist changes nothing");
        let unknown = after(&third, &UsageView::Unknown("the watch is broken".into()), 90);
        assert_eq!((shown(&unknown).0.as_str(), &unknown.consumers), ("Unknown", &third.consumers));
        let again = after(&unknown, &UsageView::Counted(Counts { blocking: 0, ..used }), 100);
        assert_eq!(
            (shown(&again), again.consumers.expect("counted").unused_since),
            (("False".into(), "OnlyIndependentClones".into()), None)
        );
    }
}
