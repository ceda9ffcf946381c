//! What is to be done so that the GoldenImages are what the list says: decided here, done elsewhere.

use std::collections::BTreeMap;

use kube::ResourceExt as _;

use super::{Entry, List};
use crate::{
    api::{GoldenImage, GoldenImageSpec, parse_image},
    model::Identity,
    rules::{Reason, duplicate_message, frozen_changes, frozen_message},
};

/// The annotation on a GoldenImage that names the list it comes from, `<namespace>/<ConfigMap>`.
pub const LISTED_IN: &str = "kubernetes-worker-image.cozystack.io/listed-in";

/// How a GoldenImage stands to the list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Listing {
    /// It was never in the list.
    #[default]
    ByHand,
    /// The list has it as it is.
    Listed,
    /// The list had it and dropped it; it stays.
    Unlisted,
    /// The list has it with other frozen fields (R4); the message says which.
    Edited(String),
}

/// Something to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Apply this spec under this name, with the annotation [`LISTED_IN`].
    Apply {
        /// The GoldenImage's name.
        name: String,
        /// Its spec.
        spec: Box<GoldenImageSpec>,
    },
}

/// An entry that does not become a GoldenImage, told as an Event on the ConfigMap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The entry's place in the list.
    pub index: usize,
    /// The reason.
    pub reason: Reason,
    /// What is wrong and what to do.
    pub message: String,
}

/// What follows from a list and the GoldenImages there are.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// What to do, in the order of the list.
    pub steps: Vec<Step>,
    /// How each GoldenImage stands to the list, by name; one that is not here is [`Listing::ByHand`].
    pub listings: BTreeMap<String, Listing>,
    /// The entries that become nothing.
    pub problems: Vec<Problem>,
}

/// Compares the list with the GoldenImages there are. `list_id` is `<namespace>/<ConfigMap>`.
pub fn plan(list: &List, existing: &[GoldenImage], list_id: &str) -> Plan {
    let mut plan = Plan::default();
    let by_name: BTreeMap<String, &GoldenImage> = existing.iter().map(|object| (object.name_any(), object)).collect();
    let mut owners: BTreeMap<Identity, String> = BTreeMap::new();
    for object in existing {
        let resolved = object.status.as_ref().and_then(|status| status.schematic_id.as_ref()).and_then(|id| id.parse().ok());
        if let Some(identity) = parse_image(object).ok().and_then(|image| image.identity(resolved.as_ref())) {
            // Where two objects are one image already, the older one counts as the first (R3).
            let age = |name: &str| by_name.get(name).and_then(|object| object.creation_timestamp());
            let first = owners.entry(identity).or_insert_with(|| object.name_any());
            if age(first) > object.creation_timestamp() {
                *first = object.name_any();
            }
        }
    }

    for entry in &list.entries {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                plan.problems.push(Problem { index: error.index, reason: Reason::InvalidEntry, message: error.to_string() });
                continue;
            }
        };
        let name = entry.name.to_string();
        if plan.listings.contains_key(&name) {
            let message = format!("images[{}] ({name}): another entry of the list has this name: give it a name of its own.", entry.index);
            plan.problems.push(Problem { index: entry.index, reason: Reason::InvalidEntry, message });
            continue;
        }
        if let Some(identity) = entry.image.identity(None) {
            match owners.get(&identity).filter(|owner| **owner != name) {
                Some(first) => {
                    let message = duplicate_message(&format!("images[{}] ({name})", entry.index), first, identity.as_str());
                    plan.problems.push(Problem { index: entry.index, reason: Reason::DuplicateIdentity, message });
                    continue;
                }
                None => {
                    owners.insert(identity, name.clone());
                }
            }
        }
        let listing = match by_name.get(&name) {
            None => {
                plan.steps.push(Step::Apply { name: name.clone(), spec: Box::new(entry.spec.clone()) });
                Listing::Listed
            }
            Some(object) => compare(entry, object, list_id, &mut plan.steps),
        };
        plan.listings.insert(name, listing);
    }

    for object in existing {
        let name = object.name_any();
        if object.annotations().get(LISTED_IN).is_some_and(|id| id == list_id) && !plan.listings.contains_key(&name) {
            plan.listings.insert(name, Listing::Unlisted);
        }
    }
    plan
}

fn compare(entry: &Entry, object: &GoldenImage, list_id: &str, steps: &mut Vec<Step>) -> Listing {
    if object.metadata.deletion_timestamp.is_some() {
        return Listing::Listed;
    }
    if let Ok(live) = parse_image(object) {
        let golden_exists = object.status.as_ref().is_some_and(|status| status.targets.iter().any(|target| target.golden.is_some()));
        let changes = frozen_changes(&live, &entry.image, golden_exists);
        if !changes.is_empty() {
            return Listing::Edited(frozen_message(&format!("images[{}] ({})", entry.index, entry.name), &changes));
        }
    }
    let marked = object.annotations().get(LISTED_IN).is_some_and(|id| id == list_id);
    if !marked || !same_spec(&object.spec, &entry.spec) {
        steps.push(Step::Apply { name: entry.name.to_string(), spec: Box::new(with_live_spelling(entry, object)) });
    }
    Listing::Listed
}

