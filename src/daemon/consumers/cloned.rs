//! What is known of a golden, for its clones: whether they can go on, will go on by themselves, or need somebody.

use kube::ResourceExt as _;

use crate::{
    admission::ImageFacts,
    api::{ConditionType, GoldenImage, TargetStatus, find_condition, is_true},
    daemon::{controller::Shared, fence},
    foreign::Claim,
    rules::{Reason, stuck::GoldenState},
    world::facts::claim_seen,
};

/// What is known of a golden, for its clones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GoldenSeen {
    /// Its GoldenImage; empty where there is none.
    pub image: String,
    /// The reason why it is not Ready, where an image says one.
    pub reason: String,
    pub state: GoldenState,
    /// Since when it can be cloned, in seconds since 1970.
    pub since: i64,
    pub class: Option<String>,
}

/// What is known of a golden: by the image that has it on record, else by one that would make it, else by its claim alone.
///
/// It comes on record when its import begins. While its image resolves, waits for its turn or downloads, clones of it are admitted (R13)
/// and wait; nothing but the spec says then who makes it.
pub(super) fn golden_seen(shared: &Shared, golden: &str) -> GoldenSeen {
    let claim = shared.cluster.claims.get(&shared.catalog, golden);
    let images = shared.cluster.images.all();
    let recorded = images.iter().find(|image| record(image, golden).is_some()).cloned();
    let would_make = || shared.index.images_of(golden).into_iter().filter_map(|name| shared.cluster.images.get("", &name));
    // Of several the one that makes it, as admission has it the oldest.
    let rank = |image: &std::sync::Arc<GoldenImage>| {
        let state = match state(Some(image), golden, None).0 {
            GoldenState::Ready | GoldenState::Coming => 0,
            GoldenState::Suspended => 1,
            GoldenState::Gone | GoldenState::Failed => 2,
        };
        (state, image.precedence())
    };
    let image = recorded.or_else(|| would_make().min_by_key(rank));
    seen(image.as_deref(), golden, claim.as_deref())
}

fn record<'a>(image: &'a GoldenImage, golden: &str) -> Option<&'a TargetStatus> {
    image.status.as_ref()?.of_golden(golden)
}

fn seen(image: Option<&GoldenImage>, golden: &str, claim: Option<&Claim>) -> GoldenSeen {
    let (state, since) = state(image, golden, claim);
    let conditions = image.and_then(|image| {
        let of_image = || image.status.as_ref().map(|status| status.conditions.as_slice());
        record(image, golden).map(|target| target.conditions.as_slice()).or_else(of_image)
    });
    let ready = find_condition(conditions.unwrap_or_default(), ConditionType::Ready);
    GoldenSeen {
        image: image.map(|image| image.name_any()).unwrap_or_default(),
        reason: ready.map(|ready| ready.reason.clone()).unwrap_or_default(),
        state,
        since,
        class: claim.and_then(|claim| claim.spec.read()?.storage_class_name.clone()),
    }
}

/// Whether a golden that was made is lost in a way that nothing mends before a person has done something: admission refuses clones of it.
fn waits_for_a_hand(target: &TargetStatus) -> bool {
    const REASONS: [Reason; 3] = [Reason::GoldenReplaced, Reason::GoldenMissing, Reason::ClaimLost];
    let ready = find_condition(&target.conditions, ConditionType::Ready).filter(|ready| ready.status != "True");
    ready.and_then(|ready| ready.reason.parse().ok()).is_some_and(|reason| REASONS.contains(&reason))
}

