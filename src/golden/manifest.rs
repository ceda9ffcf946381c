//! The objects that an import needs, as they are written.

use serde_json::{Map, Value, json};

use super::ImportOrder;
use crate::model::{GoldenName, Image, Source, Usage, marks};

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

/// The labels of a golden's DataVolume and PVC; a value that is no label value is left out (it stands in an annotation).
pub fn golden_labels(image: &Image, identity: &str) -> Map<String, Value> {
    let mut labels = Map::new();
    let mut set = |key: &str, value: &str| {
        if is_label_value(value) {
            labels.insert(key.to_owned(), Value::from(value));
        }
    };
    set("app.kubernetes.io/managed-by", "golden-catalog");
    set(marks::GOLDEN, "true");
    set(marks::IMAGE, image.name.as_str());
    set(marks::IDENTITY, identity);
    set(marks::ARCHITECTURE, image.source.architecture().as_str());
    if let Some(family) = &image.operating_system.family {
        set(marks::OS_FAMILY, family);
    }
    if let Some(version) = &image.operating_system.version {
        set(marks::OS_VERSION, version);
    }
    for usage in &image.usages {
        let key = match usage {
            Usage::Worker => marks::USAGE_WORKER,
            Usage::VirtualMachine => marks::USAGE_VIRTUAL_MACHINE,
        };
        set(key, "true");
    }
    labels
}

/// The annotations of a golden's DataVolume and PVC, today's console's among them.
pub fn golden_annotations(image: &Image, order: &ImportOrder) -> Map<String, Value> {
    let mut annotations = Map::new();
    let mut set = |key: &str, value: &str| {
        annotations.insert(key.to_owned(), Value::from(value));
    };
    match &image.source {
        Source::TalosFactory(talos) => {
            set(marks::TALOS_VERSION, &talos.version.to_string());
            set(marks::SOURCE_URL, &talos.factory_url.public());
        }
        Source::Http { url, .. } => set(marks::SOURCE_URL, &url.public()),
        Source::ContainerDisk { reference, .. } => set(marks::SOURCE_URL, &reference.to_string()),
    }
    if let Some(id) = &order.schematic_id {
        set(marks::SCHEMATIC_ID, id.as_str());
    }
    if let Some(artifact) = &order.artifact {
        set(marks::ARTIFACT_DIGEST, &artifact.to_string());
    }
    set(marks::DISK_DIGEST, &order.disk.to_string());
    set(marks::STORAGE_CLASS, order.class.as_str());
    set(marks::MINIMUM_SIZE, &order.size.to_string());
    if image.usages.contains(&Usage::VirtualMachine) {
        let os = &image.operating_system;
        set("vm-default-images.cozystack.io/name", image.name.as_str());
        set("vm-default-images.cozystack.io/os-family", os.family.as_deref().unwrap_or_default());
        set("vm-default-images.cozystack.io/os-name", os.name.as_deref().unwrap_or_default());
        set("vm-default-images.cozystack.io/os-version", os.version.as_deref().unwrap_or_default());
        set("vm-default-images.cozystack.io/architecture", image.source.architecture().as_str());
        set("vm-default-images.cozystack.io/description", image.description.as_deref().unwrap_or_default());
    }
    annotations
}

/// The DataVolume that has CDI pull the disk from the spool. `path` is the URL's path, unguessable.
pub fn data_volume(image: &Image, order: &ImportOrder, namespace: &str, spool_url: &str, path: &str) -> Value {
    let mut annotations = golden_annotations(image, order);
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
            "labels": golden_labels(image, order.identity.as_str()),
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

/// Whether `text` may be a label's value: at most 63 characters, alphanumeric at both ends.
fn is_label_value(text: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.len() <= 63
        && edge(text.chars().next())
        && edge(text.chars().next_back())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}
