use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::{ConnectInfo, Request, State},
    response::Response,
};
use http::{HeaderValue, Method, StatusCode, header, response::Builder};
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    body::{Buffers, Transfer},
    range::{Part, wanted},
};
use crate::spool::{
    Lease, Registry, Store,
    registry::{Found, OpenRequest},
};

/// What a request is answered from.
#[derive(Clone)]
pub(super) struct App {
    pub(super) registry: Registry,
    pub(super) store: Store,
    pub(super) hold: Duration,
    pub(super) buffers: Buffers,
    pub(super) transfers: Arc<Semaphore>,
    /// Cancelled when the server ends: nobody fetches for it any more.
    pub(super) ending: CancellationToken,
}

/// How long a client that is told to come back should wait.
const RETRY_AFTER: Duration = Duration::from_secs(10);
/// What a request is told that was held when the server ended: another one leads soon, or does already.
const ENDING: &str = "the catalog is ending\n";
/// How often a failing volume is asked again while a request is held.
const VOLUME_RETRY: Duration = Duration::from_secs(2);

pub(super) async fn answer(State(app): State<App>, ConnectInfo(peer): ConnectInfo<SocketAddr>, request: Request) -> Response {
    let entry = match app.registry.find(request.uri().path()) {
        Found::Live(entry) => entry,
        Found::Gone => return plain(StatusCode::GONE, "this golden has its disk; it is not imported again\n"),
        Found::NotYet => return later("the catalog is starting\n"),
        Found::Unknown => return plain(StatusCode::NOT_FOUND, "no such disk\n"),
    };
    if !request.headers().get(header::AUTHORIZATION).is_some_and(|value| entry.accepts(value.as_bytes())) {
        app.registry.refused(&entry, peer.ip());
        return finish(base(StatusCode::UNAUTHORIZED).header(header::WWW_AUTHENTICATE, "Bearer"), Body::from("wrong token\n"));
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return finish(base(StatusCode::METHOD_NOT_ALLOWED).header(header::ALLOW, "GET, HEAD"), Body::from("GET or HEAD only\n"));
    }
    let mut open = app.registry.begin(entry);
    match app.obtain(&mut open).await {
        Ok(lease) => app.send(&request, lease, open),
        Err(refusal) => refusal,
    }
}

impl App {
    /// The disk, waited for while it is being fetched again, or the answer to give without it.
    async fn obtain(&self, open: &mut OpenRequest) -> Result<Lease, Response> {
        let deadline = Instant::now() + self.hold;
        let ended = open.entry.ended.clone();
        let mut changes = self.store.changes();
        loop {
            changes.mark_unchanged();
            let (store, digest) = (self.store.clone(), open.entry.grant.disk);
            let looked = tokio::task::spawn_blocking(move || store.lease(&digest)).await;
            let again = match looked {
                Ok(Ok(Some(lease))) => {
                    open.set_waiting(false);
                    return Ok(lease);
                }
                Ok(Ok(None)) => deadline,
                Ok(Err(e)) => {
                    tracing::warn!(golden = %open.entry.grant.golden, error = %e, "an importer waits for the spool's volume");
                    deadline.min(Instant::now() + VOLUME_RETRY)
                }
                Err(_) => return Err(later(ENDING)),
            };
            if Instant::now() >= deadline {
                return Err(later("the disk is being fetched again\n"));
            }
            open.set_waiting(true);
            tokio::select! {
                () = ended.cancelled() => return Err(plain(StatusCode::GONE, "this golden's import has ended\n")),
                () = self.ending.cancelled() => return Err(later(ENDING)),
                () = sleep_until(again) => {}
                // The sender is in the store, which is here.
                _ = changes.changed() => {}
            }
        }
    }

    fn send(&self, request: &Request, lease: Lease, open: OpenRequest) -> Response {
        let (etag, length) = (format!("\"{}\"", lease.digest()), lease.length());
        let part = wanted(request.method(), request.headers(), &etag, length);
        let base = |status| base(status).header(header::ETAG, etag.as_str()).header(header::ACCEPT_RANGES, "bytes");
        let (range, head) = match part {
            Part::Whole => (0..length, base(StatusCode::OK)),
            Part::Bytes(range) => {
                let shown = format!("bytes {}-{}/{length}", range.start, range.end.saturating_sub(1));
                (range, base(StatusCode::PARTIAL_CONTENT).header(header::CONTENT_RANGE, shown))
            }
            Part::Unsatisfiable => {
                let head = base(StatusCode::RANGE_NOT_SATISFIABLE).header(header::CONTENT_RANGE, format!("bytes */{length}"));
                return finish(head, Body::from("the range begins past the end\n"));
            }
            Part::NotModified => return finish(base(StatusCode::NOT_MODIFIED), Body::empty()),
            Part::PreconditionFailed => return finish(base(StatusCode::PRECONDITION_FAILED), Body::from("another disk is here\n")),
        };
        let head = head.header(header::CONTENT_LENGTH, range.end - range.start).header(header::CONTENT_TYPE, "application/octet-stream");
        if *request.method() == Method::HEAD {
            return finish(head, Body::empty());
        }
        let Ok(permit) = Arc::clone(&self.transfers).try_acquire_owned() else { return later("too many disks are being sent\n") };
        let is_whole = range == (0..length);
        let transfer = Transfer { lease, range, is_whole, request: open, buffers: self.buffers.clone(), _permit: permit };
        finish(head, Body::from_stream(transfer.into_stream()))
    }
}

fn base(status: StatusCode) -> Builder {
    Response::builder().status(status).header(header::CACHE_CONTROL, "no-store")
}

fn plain(status: StatusCode, text: &'static str) -> Response {
    finish(base(status), Body::from(text))
}

fn later(text: &'static str) -> Response {
    let head = base(StatusCode::SERVICE_UNAVAILABLE).header(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER.as_secs()));
    finish(head, Body::from(text))
}

fn finish(head: Builder, body: Body) -> Response {
    // Every header above is valid text, so this cannot fail; if it did, a bare 500 is the honest answer.
    head.body(body).unwrap_or_else(|_| {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        response
    })
}
