//! Imitates CDI's clone populator: strategy, temporary claims in the source's namespace, rebind; bytes are really copied.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec, TypedObjectReference},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::ResourceExt;
use serde_json::json;

use super::{
    Ctx,
    api::text,
    cache::Key,
    classes::{request, set_request},
    import::Trouble,
    journal::What,
    names,
    plan::{Ends, from_claim, from_snapshot},
    pods::{pod, pod_status},
    run::Run,
    script::Behaviour,
    status::claim_phase,
    storage::{Content, capacity, copy_disk, disk_of},
    types::VolumeSnapshot,
};

/// What is cloned.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum CloneOf {
    Claim(Key),
    Snapshot(Key),
}

impl CloneOf {
    pub(super) fn key(&self) -> &Key {
        match self {
            Self::Claim(key) | Self::Snapshot(key) => key,
        }
    }
}

/// Fills the run's claim with a clone, whatever it takes.
pub(super) async fn run(ctx: Arc<Ctx>, run: Arc<Run>, source: CloneOf, populator: bool) {
    loop {
        let Some(target) = ctx.claim(&run.key, &run.uid) else { return };
        let error = |behaviour: &Behaviour| {
            if let Behaviour::Error { message, times } = behaviour { Some((*times, message.clone())) } else { None }
        };
        let done = match ctx.scripts.take(&run.key, &run.uid, error) {
            Some(message) => Err(Trouble(message)),
            None if populator => once(&ctx, &run, &target, &source).await,
            None => legacy(&ctx, &run, &target, &source).await,
        };
        match done {
            Ok(()) => break,
            Err(Trouble(message)) => {
                // `Error` keeps the DataVolume's phase and shows in Running.
                ctx.set(
                    &run,
                    &[
                        (names::CLONE_PHASE, Some("Error")),
                        (names::CLONE_ERROR, Some(&message)),
                        (names::RUNNING, Some("false")),
                        (names::RUNNING_REASON, Some("Error")),
                        (names::RUNNING_MESSAGE, Some(&message)),
                    ],
                )
                .await;
                if run.news(&format!("error: {message}")) {
                    ctx.journal.note(&run.key, format!("clone: {message}"));
                }
                tokio::time::sleep(ctx.opts.clone_requeue).await;
            }
        }
    }
    ctx.queue.add(run.key.clone());
}

async fn phase(ctx: &Ctx, run: &Run, phase: &str) {
    let (running, reason, message) = match phase {
        "Pending" => ("false", "Pending", "Clone Pending"),
        "Succeeded" => ("false", "Completed", "Clone Complete"),
        _ => ("true", "Populator is running", ""),
    };
    ctx.set(
        run,
        &[
            (names::CLONE_PHASE, Some(phase)),
            (names::CLONE_ERROR, None),
            (names::RUNNING, Some(running)),
            (names::RUNNING_REASON, Some(reason)),
            (names::RUNNING_MESSAGE, Some(message)),
        ],
    )
    .await;
}

/// A clone stays in its phase while a script says so.
async fn stuck(ctx: &Ctx, run: &Run) {
    let mut changed = ctx.scripts.watch();
    let stuck = |behaviour: &Behaviour| matches!(behaviour, Behaviour::StuckAt(_)).then_some(());
    while ctx.scripts.find(&run.key, stuck).is_some() {
        let _ = changed.changed().await;
    }
    let tick = |behaviour: &Behaviour| if let Behaviour::Ticks { count, every } = behaviour { Some((*count, *every)) } else { None };
    if let Some((count, every)) = ctx.scripts.find(&run.key, tick) {
        for at in 1..=count {
            ctx.set(run, &[(names::PROGRESS, Some(&format!("{:.2}%", f64::from(at) * 100.0 / f64::from(count))))]).await;
            tokio::time::sleep(every).await;
        }
    }
}

