//! Stand-ins for upstreams: scripted servers that lie in every way a real one may, and starters of real servers.
//!
//! [`Upstream`] imitates an HTTP(S) file server or a Talos Image Factory over raw TCP or TLS, [`Names`] a DNS server,
//! [`ConnectProxy`] an HTTP proxy; none of them is a real one, and each says only what its script says. [`nginx`] and
//! [`squid`] start the real programs. Everything listens on loopback and ends when dropped.
//!
//! Other tests take this in with `#[path = "upstream/mod.rs"] mod upstream;`.
#![allow(dead_code, unused_imports, reason = "each test binary uses its part")]

mod answer;
mod certificates;
pub mod layout;
mod names;
pub mod nginx;
pub mod process;
mod proxy;
pub mod registry;
pub mod squid;

/// Longer than anything here takes on a busy machine: it bounds a hang, it measures nothing.
pub const PATIENCE: std::time::Duration = std::time::Duration::from_secs(90);

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

pub use answer::{Answer, Gate};
pub use certificates::{Authority, Pair, acceptor};
pub use names::Names;
pub use proxy::ConnectProxy;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// One request as it came.
#[derive(Debug, Clone)]
pub struct Hit {
    pub method: String,
    /// Path and query.
    pub target: String,
    pub headers: HashMap<String, String>,
    pub body: Vec<u8>,
    /// Bytes of the answer's body that were written before the client hung up.
    pub sent: u64,
}

impl Hit {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

#[derive(Default)]
struct Script {
    answers: HashMap<String, (Vec<Answer>, usize)>,
    hits: Vec<Hit>,
    connections: usize,
}

/// A scripted HTTP(S) server.
pub struct Upstream {
    pub address: SocketAddr,
    scheme: &'static str,
    script: Arc<Mutex<Script>>,
    task: JoinHandle<()>,
}

impl Upstream {
    /// A server on plain TCP.
    pub async fn start() -> Self {
        Self::serve(None).await
    }

    /// A server on TLS with a certificate for `names`, signed by `authority`.
    pub async fn start_tls(authority: &Authority, names: &[&str]) -> Self {
        Self::serve(Some(authority.acceptor(names))).await
    }

    async fn serve(tls: Option<tokio_rustls::TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("address");
        let script = Arc::new(Mutex::new(Script::default()));
        let scheme = if tls.is_some() { "https" } else { "http" };
        let shared = Arc::clone(&script);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let Ok((stream, _)) = listener.accept().await else { return };
                lock(&shared).connections += 1;
                let (script, tls) = (Arc::clone(&shared), tls.clone());
                connections.spawn(async move {
                    let _ = stream.set_nodelay(true);
                    match tls {
                        None => converse(stream, &script).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                converse(stream, &script).await;
                            }
                        }
                    }
                });
            }
        });
        Self { address, scheme, script, task }
    }

    /// The URL of `path` by address.
    pub fn url(&self, path: &str) -> String {
        format!("{}://{}{path}", self.scheme, self.address)
    }

    /// The URL of `path` with a host name in place of the address.
    pub fn url_at(&self, name: &str, path: &str) -> String {
        format!("{}://{name}:{}{path}", self.scheme, self.address.port())
    }

    /// Answers every request for `path` (without query) so.
    pub fn on(&self, path: &str, answer: Answer) {
        self.sequence(path, [answer]);
    }

    /// Answers the requests for `path` one after another; the last answer stays.
    pub fn sequence(&self, path: &str, answers: impl IntoIterator<Item = Answer>) {
        lock(&self.script).answers.insert(path.to_owned(), (answers.into_iter().collect(), 0));
    }

    /// Every request so far for `path`.
    pub fn hits(&self, path: &str) -> Vec<Hit> {
        lock(&self.script).hits.iter().filter(|hit| hit.target.split('?').next() == Some(path)).cloned().collect()
    }

    /// Every request so far.
    pub fn all(&self) -> Vec<Hit> {
        lock(&self.script).hits.clone()
    }

    /// Requests so far, for any path.
    pub fn total(&self) -> usize {
        lock(&self.script).hits.len()
    }

    /// TCP connections accepted so far.
    pub fn connections(&self) -> usize {
        lock(&self.script).connections
    }

    /// The one finished hit on `path`: waits until its answer has been written or given up.
    pub async fn settled(&self, path: &str, count: usize) -> Vec<Hit> {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let hits = self.hits(path);
            if hits.len() >= count && hits.iter().all(|hit| hit.sent != u64::MAX) {
                return hits;
            }
            assert!(tokio::time::Instant::now() < deadline, "{path} has {} of {count} hits", hits.len());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One request and its answer on a connection that then ends.
async fn converse<S: answer::Wire>(mut stream: S, script: &Mutex<Script>) {
    let Some(hit) = read_request(&mut stream).await else { return };
    let path = hit.target.split('?').next().unwrap_or_default().to_owned();
    let (answer, index) = {
        let mut script = lock(script);
        let answer = script.answers.get_mut(&path).and_then(|(answers, next)| {
            let answer = answers.get(*next).or(answers.last()).cloned();
            *next += 1;
            answer
        });
        script.hits.push(Hit { sent: u64::MAX, ..hit.clone() });
        (answer.unwrap_or_else(|| Answer::text(404, "no such path\n")), script.hits.len() - 1)
    };
    let sent = answer.write(&mut stream, &hit).await;
    if let Some(hit) = lock(script).hits.get_mut(index) {
        hit.sent = sent;
    }
}

/// Reads one request with its body (by `Content-Length`).
async fn read_request<S: answer::Wire>(stream: &mut S) -> Option<Hit> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        let mut piece = [0; 4096];
        match stream.read(&mut piece).await {
            Ok(0) | Err(_) => return None,
            Ok(count) => bytes.extend_from_slice(&piece[..count]),
        }
        assert!(bytes.len() < 1 << 20, "a request head of more than 1 MiB");
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut lines = head.split("\r\n");
    let mut first = lines.next()?.split(' ');
    let (method, target) = (first.next()?.to_owned(), first.next()?.to_owned());
    let headers: HashMap<_, _> =
        lines.filter_map(|line| line.split_once(':')).map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned())).collect();
    let length: usize = headers.get("content-length").and_then(|text| text.parse().ok()).unwrap_or_default();
    let mut body = bytes.split_off(end);
    while body.len() < length {
        let mut piece = [0; 4096];
        match stream.read(&mut piece).await {
            Ok(0) | Err(_) => return None,
            Ok(count) => body.extend_from_slice(&piece[..count]),
        }
    }
    Some(Hit { method, target, headers, body, sent: 0 })
}

/// Writes everything, counting nothing.
async fn write_all<S: answer::Wire>(stream: &mut S, bytes: &[u8]) -> std::io::Result<()> {
    stream.write_all(bytes).await?;
    stream.flush().await
}

/// Sets a connection up to end with a reset instead of an orderly end.
fn reset_on_close(stream: &TcpStream) {
    let _ = stream.set_zero_linger();
}
