//! Imitates CDI's import populator and import controller: prime claim, importer pods, scratch claim, rebind.

use std::{path::PathBuf, sync::Arc, time::Duration};

use k8s_openapi::{
    api::core::v1::{ConfigMap, PersistentVolumeClaim, PersistentVolumeClaimSpec, Secret},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::ResourceExt;

use super::{
    Ctx,
    api::{owner_reference, text},
    cache::Key,
    http::Connection,
    names,
    pods::PodEnd,
    run::Run,
    script::Behaviour,
    storage::{Content, Volume},
    types::{HttpSource, Source, VolumeImportSource},
};

/// How long between looks at something that no watch tells.
const POLL: Duration = Duration::from_millis(200);

/// What an import needs to know, fixed when it starts.
pub(super) struct Import {
    pub(super) source: Source,
    /// The populator path; else CDI's legacy one, where the importer writes to the target itself.
    pub(super) populator: bool,
    /// How long a claim made again under a Succeeded DataVolume is left alone.
    pub(super) delay: Duration,
    /// The claim's `preallocation` and content type are copied by the caller; this is the DataVolume's import source object.
    pub(super) source_object: Option<Key>,
}

/// Fills the run's claim, whatever it takes.
pub(super) async fn run(ctx: Arc<Ctx>, run: Arc<Run>, import: Import) {
    if !import.delay.is_zero() {
        tokio::time::sleep(import.delay).await;
        let mut scripts = ctx.scripts.watch();
        while ctx.scripts.find(&run.key, |behaviour| (*behaviour == Behaviour::NotAgain).then_some(())).is_some() {
            // The sender lives as long as the stand-in.
            let _ = scripts.changed().await;
        }
    }
    loop {
        match once(&ctx, &run, &import).await {
            Ok(()) => break,
            Err(Trouble(message)) => {
                ctx.journal.note(&run.key, format!("import: {message}"));
                tokio::time::sleep(POLL).await;
            }
        }
    }
    ctx.queue.add(run.key.clone());
}

/// Something that is tried again.
pub(super) struct Trouble(pub(super) String);

impl<E: std::error::Error> From<E> for Trouble {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

async fn once(ctx: &Ctx, run: &Run, import: &Import) -> Result<(), Trouble> {
    // A claim that went away aborts this task; until then there is nothing to do.
    let Some(target) = ctx.claim(&run.key, &run.uid) else { return std::future::pending().await };
    let prime = if ctx.opts.full() && import.populator { Some(prime_claim(ctx, run, &target, import).await?) } else { None };
    let worked = prime.clone().unwrap_or_else(|| target.clone());
    let volume = volume(ctx, run, &worked, import).await?;
    let disk = match import.source.http.as_ref() {
        Some(http) => {
            let end = importers(ctx, run, &worked, &volume, http).await;
            if end == PodEnd::Fatal {
                return Ok(());
            }
            end
        }
        None if import.source.blank.is_some() => {
            blank(ctx, run, &volume).await?;
            PodEnd::Done
        }
        None => {
            // Registries are not played: what a bad tag looks like, for ever.
            let message = "failed to pull image: the stand-in for CDI pulls from no registry";
            ctx.set(
                run,
                &[
                    (names::POD_PHASE, Some("Pending")),
                    (names::RUNNING, Some("false")),
                    (names::RUNNING_REASON, Some("ImagePullFailed")),
                    (names::RUNNING_MESSAGE, Some(message)),
                ],
            )
            .await;
            return std::future::pending().await;
        }
    };
    debug_assert_eq!(disk, PodEnd::Done);
    finish(ctx, run, import, &target, prime.as_deref(), &volume).await
}

async fn blank(ctx: &Ctx, run: &Run, volume: &Volume) -> Result<(), Trouble> {
    let file = tokio::fs::OpenOptions::new().create(true).write(true).truncate(false).open(&volume.path).await?;
    let overhead = ctx
        .claim(&run.key, &run.uid)
        .and_then(|claim| claim.spec.clone())
        .map_or(0.0, |spec| ctx.overhead(spec.storage_class_name.as_deref()));
    file.set_len(super::classes::usable(volume.capacity, volume.block, overhead)).await?;
    Ok(())
}

/// The claim `prime-<target UID>` that the importer writes to.
async fn prime_claim(ctx: &Ctx, run: &Run, target: &PersistentVolumeClaim, import: &Import) -> Result<Arc<PersistentVolumeClaim>, Trouble> {
    let spec = target.spec.clone().unwrap_or_default();
    let mut annotations = std::collections::BTreeMap::from([
        (names::IMMEDIATE_BIND.to_owned(), String::new()),
        (names::POPULATOR_KIND.to_owned(), "VolumeImportSource".to_owned()),
    ]);
    for name in [names::CONTENT_TYPE, names::PREALLOCATION_REQUESTED, names::SELECTED_NODE] {
        if let Some(value) = target.annotations().get(name) {
            annotations.insert(name.into(), value.clone());
        }
    }
    if let Some(http) = &import.source.http {
        import_annotations(&mut annotations, http);
    }
    let prime = PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(format!("prime-{}", run.uid)),
            namespace: target.namespace(),
            labels: Some([(names::APP.into(), names::APP_VALUE.into()), (names::VELERO_EXCLUDE.into(), "true".into())].into()),
            annotations: Some(annotations),
            owner_references: Some(vec![owner_reference(target)]),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: spec.access_modes,
            resources: spec.resources,
            storage_class_name: spec.storage_class_name,
            volume_mode: spec.volume_mode,
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    };
    let prime = match ctx.api.ensure(&prime).await {
        Ok(prime) => prime,
        Err(error) => {
            ctx.api.event(target, "Warning", "ErrCreatingPVCPrime", &text(&error)).await;
            return Err(error.into());
        }
    };
    if run.get(names::PVC_PRIME).is_none() {
        ctx.set(run, &[(names::PVC_PRIME, Some(&prime.name_any()))]).await;
        ctx.api.event(target, "Normal", "CreatedPVCPrimeSuccessfully", "PVC Prime created successfully").await;
    }
    Ok(prime)
}

/// The annotations an import leaves on the claim that is written to.
pub(super) fn import_annotations(annotations: &mut std::collections::BTreeMap<String, String>, http: &HttpSource) {
    annotations.insert(names::SOURCE.into(), "http".into());
    annotations.insert(names::ENDPOINT.into(), http.url.clone());
    if let Some(map) = &http.cert_config_map {
        annotations.insert(names::CERT_CONFIG_MAP.into(), map.clone());
    }
    for (index, secret) in http.secret_extra_headers.iter().enumerate() {
        annotations.insert(format!("{}{index}", names::SECRET_EXTRA_HEADERS), secret.clone());
    }
}

/// The volume to write to: bound to the prime claim, or only a file in lean mode.
async fn volume(ctx: &Ctx, run: &Run, claim: &PersistentVolumeClaim, import: &Import) -> Result<Volume, Trouble> {
    no_volume(ctx, run, claim).await;
    if !ctx.opts.full() && import.populator {
        return Ok(ctx.make_volume(claim, &Content::Empty).await?);
    }
    let made = ctx.provision(claim, Content::Empty).await;
    if let Err(error) = &made {
        told_pending(ctx, run, claim, &error.to_string()).await;
    } else if run.get(names::BOUND).is_some() {
        ctx.set(run, &[(names::BOUND, None), (names::BOUND_REASON, None), (names::BOUND_MESSAGE, None)]).await;
    }
    Ok(made?)
}

/// Waits while a script has the provisioner make no volume for the prime or tmp claim.
pub(super) async fn no_volume(ctx: &Ctx, run: &Run, claim: &PersistentVolumeClaim) {
    let pending = |behaviour: &Behaviour| if let Behaviour::NoVolume { message } = behaviour { Some(message.clone()) } else { None };
    let mut changed = ctx.scripts.watch();
    while let Some(message) = ctx.scripts.find(&run.key, pending) {
        told_pending(ctx, run, claim, &message).await;
        let _ = changed.changed().await;
    }
}

/// What CDI copies from the prime claim's events into the Bound condition.
async fn told_pending(ctx: &Ctx, run: &Run, claim: &PersistentVolumeClaim, message: &str) {
    let told = format!("[{}] : {message}", claim.name_any());
    if run.get(names::BOUND_MESSAGE).as_deref() != Some(&*told) {
        ctx.api.event(claim, "Warning", "ProvisioningFailed", message).await;
        ctx.set(run, &[(names::BOUND, Some("false")), (names::BOUND_REASON, Some("Pending")), (names::BOUND_MESSAGE, Some(&told))]).await;
    }
}

/// Importer pods one after the other: the first finds that it needs scratch space, the second imports.
async fn importers(ctx: &Ctx, run: &Run, claim: &PersistentVolumeClaim, volume: &Volume, http: &HttpSource) -> PodEnd {
    let mut scratch: Option<PathBuf> = None;
    let mut number = 0;
    loop {
        match ctx.importer_pod(run, claim, volume, http, scratch.as_ref(), &mut number).await {
            PodEnd::ScratchRequired => {
                ctx.scratch_claim(run, claim, volume).await;
                scratch = Some(ctx.opts.dir.join(format!("scratch-{}", run.uid)));
            }
            PodEnd::Again => {}
            end => return end,
        }
    }
}

async fn finish(
    ctx: &Ctx,
    run: &Run,
    import: &Import,
    target: &PersistentVolumeClaim,
    prime: Option<&PersistentVolumeClaim>,
    volume: &Volume,
) -> Result<(), Trouble> {
    for number in 0..ctx.opts.padding_writes {
        let patch = serde_json::json!({ "metadata": { "annotations": { "cdi-stand-in/padding": number.to_string() } } });
        ctx.api.patch(target, patch).await?;
    }
    // CDI copies the pod's end to the target before the volume: Succeeded with Bound=False is seen for a moment.
    ctx.set(
        run,
        &[
            (names::POD_PHASE, Some("Succeeded")),
            (names::POD_READY, Some("false")),
            (names::RUNNING, Some("false")),
            (names::RUNNING_REASON, Some("Completed")),
            (names::RUNNING_MESSAGE, Some("Import Complete")),
            (names::BOUND, None),
            (names::BOUND_REASON, None),
            (names::BOUND_MESSAGE, None),
            (names::PROGRESS, Some("100.0%")),
        ],
    )
    .await;
    match prime {
        Some(prime) => {
            let Some(prime) = ctx.api.get::<PersistentVolumeClaim>(&Key::of(prime)).await? else {
                return Err(Trouble("the prime claim is gone".into()));
            };
            ctx.rebind(&prime, target).await?;
            ctx.api.delete(&*prime).await?;
        }
        None if import.populator => {
            ctx.flush(run).await;
            let class = ctx.class_of(target).ok_or_else(|| Trouble("the class is gone".into()))?;
            ctx.bind_volume(target, volume, &class).await?;
        }
        None => {}
    }
    if let Some(key) = &import.source_object
        && ctx.opts.full()
        && let Some(source) = ctx.api.get::<VolumeImportSource>(key).await?
    {
        ctx.api.delete(&*source).await?;
    }
    ctx.clean_importer(run, prime.unwrap_or(target)).await?;
    ctx.api.event(target, "Normal", "importSucceeded", &format!("Successfully imported into {}", target.name_any())).await;
    Ok(())
}

/// What the kubelet mounts into an importer: the CA, the header Secrets, the basic-auth Secret. `Err` names what is missing, for which a pod waits.
pub(super) async fn connection(ctx: &Ctx, namespace: &str, http: &HttpSource) -> Result<Connection, String> {
    let missing = |kind: &str, name: &str| format!("MountVolume.SetUp failed for volume: {kind} \"{name}\" not found");
    let fetch = |error: kube::Error| text(&error);
    let mut headers = http.extra_headers.clone();
    for name in &http.secret_extra_headers {
        let secret = ctx.api.get::<Secret>(&Key::new(namespace, name)).await.map_err(fetch)?.ok_or_else(|| missing("secret", name))?;
        // Every value of the Secret is one header line.
        headers.extend(secret.data.iter().flatten().map(|(_, value)| String::from_utf8_lossy(&value.0).into_owned()));
    }
    let ca = match &http.cert_config_map {
        None => None,
        Some(name) => {
            let map =
                ctx.api.get::<ConfigMap>(&Key::new(namespace, name)).await.map_err(fetch)?.ok_or_else(|| missing("configmap", name))?;
            Some(map.data.iter().flatten().map(|(_, value)| format!("{value}\n")).collect::<String>().into_bytes())
        }
    };
    let basic = match &http.secret_ref {
        None => None,
        Some(name) => {
            let secret = ctx.api.get::<Secret>(&Key::new(namespace, name)).await.map_err(fetch)?.ok_or_else(|| missing("secret", name))?;
            let value = |key: &str| {
                secret
                    .data
                    .as_ref()
                    .and_then(|data| data.get(key))
                    .map(|value| String::from_utf8_lossy(&value.0).into_owned())
                    .unwrap_or_default()
            };
            Some((value("accessKeyId"), value("secretKey")))
        }
    };
    let config = ctx.api.caches.configs.get(&Key::new("", "config"));
    let proxy = config.and_then(|config| config.status.clone()).and_then(|status| status.import_proxy);
    Ok(Connection { ca, headers, basic, proxy, dial: ctx.opts.dial.clone(), patience: ctx.opts.stall_timeout })
}
