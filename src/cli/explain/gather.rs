//! Everything a verdict reads, from the cluster or from files.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use k8s_openapi::{
    api::{
        core::v1::{Namespace, Pod},
        events::v1::Event,
        storage::v1::StorageClass,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Api, Client, Resource, core::NamespaceResourceScope};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    admission::{ImageFacts, Images},
    api::{GoldenImage, yaml_fault},
    cli::Failure,
    foreign::{
        CdiConfig, Claim, DataSource, DataVolume, KubevirtMachineTemplate, MachineDeployment, MachineSet, StorageProfile, VirtualMachine,
        VolumeCloneSource, VolumeSnapshot, WorkerClass,
    },
    rules::{
        Reason,
        class::Classes,
        clone::{Known, Profile, Unknown},
        pods::PodFacts,
    },
    run::api_error,
    world::{
        Sink as _, each_listed,
        evidence::Observe,
        facts, fresh_ledger,
        ledger::{Kind, Ledger},
    },
};

/// What verdicts read: facts and the ledger's rows of everything, and a place to read single objects from. Of a cluster no object is kept:
/// a hundred thousand disks are hundreds of MiB.
pub(super) struct Objects {
    pub(super) catalog: String,
    pub(super) images: Images,
    pub(super) classes: Known<Classes>,
    pub(super) profiles: Known<BTreeMap<String, Profile>>,
    pub(super) cdi_config: Option<CdiConfig>,
    pub(super) pods: Vec<PodFacts>,
    events: Vec<Event>,
    pub(super) ledger: Ledger,
    images_known: Known<()>,
    place: Place,
}

/// Where single objects are read from.
enum Place {
    /// The API server, when they are asked for.
    Cluster(Client),
    /// Memory, as the files had them.
    Files(Box<Files>),
}

/// Whole objects of files.
pub(super) struct Files {
    claims: Vec<Claim>,
    volumes: Vec<DataVolume>,
    snapshots: Vec<VolumeSnapshot>,
    machines: Vec<VirtualMachine>,
    templates: Vec<KubevirtMachineTemplate>,
    namespaces: Known<BTreeMap<String, BTreeMap<String, String>>>,
    unreadable: BTreeSet<Named>,
}

/// A kind of which single objects are read.
pub(super) trait Single:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned + Clone + std::fmt::Debug
{
    /// Those of the files.
    fn of(files: &Files) -> &[Self];
}

macro_rules! single {
    ($($kind:ty, $field:ident;)*) => {$(
        impl Single for $kind {
            fn of(files: &Files) -> &[Self] {
                &files.$field
            }
        }
    )*};
}

single! {
    Claim, claims;
    DataVolume, volumes;
    VolumeSnapshot, snapshots;
    VirtualMachine, machines;
    KubevirtMachineTemplate, templates;
}

/// An object's kind, namespace and name.
type Named = (String, String, String);

/// Objects by kind as JSON; a kind that is there without objects is known to have none.
#[derive(Default)]
struct Raw(BTreeMap<String, Vec<Value>>, BTreeSet<Named>);

impl Raw {
    fn key<K: Resource<DynamicType = ()>>() -> String {
        format!("{}.{}", K::kind(&()), K::group(&()))
    }

    /// The objects of a kind; those that cannot be read at all are noted: they are there, and nothing can be said of them.
    fn take<K: Resource<DynamicType = ()> + DeserializeOwned>(&mut self) -> Option<Vec<K>> {
        let found = self.0.remove(&Self::key::<K>())?;
        let mut read = Vec::with_capacity(found.len());
        for object in found {
            match K::deserialize(&object) {
                Ok(object) => read.push(object),
                Err(_) => {
                    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
                    self.1.insert((K::kind(&()).into_owned(), text("namespace"), text("name")));
                }
            }
        }
        Some(read)
    }
}

