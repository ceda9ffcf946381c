//! The artifact of an image: whether the spool must have it, and how getting it goes.

use std::time::Duration;

use super::{
    Action, FetchView, HeldBack, SpooledView,
    decide::{Draft, after, whole_seconds},
    import::{backoff, stands_for_another},
    target::TargetState,
};
use crate::{
    api::{ArtifactStatus, DiskStatus, FetchStatus, LastFailure},
    model::{Schematic, Source},
    rules::{Reason, marks},
    run::backoff::Backoff,
};

/// How the artifact stands.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum FetchState {
    /// Nothing needs it now.
    NotNeeded,
    /// The spool has it.
    Done,
    /// Under way, or waiting for its turn.
    Working(Reason, String),
    /// Failed; tried again later.
    Failed {
        /// Why.
        reason: Reason,
        /// What happened, without the remedy.
        message: String,
        /// Whether it will not come right without a change.
        terminal: bool,
    },
}

/// Moves fetching on by one step.
pub(super) fn progress(draft: &mut Draft<'_>, states: &[TargetState]) -> FetchState {
    let needed = states.iter().any(|state| state.needs_disk) && !draft.image.suspend;
    match &draft.observed.spooled {
        Some(spooled) if draft.frozen_disk().is_none_or(|frozen| frozen == spooled.disk_digest) => {
            // An import for the former disk may have ended by now, unseen: the record moves on when that is gone.
            if !stands_for_another(draft, spooled.disk_digest) {
                record_spooled(draft, spooled);
            }
            return FetchState::Done;
        }
        Some(other) if !(needed && is_asked_again(draft, other)) => return upstream_changed(draft, needed),
        Some(_) | None => {}
    }
    let running = matches!(draft.observed.fetch, FetchView::Running { .. });
    if !needed {
        if running {
            draft.after.push(Action::CancelFetch);
        }
        if let Some(fetch) = &mut draft.status.fetch {
            fetch.started_time = None;
            fetch.progress_percent = None;
            fetch.failing_since = None;
        }
        return FetchState::NotNeeded;
    }
    if let Some(HeldBack::Missing(what)) = draft.held_back() {
        return FetchState::Failed { reason: Reason::ReferenceNotFound, message: format!("{what} does not exist."), terminal: false };
    }
    let mut fetch = draft.status.fetch.clone().unwrap_or_default();
    other_credentials(draft, &mut fetch);
    let state = match &draft.observed.fetch {
        FetchView::Running { percent } => {
            fetch.started_time.get_or_insert_with(|| whole_seconds(draft.now));
            fetch.progress_percent = percent.map(|percent| i32::from(percent.min(100)) / 10 * 10);
            draft.wants.fetch = true;
            if let Some(hung) = draft.observed.hung.clone() {
                draft.status.fetch = Some(fetch);
                return FetchState::Failed { reason: Reason::SpoolFailed, message: hung, terminal: false };
            }
            // A retry that has not got further than the last attempt is no news: the reason stays until bytes flow.
            if fetch.last_failure.is_some() && fetch.progress_percent.unwrap_or(0) == 0 {
                let state = failed(draft, &fetch);
                draft.status.fetch = Some(fetch);
                return state;
            }
            let shown = fetch.progress_percent.filter(|percent| *percent > 0).map(|percent| format!(" ({percent} %)")).unwrap_or_default();
            FetchState::Working(Reason::Fetching, format!("The image is being downloaded and verified{shown}."))
        }
        FetchView::Failed { reason, message, retry_after } if fetch.started_time.is_some() => {
            record_failure(draft, &mut fetch, *reason, message, *retry_after);
            failed(draft, &fetch)
        }
        FetchView::Schematic(_) => {
            fetch.started_time = None;
            begin(draft, &mut fetch, false)
        }
        FetchView::Idle | FetchView::Failed { .. } => begin(draft, &mut fetch, true),
    };
    draft.status.fetch = Some(fetch);
    state
}

