//! An upstream as hostile as the measured ones: a TLS server with its own CA that also counts what it is asked.

use std::{
    collections::HashMap,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::{Arc, LazyLock, Mutex},
};

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use axum_server::tls_rustls::RustlsConfig;
use futures::StreamExt;

/// The name in the server's certificate; importers reach it through the dial map.
pub const HOST: &str = "spool.example.svc";
/// The header that protected files want.
pub const TOKEN: &str = "Bearer 0123456789";

/// What a path answers.
#[derive(Clone, Debug)]
pub enum Answer {
    Status(u16),
    /// These bytes.
    File(Arc<Vec<u8>>),
    /// These bytes to who sends [`TOKEN`], 403 to others.
    Protected(Arc<Vec<u8>>),
    /// The full length is promised, the connection is cut after this many bytes.
    Cut(Arc<Vec<u8>>, usize),
    /// A page with status 200.
    Html,
    /// Another place.
    Redirect(String),
}

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Asked {
    pub path: String,
    pub headers: HeaderMap,
}

#[derive(Default)]
struct Inner {
    answers: Mutex<HashMap<String, Answer>>,
    asked: Mutex<Vec<Asked>>,
}

/// The running server.
pub struct Upstream {
    inner: Arc<Inner>,
    /// Its CA in PEM.
    pub ca: String,
    pub address: SocketAddr,
}

/// One server for all tests of the binary, on threads of its own.
pub static UPSTREAM: LazyLock<Upstream> = LazyLock::new(Upstream::start);

impl Upstream {
    fn start() -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let mut ca = rcgen::CertificateParams::new(vec![]).expect("parameters of a CA");
        ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let ca_key = rcgen::KeyPair::generate().expect("a key");
        let issuer_certificate = ca.self_signed(&ca_key).expect("a CA");
        let issuer = rcgen::Issuer::new(ca, ca_key);
        let key = rcgen::KeyPair::generate().expect("a key");
        let leaf = rcgen::CertificateParams::new(vec![HOST.to_owned()]).expect("parameters of a certificate");
        let leaf = leaf.signed_by(&key, &issuer).expect("a certificate");
        let (leaf, key) = (leaf.pem().into_bytes(), key.serialize_pem().into_bytes());

        let inner = Arc::new(Inner::default());
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a loopback port");
        listener.set_nonblocking(true).expect("a listener for tokio");
        let address = listener.local_addr().expect("its address");
        let app = axum::Router::new().fallback(answer).with_state(inner.clone());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
            runtime.block_on(async move {
                let config = RustlsConfig::from_pem(leaf, key).await.expect("TLS");
                axum_server::from_tcp_rustls(listener, config).expect("a server").serve(app.into_make_service()).await.expect("it serves");
            });
        });
        Self { inner, ca: issuer_certificate.pem(), address }
    }

    /// Has `path` answer like this from now on, and gives its URL.
    pub fn put(&self, path: &str, answer: Answer) -> String {
        self.inner.answers.lock().unwrap().insert(path.to_owned(), answer);
        format!("https://{HOST}:8443{path}")
    }

    /// What was asked of `path`, oldest first.
    pub fn asked(&self, path: &str) -> Vec<Asked> {
        self.inner.asked.lock().unwrap().iter().filter(|asked| asked.path == path).cloned().collect()
    }
}

async fn answer(State(inner): State<Arc<Inner>>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    let headers = request.headers().clone();
    let authorized = headers.get(header::AUTHORIZATION).is_some_and(|value| value == TOKEN);
    inner.asked.lock().unwrap().push(Asked { path: path.clone(), headers });
    let found = inner.answers.lock().unwrap().get(&path).cloned();
    match found {
        None => StatusCode::NOT_FOUND.into_response(),
        Some(Answer::Status(status)) => StatusCode::from_u16(status).unwrap().into_response(),
        Some(Answer::File(bytes)) => file(&bytes),
        Some(Answer::Protected(bytes)) if authorized => file(&bytes),
        Some(Answer::Protected(_)) => StatusCode::FORBIDDEN.into_response(),
        Some(Answer::Html) => ([(header::CONTENT_TYPE, "text/html")], format!("<html>{}</html>", "not found ".repeat(200))).into_response(),
        Some(Answer::Redirect(to)) => (StatusCode::FOUND, [(header::LOCATION, to)]).into_response(),
        Some(Answer::Cut(bytes, at)) => {
            let (head, length) = (bytes[..at].to_vec(), bytes.len());
            let parts = [Ok(bytes::Bytes::from(head)), Err(std::io::Error::other("cut"))];
            // A pause lets the head reach the client before the connection dies.
            let body = futures::stream::iter(parts).then(|part| async move {
                if part.is_err() {
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                }
                part
            });
            ([(header::CONTENT_LENGTH, length.to_string())], Body::from_stream(body)).into_response()
        }
    }
}

fn file(bytes: &Arc<Vec<u8>>) -> Response {
    let length = bytes.len();
    // In pieces, so that an importer that stops reading stops the transfer.
    let pieces: Vec<_> = bytes.chunks(64 << 10).map(|piece| Ok::<_, std::io::Error>(bytes::Bytes::copy_from_slice(piece))).collect();
    ([(header::CONTENT_LENGTH, length.to_string())], Body::from_stream(futures::stream::iter(pieces))).into_response()
}

/// A disk made on the spot: its bytes, and the same disk as other files.
pub struct Disk {
    pub raw: Vec<u8>,
    pub qcow2: Arc<Vec<u8>>,
    pub xz: Arc<Vec<u8>>,
    pub gz: Arc<Vec<u8>>,
    pub zst: Arc<Vec<u8>>,
}

/// The disk of these tests: 8 MiB virtual, with an MBR signature, data that does not compress well, and holes.
pub static DISK: LazyLock<Disk> = LazyLock::new(|| {
    let mut raw = vec![0u8; 8 << 20];
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for byte in raw[..2 << 20].iter_mut().chain(&mut []) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *byte = state as u8;
    }
    raw[510..512].copy_from_slice(&[0x55, 0xaa]);
    raw[(6 << 20)..(6 << 20) + 4].copy_from_slice(b"tail");
    let dir = tempfile::tempdir().expect("a directory");
    let from = dir.path().join("disk.raw");
    std::fs::write(&from, &raw).expect("a file");
    Disk {
        qcow2: Arc::new(converted(&from, &dir.path().join("disk.qcow2"), "qemu-img", &["convert", "-O", "qcow2"])),
        xz: Arc::new(filtered(&from, "xz", &["-0", "-c", "-k"])),
        gz: Arc::new(filtered(&from, "gzip", &["-1", "-c", "-k"])),
        zst: Arc::new(filtered(&from, "zstd", &["-1", "-c", "-k", "-q"])),
        raw,
    }
});

fn converted(from: &Path, to: &PathBuf, program: &str, arguments: &[&str]) -> Vec<u8> {
    let status = std::process::Command::new(program).args(arguments).arg(from).arg(to).status().expect("the program runs");
    assert!(status.success(), "{program} {arguments:?}");
    std::fs::read(to).expect("its output")
}

fn filtered(from: &Path, program: &str, arguments: &[&str]) -> Vec<u8> {
    let output = std::process::Command::new(program).args(arguments).arg(from).output().expect("the program runs");
    assert!(output.status.success(), "{program} {arguments:?}");
    output.stdout
}
