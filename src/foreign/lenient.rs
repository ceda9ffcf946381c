use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::DeserializeOwned};
use serde_json::{Value, value::RawValue};

/// The longest odd part that is taken apart, in bytes of JSON. As values it takes up to eighty times as much memory, and a tenant may have
/// written it.
const LONGEST_ODD: usize = 128 << 10;

/// A part of an object that may have a shape nobody foresaw.
#[derive(Debug, Clone, PartialEq)]
pub enum Lenient<T> {
    /// The part as far as it is read.
    Read(T),
    /// The part as it came, because it could not be read.
    ///
    /// It is kept, not dropped: an unreadable object must be able to say that it names a golden ("unknown is never none").
    Odd {
        /// The part; where it is too long to be taken apart, its JSON as one text.
        value: Value,
        /// Why it could not be read.
        why: String,
    },
}

impl<T> Lenient<T> {
    /// The part, where it could be read.
    pub const fn read(&self) -> Option<&T> {
        match self {
            Self::Read(part) => Some(part),
            Self::Odd { .. } => None,
        }
    }

    /// The part as it came, where it could not be read.
    pub const fn odd(&self) -> Option<&Value> {
        match self {
            Self::Read(_) => None,
            Self::Odd { value, .. } => Some(value),
        }
    }
}

impl<T: Default + PartialEq> Lenient<T> {
    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Read(part) if *part == T::default())
    }
}

impl<T: Default> Default for Lenient<T> {
    fn default() -> Self {
        Self::Read(T::default())
    }
}

impl<T> From<T> for Lenient<T> {
    fn from(part: T) -> Self {
        Self::Read(part)
    }
}

impl<'de, T: DeserializeOwned + Default> Deserialize<'de> for Lenient<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // From text to the type at once: what is not read of a part, which may be megabytes of a tenant's, takes no memory.
        let text = Box::<RawValue>::deserialize(deserializer)?;
        match serde_json::from_str::<Option<T>>(text.get()) {
            Ok(part) => return Ok(Self::Read(part.unwrap_or_default())),
            Err(error) if text.get().len() > LONGEST_ODD => {
                return Ok(Self::Odd { value: Value::String(text.get().to_owned()), why: error.to_string() });
            }
            Err(_) => {}
        }
        let value: Value = serde_json::from_str(text.get()).map_err(serde::de::Error::custom)?;
        match T::deserialize(&value) {
            Ok(part) => Ok(Self::Read(part)),
            Err(error) => Ok(Self::Odd { value, why: error.to_string() }),
        }
    }
}

impl<T: Serialize> Serialize for Lenient<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Read(part) => part.serialize(serializer),
            Self::Odd { value, .. } => value.serialize(serializer),
        }
    }
}

/// The spec or status of a kind that has none, or none that is read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nothing {}

/// The metadata of a template inside another object.
///
/// The CRDs of KubeVirt and Cluster API let anything stand there (`x-kubernetes-preserve-unknown-fields`), so nothing in it can be relied on: labels and annotations that are not text are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateMeta {
    /// The name of what is made from the template, or its suffix.
    #[serde(default, deserialize_with = "text", skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The namespace of what is made from the template.
    #[serde(default, deserialize_with = "text", skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Labels that are text.
    #[serde(default, deserialize_with = "texts", skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations that are text.
    #[serde(default, deserialize_with = "texts", skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::String(text) => Some(text),
        _ => None,
    })
}

fn texts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    let Value::Object(map) = Value::deserialize(deserializer)? else { return Ok(BTreeMap::new()) };
    Ok(map.into_iter().filter_map(|(key, value)| if let Value::String(text) = value { Some((key, text)) } else { None }).collect())
}