/// Whether upstream is to be asked once more although the spool holds another disk than the goldens were made from: a person asked
/// (`…/retry`, or a changed spec), and that has not been answered yet.
fn is_asked_again(draft: &Draft<'_>, other: &SpooledView) -> bool {
    let asked_now = draft.observed.status.observed_retry != draft.status.observed_retry;
    let Some(fetch) = &draft.status.fetch else { return asked_now };
    let Some(started) = &fetch.started_time else {
        // What failed otherwise since then is tried again as every fetch is.
        let answered = fetch.last_failure.as_ref().is_some_and(|failure| failure.reason == Reason::UpstreamChanged.as_str());
        return asked_now || fetch.attempts == 0 || !answered;
    };
    let is_under_way = matches!(draft.observed.fetch, FetchView::Running { .. } | FetchView::Failed { .. });
    // The job is over, or was lost with its process: what upstream said before it began is no answer to it.
    is_under_way || other.resolved_time.is_none_or(|answered| answered < started.0)
}

/// Upstream has another disk than the goldens were made from: nothing is tried again before a person asks.
fn upstream_changed(draft: &mut Draft<'_>, needed: bool) -> FetchState {
    let message = "The image was imported once and had to be fetched again, and upstream now serves another disk: a golden is never made from other bytes under the same name. When upstream has the former bytes again, have it asked once more by a new value of the annotation";
    let message = format!("{message} `{}`.", marks::RETRY);
    if needed {
        let mut fetch = draft.status.fetch.clone().unwrap_or_default();
        (fetch.attempts, fetch.started_time, fetch.progress_percent, fetch.next_attempt_time) = (fetch.attempts.max(1), None, None, None);
        if fetch.last_failure.as_ref().is_none_or(|failure| failure.reason != Reason::UpstreamChanged.as_str()) {
            fetch.failing_since = Some(draft.now());
            fetch.last_failure =
                Some(LastFailure { reason: Reason::UpstreamChanged.to_string(), message: message.clone(), time: draft.now() });
        }
        draft.status.fetch = Some(fetch);
    }
    FetchState::Failed { reason: Reason::UpstreamChanged, message, terminal: true }
}

/// What the spool holds goes on record before anything is made from it.
fn record_spooled(draft: &mut Draft<'_>, spooled: &SpooledView) {
    draft.status.artifact = Some(ArtifactStatus {
        digest: spooled.artifact_digest.to_string(),
        size_bytes: i64::try_from(spooled.artifact_size).unwrap_or(i64::MAX),
        format: spooled.format.clone(),
        resolved_url: spooled.resolved_url.clone(),
        etag: spooled.etag.clone(),
        resolved_time: spooled.resolved_time.map(whole_seconds),
        index_digest: spooled.container.as_ref().and_then(|container| container.index).map(|digest| digest.to_string()),
        manifest_digest: spooled.container.as_ref().map(|container| container.manifest.to_string()),
    });
    draft.status.disk = Some(DiskStatus { digest: spooled.disk_digest.to_string(), virtual_size: spooled.virtual_size.to_string() });
    draft.status.fetch = None;
}

/// What was refused with the credentials that the Secret held before is tried at once with those that it holds now.
fn other_credentials(draft: &Draft<'_>, fetch: &mut FetchStatus) {
    let now = &draft.observed.credentials.version;
    if now.is_none() || *now == fetch.credentials_version || fetch.started_time.is_some() {
        return;
    }
    let about_them = fetch.last_failure.as_ref().and_then(|failure| failure.reason.parse().ok()).is_some_and(|reason| {
        matches!(reason, Reason::Unauthorized | Reason::Forbidden | Reason::NotFound | Reason::RateLimited | Reason::ReferenceNotFound)
    });
    if about_them {
        (fetch.attempts, fetch.next_attempt_time, fetch.failing_since) = (0, None, None);
    }
}

