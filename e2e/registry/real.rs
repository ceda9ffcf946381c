//! Real registries, and images as skopeo pushes them.

use golden_catalog::{intake::peek, model::Architecture, rules::Reason, source::OpenRequest, spool::Verified};
use rstest::rstest;
use tempfile::TempDir;

use crate::{
    support::{Bench, Disk, pair},
    upstream::{
        Authority,
        layout::{Layout, gzip, tar},
        registry::{Guard, Registry},
    },
};

const PASSWORD: &str = "hunter2-swordfish";

/// A layout with the disk for two architectures and an index of both.
fn layout(dir: &TempDir) -> (std::path::PathBuf, String, String) {
    let disk = Disk::get();
    let raw = std::fs::read(&disk.raw).expect("raw");
    let mut layout = Layout::default();
    let environment = ["PATH=/", "INSTANCETYPE_KUBEVIRT_IO_DEFAULT_INSTANCETYPE=u1.small"];
    let amd64 = layout.image("amd64", &[gzip(&tar(&[("disk/", b""), ("disk/disk.img", &disk.qcow2)]))], &environment);
    let arm64 = layout.image("arm64", &[gzip(&tar(&[("disk/disk.raw", &raw)]))], &[]);
    // Not packed: skopeo packs it as it is told to, where it would push a packed layer as it is.
    let plain = layout.image("amd64", &[tar(&[("disk/plain.qcow2", &disk.qcow2)])], &environment);
    let index = layout.index(&[("amd64", &amd64), ("arm64", &arm64)]);
    (layout.write(dir.path(), &[("single", &amd64), ("plain", &plain), ("multi", &index)]), amd64, arm64)
}

#[rstest]
#[case::open(Guard::Open)]
#[case::password(Guard::Password)]
#[case::token(Guard::Token)]
#[tokio::test(flavor = "multi_thread")]
async fn every_form_that_skopeo_pushes_becomes_the_same_disk(#[case] guard: Guard) {
    let authority = Authority::new();
    let registry = Registry::start(&authority, guard, PASSWORD).await;
    let dir = TempDir::new().expect("dir");
    let (from, _, arm64) = layout(&dir);
    let credentials = || if guard == Guard::Open { Vec::new() } else { vec![pair(PASSWORD)] };
    let forms: [(&str, &[&str], &str, Architecture); 5] = [
        ("single", &["--format=oci"], "qcow2 in tar.gz", Architecture::Amd64),
        ("single", &["--format=v2s2"], "qcow2 in tar.gz", Architecture::Amd64),
        ("plain", &["--format=oci", "--dest-compress-format=zstd"], "qcow2 in tar.zst", Architecture::Amd64),
        ("multi", &["--all"], "qcow2 in tar.gz", Architecture::Amd64),
        ("multi", &["--all"], "raw in tar.gz", Architecture::Arm64),
    ];
    for (n, (tag, more, format, architecture)) in forms.into_iter().enumerate() {
        let reference = registry.push(&from, tag, &format!("workers/kairos-{n}"), more);
        let bench = Bench::new(&authority);
        let request = bench.request(&reference, architecture, credentials());
        let spooled = bench.run(request).await.unwrap_or_else(|error| panic!("{reference} {more:?}: {error}"));
        bench.assert_disk(&spooled, &Disk::get().raw);
        let record = &spooled.record;
        assert_eq!((record.artifact.format.as_str(), record.verified), (format, Verified::Digest), "{more:?}");
        let container = record.artifact.container.as_ref().expect("container");
        assert_eq!(container.layer, record.artifact.digest);
        assert_eq!(container.index.is_some(), tag == "multi");
        if architecture == Architecture::Arm64 {
            assert_eq!(container.manifest.to_string(), arm64);
        } else {
            assert_eq!(container.defaults.instancetype.as_deref(), Some("u1.small"));
        }
    }
    if let Some(tokens) = &registry.tokens {
        assert_eq!((tokens.asked().anonymous, tokens.asked().refused), (0, 0));
    }
}

