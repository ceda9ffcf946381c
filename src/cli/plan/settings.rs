//! The daemon's settings as far as upstreams are concerned: from the values that are planned, or from a file of their own.

use serde_json::{Map, Value};

use super::lines::{Kind, Node, documents};
use crate::{
    daemon::{Settings, SettingsError},
    model::public_words,
};

/// The ConfigMap's key with the settings, as the chart renders it.
const KEY: &str = "settings.yaml";

/// What `text` says about settings, without what is empty, as the chart leaves it out: a map of settings, the chart's values with
/// `settings` in them, or the ConfigMap that the chart renders.
///
/// # Errors
/// When it is none of these.
pub(super) fn read(shown: &str, text: &str, is_value: impl Fn(&str) -> bool) -> Result<Map<String, Value>, String> {
    let documents = documents(text).map_err(|what| format!("{shown} is not valid YAML: {what}"))?;
    let root = match &documents[..] {
        [] => return Ok(Map::new()),
        [root] => root,
        [_, second, ..] => return Err(format!("{shown}:{}: settings are one document", second.line)),
    };
    if !matches!(root.kind, Kind::Map(_)) {
        return Err(format!("{shown}:{}: settings are a map, such as `egress: {{mirrors: {{…}}}}`", root.line));
    }
    if let Some(kind) = root.get("kind").and_then(Node::text) {
        let inner = root.get("data").and_then(|data| data.get(KEY)).and_then(Node::text);
        return match inner.filter(|_| kind == "ConfigMap") {
            Some(inner) => read(&format!("{KEY} of {shown}"), inner, is_value),
            None => Err(format!(
                "{shown}:{}: no settings are in this {}: they are in the ConfigMap `golden-catalog-settings`, key `{KEY}`",
                root.line,
                public_words(kind)
            )),
        };
    }
    let settings = if root.keys().any(is_value) { of_values(root) } else { given(&root.value()) };
    // Refused here by the file's name and line, before it is joined with others.
    parse(settings.clone()).map_err(|(path, what)| {
        let line = if root.keys().any(|key| key == "settings") { root.line_of(&format!("settings.{path}")) } else { root.line_of(&path) };
        format!("{shown}:{line}: the settings are wrong: {what}")
    })?;
    Ok(settings)
}

/// What the chart makes of its values: `settings` without what is empty, and the spool's size.
pub(super) fn of_values(root: &Node) -> Map<String, Value> {
    let mut settings = root.get("settings").map(|settings| given(&settings.value())).unwrap_or_default();
    if let Some(size) = root.get("spool").and_then(|spool| spool.get("size")).and_then(Node::text) {
        settings.insert("spoolSize".to_owned(), Value::String(size.to_owned()));
    }
    settings
}

/// What the chart refuses of its values and the daemon would not.
///
/// # Errors
/// The value's path, and what is wrong with it.
pub(super) fn of_chart(root: &Node) -> Result<(), (String, String)> {
    for key in ["settings", "spool"] {
        if root.get(key).is_some_and(|node| !matches!(node.kind, Kind::Map(_) | Kind::Scalar(Value::Null))) {
            return Err((key.to_owned(), format!("`{key}` must be a map")));
        }
    }
    let proxy = root.get("settings").and_then(|settings| settings.get("egress")).and_then(|egress| egress.get("proxy"));
    for key in ["http", "https"] {
        if proxy.and_then(|proxy| proxy.get(key)).and_then(Node::text).is_some_and(|address| address.contains('@')) {
            let path = format!("settings.egress.proxy.{key}");
            let what = format!(
                "`{path}` must not hold a password, because settings are kept in a ConfigMap: put HTTP_PROXY, HTTPS_PROXY and NO_PROXY into a Secret and name it in `controller.proxySecret`"
            );
            return Err((path, what));
        }
    }
    Ok(())
}

/// The members of a map that are not empty text, an empty map or null.
fn given(value: &Value) -> Map<String, Value> {
    let member = |(key, value): (&String, &Value)| {
        let value = match value {
            Value::Object(_) => Value::Object(given(value)),
            other => other.clone(),
        };
        let is_empty = value.is_null() || value.as_str() == Some("") || value.as_object().is_some_and(Map::is_empty);
        (!is_empty).then(|| (key.clone(), value))
    };
    value.as_object().into_iter().flatten().filter_map(member).collect()
}

