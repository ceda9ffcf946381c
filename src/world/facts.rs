//! Other objects as the plain data that rules read: classes, profiles, configuration, claims, pods.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        core::v1::{Event, Pod, ResourceQuota},
        storage::v1::StorageClass,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::{
    WarningFacts,
    evidence::{base, texts},
};
use crate::{
    foreign::{CdiConfig, Claim, DataVolume, Quantity, StorageProfile, VolumeSnapshot},
    model::{DiskSize, redact},
    rules::{
        class::ClassFacts,
        clone::{Fence, Profile, SourceVolume},
        fence::ClaimHolds,
        golden::{ClaimSeen, VolumeSeen},
        marks,
        modes::ClaimProperties,
        pods::{ClaimUse, PodFacts},
        quota::Quota,
        size::{Overheads, VolumeMode},
    },
};

/// The annotation that makes a class the cluster's default.
const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";
/// Its former beta name; Kubernetes still honours it.
const BETA_DEFAULT_CLASS: &str = "storageclass.beta.kubernetes.io/is-default-class";
/// KubeVirt's annotation that makes a class the default for disks.
const VIRT_DEFAULT_CLASS: &str = "storageclass.kubevirt.io/is-default-virt-class";

/// A StorageClass for the rules.
pub fn class_facts(class: &StorageClass) -> ClassFacts {
    let annotations = texts(class.metadata.annotations.as_ref());
    let is = |key: &str| annotations.get(key).is_some_and(|value| value == "true");
    ClassFacts {
        name: class.metadata.name.clone().unwrap_or_default(),
        provisioner: class.provisioner.clone(),
        parameters: class.parameters.clone().unwrap_or_default(),
        allows_expansion: class.allow_volume_expansion == Some(true),
        has_allowed_topologies: class.allowed_topologies.as_ref().is_some_and(|terms| !terms.is_empty()),
        waits_for_consumer: class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"),
        is_default: is(DEFAULT_CLASS),
        is_beta_default: is(BETA_DEFAULT_CLASS),
        is_virt_default: is(VIRT_DEFAULT_CLASS),
        created: base(&class.metadata).created,
    }
}

/// A StorageProfile for the rules.
pub fn profile(profile: &StorageProfile) -> Profile {
    let sets = profile.status.read().map(|status| status.claim_property_sets.as_slice()).unwrap_or_default();
    let properties = sets.iter().map(|set| ClaimProperties {
        access_modes: set.access_modes.clone(),
        volume_mode: set.volume_mode.as_deref().and_then(VolumeMode::parse),
    });
    let minimum =
        texts(profile.metadata.annotations.as_ref()).get(marks::CDI_MINIMUM_SIZE).and_then(|text| size(&Quantity::from(text.as_str())));
    Profile { properties: properties.collect(), minimum }
}

/// CDI's file system overheads, with its defaults where it says nothing.
pub fn overheads(config: Option<&CdiConfig>) -> Overheads {
    let overhead = config.and_then(|config| config.status.read()).and_then(|status| status.filesystem_overhead.as_ref());
    let classes = overhead.into_iter().flat_map(|overhead| &overhead.storage_class).map(|(class, text)| (class.as_str(), text.as_str()));
    Overheads::parse(overhead.and_then(|overhead| overhead.global.as_deref()), classes)
}

/// A ResourceQuota for the rules; one with scopes counts some pods only, and is none of theirs.
pub fn quota(quota: &ResourceQuota) -> Option<Quota> {
    let spec = quota.spec.as_ref()?;
    if spec.scope_selector.is_some() || spec.scopes.as_ref().is_some_and(|scopes| !scopes.is_empty()) {
        return None;
    }
    let amounts = |amounts: Option<&BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>>| {
        let read = |(resource, amount): (&String, &k8s_openapi::apimachinery::pkg::api::resource::Quantity)| {
            Some((resource.clone(), Quantity::from(amount.0.as_str()).bytes()?))
        };
        amounts.into_iter().flatten().filter_map(read).collect()
    };
    let status = quota.status.as_ref();
    Some(Quota {
        name: quota.metadata.name.clone().unwrap_or_default(),
        hard: amounts(spec.hard.as_ref()),
        used: amounts(status.and_then(|status| status.used.as_ref())),
    })
}

