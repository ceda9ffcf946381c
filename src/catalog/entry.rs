//! Entries: the flat, short form in which a hoster lists images.

use serde_json::{Map, Value, json};

use crate::{
    api::{FieldError, FieldErrors, GoldenImage, GoldenImageSpec, ONE_SCHEMATIC, add_untold, parse_image, read_spec, unquoted, yaml_fault},
    model::{Image, ImageName},
};

/// A list of images as values or the ConfigMap hold it.
#[derive(Debug, Clone, Default)]
pub struct List {
    /// The entries in their order; a bad one does not hide the others.
    pub entries: Vec<Result<Entry, EntryError>>,
}

/// One image of the list.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its place in `images[]`, from zero.
    pub index: usize,
    /// The GoldenImage's name, given or derived.
    pub name: ImageName,
    /// The GoldenImage's spec.
    pub spec: GoldenImageSpec,
    /// The same, parsed.
    pub image: Image,
}

/// A bad entry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("images[{index}]{}: {errors}", .name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default())]
pub struct EntryError {
    /// Its place in `images[]`, from zero.
    pub index: usize,
    /// Its name, if one was given.
    pub name: Option<String>,
    /// What is wrong, by field of the entry.
    pub errors: FieldErrors,
}

/// A list that cannot be read at all.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// Not YAML.
    #[error("the image list is not valid YAML: {0}")]
    Syntax(String),
    /// Not of the form of a list.
    #[error("`{field}` must be {accepted}")]
    Form {
        /// The field.
        field: &'static str,
        /// The accepted form.
        accepted: &'static str,
    },
}

/// The longest list that is read: far beyond any real one, and below what a ConfigMap can hold (1 MiB).
const LONGEST_LIST: usize = 1 << 20;

/// Reads `images[]` and its defaults from a values file or from the ConfigMap's `images.yaml`.
///
/// Other top-level keys belong to the rest of the chart and are not looked at.
///
/// # Errors
/// When the text is not YAML or `images` is not a list. Bad entries are in the list, not an error.
pub fn read_list(text: &str) -> Result<List, ListError> {
    if text.len() > LONGEST_LIST {
        return Err(ListError::Form { field: "images", accepted: "at most 1 MiB of YAML" });
    }
    if text.trim().is_empty() {
        return Ok(List::default());
    }
    let root: Value = serde_saphyr::from_str(text).map_err(|error| ListError::Syntax(yaml_fault(&error)))?;
    let Some(root) = root.as_object() else {
        return Err(ListError::Form { field: "images.yaml", accepted: "a map with the key `images`" });
    };
    let images = match root.get("images") {
        None | Some(Value::Null) => return Ok(List::default()),
        Some(Value::Array(images)) => images,
        Some(_) => return Err(ListError::Form { field: "images", accepted: "a list of entries" }),
    };
    for field in ["storageClass", "factoryURL", "imageFactoryURL"] {
        if root.get(field).is_some_and(|value| !value.is_null() && !value.is_string()) {
            return Err(ListError::Form { field, accepted: "text (in quotes where YAML reads it as something else)" });
        }
    }
    let size = root.get("storage").filter(|size| !size.is_null());
    if size.is_some_and(|size| text_of(Some(size)).is_none()) {
        return Err(ListError::Form { field: "storage", accepted: "a size such as `20Gi`" });
    }
    let given = |key: &str| text_of(root.get(key)).filter(|text| !text.is_empty());
    let defaults = Defaults {
        storage_class: given("storageClass"),
        storage: given("storage"),
        factory_url: given("factoryURL").or_else(|| given("imageFactoryURL")),
    };
    let entries = images.iter().enumerate().map(|(index, entry)| read_entry(index, entry, &defaults)).collect();
    Ok(List { entries })
}

/// What the list gives to each entry that does not say otherwise.
#[derive(Debug, Default)]
struct Defaults {
    storage_class: Option<String>,
    storage: Option<String>,
    factory_url: Option<String>,
}

