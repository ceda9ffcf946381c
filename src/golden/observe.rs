//! From stores, spool and running jobs to the plain data that a decision is made from.

use std::collections::BTreeMap;

use kube::ResourceExt as _;

use super::{ClaimView, ClassChoice, ClassFound, DataVolumeView, ObservedTarget, observed::GoldenView};
use crate::{
    api::{GoldenImageStatus, TargetStatus},
    foreign::{CdiConfig, Claim, Condition, DataVolume, StorageProfile},
    model::{ClassName, DiskSize, Image, ImageName},
    rules::{
        CdiCondition,
        class::{self, ClassTrouble, Classes, Shape},
        marks,
    },
    world::{Cluster, facts},
};

/// The cluster's StorageClasses as rules read them.
pub fn classes(cluster: &Cluster) -> Classes {
    cluster.classes.all().iter().map(|class| (class.name.clone(), (**class).clone())).collect()
}

/// The class of one target: the recorded one if a golden was begun, else as CDI would choose now.
pub fn class_choice(
    target: &crate::model::Target,
    status: Option<&TargetStatus>,
    classes: &Classes,
    profile: impl Fn(&str) -> Option<std::sync::Arc<StorageProfile>>,
) -> ClassChoice {
    let recorded = status.filter(|status| status.golden.is_some()).and_then(|status| status.storage_class_name.clone());
    let stated = recorded.clone().or_else(|| target.class.as_ref().map(ToString::to_string)).unwrap_or_default();
    let found = match class::target_class(&stated, classes) {
        Ok(found) => found,
        Err(ClassTrouble::NotFound(name)) => return name.parse().map_or(ClassChoice::NoDefault, ClassChoice::Missing),
        Err(_) => return ClassChoice::NoDefault,
    };
    let Ok(name) = found.name.parse::<ClassName>() else { return ClassChoice::NoDefault };
    let profile = profile(&found.name);
    let today = class::default_class(classes, Shape::Storage)
        .filter(|today| target.class.is_none() && recorded.is_some() && today.name != found.name);
    let profile = profile.map(|profile| facts::profile(&profile)).unwrap_or_default();
    ClassChoice::Found(ClassFound {
        properties: profile.properties,
        minimum: profile.minimum,
        warnings: Vec::new(),
        moved_default: today.and_then(|today| today.name.parse().ok()),
        name,
    })
}

/// Whether CDI's importers would go through a proxy to reach the spool (R10); gives the host to be added to `noProxy`.
pub fn proxy_in_the_way(config: Option<&CdiConfig>, spool_host: &str) -> Option<String> {
    let proxy = config?.status.read()?.import_proxy.as_ref()?;
    let used = proxy.https_proxy.as_deref().is_some_and(|url| !url.is_empty());
    let exceptions = proxy.no_proxy.as_deref().unwrap_or_default();
    // Go's rules (golang.org/x/net/http/httpproxy): a name matches itself and, with or without a leading dot, its subdomains.
    let excepted = exceptions.split(',').map(str::trim).filter(|entry| !entry.is_empty()).any(|entry| {
        let entry = entry.strip_prefix("*.").or_else(|| entry.strip_prefix('.')).unwrap_or(entry);
        let entry =
            entry.rsplit_once(':').map_or(entry, |(host, port)| if port.bytes().all(|c| c.is_ascii_digit()) { host } else { entry });
        entry == "*" || spool_host == entry || spool_host.ends_with(&format!(".{entry}"))
    });
    (used && !excepted).then(|| spool_host.to_owned())
}

/// One target as the cluster shows it; the spool's and the importer's side is filled in by the caller.
pub fn target(
    cluster: &Cluster,
    catalog: &str,
    image: &Image,
    spec: &crate::model::Target,
    status: &GoldenImageStatus,
    classes: &Classes,
) -> ObservedTarget {
    let requested = spec.class.as_ref().map(ToString::to_string).unwrap_or_default();
    let recorded = status.targets.iter().find(|target| target.requested_class == requested);
    let class = class_choice(spec, recorded, classes, |name| cluster.profiles.get("", name));
    let schematic_id = status.schematic_id.as_ref().and_then(|id| id.parse().ok());
    let class_name = match &class {
        ClassChoice::Found(found) => Some(&found.name),
        ClassChoice::NoDefault | ClassChoice::Missing(_) => None,
    };
    let first = status.targets.iter().all(|target| target.golden.is_none());
    let golden = recorded.and_then(|target| target.golden.clone()).or_else(|| {
        image.golden_name(schematic_id.as_ref(), class_name.filter(|_| !first)).and_then(Result::ok).map(|name| name.to_string())
    });
    let identity = image.identity(schematic_id.as_ref()).map(|identity| identity.to_string());
    let mut view = GoldenView::default();
    if let Some(golden) = golden.clone() {
        view.volume = cluster.volumes.get(catalog, &golden).map(|volume| volume_view(&volume, &image.name, identity.as_deref()));
        view.claim = cluster.claims.get(catalog, &golden).map(|claim| claim_view(&claim, &image.name, identity.as_deref()));
        view.in_use_by = cluster
            .pods
            .all()
            .iter()
            .find(|pod| !pod.ended && !pod.of_cdi && pod.writes.contains(&golden))
            .map(|pod| format!("{catalog}/{}", pod.name));
    }
    ObservedTarget { name: golden.and_then(|golden| golden.parse().ok()), taken_by: None, class, golden: view }
}

