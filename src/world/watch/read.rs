//! List, watch, and begin again: the protocol of one watch.

use super::{
    Selection, WatchSettings,
    decode::{self, Item, Line},
    served::{Served, Wanted, served},
    state::{Phase, WatchState},
};
use crate::run::{api_error, backoff::Backoff};
use futures::{AsyncBufRead, AsyncBufReadExt, StreamExt};
use http::Request as HttpRequest;
use kube::{
    Client, Resource,
    api::{ListParams, WatchParams},
    core::{Request, Status},
};
use serde::de::DeserializeOwned;
use std::{
    marker::PhantomData,
    pin::Pin,
    time::{Duration, Instant},
};
use tokio::sync::Notify;

/// How long a watch lasts; below the idle time of the load balancers in front of API servers (240 s and more).
const WATCH_SECONDS: u32 = 200;
/// How long a watch may be silent. A bookmark comes every minute where the kind is cached; where not, the end of the watch is
/// the next sign.
pub(super) const SILENCE: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 5);
/// How often a kind that is not installed or refused is looked for.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// A watch that ends sooner is not believed to have ended well, or a server that ends each at once would be asked in a loop.
const SHORT: Duration = Duration::from_secs(1);

/// What to ask for.
#[derive(Debug)]
pub(super) struct Query {
    path: String,
    wanted: Wanted,
    selection: Selection,
    settings: WatchSettings,
}

/// What the protocol yields.
#[derive(Debug)]
pub(super) enum Step<K> {
    /// A list begins.
    Begin,
    /// An object is there.
    Put(Item<K>),
    /// An object is gone.
    Delete(Item<K>),
    /// The list is complete.
    Complete,
    /// The API server does not know the kind, so there are no objects of it.
    NotInstalled,
}

/// Why a list or watch ended.
#[derive(Debug)]
pub(super) enum Failure {
    /// The resourceVersion is too old: list again.
    Gone,
    /// The kind is not known.
    NotFound(String),
    /// The kind is served in another version that can be read, or is about to be served.
    Moved,
    /// The kind may not be read.
    Refused(String),
    /// Anything else, and how long the API server wants to be left alone.
    Other(String, Option<Duration>),
}

impl Failure {
    pub(super) fn of(error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::status(status),
            other => Self::Other(api_error(other), None),
        }
    }

    fn status(status: &Status) -> Self {
        let text = if status.message.is_empty() { format!("HTTP {}", status.code) } else { status.message.clone() };
        match status.code {
            410 => Self::Gone,
            404 => Self::NotFound(text),
            401 | 403 => Self::Refused(text),
            _ => {
                let seconds = status.details.as_ref().map(|details| details.retry_after_seconds).filter(|seconds| *seconds > 0);
                Self::Other(text, seconds.map(|seconds| Duration::from_secs(u64::from(seconds))))
            }
        }
    }

    fn timed_out(what: &str, after: Duration) -> Self {
        Self::Other(format!("{what} for {} s", after.as_secs()), None)
    }
}

impl Query {
    pub fn new<K: Resource<DynamicType = ()>>(selection: Selection, settings: WatchSettings) -> Self {
        let wanted = Wanted::new::<K>(selection.versions);
        Self { path: K::url_path(&(), selection.namespace.as_deref()), wanted, selection, settings }
    }

    fn list(&self, path: &str, continue_token: Option<String>) -> Result<HttpRequest<Vec<u8>>, Failure> {
        let params = ListParams {
            label_selector: self.selection.labels.clone(),
            field_selector: self.selection.fields.clone(),
            limit: Some(self.settings.page),
            continue_token,
            ..ListParams::default()
        };
        let request = Request::new(path);
        let request = if self.selection.metadata_only { request.list_metadata(&params) } else { request.list(&params) };
        request.map_err(|error| Failure::Other(error.to_string(), None))
    }

    /// A watch from `resource_version`, or one that begins with the list. The latter asks for no version, which means the newest:
    /// version 0, as kube asks, may bring back what was gone.
    fn watch(&self, path: &str, resource_version: Option<&str>) -> Result<HttpRequest<Vec<u8>>, Failure> {
        let params = WatchParams {
            label_selector: self.selection.labels.clone(),
            field_selector: self.selection.fields.clone(),
            timeout: Some(WATCH_SECONDS),
            bookmarks: true,
            send_initial_events: resource_version.is_none(),
        };
        let (request, version) = (Request::new(path), resource_version.unwrap_or_default());
        let request = if self.selection.metadata_only { request.watch_metadata(&params, version) } else { request.watch(&params, version) };
        let mut request = request.map_err(|error| Failure::Other(error.to_string(), None))?;
        // As kube has it: servers from 1.37 on compress each event on its own, which clients decode only to the first.
        request.headers_mut().entry(http::header::ACCEPT_ENCODING).or_insert(http::HeaderValue::from_static("identity"));
        Ok(request)
    }
}

