//! Continuity: the whole daemon killed anywhere, led by one, never two writers, nothing twice, nothing lost.
//!
//! All tests share one cluster, one stage and one turn: the names of namespaces and of the Lease are fixed. Each
//! starts daemons and makes images of its own, and leaves only images that are Ready. Rounds that are drawn print how many
//! they were and their seed (`E2E_SEED` sets it); `make soak` runs all of them.

#[path = "cdi/mod.rs"]
mod cdi;
#[path = "harness/mod.rs"]
mod harness;
#[path = "stage/mod.rs"]
mod stage;
#[path = "upstream/mod.rs"]
mod upstream;

#[path = "continuity/faults.rs"]
mod faults;
#[path = "continuity/handover.rs"]
mod handover;
#[path = "continuity/hands.rs"]
mod hands;
#[path = "continuity/held.rs"]
mod held;
#[path = "continuity/kill.rs"]
mod kill;
#[path = "continuity/proxy.rs"]
mod proxy;
#[path = "continuity/quiet.rs"]
mod quiet;
#[path = "continuity/service.rs"]
mod service;
#[path = "continuity/stories.rs"]
mod stories;
#[path = "continuity/versions.rs"]
mod versions;
#[path = "continuity/volume.rs"]
mod volume;
#[path = "continuity/world.rs"]
mod world;
