//! The names of everything the catalog writes on other objects (docs/architecture.md, "Names"), and the sets written on a golden and on a consumer.

use std::collections::BTreeMap;

use crate::model::{Access, Architecture, Digest, DiskSize, Identity, VirtualMachineDefaults};

/// Builds a name under the catalog's prefix at compile time.
macro_rules! mark {
    ($name:literal) => {
        concat!("kubernetes-worker-image.cozystack.io/", $name)
    };
}

/// The prefix of every mark.
pub const PREFIX: &str = mark!("");

/// On a golden's DataVolume and claim, the label `true`: *our mark*. On a consumer, the annotation with the golden's name. One key, because the platform's charts write the annotation already.
pub const GOLDEN: &str = mark!("golden");
/// The value of the label [`GOLDEN`].
pub const GOLDEN_VALUE: &str = "true";

/// Whether an object of the catalog namespace carries *our mark*, by its labels. CDI copies labels onto its temporaries: what the fence is
/// around, [`super::golden::is_guarded`] says.
pub fn is_marked(labels: &BTreeMap<String, String>) -> bool {
    labels.get(GOLDEN).is_some_and(|value| value == GOLDEN_VALUE)
}

/// The label selector of what carries our mark.
pub fn selector() -> String {
    format!("{GOLDEN}={GOLDEN_VALUE}")
}

/// Label: the GoldenImage's name.
pub const IMAGE: &str = mark!("image");
/// Label: the image's identity.
pub const IDENTITY: &str = mark!("identity");
/// Label: the operating system's family.
pub const OS_FAMILY: &str = mark!("os-family");
/// Label: the operating system's version.
pub const OS_VERSION: &str = mark!("os-version");
/// Label: the CPU architecture.
pub const ARCHITECTURE: &str = mark!("architecture");
/// Label: `true` where pools may use the golden.
pub const USAGE_WORKER: &str = mark!("usage-worker");
/// Label: `true` where VM users may choose the golden.
pub const USAGE_VIRTUAL_MACHINE: &str = mark!("usage-virtual-machine");
/// Annotation: the Talos schematic.
pub const SCHEMATIC_ID: &str = mark!("schematic-id");
/// Annotation: the Talos release.
pub const TALOS_VERSION: &str = mark!("talos-version");
/// Annotation: the Kubernetes release inside a worker image.
pub const KUBERNETES_VERSION: &str = mark!("kubernetes-version");
/// Annotation: where the bytes came from, without credentials or query.
pub const SOURCE_URL: &str = mark!("source-url");
/// Annotation: the digest of the bytes as downloaded.
pub const ARTIFACT_DIGEST: &str = mark!("artifact-digest");
/// Annotation: the digest of the disk as served to CDI.
pub const DISK_DIGEST: &str = mark!("disk-digest");
/// Annotation: on a golden its class; on a machine template the class it was admitted with (R15).
pub const STORAGE_CLASS: &str = mark!("storage-class");
/// Annotation on a golden: who may clone it (R18), as [`Access::written`] says; so that it stays restricted while its GoldenImage is gone.
pub const ACCESS: &str = mark!("access");
/// Annotation: the smallest clone.
pub const MINIMUM_SIZE: &str = mark!("minimum-size");
/// Annotation on a consumer: the pool it belongs to.
pub const POOL: &str = mark!("pool");
/// Annotation on a golden: no new pools, it is to go (R23).
pub const RETIRING: &str = mark!("retiring");
/// Annotation on a golden: nothing needs it, it may be deleted (R23).
pub const RETIRED: &str = mark!("retired");
/// Annotation on a golden's claim that has no GoldenImage: retire it (R23).
pub const RETIRE_REQUESTED: &str = mark!("retire-requested");
/// Annotation on a GoldenImage or golden claim: mark it retired in spite of blockers, and why (R23).
pub const FORCE_RETIRE: &str = mark!("force-retire");
/// Annotation on a GoldenImage: start over with a failed fetch or import; any new value.
pub const RETRY: &str = mark!("retry");
/// Annotation on a golden's claim: its own UID, set by a person who wants it taken over as it is (R5, R7), and by the leader on what it took over. A
/// copy of the claim has another UID, and is not the one that was meant. `true`, on it or on its DataVolume, is enough where no restore is seen (R5).
pub const ADOPT: &str = mark!("adopt");

