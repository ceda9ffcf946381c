//! The stand-in for CDI against what real CDI did: one test a row.

#[path = "cdi/mod.rs"]
mod cdi;
