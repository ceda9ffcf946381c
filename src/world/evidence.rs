//! What each kind of object says about goldens and pools (R22): foreign objects in, the ledger's plain facts out.
//!
//! One reader a kind, without any look-up. Nothing here fails: a part that cannot be read is searched for the names of goldens instead, and counts for all of them where that does not tell ([`unreadable`]).

mod machines;
mod unreadable;

use std::{borrow::Cow, collections::BTreeMap};

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
    jiff::Timestamp,
};
use serde::de::DeserializeOwned;

use super::ledger::{DiskProgress, Facts, Kind, Reference, Target, parse_uid};
use crate::{
    foreign::{
        Claim, ClaimSpec, DataSource, DataVolume, DataVolumeSpec, NamespacedName, TypedReference, VirtualMachine, VolumeCloneSource,
        VolumeSnapshot, WorkerClass,
    },
    model::{Architecture, ContainerReference, Identity},
    rules::{
        consumers::Evidence,
        copied::copy_cause,
        golden::{self, ObjectMarks, is_temporary},
        marks,
        pool::{Pool, PoolClue, disk_pool, machine_pool},
        stuck::waits_for_somebody,
    },
};

/// Kubernetes' annotation on a claim: the scheduler chose a node for the first pod that uses it.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// CDI's annotation on a disk that is to be made without a first pod.
const IMMEDIATE_BIND: &str = "cdi.kubevirt.io/storage.bind.immediate.requested";

/// A kind the ledger watches.
pub trait Observe: kube::Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug + Send + 'static {
    /// Which one.
    const KIND: Kind;

    /// What the ledger keeps of the object; `None` where it names no golden and belongs to no pool.
    fn facts(&self, catalog_namespace: &str) -> Option<Facts>;
}

/// The facts that every object's metadata tells.
pub(super) fn base(meta: &ObjectMeta) -> Facts {
    Facts {
        uid: meta.uid.as_deref().and_then(parse_uid),
        created: meta.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second()),
        is_terminating: meta.deletion_timestamp.is_some(),
        ..Facts::default()
    }
}

/// A map of an object's metadata, empty where it has none.
pub fn texts(map: Option<&BTreeMap<String, String>>) -> Cow<'_, BTreeMap<String, String>> {
    map.map_or_else(|| Cow::Owned(BTreeMap::new()), Cow::Borrowed)
}

/// Kind and name of the owner that controls an object.
pub(super) fn controller(meta: &ObjectMeta) -> Option<(&str, &str)> {
    let owners = meta.owner_references.as_deref().unwrap_or_default();
    owners.iter().find(|owner| owner.controller == Some(true)).map(|owner| (owner.kind.as_str(), owner.name.as_str()))
}

/// The DataVolume that controls a claim. Of the kind alone: who guards a golden asks no further.
pub fn owning_volume(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true) && owner.kind == "DataVolume")
}

/// The VirtualMachine that owns a DataVolume made from its templates.
pub fn owning_machine(meta: &ObjectMeta) -> Option<&str> {
    let owners = meta.owner_references.as_deref().unwrap_or_default();
    owners
        .iter()
        .find(|owner| owner.kind == "VirtualMachine" && owner.api_version.starts_with("kubevirt.io/"))
        .map(|owner| owner.name.as_str())
}

/// An object's identity and marks for the tests in `rules::golden`.
pub fn object_marks<'a>(
    meta: &'a ObjectMeta,
    labels: &'a BTreeMap<String, String>,
    annotations: &'a BTreeMap<String, String>,
) -> ObjectMarks<'a> {
    ObjectMarks {
        namespace: meta.namespace.as_deref().unwrap_or_default(),
        name: meta.name.as_deref().unwrap_or_default(),
        labels,
        annotations,
        controller: controller(meta),
    }
}

/// [`rules::golden::is_guarded`](crate::rules::golden::is_guarded) of an object as it is read.
pub fn is_guarded(meta: &ObjectMeta, catalog_namespace: &str) -> bool {
    let (labels, annotations) = (texts(meta.labels.as_ref()), texts(meta.annotations.as_ref()));
    golden::is_guarded(object_marks(meta, &labels, &annotations), catalog_namespace)
}

/// Whether an object names an owner of this UID: it goes with that one, unless it has others.
pub fn goes_with(meta: &ObjectMeta, owner: Option<&str>) -> bool {
    owner.is_some_and(|uid| meta.owner_references.iter().flatten().any(|reference| reference.uid == uid))
}

/// The pool of a VirtualMachine's disks: by its labels, else it is the pool itself.
pub fn machine_clue(machine: &VirtualMachine) -> Pool {
    let own = machine.metadata.namespace.as_deref().unwrap_or_default();
    let labels = texts(machine.metadata.labels.as_ref());
    let told = machine.spec.read().and_then(|spec| machine_pool(own, instance_labels(spec), &labels));
    told.unwrap_or_else(|| Pool::new(own, Pool::VIRTUAL_MACHINE, machine.metadata.name.as_deref().unwrap_or_default()))
}

