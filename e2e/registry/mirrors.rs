//! Mirrors of registries: asked in order, held to the same digests, and never shown a password.

use golden_catalog::rules::Reason;
use rstest::rstest;
use serde_json::json;

use crate::{
    support::{Bench, Disk, REPOSITORY, layer, pair, reference},
    upstream::{
        Answer, Authority, Upstream,
        layout::{Layout, digest, gzip, tar},
    },
};

/// Where the first mirror has everything.
const BASE: &str = "/base";

struct Scene {
    authority: Authority,
    origin: Upstream,
    /// The mirrors in their order.
    one: Upstream,
    two: Upstream,
}

impl Scene {
    async fn new() -> Self {
        let authority = Authority::new();
        let start = || Upstream::start_tls(&authority, &["127.0.0.1"]);
        let (origin, one, two) = (start().await, start().await, start().await);
        Self { origin, one, two, authority }
    }

    fn bench(&self) -> Bench {
        // With `v2`, a base says itself where the API is.
        let mirrors = json!({ self.origin.address.to_string(): [self.one.url(&format!("{BASE}/v2")), self.two.url("")] });
        Bench::with(&self.authority, |settings| settings.mirrors = serde_json::from_value(mirrors).expect("mirrors"))
    }

    fn assert_no_password_at_the_mirrors(&self) {
        for mirror in [&self.one, &self.two] {
            assert!(mirror.all().iter().all(|hit| hit.header("authorization").is_none()), "{:?}", mirror.all());
        }
    }
}

fn manifest(digest: &str) -> String {
    format!("/v2/{REPOSITORY}/manifests/{digest}")
}

fn blob(digest: &str) -> String {
    format!("/v2/{REPOSITORY}/blobs/{digest}")
}

/// What one mirror cannot do, the next can, and the registry itself is not asked.
#[rstest]
#[case::missing(Answer::text(404, "not mirrored"))]
#[case::down(Answer::text(503, ""))]
#[case::private(Answer::text(401, "").header("WWW-Authenticate", "Basic realm=\"mirror\""))]
#[case::a_portal(Answer::text(200, "<html>please pay</html>"))]
#[case::another_manifest(Answer::text(200, "{\"schemaVersion\":2,\"layers\":[]}"))]
#[case::cut(Answer::text(200, "{\"schemaVersion\":2").announce(500))]
#[case::endless(Answer::new(200, vec![b' '; 64 << 10]).no_length().endless())]
#[case::a_loop(Answer::redirect(302, "?again"))]
#[case::another_protocol(Answer::raw("SSH-2.0-OpenSSH\r\n"))]
#[tokio::test(flavor = "multi_thread")]
async fn the_next_mirror_is_asked_when_one_cannot(#[case] bad: Answer) {
    let scene = Scene::new().await;
    let mut layout = Layout::default();
    let image = layout.image("amd64", &[layer()], &[]);
    layout.serve_below(&scene.one, BASE, REPOSITORY);
    layout.serve(&scene.two, REPOSITORY);
    scene.one.on(&format!("{BASE}{}", manifest(&image)), bad);
    let bench = scene.bench();
    let spooled = bench.take(&reference(&scene.origin, &image), vec![pair("hunter2")]).await.expect("from the mirrors");
    bench.assert_disk(&spooled, &Disk::get().raw);
    assert!(!scene.one.hits(&format!("{BASE}{}", manifest(&image))).is_empty(), "it was asked first");
    // Each document and layer is asked for in the listed order anew.
    assert!(spooled.record.artifact.resolved_url.starts_with(&scene.one.url(BASE)), "{}", spooled.record.artifact.resolved_url);
    assert_eq!(scene.origin.connections(), 0);
    scene.assert_no_password_at_the_mirrors();
}

