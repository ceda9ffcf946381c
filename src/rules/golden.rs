//! What a golden is and whether it can be cloned (R7, R8, R23).

use std::collections::BTreeMap;

use super::{Reason, marks};

/// An object's identity and marks, as far as the tests below read them.
#[derive(Debug, Clone, Copy)]
pub struct ObjectMarks<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its labels.
    pub labels: &'a BTreeMap<String, String>,
    /// Its annotations.
    pub annotations: &'a BTreeMap<String, String>,
    /// Kind and name of the owner that controls it.
    pub controller: Option<(&'a str, &'a str)>,
}

/// Whether CDI made this object for another one: such objects carry tenants' labels and annotations and must never count.
///
/// Only inside the catalog namespace, where tenants cannot write: elsewhere a tenant would hide a disk by a mark or an owner of its own
/// making. CDI makes what belongs to a clone beside its source, and what it makes beside other disks carries no mark of ours.
pub fn is_temporary(object: ObjectMarks<'_>, catalog_namespace: &str) -> bool {
    let marked = |key: &str| object.labels.contains_key(key) || object.annotations.contains_key(key);
    object.namespace == catalog_namespace
        && (matches!(object.controller, Some(("PersistentVolumeClaim", _)))
            || marked(marks::CDI_OWNED_BY)
            || marked(marks::CDI_POPULATOR_KIND)
            || ["prime-", "tmp-"].iter().any(|prefix| object.name.starts_with(prefix)))
}

/// Whether an object of the catalog namespace carries our mark and is none of CDI's temporaries, onto which CDI copies labels: what the
/// fence is around (R23), for the leader, for the guard around goldens and for who clones them alike.
///
/// Its DataVolume is not asked for: CDI before v1.62 took that away after success, and a golden that nothing records any more is fenced still.
pub fn is_guarded(object: ObjectMarks<'_>, catalog_namespace: &str) -> bool {
    marks::is_marked(object.labels) && !is_temporary(object, catalog_namespace)
}

/// A golden's DataVolume as observed.
#[derive(Debug, Clone, Copy, Default)]
pub struct VolumeSeen<'a> {
    /// Its phase; empty before CDI has looked at it.
    pub phase: &'a str,
    /// Whether it is being deleted.
    pub terminating: bool,
}

/// A golden's claim as observed.
#[derive(Debug, Clone, Copy, Default)]
pub struct ClaimSeen<'a> {
    /// Its UID.
    pub uid: &'a str,
    /// `Pending`, `Bound` or `Lost`.
    pub phase: &'a str,
    /// Whether it is being deleted.
    pub terminating: bool,
}

/// How far the daemon vouches for what is in a golden.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vouched {
    /// It verified the bytes itself.
    Verified,
    /// It took the golden over as it was.
    Adopted,
    /// Not at all.
    No,
}

/// A golden that cannot be cloned now, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct NotReady {
    /// The reason to show.
    pub reason: Reason,
    /// What was found.
    pub message: String,
}

fn not_ready(reason: Reason, message: impl Into<String>) -> Result<Reason, NotReady> {
    Err(NotReady { reason, message: message.into() })
}

/// `GoldenReplaced` (R7): the claim under the golden's name is not the recorded one.
///
/// # Errors
/// When it is not; the message names both UIDs.
pub fn same_claim(recorded_uid: Option<&str>, claim: Option<ClaimSeen<'_>>) -> Result<(), NotReady> {
    match (recorded_uid, claim) {
        (Some(recorded), Some(claim)) if claim.uid != recorded => Err(NotReady {
            reason: Reason::GoldenReplaced,
            message: format!("another volume stands under the golden's name: recorded claim UID {recorded}, found {}", claim.uid),
        }),
        _ => Ok(()),
    }
}

