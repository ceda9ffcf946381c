//! `e2e/charts/vectors.yaml`, run by the Rust types and by the library chart.

use std::{collections::BTreeMap, sync::LazyLock};

use golden_catalog::{
    foreign::Quantity,
    model::{
        ClassName, ContainerReference, DiskSize, GoldenName, Identity, ImageName, KubernetesVersion, Naming, Schematic, SchematicId,
        Source, TalosFactory, TalosVersion,
    },
    rules::container::tag_agrees,
};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::helm;

/// The file, as both readers see it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Vectors {
    messages: BTreeMap<String, String>,
    identities: Vec<IdentityVector>,
    names: Vec<NameVector>,
    #[serde(rename = "schematicIDs")]
    schematic_ids: Vec<TextVector>,
    versions: Vec<TextVector>,
    references: Vec<TextVector>,
    kubernetes_versions: Vec<TextVector>,
    tags: Vec<TagVector>,
    sizes: Vec<SizeVector>,
    quantities: Vec<SizeVector>,
    pub comparisons: Vec<Comparison>,
    pub claims: Vec<Claim>,
    pub default_classes: Vec<ClassVector>,
    pub frozen_classes: Vec<ClassVector>,
    resolutions: Vec<Case>,
    pub decisions: Vec<Case>,
}

#[derive(Debug, Deserialize)]
struct IdentityVector {
    source: Value,
    line: String,
    identity: String,
}

#[derive(Debug, Deserialize)]
struct NameVector {
    of: Value,
    name: String,
}

/// A text that is accepted, or refused with these words.
#[derive(Debug, Deserialize)]
struct TextVector {
    text: String,
    #[serde(default)]
    error: String,
}

#[derive(Debug, Deserialize)]
struct TagVector {
    reference: String,
    version: String,
    #[serde(default)]
    error: String,
}

#[derive(Debug, Deserialize)]
struct SizeVector {
    text: Value,
    bytes: Option<String>,
    error: Option<String>,
}

#[derive(Debug, Deserialize)]
pub struct Comparison {
    pub disk: String,
    pub golden: String,
    smaller: bool,
    pub shown: [String; 2],
}

#[derive(Debug, Deserialize)]
pub struct Claim {
    pub disk: String,
    pub overhead: String,
    pub bytes: String,
}

/// A class, and for a pool's where it comes from.
#[derive(Debug, Deserialize)]
pub struct ClassVector {
    pub stated: Option<String>,
    #[serde(default)]
    pub disks: Vec<Value>,
    #[serde(default)]
    pub siblings: Vec<String>,
    pub template: Option<Value>,
    pub classes: Vec<Value>,
    pub class: String,
    pub from: Option<String>,
}

/// A resolution or decision: what must come out, or the message of the refusal and what fills its braces.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Case {
    pub name: String,
    #[serde(default)]
    pub image: Map<String, Value>,
    pub observed: Option<Value>,
    pub storage_class: Option<String>,
    pub disk_size: Option<Value>,
    #[serde(default)]
    out: Map<String, Value>,
    pub error: Option<String>,
    #[serde(default)]
    pub with: BTreeMap<String, String>,
}

pub static VECTORS: LazyLock<Vectors> = LazyLock::new(|| {
    let text = std::fs::read_to_string(helm::chart("vectors.yaml")).expect("read the vectors");
    serde_saphyr::from_str(&text).expect("the vectors have the form above")
});

/// What the library answered to every vector, from one render.
static ANSWERS: LazyLock<Value> = LazyLock::new(|| {
    let vectors = helm::chart("vectors.yaml");
    let rendered = helm::template("probe", "tenant-a", &helm::chart("probe"), &["--values", vectors.to_str().expect("a path in UTF-8")]);
    let rendered: Value = serde_saphyr::from_str(&rendered.expect("render the vectors")).expect("answers in YAML");
    rendered["answers"].clone()
});

/// The library's answers of one kind, as many as there are vectors.
pub fn answers(kind: &str, vectors: usize) -> &'static [Value] {
    let answers = ANSWERS[kind].as_array().unwrap_or_else(|| panic!("no answers for {kind}"));
    assert!(vectors > 0, "no vectors for {kind}");
    assert_eq!(answers.len(), vectors, "{kind}");
    answers
}

/// A field's text.
pub fn text<'a>(of: &'a Value, field: &str) -> Option<&'a str> {
    of.get(field).and_then(Value::as_str)
}

