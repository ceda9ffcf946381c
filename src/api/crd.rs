use kube::CustomResourceExt as _;
use serde_json::Value;

use super::GoldenImage;

/// The `GoldenImage` CustomResourceDefinition, as it is written to `crds/` and applied by the leader.
pub fn crd() -> Value {
    let mut crd = serde_json::to_value(GoldenImage::crd()).unwrap_or_default();
    if let Some(meta) = crd.pointer_mut("/metadata").and_then(Value::as_object_mut) {
        meta.insert(
            "annotations".into(),
            serde_json::json!({
                "helm.sh/resource-policy": "keep",
                super::CRD_VERSION: env!("CARGO_PKG_VERSION"),
            }),
        );
    }
    tidy(&mut crd);
    crd
}

/// The CRD as YAML, for `golden-catalog crds` and the files made from it.
///
/// # Errors
/// When the document cannot be written as YAML, which is a bug.
pub fn crd_yaml() -> Result<String, serde_saphyr::ser::Error> {
    let body = serde_saphyr::to_string(&crd())?;
    Ok(format!("# Generated from src/api by `golden-catalog crds`; do not edit.\n{}\n", body.trim_end()))
}

/// Makes a generated schema one that Kubernetes reads well: no `nullable` (absent and null mean the same here, and the API
/// server prunes nulls), no integer formats that it does not know, whole numbers for bounds.
fn tidy(value: &mut Value) {
    match value {
        Value::Object(object) => {
            // `nullable` is a schema keyword only beside a schema's other keywords, never as a property's name.
            if object.get("nullable").is_some_and(Value::is_boolean) {
                object.remove("nullable");
            }
            if object.get("format").and_then(Value::as_str).is_some_and(|format| format.starts_with("uint")) {
                object.remove("format");
            }
            for bound in ["minimum", "maximum"] {
                if let Some(number) = object.get(bound).and_then(Value::as_f64).filter(|number| number.fract() == 0.0) {
                    #[allow(clippy::cast_possible_truncation, reason = "bounds in this API are small whole numbers")]
                    object.insert(bound.into(), Value::from(number as i64));
                }
            }
            object.values_mut().for_each(tidy);
        }
        Value::Array(items) => items.iter_mut().for_each(tidy),
        _ => {}
    }
}