/// How a golden is, and since when it can be cloned.
fn state(image: Option<&GoldenImage>, golden: &str, claim: Option<&Claim>) -> (GoldenState, i64) {
    let found = claim.map(claim_seen);
    let stands = |uid: Option<&str>| {
        let is_it = |uid: &str| found.is_some_and(|claim| claim.uid == uid);
        uid.is_none_or(is_it) && found.is_some_and(|claim| claim.phase == "Bound" && !claim.terminating)
    };
    let Some(image) = image else {
        return match found {
            _ if stands(None) => (GoldenState::Ready, 0),
            Some(claim) if !claim.terminating => (GoldenState::Coming, 0),
            _ => (GoldenState::Gone, 0),
        };
    };
    let facts = ImageFacts::of(image);
    // As admission has it: terminally failed, retired, or without a target that would finish it.
    let has_failed = facts.golden(golden).is_some_and(|record| record.failed.is_some());
    let is_suspended = facts.golden(golden).is_some_and(|record| record.is_suspended);
    let unfinished = || match (has_failed, is_suspended) {
        (true, _) => (GoldenState::Failed, 0),
        (false, true) => (GoldenState::Suspended, 0),
        (false, false) => (GoldenState::Coming, 0),
    };
    let Some(target) = record(image, golden) else {
        // The record may be lost while the golden stands.
        return if stands(None) { (GoldenState::Ready, 0) } else { unfinished() };
    };
    if let Some(ready) = find_condition(&target.conditions, ConditionType::Ready).filter(|ready| ready.status == "True") {
        return (GoldenState::Ready, ready.last_transition_time.0.as_second());
    }
    let is_given_up = fence::is_to_go(image) || is_true(&target.conditions, ConditionType::Retiring);
    if !is_given_up && waits_for_a_hand(target) {
        return (GoldenState::Failed, 0);
    }
    if !is_given_up || !target.is_made() {
        return unfinished();
    }
    // It says that it is not Ready because it is to go. Whoever was let in before clones it all the same, while it stands.
    let is_gone = found.is_none_or(|claim| claim.terminating || target.claim_uid.as_deref() != Some(claim.uid));
    match (stands(target.claim_uid.as_deref()), is_gone) {
        (true, _) => (GoldenState::Ready, 0),
        (false, true) => (GoldenState::Gone, 0),
        (false, false) => (GoldenState::Failed, 0),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const GOLDEN: &str = "vm-default-images-a";

    fn image(spec: &Value, status: &Value) -> GoldenImage {
        let mut image = json!({
            "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": "a", "uid": "a" },
            "spec": { "source": { "http": { "url": "https://e.example/a" } }, "storage": { "targets": [{ "storageClassName": "replicated" }] } },
            "status": status,
        });
        image["spec"].as_object_mut().expect("a map").extend(spec.as_object().expect("a map").clone());
        serde_json::from_value(image).expect("an image")
    }

    fn condition(kind: &str, status: &str, reason: &str) -> Value {
        json!({ "type": kind, "status": status, "reason": reason, "message": "", "lastTransitionTime": "2026-11-29T10:00:00Z" })
    }

    fn claim(uid: &str, phase: &str) -> Claim {
        serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": GOLDEN, "uid": uid },
            "spec": { "storageClassName": "replicated" }, "status": { "phase": phase },
        }))
        .expect("a claim")
    }

    fn on_record(class: &str, uid: Option<&str>, conditions: &[Value]) -> Value {
        json!({ "targets": [{ "requestedClass": class, "golden": GOLDEN, "claimUID": uid, "conditions": conditions }] })
    }

    /// A clone whose image is resolved, fetched or queued has nobody on record; one whose golden leaves clones what stands.
    #[test]
    fn a_golden_as_its_clones_see_it() {
        use GoldenState::{Coming, Failed, Gone, Ready, Suspended};
        let (fresh, retired) = (json!({}), json!({ "retire": true }));
        let ready = |status: &str, reason: &str| condition("Ready", status, reason);
        let suspended = json!({ "suspend": true });
        let stalled = condition("Stalled", "True", "NotFound");
        let fetching = json!({ "conditions": [ready("False", "Fetching")] });
        let failed = json!({ "conditions": [ready("False", "NotFound"), stalled] });
        let importing = |class: &str| on_record(class, None, &[ready("False", "Importing")]);
        let begun = |reason: &str| {
            let mut status = on_record("replicated", None, &[ready("False", reason)]);
            status["targets"][0]["startedTime"] = "2026-11-29T10:00:00Z".into();
            status
        };
        let (importing_since, stands_still) = (begun("Importing"), begun("Suspended"));
        let leaving =
            |uid: Option<&str>| on_record("taken-out", uid, &[ready("False", "Retiring"), condition("Retiring", "True", "Retiring")]);
        let made = on_record("replicated", Some("1"), &[ready("True", "Ready")]);
        let lost = |reason: &str| on_record("replicated", Some("1"), &[ready("False", reason)]);
        let (bound, pending, other) = (claim("1", "Bound"), claim("1", "Pending"), claim("2", "Bound"));
        for (case, spec, status, claim, expected, reason) in [
            ("nobody looked at it yet", &fresh, json!({}), None, Coming, ""),
            ("it is fetched", &fresh, fetching.clone(), None, Coming, "Fetching"),
            ("its image is suspended", &suspended, fetching.clone(), None, Suspended, "Fetching"),
            ("suspended while it is imported, which goes on", &suspended, importing_since, Some(&pending), Coming, "Importing"),
            ("suspended, and its import stands still", &suspended, stands_still, None, Suspended, "Suspended"),
            ("suspended, and it can be cloned", &suspended, made.clone(), Some(&bound), Ready, "Ready"),
            ("it failed before any import", &fresh, failed, None, Failed, "NotFound"),
            ("retired before any import", &retired, fetching.clone(), None, Failed, "Fetching"),
            ("the record is lost", &fresh, fetching, Some(&bound), Ready, "Fetching"),
            ("it is imported", &fresh, importing("replicated"), Some(&pending), Coming, "Importing"),
            (
                "its import failed",
                &fresh,
                on_record("replicated", None, &[ready("False", "ImportFailed"), condition("Stalled", "True", "ImportFailed")]),
                Some(&pending),
                Failed,
                "ImportFailed",
            ),
            ("retired while it is imported", &retired, importing("replicated"), Some(&pending), Failed, "Importing"),
            ("it can be cloned", &fresh, made.clone(), Some(&bound), Ready, "Ready"),
            ("it is to go, and stands", &retired, made, Some(&bound), Ready, "Ready"),
            ("its target was taken out, and it stands", &fresh, leaving(Some("1")), Some(&bound), Ready, "Retiring"),
            ("taken out, and not made", &fresh, leaving(None), Some(&pending), Failed, "Retiring"),
            ("taken out, and gone", &fresh, leaving(Some("1")), None, Gone, "Retiring"),
            ("taken out, and another stands there", &fresh, leaving(Some("1")), Some(&other), Gone, "Retiring"),
            ("another claim has its name", &fresh, lost("GoldenReplaced"), Some(&other), Failed, "GoldenReplaced"),
            ("its claim is gone", &fresh, lost("GoldenMissing"), None, Failed, "GoldenMissing"),
            ("its claim lost its volume", &fresh, lost("ClaimLost"), Some(&pending), Failed, "ClaimLost"),
            ("it is being deleted, and comes again", &fresh, lost("GoldenTerminating"), None, Coming, "GoldenTerminating"),
            ("taken out, and its volume is lost", &fresh, leaving(Some("1")), Some(&pending), Failed, "Retiring"),
        ] {
            let seen = seen(Some(&image(spec, &status)), GOLDEN, claim);
            assert_eq!((seen.state, seen.reason.as_str(), seen.image.as_str()), (expected, reason, "a"), "{case}");
        }
        for (case, claim, expected) in
            [("nothing", None, Gone), ("it stands", Some(&bound), Ready), ("somebody may make it", Some(&pending), Coming)]
        {
            let seen = seen(None, GOLDEN, claim);
            assert_eq!((seen.state, seen.image.as_str()), (expected, ""), "{case}, and no image");
        }
    }
}
