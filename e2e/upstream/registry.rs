//! A real registry: Debian's docker-registry on TLS, open, behind passwords, or behind a token service.
//!
//! The token service is a small server of our own, since Debian has none: it gives out the JSON Web Tokens that the real
//! registry checks, to whoever knows the password, and counts what it was asked. Images are pushed by skopeo.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex},
    time::{SystemTime, UNIX_EPOCH},
};

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use rcgen::{KeyPair, SigningKey as _};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use serde_json::json;
use tokio::{net::TcpListener, task::JoinHandle};

use super::{
    Authority, Hit, lock,
    process::{Process, free_address},
    read_request, write_all,
};

/// The one user there is.
pub const USER: &str = "robot";

/// How a registry wants to know who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guard {
    Open,
    Password,
    Token,
}

/// A running registry.
pub struct Registry {
    pub address: SocketAddr,
    pub guard: Guard,
    pub tokens: Option<TokenService>,
    directory: tempfile::TempDir,
    password: String,
    _process: Process,
}

impl Registry {
    /// Starts a registry with a certificate of `authority`; [`USER`] has this password.
    pub async fn start(authority: &Authority, guard: Guard, password: &str) -> Self {
        let directory = tempfile::tempdir().expect("directory");
        let at = directory.path();
        let address = free_address();
        let pair = authority.issue(&["localhost", "127.0.0.1"]);
        std::fs::write(at.join("tls.crt"), pair.certificate).expect("certificate");
        std::fs::write(at.join("tls.key"), pair.key).expect("key");
        std::fs::create_dir(at.join("certs")).expect("folder");
        std::fs::write(at.join("certs/ca.crt"), authority.pem()).expect("authority");
        let root = at.display();
        let tokens = if guard == Guard::Token { Some(TokenService::start(authority, password).await) } else { None };
        let auth = match (&guard, &tokens) {
            (Guard::Token, Some(tokens)) => format!(
                "auth:\n  token: {{realm: \"{}\", service: e2e, issuer: e2e, rootcertbundle: {root}/certs/ca.crt}}\n",
                tokens.realm()
            ),
            (Guard::Password, _) => {
                std::fs::write(at.join("users"), hashed(password)).expect("users");
                format!("auth:\n  htpasswd: {{realm: e2e, path: {root}/users}}\n")
            }
            _ => String::new(),
        };
        let config = format!(
            "version: 0.1\nlog: {{level: warn}}\nstorage: {{filesystem: {{rootdirectory: {root}/data}}, maintenance: {{uploadpurging: {{enabled: false}}}}}}\nhttp: {{addr: \"{address}\", secret: e2e, tls: {{certificate: {root}/tls.crt, key: {root}/tls.key}}}}\n{auth}"
        );
        std::fs::write(at.join("config.yml"), config).expect("configuration");
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(at.join("config.yml")).env("OTEL_TRACES_EXPORTER", "none");
        let process = Process::start(command, address, &at.join("output.log"));
        Self { address, guard, tokens, directory, password: password.to_owned(), _process: process }
    }

    /// From now on this is the password: a registry with passwords reads the file anew, a token service is told.
    pub fn set_password(&self, password: &str) {
        match &self.tokens {
            Some(tokens) => tokens.set_password(password),
            None => std::fs::write(self.directory.path().join("users"), hashed(password)).expect("users"),
        }
    }

    /// Pushes an image from an OCI layout by skopeo; gives its reference by digest.
    pub fn push(&self, layout: &Path, tag: &str, repository: &str, more: &[&str]) -> String {
        let digest = self.directory.path().join("digest");
        let mut command = Command::new("skopeo");
        command.args(["copy", "--quiet", "--insecure-policy"]).args(more);
        command.arg("--dest-cert-dir").arg(self.directory.path().join("certs")).arg("--digestfile").arg(&digest);
        if self.guard != Guard::Open {
            command.arg(format!("--dest-creds={USER}:{}", self.password));
        }
        command.arg(format!("oci:{}:{tag}", layout.display())).arg(format!("docker://{}/{repository}:{tag}", self.address));
        let output = command.output().expect("skopeo");
        assert!(output.status.success(), "skopeo: {}{}", String::from_utf8_lossy(&output.stderr), self.log());
        let digest = std::fs::read_to_string(digest).expect("digest");
        format!("{}/{repository}:{tag}@{}", self.address, digest.trim())
    }

    /// The folder with the authority's certificate, as skopeo wants it.
    pub fn certificates(&self) -> PathBuf {
        self.directory.path().join("certs")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("output.log")).unwrap_or_default()
    }
}

