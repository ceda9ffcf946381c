//! Intake from scripted upstreams and a real nginx into a real spool: formats, refusals, going on, kills, full volumes.
//!
//! `e2e/upstream` holds the stand-ins. Runs anywhere: no cluster, loopback only.

#[path = "harness/told.rs"]
mod told;
#[path = "upstream/mod.rs"]
mod upstream;

#[path = "intake/answers.rs"]
mod answers;
#[path = "intake/faults.rs"]
mod faults;
#[path = "intake/formats.rs"]
mod formats;
#[path = "intake/goes_on.rs"]
mod goes_on;
#[path = "intake/refuses.rs"]
mod refuses;
#[path = "intake/support.rs"]
mod support;
