//! The clones an object asks for, as plain requests for `rules::clone` (R13–R18): every clone form, chains of DataSources followed.
//!
//! Nothing inside the catalog namespace asks for anything: what CDI and this daemon make there is never judged.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::{
    evidence::{
        claim_target, data_source_target, former_request, instance_labels, is_prepopulated, machine_namespace, outside_target,
        owning_machine, owning_volume, template_machine, template_pool, texts, unreadable_references, volume_target,
    },
    ledger::{Chain, Ledger, Target},
};
use crate::{
    foreign::{
        Claim, ClaimSpec, DataSource, DataVolume, DataVolumeSpec, KubevirtMachineTemplate, Lenient, VirtualMachine, VirtualMachineSpec,
    },
    model::DiskSize,
    rules::{
        class::{Shape, StatedClass},
        clone::{CloneRequest, Known, Source, StatedSize, Subject, SubjectKind, Unknown},
        marks,
        pool::{Pool, PoolClue, disk_pool, machine_pool, plausible_pool},
        size::VolumeMode,
    },
};

/// What a request hangs on besides the object itself. The ledger knows it; who has read something newer answers with that.
pub trait Surroundings {
    /// The namespace the goldens are in.
    fn catalog_namespace(&self) -> &str;

    /// Where a DataSource leads.
    ///
    /// # Errors
    /// While it is not known.
    fn data_source(&self, namespace: &str, name: &str) -> Known<Chain>;

    /// The pool a clue leads to.
    ///
    /// # Errors
    /// While it is not known.
    fn pool(&self, namespace: &str, clue: &PoolClue) -> Known<Pool>;

    /// The pool of a machine template that does not tell its own.
    ///
    /// # Errors
    /// While it is not known.
    fn template_pool(&self, namespace: &str, name: &str) -> Known<Pool>;

    /// Whether a DataVolume of this UID asks for a clone of the golden in this class, and so was judged itself.
    ///
    /// # Errors
    /// While it is not known.
    fn is_asked_by(&self, namespace: &str, volume: &OwnerReference, golden: &str, class: &StatedClass) -> Known<bool>;
}

impl Surroundings for Ledger {
    fn catalog_namespace(&self) -> &str {
        Self::catalog_namespace(self)
    }

    fn data_source(&self, namespace: &str, name: &str) -> Known<Chain> {
        Self::data_source(self, namespace, name)
    }

    fn pool(&self, namespace: &str, clue: &PoolClue) -> Known<Pool> {
        Self::pool(self, namespace, clue)
    }

    fn template_pool(&self, namespace: &str, name: &str) -> Known<Pool> {
        Self::template_pool(self, namespace, name)
    }

    /// The ledger keeps no DataVolume's class.
    fn is_asked_by(&self, namespace: &str, volume: &OwnerReference, golden: &str, _: &StatedClass) -> Known<bool> {
        Self::is_asked_by(self, namespace, &volume.name, &volume.uid, golden)
    }
}

/// An object that may ask for clones of goldens.
pub trait Clones {
    /// The clones it asks for; none where it names nothing in the catalog.
    ///
    /// # Errors
    /// While what a request hangs on (a DataSource, a disk's VM) is not known, or when the object cannot be read but names a golden.
    fn clone_requests(&self, around: &dyn Surroundings) -> Known<Vec<CloneRequest>>;

    /// Whether its spec is of the form that is known here.
    fn is_readable(&self) -> bool {
        true
    }

    /// The clones it asks for with CDI's token taken off, if it does not need that. An update finds the former object so: a token, which
    /// anybody may write on it, is no sign that it was judged.
    ///
    /// # Errors
    /// As [`Self::clone_requests`].
    fn requests_without_token(&self, around: &dyn Surroundings) -> Known<Vec<CloneRequest>> {
        self.clone_requests(around)
    }

    /// The annotation with CDI's token, where that is on it and not needed.
    fn unneeded_token(&self) -> Option<&'static str> {
        None
    }
}

/// What an UPDATE is judged by: the requests that the object did not make before.
pub fn new_requests(old: &[CloneRequest], new: Vec<CloneRequest>) -> Vec<CloneRequest> {
    new.into_iter().filter(|request| !old.contains(request)).collect()
}