/// A line of a password file, by Apache's own tool (docker-registry takes bcrypt only).
fn hashed(password: &str) -> Vec<u8> {
    let output = Command::new("htpasswd").args(["-Bbn", USER, password]).output().expect("htpasswd");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// What a token service was asked.
#[derive(Debug, Clone, Default)]
pub struct Asked {
    /// Without credentials.
    pub anonymous: usize,
    /// With wrong ones.
    pub refused: usize,
    /// Every token that was given out for pulling or pushing.
    pub given: Vec<String>,
}

/// A stand-in for a token service.
pub struct TokenService {
    address: SocketAddr,
    state: Arc<Mutex<(String, Asked)>>,
    task: JoinHandle<()>,
}

impl TokenService {
    async fn start(authority: &Authority, password: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("address");
        let acceptor = authority.acceptor(&["127.0.0.1"]);
        let signer = authority.issue(&["token.e2e"]);
        let state = Arc::new(Mutex::new((password.to_owned(), Asked::default())));
        let shared = Arc::clone(&state);
        let signer = Arc::new(Signer {
            key: KeyPair::from_pem(&signer.key).expect("key"),
            certificate: STANDARD.encode(CertificateDer::from_pem_slice(signer.certificate.as_bytes()).expect("certificate")),
        });
        let task = tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { return };
                let (acceptor, state, signer) = (acceptor.clone(), Arc::clone(&shared), Arc::clone(&signer));
                tokio::spawn(async move {
                    let Ok(mut stream) = acceptor.accept(stream).await else { return };
                    let Some(hit) = read_request(&mut stream).await else { return };
                    let (status, body) = answer(&hit, &state, &signer);
                    let head = format!(
                        "HTTP/1.1 {status} Token\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
                        body.len()
                    );
                    let _ = write_all(&mut stream, &[head.as_bytes(), body.as_bytes()].concat()).await;
                    let _ = tokio::io::AsyncWriteExt::shutdown(&mut stream).await;
                });
            }
        });
        Self { address, state, task }
    }

    fn realm(&self) -> String {
        format!("https://{}/token", self.address)
    }

    fn set_password(&self, password: &str) {
        password.clone_into(&mut lock(&self.state).0);
    }

    /// What it was asked so far.
    pub fn asked(&self) -> Asked {
        lock(&self.state).1.clone()
    }
}

impl Drop for TokenService {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Signer {
    key: KeyPair,
    certificate: String,
}

fn answer(hit: &Hit, state: &Mutex<(String, Asked)>, signer: &Signer) -> (u16, String) {
    let query = hit.target.split_once('?').map(|(_, query)| query).unwrap_or_default();
    let scopes: Vec<String> =
        url::form_urlencoded::parse(query.as_bytes()).filter(|(key, _)| key == "scope").map(|(_, value)| value.into_owned()).collect();
    let mut state = lock(state);
    let right = format!("Basic {}", STANDARD.encode(format!("{USER}:{}", state.0)));
    match hit.header("authorization") {
        None => {
            // As ghcr.io and others do: a token, but none that opens anything private.
            state.1.anonymous += 1;
            (200, json!({ "token": signer.token(&[]) }).to_string())
        }
        Some(given) if given == right => {
            let token = signer.token(&scopes);
            state.1.given.push(token.clone());
            (200, json!({ "token": token, "expires_in": 300 }).to_string())
        }
        Some(given) => {
            state.1.refused += 1;
            // A careless service repeats what it was sent.
            (401, json!({ "errors": [{ "code": "UNAUTHORIZED", "message": format!("no such user: {given}") }] }).to_string())
        }
    }
}

impl Signer {
    /// A token as docker-registry checks it: ES256, with the certificate that vouches for the key.
    fn token(&self, scopes: &[String]) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("time").as_secs();
        let access: Vec<_> = scopes
            .iter()
            .filter_map(|scope| {
                let (kind, rest) = scope.split_once(':')?;
                let (name, actions) = rest.rsplit_once(':')?;
                Some(json!({ "type": kind, "name": name, "actions": actions.split(',').collect::<Vec<_>>() }))
            })
            .collect();
        let header = json!({ "typ": "JWT", "alg": "ES256", "x5c": [self.certificate] });
        let claims = json!({
            "iss": "e2e", "aud": "e2e", "sub": USER, "exp": now + 300, "nbf": now - 10, "iat": now,
            "jti": format!("{now}-{}", scopes.len()), "access": access,
            // The mark by which the harness knows every secret again (`harness::MARK`).
            "secret": "hunter2",
        });
        let payload = format!("{}.{}", URL_SAFE_NO_PAD.encode(header.to_string()), URL_SAFE_NO_PAD.encode(claims.to_string()));
        let signature = self.key.sign(payload.as_bytes()).expect("signed");
        format!("{payload}.{}", URL_SAFE_NO_PAD.encode(fixed(&signature)))
    }
}

/// A signature's two numbers side by side, as JSON Web Tokens have them, out of DER.
fn fixed(der: &[u8]) -> Vec<u8> {
    let mut rest = &der[2..];
    let mut out = Vec::new();
    for _ in 0..2 {
        let (length, after) = (usize::from(rest[1]), &rest[2..]);
        let number = after[..length].iter().copied().skip_while(|byte| *byte == 0).collect::<Vec<_>>();
        out.extend(std::iter::repeat_n(0, 32 - number.len()));
        out.extend(number);
        rest = &after[length..];
    }
    out
}