/// Lists and watches without end. `installed` wakes it when a kind that was not installed may be there.
pub(super) async fn run<K, F>(client: &Client, query: &Query, feed: &mut F, state: &WatchState, installed: &Notify)
where
    K: Resource + DeserializeOwned,
    F: FnMut(Step<K>),
{
    let streaming = query.settings.streaming;
    let path = query.path.clone();
    let mut reader = Reader { client, query, path, feed, state, streaming, resource_version: None, lines: 0, kind: PhantomData };
    let mut attempt = 0;
    loop {
        let begun = Instant::now();
        reader.lines = 0;
        let outcome = tokio::select! {
            outcome = reader.round() => outcome,
            () = state.asked_anew() => Err((Round::Watched, Failure::Gone)),
        };
        // Only a watch that lived shows that the trouble before it is over: lists may work while watches do not.
        let lived = reader.lines > 0 || begun.elapsed() > Backoff::WATCH.next(state.kind(), attempt + 1, None);
        let pause = match outcome {
            Ok(Round::Listed) => continue,
            Ok(Round::Watched) if reader.lines > 0 || begun.elapsed() >= SHORT => {
                attempt = 0;
                continue;
            }
            Ok(Round::Watched) => Backoff::WATCH.next(state.kind(), attempt + 1, None),
            Err((round, failure)) => {
                if round == Round::Watched && lived {
                    attempt = 0;
                }
                let failure = reader.not_found(failure).await;
                let pause = pause(&failure, state.kind(), attempt + 1);
                reader.failed(failure);
                pause
            }
        };
        attempt += 1;
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = installed.notified(), if state.phase() == Phase::NotInstalled => {}
            () = state.asked_anew() => reader.resource_version = None,
        }
    }
}

/// How long to wait after a failure.
fn pause(failure: &Failure, kind: &str, attempt: u32) -> Duration {
    match failure {
        // The next list is the cure; only when that ends in the same way is there something to wait for.
        Failure::Gone | Failure::Moved if attempt == 1 => Duration::ZERO,
        Failure::Moved => Backoff::WATCH.next(kind, attempt, None),
        Failure::Gone => Backoff::WATCH.next(kind, attempt, None),
        Failure::NotFound(_) | Failure::Refused(_) => Backoff::WATCH.next(kind, attempt, Some(LOOK_AGAIN)),
        Failure::Other(_, wish) => Backoff::WATCH.next(kind, attempt, *wish),
    }
}

/// One request, or one series of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Round {
    Listed,
    Watched,
}

struct Reader<'a, K, F> {
    client: &'a Client,
    query: &'a Query,
    /// Where the kind is, in the version that is served.
    path: String,
    feed: &'a mut F,
    state: &'a WatchState,
    streaming: bool,
    /// Where to go on watching; `None`: list first.
    resource_version: Option<String>,
    /// Events and bookmarks of this round.
    lines: u64,
    kind: PhantomData<fn() -> K>,
}

