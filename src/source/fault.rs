//! What an upstream can do wrong, as one closed list.

use std::{net::IpAddr, time::Duration};

use http::StatusCode;

use super::{address::AddressClass, error::SourceError, registry::RegistryFault};
use crate::model::{SchematicId, in_bytes};

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
    #[error("{host:?} leads to {address}, {class}, which the daemon does not connect to{}", elsewhere(*class, *led))]
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
    #[error(
        "upstream sent more than {limit} bytes or 100 lines of headers, or a `Content-Length` that no file has; have it send fewer (cookies are what mostly fills them), or raise `egress.caps.headerBytes`"
    )]
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
    #[error("upstream sent {} and then too little for {}", in_bytes(*.received), seconds(*.after))]
    Stalled {
        /// Bytes received in this stream.
        received: u64,
        /// The idle deadline.
        after: Duration,
    },
    /// The body comes, and slower than allowed.
    #[error("upstream sent {} in {}, less than the {} a second that `egress.caps.leastRate` asks for", in_bytes(*.came), seconds(*.after), in_bytes(*.least))]
    TooSlow {
        /// Bytes that came in that time.
        came: u64,
        /// The time: `egress.deadlines.slow`.
        after: Duration,
        /// Bytes a second that were to come.
        least: u64,
    },
    /// The connection broke in mid-body.
    #[error("the connection broke after {}: {what}", in_bytes(*.received))]
    Interrupted {
        /// Bytes received in this stream.
        received: u64,
        /// What the system said.
        what: String,
    },
    /// The body ended before its announced end.
    #[error("upstream ended the file after {}{}", in_bytes(*.received), announced.map(|n| format!(" of the {n} it announced")).unwrap_or_default())]
    Truncated {
        /// Bytes received in this stream.
        received: u64,
        /// Bytes that this stream should have had.
        announced: Option<u64>,
    },
    /// More bytes than announced.
    #[error("upstream sent more than the {} it announced", in_bytes(*.announced))]
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
    #[error("the file is larger than the limit of {limit} bytes{}", announced.map(|n| format!(": it announced {}", in_bytes(n))).unwrap_or_default())]
    TooLarge {
        /// The cap.
        limit: u64,
        /// What was announced, if anything.
        announced: Option<u64>,
    },
    /// Upstream answered with a status that is not the file.
    #[error("upstream answered {status}{}{}{}", again(*status, *retry_after), quoted(text), hint.map(|hint| format!(" ({hint})")).unwrap_or_default())]
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
    /// The factory does not know yet what it was just given: replicas cache "not found" for 30 s.
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
    /// A registry served something that is no container image for this entry.
    #[error("{0}")]
    Registry(Box<RegistryFault>),
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
    #[error("too many redirects, or a loop; write the address where they end, or raise `egress.caps.redirects`")]
    TooMany,
    /// `Location` is missing, too long or no URL.
    #[error("this is no usable address; write the address of the file itself, or mend the server")]
    Unusable,
    /// Another scheme than HTTP(S).
    #[error("only http and https are followed; write an https address of the file")]
    Scheme,
    /// From an encrypted connection to a plain one.
    #[error("a redirect from https to http is not followed; write an https address that stays one, or the http one with a digest")]
    Downgrade,
    /// The target holds credentials.
    #[error("an address with credentials is not followed; write the address without them and name a Secret in `credentialsSecretRef`")]
    Credentials,
    /// A request with a body was redirected in a way that would lose it, or would carry it to another host.
    #[error("a request with a body is not sent elsewhere; write that address into the entry")]
    Body,
}

/// What to do about an address that is refused, as the end of a sentence.
const fn elsewhere(class: AddressClass, led: bool) -> &'static str {
    match (class, led) {
        (AddressClass::Private, true) => {
            " when an upstream names it; write that host into the entry, or allow it by `egress.allowPrivateRedirects`"
        }
        (_, true) => " whoever names it; write an address of the file that does not lead there, or mend what redirects to it",
        (_, false) => "; name the server by an address that other machines reach, or mend its DNS record",
    }
}

/// When upstream wants to be asked again. Whole minutes from two on: a date's distance differs by seconds with each answer.
fn again(status: StatusCode, after: Option<Duration>) -> String {
    match after.map(|after| after.as_secs()) {
        None if status == StatusCode::TOO_MANY_REQUESTS => " without saying when to ask again".to_owned(),
        None => String::new(),
        Some(0) => ", to be asked again at once".to_owned(),
        Some(short @ ..120) => format!(", to be asked again in {short} s"),
        Some(long) => format!(", to be asked again in {} min", long.div_ceil(60)),
    }
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::StatusCode;
    use rstest::rstest;

    use super::{Fault, RedirectRefusal};
    use crate::source::address::AddressClass;

    fn address(class: AddressClass, led: bool) -> Fault {
        Fault::AddressRefused { host: "h".into(), address: [127, 0, 0, 1].into(), class, led }
    }

    fn status(code: u16, retry_after: Option<u64>) -> Fault {
        let status = StatusCode::from_u16(code).expect("status");
        Fault::Status { status, text: String::new(), retry_after: retry_after.map(Duration::from_secs), hint: None }
    }

    /// R9: a message says what to change, and not only what happened.
    #[rstest]
    #[case(address(AddressClass::Loopback, false), "an address that other machines reach")]
    #[case(address(AddressClass::Metadata, true), "mend what redirects to it")]
    #[case(address(AddressClass::Private, true), "`egress.allowPrivateRedirects`")]
    #[case(Fault::HeadersTooLarge { limit: 1 }, "`egress.caps.headerBytes`")]
    #[case(Fault::RedirectRefused { to: "x".into(), why: RedirectRefusal::TooMany }, "`egress.caps.redirects`")]
    #[case(Fault::RedirectRefused { to: "x".into(), why: RedirectRefusal::Downgrade }, "write an https address")]
    #[case(status(429, None), "429 Too Many Requests without saying when")]
    #[case(status(429, Some(0)), "at once")]
    #[case(status(429, Some(90)), "in 90 s")]
    #[case(status(503, Some(3601)), "in 61 min")]
    #[case(Fault::Truncated { received: 1, announced: Some(2) }, "after 1 byte of the 2 it announced")]
    #[case(Fault::TooSlow { came: 5, after: Duration::from_secs(600), least: 7 }, "5 bytes in 10 min, less than the 7 bytes a second that `egress.caps.leastRate`")]
    #[case(Fault::Excess { announced: 1 }, "more than the 1 byte it announced")]
    fn messages_say_what_to_do(#[case] fault: Fault, #[case] expected: &str) {
        let text = fault.to_string();
        assert!(text.contains(expected), "{text}");
    }
}
