//! HTTP(S) proxies, and what goes around them.
//!
//! The rules are those of Go's `golang.org/x/net/http/httpproxy`, because a cluster's `NO_PROXY` is written for programs that
//! use it: a name matches itself and everything below it, `.name` and `*.name` only what is below, an address or CIDR block
//! only literal addresses, `:port` narrows any of them, `*` matches all; `localhost` and loopback never go to a proxy.

use std::{fmt, net::IpAddr};

use base64::Engine as _;
use ipnet::IpNet;
use serde::Deserialize;
use url::{Host, Url};

use crate::model::{InvalidValue, public_url};

/// Which proxy serves which scheme.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct ProxySettings {
    /// The proxy for `http://` upstreams.
    pub http: Option<ProxyUrl>,
    /// The proxy for `https://` upstreams, asked for a tunnel by CONNECT.
    pub https: Option<ProxyUrl>,
    /// What is reached without a proxy.
    pub no_proxy: NoProxy,
}

impl ProxySettings {
    /// The settings in `http_proxy`, `https_proxy`, `all_proxy` and `no_proxy`, as `variable` gives them. The lower-case name is
    /// asked first, as curl does; an empty value is an unset one.
    ///
    /// # Errors
    /// A value that is no proxy URL or no list of hosts, with the variable's name.
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Self, InvalidValue> {
        let get = |name: &str| {
            [name.to_owned(), name.to_ascii_uppercase()].iter().find_map(|name| variable(name).filter(|v| !v.trim().is_empty()))
        };
        let proxy = |name: &str| get(name).or_else(|| get("all_proxy")).map(|text| text.parse()).transpose();
        Ok(Self {
            http: proxy("http_proxy")?,
            https: proxy("https_proxy")?,
            no_proxy: get("no_proxy").map(|text| text.parse()).transpose()?.unwrap_or_default(),
        })
    }

    /// The proxy to reach `url` through, or `None` to go there directly.
    pub fn for_url(&self, url: &Url) -> Option<&ProxyUrl> {
        let proxy = if url.scheme() == "https" { self.https.as_ref() } else { self.http.as_ref() }?;
        let host = url.host()?;
        let port = url.port_or_known_default()?;
        (!is_local(&host) && !self.no_proxy.matches(&host, port)).then_some(proxy)
    }
}

/// Whether a host is this one by its name or address.
fn is_local(host: &Host<&str>) -> bool {
    match host {
        Host::Domain(name) => *name == "localhost",
        Host::Ipv4(ip) => ip.is_loopback(),
        Host::Ipv6(ip) => ip.is_loopback(),
    }
}

/// The URL of a proxy: `http://[user:password@]host[:port]`, or `https://…` where the way to the proxy is encrypted.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct ProxyUrl(Url);

impl ProxyUrl {
    /// The proxy's URL, without its credentials' content in mind: never show it but by `Display`.
    pub(super) const fn url(&self) -> &Url {
        &self.0
    }

    /// The value of `Proxy-Authorization`, where the URL has credentials (RFC 7617).
    pub(super) fn authorization(&self) -> Option<String> {
        if self.0.username().is_empty() && self.0.password().is_none() {
            return None;
        }
        let decode = |text: &str| percent_decode(text);
        let mut pair = decode(self.0.username());
        pair.push(b':');
        pair.extend(decode(self.0.password().unwrap_or_default()));
        Some(format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(pair)))
    }
}

/// The bytes that a percent-encoded part of a URL stands for.
fn percent_decode(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let digit = |at: usize| bytes.get(at).and_then(|c| char::from(*c).to_digit(16));
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match (byte, digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                decoded.push(u8::try_from(high * 16 + low).unwrap_or_default());
                at += 3;
            }
            _ => {
                decoded.push(byte);
                at += 1;
            }
        }
    }
    decoded
}

impl fmt::Display for ProxyUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(public_url(&self.0).trim_end_matches('/'))
    }
}

impl fmt::Debug for ProxyUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for ProxyUrl {
    type Err = InvalidValue;

    /// As curl and Go do, a proxy without scheme is an `http://` one.
    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let text = text.trim();
        let with_scheme = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        // What does not parse may still hold a password: only a parsed URL is shown.
        let invalid = |shown: &str| {
            InvalidValue::new("proxy URL", shown, "must be `http://[user:password@]host[:port]` or `https://…`; SOCKS is not supported")
        };
        let url = Url::parse(&with_scheme).map_err(|_| invalid("…"))?;
        if !matches!(url.scheme(), "http" | "https")
            || url.host_str().is_none_or(str::is_empty)
            || url.path().len() > 1
            || url.query().is_some()
        {
            return Err(invalid(&public_url(&url)));
        }
        Ok(Self(url))
    }
}

