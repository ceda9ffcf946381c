//! Imitates CDI's datavolume controllers: the claim and source objects of a DataVolume, then its status.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec, TypedLocalObjectReference, TypedObjectReference},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::ResourceExt;
use serde_json::json;

use super::{
    Ctx,
    api::{code, owner_reference, text},
    cache::Key,
    classes::{Offer, inflate, is_block, render, request, set_request, waits_for_consumer},
    clone::CloneOf,
    import::{Import, import_annotations},
    journal::What,
    names, plan,
    script::Behaviour,
    status::{Observed, Population, claim_phase, compute},
    storage::capacity,
    types::{DataVolume, Source, VolumeCloneSource, VolumeCloneSourceSpec, VolumeImportSource, VolumeImportSourceSpec},
};

/// What the sync has to say instead of a look at the claim: phase, reason, message.
type Said = Option<(String, String, String)>;

/// What a DataVolume is filled from.
#[allow(clippy::large_enum_variant, reason = "one at a time")]
enum Work {
    Import(Source),
    Clone(CloneOf),
    /// The DataSource it names does not exist: CDI does nothing then.
    Nothing,
}

/// What the sync leaves for the status.
#[derive(Default)]
struct Synced {
    said: Said,
    again: Option<Duration>,
}

impl Synced {
    fn saying(phase: &str, reason: &str, message: impl Into<String>) -> Self {
        Self { said: Some((phase.into(), reason.into(), message.into())), again: None }
    }

    fn again(mut self, wait: Duration) -> Self {
        self.again = Some(wait);
        self
    }
}

/// Looks at one DataVolume and its claim. Yields when to look again.
pub(super) async fn reconcile(ctx: &Arc<Ctx>, key: &Key) -> Result<Option<Duration>, kube::Error> {
    let Some(dv) = ctx.api.caches.dvs.get(key) else {
        if let Some(pvc) = ctx.api.caches.pvcs.get(key) {
            populate_without_datavolume(ctx, &pvc).await?;
        }
        return Ok(None);
    };
    let work = work_of(ctx, &dv);
    if dv.metadata.deletion_timestamp.is_some() {
        if let Work::Clone(source) = &work {
            delete_clone_source(ctx, &dv, source).await?;
        }
        ctx.release_finalizer(&*dv, names::DV_FINALIZER).await?;
        return Ok(None);
    }
    let synced = sync(ctx, &dv, &work).await?;
    // The sync may have written to the DataVolume.
    let Some(dv) = ctx.api.caches.dvs.get(key) else { return Ok(None) };
    update_status(ctx, &dv, &work, synced.said).await?;
    Ok(synced.again)
}

fn phase(dv: &DataVolume) -> &str {
    dv.status.as_ref().map_or("", |status| &status.phase)
}

fn work_of(ctx: &Ctx, dv: &DataVolume) -> Work {
    let namespace = dv.namespace().unwrap_or_default();
    let of = |reference: &super::types::ObjectRef| {
        let namespace = if reference.namespace.is_empty() { &namespace } else { &reference.namespace };
        Key::new(namespace.clone(), reference.name.clone())
    };
    let from_source = |pvc: Option<&super::types::ObjectRef>, snapshot: Option<&super::types::ObjectRef>| match (pvc, snapshot) {
        (Some(pvc), _) => Some(Work::Clone(CloneOf::Claim(of(pvc)))),
        (None, Some(snapshot)) => Some(Work::Clone(CloneOf::Snapshot(of(snapshot)))),
        (None, None) => None,
    };
    if let Some(reference) = &dv.spec.source_ref {
        let mut key =
            Key::new(reference.namespace.clone().filter(|ns| !ns.is_empty()).unwrap_or(namespace.clone()), reference.name.clone());
        // A DataSource may point at another of its namespace, once.
        for _ in 0..2 {
            let Some(found) = ctx.api.caches.data_sources.get(&key) else { return Work::Nothing };
            let source = &found.spec.source;
            if let Some(work) = from_source(source.pvc.as_ref(), source.snapshot.as_ref()) {
                return work;
            }
            let Some(next) = source.data_source.as_ref().filter(|next| next.namespace == key.namespace) else { return Work::Nothing };
            key = Key::new(next.namespace.clone(), next.name.clone());
        }
        return Work::Nothing;
    }
    let Some(source) = &dv.spec.source else { return Work::Nothing };
    from_source(source.pvc.as_ref(), source.snapshot.as_ref()).unwrap_or_else(|| Work::Import(source.clone()))
}

