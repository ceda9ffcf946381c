//! Which objects of one name are a golden (R7, R23): what the fence is around, and what admission reads it off.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{
    evidence::{goes_with, is_guarded},
    facts,
};
use crate::rules::fence::Fence;

/// The claim and the DataVolume of one name, as far as they are a golden's: either, both or none. A golden that is being made is a DataVolume
/// alone until CDI makes its claim; one whose DataVolume was collected is a claim alone.
#[derive(Debug, Clone, Copy, Default)]
pub struct Parts<'a> {
    /// The claim.
    pub claim: Option<&'a ObjectMeta>,
    /// The DataVolume.
    pub volume: Option<&'a ObjectMeta>,
    /// The one of them that carries our mark: what it says of itself is the golden's word.
    pub marked: Option<&'a ObjectMeta>,
}

impl<'a> Parts<'a> {
    /// Of the claim and the DataVolume of a name: what carries our mark, and what goes with that. An object that somebody made beside a golden
    /// is no part of it.
    pub fn of(claim: Option<&'a ObjectMeta>, volume: Option<&'a ObjectMeta>, catalog: &str) -> Self {
        let marked = |meta: &&'a ObjectMeta| is_guarded(meta, catalog);
        let (marked_claim, marked_volume) = (claim.filter(marked), volume.filter(marked));
        let is_one = claim.zip(volume).is_some_and(|(claim, volume)| goes_with(claim, volume.uid.as_deref()));
        Self {
            claim: claim.filter(|_| marked_claim.is_some() || is_one && marked_volume.is_some()),
            volume: volume.filter(|_| marked_volume.is_some() || is_one && marked_claim.is_some()),
            marked: marked_claim.or(marked_volume),
        }
    }

    /// Whether there is no golden.
    pub fn is_none(&self) -> bool {
        self.marked.is_none()
    }

    /// The fence around it: of two the stricter.
    pub fn fence(&self) -> Fence {
        let fences = [self.claim, self.volume].into_iter().flatten();
        fences.map(facts::fence).max().unwrap_or_default()
    }

    /// Whether any of it is being deleted.
    pub fn is_terminating(&self) -> bool {
        [self.claim, self.volume].into_iter().flatten().any(|meta| meta.deletion_timestamp.is_some())
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::rules::marks;

    fn meta(uid: &str, is_marked: bool, fence: Fence, owner: &str) -> ObjectMeta {
        let annotations: serde_json::Map<String, Value> =
            fence.annotations("now").into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.into()))).collect();
        let owner =
            json!([{ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "name": "g", "uid": owner, "controller": true }]);
        serde_json::from_value(json!({
            "name": "g", "namespace": "cozy-public", "uid": uid, "annotations": annotations, "ownerReferences": owner,
            "labels": if is_marked { json!({ marks::GOLDEN: "true" }) } else { json!({}) },
        }))
        .expect("metadata")
    }

    #[rstest]
    #[case::both(Some((true, "dv")), Some(true), (true, true))]
    #[case::a_volume_alone(None, Some(true), (false, true))]
    #[case::a_claim_alone(Some((true, "gone")), None, (true, false))]
    #[case::restored_beside_each_other(Some((true, "former")), Some(true), (true, true))]
    #[case::made_beside_the_golden(Some((true, "former")), Some(false), (true, false))]
    #[case::the_volume_lost_its_mark(Some((true, "dv")), Some(false), (true, true))]
    #[case::the_claim_lost_its_mark(Some((false, "dv")), Some(true), (true, true))]
    #[case::a_hand_made_claim_beside_it(Some((false, "")), Some(true), (false, true))]
    #[case::nothing_of_ours(Some((false, "dv")), Some(false), (false, false))]
    fn r7_which_objects_are_a_golden(#[case] claim: Option<(bool, &str)>, #[case] volume: Option<bool>, #[case] expected: (bool, bool)) {
        let claim = claim.map(|(is_marked, owner)| meta("pvc", is_marked, Fence::Open, owner));
        let volume = volume.map(|is_marked| meta("dv", is_marked, Fence::Open, ""));
        let parts = Parts::of(claim.as_ref(), volume.as_ref(), "cozy-public");
        assert_eq!((parts.claim.is_some(), parts.volume.is_some()), expected);
        assert_eq!(parts.is_none(), expected == (false, false));
        assert!(parts.marked.is_none_or(|marked| marked.labels.as_ref().is_some_and(marks::is_marked)));
    }

    /// CDI made the claim from what it knew of the DataVolume, a moment before that was closed; or it was closed first.
    #[rstest]
    #[case::the_claim_came_later(Fence::Open, Fence::Closed, Fence::Closed)]
    #[case::half_marked(Fence::Retired, Fence::Closed, Fence::Retired)]
    #[case::half_opened(Fence::Open, Fence::Retiring, Fence::Retiring)]
    #[case::open(Fence::Open, Fence::Open, Fence::Open)]
    fn r23_the_stricter_fence_counts(#[case] claim: Fence, #[case] volume: Fence, #[case] expected: Fence) {
        let (claim, volume) = (meta("pvc", true, claim, "dv"), meta("dv", true, volume, ""));
        assert_eq!(Parts::of(Some(&claim), Some(&volume), "cozy-public").fence(), expected);
        // One that somebody made beside it says nothing.
        let beside = meta("pvc", true, Fence::Open, "former");
        let foreign = meta("dv", false, Fence::Retired, "");
        assert_eq!(Parts::of(Some(&beside), Some(&foreign), "cozy-public").fence(), Fence::Open);
    }
}
