use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use url::Url;

use super::{Architecture, Digest, InvalidValue, Platform, SchematicId, TalosVersion, public_address, public_url};

/// Where an image's bytes come from: the parsed form of `spec.source`.
#[derive(Debug, Clone, PartialEq)]
pub enum Source {
    /// A disk that a Talos Image Factory builds.
    TalosFactory(TalosFactory),
    /// A KubeVirt container disk in an OCI registry.
    ContainerDisk {
        /// The pinned image (R2).
        reference: ContainerReference,
        /// Which of an index's images.
        architecture: Architecture,
    },
    /// A file behind a URL.
    Http {
        /// The file.
        url: HttpUrl,
        /// What the disk boots on; nothing in the file is checked against it.
        architecture: Architecture,
    },
}

impl Source {
    /// The architecture of the disk.
    pub const fn architecture(&self) -> Architecture {
        match self {
            Self::TalosFactory(talos) => talos.architecture,
            Self::ContainerDisk { architecture, .. } | Self::Http { architecture, .. } => *architecture,
        }
    }
}

/// A disk of a Talos Image Factory.
#[derive(Debug, Clone, PartialEq)]
pub struct TalosFactory {
    /// What is built into the image.
    pub schematic: Schematic,
    /// The Talos release.
    pub version: TalosVersion,
    /// The platform the image is made for.
    pub platform: Platform,
    /// The CPU architecture.
    pub architecture: Architecture,
    /// Whether the SecureBoot flavour is asked for.
    pub secure_boot: bool,
    /// The factory.
    pub factory_url: HttpUrl,
}

impl TalosFactory {
    /// The public factory's URL.
    pub const DEFAULT_FACTORY: &str = "https://factory.talos.dev";

    /// The public factory.
    pub fn default_factory() -> HttpUrl {
        HttpUrl(Url::parse(Self::DEFAULT_FACTORY).unwrap_or_else(|_| unreachable!("a constant URL")))
    }
}

/// A schematic by its ID, or as the document that a factory turns into one.
#[derive(Debug, Clone, PartialEq)]
pub enum Schematic {
    /// An ID that the factory knows.
    Id(SchematicId),
    /// The document; the factory's answer to a POST of it is the only authority on its ID.
    Document(serde_json::Value),
}

impl Schematic {
    /// The ID where it is given rather than asked for.
    pub const fn id(&self) -> Option<&SchematicId> {
        match self {
            Self::Id(id) => Some(id),
            Self::Document(_) => None,
        }
    }
}

/// An absolute `http` or `https` URL with a host and without credentials or fragment.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HttpUrl(Url);

impl HttpUrl {
    /// The longest accepted URL, in characters.
    pub const LONGEST: usize = 2048;

    /// The accepted form as the CRD holds it (RE2). What the parser takes, this takes: see the tests.
    pub const PATTERN: &str = r"^https?://[^/?#@\\\x00-\x20\x7f]+([/?][^#\x00-\x20\x7f]*)?$";

    /// The URL.
    pub const fn url(&self) -> &Url {
        &self.0
    }

    /// Whether the connection is encrypted.
    pub fn is_https(&self) -> bool {
        self.0.scheme() == "https"
    }

    /// The URL as it may be shown: a query may hold a signature or token, so its content is left out.
    pub fn public(&self) -> String {
        public_url(&self.0)
    }

    /// This URL with `segments` appended to its path.
    #[must_use]
    pub fn join<'a>(&self, segments: impl IntoIterator<Item = &'a str>) -> Self {
        let mut url = self.0.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(segments);
        }
        Self(url)
    }
}

impl fmt::Display for HttpUrl {
    /// The URL as text; `http://host` gets no trailing slash, so that it reads as it was written.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.as_str();
        let bare = self.0.path() == "/" && self.0.query().is_none();
        f.write_str(if bare { text.trim_end_matches('/') } else { text })
    }
}

