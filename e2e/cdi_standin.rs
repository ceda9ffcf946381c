//! The stand-in for CDI against what real CDI v1.64 was seen to do: one test for each thing seen, on a real API server, with a real TLS upstream and `qemu-img`.

#[path = "cdi/mod.rs"]
mod cdi;
#[path = "harness/mod.rs"]
mod harness;

#[path = "cdi_standin_tests/admission.rs"]
mod admission;
#[path = "cdi_standin_tests/alone.rs"]
mod alone;
#[path = "cdi_standin_tests/clones.rs"]
mod clones;
#[path = "cdi_standin_tests/faults.rs"]
mod faults;
#[path = "cdi_standin_tests/imports.rs"]
mod imports;
#[path = "cdi_standin_tests/resilience.rs"]
mod resilience;
#[path = "cdi_standin_tests/room.rs"]
mod room;
#[path = "cdi_standin_tests/upstream.rs"]
mod upstream;

/// The cluster of these tests, with a real kube-controller-manager to bind claims and collect garbage.
static CLUSTER: harness::Shared =
    harness::Shared::new(|| harness::Options::default().foreign_crds(harness::Flavor::chosen()).controller_manager());
