//! What is to be done so that the GoldenImages are what the list says: decided here, done elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt as _;

use super::{Entry, List};
use crate::{
    api::{ConditionType, GoldenImage, GoldenImageSpec, GoldenImageStatus, find_condition, is_digest_of_another, is_true, parse_image},
    model::{Digest, Image, Sameness},
    rules::{Freeze, FrozenChange, Precedence, Reason, duplicate_message, frozen_changes, frozen_message},
};

/// The annotation on a GoldenImage that names the list it comes from, `<namespace>/<ConfigMap>`.
pub const LISTED_IN: &str = "kubernetes-worker-image.cozystack.io/listed-in";

/// The annotation on a GoldenImage with the digest of the entry it was last applied from: a field that left the entry is
/// seen by it, and taken off the object by applying again.
pub const LISTED_AS: &str = "kubernetes-worker-image.cozystack.io/listed-as";

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

impl Listing {
    /// How the image stood to the list when its status was written: what counts until the list has been read again.
    pub fn on_record(status: &GoldenImageStatus) -> Self {
        let edited = find_condition(&status.conditions, ConditionType::EntryEdited).filter(|condition| condition.status == "True");
        // What the targets say for themselves stands behind it, and a text of ours may have been cut to fit.
        let of_list = edited.map(|condition| {
            let mut told = Reason::EntryEdited.without_remedy(&condition.message);
            for of_target in status.edited_targets() {
                let lead: String = of_target.chars().take(40).collect();
                told = told.find(&lead).map_or(told, |at| &told[..at]);
            }
            told.trim_end().to_owned()
        });
        match of_list {
            _ if is_true(&status.conditions, ConditionType::Unlisted) => Self::Unlisted,
            Some(told) if !told.is_empty() => Self::Edited(told),
            Some(_) | None => Self::ByHand,
        }
    }
}

/// Something to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Apply this spec under this name, with the annotations [`LISTED_IN`] and [`LISTED_AS`].
    Apply {
        /// The GoldenImage's name.
        name: String,
        /// Its spec.
        spec: Box<GoldenImageSpec>,
        /// The entry's digest, for [`LISTED_AS`].
        digest: Digest,
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
    let mut owners = owners(existing);

    // Whose entry is wrong: that is not dropped. Which image it is that has no name either, nobody knows.
    let (mut wrong, mut is_any_nameless) = (BTreeSet::new(), false);
    for entry in &list.entries {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                match &error.name {
                    Some(name) => drop(wrong.insert(name.clone())),
                    None => is_any_nameless = true,
                }
                plan.problems.push(Problem { index: error.index, reason: error.errors.reason(), message: error.to_string() });
                continue;
            }
        };
        let name = entry.name.to_string();
        if plan.listings.contains_key(&name) {
            let message = format!("images[{}] ({name}): another entry of the list has this name: give it a name of its own.", entry.index);
            plan.problems.push(Problem { index: entry.index, reason: Reason::InvalidEntry, message });
            continue;
        }
        let ways = Sameness::of(&entry.image, None);
        if let Some((same, first)) = ways.iter().find_map(|same| Some((same, owners.get(same).filter(|owner| owner.name() != name)?))) {
            let message = duplicate_message(&format!("images[{}] ({name})", entry.index), first.name(), same);
            plan.problems.push(Problem { index: entry.index, reason: Reason::DuplicateIdentity, message });
            wrong.insert(name);
            continue;
        }
        owners.extend(ways.into_iter().map(|same| (same, Precedence::new(name.clone(), None, false))));
        let listing = match by_name.get(&name) {
            None => {
                plan.steps.push(Step::Apply { name: name.clone(), spec: Box::new(entry.spec.clone()), digest: digest_of(entry) });
                Listing::Listed
            }
            Some(object) => compare(entry, object, list_id, &mut plan.steps),
        };
        plan.listings.insert(name, listing);
    }

    for object in existing {
        let name = object.name_any();
        if object.annotations().get(LISTED_IN).is_some_and(|id| id == list_id) && !plan.listings.contains_key(&name) {
            let was_dropped = object.status.as_ref().is_some_and(|status| is_true(&status.conditions, ConditionType::Unlisted));
            let is_listed = wrong.contains(&name) || (is_any_nameless && !was_dropped);
            plan.listings.insert(name, if is_listed { Listing::Listed } else { Listing::Unlisted });
        }
    }
    plan
}

