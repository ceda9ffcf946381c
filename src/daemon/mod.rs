//! The daemon put together: settings, roles, and what each role does.

mod act;
mod admit;
mod cluster;
mod consumers;
mod controller;
mod crd;
mod endpoints;
mod fence;
mod index;
mod jobs;
mod lead;
mod left;
mod list;
mod main;
mod memory;
mod numbers;
mod page;
mod settings;
mod told;
mod tried;
mod wake;
mod webhooks;

pub use cluster::cluster;
pub use consumers::ConsumerSettings;
pub use index::Index;
pub use main::main;
pub use settings::{LeaseSettings, LogFormat, Role, RunArguments, Settings, SettingsError};