fn reference(target: Target) -> Reference {
    let evidence = if matches!(target, Target::DataSource { .. }) { Evidence::DataSource } else { Evidence::Spec };
    Reference { target, evidence }
}

/// The name, where it lies in the catalog namespace; an absent namespace is the object's own.
fn in_catalog<'a>(named: Option<&'a NamespacedName>, own: &str, catalog: &str) -> Option<&'a str> {
    let named = named?;
    (named.namespace.as_deref().unwrap_or(own) == catalog).then_some(named.name.as_deref()).flatten()
}

/// What a claim's `dataSource` or `dataSourceRef` names; `source_namespace` is CDI's annotation for VolumeCloneSources.
fn claim_source(source: &TypedReference, own: &str, catalog: &str, source_namespace: Option<&str>) -> Option<Target> {
    let name = source.name.clone()?;
    let namespace = source.namespace.as_deref().unwrap_or(own);
    match source.kind.as_deref()? {
        "PersistentVolumeClaim" if namespace == catalog => Some(Target::Claim(name)),
        "VolumeSnapshot" if namespace == catalog => Some(Target::Snapshot(name)),
        "VolumeCloneSource" if source_namespace.unwrap_or(own) == catalog => Some(Target::CloneSource(name)),
        _ => None,
    }
}

/// What a claim's spec names, by either field.
pub(super) fn claim_target(spec: &ClaimSpec, own: &str, catalog: &str, source_namespace: Option<&str>) -> Option<Target> {
    let target = |source: Option<&TypedReference>| source.and_then(|source| claim_source(source, own, catalog, source_namespace));
    target(spec.data_source_ref.as_ref()).or_else(|| target(spec.data_source.as_ref()))
}

/// The claim in the catalog that CDI's former way of asking for a clone names: `namespace/name` of the source in an annotation.
pub(super) fn former_request<'a>(annotations: &'a BTreeMap<String, String>, catalog: &str) -> Option<&'a str> {
    let (namespace, name) = annotations.get(marks::CDI_CLONE_REQUEST)?.split_once('/')?;
    (namespace == catalog).then_some(name)
}

/// What a DataVolume's spec names (R13): a claim, a snapshot, a DataSource, or an external population of either form.
pub(super) fn volume_target(spec: &DataVolumeSpec, own: &str, catalog: &str) -> Option<Target> {
    let source = spec.source.as_ref();
    let claim = in_catalog(source.and_then(|source| source.pvc.as_ref()), own, catalog).map(|name| Target::Claim(name.to_owned()));
    let snapshot =
        || in_catalog(source.and_then(|source| source.snapshot.as_ref()), own, catalog).map(|name| Target::Snapshot(name.to_owned()));
    let pointer = || {
        let pointer = spec.source_ref.as_ref()?;
        let namespace = pointer.namespace.as_deref().filter(|namespace| !namespace.is_empty()).unwrap_or(own);
        Some(Target::DataSource { namespace: namespace.to_owned(), name: pointer.name.clone()? })
    };
    claim.or_else(snapshot).or_else(pointer).or_else(|| outside_target(spec, own, catalog))
}

/// What the claim of a DataVolume is to be filled from by somebody else than the DataVolume's own controllers.
pub(super) fn outside_target(spec: &DataVolumeSpec, own: &str, catalog: &str) -> Option<Target> {
    [&spec.pvc, &spec.storage].into_iter().flatten().find_map(|spec| claim_target(spec, own, catalog, None))
}

/// Whether CDI is told that a DataVolume's disk is there: it then begins no clone of its source, and looks at the presence of the annotation
/// alone. What fills its claim from outside does not look at it.
pub(super) fn is_prepopulated(annotations: &BTreeMap<String, String>) -> bool {
    annotations.contains_key(marks::CDI_PREPOPULATED)
}

/// Adds the golden a mark names, unless the spec names a claim already: evidence is the spec, and a mark adds what the spec leaves open.
fn add_mark(facts: &mut Facts, annotations: &BTreeMap<String, String>) {
    facts.golden_mark = annotations.get(marks::GOLDEN).filter(|name| !name.is_empty()).cloned();
    facts.pool_mark = annotations.get(marks::POOL).cloned();
    let is_named = facts.references.iter().any(|reference| matches!(reference.target, Target::Claim(_)));
    if let Some(golden) = facts.golden_mark.clone().filter(|_| !is_named) {
        facts.references.push(Reference { target: Target::Claim(golden), evidence: Evidence::Mark });
    }
}

