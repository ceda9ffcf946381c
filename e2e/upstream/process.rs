//! A real server as a child process that ends with its owner.

#[allow(dead_code, clippy::duplicate_mod, reason = "not every test that has upstreams has the harness")]
#[path = "../harness/ports.rs"]
mod ports;

use std::{
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    sync::Mutex,
    time::{Duration, Instant},
};

/// A child process, ended when dropped.
pub struct Process(Child);

impl Process {
    /// Starts `command` and waits until `address` accepts connections.
    pub fn start(mut command: Command, address: SocketAddr, log: &Path) -> Self {
        let output = std::fs::File::create(log).expect("log");
        let errors = output.try_clone().expect("log");
        let child =
            command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let mut process = Self(child);
        let deadline = Instant::now() + super::PATIENCE;
        while TcpStream::connect(address).is_err() {
            let ended = process.0.try_wait().expect("child");
            let log = || std::fs::read_to_string(log).unwrap_or_default();
            assert!(ended.is_none() && Instant::now() < deadline, "{command:?} does not listen on {address} ({ended:?}): {}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
        process
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A master process passes an orderly end on to its workers; a kill would leave them behind.
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let deadline = Instant::now() + Duration::from_secs(30);
        while matches!(self.0.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A loopback address that nobody else gets while this test process lives: for programs that cannot take port 0, and for
/// places at which nobody is to listen.
pub fn free_address() -> SocketAddr {
    static KEPT: Mutex<Vec<ports::Port>> = Mutex::new(Vec::new());
    let port = ports::Port::reserve();
    let address = (Ipv4Addr::LOCALHOST, port.number()).into();
    KEPT.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(port);
    address
}