/// Who asks, and the source if it is in the catalog.
struct Reader<'a> {
    around: &'a dyn Surroundings,
    meta: &'a ObjectMeta,
    kind: SubjectKind,
}

/// What of a disk is written where it is stated.
struct DiskSpec<'a> {
    name: Option<&'a str>,
    shape: Shape,
    claim: Option<&'a ClaimSpec>,
    content_type: Option<&'a str>,
    annotations: &'a BTreeMap<String, String>,
    pool: Pool,
}

impl<'a> Reader<'a> {
    fn new<K: kube::Resource<DynamicType = ()>>(around: &'a dyn Surroundings, object: &'a K, kind: SubjectKind) -> Self {
        Self { around, meta: object.meta(), kind }
    }

    fn own(&self) -> &'a str {
        self.meta.namespace.as_deref().unwrap_or_default()
    }

    fn catalog(&self) -> &'a str {
        self.around.catalog_namespace()
    }

    fn is_judged(&self) -> bool {
        self.own() != self.catalog()
    }

    /// Refuses to say "asks for nothing" of a spec that cannot be read but names something in the catalog.
    fn unreadable<T>(&self, spec: &Lenient<T>) -> Known<Vec<CloneRequest>> {
        let names_catalog = spec.odd().is_some_and(|spec| !unreadable_references(spec, self.own(), self.catalog()).is_empty());
        if names_catalog {
            Err(Unknown(format!("{} cannot be read, but names something in the catalog", self.subject(None))))
        } else {
            Ok(Vec::new())
        }
    }

    fn subject(&self, disk: Option<&str>) -> Subject {
        let name = self.meta.name.clone().or_else(|| Some(format!("{}*", self.meta.generate_name.as_ref()?)));
        Subject { kind: self.kind, namespace: self.own().to_owned(), name: name.unwrap_or_default(), disk: disk.map(str::to_owned) }
    }

    /// The source a target leads to in the catalog, and the DataSource on the way.
    fn source(&self, target: Target) -> Known<Option<(Source, Option<String>)>> {
        Ok(match target {
            Target::Claim(name) => Some((Source::Claim(name), None)),
            Target::Snapshot(name) => Some((Source::Snapshot(name), None)),
            Target::DataSource { namespace, name } => match self.around.data_source(&namespace, &name)? {
                Chain::Catalog(source) => Some((source, Some(format!("{namespace}/{name}")))),
                Chain::Elsewhere => None,
            },
            Target::CloneSource(_) | Target::Identity(_) | Target::Template { .. } => None,
            Target::Anything => return Err(Unknown(format!("what {} clones cannot be read", self.subject(None)))),
        })
    }

    fn request(&self, target: Option<Target>, disk: impl FnOnce() -> Known<DiskSpec<'a>>) -> Known<Option<CloneRequest>> {
        let Some(target) = target else { return Ok(None) };
        let Some((source, through)) = self.source(target)? else { return Ok(None) };
        let disk = disk()?;
        let claim = disk.claim;
        let relevant = [marks::GOLDEN, marks::CDI_USE_POPULATOR, marks::CDI_CLONE_TYPE];
        let annotations = relevant.iter().filter_map(|key| Some(((*key).to_owned(), disk.annotations.get(*key)?.clone()))).collect();
        Ok(Some(CloneRequest {
            subject: self.subject(disk.name),
            source,
            through,
            shape: disk.shape,
            class: stated_class(disk.annotations, claim),
            size: stated_size(claim),
            volume_mode: claim.and_then(|claim| claim.volume_mode.as_deref()).and_then(VolumeMode::parse),
            // Absent and empty mean a disk.
            content_type: disk.content_type.filter(|content| !matches!(*content, "" | "kubevirt")).map(str::to_owned),
            access_modes: claim.and_then(|claim| claim.access_modes.clone()).unwrap_or_default(),
            annotations,
            pool: disk.pool,
        }))
    }

    /// The disks of a VM or machine template; `at` is the namespace the VMs are made in.
    fn machine_disks(&self, spec: &'a Lenient<VirtualMachineSpec>, at: &str, pool: &Pool) -> Known<Vec<CloneRequest>> {
        let Some(vm) = spec.read() else { return self.unreadable(spec) };
        let mut requests = Vec::new();
        for template in &vm.data_volume_templates {
            let Some(disk) = template.read() else {
                self.unreadable(template)?;
                continue;
            };
            let target = volume_target(&disk.spec, at, self.catalog());
            let marked = disk.metadata.annotations.get(marks::POOL).and_then(|text| plausible_pool(text, self.own()));
            let (shape, claim) = shape(&disk.spec);
            requests.extend(self.request(target, || {
                Ok(DiskSpec {
                    name: disk.metadata.name.as_deref(),
                    shape,
                    claim,
                    content_type: disk.spec.content_type.as_deref(),
                    annotations: &disk.metadata.annotations,
                    pool: marked.unwrap_or_else(|| pool.clone()),
                })
            })?);
        }
        Ok(requests)
    }
}