/// Whether a disk without a golden is kept: its pool is one of workers, whose class its disks freeze (R15), or may be, through a VM.
fn belongs_to_workers(pool: &PoolClue) -> bool {
    match pool {
        PoolClue::Here(pool) => pool.is_workers(),
        PoolClue::Machine(_) => true,
        PoolClue::Nothing => false,
    }
}

impl Observe for DataVolume {
    const KIND: Kind = Kind::DataVolume;

    fn facts(&self, catalog_namespace: &str) -> Option<Facts> {
        let own = self.metadata.namespace.as_deref().unwrap_or_default();
        let (labels, annotations) = (texts(self.metadata.labels.as_ref()), texts(self.metadata.annotations.as_ref()));
        let mut facts = base(&self.metadata);
        facts.references = match self.spec.read() {
            Some(spec) => volume_target(spec, own, catalog_namespace).map(reference).into_iter().collect(),
            None => self.spec.odd().map(|spec| unreadable::references(spec, own, catalog_namespace)).unwrap_or_default(),
        };
        add_mark(&mut facts, &annotations);
        facts.pool = disk_pool(own, &labels, &annotations, owning_machine(&self.metadata));
        if let Some(status) = self.status.read() {
            let unbound = status.condition("Bound").is_some_and(|condition| condition.status == "False");
            // A Succeeded DataVolume whose claim was deleted clones again, and says so by Bound=False before its phase changes.
            facts.progress.has_ended = match status.phase.as_deref() {
                Some("Succeeded") => !unbound,
                phase => phase == Some("Failed"),
            };
            facts.progress.waits = status.phase.as_deref().is_some_and(waits_for_somebody);
            let is_filled = facts.progress.has_ended && status.phase.as_deref() == Some("Succeeded");
            facts.progress.filled = status.condition("Ready").filter(|ready| is_filled && ready.status == "True").and_then(|ready| {
                let at: Timestamp = ready.last_transition_time.as_ref()?.parse().ok()?;
                Some(at.as_second())
            });
        }
        let is_cdis_own = || self.spec.read().is_some_and(|spec| outside_target(spec, own, catalog_namespace).is_none());
        if is_prepopulated(&annotations) && is_cdis_own() {
            facts.progress.is_prepopulated = true;
            // Whatever its end tells, it tells of no clone.
            facts.progress.filled = None;
        }
        facts.progress.copied = copy_cause(|key| annotations.get(key).map(String::as_str));
        (!facts.references.is_empty() || belongs_to_workers(&facts.pool)).then_some(facts)
    }
}

impl Observe for Claim {
    const KIND: Kind = Kind::Claim;

    fn facts(&self, catalog_namespace: &str) -> Option<Facts> {
        let own = self.metadata.namespace.as_deref().unwrap_or_default();
        let (labels, annotations) = (texts(self.metadata.labels.as_ref()), texts(self.metadata.annotations.as_ref()));
        if is_temporary(object_marks(&self.metadata, &labels, &annotations), catalog_namespace) {
            return None;
        }
        let source_namespace = annotations.get(marks::CDI_SOURCE_NAMESPACE).map(String::as_str);
        let mut facts = base(&self.metadata);
        facts.references = match self.spec.read() {
            Some(spec) => claim_target(spec, own, catalog_namespace, source_namespace).map(reference).into_iter().collect(),
            None => self.spec.odd().map(|spec| unreadable::references(spec, own, catalog_namespace)).unwrap_or_default(),
        };
        // CDI names the record of a clone without its namespace, which is in an annotation.
        if facts.references.is_empty() && self.spec.odd().is_some() && source_namespace == Some(catalog_namespace) {
            facts.references.push(anything());
        }
        if let Some(name) = former_request(&annotations, catalog_namespace) {
            facts.references.push(Reference { target: Target::Claim(name.to_owned()), evidence: Evidence::CloneRecord });
        }
        add_mark(&mut facts, &annotations);
        facts.pool = disk_pool(own, &labels, &annotations, None);
        let phase = self.status.read().and_then(|status| status.phase.as_deref());
        facts.progress = DiskProgress {
            has_ended: false,
            filled: None,
            is_bound: phase == Some("Bound"),
            is_lost: phase == Some("Lost"),
            is_prepopulated: false,
            waits: phase == Some("Pending") && ![SELECTED_NODE, IMMEDIATE_BIND].iter().any(|key| annotations.contains_key(*key)),
            copied: copy_cause(|key| annotations.get(key).map(String::as_str)),
        };
        let former_class = annotations.get(marks::FORMER_CLASS).cloned();
        facts.class = former_class.or_else(|| self.spec.read()?.storage_class_name.clone()).filter(|class| !class.is_empty());
        facts.driver = [marks::PROVISIONER, marks::BETA_PROVISIONER].iter().find_map(|key| annotations.get(*key)).cloned();
        facts.is_block = self.spec.read().and_then(|spec| spec.volume_mode.as_deref()) == Some("Block");
        let is_cloned_from_catalog = source_namespace == Some(catalog_namespace);
        let is_of_a_machine = labels.contains_key(marks::KUBEVIRT_CREATED_BY);
        // A golden's own: what its clones' class and mode are held against.
        let is_golden =
            golden::is_guarded(object_marks(&self.metadata, &labels, &annotations), catalog_namespace) && own == catalog_namespace;
        let is_kept =
            !facts.references.is_empty() || is_cloned_from_catalog || is_of_a_machine || belongs_to_workers(&facts.pool) || is_golden;
        is_kept.then_some(facts)
    }
}

