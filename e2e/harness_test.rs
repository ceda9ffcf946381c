//! The harness itself, and the chart's rights, on a real control plane.

#[path = "harness/mod.rs"]
mod harness;

#[path = "harness_tests/chart.rs"]
mod chart;
#[path = "harness_tests/chart_pods.rs"]
mod chart_pods;
#[path = "harness_tests/cluster.rs"]
mod cluster;
#[path = "harness_tests/daemon.rs"]
mod daemon;
#[path = "harness_tests/generated.rs"]
mod generated;
#[path = "harness_tests/leaks.rs"]
mod leaks;
#[path = "harness_tests/leftovers.rs"]
mod leftovers;
#[path = "harness_tests/schemas.rs"]
mod schemas;

/// The cluster of these tests, with everything on.
static CLUSTER: harness::Shared =
    harness::Shared::new(|| harness::Options::default().foreign_crds(harness::Flavor::Trimmed).controller_manager());

/// While one catalog is led, the chart refuses another: whoever leads there has it alone, and others share it.
static LED: tokio::sync::RwLock<()> = tokio::sync::RwLock::const_new(());
