//! How CDI would clone: strategy, fallbacks and refusals of `pkg/controller/clone/planner.go`, as pure functions.

use k8s_openapi::api::{core::v1::PersistentVolumeClaim, storage::v1::StorageClass};

use super::{classes::request, quantity::bytes, storage::capacity};

/// A strategy, and why it is not the one that was wanted: event reason and message.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Plan {
    pub(super) strategy: String,
    pub(super) fallback: Option<(&'static str, &'static str)>,
}

fn copy(reason: &'static str, message: &'static str) -> Plan {
    Plan { strategy: "copy".into(), fallback: Some((reason, message)) }
}

/// What is known of both ends.
pub(super) struct Ends<'a> {
    pub(super) source: &'a PersistentVolumeClaim,
    /// CSI driver of the source's volume, or its class's provisioner.
    pub(super) source_driver: Option<String>,
    pub(super) target: &'a PersistentVolumeClaim,
    pub(super) target_class: Option<&'a StorageClass>,
    /// `cloneStrategyOverride`, else the StorageProfile's, else `snapshot`.
    pub(super) wanted: String,
    /// A VolumeSnapshotClass for the driver exists.
    pub(super) snapshot_class: bool,
}

/// The volume mode of a claim.
pub(super) fn mode(pvc: &PersistentVolumeClaim) -> &str {
    pvc.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref()).unwrap_or("Filesystem")
}

fn asked(pvc: &PersistentVolumeClaim) -> u64 {
    pvc.spec.as_ref().and_then(request).unwrap_or(0)
}

/// Chooses for a claim as source; `Err` is written to the target as `cloneError` and tried again for ever.
pub(super) fn from_claim(ends: &Ends, permissive: bool) -> Result<Plan, String> {
    let name = ends.target.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
    if name == Some("") {
        return Err("claim has emptystring storageclass, will not work".into());
    }
    let class = ends.target_class.ok_or("target storage class not found")?;
    if !permissive && asked(ends.source) > asked(ends.target) {
        return Err("target resources requests storage size is smaller than the source".into());
    }
    if ends.wanted == "snapshot" && (!ends.snapshot_class || ends.source_driver.as_deref() != Some(&class.provisioner)) {
        return Ok(copy("NoVolumeSnapshotClass", "No compatible volumesnapshotclass found"));
    }
    if ends.wanted == "snapshot" || ends.wanted == "csi-clone" {
        if ends.source_driver.as_deref() != Some(&class.provisioner) {
            return Ok(copy("IncompatibleProvisioners", "Provisioners are incompatible"));
        }
        if mode(ends.source) != mode(ends.target) {
            return Ok(copy("IncompatibleVolumeModes", "The volume modes of source and target are incompatible"));
        }
        let (Some(have), true) = (capacity(ends.source), asked(ends.target) > 0) else {
            return Err("source/target size info missing".into());
        };
        if asked(ends.target) > have && class.allow_volume_expansion != Some(true) {
            return Ok(copy("NoVolumeExpansion", "No volume expansion is possible"));
        }
    }
    Ok(Plan { strategy: ends.wanted.clone(), fallback: None })
}

/// Chooses for a snapshot as source.
pub(super) fn from_snapshot(
    restore_size: Option<&str>,
    driver: Option<&str>,
    target: &PersistentVolumeClaim,
    class: Option<&StorageClass>,
) -> Result<Plan, String> {
    let class = class.ok_or("target claim's storageclass doesn't exist, clone will not work")?;
    if driver != Some(&class.provisioner) {
        return Ok(copy("NoProvisionerMatch", "The storageclass provisioner does not match the volumesnapshotcontent driver"));
    }
    let size = restore_size.and_then(bytes).ok_or("snapshot has no restore size")?;
    if size > asked(target) {
        return Err("target resources requests storage size is smaller than the source".into());
    }
    if size < asked(target) && class.allow_volume_expansion != Some(true) {
        return Ok(copy("NoVolumeExpansion", "No volume expansion is possible"));
    }
    Ok(Plan { strategy: "snapshot".into(), fallback: None })
}
