//! The CRD in the cluster beside the one this release was built with: what it lacks, and whether it may be brought forward.
//!
//! Helm installs what is in `crds/` once and never upgrades it, so the leader does; only ever forward, because an object that
//! was stored by a newer release would lose the fields that an older one does not know.

use serde_json::Value;

/// The annotation with the release that a CRD is of.
pub const CRD_VERSION: &str = "kubernetes-worker-image.cozystack.io/crd-version";

/// What is to be done about the CRD in the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Upgrade {
    /// It says what ours says.
    Same,
    /// It is older: ours is to be applied.
    Forward,
    /// It is of a newer release, which the text names, or has fields that ours has not: it stays as it is.
    Newer(String),
}

/// Fields that `ours` has and `live` has not, as paths such as `spec.suspend`, sorted.
pub fn missing_fields(live: &Value, ours: &Value) -> Vec<String> {
    let mut missing = Vec::new();
    for (version, schema) in schemas(ours) {
        match schemas(live).find(|(name, _)| *name == version) {
            None => missing.push(format!("version {version}")),
            Some((_, found)) => walk(found, schema, "", &mut missing),
        }
    }
    missing.sort_unstable();
    missing
}

/// What is to be done about the `live` CRD by a release whose own is `ours`.
pub fn upgrade(live: &Value, ours: &Value) -> Upgrade {
    let version = |crd: &Value| crd["metadata"]["annotations"][CRD_VERSION].as_str().map(str::to_owned);
    let (found, own) = (version(live), version(ours));
    if let (Some(found), Some(own)) = (&found, &own)
        && order(found) > order(own)
    {
        return Upgrade::Newer(format!("it is of release {found}, and this one is {own}"));
    }
    let unknown = missing_fields(ours, live);
    if !unknown.is_empty() {
        return Upgrade::Newer(format!("it has fields that this release does not know: {}", unknown.join(", ")));
    }
    if found == own && covers(&live["spec"], &ours["spec"]) { Upgrade::Same } else { Upgrade::Forward }
}

/// `1.10.0` comes after `1.9.3`; a pre-release counts as its release.
fn order(version: &str) -> Vec<u64> {
    version.split(['.', '-', '+']).take(3).map(|part| part.parse().unwrap_or(0)).collect()
}

