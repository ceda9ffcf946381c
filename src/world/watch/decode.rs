//! What the API server sends in lists and watches, decoded so that one bad object costs no other.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, ObjectMeta};
use kube::{
    Resource,
    core::{Status, WatchEvent},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use std::fmt;

/// Which object of a kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Its namespace, where the kind has them.
    pub namespace: Option<Box<str>>,
    /// Its name.
    pub name: Box<str>,
}

impl Key {
    /// A key of a namespaced object.
    pub fn namespaced(namespace: &str, name: &str) -> Self {
        Self { namespace: Some(namespace.into()), name: name.into() }
    }

    /// A key of an object without a namespace.
    pub fn cluster(name: &str) -> Self {
        Self { namespace: None, name: name.into() }
    }

    /// The key of an object; `None` for one without a name, which the API server never sends.
    pub fn of(metadata: &ObjectMeta) -> Option<Self> {
        let name = metadata.name.as_deref()?.into();
        Some(Self { namespace: metadata.namespace.as_deref().map(Into::into), name })
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.name)
    }
}

/// An object, or what can be said of one that does not decode.
#[derive(Debug, PartialEq)]
pub(in crate::world) enum Item<K> {
    Object(K),
    Unreadable { key: Option<Key>, resource_version: Option<String>, error: String },
}

impl<K: Resource> Item<K> {
    pub fn key(&self) -> Option<Key> {
        match self {
            Self::Object(object) => Key::of(object.meta()),
            Self::Unreadable { key, .. } => key.clone(),
        }
    }

    pub fn resource_version(&self) -> Option<&str> {
        match self {
            Self::Object(object) => object.meta().resource_version.as_deref(),
            Self::Unreadable { resource_version, .. } => resource_version.as_deref(),
        }
    }
}

impl<K: DeserializeOwned> Item<K> {
    fn lenient(value: Value) -> Self {
        match K::deserialize(&value) {
            Ok(object) => Self::Object(object),
            Err(error) => {
                let text = |field: &str| value.pointer(field).and_then(Value::as_str);
                let key =
                    text("/metadata/name").map(|name| Key { namespace: text("/metadata/namespace").map(Into::into), name: name.into() });
                let resource_version = text("/metadata/resourceVersion").map(str::to_owned);
                Self::Unreadable { key, resource_version, error: bounded(&error) }
            }
        }
    }
}

/// Errors of serde quote what they found, which may be long.
fn bounded(error: &serde_json::Error) -> String {
    error.to_string().chars().take(300).collect()
}

/// A page of a list.
#[derive(Debug, PartialEq)]
pub(in crate::world) struct Page<K> {
    pub items: Vec<Item<K>>,
    pub resource_version: Option<String>,
    pub continue_token: Option<String>,
}

#[derive(Deserialize)]
struct List<T> {
    #[serde(default)]
    metadata: ListMeta,
    // An empty list of a Go server may be null.
    items: Option<Vec<T>>,
}

/// Decodes a page.
///
/// # Errors
/// When it is no list at all.
pub(in crate::world) fn page<K: DeserializeOwned>(text: &str) -> Result<Page<K>, serde_json::Error> {
    let (metadata, items) = match serde_json::from_str::<List<K>>(text) {
        Ok(list) => (list.metadata, list.items.unwrap_or_default().into_iter().map(Item::Object).collect()),
        Err(_) => {
            let list: List<Value> = serde_json::from_str(text)?;
            (list.metadata, list.items.unwrap_or_default().into_iter().map(Item::lenient).collect())
        }
    };
    let some = |text: Option<String>| text.filter(|text| !text.is_empty());
    Ok(Page { items, resource_version: some(metadata.resource_version), continue_token: some(metadata.continue_) })
}

/// A line of a watch.
#[derive(Debug, PartialEq)]
pub(super) enum Line<K> {
    Put(Item<K>),
    Delete(Item<K>),
    Bookmark { resource_version: String, end_of_list: bool },
    Error(Box<Status>),
}

/// Decodes a line.
///
/// # Errors
/// When it is no watch event at all.
pub(super) fn line<K: DeserializeOwned>(text: &str) -> Result<Line<K>, serde_json::Error> {
    match serde_json::from_str::<WatchEvent<K>>(text) {
        Ok(event) => Ok(known(event, Item::Object)),
        Err(_) => serde_json::from_str::<WatchEvent<Value>>(text).map(|event| known(event, Item::lenient)),
    }
}

