//! A scripted registry, for what real ones do not do.

use std::{sync::Arc, time::Duration};

use golden_catalog::{
    intake::{Extent, peek},
    model::{Architecture, DiskSize, Source},
    rules::Reason,
    source::{Credentials, OpenRequest},
};
use rstest::rstest;
use serde_json::json;

use crate::{
    stage::images,
    support::{Bench, Disk, REPOSITORY, layer, pair, reference, registry},
    upstream::{
        Answer, Authority, Upstream,
        layout::{Layout, OCI_CONFIG, OCI_INDEX, OCI_MANIFEST, digest, gzip, tar},
    },
};

/// Every odd case has its own reason and says what was found.
#[rstest]
#[case::artifact(|layout: &mut Layout| {
    let config = layout.blob(b"{}".to_vec());
    let config = layout.descriptor("application/vnd.cncf.helm.config.v1+json", &config);
    layout.document(OCI_MANIFEST, &json!({ "schemaVersion": 2, "config": config, "layers": [] }))
}, Reason::NotAContainerImage, "vnd.cncf.helm.config.v1+json")]
#[case::empty_config(|layout: &mut Layout| {
    let layer = layout.blob(layer());
    let (layer, config) = (layout.descriptor("x/y", &layer), layout.blob(b"{}".to_vec()));
    let config = layout.descriptor(OCI_CONFIG, &config);
    layout.document(OCI_MANIFEST, &json!({ "schemaVersion": 2, "config": config, "layers": [layer] }))
}, Reason::EmptyImageConfig, "names no architecture")]
#[case::attestations(|layout: &mut Layout| {
    let image = layout.image("amd64", &[layer()], &[]);
    let mut entry = layout.descriptor(OCI_MANIFEST, &image);
    entry["platform"] = json!({ "architecture": "unknown", "os": "unknown" });
    layout.document(OCI_INDEX, &json!({ "schemaVersion": 2, "manifests": [entry] }))
}, Reason::OnlyAttestations, "1 attestations")]
#[case::wrong_architecture(|layout: &mut Layout| {
    let image = layout.image("arm64", &[layer()], &[]);
    layout.index(&[("arm64", &image)])
}, Reason::WrongArchitecture, "linux/arm64")]
#[case::no_disk(|layout: &mut Layout| layout.image("amd64", &[gzip(&tar(&[("etc/os-release", b"x")]))], &[]), Reason::NoDiskFile, "no folder `disk/`")]
#[case::several(|layout: &mut Layout| layout.image("amd64", &[gzip(&tar(&[("disk/a.img", &Disk::get().qcow2), ("disk/b.img", b"x")]))], &[]), Reason::SeveralDiskFiles, "`disk/a.img` and `disk/b.img`")]
#[case::in_two_layers(|layout: &mut Layout| layout.image("amd64", &[layer(), gzip(&tar(&[("disk/other.img", b"x")]))], &[]), Reason::SeveralDiskFiles, "layer sha256:")]
#[case::link(|layout: &mut Layout| layout.image("amd64", &[gzip(&tar(&[("disk/disk.img -> /images/a", b"")]))], &[]), Reason::LinkedDiskFile, "symbolic link `disk/disk.img`")]
#[case::hard_link(|layout: &mut Layout| layout.image("amd64", &[gzip(&tar(&[("images/a", &Disk::get().qcow2), ("disk/disk.img => images/a", b"")]))], &[]), Reason::LinkedDiskFile, "hard link `disk/disk.img`")]
#[case::linked_folder(|layout: &mut Layout| layout.image("amd64", &[gzip(&tar(&[("images/a", &Disk::get().qcow2), ("disk -> images", b"")]))], &[]), Reason::LinkedDiskFile, "symbolic link `disk`")]
#[case::whiteout(|layout: &mut Layout| layout.image("amd64", &[layer(), tar(&[("disk/.wh.disk.qcow2", b"")])], &[]), Reason::AmbiguousDiskFile, "mark of deletion")]
#[case::text(|layout: &mut Layout| layout.image("amd64", &[gzip(&tar(&[("disk/disk.img", b"<html>no disk</html>")]))], &[]), Reason::NotADiskImage, "HTML")]
#[case::large_manifest(|layout: &mut Layout| layout.raw_document(OCI_MANIFEST, vec![b' '; (4 << 20) + 1]), Reason::ManifestTooLarge, "4194304 bytes")]
#[case::both_kinds(|layout: &mut Layout| layout.document(OCI_INDEX, &json!({ "schemaVersion": 2, "manifests": [], "layers": [] })), Reason::InvalidManifest, "both `manifests` and `layers`")]
#[tokio::test(flavor = "multi_thread")]
async fn every_odd_image_has_its_reason(#[case] make: fn(&mut Layout) -> String, #[case] reason: Reason, #[case] found: &str) {
    let (_authority, upstream, bench) = registry().await;
    let mut layout = Layout::default();
    let pinned = make(&mut layout);
    layout.serve(&upstream, REPOSITORY);
    let error = bench.take(&reference(&upstream, &pinned), Vec::new()).await.expect_err(found);
    assert_eq!(error.reason(), reason, "{error}");
    assert!(error.to_string().contains(found), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_not_the_pinned_one_is_refused_at_each_step() {
    let (_authority, upstream, bench) = registry().await;
    let mut layout = Layout::default();
    let image = layout.image("amd64", &[layer()], &[]);
    layout.serve(&upstream, REPOSITORY);
    let path = format!("/v2/{REPOSITORY}/manifests/{image}");
    let good = layout.image("amd64", &[layer()], &["A=b"]);
    upstream.on(&path, Answer::text(200, "{\"schemaVersion\":2,\"layers\":[]}"));
    let error = bench.take(&reference(&upstream, &image), Vec::new()).await.expect_err("manifest");
    assert_eq!(error.reason(), Reason::DigestMismatch, "{error}");
    // An index that leads to another image, and an image's configuration that says it is made for something else.
    let index = layout.index(&[("amd64", &good)]);
    let others = layout.index(&[("amd64", &image), ("arm64", &image)]);
    layout.serve(&upstream, REPOSITORY);
    upstream.on(&format!("/v2/{REPOSITORY}/manifests/{index}"), layout.served(&others));
    let error = bench.take(&reference(&upstream, &index), Vec::new()).await.expect_err("index");
    assert_eq!(error.reason(), Reason::DigestMismatch, "{error}");
    let config = layout.config_of(&good);
    upstream.on(&format!("/v2/{REPOSITORY}/blobs/{config}"), Answer::text(200, r#"{"architecture":"amd64","os":"linux"}"#));
    let error = bench.take(&reference(&upstream, &good), Vec::new()).await.expect_err("configuration");
    assert!(error.reason() == Reason::DigestMismatch && error.to_string().contains(&config), "{error}");
    // The layer: as many bytes, and others.
    layout.serve(&upstream, REPOSITORY);
    let whole = layer();
    let mut other = whole.clone();
    let at = other.len() / 2;
    other[at] ^= 1;
    upstream.on(&format!("/v2/{REPOSITORY}/blobs/{}", digest(&whole)), Answer::file(other));
    let error = bench.take(&reference(&upstream, &good), Vec::new()).await.expect_err("layer");
    assert_eq!(error.reason(), Reason::DigestMismatch, "{error}");
    assert_eq!(std::fs::read_dir(bench.root.path().join("disks")).expect("disks").count(), 0, "nothing is ever served of it");
    // Another length than the manifest's is told before a byte is taken.
    upstream.on(&format!("/v2/{REPOSITORY}/blobs/{}", digest(&whole)), Answer::file(whole[..1000].to_vec()));
    let error = bench.take(&reference(&upstream, &good), Vec::new()).await.expect_err("length");
    assert_eq!(error.reason(), Reason::Corrupt, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blob_store_behind_a_redirect_sees_no_credentials_and_its_signature_is_not_told() {
    let (authority, upstream, bench) = registry().await;
    let store = Upstream::start_tls(&authority, &["127.0.0.1"]).await;
    let mut layout = Layout::default();
    let image = layout.image("amd64", &[layer()], &[]);
    layout.serve(&upstream, REPOSITORY);
    let basic = || Answer::text(401, "{}").header("WWW-Authenticate", "Basic realm=\"r\"");
    upstream.on("/v2/", basic());
    let blob = format!("/v2/{REPOSITORY}/blobs/{}", digest(&layer()));
    upstream.on(&blob, Answer::redirect(307, &store.url("/bucket/blob?X-Amz-Signature=s1gnature")));
    store.sequence("/bucket/blob", [Answer::text(403, "denied X-Amz-Signature=s1gnature"), Answer::file(layer())]);
    let error = bench.take(&reference(&upstream, &image), vec![pair("hunter2")]).await.expect_err("the store refuses once");
    assert_eq!(error.reason(), Reason::Forbidden, "{error}");
    assert!(!error.to_string().contains("s1gnature"), "{error}");
    let spooled = bench.take(&reference(&upstream, &image), vec![pair("hunter2")]).await.expect("then it serves");
    assert!(!spooled.record.artifact.resolved_url.contains("s1gnature"));
    assert!(store.hits("/bucket/blob").iter().all(|hit| hit.header("authorization").is_none()));
    assert!(upstream.hits(&blob).iter().all(|hit| hit.header("authorization").is_some()), "the registry is never asked without");
}

#[rstest]
#[case::plain("http://127.0.0.1:1/token", "without encryption")]
#[case::credentials("https://u:p@127.0.0.1:1/token", "credentials")]
#[case::scheme("ftp://127.0.0.1/token", "https")]
#[tokio::test(flavor = "multi_thread")]
async fn a_realm_is_checked_before_a_password_goes_there(#[case] realm: &str, #[case] why: &str) {
    let (_authority, upstream, bench) = registry().await;
    upstream.on("/v2/", Answer::text(401, "{}").header("WWW-Authenticate", &format!("Bearer realm=\"{realm}\",service=\"s\"")));
    let error = bench.take(&reference(&upstream, &digest(b"x")), vec![pair("hunter2")]).await.expect_err("refused");
    assert_eq!(error.reason(), Reason::EgressRefused, "{error}");
    assert!(error.to_string().contains(why), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_realm_on_a_private_address_needs_the_setting() {
    let authority = Authority::new();
    let upstream = Upstream::start_tls(&authority, &["127.0.0.1"]).await;
    let elsewhere = Upstream::start_tls(&authority, &["127.0.0.1"]).await;
    upstream.on("/v2/", Answer::text(401, "{}").header("WWW-Authenticate", &format!("Bearer realm=\"{}\"", elsewhere.url("/token"))));
    let bench = Bench::with(&authority, |_| {});
    let error = bench.take(&reference(&upstream, &digest(b"x")), vec![pair("hunter2")]).await.expect_err("refused");
    assert_eq!(error.reason(), Reason::EgressRefused, "{error}");
    assert_eq!(elsewhere.connections(), 0);
}

#[rstest]
#[case(429, "toomanyrequests: slow down", Reason::RateLimited, Some(7))]
#[case(503, "", Reason::Unavailable, Some(7))]
#[case(403, r#"{"errors":[{"code":"DENIED","message":"requested access to the resource is denied"}]}"#, Reason::Forbidden, Some(7))]
#[case(404, r#"{"errors":[{"code":"NAME_UNKNOWN","message":"repository name not known to registry"}]}"#, Reason::NotFound, Some(7))]
#[tokio::test(flavor = "multi_thread")]
async fn answers_have_their_meaning(#[case] status: u16, #[case] text: &str, #[case] reason: Reason, #[case] wait: Option<u64>) {
    let (_authority, upstream, bench) = registry().await;
    let pinned = digest(b"x");
    upstream.on(&format!("/v2/{REPOSITORY}/manifests/{pinned}"), Answer::text(status, text).header("Retry-After", "7"));
    let error = bench.take(&reference(&upstream, &pinned), Vec::new()).await.expect_err("refused");
    assert_eq!((error.reason(), error.retry_after()), (reason, wait.map(Duration::from_secs)), "{error}");
    for code in ["DENIED", "NAME_UNKNOWN"] {
        assert_eq!(error.to_string().contains(code), text.contains(code), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_runs_out_is_asked_for_again_and_one_given_beforehand_is_used_as_it_is() {
    let (authority, upstream, bench) = registry().await;
    let mut layout = Layout::default();
    let image = layout.image("amd64", &[layer()], &[]);
    layout.serve(&upstream, REPOSITORY);
    let challenge = format!("Bearer realm=\"{}\",service=\"s\",scope=\"registry:catalog:*\"", upstream.url("/token"));
    let wanted = || Answer::text(401, "{}").header("WWW-Authenticate", &challenge);
    upstream.on("/v2/", wanted());
    upstream.sequence("/token", [Answer::text(200, r#"{"token":"first"}"#), Answer::text(200, r#"{"access_token":"second"}"#)]);
    let blob = format!("/v2/{REPOSITORY}/blobs/{}", digest(&layer()));
    upstream.sequence(&blob, [wanted(), Answer::file(layer())]);
    bench.take(&reference(&upstream, &image), vec![pair("hunter2")]).await.expect("taken in");
    let hits = upstream.hits(&blob);
    let shown: Vec<_> = hits.iter().filter_map(|hit| hit.header("authorization")).collect();
    assert_eq!(shown, ["Bearer first", "Bearer second"]);
    // Nothing but pulling this repository is asked for, whatever the registry would have.
    let asked = upstream.hits("/token");
    assert!(asked.iter().all(|hit| hit.target.contains("scope=repository%3Ateam%2Fdisk%3Apull")), "{asked:?}");

    upstream.on(&blob, Answer::file(layer()));
    let fresh = Bench::new(&authority);
    fresh.take(&reference(&upstream, &image), vec![Credentials::Bearer("given".to_owned().into())]).await.expect("taken in");
    assert_eq!(upstream.hits("/token").len(), asked.len());
    assert_eq!(upstream.hits(&blob).last().and_then(|hit| hit.header("authorization")), Some("Bearer given"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_goes_on_where_it_broke_off() {
    let (_authority, upstream, bench) = registry().await;
    let mut layout = Layout::default();
    let image = layout.image("amd64", &[layer()], &[]);
    layout.serve(&upstream, REPOSITORY);
    let (blob, half) = (format!("/v2/{REPOSITORY}/blobs/{}", digest(&layer())), layer().len() / 2);
    upstream.sequence(&blob, [Answer::file(layer()).cut(half), Answer::file(layer())]);
    let error = bench.take(&reference(&upstream, &image), Vec::new()).await.expect_err("cut");
    assert_eq!(error.reason(), Reason::Corrupt, "{error}");
    let spooled = bench.take(&reference(&upstream, &image), Vec::new()).await.expect("taken in");
    bench.assert_disk(&spooled, &Disk::get().raw);
    let hits = upstream.settled(&blob, 2).await;
    assert_eq!(hits[1].header("range"), Some(format!("bytes={half}-").as_str()));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_layer_with_the_disk_is_found_among_others() {
    let (_authority, upstream, bench) = registry().await;
    let noise: Vec<u8> = (0..9_u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    let system = tar(&[("bin/", b""), ("bin/sh", &noise)]);
    let after = gzip(&tar(&[("etc/motd", b"hello")]));
    for layers in [vec![system.clone(), layer(), after.clone()], vec![layer(), after.clone(), after]] {
        let mut layout = Layout::default();
        let image = layout.image("amd64", &layers, &[&format!("N={}", layers.len())]);
        layout.serve(&upstream, REPOSITORY);
        let spooled = bench.take(&reference(&upstream, &image), Vec::new()).await.expect("taken in");
        bench.assert_disk(&spooled, &Disk::get().raw);
        assert_eq!(spooled.record.artifact.digest.to_string(), digest(&layer()));
        bench.intake.store.find(&bench.request(&reference(&upstream, &image), Architecture::Amd64, Vec::new()).identity).expect("found");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_of_one_image_are_never_used_for_another() {
    let (_authority, upstream, bench) = registry().await;
    let mut layout = Layout::default();
    let first = layout.image("amd64", &[layer()], &["A=1"]);
    let second = layout.image("amd64", &[layer()], &["A=2"]);
    layout.serve(&upstream, REPOSITORY);
    upstream.on("/v2/", Answer::text(401, "{}").header("WWW-Authenticate", "Basic realm=\"r\""));
    bench.take(&reference(&upstream, &first), vec![pair("hunter2")]).await.expect("with");
    bench.take(&reference(&upstream, &second), Vec::new()).await.expect("without");
    let path = format!("/v2/{REPOSITORY}/manifests/{second}");
    assert!(upstream.hits(&path).iter().all(|hit| hit.header("authorization").is_none()));
}

/// What a manifest calls a layer is not asked: tools disagree, and some images were packed anew without being renamed.
#[rstest]
#[case::packed_and_called_plain(layer(), "application/vnd.oci.image.layer.v1.tar")]
#[case::packed_otherwise(layer(), "application/vnd.oci.image.layer.v1.tar+zstd")]
#[case::plain_and_called_packed(tar(&[("disk/disk.qcow2", &Disk::get().qcow2)]), "application/vnd.docker.image.rootfs.diff.tar.gzip")]
#[case::called_nothing(layer(), "application/octet-stream")]
#[tokio::test(flavor = "multi_thread")]
async fn a_layer_is_told_by_its_content(#[case] bytes: Vec<u8>, #[case] kind: &str) {
    let (_authority, upstream, bench) = registry().await;
    let mut layout = Layout::default();
    let image = layout.image("amd64", std::slice::from_ref(&bytes), &[]);
    let (config, bytes) = (layout.descriptor(OCI_CONFIG, &layout.config_of(&image)), layout.descriptor(kind, &digest(&bytes)));
    let image = layout.document(OCI_MANIFEST, &json!({ "schemaVersion": 2, "config": config, "layers": [bytes] }));
    layout.serve(&upstream, REPOSITORY);
    let spooled = bench.take(&reference(&upstream, &image), Vec::new()).await.expect(kind);
    bench.assert_disk(&spooled, &Disk::get().raw);
}

/// Every form of the real GNU tar, with a name too long for a plain header where the form allows one, and with holes.
#[rstest]
#[case::ustar(&["--format=ustar"], "disk.img")]
#[case::gnu(&["--format=gnu"], LONG)]
#[case::pax(&["--format=posix"], LONG)]
#[case::gnu_with_holes(&["--format=gnu", "--sparse"], LONG)]
#[case::pax_with_holes(&["--format=posix", "--sparse", "--sparse-version=1.0"], LONG)]
#[case::pax_with_holes_of_old(&["--format=posix", "--sparse", "--sparse-version=0.1"], "disk.img")]
#[case::pax_with_holes_of_the_oldest(&["--format=posix", "--sparse", "--sparse-version=0.0"], "disk.img")]
#[tokio::test(flavor = "multi_thread")]
async fn what_gnu_tar_writes_is_read(#[case] form: &[&str], #[case] name: &str) {
    let (_authority, upstream, bench) = registry().await;
    let dir = tempfile::TempDir::new().expect("dir");
    std::fs::create_dir(dir.path().join("disk")).expect("folder");
    let (disk, archive) = (dir.path().join("disk").join(name), dir.path().join("layer.tar"));
    // Keeps the holes, where `std::fs::copy` may not.
    images::run("cp", &["--sparse=always", &Disk::get().raw.display().to_string(), &disk.display().to_string()]);
    let (root, out) = (dir.path().display().to_string(), archive.display().to_string());
    images::run("tar", &[form, &["--create", "--file", &out, "--directory", &root, "disk"]].concat());
    let packed = std::fs::read(&archive).expect("archive");
    assert_eq!(packed.len() < 20 << 20, form.contains(&"--sparse"), "{} bytes", packed.len());
    let mut layout = Layout::default();
    let image = layout.image("amd64", &[packed], &[]);
    layout.serve(&upstream, REPOSITORY);
    let spooled = bench.take(&reference(&upstream, &image), Vec::new()).await.expect("taken in");
    bench.assert_disk(&spooled, &Disk::get().raw);
}

const LONG: &str =
    "a-name-of-more-than-the-one-hundred-bytes-that-fit-into-a-plain-header-of-an-archive-since-nineteen-eighty-eight-or-so.img";

/// Further on than a look goes (at most 1 MiB): `plan` claims nothing of it, and the daemon, which reads all of the layer once,
/// holds the size against the disk before any of it is stored.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_far_behind_in_its_layer_is_not_seen_by_a_look_and_judged_by_an_intake() {
    let (authority, upstream, bench) = registry().await;
    let noise: Vec<u8> = (0..2_u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    let mut layout = Layout::default();
    let image = layout.image("amd64", &[tar(&[("bin/noise", &noise), ("disk/disk.qcow2", &Disk::get().qcow2)])], &[]);
    layout.serve(&upstream, REPOSITORY);
    let reference = reference(&upstream, &image);
    let ca = authority.pem();
    let source = Source::ContainerDisk { reference: reference.parse().expect("reference"), architecture: Architecture::Amd64 };
    let ask = OpenRequest { ca_bundle: Some(ca.as_bytes()), ..OpenRequest::new(&source) };
    let served = peek(&bench.intake.egress, &bench.intake.limits, &ask, None).await.answer.expect("served");
    let seen = served.judged.expect("nothing wrong was seen");
    assert_eq!((seen.extent, seen.virtual_size), (Extent::NotSeen, None));
    assert!(served.read <= 1 << 20, "{}", served.read);

    let mut small = bench.request(&reference, Architecture::Amd64, Vec::new());
    small.fits = Arc::new(|size: DiskSize| Err(format!("needs {size}")));
    let error = bench.run(small).await.expect_err("too small");
    assert_eq!((error.reason(), error.to_string()), (Reason::SizeTooSmall, "needs 24Mi".to_owned()));
    assert_eq!(std::fs::read_dir(bench.root.path().join("disks")).expect("disks").count(), 0);
    let spooled = bench.take(&reference, Vec::new()).await.expect("taken in");
    bench.assert_disk(&spooled, &Disk::get().raw);
}
