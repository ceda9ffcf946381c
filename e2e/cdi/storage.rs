//! Stands in for a CSI driver with clones and snapshots and for its provisioner: volumes are files, PersistentVolumes name them, claims are bound to them.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use k8s_openapi::{
    api::core::v1::{CSIPersistentVolumeSource, ObjectReference, PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec},
    api::storage::v1::StorageClass,
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::ResourceExt;
use serde_json::json;

use super::{
    Ctx,
    cache::Key,
    classes::{is_block, overhead, request, usable},
    names,
    options::Controllers,
    quantity::{bytes, quantity},
    status::claim_phase,
};

/// What a new volume starts with.
#[derive(Clone, Debug)]
pub(super) enum Content {
    Empty,
    /// The bytes of this file, sparse and shared where the file system can.
    CopyOf(PathBuf),
}

/// A file that plays a volume.
#[derive(Clone, Debug)]
pub(super) struct Volume {
    pub(super) name: String,
    /// The device, or `disk.img` in the file system.
    pub(super) path: PathBuf,
    pub(super) capacity: u64,
    pub(super) block: bool,
}

/// Why a claim has no volume yet.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProvisionError {
    #[error("storageclass.storage.k8s.io \"{0}\" not found")]
    NoClass(String),
    #[error("{0}")]
    NotOurs(String),
    #[error("the claim asks for no size")]
    NoSize,
    #[error("volume file: {0}")]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Api(#[from] kube::Error),
}

/// Where the disk of a volume lies.
pub(super) fn disk_path(dir: &Path, volume: &str, block: bool) -> PathBuf {
    if block { dir.join(format!("{volume}.img")) } else { dir.join(volume).join("disk.img") }
}

/// The disk of a bound claim.
pub(super) fn disk_of(dir: &Path, pvc: &PersistentVolumeClaim) -> Option<PathBuf> {
    let spec = pvc.spec.as_ref()?;
    Some(disk_path(dir, spec.volume_name.as_deref()?, is_block(spec)))
}

/// The capacity a bound claim reports.
pub(super) fn capacity(pvc: &PersistentVolumeClaim) -> Option<u64> {
    bytes(&pvc.status.as_ref()?.capacity.as_ref()?.get("storage")?.0)
}

/// Copies a disk keeping its holes; `cp` shares blocks where the file system can.
pub(super) async fn copy_disk(from: &Path, to: &Path) -> std::io::Result<()> {
    let output = tokio::process::Command::new("cp")
        .args(["--sparse=always", "--reflink=auto", "--"])
        .arg(from)
        .arg(to)
        .kill_on_drop(true)
        .output()
        .await?;
    if output.status.success() { Ok(()) } else { Err(std::io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned())) }
}

impl Ctx {
    /// The class of a claim, if both exist.
    pub(super) fn class_of(&self, pvc: &PersistentVolumeClaim) -> Option<Arc<StorageClass>> {
        let name = pvc.spec.as_ref()?.storage_class_name.as_deref()?;
        self.api.caches.classes.get(&Key::new("", name))
    }

    /// The claim with this key and UID as it is known now.
    pub(super) fn claim(&self, key: &Key, uid: &str) -> Option<Arc<PersistentVolumeClaim>> {
        self.api.caches.pvcs.get(key).filter(|pvc| pvc.uid().as_deref() == Some(uid))
    }

    /// Makes the file of the volume for `pvc`, without a PersistentVolume.
    pub(super) async fn make_volume(&self, pvc: &PersistentVolumeClaim, content: &Content) -> Result<Volume, ProvisionError> {
        let spec = pvc.spec.clone().unwrap_or_default();
        let grain = self.opts.volume_grain.max(1);
        let capacity = request(&spec).ok_or(ProvisionError::NoSize)?.div_ceil(grain) * grain;
        let block = is_block(&spec);
        let name = format!("pvc-{}", pvc.uid().unwrap_or_default());
        let path = disk_path(&self.opts.dir, &name, block);
        if let Some(parent) = path.parent() {
            tokio::fs::create_dir_all(parent).await?;
        }
        if let Content::CopyOf(from) = content {
            copy_disk(from, &path).await?;
        }
        if block {
            // A device has its full length from the start; a file system starts without disk.img.
            let file = tokio::fs::OpenOptions::new().create(true).write(true).truncate(false).open(&path).await?;
            if file.metadata().await?.len() < capacity {
                file.set_len(capacity).await?;
            }
        }
        Ok(Volume { name, path, capacity, block })
    }

    /// Makes the volume and the PersistentVolume for `pvc` and has them bound. Done twice it does nothing more.
    pub(super) async fn provision(&self, pvc: &PersistentVolumeClaim, content: Content) -> Result<Volume, ProvisionError> {
        let class_name = pvc.spec.as_ref().and_then(|spec| spec.storage_class_name.clone()).unwrap_or_default();
        let class = self.class_of(pvc).ok_or(ProvisionError::NoClass(class_name))?;
        if !self.opts.provisions(&class.provisioner) {
            return Err(ProvisionError::NotOurs(format!("waiting for a volume to be created by '{}'", class.provisioner)));
        }
        let volume = self.make_volume(pvc, &content).await?;
        self.bind_volume(pvc, &volume, &class).await?;
        Ok(volume)
    }

