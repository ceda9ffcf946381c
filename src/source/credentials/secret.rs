//! A Secret of the daemon's namespace, as what an upstream is shown.

use zeroize::Zeroizing;

use super::{
    Credentials,
    dockerconfig::{DockerConfig, Match},
};
use crate::{
    model::{HttpUrl, SecretName, Source},
    rules::Reason,
};

/// Type of a pull secret.
const DOCKER_CONFIG: &str = "kubernetes.io/dockerconfigjson";
/// Its former form.
const DOCKER_CFG: &str = "kubernetes.io/dockercfg";
/// Type of a user and password.
const BASIC: &str = "kubernetes.io/basic-auth";
/// Type of whatever else a person makes.
const OPAQUE: &str = "Opaque";

/// Why a Secret says nothing to an upstream. No message holds anything of the Secret's values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// A key is missing.
    #[error("the Secret {secret} (type {kind}) has no key `{key}`")]
    MissingKey {
        /// The Secret.
        secret: String,
        /// Its type.
        kind: &'static str,
        /// The key.
        key: &'static str,
    },
    /// A Secret of a kind that holds nothing for an upstream.
    #[error(
        "the Secret {secret} is of type {kind:?}: `kubernetes.io/dockerconfigjson`, `kubernetes.io/basic-auth`, or `Opaque` with a bearer token under `token` are read"
    )]
    Type {
        /// The Secret.
        secret: String,
        /// Its type.
        kind: String,
    },
    /// A value is not of its form.
    #[error("the key `{key}` of the Secret {secret} cannot be used: {what}")]
    Malformed {
        /// The Secret.
        secret: String,
        /// The key.
        key: &'static str,
        /// What is wrong.
        what: String,
    },
    /// A pull secret without an entry for the upstream.
    #[error("the Secret {secret} has no entry for {target}")]
    NoHost {
        /// The Secret.
        secret: String,
        /// Host, port and path that an entry must match.
        target: String,
    },
    /// An entry that holds something which is not read, as the kubelet does not.
    #[error("the Secret {secret} has for {target} only `{field}`, which is not read: give a user name and a password")]
    Unread {
        /// The Secret.
        secret: String,
        /// Host, port and path.
        target: String,
        /// The field.
        field: &'static str,
    },
    /// The upstream is asked without encryption.
    #[error("credentials are not sent over plain http: use https for {target}")]
    PlainHttp {
        /// Host, port and path.
        target: String,
    },
}

impl SecretError {
    /// The reason that a condition carries.
    pub const fn reason(&self) -> Reason {
        match self {
            Self::PlainHttp { .. } => Reason::InvalidSource,
            _ => Reason::ReferenceNotFound,
        }
    }
}

/// Reads what a Secret has for a source: everything that matches, to be tried in order; never nothing.
///
/// `get` gives the value of a key.
///
/// # Errors
/// The key or host that is missing, and what else makes the Secret of no use.
pub fn credentials_for<'a>(
    namespace: &str,
    name: &SecretName,
    kind: &str,
    get: impl Fn(&str) -> Option<&'a [u8]>,
    source: &Source,
) -> Result<Vec<Credentials>, SecretError> {
    let secret = format!("{namespace}/{name}");
    let target = target(source);
    if matches!(source, Source::Http { url, .. } if !url.is_https())
        || matches!(source, Source::TalosFactory(talos) if !talos.factory_url.is_https())
    {
        return Err(SecretError::PlainHttp { target });
    }
    let value = |kind, key| get(key).ok_or_else(|| SecretError::MissingKey { secret: secret.clone(), kind, key });
    let text = |key: &'static str, bytes: &[u8]| {
        let text = std::str::from_utf8(bytes).map(|text| Zeroizing::new(text.to_owned()));
        text.map_err(|_| SecretError::Malformed { secret: secret.clone(), key, what: "it is not text".to_owned() })
    };
    let found = match kind {
        DOCKER_CONFIG | DOCKER_CFG => {
            let (kind, key) = if kind == DOCKER_CONFIG { (DOCKER_CONFIG, ".dockerconfigjson") } else { (DOCKER_CFG, ".dockercfg") };
            let config = DockerConfig::parse(value(kind, key)?, kind == DOCKER_CFG).map_err(|what| SecretError::Malformed {
                secret: secret.clone(),
                key,
                what,
            })?;
            match config.for_target(&target) {
                Match::Found(found) => found,
                Match::Unread(field) => return Err(SecretError::Unread { secret, target, field }),
                Match::Nothing => return Err(SecretError::NoHost { secret, target }),
            }
        }
        BASIC => {
            let username = text("username", value(BASIC, "username")?)?;
            let password = text("password", value(BASIC, "password")?)?;
            if username.contains(':') {
                let what = "a user name has no colon".to_owned();
                return Err(SecretError::Malformed { secret, key: "username", what });
            }
            vec![Credentials::Basic { username: username.to_string(), password }]
        }
        OPAQUE | "" => {
            // A line break at its end comes from the editor or shell it was made with.
            let token = text("token", value(OPAQUE, "token")?)?;
            let token = token.trim_end_matches(['\r', '\n']);
            if token.is_empty() {
                return Err(SecretError::Malformed { secret, key: "token", what: "it is empty".to_owned() });
            }
            vec![Credentials::Bearer(Zeroizing::new(token.to_owned()))]
        }
        // Above all not a ServiceAccount's token, which has a key of the same name.
        _ => return Err(SecretError::Type { secret, kind: kind.chars().take(100).collect() }),
    };
    Ok(found)
}