impl FromStr for HttpUrl {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let shown = public_address(text);
        let invalid = |accepted: &str| InvalidValue::shown("URL", &shown, accepted);
        if text.chars().count() > Self::LONGEST {
            return Err(invalid("must be at most 2048 characters"));
        }
        if text.contains(' ') {
            return Err(invalid("must not contain spaces: write `%20` for one that belongs to the address"));
        }
        if text.bytes().any(|c| c.is_ascii_control()) {
            return Err(invalid("must not contain line breaks or other control characters"));
        }
        // Looked at before the parser of the URL standard, which reads more than it should: another case of the scheme,
        // backslashes, slashes too few or too many. Read here and refused by the API server, such a URL would be told by neither.
        let Some(rest) = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")) else {
            return Err(match text.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase()).as_deref() {
                Some(scheme @ ("https" | "http")) => invalid(&format!("must have its scheme in lower case: write `{scheme}://`")),
                _ => invalid("must be an absolute URL that begins with `https://` or `http://`"),
            });
        };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        if authority.contains('@') {
            return Err(invalid("must not contain credentials: name a Secret in `credentialsSecretRef`"));
        }
        if authority.contains('\\') {
            return Err(invalid("must not contain a backslash in its host: write `/`"));
        }
        if authority.is_empty() || authority.starts_with(':') {
            return Err(invalid("must have a host: write it as in `https://images.example.org/disk.qcow2`"));
        }
        if text.contains('#') {
            return Err(invalid("must not contain a fragment (`#…`)"));
        }
        match Url::parse(text) {
            Ok(url) if url.host_str().is_some_and(|host| !host.is_empty()) => Ok(Self(url)),
            Err(url::ParseError::InvalidPort) => Err(invalid("must have a port from 1 to 65535 behind its host's `:`, or none")),
            Err(url::ParseError::InvalidIpv4Address | url::ParseError::InvalidIpv6Address) => {
                Err(invalid("must have a host that is a name or a valid address, IPv6 in brackets (`https://[2001:db8::1]/`)"))
            }
            _ => Err(invalid("must have a valid host name, such as `images.example.org`")),
        }
    }
}

impl TryFrom<String> for HttpUrl {
    type Error = InvalidValue;

    fn try_from(text: String) -> Result<Self, InvalidValue> {
        text.parse()
    }
}

impl From<HttpUrl> for String {
    fn from(url: HttpUrl) -> Self {
        url.to_string()
    }
}

/// A container image pinned by digest (R2): `registry/repository[:tag]@sha256:…`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ContainerReference {
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Digest,
}

impl ContainerReference {
    /// Stands in the message about a reference without a digest of the accepted kind (R2).
    pub const UNPINNED: &str = "must be pinned";

    /// The registry's host and optional port, `docker.io` where none was written.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// Where the registry's API is: Docker Hub's is at another host than its name says.
    pub fn api_url(&self) -> HttpUrl {
        let host = if matches!(self.registry.as_str(), "docker.io" | "index.docker.io") { "registry-1.docker.io" } else { &self.registry };
        // The same text was read as a URL when the reference was parsed.
        HttpUrl(Url::parse(&format!("https://{host}")).unwrap_or_else(|_| unreachable!("a registry that was parsed")))
    }

    /// The repository, with `library/` where Docker Hub's short form was written.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The tag, a hint for people and for R2's contradiction check, never what is fetched.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// The digest that pins the image: of an index or of a manifest.
    pub const fn digest(&self) -> &Digest {
        &self.digest
    }
}

impl fmt::Display for ContainerReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        write!(f, "@{}", self.digest)
    }
}

impl FromStr for ContainerReference {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let shown = public_address(text);
        let invalid = |accepted: &str| InvalidValue::new("image reference", &shown, accepted);
        if text.contains("://") {
            return Err(invalid("must not have a scheme: write `registry/repository@sha256:…`"));
        }
        let parsed: oci_spec::distribution::Reference =
            text.parse().map_err(|_| invalid("must be `registry/repository[:tag]@sha256:<64 hex>`"))?;
        let digest =
            parsed.digest().ok_or_else(|| invalid("must be pinned: append `@sha256:<64 hex>`, as the registry reports it (R2)"))?;
        let digest = digest.parse().map_err(|_| invalid("must be pinned by a sha256 digest (R2)"))?;
        // The registry becomes the host of a URL.
        if format!("https://{}", parsed.registry()).parse::<HttpUrl>().is_err() {
            return Err(invalid("must begin with the registry's host, and its port where it has one of its own"));
        }
        Ok(Self {
            registry: parsed.registry().to_owned(),
            repository: parsed.repository().to_owned(),
            tag: parsed.tag().map(str::to_owned),
            digest,
        })
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{ContainerReference, HttpUrl};

    #[rstest]
    #[case("https://example.org/a.qcow2")]
    #[case("http://10.0.0.1:8080/a?b=c")]
    #[case("https://[2001:db8::1]/a")]
    #[case("https://factory.talos.dev")]
    fn urls_read_back(#[case] text: &str) {
        assert_eq!(text.parse::<HttpUrl>().expect(text).to_string(), text);
    }

    #[rstest]
    #[case("")]
    #[case("example.org/a")]
    #[case("ftp://example.org/a")]
    #[case("file:///etc/passwd")]
    #[case("https://")]
    #[case("https:///a")]
    #[case("HTTPS://example.org/a")]
    #[case("https:example.org/a")]
    #[case("https:\\\\example.org\\a")]
    #[case("https://example.org\\a")]
    #[case("https://@example.org/a")]
    #[case("https://user:pass@example.org/a")]
    #[case("https://user@example.org/a")]
    #[case("https://example.org/a#b")]
    #[case("https://example.org/a b")]
    #[case("https://example.org/\na")]
    fn refuses_other_urls(#[case] text: &str) {
        assert!(text.parse::<HttpUrl>().is_err(), "{text}");
    }

