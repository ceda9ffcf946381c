//! Our TLS proxy between a daemon and the API server. It is no API server and no product of anybody else's: it ends TLS with
//! the API server's own certificate, sees each request, and passes it on, holds it, refuses it or cuts it as a test wants.
//!
//! What it counts are writes: every request that asks for a change but those of the Lease, whose number depends on time
//! (`lease.rs` kills around them). Events count, though they are told when there is time: which write is the n-th differs from
//! round to round, and a round that none is left for ends the count all the same.
#![allow(dead_code, reason = "each test binary uses its part")]

use super::{
    harness::ControlPlane,
    upstream::{Pair, acceptor},
};
use bytes::Bytes;
use futures::TryStreamExt as _;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{net::TcpListener, sync::watch};

type Error = Box<dyn std::error::Error + Send + Sync>;
type Body = UnsyncBoxBody<Bytes, Error>;

/// On which side of a write the daemon is to die.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The API server never hears of it.
    Before,
    /// The API server has carried it out, and the daemon never hears of that.
    After,
}

/// One request as the proxy saw it.
#[derive(Debug, Clone)]
pub struct Seen {
    pub method: Method,
    pub path: String,
}

/// What happens at random, in thousandths of all requests that are no watch.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// Answered with 429, 500, 503, or (writes only) 409, without the API server hearing of it.
    pub refused: u32,
    /// Carried out, but answered with 500.
    pub denied: u32,
    /// Carried out, but the connection breaks before the answer.
    pub cut: u32,
    /// Never answered; writes only: a list that hangs is given up after 65 s, nearly all of a test's patience (`held.rs` has such reads).
    pub hung: u32,
}

/// What is done to all requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    #[default]
    Pass,
    /// Every request is answered with this status.
    Answer(u16),
    /// Requests arrive at once and their answers this much later, as those of a busy server.
    Slow(Duration),
    /// New connections are closed, old ones cut.
    Cut,
    /// No request is answered.
    Hang,
}

#[derive(Default)]
struct Plan {
    trap: Option<(usize, Side)>,
    /// Only writes of paths with this in them count for the trap.
    trapped: Option<String>,
    /// How many of those there were.
    at: usize,
    frozen: bool,
    mode: Mode,
    faults: Option<(Faults, u64)>,
    /// Reads of paths with this in them are not answered.
    deaf: Option<&'static str>,
    /// Reads of paths with this in them, but no watches, get the head of their answer and nothing of its body.
    mute: Option<&'static str>,
    /// Reads of paths with this in them, but no watches, are refused.
    forbidden: Option<&'static str>,
    /// For how many seconds a watch goes on, whatever was asked.
    watches: Option<u32>,
    counted: usize,
    seen: Vec<Seen>,
    hurt: usize,
}

struct State {
    client: reqwest::Client,
    server: String,
    user_agent: Option<String>,
    plan: Mutex<Plan>,
    trapped: watch::Sender<bool>,
    cut: watch::Sender<u64>,
    /// Watches of paths with this in them pass nothing on for now.
    held: watch::Sender<Option<&'static str>>,
    /// Writes of paths with this in them have left the daemon, and do not reach the API server for now.
    slow: watch::Sender<Option<String>>,
    /// How many of those wait.
    waiting: watch::Sender<usize>,
}

/// The running proxy; it ends with the runtime of the test.
pub struct ApiProxy {
    address: SocketAddr,
    state: Arc<State>,
}

