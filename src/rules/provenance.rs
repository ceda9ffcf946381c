//! R5, R7: whether what is in a claim was put there in this cluster, or came back with it from a backup.
//!
//! A backup copies labels, annotations and spec; what it cannot copy is the UID that the API server gives the new claim. So what
//! names the claim's own UID was written for this very claim, and what names another one was copied. What cannot be told is never guessed.

use super::marks;

/// What a claim says of itself.
#[derive(Debug, Clone, Copy, Default)]
pub struct ClaimSays<'a> {
    /// Its UID.
    pub uid: &'a str,
    /// The UID of the DataVolume that CDI made it for, as CDI wrote it then.
    pub made_for: Option<&'a str>,
    /// The UID of the claim that CDI's populators filled, as they wrote it then.
    pub filled_as: Option<&'a str>,
    /// Whether somebody told CDI that it is filled already, as backup tools do.
    pub said_filled: bool,
    /// The restore that brought it back, where the tool says so.
    pub restored_by: Option<&'a str>,
    /// Whether its volume was made from a snapshot.
    pub from_snapshot: bool,
    /// The annotation by which it is taken over.
    pub adopt: Option<&'a str>,
    /// The UID of the object that controls it.
    pub controller: Option<&'a str>,
}

/// What the DataVolume of the same name says.
#[derive(Debug, Clone, Copy, Default)]
pub struct VolumeSays<'a> {
    /// Its UID.
    pub uid: &'a str,
    /// The restore that brought it back, where the tool says so.
    pub restored_by: Option<&'a str>,
    /// Whether it is to take a PersistentVolume that was there before.
    pub takes_what_is_there: bool,
    /// Whether it is a clone or a copy.
    pub is_copy: bool,
}

/// Where what is in a claim comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Provenance {
    /// CDI filled it, in this cluster.
    FilledHere,
    /// It came back from somewhere, and how that is seen, in words.
    BroughtBack(String),
    /// Nothing says.
    #[default]
    Unsaid,
}

/// Whether CDI filled this claim here, by what claim and DataVolume say (R5, R7).
pub fn provenance(claim: ClaimSays<'_>, volume: Option<VolumeSays<'_>>) -> Provenance {
    let back = |why: String| Provenance::BroughtBack(why);
    if let Some(uid) = claim.filled_as {
        return match uid == claim.uid {
            true => Provenance::FilledHere,
            false => back(format!("CDI filled it as the PVC {uid}")),
        };
    }
    if let Some(uid) = claim.adopt.filter(|value| is_uid(value) && *value != claim.uid) {
        return back(format!("its annotation `{}` names the PVC {uid}", marks::ADOPT));
    }
    if volume.is_some_and(|volume| volume.takes_what_is_there) {
        return back(format!("its DataVolume was to take a volume that was there (`{}`)", marks::CDI_STATIC_VOLUME));
    }
    let restore = claim.restored_by.map(|restore| format!("it carries the label `{}: {restore}`", marks::VELERO_RESTORE));
    match (volume, claim.made_for) {
        // Both came back, and the claim anew: a DataVolume gives its labels to the claim that CDI makes for it.
        (Some(volume), Some(uid)) if uid == volume.uid => match restore.filter(|_| claim.restored_by != volume.restored_by) {
            Some(why) => return back(why),
            None => return Provenance::FilledHere,
        },
        (Some(_), Some(_)) => return back("CDI made it for another DataVolume".to_owned()),
        _ => {}
    }
    if let Some(why) = restore {
        return back(why);
    }
    if claim.said_filled {
        return back(format!("CDI was told that it is filled (`{}`)", marks::CDI_POPULATED_FOR));
    }
    if claim.from_snapshot && !volume.is_some_and(|volume| volume.is_copy) {
        return back("it was made from a VolumeSnapshot".to_owned());
    }
    // CDI before it wrote for whom it makes a claim: it owned what it made, and wrote what it took over unseen.
    match volume.is_some_and(|volume| claim.controller == Some(volume.uid)) {
        true => Provenance::FilledHere,
        false => Provenance::Unsaid,
    }
}

/// Whether this is the form of a UID, rather than a word of somebody's.
fn is_uid(text: &str) -> bool {
    text.len() == 36 && text.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
}

/// What a person says by the annotation `…/adopt` on a golden's claim or DataVolume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Consent {
    /// Nothing that counts.
    #[default]
    No,
    /// `true`: that the volume of this name is the image. A backup copies that word, so it says nothing of one that came back.
    OfTheName,
    /// The claim's own UID: that this very volume is.
    OfThisClaim,
}

impl Consent {
    /// Reads the values of the annotation.
    pub fn read<'a>(values: impl IntoIterator<Item = &'a str>, claim_uid: Option<&str>) -> Self {
        let read = |value: &str| match value {
            "true" => Self::OfTheName,
            value if claim_uid == Some(value) => Self::OfThisClaim,
            _ => Self::No,
        };
        let weight = |consent: &Self| match consent {
            Self::No => 0,
            Self::OfTheName => 1,
            Self::OfThisClaim => 2,
        };
        values.into_iter().map(read).max_by_key(weight).unwrap_or_default()
    }
}

