//! A spec that cannot be read may still name a golden, and then it counts: an odd object neither ends a scan nor passes for "names nothing" (R22).

use serde_json::{Map, Value};

use crate::{
    rules::consumers::Evidence,
    world::ledger::{Reference, Target},
};

/// The most references taken from one unreadable spec.
const MOST: usize = 16;

/// Every place in `value` that looks like a reference into the catalog: an object with the catalog's `namespace` and a `name`, or one of kind DataSource with a name.
pub(in crate::world) fn references(value: &Value, own: &str, catalog: &str) -> Vec<Reference> {
    let mut found = Vec::new();
    search(value, "", own, catalog, &mut found);
    found
}

/// Every machine template an unreadable MachineDeployment or MachineSet names.
pub(super) fn templates(value: &Value, own: &str) -> Vec<Target> {
    let inner = |value: &Value| templates(value, own);
    let mut found: Vec<Target> = match value {
        Value::Object(map) => map.values().flat_map(inner).collect(),
        Value::Array(list) => list.iter().flat_map(inner).collect(),
        _ => Vec::new(),
    };
    let text = |key: &str| value.get(key).and_then(Value::as_str);
    if let (Some("KubevirtMachineTemplate"), Some(name)) = (text("kind"), text("name")) {
        found.push(Target::Template { namespace: text("namespace").unwrap_or(own).to_owned(), name: name.to_owned() });
    }
    found.truncate(MOST);
    found
}

fn search(value: &Value, key: &str, own: &str, catalog: &str, found: &mut Vec<Reference>) {
    if found.len() >= MOST {
        return;
    }
    match value {
        Value::Object(map) => {
            if let Some(target) = target(map, key, own, catalog) {
                let reference = Reference { target, evidence: Evidence::Unreadable };
                if !found.contains(&reference) {
                    found.push(reference);
                }
            }
            for (key, value) in map {
                search(value, key, own, catalog, found);
            }
        }
        Value::Array(list) => list.iter().for_each(|value| search(value, key, own, catalog, found)),
        _ => {}
    }
}

fn target(map: &Map<String, Value>, key: &str, own: &str, catalog: &str) -> Option<Target> {
    let text = |key: &str| map.get(key).and_then(Value::as_str);
    let name = text("name")?.to_owned();
    let namespace = text("namespace").unwrap_or(own);
    match (text("kind"), key) {
        (Some("DataSource"), _) | (_, "sourceRef") => Some(Target::DataSource { namespace: namespace.to_owned(), name }),
        _ if namespace != catalog || own == catalog && text("namespace").is_none() => None,
        (Some("VolumeSnapshot"), _) | (_, "snapshot") => Some(Target::Snapshot(name)),
        _ => Some(Target::Claim(name)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn finds_what_looks_like_a_reference() {
        let spec = json!({
            "source": {"pvc": {"namespace": "cozy-public", "name": "g"}, "size": 3},
            "odd": [{"snapshot": {"namespace": "cozy-public", "name": "s"}}, {"namespace": "elsewhere", "name": "x"}, {"name": "y"}],
            "sourceRef": {"name": "d"},
            "again": {"namespace": "cozy-public", "name": "g"},
        });
        let found: Vec<Target> = references(&spec, "tenant-a", "cozy-public").into_iter().map(|reference| reference.target).collect();
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found.contains(&Target::Claim("g".into())) && found.contains(&Target::Snapshot("s".into())));
        assert!(found.contains(&Target::DataSource { namespace: "tenant-a".into(), name: "d".into() }));
    }

    #[test]
    fn an_unreadable_holder_still_holds_its_template() {
        let spec =
            json!({"template": [{"spec": {"infrastructureRef": {"kind": "KubevirtMachineTemplate", "name": "t"}}}], "replicas": "many"});
        assert_eq!(templates(&spec, "tenant-a"), [Target::Template { namespace: "tenant-a".into(), name: "t".into() }]);
    }

    #[test]
    fn is_bounded() {
        let many: Vec<Value> = (0..100).map(|number| json!({"namespace": "cozy-public", "name": number.to_string()})).collect();
        assert_eq!(references(&Value::Array(many), "tenant-a", "cozy-public").len(), MOST);
    }
}