impl ApiProxy {
    /// Starts it. With a name, that is what the API server hears as the program that asks, and the audit log shows it.
    pub async fn start(control_plane: &ControlPlane, name: Option<&str>) -> Self {
        let authority = reqwest::Certificate::from_pem(control_plane.ca_pem().as_bytes()).expect("the cluster's CA");
        let client = reqwest::Client::builder().tls_certs_only([authority]).no_proxy().http1_only().build().expect("a client");
        let (certificate, key) = control_plane.server_identity();
        let tls = acceptor(&Pair { certificate, key });
        let state = Arc::new(State {
            client,
            server: control_plane.url(),
            user_agent: name.map(str::to_owned),
            plan: Mutex::default(),
            trapped: watch::Sender::new(false),
            cut: watch::Sender::new(0),
            held: watch::Sender::new(None),
            slow: watch::Sender::new(None),
            waiting: watch::Sender::new(0),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listen");
        let address = listener.local_addr().expect("an address");
        let of_task = Arc::clone(&state);
        tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                let (state, tls) = (Arc::clone(&of_task), tls.clone());
                let mut cut = state.cut.subscribe();
                if state.plan().mode == Mode::Cut {
                    // An attempt to connect counts like a request.
                    state.plan().seen.push(Seen { method: Method::CONNECT, path: String::new() });
                    continue;
                }
                tokio::spawn(async move {
                    let serve = async {
                        let Ok(stream) = tls.accept(stream).await else { return };
                        let service = hyper::service::service_fn(|request| answer(Arc::clone(&state), request));
                        // A broken connection is the client's affair.
                        let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
                    };
                    tokio::select! { () = serve => {}, _ = cut.changed() => {} }
                });
            }
        });
        Self { address, state }
    }

    /// The identity in `kubeconfig`, by way of this proxy.
    pub fn kubeconfig(&self, kubeconfig: &Path) -> PathBuf {
        let text = std::fs::read_to_string(kubeconfig).expect("a kubeconfig");
        let mut config: serde_json::Value = serde_json::from_str(&text).expect("the harness writes JSON");
        config["clusters"][0]["cluster"]["server"] = format!("https://{}", self.address).into();
        let path = kubeconfig.with_extension(format!("{}.kubeconfig", self.address.port()));
        std::fs::write(&path, config.to_string()).expect("write a kubeconfig");
        path
    }

    /// Forgets everything: requests pass, nothing is counted yet.
    pub fn reset(&self) {
        *self.state.plan() = Plan::default();
        self.state.trapped.send_replace(false);
        self.state.held.send_replace(None);
        self.state.slow.send_replace(None);
    }

    /// At the `n`-th write from now on (the first is 1) everything stands still; see [`Self::trapped`].
    pub fn trap(&self, n: usize, side: Side) {
        self.state.plan().trap = Some((n, side));
    }

    /// The same at the `n`-th write of a path with `part` in it.
    pub fn trap_at(&self, part: &str, n: usize, side: Side) {
        let mut plan = self.state.plan();
        (plan.trap, plan.trapped, plan.at) = (Some((n, side)), Some(part.to_owned()), 0);
    }

    /// Waits until the trap has closed.
    pub async fn trapped(&self) {
        let _ = self.state.trapped.subscribe().wait_for(|trapped| *trapped).await;
    }

    /// Does this to all requests from now on.
    pub fn set(&self, mode: Mode) {
        self.state.plan().mode = mode;
        if mode == Mode::Cut {
            self.cut();
        }
    }

    /// Breaks every connection there is.
    pub fn cut(&self) {
        self.state.cut.send_modify(|cut| *cut += 1);
    }

    /// Lets this happen at random from now on.
    pub fn faults(&self, faults: Faults, seed: u64) {
        self.state.plan().faults = Some((faults, seed | 1));
    }

    /// Lets no read of a path with `part` in it be answered from now on; what is under way goes on.
    pub fn deafen(&self, part: Option<&'static str>) {
        self.state.plan().deaf = part;
    }

    /// Begins the answer to reads of a path with `part` in it from now on, and never goes on with it; watches are answered as ever.
    pub fn mute(&self, part: Option<&'static str>) {
        self.state.plan().mute = part;
    }

    /// Keeps writes of a path with `part` in it on their way, as a slow network does; they arrive when nothing is kept any more.
    pub fn hold_writes(&self, part: Option<&str>) {
        self.state.slow.send_replace(part.map(str::to_owned));
    }

    /// Waits until a write is kept on its way.
    pub async fn holds_a_write(&self) {
        let _ = self.state.waiting.subscribe().wait_for(|waiting| *waiting > 0).await;
    }

    /// Refuses every read of a path with `part` in it from now on; watches go on.
    pub fn forbid(&self, part: Option<&'static str>) {
        self.state.plan().forbidden = part;
    }

    /// Holds back what watches of a path with `part` in it tell, and tells it all when nothing is held any more. Reads are answered
    /// as ever.
    pub fn hold_watches(&self, part: Option<&'static str>) {
        self.state.held.send_replace(part);
    }

    /// Has the API server end every watch after so many seconds from now on, so that a watch that hears nothing otherwise hears of that.
    pub fn short_watches(&self, seconds: u32) {
        self.state.plan().watches = Some(seconds);
    }

    /// How many requests were hurt by [`Self::faults`].
    pub fn hurt(&self) -> usize {
        self.state.plan().hurt
    }

    /// How many writes there were.
    pub fn counted(&self) -> usize {
        self.state.plan().counted
    }

    /// All requests so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.state.plan().seen.clone()
    }
}