/// How a person says that a claim is taken over as it is.
pub fn consent_wanted(claim_uid: &str) -> String {
    format!("annotate the PVC `{}: {claim_uid}` and it is taken over as it is", marks::ADOPT)
}

/// `GoldenReplaced`: a volume that came back, and how that is seen.
pub fn brought_back_message(golden: &str, claim_uid: &str, why: &str) -> String {
    format!(
        "The PVC {golden} was brought back by a restore ({why}), so what is in it is not known: if it holds this image's disk, {}.",
        consent_wanted(claim_uid)
    )
}

/// `GoldenReplaced`: another volume than the one on record.
pub fn replaced_message(golden: &str, claim_uid: &str, recorded: &str) -> String {
    format!(
        "The PVC {golden} has the UID {claim_uid}, and the golden on record had {recorded}: if it holds this image's disk, {}.",
        consent_wanted(claim_uid)
    )
}

/// `GoldenReplaced`: a claim with our mark that stands alone.
pub fn alone_message(golden: &str, claim_uid: &str) -> String {
    format!(
        "The PVC {golden} carries this image's mark, has no DataVolume, and was never recorded, so what is in it is not known: if it holds this image's disk, {}.",
        consent_wanted(claim_uid)
    )
}

/// A claim that stands where a golden is expected and does not carry its image's mark.
#[derive(Debug, Clone, Copy)]
pub struct Unmarked<'a> {
    /// The golden's name.
    pub golden: &'a str,
    /// The claim's UID.
    pub claim_uid: &'a str,
    /// How it is seen that it is not the golden, such as `has another UID than the one on record`.
    pub why: &'a str,
    /// The image's name.
    pub image: &'a str,
    /// The image's identity, where it is known.
    pub identity: Option<&'a str>,
    /// Whether it carries our mark for another image: it may be that one's golden.
    pub is_of_another: bool,
}

