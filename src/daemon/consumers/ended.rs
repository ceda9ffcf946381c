//! Clones that have ended: their time by class, and a word on each that came over the network.

use std::{collections::HashMap, time::Duration};

use k8s_openapi::api::core::v1::ObjectReference;

use crate::{
    api::{ConditionType, find_condition},
    daemon::controller::Shared,
    rules::{Reason, copied::CopyCause},
    run::events::{Note, Severity},
    world::ledger::{CloneEnd, EndedClone},
};

/// What is known of a golden of an image.
struct Golden {
    class: String,
    /// Since when it can be cloned, in seconds since 1970.
    since: i64,
}

/// Takes over what has ended since the last call.
pub(super) fn tell(shared: &Shared) {
    let ends = shared.consumers.take_ends();
    if ends.is_empty() {
        return;
    }
    let ended: Vec<(CloneEnd, EndedClone)> = {
        let ledger = shared.consumers.read();
        ends.into_iter().filter_map(|end| ledger.ended_clone(&end).map(|clone| (end, clone))).collect()
    };
    let goldens = goldens(shared);
    for (end, clone) in ended {
        match (clone.copied, goldens.get(&clone.golden)) {
            (Some(cause), _) => tell_copy(shared, &end, &clone, cause),
            (None, Some(golden)) => {
                if let Some(took) = took(&end, &clone, golden) {
                    shared.metrics.clone_took(&golden.class, took);
                }
            }
            (None, None) => {}
        }
    }
}

fn goldens(shared: &Shared) -> HashMap<String, Golden> {
    let images = shared.cluster.images.all();
    let targets = images.iter().filter_map(|image| image.status.as_ref()).flat_map(|status| &status.targets);
    let known = targets.filter_map(|target| {
        let ready = find_condition(&target.conditions, ConditionType::Ready).filter(|ready| ready.status == "True");
        let since = ready.map_or(0, |ready| ready.last_transition_time.0.as_second());
        Some((target.golden.clone()?, Golden { class: target.storage_class_name.clone()?, since }))
    });
    known.collect()
}

/// How long storage took: from the disk's creation, or from when its golden could be cloned. `None` for a disk in another class, which
/// storage cannot have cloned.
fn took(end: &CloneEnd, clone: &EndedClone, golden: &Golden) -> Option<Duration> {
    let is_of_class = clone.class.as_ref().is_none_or(|class| *class == golden.class);
    let seconds = end.ended.saturating_sub(end.created.max(golden.since)).max(0);
    is_of_class.then(|| Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}

fn tell_copy(shared: &Shared, end: &CloneEnd, clone: &EndedClone, cause: CopyCause) {
    let (CloneEnd { namespace, name, .. }, EndedClone { golden, .. }) = (end, clone);
    tracing::warn!(namespace, name, golden, %cause, "a disk was copied over the network");
    let text = format!(
        "The disk was copied from {golden} over the network instead of being cloned in storage ({cause}): {}. {}",
        cause.advice(),
        Reason::NetworkCopy.remedy()
    );
    shared.recorder.tell(Note {
        regarding: ObjectReference {
            api_version: Some("cdi.kubevirt.io/v1beta1".to_owned()),
            kind: Some("DataVolume".to_owned()),
            namespace: Some(namespace.clone()),
            name: Some(name.clone()),
            uid: clone.uid.clone(),
            ..ObjectReference::default()
        },
        severity: Severity::Warning,
        reason: Reason::NetworkCopy.to_string(),
        action: "Clone",
        text,
    });
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::of_a_golden_that_was_there(100, 50, Some("replicated"), Some(43))]
    #[case::waited_for_its_golden(100, 140, Some("replicated"), Some(3))]
    #[case::golden_told_as_ready_later(100, 150, Some("replicated"), Some(0))]
    #[case::class_not_seen_yet(100, 50, None, Some(43))]
    #[case::in_another_class(100, 50, Some("local"), None)]
    fn time_of_a_clone(#[case] created: i64, #[case] since: i64, #[case] class: Option<&str>, #[case] expected: Option<u64>) {
        let end = CloneEnd { namespace: "a".into(), name: "d".into(), created, ended: 143 };
        let clone = EndedClone { uid: None, golden: "g".into(), class: class.map(str::to_owned), copied: None };
        let golden = Golden { class: "replicated".into(), since };
        assert_eq!(took(&end, &clone, &golden), expected.map(Duration::from_secs));
    }
}
