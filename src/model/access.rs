use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt as _};

use super::{InvalidValue, names::is_label};

/// Who may clone an image's goldens (R18).
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Access {
    /// Every tenant.
    #[default]
    AllTenants,
    /// Namespaces whose labels match.
    Selected(NamespaceSelector),
}

impl Access {
    /// Whether a namespace with these labels may clone.
    pub fn allows(&self, labels: &BTreeMap<String, String>) -> bool {
        match self {
            Self::AllTenants => true,
            Self::Selected(selector) => selector.matches(labels),
        }
    }

    /// As it is written on a golden: `AllTenants`, or the selector as JSON.
    pub fn written(&self) -> String {
        match self {
            Self::AllTenants => ALL_TENANTS.to_owned(),
            // A selector that could not be written would read as one that selects nobody.
            Self::Selected(selector) => serde_json::to_string(&selector.0).unwrap_or_default(),
        }
    }

    /// What [`Self::written`] wrote; goldens made before it was written are for every tenant. `None` where it is anything else: nobody can say who is meant.
    pub fn read(written: Option<&str>) -> Option<Self> {
        match written {
            None | Some(ALL_TENANTS) => Some(Self::AllTenants),
            Some(selector) => {
                let selector: LabelSelector = serde_json::from_str(selector).ok()?;
                NamespaceSelector::try_from(selector).ok().map(Self::Selected)
            }
        }
    }
}

const ALL_TENANTS: &str = "AllTenants";

/// A label selector that can be evaluated and that does not select every namespace.
#[derive(Debug, Clone, PartialEq)]
pub struct NamespaceSelector(LabelSelector);

impl NamespaceSelector {
    /// The selector as it is written in the API.
    pub const fn written(&self) -> &LabelSelector {
        &self.0
    }

    /// Whether it selects a namespace with these labels.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        // It was evaluated once before it got here; an error would select nothing.
        Selector::try_from(self.0.clone()).is_ok_and(|selector| selector.matches(labels))
    }
}

/// Kubernetes, "Labels and Selectors", syntax and character set: the name of a key, or a value.
fn is_label_part(text: &str) -> bool {
    is_label(text, |c| c.is_ascii_alphanumeric(), "-_.")
}

