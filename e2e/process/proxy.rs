//! A TCP proxy in front of the API server that can be slow, deaf or gone.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::{net::SocketAddr, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
};

/// What the proxy does to its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Nothing.
    Pass,
    /// Holds the server's answers back for this long, as a busy server does. Requests arrive: one that is under way for longer
    /// than the gap between a claim's end and the Lease's is beyond what any client can prevent.
    Delay(Duration),
    /// Takes connections and bytes, and passes on neither: as when packets are dropped on the way. What was taken is gone.
    Hole,
    /// Breaks all connections and takes no new ones.
    Refuse,
}

/// The running proxy.
pub struct Proxy {
    address: SocketAddr,
    mode: watch::Sender<Mode>,
}

impl Proxy {
    /// Starts it in front of the server at `url` (`https://host:port`).
    pub async fn start(url: String) -> Self {
        let server = url.strip_prefix("https://").expect("an https URL").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listen");
        let address = listener.local_addr().expect("an address");
        let (mode, modes) = watch::channel(Mode::Pass);
        tokio::spawn(async move {
            loop {
                let Ok((client, _)) = listener.accept().await else { continue };
                tokio::spawn(connection(client, server.clone(), modes.clone()));
            }
        });
        Self { address, mode }
    }

    /// Where it listens; the API server's certificate is good for it.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Changes what it does, for open connections too.
    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }
}

async fn connection(client: TcpStream, server: String, mut modes: watch::Receiver<Mode>) {
    if *modes.borrow_and_update() == Mode::Refuse {
        return;
    }
    let Ok(server) = TcpStream::connect(server).await else { return };
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let (up, down) = (pass(from_client, to_server, modes.clone(), false), pass(from_server, to_client, modes.clone(), true));
    tokio::select! {
        () = async { tokio::join!(up, down); } => {}
        _ = modes.wait_for(|mode| *mode == Mode::Refuse) => {}
    }
}

/// Carries bytes one way until either end is closed.
async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut modes: watch::Receiver<Mode>, answers: bool) {
    let mut buffer = vec![0; 64 * 1024];
    let mut holed = false;
    loop {
        let read = from.read(&mut buffer).await.unwrap_or(0);
        if read == 0 {
            // A connection that went through a hole is lost: its end must not let half a request through either.
            if !holed {
                let _ = to.shutdown().await;
            }
            return;
        }
        let mode = *modes.borrow_and_update();
        match mode {
            Mode::Delay(delay) if answers => tokio::time::sleep(delay).await,
            Mode::Hole => holed = true,
            Mode::Pass | Mode::Refuse | Mode::Delay(_) => {}
        }
        if !holed && to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