/// Our mark, for this image and no other of its name: a re-created image may have another source. An object whose mark was
/// taken off by hand is not ours by its labels; a recorded UID still knows it.
fn is_ours(labels: &BTreeMap<String, String>, image: &ImageName, identity: Option<&str>) -> bool {
    labels.get(marks::GOLDEN).is_some_and(|value| value == marks::GOLDEN_VALUE)
        && labels.get(marks::IMAGE).is_some_and(|name| name == image.as_str())
        && labels.get(marks::IDENTITY).map(String::as_str) == identity
}

fn volume_view(volume: &DataVolume, image: &ImageName, identity: Option<&str>) -> DataVolumeView {
    let status = volume.status.read().cloned().unwrap_or_default();
    let spec = volume.spec.read();
    let source = spec.and_then(|spec| spec.source.as_ref());
    let url = source.and_then(|source| source.http.as_ref()).and_then(|http| http.url.as_ref());
    let path = url.and_then(|url| url::Url::parse(url).ok()).map(|url| url.path().to_owned());
    let source = match url {
        Some(url) => {
            format!("it imports {}", url::Url::parse(url).map_or_else(|_| "from a URL".to_owned(), |url| crate::model::public_url(&url)))
        }
        None if source.is_some_and(|source| source.pvc.is_some() || source.snapshot.is_some()) => "it is a clone".to_owned(),
        None => "of another source".to_owned(),
    };
    let condition = |kind| condition_view(status.condition(kind));
    DataVolumeView {
        uid: volume.uid().unwrap_or_default(),
        ours: is_ours(volume.labels(), image, identity),
        source,
        disk_digest: volume.annotations().get(marks::DISK_DIGEST).cloned(),
        path: path.filter(|path| path.starts_with(crate::spool::Address::PREFIX)),
        terminating: volume.metadata.deletion_timestamp.is_some(),
        percent: status.progress.as_deref().and_then(percent),
        restarts: status.restart_count.unwrap_or(0),
        bound: condition("Bound"),
        running: condition("Running"),
        phase: status.phase.unwrap_or_default(),
    }
}

fn condition_view(condition: Option<&Condition>) -> CdiCondition {
    condition.map_or_else(CdiCondition::default, |condition| CdiCondition {
        status: match condition.status.as_str() {
            "True" => Some(true),
            "False" => Some(false),
            _ => None,
        },
        reason: condition.reason.clone().unwrap_or_default(),
        message: condition.message.clone().unwrap_or_default(),
    })
}

/// CDI's `45.34%`; `N/A` is not known.
fn percent(progress: &str) -> Option<u8> {
    let number: f64 = progress.strip_suffix('%')?.parse().ok()?;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to what a percentage can be")]
    (0.0..=100.0).contains(&number).then_some(number as u8)
}

fn claim_view(claim: &Claim, image: &ImageName, identity: Option<&str>) -> ClaimView {
    let spec = claim.spec.read();
    let phase = claim.status.read().and_then(|status| status.phase.as_deref()).unwrap_or_default();
    ClaimView {
        uid: claim.uid().unwrap_or_default(),
        ours: is_ours(claim.labels(), image, identity),
        bound: phase == "Bound",
        lost: phase == "Lost",
        terminating: claim.metadata.deletion_timestamp.is_some(),
        class: spec.and_then(|spec| spec.storage_class_name.clone()),
        volume_mode: spec.and_then(|spec| spec.volume_mode.clone()),
        access_modes: spec.and_then(|spec| spec.access_modes.clone()).unwrap_or_default(),
        disk_digest: claim.annotations().get(marks::DISK_DIGEST).cloned(),
        artifact_digest: claim.annotations().get(marks::ARTIFACT_DIGEST).cloned(),
        request: spec.and_then(|spec| spec.storage_request()).and_then(|request| DiskSize::from_bytes(request.bytes()?)),
        garbage_collected: claim.annotations().get(marks::CDI_GARBAGE_COLLECTED).is_some_and(|value| value == "true"),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::{percent, proxy_in_the_way};
    use crate::foreign::CdiConfig;

    #[rstest]
    #[case("45.34%", Some(45))]
    #[case("100.0%", Some(100))]
    #[case("N/A", None)]
    #[case("", None)]
    #[case("101%", None)]
    #[case("NaN%", None)]
    fn reads_cdis_progress(#[case] text: &str, #[case] expected: Option<u8>) {
        assert_eq!(percent(text), expected);
    }

    #[rstest]
    #[case(json!({}), false)]
    #[case(json!({ "HTTPSProxy": "" }), false)]
    #[case(json!({ "HTTPSProxy": "http://p:1" }), true)]
    #[case(json!({ "HTTPProxy": "http://p:1" }), false)]
    #[case(json!({ "HTTPSProxy": "http://p:1", "noProxy": "a.example" }), true)]
    #[case(json!({ "HTTPSProxy": "http://p:1", "noProxy": "a.example, .svc" }), false)]
    #[case(json!({ "HTTPSProxy": "http://p:1", "noProxy": "*.svc" }), false)]
    #[case(json!({ "HTTPSProxy": "http://p:1", "noProxy": "svc" }), false)]
    #[case(json!({ "HTTPSProxy": "http://p:1", "noProxy": "golden-catalog-spool.ns.svc:8443" }), false)]
    #[case(json!({ "HTTPSProxy": "http://p:1", "noProxy": "vc" }), true)]
    fn r10_knows_a_proxy_in_the_way(#[case] proxy: serde_json::Value, #[case] in_the_way: bool) {
        let config: CdiConfig =
            serde_json::from_value(json!({ "metadata": { "name": "config" }, "status": { "importProxy": proxy } })).expect("config");
        assert_eq!(proxy_in_the_way(Some(&config), "golden-catalog-spool.ns.svc").is_some(), in_the_way);
    }
}
