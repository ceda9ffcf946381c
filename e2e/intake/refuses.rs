//! What is no disk, too large, too small a target, or not what was asked for ends with its reason and leaves nothing.

use std::sync::Arc;

use golden_catalog::{
    intake::IntakeError,
    model::{Digest, DiskSize},
    rules::Reason,
};
use rstest::rstest;

use crate::{
    support::{Bench, Disks, MIB, identity, request, settings, thinly_filled},
    upstream::{Answer, Upstream},
};

fn truncated() -> Vec<u8> {
    let mut bytes = Disks::qcow2_bytes();
    bytes.truncate(bytes.len() / 2);
    bytes
}

#[rstest]
#[case::empty(Answer::file(""), Reason::NotADiskImage)]
#[case::html(Answer::file("<!DOCTYPE html><html><body>Sign in</body></html>"), Reason::NotADiskImage)]
#[case::json(Answer::file(r#"{"error": "no such file"}"#), Reason::NotADiskImage)]
#[case::noise(Answer::file(vec![0x5a; 100_000]), Reason::NotADiskImage)]
#[case::vmdk(Answer::file([b"KDMV\x01\0\0\0".as_slice(), &[0; 100_000]].concat()), Reason::UnsupportedFormat)]
#[case::truncated_qcow2(Answer::file(truncated()), Reason::Corrupt)]
#[case::truncated_xz({ let mut bytes = Disks::packed("xz", &["-1", "-c"]); bytes.truncate(bytes.len() - 100); Answer::file(bytes) }, Reason::Corrupt)]
#[case::text(Answer::text(200, "Your trial has ended; these are only words."), Reason::NotADiskImage)]
#[case::longer_than_announced(Answer::file(Disks::qcow2_bytes()).announce(Disks::qcow2_bytes().len() as u64 - 1000), Reason::Corrupt)]
#[case::forced_encoding(Answer::file(Disks::qcow2_bytes()).header("Content-Encoding", "gzip"), Reason::EgressRefused)]
#[case::loops(Answer::redirect(302, "/d"), Reason::EgressRefused)]
#[case::metadata(Answer::redirect(302, "http://169.254.169.254/latest/meta-data/"), Reason::EgressRefused)]
#[case::huge_header(Answer::file(Disks::qcow2_bytes()).header("X-Fill", &"a".repeat(100_000)), Reason::EgressRefused)]
#[case::not_there(Answer::text(404, "no"), Reason::NotFound)]
#[case::down(Answer::text(503, "no"), Reason::Unavailable)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_its_reason(#[case] answer: Answer, #[case] reason: Reason) {
    let up = Upstream::start().await;
    up.on("/d", answer);
    let bench = Bench::new();
    let error = bench.run(&request(&up.url("/d"))).await.expect_err("no disk");
    assert_eq!(error.reason(), reason, "{error}");
    bench.assert_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_of_another_digest_are_discarded() {
    let up = Upstream::start().await;
    up.on("/d", Answer::file(Disks::qcow2_bytes()));
    let bench = Bench::new();
    let mut asked = request(&up.url("/d"));
    asked.digest = Some(Digest::of(b"other"));
    let error = bench.run(&asked).await.expect_err("mismatch");
    assert_eq!(error.reason(), Reason::DigestMismatch);
    assert!(
        error.to_string().contains(&Digest::of(b"other").to_string())
            && error.to_string().contains(&Digest::of(&Disks::qcow2_bytes()).to_string()),
        "{error}"
    );
    bench.assert_empty().await;

    // Taken in without a digest, it is not what someone means who then names another one.
    asked.digest = None;
    bench.run(&asked).await.expect("take in");
    asked.digest = Some(Digest::of(b"other"));
    assert_eq!(bench.run(&asked).await.expect_err("mismatch").reason(), Reason::DigestMismatch);
    asked.digest = Some(Digest::of(&Disks::qcow2_bytes()));
    let requests = up.total();
    bench.run(&asked).await.expect("is there");
    assert_eq!(up.total(), requests);
}

