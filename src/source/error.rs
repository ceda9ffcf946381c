//! A failed request: the reason of each fault (R9), where it happened, and what may still be done about it.

use std::{fmt, time::Duration};

use http::StatusCode;
use url::Url;

pub use super::fault::{Fault, RedirectRefusal};
use crate::{model::public_url, rules::Reason};

/// A failed request: what happened, where, and under which request ID.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct SourceError {
    fault: Box<Fault>,
    at: At,
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.fault {
            // Each of them says where it happened.
            Fault::AllFailed { .. } => write!(f, "{}", self.fault),
            fault => write!(f, "{fault} ({})", self.at),
        }
    }
}

/// Where a request went: the URL in its public form, and the ID that upstream's own log may know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct At {
    pub url: String,
    pub request_id: String,
}

impl At {
    pub fn new(url: &Url, request_id: &str) -> Self {
        Self { url: shown(url), request_id: request_id.to_owned() }
    }
}

impl fmt::Display for At {
    /// The URL alone: a text that differs with each attempt would be written into status again and again. The ID is logged.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

/// The public form of `url`, cut to a length fit for a message: a redirect may have led to a very long one.
pub(super) fn shown(url: &Url) -> String {
    const LONGEST: usize = 512;
    let text = public_url(url);
    if text.chars().count() > LONGEST { text.chars().take(LONGEST).chain(['…']).collect() } else { text }
}

impl SourceError {
    /// The ID that the request was sent with, which upstream's own log may know.
    pub fn request_id(&self) -> &str {
        &self.at.request_id
    }

    /// How long to wait for a schematic that one replica of a factory knows and another denies: its negative cache's lifetime.
    const SCHEMATIC_DELAY: Duration = Duration::from_secs(30);

    pub(super) fn new(fault: Fault, at: At) -> Self {
        Self { fault: Box::new(fault), at }
    }

    /// What happened.
    pub fn fault(&self) -> &Fault {
        &self.fault
    }

    /// The reason to show (R9); the message is the error's text.
    pub fn reason(&self) -> Reason {
        match &*self.fault {
            Fault::Unresolved { .. }
            | Fault::Unreachable { .. }
            | Fault::Proxy { .. }
            | Fault::NotHttp { .. }
            | Fault::NoAnswer { .. }
            | Fault::Stalled { .. }
            | Fault::TooSlow { .. }
            | Fault::Interrupted { .. }
            | Fault::SchematicNotYetKnown { .. }
            | Fault::NotAFactory { .. } => Reason::Unavailable,
            Fault::AddressRefused { .. } | Fault::RedirectRefused { .. } | Fault::HeadersTooLarge { .. } | Fault::Encoded { .. } => {
                Reason::EgressRefused
            }
            Fault::UnfitCredentials => Reason::Unauthorized,
            Fault::Tls { .. } | Fault::CaBundle { .. } => Reason::TLSFailed,
            Fault::Truncated { .. } | Fault::Excess { .. } | Fault::WrongPart { .. } => Reason::Corrupt,
            Fault::TooLarge { .. } => Reason::TooLarge,
            Fault::Status { status, .. } => status_reason(*status),
            Fault::UnfitAddress | Fault::SchematicIdChanged { .. } | Fault::NotAFile { .. } => Reason::InvalidSource,
            Fault::Registry(fault) => fault.reason(),
            Fault::AllFailed { telling, failures } => failures.get(*telling).map_or(Reason::Unavailable, Self::reason),
        }
    }

    /// How long to wait at least before asking again, where that is known; already bounded.
    pub fn retry_after(&self) -> Option<Duration> {
        match &*self.fault {
            Fault::Status { retry_after, .. } => *retry_after,
            Fault::SchematicNotYetKnown { .. } => Some(Self::SCHEMATIC_DELAY),
            Fault::AllFailed { telling, failures } => failures.get(*telling).and_then(Self::retry_after),
            _ => None,
        }
    }

    /// Whether another place that serves the same file may do better.
    pub fn is_worth_another_mirror(&self) -> bool {
        match &*self.fault {
            Fault::CaBundle { .. } | Fault::UnfitCredentials | Fault::NotAFile { .. } | Fault::AllFailed { .. } => false,
            Fault::Registry(fault) => !fault.is_about_the_image(),
            _ => true,
        }
    }

