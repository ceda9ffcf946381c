//! From the states of targets and artifact to conditions, events and the final decision.

use k8s_openapi::jiff::Timestamp;

use super::{
    Action, Decision, Note, Observed, UpstreamView, Wants,
    decide::{Draft, after, listing_condition, refused_condition, whole_seconds},
    fetch::FetchState,
    leaving::{self, Told},
    target::TargetState,
    usage,
};
use crate::{
    api::{ConditionSet, ConditionType, GoldenImageStatus, find_condition},
    model::Source,
    rules::{Reason, moving_source_warnings},
};

/// A decision for an image that is not accepted: its goldens stay as they are, nothing new begins.
pub(super) fn not_accepted(observed: &Observed, now: Timestamp, reason: Reason, message: &str) -> Decision {
    let mut status = observed.status.clone();
    status.observed_generation = observed.metadata.generation;
    let text = with_remedy(message, reason);
    let available = find_condition(&status.conditions, ConditionType::Available).cloned();
    let mut set = ConditionSet::new(&observed.status.conditions, observed.metadata.generation, whole_seconds(now));
    set.set(ConditionType::Accepted, Some(false), reason, text.clone());
    set.set(ConditionType::Ready, Some(false), reason, text.clone());
    set.set(ConditionType::Stalled, Some(true), reason, text.clone());
    if available.is_some_and(|condition| condition.status == "True") {
        set.set(ConditionType::Available, Some(true), Reason::Ready, "");
    } else {
        set.set(ConditionType::Available, Some(false), reason, "");
    }
    let leaving = leaving::held(observed, &mut status, now);
    let own = listing_condition(&observed.listing).into_iter().chain(refused_condition(observed)).chain(leaving);
    let of_targets = status.edited_targets().map(|message| (ConditionType::EntryEdited, Reason::EntryEdited, message.to_owned()));
    for (kind, reason, message) in joined(&[], own.chain(of_targets)) {
        let remedy = if kind == ConditionType::WriteRefused { reason.remedy() } else { "" };
        set.set(kind, Some(true), reason, with_text(&message, remedy));
    }
    usage::tell(&mut set, &mut status, &observed.status, &observed.usage, now);
    status.conditions = set.finish();
    let running = matches!(observed.fetch, super::FetchView::Running { .. });
    Decision {
        before: Vec::new(),
        notes: notes(&observed.status, &status),
        status,
        after: if running { vec![Action::CancelFetch] } else { Vec::new() },
        wake: None,
        wants: Wants::default(),
    }
}

/// The message with the reason's remedy as its last sentence.
pub(super) fn with_remedy(message: &str, reason: Reason) -> String {
    with_text(message, reason.remedy())
}

/// The message with this remedy as its last sentence.
pub(super) fn with_text(message: &str, remedy: &str) -> String {
    let message = message.trim();
    let stop = if message.is_empty() || message.ends_with(['.', '!', '?', '…']) { "" } else { "." };
    match remedy {
        "" => message.to_owned(),
        remedy => format!("{message}{stop} {remedy}").trim().to_owned(),
    }
}

/// What an image's `Ready` says when it is not.
struct Headline {
    reason: Reason,
    message: String,
    trouble: bool,
    terminal: bool,
}

