//! A DataVolume's phase, conditions and progress from its claim: `updateStatus` and `conditions.go` of CDI's datavolume controllers, as pure functions.

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::PersistentVolumeClaim, apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube::ResourceExt;

use super::{
    names,
    types::{Condition, DataVolume, DataVolumeStatus},
};

/// What a claim is filled from, as far as the status cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Population {
    Import,
    Clone,
}

/// An event that CDI sends when the phase changes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PhaseEvent {
    pub(super) warning: bool,
    pub(super) reason: String,
    pub(super) message: String,
}

/// Everything the status is made of.
pub(super) struct Observed<'a> {
    pub(super) dv: &'a DataVolume,
    pub(super) pvc: Option<&'a PersistentVolumeClaim>,
    /// The claim's annotations, with what a running import or clone has not written to them.
    pub(super) annotations: &'a BTreeMap<String, String>,
    pub(super) population: Population,
    pub(super) populator: bool,
    /// The claim waits for its first consumer.
    pub(super) waits_for_consumer: bool,
    /// What the sync said instead of a look at the claim: phase, reason, message.
    pub(super) said: Option<(String, String, String)>,
    /// `<source namespace>/<source name>` of a clone.
    pub(super) source: String,
}

/// The phase of a claim.
pub(super) fn claim_phase(pvc: &PersistentVolumeClaim) -> &str {
    pvc.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("")
}

/// The new status and the event of its phase.
pub(super) fn compute(seen: &Observed) -> (DataVolumeStatus, PhaseEvent) {
    let mut status = seen.dv.status.clone().unwrap_or_default();
    let mut event = PhaseEvent::default();
    if let Some((phase, reason, message)) = &seen.said {
        status.phase.clone_from(phase);
        event = PhaseEvent { warning: true, reason: reason.clone(), message: message.clone() };
        conditions(&mut status, seen.pvc, seen.annotations, reason, message);
        stamp(seen.dv, &mut status);
        return (status, event);
    }
    match seen.pvc {
        None => {
            if status.phase.is_empty() {
                status.phase = "Pending".into();
            }
        }
        Some(pvc) => {
            status.claim_name = Some(pvc.name_any());
            if seen.annotations.get(names::POD_PHASE).is_some_and(|phase| phase == "Succeeded") {
                population_phase(seen, pvc, &mut status, &mut event);
            } else {
                match claim_phase(pvc) {
                    "Pending" if seen.populator && seen.waits_for_consumer => status.phase = "PendingPopulation".into(),
                    "Pending" if seen.populator => population_phase(seen, pvc, &mut status, &mut event),
                    "Pending" => status.phase = if seen.waits_for_consumer { "WaitForFirstConsumer" } else { "Pending" }.into(),
                    "Bound" => {
                        if matches!(status.phase.as_str(), "Pending" | "WaitForFirstConsumer" | "Unknown") {
                            status.phase = "PVCBound".into();
                        }
                        if pvc.annotations().get(names::POPULATED_FOR).is_some_and(|name| *name == seen.dv.name_any()) {
                            status.phase = "Succeeded".into();
                        } else {
                            population_phase(seen, pvc, &mut status, &mut event);
                        }
                    }
                    "Lost" => {
                        status.phase = "Failed".into();
                        event =
                            PhaseEvent { warning: true, reason: "ErrClaimLost".into(), message: format!("PVC {} lost", pvc.name_any()) };
                    }
                    "" => {}
                    _ => status.phase = "Unknown".into(),
                }
            }
            if let Some(restarts) = seen.annotations.get(names::POD_RESTARTS).and_then(|count| count.parse().ok()) {
                status.restart_count = restarts;
            }
            if let Some(progress) = seen.annotations.get(names::PROGRESS) {
                status.progress.clone_from(progress);
            } else if seen.populator || status.progress.is_empty() {
                status.progress = "N/A".into();
            }
            if status.phase == "Succeeded" {
                status.progress = "100.0%".into();
            }
        }
    }
    conditions(&mut status, seen.pvc, seen.annotations, "", "");
    stamp(seen.dv, &mut status);
    (status, event)
}

