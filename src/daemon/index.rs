//! Who is, and who has, what: images by identity and by golden, kept up to date by the watch.
//!
//! With a thousand images, asking each of them at every look would be a million parsed specs a round.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{PoisonError, RwLock},
};

use crate::{
    api::{GoldenImage, parse_image},
    rules::Precedence,
};

/// The index. Shared by whoever holds it in an `Arc`.
#[derive(Debug, Default)]
pub struct Index(RwLock<Tables>);

#[derive(Debug, Default)]
struct Tables {
    rows: HashMap<String, Row>,
    by_identity: HashMap<String, BTreeSet<String>>,
    by_golden: HashMap<String, BTreeSet<String>>,
}

#[derive(Debug, PartialEq)]
struct Row {
    rank: Precedence,
    identity: Option<String>,
    /// Goldens on record.
    made: BTreeSet<String>,
    /// Goldens that it would make.
    wanted: BTreeSet<String>,
}

impl Row {
    fn of(object: &GoldenImage) -> Self {
        let status = object.status.clone().unwrap_or_default();
        let resolved = status.resolved_schematic();
        let image = parse_image(object).ok();
        let (mut made, mut wanted) = (BTreeSet::new(), BTreeSet::new());
        for golden in status.goldens(image.as_ref(), resolved.as_ref(), None) {
            let names = if golden.is_recorded() { &mut made } else { &mut wanted };
            names.extend(golden.name().map(str::to_owned));
        }
        Self {
            rank: object.precedence(),
            identity: image.and_then(|image| image.identity(resolved.as_ref())).map(|identity| identity.to_string()),
            made,
            wanted,
        }
    }

    fn goldens(&self) -> impl Iterator<Item = &String> {
        self.made.union(&self.wanted)
    }
}

impl Index {
    /// Takes over what the watch shows under a name; `None` is an object that is gone.
    pub fn update(&self, name: &str, object: Option<&GoldenImage>) {
        let row = object.map(Row::of);
        let mut tables = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if tables.rows.get(name) == row.as_ref() {
            return;
        }
        if let Some(old) = tables.rows.remove(name) {
            if let Some(identity) = &old.identity {
                leave(&mut tables.by_identity, identity, name);
            }
            for golden in old.goldens() {
                leave(&mut tables.by_golden, golden, name);
            }
        }
        if let Some(row) = row {
            if let Some(identity) = &row.identity {
                tables.by_identity.entry(identity.clone()).or_default().insert(name.to_owned());
            }
            for golden in row.goldens() {
                tables.by_golden.entry(golden.clone()).or_default().insert(name.to_owned());
            }
            tables.rows.insert(name.to_owned(), row);
        }
    }

    /// R3: the image that is first among those of `identity`, if that is not `name`.
    pub fn older_twin(&self, name: &str, identity: &str) -> Option<String> {
        let tables = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let own = tables.rows.get(name).map(|row| &row.rank);
        let others = tables.by_identity.get(identity).into_iter().flatten().filter(|other| *other != name);
        let ranks = others.filter_map(|other| tables.rows.get(other)).map(|row| &row.rank);
        ranks.filter(|rank| own.is_none_or(|own| rank < &own)).min().map(|first| first.name().to_owned())
    }

    /// Another image that has a golden of this name, or wants it and was there before `name`.
    pub fn owner_before(&self, name: &str, golden: &str) -> Option<String> {
        let tables = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let own = tables.rows.get(name)?;
        if own.made.contains(golden) {
            return None;
        }
        let others = tables.by_golden.get(golden)?.iter().filter(|other| *other != name);
        let rows = others.filter_map(|other| tables.rows.get(other));
        rows.filter(|row| row.made.contains(golden) || row.rank < own.rank).map(|row| &row.rank).min().map(|first| first.name().to_owned())
    }

    /// The images that have, or would make, a golden of this name.
    pub fn images_of(&self, golden: &str) -> Vec<String> {
        let tables = self.0.read().unwrap_or_else(PoisonError::into_inner);
        tables.by_golden.get(golden).into_iter().flatten().cloned().collect()
    }
}

