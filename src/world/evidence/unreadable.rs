//! A spec that cannot be read may still name a golden, and then it counts: an odd object neither ends a scan nor passes for "names nothing" (R22). Where it names something of the catalog and nobody can say what, it counts for every golden.

use serde_json::{Map, Value};

use crate::{
    model::{Architecture, ContainerReference, Identity},
    rules::consumers::Evidence,
    world::ledger::{Reference, Target},
};

/// The most references taken from one unreadable spec; what names more may name any.
const MOST: usize = 16;
/// Under these keys stands what is cloned or used, in every kind that clones.
const SOURCES: [&str; 7] = ["pvc", "snapshot", "sourceRef", "dataSource", "dataSourceRef", "persistentVolumeClaim", "dataVolume"];
/// The fields of a place by which it is named.
const NAMES: [&str; 2] = ["name", "claimName"];

/// The reference of what cannot be read and may need any golden.
pub(in crate::world) fn anything() -> Reference {
    Reference { target: Target::Anything, evidence: Evidence::Unknown }
}

/// Every place in `value` that looks like a reference into the catalog: an object with the catalog's `namespace` and a `name`, or one of kind DataSource with a name. A place that says the catalog and no name that can be read may be any golden.
pub(in crate::world) fn references(value: &Value, own: &str, catalog: &str) -> Vec<Reference> {
    let mut search = Search { own, catalog, found: Vec::new(), is_unsure: false };
    search.value(value, "");
    let Search { mut found, is_unsure, .. } = search;
    if is_unsure {
        found.push(anything());
    }
    found
}

/// Every machine template an unreadable MachineDeployment or MachineSet names; any, where that cannot be told.
pub(super) fn templates(value: &Value, own: &str) -> Vec<Target> {
    let mut found = Vec::new();
    let mut others = false;
    search_templates(value, own, &mut found, &mut others);
    if found.len() > MOST || found.is_empty() && !others {
        found.truncate(MOST);
        found.push(Target::Anything);
    }
    found
}

/// `others`: whether a template of another provider is named instead.
fn search_templates(value: &Value, own: &str, found: &mut Vec<Target>, others: &mut bool) {
    match value {
        Value::Object(map) => map.values().for_each(|value| search_templates(value, own, found, others)),
        Value::Array(list) => list.iter().for_each(|value| search_templates(value, own, found, others)),
        _ => {}
    }
    let text = |key: &str| value.get(key).and_then(Value::as_str);
    match (text("kind"), text("name")) {
        (Some("KubevirtMachineTemplate"), Some(name)) => {
            found.push(Target::Template { namespace: text("namespace").unwrap_or(own).to_owned(), name: name.to_owned() });
        }
        (Some(kind), Some(_)) if kind.ends_with("MachineTemplate") => *others = true,
        _ => {}
    }
}

/// What the spec of an unreadable WorkerClass names: every container image pinned by digest in it, for each architecture; any, where it has an image that is none of those.
pub(super) fn identities(value: &Value) -> Vec<Reference> {
    let mut texts = Vec::new();
    strings(value, &mut texts);
    let pinned = texts.into_iter().filter_map(|text| text.parse::<ContainerReference>().ok());
    let identities = pinned.flat_map(|reference| {
        [Architecture::Amd64, Architecture::Arm64].map(|architecture| Identity::of_container_disk(reference.digest(), architecture))
    });
    let mut found: Vec<Reference> = identities
        .take(MOST)
        .map(|identity| Reference { target: Target::Identity(identity.as_str().to_owned()), evidence: Evidence::Unreadable })
        .collect();
    let has_image = value.get("image").is_some_and(|image| !image.is_null()) || !value.is_object();
    if found.is_empty() && has_image {
        found.push(anything());
    }
    found
}

/// What the spec of an unreadable VolumeSnapshot of the catalog was taken of.
pub(super) fn snapshotted(value: &Value) -> Vec<Reference> {
    match value.pointer("/source/persistentVolumeClaimName").and_then(Value::as_str) {
        Some(name) => vec![Reference { target: Target::Claim(name.to_owned()), evidence: Evidence::Unreadable }],
        None => vec![anything()],
    }
}

/// What CDI's unreadable record of a clone, in the catalog, is of.
pub(super) fn recorded(value: &Value) -> Vec<Reference> {
    let text = |pointer: &str| value.pointer(pointer).and_then(Value::as_str);
    let target = match (text("/source/kind"), text("/source/name")) {
        (Some("PersistentVolumeClaim"), Some(name)) => Target::Claim(name.to_owned()),
        (Some("VolumeSnapshot"), Some(name)) => Target::Snapshot(name.to_owned()),
        _ => return vec![anything()],
    };
    vec![Reference { target, evidence: Evidence::Unreadable }]
}

fn strings<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => found.push(text),
        Value::Object(map) => map.values().for_each(|value| strings(value, found)),
        Value::Array(list) => list.iter().for_each(|value| strings(value, found)),
        _ => {}
    }
}

struct Search<'a> {
    own: &'a str,
    catalog: &'a str,
    found: Vec<Reference>,
    /// Whether a place was met that may be a reference to any golden.
    is_unsure: bool,
}