impl State {
    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a write for as long as such are kept. Dropped meanwhile, as when its client is gone, it never arrives.
    async fn on_its_way(&self, path: &str) {
        struct Waits<'a>(&'a watch::Sender<usize>);
        impl Drop for Waits<'_> {
            fn drop(&mut self) {
                self.0.send_modify(|waiting| *waiting -= 1);
            }
        }
        let mut slow = self.slow.subscribe();
        if slow.borrow().as_ref().is_none_or(|part| !path.contains(part.as_str())) {
            return;
        }
        self.waiting.send_modify(|waiting| *waiting += 1);
        let _waits = Waits(&self.waiting);
        // Whoever holds it is there as long as the proxy.
        let _ = slow.wait_for(|slow| slow.as_ref().is_none_or(|part| !path.contains(part.as_str()))).await;
    }
}

/// What was decided about one request.
enum Fate {
    Pass {
        slow: Duration,
    },
    /// The head of the answer and nothing of its body.
    Mute,
    Answer(u16),
    Deny,
    Cut,
    Hang,
    Trap(Side),
}

fn fate(state: &State, method: &Method, path: &str, watches: bool) -> Fate {
    let mut plan = state.plan();
    let write = !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
    let counts = write && !path.contains("/leases") && !path.contains("/authorization.k8s.io/");
    plan.seen.push(Seen { method: method.clone(), path: path.to_owned() });
    if plan.frozen {
        return Fate::Hang;
    }
    if counts {
        plan.counted += 1;
        let is_of_trap = plan.trapped.as_ref().is_none_or(|part| path.contains(part.as_str()));
        plan.at += usize::from(is_of_trap);
        if let Some((n, side)) = plan.trap
            && is_of_trap
            && plan.at == n
        {
            plan.frozen = true;
            return Fate::Trap(side);
        }
    }
    if *method == Method::GET && plan.deaf.is_some_and(|part| path.contains(part)) {
        return Fate::Hang;
    }
    if *method == Method::GET && !watches && plan.mute.is_some_and(|part| path.contains(part)) {
        return Fate::Mute;
    }
    if *method == Method::GET && !watches && plan.forbidden.is_some_and(|part| path.contains(part)) {
        return Fate::Answer(403);
    }
    match plan.mode {
        Mode::Pass => {}
        Mode::Answer(code) => return Fate::Answer(code),
        Mode::Slow(slow) => return Fate::Pass { slow },
        Mode::Cut => return Fate::Cut,
        Mode::Hang => return Fate::Hang,
    }
    if let (Some((faults, mut dice)), false) = (plan.faults, watches) {
        let mut roll = |sides: u64| {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            dice % sides
        };
        let (at, which) = (u32::try_from(roll(1000)).unwrap_or(0), usize::try_from(roll(4)).unwrap_or(0));
        plan.faults = Some((faults, dice));
        let code = [429, 500, 503, if write { 409 } else { 500 }][which];
        let Faults { refused, denied, cut, hung } = faults;
        let fate = match at {
            at if at < refused => Some(Fate::Answer(code)),
            at if at < refused + denied => Some(Fate::Deny),
            at if at < refused + denied + cut => Some(Fate::Cut),
            at if write && at < refused + denied + cut + hung => Some(Fate::Hang),
            _ => None,
        };
        if let Some(fate) = fate {
            plan.hurt += 1;
            return fate;
        }
    }
    Fate::Pass { slow: Duration::ZERO }
}

