//! Our trimmed schemas of other projects' kinds say nothing that the real ones do not.

use crate::{
    CLUSTER,
    harness::{Cluster, Flavor, Needs, Options, crds, repository, skip},
};
use serde_json::Value;

const SAMPLES: &str = include_str!("samples.yaml");

/// Makes one object of each kind, strictly, and writes a status where the kind has that subresource.
async fn make_one_of_each(cluster: &Cluster) -> usize {
    let made = cluster.apply(SAMPLES).await;
    let status =
        "{apiVersion: cdi.kubevirt.io/v1beta1, kind: DataVolume, metadata: {name: golden}, status: {phase: Succeeded, progress: 100.0%}}";
    let file = cluster.dir().join("status.yaml");
    std::fs::write(&file, status).unwrap();
    let file = file.to_str().unwrap();
    let status_of = ["apply", "--server-side", "--subresource=status", "--validate=strict", "-f", file];
    cluster.kubectl(status_of).await.ok();
    let phase = cluster.kubectl(["get", "dv", "golden", "-o", "jsonpath={.status.phase}"]).await.ok();
    assert_eq!(phase, "Succeeded");
    made.len()
}

#[tokio::test]
async fn objects_of_each_kind_are_accepted_on_the_trimmed_schemas() {
    let Some(_) = CLUSTER.on(Needs::Scripted).await else { return };
    // A server of its own: on the shared one other tests leave webhooks that nobody answers.
    let cluster = Cluster::start(Options::default().foreign_crds(Flavor::Trimmed)).await;
    let kinds = crds::read_folder(&repository().join("e2e/schemas")).len();
    assert!(make_one_of_each(&cluster).await > kinds, "one DataVolume by source, one by sourceRef, one of each other kind");
}

#[tokio::test]
async fn objects_of_each_kind_are_accepted_on_the_real_schemas() {
    let Some(_) = CLUSTER.on(Needs::Scripted).await else { return };
    if Flavor::real_folder().is_none() {
        return skip("the real schemas are not beside the repository (../shared/crds)");
    }
    let cluster = Cluster::start(Options::default().foreign_crds(Flavor::Real)).await;
    make_one_of_each(&cluster).await;
}

#[test]
fn trimmed_schemas_are_a_part_of_the_real_ones() {
    let Some(folder) = Flavor::real_folder() else { return skip("the real schemas are not beside the repository (../shared/crds)") };
    let real = crds::read_folder(&folder);
    let mut compared = 0;
    for (name, trimmed) in crds::read_folder(&repository().join("e2e/schemas")) {
        let Some(real) = real.get(&name) else { continue };
        let (trimmed, real): (Value, Value) = (serde_json::from_str(&trimmed).unwrap(), serde_json::from_str(real).unwrap());
        for same in ["/spec/group", "/spec/scope", "/spec/names/kind", "/spec/names/plural", "/spec/names/shortNames"] {
            assert_eq!(trimmed.pointer(same), real.pointer(same), "{name} {same}");
        }
        for version in trimmed["spec"]["versions"].as_array().unwrap() {
            let theirs = real["spec"]["versions"].as_array().unwrap().iter().find(|v| v["name"] == version["name"]);
            let theirs = theirs.unwrap_or_else(|| panic!("{name}: the real one has no version {}", version["name"]));
            let status = |version: &Value| version.pointer("/subresources/status").is_some();
            assert_eq!(status(version), status(theirs), "{name}: the status subresource");
            let schema = "/schema/openAPIV3Schema";
            is_part_of(version.pointer(schema).unwrap(), theirs.pointer(schema).unwrap(), &name);
        }
        compared += 1;
    }
    assert!(compared >= 9, "only {compared} kinds were compared");
}

/// Each field of ours is one of theirs, of the same type, and what they require of it is not more than we require.
fn is_part_of(ours: &Value, theirs: &Value, at: &str) {
    if theirs["x-kubernetes-preserve-unknown-fields"] == true {
        return;
    }
    assert_eq!(ours.get("type"), theirs.get("type"), "{at}");
    for (field, schema) in ours["properties"].as_object().into_iter().flatten() {
        // Metadata is the server's own business wherever it is.
        if field == "metadata" {
            continue;
        }
        let theirs = theirs["properties"].get(field).unwrap_or_else(|| panic!("{at}.{field}: the real schema has no such field"));
        is_part_of(schema, theirs, &format!("{at}.{field}"));
    }
    for item in ["items", "additionalProperties"] {
        if let (Some(ours), Some(theirs)) = (ours.get(item), theirs.get(item)) {
            is_part_of(ours, theirs, &format!("{at}[]"));
        }
    }
    // A field they require and we have must be required by us too; else a test passes that no cluster would let pass.
    for field in theirs["required"].as_array().into_iter().flatten() {
        let known = ours["properties"].get(field.as_str().unwrap()).is_some();
        let required = ours["required"].as_array().is_some_and(|required| required.contains(field));
        assert!(!known || required, "{at}.{field}: required by the real schema");
    }
}
