//! Clients of the API server, each with the limits its use needs.
//!
//! kube's own default retries 429, 503 and 504 for up to 15 times with growing delays, and waits for an answer without end.
//! Here every caller has its own deadline and its own idea of when to try again, so no client retries by itself.

use super::lease::{Claim, Lost};
use http::{Method, Request, Response};
use http_body::{Frame, SizeHint};
use hyper_util::{client::legacy, rt::TokioExecutor};
use kube::{
    Client, Config,
    client::{Body, ConfigExt},
};
use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use tower::{BoxError, Layer, ServiceExt};

/// The longest a write may take until its answer begins. The API server itself gives up after 60 s; a claim ends sooner than
/// that, and the write with it.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest a read may take until its answer begins, unless a hoster says otherwise: longer than the API server takes to give up.
/// A leader's loop that waits for ever for one answer would do nothing else any more.
pub const READ_TIMEOUT: Duration = Duration::from_secs(65);

/// How this program calls itself in the API server's audit log.
const USER_AGENT: &str = concat!("golden-catalog/", env!("CARGO_PKG_VERSION"));

fn named(config: &Config) -> Config {
    let mut config = config.clone();
    config.headers.push((http::header::USER_AGENT, http::HeaderValue::from_static(USER_AGENT)));
    config
}

/// A client that does not retry: for watches, live reads and the Lease. Every request through it needs a deadline of its own.
///
/// # Errors
/// When the configuration cannot be used (a CA, key or header that does not parse).
pub fn reader(config: &Config) -> kube::Result<Client> {
    let mut config = named(config);
    config.default_retry = false;
    Client::try_from(config)
}

/// A client that writes only while `claim` holds, so that no path can forget to check.
///
/// Reads pass, and have a deadline: `read_timeout` to the begin of the answer, and as long again to its end. Every other request is refused with [`Lost`] when the claim is over, and checked once more when its body is handed to the
/// connection: DNS, connecting, TLS and fetching a token can take long, and the process may be paused in between. A
/// write on its way keeps the Lease from being given up, also when nobody waits for its answer any more; one whose answer is
/// outstanding when the claim ends is dropped and its connection closed. The client belongs to one
/// term: leading again means a new claim and a new client, and work begun under the old one cannot write.
///
/// # Errors
/// As for [`reader`].
pub fn writer(config: &Config, claim: &Claim, read_timeout: Duration) -> kube::Result<Client> {
    let config = named(config);
    let connector = config.rustls_https_connector()?;
    let http: legacy::Client<_, Guarded> = legacy::Client::builder(TokioExecutor::new()).build(connector);
    let claim = claim.clone();
    let wire = tower::service_fn(move |request: Request<Body>| bounded(http.clone(), claim.clone(), read_timeout, request));
    let stack = config.extra_headers_layer()?.layer(wire);
    let stack = match config.auth_layer()? {
        Some(auth) => auth.layer(stack).map_err(BoxError::from).boxed(),
        None => stack.boxed(),
    };
    Ok(Client::new(config.base_uri_layer().layer(stack), config.default_namespace.clone()))
}

/// Whether an API error is the refusal of a write whose claim is over. It is no failure: whoever leads now does the work.
pub fn is_lost(error: &kube::Error) -> bool {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        if error.is::<Lost>() {
            return true;
        }
        next = error.source();
    }
    false
}

/// Sends one request whose answer has an end: a body may stop coming just as its head may.
///
/// A write is a task of its own: whoever waits for it may be dropped, and what is on its way still keeps the Lease until the API
/// server has answered, so that it cannot be carried out after what a successor wrote.
async fn bounded<C>(
    http: legacy::Client<C, Guarded>,
    claim: Claim,
    read_timeout: Duration,
    request: Request<Body>,
) -> Result<Response<axum::body::Body>, BoxError>
where
    C: legacy::connect::Connect + Clone + Send + Sync + 'static,
{
    let patience = patience(request.uri().query().unwrap_or_default(), read_timeout);
    let answer = if matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS) {
        let request = request.map(|body| Guarded { body, claim: None });
        let answer = tokio::time::timeout(read_timeout, http.request(request)).await.map_err(|_| ReadTimedOut(read_timeout))?;
        answer?.map(axum::body::Body::new)
    } else {
        tokio::spawn(send(http, claim, request)).await??
    };
    Ok(answer.map(|body| axum::body::Body::new(Timed::new(body, patience))))
}

/// How long the body of an answer may take: of a watch, for as long as it was asked to go on, and a read's time more.
fn patience(query: &str, read_timeout: Duration) -> Duration {
    let value = |name: &str| query.split('&').filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name).map(|(_, value)| value);
    if value("watch") != Some("true") {
        return read_timeout;
    }
    let seconds = value("timeoutSeconds").and_then(|seconds| seconds.parse::<u32>().ok()).unwrap_or(LONGEST_WATCH);
    read_timeout.saturating_add(Duration::from_secs(seconds.min(LONGEST_WATCH).into()))
}

/// The longest watch by this client, in seconds; kube asks for 290.
const LONGEST_WATCH: u32 = 600;

/// Sends one write under the claim.
async fn send<C>(http: legacy::Client<C, Guarded>, claim: Claim, request: Request<Body>) -> Result<Response<axum::body::Body>, BoxError>
where
    C: legacy::connect::Connect + Clone + Send + Sync + 'static,
{
    let _write = claim.begin()?;
    let request = request.map(|body| Guarded { body, claim: Some(claim.clone()) });
    let answer = tokio::time::timeout(WRITE_TIMEOUT, http.request(request));
    tokio::select! {
        biased;
        () = claim.lost() => Err(Lost { epoch: claim.epoch() }.into()),
        answer = answer => Ok(answer.map_err(|_| WriteTimedOut)??.map(axum::body::Body::new)),
    }
}

/// The API server took too long; whether it wrote is unknown, so what was written must be read before it is written again.
#[derive(Debug, thiserror::Error)]
#[error("the API server did not answer a write within {WRITE_TIMEOUT:?}; it is not known whether it was carried out")]
struct WriteTimedOut;

/// The API server took too long to answer a read.
#[derive(Debug, thiserror::Error)]
#[error("the API server did not answer within {0:?}")]
struct ReadTimedOut(Duration);

/// A request's body that asks the claim when the connection wants it, which is right before the bytes leave.
struct Guarded {
    body: Body,
    claim: Option<Claim>,
}

impl http_body::Body for Guarded {
    type Data = bytes::Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Self::Data>, BoxError>>> {
        if let Some(claim) = &self.claim
            && let Err(lost) = claim.check()
        {
            return Poll::Ready(Some(Err(lost.into())));
        }
        Pin::new(&mut self.body).poll_frame(context).map_err(BoxError::from)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

/// An answer's body, until its time is over.
struct Timed {
    body: axum::body::Body,
    patience: Duration,
    over: Pin<Box<tokio::time::Sleep>>,
}

/// The API server began an answer and did not end it.
#[derive(Debug, thiserror::Error)]
#[error("the API server did not end its answer within {0:?}")]
struct BodyTimedOut(Duration);

impl Timed {
    fn new(body: axum::body::Body, patience: Duration) -> Self {
        Self { body, patience, over: Box::pin(tokio::time::sleep(patience)) }
    }
}

impl http_body::Body for Timed {
    type Data = bytes::Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Self::Data>, BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            return Poll::Ready(frame.map(|frame| frame.map_err(BoxError::from)));
        }
        let patience = self.patience;
        self.over.as_mut().poll(context).map(|()| Some(Err(BodyTimedOut(patience).into())))
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