async fn sync(ctx: &Arc<Ctx>, dv: &Arc<DataVolume>, work: &Work) -> Result<Synced, kube::Error> {
    let key = Key::of(&**dv);
    if matches!(work, Work::Nothing) {
        return Ok(Synced::default());
    }
    if let Some(pvc) = ctx.api.caches.pvcs.get(&key) {
        if pvc.metadata.deletion_timestamp.is_some() {
            ctx.end_run(&pvc.uid().unwrap_or_default());
            let message = format!("Resource \"{}\" marked for deletion", key.name);
            ctx.api.event(&**dv, "Warning", "ErrResourceMarkedForDeletion", &message).await;
            return Ok(Synced { said: None, again: None });
        }
        if !controlled_by(&pvc, dv) {
            return foreign_claim(ctx, dv, &pvc).await;
        }
        if phase(dv) == "Succeeded" && claim_phase(&pvc) == "Bound" {
            after_success(ctx, dv, &pvc, work).await?;
            return Ok(Synced::default());
        }
        start_population(ctx, dv, &pvc, work);
        return Ok(Synced::default());
    }
    if dv.annotations().contains_key(names::PREPOPULATED) {
        return Ok(Synced::default());
    }
    create_claim(ctx, dv, work).await
}

fn controlled_by(pvc: &PersistentVolumeClaim, dv: &DataVolume) -> bool {
    pvc.owner_references().iter().any(|owner| owner.controller == Some(true) && Some(&owner.uid) == dv.metadata.uid.as_ref())
}

/// A claim of the DataVolume's name that it does not own: adopted where asked for, else an event for ever.
async fn foreign_claim(ctx: &Ctx, dv: &DataVolume, pvc: &PersistentVolumeClaim) -> Result<Synced, kube::Error> {
    let adopt = dv.annotations().get(names::ALLOW_ADOPTION).is_some_and(|value| value == "true");
    let ours_before = pvc.annotations().get(names::CREATED_FOR) == dv.metadata.uid.as_ref();
    let populated = pvc.annotations().get(names::POPULATED_FOR).is_some_and(|name| *name == dv.name_any());
    if populated || (adopt && !ours_before) {
        let owners: Vec<_> = pvc.owner_references().iter().cloned().chain([owner_reference(dv)]).collect();
        let annotations = json!({ names::POPULATED_FOR: dv.name_any() });
        ctx.api.patch(pvc, json!({ "metadata": { "ownerReferences": owners, "annotations": annotations } })).await?;
        return Ok(Synced::default());
    }
    let message = format!("Resource \"{}\" already exists and is not managed by DataVolume", pvc.name_any());
    ctx.api.event(dv, "Warning", "ErrResourceExists", &message).await;
    Ok(Synced::default().again(Duration::from_secs(5)))
}