async fn once(ctx: &Ctx, run: &Run, target: &PersistentVolumeClaim, source: &CloneOf) -> Result<(), Trouble> {
    let strategy = loop {
        match strategy(ctx, run, target, source).await? {
            Some(strategy) => break strategy,
            None => {
                phase(ctx, run, "Pending").await;
                tokio::time::sleep(ctx.opts.clone_requeue).await;
            }
        }
    };
    let Some(target) = ctx.claim(&run.key, &run.uid) else { return std::future::pending().await };
    if ctx.opts.full() && !target.finalizers().iter().any(|name| name == names::CLONE_FINALIZER) {
        let mut finalizers = target.finalizers().to_vec();
        finalizers.push(names::CLONE_FINALIZER.into());
        ctx.api.patch(&*target, json!({ "metadata": { "resourceVersion": target.resource_version(), "finalizers": finalizers } })).await?;
    }
    match (strategy.as_str(), source) {
        ("copy", _) => host_assisted(ctx, run, &target, source).await?,
        ("snapshot", CloneOf::Claim(key)) => {
            let snapshot = smart_snapshot(ctx, run, &target, key).await?;
            storage_clone(ctx, run, &target, &CloneOf::Snapshot(snapshot.clone())).await?;
            if let Some(snapshot) = ctx.api.get::<VolumeSnapshot>(&snapshot).await? {
                ctx.api.delete(&*snapshot).await?;
            }
        }
        _ => storage_clone(ctx, run, &target, source).await?,
    }
    ctx.set(run, &[(names::PROGRESS, Some("100.0%")), (names::CLONE_OF, Some("true"))]).await;
    phase(ctx, run, "Succeeded").await;
    ctx.release_finalizer(&*target, names::CLONE_FINALIZER).await?;
    ctx.journal.push(&run.key, What::Cloned { strategy, source: source.key().clone() });
    Ok(())
}

/// The strategy, pinned on the claim at the first choice; `None` while it cannot be chosen.
async fn strategy(ctx: &Ctx, run: &Run, target: &PersistentVolumeClaim, source: &CloneOf) -> Result<Option<String>, Trouble> {
    if let Some(preset) = run.get(names::CLONE_TYPE).or_else(|| target.annotations().get(names::CLONE_TYPE).cloned()) {
        return Ok(Some(preset));
    }
    let class = ctx.class_of(target);
    let plan = match source {
        CloneOf::Claim(key) => {
            let Some(claim) = ctx.api.caches.pvcs.get(key) else {
                missing(ctx, run, target, &format!("The source pvc {} doesn't exist", key.name)).await;
                return Ok(None);
            };
            let driver = ctx.driver_of(&claim);
            let profile = class.as_ref().and_then(|class| ctx.api.caches.profiles.get(&Key::new("", class.name_any())));
            let profiled = profile.and_then(|profile| profile.status.clone()).and_then(|status| status.clone_strategy);
            let wanted = ctx.opts.clone_strategy_override.clone().or(profiled).unwrap_or_else(|| "snapshot".into());
            let ends = Ends {
                snapshot_class: match &driver {
                    Some(driver) => ctx.has_snapshot_class(driver).await,
                    None => false,
                },
                source: &claim,
                source_driver: driver,
                target,
                target_class: class.as_deref(),
                wanted,
            };
            from_claim(&ends, target.annotations().contains_key(names::PERMISSIVE_CLONE))
        }
        CloneOf::Snapshot(key) => {
            let Some(snapshot) = ctx.api.caches.snapshots.get(key) else {
                missing(ctx, run, target, &format!("The source snapshot {} doesn't exist", key.name)).await;
                return Ok(None);
            };
            let size = snapshot.status.as_ref().and_then(|status| status.restore_size.clone());
            let driver = ctx.driver_of_snapshot(&snapshot);
            from_snapshot(size.as_deref(), driver.as_deref(), target, class.as_deref())
        }
    };
    let plan = match plan {
        Ok(plan) => plan,
        Err(message) => {
            if message.starts_with("target resources requests") && run.news(&message) {
                ctx.api.event(target, "Warning", "ErrIncompatiblePVC", &message).await;
                ctx.api.event(target, "Warning", "CloneValidationFailed", "The clone doesn't meet the validation requirements").await;
            }
            return Err(Trouble(message));
        }
    };
    if let Some((reason, message)) = plan.fallback {
        ctx.api.event(target, "Warning", reason, message).await;
        ctx.set(run, &[(names::CLONE_FALLBACK, Some(message))]).await;
    }
    ctx.set(run, &[(names::CLONE_TYPE, Some(&plan.strategy)), (names::CLONE_PHASE, Some("Pending"))]).await;
    Ok(Some(plan.strategy))
}

async fn missing(ctx: &Ctx, run: &Run, target: &PersistentVolumeClaim, message: &str) {
    if run.news(message) {
        ctx.api.event(target, "Warning", "CloneWithoutSource", message).await;
    }
}