/// Keys of an entry, with the place in a GoldenImage's spec where errors about them are found.
const TALOS_KEYS: [&str; 7] = ["schematicID", "schematic", "version", "platform", "architecture", "secureBoot", "factoryURL"];
pub(super) const SPEC_KEYS: [&str; 11] = [
    "digest",
    "credentialsSecretRef",
    "caBundleRef",
    "description",
    "operatingSystem",
    "usages",
    "defaults",
    "access",
    "suspend",
    "retire",
    "deletionPolicy",
];
pub(super) const OTHER_KEYS: [&str; 8] =
    ["name", "url", "reference", "kubernetesVersion", "storage", "storageClass", "os", "imageFactoryURL"];
/// The keys of which an entry has exactly one: they say what kind it is.
const KINDS: [&str; 4] = ["schematicID", "schematic", "url", "reference"];

/// Every key that an entry may have.
pub(super) fn keys() -> impl Iterator<Item = &'static str> {
    TALOS_KEYS.into_iter().chain(SPEC_KEYS).chain(OTHER_KEYS)
}

const NAMELESS: &str = "must be given: only an entry with `schematicID` and `version` gets a name of its own";
const VERSION: &str = "spec.source.talosFactory.version";

/// Whether an entry says something under a key: null is nothing.
fn is_given(entry: &Map<String, Value>, key: &str) -> bool {
    entry.get(key).is_some_and(|value| !value.is_null())
}

/// Text, or a whole number as YAML reads one that is not quoted.
fn text_of(value: Option<&Value>) -> Option<String> {
    match value? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) if !number.is_f64() => Some(number.to_string()),
        _ => None,
    }
}

/// Text, where anything else is told rather than taken for nothing: Helm reads an unquoted `010` as 8.
fn text_or_error(entry: &Map<String, Value>, key: &str, errors: &mut Vec<FieldError>) -> Option<String> {
    let value = entry.get(key).filter(|value| !value.is_null())?;
    let text = value.as_str().map(str::to_owned);
    if text.is_none() {
        errors.push(FieldError { field: key.into(), message: "must be text (in quotes where YAML reads it as something else)".into() });
    }
    text
}

