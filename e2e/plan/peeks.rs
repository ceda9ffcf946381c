//! What upstream has, and what is said about it.

use std::fs;

use crate::{Desk, MIB, Shop, arg, nobody, upstream};

#[test]
fn a_good_list_has_names_sizes_and_totals() {
    let (shop, desk) = (Shop::open(), Desk::new());
    let list = desk.file(
        "values.yaml",
        &format!(
            "storageClass: replicated\nimages:\n- name: ubuntu-24.04\n  url: {}\n  storage: 20Gi\n- name: packed\n  url: {}\n  storage: {{targets: [{{}}, {{storageClassName: fast}}]}}\n",
            shop.url("noble.qcow2"),
            shop.url("disk.raw.xz"),
        ),
    );
    let answer = desk.plan(&["-f", arg(&list)]);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    let rows: Vec<_> = answer.stdout.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
    let columns = |row: usize| [rows[row][0], rows[row][1], rows[row][2], rows[row][3], rows[row][5], rows[row][6], rows[row][7]];
    assert_eq!(columns(1), ["ubuntu-24.04", "vm-default-images-ubuntu-24.04", "replicated", "20Gi", "96Mi", "qcow2", "Good"]);
    assert_eq!(columns(2), ["packed", "vm-default-images-packed", "replicated", "96Mi", "96Mi", "raw.xz", "Good"]);
    assert_eq!(columns(3), ["packed", "vm-default-images-packed-fast", "fast", "96Mi", "96Mi", "raw.xz", "Good"]);
    assert_eq!(rows[3][4], "same");
    // It is no daemon: nothing but the note on the tests' own flag goes to standard error.
    assert_eq!(answer.stderr.lines().count(), 1, "{}", answer.stderr);

    let answer = desk.plan(&["-f", arg(&list), "--output", "json"]);
    let json = answer.json();
    assert_eq!(json["images"][0]["downloadBytes"], shop.length("noble.qcow2"));
    assert_eq!(json["images"][1]["virtualSizeBytes"], 96 * MIB);
    assert_eq!(json["totals"]["downloadBytes"], shop.length("noble.qcow2") + shop.length("disk.raw.xz"));
    assert_eq!(json["totals"]["storeBytes"], (20 << 30) + 2 * 96 * MIB);
}

#[test]
fn every_kind_of_trouble_is_told_at_once() {
    let (shop, desk) = (Shop::open(), Desk::new());
    let urls = ["noble.qcow2", "page.qcow2", "missing.qcow2", "cut.qcow2", "noble.qcow2?small", "busy/a.qcow2"].map(|path| shop.url(path));
    let list = desk.file(
        "values.yaml",
        &format!(
            "images:\n- {{name: good, url: '{}'}}\n- {{name: page, url: '{}'}}\n- {{name: missing, url: '{}'}}\n- {{name: cut, url: '{}'}}\n- name: small\n  url: '{}'\n  storage: 64Mi\n- {{name: busy, url: '{}'}}\n- name: Bad\n  url: nonsense\n",
            urls[0], urls[1], urls[2], urls[3], urls[4], urls[5]
        ),
    );
    let answer = desk.plan(&["-f", arg(&list), "-o", "json"]);
    assert_eq!(answer.code, Some(1));
    assert_eq!(
        answer.verdicts(),
        [
            "good Good",
            "page Refused NotADiskImage",
            "missing Refused NotFound",
            "cut Refused Corrupt",
            "small Refused SizeTooSmall",
            "busy Unknown Unavailable",
            "Bad Refused InvalidEntry",
        ]
    );
    let text = desk.plan(&["-f", arg(&list)]).stdout;
    let at = arg(&list);
    for expected in [
        format!("{at}:3: page: NotADiskImage: "),
        "Point the entry at a qcow2 or raw disk image.".to_owned(),
        format!("{at}:4: missing: NotFound: "),
        "Check the address or version".to_owned(),
        format!("{at}:8: small: SizeTooSmall: `storage`: size 64Mi is too small: a disk of 96Mi needs 96Mi; write `96Mi`"),
        format!("{at}:10: Bad: InvalidEntry: `name`: "),
        format!("{at}:11: Bad: InvalidEntry: `url`: "),
        format!("{at}:2: good: warning: The address is plain `http://`"),
        "7 images: 5 refused, 1 unknown.".to_owned(),
    ] {
        assert!(text.contains(&expected), "{expected}\n{text}");
    }
    // What a URL's query may hold is nobody's business.
    assert!(!text.contains("?small"), "{text}");
}

#[test]
fn an_upstream_that_cannot_be_asked_is_unknown() {
    let (shop, desk) = (Shop::open(), Desk::new());
    let list = desk.file(
        "values.yaml",
        &format!("images:\n- {{name: a, url: '{}/a'}}\n- {{name: b, url: '{}'}}\n", nobody(), shop.url("noble.qcow2")),
    );
    let answer = desk.plan(&["-f", arg(&list), "-o", "json"]);
    assert_eq!((answer.code, answer.verdicts()), (Some(2), vec!["a Unknown Unavailable".to_owned(), "b Good".to_owned()]));
}

