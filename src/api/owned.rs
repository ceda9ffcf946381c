//! Who set a field of a GoldenImage, as the API server keeps it: the list in values is one author among others.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};
use serde_json::json;

use super::GoldenImage;

/// The field manager of what comes from the list in values.
pub const ENTRIES: &str = "golden-catalog/entries";

fn sets_digest(entry: &ManagedFieldsEntry) -> bool {
    entry.fields_v1.as_ref().is_some_and(|fields| fields.0.pointer("/f:spec/f:digest").is_some())
}

/// Of the managers of an object those who set its digest, without anything else of them: what is kept of them in memory.
pub fn digest_managers(object: &GoldenImage) -> Option<Vec<ManagedFieldsEntry>> {
    let managers = object.metadata.managed_fields.iter().flatten().filter(|entry| sets_digest(entry));
    let kept: Vec<_> = managers
        .map(|entry| ManagedFieldsEntry {
            manager: entry.manager.clone(),
            fields_v1: Some(FieldsV1(json!({ "f:spec": { "f:digest": {} } }))),
            ..ManagedFieldsEntry::default()
        })
        .collect();
    (!kept.is_empty()).then_some(kept)
}

/// Whether somebody else than the list set the object's digest, and the list did not. Where nothing says who did, the list is taken to have.
pub fn is_digest_of_another(object: &GoldenImage) -> bool {
    let mut managers = object.metadata.managed_fields.iter().flatten().filter(|entry| sets_digest(entry)).peekable();
    managers.peek().is_some() && managers.all(|entry| entry.manager.as_deref() != Some(ENTRIES))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn of(manager: &str, fields: &Value) -> Value {
        json!({ "manager": manager, "operation": "Update", "time": "2026-11-30T10:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": fields })
    }

    #[rstest]
    #[case::nothing_is_known(&[], false)]
    #[case::by_hand(&[("kubectl-patch", true), (ENTRIES, false)], true)]
    #[case::by_the_list(&[(ENTRIES, true)], false)]
    #[case::by_both(&[("kubectl-patch", true), (ENTRIES, true)], false)]
    #[case::nobody(&[("kubectl-patch", false), (ENTRIES, false)], false)]
    fn r4_whose_the_digest_is(#[case] managers: &[(&str, bool)], #[case] expected: bool) {
        let fields = |digest: bool| if digest { json!({ "f:spec": { "f:digest": {}, "f:source": {} } }) } else { json!({ "f:spec": {} }) };
        let managers: Vec<_> = managers.iter().map(|(manager, digest)| of(manager, &fields(*digest))).collect();
        let mut object: GoldenImage = serde_json::from_value(json!({
            "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": "a", "managedFields": managers },
            "spec": { "source": { "http": { "url": "https://e.example/a" } } },
        }))
        .expect("object");
        assert_eq!(is_digest_of_another(&object), expected);
        // What is kept of it says the same, and does not change with each write.
        object.metadata.managed_fields = digest_managers(&object);
        assert_eq!(is_digest_of_another(&object), expected);
        assert!(object.metadata.managed_fields.iter().flatten().all(|entry| entry.time.is_none()));
    }
}
