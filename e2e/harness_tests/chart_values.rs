//! The chart's values: each is explained, in the schema, in the README's table, and known to the daemon; none is left over.

use std::{collections::BTreeMap, fmt::Write as _};

use golden_catalog::{catalog::entry_schema, daemon::Settings};
use serde_json::{Map, Value};

use crate::harness::chart::folder;

fn read(name: &str) -> String {
    std::fs::read_to_string(folder().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn values() -> Value {
    serde_saphyr::from_str(&read("values.yaml")).expect("values.yaml")
}

/// One `## @param` line.
struct Parameter {
    path: String,
    kind: String,
    text: String,
}

/// The sections of `values.yaml` with the parameters that each explains.
fn sections() -> Vec<(String, Vec<Parameter>)> {
    let mut sections: Vec<(String, Vec<Parameter>)> = Vec::new();
    for line in read("values.yaml").lines().map(str::trim) {
        if let Some(title) = line.strip_prefix("## @section ") {
            sections.push((title.to_owned(), Vec::new()));
        } else if let Some(rest) = line.strip_prefix("## @param ") {
            let (path, rest) = rest.split_once(" {").unwrap_or_else(|| panic!("no type: {line}"));
            let (kind, text) = rest.split_once("} ").unwrap_or_else(|| panic!("no text: {line}"));
            let parameter = Parameter { path: path.to_owned(), kind: kind.to_owned(), text: text.to_owned() };
            sections.last_mut().expect("a @section before the first @param").1.push(parameter);
        }
    }
    sections
}

/// Every value that has no parts, by its path; what a parameter explains as a whole counts as one.
fn leaves(value: &Value, path: &str, explained: &[String], into: &mut BTreeMap<String, Value>) {
    match value.as_object() {
        Some(parts) if path.is_empty() || !explained.iter().any(|known| known == path) => {
            for (key, part) in parts {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                leaves(part, &path, explained, into);
            }
        }
        _ => {
            into.insert(path.to_owned(), value.clone());
        }
    }
}

#[test]
fn every_value_is_explained_and_nothing_else_is() {
    let explained: Vec<String> = sections().into_iter().flat_map(|(_, parameters)| parameters).map(|parameter| parameter.path).collect();
    let mut found = BTreeMap::new();
    leaves(&values(), "", &explained, &mut found);
    let mut sorted = explained.clone();
    sorted.sort_unstable();
    assert_eq!(found.keys().cloned().collect::<Vec<_>>(), sorted, "values (left) and `## @param` lines (right) of values.yaml differ");
}

/// The table between the two marks of the chart's README.
pub fn readme() -> String {
    let text = read("README.md");
    let (begin, end) = ("<!-- values: begin -->\n", "<!-- values: end -->");
    let (before, rest) = text.split_once(begin).expect("the mark where the table begins");
    let (_, after) = rest.split_once(end).expect("the mark where the table ends");
    let values = values();
    let mut table = String::new();
    for (title, parameters) in sections() {
        let _ = write!(table, "\n### {title}\n\n| value | what it is | type | default |\n|---|---|---|---|\n");
        for Parameter { path, kind, text } in parameters {
            let value = &values[path.split('.').next().expect("a path")];
            let value = path.split('.').skip(1).fold(value, |value, key| &value[key]);
            let _ = writeln!(table, "| `{path}` | {} | `{kind}` | `{value}` |", text.replace('|', "\\|"));
        }
    }
    format!("{before}{begin}{table}\n{end}{after}")
}

/// `values.schema.json` with the entries' form as the code has it.
pub fn schema() -> String {
    let mut schema: Value = serde_json::from_str(&read("values.schema.json")).expect("values.schema.json");
    schema["definitions"]["entry"] = entry_schema();
    let mut text = serde_json::to_string_pretty(&schema).expect("JSON");
    text.push('\n');
    text
}

/// The schema's properties at a path, through its definitions.
fn properties(schema: &Value, of: &Value) -> Option<Map<String, Value>> {
    let of = match of["$ref"].as_str() {
        Some(reference) => schema.pointer(reference.trim_start_matches('#')).unwrap_or_else(|| panic!("no {reference}")),
        None => of,
    };
    of["properties"].as_object().cloned()
}

#[test]
fn the_schema_has_what_the_values_have() {
    fn compare(schema: &Value, of: &Value, value: &Value, path: &str, wrong: &mut Vec<String>) {
        let (Some(known), Some(value)) = (properties(schema, of), value.as_object()) else { return };
        wrong.extend(value.keys().filter(|key| !known.contains_key(*key)).map(|key| format!("{path}.{key} is not in the schema")));
        for (key, known) in &known {
            match value.get(key) {
                Some(value) => compare(schema, known, value, &format!("{path}.{key}"), wrong),
                // Of the platform, or a former name.
                None if matches!(key.as_str(), "global" | "_cluster" | "_namespace" | "golden-image-lib" | "imageFactoryURL")
                    && path.is_empty() => {}
                None => wrong.push(format!("{path}.{key} has no default in values.yaml")),
            }
        }
    }
    let schema: Value = serde_json::from_str(&read("values.schema.json")).expect("values.schema.json");
    let mut wrong = Vec::new();
    let mut values = values();
    // Explained as a whole: its parts are Kubernetes' own.
    let mut without = schema.clone();
    for role in ["controller", "admission"] {
        values[role].as_object_mut().expect("a role").remove("resources");
        without["properties"][role]["properties"].as_object_mut().expect("a role").remove("resources");
    }
    compare(&without, &without, &values, "", &mut wrong);
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// What the daemon reads of a map, asked of its own parser: a key that it cannot know makes it name those that it does.
fn known_settings(path: &[&str]) -> Vec<String> {
    let inner = path.iter().rev().fold(serde_json::json!({ "nothing-of-this-name": 1 }), |inner, key| serde_json::json!({ *key: inner }));
    let error = serde_json::from_value::<Settings>(inner).expect_err("an unknown key").to_string();
    let listed = error.split_once("expected").unwrap_or_else(|| panic!("{error}")).1;
    listed.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// A setting of the daemon is a value of the chart, with the daemon's own default.
#[test]
fn every_setting_is_a_value_with_the_daemons_default() {
    /// For tests only: a hoster has no use for them.
    const FOR_TESTS: [&str; 2] = ["allowLoopback", "resolver"];
    /// Its value is `spool.size`.
    const ELSEWHERE: [&str; 1] = ["spoolSize"];
    let settings = values()["settings"].clone();
    for path in [&[][..], &["lease"], &["egress"], &["egress", "proxy"], &["egress", "deadlines"], &["egress", "caps"]] {
        let here = path.iter().fold(&settings, |value, key| &value[key]);
        let mut here: Vec<String> = here.as_object().unwrap_or_else(|| panic!("no settings.{path:?}")).keys().cloned().collect();
        let mut known = known_settings(path);
        assert!(known.len() > 2, "{known:?}");
        known.retain(|key| !FOR_TESTS.contains(&key.as_str()) && !ELSEWHERE.contains(&key.as_str()));
        here.sort_unstable();
        known.sort_unstable();
        assert_eq!(here, known, "settings{path:?} of values.yaml (left) and src/daemon/settings.rs (right)");
    }
    let rendered = crate::chart::render(&[]);
    let text = rendered
        .iter()
        .find(|object| object["metadata"]["name"] == "golden-catalog-settings")
        .and_then(|object| object["data"]["settings.yaml"].as_str())
        .expect("the settings file");
    assert_eq!(serde_saphyr::from_str::<Settings>(text).expect("settings"), Settings::default());
}