#[test]
fn offline_asks_nobody() {
    let (shop, desk) = (Shop::open(), Desk::new());
    let entries =
        format!("images:\n- {{name: a, url: '{}', storage: 5Gi}}\n- {{name: b, url: '{}/b'}}\n", shop.url("noble.qcow2"), nobody());
    let list = desk.file("values.yaml", &entries);
    let answer = desk.plan(&["-f", arg(&list), "--offline", "-o", "json"]);
    assert_eq!((answer.code, answer.verdicts()), (Some(0), vec!["a Accepted".to_owned(), "b Accepted".to_owned()]));
    assert_eq!(answer.json()["totals"]["storeIsComplete"], false);
    // nginx has seen nothing: the first line of its log is the one that is asked for now.
    assert_eq!(desk.plan(&["-f", arg(&list), "-o", "json"]).code, Some(2));
    assert_eq!(shop.nginx.log("/noble.qcow2", 1).len(), 1);
    let refused = desk.file("refused.yaml", "images:\n- {schematicID: a, version: 1.13.6}\n");
    let answer = desk.plan(&["-f", arg(&refused), "--offline"]);
    assert_eq!(answer.code, Some(1));
    assert!(answer.stdout.contains("write `v1.13.6`"), "{}", answer.stdout);
}

#[test]
fn a_mebibyte_tells_the_size_with_ranges_and_without() {
    let (shop, desk) = (Shop::open(), Desk::new());
    // 24 MiB of content that does not compress: more than any socket's buffers hold.
    let dir = tempfile::tempdir().expect("directory");
    let raw = crate::images::raw_disk(dir.path(), "large", 80 * MIB, 24, 3);
    let xz = crate::images::raw_xz(&raw);
    for place in ["large.raw.xz", "slow/large.raw.xz"] {
        fs::copy(&xz, shop.nginx.files().join(place)).expect("copied");
    }
    assert!(shop.length("large.raw.xz") > 20 * MIB);
    let list = desk.file(
        "values.yaml",
        &format!("images:\n- {{name: a, url: '{}'}}\n- {{name: b, url: '{}'}}\n", shop.url("large.raw.xz"), shop.url("slow/large.raw.xz")),
    );
    let answer = desk.plan(&["-f", arg(&list), "-o", "json"]);
    assert_eq!((answer.code, answer.verdicts()), (Some(0), vec!["a Good".to_owned(), "b Good".to_owned()]));
    let json = answer.json();
    for row in 0..2 {
        assert_eq!(json["images"][row]["virtualSizeBytes"], 80 * MIB);
        assert_eq!(json["images"][row]["downloadBytes"], shop.length("large.raw.xz"));
    }
    let sent = |path: &str| shop.nginx.log(path, 1).iter().map(|line| line.sent).sum::<u64>();
    assert_eq!(sent("/large.raw.xz"), MIB);
    // What nginx had put into the two sockets' buffers before the connection ended counts as sent.
    assert!(sent("/slow/large.raw.xz") < 8 * MIB, "{}", sent("/slow/large.raw.xz"));
}

/// A document's golden is named after the ID that the factory gives it; a repeated one is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schematic_document_is_given_to_its_factory() {
    const ID: &str = "ce4c980550dd2ab1b17bbf2b08801c7eb59418eafe8f279833297925d67c7515";
    let desk = Desk::new();
    let factory = upstream::Upstream::start().await;
    factory.on("/schematics", upstream::Answer::new(201, format!("{{\"id\":\"{ID}\"}}")).header("Content-Type", "application/json"));
    let disk = crate::DISKS[1].clone();
    factory.on(&format!("/image/{ID}/v1.13.6/openstack-amd64.raw.xz"), upstream::Answer::new(200, disk));
    let list = desk.file(
        "values.yaml",
        &format!(
            "factoryURL: {}\nimages:\n- name: gpu\n  schematic: {{customization: {{unheardOf: true}}}}\n  version: v1.13.6\n- name: other\n  schematicID: {ID}\n  version: v1.13.6\n",
            factory.url("")
        ),
    );
    let answer = tokio::task::spawn_blocking(move || desk.plan(&["-f", arg(&list), "-o", "json"])).await.expect("run");
    assert_eq!((answer.code, answer.verdicts()), (Some(1), vec!["gpu Good".to_owned(), "other Refused DuplicateIdentity".to_owned()]));
    let json = answer.json();
    assert_eq!(json["images"][0]["goldens"][0]["name"], format!("talos-worker-{ID}-v1.13.6"));
    assert_eq!(json["images"][0]["virtualSizeBytes"], 96 * MIB);
    assert_eq!(factory.hits("/schematics").len(), 1);
}