fn schemas(crd: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let versions = crd["spec"]["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    versions.iter().filter_map(|version| Some((version["name"].as_str()?, &version["schema"]["openAPIV3Schema"])))
}

fn walk(live: &Value, ours: &Value, at: &str, missing: &mut Vec<String>) {
    for (name, schema) in ours["properties"].as_object().into_iter().flatten() {
        let path = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
        match live["properties"].get(name) {
            Some(found) => walk(found, schema, &path, missing),
            // What is kept without being known is not lost.
            None if live["x-kubernetes-preserve-unknown-fields"] == true => {}
            None => missing.push(path),
        }
    }
    if ours["items"].is_object() {
        walk(&live["items"], &ours["items"], &format!("{at}[]"), missing);
    }
}

/// Whether `live` has everything that `ours` says; what the API server or others added does not matter.
fn covers(live: &Value, ours: &Value) -> bool {
    match (live, ours) {
        (Value::Object(live), Value::Object(ours)) => {
            ours.iter().all(|(key, value)| live.get(key).is_some_and(|found| covers(found, value)))
        }
        (Value::Array(live), Value::Array(ours)) => {
            live.len() == ours.len() && live.iter().zip(ours).all(|(live, ours)| covers(live, ours))
        }
        (live, ours) => live == ours,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{CRD_VERSION, Upgrade, missing_fields, upgrade};
    use crate::api::crd;

    fn of(version: &str, change: impl FnOnce(&mut Value)) -> Value {
        let mut crd = crd();
        crd["metadata"]["annotations"][CRD_VERSION] = json!(version);
        change(&mut crd);
        crd
    }

    const SCHEMA: &str = "/spec/versions/0/schema/openAPIV3Schema/properties";

    fn without(path: &str) -> impl FnOnce(&mut Value) {
        let (parent, name) = path.rsplit_once('/').expect("path");
        let (parent, name) = (format!("{SCHEMA}{parent}"), name.to_owned());
        move |crd| {
            crd.pointer_mut(&parent).and_then(Value::as_object_mut).expect("there").remove(&name).expect("there");
        }
    }

    #[test]
    fn our_own_crd_says_its_release() {
        assert_eq!(crd()["metadata"]["annotations"][CRD_VERSION], env!("CARGO_PKG_VERSION"));
        assert_eq!(upgrade(&crd(), &crd()), Upgrade::Same);
    }

    /// Every CRD that was ever released, or stood on main between two parts, goes forward to ours; none is taken for a newer one.
    #[test]
    fn every_crd_that_was_kept_goes_forward() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/e2e/crds");
        let mut kept = 0;
        for file in std::fs::read_dir(folder).expect("e2e/crds") {
            let file = file.expect("a file").path();
            let was: Value = serde_saphyr::from_str(&std::fs::read_to_string(&file).expect("readable")).expect("YAML");
            assert_eq!(upgrade(&was, &crd()), Upgrade::Forward, "{}", file.display());
            assert_eq!(missing_fields(&crd(), &was), Vec::<String>::new(), "{}: a field was taken away", file.display());
            kept += 1;
        }
        assert!(kept > 3, "{kept}");
    }

    #[test]
    fn what_a_server_adds_is_no_difference() {
        let live = of("1.0.0", |crd| {
            crd["spec"]["conversion"] = json!({ "strategy": "None" });
            crd["status"] = json!({});
        });
        assert_eq!(upgrade(&live, &of("1.0.0", |_| {})), Upgrade::Same);
    }

    #[test]
    fn an_older_one_goes_forward_and_its_missing_fields_are_named() {
        let ours = of("1.10.0", |_| {});
        for (version, path, field) in [
            ("1.9.3", "/spec/properties/suspend", "spec.suspend"),
            ("1.10.0", "/status/properties/targets/items/properties/claimUID", "status.targets[].claimUID"),
            ("", "/spec/properties/source/properties/http/properties/url", "spec.source.http.url"),
        ] {
            let live = of(version, without(path));
            assert_eq!(missing_fields(&live, &ours), [field]);
            assert_eq!(upgrade(&live, &ours), Upgrade::Forward, "{version}");
        }
        // No field is missing, and a rule is.
        let live = of("1.9.0", |crd| {
            crd.pointer_mut(&format!("{SCHEMA}/spec/properties/source"))
                .and_then(Value::as_object_mut)
                .expect("there")
                .remove("x-kubernetes-validations");
        });
        assert_eq!((missing_fields(&live, &ours), upgrade(&live, &ours)), (vec![], Upgrade::Forward));
    }

    #[test]
    fn a_newer_one_is_never_taken_back() {
        let newer = of("1.10.0", without("/spec/properties/suspend"));
        assert!(matches!(upgrade(&newer, &of("1.9.9", |_| {})), Upgrade::Newer(why) if why.contains("1.10.0")));
        // Without a version, or with the same, the fields tell.
        for version in ["1.9.9", "", "0.0.1"] {
            let live = of(version, |crd| {
                crd.pointer_mut(&format!("{SCHEMA}/spec/properties")).expect("there")["later"] = json!({ "type": "string" });
            });
            assert!(matches!(upgrade(&live, &of("1.9.9", |_| {})), Upgrade::Newer(why) if why.contains("spec.later")), "{version}");
        }
    }

    #[test]
    fn a_version_that_is_not_served_is_missing() {
        let live = of("1.0.0", |crd| crd["spec"]["versions"][0]["name"] = json!("v1alpha0"));
        assert_eq!(missing_fields(&live, &crd()), ["version v1alpha1"]);
    }
}
