//! The spool as a whole: its server over real TLS with real clients, its store killed at every step, and its volume full,
//! failing, read-only and gone.
//!
//! Runs anywhere; tests that need to mount or to trace are skipped, and say so, where that is not allowed.

#[path = "spool/faults.rs"]
mod faults;
#[path = "spool/server.rs"]
mod server;
#[path = "spool/support.rs"]
mod support;
#[path = "harness/told.rs"]
mod told;
#[path = "spool/volume.rs"]
mod volume;