/// A vector's source as the daemon parses one.
fn source(of: &Value) -> Source {
    let parsed = |of: &Value, field| text(of, field).map(|value| value.parse().expect("architecture")).unwrap_or_default();
    if let Some(talos) = of.get("talosFactory") {
        return Source::TalosFactory(TalosFactory {
            schematic: Schematic::Id(text(talos, "schematicID").expect("schematicID").parse().expect("schematic ID")),
            version: text(talos, "version").expect("version").parse().expect("version"),
            platform: text(talos, "platform").map(|platform| platform.parse().expect("platform")).unwrap_or_default(),
            architecture: parsed(talos, "architecture"),
            secure_boot: talos.get("secureBoot").and_then(Value::as_bool).unwrap_or_default(),
            factory_url: TalosFactory::default_factory(),
        });
    }
    if let Some(disk) = of.get("containerDisk") {
        let reference = text(disk, "reference").expect("reference").parse().expect("reference");
        return Source::ContainerDisk { reference, architecture: parsed(disk, "architecture") };
    }
    let http = of.get("http").expect("one of three sources");
    Source::Http { url: text(http, "url").expect("url").parse().expect("URL"), architecture: parsed(http, "architecture") }
}

#[test]
fn the_library_says_what_the_vectors_say() {
    let said: BTreeMap<String, String> = serde_json::from_value(ANSWERS["messages"].clone()).expect("messages");
    assert_eq!(said, VECTORS.messages);
}

#[test]
fn identities() {
    let answers = answers("identities", VECTORS.identities.len());
    for (vector, answer) in VECTORS.identities.iter().zip(answers) {
        let source = source(&vector.source);
        assert_eq!(Identity::line(&source, None).as_deref(), Some(vector.line.as_str()), "{vector:?}");
        assert_eq!(Identity::of(&source, None).expect("known").as_str(), vector.identity, "{vector:?}");
        assert_eq!(text(answer, "line"), Some(vector.line.as_str()), "helm: {vector:?}");
        assert_eq!(text(answer, "identity"), Some(vector.identity.as_str()), "helm: {vector:?}");
    }
}

#[test]
fn names() {
    for (vector, answer) in VECTORS.names.iter().zip(answers("names", VECTORS.names.len())) {
        let is = |field| vector.of.get(field).and_then(Value::as_bool).unwrap_or_default();
        let image: ImageName = text(&vector.of, "image").unwrap_or("talos").parse().expect("image name");
        let class: Option<ClassName> = text(&vector.of, "class").map(|class| class.parse().expect("class"));
        let source = source(&vector.of);
        let naming =
            Naming { source: &source, resolved: None, image: &image, for_virtual_machines: is("virtualMachine"), is_kairos: is("kairos") };
        let name = GoldenName::derive(naming, class.as_ref()).expect("known").expect("fits");
        assert_eq!(name.as_str(), vector.name, "{vector:?}");
        assert_eq!(answer.as_str(), Some(vector.name.as_str()), "helm: {vector:?}");
    }
}

/// R1 and R2: the same texts refused with the same words.
fn refusals<T: std::str::FromStr>(kind: &str, vectors: &[TextVector])
where
    T::Err: ToString,
{
    for (vector, answer) in vectors.iter().zip(answers(kind, vectors.len())) {
        let error = vector.text.parse::<T>().err().map(|error| error.to_string()).unwrap_or_default();
        assert_eq!(error, vector.error, "{kind} {:?}", vector.text);
        assert_eq!(answer.as_str(), Some(vector.error.as_str()), "helm: {kind} {:?}", vector.text);
    }
}

#[test]
fn r1_schematic_ids() {
    refusals::<SchematicId>("schematicIDs", &VECTORS.schematic_ids);
}

#[test]
fn r1_versions() {
    refusals::<TalosVersion>("versions", &VECTORS.versions);
}

#[test]
fn r2_references() {
    refusals::<ContainerReference>("references", &VECTORS.references);
}

#[test]
fn r2_kubernetes_versions() {
    refusals::<KubernetesVersion>("kubernetesVersions", &VECTORS.kubernetes_versions);
}

#[test]
fn r2_tags() {
    for (vector, answer) in VECTORS.tags.iter().zip(answers("tags", VECTORS.tags.len())) {
        let reference: ContainerReference = vector.reference.parse().expect("reference");
        let error = tag_agrees(&reference, &vector.version.parse().expect("version")).err().unwrap_or_default();
        assert_eq!(error, vector.error, "{vector:?}");
        assert_eq!(answer.as_str(), Some(vector.error.as_str()), "helm: {vector:?}");
    }
}

#[test]
fn sizes() {
    for (vector, answer) in VECTORS.sizes.iter().zip(answers("sizes", VECTORS.sizes.len())) {
        // A bare number of a values file is the text of its digits.
        let given = vector.text.as_str().map_or_else(|| vector.text.to_string(), str::to_owned);
        match given.parse::<DiskSize>() {
            Ok(size) => assert_eq!(Some(size.bytes().to_string()), vector.bytes, "{vector:?}"),
            Err(error) => assert_eq!(Some(error.to_string()), vector.error, "{vector:?}"),
        }
        assert_eq!(text(answer, "bytes"), vector.bytes.as_deref(), "helm: {vector:?}");
        assert_eq!(text(answer, "error"), vector.error.as_deref(), "helm: {vector:?}");
    }
}