/// Whether a golden can be cloned (R8): its DataVolume is Succeeded, or gone while the recorded claim stands; the claim is Bound, the recorded one, and not going; and the daemon vouches for it.
///
/// The answer is [`Reason::Ready`], or [`Reason::Adopted`] where the bytes were never verified. A DataVolume may be gone because CDI before v1.62 deleted it after success, or by hand: the recorded UID says that it is the volume that was ready before.
///
/// # Errors
/// Why it cannot be cloned now.
pub fn golden_ready(
    volume: Option<VolumeSeen<'_>>,
    claim: Option<ClaimSeen<'_>>,
    recorded_uid: Option<&str>,
    vouched: Vouched,
) -> Result<Reason, NotReady> {
    same_claim(recorded_uid, claim)?;
    if volume.is_some_and(|volume| volume.terminating) || claim.is_some_and(|claim| claim.terminating) {
        return not_ready(Reason::GoldenTerminating, "the golden's DataVolume or claim is being deleted");
    }
    if claim.is_some_and(|claim| claim.phase == "Lost") || volume.is_some_and(|volume| volume.phase == "Failed") {
        return not_ready(Reason::ClaimLost, "the golden's claim has lost its volume");
    }
    match (volume, claim) {
        (None, None) if recorded_uid.is_none() => return not_ready(Reason::Queued, "the golden has not been made yet"),
        (_, None) if recorded_uid.is_some() => return not_ready(Reason::GoldenMissing, "the golden's claim is gone"),
        (None, Some(_)) if recorded_uid.is_none() => {
            return not_ready(Reason::NameConflict, "a claim of the golden's name stands without a DataVolume and was never recorded");
        }
        (Some(volume), _) if volume.phase != "Succeeded" => {
            let phase = if volume.phase.is_empty() { "not begun" } else { volume.phase };
            return not_ready(Reason::Importing, format!("the DataVolume is {phase}"));
        }
        (_, None) => return not_ready(Reason::Importing, "the DataVolume has no claim yet"),
        (_, Some(claim)) if claim.phase != "Bound" => {
            return not_ready(
                Reason::Importing,
                format!("the golden's claim is {}", if claim.phase.is_empty() { "new" } else { claim.phase }),
            );
        }
        _ => {}
    }
    match vouched {
        Vouched::Verified => Ok(Reason::Ready),
        Vouched::Adopted => Ok(Reason::Adopted),
        Vouched::No => not_ready(Reason::NameConflict, "the DataVolume was neither verified nor adopted by the catalog"),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const CATALOG: &str = "cozy-public";

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[rstest]
    #[case::golden("g", &[(marks::GOLDEN, "true")], &[], Some(("DataVolume", "g")), true)]
    #[case::without_its_volume("g", &[(marks::GOLDEN, "true")], &[], None, true)]
    #[case::under_another_volume("g", &[(marks::GOLDEN, "true")], &[], Some(("DataVolume", "h")), true)]
    #[case::no_label("g", &[], &[(marks::GOLDEN, "true")], Some(("DataVolume", "g")), false)]
    #[case::label_says_no("g", &[(marks::GOLDEN, "false")], &[], Some(("DataVolume", "g")), false)]
    #[case::owned_by("g", &[(marks::GOLDEN, "true"), (marks::CDI_OWNED_BY, "x")], &[], Some(("DataVolume", "g")), false)]
    #[case::populator("g", &[(marks::GOLDEN, "true")], &[(marks::CDI_POPULATOR_KIND, "x")], Some(("DataVolume", "g")), false)]
    #[case::prime("prime-1", &[(marks::GOLDEN, "true")], &[], Some(("DataVolume", "prime-1")), false)]
    #[case::tmp("tmp-pvc-1", &[(marks::GOLDEN, "true")], &[], None, false)]
    #[case::under_a_claim("g", &[(marks::GOLDEN, "true")], &[], Some(("PersistentVolumeClaim", "g")), false)]
    fn r23_what_the_fence_is_around(
        #[case] name: &str,
        #[case] labels: &[(&str, &str)],
        #[case] annotations: &[(&str, &str)],
        #[case] controller: Option<(&str, &str)>,
        #[case] expected: bool,
    ) {
        let (labels, annotations) = (map(labels), map(annotations));
        let claim = ObjectMarks { namespace: CATALOG, name, labels: &labels, annotations: &annotations, controller };
        assert_eq!(is_guarded(claim, CATALOG), expected);
    }

    #[test]
    fn a_tenant_cannot_hide_a_disk_by_marking_it() {
        let empty = map(&[]);
        let (labels, annotations) = (map(&[(marks::CDI_OWNED_BY, "x")]), map(&[(marks::CDI_POPULATOR_KIND, "x")]));
        let claim = ObjectMarks { namespace: "tenant-a", name: "tmp-1", labels: &labels, annotations: &annotations, controller: None };
        assert!(!is_temporary(claim, CATALOG));
        assert!(is_temporary(ObjectMarks { namespace: CATALOG, ..claim }, CATALOG));
        let owned = ObjectMarks { controller: Some(("PersistentVolumeClaim", "d")), name: "g", ..claim };
        assert!(!is_temporary(owned, CATALOG), "whoever may write a claim may write an owner on it");
        assert!(is_temporary(ObjectMarks { namespace: CATALOG, labels: &empty, annotations: &empty, ..owned }, CATALOG));
    }

    fn volume(phase: &str) -> Option<VolumeSeen<'_>> {
        (phase != "-").then_some(VolumeSeen { phase, terminating: false })
    }

    /// `uid/phase`, `-` for none.
    fn claim(text: &str) -> Option<ClaimSeen<'_>> {
        text.split_once('/').map(|(uid, phase)| ClaimSeen { uid, phase, terminating: false })
    }

    #[rstest]
    #[case::ready("Succeeded", "u/Bound", Some("u"), Vouched::Verified, Ok(Reason::Ready))]
    #[case::adopted("Succeeded", "u/Bound", Some("u"), Vouched::Adopted, Ok(Reason::Adopted))]
    #[case::first_success("Succeeded", "u/Bound", None, Vouched::Verified, Ok(Reason::Ready))]
    #[case::volume_collected_by_former_cdi("-", "u/Bound", Some("u"), Vouched::Verified, Ok(Reason::Ready))]
    #[case::not_vouched("Succeeded", "u/Bound", Some("u"), Vouched::No, Err(Reason::NameConflict))]
    #[case::replaced("Succeeded", "v/Bound", Some("u"), Vouched::Verified, Err(Reason::GoldenReplaced))]
    #[case::replaced_while_importing("ImportInProgress", "v/Pending", Some("u"), Vouched::Verified, Err(Reason::GoldenReplaced))]
    #[case::restored_without_volume("-", "v/Bound", Some("u"), Vouched::Verified, Err(Reason::GoldenReplaced))]
    #[case::unrecorded_without_volume("-", "v/Bound", None, Vouched::Verified, Err(Reason::NameConflict))]
    #[case::claim_deleted_under_a_live_volume("Succeeded", "-", Some("u"), Vouched::Verified, Err(Reason::GoldenMissing))]
    #[case::reimport_has_begun("ImportInProgress", "-", Some("u"), Vouched::Verified, Err(Reason::GoldenMissing))]
    #[case::all_gone("-", "-", Some("u"), Vouched::Verified, Err(Reason::GoldenMissing))]
    #[case::not_made("-", "-", None, Vouched::Verified, Err(Reason::Queued))]
    #[case::new("", "-", None, Vouched::Verified, Err(Reason::Importing))]
    #[case::importing("ImportInProgress", "u/Pending", None, Vouched::Verified, Err(Reason::Importing))]
    #[case::succeeded_before_bound("Succeeded", "u/Pending", None, Vouched::Verified, Err(Reason::Importing))]
    #[case::succeeded_without_claim("Succeeded", "-", None, Vouched::Verified, Err(Reason::Importing))]
    #[case::lost("Succeeded", "u/Lost", Some("u"), Vouched::Verified, Err(Reason::ClaimLost))]
    #[case::failed("Failed", "u/Bound", None, Vouched::Verified, Err(Reason::ClaimLost))]
    fn r7_r8(
        #[case] phase: &str,
        #[case] seen: &str,
        #[case] recorded: Option<&str>,
        #[case] vouched: Vouched,
        #[case] expected: Result<Reason, Reason>,
    ) {
        let found = golden_ready(volume(phase), claim(seen), recorded, vouched);
        assert_eq!(found.as_ref().copied().map_err(|not| not.reason), expected, "{found:?}");
    }

    #[rstest]
    #[case(true, false)]
    #[case(false, true)]
    fn r8_a_going_golden_is_not_ready(#[case] volume_goes: bool, #[case] claim_goes: bool) {
        let volume = VolumeSeen { phase: "Succeeded", terminating: volume_goes };
        let claim = ClaimSeen { uid: "u", phase: "Bound", terminating: claim_goes };
        let error = golden_ready(Some(volume), Some(claim), Some("u"), Vouched::Verified).expect_err("going");
        assert_eq!(error.reason, Reason::GoldenTerminating);
    }
}
