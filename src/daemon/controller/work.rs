//! What takes longer than one look: fetches, and questions to factory and upstream. Each ends by waking its image.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;

use super::{Term, secret::SecretOf};
use crate::{
    api::{GoldenImage, GoldenImageStatus},
    golden::{FetchView, UpstreamView},
    intake::{self, IntakeRequest},
    model::{DiskSize, Image, Schematic, Source},
    rules::{Reason, size::golden_size},
    source::{Comparison, OpenRequest, Recorded, SchematicRequest, SourceError},
};

impl Term {
    fn ca_bundle(&self, image: &Image) -> Option<Vec<u8>> {
        let (map, key) = image.ca_bundle.as_ref()?;
        let facts = self.shared.cluster.config_maps.get(&self.shared.namespace, map)?;
        facts.data.get(key).map(|pem| pem.clone().into_bytes())
    }

    /// The Secret that an image names, yet to be read.
    fn secret_of(&self, image: &Image) -> SecretOf {
        SecretOf {
            client: self.hands.client.clone(),
            namespace: self.shared.namespace.clone(),
            name: image.credentials.clone(),
            source: image.source.clone(),
        }
    }

    /// Asks the factory for the ID of a schematic document.
    pub(super) fn resolve_schematic(&self, uid: &str, image: &Image) {
        let Source::TalosFactory(talos) = image.source.clone() else { return };
        let (egress, ca, secret) = (self.shared.egress.clone(), self.ca_bundle(image), self.secret_of(image));
        self.jobs.start(uid, image.name.as_str(), |_, _| async move {
            let Schematic::Document(document) = &talos.schematic else { return FetchView::Idle };
            let credentials = match secret.read().await {
                Ok(credentials) => credentials,
                Err(error) => return error.view(),
            };
            let mut rest = credentials.as_slice();
            loop {
                let request =
                    SchematicRequest { factory_url: &talos.factory_url, document, ca_bundle: ca.as_deref(), credentials: rest.first() };
                let refused = |error: &SourceError| matches!(error.reason(), Reason::Unauthorized | Reason::Forbidden);
                match egress.resolve_schematic(&request).await {
                    Ok(id) => return FetchView::Schematic(id),
                    Err(error) if rest.len() > 1 && refused(&error) => rest = &rest[1..],
                    Err(error) => {
                        return FetchView::Failed { reason: error.reason(), message: error.to_string(), retry_after: error.retry_after() };
                    }
                }
            }
        });
    }

    /// Fetches and verifies the artifact into the spool.
    pub(super) fn fetch(&self, uid: &str, image: &Image, status: &GoldenImageStatus, largest_target: Option<DiskSize>) {
        let schematic_id = status.resolved_schematic();
        let Some(identity) = image.identity(schematic_id.as_ref()) else { return };
        let (intake, metrics) = (self.shared.intake.clone(), Arc::clone(&self.shared.metrics));
        let secret = self.secret_of(image);
        let (quiet, idle) = (self.shared.settings.import_quiet, self.shared.egress.settings().deadlines.idle);
        let mut request = IntakeRequest {
            identity,
            source: image.source.clone(),
            schematic_id,
            digest: image.digest,
            ca_bundle: self.ca_bundle(image),
            credentials: Vec::new(),
            disk: status.frozen_disk(),
            fits: Arc::new(|_| Ok(())),
        };
        let name = image.name.to_string();
        self.jobs.start(uid, image.name.as_str(), |told, cancel| async move {
            // A disk that no target can hold is not fetched; one that some cannot hold is told to the others' decision.
            let teller = told.clone();
            request.fits = Arc::new(move |disk| {
                teller.tell_size(disk);
                match largest_target {
                    Some(largest) => golden_size(disk, Some(largest), None).map(drop).map_err(|error| format!("The {error}.")),
                    None => Ok(()),
                }
            });
            request.credentials = match secret.read().await {
                Ok(credentials) => credentials,
                Err(error) => {
                    metrics.failed(&name, error.reason());
                    tracing::warn!(image = name, %error, "the credentials cannot be used");
                    return error.view();
                }
            };
            let began = Instant::now();
            let kind = source_kind(&request.source);
            let shown = super::super::numbers::Running::begin(&metrics, &name);
            let (progress, mut steps) = tokio::sync::watch::channel(intake::Progress::default());
            let work = intake.run(&request, &progress, &cancel);
            let telling = async {
                let (mut received, mut fetched) = (0, None);
                loop {
                    let patience = patience(steps.borrow().stage, quiet, idle);
                    let next = match tokio::time::timeout(patience, steps.changed()).await {
                        Ok(next) => next,
                        Err(_) => {
                            let why = format!("Nothing of the image has moved for {patience:?}: the spool's volume does not answer.");
                            tracing::warn!(image = name, "{why}");
                            told.tell_hung(Some(&why));
                            steps.changed().await
                        }
                    };
                    if next.is_err() {
                        break;
                    }
                    told.tell_hung(None);
                    let step = *steps.borrow_and_update();
                    if let Some(percent) = step.percent() {
                        told.tell(percent);
                        shown.at(percent);
                    }
                    metrics.fetched(&name, step.received.saturating_sub(received));
                    received = step.received.max(received);
                    if step.stage == intake::Stage::Verifying && fetched.is_none() {
                        fetched = Some(began.elapsed());
                        metrics.fetch_took(kind, began.elapsed());
                    }
                }
                std::future::pending::<()>().await;
            };
            let outcome = tokio::select! {
                outcome = work => outcome,
                () = telling => unreachable!("it never ends"),
            };
            match outcome {
                Ok(spooled) => {
                    metrics.intake_took(kind, began.elapsed());
                    let artifact = &spooled.record.artifact;
                    tracing::info!(image = name, bytes = artifact.size, format = artifact.format, took = ?began.elapsed(), "fetched and verified");
                    FetchView::Idle
                }
                Err(intake::IntakeError::Cancelled) => FetchView::Idle,
                Err(error) => {
                    let reason = error.reason();
                    metrics.failed(&name, reason);
                    tracing::warn!(image = name, %reason, %error, "fetch failed");
                    FetchView::Failed { reason, message: error.to_string(), retry_after: error.retry_after() }
                }
            }
        });
    }

