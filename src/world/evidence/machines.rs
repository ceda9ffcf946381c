//! VirtualMachines, machine templates, and what keeps machine templates alive.

use std::collections::BTreeMap;

use super::{Observe, base, controller, reference, texts, unreadable, volume_target};
use crate::{
    foreign::{
        DataVolumeTemplate, KubevirtMachineTemplate, Lenient, MachineDeployment, MachineDeploymentV1Beta2, MachineOwnerSpec, MachineSet,
        MachineSetV1Beta2, TemplateMeta, VirtualMachine, VirtualMachineSpec, VirtualMachineTemplate, Volume,
    },
    rules::{
        consumers::Evidence,
        marks,
        pool::{DEPLOYMENT_NAME, Pool, PoolClue, machine_pool, plausible_pool},
    },
    world::ledger::{Facts, Kind, Reference, Target},
};

/// Labels of a VM's instance, empty where they cannot be read.
pub(in crate::world) fn instance_labels(spec: &VirtualMachineSpec) -> &BTreeMap<String, String> {
    static NONE: BTreeMap<String, String> = BTreeMap::new();
    spec.template.as_ref().and_then(Lenient::read).map_or(&NONE, |template| &template.metadata.labels)
}

/// What the disks of a VM's templates name; `own` is the namespace the VM is in.
fn disk_references(spec: &Lenient<VirtualMachineSpec>, own: &str, catalog: &str) -> Vec<Reference> {
    let Some(vm) = spec.read() else {
        return spec.odd().map(|spec| unreadable::references(spec, own, catalog)).unwrap_or_default();
    };
    let mut found: Vec<Reference> = Vec::new();
    for template in &vm.data_volume_templates {
        match template {
            Lenient::Read(template) => found.extend(volume_target(&template.spec, own, catalog).map(reference)),
            Lenient::Odd { value, .. } => found.extend(unreadable::references(value, own, catalog)),
        }
    }
    if own == catalog {
        found.extend(booted_volumes(vm, own, catalog));
    }
    found.dedup();
    found
}

/// The volumes a VM in the catalog namespace runs on: it would boot the golden itself.
fn booted_volumes(vm: &VirtualMachineSpec, own: &str, catalog: &str) -> Vec<Reference> {
    let Some(instance) = vm.template.as_ref() else { return Vec::new() };
    let Some(instance) = instance.read() else {
        return instance.odd().map(|instance| unreadable::references(instance, own, catalog)).unwrap_or_default();
    };
    let named = |volume: &Volume| {
        let claim = volume.persistent_volume_claim.as_ref().and_then(|claim| claim.claim_name.clone());
        claim.or_else(|| volume.data_volume.as_ref()?.name.clone()).map(|name| reference(Target::Claim(name)))
    };
    let volumes = instance.spec.volumes.iter();
    volumes
        .flat_map(|volume| match volume {
            Lenient::Read(volume) => named(volume).into_iter().collect(),
            Lenient::Odd { value, .. } => unreadable::references(value, own, catalog),
        })
        .collect()
}

impl Observe for VirtualMachine {
    const KIND: Kind = Kind::VirtualMachine;

    fn facts(&self, catalog_namespace: &str) -> Option<Facts> {
        let own = self.metadata.namespace.as_deref().unwrap_or_default();
        let labels = texts(self.metadata.labels.as_ref());
        let none = BTreeMap::new();
        let instance = self.spec.read().map_or(&none, instance_labels);
        let pool = machine_pool(own, instance, &labels).map_or(PoolClue::Nothing, PoolClue::Here);
        let references = disk_references(&self.spec, own, catalog_namespace);
        (!references.is_empty() || pool != PoolClue::Nothing).then(|| Facts { references, pool, ..base(&self.metadata) })
    }
}

/// The VM a machine template makes.
pub(in crate::world) fn template_machine(template: &KubevirtMachineTemplate) -> Option<&VirtualMachineTemplate> {
    template.spec.read()?.template.as_ref()?.spec.as_ref()?.virtual_machine_template.as_ref()
}

/// The namespace a machine template's VMs are made in: stated in it, else its own.
pub(in crate::world) fn machine_namespace<'a>(template: &'a KubevirtMachineTemplate, machine: &'a VirtualMachineTemplate) -> &'a str {
    let stated = machine.metadata.namespace.as_deref().filter(|namespace| !namespace.is_empty());
    stated.or(template.metadata.namespace.as_deref()).unwrap_or_default()
}

/// The pool of a machine template: by a mark on one of its disks, else by the labels of its VM.
pub(in crate::world) fn template_pool(own: &str, machine: &VirtualMachineTemplate) -> PoolClue {
    let Some(vm) = machine.spec.read() else { return PoolClue::Nothing };
    let disks = vm.data_volume_templates.iter().filter_map(Lenient::read);
    let marked = disks.filter_map(|disk| plausible_pool(disk.metadata.annotations.get(marks::POOL)?, own)).next();
    marked.or_else(|| machine_pool(own, instance_labels(vm), &machine.metadata.labels)).map_or(PoolClue::Nothing, PoolClue::Here)
}

