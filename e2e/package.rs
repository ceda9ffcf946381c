//! The package in a hoster's hands, by real helm on a real API server with the daemon running: the first install, upgrades, an
//! uninstall, a release under another name elsewhere, a namespace deleted, and the way from the former charts and back.

#[path = "cdi/mod.rs"]
mod cdi;
#[path = "harness/mod.rs"]
mod harness;
#[path = "package/life.rs"]
mod life;
#[path = "package/site.rs"]
mod site;
#[path = "stage/mod.rs"]
mod stage;
#[path = "upstream/mod.rs"]
mod upstream;