    /// Makes the PersistentVolume of `volume`, claimed by `pvc`, and waits until both are bound.
    pub(super) async fn bind_volume(&self, pvc: &PersistentVolumeClaim, volume: &Volume, class: &StorageClass) -> Result<(), kube::Error> {
        let spec = pvc.spec.clone().unwrap_or_default();
        let pv = PersistentVolume {
            metadata: ObjectMeta {
                name: Some(volume.name.clone()),
                annotations: Some([(names::PROVISIONED_BY.to_owned(), class.provisioner.clone())].into()),
                ..ObjectMeta::default()
            },
            spec: Some(PersistentVolumeSpec {
                access_modes: spec.access_modes.clone(),
                capacity: Some([("storage".to_owned(), quantity(volume.capacity))].into()),
                claim_ref: Some(claim_reference(pvc)),
                csi: Some(CSIPersistentVolumeSource {
                    driver: class.provisioner.clone(),
                    volume_handle: volume.name.clone(),
                    ..CSIPersistentVolumeSource::default()
                }),
                persistent_volume_reclaim_policy: Some(class.reclaim_policy.clone().unwrap_or_else(|| "Delete".into())),
                storage_class_name: Some(class.name_any()),
                volume_mode: Some(spec.volume_mode.clone().unwrap_or_else(|| "Filesystem".into())),
                ..PersistentVolumeSpec::default()
            }),
            status: None,
        };
        let pv = self.api.ensure(&pv).await?;
        self.bind(pvc, &pv).await
    }

    /// Binds a claim to a volume that already names it, or waits until kube-controller-manager has.
    async fn bind(&self, pvc: &PersistentVolumeClaim, pv: &PersistentVolume) -> Result<(), kube::Error> {
        let key = Key::of(pvc);
        let uid = pvc.uid().unwrap_or_default();
        if self.opts.controllers == Controllers::StandIn {
            let spec = pv.spec.clone().unwrap_or_default();
            let claim = self.api.patch(
                pvc,
                json!({ "metadata": { "annotations": { names::BIND_COMPLETED: "yes", names::BOUND_BY_CONTROLLER: "yes" } }, "spec": { "volumeName": pv.name_any() } }),
            );
            let claim = claim.await?;
            self.api
                .patch_status(&*claim, json!({ "phase": "Bound", "accessModes": spec.access_modes, "capacity": spec.capacity }))
                .await?;
            self.api.patch_status(pv, json!({ "phase": "Bound" })).await?;
        }
        self.api
            .caches
            .pvcs
            .wait(&key, |pvc| match pvc {
                Some(pvc) if pvc.uid().as_deref() == Some(&*uid) => {
                    (claim_phase(pvc) == "Bound" || pvc.metadata.deletion_timestamp.is_some()).then_some(())
                }
                _ => Some(()),
            })
            .await;
        Ok(())
    }

    /// CDI's rebind: the volume of `from` (prime or tmp claim) goes to `target`, and `from` is lost.
    pub(super) async fn rebind(&self, from: &PersistentVolumeClaim, target: &PersistentVolumeClaim) -> Result<(), kube::Error> {
        let Some(name) = from.spec.as_ref().and_then(|spec| spec.volume_name.clone()) else { return Ok(()) };
        let Some(pv) = self.api.get::<PersistentVolume>(&Key::new("", name)).await? else { return Ok(()) };
        let pv = self.api.patch(&*pv, json!({ "spec": { "claimRef": claim_reference(target) } })).await?;
        self.bind(target, &pv).await?;
        if self.opts.controllers == Controllers::StandIn {
            self.api.patch_status(from, json!({ "phase": "Lost" })).await?;
        }
        Ok(())
    }

    /// Grows a bound claim's volume, as the resizer would: CDI's `PrepClaim` phase of a clone that is larger than its source.
    pub(super) async fn expand(&self, pvc: &PersistentVolumeClaim, size: u64) -> Result<Arc<PersistentVolumeClaim>, ProvisionError> {
        let storage = json!({ "storage": quantity(size) });
        let Some(path) = disk_of(&self.opts.dir, pvc) else { return Err(ProvisionError::NoSize) };
        if let Some(name) = pvc.spec.as_ref().and_then(|spec| spec.volume_name.clone())
            && let Some(pv) = self.api.get::<PersistentVolume>(&Key::new("", name)).await?
        {
            self.api.patch(&*pv, json!({ "spec": { "capacity": storage } })).await?;
        }
        let claim = self.api.patch(pvc, json!({ "spec": { "resources": { "requests": storage } } })).await?;
        let claim = self.api.patch_status(&*claim, json!({ "capacity": storage })).await?;
        let spec = pvc.spec.clone().unwrap_or_default();
        let length = usable(size, is_block(&spec), self.overhead(spec.storage_class_name.as_deref()));
        let file = tokio::fs::OpenOptions::new().write(true).open(&path).await?;
        if file.metadata().await?.len() < length {
            file.set_len(length).await?;
        }
        Ok(claim)
    }

