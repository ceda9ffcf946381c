//! R18 for images: who must say who may clone, and what is held back while nobody enforces it.

use crate::model::{Access, Image};

/// R18's message about an image with credentials that does not say who may clone it.
pub const MUST_STATE_ACCESS: &str = "must be given beside `credentialsSecretRef`: `{policy: AllTenants}`, or `{policy: Selected, namespaceSelector: …}` (R18); what needs a password must not reach every tenant by default";

/// Why an image's goldens are not made yet: it is for selected namespaces, and no admission stands in the way of the others.
pub fn held_back(image: &Image, admission_enforces: bool) -> Option<String> {
    let selected = matches!(image.access, Access::Selected(_));
    (selected && !admission_enforces)
        .then(|| "The image is for selected namespaces (`access.policy: Selected`), and nothing enforces that yet (R18).".to_owned())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::held_back;
    use crate::api::parse_image;

    #[rstest]
    #[case(json!(null), false, false)]
    #[case(json!({ "policy": "AllTenants" }), false, false)]
    #[case(json!({ "policy": "Selected", "namespaceSelector": { "matchLabels": { "a": "b" } } }), false, true)]
    #[case(json!({ "policy": "Selected", "namespaceSelector": { "matchLabels": { "a": "b" } } }), true, false)]
    fn r18_nothing_is_made_for_a_few_that_everyone_could_clone(#[case] access: Value, #[case] enforced: bool, #[case] held: bool) {
        let object = json!({
            "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": "a" },
            "spec": { "source": { "http": { "url": "https://e.example/a" } }, "access": access },
        });
        let image = parse_image(&serde_json::from_value(object).expect("readable")).expect("good");
        assert_eq!(held_back(&image, enforced).is_some(), held);
    }
}