fn known<T, K>(event: WatchEvent<T>, item: impl Fn(T) -> Item<K>) -> Line<K> {
    match event {
        WatchEvent::Added(object) | WatchEvent::Modified(object) => Line::Put(item(object)),
        WatchEvent::Deleted(object) => Line::Delete(item(object)),
        WatchEvent::Bookmark(bookmark) => Line::Bookmark {
            end_of_list: bookmark.metadata.annotations.get("k8s.io/initial-events-end").is_some_and(|value| value == "true"),
            resource_version: bookmark.metadata.resource_version,
        },
        WatchEvent::Error(status) => Line::Error(status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    fn good(name: &str) -> Value {
        json!({"metadata": {"name": name, "namespace": "n", "resourceVersion": "7"}, "data": {"a": "b"}})
    }

    fn bad(name: &str) -> Value {
        json!({"metadata": {"name": name, "namespace": "n", "resourceVersion": "8"}, "data": {"a": ["no", "text"]}})
    }

    fn names(items: &[Item<ConfigMap>]) -> Vec<String> {
        let mark = |item: &Item<_>| if matches!(item, Item::Object(_)) { "" } else { "!" };
        items.iter().map(|item| format!("{}{}", mark(item), item.key().unwrap())).collect()
    }

    #[test]
    fn one_bad_object_costs_no_other() {
        let list = json!({"kind": "ConfigMapList", "metadata": {"resourceVersion": "9", "continue": "t"}, "items": [good("a"), bad("b"), good("c")]});
        let page: Page<ConfigMap> = page(&list.to_string()).unwrap();
        assert_eq!(names(&page.items), ["n/a", "!n/b", "n/c"]);
        assert_eq!((page.resource_version.as_deref(), page.continue_token.as_deref()), (Some("9"), Some("t")));
        let Item::Unreadable { error, .. } = &page.items[1] else { panic!() };
        assert!(error.contains("invalid type"), "{error}");
        assert_eq!(page.items[1].resource_version(), Some("8"), "the watch goes on after it");
    }

    #[test]
    fn a_page_may_be_empty_or_null_but_not_something_else() {
        for items in [json!([]), Value::Null] {
            let page: Page<ConfigMap> =
                page(&json!({"metadata": {"resourceVersion": "9", "continue": ""}, "items": items}).to_string()).unwrap();
            assert_eq!((page.items.len(), page.continue_token), (0, None));
        }
        assert!(page::<ConfigMap>("<html>").is_err());
        assert!(page::<ConfigMap>("{\"items\": 5}").is_err());
    }

    #[test]
    fn every_kind_of_line_is_read() {
        let line = |value: Value| line::<ConfigMap>(&value.to_string());
        assert!(matches!(line(json!({"type": "ADDED", "object": good("a")})), Ok(Line::Put(Item::Object(_)))));
        assert!(matches!(line(json!({"type": "MODIFIED", "object": bad("a")})), Ok(Line::Put(Item::Unreadable { .. }))));
        assert!(matches!(line(json!({"type": "DELETED", "object": bad("a")})), Ok(Line::Delete(Item::Unreadable { .. }))));
        let bookmark = |annotations: Value| json!({"type": "BOOKMARK", "object": {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"resourceVersion": "5", "annotations": annotations}}});
        let end = |end_of_list| Line::Bookmark { resource_version: "5".to_owned(), end_of_list };
        assert_eq!(line(bookmark(json!({}))).unwrap(), end(false));
        assert_eq!(line(bookmark(json!({"k8s.io/initial-events-end": "true"}))).unwrap(), end(true));
        let gone = line(
            json!({"type": "ERROR", "object": {"kind": "Status", "status": "Failure", "code": 410, "message": "too old", "reason": "Expired"}}),
        );
        assert!(matches!(gone, Ok(Line::Error(status)) if status.code == 410));
        assert!(line(json!({"type": "NEWS", "object": {}})).is_err());
        // Not even metadata: still a line about an object.
        assert!(matches!(line(json!({"type": "ADDED", "object": "text"})), Ok(Line::Put(Item::Unreadable { key: None, .. }))));
    }
}
