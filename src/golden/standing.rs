//! Which goldens count as an image's when it is asked who needs it: one answer for its status, the status page and the command line.

use std::collections::{BTreeSet, HashMap};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::Owner;
use crate::{
    api::{GoldenImage, parse_image},
    model::{ClassName, Identity},
    rules::{marks, whose::Whose},
    world::{evidence::is_guarded, ledger::GoldenKey},
};

/// The goldens that stand in the catalog, by their marks.
#[derive(Debug, Default)]
pub struct Standing<'a> {
    by_name: HashMap<&'a str, &'a ObjectMeta>,
    by_image: HashMap<&'a str, Vec<&'a ObjectMeta>>,
}

impl<'a> Standing<'a> {
    /// Of the claims in the catalog namespace; those that are no goldens are left out.
    pub fn of(claims: impl IntoIterator<Item = &'a ObjectMeta>, catalog: &str) -> Self {
        let mut standing = Self::default();
        for claim in claims.into_iter().filter(|claim| is_guarded(claim, catalog)) {
            standing.by_name.extend(claim.name.as_deref().map(|name| (name, claim)));
            if let Some(image) = label(claim, marks::IMAGE) {
                standing.by_image.entry(image).or_default().push(claim);
            }
        }
        standing
    }

    /// Those that may be the image's: by their mark, or on its record.
    pub fn of_owner(&self, owner: &Owner<'_>) -> Vec<&'a ObjectMeta> {
        let recorded = owner.recorded().filter_map(|golden| self.by_name.get(golden).copied());
        let marked = self.by_image.get(owner.name()).into_iter().flatten().copied();
        // A golden on record is marked for the image too, most often.
        let all: HashMap<&str, &ObjectMeta> = recorded.chain(marked).filter_map(|claim| Some((claim.name.as_deref()?, claim))).collect();
        let mut its: Vec<_> = all.into_values().filter(|claim| owner.claim(claim) != Whose::Another).collect();
        its.sort_unstable_by_key(|claim| claim.name.as_deref());
        its
    }

    /// Whether a golden of another image stands under this name.
    fn is_of_another(&self, golden: &str, image: &str) -> bool {
        self.by_name.get(golden).and_then(|claim| label(claim, marks::IMAGE)).is_some_and(|marked| marked != image)
    }
}

fn label<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.labels.as_ref()?.get(key).map(String::as_str)
}

/// The goldens of an image, and what the image is.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Goldens {
    /// Their names.
    pub names: BTreeSet<String>,
    /// The identity, by which worker classes name it.
    pub identity: Option<Identity>,
}

impl Goldens {
    /// What the ledger finds their consumers by.
    pub fn keys(&self) -> impl Iterator<Item = GoldenKey<'_>> {
        let by_identity = GoldenKey { name: "", identity: self.identity.as_ref() };
        self.names.iter().map(|golden| GoldenKey::named(golden)).chain([by_identity])
    }
}

