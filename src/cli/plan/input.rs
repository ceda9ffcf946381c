//! From files to the images they ask for: a values file with `images[]`, or GoldenImage manifests.

use std::{collections::BTreeSet, sync::LazyLock};

use serde_json::{Map, Value};

use super::{
    lines::{Kind, Node, documents},
    settings,
};
use crate::{
    api::{FieldError, FieldErrors, GoldenImage, add_untold, parse_image, read_spec, unquoted},
    catalog::read_list,
    model::{Image, public_words},
};

/// One image that a file asks for.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    /// The file as it was named on the command line.
    pub file: String,
    /// The name of the GoldenImage, given or derived; without one its place: `images[3]`, `document[0]`, `items[2]`.
    pub name: String,
    /// The parsed image, or everything that is wrong with it.
    pub image: Result<Image, FieldErrors>,
    /// Where it is written.
    node: Node,
    /// What comes before `storage` in a field's path: nothing in an entry, `spec.` in a manifest.
    prefix: &'static str,
}

impl Candidate {
    /// The line it starts on.
    pub fn line(&self) -> u64 {
        self.node.line
    }

    /// The line of a field of it.
    pub fn line_of(&self, field: &str) -> u64 {
        self.node.line_of(field)
    }

    /// The field that holds a target's size, as it is written here.
    pub fn size_field(&self, target: usize) -> String {
        let full = format!("{}storage.targets[{target}].size", self.prefix);
        let is_short = self.node.get("storage").is_some_and(|storage| matches!(storage.kind, Kind::Scalar(_)));
        if is_short { "storage".to_owned() } else { full }
    }

    /// `name (file:line)`, as messages about other images name this one.
    pub fn shown(&self) -> String {
        format!("{} ({}:{})", self.name, self.file, self.line())
    }
}

/// What a file says.
#[derive(Debug, Clone, Default)]
pub(super) struct Found {
    /// Its images.
    pub candidates: Vec<Candidate>,
    /// The daemon's settings, where it is a values file, as the chart would render them.
    pub settings: Map<String, Value>,
}

/// Why a file says nothing about images.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum InputError {
    #[error("{file} is not valid YAML: {what}")]
    Syntax { file: String, what: String },
    #[error("{file}:{line}: {what}")]
    Form { file: String, line: u64, what: String },
    #[error("{file} holds neither `images` nor a GoldenImage: name the values file of the chart, or manifests")]
    Nothing { file: String },
}

/// Reads one file.
///
/// # Errors
/// When it is neither a values file with `images` nor GoldenImage manifests. Bad images are candidates, not an error.
pub(super) fn read(file: &str, text: &str) -> Result<Found, InputError> {
    let documents = documents(text).map_err(|what| InputError::Syntax { file: file.to_owned(), what })?;
    if documents.iter().any(is_object) {
        return Ok(Found { candidates: read_manifests(file, &documents)?, settings: Map::new() });
    }
    let [root] = &documents[..] else {
        return Err(match documents.get(1) {
            None => InputError::Nothing { file: file.to_owned() },
            Some(second) => InputError::Form { file: file.to_owned(), line: second.line, what: "a values file is one document".into() },
        });
    };
    if matches!(root.kind, Kind::Map(_)) && root.get("images").is_none() {
        return Err(InputError::Nothing { file: file.to_owned() });
    }
    let candidates = read_values(file, text, root)?;
    let wrong = |path: &str, what: String| InputError::Form { file: file.to_owned(), line: root.line_of(path), what };
    settings::of_chart(root).map_err(|(path, what)| wrong(&path, what))?;
    let settings = settings::of_values(root);
    settings::parse(settings.clone())
        .map_err(|(path, what)| wrong(&format!("settings.{path}"), format!("the settings are wrong: {what}")))?;
    Ok(Found { candidates, settings })
}

/// Whether the chart has a value of this name.
pub(super) fn is_value(key: &str) -> bool {
    VALUES.contains(key)
}

/// The chart's values, by its own schema.
static VALUES: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
    let schema: Value = serde_json::from_str(include_str!("../../../helm/kubernetes-worker-image/values.schema.json")).unwrap_or_default();
    schema["properties"].as_object().into_iter().flat_map(Map::keys).cloned().collect()
});

