//! Which StorageClass, volume mode, access modes and size a DataVolume gets: `pkg/controller/datavolume/util.go` of CDI as pure functions.

use std::sync::Arc;

use k8s_openapi::api::{core::v1::PersistentVolumeClaimSpec, storage::v1::StorageClass};
use kube::ResourceExt;

use super::{
    names,
    quantity::{self, MIB, bytes, quantity, round_up},
    types::{CdiConfigStatus, DataVolume, StorageProfile},
};

fn marked(class: &StorageClass, annotation: &str) -> bool {
    class.annotations().get(annotation).is_some_and(|value| value == "true")
}

/// The default class of CDI: the virt default, else the Kubernetes default; of several the newest, then the first by name.
pub(super) fn default_class(classes: &[Arc<StorageClass>], virt: bool) -> Option<Arc<StorageClass>> {
    let pick = |wanted: &dyn Fn(&StorageClass) -> bool| {
        let mut found: Vec<_> = classes.iter().filter(|class| wanted(class)).collect();
        found.sort_by_key(|class| (std::cmp::Reverse(class.creation_timestamp()), class.name_any()));
        found.first().map(|class| (*class).clone())
    };
    virt.then(|| pick(&|class| marked(class, names::DEFAULT_VIRT_CLASS)))
        .flatten()
        .or_else(|| pick(&|class| marked(class, names::DEFAULT_CLASS) || marked(class, names::BETA_DEFAULT_CLASS)))
}

/// What the cluster offers for rendering.
pub(super) struct Offer<'a> {
    pub(super) classes: &'a [Arc<StorageClass>],
    pub(super) profile: &'a (dyn Fn(&str) -> Option<Arc<StorageProfile>> + Sync),
    pub(super) config: Option<&'a CdiConfigStatus>,
    pub(super) overhead: f64,
}

/// The claim's spec for a DataVolume, or the message of `ErrClaimNotValid`.
pub(super) fn render(dv: &DataVolume, offer: &Offer, clone: bool) -> Result<PersistentVolumeClaimSpec, String> {
    if let Some(pvc) = &dv.spec.pvc {
        return Ok(pvc.clone());
    }
    let Some(storage) = &dv.spec.storage else { return Err("datavolume one of {pvc, storage} field is required".into()) };
    let mut spec = storage.clone();
    let archive = dv.spec.content_type.as_deref() == Some("archive");
    let class = match spec.storage_class_name.as_deref() {
        None => default_class(offer.classes, !archive),
        Some(name) => offer.classes.iter().find(|class| class.name_any() == name).cloned(),
    };
    let no_modes = spec.access_modes.as_ref().is_none_or(Vec::is_empty);
    match class {
        None => {
            // Seen on v1.64: an unknown class and "" both end here whatever modes the DataVolume states.
            if let Some(name) = spec.storage_class_name.as_deref() {
                return Err(if name.is_empty() {
                    format!("PVC {}/{} has empty storage class name", dv.namespace().unwrap_or_default(), dv.name_any())
                } else {
                    format!("storageclasses.storage.k8s.io \"{name}\" not found")
                });
            }
            if no_modes {
                return Err("PVC spec is missing accessMode and no storageClass to choose profile".into());
            }
        }
        Some(class) => {
            spec.storage_class_name = Some(class.name_any());
            modes_from_profile(&mut spec, &class, offer)?;
        }
    }
    render_size(&mut spec, offer, clone)?;
    Ok(spec)
}

