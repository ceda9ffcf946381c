//! What an upstream did, as one closed list: each fault has its reason (R9) and says where it happened.

use std::{fmt, net::IpAddr, time::Duration};

use http::StatusCode;
use url::Url;

use super::address::AddressClass;
use crate::{
    model::{SchematicId, public_url},
    rules::Reason,
};

/// A failed request: what happened, where, and under which request ID.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{fault} ({at})")]
pub struct SourceError {
    fault: Box<Fault>,
    at: At,
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
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)?;
        if self.request_id.is_empty() { Ok(()) } else { write!(f, ", request {}", self.request_id) }
    }
}

/// The public form of `url`, cut to a length fit for a message: a redirect may have led to a very long one.
pub(super) fn shown(url: &Url) -> String {
    const LONGEST: usize = 512;
    let text = public_url(url);
    if text.chars().count() > LONGEST { text.chars().take(LONGEST).chain(['…']).collect() } else { text }
}

/// What went wrong with a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The name has no address, or DNS did not say.
    #[error("the name {host:?} could not be resolved: {what}")]
    Unresolved {
        /// The name.
        host: String,
        /// What the resolver said.
        what: String,
    },
    /// Every address of the host is one that the daemon must not connect to.
    #[error("{host:?} leads to {address}, {class}, which the daemon does not connect to{}", if *led { " when an upstream names it" } else { "" })]
    AddressRefused {
        /// The host that was asked for.
        host: String,
        /// The first refused address.
        address: IpAddr,
        /// What kind of address it is.
        class: AddressClass,
        /// Whether an upstream, not the hoster, named the host.
        led: bool,
    },
    /// No TCP connection.
    #[error("no connection to {peer}: {what}")]
    Unreachable {
        /// Host and port.
        peer: String,
        /// What the system said.
        what: String,
    },
    /// The proxy did not open a tunnel or wants credentials.
    #[error("the proxy {proxy} {what}")]
    Proxy {
        /// The proxy in its public form.
        proxy: String,
        /// What it did.
        what: String,
    },
    /// The TLS connection could not be trusted.
    #[error("the TLS connection to {peer} failed: {what}")]
    Tls {
        /// Host and port.
        peer: String,
        /// Why, in words.
        what: String,
    },
    /// `caBundleRef` or the global bundle holds no usable certificate.
    #[error("the CA bundle cannot be used: {what}")]
    CaBundle {
        /// Why.
        what: String,
    },
    /// The URL, though well-formed, is not one that HTTP can ask for.
    #[error("this address cannot be asked for over HTTP")]
    UnfitAddress,
    /// The credentials hold what no header may, such as a line break at a token's end.
    #[error("the credentials hold a character that no header may, such as a line break")]
    UnfitCredentials,
    /// A redirect that is not followed.
    #[error("upstream redirected to {to}: {why}")]
    RedirectRefused {
        /// The target in its public form, or what stood in its place.
        to: String,
        /// Why it is not followed.
        why: RedirectRefusal,
    },
    /// The response head is larger than allowed.
    #[error("upstream sent more than {limit} bytes or 100 lines of headers")]
    HeadersTooLarge {
        /// The limit in bytes.
        limit: usize,
    },
    /// The body is encoded although the identity was asked for.
    #[error(
        "upstream sent the file with `{header}: {coding}` though only `identity` was asked for; have the server, or the cache before it, serve the file as it is"
    )]
    Encoded {
        /// The header that says so.
        header: &'static str,
        /// The coding, cleaned.
        coding: String,
    },
    /// What came back is not HTTP.
    #[error("upstream did not answer in HTTP: {what}")]
    NotHttp {
        /// What was wrong with it.
        what: String,
    },
    /// No answer within the deadline.
    #[error("upstream did not answer within {}", seconds(*.after))]
    NoAnswer {
        /// The deadline.
        after: Duration,
    },
    /// The body stopped, or trickles.
    #[error("upstream sent {received} bytes and then too little for {}", seconds(*.after))]
    Stalled {
        /// Bytes received in this stream.
        received: u64,
        /// The idle deadline.
        after: Duration,
    },
    /// The connection broke in mid-body.
    #[error("the connection broke after {received} bytes: {what}")]
    Interrupted {
        /// Bytes received in this stream.
        received: u64,
        /// What the system said.
        what: String,
    },
    /// The body ended before its announced end.
    #[error("upstream ended the file after {received} bytes{}", announced.map(|n| format!(" of the {n} it announced")).unwrap_or_default())]
    Truncated {
        /// Bytes received in this stream.
        received: u64,
        /// Bytes that this stream should have had.
        announced: Option<u64>,
    },
    /// More bytes than announced.
    #[error("upstream sent more than the {announced} bytes it announced")]
    Excess {
        /// Bytes that the stream should have had.
        announced: u64,
    },
    /// A part was sent though the whole was asked for, or another part than the one asked for.
    #[error("upstream sent a wrong part of the file: {what}")]
    WrongPart {
        /// What it sent.
        what: String,
    },
    /// The artifact is larger than the cap.
    #[error("the file is larger than the limit of {limit} bytes{}", announced.map(|n| format!(": {n} bytes were announced")).unwrap_or_default())]
    TooLarge {
        /// The cap.
        limit: u64,
        /// What was announced, if anything.
        announced: Option<u64>,
    },
    /// Upstream answered with a status that is not the file.
    #[error("upstream answered {status}{}{}", quoted(text), hint.map(|hint| format!(" ({hint})")).unwrap_or_default())]
    Status {
        /// The status.
        status: StatusCode,
        /// The body's text, bounded, cleaned and without secrets; empty where there is none worth repeating.
        text: String,
        /// When upstream wants to be asked again.
        retry_after: Option<Duration>,
        /// What this answer means here, where that is known.
        hint: Option<&'static str>,
    },
    /// The factory does not know yet what it was just given: replicas cache "not found" for 30 s (images.md §1.2).
    #[error("the factory does not know schematic {id} yet, though it has been given")]
    SchematicNotYetKnown {
        /// The ID.
        id: SchematicId,
    },
    /// The schematic document now has another ID than the recorded one.
    #[error("the factory now gives the schematic the ID {now}, but this image was made for {recorded}")]
    SchematicIdChanged {
        /// The recorded ID.
        recorded: SchematicId,
        /// The factory's answer.
        now: SchematicId,
    },
    /// What answered is no Image Factory.
    #[error("the answer is not that of a Talos Image Factory: {what}")]
    NotAFactory {
        /// What was missing.
        what: String,
    },
    /// This kind of source cannot be opened as a file.
    #[error("{what} cannot be opened as a file")]
    NotAFile {
        /// The kind.
        what: &'static str,
    },
    /// The origin and its mirrors all failed.
    #[error("{}", joined(.failures))]
    AllFailed {
        /// Which of the failures gives the reason.
        telling: usize,
        /// One failure a place, in the order asked.
        failures: Vec<SourceError>,
    },
}