fn population_phase(seen: &Observed, pvc: &PersistentVolumeClaim, status: &mut DataVolumeStatus, event: &mut PhaseEvent) {
    match seen.population {
        Population::Import => import_phase(seen, pvc, status, event),
        Population::Clone => clone_phase(seen, pvc, status, event),
    }
}

fn import_phase(seen: &Observed, pvc: &PersistentVolumeClaim, status: &mut DataVolumeStatus, event: &mut PhaseEvent) {
    let name = pvc.name_any();
    let succeeded = status.phase == "Succeeded";
    let pod = seen.annotations.get(names::POD_PHASE).map(String::as_str);
    let mut set = |phase: &str, warning: bool, reason: &str, message: String| {
        status.phase = phase.into();
        *event = PhaseEvent { warning, reason: reason.into(), message };
    };
    match pod {
        // A claim made again under a Succeeded DataVolume keeps the phase until its importer exists (seen: about 12 s).
        None if succeeded => {}
        // Legacy path: no importer yet.
        None if !seen.populator => {}
        None => set("ImportScheduled", false, "", String::new()),
        Some("Pending") => set("ImportScheduled", false, "ImportScheduled", format!("Import into {name} scheduled")),
        Some("Running") => set("ImportInProgress", false, "ImportInProgress", format!("Import into {name} in progress")),
        Some("Failed") if seen.annotations.get(names::FATAL_ERROR).is_some_and(|fatal| fatal == "true") => {
            set("Failed", true, "ImportFailed", format!("Failed to import into PVC {name}"));
        }
        Some("Failed") => set("ImportScheduled", true, "ImportFailed", format!("Failed to import into PVC {name}")),
        Some("Succeeded") => set("Succeeded", false, "ImportSucceeded", format!("Successfully imported into PVC {name}")),
        Some(_) => {}
    }
}

fn clone_phase(seen: &Observed, pvc: &PersistentVolumeClaim, status: &mut DataVolumeStatus, event: &mut PhaseEvent) {
    let target = format!("{}/{}", pvc.namespace().unwrap_or_default(), pvc.name_any());
    let phase = if seen.populator {
        match seen.annotations.get(names::CLONE_PHASE).map(String::as_str) {
            // `Error` is deliberately not mapped: the phase stays what it was.
            None | Some("Error") if !status.phase.is_empty() && status.phase != "Pending" => return,
            None | Some("Pending" | "Error") => "CloneScheduled",
            Some("CSIClone") => "CSICloneInProgress",
            Some("HostClone") => "CloneInProgress",
            Some("Snapshot") => "SnapshotForSmartCloneInProgress",
            Some("SnapshotClone") => "CloneFromSnapshotSourceInProgress",
            Some("PrepClaim") => "PrepClaimInProgress",
            Some("Rebind") => "RebindInProgress",
            Some("Succeeded") => "Succeeded",
            Some(_) => return,
        }
    } else {
        match seen.annotations.get(names::POD_PHASE).map(String::as_str) {
            None if status.phase == "Succeeded" => return,
            None | Some("Pending") => "CloneScheduled",
            Some("Running") => "CloneInProgress",
            Some("Succeeded") => "Succeeded",
            Some(_) => return,
        }
    };
    status.phase = phase.into();
    let (reason, message) = match phase {
        "Succeeded" => ("CloneSucceeded", format!("Successfully cloned from {} into {target}", seen.source)),
        "CSICloneInProgress" => (phase, format!("CSI Volume clone in progress (for pvc {target})")),
        "CloneScheduled" => (phase, format!("Cloning from {} into {target} scheduled", seen.source)),
        _ => (phase, format!("Cloning from {} into {target} in progress", seen.source)),
    };
    *event = PhaseEvent { warning: false, reason: reason.into(), message };
}

