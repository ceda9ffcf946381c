//! A real squid as forward proxy, without cache.

use std::{
    net::SocketAddr,
    process::Command,
    time::{Duration, Instant},
};

use super::{
    PATIENCE,
    nginx::is_root,
    process::{Process, free_address},
};

/// A running squid.
pub struct Squid {
    pub address: SocketAddr,
    directory: tempfile::TempDir,
    _process: Process,
}

impl Squid {
    /// Starts squid, which lets everybody go everywhere and resolves these names. `None` where it is not installed.
    pub fn start(names: &[(&str, &str)]) -> Option<Self> {
        let program = ["/usr/sbin/squid", "/usr/local/sbin/squid"].into_iter().find(|path| std::path::Path::new(path).exists())?;
        let directory = tempfile::tempdir().expect("directory");
        let at = directory.path();
        let address = free_address();
        let root = at.display();
        // As root, squid becomes another user, who must be able to write its log.
        if is_root() {
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(at, std::fs::Permissions::from_mode(0o777)).expect("permissions");
        }
        let hosts: String = names.iter().map(|(name, address)| format!("{address} {name}\n")).collect();
        std::fs::write(at.join("hosts"), hosts).expect("hosts");
        // Names that are not in the file are asked for at a port where nobody answers.
        let config = format!(
            "http_port {address}\nhttp_access allow all\ncache deny all\npid_filename none\ncoredump_dir {root}\naccess_log stdio:{root}/access.log\n\
             cache_log {root}/cache.log\ncache_store_log none\nshutdown_lifetime 0 seconds\nhosts_file {root}/hosts\ndns_nameservers 127.0.0.1\ndns_timeout 1 second\nconnect_timeout 2 seconds\npinger_enable off\nmax_filedescriptors 1024\n"
        );
        std::fs::write(at.join("squid.conf"), config).expect("configuration");
        let mut command = Command::new(program);
        command.args(["-N", "-f"]).arg(at.join("squid.conf"));
        let process = Process::start(command, address, &at.join("output.log"));
        Some(Self { address, directory, _process: process })
    }

    /// The access log's lines that contain `text`, once there is one: squid writes a line when a request or tunnel has ended.
    pub fn log(&self, text: &str) -> Vec<String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let log = std::fs::read_to_string(self.directory.path().join("access.log")).unwrap_or_default();
            let lines: Vec<_> = log.lines().filter(|line| line.contains(text)).map(str::to_owned).collect();
            if !lines.is_empty() {
                return lines;
            }
            assert!(Instant::now() < deadline, "no line with {text:?} in {log:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
