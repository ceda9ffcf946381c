//! GoldenImages as people write them (R2, R3, R5, R6). The webhook may be away (`failurePolicy: Ignore`): CEL in the CRD and the controller's conditions hold the same, only later.

use kube::ResourceExt as _;

use super::{
    Answer, Scene,
    images::ImageFacts,
    review::{self, Request, Verb},
};
use crate::{
    api::{GoldenImage, parse_image},
    rules::{duplicate_message, marks, moving_source_warnings},
    world::evidence::texts,
};

/// Decides on a GoldenImage. What comes from values is the hoster's own and passes: the daemon tells its trouble as a condition, and stops nothing else.
pub fn judge_image(request: &Request, scene: &Scene, daemon: &str) -> Answer {
    let Some(object) = request.object.as_ref().filter(|_| matches!(request.operation, Verb::Create | Verb::Update)) else {
        return Answer::allow();
    };
    let image: GoldenImage = match review::read(object) {
        Ok(image) => image,
        Err(unknown) => return unknown.into(),
    };
    if request.user_info.username == daemon || image.metadata.deletion_timestamp.is_some() {
        return Answer::allow();
    }
    let parsed = match parse_image(&image) {
        Ok(parsed) => parsed,
        // What could be read no better before may have its source for good, and must be possible to retire.
        Err(errors) if was_unreadable(request) => return Answer::Allow { patch: Vec::new(), warnings: vec![errors.to_string()] },
        Err(errors) => return Answer::Refuse(format!("GoldenImage {}: {errors}", image.name_any())),
    };
    let facts = ImageFacts::of(&image);
    if let (Verb::Create, Some(first)) = (request.operation, twin(scene, &facts)) {
        let same = format_args!("identity {}", facts.identity.as_deref().unwrap_or_default());
        return Answer::Refuse(format!("{} (R3)", duplicate_message(&facts.name, &first, same)));
    }
    let mut warnings = moving_source_warnings(&parsed.source, parsed.digest.as_ref());
    if request.operation == Verb::Create {
        warnings.extend(facts.goldens.iter().filter_map(|record| conflict(scene, &record.golden)));
    }
    Answer::Allow { patch: Vec::new(), warnings }
}

/// Whether an update is of an object that could not be read before it either.
fn was_unreadable(request: &Request) -> bool {
    let old = request.old_object.as_ref().and_then(|old| review::read::<GoldenImage>(old).ok());
    old.is_some_and(|old| parse_image(&old).is_err())
}

/// R3: another image of the same identity.
fn twin(scene: &Scene, facts: &ImageFacts) -> Option<String> {
    let identity = facts.identity.as_ref()?;
    let all = scene.images.store.all();
    let twins = all.iter().filter(|other| other.name != facts.name && other.identity.as_ref() == Some(identity));
    twins.map(|other| &other.place).min().map(|first| first.name().to_owned())
}

/// R5: a DataVolume of the golden's name that is not ours. The controller decides whether it is adopted, so this is a warning.
fn conflict(scene: &Scene, golden: &str) -> Option<String> {
    let volume = scene.volumes.get(&scene.catalog, golden)?;
    let is_ours = marks::is_marked(&texts(volume.metadata.labels.as_ref()));
    (!is_ours).then(|| {
        format!(
            "a DataVolume {}/{golden} is there already and is not managed by the catalog: with the same source it is taken over, else the image will say NameConflict (R5)",
            scene.catalog
        )
    })
}