/// Who has each image, by all that one can be known by: where two objects are one image already, one of them counts as the first (R3).
pub fn owners(existing: &[GoldenImage]) -> BTreeMap<Sameness, Precedence> {
    let mut owners: BTreeMap<Sameness, Precedence> = BTreeMap::new();
    for object in existing {
        let resolved = object.status.as_ref().and_then(GoldenImageStatus::resolved_schematic);
        for same in parse_image(object).iter().flat_map(|image| Sameness::of(image, resolved.as_ref())) {
            let place = object.precedence();
            let first = owners.entry(same).or_insert_with(|| place.clone());
            if place < *first {
                *first = place;
            }
        }
    }
    owners
}

/// R4: the frozen fields in which an entry says otherwise than its image. A digest that somebody else gave the image is theirs: an entry that
/// says none was not edited.
pub fn entry_changes(entry: &Image, object: &GoldenImage) -> Vec<FrozenChange> {
    let Ok(live) = parse_image(object) else { return Vec::new() };
    let freeze = |class: &str| object.status.as_ref().map_or(Freeze::Free, |status| status.freeze(class));
    if entry.digest.is_none() && is_digest_of_another(object) {
        return frozen_changes(&live, &Image { digest: live.digest, ..entry.clone() }, freeze);
    }
    frozen_changes(&live, entry, freeze)
}

fn compare(entry: &Entry, object: &GoldenImage, list_id: &str, steps: &mut Vec<Step>) -> Listing {
    if object.metadata.deletion_timestamp.is_some() {
        return Listing::Listed;
    }
    let changes = entry_changes(&entry.image, object);
    if !changes.is_empty() {
        return Listing::Edited(frozen_message(&format!("images[{}] ({})", entry.index, entry.name), &changes));
    }
    let is = |annotation: &str, value: &str| object.annotations().get(annotation).is_some_and(|found| found == value);
    let (spec, digest) = (with_live_spelling(entry, object), digest_of(entry));
    if !is(LISTED_IN, list_id) || !is(LISTED_AS, &digest.to_string()) || !has_all(&object.spec, &spec) {
        steps.push(Step::Apply { name: entry.name.to_string(), spec: Box::new(spec), digest });
    }
    Listing::Listed
}

/// What an entry says, as one value that changes with each of its fields.
fn digest_of(entry: &Entry) -> Digest {
    Digest::of(&serde_json::to_vec(&entry.spec).unwrap_or_default())
}

/// Whether the live object has everything that is wanted. Fields that someone else added to it (`suspend` by hand, say) are
/// not the list's business where the list does not state them.
fn has_all(live: &GoldenImageSpec, wanted: &GoldenImageSpec) -> bool {
    fn covers(live: &serde_json::Value, wanted: &serde_json::Value) -> bool {
        match (live, wanted) {
            (serde_json::Value::Object(live), serde_json::Value::Object(wanted)) => {
                wanted.iter().all(|(key, value)| live.get(key).is_some_and(|live| covers(live, value)))
            }
            (live, wanted) => live == wanted,
        }
    }
    matches!((serde_json::to_value(live), serde_json::to_value(wanted)), (Ok(live), Ok(wanted)) if covers(&live, &wanted))
}