/// `GoldenReplaced`: a claim without the image's mark. The annotation alone does not have it taken over: under a recorded name nothing is
/// taken without the mark, so the labels are named with it.
pub fn unmarked_message(found: Unmarked<'_>) -> String {
    let Unmarked { golden, claim_uid, why, image, identity, is_of_another } = found;
    let Some(identity) = identity else {
        return format!(
            "The PVC {golden} {why}, and it does not carry this image's mark; what helps is told once it is known what the image is."
        );
    };
    let labels = [(marks::GOLDEN, marks::GOLDEN_VALUE), (marks::IMAGE, image), (marks::IDENTITY, identity)];
    let labels = labels.map(|(key, value)| format!("`{key}: {value}`")).join(", ");
    let consent = consent_wanted(claim_uid);
    let otherwise = if is_of_another { "" } else { "; else delete it, then its DataVolume if it has one, and the golden is made anew" };
    format!(
        "The PVC {golden} {why}, and it does not carry this image's mark: if it holds this image's disk, label it {labels}, and {consent}{otherwise}."
    )
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const OWN: &str = "0a000000-0000-4000-8000-000000000001";
    const FORMER: &str = "0a000000-0000-4000-8000-000000000002";

    fn claim() -> ClaimSays<'static> {
        ClaimSays { uid: OWN, made_for: Some("dv"), controller: Some("dv"), ..ClaimSays::default() }
    }

    const VOLUME: Option<VolumeSays<'static>> =
        Some(VolumeSays { uid: "dv", restored_by: None, takes_what_is_there: false, is_copy: false });

    /// `Ok(true)` filled here, `Ok(false)` not said, else why it came back.
    #[rstest]
    #[case::made_by_cdi(claim(), VOLUME, Ok(true))]
    #[case::before_cdi_wrote_for_whom(ClaimSays { made_for: None, ..claim() }, VOLUME, Ok(true))]
    #[case::populated(ClaimSays { filled_as: Some(OWN), ..claim() }, VOLUME, Ok(true))]
    #[case::populated_and_alone(ClaimSays { filled_as: Some(OWN), controller: None, ..claim() }, None, Ok(true))]
    // (c) CDI, or a tool, wrote it on a claim that CDI filled.
    #[case::told_what_it_did_itself(ClaimSays { said_filled: true, ..claim() }, VOLUME, Ok(true))]
    #[case::restored_volume_imported_anew(
        ClaimSays { restored_by: Some("r"), ..claim() },
        Some(VolumeSays { restored_by: Some("r"), ..VOLUME.expect("volume") }),
        Ok(true)
    )]
    #[case::own_consent(ClaimSays { adopt: Some(OWN), ..claim() }, VOLUME, Ok(true))]
    #[case::somebodys_word(ClaimSays { adopt: Some("yes"), ..claim() }, VOLUME, Ok(true))]
    #[case::copied_word_on_what_cdi_filled(ClaimSays { adopt: Some(FORMER), filled_as: Some(OWN), ..claim() }, VOLUME, Ok(true))]
    #[case::pair(ClaimSays { made_for: Some("former"), ..claim() }, VOLUME, Err("another DataVolume"))]
    #[case::pair_of_an_old_cdi(ClaimSays { made_for: None, said_filled: true, ..claim() }, VOLUME, Err("populatedFor"))]
    #[case::under_a_living_volume(ClaimSays { restored_by: Some("r"), controller: None, ..claim() }, VOLUME, Err("velero.io/restore-name: r"))]
    #[case::under_a_living_volume_by_another_tool(ClaimSays { filled_as: Some(FORMER), ..claim() }, VOLUME, Err(FORMER))]
    #[case::second_restore(ClaimSays { adopt: Some(FORMER), ..claim() }, VOLUME, Err(FORMER))]
    #[case::static_volume(claim(), Some(VolumeSays { takes_what_is_there: true, ..VOLUME.expect("volume") }), Err("checkStaticVolume"))]
    #[case::snapshot(ClaimSays { made_for: None, from_snapshot: true, ..claim() }, VOLUME, Err("VolumeSnapshot"))]
    #[case::clone(
        ClaimSays { made_for: None, from_snapshot: true, ..claim() },
        Some(VolumeSays { is_copy: true, ..VOLUME.expect("volume") }),
        Ok(true)
    )]
    #[case::alone(ClaimSays { controller: None, ..claim() }, None, Ok(false))]
    #[case::alone_by_velero(ClaimSays { controller: None, restored_by: Some("r"), ..claim() }, None, Err("velero"))]
    #[case::alone_and_said_filled(ClaimSays { controller: None, said_filled: true, ..claim() }, None, Err("populatedFor"))]
    #[case::alone_from_a_snapshot(ClaimSays { controller: None, from_snapshot: true, ..claim() }, None, Err("VolumeSnapshot"))]
    #[case::beside_a_volume_that_never_owned_it(ClaimSays { made_for: None, controller: None, ..claim() }, VOLUME, Ok(false))]
    fn r7_where_it_comes_from(#[case] claim: ClaimSays<'_>, #[case] volume: Option<VolumeSays<'_>>, #[case] expected: Result<bool, &str>) {
        match (provenance(claim, volume), expected) {
            (Provenance::FilledHere, Ok(true)) | (Provenance::Unsaid, Ok(false)) => {}
            (Provenance::BroughtBack(why), Err(part)) => assert!(why.contains(part), "{why}"),
            (found, expected) => panic!("{found:?}, not {expected:?}"),
        }
    }

    #[rstest]
    #[case::none(&[], Consent::No)]
    #[case::own(&[OWN], Consent::OfThisClaim)]
    #[case::copied(&[FORMER], Consent::No)]
    #[case::word(&["true"], Consent::OfTheName)]
    #[case::word_and_own(&[OWN, "true"], Consent::OfThisClaim)]
    #[case::copied_and_word(&[FORMER, "true"], Consent::OfTheName)]
    #[case::odd(&["True", ""], Consent::No)]
    fn r7_consent_is_of_one_volume(#[case] values: &[&str], #[case] expected: Consent) {
        assert_eq!(Consent::read(values.iter().copied(), Some(OWN)), expected);
    }

    #[test]
    fn r7_each_message_has_the_exact_value() {
        for message in [brought_back_message("g", OWN, "why"), replaced_message("g", OWN, FORMER), alone_message("g", OWN)] {
            assert!(message.contains(&format!("`kubernetes-worker-image.cozystack.io/adopt: {OWN}`")), "{message}");
        }
    }

    /// Without the mark the annotation alone does not help, so the message has all three labels beside it.
    #[rstest]
    #[case::of_nobody(false, true)]
    #[case::of_another_image(true, false)]
    fn r7_what_has_no_mark_is_taken_over_with_it(#[case] is_of_another: bool, #[case] may_go: bool) {
        let found = Unmarked { golden: "g", claim_uid: OWN, why: "came back", image: "noble", identity: Some("b5a1"), is_of_another };
        let message = unmarked_message(found);
        for (mark, value) in [("golden", "true"), ("image", "noble"), ("identity", "b5a1"), ("adopt", OWN)] {
            assert!(message.contains(&format!("`{}{mark}: {value}`", marks::PREFIX)), "{mark}: {message}");
        }
        assert_eq!(message.contains("else delete it"), may_go, "{message}");
        assert!(message.starts_with("The PVC g came back, and it does not carry this image's mark"), "{message}");
        // Labels of which one is missing would not help.
        let unknown = unmarked_message(Unmarked { identity: None, ..found });
        assert!(!unknown.contains(marks::PREFIX) && unknown.contains("once it is known what the image is"), "{unknown}");
    }
}
