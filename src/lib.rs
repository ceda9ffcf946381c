//! golden-catalog: one catalog of golden images for the VMs and Kubernetes workers of a Cozystack management cluster.
//!
//! `docs/architecture.md` is the map of these rooms.
#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

pub mod admission;
pub mod api;
pub mod artifact;
pub mod catalog;
pub mod cli;
pub mod daemon;
pub mod fence;
pub mod foreign;
pub mod golden;
pub mod intake;
pub mod model;
pub mod rules;
pub mod run;
pub mod source;
pub mod spool;
pub mod world;
