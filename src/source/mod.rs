//! The one guarded way out, and what is opened through it.
//!
//! Every byte from an upstream comes through [`Egress`]: it checks each address before connecting to that very address,
//! follows redirects by hand, keeps credentials with the origin they were given for, and bounds time, headers, bodies and
//! texts. [`Egress::open`] yields what is known about an artifact and its bytes; [`Egress::peek`] its beginning;
//! [`Egress::look`] what is known only.
//!
//! It speaks HTTP/1.1 over connections it makes itself (hyper without a pool): one artifact is one long stream, for which
//! HTTP/2 adds windows to tune and an attack surface and no speed, and the public factory resets long HTTP/2 streams
//! (cozystack issue 3231). A connection of our own is also what lets the guard connect to the checked address, tells a
//! proxy's refusal from an upstream's, and sees bytes sent beyond the announced length.

pub mod address;
mod answer;
mod body;
mod compare;
mod connect;
mod credentials;
mod dns;
mod error;
mod fault;
mod mirror;
mod open;
mod probe;
mod proxy;
mod range;
mod redirect;
mod registry;
mod schematic;
mod settings;
mod talos;
mod tls;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::SystemTime,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::crypto::{CryptoProvider, SecureRandom};
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};
use url::{Position, Url};
use zeroize::Zeroizing;

use address::Trust;
pub use body::Body;
use body::Driver;
pub use compare::{Comparison, Recorded};
use connect::Route;
pub use credentials::{Credentials, SecretError, credentials_for};
use dns::Resolver;
use error::At;
pub use error::{Fault, RedirectRefusal, SourceError};
pub use mirror::Mirrors;
pub use open::{Facts, OpenRequest, Opened, Resume};
pub use probe::Peeked;
pub use proxy::{NoProxy, ProxySettings, ProxyUrl};
pub use range::Validator;
pub use registry::{ContainerImage, Layer, Registry, RegistryFault};
pub use schematic::{canonical_yaml, certain_schematic_id, local_schematic_id};
pub use settings::{Caps, Deadlines, EgressSettings};
pub use talos::{SchematicRequest, image_url};
use tls::Trusts;

/// What the daemon calls itself to upstreams and proxies.
pub const USER_AGENT: &str = concat!("golden-catalog/", env!("CARGO_PKG_VERSION"));

/// The header that a Talos Image Factory echoes and logs, as many servers do.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The guarded client. Cheap to clone; clones share settings and trust.
#[derive(Clone)]
pub struct Egress {
    inner: Arc<Inner>,
}

struct Inner {
    settings: EgressSettings,
    provider: Arc<CryptoProvider>,
    trusts: Trusts,
    resolver: Resolver,
}

impl Inner {
    fn random(&self) -> &dyn SecureRandom {
        self.provider.secure_random
    }
}

/// The settings cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the global CA bundle cannot be used: {0}")]
pub struct InvalidSettings(String);

/// One request, before any redirect.
#[derive(Debug)]
pub struct Request<'a> {
    /// The method; `GET` and `HEAD` follow every redirect, others only where their body stays with the same server.
    pub method: Method,
    /// Where to.
    pub url: &'a Url,
    /// Who named the host.
    pub trust: Trust,
    /// Headers besides those that every request has (`Host`, `User-Agent`, `Accept-Encoding`, `X-Request-ID`).
    pub headers: HeaderMap,
    /// Sent to this URL's origin only.
    pub credentials: Option<&'a Credentials>,
    /// PEM certificates trusted besides the common ones.
    pub ca_bundle: Option<&'a [u8]>,
    /// The body; empty for most.
    pub body: Bytes,
    /// Little is going to be read: keeps the receive buffer small.
    pub small: bool,
}

impl<'a> Request<'a> {
    /// A `GET` of a URL that the hoster wrote.
    pub fn get(url: &'a Url) -> Self {
        Self {
            method: Method::GET,
            url,
            trust: Trust::Written,
            headers: HeaderMap::new(),
            credentials: None,
            ca_bundle: None,
            body: Bytes::new(),
            small: false,
        }
    }
}