#[rstest]
#[case::password(Guard::Password)]
#[case::token(Guard::Token)]
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_an_error_and_never_an_anonymous_request(#[case] guard: Guard) {
    let authority = Authority::new();
    let registry = Registry::start(&authority, guard, PASSWORD).await;
    let dir = TempDir::new().expect("dir");
    let (from, ..) = layout(&dir);
    let reference = registry.push(&from, "single", "workers/kairos", &[]);
    let bench = Bench::new(&authority);
    let error = bench.take(&reference, vec![pair("wrong-and-secret")]).await.expect_err("refused");
    assert_eq!(error.reason(), Reason::Unauthorized, "{error}");
    let text = error.to_string();
    assert!(text.contains("credentials are wrong") && !text.contains("wrong-and-secret"), "{text}");
    // The careless token service repeated what it was sent, in base64.
    assert!(!text.contains("cm9ib3Q6"), "{text}");
    if let Some(tokens) = &registry.tokens {
        assert_eq!((tokens.asked().anonymous, tokens.asked().refused), (0, 1));
    }
    // All that match are tried in order.
    bench.take(&reference, vec![pair("wrong"), pair(PASSWORD)]).await.expect("the second one fits");
    let error = Bench::new(&authority).take(&reference, Vec::new()).await.expect_err("private");
    assert_eq!(error.reason(), Reason::Unauthorized);
    assert!(error.to_string().contains("not found or no access"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_and_what_is_for_another_architecture_is_said() {
    let authority = Authority::new();
    let registry = Registry::start(&authority, Guard::Password, PASSWORD).await;
    let dir = TempDir::new().expect("dir");
    let (from, ..) = layout(&dir);
    let reference = registry.push(&from, "single", "workers/kairos", &[]);
    let bench = Bench::new(&authority);
    let error = bench.run(bench.request(&reference, Architecture::Arm64, vec![pair(PASSWORD)])).await.expect_err("amd64 only");
    assert_eq!(error.reason(), Reason::WrongArchitecture, "{error}");
    assert!(error.to_string().contains("linux/amd64"), "{error}");
    let missing = format!("{}/workers/kairos@sha256:{}", registry.address, "0a".repeat(32));
    let error = bench.take(&missing, vec![pair(PASSWORD)]).await.expect_err("missing");
    assert_eq!(error.reason(), Reason::NotFound, "{error}");
    assert!(error.to_string().contains("MANIFEST_UNKNOWN"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peek_knows_the_size_from_the_first_bytes() {
    let authority = Authority::new();
    let registry = Registry::start(&authority, Guard::Token, PASSWORD).await;
    let dir = TempDir::new().expect("dir");
    let (from, ..) = layout(&dir);
    let reference = registry.push(&from, "single", "workers/kairos", &[]).parse().expect("reference");
    let bench = Bench::new(&authority);
    let (ca, credentials) = (authority.pem(), [pair(PASSWORD)]);
    let source = golden_catalog::model::Source::ContainerDisk { reference, architecture: Architecture::Amd64 };
    let ask = OpenRequest { ca_bundle: Some(ca.as_bytes()), credentials: &credentials, ..OpenRequest::new(&source) };
    let served = peek(&bench.intake.egress, &bench.intake.limits, &ask, None).await.answer.expect("served");
    let seen = served.judged.expect("a disk");
    assert_eq!(seen.virtual_size.map(|size| size.bytes()), Some(24 << 20));
    assert_eq!(seen.format.as_deref(), Some("qcow2 in tar.gz"));
    assert!(served.read <= 1 << 20 && Some(served.read) < served.download, "{} of {:?}", served.read, served.download);
}

/// Harbor and others keep what they mirror under a prefix of their own.
#[rstest]
#[case::prefix("proxy-ghcr")]
#[case::api_and_prefix("v2/proxy-ghcr/")]
#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_has_the_image_under_its_prefix(#[case] base: &str) {
    let authority = Authority::new();
    let registry = Registry::start(&authority, Guard::Open, PASSWORD).await;
    let dir = TempDir::new().expect("dir");
    let (from, ..) = layout(&dir);
    let pushed = registry.push(&from, "single", "proxy-ghcr/workers/kairos", &[]);
    let (_, digest) = pushed.split_once('@').expect("pinned");
    let mirrors = serde_json::json!({ "ghcr.invalid": [format!("https://{}/{base}", registry.address)] });
    let bench = Bench::with(&authority, |settings| settings.mirrors = serde_json::from_value(mirrors).expect("mirrors"));
    let spooled = bench.take(&format!("ghcr.invalid/workers/kairos@{digest}"), Vec::new()).await.expect("from the mirror");
    bench.assert_disk(&spooled, &Disk::get().raw);
    let from = &spooled.record.artifact.resolved_url;
    assert!(from.starts_with(&format!("https://{}/v2/proxy-ghcr/workers/kairos/blobs/", registry.address)), "{from}");
}
