//! CAs that others were told to trust and that a bundle no longer has: they stay a while for those who still serve by them.

use super::material::{certificates, pem, validity};
use k8s_openapi::jiff::Timestamp;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// How long a CA that was replaced stays among those that callers are told. Replicas go over to the new one within minutes, and this is
/// reckoned anew by each leader.
const STAYS: Duration = Duration::from_secs(600);

/// Which CAs are on their way out, and since when. In memory only: a leader that takes over lets them stay as long again.
#[derive(Debug, Default)]
pub struct Overlap {
    leaving: BTreeMap<Vec<u8>, Instant>,
}

impl Overlap {
    /// What callers are to be told: `ours`, and of what they were `told` before whatever is good still and was replaced a while ago at
    /// most. A text that is no PEM was no help to anybody and is dropped.
    pub fn bundle(&mut self, ours: &str, told: &[impl AsRef<str>], clock: Instant, now: Timestamp) -> String {
        let Some(mut bundle) = certificates(ours.as_bytes()) else { return ours.to_owned() };
        let mut leaving = BTreeMap::new();
        for certificate in told.iter().filter_map(|text| certificates(text.as_ref().as_bytes())).flatten() {
            if bundle.contains(&certificate) || validity(&certificate).is_none_or(|(_, not_after)| now >= not_after) {
                continue;
            }
            let since = *self.leaving.get(certificate.as_ref()).unwrap_or(&clock);
            leaving.insert(certificate.to_vec(), since);
            if clock.duration_since(since) < STAYS {
                bundle.push(certificate);
            }
        }
        self.leaving = leaving;
        pem(&bundle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::certs::{Action, Profile, Served, issue};

    fn ca(now: Timestamp) -> String {
        let profile = Profile::new(vec!["a.test".to_owned()]);
        let secret = issue::apply(&Action::Issue, "s", None, None, &profile, now).unwrap();
        Served::load("s", &secret).unwrap().bundle().to_owned()
    }

    #[test]
    fn a_replaced_ca_stays_a_while_and_then_goes() {
        let (now, began) = (Timestamp::now(), Instant::now());
        let (old, new) = (ca(now), ca(now));
        let mut overlap = Overlap::default();
        assert_eq!(overlap.bundle(&old, &[""; 0], began, now), old);
        assert_eq!(overlap.bundle(&old, &[&old], began, now), old, "the same is there once");
        let both = overlap.bundle(&new, &[&old, &old], began, now);
        assert_eq!(both, format!("{new}{old}"));
        // What was told meanwhile is both, and it is still the old one that leaves.
        let late = began + STAYS - Duration::from_secs(1);
        assert_eq!(overlap.bundle(&new, &[&both], late, now), both);
        assert_eq!(overlap.bundle(&new, &[&both], began + STAYS, now), new);
        assert_eq!(overlap.bundle(&new, &[&both], began + STAYS * 2, now), new, "it does not come back while it is told");
        // Taken back in time, it is nobody's leaving any more.
        assert_eq!(overlap.bundle(&old, &[&new], began, now), format!("{old}{new}"));
    }

    #[test]
    fn what_ended_or_is_no_certificate_is_not_told_again() {
        let (now, clock) = (Timestamp::now(), Instant::now());
        let ours = ca(now);
        let ended = ca(now - Duration::from_secs(6 * 365 * 24 * 3600));
        for junk in [ended, "hello".to_owned(), String::new()] {
            assert_eq!(Overlap::default().bundle(&ours, &[junk], clock, now), ours);
        }
    }
}
