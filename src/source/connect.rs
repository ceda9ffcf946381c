//! One connection to one checked address, directly or through a proxy.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    time::{Instant, timeout_at},
};
use tokio_rustls::TlsConnector;
use url::{Host, Url};

use super::{
    Egress,
    address::{self, Trust},
    error::Fault,
    proxy::ProxyUrl,
    tls,
};

/// A byte stream, whatever it goes through.
pub(super) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A connection ready for a request.
pub(super) struct Connection {
    pub io: Box<dyn Io>,
    /// The request goes to a proxy that makes it on our behalf: absolute-form, with this `Proxy-Authorization`.
    pub forward: Option<Option<String>>,
}

/// How a connection is to be made.
pub(super) struct Route<'a> {
    pub url: &'a Url,
    pub trust: Trust,
    pub tls: &'a Arc<ClientConfig>,
    pub deadline: Instant,
    /// A small receive buffer, so that a dropped peek has moved few bytes.
    pub small: bool,
}

impl Egress {
    /// Connects to where `route` leads.
    pub(super) async fn connect(&self, route: &Route<'_>) -> Result<Connection, Fault> {
        let after = self.inner.settings.deadlines.connect;
        let (host, port) = host_and_port(route.url)?;
        let proxy = self.inner.settings.proxy.for_url(route.url);
        let made = timeout_at(route.deadline, async {
            match proxy {
                None => self.direct(&host, port, route).await,
                Some(proxy) => self.through(proxy, &host, port, route).await,
            }
        });
        made.await.unwrap_or_else(|_| {
            let what = format!("not made within {} s", after.as_secs_f32());
            Err(match proxy {
                None => Fault::Unreachable { peer: format!("{host}:{port}"), what },
                Some(proxy) => Fault::Proxy { proxy: proxy.to_string(), what: format!("opened no connection: {what}") },
            })
        })
    }

    async fn direct(&self, host: &Host<String>, port: u16, route: &Route<'_>) -> Result<Connection, Fault> {
        let tcp = self.tcp(host, port, route.trust, route).await?;
        let io = if route.url.scheme() == "https" { encrypt(tcp, host, port, route.tls).await? } else { Box::new(tcp) };
        Ok(Connection { io, forward: None })
    }

    /// Through a proxy only a literal address can be checked: a name is the proxy's to resolve.
    async fn through(&self, proxy: &ProxyUrl, host: &Host<String>, port: u16, route: &Route<'_>) -> Result<Connection, Fault> {
        if let Some(address) = literal(host) {
            self.check(host, &[address], route.trust)?;
        }
        if matches!(host, Host::Domain(name) if name.trim_end_matches('.').ends_with(".localhost")) {
            self.check(host, &[IpAddr::from([127, 0, 0, 1])], route.trust)?;
        }
        let (proxy_host, proxy_port) = host_and_port(proxy.url())?;
        let failed = |what: String| Fault::Proxy { proxy: proxy.to_string(), what };
        let tcp = self
            .tcp(&proxy_host, proxy_port, Trust::Written, route)
            .await
            .map_err(|fault| failed(format!("cannot be reached: {fault}")))?;
        let mut io: Box<dyn Io> = if proxy.url().scheme() == "https" {
            // The way to the proxy is trusted by the common authorities; an entry's own are for its upstream.
            let common = self.inner.trusts.config(None).map_err(|what| Fault::CaBundle { what })?;
            encrypt(tcp, &proxy_host, proxy_port, &common).await?
        } else {
            Box::new(tcp)
        };
        if route.url.scheme() != "https" {
            return Ok(Connection { io, forward: Some(proxy.authorization()) });
        }
        tunnel(&mut io, host, port, proxy.authorization()).await.map_err(failed)?;
        Ok(Connection { io: encrypt(io, host, port, route.tls).await?, forward: None })
    }

    /// A TCP connection to an address of `host` that the guard allows.
    async fn tcp(&self, host: &Host<String>, port: u16, trust: Trust, route: &Route<'_>) -> Result<TcpStream, Fault> {
        let found = match literal(host) {
            Some(address) => vec![address],
            None => self
                .inner
                .resolver
                .resolve(&host.to_string(), self.inner.random())
                .await
                .map_err(|what| Fault::Unresolved { host: host.to_string(), what })?,
        };
        let allowed = self.check(host, &found, trust)?;
        let mut last = None;
        for (index, address) in allowed.iter().enumerate() {
            // Each address gets its share of what is left, so that a silent first one does not use it all.
            let left = route.deadline.saturating_duration_since(Instant::now());
            let share = left / u32::try_from(allowed.len() - index).unwrap_or(u32::MAX).max(1);
            match dial(SocketAddr::new(*address, port), share, route.small).await {
                Ok(stream) => return Ok(stream),
                Err(what) => last = Some((*address, what)),
            }
        }
        let (address, what) = last.unwrap_or_else(|| (IpAddr::from([0, 0, 0, 0]), "the name has no address".to_owned()));
        let peer = if literal(host).is_some() { format!("{host}:{port}") } else { format!("{host}:{port} at {address}") };
        Err(Fault::Unreachable { peer, what })
    }