/// A name, with a DNS subdomain and a slash before it or without.
fn is_label_key(text: &str) -> bool {
    match text.split_once('/') {
        None => is_label_part(text),
        Some((prefix, name)) => {
            let is_domain = prefix.len() <= 253
                && prefix
                    .split('.')
                    .all(|part| is_label_part(part) && part.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-'));
            is_domain && is_label_part(name)
        }
    }
}

impl TryFrom<LabelSelector> for NamespaceSelector {
    type Error = InvalidValue;

    fn try_from(selector: LabelSelector) -> Result<Self, InvalidValue> {
        let invalid = |accepted: String| InvalidValue::new("namespace selector", "namespaceSelector", accepted);
        let labels = selector.match_labels.as_ref().is_none_or(BTreeMap::is_empty);
        let expressions = selector.match_expressions.as_ref().is_none_or(Vec::is_empty);
        if labels && expressions {
            return Err(invalid("it selects every namespace: write `policy: AllTenants` if that is meant".to_owned()));
        }
        let written = selector.match_labels.iter().flatten();
        let keys = written.clone().map(|(key, _)| key).chain(selector.match_expressions.iter().flatten().map(|one| &one.key));
        if let Some(key) = keys.into_iter().find(|key| !is_label_key(key)) {
            return Err(invalid(format!(
                "{key:?} is not the key of a label, so no namespace can have it: write it as `team` or `example.org/team`"
            )));
        }
        let values = written.map(|(_, value)| value);
        let mut values = values.chain(selector.match_expressions.iter().flatten().flat_map(|one| one.values.iter().flatten()));
        if let Some(value) = values.find(|value| !value.is_empty() && !is_label_part(value)) {
            return Err(invalid(format!(
                "{value:?} is not the value of a label, so no namespace can have it: at most 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends"
            )));
        }
        for requirement in selector.match_expressions.iter().flatten() {
            let count = requirement.values.as_ref().map_or(0, Vec::len);
            let fits = match requirement.operator.as_str() {
                "In" | "NotIn" => count > 0,
                "Exists" | "DoesNotExist" => count == 0,
                _ => false,
            };
            if !fits {
                return Err(invalid(format!(
                    "the expression about {:?} must have the operator `In` or `NotIn` with values, or `Exists` or `DoesNotExist` without",
                    requirement.key
                )));
            }
        }
        Selector::try_from(selector.clone()).map_err(|error| invalid(error.to_string()))?;
        Ok(Self(selector))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::{Access, NamespaceSelector};

    fn selector(value: Value) -> Result<NamespaceSelector, String> {
        let written: k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector = serde_json::from_value(value).expect("selector");
        NamespaceSelector::try_from(written).map_err(|error| error.to_string())
    }

    #[rstest]
    #[case(json!({ "matchLabels": { "licensed": "yes" } }), &[("licensed", "yes")], true)]
    #[case(json!({ "matchLabels": { "licensed": "yes" } }), &[("licensed", "no")], false)]
    #[case(json!({ "matchLabels": { "licensed": "yes" } }), &[], false)]
    #[case(json!({ "matchExpressions": [{ "key": "tier", "operator": "In", "values": ["a", "b"] }] }), &[("tier", "b")], true)]
    #[case(json!({ "matchExpressions": [{ "key": "tier", "operator": "NotIn", "values": ["a"] }] }), &[], true)]
    #[case(json!({ "matchExpressions": [{ "key": "tier", "operator": "Exists" }] }), &[("tier", "")], true)]
    #[case(json!({ "matchLabels": { "a": "1" }, "matchExpressions": [{ "key": "b", "operator": "DoesNotExist" }] }), &[("a", "1"), ("b", "")], false)]
    fn r18_selects(#[case] written: Value, #[case] labels: &[(&str, &str)], #[case] expected: bool) {
        let labels: BTreeMap<_, _> = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        assert_eq!(Access::Selected(selector(written).expect("selector")).allows(&labels), expected);
        assert!(Access::AllTenants.allows(&labels));
    }

    #[rstest]
    #[case(json!({ "matchLabels": { "a b": "c" } }), "\"a b\" is not the key of a label")]
    #[case(json!({ "matchLabels": { "Example.org/a": "c" } }), "\"Example.org/a\" is not the key of a label")]
    #[case(json!({ "matchLabels": { "a/b/c": "c" } }), "\"a/b/c\" is not the key of a label")]
    #[case(json!({ "matchExpressions": [{ "key": "", "operator": "Exists" }] }), "\"\" is not the key of a label")]
    #[case(json!({ "matchLabels": { "a": "c d" } }), "\"c d\" is not the value of a label")]
    #[case(json!({ "matchExpressions": [{ "key": "a", "operator": "In", "values": ["-"] }] }), "\"-\" is not the value of a label")]
    fn r18_a_selector_that_no_namespace_can_match_is_refused(#[case] written: Value, #[case] expected: &str) {
        assert!(selector(written.clone()).is_err_and(|error| error.contains(expected)), "{:?}", selector(written));
    }

    #[rstest]
    #[case(json!({ "matchLabels": { "licensed": "yes" } }))]
    #[case(json!({ "matchExpressions": [{ "key": "tier", "operator": "In", "values": ["a", "b"] }, { "key": "x", "operator": "Exists" }] }))]
    fn r18_what_is_written_on_a_golden_is_read_alike(#[case] written: Value) {
        let access = Access::Selected(selector(written).expect("selector"));
        assert_eq!(Access::read(Some(&access.written())), Some(access));
        assert_eq!(Access::read(Some(&Access::AllTenants.written())), Some(Access::AllTenants));
    }

    #[rstest]
    #[case::older_than_the_mark(None, true)]
    #[case::emptied(Some(""), false)]
    #[case::no_json(Some("Selected"), false)]
    #[case::everybody_by_the_back_door(Some("{}"), false)]
    #[case::unknown_operator(Some(r#"{"matchExpressions":[{"key":"a","operator":"Gt","values":["1"]}]}"#), false)]
    fn r18_what_cannot_be_read_on_a_golden_opens_nothing(#[case] written: Option<&str>, #[case] is_open: bool) {
        assert_eq!(Access::read(written), is_open.then_some(Access::AllTenants));
    }

    #[rstest]
    #[case(json!({}), "AllTenants")]
    #[case(json!({ "matchLabels": {}, "matchExpressions": [] }), "AllTenants")]
    #[case(json!({ "matchExpressions": [{ "key": "a", "operator": "Gt", "values": ["1"] }] }), "\"a\"")]
    #[case(json!({ "matchExpressions": [{ "key": "a", "operator": "In" }] }), "with values")]
    #[case(json!({ "matchExpressions": [{ "key": "a", "operator": "Exists", "values": ["b"] }] }), "without")]
    fn r18_refuses_what_selects_everything_or_nothing_known(#[case] written: Value, #[case] expected: &str) {
        let error = selector(written).expect_err("refused");
        assert!(error.contains(expected), "{error}");
    }
}
