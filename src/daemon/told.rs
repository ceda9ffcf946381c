//! What is told about a golden itself, on its DataVolume, besides what is told about its image.

use k8s_openapi::api::core::v1::ObjectReference;

use crate::{
    api::{ConditionType, GoldenImageStatus, find_condition},
    golden::Observed,
    rules::Reason,
    run::events::{Note, Severity},
};

/// One note for each golden whose state is another one than before and whose DataVolume is there to be described.
pub(super) fn goldens(catalog: &str, observed: &Observed, new: &GoldenImageStatus) -> Vec<Note> {
    let ready = |status: &GoldenImageStatus, golden: &str| {
        let target = status.of_golden(golden)?;
        find_condition(&target.conditions, ConditionType::Ready).cloned()
    };
    let mut notes = Vec::new();
    for target in &observed.targets {
        let (Some(golden), Some(volume)) = (&target.name, &target.golden.volume) else { continue };
        if !volume.ours || volume.terminating {
            continue;
        }
        let (Some(now), before) = (ready(new, golden.as_str()), ready(&observed.status, golden.as_str())) else { continue };
        if before.is_some_and(|before| (before.status, before.reason) == (now.status.clone(), now.reason.clone())) {
            continue;
        }
        let Ok(reason) = now.reason.parse::<Reason>() else { continue };
        let is_ready = now.status == "True";
        notes.push(Note {
            regarding: ObjectReference {
                api_version: Some("cdi.kubevirt.io/v1beta1".to_owned()),
                kind: Some("DataVolume".to_owned()),
                namespace: Some(catalog.to_owned()),
                name: Some(golden.to_string()),
                uid: Some(volume.uid.clone()),
                ..ObjectReference::default()
            },
            severity: if is_ready || reason.remedy().is_empty() { Severity::Normal } else { Severity::Warning },
            reason: now.reason,
            action: "Reconcile",
            text: match is_ready {
                true => format!("The golden of image {} can be cloned.", observed.metadata.name),
                false => format!("Golden of image {}: {}", observed.metadata.name, now.message),
            },
        });
    }
    notes
}
