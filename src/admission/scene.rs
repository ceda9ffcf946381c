//! What admission knows without asking: a few trimmed stores and the ledger, each filled by a watch of its own.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Instant,
};

use k8s_openapi::api::storage::v1::StorageClass;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;

use super::images::{ImageFacts, Images};
use crate::{
    api::GoldenImage,
    foreign::{CdiConfig, DataVolume, StorageProfile},
    rules::{
        class::{ClassFacts, Classes},
        clone::{Known, Profile, Unknown},
        size::Overheads,
    },
    world::{ConsumerWatch, Pulse, Selection, Sink, Store, Watch, WatchSettings, WatchState, facts, feed},
};

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
    pub ledger: ConsumerWatch,
    /// Classes whose finished clones stand alone, by the hoster's word: what the leader goes by, or a refusal would name other blockers.
    pub independent: Arc<BTreeSet<String>>,
    /// R17: provisioners whose volumes live on one node.
    pub node_local: Arc<[String]>,
}

impl Scene {
    /// Nothing known yet. `independent` is the setting `independentClasses`, `node_local` is `nodeLocalProvisioners`. `consumers` may be shared with others; who made it runs its watches.
    pub fn new(catalog: &str, consumers: ConsumerWatch, independent: BTreeSet<String>, node_local: &[String]) -> Self {
        Self {
            catalog: catalog.to_owned(),
            images: Images::default(),
            volumes: Store::new(|_| {}),
            classes: Store::new(|_| {}),
            profiles: Store::new(|_| {}),
            cdi_config: Store::new(|_| {}),
            ledger: consumers,
            independent: Arc::new(independent),
            node_local: node_local.into(),
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
        self.ledger.known()
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

    /// The watches of everything but the ledger, to be run. `client` must not retry by itself.
    pub fn watches(&self, client: &Client, settings: WatchSettings) -> Vec<Watch> {
        let in_catalog = || Selection::in_namespace(&self.catalog);
        let state = |kind| WatchState::new(kind, settings.limit, Instant::now());
        let optional = |kind, definition| state(kind).optional(definition);
        let everywhere = Selection::default;
        let run = Run { client, settings };
        vec![
            run.watch(state("GoldenImage"), everywhere(), self.images.store.sink(|image: GoldenImage| Some(ImageFacts::of(&image)))),
            run.watch(state("StorageClass"), everywhere(), self.classes.sink(|class: StorageClass| Some(facts::class_facts(&class)))),
            run.watch(
                optional("DataVolume", "datavolumes.cdi.kubevirt.io"),
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