fn begin(draft: &mut Draft<'_>, fetch: &mut FetchStatus, counts: bool) -> FetchState {
    let settings = draft.settings;
    let longest = settings.terminal_interval.max(settings.not_found_interval).max(settings.backoff.1).max(Backoff::LONGEST_RETRY_AFTER);
    if let Some(at) =
        fetch.next_attempt_time.as_ref().and_then(|at| draft.not_before(at, recorded_wait(fetch).unwrap_or(longest).min(longest)))
    {
        draft.wake_at(at);
        return failed(draft, fetch);
    }
    draft.wants.fetch = true;
    draft.wants.fetch_failures = fetch.attempts;
    if !draft.observed.permits.fetch {
        return FetchState::Working(Reason::Queued, "Waiting for a turn: other images are being fetched.".to_owned());
    }
    if counts {
        fetch.attempts = fetch.attempts.saturating_add(1);
    }
    fetch.started_time = Some(draft.now());
    fetch.credentials_version.clone_from(&draft.observed.credentials.version);
    fetch.next_attempt_time = None;
    fetch.progress_percent = None;
    let document = matches!(&draft.image.source, Source::TalosFactory(talos) if matches!(talos.schematic, Schematic::Document(_)));
    if document && draft.schematic_id.is_none() {
        draft.after.push(Action::ResolveSchematic);
        return FetchState::Working(Reason::Resolving, "The factory is asked for the schematic's ID.".to_owned());
    }
    // Where some target takes the image's own size, every disk fits.
    let sizes: Option<Vec<_>> = draft.image.targets.iter().map(|target| target.size).collect();
    let largest_target = sizes.and_then(|sizes| sizes.into_iter().max());
    draft.after.push(Action::Fetch { largest_target });
    if fetch.last_failure.is_some() {
        return failed(draft, fetch);
    }
    FetchState::Working(Reason::Fetching, "The image is being downloaded and verified.".to_owned())
}

/// How long the next attempt was to wait when the last one failed: both times are of one clock. A record that is further away than that
/// is of a clock that was ahead.
fn recorded_wait(fetch: &FetchStatus) -> Option<Duration> {
    let wait = fetch.next_attempt_time.as_ref()?.0.duration_since(fetch.last_failure.as_ref()?.time.0);
    Some(Duration::try_from(wait).unwrap_or_default() + Duration::from_secs(1))
}

fn record_failure(draft: &mut Draft<'_>, fetch: &mut FetchStatus, reason: Reason, message: &str, retry_after: Option<Duration>) {
    let same_kind = fetch.last_failure.as_ref().is_some_and(|last| last.reason == reason.as_str());
    if fetch.failing_since.is_none() || !same_kind {
        fetch.failing_since = Some(draft.now());
    }
    fetch.last_failure = Some(LastFailure { reason: reason.to_string(), message: message.to_owned(), time: draft.now() });
    fetch.started_time = None;
    fetch.progress_percent = None;
    if reason == Reason::SpoolFull {
        // Waiting for room is no failed attempt.
        fetch.attempts = (fetch.attempts - 1).max(0);
    }
    let settings = draft.settings;
    let delay = if reason.is_terminal() {
        settings.terminal_interval
    } else if reason == Reason::SpoolFull {
        // No attempt is counted, so the wait grows with the time that there has been no room.
        let lasted = fetch.failing_since.as_ref().and_then(|since| Duration::try_from(draft.now.duration_since(since.0)).ok());
        backoff(draft, 1).max(lasted.unwrap_or_default().min(settings.backoff.1))
    } else if fetch.attempts >= settings.fetch_attempts {
        settings.not_found_interval
    } else if reason.is_terminal_in_time() {
        let long = Duration::from_secs(1 << fetch.attempts.clamp(0, 20)) * 5;
        long.min(settings.not_found_interval).max(backoff(draft, fetch.attempts).min(settings.not_found_interval))
    } else {
        backoff(draft, fetch.attempts.max(1))
    };
    let next = after(draft.now, delay.max(retry_after.unwrap_or_default().min(Backoff::LONGEST_RETRY_AFTER)));
    fetch.next_attempt_time = Some(whole_seconds(next));
    draft.wake_at(next);
}

fn failed(draft: &mut Draft<'_>, fetch: &FetchStatus) -> FetchState {
    let Some(failure) = &fetch.last_failure else {
        return FetchState::Working(Reason::Fetching, String::new());
    };
    let reason = failure.reason.parse().unwrap_or(Reason::Unavailable);
    let out_of_patience = fetch.failing_since.as_ref().map(|since| after(since.0, draft.settings.patience));
    let mut terminal = reason.is_terminal() || fetch.attempts >= draft.settings.fetch_attempts;
    if let Some(at) = out_of_patience.filter(|_| reason.is_terminal_in_time()) {
        if draft.now >= at {
            terminal = true;
        } else {
            draft.wake_at(at);
        }
    }
    FetchState::Failed { reason, message: failure.message.clone(), terminal }
}