impl Objects {
    /// Reads what verdicts read, as whoever asks, about something in `namespace`: page by page, keeping facts alone.
    pub(super) async fn from_cluster(client: &Client, catalog: &str, namespace: &str) -> Result<Self, Failure> {
        let failed = |unknown: Unknown| Failure::new(unknown.to_string());
        // What the daemon told of it; who may not read that learns the rest.
        let mut events = Vec::new();
        drop(each_listed(client, Some(namespace), |event: Event| events.extend(Some(event).filter(is_of_a_stuck_clone))).await);
        let images = Images::default();
        let mut sink = images.store.sink(|image: GoldenImage| Some(ImageFacts::of(&image)));
        sink.begin();
        each_listed(client, None, |image: GoldenImage| sink.apply(image)).await.map_err(failed)?;
        sink.synced();
        let (mut classes, mut profiles, mut pods, mut cdi_config) = (Classes::new(), BTreeMap::new(), Vec::new(), None);
        let class = |class: StorageClass| classes.extend([named(facts::class_facts(&class), class.metadata)]);
        each_listed(client, None, class).await.map_err(failed)?;
        let profile = |profile: StorageProfile| profiles.extend([named(facts::profile(&profile), profile.metadata)]);
        each_listed(client, None, profile).await.map_err(failed)?;
        let config = |config: CdiConfig| {
            cdi_config.get_or_insert(config);
        };
        each_listed(client, None, config).await.map_err(failed)?;
        each_listed(client, Some(catalog), |pod: Pod| pods.push(facts::pod_facts(&pod))).await.map_err(failed)?;
        Ok(Self {
            catalog: catalog.to_owned(),
            images,
            classes: Ok(classes),
            profiles: Ok(profiles),
            cdi_config,
            pods,
            events,
            ledger: fresh_ledger(client, catalog).await.map_err(failed)?,
            images_known: Ok(()),
            place: Place::Cluster(client.clone()),
        })
    }

    /// Reads files of one or more objects or lists.
    pub(super) fn from_files(files: &[PathBuf], complete: bool, catalog: &str) -> Result<Self, Failure> {
        let mut raw = Raw::default();
        for path in files {
            let read = if path.as_os_str() == "-" { std::io::read_to_string(std::io::stdin()) } else { std::fs::read_to_string(path) };
            let text = read.map_err(|error| Failure::usage(format!("cannot read {}: {error}", path.display())))?;
            let documents: Vec<Value> = serde_saphyr::from_multiple(&text).map_err(|error| {
                Failure::usage(format!("{} is no YAML or JSON of Kubernetes objects: {}", path.display(), yaml_fault(&error)))
            })?;
            documents.into_iter().for_each(|document| raw.add(document));
        }
        if raw.0.is_empty() {
            return Err(Failure::usage("the files hold no Kubernetes objects"));
        }
        Ok(Self::of(raw, complete, catalog))
    }

