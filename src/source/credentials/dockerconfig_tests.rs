use base64::Engine as _;
use rstest::rstest;
use serde_json::{Value, json};

use super::{Credentials, DockerConfig, Match, glob, matches};

fn config(auths: &Value) -> DockerConfig {
    DockerConfig::parse(json!({ "auths": auths }).to_string().as_bytes(), false).expect("config")
}

fn users(config: &DockerConfig, target: &str) -> Vec<String> {
    match config.for_target(target) {
        Match::Found(all) => all
            .into_iter()
            .map(|credentials| match credentials {
                Credentials::Basic { username, .. } => username,
                Credentials::Bearer(_) => panic!("a pair"),
            })
            .collect(),
        _ => Vec::new(),
    }
}

/// The rules of the kubelet's `urlsMatchStr`.
#[rstest]
#[case("r.example", "r.example/a/b", true)]
#[case("r.example", "r.example", true)]
#[case("r.example", "r.example:5000/a", false)]
#[case("r.example:5000", "r.example:5000/a", true)]
#[case("r.example:5000", "r.example/a", false)]
#[case("*.azurecr.io", "x.azurecr.io/a", true)]
#[case("*.azurecr.io", "azurecr.io/a", false)]
#[case("*.azurecr.io", "a.b.azurecr.io/a", false)]
#[case("*.*.example", "a.b.example/x", true)]
#[case("r*.example", "r1.example/x", true)]
// `url.Parse` takes it for a query, and so the host is `r`.
#[case("r?.example", "r1.example/x", false)]
#[case("r[0-9].example", "r1.example/x", true)]
#[case("r[^0-9].example", "r1.example/x", false)]
#[case("quay.io/foo", "quay.io/foo/bar", true)]
#[case("quay.io/foo", "quay.io/foobar/x", true)]
#[case("quay.io/foo/", "quay.io/foobar/x", false)]
#[case("quay.io/foo", "quay.io/other", false)]
#[case("quay.io/*", "quay.io/foo", false)]
#[case("R.example", "r.example/a", false)]
#[case("[::1]:5000", "[::1]:5000/a", true)]
#[case("10.0.0.1:5000", "10.0.0.1:5000/a", true)]
fn keys_match_as_the_kubelet_has_it(#[case] key: &str, #[case] target: &str, #[case] expected: bool) {
    assert_eq!(matches(key, target), expected, "{key} {target}");
}

#[rstest]
#[case("a", "a", Some(true))]
#[case("*", "", Some(true))]
#[case("a*c", "abbc", Some(true))]
#[case("a*c", "abb", Some(false))]
#[case("\\*", "*", Some(true))]
#[case("[a-c]x", "bx", Some(true))]
#[case("[]a]", "a", None)]
#[case("[-]", "-", None)]
#[case("[a", "a", None)]
#[case("a\\", "a", None)]
#[case("a**b***c", "abbc", Some(true))]
fn globs(#[case] pattern: &str, #[case] text: &str, #[case] expected: Option<bool>) {
    assert_eq!(glob(pattern.as_bytes(), text.as_bytes()), expected, "{pattern}");
}

/// It would take years to try every way.
#[rstest]
#[case(&"*".repeat(100_000))]
#[case(&"*a".repeat(30))]
#[case(&"*[a-z]".repeat(30))]
fn many_stars_end(#[case] stars: &str) {
    assert_eq!(glob(format!("{stars}b").as_bytes(), "a".repeat(60).as_bytes()), Some(false));
}