fn read_values(file: &str, text: &str, root: &Node) -> Result<Vec<Candidate>, InputError> {
    let form = |error: crate::catalog::ListError| InputError::Form {
        file: file.to_owned(),
        line: root.line_of("images"),
        what: error.to_string(),
    };
    if let Some(key) = root.keys().find(|key| !VALUES.contains(*key)) {
        let what = format!(
            "`{}` is not a value of the chart: there are {}",
            public_words(key),
            // What the platform adds by itself is nobody's to write.
            VALUES.iter().map(String::as_str).filter(|value| !value.starts_with('_')).collect::<Vec<_>>().join(", ")
        );
        return Err(InputError::Form { file: file.to_owned(), line: root.line_of(key), what });
    }
    let list = read_list(text).map_err(form)?;
    let nodes = root.get("images").and_then(Node::items).unwrap_or_default();
    let candidate = |(entry, node): (Result<crate::catalog::Entry, crate::catalog::EntryError>, &Node)| {
        let (name, image) = match entry {
            Ok(entry) => (entry.name.to_string(), Ok(entry.image)),
            Err(error) => (error.name.unwrap_or_else(|| format!("images[{}]", error.index)), Err(error.errors)),
        };
        Candidate { file: file.to_owned(), name, image, node: node.clone(), prefix: "" }
    };
    Ok(list.entries.into_iter().zip(nodes).map(candidate).collect())
}

/// Whether a document is a Kubernetes object.
fn is_object(node: &Node) -> bool {
    node.get("apiVersion").is_some() && node.get("kind").is_some()
}

fn read_manifests(file: &str, documents: &[Node]) -> Result<Vec<Candidate>, InputError> {
    let mut candidates = Vec::new();
    for (index, document) in documents.iter().enumerate() {
        let kind = document.get("kind").and_then(Node::text).unwrap_or_default();
        match document.get("items").and_then(Node::items).filter(|_| kind.ends_with("List")) {
            Some(items) => {
                let items = items.iter().enumerate();
                candidates.extend(items.filter_map(|(index, item)| read_manifest(file, item, format!("items[{index}]"))));
            }
            None => candidates.extend(read_manifest(file, document, format!("document[{index}]"))),
        }
    }
    if candidates.is_empty() {
        return Err(InputError::Nothing { file: file.to_owned() });
    }
    Ok(candidates)
}

/// A GoldenImage, called after its `place` where it has no name; `None` for another kind, which is somebody else's business.
fn read_manifest(file: &str, node: &Node, place: String) -> Option<Candidate> {
    if node.get("kind").and_then(Node::text) != Some("GoldenImage") {
        return None;
    }
    let name = node.get("metadata").and_then(|metadata| metadata.get("name")).and_then(Node::text);
    Some(Candidate {
        file: file.to_owned(),
        name: name.filter(|name| !name.is_empty()).map_or(place, str::to_owned),
        image: parse_manifest(&node.value()),
        node: node.clone(),
        prefix: "spec.",
    })
}

const API_VERSION: &str = "cozystack.io/v1alpha1";

fn parse_manifest(value: &Value) -> Result<Image, FieldErrors> {
    let mut errors = Vec::new();
    let mut wrong = |field: &str, message: &str| errors.push(FieldError { field: field.to_owned(), message: message.to_owned() });
    if value.get("apiVersion").and_then(Value::as_str) != Some(API_VERSION) {
        wrong("apiVersion", &format!("must be `{API_VERSION}`"));
    }
    for key in value.as_object().into_iter().flat_map(Map::keys) {
        if !["apiVersion", "kind", "metadata", "spec", "status"].contains(&key.as_str()) {
            wrong(key, UNKNOWN);
        }
    }
    let Some(given) = value.get("spec").and_then(Value::as_object) else {
        wrong("spec", "must be a map of fields");
        return Err(FieldErrors(errors));
    };
    let (spec, mistyped) = read_spec(given.clone());
    errors.extend(mistyped);
    let name = value.get("metadata").and_then(|metadata| metadata.get("name"));
    if let Some(message) = unquoted(name) {
        errors.push(FieldError { field: "metadata.name".to_owned(), message });
    }
    let name = name.and_then(Value::as_str);
    match parse_image(&GoldenImage::new(name.unwrap_or_default(), spec)) {
        Ok(image) if errors.is_empty() => Ok(image),
        Ok(_) => Err(FieldErrors(errors)),
        Err(FieldErrors(found)) => {
            add_untold(&mut errors, found);
            Err(FieldErrors(errors))
        }
    }
}

