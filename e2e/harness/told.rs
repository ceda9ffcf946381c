//! What is told past libtest's capture: rounds and seeds, and tests that cannot run, which `make test` counts.
#![allow(dead_code, reason = "not every test binary tells all of it")]

use std::{fs::File, io::Write, panic::Location};

/// Says what a person who reads the whole run wants to know: how many rounds, which seed.
pub fn tell(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Says that a test is skipped, and adds it to the file that `make test` counts.
pub fn record_skip(reason: &str, at: &Location<'_>) {
    let thread = std::thread::current();
    let test = thread.name().filter(|name| *name != "main").map_or_else(|| at.to_string(), str::to_owned);
    tell(&format!("skipped: {test}: {reason}"));
    if let Some(path) = std::env::var_os("E2E_SKIPS") {
        let mut file = File::options().create(true).append(true).open(path).expect("open the file E2E_SKIPS names");
        // One write: other test binaries may add to the file at the same time.
        file.write_all(format!("{test}: {reason}\n").as_bytes()).expect("write to the file E2E_SKIPS names");
    }
}

/// Skips a test that cannot run for another reason than its cluster (a program that is not installed, for example).
#[track_caller]
pub fn skip(reason: &str) {
    record_skip(reason, Location::caller());
}
