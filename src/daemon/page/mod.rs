//! The status page: the catalog, what failed and why, and who uses what, as plain HTML for a person with a browser.
//!
//! Read-only, made anew for each request from what the process's watches know, so any replica serves it. It names tenants' pools, so
//! it listens on loopback and is reached by `kubectl port-forward`: whoever may do that may read it.

mod html;
mod look;
mod serve;
#[cfg(test)]
mod tests;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;

use crate::{
    api::{ConditionType, GoldenImage, TargetStatus, find_condition},
    rules::clone::Known,
};

pub use look::{look, users};
pub use serve::router;

/// What the page shows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Page {
    /// When it was made.
    pub made: Option<Timestamp>,
    /// Whether this process leads.
    pub leads: bool,
    /// What is not all known yet, in words.
    pub unknown: Option<String>,
    /// Entries of the list that become nothing: the reason, and what is wrong.
    pub refused: Vec<(String, String)>,
    /// The images, by name.
    pub images: Vec<ImageView>,
}

/// One image.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageView {
    /// Its name.
    pub name: String,
    /// What the hoster wrote about it.
    pub description: String,
    /// Operating system and version.
    pub system: String,
    /// How it is.
    pub state: State,
    /// The reason of its condition `Ready`.
    pub reason: String,
    /// The message of that condition.
    pub message: String,
    /// Since when, as written in the condition.
    pub since: String,
    /// Percent of the download, while it runs.
    pub fetched: Option<i32>,
    /// Its goldens.
    pub goldens: Vec<GoldenView>,
    /// Remarks, such as that upstream serves other bytes: the type and the message.
    pub remarks: Vec<(String, String)>,
    /// Who uses its goldens, by pool, or why that is not known.
    pub users: Known<Vec<User>>,
}

/// How an image is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Every golden can be cloned.
    Ready,
    /// Work is under way or waits.
    Working,
    /// It will not come right by itself.
    Stalled,
    /// Somebody had it stop.
    Resting,
}

/// One golden.
#[derive(Debug, Clone, PartialEq)]
pub struct GoldenView {
    /// Its name, once it has one.
    pub name: String,
    /// Its StorageClass.
    pub class: String,
    /// Its size.
    pub size: String,
    /// Whether it can be cloned.
    pub ready: bool,
    /// Percent of the import, while it runs.
    pub imported: Option<i32>,
}

/// A pool that uses an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// The pool.
    pub pool: String,
    /// Its consumers.
    pub consumers: usize,
    /// How many of them keep the golden.
    pub blocking: usize,
}

impl ImageView {
    /// What there is to show of an image.
    pub fn new(image: &GoldenImage, users: Known<Vec<User>>) -> Self {
        let status = image.status.clone().unwrap_or_default();
        let ready = find_condition(&status.conditions, ConditionType::Ready);
        let is_true = |kind| crate::api::is_true(&status.conditions, kind);
        let state = match ready {
            Some(ready) if ready.status == "True" => State::Ready,
            Some(ready) if matches!(ready.reason.as_str(), "Suspended" | "Retired" | "Retiring") => State::Resting,
            _ if is_true(ConditionType::Stalled) => State::Stalled,
            _ => State::Working,
        };
        // What is always there says nothing by being there.
        let usual = ["Accepted", "Resolved", "Verified", "Ready", "Available", "Stalled", "Reconciling", "InUse"];
        // What Ready says already is not said twice.
        let told = ready.map(|ready| ready.message.as_str());
        let remarks = status.conditions.iter().filter(|condition| {
            condition.status == "True" && !usual.contains(&condition.type_.as_str()) && Some(condition.message.as_str()) != told
        });
        let system = status.operating_system.as_ref().map_or_else(String::new, |system| {
            let name = system.name.as_ref().or(system.family.as_ref());
            name.into_iter().chain(&system.version).cloned().collect::<Vec<_>>().join(" ")
        });
        Self {
            name: image.name_any(),
            description: image.spec.description.clone().unwrap_or_default(),
            system,
            state,
            reason: ready.map_or_else(String::new, |ready| ready.reason.clone()),
            message: ready.map_or_else(String::new, |ready| ready.message.clone()),
            since: ready.map_or_else(String::new, |ready| ready.last_transition_time.0.to_string()),
            fetched: status.fetch.as_ref().and_then(|fetch| fetch.progress_percent),
            goldens: status.targets.iter().map(GoldenView::new).collect(),
            remarks: remarks.map(|condition| (condition.type_.clone(), condition.message.clone())).collect(),
            users,
        }
    }
}

impl GoldenView {
    fn new(target: &TargetStatus) -> Self {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        Self {
            name: text(&target.golden),
            class: target.storage_class_name.clone().unwrap_or_else(|| target.requested_class.clone()),
            size: text(&target.size),
            ready: crate::api::is_true(&target.conditions, ConditionType::Ready),
            imported: target.progress_percent.filter(|_| target.started_time.is_some()),
        }
    }
}