pub(super) fn finish(mut draft: Draft<'_>, states: &[TargetState], fetch: &FetchState, leaving: Told) -> Decision {
    let now = draft.now();
    let generation = draft.observed.metadata.generation;
    for (index, state) in states.iter().enumerate() {
        let old = draft.status.targets[index].conditions.clone();
        let mut set = ConditionSet::new(&old, generation, now.clone());
        let shown = headline(state, fetch);
        set.set(
            ConditionType::Ready,
            Some(state.ready),
            shown.reason,
            if state.ready { String::new() } else { with_remedy(&shown.message, shown.reason) },
        );
        if shown.terminal && !state.ready {
            set.set(ConditionType::Stalled, Some(true), shown.reason, with_remedy(&shown.message, shown.reason));
        }
        for (kind, reason, message) in &state.remarks {
            set.set(*kind, Some(true), *reason, with_remedy(message, *reason));
        }
        draft.status.targets[index].conditions = set.finish();
    }

    let mut set = ConditionSet::new(&draft.observed.status.conditions, generation, now);
    accepted(&mut set, &draft, states);
    resolved_and_verified(&mut set, &draft, fetch);
    let all = states.iter().all(|state| state.ready);
    let any = leaving.is_one_open || states.iter().any(|state| state.ready);
    let worst = states
        .iter()
        .filter(|state| !state.ready)
        .map(|state| headline(state, fetch))
        .max_by_key(|headline| (headline.terminal, headline.trouble));
    match &worst {
        None => set.set(ConditionType::Ready, Some(true), Reason::Ready, ""),
        Some(headline) => {
            let message = with_remedy(&headline.message, headline.reason);
            set.set(ConditionType::Ready, Some(false), headline.reason, message.clone());
            if headline.terminal {
                set.set(ConditionType::Stalled, Some(true), headline.reason, message);
            } else if headline.reason != Reason::Suspended {
                set.set(ConditionType::Reconciling, Some(true), headline.reason, message);
            }
        }
    }
    let available = worst.as_ref().filter(|_| !any).map_or(Reason::Ready, |headline| headline.reason);
    set.set(ConditionType::Available, Some(any), available, "");
    let listed = listing_condition(&draft.observed.listing);
    let is_listed_alone = |kind| states.iter().all(|state| state.remarks.iter().all(|(remark, ..)| *remark != kind));
    let alone = listed.as_ref().is_some_and(|(kind, ..)| is_listed_alone(*kind));
    // The list's word first: by its place it is known again (`Listing::on_record`).
    for (kind, reason, message) in joined(states, listed.into_iter().chain(refused_condition(draft.observed)).chain(leaving.remarks)) {
        let remedy = match kind {
            // The remedy for an image that is to go is none for one golden of it.
            ConditionType::Retiring => leaving.remedy,
            // What the list says has the move in it.
            ConditionType::EntryEdited | ConditionType::Unlisted if alone => "",
            _ => reason.remedy(),
        };
        set.set(kind, Some(true), reason, with_text(&message, remedy));
    }
    upstream(&mut set, &mut draft, all);
    usage::tell(&mut set, &mut draft.status, &draft.observed.status, &draft.observed.usage, draft.now);
    draft.status.conditions = set.finish();
    Decision {
        before: draft.before,
        notes: notes(&draft.observed.status, &draft.status).into_iter().chain(leaving.notes).collect(),
        status: draft.status,
        after: draft.after,
        wake: draft.wake,
        wants: draft.wants,
    }
}

/// The remarks on the image itself and on its targets, those of one kind in one text.
fn joined(states: &[TargetState], own: impl Iterator<Item = (ConditionType, Reason, String)>) -> Vec<(ConditionType, Reason, String)> {
    let mut joined: Vec<(ConditionType, Reason, String)> = Vec::new();
    for (kind, reason, message) in own.chain(states.iter().flat_map(|state| state.remarks.iter().cloned())) {
        match joined.iter_mut().find(|(known, ..)| *known == kind) {
            Some((.., text)) => *text = format!("{text} {message}"),
            None => joined.push((kind, reason, message)),
        }
    }
    joined
}

/// A target that waits for the disk is as well or ill as the disk's fetch; otherwise it speaks for itself.
fn headline(state: &TargetState, fetch: &FetchState) -> Headline {
    let own = Headline { reason: state.reason, message: state.message.clone(), trouble: state.trouble, terminal: state.terminal };
    if !state.needs_disk || state.trouble && state.terminal {
        return own;
    }
    match fetch {
        FetchState::Failed { reason, message, terminal } => {
            Headline { reason: *reason, message: message.clone(), trouble: true, terminal: *terminal }
        }
        FetchState::Working(reason, message) if !state.trouble => {
            Headline { reason: *reason, message: message.clone(), trouble: false, terminal: false }
        }
        _ => own,
    }
}

fn accepted(set: &mut ConditionSet<'_>, draft: &Draft<'_>, states: &[TargetState]) {
    let refused = states.iter().find(|state| matches!(state.reason, Reason::NameConflict | Reason::InvalidEntry | Reason::DuplicateClass));
    match refused {
        Some(state) => set.set(ConditionType::Accepted, Some(false), state.reason, with_remedy(&state.message, state.reason)),
        None => {
            let warnings = moving_source_warnings(&draft.image.source, draft.image.digest.as_ref());
            set.set(ConditionType::Accepted, Some(true), Reason::Accepted, warnings.join(" "));
        }
    }
}

