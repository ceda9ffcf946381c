//! What is to be done with a TLS Secret, from what it holds and the time alone.

use super::{
    Observed, Profile, Trouble,
    material::{BACKDATED, Pair, after, validity},
};
use k8s_openapi::jiff::Timestamp;
use std::time::Duration;

/// The next step for a TLS Secret. One step at a time: after each the Secret is whole and can be served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Nothing to do.
    Keep,
    /// It is somebody else's: use it as it is.
    Use,
    /// A new CA and a certificate by it at once. CAs in the bundle that still hold stay there.
    Issue,
    /// A new certificate by the CA there is.
    Renew,
    /// Publish the next CA beside the present one, which goes on signing.
    Prepare,
    /// The next CA signs from now on; the former stays in the bundle until it ends.
    Switch,
    /// Put the bundle right: a CA is missing in it, or one that ended is still there.
    Mend,
}

/// Decides what to do. `secret` is `None` where there is none.
///
/// `hold` says that somebody who was told only the present CA is still at work (an import begun before the next CA was
/// published); a change of the CA then waits, though not until the present one is about to end.
pub fn decide(secret: Option<&Observed>, profile: &Profile, now: Timestamp, hold: bool) -> Action {
    let Some(secret) = secret else { return Action::Issue };
    if !secret.ours {
        return Action::Use;
    }
    let Some(signing) = usable(&secret.signing, now) else { return Action::Issue };
    // Before anything else: this is what clients see.
    if leaf_is_due(secret, signing, profile, now) {
        return Action::Renew;
    }
    match secret.next.as_ref().map(|next| usable(next, now)) {
        None if left(signing, now) <= profile.ca_rotate_before => return Action::Prepare,
        None => {}
        Some(None) => return Action::Prepare,
        Some(Some(next)) => {
            let published = after(next.not_before, BACKDATED);
            let overlapped = now >= after(published, profile.overlap);
            let forced = left(signing, now) <= profile.leaf_renew_before;
            if bundle_is_right(secret, now) && overlapped && (forced || !hold) {
                return Action::Switch;
            }
        }
    }
    if bundle_is_right(secret, now) { Action::Keep } else { Action::Mend }
}

/// A CA or certificate that can be used at all at this time.
fn usable(pair: &Result<Pair, Trouble>, now: Timestamp) -> Option<&Pair> {
    // One made while a clock was far ahead would not be good for years. A day of difference is left to clocks: two of us
    // whose clocks differ a little must not replace each other's.
    pair.as_ref().ok().filter(|pair| now < pair.not_after && pair.not_before <= after(now, Duration::from_secs(24 * 3600)))
}

/// Whether the certificate must be made anew by the present CA.
fn leaf_is_due(secret: &Observed, signing: &Pair, profile: &Profile, now: Timestamp) -> bool {
    let Some(leaf) = usable(&secret.leaf, now) else { return true };
    // Checked at a time when it is certainly dated right, so that a clock that is a little behind does not renew it.
    let at = now.max(leaf.not_before).max(signing.not_before);
    let issuer: Vec<_> = signing.der().cloned().into_iter().collect();
    if leaf.trusted_by(&issuer, &profile.names, at).is_err() {
        return true;
    }
    // Renewed only when that gives more time: near the end of its CA a new certificate ends with it too.
    let renewed = after(now, profile.leaf_validity).min(signing.not_after);
    left(leaf, now) <= profile.leaf_renew_before && renewed > leaf.not_after
}

/// Whether the bundle has every CA it must have and none that ended.
fn bundle_is_right(secret: &Observed, now: Timestamp) -> bool {
    let needed = [Some(&secret.signing), secret.next.as_ref()];
    let has_needed = needed.into_iter().flatten().filter_map(|pair| pair.as_ref().ok()?.der()).all(|der| secret.bundle.contains(der));
    has_needed && secret.bundle.iter().all(|der| validity(der).is_some_and(|(_, not_after)| now < not_after))
}

/// How long a certificate is still good for.
fn left(pair: &Pair, now: Timestamp) -> Duration {
    Duration::try_from(pair.not_after.duration_since(now)).unwrap_or_default()
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
