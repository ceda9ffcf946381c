//! The daemon put together: settings, roles, and what each role does.

mod act;
mod admit;
mod controller;
mod endpoints;
mod index;
mod jobs;
mod list;
mod main;
mod memory;
mod settings;
mod webhooks;

pub use main::main;
pub use settings::{LeaseSettings, LogFormat, Role, RunArguments, Settings, SettingsError};