/// A Warning about a pod or a claim, for R10.
pub fn warning(event: Event) -> Option<WarningFacts> {
    let about = event.involved_object;
    let kind = about.kind.filter(|kind| matches!(kind.as_str(), "Pod" | "PersistentVolumeClaim"))?;
    let times = [event.last_timestamp.map(|at| at.0), event.event_time.map(|at| at.0), event.first_timestamp.map(|at| at.0)];
    Some(WarningFacts {
        kind,
        name: about.name?,
        reason: event.reason.unwrap_or_default(),
        // A kubelet quotes what it is given, and an Event may be as long as its writer likes.
        message: redact(&event.message.unwrap_or_default()).chars().take(512).collect(),
        seen: times.into_iter().flatten().next().map_or(0, |at| at.as_second()),
    })
}

fn size(quantity: &Quantity) -> Option<DiskSize> {
    quantity.bytes().and_then(DiskSize::from_bytes)
}

/// A claim's volume, as a clone of it sees it.
pub fn source_volume(claim: &Claim) -> SourceVolume {
    let spec = claim.spec.read();
    let capacity = claim.status.read().and_then(|status| status.capacity.as_ref()?.get("storage"));
    SourceVolume {
        class: spec.and_then(|spec| spec.storage_class_name.clone()).filter(|class| !class.is_empty()),
        request: spec.and_then(|spec| size(spec.storage_request()?)),
        capacity: capacity.and_then(size),
        // Kubernetes reads an absent mode as Filesystem.
        volume_mode: spec.map(|spec| spec.volume_mode.as_deref().and_then(VolumeMode::parse).unwrap_or(VolumeMode::Filesystem)),
    }
}

/// A snapshot's volume: its claim's, but a clone needs the snapshot's restore size.
pub fn snapshot_volume(snapshot: &VolumeSnapshot, claim: Option<&Claim>) -> SourceVolume {
    let volume = claim.map(source_volume).unwrap_or_default();
    let restore = snapshot.status.read().and_then(|status| size(status.restore_size.as_ref()?));
    SourceVolume { request: restore.or(volume.request), capacity: restore.or(volume.capacity), ..volume }
}

/// The fence on one object of a golden (R23): its marks, which only the daemon may write.
pub fn fence(object: &ObjectMeta) -> Fence {
    Fence::of(&texts(object.annotations.as_ref()))
}

/// A golden's DataVolume for R8.
pub fn volume_seen(volume: &DataVolume) -> VolumeSeen<'_> {
    let phase = volume.status.read().and_then(|status| status.phase.as_deref()).unwrap_or_default();
    VolumeSeen { phase, terminating: volume.metadata.deletion_timestamp.is_some() }
}

/// A golden's claim for R7 and R8.
pub fn claim_seen(claim: &Claim) -> ClaimSeen<'_> {
    ClaimSeen {
        uid: claim.metadata.uid.as_deref().unwrap_or_default(),
        phase: claim.status.read().and_then(|status| status.phase.as_deref()).unwrap_or_default(),
        terminating: claim.metadata.deletion_timestamp.is_some(),
    }
}

/// What of a golden's claim tells whether it holds a disk; of no record.
pub fn claim_holds(claim: &Claim) -> ClaimHolds<'_> {
    let annotations = texts(claim.metadata.annotations.as_ref());
    let is_off_populators = || annotations.get(marks::CDI_USE_POPULATOR).is_some_and(|value| value == "false");
    ClaimHolds {
        phase: claim_seen(claim).phase,
        is_being_filled: annotations.get(marks::CDI_POD_PHASE).map_or_else(is_off_populators, |phase| phase != "Succeeded"),
        is_recorded: false,
    }
}