    fn of(mut raw: Raw, complete: bool, catalog: &str) -> Self {
        let images = Images::default();
        let found = raw.take::<GoldenImage>().or_else(|| complete.then(Vec::new));
        let images_known = found.is_some().then_some(()).ok_or_else(absent::<GoldenImage>);
        if let Some(found) = found {
            let mut sink = images.store.sink(|image: GoldenImage| Some(ImageFacts::of(&image)));
            sink.begin();
            found.into_iter().for_each(|image| sink.apply(image));
            sink.synced();
        }
        let classes = raw.take::<StorageClass>().or_else(|| complete.then(Vec::new)).ok_or_else(absent::<StorageClass>);
        let profiles = raw.take::<StorageProfile>().or_else(|| complete.then(Vec::new)).ok_or_else(absent::<StorageProfile>);
        let namespaces = raw.take::<Namespace>().or_else(|| complete.then(Vec::new)).ok_or_else(absent::<Namespace>);
        let namespaces = namespaces
            .map(|found| found.into_iter().map(|found| named(found.metadata.labels.clone().unwrap_or_default(), found.metadata)).collect());
        let mut ledger = Ledger::new(catalog);
        let mut fill = Fill { raw: &mut raw, ledger: &mut ledger, complete };
        let (claims, volumes, snapshots) = (fill.kind::<Claim>(), fill.kind::<DataVolume>(), fill.kind::<VolumeSnapshot>());
        let (machines, templates) = (fill.kind::<VirtualMachine>(), fill.kind::<KubevirtMachineTemplate>());
        fill.kind::<DataSource>();
        fill.kind::<VolumeCloneSource>();
        fill.kind::<MachineDeployment>();
        fill.kind::<MachineSet>();
        fill.kind::<WorkerClass>();
        let pods = raw.take::<Pod>().unwrap_or_default();
        let mut events = raw.take::<Event>().unwrap_or_default();
        events.retain(is_of_a_stuck_clone);
        Self {
            catalog: catalog.to_owned(),
            images,
            classes: classes.map(|found| found.into_iter().map(|class| named(facts::class_facts(&class), class.metadata)).collect()),
            profiles: profiles.map(|found| found.into_iter().map(|profile| named(facts::profile(&profile), profile.metadata)).collect()),
            cdi_config: raw.take::<CdiConfig>().and_then(|found| found.into_iter().next()),
            pods: pods.iter().map(facts::pod_facts).collect(),
            events,
            ledger,
            images_known,
            place: Place::Files(Box::new(Files { claims, volumes, snapshots, machines, templates, namespaces, unreadable: raw.1 })),
        }
    }

    /// Whether "there is none of this name" may be said: something of it may be in the files that cannot be read.
    pub(super) fn readable<K: Resource<DynamicType = ()>>(&self, namespace: &str, name: &str) -> Known<()> {
        let Place::Files(files) = &self.place else { return Ok(()) };
        let named = (K::kind(&()).into_owned(), namespace.to_owned(), name.to_owned());
        if files.unreadable.contains(&named) { Err(Unknown(format!("{} {namespace}/{name} cannot be read", named.0))) } else { Ok(()) }
    }

    /// Whether "no image makes it" may be said.
    pub(super) fn images_known(&self) -> Known<()> {
        self.images_known.clone()
    }

    /// Whether "there is no such claim" may be said.
    pub(super) fn claims_known(&self) -> Known<()> {
        self.ledger.known(&[Kind::Claim])
    }

    /// What the daemon told last of a disk whose clone does not move.
    pub(super) fn stuck(&self, disk: &ObjectMeta) -> Option<&str> {
        let about = |event: &&Event| event.regarding.as_ref().is_some_and(|regarding| regarding.uid.is_some() && regarding.uid == disk.uid);
        let at =
            |event: &&Event| event.series.as_ref().map(|series| series.last_observed_time.clone()).or_else(|| event.event_time.clone());
        self.events.iter().filter(about).max_by_key(at)?.note.as_deref()
    }

    /// One object.
    ///
    /// # Errors
    /// When the API server does not say.
    pub(super) async fn find<K: Single>(&self, namespace: &str, name: &str) -> Result<Option<K>, Failure> {
        match &self.place {
            Place::Cluster(client) => {
                let found = Api::<K>::namespaced(client.clone(), namespace).get_opt(name).await;
                found.map_err(|error| Failure::new(format!("cannot read {} {namespace}/{name}: {}", K::kind(&()), api_error(&error))))
            }
            Place::Files(files) => {
                Ok(K::of(files).iter().find(|object| is_in(*object, namespace) && object.meta().name.as_deref() == Some(name)).cloned())
            }
        }
    }

    /// Each object of a namespace, one after the other.
    ///
    /// # Errors
    /// When the API server does not list them all.
    pub(super) async fn each<K: Single>(&self, namespace: &str, mut take: impl FnMut(&K)) -> Result<(), Failure> {
        match &self.place {
            Place::Cluster(client) => {
                let listed = each_listed(client, Some(namespace), |object: K| take(&object)).await;
                listed.map(drop).map_err(|unknown| Failure::new(unknown.to_string()))
            }
            Place::Files(files) => {
                K::of(files).iter().filter(|object| is_in(*object, namespace)).for_each(take);
                Ok(())
            }
        }
    }