/// Waits until the source may be cloned: there, bound, filled, and used by no pod.
async fn source_ready(ctx: &Ctx, run: &Run, target: &PersistentVolumeClaim, key: &Key) -> Result<Arc<PersistentVolumeClaim>, Trouble> {
    loop {
        let Some(claim) = ctx.api.caches.pvcs.get(key) else {
            tokio::time::sleep(ctx.opts.clone_requeue).await;
            continue;
        };
        let users = ctx.pods_using(key);
        for user in &users {
            let message = format!("pod {user} using PersistentVolumeClaim {}", key.name);
            if run.news(&message) {
                ctx.api.event(target, "Warning", "CloneSourceInUse", &message).await;
                ctx.journal.note(&run.key, message);
            }
        }
        if claim_phase(&claim) == "Bound" && claim.metadata.deletion_timestamp.is_none() && users.is_empty() && ctx.populated(&claim) {
            return Ok(claim);
        }
        tokio::time::sleep(ctx.opts.clone_requeue).await;
    }
}

/// The claim in the source's namespace that becomes the target's volume. It carries every label and annotation of the target.
fn temporary(target: &PersistentVolumeClaim, namespace: &str, spec: PersistentVolumeClaimSpec, name: String) -> PersistentVolumeClaim {
    let mut labels = target.labels().clone();
    labels.insert(names::OWNED_BY_UID.into(), target.uid().unwrap_or_default());
    labels.insert(names::APP.into(), names::APP_VALUE.into());
    labels.insert(names::VELERO_EXCLUDE.into(), "true".into());
    let mut annotations = target.annotations().clone();
    for bookkeeping in [names::BIND_COMPLETED, names::BOUND_BY_CONTROLLER] {
        annotations.remove(bookkeeping);
    }
    annotations.insert(names::POPULATOR_KIND.into(), "VolumeCloneSource".into());
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(namespace.into()),
            labels: Some(labels),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        status: None,
    }
}

/// A clone made by the storage: `tmp-pvc-<target UID>` with the source as its data source, grown if need be, then rebound.
async fn storage_clone(ctx: &Ctx, run: &Run, target: &PersistentVolumeClaim, source: &CloneOf) -> Result<(), Trouble> {
    let namespace = source.key().namespace.clone();
    let name = format!("tmp-pvc-{}", run.uid);
    let (kind, group, size) = match source {
        CloneOf::Claim(key) => {
            phase(ctx, run, "CSIClone").await;
            let claim = source_ready(ctx, run, target, key).await?;
            ("PersistentVolumeClaim", None, capacity(&claim).unwrap_or_default())
        }
        CloneOf::Snapshot(key) => {
            phase(ctx, run, "SnapshotClone").await;
            let ready = |snapshot: Option<&Arc<VolumeSnapshot>>| {
                let status = snapshot?.status.clone()?;
                (status.ready_to_use == Some(true))
                    .then(|| status.restore_size.as_deref().and_then(super::quantity::bytes).unwrap_or_default())
            };
            ("VolumeSnapshot", Some("snapshot.storage.k8s.io".to_owned()), ctx.api.caches.snapshots.wait(key, ready).await)
        }
    };
    stuck(ctx, run).await;
    let wanted = target.spec.as_ref().and_then(request).unwrap_or(size);
    if ctx.opts.full() {
        let mut spec = target.spec.clone().unwrap_or_default();
        set_request(&mut spec, size);
        spec.volume_name = None;
        spec.data_source = None;
        spec.data_source_ref =
            Some(TypedObjectReference { api_group: group, kind: kind.into(), name: source.key().name.clone(), namespace: None });
        let tmp = tmp_claim(ctx, target, temporary(target, &namespace, spec, name)).await?;
        super::import::no_volume(ctx, run, &tmp).await;
        if run.get(names::BOUND).is_some() {
            ctx.set(run, &[(names::BOUND, None), (names::BOUND_REASON, None), (names::BOUND_MESSAGE, None)]).await;
        }
        if claim_phase(&tmp) != "Bound" {
            ctx.provision_plain(&tmp).await?;
        }
        let mut tmp = ctx.api.get::<PersistentVolumeClaim>(&Key::of(&*tmp)).await?.ok_or(Trouble("the temporary claim is gone".into()))?;
        if wanted > capacity(&tmp).unwrap_or(size) {
            phase(ctx, run, "PrepClaim").await;
            tmp = ctx.expand(&tmp, wanted).await?;
        }
        phase(ctx, run, "Rebind").await;
        ctx.rebind(&tmp, target).await?;
        ctx.api.delete(&*tmp).await?;
    } else {
        let disk = match source {
            CloneOf::Claim(key) => ctx.api.caches.pvcs.get(key).and_then(|claim| disk_of(&ctx.opts.dir, &claim)),
            CloneOf::Snapshot(key) => ctx.api.caches.snapshots.get(key).map(|snapshot| super::snapshot::file(&ctx.opts.dir, &snapshot)),
        };
        ctx.flush(run).await;
        ctx.provision(target, disk.filter(|disk| disk.exists()).map_or(Content::Empty, Content::CopyOf)).await?;
    }
    Ok(())
}

