//! A GoldenImage as the owner of goldens: [`crate::rules::whose`] asked of the objects themselves.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::{
    api::{GoldenImage, GoldenImageStatus, parse_image},
    model::Image,
    rules::{
        marks,
        whose::{self, Whose, whose},
    },
    source::certain_schematic_id,
    world::evidence::texts,
};

/// A GoldenImage, with what its spec says once for all objects that are asked about.
#[derive(Debug)]
pub struct Owner<'a> {
    object: &'a GoldenImage,
    parsed: Option<Image>,
    identity: Option<String>,
    /// Of a schematic document that no factory was asked about yet: what it will say, if it says what we compute. A golden that is marked
    /// so is the image's; one that is not may be all the same.
    likely: Option<String>,
}

impl<'a> Owner<'a> {
    /// Of this object.
    pub fn of(object: &'a GoldenImage) -> Self {
        let parsed = parse_image(object).ok();
        let resolved = object.status.as_ref().and_then(GoldenImageStatus::resolved_schematic);
        let identity = parsed.as_ref().and_then(|image| image.identity(resolved.as_ref())).map(|identity| identity.to_string());
        // A spec that this version cannot read was read by the one that made the golden.
        let identity = identity.or_else(|| object.status.as_ref()?.identity.clone().filter(|_| parsed.is_none()));
        let likely = || {
            let image = parsed.as_ref()?;
            image.identity(certain_schematic_id(&image.source).as_ref()).map(|identity| identity.to_string())
        };
        let likely = if identity.is_none() { likely() } else { None };
        Self { object, parsed, identity, likely }
    }

    /// The image's name.
    pub fn name(&self) -> &'a str {
        self.object.metadata.name.as_deref().unwrap_or_default()
    }

    /// The goldens that it has on record.
    pub fn recorded(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.records().map(|(golden, _)| golden)
    }

    /// Whose golden a claim is.
    pub fn claim(&self, claim: &ObjectMeta) -> Whose {
        let recorded = self.records().find(|(golden, _)| Some(*golden) == claim.name.as_deref()).and_then(|(_, uid)| uid);
        self.whose(claim, recorded)
    }

    /// Whose golden's DataVolume this is, by its mark: the record has the claim's UID.
    pub fn volume(&self, volume: &ObjectMeta) -> Whose {
        self.whose(volume, None)
    }

    /// Whether a golden of this name, marked for this image, stands for no target of it: nothing of the name is on record, and each
    /// target has another. A target without one may be about to take it.
    pub fn has_no_place_for(&self, golden: &str) -> bool {
        let is_recorded = self.records().any(|(name, _)| name == golden);
        let has = |class: &str| self.object.status.as_ref().is_some_and(|status| status.has_golden(class));
        !is_recorded && self.parsed.as_ref().is_some_and(|image| image.targets.iter().all(|target| has(target.requested_class())))
    }

    fn whose(&self, meta: &ObjectMeta, recorded: Option<&str>) -> Whose {
        let labels = texts(meta.labels.as_ref());
        let likely = self.likely.as_ref().filter(|likely| labels.get(marks::IDENTITY) == Some(*likely));
        let owner = whose::Owner { name: self.name(), identity: self.identity.as_ref().or(likely).map(String::as_str), recorded };
        whose(owner, &labels, meta.uid.as_deref())
    }

    fn records(&self) -> impl Iterator<Item = (&'a str, Option<&'a str>)> + use<'a> {
        let targets = self.object.status.iter().flat_map(|status| &status.targets);
        targets.filter_map(|target| Some((target.golden.as_deref()?, target.claim_uid.as_deref())))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn talos(schematic: serde_json::Value) -> GoldenImage {
        let mut source = json!({ "version": "v1.13.6" });
        source.as_object_mut().expect("a map").extend(schematic.as_object().expect("a map").clone());
        serde_json::from_value(json!({
            "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": "a", "uid": "a" },
            "spec": { "source": { "talosFactory": source } },
        }))
        .expect("an image")
    }

    /// The plain schematic's ID is public.
    #[test]
    fn r24_a_document_that_no_factory_was_asked_about_knows_the_golden_it_would_make() {
        let by_id = talos(json!({ "schematicID": "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba" }));
        let identity = Owner::of(&by_id).identity.expect("known");
        let golden = |identity: &str| ObjectMeta {
            name: Some("g".into()),
            labels: Some(
                [(marks::GOLDEN, marks::GOLDEN_VALUE), (marks::IMAGE, "a"), (marks::IDENTITY, identity)]
                    .map(|(k, v)| (k.into(), v.into()))
                    .into(),
            ),
            ..ObjectMeta::default()
        };
        let document = talos(json!({ "schematic": "customization: {}\n" }));
        let owner = Owner::of(&document);
        assert_eq!(owner.claim(&golden(&identity)), Whose::Its);
        // The factory may say otherwise.
        assert_eq!(owner.claim(&golden("another")), Whose::Unknown);
    }
}