async fn create_claim(ctx: &Arc<Ctx>, dv: &Arc<DataVolume>, work: &Work) -> Result<Synced, kube::Error> {
    let classes = ctx.api.caches.classes.all(|_| true);
    let profile = |name: &str| ctx.api.caches.profiles.get(&Key::new("", name));
    let config = ctx.api.caches.configs.get(&Key::new("", "config"));
    let status = config.as_ref().and_then(|config| config.status.as_ref());
    let offer = Offer { classes: &classes, profile: &profile, config: status, overhead: ctx.opts.filesystem_overhead };
    let mut spec = match render(dv, &offer, matches!(work, Work::Clone(_))) {
        Ok(spec) => spec,
        Err(message) => return Ok(Synced::saying("", "ErrClaimNotValid", message)),
    };
    let class = spec.storage_class_name.as_deref().and_then(|name| ctx.api.caches.classes.get(&Key::new("", name)));
    let populator = match dv.annotations().get(names::USE_POPULATOR).map(String::as_str) {
        Some(set) => set == "true",
        None => class.as_ref().is_some_and(|class| ctx.opts.is_csi(&class.provisioner)),
    };
    let mut permissive = false;
    if let Work::Clone(source) = work {
        if let Some(synced) = clone_token(ctx, dv, source).await? {
            return Ok(synced);
        }
        match clone_size(ctx, dv, source, &mut spec, &offer) {
            Ok(cached) => permissive = cached,
            Err(synced) => return Ok(synced),
        }
        if populator
            && source.key().namespace != dv.namespace().unwrap_or_default()
            && !dv.finalizers().iter().any(|name| name == names::DV_FINALIZER)
        {
            let mut finalizers = dv.finalizers().to_vec();
            finalizers.push(names::DV_FINALIZER.into());
            ctx.api.patch(&**dv, json!({ "metadata": { "resourceVersion": dv.resource_version(), "finalizers": finalizers } })).await?;
            return Ok(Synced { said: Some(("CloneScheduled".into(), String::new(), String::new())), again: Some(Duration::ZERO) });
        }
    }
    let quota = |behaviour: &Behaviour| if let Behaviour::ClaimQuota { message } = behaviour { Some(message.clone()) } else { None };
    let key = Key::of(&**dv);
    if let Some(message) = ctx.scripts.find(&key, quota) {
        return Ok(Synced::saying("Pending", "ErrExceededQuota", message).again(ctx.opts.clone_requeue));
    }
    if populator
        && ctx.opts.full()
        && let Work::Import(source) = work
    {
        ctx.api.ensure(&import_source(dv, source)).await?;
    }
    let claim = claim_for(dv, work, spec, populator, permissive);
    match ctx.api.create(&claim).await {
        Ok(claim) => {
            ctx.journal.note(&key, format!("claim {} created", claim.uid().unwrap_or_default()));
            if populator
                && ctx.opts.full()
                && let Work::Clone(source) = work
            {
                ctx.api.ensure(&clone_source(dv, source)).await?;
            }
            start_population(ctx, dv, &claim, work);
            Ok(Synced::default())
        }
        // The watch will tell whose it is.
        Err(error) if code(&error) == Some(409) => {
            ctx.api.get::<PersistentVolumeClaim>(&key).await?;
            Ok(Synced::default().again(ctx.opts.clone_requeue))
        }
        Err(error) if code(&error) == Some(403) && text(&error).contains("exceeded quota") => {
            Ok(Synced::saying("Pending", "ErrExceededQuota", text(&error)).again(ctx.opts.clone_requeue))
        }
        Err(error) => Err(error),
    }
}

fn import_source_key(dv: &DataVolume) -> Key {
    Key::new(dv.namespace().unwrap_or_default(), format!("volume-import-source-{}", dv.uid().unwrap_or_default()))
}

fn import_source(dv: &DataVolume, source: &Source) -> VolumeImportSource {
    let key = import_source_key(dv);
    let mut object = VolumeImportSource::new(
        &key.name,
        VolumeImportSourceSpec {
            source: Some(source.clone()),
            content_type: dv.spec.content_type.clone(),
            preallocation: dv.spec.preallocation,
        },
    );
    object.metadata.namespace = Some(key.namespace);
    object.metadata.owner_references = Some(vec![owner_reference(dv)]);
    object
}

fn clone_source_name(dv: &DataVolume) -> String {
    format!("volume-clone-source-{}", dv.uid().unwrap_or_default())
}