#[rstest]
#[case("qcow2")]
#[case("raw")]
#[case("xz")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_is_too_small_before_anything_is_stored(#[case] form: &str) {
    let up = Upstream::start().await;
    let bytes = match form {
        "qcow2" => Disks::qcow2_bytes(),
        "raw" => std::fs::read(&Disks::get().raw).expect("raw"),
        _ => Disks::packed("xz", &["-1", "-c"]),
    };
    // The rest never comes, so the answer cannot rest on it.
    up.on("/d", Answer::file(bytes).stall(2 * usize::try_from(MIB).expect("fits")));
    let bench = Bench::new();
    let mut asked = request(&up.url("/d"));
    asked.fits = Arc::new(|size: DiskSize| if size.bytes() > 20 * MIB { Err(format!("target local needs {size}")) } else { Ok(()) });
    let error = bench.run(&asked).await.expect_err("too small");
    assert_eq!((error.reason(), error.to_string()), (Reason::SizeTooSmall, "target local needs 24Mi".to_owned()));
    bench.assert_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spool_without_room_before_anything_is_stored_and_takes_it_once_there_is() {
    let up = Upstream::start().await;
    let bytes = Disks::qcow2_bytes();
    up.on("/d", Answer::file(bytes.clone()).stall(MIB as usize));
    let bench = Bench::with(3 * MIB, settings());
    let error = bench.run(&request(&up.url("/d"))).await.expect_err("no room");
    assert_eq!(error.reason(), Reason::SpoolFull, "{error}");
    bench.assert_empty().await;

    up.on("/d", Answer::file(bytes));
    let bench = Bench::with(20 * MIB, settings());
    bench.run(&request(&up.url("/d"))).await.expect("take in");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_download_without_a_length_reserves_as_it_goes() {
    let up = Upstream::start().await;
    up.on("/d", Answer::new(200, Disks::qcow2_bytes()).chunked());
    let bench = Bench::with(1 << 30, settings());
    bench.run(&request(&up.url("/d"))).await.expect("take in");
    // Endless: it waits for room only while others hold some, and ends at the whole spool or at the cap on an artifact.
    up.on("/e", Answer::new(200, Disks::qcow2_bytes()).chunked().endless());
    let bench = Bench::with(100 * MIB, settings());
    let mut other = request(&up.url("/d"));
    other.identity = identity(2);
    let held = bench.run(&other).await.expect("take in");
    let asked = request(&up.url("/e"));
    let error = bench.run(&asked).await.expect_err("endless");
    assert_eq!(error.reason(), Reason::SpoolFull, "{error}");
    assert!(bench.intake.store.find(&other.identity).expect("find").is_some());
    drop(held);
    let error = bench.run(&asked).await.expect_err("endless");
    assert!(error.reason() == Reason::TooLarge && error.to_string().contains("has no end"), "{error}");
    bench.assert_empty().await;
    let mut capped = settings();
    capped.caps.artifact_bytes = 50 * MIB;
    let bench = Bench::with(1 << 30, capped);
    let error = bench.run(&request(&up.url("/e"))).await.expect_err("endless");
    assert_eq!(error.reason(), Reason::TooLarge, "{error}");
    bench.assert_empty().await;
}

/// Twice its first room is more than the spool has, and what it needs is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_outgrows_its_room_is_given_what_there_is_and_a_bomb_is_too_large() {
    let up = Upstream::start().await;
    up.on("/fits", Answer::file(thinly_filled(80)));
    up.on("/bomb", Answer::file(thinly_filled(120)));
    let bench = Bench::with(100 * MIB, settings());
    let spooled = bench.run(&request(&up.url("/fits"))).await.expect("take in");
    assert_eq!(spooled.record.disk.virtual_size, 200 * MIB);
    assert!(spooled.record.disk.length > 80 * MIB);
    drop(spooled);
    let mut bomb = request(&up.url("/bomb"));
    bomb.identity = identity(2);
    let error = bench.run(&bomb).await.expect_err("bomb");
    assert_eq!(error.reason(), Reason::TooLarge, "{error}");
    bench.assert_empty().await;
}

/// A disk that unpacks to more than its first guess is taken all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_larger_than_the_spool_that_is_mostly_empty_fits() {
    let up = Upstream::start().await;
    let folder = tempfile::TempDir::new().expect("dir");
    let raw = folder.path().join("large.raw");
    std::fs::File::create(&raw).and_then(|file| file.set_len(2 << 30)).expect("raw");
    crate::support::must("sgdisk", &["-n", "1:2048:0", &crate::support::text(&raw)]);
    let packed = std::process::Command::new("zstd").args(["-q", "-c"]).arg(&raw).output().expect("zstd").stdout;
    up.on("/d", Answer::file(packed));
    let bench = Bench::with(200 * MIB, settings());
    let spooled = bench.run(&request(&up.url("/d"))).await.expect("take in");
    assert_eq!(spooled.record.disk.virtual_size, 2 << 30);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mirrors_bad_bytes_send_to_the_source_and_end_nothing_for_good() {
    let (mirror, origin) = (Upstream::start().await, Upstream::start().await);
    mirror.on("/d", Answer::file("<html>a portal</html>"));
    origin.on("/d", Answer::file(Disks::qcow2_bytes()));
    let mut mirrored = settings();
    mirrored.mirrors = serde_json::from_value(serde_json::json!({ origin.address.to_string(): [mirror.url("")] })).expect("mirrors");
    let bench = Bench::with(1 << 30, mirrored.clone());
    let spooled = bench.run(&request(&origin.url("/d"))).await.expect("take in");
    assert_eq!((spooled.record.artifact.resolved_url, mirror.total()), (origin.url("/d"), 1));

    // A truncated disk shows only once it is whole.
    mirror.on("/d", Answer::file(truncated()));
    let bench = Bench::with(1 << 30, mirrored.clone());
    bench.run(&request(&origin.url("/d"))).await.expect("take in");

    origin.on("/d", Answer::text(503, "no"));
    let bench = Bench::with(1 << 30, mirrored);
    let error = bench.run(&request(&origin.url("/d"))).await.expect_err("no good place");
    assert!(matches!(error, IntakeError::MirrorsOnly { .. }) && error.reason() == Reason::Unavailable, "{error}");
    bench.assert_empty().await;
}
