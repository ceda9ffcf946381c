//! Ports on loopback that stay ours.
//!
//! A port from `bind(0)` can be taken by anyone's outgoing connection once it is released, and while a killed server is
//! down. So ports come from below the range the kernel gives out by itself, and a locked file keeps other test processes
//! away for as long as the [`Port`] lives. The kernel drops the lock with the process.

use std::{
    fs::{self, File},
    net::TcpListener,
    os::unix::fs::MetadataExt,
    sync::atomic::{AtomicU16, Ordering},
};

/// How many ports below the kernel's own range are used.
const RANGE: u16 = 16_000;
/// Ports under this one are often those of well-known services.
const LOWEST: u16 = 10_240;

static NEXT: AtomicU16 = AtomicU16::new(0);

/// A port on 127.0.0.1 that no other test gets while this value lives.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _lock: File,
}

impl Port {
    /// Reserves a free port.
    pub fn reserve() -> Self {
        let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
        let top = range.split_whitespace().next().and_then(|low| low.parse().ok()).unwrap_or(32_768u16).max(LOWEST + 1_000);
        let bottom = top.saturating_sub(RANGE).max(LOWEST);
        let size = top - bottom;
        let user = fs::metadata("/proc/self").map(|m| m.uid()).unwrap_or_default();
        let locks = std::env::temp_dir().join(format!("golden-catalog-ports-{user}"));
        fs::create_dir_all(&locks).expect("create the folder of port locks");

        // Each process begins elsewhere, so that they rarely ask for the same one.
        let start = (std::process::id().wrapping_mul(97) % u32::from(size)) as u16;
        for _ in 0..size {
            let number = bottom + (start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed))) % size;
            let lock =
                File::options().create(true).truncate(false).write(true).open(locks.join(number.to_string())).expect("open a port lock");
            if lock.try_lock().is_ok() && TcpListener::bind(("127.0.0.1", number)).is_ok() {
                return Self { number, _lock: lock };
            }
        }
        panic!("no free port between {bottom} and {top}");
    }

    /// The number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.number)
    }
}
