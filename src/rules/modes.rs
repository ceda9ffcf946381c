//! Volume and access modes: chosen once from the StorageProfile for a golden, foreseen for a clone (R16).

use super::{class::Shape, size::VolumeMode};

/// One way a class can be claimed, from its StorageProfile; best first in a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClaimProperties {
    /// Access modes.
    pub access_modes: Vec<String>,
    /// The volume mode; Kubernetes reads an absent one as Filesystem.
    pub volume_mode: Option<VolumeMode>,
}

/// The modes of a claim, spelled out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Modes {
    /// The volume mode.
    pub volume_mode: VolumeMode,
    /// The access modes, at least one.
    pub access_modes: Vec<String>,
}

/// The StorageProfile does not say how its class can be claimed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the StorageProfile of class {class:?} names no claim properties: state `volumeMode` and `accessModes` in the target, or add `claimPropertySets` to the profile"
)]
pub struct NoModes {
    /// The class.
    pub class: String,
}

/// The modes of a claim: what is stated, completed from the class's properties as CDI completes them.
///
/// A stated mode takes the first set that has it, else the first set; stated access modes take the first set that shares one, else the first (`getDefaultVolumeMode` and `getDefaultAccessModes` in CDI's pkg/controller/datavolume/util.go).
///
/// # Errors
/// When something is left open that the profile does not answer.
pub fn choose_modes(class: &str, mode: Option<VolumeMode>, access: &[String], sets: &[ClaimProperties]) -> Result<Modes, NoModes> {
    let volume_mode = mode.or_else(|| foreseen_mode(access, sets, Shape::Storage)).ok_or_else(|| NoModes { class: class.to_owned() })?;
    let access_modes = if access.is_empty() {
        let fits = sets.iter().find(|set| effective(set) == volume_mode && !set.access_modes.is_empty());
        let set = fits.or_else(|| sets.iter().find(|set| !set.access_modes.is_empty()));
        set.map(|set| set.access_modes.clone()).ok_or_else(|| NoModes { class: class.to_owned() })?
    } else {
        access.to_vec()
    };
    Ok(Modes { volume_mode, access_modes })
}

/// A StorageProfile that would have a golden made otherwise today: told, never followed. What the target states is no matter of the profile.
pub fn profile_change(
    class: &str,
    frozen: &Modes,
    mode: Option<VolumeMode>,
    access: &[String],
    sets: &[ClaimProperties],
) -> Option<String> {
    let today = choose_modes(class, mode, access, sets).ok()?;
    let show = |modes: &Modes| format!("{} with {}", modes.volume_mode, modes.access_modes.join(" and "));
    (today != *frozen).then(|| {
        format!("the golden in StorageClass {class} was made as {}, and the class's StorageProfile now says {}", show(frozen), show(&today))
    })
}

/// The volume mode a claim gets that states none (R16); `None` where CDI would have no answer either.
pub fn foreseen_mode(access: &[String], sets: &[ClaimProperties], shape: Shape) -> Option<VolumeMode> {
    match shape {
        Shape::Claim => Some(VolumeMode::Filesystem),
        Shape::Storage => {
            let shares = sets.iter().find(|set| set.access_modes.iter().any(|mode| access.contains(mode)));
            shares.or_else(|| sets.first()).map(effective)
        }
    }
}

fn effective(set: &ClaimProperties) -> VolumeMode {
    set.volume_mode.unwrap_or(VolumeMode::Filesystem)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// LINSTOR's order as Cozystack's clusters show it: RWX Block first.
    fn linstor() -> Vec<ClaimProperties> {
        set(&[
            ("ReadWriteMany", Some(VolumeMode::Block)),
            ("ReadWriteOnce", Some(VolumeMode::Block)),
            ("ReadWriteOnce", Some(VolumeMode::Filesystem)),
        ])
    }

    fn set(sets: &[(&str, Option<VolumeMode>)]) -> Vec<ClaimProperties> {
        let set = |(access, volume_mode): &(&str, _)| ClaimProperties {
            access_modes: access.split(' ').filter(|mode| !mode.is_empty()).map(str::to_owned).collect(),
            volume_mode: *volume_mode,
        };
        sets.iter().map(set).collect()
    }

    #[rstest]
    #[case::first_set(None, "", Some((VolumeMode::Block, "ReadWriteMany")))]
    #[case::by_mode(Some(VolumeMode::Filesystem), "", Some((VolumeMode::Filesystem, "ReadWriteOnce")))]
    #[case::by_access(None, "ReadWriteOnce", Some((VolumeMode::Block, "ReadWriteOnce")))]
    #[case::both(Some(VolumeMode::Filesystem), "ReadWriteMany", Some((VolumeMode::Filesystem, "ReadWriteMany")))]
    #[case::unknown_access(None, "ReadWriteOncePod", Some((VolumeMode::Block, "ReadWriteOncePod")))]
    fn modes_from_the_profile(#[case] mode: Option<VolumeMode>, #[case] access: &str, #[case] expected: Option<(VolumeMode, &str)>) {
        let access: Vec<String> = access.split(' ').filter(|mode| !mode.is_empty()).map(str::to_owned).collect();
        let chosen =
            choose_modes("replicated", mode, &access, &linstor()).ok().map(|modes| (modes.volume_mode, modes.access_modes.join(" ")));
        assert_eq!(chosen, expected.map(|(mode, access)| (mode, access.to_owned())));
    }

    #[test]
    fn a_silent_profile_is_named() {
        let error = choose_modes("new", None, &[], &[]).expect_err("nothing to go by");
        assert!(error.to_string().contains("\"new\"") && error.to_string().contains("claimPropertySets"), "{error}");
        assert!(choose_modes("new", Some(VolumeMode::Block), &[], &[]).is_err());
        assert!(choose_modes("new", None, &["ReadWriteOnce".to_owned()], &[]).is_err());
        let stated = choose_modes("new", Some(VolumeMode::Block), &["ReadWriteOnce".to_owned()], &[]).expect("all stated");
        assert_eq!(stated.volume_mode, VolumeMode::Block);
    }

    #[test]
    fn a_changed_profile_is_told_and_an_emptied_one_is_not() {
        let frozen = choose_modes("r", None, &[], &linstor()).expect("modes");
        assert_eq!(profile_change("r", &frozen, None, &[], &linstor()), None);
        assert_eq!(profile_change("r", &frozen, None, &[], &[]), None, "no word is no other word");
        let turned: Vec<_> = linstor().into_iter().rev().collect();
        let told = profile_change("r", &frozen, None, &[], &turned).expect("told");
        assert!(told.contains("made as Block with ReadWriteMany") && told.contains("now says Filesystem with ReadWriteOnce"), "{told}");
        // What the target states is as it was.
        assert_eq!(profile_change("r", &frozen, Some(VolumeMode::Block), &["ReadWriteMany".to_owned()], &turned), None);
    }

    #[rstest]
    #[case(Shape::Claim, &linstor(), Some(VolumeMode::Filesystem))]
    #[case(Shape::Storage, &linstor(), Some(VolumeMode::Block))]
    #[case(Shape::Storage, &[], None)]
    #[case(Shape::Storage, &set(&[("ReadWriteOnce", None)]), Some(VolumeMode::Filesystem))]
    fn a_clones_mode_is_foreseen(#[case] shape: Shape, #[case] sets: &[ClaimProperties], #[case] expected: Option<VolumeMode>) {
        assert_eq!(foreseen_mode(&[], sets, shape), expected);
    }
}