fn shape(spec: &DataVolumeSpec) -> (Shape, Option<&ClaimSpec>) {
    match &spec.pvc {
        Some(claim) => (Shape::Claim, Some(claim)),
        None => (Shape::Storage, spec.storage.as_ref()),
    }
}

/// The class that a disk states; Kubernetes reads the former annotation first.
fn stated_class(annotations: &BTreeMap<String, String>, claim: Option<&ClaimSpec>) -> StatedClass {
    let former = annotations.get(marks::FORMER_CLASS).map(String::as_str);
    StatedClass::of(former.or_else(|| claim?.storage_class_name.as_deref()))
}

fn stated_size(claim: Option<&ClaimSpec>) -> StatedSize {
    let Some(quantity) = claim.and_then(ClaimSpec::storage_request) else { return StatedSize::Absent };
    let size = quantity.bytes().and_then(DiskSize::from_bytes);
    size.map_or_else(|| StatedSize::Unreadable(quantity.as_str().chars().take(64).collect()), StatedSize::Bytes)
}

/// What a DataVolume asks for; one whose disk is there asks for no clone of its source, only for what CDI does not look at the annotation for.
fn volume_requests(volume: &DataVolume, is_there: bool, around: &dyn Surroundings) -> Known<Vec<CloneRequest>> {
    let reader = Reader::new(around, volume, SubjectKind::DataVolume);
    if !reader.is_judged() {
        return Ok(Vec::new());
    }
    let Some(spec) = volume.spec.read() else { return reader.unreadable(&volume.spec) };
    let annotations = annotations_of(&volume.metadata);
    let target = if is_there { outside_target } else { volume_target };
    let request = reader.request(target(spec, reader.own(), reader.catalog()), || {
        let clue = disk_pool(reader.own(), &texts(volume.metadata.labels.as_ref()), annotations, owning_machine(&volume.metadata));
        let (shape, claim) = shape(spec);
        let content_type = spec.content_type.as_deref();
        Ok(DiskSpec { name: None, shape, claim, content_type, annotations, pool: around.pool(reader.own(), &clue)? })
    })?;
    Ok(request.into_iter().collect())
}

fn annotations_of(meta: &ObjectMeta) -> &BTreeMap<String, String> {
    static NONE: BTreeMap<String, String> = BTreeMap::new();
    meta.annotations.as_ref().unwrap_or(&NONE)
}

impl Clones for DataVolume {
    fn is_readable(&self) -> bool {
        self.spec.odd().is_none()
    }

    fn clone_requests(&self, around: &dyn Surroundings) -> Known<Vec<CloneRequest>> {
        let annotations = annotations_of(&self.metadata);
        volume_requests(self, is_prepopulated(annotations) && !annotations.contains_key(marks::CDI_CLONE_TOKEN), around)
    }

    fn requests_without_token(&self, around: &dyn Surroundings) -> Known<Vec<CloneRequest>> {
        volume_requests(self, is_prepopulated(annotations_of(&self.metadata)), around)
    }

    fn unneeded_token(&self) -> Option<&'static str> {
        let annotations = annotations_of(&self.metadata);
        (is_prepopulated(annotations) && annotations.contains_key(marks::CDI_CLONE_TOKEN)).then_some(marks::CDI_CLONE_TOKEN)
    }
}

impl Clones for Claim {
    fn is_readable(&self) -> bool {
        self.spec.odd().is_none()
    }

