//! Imitates CDI's importer pods and stands in for the scheduler and kubelet that run them: pods are plain objects whose status is written here.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use k8s_openapi::{
    api::core::v1::{
        Container, PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, PodSpec, Volume as PodVolume, VolumeDevice, VolumeMount,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{
    Ctx,
    api::{code, owner_reference, text},
    cache::Key,
    classes::is_block,
    import::connection,
    importer::{Attempt, Failure, SCRATCH_MESSAGE, requested, simplified},
    journal::What,
    names,
    run::Run,
    script::Behaviour,
    storage::{Content, Volume},
    types::HttpSource,
};

/// How a pod ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PodEnd {
    Done,
    ScratchRequired,
    /// Killed or out of memory: a new pod starts from zero.
    Again,
    Fatal,
}

const POLL: Duration = Duration::from_millis(200);

/// A pod of CDI's that uses `claim`.
pub(super) fn pod(name: &str, claim: &PersistentVolumeClaim, component: &str, read_only: bool) -> Pod {
    let block = claim.spec.as_ref().is_some_and(is_block);
    let mut container = Container { name: component.into(), image: Some(format!("cdi-stand-in/{component}")), ..Container::default() };
    if block {
        container.volume_devices = Some(vec![VolumeDevice { name: "cdi-data-vol".into(), device_path: "/dev/cdi-block-volume".into() }]);
    } else {
        container.volume_mounts =
            Some(vec![VolumeMount { name: "cdi-data-vol".into(), mount_path: "/data".into(), ..VolumeMount::default() }]);
    }
    Pod {
        metadata: ObjectMeta {
            name: Some(name.into()),
            namespace: claim.namespace(),
            labels: Some([(names::APP.into(), names::APP_VALUE.into()), (names::COMPONENT.into(), component.into())].into()),
            annotations: Some([("cdi.kubevirt.io/storage.createdByController".into(), "yes".into())].into()),
            owner_references: Some(vec![owner_reference(claim)]),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            containers: vec![container],
            restart_policy: Some("OnFailure".into()),
            automount_service_account_token: Some(false),
            volumes: Some(vec![PodVolume {
                name: "cdi-data-vol".into(),
                persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                    claim_name: claim.name_any(),
                    read_only: read_only.then_some(true),
                }),
                ..PodVolume::default()
            }]),
            ..PodSpec::default()
        }),
        status: None,
    }
}

/// A status with one container in `state`.
pub(super) fn pod_status(phase: &str, name: &str, restarts: u32, state: Value, last: Value) -> Value {
    json!({
        "phase": phase,
        "containerStatuses": [{
            "name": name, "image": format!("cdi-stand-in/{name}"), "imageID": "", "ready": phase == "Running", "restartCount": restarts,
            "state": state, "lastState": last,
        }],
    })
}

fn terminated(exit: i32, reason: &str, message: &str) -> Value {
    json!({ "terminated": { "exitCode": exit, "reason": reason, "message": message } })
}

impl Ctx {
    /// Runs one importer pod to its end.
    pub(super) async fn importer_pod(
        &self,
        run: &Run,
        claim: &PersistentVolumeClaim,
        volume: &Volume,
        http: &HttpSource,
        scratch: Option<&PathBuf>,
        number: &mut u32,
    ) -> PodEnd {
        let Some(pod) = self.start_importer(run, claim, scratch.is_some()).await else { return PodEnd::Again };
        let end = tokio::select! {
            end = self.importer_container(run, pod.as_deref(), claim, volume, http, scratch, number) => end,
            () = self.pod_gone(pod.as_deref()) => {
                self.journal.note(&run.key, "importer pod deleted: a new one starts from zero");
                PodEnd::Again
            }
        };
        if end != PodEnd::Done
            && let Some(pod) = &pod
            && let Err(error) = self.api.delete(&**pod).await
        {
            self.journal.note(&run.key, format!("importer pod not deleted: {error}"));
        }
        end
    }

    async fn pod_gone(&self, pod: Option<&Pod>) {
        let Some(pod) = pod else { return std::future::pending().await };
        let uid = pod.uid();
        // Seen once before, or a watch that has not caught up would look like a deletion: the answer to the create is in the cache already.
        self.api
            .caches
            .pods
            .wait(&Key::of(pod), |now| now.is_none_or(|now| now.uid() != uid || now.metadata.deletion_timestamp.is_some()).then_some(()))
            .await;
    }