fn read_entry(index: usize, value: &Value, defaults: &Defaults) -> Result<Entry, EntryError> {
    let Some(entry) = value.as_object() else {
        let errors = FieldErrors(vec![FieldError { field: format!("images[{index}]"), message: "must be a map of fields".into() }]);
        return Err(EntryError { index, name: None, errors });
    };
    let given_name = entry.get("name").and_then(Value::as_str).map(str::to_owned);
    let fail = |errors| EntryError { index, name: given_name.clone(), errors: FieldErrors(errors) };
    let mut errors = Vec::new();

    if let Some(message) = unquoted(entry.get("name")) {
        errors.push(FieldError { field: "name".into(), message });
    }
    for key in entry.keys().filter(|key| !keys().any(|known| known == *key)) {
        errors.push(FieldError { field: key.clone(), message: unknown_key(key) });
    }
    let given = |key: &str| is_given(entry, key);
    let before = errors.len();
    let source = source_of(entry, defaults, &mut errors);
    // What the source lacks, or has too much of, was told in the entry's own terms.
    let is_told = |field: &str| errors[before..].iter().any(|error| error.field == field);
    let (is_kind_told, is_version_told) = (is_told("url"), is_told("version") || !KINDS.iter().chain(&["version"]).any(|key| given(key)));
    let mut spec = Map::new();
    spec.insert("source".into(), source);
    for key in SPEC_KEYS {
        if let Some(value) = entry.get(key).filter(|value| !value.is_null()) {
            spec.insert(key.into(), value.clone());
        }
    }
    let mut os_key = "operatingSystem";
    if let Some(os) = entry.get("os").filter(|os| !os.is_null()) {
        if given("operatingSystem") {
            errors.push(FieldError {
                field: "os".into(),
                message: "is the former spelling of `operatingSystem`: write only one of them".into(),
            });
        }
        os_key = "os";
        spec.insert("operatingSystem".into(), lowercase_family(os.clone()));
    }
    quoted_version(os_key, spec.get_mut("operatingSystem"), &mut errors);
    kubernetes_version(entry, os_key, &mut spec, &mut errors);
    if let Some(storage) = storage_of(entry, defaults, &mut errors) {
        spec.insert("storage".into(), storage);
    }

    // What is wrong with the entry's form hides nothing of what is wrong with its values.
    let (spec, mut wrong) = read_spec(spec);
    if is_version_told {
        wrong.retain(|error| error.field != VERSION);
        wrong.push(FieldError { field: VERSION.into(), message: String::new() });
    }
    let mut object = GoldenImage::new(given_name.as_deref().unwrap_or("unnamed"), spec);
    let image = parse_image(&object);
    if let Err(FieldErrors(found)) = &image {
        let found = found.iter().filter(|error| !is_kind_told || error.message != ONE_SCHEMATIC);
        add_untold(&mut wrong, found.cloned().collect());
    }
    let terms = Terms { os_key, is_short: !entry.get("storage").is_some_and(Value::is_object), defaults, entry };
    errors.extend(wrong.into_iter().filter(|error| !error.message.is_empty()).map(|error| terms.of_entry(error)));
    if !given("name") && ["url", "reference", "schematic"].into_iter().any(given) {
        errors.push(FieldError { field: "name".into(), message: NAMELESS.into() });
    }
    let mut image = match image {
        Ok(image) if errors.is_empty() => image,
        _ => return Err(fail(errors)),
    };
    if given_name.is_none() {
        let name = derived_name(&image).ok_or_else(|| fail(vec![FieldError { field: "name".into(), message: NAMELESS.into() }]))?;
        object.metadata.name = Some(name.to_string());
        image.name = name;
    }
    Ok(Entry { index, name: image.name.clone(), spec: object.spec, image })
}

/// `talos-<version>-<first twelve of the identity>`, the name of a Talos entry that gives none.
fn derived_name(image: &Image) -> Option<ImageName> {
    let crate::model::Source::TalosFactory(talos) = &image.source else { return None };
    format!("talos-{}-{}", talos.version, image.identity(None)?.short()).parse().ok()
}

fn unknown_key(key: &str) -> String {
    let near = |known: &&'static str| {
        known.eq_ignore_ascii_case(key) || known.to_lowercase().replace(['-', '_'], "") == key.to_lowercase().replace(['-', '_'], "")
    };
    match keys().find(near) {
        Some(known) => format!("is not a field of an entry: did you mean `{known}`?"),
        None => "is not a field of an entry".to_owned(),
    }
}

