//! What admission knows without asking: a few trimmed stores and the ledger, each filled by a watch of its own.

use std::{collections::BTreeMap, future::Future, pin::Pin, sync::Arc, time::Instant};

use k8s_openapi::api::storage::v1::StorageClass;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;

use super::images::{ImageFacts, Images};
use crate::{
    api::GoldenImage,
    foreign::{
        CdiConfig, Claim, DataSource, DataVolume, KubevirtMachineTemplate, MachineDeployment, MachineSet, StorageProfile, VirtualMachine,
        VolumeCloneSource, VolumeSnapshot, WorkerClass,
    },
    rules::{
        class::{ClassFacts, Classes},
        clone::{Known, Profile, Unknown},
        size::Overheads,
    },
    world::{
        LedgerSink, Pulse, Selection, Sink, Store, WatchSettings, WatchState, facts, feed,
        ledger::{Kind, Ledger},
    },
};

/// A watch to be run, with its signs of life.
pub struct Watch {
    /// Its signs of life.
    pub pulse: Pulse,
    /// Runs for ever; drop it to stop.
    pub run: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// Everything verdicts read from memory.
#[derive(Clone)]
pub struct Scene {
    /// The namespace of the goldens.
    pub catalog: String,
    /// GoldenImages.
    pub images: Images,
    /// DataVolumes of the catalog namespace.
    pub volumes: Store<DataVolume>,
    /// StorageClasses.
    pub classes: Store<ClassFacts>,
    /// What CDI knows of classes.
    pub profiles: Store<(String, Profile)>,
    /// CDI's configuration.
    pub cdi_config: Store<CdiConfig>,
    /// Who uses what.
    pub ledger: LedgerSink,
}

impl Scene {
    /// Nothing known yet.
    pub fn new(catalog: &str) -> Self {
        Self {
            catalog: catalog.to_owned(),
            images: Images::default(),
            volumes: Store::new(|_| {}),
            classes: Store::new(|_| {}),
            profiles: Store::new(|_| {}),
            cdi_config: Store::new(|_| {}),
            ledger: LedgerSink::new(Ledger::new(catalog)),
        }
    }

    /// The first thing that is not known yet; a verdict may need it, so that nothing is served before.
    ///
    /// # Errors
    /// Names it.
    pub fn known(&self) -> Known<()> {
        let stores = [
            ("GoldenImages", self.images.store.is_known()),
            ("DataVolumes", self.volumes.is_known()),
            ("StorageClasses", self.classes.is_known()),
            ("StorageProfiles", self.profiles.is_known()),
            ("CDIConfigs", self.cdi_config.is_known()),
        ];
        if let Some((kind, _)) = stores.iter().find(|(_, known)| !known) {
            return Err(Unknown(format!("{kind} have not been read yet")));
        }
        self.ledger.read().known(&Kind::ALL)
    }

    /// The cluster's classes.
    ///
    /// # Errors
    /// While they are not all known.
    pub fn classes(&self) -> Known<Classes> {
        if !self.classes.is_known() {
            return Err(Unknown("StorageClasses have not been read yet".to_owned()));
        }
        Ok(self.classes.all().iter().map(|class| (class.name.clone(), (**class).clone())).collect())
    }

    /// CDI's profiles of the classes.
    ///
    /// # Errors
    /// While they are not all known.
    pub fn profiles(&self) -> Known<BTreeMap<String, Profile>> {
        if !self.profiles.is_known() {
            return Err(Unknown("StorageProfiles have not been read yet".to_owned()));
        }
        Ok(self.profiles.all().iter().map(|profile| (profile.0.clone(), profile.1.clone())).collect())
    }

    /// CDI's file system overheads.
    pub fn overheads(&self) -> Overheads {
        facts::overheads(self.cdi_config.get("", "config").as_deref())
    }

    /// The watches to be run. `client` must not retry by itself.
    pub fn watches(&self, client: &Client, settings: WatchSettings) -> Vec<Watch> {
        let in_catalog = || Selection::in_namespace(&self.catalog);
        let state = |kind| WatchState::new(kind, settings.limit, Instant::now());
        let optional = |kind, definition| state(kind).optional(definition);
        let everywhere = Selection::default;
        let run = Run { client, settings };
        let ledger = |kind, definition| optional(kind, definition);
        vec![
            run.watch(state("GoldenImage"), everywhere(), self.images.store.sink(|image: GoldenImage| Some(ImageFacts::of(&image)))),
            run.watch(state("StorageClass"), everywhere(), self.classes.sink(|class: StorageClass| Some(facts::class_facts(&class)))),
            run.watch(
                optional("DataVolume of the catalog", "datavolumes.cdi.kubevirt.io"),
                in_catalog(),
                self.volumes.sink(|volume: DataVolume| Some(volume)),
            ),
            run.watch(
                optional("StorageProfile", "storageprofiles.cdi.kubevirt.io"),
                everywhere(),
                self.profiles
                    .sink(|profile: StorageProfile| Some((profile.metadata.name.clone().unwrap_or_default(), facts::profile(&profile)))),
            ),
            run.watch(
                optional("CDIConfig", "cdiconfigs.cdi.kubevirt.io"),
                everywhere(),
                self.cdi_config.sink(|config: CdiConfig| Some(config)),
            ),
            run.watch::<DataVolume>(ledger("DataVolume", "datavolumes.cdi.kubevirt.io"), everywhere(), self.ledger.clone()),
            run.watch::<Claim>(state("PersistentVolumeClaim"), everywhere(), self.ledger.clone()),
            run.watch::<VolumeSnapshot>(
                ledger("VolumeSnapshot", "volumesnapshots.snapshot.storage.k8s.io"),
                in_catalog(),
                self.ledger.clone(),
            ),
            run.watch::<VirtualMachine>(ledger("VirtualMachine", "virtualmachines.kubevirt.io"), everywhere(), self.ledger.clone()),
            run.watch::<KubevirtMachineTemplate>(
                ledger("KubevirtMachineTemplate", "kubevirtmachinetemplates.infrastructure.cluster.x-k8s.io"),
                everywhere(),
                self.ledger.clone(),
            ),
            run.watch::<MachineDeployment>(
                ledger("MachineDeployment", "machinedeployments.cluster.x-k8s.io"),
                everywhere(),
                self.ledger.clone(),
            ),
            run.watch::<MachineSet>(ledger("MachineSet", "machinesets.cluster.x-k8s.io"), everywhere(), self.ledger.clone()),
            run.watch::<VolumeCloneSource>(
                ledger("VolumeCloneSource", "volumeclonesources.cdi.kubevirt.io"),
                in_catalog(),
                self.ledger.clone(),
            ),
            run.watch::<DataSource>(ledger("DataSource", "datasources.cdi.kubevirt.io"), everywhere(), self.ledger.clone()),
            run.watch::<WorkerClass>(ledger("WorkerClass", "workerclasses.cozystack.io"), everywhere(), self.ledger.clone()),
        ]
    }
}

struct Run<'a> {
    client: &'a Client,
    settings: WatchSettings,
}

impl Run<'_> {
    fn watch<K>(&self, state: WatchState, selection: Selection, mut sink: impl Sink<K> + 'static) -> Watch
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Send + 'static,
    {
        let pulse: Pulse = Arc::new(state);
        let (client, settings, state) = (self.client.clone(), self.settings, Arc::clone(&pulse));
        Watch { pulse, run: Box::pin(async move { feed::<K>(client, selection, settings, &state, &mut sink).await }) }
    }
}