    /// Makes the pod and gets it past quota, scheduler, image pull and mounts. `None`: try again; an inner `None`: lean mode has no pods.
    async fn start_importer(&self, run: &Run, claim: &PersistentVolumeClaim, with_scratch: bool) -> Option<Option<Arc<Pod>>> {
        let mut changed = self.scripts.watch();
        let refused = |behaviour: &Behaviour| match behaviour {
            Behaviour::PodQuota { message } => Some(("ErrExceededQuota", message.clone())),
            Behaviour::ErrStartingPod { message } => Some(("ErrStartingPod", message.clone())),
            _ => None,
        };
        while let Some((reason, message)) = self.scripts.find(&run.key, refused) {
            self.not_started(run, claim, reason, &message).await;
            let _ = changed.changed().await;
        }
        let name = format!("importer-{}", claim.name_any());
        let made = if self.opts.full() {
            let mut wanted = pod(&name, claim, "importer", false);
            if with_scratch && let Some(spec) = &mut wanted.spec {
                let source = PersistentVolumeClaimVolumeSource { claim_name: format!("{}-scratch", claim.name_any()), read_only: None };
                spec.volumes.get_or_insert_default().push(PodVolume {
                    name: "cdi-scratch-vol".into(),
                    persistent_volume_claim: Some(source),
                    ..PodVolume::default()
                });
            }
            match self.api.ensure(&wanted).await {
                Ok(pod) if pod.metadata.deletion_timestamp.is_some() => {
                    self.pod_gone(Some(&pod)).await;
                    return None;
                }
                Ok(pod) => Some(pod),
                Err(error) => {
                    let quota = code(&error) == Some(403) && text(&error).contains("exceeded quota");
                    self.not_started(run, claim, if quota { "ErrExceededQuota" } else { "ErrStartingPod" }, &text(&error)).await;
                    tokio::time::sleep(POLL).await;
                    return None;
                }
            }
        } else {
            None
        };
        self.set(
            run,
            &[
                (names::IMPORT_POD, Some(&name)),
                (names::POD_PHASE, Some("Pending")),
                (names::POD_READY, Some("false")),
                (names::RUNNING, Some("false")),
                (names::RUNNING_REASON, Some("ContainerCreating")),
                (names::RUNNING_MESSAGE, Some("")),
            ],
        )
        .await;
        while self.scripts.find(&run.key, |behaviour| (*behaviour == Behaviour::Unschedulable).then_some(())).is_some() {
            let condition =
                json!({ "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available" });
            self.pod_status(made.as_deref(), json!({ "phase": "Pending", "conditions": [condition] })).await;
            self.set(run, &[(names::POD_SCHEDULABLE, Some("false"))]).await;
            let _ = changed.changed().await;
        }
        if run.get(names::POD_SCHEDULABLE).is_some() {
            self.set(run, &[(names::POD_SCHEDULABLE, Some("true"))]).await;
        }
        let pull = |behaviour: &Behaviour| if let Behaviour::ImagePull { message } = behaviour { Some(message.clone()) } else { None };
        while let Some(message) = self.scripts.find(&run.key, pull) {
            let waiting = json!({ "waiting": { "reason": "ImagePullBackOff", "message": message } });
            self.pod_status(made.as_deref(), pod_status("Pending", "importer", 0, waiting, json!({}))).await;
            let told = format!("failed to pull image: {message}");
            self.set(run, &[(names::RUNNING_REASON, Some("ImagePullFailed")), (names::RUNNING_MESSAGE, Some(&told))]).await;
            let _ = changed.changed().await;
        }
        Some(made)
    }

    async fn not_started(&self, run: &Run, claim: &PersistentVolumeClaim, reason: &str, message: &str) {
        self.api.event(claim, "Warning", reason, message).await;
        self.set(run, &[(names::RUNNING, Some("false")), (names::RUNNING_REASON, Some(reason)), (names::RUNNING_MESSAGE, Some(message))])
            .await;
    }

    async fn pod_status(&self, pod: Option<&Pod>, status: Value) {
        let Some(pod) = pod else { return };
        if let Err(error) = self.api.patch_status(pod, status).await
            && !matches!(code(&error), Some(404 | 409))
        {
            self.journal.note(&Key::of(pod), format!("pod status not written: {error}"));
        }
    }