/// Lays `over` on top of `base`, as Helm does with several values files.
pub(super) fn merge(base: &mut Map<String, Value>, over: Map<String, Value>) {
    for (key, value) in over {
        match (base.get_mut(&key), value) {
            (Some(Value::Object(base)), Value::Object(over)) => merge(base, over),
            (_, value) => {
                base.insert(key, value);
            }
        }
    }
}

/// The settings, as the daemon would start with.
///
/// # Errors
/// The field's path, and what is wrong with it.
pub(super) fn parse(settings: Map<String, Value>) -> Result<Settings, (String, String)> {
    let settings = Settings::of(Value::Object(settings))?;
    settings.check().map_err(|error| match &error {
        SettingsError::Value { field, .. } => ((*field).to_owned(), error.to_string()),
        _ => (String::new(), error.to_string()),
    })?;
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::{merge, parse, read};

    fn is_value(key: &str) -> bool {
        ["images", "settings", "spool", "storageClass"].contains(&key)
    }

    const RENDERED: &str = "bandwidth: \"\"\nmaxConcurrentFetches: 2\negress:\n  caBundle: \"\"\n  mirrors: {}\n  proxy: {http: \"\", https: \"\", noProxy: \"\"}\n";

    #[rstest]
    #[case::nothing("", json!({}))]
    #[case::empty_texts(RENDERED, json!({ "maxConcurrentFetches": 2 }))]
    #[case::values("images: []\nspool: {size: 8Gi}\nsettings: {largestDisk: 64Mi, bandwidth: \"\"}\n", json!({ "largestDisk": "64Mi", "spoolSize": "8Gi" }))]
    #[case::values_without("storageClass: a\n", json!({}))]
    #[case::config_map("apiVersion: v1\nkind: ConfigMap\ndata:\n  settings.yaml: |\n    largestDisk: 64Mi\n", json!({ "largestDisk": "64Mi" }))]
    fn every_form_that_settings_have_is_read(#[case] text: &str, #[case] expected: serde_json::Value) {
        assert_eq!(json!(read("f", text, is_value).expect(text)), expected);
    }

    #[rstest]
    #[case("a: [\n", "f is not valid YAML")]
    #[case("- a\n", "f:1: settings are a map")]
    #[case("a: 1\n---\nb: 1\n", "f:3: settings are one document")]
    #[case("kind: Secret\n", "f:1: no settings are in this Secret")]
    #[case("bandwidth: 1Mi\nlargestdisk: 1Mi\n", "f:2: the settings are wrong: `largestdisk`: unknown field")]
    #[case("images: []\nsettings:\n  egress:\n    mirrors: {a: ['ftp://u:hunter2@h/']}\n", "f:4: the settings are wrong: `egress.mirrors")]
    #[case("maxConcurrentFetches: 0\n", "f:1: the settings are wrong: `maxConcurrentFetches` must be at least 1")]
    #[case("kind: ConfigMap\ndata: {settings.yaml: 'workers: x'}\n", "settings.yaml of f:1: the settings are wrong: `workers`")]
    fn what_is_wrong_has_its_line(#[case] text: &str, #[case] expected: &str) {
        let error = read("f", text, is_value).expect_err(text);
        assert!(error.starts_with(expected) && !error.contains("hunter2"), "{error}");
    }

    #[test]
    fn several_files_are_laid_on_top_of_each_other() {
        let map = |text: &str| read("f", text, is_value).expect(text);
        let mut settings = map("egress: {mirrors: {a: ['https://m.example'], b: ['https://n.example']}}\nworkers: 4\n");
        merge(&mut settings, map("egress: {mirrors: {a: ['https://o.example']}}\n"));
        let expected = json!({ "egress": { "mirrors": { "a": ["https://o.example"], "b": ["https://n.example"] } }, "workers": 4 });
        assert_eq!(json!(settings), expected);
        assert_eq!(parse(settings).expect("settings").workers, 4);
    }
}