/// Why a redirect is not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RedirectRefusal {
    /// More redirects than allowed.
    #[error("too many redirects, or a loop")]
    TooMany,
    /// `Location` is missing, too long or no URL.
    #[error("this is no usable address")]
    Unusable,
    /// Another scheme than HTTP(S).
    #[error("only http and https are followed")]
    Scheme,
    /// From an encrypted connection to a plain one.
    #[error("a redirect from https to http is not followed")]
    Downgrade,
    /// The target holds credentials.
    #[error("an address with credentials is not followed")]
    Credentials,
    /// A request with a body was redirected in a way that would lose it, or would carry it to another host.
    #[error("a request with a body is not sent elsewhere; write that address into the entry")]
    Body,
}

/// `, "text"` or nothing.
fn quoted(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(": {text:?}") }
}

/// A duration as people read it.
fn seconds(duration: Duration) -> String {
    match duration.as_millis() {
        millis if millis % 60_000 == 0 => format!("{} min", millis / 60_000),
        millis if millis % 1_000 == 0 => format!("{} s", millis / 1_000),
        millis => format!("{millis} ms"),
    }
}

/// Several failures in one text.
fn joined(failures: &[SourceError]) -> String {
    failures.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

impl SourceError {
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
        !matches!(&*self.fault, Fault::CaBundle { .. } | Fault::UnfitCredentials | Fault::NotAFile { .. } | Fault::AllFailed { .. })
    }

    /// Whether the bytes received so far are still the file's first ones, so that the rest may be asked for.
    pub fn keeps_received(&self) -> bool {
        matches!(&*self.fault, Fault::Stalled { .. } | Fault::Interrupted { .. } | Fault::Truncated { .. })
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

/// The reason for an answer that is not the file (R9, images.md §1.2).
fn status_reason(status: StatusCode) -> Reason {
    match status.as_u16() {
        401 => Reason::Unauthorized,
        // 402: an Image Factory's word for what only its enterprise edition serves.
        402 | 403 | 451 => Reason::Forbidden,
        404 | 410 => Reason::NotFound,
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
    #[case(204, Reason::Unavailable)]
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
        assert!(error.to_string().ends_with("(https://up.example/a, request 0f)"), "{error}");
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
