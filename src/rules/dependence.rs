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
//! A copy over the network stands alone whatever the driver. A hoster who knows better (LINSTOR on LVM-thin) may name classes whose clones stand alone.

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

/// What a rule knows of a finished clone's volume.
#[derive(Debug, Clone, Copy, Default)]
pub struct CloneVolume<'a> {
    /// The driver that made it.
    pub driver: Option<&'a str>,
    /// Its class.
    pub class: Option<&'a str>,
    /// Whether CDI recorded that it was copied over the network (`cdi.kubevirt.io/cloneType: copy`).
    pub was_copied: bool,
}

/// Whether a finished clone still needs its golden (R22). `independent` are the classes the hoster named as standing alone.
pub fn dependence(volume: CloneVolume<'_>, independent: &BTreeSet<String>) -> Dependence {
    if volume.was_copied || volume.class.is_some_and(|class| independent.contains(class)) {
        return Dependence::Independent;
    }
    volume.driver.and_then(entry).unwrap_or(Dependence::Unknown)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(Some("linstor.csi.linbit.com"), Dependence::Depends)]
    #[case(Some("zfs.csi.openebs.io"), Dependence::Depends)]
    #[case(Some("rbd.csi.ceph.com"), Dependence::Depends)]
    #[case(Some("rook-ceph.rbd.csi.ceph.com"), Dependence::Depends)]
    #[case(Some("openshift-storage.cephfs.csi.ceph.com"), Dependence::Independent)]
    #[case(Some("topolvm.io"), Dependence::Independent)]
    #[case(Some("topolvm.cybozu.com"), Dependence::Independent)]
    #[case(Some("hostpath.csi.k8s.io"), Dependence::Independent)]
    #[case(Some("evilcephfs.csi.ceph.com"), Dependence::Unknown)]
    #[case(Some("driver.longhorn.io"), Dependence::Unknown)]
    #[case(None, Dependence::Unknown)]
    fn by_driver(#[case] driver: Option<&str>, #[case] expected: Dependence) {
        let volume = CloneVolume { driver, class: Some("replicated"), was_copied: false };
        assert_eq!(dependence(volume, &BTreeSet::new()), expected);
        assert_eq!(dependence(CloneVolume { was_copied: true, ..volume }, &BTreeSet::new()), Dependence::Independent);
        assert_eq!(dependence(volume, &["replicated".to_owned()].into()), Dependence::Independent);
        assert_eq!(dependence(volume, &["other".to_owned()].into()), expected);
        assert_eq!(driver.is_some_and(is_known_driver), expected != Dependence::Unknown);
        assert_eq!(expected.holds(), expected != Dependence::Independent, "unknown is never none");
    }
}