/// Reads an object's metadata and leaves `managedFields` out without allocating for them.
pub(super) fn metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Slim {
        name: Option<String>,
        generate_name: Option<String>,
        namespace: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
        generation: Option<i64>,
        creation_timestamp: Option<Time>,
        deletion_timestamp: Option<Time>,
        labels: Option<BTreeMap<String, String>>,
        annotations: Option<BTreeMap<String, String>>,
        finalizers: Option<Vec<String>>,
        owner_references: Option<Vec<OwnerReference>>,
    }
    let slim = Slim::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: slim.name,
        generate_name: slim.generate_name,
        namespace: slim.namespace,
        uid: slim.uid,
        resource_version: slim.resource_version,
        generation: slim.generation,
        creation_timestamp: slim.creation_timestamp,
        deletion_timestamp: slim.deletion_timestamp,
        labels: slim.labels,
        annotations: slim.annotations,
        finalizers: slim.finalizers,
        owner_references: slim.owner_references,
        ..ObjectMeta::default()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Lenient, TemplateMeta};
    use crate::foreign::{DataVolume, VirtualMachine};

    #[test]
    fn one_odd_object_does_not_fail_its_list() {
        let list: Vec<DataVolume> = serde_json::from_value(json!([
            {"metadata": {"name": "a"}, "spec": {"source": {"pvc": "a text, not an object"}}},
            {"metadata": {"name": "b"}, "spec": null, "status": {"restartCount": "many"}},
            {"metadata": {"name": "c"}, "spec": {"source": {"pvc": {"namespace": "cozy-public", "name": "g"}}}, "unknown": [1]},
            {"metadata": {"name": "d"}},
            {},
        ]))
        .expect("a list");
        assert!(
            matches!(&list[0].spec, Lenient::Odd { value, why } if value["source"]["pvc"] == "a text, not an object" && !why.is_empty())
        );
        assert!(list[1].spec.is_empty() && list[1].status.odd().is_some());
        assert_eq!(list[2].spec.read().and_then(|s| s.source.as_ref()?.pvc.as_ref()?.name.as_deref()), Some("g"));
        assert!(list[3].spec.is_empty() && list[4].metadata.name.is_none());
    }

    #[test]
    fn one_odd_template_does_not_hide_the_others() {
        let vm: VirtualMachine = serde_json::from_value(json!({"spec": {"dataVolumeTemplates": [
            {"metadata": {"name": 5, "annotations": {"a": 1, "b": "two"}}, "spec": {}},
            {"spec": {"source": 3}},
            {"metadata": {"name": "ok"}, "spec": {"source": {"pvc": {"name": "g"}}}},
        ]}}))
        .expect("a VM");
        let templates = &vm.spec.read().expect("read").data_volume_templates;
        let first = templates[0].read().expect("read");
        assert_eq!(first.metadata, TemplateMeta { annotations: [("b".to_owned(), "two".to_owned())].into(), ..TemplateMeta::default() });
        assert!(templates[1].odd().is_some());
        assert_eq!(templates[2].read().and_then(|t| t.metadata.name.as_deref()), Some("ok"));
    }

    /// Megabytes that nobody can read are one text, which names whatever is in it.
    #[test]
    fn a_long_odd_part_is_not_taken_apart() {
        let bulk: Vec<_> = (0..20_000).map(|number| json!({ "a": number })).collect();
        let vm = json!({"spec": {"dataVolumeTemplates": [
            {"spec": {"source": {"pvc": {"namespace": "cozy-public", "name": 3}}, "bulk": bulk}},
            {"metadata": {"name": "ok"}, "spec": {"source": {"pvc": {"name": "g"}}, "bulk": bulk}},
        ]}})
        .to_string();
        let vm: VirtualMachine = serde_json::from_str(&vm).expect("a VM");
        let templates = &vm.spec.read().expect("read").data_volume_templates;
        assert!(matches!(templates[0].odd(), Some(serde_json::Value::String(text)) if text.contains("cozy-public")));
        assert_eq!(templates[1].read().and_then(|t| t.metadata.name.as_deref()), Some("ok"));
    }

    #[test]
    fn managed_fields_are_left_out_and_the_rest_reads_back() {
        let given = json!({"apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "metadata": {
            "name": "a", "namespace": "b", "uid": "u", "resourceVersion": "7", "generation": 3, "creationTimestamp": "2026-11-29T10:00:00Z",
            "deletionTimestamp": "2026-11-29T11:00:00Z", "labels": {"l": "1"}, "annotations": {"a": "2"}, "finalizers": ["f"],
            "ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "n", "uid": "o", "controller": true}],
            "managedFields": [{"manager": "x"}], "generateName": "a-"}});
        let object: DataVolume = serde_json::from_value(given.clone()).expect("an object");
        let mut expected = given;
        expected["metadata"].as_object_mut().expect("object").remove("managedFields");
        assert_eq!(serde_json::to_value(&object).expect("JSON"), expected);
    }
}