fn resolved_and_verified(set: &mut ConditionSet<'_>, draft: &Draft<'_>, fetch: &FetchState) {
    let have = draft.status.artifact.is_some() && draft.status.disk.is_some();
    let adopted: Vec<_> =
        draft.status.targets.iter().filter(|target| target.adopted == Some(true)).filter_map(|target| target.golden.as_deref()).collect();
    if !adopted.is_empty() {
        let (resolved, reason) = if have { (Some(true), Reason::Resolved) } else { (None, Reason::Adopted) };
        set.set(ConditionType::Resolved, resolved, reason, "");
        let message = format!("Taken over as it was, and nobody can say what it was verified against: {}.", adopted.join(", "));
        set.set(ConditionType::Verified, None, Reason::Adopted, message);
        return;
    }
    if have {
        set.set(ConditionType::Resolved, Some(true), Reason::Resolved, "");
        // A digest may be given after the fetch: it is held against what was downloaded.
        let fetched = draft.status.artifact.as_ref().map(|artifact| artifact.digest.clone()).unwrap_or_default();
        let wanted = draft.image.digest.map(|digest| digest.to_string());
        if let Some(wanted) = wanted.as_ref().filter(|wanted| **wanted != fetched) {
            let message = format!("The image was made from {fetched}, and `spec.digest` is {wanted}.");
            set.set(ConditionType::Verified, Some(false), Reason::DigestMismatch, with_remedy(&message, Reason::DigestMismatch));
            return;
        }
        let matched = wanted.is_some() || draft.observed.spooled.as_ref().is_some_and(|spooled| spooled.digest_matched);
        let reason = if matched { Reason::DigestMatches } else { Reason::StructureChecked };
        let message = if matched { "" } else { "No digest is known for this image: its structure is whole, and its digest is recorded." };
        set.set(ConditionType::Verified, Some(true), reason, message);
        return;
    }
    match fetch {
        FetchState::Failed { reason, message, .. } => {
            let about_bytes = matches!(
                reason,
                Reason::Corrupt
                    | Reason::DigestMismatch
                    | Reason::NotADiskImage
                    | Reason::UnsupportedFormat
                    | Reason::TooLarge
                    | Reason::SizeTooSmall
            );
            let message = with_remedy(message, *reason);
            set.set(
                ConditionType::Resolved,
                Some(about_bytes),
                if about_bytes { Reason::Resolved } else { *reason },
                if about_bytes { String::new() } else { message.clone() },
            );
            set.set(ConditionType::Verified, about_bytes.then_some(false), *reason, if about_bytes { message } else { String::new() });
        }
        FetchState::Working(reason, _) => {
            set.set(ConditionType::Resolved, None, *reason, "");
            set.set(ConditionType::Verified, None, *reason, "");
        }
        FetchState::NotNeeded | FetchState::Done => {
            set.set(ConditionType::Resolved, None, Reason::Resolving, "");
            set.set(ConditionType::Verified, None, Reason::Resolving, "");
        }
    }
}

/// R6: a daily question to upstream, for images whose address may move. What was last known stays until it is asked again.
fn upstream(set: &mut ConditionSet<'_>, draft: &mut Draft<'_>, ready: bool) {
    let Source::Http { .. } = draft.image.source else { return };
    if draft.image.digest.is_some() || draft.status.artifact.is_none() {
        return;
    }
    let interval = draft.settings.upstream_check;
    let last = match &draft.observed.upstream {
        Some(UpstreamView { checked, difference }) => {
            if let Some(difference) = difference {
                set.set(
                    ConditionType::UpstreamChanged,
                    Some(true),
                    Reason::UpstreamChanged,
                    with_remedy(difference, Reason::UpstreamChanged),
                );
            }
            Some(*checked)
        }
        None => {
            if let Some(known) = find_condition(&draft.observed.status.conditions, ConditionType::UpstreamChanged) {
                set.set(ConditionType::UpstreamChanged, Some(true), Reason::UpstreamChanged, known.message.clone());
            }
            draft.status.artifact.as_ref().and_then(|artifact| artifact.resolved_time.as_ref()).map(|at| at.0)
        }
    };
    if !ready || draft.image.suspend {
        return;
    }
    let due = last.map_or(draft.now, |last| after(last, interval));
    if due <= draft.now {
        draft.after.push(Action::CheckUpstream);
    } else {
        draft.wake_at(due);
    }
}

/// Events for what changed: one for each new reason of `Ready`, and one for each remark that appears.
pub(super) fn notes(old: &GoldenImageStatus, new: &GoldenImageStatus) -> Vec<Note> {
    let mut notes = Vec::new();
    let reason_of =
        |status: &GoldenImageStatus, kind| find_condition(&status.conditions, kind).map(|c| (c.status.clone(), c.reason.clone()));
    if reason_of(old, ConditionType::Ready) != reason_of(new, ConditionType::Ready)
        && let Some(ready) = find_condition(&new.conditions, ConditionType::Ready)
        && let Ok(reason) = ready.reason.parse::<Reason>()
    {
        let message = if ready.status == "True" { "The golden image can be cloned.".to_owned() } else { ready.message.clone() };
        notes.push(Note { warning: ready.status != "True" && !reason.remedy().is_empty(), reason, message });
    }
    for kind in [
        ConditionType::DefaultClassDrift,
        ConditionType::UpstreamChanged,
        ConditionType::EntryEdited,
        ConditionType::Unlisted,
        ConditionType::InUseByPod,
        ConditionType::CloneLimited,
        ConditionType::ProfileChanged,
        ConditionType::Retiring,
        ConditionType::WriteRefused,
    ] {
        if let Some(condition) = find_condition(&new.conditions, kind).filter(|_| find_condition(&old.conditions, kind).is_none())
            && let Ok(reason) = condition.reason.parse()
        {
            notes.push(Note { warning: true, reason, message: condition.message.clone() });
        }
    }
    notes
}
