//! Clones that were copied over the network instead of being cloned in storage, and why.
//!
//! CDI chooses once and writes the way on the claim (`cdi.kubevirt.io/cloneType: copy`) with the cause in words (`cloneFallbackReason`); the words are those of its `pkg/controller/clone/planner.go`.

use std::fmt;

use super::marks::{CDI_CLONE_FALLBACK, CDI_CLONE_TYPE};

/// Why a clone was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CopyCause {
    /// The disk's class is of another driver than the golden's.
    OtherDriver,
    /// One is a block device, the other a file system.
    OtherVolumeMode,
    /// The disk is larger, and its class cannot grow volumes.
    NoExpansion,
    /// The driver has no VolumeSnapshotClass.
    NoSnapshotClass,
    /// The provisioner is no CSI driver.
    NoCsi,
    /// Nothing fell back: the StorageProfile, CDI's configuration or an annotation asks for copies.
    Asked,
    /// CDI gave a cause that is not known here.
    Other,
}

impl CopyCause {
    /// Every cause.
    pub const ALL: [Self; 7] =
        [Self::OtherDriver, Self::OtherVolumeMode, Self::NoExpansion, Self::NoSnapshotClass, Self::NoCsi, Self::Asked, Self::Other];

    /// The cause as a metric's label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OtherDriver => "OtherDriver",
            Self::OtherVolumeMode => "OtherVolumeMode",
            Self::NoExpansion => "NoExpansion",
            Self::NoSnapshotClass => "NoSnapshotClass",
            Self::NoCsi => "NoCsi",
            Self::Asked => "Asked",
            Self::Other => "Other",
        }
    }
}

impl CopyCause {
    /// What it is and what to do, as the end of a sentence.
    pub const fn advice(self) -> &'static str {
        match self {
            Self::OtherDriver => {
                "the disk's StorageClass is of another driver than the golden's; add a target for that class to the image, or use the golden's class"
            }
            Self::OtherVolumeMode => "one is a block device and the other a file system; write the golden's `volumeMode`",
            Self::NoExpansion => {
                "the disk is larger than the golden and its class cannot grow volumes; set `allowVolumeExpansion: true` on the class"
            }
            Self::NoSnapshotClass => "the driver has no VolumeSnapshotClass; create one",
            Self::NoCsi => "the provisioner is no CSI driver; use a class of one that is",
            Self::Asked => {
                "the StorageProfile, CDI's configuration or an annotation asks for copies; set `cloneStrategy` to csi-clone or snapshot, or take the annotation off"
            }
            Self::Other => "CDI's words are in the PVC's annotation `cdi.kubevirt.io/cloneFallbackReason`",
        }
    }
}

impl fmt::Display for CopyCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why an object's clone was copied over the network, by CDI's record on it; `None` where it was not.
pub fn copy_cause<'a>(annotation: impl Fn(&str) -> Option<&'a str>) -> Option<CopyCause> {
    if annotation(CDI_CLONE_TYPE) != Some("copy") {
        return None;
    }
    let Some(words) = annotation(CDI_CLONE_FALLBACK) else { return Some(CopyCause::Asked) };
    let words = words.to_ascii_lowercase();
    let causes = [
        ("volumesnapshotclass", CopyCause::NoSnapshotClass),
        ("provisioner", CopyCause::OtherDriver),
        ("volume mode", CopyCause::OtherVolumeMode),
        ("expansion", CopyCause::NoExpansion),
        ("in tree", CopyCause::NoCsi),
    ];
    Some(causes.into_iter().find(|(word, _)| words.contains(word)).map_or(CopyCause::Other, |(_, cause)| cause))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(None, None, None)]
    #[case(Some("csi-clone"), Some("No volume expansion is possible"), None)]
    #[case(Some("copy"), None, Some(CopyCause::Asked))]
    #[case(Some("copy"), Some("No compatible volumesnapshotclass found"), Some(CopyCause::NoSnapshotClass))]
    #[case(Some("copy"), Some("Provisioners are incompatible"), Some(CopyCause::OtherDriver))]
    #[case(Some("copy"), Some("The volume modes of source and target are incompatible"), Some(CopyCause::OtherVolumeMode))]
    #[case(Some("copy"), Some("No volume expansion is possible"), Some(CopyCause::NoExpansion))]
    #[case(Some("copy"), Some("In tree storage class does not support snapshot/clone"), Some(CopyCause::NoCsi))]
    #[case(Some("copy"), Some("words of a later CDI"), Some(CopyCause::Other))]
    fn by_cdis_record(#[case] kind: Option<&'static str>, #[case] fallback: Option<&'static str>, #[case] expected: Option<CopyCause>) {
        let annotation = |key: &str| if key == CDI_CLONE_TYPE { kind } else { fallback };
        assert_eq!(copy_cause(annotation), expected);
    }
}