#[test]
fn r16_quantities() {
    for (vector, answer) in VECTORS.quantities.iter().zip(answers("quantities", VECTORS.quantities.len())) {
        let read: Quantity = serde_json::from_value(vector.text.clone()).expect("text or a number");
        let bytes = read.bytes().filter(|bytes| *bytes > 0).map(|bytes| bytes.to_string());
        assert_eq!(bytes, vector.bytes, "{vector:?}");
        assert_eq!(answer.as_str(), Some(vector.bytes.as_deref().unwrap_or_default()), "helm: {vector:?}");
    }
}

#[test]
fn r16_comparisons() {
    for (vector, answer) in VECTORS.comparisons.iter().zip(answers("comparisons", VECTORS.comparisons.len())) {
        let [disk, golden]: [DiskSize; 2] = [&vector.disk, &vector.golden].map(|size| size.parse().expect("size"));
        assert_eq!(disk < golden, vector.smaller, "{vector:?}");
        assert_eq!(answer["smaller"], vector.smaller, "helm: {vector:?}");
        assert_eq!(answer["shown"], serde_json::json!(vector.shown), "helm: {vector:?}");
    }
}

#[test]
fn r16_claims_on_a_file_system() {
    for (vector, answer) in VECTORS.claims.iter().zip(answers("claims", VECTORS.claims.len())) {
        assert_eq!(answer.as_str(), Some(vector.bytes.as_str()), "helm: {vector:?}");
    }
}

#[test]
fn r14_default_classes() {
    for (vector, answer) in VECTORS.default_classes.iter().zip(answers("defaultClasses", VECTORS.default_classes.len())) {
        assert_eq!(answer.as_str(), Some(vector.class.as_str()), "helm: {vector:?}");
    }
}

#[test]
fn r15_frozen_classes() {
    for (index, (vector, answer)) in VECTORS.frozen_classes.iter().zip(answers("frozenClasses", VECTORS.frozen_classes.len())).enumerate() {
        let got = (text(answer, "class"), text(answer, "from"));
        assert_eq!(got, (Some(vector.class.as_str()), vector.from.as_deref()), "helm: frozenClasses[{index}]");
    }
}

/// A message with its braces filled as the case says.
pub fn filled(message: &str, case: &Case) -> String {
    let subject = if case.image.contains_key("disk") { "VMDisk tenant-a/web" } else { "KubernetesNodes tenant-a/alpha-gpu" };
    let template = VECTORS.messages.get(message).unwrap_or_else(|| panic!("no message {message}"));
    let fill = |text: String, (name, value): (&String, &String)| text.replace(&format!("{{{name}}}"), value);
    case.with.iter().fold(template.replace("{subject}", subject), fill)
}

/// Compares what came out with what must come out; collects every difference, so that one run shows all.
fn check(kind: &str, cases: &[Case]) {
    let mut wrong = vec![];
    for (case, answer) in cases.iter().zip(answers(kind, cases.len())) {
        let error = text(answer, "error");
        if let Some(message) = &case.error {
            let expected = filled(message, case);
            if error != Some(expected.as_str()) {
                wrong.push(format!("{}\n  expected {expected}\n  got      {}", case.name, error.unwrap_or("no refusal")));
            }
            continue;
        }
        assert!(!case.out.is_empty(), "{kind} {:?} expects nothing", case.name);
        if let Some(error) = error {
            wrong.push(format!("{}\n  refused: {error}", case.name));
        }
        for (path, expected) in &case.out {
            let got = path.split('.').try_fold(answer, |value, key| value.get(key)).unwrap_or(&Value::Null);
            if got != expected {
                wrong.push(format!("{}: {path}\n  expected {expected}\n  got      {got}", case.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {kind} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn resolutions() {
    check("resolutions", &VECTORS.resolutions);
}

#[test]
fn decisions() {
    check("decisions", &VECTORS.decisions);
}

/// Every message is met by some vector, or it is one that only a cluster can bring about.
#[test]
fn every_message_has_a_vector() {
    let met = |message: &String| VECTORS.resolutions.iter().chain(&VECTORS.decisions).any(|case| case.error.as_ref() == Some(message));
    let unmet: Vec<_> = VECTORS.messages.keys().filter(|message| !met(message)).collect();
    assert_eq!(unmet, ["classNotFound"], "shown on a cluster: a class that does not exist");
}