/// Whether the two say the same, quantities by value. Fields that someone else added to the live object (`suspend` by hand,
/// say) are not the list's business where the list does not state them.
fn same_spec(live: &GoldenImageSpec, wanted: &GoldenImageSpec) -> bool {
    let covers = |live: &serde_json::Value, wanted: &serde_json::Value| match (live, wanted) {
        (live, serde_json::Value::Null) => live.is_null() || live.is_object() || live.is_boolean(),
        (live, wanted) => live == wanted,
    };
    let (Ok(live), Ok(wanted)) = (serde_json::to_value(live), serde_json::to_value(wanted)) else { return false };
    let (Some(live_map), Some(wanted_map)) = (live.as_object(), wanted.as_object()) else { return false };
    wanted_map.iter().all(|(key, value)| key == "storage" || covers(live_map.get(key).unwrap_or(&serde_json::Value::Null), value))
        && live_map.get("description").is_none() == wanted_map.get("description").is_none()
        && same_targets(live_map.get("storage"), wanted_map.get("storage"))
}

fn same_targets(live: Option<&serde_json::Value>, wanted: Option<&serde_json::Value>) -> bool {
    let targets = |storage: Option<&serde_json::Value>| {
        storage.and_then(|s| s.get("targets")).and_then(|t| t.as_array()).cloned().unwrap_or_default()
    };
    let size =
        |target: &serde_json::Value| target.get("size").and_then(|s| s.as_str()).and_then(|s| s.parse::<crate::model::DiskSize>().ok());
    let (live, wanted) = (targets(live), targets(wanted));
    live.len() == wanted.len()
        && live.iter().zip(&wanted).all(|(live, wanted)| {
            size(live) == size(wanted)
                && ["storageClassName", "volumeMode", "accessModes"].iter().all(|key| live.get(*key) == wanted.get(*key))
        })
}

/// The entry's spec, with quantities spelled as they are live where they are equal: another spelling is no change.
fn with_live_spelling(entry: &Entry, object: &GoldenImage) -> GoldenImageSpec {
    let mut spec = entry.spec.clone();
    if let (Some(wanted), Some(live)) = (&mut spec.storage, &object.spec.storage)
        && same_targets(serde_json::to_value(live).ok().as_ref(), serde_json::to_value(&*wanted).ok().as_ref())
    {
        wanted.targets.clone_from(&live.targets);
    }
    spec
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{LISTED_IN, Listing, Step, plan};
    use crate::{api::GoldenImage, catalog::read_list, rules::Reason};

    const LIST: &str = "cozy-kubernetes-worker-image/golden-catalog-images";

    fn live(name: &str, url: &str, listed: bool) -> GoldenImage {
        let annotations = if listed { json!({ LISTED_IN: LIST }) } else { json!({}) };
        serde_json::from_value(json!({
            "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage",
            "metadata": { "name": name, "annotations": annotations },
            "spec": { "source": { "http": { "url": url } }, "storage": { "targets": [{ "size": "6144Mi" }] } },
        }))
        .expect("object")
    }

    fn list(entries: &str) -> crate::catalog::List {
        read_list(&format!("images:\n{entries}")).expect("list")
    }

    #[test]
    fn a_new_entry_is_applied_and_an_equal_one_is_left_alone() {
        let list = list("- {name: a, url: 'https://e.example/a', storage: 6Gi}\n- {name: b, url: 'https://e.example/b'}\n");
        let plan = plan(&list, &[live("a", "https://e.example/a", true)], LIST);
        assert!(matches!(&plan.steps[..], [Step::Apply { name, .. }] if name == "b"), "{plan:?}");
        assert_eq!(plan.problems, []);
    }

    #[test]
    fn r4_an_edited_entry_is_told_and_not_applied() {
        let plan =
            plan(&list("- {name: a, url: 'https://e.example/new', storage: 6Gi}\n"), &[live("a", "https://e.example/a", true)], LIST);
        assert_eq!(plan.steps, []);
        let Listing::Edited(message) = &plan.listings["a"] else { panic!("{plan:?}") };
        assert!(message.contains("https://e.example/a → https://e.example/new"), "{message}");
    }

    #[test]
    fn r3_the_later_of_two_is_refused_naming_the_first() {
        let list = list(
            "- {name: b, url: 'https://e.example/a'}\n- {name: c, url: 'https://e.example/c'}\n- {name: d, url: 'https://e.example/c'}\n",
        );
        let plan = plan(&list, &[live("a", "https://e.example/a", false)], LIST);
        assert_eq!(
            plan.problems.iter().map(|p| (p.index, p.reason)).collect::<Vec<_>>(),
            [(0, Reason::DuplicateIdentity), (2, Reason::DuplicateIdentity)]
        );
        assert!(plan.problems[0].message.contains("same image as a"), "{:?}", plan.problems);
        assert!(plan.problems[1].message.contains("same image as c"), "{:?}", plan.problems);
    }

    #[test]
    fn a_dropped_entry_is_unlisted_and_an_image_by_hand_is_not() {
        let plan = plan(
            &crate::catalog::List::default(),
            &[live("a", "https://e.example/a", true), live("b", "https://e.example/b", false)],
            LIST,
        );
        assert_eq!(plan.listings.get("a"), Some(&Listing::Unlisted));
        assert_eq!(plan.listings.get("b"), None);
        assert_eq!(plan.steps, []);
    }

    #[test]
    fn an_image_by_hand_of_the_same_content_is_taken_into_the_list() {
        let plan = plan(&list("- {name: a, url: 'https://e.example/a', storage: 6Gi}\n"), &[live("a", "https://e.example/a", false)], LIST);
        let [Step::Apply { spec, .. }] = &plan.steps[..] else { panic!("{plan:?}") };
        assert_eq!(spec.storage.as_ref().expect("storage").targets[0].size.as_deref(), Some("6144Mi"));
    }
}
