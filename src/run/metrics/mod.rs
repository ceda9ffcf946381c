//! What the daemon counts. The names, their labels and their help texts are all here; the rooms call typed methods.
//!
//! Cardinality is bounded by the catalog: labels are names of golden images and of StorageClasses they have targets for, and
//! words from closed lists. No URL, digest, tenant or free text is ever a label. Series of a deleted image, of a removed target and
//! of a former reason go away.

mod clones;
mod daemon;
mod format;
mod images;
mod page;
mod process;
mod register;
mod series;

pub use clones::MarkOutcome;
pub use daemon::{Outcome, SpoolSample, WatchSample};
pub use format::{Format, OPENMETRICS, TEXT};
pub use images::Status;
pub use page::page;
pub use register::Description;

use prometheus_client::registry::Registry;
use std::{
    fmt,
    sync::{Mutex, PoisonError},
};

/// The prefix of every metric but the process's own.
pub const PREFIX: &str = "golden_image";

type Hook = Box<dyn Fn(&Metrics) + Send + Sync>;

/// Declares label sets, with their names for the documentation.
macro_rules! labels {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* })*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, PartialEq, Eq, Hash, prometheus_client::encoding::EncodeLabelSet)]
            pub(super) struct $name { $(pub(super) $field: $type),* }
            impl super::register::Labels for $name {
                const NAMES: &'static [&'static str] = &[$(stringify!($field)),*];
            }
        )*
    };
}
use labels;

/// All metrics of the process.
pub struct Metrics {
    registry: Registry,
    descriptions: Vec<Description>,
    hooks: Mutex<Vec<Hook>>,
    images: images::Images,
    clones: clones::Clones,
    process: daemon::Process,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// All metrics at zero. The version of the build is told as `golden_image_build_info`.
    pub fn new() -> Self {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(process::Process::new()));
        let mut to = register::Registrar::new(registry.sub_registry_with_prefix(PREFIX));
        let (images, clones, process) = (images::Images::new(&mut to), clones::Clones::new(&mut to), daemon::Process::new(&mut to));
        let descriptions = to.descriptions();
        Self { registry, descriptions, hooks: Mutex::default(), images, clones, process }
    }

    /// Every metric under our prefix, in the order of the documentation.
    pub fn descriptions(&self) -> &[Description] {
        &self.descriptions
    }

    /// Called before each scrape, to set gauges that are reckoned rather than counted (ages, depths, remaining times).
    pub fn on_scrape(&self, hook: impl Fn(&Self) + Send + Sync + 'static) {
        self.hooks.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(hook));
    }

    /// The text of a scrape.
    ///
    /// # Errors
    /// When formatting fails, which writing to a string does not.
    pub fn scrape(&self, format: Format) -> Result<String, fmt::Error> {
        for hook in self.hooks.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            hook(self);
        }
        format.encode(&self.registry)
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
