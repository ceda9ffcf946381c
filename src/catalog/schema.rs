//! The form of an entry as a JSON Schema, for the chart's `values.schema.json`.
//!
//! It is made from the CRD's own schema, so that values, objects and the parser accept one form: a field that the CRD gets is
//! a field of an entry here, with the same bounds. `e2e/charts/entries.yaml` holds the three together.

use serde_json::{Map, Value, json};

use super::entry::{OTHER_KEYS, SPEC_KEYS};
use crate::api::crd;

/// A Kubernetes object name, at most as long as a label value, because a GoldenImage's name is one.
const NAME: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";

/// Fields whose value may hold a password, or whose slips the templates tell with the corrected form: Helm judges values by the
/// schema before any template is rendered, and a schema repeats what it refuses and knows no remedy.
const JUDGED_BY_TEMPLATES: [&str; 6] = ["url", "factoryURL", "imageFactoryURL", "reference", "version", "schematicID"];

/// The schema of one entry of `images[]`.
///
/// Types, unknown keys and the bounds of most fields are here. What kind an entry is and what goes with it, R1, R2, R3, R4, R18
/// and the form of addresses are judged by the chart's templates, in the daemon's words.
pub fn entry_schema() -> Value {
    let crd = crd();
    let spec = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    let sources = &spec["source"]["properties"];
    let mut properties = Map::new();
    for of in ["talosFactory", "containerDisk", "http"].iter().filter_map(|member| sources.get(member)) {
        let own = of["properties"].as_object().into_iter().flatten();
        properties.extend(own.map(|(key, schema)| (key.clone(), plain(schema))));
    }
    for key in SPEC_KEYS {
        properties.insert(key.into(), plain(&spec[key]));
    }
    let class = json!({ "type": "string", "maxLength": 253, "pattern": name_or_empty() });
    for key in OTHER_KEYS {
        let schema = match key {
            "name" => {
                json!({ "type": "string", "minLength": 1, "maxLength": 63, "pattern": NAME, "description": "The GoldenImage's name. A Talos entry by ID and version may leave it out." })
            }
            "storage" => storage(&plain(&spec["storage"])),
            "storageClass" => class.clone(),
            "os" => former_os(plain(&spec["operatingSystem"])),
            "kubernetesVersion" => plain(&spec["operatingSystem"]["properties"]["kubernetesVersion"]),
            // The former chart's spelling.
            "imageFactoryURL" => plain(&sources["talosFactory"]["properties"]["factoryURL"]),
            _ => continue,
        };
        properties.entry(key).or_insert(schema);
    }
    // A map too: the parser makes text of it.
    if let Some(document) = properties.get_mut("schematic").and_then(Value::as_object_mut) {
        document.insert("type".into(), json!(["string", "object"]));
    }
    for key in JUDGED_BY_TEMPLATES {
        if let Some(schema) = properties.get_mut(key).and_then(Value::as_object_mut) {
            schema.retain(|key, _| matches!(key.as_str(), "type" | "description"));
        }
    }
    if let Some(Value::String(pattern)) =
        properties.get_mut("credentialsSecretRef").and_then(|secret| secret.pointer_mut("/properties/name/pattern"))
    {
        *pattern = NAME.to_owned();
    }
    properties.values_mut().for_each(|schema| {
        nullable_inside(schema);
        nullable(schema);
    });
    json!({
        "description": "An image: of exactly one kind, told by its key.",
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
    })
}

/// A name, or nothing.
fn name_or_empty() -> String {
    NAME.replacen('^', "^(", 1).replacen('$', ")?$", 1)
}

/// The former key `os`, whose family may be written in any case: the parser makes it lowercase.
fn former_os(mut os: Value) -> Value {
    if let Some(Value::String(pattern)) = os.pointer_mut("/properties/family/pattern") {
        *pattern = pattern.replace("a-z", "A-Za-z");
    }
    os
}

fn nullable(schema: &mut Value) {
    let Some(schema) = schema.as_object_mut() else { return };
    match schema.get_mut("type") {
        Some(Value::Array(types)) => types.push("null".into()),
        Some(one) => *one = json!([one.clone(), "null"]),
        None => {}
    }
    if let Some(Value::Array(values)) = schema.get_mut("enum") {
        values.push(Value::Null);
    }
}

/// What an entry need not say may be null at every depth, as the parser reads it: nothing is said.
fn nullable_inside(schema: &mut Value) {
    let required: Vec<String> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
    for (name, inner) in schema.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten() {
        nullable_inside(inner);
        if !required.contains(name) {
            nullable(inner);
        }
    }
    if let Some(items) = schema.get_mut("items") {
        nullable_inside(items);
    }
}

/// `storage: 20Gi`, a bare number of bytes, or the full form.
fn storage(full: &Value) -> Value {
    let mut size = full["properties"]["targets"]["items"]["properties"]["size"].clone();
    let mut full = full.clone();
    if let Some(class) = full.pointer_mut("/properties/targets/items/properties/storageClassName").and_then(Value::as_object_mut) {
        class.insert("pattern".into(), name_or_empty().into());
    }
    if let (Some(full), Some(size)) = (full.as_object_mut(), size.as_object_mut()) {
        full.insert("type".into(), json!(["string", "integer", "object"]));
        full.insert("minimum".into(), json!(1));
        for bound in ["pattern", "minLength", "maxLength"] {
            full.extend(size.remove(bound).map(|value| (bound.to_owned(), value)));
        }
    }
    full
}

/// A schema of the CRD as one of plain JSON Schema: every map is closed, unless it says that it is open, and lists that are
/// sets have each item once.
fn plain(schema: &Value) -> Value {
    let Some(object) = schema.as_object() else { return schema.clone() };
    let mut made = Map::new();
    let is = |key: &str| object.get(key).and_then(Value::as_bool) == Some(true);
    for (key, value) in object {
        match key.as_str() {
            "properties" => {
                let inner = value.as_object().into_iter().flatten().map(|(name, inner)| (name.clone(), plain(inner)));
                made.insert(key.clone(), Value::Object(inner.collect()));
                if !is("x-kubernetes-preserve-unknown-fields") {
                    made.insert("additionalProperties".into(), false.into());
                }
            }
            "items" | "additionalProperties" => {
                made.insert(key.clone(), plain(value));
            }
            _ if key.starts_with("x-kubernetes-") => {}
            _ => {
                made.insert(key.clone(), value.clone());
            }
        }
    }
    if object.get("x-kubernetes-list-type").and_then(Value::as_str) == Some("set") {
        made.insert("uniqueItems".into(), true.into());
    }
    Value::Object(made)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{super::entry::keys, entry_schema};

    #[test]
    fn the_schema_knows_the_keys_that_the_parser_knows() {
        let schema = entry_schema();
        let known: BTreeSet<&str> = schema["properties"].as_object().expect("properties").keys().map(String::as_str).collect();
        assert_eq!(known, keys().collect(), "src/catalog/entry.rs and the CRD differ in what an entry may have");
    }
}
