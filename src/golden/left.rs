//! R24: what an image that was deleted in the middle of an import leaves behind. Its golden, had it been made, would stay;
//! an import that nobody serves, watches or records any more is no golden and never becomes one.

use super::manifest::{MANAGED_BY, MANAGER};
use crate::{
    foreign::{Claim, DataVolume},
    rules::{golden::is_temporary, marks},
    world::{
        evidence::{object_marks, texts},
        facts,
    },
};

/// Phases of CDI in which a DataVolume holds a disk, held one, or in which nobody can say: a person decides about those.
const NOT_UNFINISHED: [&str; 4] = ["Succeeded", "Failed", "Unknown", "Paused"];

/// The image that an unfinished DataVolume of ours was made for; `None` for every other one.
///
/// Ours is what this daemon made: an adopted or restored golden carries our mark, but neither the label nor the digest that only
/// making one writes. Unfinished is what has no claim, or a claim that was never bound: CDI binds a golden's claim as the last
/// step, so a bound one may hold a disk whatever the DataVolume says of itself, and a lost one held one.
pub fn unfinished_of<'a>(volume: &'a DataVolume, claim: Option<&Claim>, catalog: &str) -> Option<&'a str> {
    let meta = &volume.metadata;
    let (labels, annotations) = (texts(meta.labels.as_ref()), texts(meta.annotations.as_ref()));
    let is_made_here = labels.get(MANAGED_BY).is_some_and(|manager| manager == MANAGER);
    let is_ours = marks::is_marked(&labels) && is_made_here && annotations.contains_key(marks::DISK_DIGEST);
    let phase = volume.status.read()?.phase.as_deref().unwrap_or_default();
    let is_unfinished = !NOT_UNFINISHED.contains(&phase) && meta.deletion_timestamp.is_none();
    let never_held_a_disk = claim.is_none_or(|claim| {
        let is_its = claim
            .metadata
            .owner_references
            .iter()
            .flatten()
            .any(|owner| owner.controller == Some(true) && Some(&owner.uid) == meta.uid.as_ref());
        claim.status.read().is_some() && matches!(facts::claim_seen(claim).phase, "" | "Pending") && is_its
    });
    let is_left = is_ours && is_unfinished && never_held_a_disk && !is_temporary(object_marks(meta, &labels, &annotations), catalog);
    is_left.then(|| meta.labels.as_ref()?.get(marks::IMAGE).map(String::as_str)).flatten()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::unfinished_of;
    use crate::{
        foreign::{Claim, DataVolume},
        rules::marks,
    };

    /// As the daemon makes it, with changes.
    fn volume(change: impl FnOnce(&mut Value)) -> DataVolume {
        let mut volume = json!({
            "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
            "metadata": {
                "name": "g", "namespace": "cozy-public", "uid": "dv",
                "labels": { marks::GOLDEN: "true", marks::IMAGE: "a", "app.kubernetes.io/managed-by": "golden-catalog" },
                "annotations": { marks::DISK_DIGEST: "sha256:00" },
            },
            "spec": {}, "status": { "phase": "ImportInProgress" },
        });
        change(&mut volume);
        serde_json::from_value(volume).expect("a DataVolume")
    }

    fn claim(phase: Value, owner: &str) -> Claim {
        serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {
                "name": "g", "namespace": "cozy-public", "uid": "pvc",
                "ownerReferences": [{ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "name": "g", "uid": owner, "controller": true }],
            },
            "spec": {}, "status": phase,
        }))
        .expect("a claim")
    }

    #[rstest]
    #[case::importing(|_: &mut Value| {}, Some("a"))]
    #[case::not_looked_at_yet(|volume: &mut Value| volume["status"] = json!({}), Some("a"))]
    #[case::a_copy(|volume: &mut Value| volume["status"]["phase"] = "CSICloneInProgress".into(), Some("a"))]
    #[case::finished(|volume: &mut Value| volume["status"]["phase"] = "Succeeded".into(), None)]
    #[case::lost(|volume: &mut Value| volume["status"]["phase"] = "Failed".into(), None)]
    #[case::nobody_can_say(|volume: &mut Value| volume["status"]["phase"] = "Unknown".into(), None)]
    #[case::unreadable(|volume: &mut Value| volume["status"] = json!({ "phase": 7 }), None)]
    #[case::going(|volume: &mut Value| volume["metadata"]["deletionTimestamp"] = "2026-11-29T10:00:00Z".into(), None)]
    #[case::unmarked(|volume: &mut Value| volume["metadata"]["labels"][marks::GOLDEN] = "false".into(), None)]
    #[case::of_no_image(|volume: &mut Value| drop(volume["metadata"]["labels"].as_object_mut().expect("labels").remove(marks::IMAGE)), None)]
    #[case::made_by_another(|volume: &mut Value| volume["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "Helm".into(), None)]
    #[case::adopted(|volume: &mut Value| volume["metadata"]["annotations"] = json!({}), None)]
    #[case::cdis_own(|volume: &mut Value| volume["metadata"]["name"] = "prime-g".into(), None)]
    fn r24_what_is_left_unfinished(#[case] change: fn(&mut Value), #[case] expected: Option<&str>) {
        let volume = volume(change);
        assert_eq!(unfinished_of(&volume, None, "cozy-public"), expected);
        assert_eq!(unfinished_of(&volume, Some(&claim(json!({ "phase": "Pending" }), "dv")), "cozy-public"), expected);
    }

    #[rstest]
    #[case::new(json!({}), "dv", true)]
    #[case::pending(json!({ "phase": "Pending" }), "dv", true)]
    #[case::bound(json!({ "phase": "Bound" }), "dv", false)]
    #[case::lost(json!({ "phase": "Lost" }), "dv", false)]
    #[case::another_ones(json!({ "phase": "Pending" }), "other", false)]
    #[case::unreadable(json!({ "phase": [] }), "dv", false)]
    fn r24_what_may_hold_a_disk_is_left_alone(#[case] phase: Value, #[case] owner: &str, #[case] is_left: bool) {
        let volume = volume(|_| {});
        assert_eq!(unfinished_of(&volume, Some(&claim(phase, owner)), "cozy-public").is_some(), is_left);
    }
}