fn source_of(entry: &Map<String, Value>, defaults: &Defaults, errors: &mut Vec<FieldError>) -> Value {
    let has = |key: &str| is_given(entry, key);
    let kinds: Vec<_> = KINDS.into_iter().filter(|key| has(key)).collect();
    if kinds.len() != 1 {
        let found = if kinds.is_empty() { "it has none".to_owned() } else { format!("it has `{}`", kinds.join("` and `")) };
        errors.push(FieldError {
            field: "url".into(),
            message: format!("an entry has exactly one of `schematicID`, `schematic`, `url` and `reference`; {found}"),
        });
    }
    if let Some((key, member)) = [("url", "http"), ("reference", "containerDisk")].into_iter().find(|(key, _)| has(key)) {
        let owner = key;
        let talos = TALOS_KEYS.into_iter().chain(["imageFactoryURL"]);
        for key in talos.filter(|key| !matches!(*key, "architecture" | "schematicID" | "schematic") && has(key)) {
            errors.push(FieldError { field: key.into(), message: format!("belongs to Talos entries, not to one with `{owner}`") });
        }
        let mut source = Map::new();
        for key in [key, "architecture"] {
            if let Some(value) = entry.get(key).filter(|value| !value.is_null()) {
                source.insert(key.into(), value.clone());
            }
        }
        return json!({ member: source });
    }
    let mut talos = Map::new();
    for key in TALOS_KEYS {
        if let Some(value) = entry.get(key).filter(|value| !value.is_null()) {
            talos.insert(key.into(), value.clone());
        }
    }
    if !kinds.is_empty() && !talos.contains_key("version") {
        errors.push(FieldError { field: "version".into(), message: "must be given, such as `v1.13.6`".into() });
    }
    // In a GoldenImage the document is text, which cannot be edited in part; here it may be a map as well.
    if let Some(document) = talos.get("schematic").filter(|document| document.is_object())
        && let Ok(text) = serde_saphyr::to_string(document)
    {
        talos.insert("schematic".into(), Value::String(text));
    }
    if has("imageFactoryURL") && has("factoryURL") {
        let message = "is the former spelling of `factoryURL`: write only one of them".to_owned();
        errors.push(FieldError { field: "imageFactoryURL".into(), message });
    }
    let former = text_or_error(entry, "imageFactoryURL", errors);
    if let Some(url) = former.or_else(|| defaults.factory_url.clone()) {
        talos.entry("factoryURL").or_insert(Value::String(url));
    }
    json!({ "talosFactory": talos })
}

/// `storage: 20Gi` and `storageClass: replicated` are short for one target; the full form stands under `storage.targets`.
fn storage_of(entry: &Map<String, Value>, defaults: &Defaults, errors: &mut Vec<FieldError>) -> Option<Value> {
    let class = text_or_error(entry, "storageClass", errors).filter(|class| !class.is_empty()).or_else(|| defaults.storage_class.clone());
    let size = match entry.get("storage") {
        None | Some(Value::Null) => defaults.storage.clone(),
        Some(Value::Object(storage)) => {
            if entry.get("storageClass").is_some_and(|class| !class.is_null()) {
                errors.push(FieldError {
                    field: "storageClass".into(),
                    message: "is short for one target: leave it out beside `storage.targets`".into(),
                });
            }
            let mut storage = storage.clone();
            // The list's defaults are for targets too that say nothing themselves.
            let given = [("storageClassName", &defaults.storage_class), ("size", &defaults.storage)];
            let targets = storage.get_mut("targets").and_then(Value::as_array_mut);
            for target in targets.into_iter().flatten().filter_map(Value::as_object_mut) {
                target.retain(|_, value| !value.is_null());
                for (key, value) in given {
                    if let Some(value) = value {
                        target.entry(key).or_insert_with(|| Value::String(value.clone()));
                    }
                }
            }
            return Some(Value::Object(storage));
        }
        Some(value) => match text_of(Some(value)) {
            Some(size) => Some(size),
            None => {
                errors
                    .push(FieldError { field: "storage".into(), message: "must be a size such as `20Gi`, or a map with `targets`".into() });
                None
            }
        },
    };
    if class.is_none() && size.is_none() {
        return None;
    }
    let mut target = Map::new();
    if let Some(class) = class {
        target.insert("storageClassName".into(), Value::String(class));
    }
    if let Some(size) = size {
        target.insert("size".into(), Value::String(size));
    }
    Some(json!({ "targets": [target] }))
}

/// `kubernetesVersion` stands beside `reference` in an entry, and under `operatingSystem` in a GoldenImage.
fn kubernetes_version(entry: &Map<String, Value>, os_key: &str, spec: &mut Map<String, Value>, errors: &mut Vec<FieldError>) {
    let Some(version) = entry.get("kubernetesVersion").filter(|version| !version.is_null()) else { return };
    let os = spec.entry("operatingSystem").or_insert_with(|| json!({}));
    let Some(os) = os.as_object_mut() else { return };
    if os.insert("kubernetesVersion".into(), version.clone()).is_some_and(|other| !other.is_null()) {
        let message = format!("stands under `{os_key}` too: write only one of them");
        errors.push(FieldError { field: "kubernetesVersion".into(), message });
    }
}

