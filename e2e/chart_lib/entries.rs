//! `e2e/charts/entries.yaml`: what an entry may be and what of a list is refused, asked of the parser, of the chart by real helm,
//! and of the CRD on a real API server.

use std::sync::LazyLock;

use golden_catalog::{
    api::GoldenImage,
    catalog::{Listing, plan, read_list},
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{
    cluster::cluster,
    harness::Cluster,
    helm::{self, repository},
};

#[derive(Debug, Deserialize)]
struct Vectors {
    accepted: Vec<Value>,
    refused: Vec<Refused>,
    /// What only a render refuses.
    spelled: Vec<Value>,
    lists: Vec<ListVector>,
}

#[derive(Debug, Deserialize)]
struct Refused {
    /// The field that the parser names.
    field: String,
    /// Whether only a list can say it.
    #[serde(default)]
    list: bool,
    entry: Value,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ListVector {
    name: String,
    #[serde(default)]
    live: Vec<Live>,
    #[serde(default)]
    storage_class: String,
    #[serde(default)]
    storage: String,
    images: Value,
    #[serde(default)]
    problems: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Live {
    name: String,
    spec: Value,
    /// Whether it has a golden.
    #[serde(default)]
    made: bool,
    /// The classes, as targets name them, that have none all the same.
    #[serde(default)]
    unmade: Vec<String>,
    /// Who wrote it, where that was not the list.
    #[serde(default = "the_list")]
    by: String,
    /// What the factory answered.
    #[serde(rename = "schematicID")]
    schematic_id: Option<String>,
}

fn the_list() -> String {
    "golden-catalog/entries".to_owned()
}

static VECTORS: LazyLock<Vectors> = LazyLock::new(|| {
    let text = std::fs::read_to_string(helm::chart("entries.yaml")).expect("read the vectors");
    serde_saphyr::from_str(&text).expect("the vectors have the form above")
});

/// Renders the catalog's chart with this list, without a cluster.
fn render(images: &[Value], strict: bool) -> Result<String, String> {
    let values = tempfile::NamedTempFile::with_suffix(".json").expect("a file");
    std::fs::write(values.path(), json!({ "images": images, "strictEntries": strict }).to_string()).expect("write the values");
    let arguments = ["--values", values.path().to_str().expect("UTF-8")];
    let chart = repository().join("helm/kubernetes-worker-image");
    helm::template_all("catalog", "cozy-kubernetes-worker-image", &chart, &arguments)
}

#[test]
fn the_parser_takes_what_is_accepted_and_names_what_is_wrong_with_the_rest() {
    let list = |entry: &Value| read_list(&json!({ "images": [entry] }).to_string()).expect("a list").entries.remove(0);
    for entry in VECTORS.accepted.iter().chain(&VECTORS.spelled) {
        list(entry).unwrap_or_else(|error| panic!("{entry}: {error}"));
    }
    for Refused { field, entry, .. } in &VECTORS.refused {
        let error = list(entry).err().unwrap_or_else(|| panic!("{entry} was taken")).to_string();
        assert!(error.contains(&format!("`{field}")), "{entry}: {field} in {error}");
    }
}

#[test]
fn the_chart_takes_and_refuses_the_same() {
    render(&VECTORS.accepted, true).unwrap_or_else(|error| panic!("{error}"));
    // Each tells all that it sees at once: the schema, and of what it leaves the templates.
    let entries: Vec<Value> = VECTORS.refused.iter().map(|refused| &refused.entry).chain(&VECTORS.spelled).cloned().collect();
    let told = render(&entries, true).expect_err("bad entries");
    assert!(!told.contains("secret@"), "{told}");
    let is_told = |index: usize| told.contains(&format!("'/images/{index}'")) || told.contains(&format!("'/images/{index}/"));
    let left: Vec<Value> = entries.iter().enumerate().filter(|(index, _)| !is_told(*index)).map(|(_, entry)| entry.clone()).collect();
    let told = render(&left, true).expect_err("bad entries");
    assert!(!told.contains("secret@"), "{told}");
    for (index, entry) in left.iter().enumerate() {
        let is_told = [format!("\nimages[{index}]: `"), format!("\nimages[{index}] (")].iter().any(|begin| told.contains(begin));
        assert!(is_told, "{entry} was rendered beside: {told}");
    }
}

#[test]
fn without_strict_entries_the_list_is_left_to_the_daemon() {
    let entries: Vec<Value> = VECTORS.refused.iter().map(|refused| refused.entry.clone()).collect();
    let rendered = render(&entries, false).unwrap_or_else(|error| panic!("{error}"));
    let documents: Vec<Value> = serde_saphyr::from_multiple(&rendered).expect("YAML");
    let list = documents.iter().find(|object| object["metadata"]["name"] == "golden-catalog-images").expect("the ConfigMap");
    let list = read_list(list["data"]["images.yaml"].as_str().expect("text")).expect("a list");
    assert_eq!(list.entries.len(), entries.len());
    assert!(list.entries.iter().all(Result::is_err));
}

/// What is not null, at every depth: in an object a field that says nothing is left out.
fn said(value: &Value) -> Value {
    match value {
        Value::Object(map) => map.iter().filter(|(_, value)| !value.is_null()).map(|(key, value)| (key.clone(), said(value))).collect(),
        Value::Array(list) => list.iter().map(said).collect(),
        other => other.clone(),
    }
}

/// An entry as the spec that a person would write for it.
fn spec(entry: &Value) -> Value {
    let entry = said(entry);
    let entry = entry.as_object().expect("a map");
    let has = |key: &str| entry.get(key).is_some_and(|value| !value.is_null());
    let (mut spec, mut talos, mut http, mut disk) = (Map::new(), Map::new(), Map::new(), Map::new());
    let mut system = Map::new();
    for (key, value) in entry.iter().filter(|(_, value)| !value.is_null()) {
        let value = value.clone();
        match key.as_str() {
            "name" | "storageClass" => {}
            // In an object the document is text.
            "schematic" if value.is_object() => drop(talos.insert(key.clone(), json!(value.to_string()))),
            "schematicID" | "schematic" | "version" | "platform" | "secureBoot" | "factoryURL" => drop(talos.insert(key.clone(), value)),
            "imageFactoryURL" => drop(talos.insert("factoryURL".into(), value)),
            "url" => drop(http.insert(key.clone(), value)),
            "reference" => drop(disk.insert(key.clone(), value)),
            "architecture" if has("url") => drop(http.insert(key.clone(), value)),
            "architecture" if has("reference") => drop(disk.insert(key.clone(), value)),
            "kubernetesVersion" => drop(system.insert(key.clone(), value)),
            "architecture" => drop(talos.insert(key.clone(), value)),
            "os" => {
                let mut os = value.as_object().cloned().unwrap_or_default();
                // In an object it is lowercase.
                if let Some(Value::String(family)) = os.get_mut("family") {
                    family.make_ascii_lowercase();
                }
                system.extend(os);
            }
            "operatingSystem" => system.extend(value.as_object().cloned().unwrap_or_default()),
            "storage" if !value.is_object() => {
                let size = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                spec.insert(key.clone(), json!({ "targets": [{ "size": size }] }));
            }
            _ => drop(spec.insert(key.clone(), value)),
        }
    }
    let members = [("talosFactory", talos), ("containerDisk", disk), ("http", http)].into_iter().filter(|(_, member)| !member.is_empty());
    let source: Map<String, Value> = members.map(|(name, member)| (name.to_owned(), Value::Object(member))).collect();
    spec.insert("source".into(), Value::Object(source));
    if !system.is_empty() {
        spec.insert("operatingSystem".into(), Value::Object(system));
    }
    Value::Object(spec)
}

#[tokio::test]
async fn the_api_server_takes_and_refuses_the_same() {
    let Some(cluster) = cluster().await else { return };
    let images: Api<kube::api::DynamicObject> = cluster.api(&cluster.admin(), "cozystack.io/v1alpha1", "GoldenImage", "").await;
    let strict = PatchParams { dry_run: true, ..PatchParams::apply("e2e").force() }.validation_strict();
    let ask = async |entry: &Value| {
        let name = entry.get("name").and_then(Value::as_str).unwrap_or("talos");
        let object =
            json!({ "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": name }, "spec": spec(entry) });
        images.patch(name, &strict, &Patch::Apply(object)).await
    };
    for entry in &VECTORS.accepted {
        ask(entry).await.unwrap_or_else(|error| panic!("{entry}: {error}"));
    }
    for Refused { entry, .. } in VECTORS.refused.iter().filter(|refused| !refused.list) {
        assert!(ask(entry).await.is_err(), "the API server took {entry}");
    }
}

/// What the daemon would tell of a list.
fn told(vector: &ListVector) -> Vec<String> {
    let list = read_list(&json!({ "images": vector.images, "storageClass": vector.storage_class, "storage": vector.storage }).to_string())
        .expect("a list");
    let shown = |live: &Live| {
        let mut shown = object(live);
        let fields = json!({ "f:spec": { "f:digest": {} } });
        shown["metadata"]["managedFields"] =
            json!([{ "manager": live.by, "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": fields }]);
        serde_json::from_value(shown).expect("a GoldenImage")
    };
    let live: Vec<GoldenImage> = vector.live.iter().map(shown).collect();
    let plan = plan(&list, &live, "cozy-kubernetes-worker-image/golden-catalog-images");
    let edited = plan.listings.into_values().filter_map(|listing| match listing {
        Listing::Edited(message) => Some(message),
        _ => None,
    });
    let mut told: Vec<String> = plan.problems.into_iter().map(|problem| problem.message).chain(edited).collect();
    told.sort_unstable();
    told
}

fn object(live: &Live) -> Value {
    json!({
        "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": live.name }, "spec": live.spec,
        "status": status(live),
    })
}

fn status(live: &Live) -> Value {
    let wanted = live.spec.pointer("/storage/targets").and_then(Value::as_array).cloned().unwrap_or_else(|| vec![json!({})]);
    let classes = wanted.iter().map(|target| target["storageClassName"].as_str().unwrap_or_default());
    let is_made = |class: &&str| live.made && !live.unmade.iter().any(|unmade| unmade == class);
    let targets: Vec<_> = classes
        .filter(is_made)
        .map(|class| {
            let resolved = if class.is_empty() { "replicated" } else { class };
            json!({ "requestedClass": class, "storageClassName": resolved, "golden": format!("golden-{}-{resolved}", live.name), "claimUID": "u" })
        })
        .collect();
    let mut status = json!({ "targets": targets });
    if let Some(id) = &live.schematic_id {
        status["schematicID"] = json!(id);
    }
    status
}

#[test]
fn the_daemon_tells_of_a_list_what_the_vectors_say() {
    for vector in &VECTORS.lists {
        assert_eq!(told(vector), vector.problems, "{}", vector.name);
    }
}

/// One after the other, because a list is judged beside all GoldenImages of the cluster.
#[tokio::test]
async fn a_render_beside_live_images_says_what_the_daemon_says() {
    let Some(cluster) = cluster().await else { return };
    let images: Api<GoldenImage> = Api::all(cluster.admin());
    let namespace = cluster.namespace("daemon").await;
    for vector in &VECTORS.lists {
        for live in &vector.live {
            let made: GoldenImage = serde_json::from_value(object(live)).expect("a GoldenImage");
            let params = PostParams { field_manager: Some(live.by.clone()), ..PostParams::default() };
            images.create(&params, &made).await.unwrap_or_else(|error| panic!("{}: {error}", vector.name));
            let patch = Patch::Merge(json!({ "status": status(live) }));
            images
                .patch_status(&live.name, &PatchParams::default(), &patch)
                .await
                .unwrap_or_else(|error| panic!("{}: {error}", vector.name));
        }
        let values = json!({ "images": vector.images, "storageClass": vector.storage_class, "storage": vector.storage });
        let out = install(cluster, &namespace, &values).await;
        if vector.problems.is_empty() {
            assert!(succeeded(&out), "{}: {}", vector.name, out.stderr);
        } else {
            assert!(!succeeded(&out), "{} was rendered", vector.name);
            for problem in &vector.problems {
                assert!(out.stderr.contains(problem), "{}: {problem} in {}", vector.name, out.stderr);
            }
            assert_eq!(out.stderr.matches("\nimages[").count(), vector.problems.len(), "{}: {}", vector.name, out.stderr);
            let left = install(cluster, &namespace, &json!({ "images": vector.images, "strictEntries": false })).await;
            assert!(succeeded(&left), "{}: {}", vector.name, left.stderr);
        }
        for live in &vector.live {
            images.delete(&live.name, &DeleteParams::default()).await.expect("delete");
        }
    }
}

fn succeeded(out: &crate::harness::Output) -> bool {
    out.code == Some(0)
}

async fn install(cluster: &Cluster, namespace: &str, values: &Value) -> crate::harness::Output {
    let file = tempfile::NamedTempFile::with_suffix(".json").expect("a file");
    std::fs::write(file.path(), values.to_string()).expect("write the values");
    let chart = repository().join("helm/kubernetes-worker-image");
    let (chart, file) = (chart.to_str().expect("UTF-8"), file.path().to_str().expect("UTF-8"));
    cluster.helm(["install", "catalog", chart, "--namespace", namespace, "--skip-crds", "--dry-run=server", "--values", file]).await
}