impl Observe for VolumeSnapshot {
    const KIND: Kind = Kind::Snapshot;

    fn facts(&self, catalog_namespace: &str) -> Option<Facts> {
        let (labels, annotations) = (texts(self.metadata.labels.as_ref()), texts(self.metadata.annotations.as_ref()));
        let marks = object_marks(&self.metadata, &labels, &annotations);
        if marks.namespace != catalog_namespace || is_temporary(marks, catalog_namespace) {
            return None;
        }
        let references = match self.spec.read() {
            Some(spec) => vec![reference(Target::Claim(spec.source.as_ref()?.persistent_volume_claim_name.clone()?))],
            None => unreadable::snapshotted(self.spec.odd()?),
        };
        Some(Facts { references, ..base(&self.metadata) })
    }
}

impl Observe for VolumeCloneSource {
    const KIND: Kind = Kind::CloneSource;

    fn facts(&self, catalog_namespace: &str) -> Option<Facts> {
        let own = self.metadata.namespace.as_deref().filter(|own| *own == catalog_namespace)?;
        let references = match self.spec.read() {
            Some(spec) => claim_source(spec.source.as_ref()?, own, catalog_namespace, None)
                .map(|target| Reference { target, evidence: Evidence::CloneRecord })
                .into_iter()
                .collect(),
            None => unreadable::recorded(self.spec.odd()?),
        };
        (!references.is_empty()).then(|| Facts { references, ..base(&self.metadata) })
    }
}

impl Observe for DataSource {
    const KIND: Kind = Kind::DataSource;

    fn facts(&self, catalog_namespace: &str) -> Option<Facts> {
        let own = self.metadata.namespace.as_deref().unwrap_or_default();
        let references: Vec<Reference> = match self.spec.read() {
            Some(spec) => data_source_target(spec, own, catalog_namespace).map(reference).into_iter().collect(),
            None => unreadable::references(self.spec.odd()?, own, catalog_namespace),
        };
        (!references.is_empty()).then(|| Facts { references, ..base(&self.metadata) })
    }
}

/// What a DataSource points to: something in the catalog, or another DataSource anywhere.
pub(super) fn data_source_target(spec: &crate::foreign::DataSourceSpec, own: &str, catalog: &str) -> Option<Target> {
    let source = spec.source.as_ref()?;
    let next = || {
        let next = source.data_source.as_ref()?;
        Some(Target::DataSource { namespace: next.namespace.clone().unwrap_or_else(|| own.to_owned()), name: next.name.clone()? })
    };
    let claim = in_catalog(source.pvc.as_ref(), own, catalog).map(|name| Target::Claim(name.to_owned()));
    let snapshot = || in_catalog(source.snapshot.as_ref(), own, catalog).map(|name| Target::Snapshot(name.to_owned()));
    claim.or_else(snapshot).or_else(next)
}

impl Observe for WorkerClass {
    const KIND: Kind = Kind::WorkerClass;

    fn facts(&self, _: &str) -> Option<Facts> {
        let references = match self.spec.odd() {
            Some(spec) => unreadable::identities(spec),
            None => vec![Reference { target: Target::Identity(class_identity(self)?.as_str().to_owned()), evidence: Evidence::Identity }],
        };
        (!references.is_empty()).then(|| Facts { references, ..base(&self.metadata) })
    }
}

/// The identity a WorkerClass finds its golden by: its reference's digest, amd64 unless it says otherwise.
pub fn class_identity(class: &WorkerClass) -> Option<Identity> {
    let image = class.spec.read()?.image.as_ref()?;
    let reference: ContainerReference = image.reference.as_deref()?.parse().ok()?;
    let architecture = match image.architecture.as_deref() {
        None | Some("") => Architecture::default(),
        Some(text) => text.parse().ok()?,
    };
    Some(Identity::of_container_disk(reference.digest(), architecture))
}

pub(super) use machines::{instance_labels, machine_namespace, template_machine, template_pool};
pub(super) use unreadable::{anything, references as unreadable_references};

#[cfg(test)]
mod tests;
