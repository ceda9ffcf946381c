//! `golden-catalog status`: what is there, and what to do about what is not Ready.

use kube::{Api, ResourceExt as _, api::ListParams};

use super::{Exit, Failure, Output, Table, client};
use crate::api::{ConditionType, GoldenImage, find_condition, is_true};

/// Arguments of `status`.
#[derive(Debug, clap::Args)]
pub struct StatusArguments {
    /// Only this GoldenImage.
    name: Option<String>,
    /// The form of the answer.
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

/// Exit code 0 when every image is Ready, 1 when one is not, 2 when the cluster could not be asked.
pub(super) async fn run(arguments: StatusArguments) -> Result<Exit, Failure> {
    let api: Api<GoldenImage> = Api::all(client().await?);
    let asked = |error: kube::Error| match error {
        kube::Error::Api(status) if status.code == 404 => {
            Failure::new("the cluster has no GoldenImages: install the chart kubernetes-worker-image first, or check the name")
        }
        other => Failure::new(format!("cannot list GoldenImages: {}", crate::run::api_error(&other))),
    };
    let mut images = match &arguments.name {
        Some(name) => vec![api.get(name).await.map_err(asked)?],
        None => api.list(&ListParams::default()).await.map_err(asked)?.items,
    };
    images.sort_by_key(kube::ResourceExt::name_any);
    let all_ready = images.iter().all(|image| is_true(&conditions(image), ConditionType::Ready));
    match arguments.output {
        Output::Json => {
            for image in &mut images {
                image.metadata.managed_fields = None;
            }
            let text = serde_json::to_string_pretty(&images).map_err(|error| Failure::new(error.to_string()))?;
            println!("{text}");
        }
        Output::Table => print!("{}", table(&images)),
    }
    Ok(if all_ready { Exit::Ok } else { Exit::No })
}

fn conditions(image: &GoldenImage) -> Vec<k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition> {
    image.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default()
}

fn table(images: &[GoldenImage]) -> String {
    if images.is_empty() {
        return "No golden images. List some in the chart's `images`, or create a GoldenImage.\n".to_owned();
    }
    let mut table = Table::new(["NAME", "OS", "VERSION", "CLASS", "SIZE", "CLONES", "READY", "REASON"]);
    let mut stories = String::new();
    for image in images {
        let status = image.status.clone().unwrap_or_default();
        let os = status.operating_system.unwrap_or_default();
        let ready = find_condition(&status.conditions, ConditionType::Ready);
        let classes: Vec<_> = status.targets.iter().map(|target| target.storage_class_name.as_deref().unwrap_or("?")).collect();
        table.row([
            image.name_any(),
            os.name.or(os.family).unwrap_or_default(),
            os.version.unwrap_or_default(),
            classes.join(","),
            status.disk.map(|disk| disk.virtual_size).unwrap_or_default(),
            status.consumers.map_or_else(|| "?".to_owned(), |consumers| consumers.clones.to_string()),
            ready.map_or("Unknown", |ready| ready.status.as_str()).to_owned(),
            ready.map_or("", |ready| ready.reason.as_str()).to_owned(),
        ]);
        if let Some(ready) = ready.filter(|ready| ready.status != "True" && !ready.message.is_empty()) {
            stories.push_str(&format!("\n{}: {}", image.name_any(), super::table::printable(&ready.message)));
        } else if let Some(retiring) = find_condition(&status.conditions, ConditionType::Retiring) {
            // A golden whose target was taken out, of an image that is Ready without it.
            stories.push_str(&format!("\n{}: {}", image.name_any(), super::table::printable(&retiring.message)));
        }
    }
    format!("{}{stories}{}", table.render(), if stories.is_empty() { "" } else { "\n" })
}
