//! Reading a spec of which parts are not even of the right type, so that the rest is judged all the same.

use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use super::{FieldError, GoldenImageSpec, crd, parse::NAMED_TWICE};
use crate::model::public_words;

/// The CRD's schema of a spec, made once.
static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let mut crd = crd();
    crd.pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties/spec").map(Value::take).unwrap_or_default()
});

/// Reads a spec. Every field with something of another type in it is told, and every required one that is missing, each by
/// its own path; what is told is left out, or stands empty where it must be there, so that all the rest is judged. A field that
/// no GoldenImage has is told too: what is silently dropped would be what somebody meant.
pub fn read_spec(spec: Map<String, Value>) -> (GoldenImageSpec, Vec<FieldError>) {
    let mut errors = Vec::new();
    let mut unknown = Vec::new();
    let mut spec = Value::Object(spec);
    unknown_fields(&spec, &SCHEMA, "spec", &mut unknown);
    // Whoever parses the spec says that it has no source.
    if let Some(fields) = spec.as_object_mut() {
        fields.entry("source").or_insert_with(|| json!({}));
    }
    let mut mended: Vec<Vec<Step>> = Vec::new();
    loop {
        let error = match serde_path_to_error::deserialize(&spec) {
            Ok(spec) => {
                add_untold(&mut errors, unknown);
                return (spec, errors);
            }
            Err(error) => error,
        };
        let mut path: Vec<Step> = error.path().iter().filter_map(Step::of).collect();
        let told = error.inner().to_string();
        let missing = told.strip_prefix("missing field `").and_then(|rest| rest.split('`').next());
        let message = match missing {
            Some(field) => {
                path.push(Step::Field(field.to_owned()));
                "must be given".to_owned()
            }
            None => in_yaml_terms(&told),
        };
        // What is mended and still wrong is left out with what surrounds it.
        let is_told = mended.contains(&path);
        while mended.contains(&path) {
            path.pop();
        }
        if path.is_empty() {
            return (GoldenImageSpec::default(), errors);
        }
        if !is_told {
            errors.push(FieldError { field: shown(&path), message });
        }
        mend(&mut spec, &SCHEMA, &path);
        mended.push(path);
    }
}

/// One step into a value.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Field(String),
    Item(usize),
}

impl Step {
    fn of(segment: &serde_path_to_error::Segment) -> Option<Self> {
        match segment {
            serde_path_to_error::Segment::Map { key } => Some(Self::Field(key.clone())),
            serde_path_to_error::Segment::Seq { index } => Some(Self::Item(*index)),
            _ => None,
        }
    }
}

fn shown(path: &[Step]) -> String {
    path.iter().fold("spec".to_owned(), |shown, step| match step {
        Step::Field(name) => format!("{shown}.{name}"),
        Step::Item(index) => format!("{shown}[{index}]"),
    })
}

/// Takes what stands at `path` out of `value`, or puts something empty there where the schema wants something, or where what
/// follows in a list would else be told by the place of another.
fn mend(value: &mut Value, schema: &Value, path: &[Step]) {
    let Some((step, rest)) = path.split_first() else { return };
    match (step, value) {
        (Step::Field(name), Value::Object(fields)) => {
            let inner = schema["properties"].get(name).unwrap_or(&schema["additionalProperties"]);
            let is_required = schema["required"].as_array().is_some_and(|names| names.iter().any(|required| required == name));
            match fields.get_mut(name) {
                Some(field) if !rest.is_empty() => mend(field, inner, rest),
                _ if is_required => {
                    fields.insert(name.clone(), empty(inner));
                }
                _ => {
                    fields.remove(name);
                }
            }
        }
        (Step::Item(index), Value::Array(items)) => match items.get_mut(*index) {
            // A list of words may take none but its own.
            Some(item) if rest.is_empty() => {
                *item = schema["items"]["enum"].get(0).cloned().unwrap_or_else(|| empty(&schema["items"]));
            }
            Some(item) => mend(item, &schema["items"], rest),
            None => {}
        },
        _ => {}
    }
}

/// The emptiest value of a type.
fn empty(schema: &Value) -> Value {
    match schema["type"].as_str() {
        Some("object") => json!({}),
        Some("array") => json!([]),
        Some("boolean") => json!(false),
        Some("integer" | "number") => json!(0),
        _ => json!(""),
    }
}

/// What is wrong with a `name` that YAML reads as something else than text, such as `no` or `1.10`.
pub fn unquoted(name: Option<&Value>) -> Option<String> {
    let name = name.filter(|name| !name.is_null() && !name.is_string())?;
    Some(format!("must be quoted: YAML reads it as {name}, which is no text"))
}

/// What serde says of a value of another type, in words of who writes YAML, and without the secrets of an address.
fn in_yaml_terms(message: &str) -> String {
    let message = public_words(message);
    match message.split_once(", expected struct ") {
        Some((found, rest)) if !rest.contains(' ') => format!("{found}, expected a map of fields"),
        _ => message,
    }
}

