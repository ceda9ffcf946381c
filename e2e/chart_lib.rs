//! The charts of the catalog's consumers: `helm/golden-image-lib` through real helm, the shared vectors through both helm and
//! the Rust types, the same for the entries of `helm/kubernetes-worker-image`, and the platform's packaging in `helm/cozystack`.
//!
//! The vectors are `e2e/charts/vectors.yaml`. What the library can do without a cluster is tested with `helm template`; what it
//! asks a cluster for, on a real API server.

#[path = "harness/mod.rs"]
mod harness;

#[path = "chart_lib/byte_identity.rs"]
mod byte_identity;
#[path = "chart_lib/cluster.rs"]
mod cluster;
#[path = "chart_lib/entries.rs"]
mod entries;
#[path = "chart_lib/former.rs"]
mod former;
#[path = "chart_lib/helm.rs"]
mod helm;
#[path = "chart_lib/packaging.rs"]
mod packaging;
#[path = "chart_lib/rules.rs"]
mod rules;
#[path = "chart_lib/vectors.rs"]
mod vectors;
