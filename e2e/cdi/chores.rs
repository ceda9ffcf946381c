//! Stands in for what surrounds CDI: the scheduler's choice of a node, the provisioner for plain claims, and (without a kube-controller-manager) garbage collection and protection finalizers.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use super::{
    Ctx,
    api::{Written, code},
    cache::Key,
    classes::waits_for_consumer,
    names,
    options::Controllers,
    status::claim_phase,
    types::{DataVolume, VolumeSnapshot},
};

/// A pod that no longer runs holds no volume.
fn finished(pod: &Pod) -> bool {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).is_some_and(|phase| phase == "Succeeded" || phase == "Failed")
}

/// The claims a pod uses, and whether each read-only.
fn claims_of(pod: &Pod) -> impl Iterator<Item = (&str, bool)> {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref()).into_iter().flatten();
    volumes
        .filter_map(|volume| volume.persistent_volume_claim.as_ref())
        .map(|claim| (claim.claim_name.as_str(), claim.read_only == Some(true)))
}

impl Ctx {
    /// Pods that use a claim read-write and have not ended (`GetPodsUsingPVCs`); CDI's own source pods mount read-only.
    pub(super) fn pods_using(&self, claim: &Key) -> BTreeSet<String> {
        let uses = |pod: &Pod| {
            pod.namespace().as_ref() == Some(&claim.namespace)
                && !finished(pod)
                && claims_of(pod).any(|(name, read_only)| name == claim.name && !read_only)
        };
        self.api.caches.pods.all(uses).iter().map(|pod| Key::of(&**pod).to_string()).collect()
    }

    /// Whether a bound claim is filled: its DataVolume is Succeeded, or it has none.
    pub(super) fn populated(&self, pvc: &PersistentVolumeClaim) -> bool {
        let Some(owner) = pvc.owner_references().iter().find(|owner| owner.controller == Some(true) && owner.kind == "DataVolume") else {
            return true;
        };
        let dv = self.api.caches.dvs.get(&Key::new(pvc.namespace().unwrap_or_default(), owner.name.clone()));
        dv.is_some_and(|dv| dv.status.as_ref().is_some_and(|status| status.phase == "Succeeded"))
    }