/// The class the disk states; the disk that clones before others.
fn disk_class(disks: &[&DataVolumeTemplate], own: &str, catalog: &str) -> Option<String> {
    let class = |disk: &&DataVolumeTemplate| {
        let claim = disk.spec.storage.as_ref().or(disk.spec.pvc.as_ref())?;
        claim.storage_class_name.clone().filter(|class| !class.is_empty())
    };
    let clones = disks.iter().find(|disk| volume_target(&disk.spec, own, catalog).is_some());
    clones.or_else(|| disks.first()).and_then(class)
}

impl Observe for KubevirtMachineTemplate {
    const KIND: Kind = Kind::MachineTemplate;

    fn facts(&self, catalog_namespace: &str) -> Option<Facts> {
        let own = self.metadata.namespace.as_deref().unwrap_or_default();
        let annotations = texts(self.metadata.annotations.as_ref());
        let mut facts = base(&self.metadata);
        match template_machine(self) {
            Some(machine) => {
                let at = machine_namespace(self, machine);
                facts.references = disk_references(&machine.spec, at, catalog_namespace);
                facts.pool = template_pool(own, machine);
                let disks: Vec<&DataVolumeTemplate> =
                    machine.spec.read().into_iter().flat_map(|vm| &vm.data_volume_templates).filter_map(Lenient::read).collect();
                let stated = disk_class(&disks, at, catalog_namespace);
                facts.class = stated.or_else(|| annotations.get(marks::STORAGE_CLASS).filter(|class| !class.is_empty()).cloned());
                facts.lacks_class = facts.class.is_none() && !facts.references.is_empty();
            }
            None => facts.references = self.spec.odd().map(|spec| unreadable::references(spec, own, catalog_namespace)).unwrap_or_default(),
        }
        (!facts.references.is_empty() || facts.pool != PoolClue::Nothing).then_some(facts)
    }
}

/// What a MachineDeployment or MachineSet names, and the pool it is: `deployment` is the MachineDeployment's name.
fn holder(
    meta: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
    spec: &Lenient<MachineOwnerSpec>,
    deployment: Option<&str>,
) -> Option<Facts> {
    let own = meta.namespace.as_deref().unwrap_or_default();
    let named = spec.read().and_then(|spec| spec.template.as_ref()?.spec.as_ref()?.infrastructure_ref.as_ref());
    let targets: Vec<Target> = match named {
        Some(named) if named.kind.as_deref() == Some("KubevirtMachineTemplate") => {
            let namespace = named.namespace.clone().filter(|namespace| !namespace.is_empty()).unwrap_or_else(|| own.to_owned());
            named.name.clone().map(|name| Target::Template { namespace, name }).into_iter().collect()
        }
        _ => spec.odd().map(|spec| unreadable::templates(spec, own)).unwrap_or_default(),
    };
    let evidence = |target: &Target| if *target == Target::Anything { Evidence::Unknown } else { Evidence::Spec };
    let references = targets.into_iter().map(|target| Reference { evidence: evidence(&target), target }).collect();
    let pool = deployment.map_or(PoolClue::Nothing, |name| PoolClue::Here(Pool::workers(own, name)));
    Some(Facts { references, pool, ..base(meta) })
}

fn set_deployment(meta: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta, template: Option<&TemplateMeta>) -> Option<String> {
    let own = meta.labels.as_ref().and_then(|labels| labels.get(DEPLOYMENT_NAME));
    let label = own.or_else(|| template.and_then(|template| template.labels.get(DEPLOYMENT_NAME))).filter(|name| !name.is_empty());
    label.cloned().or_else(|| controller(meta).filter(|(kind, _)| *kind == "MachineDeployment").map(|(_, name)| name.to_owned()))
}

/// Reads both served versions of Cluster API's kinds in the same way.
macro_rules! machine_owners {
    ($($deployment:ident, $set:ident;)*) => {$(
        impl Observe for $deployment {
            const KIND: Kind = Kind::MachineDeployment;

            fn facts(&self, _: &str) -> Option<Facts> {
                holder(&self.metadata, &self.spec, self.metadata.name.as_deref())
            }
        }

        impl Observe for $set {
            const KIND: Kind = Kind::MachineSet;

            fn facts(&self, _: &str) -> Option<Facts> {
                let template = self.spec.read().and_then(|spec| spec.template.as_ref()).map(|template| &template.metadata);
                holder(&self.metadata, &self.spec, set_deployment(&self.metadata, template).as_deref())
            }
        }
    )*};
}

machine_owners! {
    MachineDeployment, MachineSet;
    MachineDeploymentV1Beta2, MachineSetV1Beta2;
}
