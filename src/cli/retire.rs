//! `golden-catalog retire`: asks for a golden image to go when nothing needs it any more (R23). The leader does the rest.

use k8s_openapi::{api::core::v1::PersistentVolumeClaim, apimachinery::pkg::apis::meta::v1::ObjectMeta, jiff::Timestamp};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;

use super::{Exit, Failure, client, survey::marked};
use crate::{
    api::{ConditionType, GoldenImage, find_condition},
    golden::{Owner, Standing},
    rules::{marks, whose::Whose},
    run::api_error,
    world::evidence::texts,
};

/// The field manager of people who retire by command: `retire` in values stays the list's own.
const MANAGER: &str = "golden-catalog/retire";

/// Exit codes, for the end of `--help`.
pub(super) const EXIT_CODES: &str = "Exit codes: 0 asked for, or taken back; 2 it could not be; 64 wrong usage.";

/// Arguments of `retire`.
#[derive(Debug, clap::Args)]
pub struct RetireArguments {
    /// The GoldenImage, or a golden that has none any more.
    name: String,
    /// Take it back: let new pools in again. Too late once the golden is retired.
    #[arg(long, conflicts_with = "force")]
    undo: bool,
    /// Delete the goldens in spite of what needs them, for this reason. Clones under way fail, and disks that storage builds on a golden may be lost.
    #[arg(long, value_name = "REASON")]
    force: Option<String>,
    /// The namespace of the goldens.
    #[arg(long, default_value = "cozy-public")]
    catalog_namespace: String,
}

/// Asks, and says what is waited for.
pub(super) async fn run(arguments: RetireArguments) -> Result<Exit, Failure> {
    let client = client().await?;
    let images: Api<GoldenImage> = Api::all(client.clone());
    let image = images.get_opt(&arguments.name).await.map_err(|error| failure("read GoldenImage", &arguments.name, &error))?;
    match image {
        Some(image) => retire_image(client, &images, &image, &arguments).await,
        None => retire_golden(client, &images, &arguments).await,
    }
}

fn failure(what: &str, name: &str, error: &kube::Error) -> Failure {
    Failure::new(format!("cannot {what} {name}: {}", api_error(error)))
}

async fn retire_image(
    client: Client,
    images: &Api<GoldenImage>,
    image: &GoldenImage,
    arguments: &RetireArguments,
) -> Result<Exit, Failure> {
    let name = &arguments.name;
    // A field of a manager of its own, forced: values may say `retire: false`, and a person's word is newer.
    let spec = if arguments.undo { json!({}) } else { json!({ "retire": true }) };
    let patch = json!({ "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": name, "uid": image.uid() }, "spec": spec });
    let params = PatchParams::apply(MANAGER).force();
    if !arguments.undo && arguments.force.is_none() {
        // It counts as the one on the image does, and the leader takes it off only where the golden is Ready.
        disarm_goldens(client.clone(), image, &arguments.catalog_namespace).await?;
        // Left over from another time, it would take goldens that are in use. Before the wish, which it would be about.
        force(images, image, None).await.map_err(|error| failure("retire", name, &error))?;
    }
    let mut written = images.patch(name, &params, &Patch::Apply(&patch)).await.map_err(|error| failure("retire", name, &error))?;
    if arguments.undo {
        // Left there, it would take the golden away again as soon as it is made anew.
        force(images, image, None).await.map_err(|error| failure("keep", name, &error))?;
        // After the wish is gone: whoever may not see the PVCs has it taken back all the same.
        disarm_goldens(client, image, &arguments.catalog_namespace).await?;
        // Somebody else's field stays theirs; one of nobody is gone with the manager's last field.
        if written.spec.retire == Some(true) {
            return Err(Failure::new(format!(
                "`spec.retire` of {name} is set by somebody else (values, or a hand): set it to false there"
            )));
        }
        println!("{name} is kept: new pools are let in again.");
        return Ok(Exit::Ok);
    }
    if let Some(reason) = &arguments.force {
        written = force(images, image, Some(reason)).await.map_err(|error| failure("retire", name, &error))?;
    }
    let status = written.status.unwrap_or_default();
    let told = find_condition(&status.conditions, ConditionType::Retiring).map(|condition| condition.message.clone());
    println!("{name} is to go: no new pools are let in, and its goldens are deleted when nothing needs them any more.");
    match told {
        Some(message) => println!("{}", super::table::printable(&message)),
        None => println!("`golden-catalog status {name}` says what it waits for."),
    }
    Ok(Exit::Ok)
}

