//! The class of a machine template that states none, recorded on it (R15): a pool scaled to zero has no disk to tell its class by, and must not fail when the cluster's default moves.
//!
//! A machine template's spec cannot be changed, its annotations can; Cluster API makes no new machines for those.

use std::time::Instant;

use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::marks::{Key, SETTLE, Tried, Writer};
use crate::{
    foreign::KubevirtMachineTemplate,
    golden::{manifest::managers, observe},
    rules::{
        class::{StatedClass, default_class},
        marks,
        repair::Repair,
    },
    run::{api_error, client, metrics::MarkOutcome},
    world::{
        ledger::{Kind, MarkRepair, UnrecordedTemplate},
        requests::Clones as _,
    },
};

impl Writer {
    /// Records the class of every machine template that states none; `met` grows by those that are left.
    pub(super) async fn record_classes(&mut self, met: &mut Vec<Key>) {
        let found = self.shared.consumers.read().templates_without_class();
        // Whose template it is decides; the next change of the ledger begins anew.
        let Ok(templates) = found else { return };
        for template in templates {
            let todo = MarkRepair {
                kind: Kind::MachineTemplate,
                namespace: template.namespace.clone(),
                name: template.name.clone(),
                uid: template.uid.clone(),
                repair: Repair::default(),
            };
            met.push((todo.kind, todo.namespace.clone(), todo.name.clone()));
            if self.is_due(&todo) {
                self.pace.tick().await;
                self.record_class(&template, todo).await;
            }
        }
    }

    async fn record_class(&mut self, template: &UnrecordedTemplate, todo: MarkRepair) {
        let api: Api<KubevirtMachineTemplate> = Api::namespaced(self.client.clone(), &template.namespace);
        let outcome = match api.get_opt(&template.name).await {
            Ok(Some(live)) if live.metadata.uid == template.uid => match self.class_of(&live) {
                Some(class) => self.write_class(&api, template, &class).await,
                None => {
                    // There is no default class either: soon asked again, because one may come.
                    let key = (todo.kind, todo.namespace, todo.name);
                    self.tried.insert(key, Tried { repair: todo.repair, times: 0, next: Instant::now() + SETTLE });
                    return;
                }
            },
            // It is gone, or another took its name: the ledger will tell.
            Ok(_) => return,
            Err(error) => Err(error),
        };
        match outcome {
            Ok(()) => {
                self.shared.metrics.marked(MarkOutcome::Added);
                self.remember(todo, SETTLE);
            }
            Err(error) if client::is_lost(&error) => {}
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            Err(error) => {
                self.shared.metrics.marked(MarkOutcome::Failed);
                let UnrecordedTemplate { namespace, name, .. } = template;
                tracing::warn!(
                    namespace,
                    name,
                    error = api_error(&error),
                    "a machine template's class cannot be recorded; tried again later"
                );
                self.remember(todo, SETTLE * 3);
            }
        }
    }

    /// The class that a disk of this template gets today: its pool's, else the default.
    fn class_of(&self, template: &KubevirtMachineTemplate) -> Option<String> {
        let ledger = self.shared.consumers.read();
        let requests = template.clone_requests(&*ledger).ok()?;
        let request = requests.iter().find(|request| request.class == StatedClass::Absent)?;
        let frozen = ledger.pool_facts(&request.pool, request.source.name()).ok()?.class;
        frozen.map(|frozen| frozen.class).or_else(|| {
            let classes = observe::classes(&self.shared.cluster);
            default_class(&classes, request.shape).map(|class| class.name.clone())
        })
    }

    async fn write_class(&self, api: &Api<KubevirtMachineTemplate>, template: &UnrecordedTemplate, class: &str) -> Result<(), kube::Error> {
        let patch = json!({ "metadata": { "uid": template.uid, "annotations": { marks::STORAGE_CLASS: class } } });
        let params = PatchParams { field_manager: Some(managers::MARKS.to_owned()), ..PatchParams::default() };
        api.patch_metadata(&template.name, &params, &Patch::Merge(&patch)).await?;
        tracing::info!(namespace = template.namespace, name = template.name, class, "a machine template's class is on record");
        Ok(())
    }
}
