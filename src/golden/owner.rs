//! A GoldenImage as the owner of goldens: [`crate::rules::whose`] asked of the objects themselves.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::{
    api::{GoldenImage, parse_image},
    model::Image,
    rules::whose::{self, Whose, whose},
    world::evidence::texts,
};

/// A GoldenImage, with what its spec says once for all objects that are asked about.
#[derive(Debug)]
pub struct Owner<'a> {
    object: &'a GoldenImage,
    parsed: Option<Image>,
    identity: Option<String>,
}

impl<'a> Owner<'a> {
    /// Of this object.
    pub fn of(object: &'a GoldenImage) -> Self {
        let parsed = parse_image(object).ok();
        let resolved = object.status.as_ref().and_then(|status| status.schematic_id.as_ref()?.parse().ok());
        let identity = parsed.as_ref().and_then(|image| image.identity(resolved.as_ref())).map(|identity| identity.to_string());
        // A spec that this version cannot read was read by the one that made the golden.
        let identity = identity.or_else(|| object.status.as_ref()?.identity.clone().filter(|_| parsed.is_none()));
        Self { object, parsed, identity }
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
        let name = self.object.metadata.name.as_deref().unwrap_or_default();
        let owner = whose::Owner { name, identity: self.identity.as_deref(), recorded };
        whose(owner, &texts(meta.labels.as_ref()), meta.uid.as_deref())
    }

    fn records(&self) -> impl Iterator<Item = (&'a str, Option<&'a str>)> {
        let targets = self.object.status.iter().flat_map(|status| &status.targets);
        targets.filter_map(|target| Some((target.golden.as_deref()?, target.claim_uid.as_deref())))
    }
}