/// An answer that is no redirect, whatever its status.
#[derive(Debug)]
pub struct Response {
    /// Where it came from, after redirects.
    pub url: Url,
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The ID that the request was sent with.
    pub request_id: String,
    /// The body.
    pub body: Body,
    /// What must not appear in a message about this answer.
    secrets: Vec<Zeroizing<String>>,
    egress: Egress,
}

impl Response {
    fn at(&self) -> At {
        At::new(&self.url, &self.request_id)
    }

    fn error(&self, fault: Fault) -> SourceError {
        SourceError::new(fault, self.at())
    }
}

impl std::fmt::Debug for Egress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Egress").field("settings", &self.inner.settings).finish_non_exhaustive()
    }
}

impl Egress {
    /// A client with these settings. Reads the system's certificate authorities.
    ///
    /// # Errors
    /// The CA bundle in `settings` is not one.
    pub fn new(settings: EgressSettings) -> Result<Self, InvalidSettings> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let trusts = Trusts::new(Arc::clone(&provider), settings.ca_bundle.as_deref().map(str::as_bytes)).map_err(InvalidSettings)?;
        let resolver = settings.resolver.map_or(Resolver::System, Resolver::Server);
        if settings.allow_loopback {
            tracing::warn!("egress to loopback addresses is allowed: for tests only");
        }
        if let Some(server) = settings.resolver {
            tracing::warn!(%server, "names of upstreams are resolved by this server instead of the system's: for tests only");
        }
        Ok(Self { inner: Arc::new(Inner { settings, provider, trusts, resolver }) })
    }

    /// The settings in force.
    pub fn settings(&self) -> &EgressSettings {
        &self.inner.settings
    }

    /// Sends a request and follows redirects to an answer.
    ///
    /// # Errors
    /// Everything short of an answer: names, addresses, connections, TLS, redirects, heads, deadlines.
    pub async fn send(&self, request: &Request<'_>) -> Result<Response, SourceError> {
        let settings = &self.inner.settings;
        let request_id = self.request_id();
        let at = |url: &Url| At::new(url, &request_id);
        let tls = self.inner.trusts.config(request.ca_bundle);
        let tls = tls.map_err(|what| SourceError::new(Fault::CaBundle { what }, at(request.url)))?;
        let deadline = Instant::now() + settings.deadlines.first_byte;
        let mut secrets = request.credentials.map(Credentials::secrets).unwrap_or_default();
        let (mut url, mut trust, mut with_credentials) = (request.url.clone(), request.trust, true);
        for _ in 0..=settings.caps.redirects {
            secrets.extend(secrets_of_query(&url));
            let route = Route {
                url: &url,
                trust,
                tls: &tls,
                deadline: deadline.min(Instant::now() + settings.deadlines.connect),
                small: request.small,
            };
            let (answer, driver) = self
                .exchange(request, &route, with_credentials, &request_id, deadline)
                .await
                .map_err(|fault| SourceError::new(fault, at(&url)))?;
            let (head, incoming) = answer.into_parts();
            if !redirect::is_redirect(head.status) {
                let announced = if request.method == Method::HEAD { None } else { content_length(&head.headers) };
                let body = Body::new(incoming, driver, at(&url), (&settings.deadlines, &settings.caps), announced);
                return Ok(Response { url, status: head.status, headers: head.headers, request_id, body, secrets, egress: self.clone() });
            }
            let hop = redirect::next_hop(request.url, &url, head.status, head.headers.get(header::LOCATION), !request.body.is_empty());
            let hop = hop.map_err(|(to, why)| SourceError::new(Fault::RedirectRefused { to, why }, at(&url)))?;
            tracing::debug!(from = %error::shown(&url), to = %error::shown(&hop.url), request_id, "following a redirect");
            (url, trust, with_credentials) = (hop.url, hop.trust, hop.keeps_credentials);
        }
        Err(SourceError::new(Fault::RedirectRefused { to: error::shown(&url), why: RedirectRefusal::TooMany }, at(request.url)))
    }

    /// One request on one connection.
    async fn exchange(
        &self,
        request: &Request<'_>,
        route: &Route<'_>,
        with_credentials: bool,
        request_id: &str,
        deadline: Instant,
    ) -> Result<(http::Response<hyper::body::Incoming>, Driver), Fault> {
        let settings = &self.inner.settings;
        let connection = self.connect(route).await?;
        let mut message = message(request, route.url, with_credentials, request_id, connection.forward)?;
        let flooded = interim_answers(&mut message);
        let failed = |error: hyper::Error| self.no_answer(&error, route.url);
        let handshake = http1::Builder::new()
            .max_buf_size(Body::LARGEST_CHUNK.max(settings.caps.header_bytes))
            .max_header_size(settings.caps.header_bytes)
            .handshake::<_, Full<Bytes>>(TokioIo::new(connection.io));
        let (mut sender, connection) = handshake.await.map_err(failed)?;
        let driver = Driver::spawn(connection);
        let answer = tokio::select! {
            biased;
            () = flooded.notified() => {
                return Err(Fault::NotHttp { what: format!("it sent more than {MOST_INTERIM} interim answers (1xx) and no real one") });
            }
            answer = timeout_at(deadline, sender.send_request(message)) => answer,
        };
        let answer = answer.map_err(|_| Fault::NoAnswer { after: settings.deadlines.first_byte })?.map_err(failed)?;
        Ok((answer, driver))
    }

    /// What it means that a request got no response head.
    fn no_answer(&self, error: &hyper::Error, url: &Url) -> Fault {
        let cause = std::error::Error::source(error);
        // With TLS 1.3 a server refuses a client only after the handshake.
        let io = cause.and_then(|cause| cause.downcast_ref::<std::io::Error>());
        if let Some(tls) = io.and_then(|io| io.get_ref()).and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            let peer = url[Position::BeforeHost..Position::AfterPort].to_owned();
            return Fault::Tls { peer, what: tls::explain(tls) };
        }
        if error.is_parse_too_large() {
            return Fault::HeadersTooLarge { limit: self.inner.settings.caps.header_bytes };
        }
        let what = if error.is_incomplete_message() {
            "it closed the connection".to_owned()
        } else {
            answer::clean(&cause.map_or_else(|| error.to_string(), ToString::to_string), &[])
        };
        if error.is_parse() { Fault::NotHttp { what } } else { Fault::Interrupted { received: 0, what } }
    }

    /// A random ID (a version 4 UUID) for one request and its redirects.
    fn request_id(&self) -> String {
        let mut bytes = [0_u8; 16];
        if self.inner.random().fill(&mut bytes).is_err() {
            // Without randomness no TLS works either; the time still tells requests apart in a log.
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            bytes = now.as_nanos().to_be_bytes();
        }
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| hex.get(part).unwrap_or_default()).join("-")
    }
}