fn clone_source(dv: &DataVolume, source: &CloneOf) -> VolumeCloneSource {
    let (kind, group) = match source {
        CloneOf::Claim(_) => ("PersistentVolumeClaim", None),
        CloneOf::Snapshot(_) => ("VolumeSnapshot", Some("snapshot.storage.k8s.io".into())),
    };
    let reference = TypedLocalObjectReference { api_group: group, kind: kind.into(), name: source.key().name.clone() };
    let mut object = VolumeCloneSource::new(&clone_source_name(dv), VolumeCloneSourceSpec { source: reference, preallocation: None });
    object.metadata.namespace = Some(source.key().namespace.clone());
    if dv.namespace().as_ref() == Some(&source.key().namespace) {
        object.metadata.owner_references = Some(vec![owner_reference(dv)]);
    } else {
        object.metadata.annotations = Some([("cdi.kubevirt.io/ownedByDataVolume".to_owned(), Key::of(dv).to_string())].into());
    }
    object
}

async fn delete_clone_source(ctx: &Ctx, dv: &DataVolume, source: &CloneOf) -> Result<(), kube::Error> {
    if !ctx.opts.full() {
        return Ok(());
    }
    let key = Key::new(source.key().namespace.clone(), clone_source_name(dv));
    match ctx.api.get::<VolumeCloneSource>(&key).await? {
        Some(object) => ctx.api.delete(&*object).await,
        None => Ok(()),
    }
}

/// The target claim: labels and annotations are the DataVolume's, now and never again.
fn claim_for(
    dv: &DataVolume,
    work: &Work,
    mut spec: PersistentVolumeClaimSpec,
    populator: bool,
    permissive: bool,
) -> PersistentVolumeClaim {
    let mut labels = BTreeMap::from([(names::APP.to_owned(), names::APP_VALUE.to_owned())]);
    if !is_block(&spec) {
        labels.insert(names::FILLING_UP.into(), "disabled".into());
    }
    labels.extend(dv.labels().clone());
    let mut annotations = dv.annotations().clone();
    annotations.insert(names::POD_RESTARTS.into(), "0".into());
    annotations.insert(names::CONTENT_TYPE.into(), dv.spec.content_type.clone().unwrap_or_else(|| "kubevirt".into()));
    annotations.insert(names::PREALLOCATION_REQUESTED.into(), dv.spec.preallocation.unwrap_or(false).to_string());
    annotations.insert(names::CREATED_FOR.into(), dv.uid().unwrap_or_default());
    annotations.insert(names::USE_POPULATOR.into(), populator.to_string());
    if permissive {
        annotations.insert(names::PERMISSIVE_CLONE.into(), "true".into());
    }
    let group = Some(names::GROUP.to_owned());
    match (work, populator) {
        (Work::Import(_), true) => {
            spec.data_source_ref = Some(TypedObjectReference {
                api_group: group,
                kind: "VolumeImportSource".into(),
                name: import_source_key(dv).name,
                namespace: None,
            });
        }
        (Work::Import(source), false) => {
            if let Some(http) = &source.http {
                import_annotations(&mut annotations, http);
            }
        }
        (Work::Clone(source), true) => {
            spec.data_source_ref = Some(TypedObjectReference {
                api_group: group,
                kind: "VolumeCloneSource".into(),
                name: clone_source_name(dv),
                namespace: None,
            });
            if dv.namespace().as_ref() != Some(&source.key().namespace) {
                annotations.insert(names::DATA_SOURCE_NAMESPACE.into(), source.key().namespace.clone());
            }
        }
        (Work::Clone(source), false) => {
            annotations.insert(names::CLONE_REQUEST.into(), source.key().to_string());
        }
        (Work::Nothing, _) => {}
    }
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(dv.name_any()),
            namespace: dv.namespace(),
            labels: Some(labels),
            annotations: Some(annotations),
            owner_references: Some(vec![owner_reference(dv)]),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        status: None,
    }
}

