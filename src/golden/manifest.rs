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
    pub const ENTRIES: &str = crate::api::ENTRIES;
    /// Goldens and what their import needs.
    pub const GOLDEN: &str = "golden-catalog/golden";
    /// Status.
    pub const STATUS: &str = "golden-catalog/status";
    /// Marks on goldens and consumers.
    pub const MARKS: &str = "golden-catalog/marks";
    /// CA and owner of the webhook configurations.
    pub const WEBHOOKS: &str = "golden-catalog/webhooks";
}

/// Our finalizer on a GoldenImage that waits for its goldens (R23).
pub const FINALIZER: &str = "kubernetes-worker-image.cozystack.io/goldens";

/// What an entry itself says of every golden made for it, whoever made it.
pub(super) struct Told {
    talos_version: Option<String>,
    source_url: String,
}

impl Told {
    /// Reads it from the entry's source.
    pub fn of(source: &Source) -> Self {
        let (talos_version, source_url) = match source {
            Source::TalosFactory(talos) => (Some(talos.version.to_string()), talos.factory_url.public()),
            Source::Http { url, .. } => (None, url.public()),
            Source::ContainerDisk { reference, .. } => (None, reference.to_string()),
        };
        Self { talos_version, source_url }
    }

    /// The marks that follow from it; identity, bytes, class and size are the golden's own.
    pub fn marks<'a>(&'a self, image: &'a Image) -> marks::GoldenMarks<'a> {
        let os = &image.operating_system;
        marks::GoldenMarks {
            image: image.name.as_str(),
            os_family: os.family.as_deref(),
            os_name: os.name.as_deref(),
            os_version: os.version.as_deref(),
            architecture: image.source.architecture(),
            for_workers: image.usages.contains(&Usage::Worker),
            for_virtual_machines: image.usages.contains(&Usage::VirtualMachine),
            talos_version: self.talos_version.as_deref(),
            kubernetes_version: os.kubernetes_version.as_ref().map(crate::model::KubernetesVersion::as_str),
            source_url: Some(&self.source_url),
            access: Some(&image.access),
            description: image.description.as_deref(),
            ..marks::GoldenMarks::default()
        }
    }
}

/// The marks of a golden's DataVolume and PVC.
pub fn marks_of(image: &Image, order: &ImportOrder) -> marks::Marks {
    marks::golden_marks(&marks::GoldenMarks {
        identity: Some(&order.identity),
        schematic_id: order.schematic_id.as_ref().map(SchematicId::as_str),
        artifact_digest: order.artifact.as_ref(),
        disk_digest: Some(&order.disk),
        storage_class: Some(order.class.as_str()),
        minimum_size: Some(order.size),
        default_instancetype: order.defaults.instancetype.as_deref(),
        default_preference: order.defaults.preference.as_deref(),
        ..Told::of(&image.source).marks(image)
    })
}

/// Where a golden's DataVolume takes the disk from.
#[derive(Debug, Clone, Copy)]
pub enum Origin<'a> {
    /// The spool, at this URL. Its path is unguessable.
    Spool(&'a str),
    /// This golden of the same namespace, which needs nobody's permission.
    Golden(&'a GoldenName),
}

/// The DataVolume that has CDI make a golden.
pub fn data_volume(image: &Image, order: &ImportOrder, namespace: &str, from: Origin<'_>) -> Value {
    let marks::Marks { mut labels, mut annotations } = marks_of(image, order);
    labels.insert(MANAGED_BY.into(), MANAGER.into());
    // A golden has no consumer pod: without this a WaitForFirstConsumer class would wait for ever.
    annotations.insert("cdi.kubevirt.io/storage.bind.immediate.requested".into(), "true".into());
    // CDI before v1.62 could delete a finished DataVolume.
    annotations.insert("cdi.kubevirt.io/storage.deleteAfterCompletion".into(), "false".into());
    annotations.insert("helm.sh/resource-policy".into(), "keep".into());
    let source = match from {
        Origin::Spool(url) => json!({ "http": { "url": url, "certConfigMap": SPOOL_CA, "secretExtraHeaders": [order.golden] } }),
        Origin::Golden(golden) => {
            // Another class is another pool or driver: a clone by storage would hang or bind the two goldens together.
            annotations.insert(marks::CDI_CLONE_TYPE.into(), "copy".into());
            json!({ "pvc": { "namespace": namespace, "name": golden } })
        }
    };
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
            "source": source,
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
///
/// Its owner is the GoldenImage, so that the cluster's garbage collector takes it away with an image that is deleted in the
/// middle of an import. The golden itself has no such owner: it outlives the image.
pub fn header_secret(image: Owner<'_>, golden: &GoldenName, namespace: &str, header_line: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": golden,
            "namespace": namespace,
            "labels": { MANAGED_BY: MANAGER, marks::IMAGE: image.name },
            "ownerReferences": [owner_reference(image)],
        },
        "type": "Opaque",
        "stringData": { HEADER: header_line },
    })
}

/// The GoldenImage that an object is made for.
#[derive(Debug, Clone, Copy)]
pub struct Owner<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its UID.
    pub uid: &'a str,
}

/// Kubernetes' label for the program that keeps an object.
pub(super) const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Its value on what this daemon made.
pub(super) const MANAGER: &str = "golden-catalog";
const HEADER: &str = "authorization";

fn owner_reference(image: Owner<'_>) -> Value {
    json!({ "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "name": image.name, "uid": image.uid })
}

/// A JSON patch that fails on a Secret which does not carry this image's mark: the daemon may not read Secrets here, and a
/// patch of tests is answered with the object's UID.
pub fn is_our_secret(image: &str) -> Vec<Value> {
    let test = |label: &str, value: &str| json!({ "op": "test", "path": format!("/metadata/labels/{}", label.replace('~', "~0").replace('/', "~1")), "value": value });
    vec![test(MANAGED_BY, MANAGER), test(marks::IMAGE, image)]
}

/// A JSON patch that renews the header of a Secret of ours, and of nobody else's.
pub fn renew_secret(image: Owner<'_>, header_line: &str) -> Vec<Value> {
    let value = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, header_line);
    let mut patch = is_our_secret(image.name);
    patch.push(json!({ "op": "replace", "path": "/data", "value": { HEADER: value } }));
    patch.push(json!({ "op": "add", "path": "/metadata/ownerReferences", "value": [owner_reference(image)] }));
    patch
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