/// The request as it is written: in origin-form, or in absolute-form for a proxy that forwards it.
fn message(
    request: &Request<'_>,
    url: &Url,
    with_credentials: bool,
    request_id: &str,
    forward: Option<Option<String>>,
) -> Result<http::Request<Full<Bytes>>, Fault> {
    let from = if forward.is_some() { Position::BeforeScheme } else { Position::BeforePath };
    let target = &url[from..Position::AfterQuery];
    let host = &url[Position::BeforeHost..Position::AfterPort];
    let mut headers = HeaderMap::new();
    let mut put = |name: HeaderName, value: &str| match HeaderValue::from_str(value) {
        Ok(value) => {
            headers.insert(name, value);
            Ok(())
        }
        Err(_) => Err(Fault::UnfitAddress),
    };
    put(header::HOST, host)?;
    put(header::USER_AGENT, USER_AGENT)?;
    put(header::ACCEPT, "*/*")?;
    put(header::ACCEPT_ENCODING, "identity")?;
    put(header::CONNECTION, "close")?;
    put(REQUEST_ID, request_id)?;
    if let Some(Some(authorization)) = forward {
        put(header::PROXY_AUTHORIZATION, &authorization)?;
    }
    if let Some(credentials) = request.credentials.filter(|_| with_credentials) {
        let value = credentials.authorization().ok_or(Fault::UnfitCredentials)?;
        headers.insert(header::AUTHORIZATION, value);
    }
    headers.extend(request.headers.clone());
    let mut message = http::Request::new(Full::new(request.body.clone()));
    *message.method_mut() = request.method.clone();
    *message.uri_mut() = target.parse().map_err(|_| Fault::UnfitAddress)?;
    *message.headers_mut() = headers;
    Ok(message)
}