/// The goldens of an image: those on its record, those that it would make, and those that stand marked for it. `default` is the cluster's
/// default class, and `has_before` whether another image has a golden of this name, or was there before and would make it.
///
/// Its record alone is not enough: it is lost where the object was restored or made again, and not written before an import begins. Who
/// clones what is still to be made waits for it, and needs the image.
pub fn goldens_of(image: &GoldenImage, standing: &Standing<'_>, default: Option<&ClassName>, has_before: impl Fn(&str) -> bool) -> Goldens {
    let (owner, status) = (Owner::of(image), image.status.clone().unwrap_or_default());
    let parsed = parse_image(image).ok();
    let resolved = status.resolved_schematic();
    let all = status.goldens(parsed.as_ref(), resolved.as_ref(), default);
    let is_anothers = |golden: &str| standing.is_of_another(golden, owner.name()) || has_before(golden);
    let known = all.iter().filter_map(|golden| Some((golden.is_recorded(), golden.name()?)));
    let known = known.filter(|(is_recorded, golden)| *is_recorded || !is_anothers(golden)).map(|(_, golden)| golden.to_owned());
    let its = standing.of_owner(&owner);
    let marked = its.iter().find_map(|claim| label(claim, marks::IDENTITY)).map(str::to_owned);
    let own = || parsed.as_ref().and_then(|image| image.identity(resolved.as_ref())).map(|identity| identity.to_string());
    let identity = status.identity.clone().or_else(own).or(marked);
    Goldens {
        names: known.chain(its.iter().filter_map(|claim| claim.name.clone())).collect(),
        identity: identity.and_then(|identity| identity.parse().ok()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const CATALOG: &str = "cozy-public";
    const FIRST: &str = "vm-default-images-a";
    const SECOND: &str = "vm-default-images-a-local";

    fn image(status: &Value) -> GoldenImage {
        serde_json::from_value(json!({
            "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": "a", "uid": "a" },
            "spec": {
                "source": { "http": { "url": "https://e.example/a" } },
                "storage": { "targets": [{ "storageClassName": "replicated" }, { "storageClassName": "local" }] },
            },
            "status": status,
        }))
        .expect("an image")
    }

    /// What stands in the catalog under this name, marked for this image with its identity or another one.
    fn golden(name: &str, of: &str, identity: &str) -> ObjectMeta {
        serde_json::from_value(json!({
            "namespace": CATALOG, "name": name, "uid": name,
            "labels": { marks::GOLDEN: marks::GOLDEN_VALUE, marks::IMAGE: of, marks::IDENTITY: identity },
        }))
        .expect("metadata")
    }

    #[test]
    fn r24_the_goldens_of_an_image_are_known_without_its_record() {
        let own = parse_image(&image(&json!({}))).expect("good").identity(None).expect("an HTTP image knows what it is");
        let recorded = json!({ "targets": [{ "requestedClass": "replicated", "golden": FIRST, "claimUID": FIRST }] });
        let its = |name: &str| golden(name, "a", own.as_str());
        for (case, status, standing, taken, expected) in [
            ("nothing is made", json!({}), vec![], "", vec![FIRST, SECOND]),
            ("another image was there before", json!({}), vec![], SECOND, vec![FIRST]),
            ("the record is lost", json!({}), vec![its(FIRST), its(SECOND)], "", vec![FIRST, SECOND]),
            ("lost, and its name was another", json!({}), vec![its("ubuntu")], "", vec!["ubuntu", FIRST, SECOND]),
            ("on record, and one more", recorded.clone(), vec![its("ubuntu")], "", vec!["ubuntu", FIRST, SECOND]),
            ("its name is another's golden", json!({}), vec![golden(FIRST, "b", own.as_str())], "", vec![SECOND]),
            ("another's that has it on record", recorded.clone(), vec![golden(FIRST, "b", own.as_str())], "", vec![FIRST, SECOND]),
            ("on record, and another would make it", recorded, vec![], FIRST, vec![FIRST, SECOND]),
            ("of the same name and another source", json!({}), vec![golden("ubuntu", "a", "other")], "", vec![FIRST, SECOND]),
        ] {
            let found = goldens_of(&image(&status), &Standing::of(&standing, CATALOG), None, |golden| golden == taken);
            assert_eq!(found.names.iter().map(String::as_str).collect::<Vec<_>>(), expected, "{case}");
            assert_eq!(found.identity.as_ref(), Some(&own), "{case}");
        }
    }

    /// A golden whose mark was written over is the image's by its record.
    #[test]
    fn what_stands_is_an_images_by_mark_or_record() {
        let recorded = image(&json!({ "targets": [{ "requestedClass": "replicated", "golden": FIRST, "claimUID": FIRST }] }));
        let (over, temporary) = (golden(FIRST, "b", "x"), golden("prime-1", "a", "x"));
        let own = parse_image(&recorded).expect("good").identity(None).expect("known");
        let marked = golden(SECOND, "a", own.as_str());
        let all = [over, temporary, marked];
        let standing = Standing::of(&all, CATALOG);
        let its: Vec<_> = standing.of_owner(&Owner::of(&recorded)).into_iter().filter_map(|claim| claim.name.as_deref()).collect();
        assert_eq!(its, [FIRST, SECOND]);
    }
}