impl<K, F> Reader<'_, K, F>
where
    K: Resource + DeserializeOwned,
    F: FnMut(Step<K>),
{
    async fn round(&mut self) -> Result<Round, (Round, Failure)> {
        if self.resource_version.is_none() && !self.streaming {
            return self.list().await.map(|()| Round::Listed).map_err(|failure| (Round::Listed, failure));
        }
        self.watch().await.map(|()| Round::Watched).map_err(|failure| (Round::Watched, failure))
    }

    /// Lists page by page.
    async fn list(&mut self) -> Result<(), Failure> {
        let mut token = None;
        let mut begun = false;
        loop {
            let request = self.query.list(&self.path, token)?;
            let limit = self.query.settings.answer;
            let answer = tokio::time::timeout(limit, self.client.request_text(request)).await;
            let text = answer.map_err(|_| Failure::timed_out("no answer to a list", limit))?.map_err(|error| Failure::of(&error))?;
            let page = decode::page::<K>(&text).map_err(|error| Failure::Other(format!("the answer is no list: {error}"), None))?;
            self.state.heard();
            if !std::mem::replace(&mut begun, true) {
                (self.feed)(Step::Begin);
            }
            for item in page.items {
                (self.feed)(Step::Put(item));
            }
            token = page.continue_token;
            if token.is_none() {
                let version = page.resource_version.ok_or_else(|| Failure::Other("the list has no resourceVersion".to_owned(), None))?;
                self.resource_version = Some(version);
                (self.feed)(Step::Complete);
                return Ok(());
            }
        }
    }

    /// Watches from where it stood, or from the list on where that is taken as a stream.
    async fn watch(&mut self) -> Result<(), Failure> {
        let mut listing = self.resource_version.is_none();
        let request = self.query.watch(&self.path, self.resource_version.as_deref())?;
        let WatchSettings { answer: limit, silence, .. } = self.query.settings;
        let answer = tokio::time::timeout(limit, self.client.request_stream(request)).await;
        let body = match answer.map_err(|_| Failure::timed_out("no answer to a watch", limit))? {
            Ok(body) => body,
            // A server without streaming lists, or with the feature off (KEP-3157).
            Err(kube::Error::Api(status)) if listing && matches!(status.code, 400 | 422) => {
                self.streaming = false;
                return self.list().await;
            }
            Err(error) => return Err(Failure::of(&error)),
        };
        self.state.heard();
        if listing {
            (self.feed)(Step::Begin);
        }
        let body: Pin<Box<dyn AsyncBufRead + Send + '_>> = Box::pin(body);
        let mut lines = body.lines();
        loop {
            let line =
                tokio::time::timeout(silence, lines.next()).await.map_err(|_| Failure::timed_out("the watch was silent", silence))?;
            let text = match line {
                Some(Ok(text)) => text,
                Some(Err(error)) => return Err(Failure::Other(error.to_string(), None)),
                None if listing => return Err(Failure::Other("the stream ended before its list was complete".to_owned(), None)),
                None => return Ok(()),
            };
            let line = match decode::line::<K>(&text) {
                Ok(line) => line,
                // Cut off in the middle of a line, which the next read will tell.
                Err(error) if error.is_eof() => continue,
                Err(error) => return Err(Failure::Other(format!("the watch sent what is no event: {error}"), None)),
            };
            if let Line::Error(status) = &line {
                return Err(Failure::status(status));
            }
            self.state.heard();
            self.lines += 1;
            self.take(line, &mut listing);
        }
    }

    /// Hands a line on and remembers where the watch stands.
    fn take(&mut self, line: Line<K>, listing: &mut bool) {
        let version = match &line {
            Line::Put(item) | Line::Delete(item) => item.resource_version().map(str::to_owned),
            Line::Bookmark { resource_version, .. } => Some(resource_version.clone()),
            Line::Error(_) => None,
        };
        // In a list that is under way objects come in no order of version; only its end says where to go on.
        let complete = matches!(line, Line::Bookmark { end_of_list: true, .. });
        if !*listing || complete {
            self.resource_version = version.filter(|version| !version.is_empty()).or_else(|| self.resource_version.take());
        }
        match line {
            Line::Put(item) => (self.feed)(Step::Put(item)),
            Line::Delete(item) => (self.feed)(Step::Delete(item)),
            Line::Bookmark { .. } if *listing && complete => {
                *listing = false;
                (self.feed)(Step::Complete);
            }
            Line::Bookmark { .. } | Line::Error(_) => {}
        }
    }

    /// Looks what a 404 means before anything is concluded from it.
    async fn not_found(&mut self, failure: Failure) -> Failure {
        let Failure::NotFound(_) = failure else { return failure };
        let limit = self.query.settings.answer;
        match tokio::time::timeout(limit, served(self.client, &self.query.wanted)).await {
            Ok(Ok(Served::Nowhere)) => failure,
            Ok(Ok(Served::In(version))) => {
                self.path = self.query.wanted.path(&self.query.path, &version);
                Failure::Moved
            }
            Ok(Err(failure)) => failure,
            Err(_) => Failure::timed_out("no answer to the question what is served", limit),
        }
    }

    /// Draws the conclusions of a failure.
    fn failed(&mut self, failure: Failure) {
        match failure {
            Failure::Gone | Failure::Moved => {
                self.resource_version = None;
                self.state.gone();
            }
            Failure::NotFound(text) => {
                self.resource_version = None;
                (self.feed)(Step::NotInstalled);
                self.state.failed(text, Some(Phase::NotInstalled));
            }
            Failure::Refused(text) => {
                self.resource_version = None;
                self.state.failed(text, Some(Phase::Refused));
            }
            Failure::Other(text, _) => self.state.failed(text, None),
        }
    }
}