/// The prefix of today's VM image catalog, whose console reads these annotations.
pub const VM_IMAGES_PREFIX: &str = "vm-default-images.cozystack.io/";
/// KubeVirt's label for the instance type a VM of this disk gets where its user names none.
pub const DEFAULT_INSTANCETYPE: &str = "instancetype.kubevirt.io/default-instancetype";
/// KubeVirt's label for the preference a VM of this disk gets where its user names none.
pub const DEFAULT_PREFERENCE: &str = "instancetype.kubevirt.io/default-preference";

/// CDI's label or annotation on what it made for another object: the UID of that object.
pub const CDI_OWNED_BY: &str = "cdi.kubevirt.io/OwnedByUID";
/// CDI's annotation on the volumes its populators fill.
pub const CDI_POPULATOR_KIND: &str = "cdi.kubevirt.io/storage.populator.kind";
/// CDI's annotation on a claim cloned from another namespace.
pub const CDI_SOURCE_NAMESPACE: &str = "cdi.kubevirt.io/dataSourceNamespace";
/// CDI's annotation with the way a clone was made, or is to be made.
pub const CDI_CLONE_TYPE: &str = "cdi.kubevirt.io/cloneType";
/// CDI's annotation on a claim with the cause, in words, why a clone was copied over the network.
pub const CDI_CLONE_FALLBACK: &str = "cdi.kubevirt.io/cloneFallbackReason";
/// Kubernetes' former way to state a claim's class, which it still reads before the field (`GetPersistentVolumeClaimClass`); CDI copies it from a
/// DataVolume.
pub const FORMER_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
/// CDI's annotation that takes a disk off the populator path when `false`, in any spelling of Go's `strconv.ParseBool`.
pub const CDI_USE_POPULATOR: &str = "cdi.kubevirt.io/storage.usePopulator";
/// CDI's annotation on a claim with the phase of the pod that fills it: on a golden's, `Succeeded` when it is filled.
pub const CDI_POD_PHASE: &str = "cdi.kubevirt.io/storage.pod.phase";
/// CDI's annotation on a claim whose DataVolume it deleted after success (CDI v1.59 to v1.61).
pub const CDI_GARBAGE_COLLECTED: &str = "cdi.kubevirt.io/garbageCollected";
/// CDI's annotation on a claim: the UID of the DataVolume that it made the claim for, copied by whatever restores the claim.
pub const CDI_CREATED_FOR: &str = "cdi.kubevirt.io/createdForDataVolume";
/// The annotation by which a backup tool tells CDI that a claim is filled, for the DataVolume of this name; CDI writes it on claims that it takes over unseen.
pub const CDI_POPULATED_FOR: &str = "cdi.kubevirt.io/storage.populatedFor";
/// The annotation, whatever its value, by which CDI leaves a DataVolume's claim alone: a backup tool says with it that the disk comes back by itself, and CDI writes it where [`CDI_POPULATED_FOR`] stands on the bound claim (docs/decisions).
pub const CDI_PREPOPULATED: &str = "cdi.kubevirt.io/storage.prePopulated";
/// CDI's annotation on a DataVolume with the right to clone its source, for five minutes: whoever holds it may clone with a claim of that name as well.
pub const CDI_CLONE_TOKEN: &str = "cdi.kubevirt.io/storage.clone.token";
/// CDI's annotation on a claim that its populators fill: `prime-` and the claim's UID. It stays when the import is over (CDI `import-populator.go`).
pub const CDI_PRIME: &str = "cdi.kubevirt.io/storage.populator.pvcPrime";
/// CDI's annotation on a DataVolume that is to take a PersistentVolume which is there for it already.
pub const CDI_STATIC_VOLUME: &str = "cdi.kubevirt.io/storage.checkStaticVolume";
/// Velero's label on everything that it restores: the restore's name.
pub const VELERO_RESTORE: &str = "velero.io/restore-name";
/// CDI's annotation `namespace/name` on a claim cloned by its former way.
pub const CDI_CLONE_REQUEST: &str = "k8s.io/CloneRequest";
/// CDI's annotation on a claim that it has filled for a clone request: with it, a request is heeded no more (CDI `clone-controller.go`).
pub const CDI_CLONE_OF: &str = "k8s.io/CloneOf";
/// Kubernetes' annotation on a claim: the provisioner that was asked for its volume.
pub const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
/// [`PROVISIONER`] before Kubernetes v1.23.
pub const BETA_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";
/// CDI's annotation on a StorageProfile: no claim of the class is smaller.
pub const CDI_MINIMUM_SIZE: &str = "cdi.kubevirt.io/minimumSupportedPvcSize";
/// KubeVirt's label on a DataVolume made from a VM's template: the VM's UID.
pub const KUBEVIRT_CREATED_BY: &str = "kubevirt.io/created-by";