    /// The container, restarted by the kubelet until it ends with 0.
    #[allow(clippy::too_many_arguments)]
    async fn importer_container(
        &self,
        run: &Run,
        pod: Option<&Pod>,
        claim: &PersistentVolumeClaim,
        volume: &Volume,
        http: &HttpSource,
        scratch: Option<&PathBuf>,
        number: &mut u32,
    ) -> PodEnd {
        let namespace = claim.namespace().unwrap_or_default();
        let class = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.clone());
        let (mut wait, longest) = self.opts.restart_backoff;
        let mut restarts = 0u32;
        let mut last = json!({});
        loop {
            let connection = loop {
                match connection(self, &namespace, http).await {
                    Ok(connection) => break connection,
                    Err(message) => {
                        if let Some(pod) = pod {
                            self.api.event(pod, "Warning", "FailedMount", &message).await;
                        }
                        tokio::time::sleep(POLL).await;
                    }
                }
            };
            *number += 1;
            self.journal.push(&run.key, What::Attempt(*number));
            self.pod_status(pod, pod_status("Running", "importer", restarts, json!({ "running": {} }), last.clone())).await;
            self.set(
                run,
                &[
                    (names::POD_PHASE, Some("Running")),
                    (names::POD_READY, Some("true")),
                    (names::RUNNING, Some("true")),
                    (names::RUNNING_REASON, Some("Pod is running")),
                    (names::RUNNING_MESSAGE, Some("")),
                ],
            )
            .await;
            let attempt = self.attempt(run, &connection, volume, http, claim, scratch, class.as_deref()).await;
            match attempt {
                Ok(()) => {
                    self.journal.push(&run.key, What::Ended { code: 0, message: "Import Complete".into() });
                    self.pod_status(
                        pod,
                        pod_status("Succeeded", "importer", restarts, terminated(0, "Completed", "Import Complete"), last),
                    )
                    .await;
                    return PodEnd::Done;
                }
                Err(Failure::ScratchRequired) => {
                    self.ended(run, 0, SCRATCH_MESSAGE, "Scratch space required").await;
                    self.pod_status(pod, pod_status("Succeeded", "importer", restarts, terminated(0, "Completed", SCRATCH_MESSAGE), last))
                        .await;
                    return PodEnd::ScratchRequired;
                }
                Err(Failure::OomKilled) => {
                    self.ended(run, 137, "", "OOMKilled").await;
                    self.set(run, &[(names::REQUIRES_DIRECT_IO, Some("true"))]).await;
                    self.pod_status(pod, pod_status("Failed", "importer", restarts, terminated(137, "OOMKilled", ""), last)).await;
                    return PodEnd::Again;
                }
                Err(Failure::Killed) => {
                    self.journal.note(&run.key, "importer pod killed");
                    return PodEnd::Again;
                }
                Err(Failure::Fatal(message)) => {
                    self.ended(run, 0, &message, "ChecksumError").await;
                    self.set(run, &[(names::POD_PHASE, Some("Failed")), (names::FATAL_ERROR, Some("true"))]).await;
                    return PodEnd::Fatal;
                }
                Err(Failure::Error(message)) => {
                    restarts += 1;
                    self.failed(run, claim, &message).await;
                    last = terminated(1, "Error", &message);
                    let waiting = json!({ "waiting": { "reason": "CrashLoopBackOff", "message": "back-off restarting failed container" } });
                    self.pod_status(pod, pod_status("Running", "importer", restarts, waiting, last.clone())).await;
                }
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(longest);
        }
    }

    #[allow(clippy::too_many_arguments)]
    async fn attempt(
        &self,
        run: &Run,
        connection: &super::http::Connection,
        volume: &Volume,
        http: &HttpSource,
        claim: &PersistentVolumeClaim,
        scratch: Option<&PathBuf>,
        class: Option<&str>,
    ) -> Result<(), Failure> {
        // Per thousand, so that the callback needs no lock.
        let fraction = AtomicU64::new(0);
        let progress = |done: f64| fraction.store((done * 10_000.0) as u64, Ordering::Relaxed);
        let attempt = Attempt {
            ctx: self,
            key: &run.key,
            uid: &run.uid,
            url: &http.url,
            checksum: http.checksum.as_deref(),
            connection: connection.clone(),
            volume,
            requested: requested(claim),
            overhead: self.overhead(class),
            scratch: scratch.cloned(),
            progress: &progress,
        };
        let at_the_end = |behaviour: &Behaviour| matches!(behaviour, Behaviour::StuckAt(at) if *at >= 100.0).then_some(());
        let stops_at_the_end = || self.scripts.find(&run.key, at_the_end).is_some();
        let report = async {
            let mut told = 0;
            loop {
                tokio::time::sleep(self.opts.progress_interval).await;
                let now = fraction.load(Ordering::Relaxed);
                // 100 % is held back until the disk is written, but where a script stops there: CDI shows it while it converts the download.
                if now != told && (now < 10_000 || stops_at_the_end()) {
                    told = now;
                    self.set(run, &[(names::PROGRESS, Some(&format!("{:.2}%", now as f64 / 100.0)))]).await;
                }
            }
        };
        tokio::select! {
            done = attempt.run() => done.map(drop),
            () = report => unreachable!("the reporter never ends"),
        }
    }

    async fn ended(&self, run: &Run, exit: i32, message: &str, reason: &str) {
        self.journal.push(&run.key, What::Ended { code: exit, message: message.into() });
        self.set(run, &[(names::RUNNING, Some("false")), (names::RUNNING_REASON, Some(reason)), (names::RUNNING_MESSAGE, Some(message))])
            .await;
    }