/// The entry's spec, with frozen fields spelled as they are live where both say the same: `6Gi` for `6144Mi`, a default
/// written out, a URL's host in capitals, a schematic indented otherwise. Another spelling is no edit (R4), and the CRD, which
/// compares spellings, would refuse it.
fn with_live_spelling(entry: &Entry, object: &GoldenImage) -> GoldenImageSpec {
    let mut spec = entry.spec.clone();
    let Ok(live) = parse_image(object) else { return spec };
    if live.source == entry.image.source {
        spec.source.clone_from(&object.spec.source);
    }
    if live.usages == entry.image.usages {
        spec.usages.clone_from(&object.spec.usages);
    }
    if live.targets == entry.image.targets {
        spec.storage.clone_from(&object.spec.storage);
    } else if let (Some(wanted), Some(storage)) = (&mut spec.storage, &object.spec.storage) {
        // Targets were added: those that were there keep their spelling.
        for (target, parsed) in wanted.targets.iter_mut().zip(&entry.image.targets) {
            if let Some(at) = live.targets.iter().position(|known| known == parsed)
                && let Some(known) = storage.targets.get(at)
            {
                target.clone_from(known);
            }
        }
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
        let mut a = live("a", "https://e.example/a", true);
        let applied_by_an_older_release = plan(&list, std::slice::from_ref(&a), LIST);
        assert_eq!(applied_by_an_older_release.steps.len(), 2, "which fields it owns is not known: applied once more");
        let digest = super::digest_of(list.entries[0].as_ref().expect("good")).to_string();
        a.metadata.annotations.get_or_insert_default().insert(super::LISTED_AS.to_owned(), digest);
        let plan = plan(&list, &[a], LIST);
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
    fn a_wrong_entry_is_not_dropped() {
        let all = [live("a", "https://e.example/a", true), live("b", "https://e.example/b", true)];
        let named = plan(&list("- {name: a, url: 'https://e.example/a', descrption: x}\n"), &all, LIST);
        assert_eq!((named.listings.get("a"), named.listings.get("b")), (Some(&Listing::Listed), Some(&Listing::Unlisted)));
        let nameless = plan(&list("- {url: 'https://e.example/a'}\n"), &all, LIST);
        assert_eq!((nameless.listings.get("a"), nameless.listings.get("b")), (Some(&Listing::Listed), Some(&Listing::Listed)));
    }

    /// Live as if the entries had been applied.
    fn applied(entries: &str, change: impl Fn(&mut GoldenImage)) -> GoldenImage {
        let entry = list(entries).entries.remove(0).expect("good");
        let mut object = GoldenImage::new(entry.name.as_str(), entry.spec.clone());
        object.metadata.annotations = Some(
            [(super::LISTED_IN, LIST.to_owned()), (super::LISTED_AS, super::digest_of(&entry).to_string())]
                .map(|(key, value)| (key.to_owned(), value))
                .into(),
        );
        change(&mut object);
        object
    }

    /// Fault 21: a field that leaves the entry leaves the object, whichever it is.
    #[test]
    fn a_field_that_leaves_an_entry_is_taken_off_the_object() {
        for field in ["suspend: true", "description: old", "caBundleRef: {name: ca}", "os: {name: Old}"] {
            let live = applied(&format!("- {{name: a, url: 'https://e.example/a', {field}}}\n"), |_| {});
            let same = plan(&list(&format!("- {{name: a, url: 'https://e.example/a', {field}}}\n")), std::slice::from_ref(&live), LIST);
            assert_eq!(same.steps, [], "{field}");
            let without = plan(&list("- {name: a, url: 'https://e.example/a'}\n"), &[live], LIST);
            let [Step::Apply { spec, .. }] = &without.steps[..] else { panic!("{field}: {without:?}") };
            let spec = serde_json::to_value(spec).expect("JSON");
            assert_eq!(spec, json!({ "source": { "http": { "url": "https://e.example/a" } } }), "{field}");
        }
    }

    #[test]
    fn what_a_person_adds_stays_and_what_a_person_takes_away_comes_back() {
        let entry = "- {name: a, url: 'https://e.example/a', description: d}\n";
        let added = applied(entry, |object| object.spec.suspend = Some(true));
        assert_eq!(plan(&list(entry), &[added], LIST).steps, []);
        let taken = applied(entry, |object| object.spec.description = None);
        assert_eq!(plan(&list(entry), &[taken], LIST).steps.len(), 1);
    }

    /// R4: a digest may be given to an image once, by whoever likes; the entry that says none is still applied in what is free.
    #[test]
    fn r4_a_digest_that_somebody_else_gave_is_theirs() {
        let digest = format!("sha256:{}", "1".repeat(64));
        let plain = "- {name: a, url: 'https://e.example/a'}\n";
        let edited = "- {name: a, url: 'https://e.example/a', suspend: true}\n";
        let given = |managers: &[&str]| {
            let managed = managers.iter().map(|manager| {
                json!({ "manager": manager, "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": { "f:spec": { "f:digest": {} } } })
            });
            let managed: serde_json::Value = managed.collect();
            applied(plain, |object| {
                object.spec.digest = Some(digest.clone());
                object.metadata.managed_fields = serde_json::from_value(managed.clone()).expect("managers");
            })
        };
        let by_hand = plan(&list(plain), &[given(&["kubectl-patch"])], LIST);
        assert_eq!((by_hand.steps, by_hand.listings.get("a")), (vec![], Some(&Listing::Listed)));
        let suspended = plan(&list(edited), &[given(&["kubectl-patch"])], LIST);
        let [Step::Apply { spec, .. }] = &suspended.steps[..] else { panic!("{suspended:?}") };
        assert_eq!((spec.suspend, &spec.digest), (Some(true), &None), "it stays its owner's");
        for managers in [&["golden-catalog/entries"][..], &["kubectl-patch", "golden-catalog/entries"], &[]] {
            let taken_out = plan(&list(edited), &[given(managers)], LIST);
            assert_eq!(taken_out.steps, [], "{managers:?}");
            assert!(matches!(&taken_out.listings["a"], Listing::Edited(why) if why.contains("→ none")), "{managers:?}");
        }
        let other = format!("- {{name: a, url: 'https://e.example/a', digest: 'sha256:{}'}}\n", "2".repeat(64));
        assert!(matches!(&plan(&list(&other), &[given(&["kubectl-patch"])], LIST).listings["a"], Listing::Edited(_)));
    }

    /// R23: a target that leaves the entry leaves the object, spelled as it is live, and its golden goes; exchanged for another it is told.
    #[test]
    fn r23_a_target_that_leaves_an_entry_is_taken_out_of_the_object() {
        let entry = |storage: &str| format!("- {{name: a, url: 'https://e.example/a', storage: {{targets: [{storage}]}}}}\n");
        let made = |object: &mut GoldenImage| {
            let status = json!({ "targets": [{ "requestedClass": "", "golden": "g" }, { "requestedClass": "b", "golden": "g-b" }] });
            object.status = serde_json::from_value(status).expect("a status");
        };
        let live = applied(&entry("{size: 6Gi}, {storageClassName: b}"), made);
        let left = plan(&list(&entry("{size: 6144Mi}")), std::slice::from_ref(&live), LIST);
        let [Step::Apply { spec, .. }] = &left.steps[..] else { panic!("{left:?}") };
        let storage = serde_json::to_value(&spec.storage).expect("JSON");
        assert_eq!(storage, json!({ "targets": [{ "size": "6Gi" }] }));
        let exchanged = plan(&list(&entry("{size: 6Gi}, {storageClassName: c}")), &[live], LIST);
        assert!(exchanged.steps.is_empty(), "{exchanged:?}");
        let Listing::Edited(message) = &exchanged.listings["a"] else { panic!("{exchanged:?}") };
        assert!(message.contains("`storage.targets (b)`: size of the image → removed"), "{message}");
    }

    /// R4: the CRD compares spellings; what says the same is applied as it is spelled live.
    #[test]
    fn r4_frozen_fields_keep_their_live_spelling() {
        let live = applied("- {name: a, url: 'https://e.example/a', storage: 6Gi}\n", |_| {});
        for respelled in [
            "- {name: a, url: 'https://E.example/a', storage: 6Gi, description: x}\n",
            "- {name: a, url: 'https://e.example/a', storage: 6144Mi, architecture: amd64, description: x}\n",
            "- {name: a, url: 'https://e.example/a', storage: 6Gi, usages: [VirtualMachine], description: x}\n",
        ] {
            let plan = plan(&list(respelled), std::slice::from_ref(&live), LIST);
            let [Step::Apply { spec, .. }] = &plan.steps[..] else { panic!("{respelled}: {plan:?}") };
            assert_eq!(
                (&spec.source, &spec.usages, &spec.storage),
                (&live.spec.source, &live.spec.usages, &live.spec.storage),
                "{respelled}"
            );
        }
    }

    #[test]
    fn an_image_by_hand_of_the_same_content_is_taken_into_the_list() {
        let plan = plan(&list("- {name: a, url: 'https://e.example/a', storage: 6Gi}\n"), &[live("a", "https://e.example/a", false)], LIST);
        let [Step::Apply { spec, .. }] = &plan.steps[..] else { panic!("{plan:?}") };
        assert_eq!(spec.storage.as_ref().expect("storage").targets[0].size.as_deref(), Some("6144Mi"));
    }
}