/// The extended token of a clone across namespaces; without a token from the webhook no clone starts.
async fn clone_token(ctx: &Ctx, dv: &DataVolume, source: &CloneOf) -> Result<Option<Synced>, kube::Error> {
    let across = dv.namespace().as_ref() != Some(&source.key().namespace);
    if !across || !ctx.opts.admission || dv.annotations().contains_key(names::EXTENDED_CLONE_TOKEN) {
        return Ok(None);
    }
    let Some(token) = dv.annotations().get(names::CLONE_TOKEN) else {
        ctx.journal.note(&Key::of(dv), "token missing");
        return Ok(Some(Synced::default()));
    };
    let token = format!("{token}-extended");
    ctx.api.patch(dv, json!({ "metadata": { "annotations": { names::EXTENDED_CLONE_TOKEN: token } } })).await?;
    Ok(Some(Synced::default().again(Duration::ZERO)))
}

/// `validateClone` and `detectCloneSize`: yields whether the clone may be smaller than its source's claim, or what to say and wait for.
fn clone_size(ctx: &Ctx, dv: &DataVolume, source: &CloneOf, spec: &mut PersistentVolumeClaimSpec, offer: &Offer) -> Result<bool, Synced> {
    let CloneOf::Claim(key) = source else {
        let CloneOf::Snapshot(key) = source else { return Ok(false) };
        let Some(snapshot) = ctx.api.caches.snapshots.get(key) else {
            return Err(Synced::saying(
                if phase(dv).is_empty() { "Pending" } else { phase(dv) },
                "CloneWithoutSource",
                format!("The source snapshot {} doesn't exist", key.name),
            ));
        };
        if request(spec).is_none() {
            let size = snapshot.status.as_ref().and_then(|status| status.restore_size.as_deref()).and_then(super::quantity::bytes);
            let Some(size) = size else { return Err(Synced::default().again(ctx.opts.clone_requeue)) };
            set_request(spec, inflate(size, spec, offer));
        }
        return Ok(false);
    };
    let Some(claim) = ctx.api.caches.pvcs.get(key) else {
        // The first look of a clone across namespaces leaves `Pending` behind.
        let phase = if phase(dv).is_empty() { "Pending" } else { phase(dv) };
        return Err(Synced::saying(phase, "CloneWithoutSource", format!("The source pvc {} doesn't exist", key.name)));
    };
    let asked = dv.spec.pvc.as_ref().or(dv.spec.storage.as_ref()).and_then(request);
    let theirs = claim.spec.as_ref().and_then(request).unwrap_or_default();
    let block = plan::mode(&claim) == "Block";
    if let Some(asked) = asked.filter(|_| dv.spec.pvc.is_some() || block)
        && asked < theirs
    {
        let message = format!(
            "The clone doesn't meet the validation requirements: target resources requests storage size is smaller than the source {asked} < {theirs}"
        );
        return Err(Synced::saying("", "CloneValidationFailed", message));
    }
    if dv.spec.pvc.is_some() || (asked.is_some() && (block || !is_block(spec))) {
        return Ok(false);
    }
    let not_yet = || Synced { said: Some(("CloneScheduled".into(), String::new(), String::new())), again: Some(ctx.opts.clone_requeue) };
    let have = capacity(&claim).ok_or_else(not_yet)?;
    // CDI sends a pod into the golden to learn its virtual size; the stand-in looks at the file.
    let size = if block {
        have
    } else {
        if !ctx.populated(&claim) {
            return Err(not_yet());
        }
        let disk = super::storage::disk_of(&ctx.opts.dir, &claim).and_then(|path| path.metadata().ok());
        disk.map_or(have, |disk| disk.len())
    };
    match asked {
        Some(asked) => Ok(asked >= size),
        None => {
            set_request(spec, inflate(size, spec, offer));
            Ok(have > size)
        }
    }
}

