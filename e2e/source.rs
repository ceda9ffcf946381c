//! The egress client against every lie of an upstream, against a real nginx, and through real and scripted proxies.
//!
//! `e2e/upstream` holds the stand-ins and says what they imitate. Runs anywhere: no cluster, loopback only.

#[path = "upstream/mod.rs"]
mod upstream;

#[path = "source/addresses.rs"]
mod addresses;
#[path = "source/answers.rs"]
mod answers;
#[path = "source/bodies.rs"]
mod bodies;
#[path = "source/factory.rs"]
mod factory;
#[path = "source/mirrors.rs"]
mod mirrors;
#[path = "source/probes.rs"]
mod probes;
#[path = "source/proxies.rs"]
mod proxies;
#[path = "source/real.rs"]
mod real;
#[path = "source/redirects.rs"]
mod redirects;
#[path = "source/resumes.rs"]
mod resumes;
#[path = "source/trust.rs"]
mod trust;

use std::time::Duration;

use golden_catalog::{
    model::{Architecture, Source},
    source::{Egress, EgressSettings, OpenRequest, Opened, SourceError},
};

/// Settings for tests: loopback allowed, and deadlines that bound a hang. Whoever waits for one sets it.
fn settings() -> EgressSettings {
    let mut settings = EgressSettings { allow_loopback: true, ..EgressSettings::default() };
    settings.deadlines.connect = Duration::from_secs(60);
    settings.deadlines.first_byte = Duration::from_secs(60);
    settings.deadlines.idle = Duration::from_secs(60);
    settings
}

fn egress(settings: EgressSettings) -> Egress {
    Egress::new(settings).expect("settings")
}

fn http(url: &str) -> Source {
    Source::Http { url: url.parse().expect(url), architecture: Architecture::Amd64 }
}

/// Opens `url` with nothing besides.
async fn open(egress: &Egress, url: &str) -> Result<Opened, SourceError> {
    egress.open(&OpenRequest::new(&http(url))).await
}

/// Opens `url` and reads it to its end.
async fn fetch(egress: &Egress, url: &str) -> Result<Vec<u8>, SourceError> {
    drain(open(egress, url).await?).await
}

async fn drain(mut opened: Opened) -> Result<Vec<u8>, SourceError> {
    let mut bytes = Vec::new();
    while let Some(chunk) = opened.body.chunk().await? {
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// Bytes that no offset mistake leaves equal.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| u8::try_from((at * 31 + at / 251) % 256).unwrap_or_default()).collect()
}
