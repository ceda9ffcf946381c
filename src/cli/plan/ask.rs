//! The edge: asks upstream for the first mebibyte of each image.

use std::io::IsTerminal as _;

use futures::{StreamExt as _, stream};
use indicatif::{ProgressBar, ProgressStyle};

use super::{
    input::Candidate,
    judge::{Peek, Seen, Served},
    secrets::Secrets,
};
use crate::{
    artifact::{ArtifactError, Limits, Prober},
    intake::peek_container,
    model::{Image, Source},
    source::{Egress, OpenRequest, Peeked},
};

/// Upstreams asked at once: a factory may take minutes to answer, and nobody is served by a flood.
const AT_ONCE: usize = 4;

/// Asks about each candidate that is `worth` it; one answer a candidate, in their order.
pub(super) async fn ask(egress: &Egress, limits: &Limits, secrets: &Secrets, candidates: &[Candidate], worth: &[bool]) -> Vec<Peek> {
    let asked: Vec<_> = candidates
        .iter()
        .zip(worth)
        .enumerate()
        .filter(|(_, (_, worth))| **worth)
        .filter_map(|(index, (candidate, _))| Some((index, candidate.name.as_str(), candidate.image.as_ref().ok()?)))
        .collect();
    let bar = bar(asked.len());
    let mut peeks = vec![Peek::NotAsked; candidates.len()];
    let one = |(index, name, image)| {
        let bar = bar.clone();
        async move {
            bar.set_message(format!("asking about {name}"));
            let peek = ask_one(egress, limits, secrets, image).await;
            bar.inc(1);
            (index, peek)
        }
    };
    let mut answers = stream::iter(asked).map(one).buffer_unordered(AT_ONCE);
    while let Some((index, peek)) = answers.next().await {
        if let Some(slot) = peeks.get_mut(index) {
            *slot = peek;
        }
    }
    bar.finish_and_clear();
    peeks
}

/// A bar where a person watches, nothing elsewhere: standard error may be a log.
fn bar(count: usize) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{spinner} {pos}/{len} {wide_msg} {elapsed}").unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(u64::try_from(count).unwrap_or(u64::MAX)).with_style(style);
    bar.enable_steady_tick(std::time::Duration::from_millis(120));
    bar
}

async fn ask_one(egress: &Egress, limits: &Limits, secrets: &Secrets, image: &Image) -> Peek {
    let credentials = match &image.credentials {
        None => Vec::new(),
        Some(name) => match secrets.credentials(name, &image.source) {
            None => return Peek::Private { secret: name.to_string() },
            Some(Ok(found)) => found,
            Some(Err(error)) => return Peek::Failed { reason: error.reason(), message: sentence(&error.to_string()) },
        },
    };
    let request = OpenRequest { credentials: &credentials, ..OpenRequest::new(&image.source) };
    if let Source::ContainerDisk { reference, architecture } = &image.source {
        return match peek_container(egress, limits, &request, reference, *architecture).await {
            Ok(peek) => Peek::Served(Served {
                length: Some(peek.download),
                resolved_url: peek.resolved_url,
                schematic_id: None,
                probe: Ok(Seen { format: peek.format.map(|format| format.to_string()), virtual_size: peek.virtual_size }),
            }),
            Err(error) => Peek::Failed { reason: error.reason(), message: sentence(&error.to_string()) },
        };
    }
    let peeked = match egress.peek(&request, Prober::MAX).await {
        Ok(peeked) => peeked,
        Err(error) => return Peek::Failed { reason: error.reason(), message: sentence(&error.to_string()) },
    };
    let served = Served {
        length: peeked.facts.length,
        resolved_url: peeked.facts.resolved_url.clone(),
        schematic_id: peeked.schematic_id.clone(),
        probe: Err((crate::rules::Reason::Unavailable, "The bytes could not be looked at.".to_owned())),
    };
    let limits = limits.clone();
    match tokio::task::spawn_blocking(move || probe(&peeked, &limits)).await {
        Ok(probe) => Peek::Served(Served { probe: probe.map_err(|error| (error.reason(), sentence(&error.to_string()))), ..served }),
        Err(_) => Peek::Served(served),
    }
}

fn probe(peeked: &Peeked, limits: &Limits) -> Result<Seen, ArtifactError> {
    let mut prober = Prober::new(peeked.facts.length, limits);
    let probe = match prober.feed(&peeked.head)? {
        Some(probe) => probe,
        None => prober.finish()?,
    };
    Ok(Seen { format: Some(probe.format.to_string()), virtual_size: probe.virtual_size })
}

/// An error's text as a sentence, since a remedy follows it.
fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    let end = if text.ends_with(['.', '!', '?']) { "" } else { "." };
    format!("{first}{}{end}", chars.as_str())
}