    /// Whether the bytes received so far are still the file's first ones, so that the rest may be asked for.
    pub fn keeps_received(&self) -> bool {
        matches!(&*self.fault, Fault::Stalled { .. } | Fault::TooSlow { .. } | Fault::Interrupted { .. } | Fault::Truncated { .. })
    }

    /// Whether somebody answered, so that this says more than "not there".
    fn is_an_answer(&self) -> bool {
        self.reason() != Reason::Unavailable
    }

    /// The one error for a list of failures, one a place in the order asked; the last is the origin's.
    ///
    /// The origin gives the reason; where it could not be reached, the first mirror that said something does, unless that
    /// would be final: a mirror's word never ends an entry for good.
    pub(super) fn of_all(mut failures: Vec<Self>, origin: usize) -> Option<Self> {
        if failures.len() < 2 {
            return failures.pop();
        }
        let speaks = |failure: &Self| failure.is_an_answer();
        let telling = if failures.get(origin).is_some_and(speaks) {
            origin
        } else {
            failures.iter().position(|failure| speaks(failure) && !failure.reason().is_terminal()).unwrap_or(origin)
        };
        let at = failures.get(origin)?.at.clone();
        Some(Self::new(Fault::AllFailed { telling, failures }, at))
    }
}

/// The reason for an answer that is not the file (R9).
fn status_reason(status: StatusCode) -> Reason {
    match status.as_u16() {
        401 => Reason::Unauthorized,
        // 402: an Image Factory's word for what only its enterprise edition serves.
        402 | 403 | 451 => Reason::Forbidden,
        // 204, 205: it is served, and there is nothing in it.
        204 | 205 | 404 | 410 => Reason::NotFound,
        429 => Reason::RateLimited,
        // What names the request itself as wrong, so that the same request cannot succeed.
        400 | 405 | 406 | 414 | 422 => Reason::InvalidSource,
        _ => Reason::Unavailable,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::StatusCode;
    use rstest::rstest;

    use super::{At, Fault, RedirectRefusal, SourceError, status_reason};
    use crate::{rules::Reason, source::address::AddressClass};

    fn at() -> At {
        At { url: "https://up.example/a".to_owned(), request_id: "0f".to_owned() }
    }

    fn status(code: u16) -> Fault {
        Fault::Status { status: StatusCode::from_u16(code).expect("status"), text: String::new(), retry_after: None, hint: None }
    }

    /// R9: every answer of an upstream has its reason.
    #[rstest]
    #[case(204, Reason::NotFound)]
    #[case(205, Reason::NotFound)]
    #[case(413, Reason::Unavailable)]
    #[case(304, Reason::Unavailable)]
    #[case(400, Reason::InvalidSource)]
    #[case(401, Reason::Unauthorized)]
    #[case(402, Reason::Forbidden)]
    #[case(403, Reason::Forbidden)]
    #[case(404, Reason::NotFound)]
    #[case(405, Reason::InvalidSource)]
    #[case(406, Reason::InvalidSource)]
    #[case(407, Reason::Unavailable)]
    #[case(408, Reason::Unavailable)]
    #[case(409, Reason::Unavailable)]
    #[case(410, Reason::NotFound)]
    #[case(414, Reason::InvalidSource)]
    #[case(416, Reason::Unavailable)]
    #[case(421, Reason::Unavailable)]
    #[case(422, Reason::InvalidSource)]
    #[case(425, Reason::Unavailable)]
    #[case(429, Reason::RateLimited)]
    #[case(451, Reason::Forbidden)]
    #[case(499, Reason::Unavailable)]
    #[case(500, Reason::Unavailable)]
    #[case(501, Reason::Unavailable)]
    #[case(502, Reason::Unavailable)]
    #[case(503, Reason::Unavailable)]
    #[case(504, Reason::Unavailable)]
    #[case(599, Reason::Unavailable)]
    fn r9_statuses(#[case] code: u16, #[case] reason: Reason) {
        assert_eq!(SourceError::new(status(code), at()).reason(), reason);
        assert_eq!(status_reason(StatusCode::from_u16(code).expect("status")), reason);
    }

    #[rstest]
    #[case(Fault::Unresolved { host: "h".into(), what: "no such name".into() }, Reason::Unavailable, false)]
    #[case(Fault::AddressRefused { host: "h".into(), address: [127, 0, 0, 1].into(), class: AddressClass::Loopback, led: true }, Reason::EgressRefused, false)]
    #[case(Fault::Unreachable { peer: "h:443".into(), what: "refused".into() }, Reason::Unavailable, false)]
    #[case(Fault::Proxy { proxy: "http://p".into(), what: "answered 403".into() }, Reason::Unavailable, false)]
    #[case(Fault::Tls { peer: "h:443".into(), what: "expired".into() }, Reason::TLSFailed, false)]
    #[case(Fault::CaBundle { what: "empty".into() }, Reason::TLSFailed, false)]
    #[case(Fault::UnfitAddress, Reason::InvalidSource, false)]
    #[case(Fault::UnfitCredentials, Reason::Unauthorized, false)]
    #[case(Fault::RedirectRefused { to: "http://h".into(), why: RedirectRefusal::Downgrade }, Reason::EgressRefused, false)]
    #[case(Fault::HeadersTooLarge { limit: 1 }, Reason::EgressRefused, false)]
    #[case(Fault::Encoded { header: "Content-Encoding", coding: "gzip".into() }, Reason::EgressRefused, false)]
    #[case(Fault::NotHttp { what: "SSH".into() }, Reason::Unavailable, false)]
    #[case(Fault::NoAnswer { after: Duration::from_secs(1) }, Reason::Unavailable, false)]
    #[case(Fault::Stalled { received: 1, after: Duration::from_secs(1) }, Reason::Unavailable, true)]
    #[case(Fault::TooSlow { came: 1, after: Duration::from_secs(1), least: 2 }, Reason::Unavailable, true)]
    #[case(Fault::Interrupted { received: 1, what: "reset".into() }, Reason::Unavailable, true)]
    #[case(Fault::Truncated { received: 1, announced: Some(2) }, Reason::Corrupt, true)]
    #[case(Fault::Excess { announced: 2 }, Reason::Corrupt, false)]
    #[case(Fault::WrongPart { what: "bytes 1-2".into() }, Reason::Corrupt, false)]
    #[case(Fault::TooLarge { limit: 1, announced: None }, Reason::TooLarge, false)]
    #[case(Fault::SchematicNotYetKnown { id: "a".parse().expect("id") }, Reason::Unavailable, false)]
    #[case(Fault::SchematicIdChanged { recorded: "a".parse().expect("id"), now: "b".parse().expect("id") }, Reason::InvalidSource, false)]
    #[case(Fault::NotAFactory { what: "no id".into() }, Reason::Unavailable, false)]
    #[case(Fault::NotAFile { what: "a container disk" }, Reason::InvalidSource, false)]
    fn r9_faults(#[case] fault: Fault, #[case] reason: Reason, #[case] keeps: bool) {
        let error = SourceError::new(fault, at());
        assert_eq!(error.reason(), reason);
        assert_eq!(error.keeps_received(), keeps);
        assert!(error.to_string().ends_with("(https://up.example/a)"), "{error}");
        // In the log, not in the text: it differs with each attempt.
        assert_eq!(error.request_id(), "0f");
    }

    #[rstest]
    // The origin answered: its word counts.
    #[case(&[500, 404], 1, Reason::NotFound)]
    #[case(&[404, 400], 1, Reason::InvalidSource)]
    // The origin did not: a mirror's word counts, unless it is final.
    #[case(&[404, 503], 1, Reason::NotFound)]
    #[case(&[400, 503], 1, Reason::Unavailable)]
    #[case(&[400, 429, 503], 2, Reason::RateLimited)]
    #[case(&[500, 502, 503], 2, Reason::Unavailable)]
    // The origin may stand elsewhere in the list.
    #[case(&[400, 404], 0, Reason::InvalidSource)]
    #[case(&[404], 0, Reason::NotFound)]
    fn the_telling_failure(#[case] codes: &[u16], #[case] origin: usize, #[case] reason: Reason) {
        let failures = codes.iter().map(|code| SourceError::new(status(*code), at())).collect();
        assert_eq!(SourceError::of_all(failures, origin).expect("failures").reason(), reason);
    }
}
