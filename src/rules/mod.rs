//! The rules of the catalog (R1–R26): pure functions over plain data, without client, clock or I/O.
//!
//! Controller, admission and command line all call these; the chart is held to them by shared test vectors. Each rule has
//! one function, one message and one test table.

pub mod access;
pub mod adopt;
pub mod capability;
pub mod class;
pub mod clone;
pub mod consumers;
pub mod container;
pub mod copied;
pub mod dependence;
mod edit;
pub mod fence;
pub mod freeze;
pub mod golden;
mod import;
pub mod leaving;
pub mod marks;
pub mod modes;
pub mod pods;
pub mod pool;
mod precedence;
pub mod provenance;
pub mod quota;
mod reason;
mod refusal;
pub mod repair;
mod rolling;
pub mod secret_review;
pub mod size;
pub mod stuck;
pub mod whose;

pub use edit::{Freeze, FrozenChange, duplicate_message, frozen_changes, frozen_message, taken_name_message};
pub use import::{CdiCondition, ImportFacts, ImporterFacts, Told, import_trouble};
pub use precedence::Precedence;
pub use reason::Reason;
pub use refusal::{Answer, refusal};
pub use rolling::moving_source_warnings;
