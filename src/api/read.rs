//! Reading a spec of which parts are not even of the right type, so that the rest is judged all the same.

use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use super::{FieldError, GoldenImageSpec, crd};
use crate::model::public_words;

/// The CRD's schema of a spec, made once.
static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let mut crd = crd();
    crd.pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties/spec").map(Value::take).unwrap_or_default()
});

/// Reads a spec. A top-level field with something of another type in it is told, by the path of that, and left out. A field
/// that no GoldenImage has is told too: what is silently dropped would be what somebody meant.
pub fn read_spec(mut spec: Map<String, Value>) -> (GoldenImageSpec, Vec<FieldError>) {
    let mut errors = Vec::new();
    let mut unknown = Vec::new();
    unknown_fields(&Value::Object(spec.clone()), &SCHEMA, "spec", &mut unknown);
    // Whoever parses the spec says that it has no source.
    spec.entry("source").or_insert_with(|| json!({}));
    loop {
        let error = match serde_path_to_error::deserialize(Value::Object(spec.clone())) {
            Ok(spec) => {
                add_untold(&mut errors, unknown);
                return (spec, errors);
            }
            Err(error) => error,
        };
        let path = error.path().to_string();
        errors.push(FieldError { field: format!("spec.{path}"), message: in_yaml_terms(&error.inner().to_string()) });
        let key = path.split(['.', '[']).next().unwrap_or_default();
        let left = spec.remove(key);
        let is_source = key == "source" && left.as_ref() != Some(&json!({}));
        if is_source {
            spec.insert("source".to_owned(), json!({}));
        } else if left.is_none() {
            return (GoldenImageSpec::default(), errors);
        }
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

/// Puts on record every field that the schema does not have.
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
        (Value::Array(items), _) => {
            for (index, item) in items.iter().enumerate() {
                unknown_fields(item, &schema["items"], &format!("{path}[{index}]"), errors);
            }
        }
        _ => {}
    }
}

/// Adds what was found later to what was told already, without errors about what surrounds a field that was told.
pub fn add_untold(told: &mut Vec<FieldError>, found: Vec<FieldError>) {
    let known: Vec<_> = told.iter().map(|error| error.field.clone()).collect();
    told.extend(found.into_iter().filter(|error| !known.iter().any(|field| field.starts_with(&error.field))));
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
    #[case(json!({ "source": { "http": {} } }), &["spec.source.http"])]
    #[case(json!({ "source": { "http": { "url": "a", "size": 1 } }, "colour": "red", "storage": { "targets": [{ "class": "a" }] } }), &["spec.colour", "spec.source.http.size", "spec.storage.targets[0].class"])]
    #[case(json!({ "source": { "talosFactory": { "schematic": "{any: {thing: [{}]}}", "version": "v1.0.0" } } }), &[])]
    fn every_field_of_another_type_is_told(#[case] spec: Value, #[case] fields: &[&str]) {
        let (read, errors) = read_spec(spec.as_object().expect("map").clone());
        let mut found: Vec<_> = errors.iter().map(|error| error.field.as_str()).collect();
        found.sort_unstable();
        assert_eq!(found, fields);
        assert_eq!(read.digest, None);
    }
}
