//! The edge: asks upstream for the first mebibyte of each image.

use std::io::IsTerminal as _;

use futures::{StreamExt as _, stream};
use indicatif::{ProgressBar, ProgressStyle};

use super::{
    input::Candidate,
    judge::{Peek, Served},
    secrets::Secrets,
};
use crate::{
    artifact::Limits,
    intake,
    model::Image,
    source::{Egress, OpenRequest},
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
            None => return Peek::Private { secret: name.to_string(), others: !secrets.is_empty() },
            Some(Ok(found)) => found,
            Some(Err(error)) => {
                return Peek::Failed { reason: error.reason(), message: sentence(&error.to_string()), passed_over: Vec::new() };
            }
        },
    };
    let request = OpenRequest { credentials: &credentials, ..OpenRequest::new(&image.source) };
    let intake::Peek { passed_over, answer } = intake::peek(egress, limits, &request, image.digest).await;
    let passed_over: Vec<_> = passed_over.iter().map(|place| format!("{}: {}", place.reason, sentence(&place.message))).collect();
    match answer {
        Ok(served) => Peek::Served(Served {
            length: served.download,
            resolved_url: served.resolved_url,
            schematic_id: served.schematic_id,
            passed_over,
            judged: served.judged.map_err(|error| (error.reason(), sentence(&error.to_string()))),
        }),
        Err(error) => Peek::Failed { reason: error.reason(), message: sentence(&error.to_string()), passed_over },
    }
}

/// An error's text as a sentence, since a remedy follows it. An address at its start stays as it is.
fn sentence(text: &str) -> String {
    let end = if text.ends_with(['.', '!', '?']) { "" } else { "." };
    if text.split(' ').next().is_some_and(|word| word.contains("://")) {
        return format!("{text}{end}");
    }
    let mut chars = text.chars();
    let first = chars.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}{end}", chars.as_str())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::sentence;

    #[rstest]
    #[case("no such name", "No such name.")]
    #[case("Done!", "Done!")]
    #[case("https://up.example/a served 1 byte", "https://up.example/a served 1 byte.")]
    #[case("", ".")]
    fn sentences(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(sentence(text), expected);
    }
}
