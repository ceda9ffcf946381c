//! What was given, as a message may repeat it.

use serde_json::Value;

use crate::model::{public_address, public_words};

/// The longest quotation, in characters.
const LONGEST: usize = 120;

/// The value at `path` in `object` (`spec.storage.targets[0].size`, as the API server names fields, with or without a leading
/// dot), quoted: one bounded line, a URL without its credentials and query. `None` where nothing short stands there.
pub fn quote(object: &Value, path: &str) -> Option<String> {
    let mut at = object;
    for step in path.trim_start_matches('.').split(['.', '[']) {
        at = match step.strip_suffix(']') {
            Some(index) => at.get(index.parse::<usize>().ok()?)?,
            None => at.get(step)?,
        };
    }
    let text = match at {
        Value::Null | Value::Object(_) | Value::Array(_) => return None,
        // What looks like a URL and cannot be read as one may hide a secret anywhere.
        Value::String(text) => match public_address(text) {
            shown if shown == "…" && (text.contains("://") || text.contains('@')) => return None,
            // Not an address as a whole.
            shown if shown == "…" => public_words(text),
            shown => shown,
        },
        other => other.to_string(),
    };
    let cut: String = text.chars().take(LONGEST).collect();
    Some(if cut.len() < text.len() { format!("{:?}", cut + "…") } else { format!("{text:?}") })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::quote;

    #[rstest]
    #[case("spec.description", Some("\"a\\nb\""))]
    #[case(".spec.description", Some("\"a\\nb\""))]
    #[case("spec.url", Some("\"https://…@e.example/a?…\""))]
    #[case("spec.broken", None)]
    #[case("spec.bare", None)]
    #[case("spec.note", Some("\"10: a?\""))]
    #[case("spec.schemeless", Some("\"e.example/a?…\""))]
    #[case("spec.targets[1].size", Some("\"-1\""))]
    #[case("spec.targets[2].size", None)]
    #[case("spec.suspend", Some("\"true\""))]
    #[case("spec.targets", None)]
    #[case("spec", None)]
    #[case("", None)]
    fn quotes_what_is_there(#[case] path: &str, #[case] expected: Option<&str>) {
        let object = json!({ "spec": {
            "description": "a\nb", "url": "https://u:hunter2@e.example/a?t=hunter2", "broken": "https://[u:hunter2@",
            "bare": "u:hunter2@e.example/a", "note": "10: a?", "schemeless": "e.example/a?sig=hunter2",
            "targets": [{}, { "size": "-1" }], "suspend": true,
        } });
        assert_eq!(quote(&object, path).as_deref(), expected);
    }

    #[test]
    fn a_quotation_is_bounded() {
        assert_eq!(quote(&json!({ "a": "x".repeat(5000) }), "a").expect("text").chars().count(), 123);
    }
}
