//! What a test chooses about the stand-in. Defaults imitate CDI v1.64.0 with Cozystack's settings, but with short waits.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, time::Duration};

use super::types::ClaimPropertySet;

/// Settings of a [`CdiStandIn`](super::CdiStandIn). Start from [`Options::new`] and change fields.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where volumes (`pvc-<uid>.img`, or `pvc-<uid>/disk.img` for Filesystem), snapshots and scratch files are kept.
    pub dir: PathBuf,
    /// How much of CDI's own objects is made.
    pub fidelity: Fidelity,
    /// Who binds claims, collects garbage and removes protection finalizers.
    pub controllers: Controllers,
    /// Whether CDI's webhooks are served (spec edits, sizes, sources, clone permission and token). Without them anything is admitted and no clone needs a token.
    pub admission: bool,
    /// Whether clone permission is asked of the API server (SubjectAccessReview), as CDI does. Only with `admission`.
    pub authorize: bool,
    /// Whether `StorageProfile`s are written, one per StorageClass. `false` with no such CRD imitates a CDI without that API.
    pub storage_profiles: bool,
    /// `claimPropertySets` by StorageClass where they differ from `claim_property_sets`; an empty list imitates a profile that CDI could not fill.
    pub profile_overrides: BTreeMap<String, Vec<ClaimPropertySet>>,
    /// What profiles offer. The default is LINSTOR's order: RWX Block, RWO Block, RWO Filesystem.
    pub claim_property_sets: Vec<ClaimPropertySet>,
    /// Clone strategy of StorageProfiles whose class has no `cdi.kubevirt.io/clone-strategy` annotation.
    pub clone_strategy: String,
    /// The CDI resource's `cloneStrategyOverride`; Cozystack sets `csi-clone`.
    pub clone_strategy_override: Option<String>,
    /// Whether the `config` CDIConfig is kept (overhead, proxy, scratch class copied from spec to status).
    pub cdi_config: bool,
    /// Filesystem overhead where CDIConfig says nothing.
    pub filesystem_overhead: f64,
    /// Where importers connect instead of resolving: `host` or `host:port` to an address. Services do not route on a loopback control plane.
    pub dial: BTreeMap<String, SocketAddr>,
    /// Progress is reported at most this often (CDI: every 2 s).
    pub progress_interval: Duration,
    /// First and longest wait of a container that ended in error (kubelet: 10 s doubling to 5 min).
    pub restart_backoff: (Duration, Duration),
    /// How long an importer waits without a byte before it gives the attempt up (CDI: 10 min).
    pub stall_timeout: Duration,
    /// How long a claim made again under a Succeeded DataVolume stays untouched (seen: about 12 s).
    pub reimport_delay: Duration,
    /// How often a clone looks again at a source that is not ready (CDI: 2 s).
    pub clone_requeue: Duration,
    /// Volumes are made in multiples of this many bytes, as drivers do. One means exactly what was asked.
    pub volume_grain: u64,
    /// Provisioners whose volumes the stand-in makes; empty means all but `kubernetes.io/no-provisioner`.
    pub drivers: Vec<String>,
    /// Provisioners that have no CSIDriver object: their claims take CDI's legacy path (no populators, host-assisted clones).
    pub legacy_drivers: Vec<String>,
    /// Whether Events are written.
    pub events: bool,
    /// Further writes to the target claim spread over each import, to come near CDI's own number (about 115 an import).
    pub padding_writes: u32,
    /// Whether downloaded disks are converted and kept. `false` reads the bytes and drops them: nothing to compare, no `qemu-img`.
    pub keep_disks: bool,
    /// Path of `qemu-img`.
    pub qemu_img: PathBuf,
}

/// How much of CDI's own objects is made for an import or a clone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fidelity {
    /// Everything a user can see: source objects, prime, scratch and tmp claims, importer pods with statuses, condition annotations.
    Full,
    /// Target claim, volume and DataVolume status only: for benchmarks with thousands of images.
    Lean,
}

/// Who does what kube-controller-manager does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controllers {
    /// A real kube-controller-manager runs beside the API server.
    Real,
    /// None runs: the stand-in binds claims to its volumes, deletes what a deleted DataVolume owned and removes protection finalizers.
    StandIn,
}

impl Options {
    /// Settings with volumes under `dir`, short waits, and every imitation on.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        let set = |access: &str, mode: &str| ClaimPropertySet { access_modes: vec![access.into()], volume_mode: Some(mode.into()) };
        Self {
            dir: dir.into(),
            fidelity: Fidelity::Full,
            controllers: Controllers::Real,
            admission: true,
            authorize: true,
            storage_profiles: true,
            profile_overrides: BTreeMap::new(),
            claim_property_sets: vec![set("ReadWriteMany", "Block"), set("ReadWriteOnce", "Block"), set("ReadWriteOnce", "Filesystem")],
            clone_strategy: "csi-clone".into(),
            clone_strategy_override: Some("csi-clone".into()),
            cdi_config: true,
            filesystem_overhead: 0.06,
            dial: BTreeMap::new(),
            progress_interval: Duration::from_millis(200),
            restart_backoff: (Duration::from_millis(100), Duration::from_secs(1)),
            stall_timeout: Duration::from_secs(600),
            reimport_delay: Duration::from_millis(500),
            clone_requeue: Duration::from_millis(200),
            volume_grain: 1,
            drivers: Vec::new(),
            legacy_drivers: Vec::new(),
            events: true,
            padding_writes: 0,
            keep_disks: true,
            qemu_img: "qemu-img".into(),
        }
    }

    /// [`Fidelity::Lean`], no events, no webhooks, no disks: the least this machine has to do.
    pub fn lean(mut self) -> Self {
        self.fidelity = Fidelity::Lean;
        self.events = false;
        self.admission = false;
        self.keep_disks = false;
        self
    }

    /// Connects to `addr` wherever an importer would dial `host` (`name` or `name:port`).
    pub fn dial(mut self, host: impl Into<String>, addr: SocketAddr) -> Self {
        self.dial.insert(host.into(), addr);
        self
    }

    pub(super) fn full(&self) -> bool {
        self.fidelity == Fidelity::Full
    }

    /// Whether the stand-in makes volumes for classes of `provisioner`.
    pub(super) fn provisions(&self, provisioner: &str) -> bool {
        provisioner != super::names::NO_PROVISIONER && (self.drivers.is_empty() || self.drivers.iter().any(|driver| driver == provisioner))
    }

    /// Whether CDI would find a CSIDriver object for `provisioner`.
    pub(super) fn is_csi(&self, provisioner: &str) -> bool {
        self.provisions(provisioner) && !self.legacy_drivers.iter().any(|driver| driver == provisioner)
    }
}