/// Labels and annotations to be written on one object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Marks {
    /// Labels; every value fits.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
}

/// What is known of a golden when its marks are written.
#[derive(Debug, Clone, Default)]
pub struct GoldenMarks<'a> {
    /// The GoldenImage.
    pub image: &'a str,
    /// Its identity.
    pub identity: Option<&'a Identity>,
    /// The operating system's family, such as `talos`.
    pub os_family: Option<&'a str>,
    /// The operating system's name, such as `Ubuntu`.
    pub os_name: Option<&'a str>,
    /// The operating system's version.
    pub os_version: Option<&'a str>,
    /// The CPU architecture.
    pub architecture: Architecture,
    /// Whether pools may use it.
    pub for_workers: bool,
    /// Whether VM users may choose it.
    pub for_virtual_machines: bool,
    /// The Talos schematic.
    pub schematic_id: Option<&'a str>,
    /// The Talos release.
    pub talos_version: Option<&'a str>,
    /// The Kubernetes release inside.
    pub kubernetes_version: Option<&'a str>,
    /// Where the bytes came from, already without credentials and query (`model::public_url`).
    pub source_url: Option<&'a str>,
    /// Digest of the bytes as downloaded.
    pub artifact_digest: Option<&'a Digest>,
    /// Digest of the disk.
    pub disk_digest: Option<&'a Digest>,
    /// The class.
    pub storage_class: Option<&'a str>,
    /// The smallest clone.
    pub minimum_size: Option<DiskSize>,
    /// Who may clone it.
    pub access: Option<&'a Access>,
    /// Text for people.
    pub description: Option<&'a str>,
    /// Instance type for VM users who name none.
    pub default_instancetype: Option<&'a str>,
    /// Preference for VM users who name none.
    pub default_preference: Option<&'a str>,
}

