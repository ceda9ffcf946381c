//! A decision made real: actions in their order, the status between them, events and metrics.

use std::time::Duration;

use k8s_openapi::{api::core::v1::ObjectReference, jiff::Timestamp};
use kube::{Resource as _, ResourceExt as _};

use super::{super::act::ActError, Term};
use crate::{
    api::{GoldenImage, GoldenImageStatus},
    golden::{Action, Decision, ImportOrder, Note, Observed},
    model::{GoldenName, Image},
    run::events::{self, Severity},
};

impl Term {
    /// Does what was decided. Gives whether anything was done.
    pub(super) async fn apply(
        &self,
        object: &GoldenImage,
        uid: &str,
        observed: &Observed,
        decision: Decision,
    ) -> Result<Option<()>, ActError> {
        let name = &observed.metadata.name;
        let mut did = None;
        for action in &decision.before {
            self.act(object, uid, observed, &decision.status, action).await?;
            did = Some(());
        }
        if decision.status.targets.iter().all(|target| target.claim_uid.is_some() && target.started_time.is_none()) {
            // Every golden is made: the disk may be evicted when room is needed.
            self.memory.with(uid, |image| image.disk = None);
        }
        if decision.status != observed.status {
            let written = self.hands.write_status(object, &decision.status).await?;
            self.memory.with(uid, |image| image.wrote(written));
            did = Some(());
        }
        for action in &decision.after {
            self.act(object, uid, observed, &decision.status, action).await?;
            did = Some(());
        }
        for note in &decision.notes {
            self.tell(object, note);
        }
        super::super::main::record_metrics(&self.shared.metrics, name, &observed.status, &decision.status);
        if let Some(wake) = decision.wake {
            let wait = wake.duration_since(Timestamp::now()).unsigned_abs();
            let wait = if wake <= Timestamp::now() { Duration::from_secs(1) } else { wait };
            self.shared.queue.add_at(name.clone(), tokio::time::Instant::now() + wait);
        }
        Ok(did)
    }

    async fn act(
        &self,
        object: &GoldenImage,
        uid: &str,
        observed: &Observed,
        status: &GoldenImageStatus,
        action: &Action,
    ) -> Result<(), ActError> {
        let Ok(image) = &observed.image else { return Ok(()) };
        let (hands, memory) = (&self.hands, &self.memory);
        tracing::debug!(image = %image.name, ?action, "acting");
        match action {
            Action::ResolveSchematic => self.resolve_schematic(uid, image),
            Action::Fetch { largest_target } => self.fetch(uid, image, status, *largest_target),
            Action::CancelFetch => self.jobs.cancel(uid),
            Action::Serve { golden, disk, ready } => hands.serve(memory, uid, golden, *disk, *ready),
            Action::Refuse { golden, disk } => hands.refuse(memory, uid, golden, *disk),
            Action::WriteHeaders { golden, disk, mark } => hands.write_headers(memory, uid, golden, *disk, *mark).await?,
            Action::DeleteHeaders { golden } => hands.delete_headers(golden).await?,
            Action::CreateVolume(order) => {
                hands.create_volume(memory, uid, image, order).await?;
                tracing::info!(image = %image.name, golden = %order.golden, class = %order.class, size = %order.size, "import begun");
            }
            Action::DeleteVolume { golden, uid: volume } => {
                hands.delete_volume(memory, uid, golden, volume).await?;
                tracing::info!(image = %image.name, %golden, "unfinished import given up");
            }
            Action::Mark { golden, claim_uid } => {
                if let Some(order) = order_of(image, status, golden) {
                    let has_volume = observed.targets.iter().any(|target| target.golden.volume.is_some());
                    hands.mark(image, &order, claim_uid, has_volume).await?;
                }
            }
            Action::CheckUpstream => self.check_upstream(object, uid, image, status),
        }
        Ok(())
    }

    fn tell(&self, object: &GoldenImage, note: &Note) {
        let mut regarding: ObjectReference = object.object_ref(&());
        regarding.resource_version = None;
        self.shared.recorder.tell(events::Note {
            regarding,
            severity: if note.warning { Severity::Warning } else { Severity::Normal },
            reason: note.reason.to_string(),
            action: "Reconcile",
            text: note.message.clone(),
        });
        tracing::info!(image = object.name_any(), reason = %note.reason, message = note.message, "state changed");
    }
}

/// What a golden was ordered with, from what is on record.
fn order_of(image: &Image, status: &GoldenImageStatus, golden: &GoldenName) -> Option<ImportOrder> {
    let target = status.targets.iter().find(|target| target.golden.as_deref() == Some(golden.as_str()))?;
    let schematic_id = status.schematic_id.as_ref().and_then(|id| id.parse().ok());
    Some(ImportOrder {
        golden: golden.clone(),
        disk: status.disk.as_ref()?.digest.parse().ok()?,
        class: target.storage_class_name.as_ref()?.parse().ok()?,
        size: target.size.as_ref()?.parse().ok()?,
        volume_mode: target.volume_mode.as_ref()?.parse().ok()?,
        access_modes: target.access_modes.clone(),
        identity: image.identity(schematic_id.as_ref())?,
        schematic_id,
        artifact: status.artifact.as_ref().and_then(|artifact| artifact.digest.parse().ok()),
        defaults: status.defaults.as_ref().map(crate::api::VirtualMachineDefaultsSpec::facts).unwrap_or_default(),
    })
}
