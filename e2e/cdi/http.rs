//! The importer's HTTP client as measured: Go's errors, no Range, `Accept-Encoding: gzip`, every header on every hop.

use std::{collections::BTreeMap, error::Error as _, net::SocketAddr, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use url::Url;

use super::types::ImportProxy;

/// What Go's `http.Client` sends, and CDI with it.
const USER_AGENT: &str = "cdi-golang-importer";
const MAX_REDIRECTS: usize = 10;

/// How an importer connects.
#[derive(Clone, Debug, Default)]
pub(super) struct Connection {
    /// CA certificates of the `certConfigMap` in PEM; none: the system's.
    pub(super) ca: Option<Vec<u8>>,
    /// `Name: value` lines.
    pub(super) headers: Vec<String>,
    pub(super) basic: Option<(String, String)>,
    pub(super) proxy: Option<ImportProxy>,
    pub(super) dial: BTreeMap<String, SocketAddr>,
    /// How long to wait for an answer's head.
    pub(super) patience: Duration,
}

/// What a request was and got, for the journal.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) host: String,
    pub(super) path: String,
    pub(super) status: u16,
}

impl Connection {
    /// Sends one request and follows redirects. The error is the text Go would give; `seen` gets every hop.
    pub(super) async fn send(&self, method: Method, url: &str, seen: &mut Vec<Seen>) -> Result<reqwest::Response, String> {
        let headers = self.headers()?;
        let verb = capitalized(&method);
        let mut url = Url::parse(url).map_err(|error| format!("parse {url:?}: {error}"))?;
        for _ in 0..MAX_REDIRECTS {
            let host = host_and_port(&url);
            let sent = self.once(method.clone(), &url, &headers).await;
            let status = sent.as_ref().map_or(0, |response| response.status().as_u16());
            seen.push(Seen { host, path: url.path().to_owned(), status });
            let response = sent.map_err(|cause| format!("HTTP request errored: {verb} \"{url}\": {cause}"))?;
            let location = response.headers().get(http::header::LOCATION).and_then(|value| value.to_str().ok());
            match (response.status().is_redirection(), location) {
                (true, Some(location)) => url = url.join(location).map_err(|error| format!("failed to parse Location header: {error}"))?,
                _ => return Ok(response),
            }
        }
        Err(format!("HTTP request errored: {verb} \"{url}\": stopped after 10 redirects"))
    }

    /// A GET whose answer must be 200.
    pub(super) async fn get(&self, url: &str, seen: &mut Vec<Seen>) -> Result<reqwest::Response, String> {
        let response = self.send(Method::GET, url, seen).await?;
        match response.status() {
            StatusCode::OK => Ok(response),
            status => Err(format!(
                "expected status code 200, got {}. Status: {} {}",
                status.as_u16(),
                status.as_u16(),
                status.canonical_reason().unwrap_or("")
            )),
        }
    }

    fn headers(&self) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::new();
        for line in &self.headers {
            let Some((name, value)) = line.split_once(':') else { continue };
            let bad = || format!("net/http: invalid header field value for {name:?}");
            let value = HeaderValue::from_str(value.trim_matches([' ', '\t'])).map_err(|_| bad())?;
            headers.append(HeaderName::try_from(name).map_err(|_| format!("net/http: invalid header field name {name:?}"))?, value);
        }
        headers.insert(http::header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
        headers.entry(http::header::ACCEPT_ENCODING).or_insert(HeaderValue::from_static("gzip"));
        Ok(headers)
    }

    async fn once(&self, method: Method, url: &Url, headers: &HeaderMap) -> Result<reqwest::Response, String> {
        // One connection for each request: Go closes an answer that is not read to its end, and so does the importer.
        let mut builder = reqwest::Client::builder().http1_only().redirect(reqwest::redirect::Policy::none()).pool_max_idle_per_host(0);
        builder = match &self.ca {
            Some(pem) => {
                let certificates = reqwest::Certificate::from_pem_bundle(pem).map_err(|error| format!("bad CA bundle: {error}"))?;
                // Go adds the system's roots; certificates of tests are never among them.
                builder.tls_certs_only(certificates)
            }
            None => builder,
        };
        let host = url.host_str().unwrap_or_default().to_owned();
        let mut target = url.clone();
        let mut headers = headers.clone();
        match self.proxy_for(url) {
            Some(proxy) => {
                let mut proxy = Url::parse(&proxy).map_err(|error| format!("proxyconnect tcp: {error}"))?;
                if let Some(addr) = self.dialed(&proxy) {
                    let _ = proxy.set_host(Some(&addr.ip().to_string()));
                    let _ = proxy.set_port(Some(addr.port()));
                }
                builder = builder.proxy(reqwest::Proxy::all(proxy).map_err(|error| format!("proxyconnect tcp: {error}"))?);
            }
            None => {
                builder = builder.no_proxy();
                if let Some(addr) = self.dialed(url) {
                    // A port in the URL wins over that of a resolved address, so it moves to the Host header.
                    let _ = target.set_port(None);
                    headers.insert(http::header::HOST, HeaderValue::from_str(&host_and_port(url)).map_err(|error| error.to_string())?);
                    builder = builder.resolve(&host, addr);
                }
            }
        }
        let client = builder.build().map_err(|error| chain(&error))?;
        let mut request = client.request(method, target).headers(headers);
        if let Some((user, password)) = &self.basic {
            request = request.basic_auth(user, Some(password));
        }
        match tokio::time::timeout(self.patience, request.send()).await {
            Err(_) => Err("context canceled".into()),
            Ok(Err(error)) => Err(go_text(&error, &host)),
            Ok(Ok(response)) => Ok(response),
        }
    }