/// The most interim answers (1xx) before the real one: servers that send them send one or two.
const MOST_INTERIM: usize = 32;

/// Told once more interim answers than [`MOST_INTERIM`] have come for `message`.
fn interim_answers(message: &mut http::Request<Full<Bytes>>) -> Arc<Notify> {
    let flooded = Arc::new(Notify::new());
    let (told, count) = (Arc::clone(&flooded), AtomicUsize::new(0));
    hyper::ext::on_informational(message, move |_| {
        if count.fetch_add(1, Ordering::Relaxed) == MOST_INTERIM {
            told.notify_one();
        }
    });
    flooded
}

/// What a query may hold that no message may repeat: all of it, and each value long enough to be a signature or token.
fn secrets_of_query(url: &Url) -> Vec<Zeroizing<String>> {
    const SHORTEST: usize = 8;
    let values = url.query_pairs().map(|(_, value)| Zeroizing::new(value.into_owned())).filter(|value| value.len() >= SHORTEST);
    url.query().map(|query| Zeroizing::new(query.to_owned())).into_iter().chain(values).collect()
}

/// The announced length of a body.
fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{Egress, EgressSettings, OpenRequest, SchematicRequest};

    /// The daemon spawns these.
    #[allow(dead_code, reason = "it only has to compile")]
    fn futures_can_be_spawned(egress: &Egress, request: &OpenRequest<'_>, schematic: &SchematicRequest<'_>) {
        fn send<T: Send>(_: T) {}
        send(egress.open(request));
        send(egress.peek(request, 1));
        send(egress.look(request));
        send(egress.resolve_schematic(schematic));
        send(egress.stated_digest(request));
        send(in_registry(egress, request));
    }

    async fn in_registry(egress: &Egress, request: &OpenRequest<'_>) {
        let crate::model::Source::ContainerDisk { reference, architecture } = request.source else { return };
        let mut registry = egress.registry(request, reference, *architecture);
        let Ok(image) = registry.image().await else { return };
        let _ = registry.open(&image.layers[0]).await;
        let _ = registry.begin(&image.layers[0], 1).await;
    }

    #[test]
    fn a_signature_alone_is_a_secret_too() {
        let url = "https://s3.example/k?X-Amz-Signature=5ea1ed51gnature&v=1".parse().expect("URL");
        let secrets: Vec<_> = super::secrets_of_query(&url).iter().map(|secret| secret.to_string()).collect();
        assert_eq!(secrets, ["X-Amz-Signature=5ea1ed51gnature&v=1", "5ea1ed51gnature"]);
    }

    #[test]
    fn request_ids_are_uuids_and_differ() {
        let egress = Egress::new(EgressSettings::default()).expect("client");
        let (a, b) = (egress.request_id(), egress.request_id());
        assert_ne!(a, b);
        let dashes: Vec<_> = a.match_indices('-').map(|(at, _)| at).collect();
        assert_eq!((a.len(), dashes), (36, vec![8, 13, 18, 23]));
    }
}
