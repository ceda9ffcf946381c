//! Container disks and private sources: real registries with passwords and tokens, scripted ones for what real ones do not
//! do, and the whole daemon with credentials in Secrets.

#[path = "cdi/mod.rs"]
mod cdi;
#[path = "harness/mod.rs"]
mod harness;
#[path = "registry/hostile.rs"]
mod hostile;
#[path = "registry/mirrors.rs"]
mod mirrors;
#[path = "registry/private.rs"]
mod private;
#[path = "registry/real.rs"]
mod real;
#[path = "registry/scripted.rs"]
mod scripted;
#[path = "stage/mod.rs"]
mod stage;
#[path = "registry/support.rs"]
mod support;
#[path = "upstream/mod.rs"]
mod upstream;
