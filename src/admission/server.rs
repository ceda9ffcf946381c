//! The HTTPS server that the API server asks. Everything a caller can cost is bounded: bytes, time, connections, questions at once.

mod connections;
mod room;

use std::{
    io,
    net::{SocketAddr, TcpListener},
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Json, Router,
    body::Body,
    extract::{ConnectInfo, Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::post,
};
use axum_server::{
    Handle,
    accept::Accept,
    tls_rustls::{RustlsAcceptor, RustlsConfig},
};
use futures::{StreamExt as _, future::BoxFuture};
use http_body::Body as _;
use rustls::ServerConfig;
use tokio::{
    net::TcpStream,
    sync::Semaphore,
    time::{Instant as Moment, timeout_at},
};
use tokio_util::sync::CancellationToken;

use self::{
    connections::{Connections, Placed},
    room::{Arrivals, Begun, Room},
};
use super::{Answer, Judged, Live, Scene, Way, judge_clones, judge_credentials, judge_golden, judge_image, judge_namespace, review};
use crate::run::metrics::Metrics;

/// The server's limits. The defaults suit a cluster.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The most bytes of a question. The API server takes objects of up to 3 MiB, and an update carries two.
    pub body: usize,
    /// How long a question may take to arrive and to be answered; below the webhooks' `timeoutSeconds`, so that the caller gets our words and not its own.
    pub deadline: Duration,
    /// How long a question may bring less than 64 KiB while it is not all there. The API server sends all of it at once.
    pub arrival: Duration,
    /// How long a TLS handshake may take.
    pub handshake: Duration,
    /// How long a connection may be idle before a request's head.
    pub idle: Duration,
    /// Connections open at once; for a further one another goes that nothing is asked by.
    pub connections: usize,
    /// Questions answered at once; further ones wait within their deadline.
    pub questions: usize,
    /// Bytes of questions that arrive at once, and again of those that are read and answered at once; further ones wait within their deadline.
    /// What a tenant packs into one can take twenty times as much memory when it is read.
    pub bytes: usize,
    /// How long open questions may go on after shutdown.
    pub grace: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            body: 8 << 20,
            deadline: Duration::from_millis(4500),
            arrival: Duration::from_secs(2),
            handshake: Duration::from_secs(5),
            idle: Duration::from_secs(120),
            connections: 512,
            questions: 128,
            bytes: 4 << 20,
            grace: Duration::from_secs(8),
        }
    }
}

/// What answers are made from.
#[derive(Clone)]
pub struct App {
    /// What the watches know.
    pub scene: Scene,
    /// Live reads.
    pub live: Live,
    /// A client that does not retry by itself.
    pub client: kube::Client,
    /// The namespace of the daemon.
    pub namespace: String,
    /// The user that the role `controller` is.
    pub daemon: String,
    /// Metrics.
    pub metrics: Arc<Metrics>,
}

#[derive(Clone)]
struct Shared {
    app: Arc<App>,
    settings: Settings,
    places: Arc<Semaphore>,
    connections: Arc<Connections>,
    arriving: Arc<Arrivals>,
    room: Arc<Room>,
}

/// The webhooks, by the last part of their address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hook {
    /// Mutates disks.
    Disks,
    /// Judges clones.
    Clones,
    /// Guards goldens.
    Goldens,
    /// Guards the catalog namespace.
    Namespaces,
    /// Judges GoldenImages.
    Images,
    /// Judges the Secrets that GoldenImages name.
    Credentials,
}

impl Hook {
    const ALL: [Self; 6] = [Self::Disks, Self::Clones, Self::Goldens, Self::Namespaces, Self::Images, Self::Credentials];

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|hook| hook.as_str() == text)
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Disks => "disks",
            Self::Clones => "clones",
            Self::Goldens => "goldens",
            Self::Namespaces => "namespaces",
            Self::Images => "images",
            Self::Credentials => "credentials",
        }
    }
}

