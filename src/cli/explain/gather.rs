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
use kube::{Client, Resource, api::ListParams};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    admission::{ImageFacts, Images},
    api::{GoldenImage, yaml_fault},
    cli::Failure,
    foreign::{
        CdiConfig, Claim, DataSource, DataVolume, KubevirtMachineTemplate, MachineDeployment, MachineDeploymentV1Beta2, MachineSet,
        MachineSetV1Beta2, StorageProfile, VirtualMachine, VolumeCloneSource, VolumeSnapshot, WorkerClass,
    },
    rules::{
        Reason,
        class::Classes,
        clone::{Known, Profile, Unknown},
        pods::PodFacts,
    },
    run::api_error,
    world::{
        Sink as _,
        evidence::Observe,
        facts,
        ledger::{Kind, Ledger},
    },
};

/// What was read.
pub(super) struct Objects {
    pub(super) catalog: String,
    pub(super) images: Images,
    pub(super) classes: Known<Classes>,
    pub(super) profiles: Known<BTreeMap<String, Profile>>,
    pub(super) cdi_config: Option<CdiConfig>,
    pub(super) claims: Vec<Claim>,
    pub(super) volumes: Vec<DataVolume>,
    pub(super) snapshots: Vec<VolumeSnapshot>,
    pub(super) machines: Vec<VirtualMachine>,
    pub(super) templates: Vec<KubevirtMachineTemplate>,
    pub(super) pods: Vec<PodFacts>,
    events: Vec<Event>,
    pub(super) ledger: Ledger,
    namespaces: Known<BTreeMap<String, BTreeMap<String, String>>>,
    images_known: Known<()>,
    unreadable: BTreeSet<Place>,
    offline: bool,
}

/// An object's kind, namespace and name.
type Place = (String, String, String);

/// Objects by kind as JSON; a kind that is there without objects is known to have none.
#[derive(Default)]
struct Raw(BTreeMap<String, Vec<Value>>, BTreeSet<Place>);

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

    /// Adds the objects of a kind; gives whether the cluster has the kind in this version.
    async fn list<K>(&mut self, client: &Client, namespace: Option<&str>) -> Result<bool, Failure>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug,
    {
        let path = K::url_path(&(), namespace);
        let mut params = ListParams::default().limit(500);
        let found = self.0.entry(Self::key::<K>()).or_default();
        loop {
            let request = kube::core::Request::new(&path).list(&params).map_err(|error| Failure::new(error.to_string()))?;
            let page: Value = match client.request(request).await {
                Ok(page) => page,
                // Not installed: there are none.
                Err(kube::Error::Api(status)) if status.code == 404 => return Ok(false),
                Err(error) => return Err(Failure::new(format!("cannot list {}: {}", K::plural(&()), api_error(&error)))),
            };
            found.extend(page["items"].as_array().cloned().unwrap_or_default());
            match page["metadata"]["continue"].as_str().filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(token),
                None => return Ok(true),
            }
        }
    }
}

impl Objects {
    /// Lists what verdicts read, as whoever asks, about something in `namespace`.
    pub(super) async fn from_cluster(client: &Client, catalog: &str, namespace: &str) -> Result<Self, Failure> {
        let mut raw = Raw::default();
        // What the daemon told of it; who may not read that learns the rest.
        drop(raw.list::<Event>(client, Some(namespace)).await);
        raw.list::<GoldenImage>(client, None).await?;
        raw.list::<StorageClass>(client, None).await?;
        raw.list::<StorageProfile>(client, None).await?;
        raw.list::<CdiConfig>(client, None).await?;
        raw.list::<Namespace>(client, None).await?;
        raw.list::<Pod>(client, Some(catalog)).await?;
        raw.list::<Claim>(client, None).await?;
        raw.list::<DataVolume>(client, None).await?;
        raw.list::<DataSource>(client, None).await?;
        raw.list::<VolumeCloneSource>(client, None).await?;
        raw.list::<VolumeSnapshot>(client, None).await?;
        raw.list::<VirtualMachine>(client, None).await?;
        raw.list::<KubevirtMachineTemplate>(client, None).await?;
        // Read alike, and kept under one name: newer servers of Cluster API serve the second version alone.
        if !raw.list::<MachineDeployment>(client, None).await? {
            raw.list::<MachineDeploymentV1Beta2>(client, None).await?;
        }
        if !raw.list::<MachineSet>(client, None).await? {
            raw.list::<MachineSetV1Beta2>(client, None).await?;
        }
        raw.list::<WorkerClass>(client, None).await?;
        Ok(Self::of(raw, false, true, catalog))
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
        Ok(Self::of(raw, true, complete, catalog))
    }

    fn of(mut raw: Raw, offline: bool, complete: bool, catalog: &str) -> Self {
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
        events.retain(|event| event.reason.as_deref() == Some(Reason::CloneStuck.as_str()));
        Self {
            catalog: catalog.to_owned(),
            images,
            classes: classes.map(|found| found.iter().map(facts::class_facts).map(|class| (class.name.clone(), class)).collect()),
            profiles: profiles.map(|found| {
                found.iter().map(|profile| (profile.metadata.name.clone().unwrap_or_default(), facts::profile(profile))).collect()
            }),
            cdi_config: raw.take::<CdiConfig>().and_then(|found| found.into_iter().next()),
            claims,
            volumes,
            snapshots,
            machines,
            templates,
            pods: pods.iter().map(facts::pod_facts).collect(),
            events,
            ledger,
            namespaces: namespaces.map(|found| {
                found
                    .into_iter()
                    .map(|namespace| (namespace.metadata.name.unwrap_or_default(), namespace.metadata.labels.unwrap_or_default()))
                    .collect()
            }),
            images_known,
            unreadable: raw.1,
            offline,
        }
    }

    /// Whether "there is none of this name" may be said: something of it may be there that cannot be read.
    pub(super) fn readable<K: Resource<DynamicType = ()>>(&self, namespace: &str, name: &str) -> Known<()> {
        let kind = K::kind(&()).into_owned();
        let place = (kind, namespace.to_owned(), name.to_owned());
        if self.unreadable.contains(&place) { Err(Unknown(format!("{} {namespace}/{name} cannot be read", place.0))) } else { Ok(()) }
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

    /// The labels of a namespace.
    pub(super) fn namespace_labels(&self, name: &str) -> Known<BTreeMap<String, String>> {
        let namespaces = self.namespaces.as_ref().map_err(Clone::clone)?;
        let place = if self.offline { "in the files" } else { "there" };
        namespaces.get(name).cloned().ok_or_else(|| Unknown(format!("Namespace {name} is not {place}")))
    }

    /// What to do where something was not found.
    pub(super) const fn hint(&self) -> &'static str {
        if self.offline { " in the files; export it with `kubectl get … -o yaml`, or leave `-f` out to ask the cluster" } else { "" }
    }
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
