//! CDI's rules on a DataVolume's spec (`datavolume-validate.go`), with its messages, over plain JSON: the webhook sees fields the stand-in has no type for.

use serde_json::Value;

use super::quantity::{MIB, bytes};

/// A refusal with CDI's message.
#[derive(Debug, PartialEq)]
pub(super) struct Refusal(pub(super) String);

fn refuse<T>(message: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal(message.into()))
}

fn present(value: &Value) -> bool {
    !value.is_null()
}

/// Checks a whole spec.
pub(super) fn spec(spec: &Value) -> Result<(), Refusal> {
    let (pvc, storage) = (&spec["pvc"], &spec["storage"]);
    let (name, target) = match (present(pvc), present(storage)) {
        (false, false) => return refuse("Missing Data volume PVC"),
        (true, true) => return refuse("Duplicate storage definition, both target storage and target pvc defined"),
        (true, false) => ("PVC", pvc),
        (false, true) => ("Storage", storage),
    };
    let (source, source_ref) = (&spec["source"], &spec["sourceRef"]);
    let external = present(&target["dataSource"]) || present(&target["dataSourceRef"]);
    let clone = present(source_ref) || present(&source["pvc"]) || present(&source["snapshot"]);
    size(name, target, clone && name == "Storage")?;
    let modes = target["accessModes"].as_array().map_or(&[][..], Vec::as_slice);
    if name == "PVC" && modes.is_empty() {
        return refuse("Required value: at least 1 access mode is required");
    }
    if name == "PVC" && modes.len() > 1 {
        return refuse("PVC multiple accessModes");
    }
    if let Some(bad) =
        modes.iter().find(|mode| !["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"].contains(&mode.as_str().unwrap_or_default()))
    {
        return refuse(format!("Unsupported value: {bad}: supported values: \"ReadOnlyMany\", \"ReadWriteMany\", \"ReadWriteOnce\""));
    }
    if [present(source), present(source_ref), external].iter().filter(|given| **given).count() != 1 {
        return refuse("Data volume should have either Source or SourceRef, or be externally populated");
    }
    if present(source_ref) && source_ref["kind"] != "DataSource" {
        return refuse(format!(
            "Unsupported sourceRef kind {}, currently only DataSource is supported",
            source_ref["kind"].as_str().unwrap_or_default()
        ));
    }
    if present(source) { one_source(source) } else { Ok(()) }
}

fn size(name: &str, target: &Value, optional: bool) -> Result<(), Refusal> {
    let size = &target["resources"]["requests"]["storage"];
    if !present(size) {
        return if optional { Ok(()) } else { refuse(format!("{name} size is missing")) };
    }
    let text = size.as_str().map_or_else(|| size.to_string(), str::to_owned);
    match bytes(&text) {
        None | Some(0) => refuse(format!("{name} size can't be equal or less than zero")),
        Some(bytes) if bytes < MIB => refuse(format!("{name} size should be at least 1MiB")),
        Some(_) => Ok(()),
    }
}

fn one_source(source: &Value) -> Result<(), Refusal> {
    let given: Vec<_> = source.as_object().into_iter().flatten().filter(|(_, value)| present(value)).collect();
    match given.as_slice() {
        [] => return refuse("Missing Data volume source"),
        [_] => {}
        _ => return refuse("Multiple Data volume sources"),
    }
    let (kind, value) = given[0];
    match kind.as_str() {
        "http" => {
            let url = value["url"].as_str().unwrap_or_default();
            match url::Url::parse(url) {
                Ok(parsed) if matches!(parsed.scheme(), "http" | "https") => Ok(()),
                Ok(_) => refuse(format!("spec.source Invalid source URL scheme: {url}")),
                Err(_) => refuse(format!("spec.source Invalid source URL: {url}")),
            }
        }
        "pvc" | "snapshot" => {
            let named = |field: &str| value[field].as_str().is_some_and(|text| !text.is_empty());
            if named("namespace") && named("name") {
                Ok(())
            } else {
                refuse(format!("spec.source.{} source {} is not valid", kind.to_uppercase(), kind.to_uppercase()))
            }
        }
        _ => Ok(()),
    }
}

/// Go's `Semantic.DeepEqual` of two specs: quantities by value, absent and empty the same.
pub(super) fn same_spec(old: &Value, new: &Value) -> bool {
    normal(old, "") == normal(new, "")
}

fn normal(value: &Value, name: &str) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().map(|(field, value)| (field.clone(), normal(value, field))).filter(|(field, value)| {
                let empty_map = ["requests", "limits", "matchLabels", "resources"].contains(&field.as_str())
                    && value.as_object().is_some_and(serde_json::Map::is_empty);
                !value.is_null() && !empty_map && value.as_array().is_none_or(|items| !items.is_empty())
            });
            Value::Object(kept.collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(|item| normal(item, "")).collect()),
        Value::String(text) if name == "storage" => bytes(text).map_or_else(|| value.clone(), |bytes| bytes.into()),
        Value::Number(number) if name == "storage" => bytes(&number.to_string()).map_or_else(|| value.clone(), |bytes| bytes.into()),
        _ => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn specs_are_refused_in_cdis_words() {
        let http = json!({ "http": { "url": "https://example.org/disk" } });
        let sized = json!({ "resources": { "requests": { "storage": "1Gi" } } });
        for (given, expected) in [
            (json!({ "source": http, "storage": sized }), None),
            (json!({ "source": http }), Some("Missing Data volume PVC")),
            (json!({ "source": http, "storage": {} }), Some("Storage size is missing")),
            (
                json!({ "source": http, "storage": { "resources": { "requests": { "storage": "0" } } } }),
                Some("Storage size can't be equal or less than zero"),
            ),
            (
                json!({ "source": http, "storage": { "resources": { "requests": { "storage": "1Ki" } } } }),
                Some("Storage size should be at least 1MiB"),
            ),
            (
                json!({ "source": http, "storage": sized, "pvc": sized }),
                Some("Duplicate storage definition, both target storage and target pvc defined"),
            ),
            (json!({ "source": http, "pvc": sized }), Some("Required value: at least 1 access mode is required")),
            (json!({ "storage": sized }), Some("Data volume should have either Source or SourceRef, or be externally populated")),
            (json!({ "source": {}, "storage": sized }), Some("Missing Data volume source")),
            (
                json!({ "source": { "blank": {}, "http": { "url": "https://example.org" } }, "storage": sized }),
                Some("Multiple Data volume sources"),
            ),
            (json!({ "source": { "pvc": { "namespace": "a", "name": "b" } }, "storage": {} }), None),
            (
                json!({ "source": { "pvc": { "namespace": "a", "name": "b" } }, "pvc": { "accessModes": ["ReadWriteOnce"] } }),
                Some("PVC size is missing"),
            ),
        ] {
            assert_eq!(spec(&given).err().map(|refusal| refusal.0), expected.map(str::to_owned), "{given}");
        }
    }

    #[test]
    fn specs_are_compared_by_value() {
        let of = |size: &str| json!({ "storage": { "resources": { "requests": { "storage": size } }, "accessModes": [] }, "source": { "blank": {} } });
        assert!(same_spec(&of("1Gi"), &of("1024Mi")));
        assert!(same_spec(
            &of("1Gi"),
            &json!({ "storage": { "resources": { "requests": { "storage": "1Gi" } } }, "source": { "blank": {} } })
        ));
        assert!(!same_spec(&of("1Gi"), &of("1G")));
        assert!(!same_spec(&json!({ "source": { "blank": {} } }), &json!({ "source": { "upload": {} } })));
    }
}
