//! What a disk leaves admission with (R21): class, golden and pool, never another source, and no right to clone that it does not need.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::rules::clone::{Patch, SubjectKind};

/// One operation of a JSON patch (RFC 6902).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Operation {
    op: &'static str,
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Value>,
}

impl Operation {
    /// Adds, or puts in the place of what is there.
    pub const fn add(path: String, value: Value) -> Self {
        Self { op: "add", path, value: Some(value) }
    }

    /// Takes an annotation off that is there.
    pub fn without_annotation(key: &str) -> Self {
        Self { op: "remove", path: annotation_path(key), value: None }
    }

    /// Whether it writes a disk's class.
    pub fn is_class(&self) -> bool {
        self.path.ends_with("/storageClassName")
    }
}

/// A disk as it came, as far as it may be changed.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Written {
    metadata: WrittenMeta,
    spec: WrittenSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WrittenMeta {
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WrittenSpec {
    pvc: Option<WrittenClaim>,
    storage: Option<WrittenClaim>,
    /// Of a bare claim.
    storage_class_name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WrittenClaim {
    storage_class_name: Option<String>,
}

/// The operations that bring `object` to what the verdict says; none where it already is.
///
/// The class goes where the disk's claim is spelled. CDI reads annotations of a DataVolume onto the claim only when it creates that, so what is not there at creation never gets there.
pub fn operations(kind: SubjectKind, disk: &Written, patch: &Patch) -> Vec<Operation> {
    let mut operations = Vec::new();
    let claim = match (kind, &disk.spec) {
        (SubjectKind::Claim, spec) => Some(("/spec", &spec.storage_class_name)),
        (SubjectKind::DataVolume, WrittenSpec { pvc: Some(claim), .. }) => Some(("/spec/pvc", &claim.storage_class_name)),
        (SubjectKind::DataVolume, WrittenSpec { storage: Some(claim), .. }) => Some(("/spec/storage", &claim.storage_class_name)),
        _ => None,
    };
    if let (Some((claim, written)), Some(class)) = (claim, &patch.class)
        && written.as_ref() != Some(class)
    {
        operations.push(Operation::add(format!("{claim}/storageClassName"), json!(class)));
    }
    operations.extend(annotations(disk.metadata.annotations.as_ref(), &patch.annotations));
    operations
}

fn annotations(present: Option<&BTreeMap<String, String>>, wanted: &BTreeMap<String, String>) -> Vec<Operation> {
    let missing: BTreeMap<&String, &String> =
        wanted.iter().filter(|(key, value)| present.and_then(|present| present.get(*key)) != Some(value)).collect();
    if missing.is_empty() {
        return Vec::new();
    }
    match present {
        None => vec![Operation::add("/metadata/annotations".to_owned(), json!(missing))],
        Some(_) => missing.into_iter().map(|(key, value)| Operation::add(annotation_path(key), json!(value))).collect(),
    }
}

fn annotation_path(key: &str) -> String {
    format!("/metadata/annotations/{}", key.replace('~', "~0").replace('/', "~1"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::marks;

    fn patched(kind: SubjectKind, object: Value) -> Value {
        let annotations = marks::consumer_marks("g", "a/VMDisk/d").annotations;
        let patch = Patch { class: Some("r".into()), annotations };
        let written = |object: &Value| Written::deserialize(object).expect("a disk");
        let operations = operations(kind, &written(&object), &patch);
        let mut result = object;
        json_patch(&mut result, &operations);
        assert_eq!(super::operations(kind, &written(&result), &patch), [], "a second time there is nothing to do");
        result
    }

    /// Applies `add` operations as RFC 6902 says.
    fn json_patch(object: &mut Value, operations: &[Operation]) {
        for Operation { path, value, .. } in operations {
            let (parent, key) = path.rsplit_once('/').expect("a path");
            let parent = object.pointer_mut(parent).and_then(Value::as_object_mut).expect("the parent is there");
            parent.insert(key.replace("~1", "/").replace("~0", "~"), value.clone().expect("it adds"));
        }
    }

    #[test]
    fn a_disk_gets_its_class_where_its_claim_is_spelled() {
        for (kind, object, path) in [
            (SubjectKind::DataVolume, json!({"metadata": {}, "spec": {"storage": {}}}), "/spec/storage/storageClassName"),
            (
                SubjectKind::DataVolume,
                json!({"metadata": {"annotations": {"x": "1"}}, "spec": {"pvc": {"storageClassName": null}}}),
                "/spec/pvc/storageClassName",
            ),
            (SubjectKind::Claim, json!({"metadata": {"annotations": {marks::POOL: "wrong"}}, "spec": {}}), "/spec/storageClassName"),
        ] {
            let before = object.clone();
            let result = patched(kind, object);
            assert_eq!(result.pointer(path), Some(&json!("r")));
            assert_eq!(result["metadata"]["annotations"][marks::GOLDEN], "g");
            assert_eq!(result["metadata"]["annotations"][marks::POOL], "a/VMDisk/d");
            assert_eq!(result["metadata"]["annotations"].get("x"), before["metadata"]["annotations"].get("x"));
        }
    }

    #[test]
    fn what_is_taken_off_has_no_value() {
        let operation = json!(Operation::without_annotation(marks::CDI_CLONE_TOKEN));
        assert_eq!(operation, json!({"op": "remove", "path": "/metadata/annotations/cdi.kubevirt.io~1storage.clone.token"}));
    }

    #[test]
    fn a_class_that_is_there_is_left_as_it_is() {
        let object = json!({"metadata": {}, "spec": {"pvc": {"storageClassName": "r"}, "storageClassName": "x"}});
        let patch = Patch { class: Some("r".into()), annotations: BTreeMap::new() };
        let written = Written::deserialize(&object).expect("a disk");
        assert_eq!(super::operations(SubjectKind::DataVolume, &written, &patch), []);
        assert_eq!(super::operations(SubjectKind::Claim, &written, &patch).len(), 1);
    }

    #[test]
    fn a_disk_that_spells_no_claim_gets_annotations_only() {
        let result = patched(SubjectKind::DataVolume, json!({"metadata": {"annotations": {}}, "spec": {"source": {}}}));
        assert_eq!(result["spec"], json!({"source": {}}));
    }
}
