//! From stores, spool and running jobs to the plain data that a decision is made from.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt as _;

use super::{ClaimView, ClassChoice, ClassFound, DataVolumeView, ObservedTarget, observed::GoldenView};
use crate::{
    api::{GoldenImageStatus, TargetStatus},
    foreign::{Cdi, CdiConfig, Claim, Condition, DataVolume, StorageProfile},
    model::{ClassName, DiskSize, Image, ImageName, public_url, redact},
    rules::{
        CdiCondition, Told,
        capability::{Strategy, shortfalls},
        class::{self, ClassTrouble, Classes},
        marks,
        pods::{PodFacts, holds_golden, in_use_message},
        provenance::Provenance,
        quota::Quota,
        size::Overheads,
        whose::{Owner, Whose, whose},
    },
    world::{Cluster, WarningFacts, facts},
};

/// What of the cluster's storage every target depends on.
#[derive(Debug, Clone, Default)]
pub struct Storage {
    /// The StorageClasses.
    pub classes: Classes,
    /// CDI's clone strategy over all classes.
    strategy: Option<String>,
    /// Drivers that have a VolumeSnapshotClass.
    snapshots: BTreeSet<String>,
    /// File systems' shares.
    overheads: Overheads,
    /// CDI's class of scratch space; the target's own where it names none that exists.
    scratch_class: Option<String>,
    /// The catalog namespace's quotas.
    quotas: Vec<Quota>,
    /// R17: provisioners whose volumes live on one node.
    node_local: Vec<String>,
}

impl Storage {
    /// As the stores have it now; `node_local` is the setting `nodeLocalProvisioners`.
    pub fn of(cluster: &Cluster, node_local: &[String]) -> Self {
        let classes = classes(cluster);
        let config = cluster.cdi_config.get("", CDI_CONFIG);
        let strategy = |cdi: &std::sync::Arc<Cdi>| cdi.spec.read()?.clone_strategy_override.clone();
        Self {
            scratch_class: scratch_class(config.as_deref(), |class| classes.contains_key(class)),
            classes,
            strategy: cluster.cdi.all().iter().find_map(strategy).filter(|strategy| !strategy.is_empty()),
            snapshots: cluster.snapshot_classes.all().iter().map(|driver| (**driver).clone()).collect(),
            overheads: facts::overheads(config.as_deref()),
            quotas: cluster.quotas.all().iter().map(|quota| (**quota).clone()).collect(),
            node_local: node_local.to_vec(),
        }
    }
}

/// The class that CDI makes scratch space in for every import, where it names one that is there: else an import's own.
pub(super) fn scratch_class(config: Option<&CdiConfig>, is_there: impl FnOnce(&str) -> bool) -> Option<String> {
    config?.status.read()?.scratch_space_storage_class.clone().filter(|class| is_there(class))
}

/// The name of CDI's one CDIConfig.
pub(super) const CDI_CONFIG: &str = "config";

/// The cluster's StorageClasses as rules read them.
pub fn classes(cluster: &Cluster) -> Classes {
    cluster.classes.all().iter().map(|class| (class.name.clone(), (**class).clone())).collect()
}

/// The class that a target gets that names none (R12).
pub fn default_class(classes: &Classes) -> Option<ClassName> {
    class::target_class("", classes).ok()?.name.parse().ok()
}