    /// What was written and the true cause are told; a secret is not.
    #[rstest]
    #[case("HTTPS://example.org/a", "\"HTTPS://example.org/a\"", "in lower case: write `https://`")]
    #[case("ftp://example.org/a", "\"ftp://example.org/a\"", "begins with `https://` or `http://`")]
    #[case("example.org/a", "\"example.org/a\"", "begins with `https://` or `http://`")]
    #[case("https:example.org/a", "\"https:example.org/a\"", "begins with `https://` or `http://`")]
    #[case("https://example.org:99999/a", "\"https://example.org:99999/a\"", "a port from 1 to 65535")]
    #[case("https://example.org:x/a", "is not a valid URL", "a port from 1 to 65535")]
    #[case("https://example.org/a b", "\"https://example.org/a b\"", "spaces: write `%20`")]
    #[case("https://example.org/\na", "is not a valid URL", "line breaks")]
    #[case("https://user:hunter2@example.org/a", "\"https://…@example.org/a\"", "credentialsSecretRef")]
    #[case("HTTPS://user:hunter2@example.org/a", "\"HTTPS://…@example.org/a\"", "in lower case")]
    #[case("https://@example.org/a", "\"https://…@example.org/a\"", "credentialsSecretRef")]
    #[case("https:///a", "\"https:///a\"", "must have a host")]
    #[case("https://", "\"https://\"", "must have a host")]
    #[case("https://:443/a", "\"https://:443/a\"", "must have a host")]
    #[case("https://?token=hunter2", "…", "must have a host")]
    #[case("https://example.org\\a", "is not a valid URL", "backslash")]
    #[case("https://300.0.0.1/a", "\"https://300.0.0.1/a\"", "valid address")]
    #[case("https://[fd00::zz]/a", "is not a valid URL", "valid address")]
    #[case("https://exa%mple.org/a", "\"https://exa%mple.org/a\"", "valid host name")]
    #[case("https://example.org/A/../b?token=hunter2#x", "\"https://example.org/A/../b?…\"", "fragment")]
    fn the_cause_is_told_with_what_was_written(#[case] text: &str, #[case] given: &str, #[case] accepted: &str) {
        let error = text.parse::<HttpUrl>().expect_err(text).to_string();
        assert!(error.contains(given) && error.contains(accepted) && !error.contains("hunter2"), "{error}");
    }

    #[test]
    fn no_message_repeats_a_password_or_a_signature() {
        let error = "https://user:hunter2@example.org/a".parse::<HttpUrl>().expect_err("credentials");
        assert!(!error.to_string().contains("hunter2"), "{error}");
        let signed: HttpUrl = "https://example.org/a?X-Amz-Signature=hunter2".parse().expect("URL");
        assert_eq!(signed.public(), "https://example.org/a?…");
    }

    #[test]
    fn joins_path_segments() {
        for base in ["https://f.example", "https://f.example/", "https://f.example/sub", "https://f.example/sub/"] {
            let url: HttpUrl = base.parse().expect(base);
            assert_eq!(url.join(["image", "a"]).to_string(), format!("{}/image/a", base.trim_end_matches('/')));
        }
    }

    #[test]
    fn r2_a_reference_is_pinned() {
        let digest = "sha256:eb87a994833d82feb2279575aafa42a06c5feb124ea72cae6efc0ee46bb729d8";
        let reference: ContainerReference = format!("r.example:5000/a/b:1.0@{digest}").parse().expect("reference");
        assert_eq!((reference.registry(), reference.repository(), reference.tag()), ("r.example:5000", "a/b", Some("1.0")));
        assert_eq!(reference.to_string(), format!("r.example:5000/a/b:1.0@{digest}"));
        assert_eq!(reference.api_url().to_string(), "https://r.example:5000");
        for hub in ["nginx", "docker.io/library/nginx", "index.docker.io/library/nginx"] {
            let hub: ContainerReference = format!("{hub}@{digest}").parse().expect(hub);
            assert_eq!(
                (hub.registry(), hub.repository(), hub.api_url().to_string().as_str()),
                ("docker.io", "library/nginx", "https://registry-1.docker.io")
            );
        }
        for bad in ["r.example/a", "r.example/a:1.0", "docker://r.example/a@sha256:00", "r.example/a@sha256:00", ""] {
            assert!(bad.parse::<ContainerReference>().is_err(), "{bad}");
        }
    }
}
