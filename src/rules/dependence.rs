//! Which clones physically depend on the volume they were made from (R22), by driver.
//!
//! | driver | a finished clone | source |
//! |---|---|---|
//! | `linstor.csi.linbit.com` | depends: on a ZFS pool LINSTOR uses `zfs clone` whenever source and clone share the pool, and linstor-csi asks for it on every clone; on LVM-thin it would not, but a class shows layers and a pool's name, never the pool's kind | LINBIT/linstor-server `ZFS_CLONE` in `CloneStrategy`, piraeusdatastore/piraeus-operator issue 696 |
//! | `zfs.csi.openebs.io` | depends: "snapshot has dependent clones" | openebs/zfs-localpv issue 236, pull request 613 |
//! | `*rbd.csi.ceph.com` | depends: the clone's parent chain leads to the golden's image, which stays in the trash until each clone is flattened | ceph/ceph-csi `docs/design/proposals/rbd-snap-clone.md`, issue 4013 |
//! | `topolvm.io` | stands alone: "snapshots, restored volumes and clones are all independent of their source deletion" | topolvm/topolvm `docs/proposals/thin-snapshots-restore.md` |
//! | `topolvm.cybozu.com` | the former name of the same driver | the same |
//! | `*cephfs.csi.ceph.com` | stands alone: a subvolume clone is a full copy | Ceph manual, "Cloning Snapshots" of FS volumes |
//! | `hostpath.csi.k8s.io` | stands alone: the data is copied | kubernetes-csi/csi-driver-host-path `loadFromVolume` |
//! | any other | depends, because nobody has shown that it does not | |
//!
//! A copy over the network stands alone whatever the driver, where storage could not have cloned it: CDI's annotation alone is no proof, because a tenant may write it at any time. A hoster who knows better (LINSTOR on LVM-thin) may name classes whose clones stand alone.

use std::collections::BTreeSet;

/// Whether a finished clone needs its golden's volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dependence {
    /// It does: deleting the golden would fail in storage, or hurt the clone.
    Depends,
    /// It does not.
    Independent,
    /// Nothing is known of the driver, so it must be taken to depend.
    Unknown,
    /// An annotation says that it was copied over the network, and nothing else does.
    Unproven,
}

impl Dependence {
    /// Whether the golden must stay.
    pub const fn holds(self) -> bool {
        !matches!(self, Self::Independent)
    }
}

/// Drivers of the table above; a leading `*` matches any prefix (Rook puts its namespace before Ceph's names).
const DRIVERS: [(&str, Dependence); 7] = [
    ("linstor.csi.linbit.com", Dependence::Depends),
    ("zfs.csi.openebs.io", Dependence::Depends),
    ("*rbd.csi.ceph.com", Dependence::Depends),
    ("topolvm.io", Dependence::Independent),
    ("topolvm.cybozu.com", Dependence::Independent),
    ("*cephfs.csi.ceph.com", Dependence::Independent),
    ("hostpath.csi.k8s.io", Dependence::Independent),
];

/// Whether the table knows the driver at all; cloning in a class of an unknown one is told before the first clone.
pub fn is_known_driver(driver: &str) -> bool {
    entry(driver).is_some()
}

fn entry(driver: &str) -> Option<Dependence> {
    let matches = |pattern: &str| match pattern.strip_prefix('*') {
        Some(suffix) => driver == suffix || driver.strip_suffix(suffix).is_some_and(|prefix| prefix.ends_with('.')),
        None => driver == pattern,
    };
    DRIVERS.iter().find(|(pattern, _)| matches(pattern)).map(|(_, dependence)| *dependence)
}

/// What of a volume nobody can change once it stands: its claim's spec, and the cluster's classes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Make<'a> {
    /// The driver of its class, where that is there.
    pub provisioner: Option<&'a str>,
    /// Whether it is a block device.
    pub is_block: bool,
}

/// Whether a clone's content came over the network (`cdi.kubevirt.io/cloneType: copy`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Copied {
    /// Nothing says so.
    #[default]
    No,
    /// Only the annotation says so, which whoever may write the disk may write at any time.
    Said,
    /// It says so, and storage could not have cloned it.
    Proven,
}

impl Copied {
    /// What an annotation that says so is worth: storage clones within one driver and one volume mode.
    pub fn of(disk: Make<'_>, golden: Option<Make<'_>>) -> Self {
        // Nothing of the golden is left that could be lost.
        let Some(golden) = golden else { return Self::Proven };
        let is_another_driver = disk.provisioner.zip(golden.provisioner).is_some_and(|(disk, golden)| disk != golden);
        if is_another_driver || disk.is_block != golden.is_block { Self::Proven } else { Self::Said }
    }
}

/// What a rule knows of a finished clone's volume.
#[derive(Debug, Clone, Copy, Default)]
pub struct CloneVolume<'a> {
    /// The driver that made it, as its claim's annotation records.
    pub recorded: Option<&'a str>,
    /// The driver of its class, where that is there.
    pub provisioner: Option<&'a str>,
    /// Its class.
    pub class: Option<&'a str>,
    /// Whether it was copied over the network.
    pub copied: Copied,
}