/// Makes a temporary claim; quota in the source's namespace is told on the target.
async fn tmp_claim(ctx: &Ctx, target: &PersistentVolumeClaim, claim: PersistentVolumeClaim) -> Result<Arc<PersistentVolumeClaim>, Trouble> {
    match ctx.api.ensure(&claim).await {
        Ok(claim) => Ok(claim),
        Err(error) => {
            if text(&error).contains("exceeded quota") {
                ctx.api.event(target, "Warning", "ErrExceededQuota", &text(&error)).await;
            }
            Err(Trouble(text(&error)))
        }
    }
}

/// The snapshot of a smart clone.
async fn smart_snapshot(ctx: &Ctx, run: &Run, target: &PersistentVolumeClaim, key: &Key) -> Result<Key, Trouble> {
    phase(ctx, run, "Snapshot").await;
    source_ready(ctx, run, target, key).await?;
    let mut snapshot = VolumeSnapshot::new(
        &format!("tmp-snapshot-{}", run.uid),
        super::types::VolumeSnapshotSpec {
            source: super::types::VolumeSnapshotSource {
                persistent_volume_claim_name: Some(key.name.clone()),
                volume_snapshot_content_name: None,
            },
            volume_snapshot_class_name: None,
        },
    );
    snapshot.metadata.namespace = Some(key.namespace.clone());
    snapshot.metadata.labels = Some(BTreeMap::from([(names::OWNED_BY_UID.to_owned(), run.uid.clone())]));
    let snapshot = ctx.api.ensure(&snapshot).await?;
    Ok(Key::of(&*snapshot))
}

/// A network copy: a source pod and an upload pod, with the temporary claim between them.
async fn host_assisted(ctx: &Ctx, run: &Run, target: &PersistentVolumeClaim, source: &CloneOf) -> Result<(), Trouble> {
    phase(ctx, run, "HostClone").await;
    let namespace = source.key().namespace.clone();
    let mut spec = target.spec.clone().unwrap_or_default();
    spec.volume_name = None;
    spec.data_source = None;
    spec.data_source_ref = None;
    let mut tmp = temporary(target, &namespace, spec, format!("tmp-pvc-{}", run.uid));
    tmp.annotations_mut().insert(names::CLONE_REQUEST.into(), source.key().to_string());
    let tmp = if ctx.opts.full() { Some(tmp_claim(ctx, target, tmp).await?) } else { None };
    if let Some(tmp) = &tmp
        && claim_phase(tmp) != "Bound"
    {
        ctx.provision(tmp, Content::Empty).await?;
    }
    let from = copy_source(ctx, run, target, source).await?;
    let pods = copy_pods(ctx, tmp.as_deref(), source).await?;
    stuck(ctx, run).await;
    if let Some((key, uid)) = &from.claim {
        // Seen: a host-assisted copy whose source is deleted under it hangs in CloneInProgress.
        let live = ctx.api.get::<PersistentVolumeClaim>(key).await?;
        let there = live.is_some_and(|claim| claim.uid().as_ref() == Some(uid) && claim.metadata.deletion_timestamp.is_none());
        if !there {
            ctx.journal.note(&run.key, "the source was deleted during the copy: it hangs");
            return std::future::pending().await;
        }
    }
    match &tmp {
        Some(tmp) => {
            let tmp = ctx.api.get::<PersistentVolumeClaim>(&Key::of(&**tmp)).await?.ok_or(Trouble("the temporary claim is gone".into()))?;
            fill(ctx, &from.disk, &tmp).await?;
            for pod in pods {
                ctx.api.delete(&*pod).await?;
            }
            phase(ctx, run, "Rebind").await;
            ctx.rebind(&tmp, target).await?;
            ctx.api.delete(&*tmp).await?;
        }
        None => {
            ctx.flush(run).await;
            ctx.provision(target, Content::Empty).await?;
            let Some(bound) = ctx.claim(&run.key, &run.uid) else { return Ok(()) };
            fill(ctx, &from.disk, &bound).await?;
        }
    }
    Ok(())
}

struct CopySource {
    disk: Option<std::path::PathBuf>,
    claim: Option<(Key, String)>,
}