/// The names of all webhooks, before `.golden-catalog.cozystack.io`: what the chart tells the API server of.
pub fn names() -> [&'static str; 6] {
    Hook::ALL.map(Hook::as_str)
}

/// Serves until `shutdown`.
///
/// # Errors
/// When the listener cannot be used.
pub async fn serve(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    app: App,
    settings: Settings,
    shutdown: CancellationToken,
) -> io::Result<()> {
    app.metrics.expect_reviews(names(), Answer::WORDS);
    let connections = Connections::new(settings.connections);
    let acceptor = Acceptor {
        tls: RustlsAcceptor::new(RustlsConfig::from_config(tls)).handshake_timeout(settings.handshake),
        connections: Arc::clone(&connections),
    };
    let (grace, idle) = (settings.grace, settings.idle);
    let shared = Shared {
        app: Arc::new(app),
        places: Arc::new(Semaphore::new(settings.questions)),
        connections,
        arriving: Arc::new(Arrivals::new(settings.bytes)),
        room: Arc::new(Room::new(settings.bytes)),
        settings,
    };
    let router = Router::new().route("/{hook}", post(answer)).with_state(shared);
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    let handle = Handle::<SocketAddr>::new();
    let mut server = axum_server::from_tcp(listener)?.acceptor(acceptor).handle(handle.clone());
    server.http_builder().http1().header_read_timeout(idle).max_headers(64);
    server
        .http_builder()
        .http2()
        .max_concurrent_streams(256)
        .max_header_list_size(32 << 10)
        .keep_alive_interval(Some(Duration::from_secs(30)));
    let serving = server.serve(service);
    tokio::pin!(serving);
    tokio::select! {
        ended = &mut serving => ended,
        () = shutdown.cancelled() => {
            handle.graceful_shutdown(Some(grace));
            serving.await
        }
    }
}