/// The former lists write `Linux` and `Windows`, where a family is lowercase.
fn lowercase_family(mut os: Value) -> Value {
    if let Some(Value::String(family)) = os.get_mut("family") {
        family.make_ascii_lowercase();
    }
    os
}

/// YAML reads a bare `24.10` as the number 24.1: a version must be quoted.
fn quoted_version(key: &str, os: Option<&mut Value>, errors: &mut Vec<FieldError>) {
    let Some(os) = os.and_then(Value::as_object_mut) else { return };
    if os.get("version").is_some_and(Value::is_number) {
        os.remove("version");
        errors.push(FieldError {
            field: format!("{key}.version"),
            message: "must be quoted: YAML reads it as a number and drops trailing zeros".into(),
        });
    }
}

/// Where a field of a GoldenImage comes from in an entry.
struct Terms<'a> {
    /// How the entry spells `operatingSystem`.
    os_key: &'a str,
    /// Whether its one target is written in the short form.
    is_short: bool,
    defaults: &'a Defaults,
    entry: &'a Map<String, Value>,
}

impl Terms<'_> {
    fn of_entry(&self, FieldError { field, mut message }: FieldError) -> FieldError {
        let mut field = field
            .trim_start_matches("spec.")
            .trim_start_matches("source.talosFactory.")
            .trim_start_matches("source.http.")
            .trim_start_matches("source.containerDisk.")
            .replace("operatingSystem.kubernetesVersion", "kubernetesVersion")
            .replace("metadata.name", "name");
        if self.is_short {
            field = field.replace("storage.targets[0].size", "storage").replace("storage.targets[0].storageClassName", "storageClass");
        }
        if let Some(part) = field.strip_prefix("operatingSystem").filter(|part| part.is_empty() || part.starts_with('.')) {
            field = format!("{}{part}", self.os_key);
        }
        let is_given = |key: &str| is_given(self.entry, key);
        if field == "factoryURL" && is_given("imageFactoryURL") && !is_given("factoryURL") {
            field = "imageFactoryURL".to_owned();
        }
        let has = |key: &str| text_of(self.entry.get(key)).is_some_and(|text| !text.is_empty());
        if field == "storage" && !is_given("storage") && self.defaults.storage.is_some()
            || field == "storageClass" && !has("storageClass") && self.defaults.storage_class.is_some()
            || field == "factoryURL" && !has("factoryURL") && !has("imageFactoryURL") && self.defaults.factory_url.is_some()
        {
            message.push_str(" (it is the one that the list has for all its entries)");
        }
        FieldError { field, message }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::read_list;

    const ID: &str = "ce4c980550dd2ab1b17bbf2b08801c7eb59418eafe8f279833297925d67c7515";

    #[test]
    fn a_talos_entry_is_as_short_as_schematic_and_version() {
        let list = read_list(&format!("images:\n- {{schematicID: {ID}, version: v1.13.6}}\n")).expect("list");
        let entry = list.entries[0].as_ref().expect("good");
        assert_eq!(entry.name.as_str(), "talos-v1.13.6-b5a1de36eb14");
        assert_eq!(entry.image.targets.len(), 1);
        assert!(entry.spec.storage.is_none());
    }

    #[test]
    fn keys_of_the_former_charts_are_understood() {
        let list = read_list(
            "storageClass: replicated\nimages:\n- name: ubuntu-24.04\n  url: https://example.org/noble.img\n  storage: 20Gi\n  os: {family: Linux, name: Ubuntu, version: \"24.04\"}\n  architecture: amd64\n  description: Noble\n",
        )
        .expect("list");
        let entry = list.entries[0].as_ref().expect("good");
        let target = &entry.image.targets[0];
        assert_eq!(target.class.as_ref().expect("class").as_str(), "replicated");
        assert_eq!(target.size.expect("size").to_string(), "20Gi");
        let os = &entry.image.operating_system;
        assert_eq!((os.family.as_deref(), os.version.as_deref()), (Some("linux"), Some("24.04")));
        assert_eq!(entry.spec.operating_system.as_ref().and_then(|os| os.family.as_deref()), Some("linux"), "as the CRD wants it");
    }

    #[test]
    fn a_private_kairos_entry_is_as_the_contract_writes_it() {
        let list = read_list(&format!(
            "images:\n- {{name: kairos-v1.35, reference: 'r.example/k@sha256:{}', kubernetesVersion: v1.35.6, credentialsSecretRef: {{name: reg}}, access: {{policy: Selected, namespaceSelector: {{matchLabels: {{licensed: \"yes\"}}}}}}}}\n",
            "0a".repeat(32)
        ))
        .expect("list");
        let entry = list.entries[0].as_ref().expect("good");
        assert_eq!(entry.image.operating_system.family.as_deref(), Some("kairos"));
        assert_eq!(entry.image.credentials.as_ref().map(|name| name.as_str()), Some("reg"));
        assert!(matches!(entry.image.access, crate::model::Access::Selected(_)));
        assert_eq!(entry.image.golden_name(None, None).expect("known").expect("fits").as_str(), "kairos-worker-kairos-v1.35");
    }

    #[test]
    fn the_lists_defaults_are_for_entries_that_say_nothing_themselves() {
        let list = read_list(&format!(
            "imageFactoryURL: http://f.example\nfactoryURL: ''\nstorageClass: replicated\nstorage: 6Gi\nimages:\n- {{schematicID: {ID}, version: v1.13.6}}\n- {{name: own, url: 'https://e.example/', storage: 7Gi, storageClass: local}}\n- {{name: long, url: 'https://e.example/b', storage: {{targets: [{{}}, {{storageClassName: local, size: 7Gi}}]}}}}\n"
        ))
        .expect("list");
        let images: Vec<_> = list.entries.iter().map(|entry| &entry.as_ref().expect("good").image).collect();
        let targets = |index: usize| -> Vec<_> {
            let shown = |target: &crate::model::Target| {
                format!("{} {}", target.class.as_ref().expect("a class").as_str(), target.size.expect("a size"))
            };
            images[index].targets.iter().map(shown).collect()
        };
        assert_eq!(targets(0), ["replicated 6Gi"]);
        assert_eq!(targets(1), ["local 7Gi"]);
        assert_eq!(targets(2), ["replicated 6Gi", "local 7Gi"]);
        let crate::model::Source::TalosFactory(talos) = &images[0].source else { panic!("{:?}", images[0]) };
        assert_eq!(talos.factory_url.to_string(), "http://f.example", "an empty `factoryURL` is none");
    }

    #[test]
    fn one_bad_entry_hides_no_other() {
        let list =
            read_list(&format!("images:\n- {{name: A, url: nonsense}}\n- 5\n- {{schematicID: {ID}, version: v1.13.6}}\n")).expect("list");
        assert_eq!(list.entries.iter().filter(|entry| entry.is_ok()).count(), 1);
        let error = list.entries[0].as_ref().expect_err("bad").to_string();
        assert!(error.contains("images[0] (A)") && error.contains("`name`") && error.contains("`url`"), "{error}");
    }

    #[test]
    fn everything_that_is_wrong_with_an_entry_is_told_at_once() {
        let entry = "{name: A, url: nonsense, platform: metal, os: {version: 24.10, name: 5}, digest: 7, storage: -1Gi, colour: red}";
        let list = read_list(&format!("images:\n- {entry}\n- {{name: B, digest: x, usages: []}}\n")).expect("list");
        let fields = |index: usize| {
            let errors = &list.entries[index].as_ref().expect_err("bad").errors.0;
            errors.iter().map(|error| error.field.clone()).collect::<Vec<_>>()
        };
        assert_eq!(fields(0), ["colour", "platform", "os.version", "digest", "os.name", "name", "url", "storage"]);
        assert_eq!(fields(1), ["url", "name", "digest", "usages"]);
    }

    /// Field errors of one entry, with the message's beginning where that matters.
    #[rstest]
    // All of one source, beside a value of another type in it.
    #[case("{name: a, schematicID: 5, version: 1.13, platform: [x], architecture: x86, factoryURL: 'ftp://f'}", &["schematicID", "platform", "version", "architecture", "factoryURL"])]
    #[case("{name: a, url: 5, architecture: 64, kubernetesVersion: x, os: {family: kairos}}", &["url", "architecture", "kubernetesVersion"])]
    #[case("{name: a, reference: nonsense, kubernetesVersion: x, digest: x}", &["reference", "digest", "digest", "kubernetesVersion"])]
    #[case("{name: a, schematicID: A, schematic: 5, platform: UP}", &["url", "version", "schematicID", "schematic", "platform"])]
    #[case("{name: a, url: nonsense, reference: nonsense}", &["url", "url"])]
    #[case("{name: a, version: '1'}", &["url", "version"])]
    #[case("{name: a}", &["url"])]
    // A name that must be given is told with the rest.
    #[case("{url: nonsense, storage: 0}", &["url", "storage", "name"])]
    // The full form of one target has its own path, the short one its own.
    #[case("{name: a, url: 'https://e.example/a', storage: {targets: [{size: 0, storageClassName: A_}]}}", &["storage.targets[0].size", "storage.targets[0].storageClassName"])]
    #[case("{name: a, url: 'https://e.example/a', storage: {targets: [{size: 5}, {storageClassName: [x], size: 0}, {storageClassName: B_}]}}", &["storage.targets[0].size", "storage.targets[1].storageClassName", "storage.targets[1].size", "storage.targets[2].storageClassName"])]
    #[case("{name: a, url: 'https://e.example/a', storage: 0, storageClass: A_}", &["storage", "storageClass"])]
    fn nothing_waits_for_another_error_to_be_mended(#[case] entry: &str, #[case] expected: &[&str]) {
        let list = read_list(&format!("images:\n- {entry}\n")).expect("list");
        let errors = &list.entries[0].as_ref().expect_err(entry).errors;
        let mut found: Vec<_> = errors.0.iter().map(|error| error.field.as_str()).collect();
        let mut expected = expected.to_vec();
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected, "{errors}");
    }

    #[test]
    fn a_wrong_default_of_the_list_is_told_as_such() {
        let list = read_list("storageClass: A_\nimages:\n- {name: a, url: 'https://e.example/a'}\n").expect("list");
        let error = list.entries[0].as_ref().expect_err("class").to_string();
        assert!(error.contains("`storageClass`") && error.contains("the one that the list has"), "{error}");
    }

    #[rstest]
    #[case("{name: a}", "exactly one of")]
    #[case("{name: a, url: 'https://e.example/', schematicID: a, version: v1.0.0}", "it has `schematicID` and `url`")]
    #[case("{schematicID: a}", "`version`: must be given")]
    #[case("{schematicID: a, version: 1.13.6}", "write `v1.13.6`")]
    #[case("{name: a, url: 'https://e.example/', schematicId: a}", "did you mean `schematicID`?")]
    #[case("{name: a, url: 'https://e.example/', colour: red}", "is not a field of an entry")]
    #[case("{name: a, url: 'https://e.example/', os: {version: 24.10}}", "must be quoted")]
    #[case("{name: a, url: 'https://e.example/', os: []}", "`os`: must be a map of fields")]
    #[case("{name: a, url: 'https://e.example/', os: Debian}", "`os`: ")]
    #[case("{url: 'https://e.example/'}", "`name`: must be given")]
    #[case("{name: a, url: 5}", "`url`: invalid type: integer")]
    #[case("{name: a, url: 'https://e.example/', storage: {targets: [{}, {size: [1]}]}}", "`storage.targets[1].size`: invalid type")]
    #[case("{name: a, url: 'https://e.example/', storage: 1e3Gi}", "`storage`")]
    #[case("{name: a, url: 'https://e.example/', storage: -1Gi}", "`storage`")]
    #[case("{name: a, url: 'https://u:p@e.example/'}", "credentialsSecretRef")]
    #[case("{name: a, url: 'https://e.example/', storageClass: true}", "`storageClass`: must be text")]
    #[case("{name: a, url: 'https://e.example/', storageClass: [replicated]}", "`storageClass`: must be text")]
    #[case("{name: a, url: 'https://e.example/', storageClass: 1.5}", "`storageClass`: must be text")]
    #[case("{name: a, url: 'https://e.example/', storageClass: 8}", "`storageClass`: must be text (in quotes")]
    #[case(
        "{name: a, url: 'https://e.example/', storage: 20}",
        "`storage`: 20 bytes are less than any disk has: write the unit too, such as `20Gi`"
    )]
    #[case(
        "{name: a, url: 'https://e.example/', storage: {targets: [{size: 1023Ki}]}}",
        "`storage.targets[0].size`: 1023Ki is less than any disk has"
    )]
    #[case("{name: a, url: 'https://e.example/', imageFactoryURL: 'https://f.example'}", "`imageFactoryURL`: belongs to Talos entries")]
    #[case("{schematicID: a, version: v1.0.0, imageFactoryURL: true}", "`imageFactoryURL`: must be text")]
    #[case("{schematicID: a, version: v1.0.0, imageFactoryURL: nonsense}", "`imageFactoryURL`: \"nonsense\" is not a valid URL")]
    #[case("{schematicID: a, version: v1.0.0, imageFactoryURL: 'https://f.example', factoryURL: 'https://f.example'}", "write only one")]
    #[case("{name: a, schematic: {customization: {}}}", "`version`: must be given")]
    #[case("{name: a, reference: 'r.example/k:v1'}", "must be pinned")]
    #[case("{name: a, reference: 'r.example/k@DIGEST', version: v1.13.6}", "not to one with `reference`")]
    #[case("{name: a, reference: 'r.example/k@DIGEST', kubernetesVersion: 1.35.6}", "`kubernetesVersion`: \"1.35.6\"")]
    #[case("{name: a, reference: 'r.example/k@DIGEST', os: {family: kairos}}", "`kubernetesVersion`: must be given for a Kairos image")]
    #[case("{name: a, reference: 'r.example/k@DIGEST', kubernetesVersion: v1.35.6, os: {kubernetesVersion: v1.35.6}}", "write only one")]
    #[case("{name: a, reference: 'r.example/k@DIGEST', credentialsSecretRef: {name: reg}}", "`access`: must be given")]
    #[case("{name: a, url: 'https://e.example/', kubernetesVersion: v1.35.6, os: {family: kairos}}", "comes together")]
    fn says_what_is_wrong_in_terms_of_the_entry(#[case] entry: &str, #[case] expected: &str) {
        let entry = entry.replace("DIGEST", &format!("sha256:{}", "0a".repeat(32)));
        let list = read_list(&format!("images:\n- {entry}\n")).expect("list");
        let error = list.entries[0].as_ref().expect_err(&entry).to_string();
        assert!(error.contains(expected), "{error}");
    }

    #[rstest]
    #[case("")]
    #[case("images:\n")]
    #[case("images: []\n")]
    #[case("other: 1\n")]
    fn an_empty_list_is_a_list(#[case] text: &str) {
        assert!(read_list(text).expect("list").entries.is_empty());
    }

    #[rstest]
    #[case("images: {a: b}\n")]
    #[case("images: []\nstorage: [6Gi]\n")]
    #[case("- a\n")]
    #[case("images: [\n")]
    fn what_is_no_list_is_told(#[case] text: &str) {
        assert!(read_list(text).is_err());
    }
}
