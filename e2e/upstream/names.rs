//! A scripted DNS server over UDP: A and AAAA answers for names that a test sets.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex},
};

use tokio::{net::UdpSocket, task::JoinHandle};

use super::lock;

#[derive(Default)]
struct Zone {
    /// For each name the answers in turn, the last of which stays.
    answers: HashMap<String, (Vec<Vec<IpAddr>>, usize)>,
    /// Every question, as (name, type).
    questions: Vec<(String, u16)>,
}

/// A DNS server that knows what it is told and answers NXDOMAIN for the rest.
pub struct Names {
    pub address: SocketAddr,
    zone: Arc<Mutex<Zone>>,
    task: JoinHandle<()>,
}

impl Names {
    pub async fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a free port");
        let address = socket.local_addr().expect("address");
        let zone = Arc::new(Mutex::new(Zone::default()));
        let shared = Arc::clone(&zone);
        let task = tokio::spawn(async move {
            let mut datagram = [0; 512];
            while let Ok((length, from)) = socket.recv_from(&mut datagram).await {
                if let Some(answer) = reply(&datagram[..length], &shared) {
                    let _ = socket.send_to(&answer, from).await;
                }
            }
        });
        Self { address, zone, task }
    }

    /// Resolves `name` to these addresses.
    pub fn set(&self, name: &str, addresses: &[&str]) {
        self.sequence(name, &[addresses]);
    }

    /// Resolves `name` to the first list when its A records are asked for the first time, then to the next; the last stays.
    pub fn sequence(&self, name: &str, answers: &[&[&str]]) {
        let parse = |list: &&[&str]| list.iter().map(|text| text.parse().expect("address")).collect();
        lock(&self.zone).answers.insert(name.to_owned(), (answers.iter().map(parse).collect(), 0));
    }

    /// How often the A records of `name` were asked for.
    pub fn asked(&self, name: &str) -> usize {
        lock(&self.zone).questions.iter().filter(|(asked, kind)| asked == name && *kind == 1).count()
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn reply(question: &[u8], zone: &Mutex<Zone>) -> Option<Vec<u8>> {
    let mut at = 12;
    let mut labels = Vec::new();
    loop {
        let length = usize::from(*question.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        labels.push(String::from_utf8_lossy(question.get(at..at + length)?).to_ascii_lowercase());
        at += length;
    }
    let name = labels.join(".");
    let kind = u16::from_be_bytes(question.get(at..at + 2)?.try_into().ok()?);
    let end = at + 4;
    let mut zone = lock(zone);
    zone.questions.push((name.clone(), kind));
    let known = zone.answers.get_mut(&name).map(|(answers, next)| {
        let list = answers.get(*next).or(answers.last()).cloned().unwrap_or_default();
        if kind == 1 {
            *next += 1;
        }
        list
    });
    let addresses: Vec<IpAddr> = known.iter().flatten().copied().filter(|ip| ip.is_ipv4() == (kind == 1)).collect();
    let code = if known.is_some() { 0 } else { 3 };
    let mut answer = question.get(..2)?.to_vec();
    answer.extend([0x81, 0x80 | code, 0, 1, 0, u8::try_from(addresses.len()).ok()?, 0, 0, 0, 0]);
    answer.extend(question.get(12..end)?);
    for ip in addresses {
        let data = match ip {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        answer.extend([0xc0, 12, 0, u8::try_from(kind).ok()?, 0, 1, 0, 0, 0, 0, 0, u8::try_from(data.len()).ok()?]);
        answer.extend(data);
    }
    Some(answer)
}