async fn answer(
    State(shared): State<Shared>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    Path(hook): Path<String>,
    body: Body,
) -> Response {
    let Some(hook) = Hook::parse(&hook) else { return StatusCode::NOT_FOUND.into_response() };
    let began = Instant::now();
    let deadline = Moment::now() + shared.settings.deadline;
    let Some(length) = body.size_hint().exact().map(|length| usize::try_from(length).unwrap_or(usize::MAX)) else {
        return (StatusCode::LENGTH_REQUIRED, "a question tells its length").into_response();
    };
    if length > shared.settings.body {
        return (StatusCode::PAYLOAD_TOO_LARGE, "the question is too large").into_response();
    }
    let mut begun = shared.arriving.begin(length);
    let bytes = match read(body, length, shared.settings.arrival, deadline, &mut begun).await {
        Ok(bytes) => bytes,
        Err(refused) => return refused.into_response(),
    };
    // Held until the answer is there.
    let Ok(_room) = timeout_at(deadline, shared.room.take(bytes.len())).await else { return BUSY.into_response() };
    let request = match review::Request::read(&bytes) {
        Ok(request) => request,
        Err(error) => return (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    };
    drop((bytes, begun));
    let _under_way = shared.connections.ask(peer);
    let work = async {
        // Held while the question is answered. The semaphore is never closed.
        let _place = shared.places.acquire().await;
        decide(hook, &request, &shared.app).await
    };
    let answer =
        timeout_at(deadline, work).await.unwrap_or_else(|_| Answer::Later("no verdict yet, try again: it took too long".to_owned()));
    shared.app.metrics.judged(hook.as_str(), answer.as_str(), began.elapsed());
    log(hook, &request, &answer);
    Json(review::response(&request.uid, &answer)).into_response()
}

/// The least of a question that must come within [`Settings::arrival`], or the rest of it.
const PART: usize = 64 << 10;

/// Why a question is not judged.
type Refused = (StatusCode, &'static str);

const BUSY: Refused = (StatusCode::SERVICE_UNAVAILABLE, "too much is asked at once, try again");

/// Reads a question of so many bytes.
async fn read(body: Body, length: usize, arrival: Duration, deadline: Moment, room: &mut Begun<'_>) -> Result<Vec<u8>, Refused> {
    let mut parts = body.into_data_stream();
    let mut bytes = Vec::new();
    let (mut part, mut until) = (PART, Moment::now() + arrival);
    loop {
        let more = match timeout_at(until.min(deadline), parts.next()).await {
            Ok(Some(Ok(more))) => more,
            Ok(None) => return Ok(bytes),
            Ok(Some(Err(_))) => return Err((StatusCode::BAD_REQUEST, "the question was cut off")),
            Err(_) => return Err((StatusCode::REQUEST_TIMEOUT, "the question did not arrive in time")),
        };
        let waits = Moment::now();
        timeout_at(deadline, room.grow(more.len())).await.map_err(|_| BUSY)?;
        // What we were waited for is no fault of the caller's.
        until += waits.elapsed();
        if bytes.capacity() < bytes.len() + more.len() {
            // Twice as much as there is, and no more than there will be.
            bytes.reserve_exact(more.len().max(bytes.len().min(length.saturating_sub(bytes.len()))));
        }
        bytes.extend_from_slice(&more);
        if bytes.len() >= part {
            (part, until) = (bytes.len() + PART, Moment::now() + arrival);
        }
    }
}

async fn decide(hook: Hook, request: &review::Request, app: &App) -> Answer {
    match hook {
        Hook::Disks => {
            let judged = clones(request, Way::Mutating, app).await;
            // The API server holds an object against its schema after this, and has the better words; what passes that is judged last.
            if judged.is_odd { Answer::allow() } else { judged.answer }
        }
        Hook::Clones => clones(request, Way::Validating, app).await.answer.validated(request.operation == review::Verb::Create),
        Hook::Goldens => judge_golden(request, &app.scene, &app.live, &app.daemon).await,
        Hook::Namespaces => judge_namespace(request, &app.scene, &app.live).await,
        Hook::Images => judge_image(request, &app.scene, &app.daemon),
        Hook::Credentials => judge_credentials(request, &app.client, &app.namespace, &app.daemon).await,
    }
}

async fn clones(request: &review::Request, way: Way, app: &App) -> Judged {
    let judged = judge_clones(request, way, &app.scene, &app.live).await;
    app.metrics.rules_broken(judged.broken.iter().copied());
    judged
}

fn log(hook: Hook, request: &review::Request, answer: &Answer) {
    let review::Request { kind, namespace, name, user_info, .. } = request;
    let (hook, kind, user) = (hook.as_str(), &kind.kind, &user_info.username);
    match answer {
        Answer::Allow { warnings, .. } => tracing::debug!(hook, kind, namespace, name, user, warnings = warnings.len(), "allowed"),
        Answer::Refuse(why) => tracing::info!(hook, kind, namespace, name, user, why, "refused"),
        Answer::Later(why) => tracing::warn!(hook, kind, namespace, name, user, why, "no verdict"),
    }
}

/// TLS, with a bound on connections.
#[derive(Clone)]
struct Acceptor {
    tls: RustlsAcceptor,
    connections: Arc<Connections>,
}

impl<S: Send + 'static> Accept<TcpStream, S> for Acceptor {
    type Stream = Placed<<RustlsAcceptor as Accept<TcpStream, S>>::Stream>;
    type Service = <RustlsAcceptor as Accept<TcpStream, S>>::Service;
    type Future = BoxFuture<'static, io::Result<(Self::Stream, Self::Service)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let Self { tls, connections } = self.clone();
        Box::pin(async move {
            stream.set_nodelay(true)?;
            let mut place = connections.admit(stream.peer_addr()?).ok_or_else(|| io::Error::other("too many connections"))?;
            let (stream, service) = tokio::select! {
                accepted = tls.accept(stream, service) => accepted?,
                () = place.lost() => return Err(io::ErrorKind::ConnectionAborted.into()),
            };
            Ok((Placed::new(stream, place), service))
        })
    }
}
