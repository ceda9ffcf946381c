//! The stores that the catalog's own objects are decided from, and the watches that fill them.

use std::{future::Future, pin::Pin, sync::Arc};

use k8s_openapi::api::{
    core::v1::{ConfigMap, Pod},
    storage::v1::StorageClass,
};
use kube::{Api, Client, ResourceExt as _, core::DeserializeGuard};

use super::{Change, CrdFacts, InstalledKinds, Pulse, Store, WatchSettings, feed, run_while_installed};
use crate::{
    api::GoldenImage,
    foreign::{CdiConfig, Claim, DataVolume, StorageProfile},
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
    /// A ConfigMap of the daemon's namespace.
    ConfigMap(String),
}

/// A StorageClass and what makes it a default.
#[derive(Debug, Clone, PartialEq)]
pub struct ClassFacts {
    /// The object.
    pub class: StorageClass,
}

/// A pod of the catalog namespace, as far as it uses volumes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodFacts {
    /// Its name.
    pub name: String,
    /// PVCs it uses read-write.
    pub writes: Vec<String>,
    /// Whether it has ended.
    pub ended: bool,
    /// Whether CDI made it: its own workers are no trouble.
    pub of_cdi: bool,
}

/// A ConfigMap's texts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigMapFacts {
    /// Its UID.
    pub uid: String,
    /// Its data.
    pub data: std::collections::BTreeMap<String, String>,
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
    /// ConfigMaps of the daemon's namespace.
    pub config_maps: Store<ConfigMapFacts>,
    crds: Store<String>,
    kinds: InstalledKinds,
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
        let kinds = InstalledKinds::default();
        Self {
            images: Store::new({
                let tell = Arc::clone(&tell);
                move |change| tell(Changed::Image(change.name.to_owned()))
            }),
            volumes: Store::new(golden(&tell)),
            claims: Store::new(golden(&tell)),
            pods: Store::new({
                let tell = Arc::clone(&tell);
                move |change: &Change<'_, PodFacts>| {
                    for pod in [change.old, change.new].into_iter().flatten() {
                        pod.writes.iter().for_each(|claim| tell(Changed::Golden(claim.clone())));
                    }
                }
            }),
            classes: Store::new(storage(&tell)),
            profiles: Store::new(storage(&tell)),
            cdi_config: Store::new(storage(&tell)),
            config_maps: Store::new({
                let tell = Arc::clone(&tell);
                move |change| tell(Changed::ConfigMap(change.name.to_owned()))
            }),
            crds: Store::new({
                let tell = Arc::clone(&tell);
                move |_: &Change<'_, String>| tell(Changed::Storage)
            }),
            kinds,
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
            ("ConfigMaps", self.config_maps.is_known()),
        ]
        .into_iter()
        .find_map(|(kind, known)| (!known).then_some(kind))
    }

    /// The watches to be run.
    pub fn watches(&self, client: &Client, namespace: &str, catalog: &str, settings: WatchSettings) -> Vec<Watch> {
        let mut watches = Vec::new();
        watches.push(plain("GoldenImage", Api::all(client.clone()), &self.images, settings, |mut object: GoldenImage| {
            object.metadata.managed_fields = None;
            Some(object)
        }));
        watches.push(plain("PersistentVolumeClaim", Api::namespaced(client.clone(), catalog), &self.claims, settings, Some));
        watches.push(plain("Pod", Api::namespaced(client.clone(), catalog), &self.pods, settings, |pod: Pod| Some(pod_facts(&pod))));
        watches.push(plain("StorageClass", Api::all(client.clone()), &self.classes, settings, |mut class: StorageClass| {
            class.metadata.managed_fields = None;
            Some(ClassFacts { class })
        }));
        watches.push(plain("ConfigMap", Api::namespaced(client.clone(), namespace), &self.config_maps, settings, |map: ConfigMap| {
            Some(ConfigMapFacts { uid: map.uid().unwrap_or_default(), data: map.data.unwrap_or_default() })
        }));
        watches.push(self.crd_watch(client, settings));
        let optional = |crd| (crd, self.kinds.clone());
        watches.push(while_installed("DataVolume", optional("datavolumes.cdi.kubevirt.io"), &self.volumes, settings, {
            let (client, catalog) = (client.clone(), catalog.to_owned());
            move || Api::namespaced(client.clone(), &catalog)
        }));
        watches.push(while_installed("StorageProfile", optional("storageprofiles.cdi.kubevirt.io"), &self.profiles, settings, {
            let client = client.clone();
            move || Api::all(client.clone())
        }));
        watches.push(while_installed("CDIConfig", optional("cdiconfigs.cdi.kubevirt.io"), &self.cdi_config, settings, {
            let client = client.clone();
            move || Api::all(client.clone())
        }));
        watches
    }

    fn crd_watch(&self, client: &Client, settings: WatchSettings) -> Watch {
        let pulse = Pulse::new("CustomResourceDefinition");
        let api: Api<DeserializeGuard<CrdFacts>> = Api::all(client.clone());
        let (store, kinds, beat) = (self.crds.clone(), self.kinds.clone(), pulse.clone());
        let run = Box::pin(async move {
            let mut sink =
                KindsSink { inner: store.sink(|crd: CrdFacts| crd.is_established().then(|| crd.name_any())), store: store.clone(), kinds };
            feed(api, settings, &beat, &mut sink).await;
        });
        Watch { pulse, run }
    }
}

