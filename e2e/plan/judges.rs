//! What `plan` says of bytes is what the daemon would say of them: bad mirrors, odd container disks, damage it has read.

use serde_json::{Value, json};

use crate::{
    Answer as Run, DISKS, Desk, MIB, arg,
    upstream::{
        Answer, Authority, Upstream,
        layout::{Layout, digest, gzip, tar},
    },
};

/// Runs `plan` on a list beside the servers of the test.
async fn plan(list: String, settings: Value, more: Vec<String>) -> Run {
    let run = move || {
        let desk = Desk::new();
        let (list, config) = (desk.file("values.yaml", &list), desk.file("settings.yaml", &settings.to_string()));
        let files = ["-f", arg(&list), "--config", arg(&config), "-o", "json"];
        desk.plan(&files.into_iter().chain(more.iter().map(String::as_str)).collect::<Vec<_>>())
    };
    tokio::task::spawn_blocking(run).await.expect("run")
}

/// One entry a URL, named `a`, `b`, and so on.
fn entries(urls: &[String]) -> String {
    let line = |(index, url): (usize, &String)| format!("- {{name: {}, url: '{url}'}}\n", char::from(b'a' + index as u8));
    format!("images:\n{}", urls.iter().enumerate().map(line).collect::<String>())
}

/// The warnings of one image in one text.
fn warnings(run: &Run, index: usize) -> String {
    run.json()["images"][index]["warnings"].to_string()
}

/// Everything that is said of one image's first problem.
fn problem(run: &Run, index: usize) -> String {
    let problem = run.json()["images"][index]["problems"][0].clone();
    [&problem["message"], &problem["remedy"]].map(|text| text.as_str().unwrap_or_default().to_owned()).join(" ")
}

/// A disk of 4 MiB with an MBR and nothing in it, which packs to a few kilobytes.
fn small_disk() -> Vec<u8> {
    empty_disk(4 << 20)
}