    /// The filesystem overhead of a class now.
    pub(super) fn overhead(&self, class: Option<&str>) -> f64 {
        let config = self.api.caches.configs.get(&Key::new("", "config"));
        overhead(class, config.as_ref().and_then(|config| config.status.as_ref()), self.opts.filesystem_overhead)
    }

    /// The provisioner's work for a claim that CDI does not fill: an empty volume, or a CSI clone of a claim or snapshot in its namespace.
    pub(super) async fn provision_plain(&self, pvc: &PersistentVolumeClaim) -> Result<(), ProvisionError> {
        let spec = pvc.spec.clone().unwrap_or_default();
        let namespace = pvc.namespace().unwrap_or_default();
        let source = spec.data_source_ref.as_ref().map(|source| (source.kind.clone(), source.name.clone()));
        let source = source.or_else(|| spec.data_source.as_ref().map(|source| (source.kind.clone(), source.name.clone())));
        let refuse = |message: String| ProvisionError::NotOurs(message);
        let content = match source {
            None => Content::Empty,
            Some((kind, name)) if kind == "PersistentVolumeClaim" => {
                let key = Key::new(namespace, name);
                let source = self.api.caches.pvcs.get(&key).filter(|source| claim_phase(source) == "Bound");
                let source = source.ok_or_else(|| refuse(format!("error getting PVC {} for cloning: it is not bound", key.name)))?;
                let (ours, theirs) = (self.class_of(pvc), self.class_of(&source));
                if ours.map(|class| class.provisioner.clone()) != theirs.map(|class| class.provisioner.clone()) {
                    return Err(refuse(format!("source PVC {} and this one have different drivers", key.name)));
                }
                if request(&spec) < capacity(&source) {
                    return Err(refuse("requested volume size is less than the size of the source volume".into()));
                }
                disk_of(&self.opts.dir, &source).filter(|path| path.exists()).map_or(Content::Empty, Content::CopyOf)
            }
            Some((kind, name)) if kind == "VolumeSnapshot" => {
                let snapshot = self.api.caches.snapshots.get(&Key::new(namespace, &name));
                let ready = snapshot.filter(|snapshot| snapshot.status.as_ref().and_then(|status| status.ready_to_use) == Some(true));
                let ready = ready.ok_or_else(|| refuse(format!("snapshot {name} not ready")))?;
                Content::CopyOf(super::snapshot::file(&self.opts.dir, &ready))
            }
            Some((kind, _)) => return Err(refuse(format!("data source kind {kind} is for another populator"))),
        };
        self.provision(pvc, content).await.map(drop)
    }

    /// Removes a volume whose claim is gone, as the provisioner does under reclaim policy `Delete`.
    pub(super) async fn reclaim(&self, pv: &PersistentVolume) -> Result<(), kube::Error> {
        let spec = pv.spec.clone().unwrap_or_default();
        let Some(claim) = &spec.claim_ref else { return Ok(()) };
        if spec.persistent_volume_reclaim_policy.as_deref() != Some("Delete")
            || !self.opts.provisions(pv.annotations().get(names::PROVISIONED_BY).map_or("", String::as_str))
        {
            return Ok(());
        }
        let key = Key::new(claim.namespace.clone().unwrap_or_default(), claim.name.clone().unwrap_or_default());
        let live = self.api.get::<PersistentVolumeClaim>(&key).await?;
        if live.is_some_and(|live| live.uid() == claim.uid) {
            return Ok(());
        }
        // Read live: a rebind may just have given the volume to another claim.
        let Some(now) = self.api.get::<PersistentVolume>(&Key::of(pv)).await? else { return Ok(()) };
        if now.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()).is_none_or(|now| now.uid != claim.uid) {
            return Ok(());
        }
        let path = disk_path(&self.opts.dir, &pv.name_any(), spec.volume_mode.as_deref() == Some("Block"));
        // The file may be gone already; what remains is only disk space of a test.
        let _ = tokio::fs::remove_file(&path).await;
        self.api.delete(&*now).await?;
        self.release_finalizer(&*now, "kubernetes.io/pv-protection").await
    }
}

fn claim_reference(pvc: &PersistentVolumeClaim) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("PersistentVolumeClaim".into()),
        namespace: pvc.namespace(),
        name: Some(pvc.name_any()),
        uid: pvc.uid(),
        resource_version: pvc.resource_version(),
        ..ObjectReference::default()
    }
}
