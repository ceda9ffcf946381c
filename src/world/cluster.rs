//! The stores that the catalog's own objects are decided from, and the watches that fill them.

use std::{future::Future, pin::Pin, sync::Arc, time::Instant};

use k8s_openapi::api::{
    core::v1::{ConfigMap, Pod, ResourceQuota, Secret},
    storage::v1::StorageClass,
};
use kube::{Client, ResourceExt as _, core::PartialObjectMeta};

use super::{Change, Pulse, Selection, Store, WatchSettings, WatchState, facts, feed};
use crate::{
    api::{GoldenImage, digest_managers},
    foreign::{Cdi, CdiConfig, Claim, DataVolume, StorageProfile, VolumeSnapshotClass},
    rules::{class::ClassFacts, pods::PodFacts, quota::Quota},
};

/// What changed, in terms of who must look again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Changed {
    /// This GoldenImage.
    Image(String),
    /// A DataVolume, PVC or pod of this golden.
    Golden(String),
    /// StorageClasses, StorageProfiles, CDI: every image that is not Ready.
    Storage,
    /// A ResourceQuota of the catalog namespace: whoever waits for one.
    Quota,
    /// A ConfigMap of the daemon's namespace.
    ConfigMap(String),
    /// A Secret of the daemon's namespace.
    Secret(String),
}

/// A Warning about an object of the catalog namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WarningFacts {
    /// The object's kind.
    pub kind: String,
    /// The object's name.
    pub name: String,
    /// The Event's reason.
    pub reason: String,
    /// Its words, without what must not be shown.
    pub message: String,
    /// When it was last seen, in seconds since 1970.
    pub seen: i64,
}

/// A ConfigMap's texts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigMapFacts {
    /// Its UID.
    pub uid: String,
    /// Its data.
    pub data: std::collections::BTreeMap<String, String>,
}

/// A Secret, of which nothing but its version is kept: what it holds is read when it is used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SecretFacts {
    /// Its resourceVersion.
    pub version: String,
}

/// Everything the controller watches for the catalog's own objects.
#[derive(Clone)]
pub struct Cluster {
    /// All GoldenImages.
    pub images: Store<GoldenImage>,
    /// DataVolumes of the catalog namespace.
    pub volumes: Store<DataVolume>,
    /// PVCs of the catalog namespace.
    pub claims: Store<Claim>,
    /// Pods of the catalog namespace.
    pub pods: Store<PodFacts>,
    /// StorageClasses.
    pub classes: Store<ClassFacts>,
    /// CDI's StorageProfiles.
    pub profiles: Store<StorageProfile>,
    /// CDI's configuration.
    pub cdi_config: Store<CdiConfig>,
    /// CDI's installation: the clone strategy over all classes.
    pub cdi: Store<Cdi>,
    /// The drivers of VolumeSnapshotClasses.
    pub snapshot_classes: Store<String>,
    /// ResourceQuotas of the catalog namespace.
    pub quotas: Store<Quota>,
    /// Warnings about objects of the catalog namespace: why an importer does not run. They wake nobody.
    pub warnings: Store<WarningFacts>,
    /// ConfigMaps of the daemon's namespace.
    pub config_maps: Store<ConfigMapFacts>,
    /// Secrets of the daemon's namespace, by their metadata.
    pub secrets: Store<SecretFacts>,
}

/// A watch to be run, with its signs of life.
pub struct Watch {
    /// Its signs of life.
    pub pulse: Pulse,
    /// Runs for ever; drop it to stop.
    pub run: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Cluster {
    /// Empty stores that tell `listener` who must look again.
    pub fn new(listener: impl Fn(Changed) + Send + Sync + 'static) -> Self {
        let tell: Arc<dyn Fn(Changed) + Send + Sync> = Arc::new(listener);
        Self {
            images: Store::new({
                let tell = Arc::clone(&tell);
                move |change| tell(Changed::Image(change.name.to_owned()))
            }),
            // CDI may come and go: that concerns every image that waits for it.
            volumes: Store::optional(golden(&tell), installed(&tell)),
            claims: Store::new(golden(&tell)),
            pods: Store::new({
                let tell = Arc::clone(&tell);
                move |change: &Change<'_, PodFacts>| {
                    for pod in [change.old, change.new].into_iter().flatten() {
                        let claims = pod.volumes.iter().map(|volume| &volume.claim).filter(|claim| !is_working_claim(claim));
                        claims.for_each(|claim| tell(Changed::Golden(claim.clone())));
                    }
                }
            }),
            classes: Store::new(storage(&tell)),
            profiles: Store::optional(storage(&tell), installed(&tell)),
            cdi_config: Store::optional(storage(&tell), installed(&tell)),
            cdi: Store::optional(storage(&tell), installed(&tell)),
            snapshot_classes: Store::optional(storage(&tell), installed(&tell)),
            quotas: Store::new({
                let tell = Arc::clone(&tell);
                move |_| tell(Changed::Quota)
            }),
            warnings: Store::new(|_| {}),
            config_maps: Store::new({
                let tell = Arc::clone(&tell);
                move |change| tell(Changed::ConfigMap(change.name.to_owned()))
            }),
            secrets: Store::new({
                let tell = Arc::clone(&tell);
                move |change| tell(Changed::Secret(change.name.to_owned()))
            }),
        }
    }

    /// Whether every store is complete, or known to be empty: nothing may be decided before.
    pub fn is_known(&self) -> bool {
        self.unknown().is_none()
    }

