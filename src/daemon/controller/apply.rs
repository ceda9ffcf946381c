//! A decision made real: actions in their order, the status between them, events and metrics.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::{api::core::v1::ObjectReference, jiff::Timestamp};
use kube::{Resource as _, ResourceExt as _};

use super::{
    super::act::{ActError, note_outcome},
    Term,
};
use crate::{
    api::{GoldenImage, GoldenImageStatus},
    golden::{self, Action, Decision, ImportOrder, Note, Observed, manifest::Owner},
    model::{GoldenName, Image, VirtualMachineDefaults},
    rules::Reason,
    run::events::{self, Severity},
};

/// How what comes before the status ended.
pub(super) enum Before {
    /// Everything was asked for; the first refusal, if there was one.
    Done(Option<ActError>),
    /// The object is gone with our finalizer, as it should be: nothing is left to write.
    Gone,
}

impl Term {
    /// Does what comes before the status. A refusal is remembered for the next decision and stops nothing else; where the API
    /// server did not do it for a reason that passes by itself, nothing may be put on record yet.
    pub(super) async fn before(
        &self,
        object: &GoldenImage,
        uid: &str,
        observed: &Observed,
        decision: &Decision,
    ) -> Result<Before, ActError> {
        let mut refused = None;
        for action in &decision.before {
            let outcome = match action {
                Action::Finalizer(wanted) => match self.hands.set_finalizer(object, *wanted).await {
                    Ok(Some(_)) => Ok(()),
                    Ok(None) => return Ok(Before::Gone),
                    Err(error) => Err(error),
                },
                _ => self.act(object, uid, observed, &decision.status, action).await,
            };
            note_outcome(&self.memory, uid, action, &outcome);
            match outcome {
                Ok(()) => {}
                Err(error) if error.refusal().is_some() => {
                    refused.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Before::Done(refused))
    }

    /// Brings what was refused up to date. Gives whether that is another answer than the decision was made with.
    pub(super) fn recall_refusals(&self, uid: &str, observed: &mut Observed) -> bool {
        self.memory.with(uid, |memory| {
            let mut changed = observed.refused != memory.refused;
            observed.refused.clone_from(&memory.refused);
            for target in observed.targets.iter_mut().chain(observed.leaving.iter_mut().map(|leaving| &mut leaving.target)) {
                let Some(name) = &target.name else { continue };
                let known = memory.golden(name);
                let view = &mut target.golden;
                changed |= (&view.refused, &view.undeleted) != (&known.refused, &known.undeleted);
                view.refused.clone_from(&known.refused);
                view.undeleted.clone_from(&known.undeleted);
            }
            changed
        })
    }

    /// Does what was decided, from the status on. Gives whether anything was done.
    pub(super) async fn apply(
        &self,
        object: &GoldenImage,
        uid: &str,
        observed: &Observed,
        decision: Decision,
    ) -> Result<Option<()>, ActError> {
        let name = &observed.metadata.name;
        let mut did = (!decision.before.is_empty()).then_some(());
        if decision.status.targets.iter().all(golden::needs_no_disk) {
            // The disk may be evicted when room is needed.
            self.memory.with(uid, |image| image.disk = None);
        }
        if decision.status != observed.status {
            match self.hands.write_status(object, &decision.status).await {
                Ok(written) => self.memory.with(uid, |image| image.wrote(written)),
                // Deleted meanwhile: the watch will tell, and there is nobody to tell anything of.
                Err(error) if error.is_gone() => return Ok(did),
                Err(error) => return Err(error),
            }
            did = Some(());
        }
        // One golden that storage or a policy refuses does not keep the image's others waiting.
        let (mut failed, mut behind) = (None, BTreeSet::new());
        for action in &decision.after {
            let golden = action.golden();
            if golden.is_some_and(|golden| behind.contains(golden)) {
                continue;
            }
            let outcome = self.act(object, uid, observed, &decision.status, action).await;
            note_outcome(&self.memory, uid, action, &outcome);
            match outcome {
                Ok(()) => did = Some(()),
                Err(error) if error.is_lost() => return Err(error),
                Err(error) => {
                    behind.extend(golden);
                    failed.get_or_insert(error);
                }
            }
        }
        for note in &decision.notes {
            self.tell(object, note);
        }
        for note in super::super::told::goldens(&self.shared.catalog, observed, &decision.status) {
            self.shared.recorder.tell(note);
        }
        super::super::numbers::record(&self.shared.metrics, name, &observed.status, &decision.status);
        if let Some(wake) = decision.wake {
            let wait = wake.duration_since(Timestamp::now()).unsigned_abs();
            let wait = if wake <= Timestamp::now() { Duration::from_secs(1) } else { wait };
            self.shared.queue.add_at(name.clone(), tokio::time::Instant::now() + wait);
        }
        failed.map_or(Ok(did), Err)
    }

    async fn act(
        &self,
        object: &GoldenImage,
        uid: &str,
        observed: &Observed,
        status: &GoldenImageStatus,
        action: &Action,
    ) -> Result<(), ActError> {
        match action {
            // What an image that cannot be parsed needs done too.
            Action::CancelFetch => {
                self.jobs.cancel(uid);
                return Ok(());
            }
            Action::Disarm => {
                self.hands.disarm(object).await?;
                tracing::info!(image = object.name_any(), "the annotation force-retire is taken off: its retirement is over");
                return Ok(());
            }
            _ => {}
        }
        let Ok(image) = &observed.image else { return Ok(()) };
        let (hands, memory) = (&self.hands, &self.memory);
        let owner = Owner { name: image.name.as_str(), uid };
        tracing::debug!(image = %image.name, ?action, "acting");
        match action {
            Action::ResolveSchematic => self.resolve_schematic(uid, image),
            Action::Fetch { largest_target } => self.fetch(uid, image, status, *largest_target),
            Action::Serve { golden, disk, ready } => hands.serve(memory, uid, golden, *disk, *ready),
            Action::Refuse { golden, disk } => hands.refuse(memory, uid, golden, *disk),
            Action::WriteHeaders { golden, disk, mark } => hands.write_headers(memory, owner, golden, *disk, *mark).await?,
            Action::DeleteHeaders { golden } => hands.delete_headers(memory, owner, golden).await?,
            Action::CreateVolume(order) => {
                hands.create_volume(memory, uid, image, order).await?;
                let copies = order.copies.as_ref().map(tracing::field::display);
                tracing::info!(image = %image.name, golden = %order.golden, class = %order.class, size = %order.size, copies, "import begun");
            }
            Action::DeleteVolume { golden, uid: volume } => {
                hands.delete_volume(memory, uid, golden, volume).await?;
                tracing::info!(image = %image.name, %golden, "unfinished import given up");
            }
            Action::Mark { golden, claim_uid, volume_uid, said } => {
                if let Some(order) = order_of(image, status, golden, &said.defaults) {
                    hands.mark(image, &order, claim_uid, volume_uid.as_deref(), &said.outdated).await?;
                }
            }
            Action::Adopt { golden, claim_uid, volume_uid, said } => {
                if let Some(target) = status.of_golden(golden.as_str()) {
                    let marks = golden::adopted_marks(image, status, target, &said.defaults);
                    hands.write_marks(golden, &marks, claim_uid, volume_uid.as_deref(), &said.outdated).await?;
                    tracing::info!(image = %image.name, %golden, "taken over as it is");
                }
            }
            Action::ForgetRequest { golden, claim_uid } => hands.forget_request(golden, claim_uid).await?,
            Action::Finalizer(_) | Action::CancelFetch | Action::Disarm => {}
            Action::CheckUpstream => self.check_upstream(object, uid, image, status),
        }
        Ok(())
    }

    /// Tells that an image cannot even be looked at while the spool's volume hangs.
    pub(super) fn tell_of_spool(&self, object: &GoldenImage, error: &ActError) {
        let reason = Reason::SpoolFailed;
        self.tell(object, &Note { warning: true, reason, message: format!("Nothing is done about it: {error}. {}", reason.remedy()) });
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

/// What a golden was ordered with, from what is on record; `defaults` is what virtual machines get by now.
fn order_of(image: &Image, status: &GoldenImageStatus, golden: &GoldenName, defaults: &VirtualMachineDefaults) -> Option<ImportOrder> {
    let target = status.of_golden(golden.as_str())?;
    let schematic_id = status.resolved_schematic();
    Some(ImportOrder {
        golden: golden.clone(),
        disk: status.disk.as_ref()?.digest.parse().ok()?,
        copies: None,
        class: target.storage_class_name.as_ref()?.parse().ok()?,
        size: target.size.as_ref()?.parse().ok()?,
        volume_mode: target.volume_mode.as_ref()?.parse().ok()?,
        access_modes: target.access_modes.clone(),
        identity: image.identity(schematic_id.as_ref())?,
        schematic_id,
        artifact: status.artifact.as_ref().and_then(|artifact| artifact.digest.parse().ok()),
        defaults: defaults.clone(),
    })
}