/// The class of one target: the recorded one if a golden was begun, else as CDI would choose now.
pub fn class_choice(
    target: &crate::model::Target,
    status: Option<&TargetStatus>,
    storage: &Storage,
    profile: impl Fn(&str) -> Option<std::sync::Arc<StorageProfile>>,
) -> ClassChoice {
    let recorded = status.filter(|status| status.golden.is_some()).and_then(|status| status.storage_class_name.clone());
    let stated = recorded.clone().or_else(|| target.class.as_ref().map(ToString::to_string)).unwrap_or_default();
    let found = match class::target_class(&stated, &storage.classes) {
        Ok(found) => found,
        Err(ClassTrouble::NotFound(name)) => return name.parse().map_or(ClassChoice::NoDefault, ClassChoice::Missing),
        Err(_) => return ClassChoice::NoDefault,
    };
    let Ok(name) = found.name.parse::<ClassName>() else { return ClassChoice::NoDefault };
    let profile = profile(&found.name);
    let strategy = profile.as_ref().and_then(|profile| profile.status.read()?.clone_strategy.clone());
    let strategy = Strategy {
        overall: storage.strategy.as_deref(),
        profile: strategy.as_deref(),
        has_snapshot_class: storage.snapshots.contains(&found.provisioner),
    };
    let is_unstated = target.class.is_none() && recorded.is_some();
    let of_class = profile.map(|profile| facts::profile(&profile)).unwrap_or_default();
    ClassChoice::Found(ClassFound {
        provisioner: found.provisioner.clone(),
        properties: of_class.properties,
        minimum: of_class.minimum,
        overheads: storage.overheads.clone(),
        scratch_class: storage.scratch_class.clone().unwrap_or_else(|| found.name.clone()),
        warnings: shortfalls(found, strategy, &storage.node_local).iter().map(|shortfall| shortfall.message(&found.name)).collect(),
        drift: is_unstated.then(|| class::default_class_drift(&found.name, &storage.classes)).flatten(),
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
    storage: &Storage,
) -> ObservedTarget {
    let requested = spec.requested_class().to_owned();
    let recorded = status.targets.iter().find(|target| target.requested_class == requested);
    let class = class_choice(spec, recorded, storage, |name| cluster.profiles.get("", name));
    let schematic_id = status.resolved_schematic();
    let class_name = match &class {
        ClassChoice::Found(found) => Some(&found.name),
        ClassChoice::NoDefault | ClassChoice::Missing(_) => None,
    };
    let next = || status.next_name(image, schematic_id.as_ref(), class_name).and_then(Result::ok);
    let golden = recorded.and_then(|target| target.golden.clone()).or_else(|| next().map(|name| name.to_string()));
    let identity = image.identity(schematic_id.as_ref()).map(|identity| identity.to_string());
    let mut view = GoldenView::default();
    if let Some(golden) = golden.clone() {
        let (volume, claim) = (cluster.volumes.get(catalog, &golden), cluster.claims.get(catalog, &golden));
        view = golden_view(volume.as_deref(), claim.as_deref(), &image.name, identity.as_deref());
        let pods = cluster.pods.all();
        let holding: Vec<&PodFacts> = pods.iter().map(|pod| &**pod).filter(|pod| holds_golden(pod, catalog, &golden)).collect();
        view.in_use = in_use_message(&holding);
        let since = recorded.and_then(|target| target.started_time.as_ref()).map(|at| at.0.as_second());
        view.told = view.claim.as_ref().and_then(|claim| newest_warning(cluster, &golden, &claim.uid, since));
    }
    ObservedTarget {
        name: golden.and_then(|golden| golden.parse().ok()),
        taken_by: None,
        class,
        golden: view,
        quotas: storage.quotas.clone(),
    }
}

/// What stands under a golden's name, as the objects themselves say.
pub fn golden_view(volume: Option<&DataVolume>, claim: Option<&Claim>, image: &ImageName, identity: Option<&str>) -> GoldenView {
    let of_volume = volume.map(|volume| volume_view(volume, image, identity));
    let of_claim = claim.map(|claim| claim_view(claim, image, identity));
    let provenance = of_claim.as_ref().map_or(Provenance::FilledHere, |claim| claim.provenance(of_volume.as_ref()));
    GoldenView {
        stranger: (volume.is_some() || claim.is_some()).then(|| super::adopt::stranger(volume, claim, provenance, identity)),
        volume: of_volume,
        claim: of_claim,
        ..GoldenView::default()
    }
}

/// The newest Warning about the claim, or about what CDI made to fill it: CDI's populator names its claim `prime-<UID>`, and scratch space and pods after that.
///
/// Not of a time before `since`, when the attempt began: Events outlive the trouble that they tell of.
fn newest_warning(cluster: &Cluster, golden: &str, claim_uid: &str, since: Option<i64>) -> Option<Told> {
    let prime = format!("prime-{claim_uid}");
    let names = [
        golden.to_owned(),
        format!("{prime}-scratch"),
        format!("importer-{prime}"),
        format!("importer-{golden}"),
        format!("tmp-pvc-{claim_uid}"),
        format!("{claim_uid}-source-pod"),
        prime,
    ];
    let all = cluster.warnings.all();
    let newest = newest_about(all.iter().map(|warning| &**warning), &names, since)?;
    Some(Told { about: format!("{} {}", newest.kind, newest.name), reason: newest.reason.clone(), message: newest.message.clone() })
}

fn newest_about<'a>(all: impl Iterator<Item = &'a WarningFacts>, names: &[String], since: Option<i64>) -> Option<&'a WarningFacts> {
    let is_of_now = |warning: &&WarningFacts| since.is_none_or(|since| warning.seen >= since);
    all.filter(|warning| names.contains(&warning.name)).filter(is_of_now).max_by_key(|warning| warning.seen)
}

/// Our mark, for this image and no other of its name. An object whose mark was taken off by hand is not ours by its labels; a recorded
/// UID still knows it.
fn is_ours(labels: &BTreeMap<String, String>, image: &ImageName, identity: Option<&str>) -> bool {
    whose(Owner { name: image.as_str(), identity, recorded: None }, labels, None) == Whose::Its
}