/// A layer is held against its digest only when it is all there: the attempt then goes on with the next place.
#[rstest]
#[case::the_layer_with_the_disk(1)]
#[case::a_layer_beside_it(2)]
#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_with_bad_bytes_is_asked_last_and_ends_nothing(#[case] layers: usize) {
    let scene = Scene::new().await;
    let mut layout = Layout::default();
    let motd = gzip(&tar(&[("etc/motd", b"hello")]));
    let all = [layer(), motd.clone()];
    let image = layout.image("amd64", &all[..layers], &[]);
    layout.serve_below(&scene.one, BASE, REPOSITORY);
    layout.serve(&scene.two, REPOSITORY);
    let spoilt = if layers == 1 { layer() } else { motd };
    let mut other = spoilt.clone();
    let middle = other.len() / 2;
    other[middle] ^= 1;
    let path = blob(&digest(&spoilt));
    scene.one.on(&format!("{BASE}{path}"), Answer::file(other));
    let bench = scene.bench();
    let spooled = bench.take(&reference(&scene.origin, &image), Vec::new()).await.expect("from the second");
    bench.assert_disk(&spooled, &Disk::get().raw);
    assert_eq!((scene.one.hits(&format!("{BASE}{path}")).len(), scene.two.hits(&path).len()), (1, 1));

    // Where nobody else is there, its word ends nothing for good either.
    for mirror in [&scene.two, &scene.origin] {
        mirror.on(&path, Answer::text(503, ""));
    }
    let error = scene.bench().take(&reference(&scene.origin, &image), Vec::new()).await.expect_err("nowhere else");
    assert!(error.reason() == Reason::Unavailable && error.to_string().contains(&digest(&spoilt)), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_registry_itself_comes_last_with_the_password_and_gives_the_reason() {
    let scene = Scene::new().await;
    let mut layout = Layout::default();
    let image = layout.image("amd64", &[layer()], &[]);
    scene.one.on(&format!("{BASE}{}", manifest(&image)), Answer::text(400, "mirror says no"));
    let path = manifest(&image);
    scene.origin.on("/v2/", Answer::text(401, "").header("WWW-Authenticate", "Basic realm=\"r\""));
    scene.origin.on(&path, Answer::text(403, "origin says no"));
    let error = scene.bench().take(&reference(&scene.origin, &image), vec![pair("hunter2")]).await.expect_err("nobody");
    assert_eq!(error.reason(), Reason::Forbidden, "{error}");
    let text = error.to_string();
    assert!(text.contains("mirror says no") && text.contains("404") && text.contains("origin says no"), "{text}");

    layout.serve(&scene.origin, REPOSITORY);
    scene.origin.on("/v2/", Answer::text(401, "").header("WWW-Authenticate", "Basic realm=\"r\""));
    scene.bench().take(&reference(&scene.origin, &image), vec![pair("hunter2")]).await.expect("from the registry itself");
    assert!(scene.origin.hits(&path).iter().all(|hit| hit.header("authorization").is_some()));
    scene.assert_no_password_at_the_mirrors();
}

/// A document with the right digest says the same wherever it comes from.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_the_image_itself_is_not_asked_elsewhere() {
    let scene = Scene::new().await;
    let mut layout = Layout::default();
    let image = layout.image("arm64", &[layer()], &[]);
    layout.serve_below(&scene.one, BASE, REPOSITORY);
    let error = scene.bench().take(&reference(&scene.origin, &image), Vec::new()).await.expect_err("arm64 only");
    assert_eq!(error.reason(), Reason::WrongArchitecture, "{error}");
    assert_eq!((scene.two.connections(), scene.origin.connections()), (0, 0));
}

/// A mirror that wants a token is asked for one by the name that it has for the repository, and for no other.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_a_mirror_is_for_the_repository_under_its_prefix() {
    let authority = Authority::new();
    let (origin, mirror) = (Upstream::start_tls(&authority, &["127.0.0.1"]).await, Upstream::start_tls(&authority, &["127.0.0.1"]).await);
    let prefixed = format!("proxy-ghcr/{REPOSITORY}");
    let mut layout = Layout::default();
    let image = layout.image("amd64", &[layer()], &[]);
    layout.serve(&mirror, &prefixed);
    let wanted = |repository: &str| {
        let challenge = format!("Bearer realm=\"{}\",service=\"s\",scope=\"repository:{repository}:pull\"", mirror.url("/token"));
        Answer::text(401, "{}").header("WWW-Authenticate", &challenge)
    };
    mirror.on("/token", Answer::text(200, r#"{"token":"hunter2-given"}"#));
    let path = format!("/v2/{prefixed}/manifests/{image}");
    mirror.sequence(&path, [wanted(&prefixed), layout.served(&image)]);
    let bench = |base: &str| {
        let mirrors = json!({ origin.address.to_string(): [mirror.url(base)] });
        Bench::with(&authority, |settings| settings.mirrors = serde_json::from_value(mirrors).expect("mirrors"))
    };
    let prefix = bench("/proxy-ghcr");
    let spooled = prefix.take(&reference(&origin, &image), vec![pair("hunter2")]).await.expect("from the mirror");
    prefix.assert_disk(&spooled, &Disk::get().raw);
    let asked = mirror.hits("/token");
    assert!(!asked.is_empty() && asked.iter().all(|hit| hit.target.contains("scope=repository%3Aproxy-ghcr%2Fteam%2Fdisk%3Apull")));
    assert!(mirror.all().iter().all(|hit| !hit.header("authorization").is_some_and(|shown| shown.starts_with("Basic"))));
    assert_eq!(origin.connections(), 0);

    // Without the prefix the mirror names it, and the answer says where to write it.
    mirror.on(&manifest(&image), wanted(&prefixed));
    origin.on(&manifest(&image), Answer::text(503, ""));
    let error = bench("").take(&reference(&origin, &image), Vec::new()).await.expect_err("not there").to_string();
    assert!(error.contains("write that into the mirror's address"), "{error}");
}
