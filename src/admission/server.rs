//! The HTTPS server that the API server asks. Everything a caller can cost is bounded: bytes, time, connections, questions at once.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Json, Router,
    body::Body,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::post,
};
use axum_server::{
    Handle,
    accept::Accept,
    tls_rustls::{RustlsAcceptor, RustlsConfig},
};
use futures::future::BoxFuture;
use http_body::Body as _;
use rustls::ServerConfig;
use tokio::{
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit},
};
use tokio_util::sync::CancellationToken;

use super::{Answer, Judged, Live, Scene, Way, judge_clones, judge_credentials, judge_golden, judge_image, judge_namespace, review};
use crate::run::metrics::Metrics;

/// The server's limits. The defaults suit a cluster.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The most bytes of a question. The API server takes objects of up to 3 MiB, and an update carries two.
    pub body: usize,
    /// How long a question may take to arrive and to be answered; below the webhooks' `timeoutSeconds`, so that the caller gets our words and not its own.
    pub deadline: Duration,
    /// How long a TLS handshake may take.
    pub handshake: Duration,
    /// How long a connection may be idle before a request's head.
    pub idle: Duration,
    /// Connections open at once.
    pub connections: usize,
    /// Questions answered at once; further ones wait within their deadline.
    pub questions: usize,
    /// Bytes of questions that are read and answered at once; further ones wait within their deadline. What a tenant packs into one can take
    /// twenty times as much memory when it is read.
    pub bytes: usize,
    /// How long open questions may go on after shutdown.
    pub grace: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            body: 8 << 20,
            deadline: Duration::from_millis(4500),
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
    room: Arc<Room>,
}

/// Room for the bytes of questions.
struct Room {
    /// A permit for each [`Self::UNIT`].
    free: Semaphore,
    all: u32,
}

impl Room {
    const UNIT: usize = 1024;

    fn new(bytes: usize) -> Self {
        let all = u32::try_from(bytes / Self::UNIT).unwrap_or(u32::MAX).max(1);
        Self { free: Semaphore::new(all as usize), all }
    }

    /// Waits for room for a question of so many bytes; one that is larger than all of it has it for itself.
    async fn take(&self, bytes: usize) -> Option<SemaphorePermit<'_>> {
        let units = u32::try_from(bytes.div_ceil(Self::UNIT)).unwrap_or(u32::MAX).clamp(1, self.all);
        // The semaphore is never closed.
        self.free.acquire_many(units).await.ok()
    }
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
    let acceptor = Acceptor {
        tls: RustlsAcceptor::new(RustlsConfig::from_config(tls)).handshake_timeout(settings.handshake),
        places: Arc::new(Semaphore::new(settings.connections)),
    };
    let (grace, idle) = (settings.grace, settings.idle);
    let (places, room) = (Arc::new(Semaphore::new(settings.questions)), Arc::new(Room::new(settings.bytes)));
    let shared = Shared { app: Arc::new(app), places, room, settings };
    let service = Router::new().route("/{hook}", post(answer)).with_state(shared).into_make_service();
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

async fn answer(State(shared): State<Shared>, Path(hook): Path<String>, body: Body) -> Response {
    let Some(hook) = Hook::parse(&hook) else { return StatusCode::NOT_FOUND.into_response() };
    let began = Instant::now();
    let deadline = tokio::time::Instant::now() + shared.settings.deadline;
    let most = shared.settings.body;
    let announced = body.size_hint().upper().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(most).min(most);
    // Held from before the first byte until the answer is there.
    let Ok(_room) = tokio::time::timeout_at(deadline, shared.room.take(announced)).await else {
        return (StatusCode::SERVICE_UNAVAILABLE, "too much is asked at once, try again").into_response();
    };
    let read = tokio::time::timeout_at(deadline, axum::body::to_bytes(body, most)).await;
    let bytes = match read {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(_)) => return (StatusCode::PAYLOAD_TOO_LARGE, "the question is too large or was cut off").into_response(),
        Err(_) => return (StatusCode::REQUEST_TIMEOUT, "the question did not arrive in time").into_response(),
    };
    let request = match review::Request::read(&bytes) {
        Ok(request) => request,
        Err(error) => return (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    };
    drop(bytes);
    let work = async {
        // Held while the question is answered. The semaphore is never closed.
        let _place = shared.places.acquire().await;
        decide(hook, &request, &shared.app).await
    };
    let answer = tokio::time::timeout_at(deadline, work)
        .await
        .unwrap_or_else(|_| Answer::Later("no verdict yet, try again: it took too long".to_owned()));
    shared.app.metrics.judged(hook.as_str(), answer.as_str(), began.elapsed());
    log(hook, &request, &answer);
    Json(review::response(&request.uid, &answer)).into_response()
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
    places: Arc<Semaphore>,
}

impl<S: Send + 'static> Accept<TcpStream, S> for Acceptor {
    type Stream = Placed<<RustlsAcceptor as Accept<TcpStream, S>>::Stream>;
    type Service = <RustlsAcceptor as Accept<TcpStream, S>>::Service;
    type Future = BoxFuture<'static, io::Result<(Self::Stream, Self::Service)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let Self { tls, places } = self.clone();
        Box::pin(async move {
            stream.set_nodelay(true)?;
            let place = places.try_acquire_owned().map_err(|_| io::Error::other("too many connections"))?;
            let (stream, service) = tls.accept(stream, service).await?;
            Ok((Placed { stream, _place: place }, service))
        })
    }
}

/// A connection and its place among those that may be open.
struct Placed<S> {
    stream: S,
    _place: OwnedSemaphorePermit,
}

mod placed {
    use std::{
        io::{self, IoSlice},
        pin::Pin,
        task::{Context, Poll},
    };

    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

    use super::Placed;

    impl<S: AsyncRead + Unpin> AsyncRead for Placed<S> {
        fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.stream).poll_read(cx, buf)
        }
    }

    impl<S: AsyncWrite + Unpin> AsyncWrite for Placed<S> {
        fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            Pin::new(&mut self.stream).poll_write(cx, buf)
        }

        fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
            Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
        }

        fn is_write_vectored(&self) -> bool {
            self.stream.is_write_vectored()
        }

        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.stream).poll_flush(cx)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.stream).poll_shutdown(cx)
        }
    }
}