async fn answer(state: Arc<State>, request: Request<Incoming>) -> Result<Response<Body>, Error> {
    let path = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
    let fate = fate(&state, request.method(), &path, path.contains("watch=true"));
    match fate {
        Fate::Pass { slow } => {
            let answer = forward(&state, request, &path).await?;
            tokio::time::sleep(slow).await;
            Ok(answer)
        }
        Fate::Mute => {
            let (head, _) = forward(&state, request, &path).await?.into_parts();
            Ok(Response::from_parts(head, StreamBody::new(futures::stream::pending()).boxed_unsync()))
        }
        Fate::Answer(code) => Ok(status(code)),
        Fate::Deny => {
            forward(&state, request, &path).await?.into_body().collect().await?;
            Ok(status(500))
        }
        Fate::Cut => {
            forward(&state, request, &path).await?.into_body().collect().await?;
            Err("cut".into())
        }
        Fate::Hang => std::future::pending().await,
        Fate::Trap(side) => {
            if side == Side::After {
                forward(&state, request, &path).await?.into_body().collect().await?;
            }
            state.trapped.send_replace(true);
            std::future::pending().await
        }
    }
}

/// The path of a watch, with another time after which it ends.
fn shortened(path: &str, seconds: Option<u32>) -> String {
    const TIMEOUT: &str = "timeoutSeconds=";
    match (path.find(TIMEOUT), seconds) {
        (Some(at), Some(seconds)) if path.contains("watch=true") => {
            let (before, rest) = path.split_at(at);
            let after = rest[TIMEOUT.len()..].trim_start_matches(|c: char| c.is_ascii_digit());
            format!("{before}{TIMEOUT}{seconds}{after}")
        }
        _ => path.to_owned(),
    }
}

async fn forward(state: &State, request: Request<Incoming>, path: &str) -> Result<Response<Body>, Error> {
    let (parts, body) = request.into_parts();
    let watches = state.plan().watches;
    let path = &shortened(path, watches);
    let mut headers = parts.headers;
    headers.remove(header::HOST);
    headers.remove(header::CONTENT_LENGTH);
    headers.remove(header::TRANSFER_ENCODING);
    if let Some(name) = &state.user_agent {
        headers.insert(header::USER_AGENT, name.parse()?);
    }
    let body = body.collect().await?.to_bytes();
    if !matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS) {
        state.on_its_way(path).await;
    }
    let answer = state.client.request(parts.method, format!("{}{path}", state.server)).headers(headers).body(body).send().await?;
    let mut response = Response::builder().status(answer.status());
    for (name, value) in answer.headers() {
        if !matches!(*name, header::CONTENT_LENGTH | header::TRANSFER_ENCODING | header::CONNECTION) {
            response = response.header(name, value);
        }
    }
    let (held, is_watch) = (state.held.subscribe(), path.contains("watch=true"));
    let path = path.clone();
    let late = move |bytes| {
        let (mut held, path) = (held.clone(), path.clone());
        async move {
            if is_watch {
                // Whoever holds it is there as long as the proxy.
                let _ = held.wait_for(|held| held.is_none_or(|part| !path.contains(part))).await;
            }
            Ok(bytes)
        }
    };
    let stream = answer.bytes_stream().and_then(late).map_ok(Frame::data).map_err(Error::from);
    Ok(response.body(StreamBody::new(stream).boxed_unsync())?)
}

/// An answer in the API server's form, with the reason it gives for this code.
fn status(code: u16) -> Response<Body> {
    let reason = match code {
        403 => "Forbidden",
        409 => "Conflict",
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        _ => "InternalError",
    };
    let text = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code, "reason": reason,
        "message": "the proxy of the test answers instead of the API server",
    });
    let body = Full::new(Bytes::from(text.to_string())).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(code).expect("a status");
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}