/// Whether `text` may be a label's value: at most 63 characters of letters, digits, `-`, `_` and `.`, beginning and ending with a letter or digit, or empty.
pub fn is_label_value(text: &str) -> bool {
    let edge = |c: Option<&u8>| c.is_none_or(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= 63 && edge(bytes.first()) && edge(bytes.last()) && bytes.iter().all(|c| c.is_ascii_alphanumeric() || b"-_.".contains(c))
}

/// The marks of a golden's DataVolume and claim.
///
/// A text that is no label value (a version with a space, a name of 80 characters) becomes an annotation of the same key: cutting it would let two goldens look alike.
pub fn golden_marks(golden: &GoldenMarks<'_>) -> Marks {
    let mut marks = Marks::default();
    let mut label = |key: &str, value: &str| {
        let into = if is_label_value(value) { &mut marks.labels } else { &mut marks.annotations };
        into.insert(key.to_owned(), value.to_owned());
    };
    label(GOLDEN, GOLDEN_VALUE);
    label(IMAGE, golden.image);
    label(ARCHITECTURE, golden.architecture.as_str());
    for (key, value) in [
        (IDENTITY, golden.identity.map(Identity::as_str)),
        (OS_FAMILY, golden.os_family),
        (OS_VERSION, golden.os_version),
        (USAGE_WORKER, golden.for_workers.then_some("true")),
        (USAGE_VIRTUAL_MACHINE, golden.for_virtual_machines.then_some("true")),
        (DEFAULT_INSTANCETYPE, golden.default_instancetype),
        (DEFAULT_PREFERENCE, golden.default_preference),
    ] {
        if let Some(value) = value {
            label(key, value);
        }
    }
    let digest = |digest: Option<&Digest>| digest.map(ToString::to_string);
    let own = |text: Option<&str>| text.map(str::to_owned);
    for (key, value) in [
        (SCHEMATIC_ID, own(golden.schematic_id)),
        (TALOS_VERSION, own(golden.talos_version)),
        (KUBERNETES_VERSION, own(golden.kubernetes_version)),
        (SOURCE_URL, own(golden.source_url)),
        (ARTIFACT_DIGEST, digest(golden.artifact_digest)),
        (DISK_DIGEST, digest(golden.disk_digest)),
        (STORAGE_CLASS, own(golden.storage_class)),
        (MINIMUM_SIZE, golden.minimum_size.map(|size| size.to_string())),
        (ACCESS, golden.access.map(Access::written)),
    ] {
        if let Some(value) = value {
            marks.annotations.insert(key.to_owned(), value);
        }
    }
    if golden.for_virtual_machines {
        for (key, value) in [
            ("name", Some(golden.image)),
            ("os-family", golden.os_family),
            ("os-name", golden.os_name),
            ("os-version", golden.os_version),
            ("architecture", Some(golden.architecture.as_str())),
            ("description", golden.description),
        ] {
            marks.annotations.insert(format!("{VM_IMAGES_PREFIX}{key}"), value.unwrap_or_default().to_owned());
        }
    }
    marks
}

/// Whether a mark says what an entry may change at any time (R4): texts for people, and what virtual machines get.
fn is_free(key: &str) -> bool {
    let texts = ["os-family", "os-name", "os-version", "description"];
    is_own_text(key)
        || [DEFAULT_INSTANCETYPE, DEFAULT_PREFERENCE].contains(&key)
        || key.strip_prefix(VM_IMAGES_PREFIX).is_some_and(|text| texts.contains(&text))
}

/// Whether it is one of those that nobody but us writes.
fn is_own_text(key: &str) -> bool {
    [OS_FAMILY, OS_VERSION].contains(&key)
}

/// What stands on an object of what its entry may change at any time, and nothing else.
pub fn free(labels: &BTreeMap<String, String>, annotations: &BTreeMap<String, String>) -> Marks {
    let free = |all: &BTreeMap<String, String>| {
        all.iter().filter(|(key, _)| is_free(key)).map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    Marks { labels: free(labels), annotations: free(annotations) }
}

/// Whether an object on which `found` stands ([`free`]) says of that all that is `wanted`. An empty text and none are the same.
pub fn is_said(wanted: &Marks, found: &Marks) -> bool {
    let says = |wanted: &BTreeMap<String, String>, found: &BTreeMap<String, String>| {
        wanted.iter().filter(|(key, _)| is_free(key)).all(|(key, value)| found.get(key).map_or("", String::as_str) == value)
    };
    says(&wanted.labels, &found.labels) && says(&wanted.annotations, &found.annotations)
}

/// The keys of what stands on an object, and is ours, and is not `wanted` any more, or not as a label or annotation as which it stands there.
///
/// What virtual machines get stands under KubeVirt's key, which others may write too: it is ours where it says what is on record (`former`).
pub fn outdated(wanted: &Marks, found: &Marks, former: &VirtualMachineDefaults) -> Vec<String> {
    let is_ours = |key: &str, value: &String| match key {
        DEFAULT_INSTANCETYPE => former.instancetype.as_ref() == Some(value),
        DEFAULT_PREFERENCE => former.preference.as_ref() == Some(value),
        key => is_own_text(key),
    };
    [(&wanted.labels, &found.labels), (&wanted.annotations, &found.annotations)]
        .into_iter()
        .flat_map(|(wanted, found)| found.iter().filter(|(key, value)| !wanted.contains_key(*key) && is_ours(key, value)))
        .map(|(key, _)| key.clone())
        .collect()
}

/// The marks of a consumer's DataVolume and claim: the golden's name and the pool.
///
/// Annotations, because a golden's name may have 85 characters and a label value holds 63.
pub fn consumer_marks(golden: &str, pool: &str) -> Marks {
    let annotations = [(GOLDEN, golden), (POOL, pool)].map(|(key, value)| (key.to_owned(), value.to_owned()));
    Marks { annotations: annotations.into(), ..Marks::default() }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("", true)]
    #[case("true", true)]
    #[case("24.04", true)]
    #[case(&"a".repeat(63), true)]
    #[case(&"a".repeat(64), false)]
    #[case("-a", false)]
    #[case("a.", false)]
    #[case("24.04 LTS", false)]
    #[case("v1.35.6+k3s1", false)]
    #[case("é", false)]
    fn label_values(#[case] text: &str, #[case] fits: bool) {
        assert_eq!(is_label_value(text), fits, "{text}");
    }

    /// B13: a golden of a 64-character schematic has a name no label can hold.
    #[test]
    fn b13_every_label_fits_and_names_are_annotations() {
        let schematic = "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba";
        let digest = Digest::of(b"disk");
        let golden = GoldenMarks {
            image: "talos-v1.13.6-b5a1de36eb14",
            os_family: Some("talos"),
            os_version: Some("1.13.6 with a very long suffix that no label value of sixty-three characters could ever hold"),
            for_workers: true,
            schematic_id: Some(schematic),
            talos_version: Some("v1.13.6"),
            disk_digest: Some(&digest),
            ..GoldenMarks::default()
        };
        let marks = golden_marks(&golden);
        assert!(marks.labels.values().all(|value| is_label_value(value)), "{:?}", marks.labels);
        assert!(!marks.labels.contains_key(OS_VERSION) && marks.annotations.contains_key(OS_VERSION));
        assert_eq!(marks.labels[GOLDEN], "true");
        assert_eq!(marks.annotations[SCHEMATIC_ID], schematic);
        assert_eq!(marks.annotations[DISK_DIGEST].len(), 71);
        let [a, b] = ["v1.13.6", "v1.13.7"].map(|version| consumer_marks(&format!("talos-worker-{schematic}-{version}"), "unknown"));
        assert!(a.labels.is_empty() && a.annotations[GOLDEN].len() == 85);
        assert_eq!(a.annotations[GOLDEN][..63], b.annotations[GOLDEN][..63]);
        assert_ne!(a.annotations[GOLDEN], b.annotations[GOLDEN]);
    }

    #[test]
    fn vm_images_keep_the_annotations_todays_console_reads() {
        let golden = GoldenMarks { image: "ubuntu-24.04", os_name: Some("Ubuntu"), for_virtual_machines: true, ..GoldenMarks::default() };
        let marks = golden_marks(&golden);
        assert_eq!(marks.annotations["vm-default-images.cozystack.io/name"], "ubuntu-24.04");
        assert_eq!(marks.annotations["vm-default-images.cozystack.io/os-name"], "Ubuntu");
        assert_eq!(marks.annotations["vm-default-images.cozystack.io/os-family"], "");
        assert_eq!(marks.labels[USAGE_VIRTUAL_MACHINE], "true");
        assert!(!golden_marks(&GoldenMarks::default()).annotations.keys().any(|key| key.starts_with(VM_IMAGES_PREFIX)));
    }

    /// By key, a label where it begins with `l:`, else an annotation.
    fn marks(all: &[(&str, &str)]) -> Marks {
        let mut marks = Marks::default();
        for (key, value) in all {
            let (into, key) = key.strip_prefix("l:").map_or((&mut marks.annotations, *key), |key| (&mut marks.labels, key));
            into.insert(key.to_owned(), (*value).to_owned());
        }
        marks
    }

    const TYPE: &str = "l:instancetype.kubevirt.io/default-instancetype";
    const VERSION: &str = "l:kubernetes-worker-image.cozystack.io/os-version";
    const AS_TEXT: &str = "kubernetes-worker-image.cozystack.io/os-version";
    const TEXT: &str = "vm-default-images.cozystack.io/description";

    /// What is wanted, what stands there, whether that says it, and what is to go. On record is the instance type `a`.
    #[rstest]
    #[case::nothing(&[], &[], true, &[])]
    #[case::the_same(&[(TYPE, "a"), (TEXT, "b")], &[(TYPE, "a"), (TEXT, "b")], true, &[])]
    #[case::an_empty_text_is_none(&[(TEXT, "")], &[], true, &[])]
    #[case::a_text_that_is_empty_now(&[(TEXT, "")], &[(TEXT, "b")], false, &[])]
    #[case::a_text_that_we_do_not_have(&[], &[(TEXT, "b")], true, &[])]
    #[case::another_default(&[(TYPE, "b")], &[(TYPE, "a")], false, &[])]
    #[case::a_default_that_lacks(&[(TYPE, "b")], &[], false, &[])]
    #[case::a_default_taken_out(&[], &[(TYPE, "a")], true, &[&TYPE[2..]])]
    #[case::a_default_of_others(&[], &[(TYPE, "theirs")], true, &[])]
    #[case::a_version_taken_out(&[], &[(VERSION, "24.04")], true, &[AS_TEXT])]
    #[case::a_version_that_is_no_label_now(&[(AS_TEXT, "24.04 LTS")], &[(VERSION, "24.04")], false, &[AS_TEXT])]
    #[case::what_never_changes(&[("l:kubernetes-worker-image.cozystack.io/image", "a")], &[], true, &[])]
    fn r4_what_an_entry_may_change_is_compared(
        #[case] wanted: &[(&str, &str)],
        #[case] found: &[(&str, &str)],
        #[case] said: bool,
        #[case] to_go: &[&str],
    ) {
        let former = VirtualMachineDefaults { instancetype: Some("a".into()), preference: None };
        let (wanted, found) = (marks(wanted), marks(found));
        let found = free(&found.labels, &found.annotations);
        assert_eq!(is_said(&wanted, &found), said);
        assert_eq!(outdated(&wanted, &found, &former), to_go);
    }
}