/// A pod for R26.
pub fn pod_facts(pod: &Pod) -> PodFacts {
    let name = pod.metadata.name.clone().unwrap_or_default();
    let is_labelled =
        pod.metadata.labels.as_ref().and_then(|labels| labels.get("cdi.kubevirt.io")).is_some_and(|value| value == "cdi-clone-source");
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let containers = pod.spec.as_ref().map(|spec| spec.containers.as_slice()).unwrap_or_default();
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    let mut used: BTreeMap<&str, ClaimUse> = BTreeMap::new();
    for volume in volumes {
        let Some(claim) = &volume.persistent_volume_claim else { continue };
        let claim = ClaimUse { claim: claim.claim_name.clone(), read_only: claim.read_only == Some(true), ..ClaimUse::default() };
        used.insert(&volume.name, claim);
    }
    for container in containers {
        for mount in container.volume_mounts.iter().flatten() {
            if let Some(used) = used.get_mut(mount.name.as_str()) {
                used.mounts_read_only.push(mount.read_only == Some(true));
            }
        }
        for device in container.volume_devices.iter().flatten() {
            if let Some(used) = used.get_mut(device.name.as_str()) {
                used.as_device = true;
            }
        }
    }
    PodFacts {
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        is_clone_reader: is_labelled && name.ends_with("-source-pod"),
        name,
        has_ended: matches!(phase, Some("Succeeded" | "Failed")),
        volumes: used.into_values().collect(),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;
    use crate::rules::pods::holds_golden;

    fn read<K: DeserializeOwned>(value: Value) -> K {
        serde_json::from_value(value).expect("an object")
    }

    #[rstest]
    #[case(json!({"storageclass.kubernetes.io/is-default-class": "true"}), (true, false, false))]
    #[case::beta(json!({"storageclass.beta.kubernetes.io/is-default-class": "true"}), (false, true, false))]
    #[case(json!({"storageclass.kubevirt.io/is-default-virt-class": "true"}), (false, false, true))]
    #[case(json!({"storageclass.kubernetes.io/is-default-class": "false"}), (false, false, false))]
    #[case(json!({}), (false, false, false))]
    fn default_annotations(#[case] annotations: Value, #[case] expected: (bool, bool, bool)) {
        let facts = class_facts(&read(json!({"metadata": {"name": "a", "annotations": annotations}, "provisioner": "p"})));
        assert_eq!((facts.is_default, facts.is_beta_default, facts.is_virt_default), expected);
    }

    #[test]
    fn a_class_is_read_whole() {
        let facts = class_facts(&read(json!({
            "metadata": {"name": "local", "creationTimestamp": "2026-11-29T10:00:00Z"}, "provisioner": "linstor.csi.linbit.com",
            "parameters": {"linstor.csi.linbit.com/allowRemoteVolumeAccess": "false"}, "allowVolumeExpansion": true,
            "volumeBindingMode": "WaitForFirstConsumer", "allowedTopologies": [{"matchLabelExpressions": []}]})));
        assert!(facts.allows_expansion && facts.waits_for_consumer && facts.has_allowed_topologies);
        assert_eq!((facts.created, facts.parameters.len()), (1_795_946_400, 1));
        assert!(
            !class_facts(&read(json!({"metadata": {"name": "x"}, "provisioner": "p", "allowedTopologies": []}))).has_allowed_topologies
        );
    }

    #[test]
    fn profiles_and_overheads() {
        let profile = profile(&read(json!({
            "metadata": {"name": "r", "annotations": {"cdi.kubevirt.io/minimumSupportedPvcSize": "4Gi"}},
            "status": {"claimPropertySets": [{"accessModes": ["ReadWriteMany"], "volumeMode": "Block"}, {"accessModes": ["ReadWriteOnce"], "volumeMode": "odd"}]}})));
        assert_eq!(profile.properties.iter().map(|set| set.volume_mode).collect::<Vec<_>>(), [Some(VolumeMode::Block), None]);
        assert_eq!(profile.minimum, DiskSize::from_bytes(4 << 30));
        let config: CdiConfig = read(json!({"status": {"filesystemOverhead": {"global": "0.1", "storageClass": {"a": "0.055"}}}}));
        assert_eq!(overheads(Some(&config)), Overheads::parse(Some("0.1"), [("a", "0.055")]));
        assert_eq!(overheads(None), Overheads::default());
        assert_eq!(overheads(Some(&read(json!({"status": "odd"})))), Overheads::default());
    }

    #[test]
    fn quotas_and_warnings() {
        let found = quota(&read(json!({"metadata": {"name": "q"}, "spec": {"hard": {"requests.storage": "20Gi", "pods": "3"}},
            "status": {"used": {"requests.storage": "1500m"}}})))
        .expect("a quota");
        assert_eq!((found.hard["requests.storage"], found.hard["pods"], found.used["requests.storage"]), (20 << 30, 3, 2));
        assert_eq!(quota(&read(json!({"spec": {"hard": {"pods": "0"}, "scopes": ["BestEffort"]}}))), None);
        let event = |kind: &str| -> Event {
            read(json!({"metadata": {"name": "e"}, "involvedObject": {"kind": kind, "name": "importer-prime-u"}, "reason": "FailedMount",
                "message": "at https://s:8443/v1/disks/0123", "lastTimestamp": "2026-11-29T10:00:00Z"}))
        };
        let told = warning(event("Pod")).expect("about a pod");
        assert_eq!((told.seen, told.message.as_str()), (1_795_946_400, "at https://s:8443/v1/disks/…"));
        assert_eq!(warning(event("DataVolume")), None);
    }

    fn claim() -> Claim {
        read(json!({
            "metadata": {"name": "g", "uid": "u", "annotations": {marks::RETIRING: "2026-11-29"}},
            "spec": {"storageClassName": "r", "resources": {"requests": {"storage": "6Gi"}}}, "status": {"phase": "Bound", "capacity": {"storage": "7Gi"}}}))
    }

    #[test]
    fn a_claim_as_source() {
        let volume = source_volume(&claim());
        assert_eq!((volume.class.as_deref(), volume.volume_mode), (Some("r"), Some(VolumeMode::Filesystem)));
        assert_eq!((volume.request, volume.capacity), (DiskSize::from_bytes(6 << 30), DiskSize::from_bytes(7 << 30)));
        let snapshot = snapshot_volume(&read(json!({"status": {"restoreSize": "8Gi"}})), Some(&claim()));
        assert_eq!((snapshot.class.as_deref(), snapshot.request), (Some("r"), DiskSize::from_bytes(8 << 30)));
        assert_eq!((fence(&claim().metadata), claim_seen(&claim()).phase), (Fence::Retiring, "Bound"));
        let mut retired = claim();
        retired.metadata.annotations = Some([marks::RETIRED, marks::RETIRING].map(|key| (key.to_owned(), String::new())).into());
        assert_eq!(fence(&retired.metadata), Fence::Retired);
        assert_eq!(fence(&ObjectMeta::default()), Fence::Open);
        assert_eq!(source_volume(&read(json!({"spec": 3}))), SourceVolume::default());
        assert_eq!(volume_seen(&read(json!({"status": {"phase": "Succeeded"}}))).phase, "Succeeded");
    }

    #[rstest]
    #[case::says_nothing(json!({}), false)]
    #[case::filled(json!({marks::CDI_POD_PHASE: "Succeeded", marks::CDI_USE_POPULATOR: "false"}), false)]
    #[case::being_filled(json!({marks::CDI_POD_PHASE: "Running"}), true)]
    #[case::bound_first(json!({marks::CDI_USE_POPULATOR: "false"}), true)]
    fn what_a_claim_says_of_its_filling(#[case] annotations: Value, #[case] expected: bool) {
        let claim: Claim = read(json!({"metadata": {"name": "g", "annotations": annotations}, "status": {"phase": "Bound"}}));
        assert_eq!(claim_holds(&claim), ClaimHolds { phase: "Bound", is_being_filled: expected, is_recorded: false });
    }

    #[rstest]
    #[case::writes(json!({}), json!([{"name": "v", "mountPath": "/"}]), json!([]), true)]
    #[case::reads(json!({}), json!([{"name": "v", "mountPath": "/", "readOnly": true}]), json!([]), false)]
    #[case::read_only_volume(json!({"readOnly": true}), json!([]), json!([{"name": "v", "devicePath": "/d"}]), false)]
    #[case::device(json!({}), json!([]), json!([{"name": "v", "devicePath": "/d"}]), true)]
    fn pods(#[case] claim: Value, #[case] mounts: Value, #[case] devices: Value, #[case] holds: bool) {
        let mut volume = json!({"claimName": "g"});
        volume.as_object_mut().expect("object").extend(claim.as_object().expect("object").clone());
        let pod = |name: &str, phase: &str| -> Pod {
            read(
                json!({"metadata": {"namespace": "cozy-public", "name": name, "labels": {"cdi.kubevirt.io": "cdi-clone-source"}}, "status": {"phase": phase},
                "spec": {"containers": [{"name": "c", "volumeMounts": mounts, "volumeDevices": devices}],
                    "volumes": [{"name": "v", "persistentVolumeClaim": volume}, {"name": "w", "emptyDir": {}}]}}),
            )
        };
        assert_eq!(holds_golden(&pod_facts(&pod("debug", "Running")), "cozy-public", "g"), holds);
        assert!(!holds_golden(&pod_facts(&pod("debug", "Failed")), "cozy-public", "g"));
        assert!(!holds_golden(&pod_facts(&pod("x-source-pod", "Running")), "cozy-public", "g"));
    }
}