fn volume_view(volume: &DataVolume, image: &ImageName, identity: Option<&str>) -> DataVolumeView {
    let status = volume.status.read().cloned().unwrap_or_default();
    let spec = volume.spec.read();
    let source = spec.and_then(|spec| spec.source.as_ref());
    let url = source.and_then(|source| source.http.as_ref()).and_then(|http| http.url.as_ref());
    let path = url.and_then(|url| url::Url::parse(url).ok()).map(|url| url.path().to_owned());
    let source = match url {
        Some(url) => {
            format!("it imports {}", url::Url::parse(url).map_or_else(|_| "from a URL".to_owned(), |url| redact(&public_url(&url))))
        }
        None if source.is_some_and(|source| source.pvc.is_some() || source.snapshot.is_some()) => "it is a clone".to_owned(),
        None => "of another source".to_owned(),
    };
    let condition = |kind| condition_view(status.condition(kind));
    DataVolumeView {
        uid: volume.uid().unwrap_or_default(),
        ours: is_ours(volume.labels(), image, identity),
        source,
        copies: spec.and_then(|spec| spec.source.as_ref()?.pvc.as_ref()?.name.clone()),
        disk_digest: volume.annotations().get(marks::DISK_DIGEST).cloned(),
        path: path.filter(|path| path.starts_with(crate::spool::Address::PREFIX)),
        terminating: volume.metadata.deletion_timestamp.is_some(),
        created: volume.creation_timestamp().map(|at| at.0),
        percent: status.progress.as_deref().and_then(percent),
        restarts: status.restart_count.unwrap_or(0),
        bound: condition("Bound"),
        running: condition("Running"),
        access: volume.annotations().get(marks::ACCESS).cloned(),
        free: marks::free(volume.labels(), volume.annotations()),
        restored_by: volume.labels().get(marks::VELERO_RESTORE).cloned(),
        takes_what_is_there: volume.annotations().contains_key(marks::CDI_STATIC_VOLUME),
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
        // CDI quotes the URL it imports from, whose path is as good as a key.
        message: redact(condition.message.as_deref().unwrap_or_default()),
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
        controller: claim.owner_references().iter().find(|owner| owner.controller == Some(true)).map(|owner| owner.uid.clone()),
        made_for: claim.annotations().get(marks::CDI_CREATED_FOR).filter(|uid| !uid.is_empty()).cloned(),
        filled_as: claim.annotations().get(marks::CDI_PRIME).and_then(|name| name.strip_prefix("prime-")).map(str::to_owned),
        said_filled: claim.annotations().get(marks::CDI_POPULATED_FOR).is_some_and(|name| !name.is_empty()),
        restored_by: claim.labels().get(marks::VELERO_RESTORE).cloned(),
        from_snapshot: spec.is_some_and(|spec| {
            [&spec.data_source, &spec.data_source_ref].into_iter().flatten().any(|source| source.kind.as_deref() == Some("VolumeSnapshot"))
        }),
        adopt: claim.annotations().get(marks::ADOPT).cloned(),
        is_asked_to_go: [marks::RETIRE_REQUESTED, marks::FORCE_RETIRE].iter().any(|key| claim.annotations().contains_key(*key)),
        bound: phase == "Bound",
        lost: phase == "Lost",
        terminating: claim.metadata.deletion_timestamp.is_some(),
        class: spec.and_then(|spec| spec.storage_class_name.clone()),
        provisioner: [marks::PROVISIONER, marks::BETA_PROVISIONER].iter().find_map(|key| claim.annotations().get(*key)).cloned(),
        volume_mode: spec.and_then(|spec| spec.volume_mode.clone()),
        access_modes: spec.and_then(|spec| spec.access_modes.clone()).unwrap_or_default(),
        disk_digest: claim.annotations().get(marks::DISK_DIGEST).cloned(),
        artifact_digest: claim.annotations().get(marks::ARTIFACT_DIGEST).cloned(),
        request: spec.and_then(|spec| spec.storage_request()).and_then(|request| DiskSize::from_bytes(request.bytes()?)),
        access: claim.annotations().get(marks::ACCESS).cloned(),
        free: marks::free(claim.labels(), claim.annotations()),
        garbage_collected: claim.annotations().get(marks::CDI_GARBAGE_COLLECTED).is_some_and(|value| value == "true"),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::{newest_about, percent, proxy_in_the_way};
    use crate::{foreign::CdiConfig, world::WarningFacts};

    /// An Event stays for an hour after the attempt that it tells of.
    #[rstest]
    #[case::of_no_attempt(None, Some(20))]
    #[case::of_this_one(Some(15), Some(20))]
    #[case::in_its_first_second(Some(20), Some(20))]
    #[case::of_the_one_before(Some(21), None)]
    fn r10_a_warning_of_a_former_attempt_is_no_cause_now(#[case] since: Option<i64>, #[case] told: Option<i64>) {
        let warning = |name: &str, seen| WarningFacts { name: name.into(), seen, ..WarningFacts::default() };
        let all = [warning("a", 10), warning("a", 20), warning("b", 30)];
        assert_eq!(newest_about(all.iter(), &["a".to_owned()], since).map(|warning| warning.seen), told);
    }

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