/// Whether a finished clone still needs its golden (R22). `independent` are the classes the hoster named as standing alone.
///
/// Annotations never take a consumer away: whoever may write the claim may write another driver on it, or that it was copied.
pub fn dependence(volume: CloneVolume<'_>, independent: &BTreeSet<String>) -> Dependence {
    if volume.copied == Copied::Proven || volume.class.is_some_and(|class| independent.contains(class)) {
        return Dependence::Independent;
    }
    let by_record = volume.recorded.and_then(entry);
    match (volume.recorded, volume.provisioner.map(entry)) {
        (Some(recorded), Some(_)) if volume.provisioner != Some(recorded) => Dependence::Unknown,
        (_, Some(Some(Dependence::Independent))) => Dependence::Independent,
        _ if volume.copied == Copied::Said => Dependence::Unproven,
        (_, Some(by_class)) => by_class.unwrap_or(Dependence::Unknown),
        (_, None) => by_record.filter(|by_record| by_record.holds()).unwrap_or(Dependence::Unknown),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("linstor.csi.linbit.com", Dependence::Depends)]
    #[case("zfs.csi.openebs.io", Dependence::Depends)]
    #[case("rbd.csi.ceph.com", Dependence::Depends)]
    #[case("rook-ceph.rbd.csi.ceph.com", Dependence::Depends)]
    #[case("openshift-storage.cephfs.csi.ceph.com", Dependence::Independent)]
    #[case("topolvm.io", Dependence::Independent)]
    #[case("topolvm.cybozu.com", Dependence::Independent)]
    #[case("hostpath.csi.k8s.io", Dependence::Independent)]
    #[case("evilcephfs.csi.ceph.com", Dependence::Unknown)]
    #[case("driver.longhorn.io", Dependence::Unknown)]
    fn by_driver(#[case] driver: &str, #[case] expected: Dependence) {
        let volume = CloneVolume { provisioner: Some(driver), class: Some("replicated"), ..CloneVolume::default() };
        let none = BTreeSet::new();
        assert_eq!(dependence(volume, &none), expected);
        assert_eq!(dependence(CloneVolume { recorded: Some(driver), ..volume }, &none), expected);
        assert_eq!(dependence(CloneVolume { copied: Copied::Proven, ..volume }, &none), Dependence::Independent);
        assert_eq!(dependence(volume, &["replicated".to_owned()].into()), Dependence::Independent);
        assert_eq!(dependence(volume, &["other".to_owned()].into()), expected);
        assert_eq!(is_known_driver(driver), expected != Dependence::Unknown);
        assert_eq!(expected.holds(), expected != Dependence::Independent, "unknown is never none");
        assert_eq!(dependence(CloneVolume::default(), &none), Dependence::Unknown);
    }

    /// R22: an annotation may add a consumer, never remove one.
    #[rstest]
    #[case::another_driver_written(Some("topolvm.io"), Some("linstor.csi.linbit.com"), Copied::No, Dependence::Unknown)]
    #[case::a_driver_that_cannot_be_checked(Some("topolvm.io"), None, Copied::No, Dependence::Unknown)]
    #[case::a_class_that_is_gone(Some("linstor.csi.linbit.com"), None, Copied::No, Dependence::Depends)]
    #[case::said_to_be_copied(None, Some("linstor.csi.linbit.com"), Copied::Said, Dependence::Unproven)]
    #[case::both(Some("topolvm.io"), Some("linstor.csi.linbit.com"), Copied::Said, Dependence::Unknown)]
    #[case::without_its_class(Some("linstor.csi.linbit.com"), None, Copied::Said, Dependence::Unproven)]
    #[case::stands_alone_anyway(None, Some("topolvm.io"), Copied::Said, Dependence::Independent)]
    fn annotations_take_nothing_away(
        #[case] recorded: Option<&str>,
        #[case] provisioner: Option<&str>,
        #[case] copied: Copied,
        #[case] expected: Dependence,
    ) {
        assert_eq!(dependence(CloneVolume { recorded, provisioner, class: None, copied }, &BTreeSet::new()), expected);
    }

    #[rstest]
    #[case::alike(Some("a"), true, Some((Some("a"), true)), Copied::Said)]
    #[case::another_driver(Some("a"), true, Some((Some("b"), true)), Copied::Proven)]
    #[case::another_mode(Some("a"), false, Some((Some("a"), true)), Copied::Proven)]
    #[case::driver_not_known(None, true, Some((Some("b"), true)), Copied::Said)]
    #[case::goldens_not_known(Some("a"), true, Some((None, true)), Copied::Said)]
    #[case::golden_gone(Some("a"), true, None, Copied::Proven)]
    fn what_bears_a_copy_out(
        #[case] provisioner: Option<&str>,
        #[case] is_block: bool,
        #[case] golden: Option<(Option<&str>, bool)>,
        #[case] expected: Copied,
    ) {
        let golden = golden.map(|(provisioner, is_block)| Make { provisioner, is_block });
        assert_eq!(Copied::of(Make { provisioner, is_block }, golden), expected);
    }
}