    /// Exit 1: the reason goes to Running, its text into Bound too, and the restart count only grows.
    async fn failed(&self, run: &Run, claim: &PersistentVolumeClaim, message: &str) {
        self.journal.push(&run.key, What::Ended { code: 1, message: message.into() });
        let known = self.claim(&run.key, &run.uid);
        let count = |text: Option<String>| text.and_then(|text| text.parse::<u32>().ok()).unwrap_or(0);
        let before = count(run.get(names::POD_RESTARTS))
            .max(count(known.as_ref().and_then(|claim| claim.annotations().get(names::POD_RESTARTS).cloned())));
        let restarts = (before + 1).to_string();
        let short = simplified(message);
        let bound = format!("[{}] : {short}", claim.name_any());
        if let Some(target) = &known {
            self.api.event(&**target, "Warning", "ErrImportFailed", message).await;
        }
        self.set(
            run,
            &[
                (names::POD_RESTARTS, Some(&restarts)),
                (names::POD_READY, Some("false")),
                (names::RUNNING, Some("false")),
                (names::RUNNING_REASON, Some("Error")),
                (names::RUNNING_MESSAGE, Some(&short)),
                (names::BOUND, Some("false")),
                (names::BOUND_REASON, Some("Pending")),
                (names::BOUND_MESSAGE, Some(&bound)),
            ],
        )
        .await;
    }

    /// The scratch claim of the worked claim; waits until it is bound.
    pub(super) async fn scratch_claim(&self, run: &Run, claim: &PersistentVolumeClaim, volume: &Volume) {
        let mut changed = self.scripts.watch();
        let scripted = |behaviour: &Behaviour| if let Behaviour::NoScratch { message } = behaviour { Some(message.clone()) } else { None };
        loop {
            let message = match self.scripts.find(&run.key, scripted) {
                Some(message) => message,
                None if !self.opts.full() => return,
                None => match self.make_scratch(claim).await {
                    Ok(()) => break,
                    Err(message) => message,
                },
            };
            self.api.event(claim, "Warning", "CreatingScratchSpace", &message).await;
            self.set(
                run,
                &[
                    (names::BOUND, Some("false")),
                    (names::BOUND_REASON, Some("CreatingScratchSpace")),
                    (names::BOUND_MESSAGE, Some(&format!("[{}] : {message}", claim.name_any()))),
                ],
            )
            .await;
            let _ = tokio::time::timeout(POLL, changed.changed()).await;
        }
        tracing::trace!(target: "cdi_stand_in", "scratch for {}", volume.name);
        if run.get(names::BOUND).is_some() {
            self.set(run, &[(names::BOUND, None), (names::BOUND_REASON, None), (names::BOUND_MESSAGE, None)]).await;
        }
    }

    async fn make_scratch(&self, claim: &PersistentVolumeClaim) -> Result<(), String> {
        let mut spec = claim.spec.clone().unwrap_or_default();
        let config = self.api.caches.configs.get(&Key::new("", "config"));
        if let Some(class) = config.and_then(|config| config.status.clone()).and_then(|status| status.scratch_space_storage_class) {
            spec.storage_class_name = Some(class);
        }
        spec.access_modes = Some(vec!["ReadWriteOnce".into()]);
        spec.volume_mode = Some("Filesystem".into());
        spec.volume_name = None;
        spec.data_source = None;
        spec.data_source_ref = None;
        let scratch = PersistentVolumeClaim {
            metadata: ObjectMeta {
                name: Some(format!("{}-scratch", claim.name_any())),
                namespace: claim.namespace(),
                labels: Some([(names::APP.into(), names::APP_VALUE.into()), (names::COMPONENT.into(), "importer".into())].into()),
                owner_references: Some(vec![owner_reference(claim)]),
                ..ObjectMeta::default()
            },
            spec: Some(spec),
            status: None,
        };
        let scratch = self.api.ensure(&scratch).await.map_err(|error| text(&error))?;
        self.provision(&scratch, Content::Empty).await.map(drop).map_err(|error| format!("scratch PVC {}: {error}", scratch.name_any()))
    }

    /// Removes pod and scratch claim of an import that is done; a garbage collector would too, later.
    pub(super) async fn clean_importer(&self, run: &Run, claim: &PersistentVolumeClaim) -> Result<(), kube::Error> {
        if !self.opts.full() {
            return Ok(());
        }
        let namespace = run.key.namespace.clone();
        if let Some(pod) = self.api.caches.pods.get(&Key::new(namespace.clone(), format!("importer-{}", claim.name_any()))) {
            self.api.delete(&*pod).await?;
        }
        if let Some(scratch) = self.api.caches.pvcs.get(&Key::new(namespace, format!("{}-scratch", claim.name_any()))) {
            self.api.delete(&*scratch).await?;
        }
        Ok(())
    }
}