fn modes_from_profile(spec: &mut PersistentVolumeClaimSpec, class: &StorageClass, offer: &Offer) -> Result<(), String> {
    let no_access = spec.access_modes.as_ref().is_none_or(Vec::is_empty);
    if !no_access && spec.volume_mode.is_some() {
        return Ok(());
    }
    let name = class.name_any();
    let sets =
        (offer.profile)(&name).and_then(|profile| profile.status.clone()).and_then(|status| status.claim_property_sets).unwrap_or_default();
    let missing = |what: &str| format!("Spec is missing {what} from StorageProfile {name}");
    match (no_access, &spec.volume_mode) {
        (true, None) => {
            let first = sets.first().filter(|set| !set.access_modes.is_empty());
            let set = first.ok_or_else(|| missing("accessMode and volumeMode, cannot get access mode"))?;
            spec.access_modes = Some(set.access_modes.clone());
            spec.volume_mode.clone_from(&set.volume_mode);
        }
        (true, Some(mode)) => {
            let set = sets.iter().find(|set| set.volume_mode.as_ref() == Some(mode) && !set.access_modes.is_empty());
            spec.access_modes = Some(set.ok_or_else(|| missing("accessMode and cannot get access mode"))?.access_modes.clone());
        }
        (false, None) => {
            let wanted = spec.access_modes.clone().unwrap_or_default();
            let set = sets.iter().find(|set| set.access_modes.iter().any(|mode| wanted.contains(mode)));
            spec.volume_mode = set.and_then(|set| set.volume_mode.clone());
        }
        (false, Some(_)) => {}
    }
    Ok(())
}

fn render_size(spec: &mut PersistentVolumeClaimSpec, offer: &Offer, clone: bool) -> Result<(), String> {
    let Some(requested) = request(spec) else {
        return if clone { Ok(()) } else { Err("PVC Spec is not valid - missing storage size".into()) };
    };
    if requested < MIB {
        return Err("PVC Spec is not valid - storage size should be at least 1MiB".into());
    }
    set_request(spec, effective(inflate(requested, spec, offer), spec, offer));
    Ok(())
}

/// What the claim asks for, in bytes.
pub(super) fn request(spec: &PersistentVolumeClaimSpec) -> Option<u64> {
    spec.resources.as_ref()?.requests.as_ref()?.get("storage").and_then(|size| bytes(&size.0))
}

pub(super) fn set_request(spec: &mut PersistentVolumeClaimSpec, size: u64) {
    let unchanged = request(spec) == Some(size);
    let requests = spec.resources.get_or_insert_default().requests.get_or_insert_default();
    // The user's own spelling stays where the number does.
    if !unchanged {
        requests.insert("storage".into(), quantity(size));
    }
}

/// Whether the claim is a raw device.
pub(super) fn is_block(spec: &PersistentVolumeClaimSpec) -> bool {
    spec.volume_mode.as_deref() == Some("Block")
}

/// `InflateSizeWithOverhead`: a Filesystem claim grows by the overhead, a Block claim does not.
pub(super) fn inflate(size: u64, spec: &PersistentVolumeClaimSpec, offer: &Offer) -> u64 {
    if is_block(spec) {
        return size;
    }
    (round_up(size) as f64 * (1.0 + overhead(spec.storage_class_name.as_deref(), offer.config, offer.overhead))).ceil() as u64
}

/// The overhead of a class by CDIConfig.
pub(super) fn overhead(class: Option<&str>, config: Option<&CdiConfigStatus>, default: f64) -> f64 {
    let configured = config.and_then(|config| config.filesystem_overhead.as_ref());
    let text = configured.and_then(|overhead| class.and_then(|class| overhead.storage_class.get(class)).or(overhead.global.as_ref()));
    text.and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The disk that fits a Filesystem claim of `size`, or the whole device.
pub(super) fn usable(size: u64, block: bool, overhead: f64) -> u64 {
    if block { size } else { (size as f64 / (1.0 + overhead)) as u64 / MIB * MIB }
}

fn effective(size: u64, spec: &PersistentVolumeClaimSpec, offer: &Offer) -> u64 {
    let profile = spec.storage_class_name.as_deref().and_then(|class| (offer.profile)(class));
    let minimum = profile.and_then(|profile| profile.annotations().get(names::MINIMUM_PVC_SIZE).and_then(|text| quantity::bytes(text)));
    size.max(minimum.unwrap_or(0))
}

/// Whether the class waits for the first consumer.
pub(super) fn waits_for_consumer(class: Option<&StorageClass>) -> bool {
    class.is_some_and(|class| class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"))
}