    fn clone_requests(&self, around: &dyn Surroundings) -> Known<Vec<CloneRequest>> {
        let reader = Reader::new(around, self, SubjectKind::Claim);
        if !reader.is_judged() {
            return Ok(Vec::new());
        }
        let Some(spec) = self.spec.read() else { return reader.unreadable(&self.spec) };
        let annotations = annotations_of(&self.metadata);
        let target = claim_target(spec, reader.own(), reader.catalog(), None);
        let class = stated_class(annotations, Some(spec));
        let asked = former_clone(&self.metadata, annotations, &class, around)?;
        let requests = [target, asked.map(|name| Target::Claim(name.to_owned()))].into_iter().flatten().map(|target| {
            reader.request(Some(target), || {
                let clue = disk_pool(reader.own(), &texts(self.metadata.labels.as_ref()), annotations, None);
                let pool = around.pool(reader.own(), &clue)?;
                Ok(DiskSpec { name: None, shape: Shape::Claim, claim: Some(spec), content_type: None, annotations, pool })
            })
        });
        requests.filter_map(Result::transpose).collect()
    }
}

/// The DataVolume that controls a claim.
pub fn controlling_volume(meta: &ObjectMeta) -> Option<&OwnerReference> {
    owning_volume(meta).filter(|owner| owner.api_version.starts_with("cdi.kubevirt.io/"))
}

/// The golden that CDI is asked to copy onto a claim in its former way: an annotation, which CDI heeds on any claim, whoever wrote it, until
/// it says there that it is done. Where CDI wrote it for a DataVolume, that was judged already.
fn former_clone<'a>(
    meta: &ObjectMeta,
    annotations: &'a BTreeMap<String, String>,
    class: &StatedClass,
    around: &dyn Surroundings,
) -> Known<Option<&'a str>> {
    let asked = former_request(annotations, around.catalog_namespace()).filter(|_| !annotations.contains_key(marks::CDI_CLONE_OF));
    // CDI names the claim of a DataVolume after it.
    let volume = controlling_volume(meta).filter(|volume| meta.name.as_ref() == Some(&volume.name));
    let (Some(golden), Some(volume)) = (asked, volume) else { return Ok(asked) };
    let is_judged = around.is_asked_by(meta.namespace.as_deref().unwrap_or_default(), volume, golden, class)?;
    Ok((!is_judged).then_some(golden))
}

impl Clones for VirtualMachine {
    fn clone_requests(&self, around: &dyn Surroundings) -> Known<Vec<CloneRequest>> {
        let reader = Reader::new(around, self, SubjectKind::VirtualMachine);
        if !reader.is_judged() {
            return Ok(Vec::new());
        }
        let labels = texts(self.metadata.labels.as_ref());
        let pool = self.spec.read().and_then(|vm| machine_pool(reader.own(), instance_labels(vm), &labels));
        let alone = || self.metadata.name.as_deref().map_or(Pool::Unknown, |name| Pool::new(reader.own(), Pool::VIRTUAL_MACHINE, name));
        reader.machine_disks(&self.spec, reader.own(), &pool.unwrap_or_else(alone))
    }
}

impl Clones for KubevirtMachineTemplate {
    fn clone_requests(&self, around: &dyn Surroundings) -> Known<Vec<CloneRequest>> {
        let reader = Reader::new(around, self, SubjectKind::MachineTemplate);
        if !reader.is_judged() {
            return Ok(Vec::new());
        }
        let Some(machine) = template_machine(self) else { return reader.unreadable(&self.spec) };
        let pool = match template_pool(reader.own(), machine) {
            PoolClue::Here(pool) => pool,
            _ => around.template_pool(reader.own(), self.metadata.name.as_deref().unwrap_or_default())?,
        };
        reader.machine_disks(&machine.spec, machine_namespace(self, machine), &pool)
    }
}

impl Clones for DataSource {
    fn clone_requests(&self, around: &dyn Surroundings) -> Known<Vec<CloneRequest>> {
        let reader = Reader::new(around, self, SubjectKind::DataSource);
        if !reader.is_judged() {
            return Ok(Vec::new());
        }
        let Some(spec) = self.spec.read() else { return reader.unreadable(&self.spec) };
        static NONE: BTreeMap<String, String> = BTreeMap::new();
        let nothing =
            DiskSpec { name: None, shape: Shape::Storage, claim: None, content_type: None, annotations: &NONE, pool: Pool::Unknown };
        Ok(reader.request(data_source_target(spec, reader.own(), reader.catalog()), || Ok(nothing))?.into_iter().collect())
    }
}

#[cfg(test)]
mod tests;
