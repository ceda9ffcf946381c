//! YAML with the line of every value, so that what is wrong with a field can be told where it stands.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Number, Value};
use serde_saphyr::Spanned;

/// A value of a YAML document and the line it starts on.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    /// Counted from one; zero where the parser does not say.
    pub line: u64,
    pub kind: Kind,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    Map(Vec<(String, Node)>),
    List(Vec<Node>),
    Scalar(Value),
}

/// Reads every document of a YAML stream; empty ones are left out.
///
/// # Errors
/// What is wrong with the YAML, and in which line.
pub(super) fn documents(text: &str) -> Result<Vec<Node>, String> {
    let nodes: Vec<Node> = serde_saphyr::from_multiple(text).map_err(|error| crate::api::yaml_fault(&error))?;
    Ok(nodes.into_iter().filter(|node| node.kind != Kind::Scalar(Value::Null)).collect())
}

impl Node {
    /// The member `key` of a map.
    pub fn get(&self, key: &str) -> Option<&Self> {
        match &self.kind {
            Kind::Map(members) => members.iter().find(|(name, _)| name == key).map(|(_, node)| node),
            _ => None,
        }
    }

    /// The keys of a map, as written.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        let entries = if let Kind::Map(entries) = &self.kind { entries.as_slice() } else { &[] };
        entries.iter().map(|(key, _)| key.as_str())
    }

    /// The items of a list.
    pub fn items(&self) -> Option<&[Self]> {
        match &self.kind {
            Kind::List(items) => Some(items),
            _ => None,
        }
    }

    /// The text of a string.
    pub fn text(&self) -> Option<&str> {
        match &self.kind {
            Kind::Scalar(Value::String(text)) => Some(text),
            _ => None,
        }
    }

    /// The line of the field at `path` (`storage.targets[0].size`), or of the nearest one around it that is written.
    pub fn line_of(&self, path: &str) -> u64 {
        let mut node = self;
        for step in path.split(['.', '[']).filter(|step| !step.is_empty()) {
            let next = match step.strip_suffix(']').map(str::parse::<usize>) {
                Some(Ok(index)) => node.items().and_then(|items| items.get(index)),
                _ => node.get(step),
            };
            let Some(next) = next else { break };
            node = next;
        }
        node.line
    }

    /// The value without its lines.
    pub fn value(&self) -> Value {
        match &self.kind {
            Kind::Map(members) => Value::Object(members.iter().map(|(key, node)| (key.clone(), node.value())).collect::<Map<_, _>>()),
            Kind::List(items) => Value::Array(items.iter().map(Self::value).collect()),
            Kind::Scalar(value) => value.clone(),
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Kind>::deserialize(deserializer)?;
        Ok(Self { line: spanned.referenced.line(), kind: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(KindVisitor)
    }
}

struct KindVisitor;

impl<'de> Visitor<'de> for KindVisitor {
    type Value = Kind;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Kind, E> {
        Ok(Kind::Scalar(Value::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Kind, E> {
        Ok(Kind::Scalar(Value::Number(value.into())))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Kind, E> {
        Ok(Kind::Scalar(Value::Number(value.into())))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Kind, E> {
        Ok(Kind::Scalar(Number::from_f64(value).map_or(Value::Null, Value::Number)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Kind, E> {
        Ok(Kind::Scalar(Value::String(value.to_owned())))
    }

    fn visit_none<E>(self) -> Result<Kind, E> {
        Ok(Kind::Scalar(Value::Null))
    }

    fn visit_unit<E>(self) -> Result<Kind, E> {
        Ok(Kind::Scalar(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Kind, D::Error> {
        Kind::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Kind, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Kind::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Kind, A::Error> {
        let mut map: Vec<(String, Node)> = Vec::new();
        while let Some(key) = members.next_key::<String>()? {
            if map.iter().any(|(known, _)| *known == key) {
                return Err(A::Error::custom(format!("the key {key:?} stands twice in one map")));
            }
            map.push((key, members.next_value()?));
        }
        Ok(Kind::Map(map))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::documents;

    const TEXT: &str = "# values\nstorageClass: replicated\nimages:\n- name: a\n  url: https://e.example/a\n\n- name: b\n  storage:\n    targets:\n    - size: 1Gi\n    - {size: 2Gi,\n       volumeMode: Block}\n";

    #[rstest]
    #[case("storageClass", 2)]
    #[case("images[0]", 4)]
    #[case("images[0].url", 5)]
    #[case("images[0].digest", 4)]
    #[case("images[1].storage.targets[0].size", 10)]
    #[case("images[1].storage.targets[1].size", 11)]
    #[case("images[1].storage.targets[1].volumeMode", 12)]
    #[case("images[7]", 4)]
    fn every_field_has_its_line_or_that_of_what_surrounds_it(#[case] path: &str, #[case] line: u64) {
        let documents = documents(TEXT).expect("YAML");
        assert_eq!(documents[0].line_of(path), line, "{path}");
    }

    #[test]
    fn lines_go_on_through_documents_and_empty_ones_do_not_count() {
        let documents = documents("---\n# nothing\n---\na: 1\n---\nb: 2\n").expect("YAML");
        assert_eq!(documents.iter().map(|node| node.line).collect::<Vec<_>>(), [4, 6]);
    }

    #[test]
    fn values_are_those_that_the_daemon_reads() {
        let text = "a: 1\nb: 1.5\nc: true\nd: null\ne: '1'\nf: [x, {y: z}]\ng: ~\nh: &h {i: -3}\nj: *h\n";
        let expected: serde_json::Value = serde_saphyr::from_str(text).expect("YAML");
        assert_eq!(documents(text).expect("YAML")[0].value(), expected);
        assert_eq!(expected["f"], json!(["x", {"y": "z"}]));
    }

    #[rstest]
    #[case("a: [\n")]
    #[case("a: 1\na: 2\n")]
    #[case("a: b: c\n")]
    fn what_is_no_yaml_is_told_with_its_line(#[case] text: &str) {
        let error = documents(text).expect_err("no YAML");
        assert!(error.contains("line"), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }
}
