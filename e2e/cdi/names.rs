//! Names that CDI v1.64 puts on objects (`pkg/controller/common/util.go`, `pkg/common/common.go`, `pkg/controller/populators`).

/// Group of CDI's API.
pub const GROUP: &str = "cdi.kubevirt.io";

// Annotations of the target PVC (and, where CDI copies them, of the DataVolume).
pub const POD_PHASE: &str = "cdi.kubevirt.io/storage.pod.phase";
pub const POD_READY: &str = "cdi.kubevirt.io/storage.pod.ready";
pub const POD_RESTARTS: &str = "cdi.kubevirt.io/storage.pod.restarts";
pub const POD_SCHEDULABLE: &str = "cdi.kubevirt.io/storage.pod.schedulable";
pub const CONTENT_TYPE: &str = "cdi.kubevirt.io/storage.contentType";
pub const PREALLOCATION_REQUESTED: &str = "cdi.kubevirt.io/storage.preallocation.requested";
pub const RUNNING: &str = "cdi.kubevirt.io/storage.condition.running";
pub const RUNNING_MESSAGE: &str = "cdi.kubevirt.io/storage.condition.running.message";
pub const RUNNING_REASON: &str = "cdi.kubevirt.io/storage.condition.running.reason";
pub const BOUND: &str = "cdi.kubevirt.io/storage.condition.bound";
pub const BOUND_MESSAGE: &str = "cdi.kubevirt.io/storage.condition.bound.message";
pub const BOUND_REASON: &str = "cdi.kubevirt.io/storage.condition.bound.reason";
pub const CREATED_FOR: &str = "cdi.kubevirt.io/createdForDataVolume";
pub const USE_POPULATOR: &str = "cdi.kubevirt.io/storage.usePopulator";
pub const PVC_PRIME: &str = "cdi.kubevirt.io/storage.populator.pvcPrime";
pub const PROGRESS: &str = "cdi.kubevirt.io/storage.populator.progress";
pub const POPULATOR_KIND: &str = "cdi.kubevirt.io/storage.populator.kind";
pub const POPULATED_FOR: &str = "cdi.kubevirt.io/storage.populatedFor";
pub const PREPOPULATED: &str = "cdi.kubevirt.io/storage.prePopulated";
pub const ALLOW_ADOPTION: &str = "cdi.kubevirt.io/allowClaimAdoption";
pub const IMMEDIATE_BIND: &str = "cdi.kubevirt.io/storage.bind.immediate.requested";
pub const DELETE_AFTER_COMPLETION: &str = "cdi.kubevirt.io/storage.deleteAfterCompletion";
pub const GARBAGE_COLLECTED: &str = "cdi.kubevirt.io/garbageCollected";
pub const FATAL_ERROR: &str = "cdi.kubevirt.io/storage.import.fatalError";

// Annotations of the claim that an importer pod writes to: the prime PVC, or the target on the legacy path.
pub const ENDPOINT: &str = "cdi.kubevirt.io/storage.import.endpoint";
pub const SOURCE: &str = "cdi.kubevirt.io/storage.import.source";
pub const CERT_CONFIG_MAP: &str = "cdi.kubevirt.io/storage.import.certConfigMap";
pub const SECRET_EXTRA_HEADERS: &str = "cdi.kubevirt.io/storage.import.secretExtraHeaders.";
pub const IMPORT_POD: &str = "cdi.kubevirt.io/storage.import.importPodName";
pub const REQUIRES_SCRATCH: &str = "cdi.kubevirt.io/storage.import.requiresScratch";
pub const REQUIRES_DIRECT_IO: &str = "cdi.kubevirt.io/storage.import.requiresDirectIo";

// Clones.
pub const CLONE_TYPE: &str = "cdi.kubevirt.io/cloneType";
pub const CLONE_FALLBACK: &str = "cdi.kubevirt.io/cloneFallbackReason";
pub const CLONE_PHASE: &str = "cdi.kubevirt.io/clonePhase";
pub const CLONE_ERROR: &str = "cdi.kubevirt.io/cloneError";
pub const CLONE_TOKEN: &str = "cdi.kubevirt.io/storage.clone.token";
pub const EXTENDED_CLONE_TOKEN: &str = "cdi.kubevirt.io/storage.extended.clone.token";
pub const CLONE_REQUEST: &str = "k8s.io/CloneRequest";
pub const CLONE_OF: &str = "k8s.io/CloneOf";
pub const DATA_SOURCE_NAMESPACE: &str = "cdi.kubevirt.io/dataSourceNamespace";
pub const PERMISSIVE_CLONE: &str = "cdi.kubevirt.io/permissiveClone";

// Finalizers.
pub const DV_FINALIZER: &str = "cdi.kubevirt.io/dataVolumeFinalizer";
pub const CLONE_FINALIZER: &str = "cdi.kubevirt.io/clonePopulator";

// Labels.
pub const OWNED_BY_UID: &str = "cdi.kubevirt.io/OwnedByUID";
pub const APP: &str = "app";
pub const APP_VALUE: &str = "containerized-data-importer";
pub const COMPONENT: &str = "cdi.kubevirt.io";
pub const FILLING_UP: &str = "alerts.k8s.io/KubePersistentVolumeFillingUp";
pub const VELERO_EXCLUDE: &str = "velero.io/exclude-from-backup";

// Kubernetes and KubeVirt.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
pub const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";
pub const BETA_DEFAULT_CLASS: &str = "storageclass.beta.kubernetes.io/is-default-class";
pub const DEFAULT_VIRT_CLASS: &str = "storageclass.kubevirt.io/is-default-virt-class";
pub const CLASS_CLONE_STRATEGY: &str = "cdi.kubevirt.io/clone-strategy";
pub const MINIMUM_PVC_SIZE: &str = "cdi.kubevirt.io/minimumSupportedPvcSize";
pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
pub const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
pub const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// Labels that a clone DataVolume inherits from its source (KubeVirt's instancetype defaults).
pub const INSTANCETYPE_LABELS: [&str; 4] = [
    "instancetype.kubevirt.io/default-instancetype",
    "instancetype.kubevirt.io/default-instancetype-kind",
    "instancetype.kubevirt.io/default-preference",
    "instancetype.kubevirt.io/default-preference-kind",
];
