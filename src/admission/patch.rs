//! What a disk leaves admission with (R21): class, golden and pool, and never another source.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

use crate::rules::clone::{Patch, SubjectKind};

/// One operation of a JSON patch (RFC 6902); nothing is ever taken away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Operation {
    op: &'static str,
    path: String,
    value: Value,
}

impl Operation {
    /// Adds, or puts in the place of what is there.
    pub const fn add(path: String, value: Value) -> Self {
        Self { op: "add", path, value }
    }
}

/// The operations that bring `object` to what the verdict says; none where it already is.
///
/// The class goes where the disk's claim is spelled. CDI reads annotations of a DataVolume onto the claim only when it creates that, so what is not there at creation never gets there.
pub fn operations(kind: SubjectKind, object: &Value, patch: &Patch) -> Vec<Operation> {
    let mut operations = Vec::new();
    let claim = match kind {
        SubjectKind::Claim => Some("/spec"),
        SubjectKind::DataVolume if object.pointer("/spec/pvc").is_some_and(Value::is_object) => Some("/spec/pvc"),
        SubjectKind::DataVolume if object.pointer("/spec/storage").is_some_and(Value::is_object) => Some("/spec/storage"),
        _ => None,
    };
    if let (Some(claim), Some(class)) = (claim, &patch.class) {
        let path = format!("{claim}/storageClassName");
        if object.pointer(&path).and_then(Value::as_str) != Some(class) {
            operations.push(Operation::add(path, json!(class)));
        }
    }
    operations.extend(annotations(object, &patch.annotations));
    operations
}

fn annotations(object: &Value, wanted: &BTreeMap<String, String>) -> Vec<Operation> {
    let present = object.pointer("/metadata/annotations").and_then(Value::as_object);
    let missing: BTreeMap<&String, &String> =
        wanted.iter().filter(|(key, value)| present.and_then(|present| present.get(*key)?.as_str()) != Some(value)).collect();
    if missing.is_empty() {
        return Vec::new();
    }
    match present {
        None => vec![Operation::add("/metadata/annotations".to_owned(), json!(missing))],
        Some(_) => missing
            .into_iter()
            .map(|(key, value)| {
                Operation::add(format!("/metadata/annotations/{}", key.replace('~', "~0").replace('/', "~1")), json!(value))
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::marks;

    fn patched(kind: SubjectKind, object: Value) -> Value {
        let annotations = marks::consumer_marks("g", "a/VMDisk/d").annotations;
        let patch = Patch { class: Some("r".into()), annotations };
        let operations = operations(kind, &object, &patch);
        let mut result = object;
        json_patch(&mut result, &operations);
        assert_eq!(super::operations(kind, &result, &patch), [], "a second time there is nothing to do");
        result
    }

    /// Applies `add` operations as RFC 6902 says.
    fn json_patch(object: &mut Value, operations: &[Operation]) {
        for Operation { path, value, .. } in operations {
            let (parent, key) = path.rsplit_once('/').expect("a path");
            let parent = object.pointer_mut(parent).and_then(Value::as_object_mut).expect("the parent is there");
            parent.insert(key.replace("~1", "/").replace("~0", "~"), value.clone());
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
    fn a_disk_that_spells_no_claim_gets_annotations_only() {
        let result = patched(SubjectKind::DataVolume, json!({"metadata": {"annotations": {}}, "spec": {"source": {}}}));
        assert_eq!(result["spec"], json!({"source": {}}));
    }
}