fn conditions(
    status: &mut DataVolumeStatus,
    pvc: Option<&PersistentVolumeClaim>,
    annotations: &BTreeMap<String, String>,
    reason: &str,
    message: &str,
) {
    bound_condition(status, pvc, annotations, reason, message);
    let ready = match status.phase.as_str() {
        "Succeeded" => "True",
        "Unknown" => "Unknown",
        _ => "False",
    };
    set(status, "Ready", ready, reason, message);
    running_condition(status, annotations);
}

fn bound_condition(
    status: &mut DataVolumeStatus,
    pvc: Option<&PersistentVolumeClaim>,
    annotations: &BTreeMap<String, String>,
    reason: &str,
    message: &str,
) {
    let Some(pvc) = pvc else {
        let reason = if reason.is_empty() { "NotFound" } else { reason };
        let message = if message.is_empty() { "No PVC found" } else { message };
        return set(status, "Bound", "False", reason, message);
    };
    let get = |name: &str| annotations.get(name).map_or("", String::as_str);
    let own = annotations.get(names::BOUND).filter(|value| !value.eq_ignore_ascii_case("true"));
    let name = pvc.name_any();
    match (claim_phase(pvc), own) {
        ("Bound", None) => set(status, "Bound", "True", "Bound", &format!("PVC {name} Bound")),
        ("Bound", Some(_)) => set(status, "Bound", "False", get(names::BOUND_REASON), get(names::BOUND_MESSAGE)),
        ("Pending", None) => {
            let prime = annotations.get(names::PVC_PRIME).map(|prime| format!(" [Prime PVC {prime}]")).unwrap_or_default();
            set(status, "Bound", "False", "Pending", &format!("PVC {name}{prime} Pending"));
        }
        ("Pending", Some(_)) => {
            let message = format!("target PVC {name} Pending and {}", get(names::BOUND_MESSAGE));
            set(status, "Bound", "False", get(names::BOUND_REASON), &message);
        }
        ("Lost", _) => set(status, "Bound", "False", "ClaimLost", "Claim Lost"),
        _ => set(status, "Bound", "False", "", ""),
    }
}

fn running_condition(status: &mut DataVolumeStatus, annotations: &BTreeMap<String, String>) {
    let get = |name: &str| annotations.get(name).map_or("", String::as_str);
    if get(names::POD_SCHEDULABLE) == "false" {
        return set(status, "Running", "False", "Unschedulable", "Importer pod cannot be scheduled");
    }
    let (reason, message) = (get(names::RUNNING_REASON).to_owned(), get(names::RUNNING_MESSAGE).to_owned());
    match get(names::RUNNING) {
        "true" => {
            set(status, "Running", "True", &reason, &message);
            set(status, "Ready", "False", "TransferRunning", "");
        }
        _ => set(status, "Running", "False", &reason, &message),
    }
}

fn set(status: &mut DataVolumeStatus, type_: &str, value: &str, reason: &str, message: &str) {
    let at = status.conditions.iter().position(|condition| condition.type_ == type_).unwrap_or_else(|| {
        status.conditions.push(Condition { type_: type_.into(), ..Condition::default() });
        status.conditions.len() - 1
    });
    let condition = &mut status.conditions[at];
    condition.status = value.into();
    condition.reason = reason.into();
    condition.message = message.into();
}

/// `updateCondition`: the transition time moves on a flip only, the heartbeat on any change. Done once at the end, since the steps above set some conditions twice.
fn stamp(dv: &DataVolume, status: &mut DataVolumeStatus) {
    let now = Time(Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default());
    let old = dv.status.clone().unwrap_or_default();
    for new in &mut status.conditions {
        match condition(&old, &new.type_) {
            Some(old) if old.status == new.status => {
                if old.reason != new.reason || old.message != new.message {
                    new.last_heartbeat_time = Some(now.clone());
                }
            }
            _ => {
                new.last_transition_time = Some(now.clone());
                new.last_heartbeat_time = Some(now.clone());
            }
        }
    }
}

/// The condition of a type.
pub(super) fn condition<'a>(status: &'a DataVolumeStatus, type_: &str) -> Option<&'a Condition> {
    status.conditions.iter().find(|condition| condition.type_ == type_)
}