/// Writes on an image why its goldens go in spite of who needs them, or that they do not.
async fn force(images: &Api<GoldenImage>, image: &GoldenImage, reason: Option<&str>) -> kube::Result<GoldenImage> {
    let patch = json!({ "metadata": { "uid": image.uid(), "annotations": { marks::FORCE_RETIRE: reason } } });
    images.patch(&image.name_any(), &PatchParams::default(), &Patch::Merge(&patch)).await
}

/// Takes the force off the goldens of an image, which somebody may have left there by hand.
async fn disarm_goldens(client: Client, image: &GoldenImage, catalog: &str) -> Result<(), Failure> {
    let standing = marked(&client, catalog).await;
    let standing = standing.map_err(|error| failure("find what forces the goldens of", &image.name_any(), &error))?;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client, catalog);
    let is_forced = |claim: &&ObjectMeta| texts(claim.annotations.as_ref()).contains_key(marks::FORCE_RETIRE);
    for claim in Standing::of(&standing, catalog).of_owner(&Owner::of(image)).into_iter().filter(is_forced) {
        let patch = json!({ "metadata": { "uid": claim.uid, "annotations": { marks::FORCE_RETIRE: null } } });
        let name = claim.name.clone().unwrap_or_default();
        match claims.patch_metadata(&name, &PatchParams::default(), &Patch::Merge(&patch)).await {
            // Gone, or made anew, and its force with it.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            written => drop(written.map_err(|error| failure("take the force off golden", &name, &error))?),
        }
    }
    Ok(())
}

/// The wish on a golden counts only where no GoldenImage has it: written before, it would do nothing now, and much later take away what
/// `Retain` was to keep. An image of the name on its mark that is of another source has it not, nor does one that has no target for it.
async fn no_image_has(images: &Api<GoldenImage>, claim: &PersistentVolumeClaim) -> Result<(), Failure> {
    let golden = claim.name_any();
    let all = images.list(&ListParams::default()).await.map_err(|error| failure("find the GoldenImage of", &golden, &error))?;
    let has = |image: &&GoldenImage| {
        let owner = Owner::of(image);
        owner.claim(&claim.metadata) != Whose::Another && !owner.has_no_place_for(&golden)
    };
    match all.items.iter().find(has).map(|image| image.name_any()) {
        None => Ok(()),
        Some(image) => Err(Failure::new(format!(
            "{golden} is a golden of the GoldenImage {image}: run `golden-catalog retire {image}`, or take its target out of `storage.targets` to lose only this one"
        ))),
    }
}

/// A golden whose GoldenImage is gone is asked for by an annotation on its claim.
async fn retire_golden(client: Client, images: &Api<GoldenImage>, arguments: &RetireArguments) -> Result<Exit, Failure> {
    let (name, catalog) = (&arguments.name, &arguments.catalog_namespace);
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client, catalog);
    let claim = claims.get_opt(name).await.map_err(|error| failure("read golden", name, &error))?;
    let claim = claim.filter(|claim| marks::is_marked(claim.labels()));
    let Some(claim) = claim else {
        return Err(Failure::new(format!("there is neither a GoldenImage {name} nor a golden {catalog}/{name}")));
    };
    if !arguments.undo {
        no_image_has(images, &claim).await?;
    }
    let at = (!arguments.undo).then(|| Timestamp::now().to_string());
    // Force that is left over from another time would take a golden that is in use.
    let annotations = json!({ marks::RETIRE_REQUESTED: at, marks::FORCE_RETIRE: arguments.force });
    let patch = json!({ "metadata": { "uid": claim.uid(), "annotations": annotations } });
    claims.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.map_err(|error| failure("retire golden", name, &error))?;
    if arguments.undo {
        println!("Golden {catalog}/{name} is kept.");
    } else {
        println!("Golden {catalog}/{name} is to go: no GoldenImage has it, and it is deleted when nothing needs it any more.");
    }
    Ok(Exit::Ok)
}