    /// The CSI driver of a claim's volume, or of its class while it has none.
    pub(super) fn driver_of(&self, pvc: &PersistentVolumeClaim) -> Option<String> {
        let volume =
            pvc.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).and_then(|name| self.api.caches.pvs.get(&Key::new("", name)));
        let driver = volume.and_then(|pv| pv.spec.as_ref().and_then(|spec| spec.csi.as_ref()).map(|csi| csi.driver.clone()));
        driver.or_else(|| self.class_of(pvc).map(|class| class.provisioner.clone()))
    }

    /// The driver of a snapshot: that of its source claim, which the stand-in's snapshots always have.
    pub(super) fn driver_of_snapshot(&self, snapshot: &VolumeSnapshot) -> Option<String> {
        let source = snapshot.spec.source.persistent_volume_claim_name.clone()?;
        let claim = self.api.caches.pvcs.get(&Key::new(snapshot.namespace().unwrap_or_default(), source));
        claim.and_then(|claim| self.driver_of(&claim)).or_else(|| snapshot.annotations().get("cdi-stand-in/driver").cloned())
    }

    /// Whether a VolumeSnapshotClass of this driver exists.
    pub(super) async fn has_snapshot_class(&self, driver: &str) -> bool {
        let request = http::Request::get("/apis/snapshot.storage.k8s.io/v1/volumesnapshotclasses").body(Vec::new());
        let Ok(request) = request else { return false };
        let list: Result<Value, kube::Error> = self.api.client.request(request).await;
        list.is_ok_and(|list| list["items"].as_array().is_some_and(|items| items.iter().any(|item| item["driver"] == driver)))
    }

    /// Takes one finalizer off, if it is there.
    pub(super) async fn release_finalizer<K: Written>(&self, object: &K, finalizer: &str) -> Result<(), kube::Error> {
        loop {
            let Some(now) = self.api.get::<K>(&Key::of(object)).await? else { return Ok(()) };
            if now.meta().uid != object.meta().uid || !now.finalizers().iter().any(|name| name == finalizer) {
                return Ok(());
            }
            let left: Vec<_> = now.finalizers().iter().filter(|name| *name != finalizer).cloned().collect();
            let patch = json!({ "metadata": { "resourceVersion": now.resource_version(), "finalizers": left } });
            match self.api.patch(&*now, patch).await {
                // Someone else wrote in between: look again.
                Err(error) if code(&error) == Some(409) => {}
                Err(error) if code(&error) == Some(404) => return Ok(()),
                answer => return answer.map(drop),
            }
        }
    }

    /// What a claim that changed needs from its surroundings.
    pub(super) async fn tend_claim(&self, pvc: &Arc<PersistentVolumeClaim>) -> Result<(), kube::Error> {
        // As it is known now: what woke this may be overtaken, and the volume of a bound claim is not made again.
        let now = self.claim(&Key::of(&**pvc), &pvc.uid().unwrap_or_default());
        let Some(pvc) = now.as_ref() else { return Ok(()) };
        if pvc.metadata.deletion_timestamp.is_some() {
            // The clone populator cleans up what it began.
            self.release_finalizer(&**pvc, names::CLONE_FINALIZER).await?;
            if self.opts.controllers == Controllers::StandIn
                && self
                    .api
                    .caches
                    .pods
                    .all(|pod| {
                        !finished(pod) && claims_of(pod).any(|(name, _)| name == pvc.name_any()) && pod.namespace() == pvc.namespace()
                    })
                    .is_empty()
            {
                self.release_finalizer(&**pvc, "kubernetes.io/pvc-protection").await?;
            }
            return Ok(());
        }
        if self.opts.controllers == Controllers::StandIn && self.orphaned(pvc).await? {
            return self.api.delete(&**pvc).await;
        }
        let ours = pvc.annotations().contains_key(names::POPULATOR_KIND)
            || pvc.annotations().contains_key(names::CREATED_FOR)
            || pvc.labels().get(names::COMPONENT).is_some();
        let populated_by_cdi = pvc
            .spec
            .as_ref()
            .and_then(|spec| spec.data_source_ref.as_ref())
            .is_some_and(|source| source.api_group.as_deref() == Some(names::GROUP));
        let Some(class) = self.class_of(pvc) else { return Ok(()) };
        let consumed = !waits_for_consumer(Some(&class)) || pvc.annotations().contains_key(names::SELECTED_NODE);
        if ours || populated_by_cdi || claim_phase(pvc) != "Pending" || !consumed || !self.opts.provisions(&class.provisioner) {
            return Ok(());
        }
        if let Err(error) = self.provision_plain(pvc).await {
            self.journal.note(&Key::of(&**pvc), format!("not provisioned: {error}"));
        }
        Ok(())
    }

    /// Whether the DataVolume or claim that owns this claim is gone.
    async fn orphaned(&self, pvc: &PersistentVolumeClaim) -> Result<bool, kube::Error> {
        let namespace = pvc.namespace().unwrap_or_default();
        for owner in pvc.owner_references() {
            let key = Key::new(namespace.clone(), owner.name.clone());
            let uid = match owner.kind.as_str() {
                "DataVolume" if self.api.caches.dvs.get(&key).is_none_or(|dv| dv.uid().as_ref() != Some(&owner.uid)) => {
                    self.api.get::<DataVolume>(&key).await?.and_then(|dv| dv.uid())
                }
                "PersistentVolumeClaim" if self.claim(&key, &owner.uid).is_none() => {
                    self.api.get::<PersistentVolumeClaim>(&key).await?.and_then(|pvc| pvc.uid())
                }
                _ => return Ok(false),
            };
            if uid.as_ref() == Some(&owner.uid) {
                return Ok(false);
            }
        }
        Ok(!pvc.owner_references().is_empty())
    }

    /// A pod that waits for volumes gets a node, and with it its claims; a finished one lets go of them.
    pub(super) async fn tend_pod(&self, pod: &Pod) -> Result<(), kube::Error> {
        if self.opts.controllers == Controllers::StandIn && pod.labels().contains_key(names::COMPONENT) {
            for owner in pod.owner_references() {
                let key = Key::new(pod.namespace().unwrap_or_default(), owner.name.clone());
                let live = self.api.get::<PersistentVolumeClaim>(&key).await?;
                if owner.kind == "PersistentVolumeClaim" && live.is_none_or(|live| live.uid().as_ref() != Some(&owner.uid)) {
                    return self.api.delete(pod).await;
                }
            }
        }
        if finished(pod) || pod.labels().contains_key(names::COMPONENT) || pod.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        for (name, _) in claims_of(pod) {
            let Some(pvc) = self.api.caches.pvcs.get(&Key::new(pod.namespace().unwrap_or_default(), name)) else { continue };
            let class = self.class_of(&pvc);
            if claim_phase(&pvc) == "Pending"
                && waits_for_consumer(class.as_deref())
                && !pvc.annotations().contains_key(names::SELECTED_NODE)
            {
                self.api.patch(&*pvc, json!({ "metadata": { "annotations": { names::SELECTED_NODE: "stand-in-node" } } })).await?;
            }
        }
        Ok(())
    }

    /// Volumes of a claim that is gone.
    pub(super) async fn tend_volumes_of(&self, claim_uid: &str) -> Result<(), kube::Error> {
        let of_claim = |pv: &PersistentVolume| {
            pv.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()).and_then(|claim| claim.uid.as_deref()) == Some(claim_uid)
        };
        for pv in self.api.caches.pvs.all(of_claim) {
            if self.opts.controllers == Controllers::StandIn {
                self.reclaim(&pv).await?;
            }
        }
        Ok(())
    }

    /// A volume that changed: released ones are reclaimed as the provisioner does.
    pub(super) async fn tend_volume(&self, pv: &PersistentVolume) -> Result<(), kube::Error> {
        let released = pv.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Released");
        if released && pv.metadata.deletion_timestamp.is_none() {
            self.reclaim(pv).await?;
        }
        if self.opts.controllers == Controllers::StandIn && pv.metadata.deletion_timestamp.is_some() {
            self.release_finalizer(pv, "kubernetes.io/pv-protection").await?;
        }
        Ok(())
    }
}