    /// R6: a HEAD, at most one at a time per image; its answer wakes the image.
    pub(super) fn check_upstream(&self, object: &GoldenImage, uid: &str, image: &Image, status: &GoldenImageStatus) {
        let recorded = object.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        let asked = self
            .memory
            .with(uid, |memory| memory.upstream.insert(UpstreamView::asked(memory.upstream.as_ref(), recorded, Timestamp::now())).clone());
        let Some(artifact) = status.artifact.clone() else { return };
        let (egress, source, ca, queue) =
            (self.shared.egress.clone(), image.source.clone(), self.ca_bundle(image), Arc::clone(&self.shared.queue));
        let (name, uid) = (object.name_any(), uid.to_owned());
        let (this, secret) = (self.memory.clone(), self.secret_of(image));
        self.jobs.ask(async move {
            let credentials = match secret.read().await {
                Ok(credentials) => credentials,
                Err(error) => {
                    // Without them another page may be served, and that is no change of the image.
                    tracing::debug!(image = name, %error, "the credentials cannot be used: upstream is not asked for changes");
                    return;
                }
            };
            let request = OpenRequest { ca_bundle: ca.as_deref(), credentials: &credentials, ..OpenRequest::new(&source) };
            let difference = match egress.look(&request).await {
                Ok(facts) => {
                    let recorded = Recorded {
                        resolved_url: artifact.resolved_url.as_deref(),
                        length: u64::try_from(artifact.size_bytes).ok(),
                        etag: artifact.etag.as_deref(),
                        last_modified: None,
                    };
                    match facts.compared_with(&recorded) {
                        Comparison::Differs(how) => Some(how),
                        Comparison::Same => None,
                        Comparison::Unknown => asked.difference.clone(),
                    }
                }
                Err(error) => {
                    tracing::debug!(image = name, %error, "upstream could not be asked for changes");
                    asked.difference.clone()
                }
            };
            if difference.is_some() {
                tracing::info!(image = name, difference, "upstream serves other bytes now");
            }
            this.with(&uid, |memory| memory.upstream = Some(UpstreamView { difference, ..asked }));
            queue.add(name);
        });
    }
}

/// How long what was written may take to become durable.
const DURABLE: Duration = Duration::from_secs(5 * 60);

/// How long an intake may not move at this stage before it is the spool's volume that keeps it; upstream has deadlines of its own, and a
/// factory takes long to build. Of what becomes durable at the end of verifying no step is told, however much it is: a volume that is only
/// slow is given time for it.
fn patience(stage: intake::Stage, quiet: Duration, idle: Duration) -> Duration {
    match stage {
        intake::Stage::Waiting | intake::Stage::Rehashing => quiet,
        intake::Stage::Verifying => quiet.max(DURABLE),
        intake::Stage::Fetching => quiet.saturating_add(idle),
        intake::Stage::Opening | intake::Stage::Done => Duration::MAX,
    }
}

/// The kind of a source, as a metric's label.
const fn source_kind(source: &Source) -> &'static str {
    match source {
        Source::TalosFactory(_) => "talosFactory",
        Source::ContainerDisk { .. } => "containerDisk",
        Source::Http { .. } => "http",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rstest::rstest;

    use super::patience;
    use crate::intake::Stage;

    #[rstest]
    #[case(Stage::Waiting, 60, Some(60))]
    #[case(Stage::Rehashing, 60, Some(60))]
    #[case::upstream_has_a_deadline_of_its_own(Stage::Fetching, 60, Some(90))]
    #[case::becomes_durable(Stage::Verifying, 60, Some(300))]
    #[case(Stage::Verifying, 600, Some(600))]
    #[case::a_factory_builds(Stage::Opening, 60, None)]
    #[case(Stage::Done, 60, None)]
    fn how_long_nothing_may_move_before_the_volume_is_blamed(#[case] stage: Stage, #[case] quiet: u64, #[case] seconds: Option<u64>) {
        let expected = seconds.map_or(Duration::MAX, Duration::from_secs);
        assert_eq!(patience(stage, Duration::from_secs(quiet), Duration::from_secs(30)), expected);
    }
}