/// Passes CRDs on to a store and tells [`InstalledKinds`] after each change.
struct KindsSink<F> {
    inner: super::store::StoreSink<String, F>,
    store: Store<String>,
    kinds: InstalledKinds,
}

impl<F: FnMut(CrdFacts) -> Option<String> + Send> super::Sink<CrdFacts> for KindsSink<F> {
    fn begin(&mut self) {
        super::Sink::<CrdFacts>::begin(&mut self.inner);
    }

    fn apply(&mut self, object: CrdFacts) {
        self.inner.apply(object);
        self.kinds.update(&self.store);
    }

    fn delete(&mut self, namespace: Option<&str>, name: &str) {
        super::Sink::<CrdFacts>::delete(&mut self.inner, namespace, name);
        self.kinds.update(&self.store);
    }

    fn odd(&mut self, namespace: Option<&str>, name: &str, error: &str) {
        super::Sink::<CrdFacts>::odd(&mut self.inner, namespace, name, error);
    }

    fn synced(&mut self) {
        super::Sink::<CrdFacts>::synced(&mut self.inner);
        self.kinds.update(&self.store);
    }
}

fn golden<T>(tell: &Arc<dyn Fn(Changed) + Send + Sync>) -> impl Fn(&Change<'_, T>) + Send + Sync + 'static {
    let tell = Arc::clone(tell);
    move |change| tell(Changed::Golden(change.name.to_owned()))
}

fn storage<T>(tell: &Arc<dyn Fn(Changed) + Send + Sync>) -> impl Fn(&Change<'_, T>) + Send + Sync + 'static {
    let tell = Arc::clone(tell);
    move |_| tell(Changed::Storage)
}

fn plain<K, T>(
    kind: &'static str,
    api: Api<DeserializeGuard<K>>,
    store: &Store<T>,
    settings: WatchSettings,
    trim: impl FnMut(K) -> Option<T> + Send + 'static,
) -> Watch
where
    K: kube::Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug + Send + Sync + 'static,
    T: PartialEq + Send + Sync + 'static,
{
    let pulse = Pulse::new(kind);
    let (mut sink, beat) = (store.sink(trim), pulse.clone());
    Watch { pulse, run: Box::pin(async move { feed(api, settings, &beat, &mut sink).await }) }
}

fn while_installed<K>(
    kind: &'static str,
    (crd, kinds): (&'static str, InstalledKinds),
    store: &Store<K>,
    settings: WatchSettings,
    api: impl Fn() -> Api<DeserializeGuard<K>> + Send + Sync + 'static,
) -> Watch
where
    K: kube::Resource + Clone + PartialEq + serde::de::DeserializeOwned + std::fmt::Debug + Send + Sync + 'static,
{
    let pulse = Pulse::new(kind);
    let (store, beat) = (store.clone(), pulse.clone());
    let run = Box::pin(async move {
        // While the kind is not installed nothing is watched, and nothing can be late.
        let idle = beat.clone();
        let ticking = async {
            loop {
                if store.state() == super::StoreState::NotInstalled {
                    idle.beat();
                }
                tokio::time::sleep(std::time::Duration::from_secs(5)).await;
            }
        };
        let watching = run_while_installed(kinds.subscribe(), crd, &store, || {
            let (api, store, beat) = (api(), store.clone(), beat.clone());
            async move {
                let mut sink = store.sink(Some);
                feed(api, settings, &beat, &mut sink).await;
            }
        });
        tokio::select! { () = ticking => {}, () = watching => {} }
    });
    Watch { pulse, run }
}

/// Which claims a pod uses read-write: all but those its volume mounts read-only everywhere (CDI's own rule,
/// `reference/cdi.md`, section 2).
fn pod_facts(pod: &Pod) -> PodFacts {
    let spec = pod.spec.as_ref();
    let volumes = spec.and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    let writes = volumes
        .iter()
        .filter_map(|volume| volume.persistent_volume_claim.as_ref())
        .filter(|claim| claim.read_only != Some(true))
        .map(|claim| claim.claim_name.clone())
        .collect();
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
    PodFacts {
        name: pod.name_any(),
        writes,
        ended: matches!(phase, "Succeeded" | "Failed"),
        of_cdi: pod.labels().get("app").is_some_and(|app| app == "containerized-data-importer"),
    }
}