    /// The first kind that is not complete yet.
    pub fn unknown(&self) -> Option<&'static str> {
        [
            ("GoldenImages", self.images.is_known()),
            ("DataVolumes", self.volumes.is_known()),
            ("PersistentVolumeClaims", self.claims.is_known()),
            ("Pods", self.pods.is_known()),
            ("StorageClasses", self.classes.is_known()),
            ("StorageProfiles", self.profiles.is_known()),
            ("CDIConfigs", self.cdi_config.is_known()),
            ("CDIs", self.cdi.is_known()),
            ("VolumeSnapshotClasses", self.snapshot_classes.is_known()),
            ("ResourceQuotas", self.quotas.is_known()),
            ("ConfigMaps", self.config_maps.is_known()),
            ("Secrets", self.secrets.is_known()),
        ]
        .into_iter()
        .find_map(|(kind, known)| (!known).then_some(kind))
    }

    /// The watches to be run. `client` must not retry by itself ([`crate::run::client::reader`]).
    pub fn watches(&self, client: &Client, namespace: &str, catalog: &str, settings: WatchSettings) -> Vec<Watch> {
        let everywhere = Selection::default;
        let in_catalog = || Selection::in_namespace(catalog);
        let warnings = Selection { fields: Some("type=Warning".to_owned()), ..in_catalog() };
        let watch = |kind| WatchState::new(kind, settings.limit, Instant::now());
        vec![
            run(client, watch("GoldenImage"), everywhere(), settings, &self.images, |mut object: GoldenImage| {
                object.metadata.managed_fields = digest_managers(&object);
                Some(object)
            }),
            run(client, watch("PersistentVolumeClaim"), in_catalog(), settings, &self.claims, Some),
            run(client, watch("Pod"), in_catalog(), settings, &self.pods, |pod: Pod| Some(facts::pod_facts(&pod))),
            run(client, watch("ResourceQuota"), in_catalog(), settings, &self.quotas, |quota: ResourceQuota| facts::quota(&quota)),
            run(client, watch("Event"), warnings, settings, &self.warnings, facts::warning),
            run(client, watch("StorageClass"), everywhere(), settings, &self.classes, |class: StorageClass| {
                Some(facts::class_facts(&class))
            }),
            run(client, watch("ConfigMap"), Selection::in_namespace(namespace), settings, &self.config_maps, |map: ConfigMap| {
                Some(ConfigMapFacts { uid: map.uid().unwrap_or_default(), data: map.data.unwrap_or_default() })
            }),
            run(client, watch("Secret"), secrets_of(namespace), settings, &self.secrets, |secret: PartialObjectMeta<Secret>| {
                Some(SecretFacts { version: secret.resource_version().unwrap_or_default() })
            }),
            run(client, watch("DataVolume").optional("datavolumes.cdi.kubevirt.io"), in_catalog(), settings, &self.volumes, Some),
            run(client, watch("StorageProfile").optional("storageprofiles.cdi.kubevirt.io"), everywhere(), settings, &self.profiles, Some),
            run(client, watch("CDIConfig").optional("cdiconfigs.cdi.kubevirt.io"), everywhere(), settings, &self.cdi_config, Some),
            run(client, watch("CDI").optional("cdis.cdi.kubevirt.io"), everywhere(), settings, &self.cdi, Some),
            run(
                client,
                watch("VolumeSnapshotClass").optional("volumesnapshotclasses.snapshot.storage.k8s.io"),
                everywhere(),
                settings,
                &self.snapshot_classes,
                |class: VolumeSnapshotClass| Some(class.driver),
            ),
        ]
    }
}

/// Metadata only: no Secret's content is ever in the daemon's memory but while it is used. Helm keeps its releases in
/// Secrets, which are many and large and of no interest.
fn secrets_of(namespace: &str) -> Selection {
    Selection { fields: Some("type!=helm.sh/release.v1".to_owned()), metadata_only: true, ..Selection::in_namespace(namespace) }
}

/// CDI's working claims, by far the most changes here, are nobody's golden.
fn golden<T>(tell: &Arc<dyn Fn(Changed) + Send + Sync>) -> impl Fn(&Change<'_, T>) + Send + Sync + 'static {
    let tell = Arc::clone(tell);
    move |change| {
        if !is_working_claim(change.name) {
            tell(Changed::Golden(change.name.to_owned()));
        }
    }
}

fn is_working_claim(name: &str) -> bool {
    ["prime-", "tmp-"].iter().any(|prefix| name.starts_with(prefix))
}

fn storage<T>(tell: &Arc<dyn Fn(Changed) + Send + Sync>) -> impl Fn(&Change<'_, T>) + Send + Sync + 'static {
    let tell = Arc::clone(tell);
    move |_| tell(Changed::Storage)
}

fn installed(tell: &Arc<dyn Fn(Changed) + Send + Sync>) -> impl Fn() + Send + Sync + 'static {
    let tell = Arc::clone(tell);
    move || tell(Changed::Storage)
}

/// A watch that fills a store with what `trim` keeps.
fn run<K, T>(
    client: &Client,
    state: WatchState,
    selection: Selection,
    settings: WatchSettings,
    store: &Store<T>,
    trim: impl FnMut(K) -> Option<T> + Send + 'static,
) -> Watch
where
    K: kube::Resource<DynamicType = ()> + serde::de::DeserializeOwned + Send + 'static,
    T: PartialEq + Send + Sync + 'static,
{
    let pulse: Pulse = Arc::new(state);
    let (client, state, mut sink) = (client.clone(), Arc::clone(&pulse), store.sink(trim));
    Watch { pulse, run: Box::pin(async move { feed(client, selection, settings, &state, &mut sink).await }) }
}