async fn copy_source(ctx: &Ctx, run: &Run, target: &PersistentVolumeClaim, source: &CloneOf) -> Result<CopySource, Trouble> {
    match source {
        CloneOf::Claim(key) => {
            let claim = source_ready(ctx, run, target, key).await?;
            Ok(CopySource { disk: disk_of(&ctx.opts.dir, &claim), claim: Some((key.clone(), claim.uid().unwrap_or_default())) })
        }
        CloneOf::Snapshot(key) => {
            let snapshot = ctx.api.caches.snapshots.get(key).ok_or(Trouble("source snapshot does not exist".into()))?;
            Ok(CopySource { disk: Some(super::snapshot::file(&ctx.opts.dir, &snapshot)), claim: None })
        }
    }
}

/// The two pods of a network copy. The source pod mounts the golden read-only, so that other clones go on.
async fn copy_pods(
    ctx: &Ctx,
    tmp: Option<&PersistentVolumeClaim>,
    source: &CloneOf,
) -> Result<Vec<Arc<k8s_openapi::api::core::v1::Pod>>, Trouble> {
    let (Some(tmp), CloneOf::Claim(key)) = (tmp, source) else { return Ok(Vec::new()) };
    let mut reader = pod(&format!("{}-source-pod", tmp.uid().unwrap_or_default()), tmp, "clone-source-pod", true);
    if let Some(volume) = reader.spec.as_mut().and_then(|spec| spec.volumes.as_mut()).and_then(|volumes| volumes.first_mut())
        && let Some(claim) = &mut volume.persistent_volume_claim
    {
        claim.claim_name.clone_from(&key.name);
    }
    let writer = pod(&format!("cdi-upload-{}", tmp.name_any()), tmp, "cdi-upload-server", false);
    let mut pods = Vec::new();
    for (wanted, name) in [(reader, "clone-source-pod"), (writer, "cdi-upload-server")] {
        let pod = ctx.api.ensure(&wanted).await?;
        pods.push(ctx.api.patch_status(&*pod, pod_status("Running", name, 0, json!({ "running": {} }), json!({}))).await?);
    }
    Ok(pods)
}

/// Copies a disk into a bound claim and grows it to the claim's own length.
async fn fill(ctx: &Ctx, from: &Option<std::path::PathBuf>, claim: &PersistentVolumeClaim) -> Result<(), Trouble> {
    let (Some(from), Some(to)) = (from.as_ref().filter(|from| from.exists()), disk_of(&ctx.opts.dir, claim)) else { return Ok(()) };
    if let Some(parent) = to.parent() {
        tokio::fs::create_dir_all(parent).await?;
    }
    copy_disk(from, &to).await?;
    let spec = claim.spec.clone().unwrap_or_default();
    let block = super::classes::is_block(&spec);
    let length = super::classes::usable(capacity(claim).unwrap_or_default(), block, ctx.overhead(spec.storage_class_name.as_deref()));
    let file = tokio::fs::OpenOptions::new().write(true).open(&to).await?;
    if file.metadata().await?.len() < length {
        file.set_len(length).await?;
    }
    Ok(())
}

/// CDI's path without populators: the target is bound at once and filled by a network copy.
async fn legacy(ctx: &Ctx, run: &Run, target: &PersistentVolumeClaim, source: &CloneOf) -> Result<(), Trouble> {
    let reason = "In tree storage class does not support snapshot/clone";
    ctx.api.event(target, "Warning", "NoPopulator", reason).await;
    ctx.set(
        run,
        &[
            (names::CLONE_TYPE, Some("copy")),
            (names::CLONE_FALLBACK, Some(reason)),
            (names::CLONE_REQUEST, Some(&source.key().to_string())),
        ],
    )
    .await;
    if claim_phase(target) != "Bound" {
        ctx.provision(target, Content::Empty).await?;
    }
    ctx.set(run, &[(names::POD_PHASE, Some("Pending"))]).await;
    let from = copy_source(ctx, run, target, source).await?;
    ctx.set(run, &[(names::POD_PHASE, Some("Running")), (names::RUNNING, Some("true")), (names::RUNNING_REASON, Some("Pod is running"))])
        .await;
    stuck(ctx, run).await;
    let Some(bound) = ctx.claim(&run.key, &run.uid) else { return Ok(()) };
    fill(ctx, &from.disk, &bound).await?;
    ctx.set(
        run,
        &[
            (names::POD_PHASE, Some("Succeeded")),
            (names::CLONE_OF, Some("true")),
            (names::CLONE_PHASE, None),
            (names::CLONE_ERROR, None),
            (names::RUNNING, Some("false")),
            (names::RUNNING_REASON, Some("Completed")),
            (names::RUNNING_MESSAGE, Some("Clone Complete")),
        ],
    )
    .await;
    ctx.journal.push(&run.key, What::Cloned { strategy: "copy".into(), source: source.key().clone() });
    Ok(())
}