#[rstest]
#[case("https://r.example/v2/", "r.example/a", true)]
#[case("http://r.example/v1/", "r.example/a", true)]
#[case("https://r.example/v2/team", "r.example/team/a", true)]
#[case("https://r.example/v2", "r.example/a", false)]
#[case("https://index.docker.io/v1/", "docker.io/library/nginx", true)]
#[case("https://index.docker.io/v1", "docker.io/library/nginx", false)]
#[case("index.docker.io", "docker.io/a/b", true)]
#[case("docker.io", "docker.io/library/nginx", true)]
#[case("registry-1.docker.io", "docker.io/library/nginx", false)]
#[case("index.docker.io", "quay.io/a/b", false)]
#[case("index.docker.io", "localhost/a", false)]
fn schemes_versions_and_docker_hub(#[case] key: &str, #[case] target: &str, #[case] expected: bool) {
    let config = config(&json!({ key: { "username": "u", "password": "p" } }));
    assert_eq!(!users(&config, target).is_empty(), expected, "{key} {target}");
}

#[test]
fn every_match_is_tried_the_longer_path_first() {
    let config = config(&json!({
        "r.example": { "username": "host", "password": "p" },
        "r.example/team": { "username": "team", "password": "p" },
        "https://r.example": { "username": "twice", "password": "p" },
        "other.example": { "username": "other", "password": "p" },
    }));
    assert_eq!(users(&config, "r.example/team/a"), ["team", "twice", "host"]);
    assert_eq!(users(&config, "r.example/a"), ["twice", "host"]);
}

#[rstest]
#[case("u:p", Some(("u", "p")))]
#[case("u:p:with:colons", Some(("u", "p:with:colons")))]
#[case("u:", Some(("u", "")))]
#[case("nocolon", None)]
fn auth_counts_before_username_and_password(#[case] pair: &str, #[case] expected: Option<(&str, &str)>) {
    let padded = base64::engine::general_purpose::STANDARD.encode(pair);
    let broken = format!("{}\n{}", &padded[..2], &padded[2..]);
    for auth in [padded.clone(), padded.trim_end_matches('=').to_owned(), broken] {
        let text = json!({ "auths": { "r.example": { "username": "x", "password": "y", "auth": auth } } }).to_string();
        let got = DockerConfig::parse(text.as_bytes(), false);
        match (got, expected) {
            (Ok(config), Some((username, password))) => match config.for_target("r.example/a") {
                Match::Found(all) => assert!(
                    matches!(&all[..], [Credentials::Basic { username: u, password: p }] if u == username && p.as_str() == password),
                    "{auth}"
                ),
                other => panic!("{other:?}"),
            },
            (Err(_), None) => {}
            _ => panic!("{auth}"),
        }
    }
}

#[test]
fn what_the_kubelet_does_not_read_is_named_and_never_an_anonymous_request() {
    let kinds = [
        (json!({ "auths": { "r.example": { "identitytoken": "hunter2" } } }), "identitytoken"),
        (json!({ "auths": { "r.example": {} } }), "username"),
        (json!({ "auths": {}, "credHelpers": { "r.example": "ecr-login" } }), "credHelpers"),
        (json!({ "auths": {}, "credsStore": "desktop" }), "credsStore"),
    ];
    for (file, field) in kinds {
        let config = DockerConfig::parse(file.to_string().as_bytes(), false).expect("config");
        assert!(matches!(config.for_target("r.example/a"), Match::Unread(found) if found == field), "{file}");
    }
}

#[rstest]
#[case("not json")]
#[case("[]")]
#[case(r#"{"auths":{"https://u:hunter2@r.example":{"auth":"%%%"}}}"#)]
#[case(r#"{"auths":{"r.example":{"auth":"aHVudGVyMg=="}}}"#)]
#[case(r#"{"auths":{"r.example":{"username":5}}}"#)]
fn what_cannot_be_read_is_told_without_its_content(#[case] text: &str) {
    let error = DockerConfig::parse(text.as_bytes(), false).err().expect("refused");
    assert!(!error.contains("hunter2") && !error.contains("aHVu"), "{error}");
}

#[test]
fn the_legacy_form_is_the_inner_map() {
    let text = json!({ "r.example": { "username": "u", "password": "p" } }).to_string();
    assert_eq!(users(&DockerConfig::parse(text.as_bytes(), true).expect("config"), "r.example/a"), ["u"]);
}
