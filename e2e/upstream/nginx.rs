//! A real nginx that serves a directory over HTTP and HTTPS.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use super::{
    Authority, PATIENCE,
    process::{Process, free_address},
};

/// A running nginx.
pub struct Nginx {
    pub http: SocketAddr,
    pub https: SocketAddr,
    directory: tempfile::TempDir,
    process: Process,
}

/// One line of nginx's own access log.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    pub method: String,
    pub target: String,
    pub status: u16,
    /// Bytes of the body sent.
    pub sent: u64,
    pub range: String,
    pub user_agent: String,
}

impl Nginx {
    /// Starts nginx with a certificate of `authority` for `names`; more directives for the server may be given.
    pub fn start(authority: &Authority, names: &[&str], directives: &str) -> Self {
        let directory = tempfile::tempdir().expect("directory");
        let at = directory.path();
        let (http, https) = (free_address(), free_address());
        std::fs::create_dir(at.join("files")).expect("files");
        let pair = authority.issue(names);
        std::fs::write(at.join("tls.crt"), pair.certificate).expect("certificate");
        std::fs::write(at.join("tls.key"), pair.key).expect("key");
        let root = at.display();
        // Started by root, nginx's workers would become `nobody`, who may not read a private directory.
        let user = if is_root() { "user root;" } else { "" };
        let config = format!(
            "{user} daemon off; pid {root}/pid; error_log {root}/error.log; worker_processes 1;
            events {{ worker_connections 64; }}
            http {{
                log_format t '$request_method|$request_uri|$status|$body_bytes_sent|$http_range|$http_user_agent';
                access_log {root}/access.log t;
                client_body_temp_path {root}/b; proxy_temp_path {root}/p; fastcgi_temp_path {root}/f; uwsgi_temp_path {root}/u; scgi_temp_path {root}/s;
                sendfile on; keepalive_timeout 5;
                server {{
                    listen {http}; listen {https} ssl; ssl_protocols TLSv1.2 TLSv1.3;
                    ssl_certificate {root}/tls.crt; ssl_certificate_key {root}/tls.key;
                    root {root}/files;
                    {directives}
                }}
            }}"
        );
        std::fs::write(at.join("nginx.conf"), config).expect("configuration");
        let mut command = Command::new("nginx");
        command.arg("-p").arg(at).arg("-c").arg(at.join("nginx.conf"));
        // The one that nginx listens on last.
        let process = Process::start(command, https, &at.join("output.log"));
        Self { http, https, directory, process }
    }

    /// The directory that is served.
    pub fn files(&self) -> PathBuf {
        self.directory.path().join("files")
    }

    /// The master process, whose child does the work.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Puts a file there.
    pub fn put(&self, path: &str, bytes: &[u8]) {
        let file = self.files().join(path);
        std::fs::create_dir_all(file.parent().unwrap_or(Path::new("/"))).expect("directory");
        std::fs::write(file, bytes).expect("file");
    }

    /// The access log's lines about `target`, once there are at least `count`: nginx writes a line when a request has ended.
    pub fn log(&self, target: &str, count: usize) -> Vec<Line> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let text = std::fs::read_to_string(self.directory.path().join("access.log")).unwrap_or_default();
            let lines: Vec<_> = text.lines().filter_map(parse).filter(|line| line.target == target).collect();
            if lines.len() >= count {
                return lines;
            }
            assert!(Instant::now() < deadline, "{target}: {} of {count} lines", lines.len());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn parse(line: &str) -> Option<Line> {
    let mut fields = line.splitn(6, '|').map(str::to_owned);
    Some(Line {
        method: fields.next()?,
        target: fields.next()?,
        status: fields.next()?.parse().ok()?,
        sent: fields.next()?.parse().ok()?,
        range: fields.next()?,
        user_agent: fields.next()?,
    })
}

/// Whether this process is root.
pub(super) fn is_root() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|text| text.lines().any(|line| line.starts_with("Uid:\t0\t")))
}