/// What an entry of a pull secret must match: an image's name as the kubelet normalises it, or a URL's host and path.
fn target(source: &Source) -> String {
    let of_url = |url: &HttpUrl| {
        let url = url.url();
        format!("{}{}", &url[url::Position::BeforeHost..url::Position::AfterPort], url.path())
    };
    match source {
        Source::ContainerDisk { reference, .. } => format!("{}/{}", reference.registry(), reference.repository()),
        Source::Http { url, .. } => of_url(url),
        Source::TalosFactory(talos) => of_url(&talos.factory_url),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::{Credentials, credentials_for};
    use crate::model::{Architecture, Schematic, Source, TalosFactory};

    const DIGEST: &str = "sha256:eb87a994833d82feb2279575aafa42a06c5feb124ea72cae6efc0ee46bb729d8";

    fn disk(reference: &str) -> Source {
        Source::ContainerDisk { reference: format!("{reference}@{DIGEST}").parse().expect(reference), architecture: Architecture::Amd64 }
    }

    fn http(url: &str) -> Source {
        Source::Http { url: url.parse().expect(url), architecture: Architecture::Amd64 }
    }

    fn factory(url: &str) -> Source {
        Source::TalosFactory(TalosFactory {
            schematic: Schematic::Id("ce4c".parse().expect("id")),
            version: "v1.13.6".parse().expect("version"),
            platform: "metal".parse().expect("platform"),
            architecture: Architecture::Amd64,
            secure_boot: false,
            factory_url: url.parse().expect(url),
        })
    }

    fn read(kind: &str, data: &[(&str, String)], source: &Source) -> Result<Vec<Credentials>, String> {
        let get = |key: &str| data.iter().find(|(name, _)| *name == key).map(|(_, value)| value.as_bytes());
        credentials_for("ns", &"reg".parse().expect("name"), kind, get, source).map_err(|error| error.to_string())
    }

    fn docker(host: &str) -> Vec<(&'static str, String)> {
        vec![(".dockerconfigjson", json!({ "auths": { host: { "username": "u", "password": "hunter2" } } }).to_string())]
    }

    #[rstest]
    #[case("r.example", disk("r.example/a"))]
    #[case("r.example:5000", disk("r.example:5000/a/b:tag"))]
    #[case("https://index.docker.io/v1/", disk("nginx"))]
    #[case("https://index.docker.io/v1/", disk("index.docker.io/library/nginx"))]
    #[case("f.example/sub", factory("https://f.example/sub"))]
    #[case("up.example", http("https://up.example/a.qcow2"))]
    #[case("up.example:8443", http("https://up.example:8443/a.qcow2"))]
    fn a_pull_secret_serves_every_kind_of_source(#[case] host: &str, #[case] source: Source) {
        let found = read("kubernetes.io/dockerconfigjson", &docker(host), &source).expect(host);
        assert!(matches!(&found[..], [Credentials::Basic { username, .. }] if username == "u"));
    }

    #[rstest]
    #[case("kubernetes.io/dockerconfigjson", &docker("other.example"), "has no entry for r.example/a")]
    #[case("kubernetes.io/dockerconfigjson", &[], "has no key `.dockerconfigjson`")]
    #[case("kubernetes.io/dockercfg", &docker("r.example"), "has no key `.dockercfg`")]
    #[case("kubernetes.io/basic-auth", &[("username", "u".to_owned())], "has no key `password`")]
    #[case("kubernetes.io/basic-auth", &[("username", "u:v".to_owned()), ("password", "hunter2".to_owned())], "`username`")]
    #[case("Opaque", &[("Token", "hunter2".to_owned())], "has no key `token`")]
    #[case("kubernetes.io/service-account-token", &[("token", "hunter2".to_owned())], "kubernetes.io/service-account-token")]
    #[case("kubernetes.io/tls", &[], "kubernetes.io/tls")]
    #[case("Opaque", &[("token", "\n".to_owned())], "`token`")]
    fn the_missing_key_or_host_is_named(#[case] kind: &str, #[case] data: &[(&str, String)], #[case] expected: &str) {
        let error = read(kind, data, &disk("r.example/a")).expect_err(expected);
        assert!(error.contains(expected) && !error.contains("hunter2"), "{error}");
        assert!(error.contains("ns/reg"), "{error}");
    }

    #[test]
    fn pairs_and_tokens_are_for_the_one_source() {
        let basic = [("username", "u".to_owned()), ("password", "p\n".to_owned())];
        let found = read("kubernetes.io/basic-auth", &basic, &http("https://up.example/a")).expect("pair");
        assert!(matches!(&found[..], [Credentials::Basic { password, .. }] if password.as_str() == "p\n"));
        let token = [("token", "abc\n".to_owned())];
        for kind in ["Opaque", ""] {
            let found = read(kind, &token, &factory("https://f.example")).expect("token");
            assert!(matches!(&found[..], [Credentials::Bearer(token)] if token.as_str() == "abc"));
        }
    }

    #[rstest]
    #[case(http("http://up.example/a"))]
    #[case(factory("http://f.example"))]
    fn nothing_goes_over_plain_http(#[case] source: Source) {
        let error = read("Opaque", &[("token", "hunter2".to_owned())], &source).expect_err("plain");
        assert!(error.contains("plain http") && !error.contains("hunter2"), "{error}");
    }
}