const UNKNOWN: &str = "is not a field of a GoldenImage";

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{InputError, read};

    /// Every field error as `line field`.
    fn wrong(text: &str) -> Vec<String> {
        let candidates = read("f.yaml", text).expect("readable").candidates;
        let errors = |candidate: &super::Candidate| match &candidate.image {
            Ok(_) => Vec::new(),
            Err(errors) => errors.0.iter().map(|error| format!("{} {}", candidate.line_of(&error.field), error.field)).collect(),
        };
        candidates.iter().flat_map(errors).collect()
    }

    #[test]
    fn every_error_of_a_values_file_has_its_line() {
        let text = "storageClass: replicated\nimages:\n- name: good\n  url: https://e.example/a\n- name: Bad\n  url: nonsense\n  storage: -1Gi\n- name: typed\n  url: https://e.example/b\n  digest: 5\n- {name: more, url: 'https://e.example/c',\n   colour: red}\n- 5\n";
        assert_eq!(wrong(text), ["5 name", "6 url", "7 storage", "10 digest", "12 colour", "13 images[4]"]);
        let text = "images:\n- name: one\n  url: https://e.example/a\n  storage:\n    targets:\n    - storageClassName: replicated\n      size: nonsense\n- name: two\n  schematicID: 5\n  version: 1.13\n  architecture: x86\n  storage:\n    targets:\n    - {}\n    - size: []\n      volumeMode: block\n";
        assert_eq!(
            wrong(text),
            [
                "7 storage.targets[0].size",
                "9 schematicID",
                "10 version",
                "15 storage.targets[1].size",
                "11 architecture",
                "16 storage.targets[1].volumeMode"
            ]
        );
    }

    #[rstest]
    #[case("images:\n- {name: no, url: 'https://e.example/a'}\n", "must be quoted: YAML reads it as")]
    #[case(
        "apiVersion: cozystack.io/v1alpha1\nkind: GoldenImage\nmetadata: {name: 1.10}\nspec: {source: {http: {url: 'https://e.example/a'}}}\n",
        "must be quoted: YAML reads it as 1.1"
    )]
    #[case("images:\n- {name: a, url: 'https://e.example/a', digest: 'https://u:hunter2@x/'}\n", "\"https://x/\" is not a valid digest")]
    #[case("images:\n- {name: a, url: 'https://e.example/a', deletionPolicy: 'https://u:hunter2@x/'}\n", "unknown variant `https://x/`")]
    #[case("images:\n- {name: a, url: 'https://e.example/a', credentialsSecretRef: x}\n", "expected a map of fields")]
    fn what_is_wrong_is_told_in_words_of_who_writes_it(#[case] text: &str, #[case] expected: &str) {
        let candidates = read("f.yaml", text).expect("readable").candidates;
        let errors = candidates[0].image.as_ref().expect_err("wrong").to_string();
        assert!(errors.contains(expected) && !errors.contains("hunter2"), "{errors}");
    }

    /// Values as the platform's operator merges them are read like a hoster's own.
    #[test]
    fn the_platforms_own_values_are_taken() {
        let text = "_cluster: {root-host: x}\n_namespace: {etcd: y}\nstorage: 6Gi\nimages:\n- {name: a, url: 'https://e.example/a'}\n";
        assert!(read("f.yaml", text).expect("readable").candidates[0].image.is_ok());
    }

    #[test]
    fn every_error_of_a_manifest_has_its_line() {
        let text = "apiVersion: cozystack.io/v1alpha1\nkind: GoldenImage\nmetadata: {name: a}\nspec:\n  source:\n    http: {url: nonsense}\n  sizes: 5\n  storage:\n    targets:\n    - size: 0\n---\napiVersion: v1\nkind: Secret\n---\napiVersion: cozystack.io/v1\nkind: GoldenImage\nmetadata:\n  name: b\nspec:\n  source:\n    http:\n      url: https://e.example/a\n      rul: x\n  description: null\nextra: 1\n";
        assert_eq!(
            wrong(text),
            [
                "10 spec.storage.targets[0].size",
                "7 spec.sizes",
                "6 spec.source.http.url",
                "15 apiVersion",
                "25 extra",
                "23 spec.source.http.rul"
            ]
        );
    }

    #[test]
    fn what_kubectl_prints_is_read_too() {
        let text = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: cozystack.io/v1alpha1\n  kind: GoldenImage\n  metadata: {name: a, uid: u, resourceVersion: '5'}\n  spec: {source: {talosFactory: {schematic: {customization: {extraKernelArgs: [a=b]}}, version: v1.13.6}}}\n  status: {observedGeneration: 1}\n";
        let candidates = read("-", text).expect("readable").candidates;
        assert_eq!(candidates.len(), 1);
        assert_eq!((candidates[0].name.as_str(), candidates[0].line()), ("a", 4));
        candidates[0].image.as_ref().expect("good");
    }

    #[test]
    fn what_has_no_name_is_called_after_its_place() {
        let object = "apiVersion: cozystack.io/v1alpha1\nkind: GoldenImage\nspec: {source: {http: {url: 'https://e.example/a'}}}\n";
        let names = |text: &str| -> Vec<_> { read("f", text).expect("readable").candidates.iter().map(super::Candidate::shown).collect() };
        assert_eq!(names(&format!("kind: Secret\napiVersion: v1\n---\n{object}")), ["document[1] (f:4)"]);
        let item = object.replace('\n', "\n  ");
        assert_eq!(names(&format!("apiVersion: v1\nkind: List\nitems:\n- {item}\n- {item}\n")), ["items[0] (f:4)", "items[1] (f:8)"]);
        assert_eq!(names("images:\n- {url: 'https://e.example/a'}\n"), ["images[0] (f:2)"]);
    }

    #[test]
    fn where_a_size_stands() {
        let text = "images:\n- {name: a, url: 'https://e.example/a', storage: 1Gi}\n- {name: b, url: 'https://e.example/b', storage: {targets: [{size: 1Gi}]}}\n";
        let fields: Vec<_> = read("f", text).expect("readable").candidates.iter().map(|candidate| candidate.size_field(0)).collect();
        assert_eq!(fields, ["storage", "storage.targets[0].size"]);
    }

    #[test]
    fn the_settings_of_values_are_those_that_the_chart_renders() {
        let found =
            read("f", "images: []\nspool: {size: 8Gi}\nsettings: {bandwidth: \"\", workers: 3, egress: {mirrors: {}}}\n").expect("values");
        assert_eq!(serde_json::json!(found.settings), serde_json::json!({ "spoolSize": "8Gi", "workers": 3 }));
    }

    #[rstest]
    #[case("images: []\n")]
    #[case("images:\n")]
    #[case("---\nimages: []\n")]
    fn an_empty_list_is_a_list(#[case] text: &str) {
        assert_eq!(read("f", text).expect("list").candidates.len(), 0);
    }

    #[rstest]
    #[case("")]
    #[case("other: 1\n")]
    #[case("apiVersion: v1\nkind: Secret\n")]
    fn a_file_without_images_is_told(#[case] text: &str) {
        assert_eq!(read("f", text).expect_err("nothing"), InputError::Nothing { file: "f".into() });
    }

    #[rstest]
    #[case("strictEntries: true\nimages: {a: b}\n", "f:2: `images` must be a list")]
    #[case("images: []\nstorageClas: fast\n", "f:2: `storageClas` is not a value of the chart: there are admission, ")]
    #[case("images: []\nstorageClass: [fast]\n", "f:1: `storageClass` must be text")]
    #[case("images: []\nimageFactoryURL: 5\n", "f:1: `imageFactoryURL` must be text")]
    #[case("images:\n- a: 1\n  a: 2\n", "f is not valid YAML: line 3: the key `a` is given twice")]
    #[case("images: &a [*a]\n", "f is not valid YAML: line 1: an anchor (`&`) holds itself")]
    #[case("- a\n", "f:1: `images.yaml` must be a map")]
    #[case("images: []\nsettings:\n  workers: 0\n", "f:3: the settings are wrong: `workers` must be at least 1")]
    #[case("images: []\nsettings:\n  workers: 2\n  wrkers: 2\n", "f:4: the settings are wrong: `wrkers`: unknown field")]
    #[case("images: []\n---\nimages: []\n", "f:3: a values file is one document")]
    #[case("images: []\nsettings: 5\n", "f:2: `settings` must be a map")]
    #[case("images: []\nspool: [8Gi]\n", "f:2: `spool` must be a map")]
    #[case(
        "images: []\nsettings:\n  egress:\n    proxy:\n      https: http://u:hunter2@p.example:3128\n",
        "f:5: `settings.egress.proxy.https` must not hold a password, because settings are kept in a ConfigMap: put"
    )]
    #[case("images: [\n", "f is not valid YAML")]
    fn a_file_of_another_form_is_told(#[case] text: &str, #[case] expected: &str) {
        let error = read("f", text).expect_err("form").to_string();
        assert!(error.starts_with(expected) && !error.contains("hunter2"), "{error}");
    }
}