/// Puts on record every field that the schema does not have, and every list that stands for a map.
fn unknown_fields(value: &Value, schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    match (value, schema.get("properties").and_then(Value::as_object)) {
        (Value::Object(fields), Some(known)) => {
            for (name, value) in fields {
                let path = format!("{path}.{name}");
                match known.get(name) {
                    Some(schema) => unknown_fields(value, schema, &path, errors),
                    None => errors.push(FieldError { field: path, message: "is not a field of a GoldenImage".into() }),
                }
            }
        }
        // Read field by field in their order, a list would pass for a map.
        (Value::Array(_), Some(_)) => errors.push(FieldError { field: path.to_owned(), message: "must be a map of fields".into() }),
        (Value::Array(items), None) => {
            for (index, item) in items.iter().enumerate() {
                unknown_fields(item, &schema["items"], &format!("{path}[{index}]"), errors);
            }
        }
        _ => {}
    }
}

/// Adds what was found later to what was told already, without errors about what surrounds a field that was told, or about
/// classes where a target could not be read: it stands for none.
pub fn add_untold(told: &mut Vec<FieldError>, found: Vec<FieldError>) {
    let known: Vec<_> = told.iter().map(|error| error.field.clone()).collect();
    let is_told = |error: &FieldError| known.iter().any(|field| field.starts_with(&error.field));
    let is_of_unread = |error: &FieldError| error.message == NAMED_TWICE && known.iter().any(|field| field.starts_with("spec.storage"));
    told.extend(found.into_iter().filter(|error| !is_told(error) && !is_of_unread(error)));
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::read_spec;

    #[rstest]
    #[case(json!({ "source": { "http": { "url": "a" } } }), &[])]
    #[case(json!({}), &[])]
    #[case(json!({ "source": 5, "digest": 5, "usages": ["Worker", "Nobody"] }), &["spec.digest", "spec.source", "spec.usages[1]"])]
    #[case(json!({ "source": { "http": { "url": 5 } }, "storage": { "targets": [{}, { "size": 1 }] } }), &["spec.source.http.url", "spec.storage.targets[1].size"])]
    #[case(json!({ "source": { "http": {} } }), &["spec.source.http.url"])]
    // All of one source, and what is beside a field of another type.
    #[case(json!({ "source": { "talosFactory": { "schematicID": 5, "version": 1.13, "platform": [], "architecture": 64, "secureBoot": "no" } } }), &["spec.source.talosFactory.architecture", "spec.source.talosFactory.platform", "spec.source.talosFactory.schematicID", "spec.source.talosFactory.secureBoot", "spec.source.talosFactory.version"])]
    #[case(json!({ "storage": { "targets": [5, { "size": 1, "volumeMode": true, "accessModes": "RWO" }, { "size": 2 }] } }), &["spec.storage.targets[0]", "spec.storage.targets[1].accessModes", "spec.storage.targets[1].size", "spec.storage.targets[1].volumeMode", "spec.storage.targets[2].size"])]
    #[case(json!({ "access": { "namespaceSelector": { "matchLabels": { "a.b/c": 5, "d": true, "e": "f" }, "matchExpressions": [{ "key": 1 }] } }, "caBundleRef": { "name": 5, "key": [] }, "credentialsSecretRef": 5, "usages": "Worker" }), &["spec.access.namespaceSelector.matchExpressions[0].key", "spec.access.namespaceSelector.matchLabels.a.b/c", "spec.access.namespaceSelector.matchLabels.d", "spec.access.policy", "spec.caBundleRef.key", "spec.caBundleRef.name", "spec.credentialsSecretRef", "spec.usages"])]
    #[case(json!({ "suspend": "yes", "retire": 1, "deletionPolicy": "Never", "usages": ["A", "Worker", 5] }), &["spec.deletionPolicy", "spec.retire", "spec.suspend", "spec.usages[0]", "spec.usages[2]"])]
    #[case(json!({ "source": { "http": { "url": "a", "size": 1 } }, "colour": "red", "storage": { "targets": [{ "class": "a" }] } }), &["spec.colour", "spec.source.http.size", "spec.storage.targets[0].class"])]
    #[case(json!({ "source": { "http": [] }, "operatingSystem": [], "credentialsSecretRef": ["a"], "storage": { "targets": [[], {}] } }), &["spec.credentialsSecretRef", "spec.operatingSystem", "spec.source.http", "spec.storage.targets[0]"])]
    #[case(json!({ "source": { "talosFactory": { "schematic": "{any: {thing: [{}]}}", "version": "v1.0.0" } } }), &[])]
    fn every_field_of_another_type_is_told(#[case] spec: Value, #[case] fields: &[&str]) {
        let (read, errors) = read_spec(spec.as_object().expect("map").clone());
        let mut found: Vec<_> = errors.iter().map(|error| error.field.as_str()).collect();
        found.sort_unstable();
        assert_eq!(found, fields);
        assert_eq!(read.digest, None);
    }
}
