//! The rules of the catalog (R1–R26): pure functions over plain data, without client, clock or I/O.
//!
//! Controller, admission and command line all call these; the chart is held to them by shared test vectors. Each rule has
//! one function, one message and one test table.

mod edit;
mod reason;

pub use edit::{FrozenChange, duplicate_message, frozen_changes, frozen_message};
pub use reason::Reason;