/// Starts the import or clone of an unbound claim that is ready for it.
fn start_population(ctx: &Arc<Ctx>, dv: &Arc<DataVolume>, pvc: &Arc<PersistentVolumeClaim>, work: &Work) {
    let populator = pvc.annotations().get(names::USE_POPULATOR).is_none_or(|set| set == "true");
    let bound = claim_phase(pvc) == "Bound";
    let filled = pvc.annotations().get(names::POD_PHASE).is_some_and(|phase| phase == "Succeeded");
    if claim_phase(pvc) == "Lost"
        || (populator && bound)
        || (!populator && bound && (filled || phase(dv) == "Succeeded"))
        || !ready_for_population(ctx, pvc)
    {
        return;
    }
    let uid = pvc.uid().unwrap_or_default();
    let key = Key::of(&**pvc);
    match work {
        Work::Import(source) => {
            let again = phase(dv) == "Succeeded";
            let import = Import {
                source: source.clone(),
                populator,
                delay: if again { ctx.opts.reimport_delay } else { Duration::ZERO },
                source_object: populator.then(|| import_source_key(dv)),
            };
            if again && ctx.run_of(&uid).is_none() {
                ctx.journal.note(&key, "the claim of a Succeeded DataVolume is gone: it will be imported again");
            }
            ctx.start_run(&key, &uid, |ctx, run| super::import::run(ctx, run, import));
        }
        Work::Clone(source) => {
            let source = source.clone();
            ctx.start_run(&key, &uid, |ctx, run| super::clone::run(ctx, run, source, populator));
        }
        Work::Nothing => {}
    }
}

/// The class exists, and a first consumer is not waited for.
fn ready_for_population(ctx: &Ctx, pvc: &PersistentVolumeClaim) -> bool {
    let Some(class) = ctx.class_of(pvc) else { return false };
    !waits_for_consumer(Some(&class)) || !waiting(pvc)
}

fn waiting(pvc: &PersistentVolumeClaim) -> bool {
    let annotations = pvc.annotations();
    annotations.get(names::SELECTED_NODE).is_none_or(String::is_empty) && !annotations.contains_key(names::IMMEDIATE_BIND)
}

/// A claim with one of CDI's sources but no DataVolume.
async fn populate_without_datavolume(ctx: &Arc<Ctx>, pvc: &Arc<PersistentVolumeClaim>) -> Result<(), kube::Error> {
    let Some(reference) = pvc.spec.as_ref().and_then(|spec| spec.data_source_ref.clone()) else { return Ok(()) };
    if reference.api_group.as_deref() != Some(names::GROUP)
        || claim_phase(pvc) != "Pending"
        || pvc.metadata.deletion_timestamp.is_some()
        || !ready_for_population(ctx, pvc)
    {
        return Ok(());
    }
    let (key, uid) = (Key::of(&**pvc), pvc.uid().unwrap_or_default());
    let namespace =
        pvc.annotations().get(names::DATA_SOURCE_NAMESPACE).cloned().or(reference.namespace).unwrap_or_else(|| key.namespace.clone());
    match reference.kind.as_str() {
        "VolumeImportSource" => {
            let Some(found) = ctx.api.get::<VolumeImportSource>(&Key::new(key.namespace.clone(), reference.name)).await? else {
                return Ok(());
            };
            let import = Import {
                source: found.spec.source.clone().unwrap_or_default(),
                populator: true,
                delay: Duration::ZERO,
                source_object: None,
            };
            ctx.start_run(&key, &uid, |ctx, run| super::import::run(ctx, run, import));
        }
        "VolumeCloneSource" => {
            let Some(found) = ctx.api.get::<VolumeCloneSource>(&Key::new(namespace.clone(), reference.name)).await? else { return Ok(()) };
            let of = Key::new(namespace, found.spec.source.name.clone());
            let source = if found.spec.source.kind == "VolumeSnapshot" { CloneOf::Snapshot(of) } else { CloneOf::Claim(of) };
            ctx.start_run(&key, &uid, |ctx, run| super::clone::run(ctx, run, source, true));
        }
        _ => {}
    }
    Ok(())
}

