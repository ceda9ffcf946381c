//! Names to addresses: by the system's resolver, or by one DNS server where `--resolver` says so.
//!
//! The addresses found here are checked and then connected to as they are: nothing resolves a name a second time, so an
//! answer that changes between check and connection (DNS rebinding) changes nothing.

mod wire;

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use rustls::crypto::SecureRandom;
use tokio::net::UdpSocket;
use wire::{Answer, RecordType};

/// The most addresses of one name that are looked at.
const MOST_ADDRESSES: usize = 32;

/// How a name is resolved.
#[derive(Debug, Clone, Copy)]
pub(super) enum Resolver {
    /// As the system is set up (`getaddrinfo`).
    System,
    /// By asking this server over UDP.
    Server(SocketAddr),
}

impl Resolver {
    /// Questions sent before a server counts as silent, and the wait for each answer.
    const TRIES: usize = 3;
    const PATIENCE: Duration = Duration::from_secs(2);

    /// The addresses of `host`, at least one.
    ///
    /// # Errors
    /// What the resolver said, in words fit for a message.
    pub async fn resolve(self, host: &str, random: &dyn SecureRandom) -> Result<Vec<IpAddr>, String> {
        let mut addresses = match self {
            Self::System => {
                tokio::net::lookup_host((host, 0)).await.map_err(|error| error.to_string())?.map(|address| address.ip()).collect()
            }
            Self::Server(server) => {
                let (v4, v6) = tokio::join!(ask(server, host, RecordType::A, random), ask(server, host, RecordType::Aaaa, random));
                match (v4, v6) {
                    (Ok(mut v4), Ok(v6)) => {
                        v4.extend(v6);
                        v4
                    }
                    (Ok(found), Err(_)) | (Err(_), Ok(found)) if !found.is_empty() => found,
                    (Err(error), _) | (_, Err(error)) => return Err(error),
                }
            }
        };
        addresses.truncate(MOST_ADDRESSES);
        if addresses.is_empty() { Err("the name has no address".to_owned()) } else { Ok(addresses) }
    }
}

/// Asks `server` for one type of record; a silent server is asked again.
async fn ask(server: SocketAddr, host: &str, record: RecordType, random: &dyn SecureRandom) -> Result<Vec<IpAddr>, String> {
    let io = |error: std::io::Error| format!("DNS server {server}: {error}");
    let mut id = [0; 2];
    random.fill(&mut id).map_err(|_| "no random numbers".to_owned())?;
    let id = u16::from_be_bytes(id);
    let question = wire::question(id, host, record).ok_or_else(|| "this is no DNS name".to_owned())?;
    let local: IpAddr = if server.is_ipv4() { [0, 0, 0, 0].into() } else { [0; 16].into() };
    let socket = UdpSocket::bind((local, 0)).await.map_err(io)?;
    // Connected, so that the kernel drops datagrams from anybody else.
    socket.connect(server).await.map_err(io)?;
    let mut datagram = vec![0; 4096];
    for _ in 0..Resolver::TRIES {
        socket.send(&question).await.map_err(io)?;
        let answered = tokio::time::timeout(Resolver::PATIENCE, async {
            loop {
                let length = socket.recv(&mut datagram).await.map_err(io)?;
                // A datagram that does not belong to this question is passed over, never an answer.
                if let Some(answer) = wire::read(datagram.get(..length).unwrap_or_default(), id, host, record) {
                    return Ok(answer);
                }
            }
        })
        .await;
        match answered {
            Ok(Ok(Answer::Addresses(addresses))) => return Ok(addresses),
            Ok(Ok(Answer::NoSuchName)) => return Err("no such name".to_owned()),
            Ok(Ok(Answer::Failed(code))) => return Err(format!("DNS server {server} answered with error {code}")),
            Ok(Err(error)) => return Err(error),
            Err(_) => {}
        }
    }
    Err(format!("DNS server {server} does not answer"))
}