/// A disk of `len` bytes with an MBR and one partition up to its end.
fn empty_disk(len: u32) -> Vec<u8> {
    let mut disk = vec![0; len as usize];
    disk[446..454].copy_from_slice(&[0, 0, 2, 0, 0x83, 0, 0, 0]);
    disk[454..458].copy_from_slice(&8_u32.to_le_bytes());
    disk[458..462].copy_from_slice(&(len / 512 - 8).to_le_bytes());
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_mirror_sends_to_the_next_address_and_both_are_told() {
    let (first, second, origin) = (Upstream::start().await, Upstream::start().await, Upstream::start().await);
    let good = || Answer::file(DISKS[0].clone());
    let html = || Answer::file("<!DOCTYPE html><html>a portal</html>");
    // a: a portal, then a dead mirror, then the origin; b: the second mirror has it; c: the origin is down; d: the origin is bad too.
    first.on("/a", html());
    second.on("/a", Answer::text(503, "no"));
    origin.on("/a", good());
    first.on("/b", html());
    second.on("/b", good());
    first.on("/c", html());
    second.on("/c", html());
    origin.on("/c", Answer::text(503, "no"));
    first.on("/d", html());
    second.on("/d", Answer::text(404, "no"));
    origin.on("/d", Answer::file("just a text"));
    let mirrors = json!({ origin.address.to_string(): [first.url(""), second.url("")] });
    let urls = ["/a", "/b", "/c", "/d"].map(|path| origin.url(path));
    let run = plan(entries(&urls), json!({ "egress": { "mirrors": mirrors } }), Vec::new()).await;
    assert_eq!(run.code, Some(1), "{run:?}");
    assert_eq!(run.verdicts(), ["a Good", "b Good", "c Unknown Unavailable", "d Refused NotADiskImage"], "{run:?}");
    let judged = |index: usize| run.json()["images"][index]["resolvedURL"].as_str().unwrap_or_default().to_owned();
    assert_eq!([judged(0), judged(1), judged(3)], [origin.url("/a"), second.url("/b"), origin.url("/d")]);
    for (index, expected) in [
        (0, vec![first.url("/a"), "NotADiskImage".to_owned(), second.url("/a"), "503".to_owned(), format!("{} judged", origin.url("/a"))]),
        (1, vec![first.url("/b"), format!("{} judged", second.url("/b"))]),
        (2, vec![first.url("/c"), second.url("/c"), origin.url("/c")]),
        (3, vec![first.url("/d"), second.url("/d")]),
    ] {
        let text = warnings(&run, index);
        assert!(expected.iter().all(|part| text.contains(part.as_str())), "{expected:?}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn odd_container_disks_have_the_daemons_reason() {
    let authority = Authority::new();
    let registry = Upstream::start_tls(&authority, &["127.0.0.1"]).await;
    let noise: Vec<u8> = (0..2_u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    let disk = small_disk();
    let layer = |files: &[(&str, &[u8])]| gzip(&tar(files));
    let good = layer(&[("disk/", b""), ("disk/disk.img", &disk)]);
    let mut cut = tar(&[("disk/disk.img", &empty_disk(256 << 10))]);
    cut.truncate(128 << 10);
    let images: Vec<(&str, Vec<Vec<u8>>, &str)> = vec![
        ("good", vec![good.clone()], "Good"),
        ("none", vec![layer(&[("etc/os-release", b"x")])], "Refused NoDiskFile"),
        ("empty", vec![layer(&[("disk/", b"")])], "Refused NoDiskFile"),
        ("several", vec![layer(&[("disk/a.img", &disk), ("disk/b.img", b"x")])], "Refused SeveralDiskFiles"),
        ("link", vec![layer(&[("disk/disk.img -> /images/a", b"")])], "Refused LinkedDiskFile"),
        ("deeper", vec![layer(&[("disk/sub/a.img", &disk)])], "Refused AmbiguousDiskFile"),
        ("text", vec![layer(&[("disk/disk.img", b"<html>no disk</html>")])], "Refused NotADiskImage"),
        ("cut", vec![cut], "Refused Corrupt"),
        ("cut-disk", vec![layer(&[("disk/disk.img", &disk[..2 << 20])])], "Refused Corrupt"),
        ("two-layers", vec![good.clone(), layer(&[("disk/other.img", b"no disk at all")])], "Refused SeveralDiskFiles"),
        ("two-disks", vec![good.clone(), layer(&[("disk/other.img", &disk), ("etc/a", b"x")])], "Refused SeveralDiskFiles"),
        ("beside", vec![good.clone(), layer(&[("etc/motd", b"hello")])], "Good"),
        // Further on than a mebibyte there may be a disk, and a second one; nothing is claimed of either.
        ("far", vec![tar(&[("bin/noise", &noise), ("disk/disk.img", &disk)])], "Accepted"),
        ("far-none", vec![tar(&[("bin/noise", &noise)])], "Accepted"),
    ];
    let mut list = "images:\n".to_owned();
    for (name, layers, _) in &images {
        let mut layout = Layout::default();
        // Each is an image of its own, whatever its layers.
        let image = layout.image("amd64", layers, &[&format!("NAME={name}")]);
        layout.serve(&registry, &format!("x/{name}"));
        list.push_str(&format!("- {{name: {name}, reference: '{}/x/{name}@{image}'}}\n", registry.address));
    }
    let desk = Desk::new();
    let bundle = desk.file("ca.pem", &authority.pem());
    let run = plan(list, json!({}), vec!["--ca-bundle".to_owned(), arg(&bundle).to_owned()]).await;
    let expected: Vec<_> = images.iter().map(|(name, _, verdict)| format!("{name} {verdict}")).collect();
    assert_eq!(run.verdicts(), expected, "{run:?}");
    assert!(problem(&run, 1).contains("no folder `disk/`"), "{}", problem(&run, 1));
    assert!(problem(&run, 3).contains("`disk/a.img` and `disk/b.img`"), "{}", problem(&run, 3));
    let json = run.json();
    assert_eq!((json["images"][0]["virtualSizeBytes"].as_u64(), &json["images"][0]["seen"]), (Some(4 * MIB), &json!("Whole")));
    assert!(warnings(&run, 12).contains("not seen within 1 MiB"), "{}", warnings(&run, 12));
    assert_eq!((&json["images"][12]["seen"], &json["totals"]["notSeen"]), (&json!("NotSeen"), &json!(2)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_layer_that_is_not_its_manifests_has_the_daemons_reason() {
    let authority = Authority::new();
    let registry = Upstream::start_tls(&authority, &["127.0.0.1"]).await;
    let layer = gzip(&tar(&[("disk/disk.img", &small_disk())]));
    let longer = [&layer[..], &[0; 1000]].concat();
    let mut other = layer.clone();
    *other.last_mut().expect("bytes") ^= 1;
    let large = tar(&[("disk/disk.qcow2", &DISKS[0])]);
    let cases = [
        ("longer", &layer, Answer::file(longer.clone()), "Refused Corrupt"),
        ("longer-plain", &layer, Answer::file(longer.clone()).no_ranges(), "Refused Corrupt"),
        ("longer-chunked", &layer, Answer::new(200, longer).chunked(), "Refused Corrupt"),
        ("shorter", &layer, Answer::file(layer[..1000].to_vec()), "Refused Corrupt"),
        // A part of a file that is in all smaller than the manifest's.
        ("smaller-total", &large, Answer::file(large[..2 << 20].to_vec()), "Refused Corrupt"),
        ("other", &layer, Answer::file(other), "Refused DigestMismatch"),
    ];
    let mut list = "images:\n".to_owned();
    for (name, layer, blob, _) in &cases {
        let mut layout = Layout::default();
        let image = layout.image("amd64", &[(*layer).clone()], &[&format!("NAME={name}")]);
        layout.serve(&registry, &format!("x/{name}"));
        registry.on(&format!("/v2/x/{name}/blobs/{}", digest(layer)), blob.clone());
        list.push_str(&format!("- {{name: {name}, reference: '{}/x/{name}@{image}'}}\n", registry.address));
    }
    let desk = Desk::new();
    let bundle = desk.file("ca.pem", &authority.pem());
    let run = plan(list, json!({}), vec!["--ca-bundle".to_owned(), arg(&bundle).to_owned()]).await;
    let expected: Vec<_> = cases.iter().map(|(name, _, _, verdict)| format!("{name} {verdict}")).collect();
    assert_eq!(run.verdicts(), expected, "{run:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_in_the_bytes_that_were_read_is_told() {
    let up = Upstream::start().await;
    let packed = gzip(&small_disk());
    let mut crc = packed.clone();
    let at = crc.len() - 8;
    crc[at] ^= 1;
    let qcow2 = &DISKS[0];
    // Cut to its first tables, and cut in the middle of its data.
    let cases = [
        ("/a", packed.clone(), "a Good"),
        ("/b", packed[..packed.len() - 1].to_vec(), "b Refused Corrupt"),
        ("/c", crc, "c Refused Corrupt"),
        ("/d", [&packed[..], b"garbage"].concat(), "d Refused Corrupt"),
        ("/e", qcow2[..256 << 10].to_vec(), "e Refused Corrupt"),
        ("/f", qcow2[..2 << 20].to_vec(), "f Refused Corrupt"),
        ("/g", qcow2.clone(), "g Good"),
        ("/h", gzip(&small_disk()[..1 << 20]), "h Refused Corrupt"),
    ];
    for (path, bytes, _) in &cases {
        up.on(path, Answer::file(bytes.clone()));
    }
    up.on("/i", Answer::file(packed.clone()));
    let mut list = entries(&cases.iter().map(|(path, ..)| up.url(path)).collect::<Vec<_>>());
    list.push_str(&format!("- {{name: i, url: '{}', digest: 'sha256:{}'}}\n", up.url("/i"), "0a".repeat(32)));
    let run = plan(list, json!({}), Vec::new()).await;
    let expected: Vec<_> = cases.iter().map(|(.., verdict)| *verdict).chain(["i Refused DigestMismatch"]).collect();
    assert_eq!(run.verdicts(), expected, "{run:?}");
    let json = run.json();
    assert_eq!((&json["images"][0]["seen"], &json["images"][6]["seen"]), (&json!("Whole"), &json!("Beginning")));
    // An MBR does not tell the size; a file that was read whole does.
    assert_eq!(json["images"][0]["virtualSizeBytes"], 4 * MIB);
    assert!(problem(&run, 8).contains(&digest(&packed)), "{}", problem(&run, 8));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_are_no_file_are_told_with_what_to_do() {
    const SECRET: &str = "hunter2-swordfish";
    let up = Upstream::start().await;
    up.on("/a", Answer::text(429, "slow down").header("Retry-After", "90"));
    up.on(
        "/b",
        Answer::text(429, "").header("Date", "Sun, 06 Nov 1994 08:49:37 GMT").header("Retry-After", "Sun, 06 Nov 1994 08:59:37 GMT"),
    );
    up.on("/c", Answer::redirect(302, "/c"));
    up.on("/d", Answer::redirect(302, "http://169.254.169.254/latest/meta-data/"));
    up.on("/e", Answer::text(400, &format!("unknown extension, token {SECRET}")));
    up.on("/f", Answer::text(402, "enterprise only"));
    up.on("/g", Answer::new(204, ""));
    up.on("/h", Answer::text(413, "too large"));
    up.on("/i", Answer::text(416, "no"));
    up.on("/j", Answer::raw("HTTP/1.1 103 Early Hints\r\n\r\n".repeat(2000)));
    let urls: Vec<_> = ('a'..='j').map(|name| up.url(&format!("/{name}?token={SECRET}"))).collect();
    let mut list = entries(&urls);
    list.push_str(&format!("- {{name: k, url: 'http://user:{SECRET}@{}/k'}}\n", up.address));
    let run = plan(list, json!({}), Vec::new()).await;
    assert_eq!(
        run.verdicts(),
        [
            "a Unknown RateLimited",
            "b Unknown RateLimited",
            "c Refused EgressRefused",
            "d Refused EgressRefused",
            "e Refused InvalidSource",
            "f Refused Forbidden",
            "g Refused NotFound",
            "h Unknown Unavailable",
            "i Unknown Unavailable",
            "j Unknown Unavailable",
            "k Refused InvalidEntry",
        ],
        "{run:?}"
    );
    for (index, expected) in [
        (0, "in 90 s"),
        (1, "in 10 min"),
        (2, "`egress.caps.redirects`"),
        (3, "a link-local address"),
        (4, "unknown extension"),
        (5, "enterprise only"),
        (6, "no content under this address"),
        (7, "raise its limit"),
        (8, "refuses a part"),
        (9, "interim answers"),
    ] {
        assert!(problem(&run, index).contains(expected), "{expected}: {}", problem(&run, index));
    }
    // Neither a query, nor what upstream repeats of it, nor credentials in an address.
    assert!(!format!("{run:?}").contains(SECRET), "{run:?}");
}