impl Search<'_> {
    fn value(&mut self, value: &Value, key: &str) {
        let is_source = SOURCES.contains(&key);
        match value {
            Value::Object(map) => self.object(map, key, is_source),
            Value::Array(list) => list.iter().for_each(|value| self.value(value, key)),
            // In the catalog a claim is named without a namespace.
            Value::String(text) => self.is_unsure |= text.contains(self.catalog) || is_source && self.own == self.catalog,
            _ => {}
        }
    }

    fn object(&mut self, map: &Map<String, Value>, key: &str, is_source: bool) {
        let target = self.target(map, key);
        let is_named = target.is_some();
        if let Some(target) = target {
            let reference = Reference { target, evidence: Evidence::Unreadable };
            if !self.found.contains(&reference) {
                match self.found.len() < MOST {
                    true => self.found.push(reference),
                    false => self.is_unsure = true,
                }
            }
        } else if is_source && self.may_be_ours(map, key) {
            self.is_unsure = true;
        }
        for (key, value) in map {
            // Where the place is named its own fields say nothing more.
            if !(is_named && (key == "namespace" || NAMES.contains(&key.as_str()))) {
                self.value(value, key);
            }
        }
    }

    /// What the place is, where that can be read.
    fn target(&self, map: &Map<String, Value>, key: &str) -> Option<Target> {
        let text = |key: &str| map.get(key).and_then(Value::as_str);
        let name = NAMES.iter().find_map(|key| text(key))?.to_owned();
        let namespace = match map.get("namespace") {
            None | Some(Value::Null) => None,
            Some(namespace) => Some(namespace.as_str()?),
        };
        let kind = text("kind");
        if kind == Some("DataSource") || key == "sourceRef" {
            return Some(Target::DataSource { namespace: namespace.unwrap_or(self.own).to_owned(), name });
        }
        // Without a namespace only what stands where a source stands: in the catalog everything else has a name too.
        let is_in_catalog = match namespace {
            Some(namespace) => namespace == self.catalog,
            None => self.own == self.catalog && SOURCES.contains(&key),
        };
        match (is_in_catalog, kind, key) {
            (false, ..) => None,
            (true, Some("VolumeSnapshot"), _) | (true, _, "snapshot") => Some(Target::Snapshot(name)),
            (true, ..) => Some(Target::Claim(name)),
        }
    }

    /// Whether a place where a source stands, and that is not named so that it can be read, may be in the catalog.
    fn may_be_ours(&self, map: &Map<String, Value>, key: &str) -> bool {
        // `spec.pvc` of a DataVolume is a claim to be made, which has no name of its own.
        let is_claim_spec = key == "pvc" && ["resources", "accessModes", "storageClassName"].iter().any(|field| map.contains_key(*field));
        let is_elsewhere = matches!(map.get("namespace"), Some(Value::String(namespace)) if namespace != self.catalog);
        let is_here = map.get("namespace").is_none_or(Value::is_null) && self.own != self.catalog;
        !is_claim_spec && (key == "sourceRef" || !is_elsewhere && !is_here)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn told(references: Vec<Reference>) -> Vec<String> {
        references
            .into_iter()
            .map(|reference| match reference.target {
                Target::Claim(name) => format!("claim {name}"),
                Target::Snapshot(name) => format!("snapshot {name}"),
                Target::DataSource { namespace, name } => format!("pointer {namespace}/{name}"),
                Target::Identity(_) => "identity".to_owned(),
                Target::Template { namespace, name } => format!("template {namespace}/{name}"),
                Target::CloneSource(name) => format!("record {name}"),
                Target::Anything => "anything".to_owned(),
            })
            .collect()
    }

    #[test]
    fn finds_what_looks_like_a_reference() {
        let spec = json!({
            "source": {"pvc": {"namespace": "cozy-public", "name": "g"}, "size": 3},
            "odd": [{"snapshot": {"namespace": "cozy-public", "name": "s"}}, {"namespace": "elsewhere", "name": "x"}, {"name": "y"}],
            "sourceRef": {"name": "d"},
            "again": {"namespace": "cozy-public", "name": "g"},
        });
        let mut found = told(references(&spec, "tenant-a", "cozy-public"));
        found.sort();
        assert_eq!(found, ["claim g", "pointer tenant-a/d", "snapshot s"]);
    }

    /// Unknown is never none: what says the catalog and no name that can be read may be any golden; what does not say it is none.
    #[rstest]
    #[case::name_of_another_type(json!({"source": {"pvc": {"namespace": "cozy-public", "name": ["g"]}}}), &["anything"])]
    #[case::no_name(json!({"source": {"snapshot": {"namespace": "cozy-public"}}}), &["anything"])]
    #[case::in_one_text(json!({"source": "pvc:cozy-public/g"}), &["anything"])]
    #[case::namespace_of_another_type(json!({"source": {"pvc": {"namespace": ["cozy-public"], "name": "g"}}}), &["anything"])]
    #[case::one_of_two(json!([{"pvc": {"namespace": "cozy-public", "name": "g"}}, {"pvc": {"namespace": "cozy-public", "name": 7}}]), &["claim g", "anything"])]
    #[case::pointer_without_a_name(json!({"sourceRef": {"kind": "DataSource", "name": 7}}), &["anything"])]
    #[case::elsewhere(json!({"source": {"pvc": {"namespace": "tenant-b", "name": 7}}}), &[])]
    #[case::its_own(json!({"source": {"pvc": {"name": 7}}}), &[])]
    #[case::nothing_of_ours(json!({"dataVolumeTemplates": "none", "source": {"http": {"url": 5}}}), &[])]
    #[case::no_object(json!("odd"), &[])]
    fn what_may_be_any_golden(#[case] spec: Value, #[case] expected: &[&str]) {
        assert_eq!(told(references(&spec, "tenant-a", "cozy-public")), expected);
    }

    /// In the catalog a source needs no namespace.
    #[rstest]
    #[case::named(json!({"source": {"pvc": {"name": "g"}, "http": 1}}), &["claim g"])]
    #[case::booted(json!({"spec": {"volumes": [{"persistentVolumeClaim": {"claimName": "g"}}, {"dataVolume": {"name": "h"}}, 5]}}), &["claim g", "claim h"])]
    #[case::unnamed(json!({"source": {"pvc": {"name": 7}}}), &["anything"])]
    #[case::text(json!({"source": {"pvc": "g"}}), &["anything"])]
    #[case::a_claim_to_be_made(json!({"source": {"http": {"url": 5}}, "pvc": {"accessModes": ["ReadWriteMany"], "resources": {}}}), &[])]
    #[case::names_of_other_things(json!({"template": {"spec": {"domain": {"devices": {"disks": [{"name": "disk"}]}}}}}), &[])]
    fn what_is_named_within_the_catalog(#[case] spec: Value, #[case] expected: &[&str]) {
        assert_eq!(told(references(&spec, "cozy-public", "cozy-public")), expected);
    }

    #[rstest]
    #[case::holder(json!({"template": [{"spec": {"infrastructureRef": {"kind": "KubevirtMachineTemplate", "name": "t"}}}], "replicas": "many"}), &["template tenant-a/t"])]
    #[case::unnamed(json!({"template": {"spec": {"infrastructureRef": {"kind": "KubevirtMachineTemplate", "name": 7}}}}), &["anything"])]
    #[case::nothing_to_go_by(json!("odd"), &["anything"])]
    #[case::another_provider(json!({"template": {"spec": {"infrastructureRef": {"kind": "ProxmoxMachineTemplate", "name": "t"}}}, "replicas": "many"}), &[])]
    fn an_unreadable_holder_still_holds_its_template(#[case] spec: Value, #[case] expected: &[&str]) {
        let found = templates(&spec, "tenant-a").into_iter().map(|target| Reference { target, evidence: Evidence::Spec }).collect();
        assert_eq!(told(found), expected);
    }

    #[rstest]
    #[case::by_digest(json!({"bootstrap": 5, "image": {"reference": "r.example/w@sha256:eb87a994833d82feb2279575aafa42a06c5feb124ea72cae6efc0ee46bb729d8"}}), &["identity", "identity"])]
    #[case::no_digest(json!({"bootstrap": "kairos", "image": {"reference": ["r.example/w"]}}), &["anything"])]
    #[case::no_image(json!({"bootstrap": 5}), &[])]
    #[case::no_object(json!("kairos"), &["anything"])]
    fn an_unreadable_worker_class_names_an_image_by_its_digest(#[case] spec: Value, #[case] expected: &[&str]) {
        assert_eq!(told(identities(&spec)), expected);
    }

    #[test]
    fn an_unreadable_snapshot_is_of_what_it_says_or_of_anything() {
        let of = |name: Value| told(snapshotted(&json!({"source": {"persistentVolumeClaimName": name}, "volumeSnapshotClassName": 5})));
        assert_eq!((of(json!("g")), of(json!(["g"]))), (vec!["claim g".to_owned()], vec!["anything".to_owned()]));
    }

    #[test]
    fn an_unreadable_record_of_a_clone_is_of_what_it_says_or_of_anything() {
        let of = |kind: &str, name: Value| told(recorded(&json!({"source": {"kind": kind, "name": name, "apiGroup": 5}})));
        assert_eq!(
            (of("VolumeSnapshot", json!("s")), of("PersistentVolumeClaim", json!("g"))),
            (vec!["snapshot s".to_owned()], vec!["claim g".to_owned()])
        );
        assert_eq!((of("Other", json!("s")), of("VolumeSnapshot", json!(7))), (vec!["anything".to_owned()], vec!["anything".to_owned()]));
    }

    #[test]
    fn is_bounded_and_says_so() {
        let many: Vec<Value> = (0..100).map(|number| json!({"namespace": "cozy-public", "name": number.to_string()})).collect();
        let found = references(&Value::Array(many), "tenant-a", "cozy-public");
        assert_eq!((found.len(), found.last()), (MOST + 1, Some(&anything())));
    }
}