/// What CDI does once: clone leftovers, and in its former versions the DataVolume's own deletion.
async fn after_success(ctx: &Ctx, dv: &DataVolume, pvc: &PersistentVolumeClaim, work: &Work) -> Result<(), kube::Error> {
    if let Work::Clone(source) = work
        && dv.finalizers().iter().any(|name| name == names::DV_FINALIZER)
    {
        delete_clone_source(ctx, dv, source).await?;
        ctx.release_finalizer(dv, names::DV_FINALIZER).await?;
    }
    let scripted = ctx.scripts.find(&Key::of(dv), |behaviour| (*behaviour == Behaviour::GarbageCollect).then_some(())).is_some();
    if scripted && dv.annotations().get(names::DELETE_AFTER_COMPLETION).is_none_or(|value| value != "false") {
        let owners: Vec<_> = pvc
            .owner_references()
            .iter()
            .filter(|owner| Some(&owner.uid) != dv.metadata.uid.as_ref())
            .cloned()
            .chain(dv.owner_references().iter().cloned())
            .collect();
        ctx.api
            .patch(pvc, json!({ "metadata": { "ownerReferences": owners, "annotations": { names::GARBAGE_COLLECTED: "true" } } }))
            .await?;
        ctx.journal.note(&Key::of(dv), "garbage-collected: the claim stays");
        ctx.api.delete(dv).await?;
    }
    Ok(())
}

async fn update_status(ctx: &Ctx, dv: &DataVolume, work: &Work, said: Said) -> Result<(), kube::Error> {
    let key = Key::of(dv);
    let pvc = ctx.api.caches.pvcs.get(&key);
    let owned = pvc.as_ref().filter(|pvc| controlled_by(pvc, dv));
    if pvc.is_some() && owned.is_none() || matches!(work, Work::Nothing) {
        return Ok(());
    }
    let own = owned.map(|pvc| pvc.annotations().clone()).unwrap_or_default();
    let run = owned.and_then(|pvc| ctx.run_of(&pvc.uid().unwrap_or_default()));
    let annotations = run.map_or_else(|| own.clone(), |run| run.over(&own));
    let class = owned.and_then(|pvc| ctx.class_of(pvc));
    let (population, source) = match work {
        Work::Clone(source) => (Population::Clone, source.key().to_string()),
        _ => (Population::Import, String::new()),
    };
    let seen = Observed {
        dv,
        pvc: owned.map(|pvc| &**pvc),
        annotations: &annotations,
        population,
        populator: annotations.get(names::USE_POPULATOR).is_none_or(|set| set == "true"),
        waits_for_consumer: owned.is_some_and(|pvc| waits_for_consumer(class.as_deref()) && waiting(pvc)),
        said: said.filter(|_| owned.is_none()),
        source,
    };
    let (status, event) = compute(&seen);
    if let Some(kind) = annotations.get(names::CLONE_TYPE)
        && dv.annotations().get(names::CLONE_TYPE) != Some(kind)
        && ctx.opts.full()
    {
        ctx.api.patch(dv, json!({ "metadata": { "annotations": { names::CLONE_TYPE: kind } } })).await?;
    }
    let before = dv.status.clone().unwrap_or_default();
    if status == before {
        return Ok(());
    }
    let mut patch = json!(status);
    if status.phase.is_empty() {
        patch["phase"] = serde_json::Value::Null;
    }
    ctx.api.patch_status(dv, patch).await?;
    if status.phase != before.phase {
        ctx.journal.push(&key, What::Phase(status.phase.clone()));
        ctx.api.event(dv, if event.warning { "Warning" } else { "Normal" }, &event.reason, &event.message).await;
    }
    // Each change of Bound is an event, Normal even for failures.
    let bound = |status: &super::types::DataVolumeStatus| {
        super::status::condition(status, "Bound").map(|bound| (bound.reason.clone(), bound.message.clone()))
    };
    if let Some((reason, message)) = bound(&status)
        && bound(&before) != Some((reason.clone(), message.clone()))
    {
        ctx.api.event(dv, "Normal", &reason, &message).await;
    }
    Ok(())
}