    /// The labels of a namespace.
    pub(super) async fn namespace_labels(&self, name: &str) -> Known<BTreeMap<String, String>> {
        let (labels, place) = match &self.place {
            Place::Cluster(client) => {
                let found = Api::<Namespace>::all(client.clone()).get_opt(name).await;
                let found = found.map_err(|error| Unknown(format!("Namespace {name} cannot be read: {}", api_error(&error))))?;
                (found.map(|namespace| namespace.metadata.labels.unwrap_or_default()), "there")
            }
            Place::Files(files) => (files.namespaces.as_ref().map_err(Clone::clone)?.get(name).cloned(), "in the files"),
        };
        labels.ok_or_else(|| Unknown(format!("Namespace {name} is not {place}")))
    }

    /// What to do where something was not found.
    pub(super) const fn hint(&self) -> &'static str {
        match self.place {
            Place::Files(_) => " in the files; export it with `kubectl get … -o yaml`, or leave `-f` out to ask the cluster",
            Place::Cluster(_) => "",
        }
    }
}

fn is_in<K: Resource>(object: &K, namespace: &str) -> bool {
    object.meta().namespace.as_deref() == Some(namespace)
}

fn named<T>(facts: T, meta: ObjectMeta) -> (String, T) {
    (meta.name.unwrap_or_default(), facts)
}

fn is_of_a_stuck_clone(event: &Event) -> bool {
    event.reason.as_deref() == Some(Reason::CloneStuck.as_str())
}

impl Raw {
    /// Takes in an object or a list.
    fn add(&mut self, object: Value) {
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        let group = object["apiVersion"].as_str().and_then(|version| version.split_once('/')).map_or("", |(group, _)| group).to_owned();
        match object.get("items").and_then(Value::as_array) {
            Some(items) => {
                // `kubectl get KIND` gives a typed list where raw lists are asked for: even an empty one tells that there are none.
                if let Some(kind) = kind.strip_suffix("List").filter(|kind| !kind.is_empty()) {
                    self.0.entry(format!("{kind}.{group}")).or_default();
                }
                items.iter().cloned().for_each(|mut item| {
                    // Items of a typed list need not say what they are.
                    if item.get("kind").is_none()
                        && let Some(object_fields) = item.as_object_mut()
                    {
                        object_fields.insert("kind".to_owned(), kind.trim_end_matches("List").into());
                        object_fields.insert("apiVersion".to_owned(), object["apiVersion"].clone());
                    }
                    self.add(item);
                });
            }
            None if kind.is_empty() => {}
            None => self.0.entry(format!("{kind}.{group}")).or_default().push(object),
        }
    }
}

/// What is to be said of a kind that files lack: whoever exported them must know which one and how.
pub(super) fn absent<K: Resource<DynamicType = ()>>() -> Unknown {
    let group = K::group(&());
    let dot = if group.is_empty() { "" } else { "." };
    Unknown(format!(
        "no {} is in the files: add the output of `kubectl get {}{dot}{group} -A -o yaml`, or say `--complete` if the cluster has none",
        K::kind(&()),
        K::plural(&())
    ))
}

struct Fill<'a> {
    raw: &'a mut Raw,
    ledger: &'a mut Ledger,
    complete: bool,
}

impl Fill<'_> {
    fn kind<K: Observe>(&mut self) -> Vec<K> {
        let found = self.raw.take::<K>();
        if found.is_none() && !self.complete {
            self.ledger.doubt(K::KIND, Some(absent::<K>().0));
            return Vec::new();
        }
        let found = found.unwrap_or_default();
        self.ledger.begin(K::KIND);
        found.iter().for_each(|object| self.ledger.observe(object));
        for (kind, namespace, name) in &self.raw.1 {
            if *kind == K::kind(&()) {
                self.ledger.unreadable(K::KIND, namespace, name);
            }
        }
        self.ledger.commit(K::KIND);
        found
    }
}
