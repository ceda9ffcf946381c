//! golden-catalog: one catalog of golden images for the VMs and Kubernetes workers of a Cozystack management cluster.
//!
//! `docs/architecture.md` is the map of these rooms.

pub mod artifact;
pub mod model;
pub mod rules;
