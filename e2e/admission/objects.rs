//! Objects as Cozystack's charts, KubeVirt, CDI's users and Cluster API write them, each with one disk.

use serde_json::{Value, json};

/// How a clone is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `spec.source.pvc` and `spec.storage`: the worker pools' and VM disks' way.
    Volume,
    /// `spec.source.pvc` and `spec.pvc`.
    VolumeOfClaim,
    /// `spec.sourceRef` to a DataSource in the catalog.
    Pointer,
    /// A bare claim with `dataSourceRef` across namespaces.
    Claim,
    /// A VirtualMachine with `dataVolumeTemplates`.
    Machine,
    /// Cluster API's KubevirtMachineTemplate.
    Template,
}

impl Form {
    pub const ALL: [Self; 6] = [Self::Volume, Self::VolumeOfClaim, Self::Pointer, Self::Claim, Self::Machine, Self::Template];

    /// Whether it is a disk, which is completed.
    pub fn is_disk(self) -> bool {
        !matches!(self, Self::Machine | Self::Template)
    }

    /// Where the object states its class.
    pub fn class_path(self) -> &'static str {
        match self {
            Self::Volume | Self::Pointer => "/spec/storage/storageClassName",
            Self::VolumeOfClaim => "/spec/pvc/storageClassName",
            Self::Claim => "/spec/storageClassName",
            Self::Machine => "/spec/dataVolumeTemplates/0/spec/storage/storageClassName",
            Self::Template => "/spec/template/spec/virtualMachineTemplate/spec/dataVolumeTemplates/0/spec/storage/storageClassName",
        }
    }
}

/// A disk that is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Disk {
    /// What is cloned; for [`Form::Pointer`] there must be a DataSource of this name in the catalog.
    pub golden: &'static str,
    /// The class, `None` to state none.
    pub class: Option<&'static str>,
    /// The size.
    pub size: &'static str,
    /// The mode, `None` to state none.
    pub mode: Option<&'static str>,
    /// An annotation on the disk.
    pub annotation: Option<(&'static str, &'static str)>,
}

/// A disk that is right.
pub const RIGHT: Disk = Disk { golden: "golden", class: Some("replicated"), size: "20Gi", mode: None, annotation: None };

/// The object of one form that asks for a disk.
pub fn object(form: Form, name: &str, disk: Disk) -> Value {
    let mut storage = json!({ "resources": { "requests": { "storage": disk.size } } });
    if let Some(class) = disk.class {
        storage["storageClassName"] = class.into();
    }
    if let Some(mode) = disk.mode {
        storage["volumeMode"] = mode.into();
    }
    let annotations: Value = disk.annotation.map_or(json!({}), |(key, value)| json!({ key: value }));
    let source = json!({ "pvc": { "namespace": "cozy-public", "name": disk.golden } });
    let volume = |spec: Value| json!({ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "metadata": { "name": name, "annotations": annotations }, "spec": spec });
    let with_modes = |mut storage: Value| {
        storage["accessModes"] = json!(["ReadWriteMany"]);
        // Kubernetes reads an absent mode as Filesystem, and CDI adds nothing to a claim that is spelled out.
        if storage.get("volumeMode").is_none() {
            storage["volumeMode"] = "Block".into();
        }
        storage
    };
    let template = json!({ "metadata": { "name": format!("{name}-disk"), "annotations": annotations }, "spec": { "source": source, "storage": storage } });
    let machine = json!({ "runStrategy": "Halted", "dataVolumeTemplates": [template],
        "template": { "metadata": {}, "spec": { "domain": { "devices": {} }, "volumes": [{ "name": "disk", "dataVolume": { "name": format!("{name}-disk") } }] } } });
    match form {
        Form::Volume => volume(json!({ "source": source, "storage": storage })),
        Form::VolumeOfClaim => volume(json!({ "source": source, "pvc": with_modes(storage) })),
        Form::Pointer => {
            volume(json!({ "sourceRef": { "kind": "DataSource", "namespace": "cozy-public", "name": disk.golden }, "storage": storage }))
        }
        Form::Claim => {
            let mut spec = with_modes(storage);
            spec["dataSourceRef"] = json!({ "kind": "PersistentVolumeClaim", "namespace": "cozy-public", "name": disk.golden });
            json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name, "annotations": annotations }, "spec": spec })
        }
        Form::Machine => json!({ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": { "name": name }, "spec": machine }),
        Form::Template => worker_template(name, "kubernetes-demo-md0", &machine),
    }
}

/// The template of a worker pool, as the platform's chart writes it.
fn worker_template(name: &str, deployment: &str, machine: &Value) -> Value {
    let mut machine = machine.clone();
    machine["template"]["metadata"]["labels"] = json!({ "cluster.x-k8s.io/deployment-name": deployment });
    json!({ "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": "KubevirtMachineTemplate", "metadata": { "name": name },
        "spec": { "template": { "spec": { "virtualMachineTemplate": { "metadata": {}, "spec": machine } } } } })
}

/// A DataSource in the catalog that points to a golden.
pub fn data_source(name: &str) -> Value {
    json!({ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataSource", "metadata": { "name": name },
        "spec": { "source": { "pvc": { "namespace": "cozy-public", "name": name } } } })
}

/// A VM or machine template whose disk names a DataSource of its own namespace instead.
pub fn by_pointer(mut object: Value, data_source: &str) -> Value {
    let machine = match object["kind"].as_str() {
        Some("VirtualMachine") => &mut object["spec"],
        _ => &mut object["spec"]["template"]["spec"]["virtualMachineTemplate"]["spec"],
    };
    let disk = &mut machine["dataVolumeTemplates"][0]["spec"];
    disk.as_object_mut().expect("a disk").remove("source");
    disk["sourceRef"] = json!({ "kind": "DataSource", "name": data_source });
    object
}