    /// The addresses among `found` that may be connected to; an error where there is none.
    fn check(&self, host: &Host<String>, found: &[IpAddr], trust: Trust) -> Result<Vec<IpAddr>, Fault> {
        let settings = &self.inner.settings;
        let mut refused = None;
        let allowed: Vec<IpAddr> = found
            .iter()
            .copied()
            .filter(|address| {
                let verdict = address::judge(*address, trust, settings.allow_loopback, settings.allow_private_redirects);
                verdict.map_err(|class| refused.get_or_insert((*address, class))).is_ok()
            })
            .collect();
        match (allowed.is_empty(), refused) {
            (true, Some((address, class))) => {
                Err(Fault::AddressRefused { host: host.to_string(), address, class, led: trust == Trust::Led })
            }
            _ => Ok(allowed),
        }
    }
}

/// The host and port of a URL.
fn host_and_port(url: &Url) -> Result<(Host<String>, u16), Fault> {
    let host = url.host().map(|host| host.to_owned());
    host.zip(url.port_or_known_default())
        .ok_or_else(|| Fault::Unresolved { host: String::new(), what: "the address has no host".to_owned() })
}

/// The address that a host is, where it is not a name.
fn literal(host: &Host<String>) -> Option<IpAddr> {
    match host {
        Host::Domain(_) => None,
        Host::Ipv4(ip) => Some((*ip).into()),
        Host::Ipv6(ip) => Some((*ip).into()),
    }
}

async fn dial(address: SocketAddr, patience: Duration, small: bool) -> Result<TcpStream, String> {
    /// The kernel doubles it; its own tuning would go to several MiB.
    const SMALL: u32 = 64 << 10;
    let io = |error: std::io::Error| error.to_string();
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }.map_err(io)?;
    if small {
        socket.set_recv_buffer_size(SMALL).map_err(io)?;
    }
    let stream = match tokio::time::timeout(patience, socket.connect(address)).await {
        Ok(connected) => connected.map_err(io)?,
        Err(_) => return Err("it does not answer".to_owned()),
    };
    stream.set_nodelay(true).map_err(io)?;
    Ok(stream)
}

/// A TLS handshake for `host`.
async fn encrypt<T: Io + 'static>(io: T, host: &Host<String>, port: u16, config: &Arc<ClientConfig>) -> Result<Box<dyn Io>, Fault> {
    let peer = || format!("{host}:{port}");
    let name = match host {
        Host::Domain(name) => ServerName::try_from(name.trim_end_matches('.').to_owned())
            .map_err(|_| Fault::Tls { peer: peer(), what: "the host is no name that a certificate can have".to_owned() })?,
        Host::Ipv4(ip) => ServerName::from(IpAddr::from(*ip)),
        Host::Ipv6(ip) => ServerName::from(IpAddr::from(*ip)),
    };
    match TlsConnector::from(Arc::clone(config)).connect(name, io).await {
        Ok(stream) => Ok(Box::new(stream)),
        Err(error) => Err(match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(tls) => Fault::Tls { peer: peer(), what: tls::explain(tls) },
            None => Fault::Unreachable { peer: peer(), what: format!("it broke off the TLS handshake: {error}") },
        }),
    }
}

/// Asks a proxy for a tunnel (RFC 9110 §9.3.6). Written by hand, since what follows the answer's head is not HTTP.
async fn tunnel(io: &mut Box<dyn Io>, host: &Host<String>, port: u16, authorization: Option<String>) -> Result<(), String> {
    const LONGEST: usize = 16 << 10;
    let mut request = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\nUser-Agent: {}\r\n", super::USER_AGENT);
    if let Some(authorization) = authorization {
        request.push_str("Proxy-Authorization: ");
        request.push_str(&authorization);
        request.push_str("\r\n");
    }
    request.push_str("\r\n");
    io.write_all(request.as_bytes()).await.map_err(|error| format!("broke off: {error}"))?;
    io.flush().await.map_err(|error| format!("broke off: {error}"))?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= LONGEST {
            return Err(format!("sent more than {LONGEST} bytes of headers"));
        }
        // Byte by byte: not one byte of what the far side sends may be taken.
        let byte = io.read_u8().await.map_err(|error| format!("broke off: {error}"))?;
        head.push(byte);
    }
    match tunnel_status(&head) {
        Some(200..=299) => Ok(()),
        Some(407) => Err("wants other credentials than those in its URL: it answered 407".to_owned()),
        Some(status) => Err(format!("refused a tunnel to {host}:{port}: it answered {status}")),
        None => Err("did not answer in HTTP".to_owned()),
    }
}

/// The status code of a response head.
fn tunnel_status(head: &[u8]) -> Option<u16> {
    let line = std::str::from_utf8(head.split(|byte| *byte == b'\r').next()?).ok()?;
    let rest = line.strip_prefix("HTTP/1.1 ").or_else(|| line.strip_prefix("HTTP/1.0 "))?;
    rest.get(..3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::tunnel_status;

    #[test]
    fn statuses_of_a_proxy() {
        assert_eq!(tunnel_status(b"HTTP/1.1 200 Connection established\r\n\r\n"), Some(200));
        assert_eq!(tunnel_status(b"HTTP/1.0 407 Proxy Authentication Required\r\n\r\n"), Some(407));
        assert_eq!(tunnel_status(b"HTTP/1.1 200\r\n\r\n"), Some(200));
        for bad in [&b"SSH-2.0-OpenSSH\r\n\r\n"[..], b"HTTP/1.1\r\n\r\n", b"HTTP/1.1 2x0\r\n\r\n", b"\xff\r\n\r\n", b""] {
            assert_eq!(tunnel_status(bad), None);
        }
    }
}