    fn dialed(&self, url: &Url) -> Option<SocketAddr> {
        let host = url.host_str()?;
        let port = url.port_or_known_default()?;
        self.dial.get(&format!("{host}:{port}")).or_else(|| self.dial.get(host)).copied()
    }

    /// The proxy Go would use for `url` (`golang.org/x/net/http/httpproxy`).
    fn proxy_for(&self, url: &Url) -> Option<String> {
        let settings = self.proxy.as_ref()?;
        let proxy = if url.scheme() == "https" { &settings.https_proxy } else { &settings.http_proxy };
        let proxy = proxy.clone().filter(|proxy| !proxy.is_empty())?;
        let host = url.host_str()?;
        let excluded = settings
            .no_proxy
            .as_deref()
            .unwrap_or("")
            .split(',')
            .map(str::trim)
            .any(|entry| no_proxy_matches(entry, host, url.port_or_known_default()));
        let local = host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
        (!excluded && !local).then_some(proxy)
    }
}

fn no_proxy_matches(entry: &str, host: &str, port: Option<u16>) -> bool {
    if entry == "*" {
        return true;
    }
    if let (Ok(network), Ok(ip)) = (entry.parse::<ipnet::IpNet>(), host.parse::<std::net::IpAddr>()) {
        return network.contains(&ip);
    }
    let (name, wanted) = match entry.rsplit_once(':') {
        Some((name, digits)) => match digits.parse::<u16>() {
            Ok(port) => (name, Some(port)),
            Err(_) => (entry, None),
        },
        None => (entry, None),
    };
    let name = name.strip_prefix('*').unwrap_or(name);
    let subdomain = name.starts_with('.');
    let name = name.trim_start_matches('.');
    let fits = host.ends_with(&format!(".{name}")) || (!subdomain && host == name);
    !name.is_empty() && fits && (wanted.is_none() || wanted == port)
}

fn host_and_port(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

fn capitalized(method: &Method) -> &'static str {
    if *method == Method::HEAD { "Head" } else { "Get" }
}

/// An error and its causes in one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

/// The words Go's client would use, which is what ends up in conditions.
fn go_text(error: &reqwest::Error, host: &str) -> String {
    let text = chain(error);
    let lower = text.to_lowercase();
    if lower.contains("refused") {
        format!("dial tcp: connect: connection refused ({host})")
    } else if lower.contains("dns error") || lower.contains("lookup") || lower.contains("name or service not known") {
        format!("dial tcp: lookup {host} on 10.96.0.10:53: no such host")
    } else if lower.contains("unknownissuer") || lower.contains("unknown issuer") || lower.contains("certificate") {
        "tls: failed to verify certificate: x509: certificate signed by unknown authority".into()
    } else if lower.contains("tunnel") || lower.contains("proxy") {
        format!("proxyconnect tcp: {text}")
    } else if error.source().is_some() && (lower.contains("eof") || lower.contains("closed") || lower.contains("incomplete")) {
        "EOF".into()
    } else if lower.contains("reset") {
        "read tcp: read: connection reset by peer".into()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_proxy_is_read_as_go_reads_it() {
        for (entry, host, port, expected) in [
            ("svc", "spool.ns.svc", 8443, true),
            (".svc", "spool.ns.svc", 8443, true),
            (".svc", "svc", 8443, false),
            ("spool.ns.svc:8443", "spool.ns.svc", 8443, true),
            ("spool.ns.svc:443", "spool.ns.svc", 8443, false),
            ("10.0.0.0/8", "10.1.2.3", 80, true),
            ("*", "anything", 80, true),
            ("", "anything", 80, false),
            ("other", "spool.ns.svc", 80, false),
        ] {
            assert_eq!(no_proxy_matches(entry, host, Some(port)), expected, "{entry} {host}");
        }
    }
}