impl TryFrom<String> for ProxyUrl {
    type Error = InvalidValue;

    fn try_from(text: String) -> Result<Self, InvalidValue> {
        text.parse()
    }
}

/// The hosts reached without a proxy: a list, separated by commas or white space, of names, `.suffixes`, addresses and CIDR
/// blocks, each with an optional `:port`, or `*`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(try_from = "String")]
pub struct NoProxy(Vec<Exception>);

/// One item of `NO_PROXY`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Exception {
    hosts: Hosts,
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Hosts {
    All,
    /// The name (without leading dot), and whether the name itself matches too.
    Name {
        name: String,
        itself: bool,
    },
    Block(IpNet),
}

impl NoProxy {
    /// Whether a connection to `host` and `port` goes around the proxy.
    pub fn matches(&self, host: &Host<&str>, port: u16) -> bool {
        let address: Option<IpAddr> = match host {
            Host::Domain(_) => None,
            Host::Ipv4(ip) => Some((*ip).into()),
            Host::Ipv6(ip) => Some(ip.to_canonical()),
        };
        self.0.iter().filter(|exception| exception.port.is_none_or(|p| p == port)).any(|exception| match (&exception.hosts, host) {
            (Hosts::All, _) => true,
            (Hosts::Block(block), _) => address.is_some_and(|ip| block.contains(&ip)),
            (Hosts::Name { name, itself }, Host::Domain(host)) => match host.trim_end_matches('.').strip_suffix(name.as_str()) {
                Some("") => *itself,
                Some(below) => below.ends_with('.'),
                None => false,
            },
            (Hosts::Name { .. }, _) => false,
        })
    }
}

impl Exception {
    fn parse(item: &str) -> Option<Self> {
        if item == "*" {
            return Some(Self { hosts: Hosts::All, port: None });
        }
        if let Some(block) = parse_block(item) {
            return Some(Self { hosts: Hosts::Block(block), port: None });
        }
        let (host, port) = match item.rsplit_once(':') {
            Some((host, port)) => (host, Some(port.parse().ok()?)),
            None => (item, None),
        };
        let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        if let Some(block) = parse_block(bare) {
            return Some(Self { hosts: Hosts::Block(block), port });
        }
        let suffix = host.strip_prefix("*.").or_else(|| host.strip_prefix('.'));
        let name = suffix.unwrap_or(host).trim_end_matches('.').to_ascii_lowercase();
        let plain = !name.is_empty() && name.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'.' | b'_'));
        plain.then(|| Self { hosts: Hosts::Name { name, itself: suffix.is_none() }, port })
    }
}

/// An address or a CIDR block.
fn parse_block(text: &str) -> Option<IpNet> {
    text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
}

impl std::str::FromStr for NoProxy {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        text.split(|c: char| c == ',' || c.is_whitespace())
            .filter(|item| !item.is_empty())
            .map(|item| {
                Exception::parse(item).ok_or_else(|| {
                    InvalidValue::new(
                        "item of `no_proxy`",
                        item,
                        "must be a host, `.suffix`, address or CIDR block, each with an optional `:port`, or `*`",
                    )
                })
            })
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

impl TryFrom<String> for NoProxy {
    type Error = InvalidValue;

    fn try_from(text: String) -> Result<Self, InvalidValue> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use url::Url;

    use super::{NoProxy, ProxySettings, ProxyUrl};

