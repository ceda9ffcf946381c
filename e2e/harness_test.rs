//! The harness itself.

#[path = "harness/mod.rs"]
mod harness;
