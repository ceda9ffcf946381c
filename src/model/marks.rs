//! The labels and annotations that this project puts on objects (design §3): the published contract.

/// The prefix of every mark.
pub const PREFIX: &str = "kubernetes-worker-image.cozystack.io/";

macro_rules! marks {
    ($($(#[$doc:meta])* $name:ident = $key:literal;)*) => {
        $($(#[$doc])* pub const $name: &str = concat!("kubernetes-worker-image.cozystack.io/", $key);)*
    };
}

marks! {
    /// On a golden's DataVolume and PVC the label `golden: "true"`; on a consumer the annotation with the golden's name.
    GOLDEN = "golden";
    /// Label: the GoldenImage's name.
    IMAGE = "image";
    /// Label: the image's identity.
    IDENTITY = "identity";
    /// Label: the operating system's family.
    OS_FAMILY = "os-family";
    /// Label: the operating system's version.
    OS_VERSION = "os-version";
    /// Label: the CPU architecture.
    ARCHITECTURE = "architecture";
    /// Label `"true"`: worker pools may use it.
    USAGE_WORKER = "usage-worker";
    /// Label `"true"`: virtual machines may use it.
    USAGE_VIRTUAL_MACHINE = "usage-virtual-machine";
    /// Annotation: the schematic's ID.
    SCHEMATIC_ID = "schematic-id";
    /// Annotation: the Talos release.
    TALOS_VERSION = "talos-version";
    /// Annotation: the Kubernetes version in a Kairos image.
    KUBERNETES_VERSION = "kubernetes-version";
    /// Annotation: where the bytes came from, without credentials.
    SOURCE_URL = "source-url";
    /// Annotation: the sha256 of the bytes as downloaded.
    ARTIFACT_DIGEST = "artifact-digest";
    /// Annotation: the sha256 of the disk as imported.
    DISK_DIGEST = "disk-digest";
    /// Annotation: the StorageClass.
    STORAGE_CLASS = "storage-class";
    /// Annotation: the smallest disk that can be cloned from the golden.
    MINIMUM_SIZE = "minimum-size";
    /// Annotation on a GoldenImage: a new value starts over what was given up.
    RETRY = "retry";
    /// Annotation on a GoldenImage: the list it comes from.
    LISTED_IN = "listed-in";
}
