//! What the CRD's schema holds beyond what becomes a value of its own: lengths, patterns and lists of plain text.
//!
//! The API server refuses the same; held here too, an entry is told what is wrong with it before it gets there, and by
//! `plan` without a cluster. A test holds the two together.

use super::{GoldenImageSpec, parse::Collector};
use crate::model::is_label;

const ACCESS_MODES: [&str; 4] = ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"];

/// Puts every breach of a limit on record.
pub(super) fn check(spec: &GoldenImageSpec, errors: &mut Collector) {
    let mut length = |field: &str, text: Option<&str>, least: usize, most: usize| {
        if let Some(count) = text.map(|text| text.chars().count()).filter(|count| !(least..=most).contains(count)) {
            errors.push(field, format!("must have {least} to {most} characters; it has {count}"));
        }
    };
    length("spec.description", spec.description.as_deref(), 0, 1024);
    if let Some(reference) = &spec.ca_bundle_ref {
        length("spec.caBundleRef.name", Some(&reference.name), 1, 253);
        length("spec.caBundleRef.key", reference.key.as_deref(), 1, 253);
    }
    if let Some(os) = &spec.operating_system {
        length("spec.operatingSystem.name", os.name.as_deref(), 1, 63);
        let family = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        if os.family.as_deref().is_some_and(|text| !is_label(text, family, "-.")) {
            errors.push("spec.operatingSystem.family", "must be at most 63 lowercase letters, digits, `-` and `.`, such as `ubuntu`");
        }
        if os.version.as_deref().is_some_and(|text| !is_label(text, |c| c.is_ascii_alphanumeric(), "-_.+")) {
            errors.push("spec.operatingSystem.version", "must be at most 63 letters, digits, `-`, `_`, `.` and `+`, such as `24.04`");
        }
    }
    for (field, name) in [
        ("spec.defaults.instancetype", spec.defaults.as_ref().and_then(|defaults| defaults.instancetype.as_deref())),
        ("spec.defaults.preference", spec.defaults.as_ref().and_then(|defaults| defaults.preference.as_deref())),
    ] {
        if name.is_some_and(|name| !is_label(name, |c: char| c.is_ascii_lowercase() || c.is_ascii_digit(), "-.")) {
            errors.push(field, "must be at most 63 lowercase letters, digits, `-` and `.`, such as `u1.medium`");
        }
    }
    if spec.usages.as_ref().is_some_and(|usages| usages.is_empty() || has_twice(usages)) {
        errors.push("spec.usages", "must name `Worker`, `VirtualMachine` or both, each once; leave it out for the default");
    }
    for (index, target) in spec.storage.iter().flat_map(|storage| &storage.targets).take(8).enumerate() {
        let Some(modes) = &target.access_modes else { continue };
        if modes.is_empty() || has_twice(modes) || modes.iter().any(|mode| !ACCESS_MODES.contains(&mode.as_str())) {
            let field = format!("spec.storage.targets[{index}].accessModes");
            errors.push(field, format!("must have one or more of `{}`, each once", ACCESS_MODES.join("`, `")));
        }
    }
}

fn has_twice<T: PartialEq>(items: &[T]) -> bool {
    items.iter().enumerate().any(|(index, item)| items[..index].contains(item))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use crate::api::{GoldenImage, parse_image};

    fn fields(spec: Value) -> Vec<String> {
        let mut spec = spec;
        spec["source"] = json!({ "http": { "url": "https://e.example/a" } });
        let object: GoldenImage = serde_json::from_value(json!({
            "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": "a" }, "spec": spec,
        }))
        .expect("readable");
        parse_image(&object).err().map(|errors| errors.0.into_iter().map(|error| error.field).collect()).unwrap_or_default()
    }

    #[rstest]
    #[case(json!({ "description": "x".repeat(1025) }), "spec.description")]
    #[case(json!({ "caBundleRef": { "name": "" } }), "spec.caBundleRef.name")]
    #[case(json!({ "caBundleRef": { "name": "a", "key": "" } }), "spec.caBundleRef.key")]
    #[case(json!({ "operatingSystem": { "family": "Ubuntu" } }), "spec.operatingSystem.family")]
    #[case(json!({ "operatingSystem": { "family": "ubuntu-" } }), "spec.operatingSystem.family")]
    #[case(json!({ "defaults": { "preference": "" } }), "spec.defaults.preference")]
    #[case(json!({ "defaults": { "instancetype": "u1/medium" } }), "spec.defaults.instancetype")]
    #[case(json!({ "operatingSystem": { "name": "" } }), "spec.operatingSystem.name")]
    #[case(json!({ "operatingSystem": { "version": "24 04" } }), "spec.operatingSystem.version")]
    #[case(json!({ "operatingSystem": { "version": "x".repeat(64) } }), "spec.operatingSystem.version")]
    #[case(json!({ "usages": [] }), "spec.usages")]
    #[case(json!({ "usages": ["Worker", "Worker"] }), "spec.usages")]
    #[case(json!({ "storage": { "targets": [{ "accessModes": [] }] } }), "spec.storage.targets[0].accessModes")]
    #[case(json!({ "storage": { "targets": [{ "accessModes": ["RWX"] }] } }), "spec.storage.targets[0].accessModes")]
    fn a_breach_is_told_with_its_field(#[case] spec: Value, #[case] field: &str) {
        assert_eq!(fields(spec), [field]);
    }

    #[test]
    fn what_the_schema_takes_is_taken() {
        let spec = json!({
            "description": "x".repeat(1024), "caBundleRef": { "name": "a" }, "usages": ["VirtualMachine", "Worker"],
            "defaults": { "instancetype": "u1.medium", "preference": "ubuntu" },
            "access": { "policy": "Selected", "namespaceSelector": { "matchLabels": { "a": "b" } } },
            "credentialsSecretRef": { "name": "reg" },
            "operatingSystem": { "family": "opensuse-leap.15", "name": "Ünïx", "version": "v1.35.6+k3s1" },
            "storage": { "targets": [{ "accessModes": ["ReadWriteMany", "ReadWriteOncePod"] }] },
        });
        assert_eq!(fields(spec), Vec::<String>::new());
    }

    /// The limits written here are those of the CRD: a change there must be made here.
    #[test]
    fn the_limits_are_the_crds() {
        let crd = serde_json::to_value(<GoldenImage as kube::CustomResourceExt>::crd()).expect("CRD");
        let spec = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
        assert_eq!(spec["description"]["maxLength"], 1024);
        assert_eq!(spec["caBundleRef"]["properties"]["name"]["maxLength"], 253);
        let os = &spec["operatingSystem"]["properties"];
        assert_eq!(os["name"]["maxLength"], 63);
        assert_eq!(os["family"]["pattern"], "^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$");
        assert_eq!(os["version"]["pattern"], "^[A-Za-z0-9]([-A-Za-z0-9_.+]{0,61}[A-Za-z0-9])?$");
        assert_eq!(os["kubernetesVersion"]["pattern"], crate::model::KubernetesVersion::PATTERN);
        assert_eq!(os["kubernetesVersion"]["maxLength"], crate::model::KubernetesVersion::LONGEST);
        for name in ["instancetype", "preference"] {
            assert_eq!(spec["defaults"]["properties"][name]["maxLength"], 63);
            assert_eq!(spec["defaults"]["properties"][name]["pattern"], "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$");
        }
        assert_eq!(
            spec["storage"]["properties"]["targets"]["items"]["properties"]["accessModes"]["items"]["enum"],
            json!(super::ACCESS_MODES)
        );
    }
}