    #[rstest]
    #[case("example.org", "https://example.org/", true)]
    #[case("example.org", "https://a.b.example.org/", true)]
    #[case("example.org", "https://badexample.org/", false)]
    #[case("example.org", "https://example.org.evil/", false)]
    #[case("EXAMPLE.org", "https://Example.ORG/", true)]
    #[case("example.org", "https://example.org./", true)]
    #[case(".example.org", "https://a.example.org/", true)]
    #[case(".example.org", "https://example.org/", false)]
    #[case("*.svc", "http://registry.harbor.svc/", true)]
    #[case(".svc", "http://registry.harbor.svc/", true)]
    #[case(".svc", "http://registry.harbor.svc.cluster.local/", false)]
    #[case("example.org:8443", "https://example.org:8443/", true)]
    #[case("example.org:8443", "https://example.org/", false)]
    #[case("example.org:443", "https://example.org/", true)]
    #[case("example.org:80", "http://example.org/", true)]
    #[case(".example.org:8443", "https://a.example.org:8443/", true)]
    #[case("10.0.0.0/8", "http://10.1.2.3/", true)]
    #[case("10.0.0.0/8", "http://11.1.2.3/", false)]
    #[case("10.0.0.0/8", "http://ten.example/", false)]
    #[case("10.1.2.3", "http://10.1.2.3:8080/", true)]
    #[case("10.1.2.3:80", "http://10.1.2.3:8080/", false)]
    #[case("10.1.2.3:8080", "http://10.1.2.3:8080/", true)]
    #[case("fd00::/8", "http://[fd00::1]/", true)]
    #[case("fd00::1", "http://[fd00::1]/", true)]
    #[case("[fd00::1]:8080", "http://[fd00::1]:8080/", true)]
    #[case("[fd00::1]:8080", "http://[fd00::1]/", false)]
    #[case("10.0.0.0/8", "http://[::ffff:10.1.2.3]/", true)]
    #[case("*", "https://anything.example/", true)]
    #[case("a.example, ,b.example", "https://b.example/", true)]
    #[case("a.example b.example", "https://b.example/", true)]
    #[case("a.example\n\tb.example\n", "https://b.example/", true)]
    #[case("10.0.0.0/8:8443", "https://10.1.2.3:8443/", true)]
    #[case("fd00::/8:8443", "https://[fd00::1]:8443/", true)]
    #[case("fd00::/8:8443", "https://[fd00::1]/", false)]
    #[case("", "https://example.org/", false)]
    #[case("", "http://localhost:8080/", true)]
    #[case("", "http://127.0.0.2/", true)]
    #[case("", "http://[::1]/", true)]
    fn no_proxy_forms(#[case] list: &str, #[case] url: &str, #[case] direct: bool) {
        let proxy: ProxyUrl = "http://proxy:3128".parse().expect("proxy");
        let settings = ProxySettings { http: Some(proxy.clone()), https: Some(proxy), no_proxy: list.parse().expect(list) };
        assert_eq!(settings.for_url(&Url::parse(url).expect(url)).is_none(), direct);
    }

    #[rstest]
    #[case("http://x")]
    #[case("a:b:c")]
    #[case("a:99999")]
    #[case("10.0.0.0/33")]
    #[case("fd00::/200")]
    #[case("300.1.1.1/8")]
    #[case("10/8")]
    #[case(".")]
    fn refuses_other_items(#[case] list: &str) {
        assert!(list.parse::<NoProxy>().is_err(), "{list}");
    }

    #[test]
    fn variables_in_both_cases() {
        let variables = |name: &str| match name {
            "http_proxy" => Some("lower:1".to_owned()),
            "HTTP_PROXY" => Some("upper:1".to_owned()),
            "HTTPS_PROXY" => Some("https://upper:2".to_owned()),
            "NO_PROXY" => Some(".svc".to_owned()),
            "no_proxy" => Some(String::new()),
            _ => None,
        };
        let settings = ProxySettings::from_variables(variables).expect("settings");
        assert_eq!(settings.http.expect("http").to_string(), "http://lower:1");
        assert_eq!(settings.https.expect("https").to_string(), "https://upper:2");
        assert_eq!(settings.no_proxy, ".svc".parse().expect("list"));
        assert_eq!(ProxySettings::from_variables(|_| None).expect("none"), ProxySettings::default());
        let all = ProxySettings::from_variables(|name| (name == "all_proxy").then(|| "http://all:3".to_owned())).expect("all");
        assert_eq!(all.http, all.https);
    }

    #[test]
    fn credentials_are_used_and_never_shown() {
        let proxy: ProxyUrl = "http://us%40er:hunter%3A2@proxy:3128".parse().expect("proxy");
        assert_eq!(proxy.authorization().as_deref(), Some("Basic dXNAZXI6aHVudGVyOjI="));
        assert!(!format!("{proxy} {proxy:?}").contains("hunter"));
        for bad in ["socks5://u:hunter2@proxy", "http://u:hunter2@", "http://u:hunter2@proxy/path", "u:hunter2@pro xy"] {
            let error = bad.parse::<ProxyUrl>().expect_err(bad);
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }
}
