//! `helm/cozystack` in the platform's hands: what a platform renders with the package on, off, and off in spite of on.

use serde_json::{Value, json};

use crate::helm::{chart, repository, template};

const PACKAGE: &str = "cozystack.kubernetes-worker-image";

/// Everything the platform renders with these values.
fn platform(values: &Value) -> Vec<Value> {
    let file = tempfile::NamedTempFile::with_suffix(".json").expect("a file");
    std::fs::write(file.path(), values.to_string()).expect("write the values");
    let arguments = ["--values", file.path().to_str().expect("a path in UTF-8")];
    let rendered = template("cozystack", "cozy-system", &chart("platform"), &arguments).unwrap_or_else(|error| panic!("{error}"));
    let documents: Vec<Value> = serde_saphyr::from_multiple(&rendered).expect("YAML");
    documents.into_iter().filter(|document| !document.is_null()).collect()
}

fn packages(values: &Value) -> Vec<Value> {
    platform(values).into_iter().filter(|object| object["kind"] == "Package").collect()
}

fn named<'a>(objects: &'a [Value], name: &str) -> &'a Value {
    objects.iter().find(|object| object["metadata"]["name"] == name).unwrap_or_else(|| panic!("no {name} in {objects:?}"))
}

#[test]
fn off_by_default_and_values_alone_do_not_turn_it_on() {
    assert_eq!(packages(&json!({})), [] as [Value; 0]);
    let values = json!({"kubernetesWorkerImage": {"storageClass": "local"}});
    assert_eq!(packages(&values), [] as [Value; 0]);
}

#[test]
fn on_it_is_a_package_that_helm_keeps() {
    let packages = packages(&json!({"bundles": {"enabledPackages": [PACKAGE]}}));
    assert_eq!(packages.len(), 1);
    assert_eq!(packages[0]["metadata"], json!({"name": PACKAGE, "annotations": {"helm.sh/resource-policy": "keep"}}));
    assert_eq!(packages[0]["spec"], json!({"variant": "default"}));
}

#[test]
fn disabled_wins_over_enabled() {
    let values = json!({"bundles": {"enabledPackages": [PACKAGE], "disabledPackages": [PACKAGE]}, "kubernetesWorkerImage": {"storageClass": "local"}});
    assert_eq!(packages(&values), [] as [Value; 0]);
}

#[test]
fn without_the_bundle_that_has_storage_there_is_no_package() {
    for bundles in [
        json!({"enabledPackages": [PACKAGE], "iaas": {"enabled": false}}),
        json!({"enabledPackages": [PACKAGE], "system": {"variant": "isp-hosted"}}),
    ] {
        assert_eq!(packages(&json!({"bundles": bundles})), [] as [Value; 0]);
    }
}

#[test]
fn the_platforms_values_reach_the_chart_and_no_other() {
    let list = json!({"storageClass": "local", "images": [{"schematicID": "abc", "version": "v1.13.6"}, {"name": "u", "url": "https://example.org/u.img"}]});
    let enabled = [PACKAGE, "cozystack.vm-default-images"];
    let packages = packages(&json!({"bundles": {"enabledPackages": enabled}, "kubernetesWorkerImage": list}));
    assert_eq!(named(&packages, PACKAGE)["spec"]["components"], json!({"kubernetes-worker-image": {"values": list}}));
    assert_eq!(named(&packages, "cozystack.vm-default-images")["spec"], json!({"variant": "default"}));
}

#[test]
fn a_nulled_key_is_no_key() {
    let packages = packages(&json!({"bundles": {"enabledPackages": [PACKAGE]}, "kubernetesWorkerImage": null}));
    assert_eq!(packages[0]["spec"], json!({"variant": "default"}));
}

/// The PackageSource is inert and always there, like every other; what it names must exist here or in the platform.
#[test]
fn the_source_names_what_exists() {
    let sources: Vec<_> = platform(&json!({})).into_iter().filter(|object| object["kind"] == "PackageSource").collect();
    let source = named(&sources, PACKAGE);
    let variant = &source["spec"]["variants"][0];
    assert_eq!(variant["name"], "default", "the variant that the Package selects");
    let component = &variant["components"][0];
    assert_eq!(component["name"], "kubernetes-worker-image", "the component that the values are forwarded to");
    assert_eq!(component["path"], "system/kubernetes-worker-image");
    assert_eq!(component["install"], json!({"namespace": "cozy-kubernetes-worker-image", "releaseName": "kubernetes-worker-image"}));
    for library in component["libraries"].as_array().expect("libraries") {
        let listed = variant["libraries"].as_array().expect("libraries").iter().find(|listed| listed["name"] == *library);
        let path = listed.expect("a library of the variant")["path"].as_str().expect("a path");
        let folder = repository().join("helm").join(path.trim_start_matches("library/"));
        assert!(folder.join("Chart.yaml").is_file(), "{path}");
        // The chart takes it in by the name under which the platform puts it there.
        let linked = repository().join("helm/kubernetes-worker-image/charts").join(library.as_str().expect("a name"));
        assert_eq!(linked.canonicalize().expect("the chart's library"), folder.canonicalize().expect("the library"));
    }
    let needs: Vec<&str> = variant["dependsOn"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    for need in ["networking", "cozystack-basics", "cert-manager", "kubevirt-cdi", "prometheus-operator-crds"] {
        assert!(needs.contains(&format!("cozystack.{need}").as_str()), "{need} in {needs:?}");
    }
}

/// The sixteen VM images: one list with today's addresses, one to be filled, for the same systems.
#[test]
fn the_example_lists_hold_the_platforms_sixteen() {
    let read = |name: &str| {
        let text = std::fs::read_to_string(repository().join("helm/cozystack/examples").join(name)).expect(name);
        let list: Value = serde_saphyr::from_str(&text).expect(name);
        list["images"].as_array().expect("images").clone()
    };
    let text = |entry: &Value, field: &str| entry[field].as_str().unwrap_or_else(|| panic!("{field} in {entry}")).to_owned();
    let (today, pinned) = (read("vm-default-images.yaml"), read("vm-images-pinned.yaml"));
    assert_eq!((today.len(), pinned.len()), (16, 16));
    for (today, pinned) in today.iter().zip(&pinned) {
        let name: golden_catalog::model::ImageName = text(today, "name").parse().expect("an image name");
        assert_eq!(text(today, "storage"), "20Gi");
        assert!(text(pinned, "name").starts_with(name.as_str()), "{name}");
        assert_eq!(today["os"], pinned["os"]);
        for url in [text(today, "url"), text(pinned, "url")] {
            let url: golden_catalog::model::HttpUrl = url.parse().expect("a URL");
            assert!(url.is_https(), "{url}");
        }
        // Nobody's digest is made up: the form cannot be applied before it is filled.
        assert_eq!(text(pinned, "digest"), "sha256:FILL_SHA256");
        text(pinned, "digest").parse::<golden_catalog::model::Digest>().expect_err("a placeholder is no digest");
        let filled = text(pinned, "name").replace("FILL_BUILD", "20261101");
        filled.parse::<golden_catalog::model::ImageName>().expect("a filled name");
    }
}
