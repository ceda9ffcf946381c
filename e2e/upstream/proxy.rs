//! A scripted HTTP proxy: opens tunnels for CONNECT, or refuses them as told. Imitates a proxy that asks for credentials.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

use super::{Hit, lock, read_request, write_all};

/// A scripted proxy.
pub struct ConnectProxy {
    pub address: SocketAddr,
    hits: Arc<Mutex<Vec<Hit>>>,
    task: JoinHandle<()>,
}

impl ConnectProxy {
    /// A proxy that leads every tunnel to `to`, whatever name is asked for.
    pub async fn start(to: SocketAddr) -> Self {
        Self::serve(Ok(to)).await
    }

    /// A proxy that answers every CONNECT with these bytes.
    pub async fn refusing(answer: &'static str) -> Self {
        Self::serve(Err(answer)).await
    }

    async fn serve(behaviour: Result<SocketAddr, &'static str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("address");
        let hits = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&hits);
        let task = tokio::spawn(async move {
            let mut tunnels = tokio::task::JoinSet::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let hits = Arc::clone(&shared);
                tunnels.spawn(async move {
                    let Some(hit) = read_request(&mut stream).await else { return };
                    lock(&hits).push(hit);
                    match behaviour {
                        Err(answer) => drop(write_all(&mut stream, answer.as_bytes()).await),
                        Ok(to) => {
                            let Ok(mut far) = TcpStream::connect(to).await else { return };
                            if write_all(&mut stream, b"HTTP/1.1 200 Connection established\r\n\r\n").await.is_ok() {
                                let _ = copy_bidirectional(&mut stream, &mut far).await;
                            }
                        }
                    }
                });
            }
        });
        Self { address, hits, task }
    }

    /// What was asked of the proxy so far.
    pub fn hits(&self) -> Vec<Hit> {
        lock(&self.hits).clone()
    }
}

impl Drop for ConnectProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}