fn leave(table: &mut HashMap<String, BTreeSet<String>>, key: &str, name: &str) {
    if let Some(names) = table.get_mut(key) {
        names.remove(name);
        if names.is_empty() {
            table.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::Index;
    use crate::api::GoldenImage;

    fn image(name: &str, created: &str, url: &str, targets: Value, goldens: &[&str]) -> GoldenImage {
        let status: Vec<_> = goldens.iter().map(|golden| json!({ "requestedClass": "", "attempts": 1, "golden": golden })).collect();
        serde_json::from_value(json!({
            "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": name, "creationTimestamp": created },
            "spec": { "source": { "http": { "url": format!("https://e.example/{url}") } }, "storage": { "targets": targets } },
            "status": { "targets": status },
        }))
        .expect("object")
    }

    fn index(images: &[GoldenImage]) -> Index {
        let index = Index::default();
        for image in images {
            index.update(image.metadata.name.as_deref().expect("name"), Some(image));
        }
        index
    }

    fn identity(url: &str) -> String {
        let parsed = crate::api::parse_image(&image("x", "2026-01-01T00:00:00Z", url, json!([{}]), &[])).expect("good");
        parsed.identity(None).expect("identity").to_string()
    }

    const EARLY: &str = "2026-01-01T00:00:00Z";
    const LATE: &str = "2026-01-02T00:00:00Z";

    #[test]
    fn r3_whoever_has_a_golden_is_first_then_the_older_then_the_name() {
        let one = [json!([{}])];
        let images = [
            image("b", EARLY, "u", one[0].clone(), &[]),
            image("a", EARLY, "u", one[0].clone(), &[]),
            image("late", LATE, "u", one[0].clone(), &[]),
            image("other", EARLY, "v", one[0].clone(), &[]),
        ];
        let index = index(&images);
        let twin = |name: &str| index.older_twin(name, &identity("u"));
        assert_eq!((twin("a"), twin("b").as_deref(), twin("late").as_deref()), (None, Some("a"), Some("a")));
        assert_eq!(index.older_twin("other", &identity("v")), None);
        index.update("late", Some(&image("late", LATE, "u", one[0].clone(), &["vm-default-images-late"])));
        assert_eq!((twin("a").as_deref(), twin("b").as_deref(), twin("late")), (Some("late"), Some("late"), None));
        index.update("late", None);
        assert_eq!(twin("a"), None);
    }

    /// A class that is put before the others once a golden is on record is called by its class, as it will be made.
    #[test]
    fn an_image_is_found_by_what_it_would_make() {
        let mut reordered = image("a", EARLY, "u", json!([{ "storageClassName": "new" }, {}]), &["vm-default-images-a"]);
        let index = index(std::slice::from_ref(&reordered));
        assert_eq!(index.images_of("vm-default-images-a-new"), ["a"]);
        assert_eq!(index.images_of("vm-default-images-a"), ["a"]);
        // Taken out before it was made: nothing is left of it.
        reordered.spec.storage.as_mut().expect("storage").targets.remove(0);
        index.update("a", Some(&reordered));
        assert!(index.images_of("vm-default-images-a-new").is_empty());
        assert_eq!(index.images_of("vm-default-images-a"), ["a"]);
    }

    /// `a` in class `b`, and `a-b`: the daemon refuses the later, as `plan` does.
    #[test]
    fn two_images_cannot_have_one_golden() {
        let two = json!([{}, { "storageClassName": "b" }]);
        let (a, ab) = (image("a", EARLY, "u", two.clone(), &[]), image("a-b", LATE, "v", json!([{}]), &[]));
        let taken = "vm-default-images-a-b";
        let index = index(&[a, ab]);
        assert_eq!(index.owner_before("a-b", taken).as_deref(), Some("a"));
        assert_eq!(index.owner_before("a", taken), None);
        assert_eq!(index.images_of(taken), ["a", "a-b"]);
        // Once made, it stays with whom it was made for, whoever is older.
        index.update("a-b", Some(&image("a-b", LATE, "v", json!([{}]), &[taken])));
        assert_eq!(index.owner_before("a-b", taken), None);
        assert_eq!(index.owner_before("a", taken).as_deref(), Some("a-b"));
        index.update("a-b", None);
        assert_eq!(index.owner_before("a", taken), None);
    }
}
