//! The objects that an import needs, as they are written.

use serde_json::{Value, json};

use super::ImportOrder;
use crate::{
    model::{GoldenName, Image, SchematicId, Source, Usage},
    rules::marks,
};

/// The CA that importers trust, in the catalog namespace.
pub const SPOOL_CA: &str = "golden-catalog-spool-ca";

/// Who owns what, in server-side apply.
pub mod managers {
    /// GoldenImages made from the list in values.
    pub const ENTRIES: &str = "golden-catalog/entries";
    /// Goldens and what their import needs.
    pub const GOLDEN: &str = "golden-catalog/golden";
    /// Status.
    pub const STATUS: &str = "golden-catalog/status";
    /// Marks on goldens and consumers.
    pub const MARKS: &str = "golden-catalog/marks";
}

/// The marks of a golden's DataVolume and PVC.
pub fn marks_of(image: &Image, order: &ImportOrder) -> marks::Marks {
    let (talos_version, source_url) = match &image.source {
        Source::TalosFactory(talos) => (Some(talos.version.to_string()), talos.factory_url.public()),
        Source::Http { url, .. } => (None, url.public()),
        Source::ContainerDisk { reference, .. } => (None, reference.to_string()),
    };
    let os = &image.operating_system;
    marks::golden_marks(&marks::GoldenMarks {
        image: image.name.as_str(),
        identity: Some(&order.identity),
        os_family: os.family.as_deref(),
        os_name: os.name.as_deref(),
        os_version: os.version.as_deref(),
        architecture: image.source.architecture(),
        for_workers: image.usages.contains(&Usage::Worker),
        for_virtual_machines: image.usages.contains(&Usage::VirtualMachine),
        schematic_id: order.schematic_id.as_ref().map(SchematicId::as_str),
        talos_version: talos_version.as_deref(),
        source_url: Some(&source_url),
        artifact_digest: order.artifact.as_ref(),
        disk_digest: Some(&order.disk),
        storage_class: Some(order.class.as_str()),
        minimum_size: Some(order.size),
        description: image.description.as_deref(),
        kubernetes_version: os.kubernetes_version.as_ref().map(crate::model::KubernetesVersion::as_str),
        default_instancetype: order.defaults.instancetype.as_deref(),
        default_preference: order.defaults.preference.as_deref(),
    })
}

/// The DataVolume that has CDI pull the disk from the spool. `path` is the URL's path, unguessable.
pub fn data_volume(image: &Image, order: &ImportOrder, namespace: &str, spool_url: &str, path: &str) -> Value {
    let marks::Marks { mut labels, mut annotations } = marks_of(image, order);
    labels.insert("app.kubernetes.io/managed-by".into(), "golden-catalog".into());
    // A golden has no consumer pod: without this a WaitForFirstConsumer class would wait for ever (cdi.md, trap 10).
    annotations.insert("cdi.kubevirt.io/storage.bind.immediate.requested".into(), "true".into());
    // CDI before v1.62 could delete a finished DataVolume (cdi.md, section 5).
    annotations.insert("cdi.kubevirt.io/storage.deleteAfterCompletion".into(), "false".into());
    annotations.insert("helm.sh/resource-policy".into(), "keep".into());
    json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1",
        "kind": "DataVolume",
        "metadata": {
            "name": order.golden,
            "namespace": namespace,
            "labels": labels,
            "annotations": annotations,
        },
        "spec": {
            "contentType": "kubevirt",
            "source": { "http": {
                "url": format!("{}{path}", spool_url.trim_end_matches('/')),
                "certConfigMap": SPOOL_CA,
                "secretExtraHeaders": [order.golden],
            } },
            "storage": {
                "storageClassName": order.class,
                "volumeMode": order.volume_mode,
                "accessModes": order.access_modes,
                "resources": { "requests": { "storage": order.size } },
            },
        },
    })
}

/// The Secret whose one value is a header (CDI sends every value of it as one).
pub fn header_secret(golden: &GoldenName, namespace: &str, header_line: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": golden,
            "namespace": namespace,
            "labels": { "app.kubernetes.io/managed-by": "golden-catalog" },
        },
        "type": "Opaque",
        "stringData": { "authorization": header_line },
    })
}

/// The ConfigMap with the CA that importers trust.
pub fn spool_ca(namespace: &str, bundle: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": SPOOL_CA,
            "namespace": namespace,
            "labels": { "app.kubernetes.io/managed-by": "golden-catalog" },
        },
        "data": { "ca.crt": bundle },
    })
}
