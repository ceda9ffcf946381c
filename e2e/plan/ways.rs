//! How upstreams are reached: certificates, mirrors, proxies, names; and what a person sees meanwhile.

use serde_json::json;

use crate::{BINARY, Desk, Shop, arg, nobody};

#[test]
fn a_private_authority_is_named_on_the_command_line() {
    let (shop, desk) = (Shop::open(), Desk::new());
    let list = desk.file("values.yaml", &format!("images:\n- {{name: a, url: 'https://{}/noble.qcow2'}}\n", shop.nginx.https));
    let answer = desk.plan(&["-f", arg(&list)]);
    assert_eq!(answer.code, Some(2), "{answer:?}");
    assert!(answer.stdout.contains("Unknown: TLSFailed") && answer.stdout.contains("--ca-bundle FILE"), "{}", answer.stdout);
    let bundle = desk.file("ca.pem", &shop.authority.pem());
    let answer = desk.plan(&["-f", arg(&list), "--ca-bundle", arg(&bundle), "-o", "json"]);
    assert_eq!((answer.code, answer.verdicts()), (Some(0), vec!["a Good".to_owned()]));
}

#[test]
fn mirrors_and_limits_come_from_the_daemons_settings() {
    let (shop, desk) = (Shop::open(), Desk::new());
    let list = desk.file("values.yaml", "images:\n- {name: a, url: 'https://images.invalid/noble.qcow2'}\n");
    let settings = json!({ "maxConcurrentFetches": 1, "egress": { "mirrors": { "images.invalid": [shop.url("")] } } });
    let config = desk.file("settings.yaml", &settings.to_string());
    let answer = desk.plan(&["-f", arg(&list), "--config", arg(&config), "-o", "json"]);
    assert_eq!((answer.code, answer.verdicts()), (Some(0), vec!["a Good".to_owned()]), "{answer:?}");
    assert_eq!(answer.json()["images"][0]["resolvedURL"], shop.url("noble.qcow2"));

    let mut settings = settings;
    settings["largestDisk"] = json!("64Mi");
    let config = desk.file("settings.yaml", &settings.to_string());
    let answer = desk.plan(&["-f", arg(&list), "--config", arg(&config), "-o", "json"]);
    assert_eq!((answer.code, answer.verdicts()), (Some(1), vec!["a Refused TooLarge".to_owned()]));

    let config = desk.file("settings.yaml", "largestdisk: 64Mi\n");
    let answer = desk.plan(&["-f", arg(&list), "--config", arg(&config)]);
    assert_eq!(answer.code, Some(64));
    assert!(answer.stderr.contains("largestdisk"), "{}", answer.stderr);
}

#[test]
fn proxies_come_from_the_environment() {
    let desk = Desk::new();
    let list = desk.file("values.yaml", "images:\n- {name: a, url: 'http://images.invalid/a.qcow2'}\n");
    let mut command = desk.command(BINARY);
    command.env("http_proxy", nobody());
    let answer = desk.run(command, &["-f", arg(&list)], None);
    assert_eq!(answer.code, Some(2));
    assert!(answer.stdout.contains("Unknown: Unavailable") && answer.stdout.contains("The proxy http://127.0.0.1"), "{}", answer.stdout);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_can_be_asked_of_another_server() {
    let (shop, desk) = (Shop::open(), Desk::new());
    let names = crate::upstream::Names::start().await;
    names.set("images.example", &["127.0.0.1"]);
    let url = format!("http://images.example:{}/noble.qcow2", shop.nginx.http.port());
    let list = desk.file("values.yaml", &format!("images:\n- {{name: a, url: '{url}'}}\n"));
    let resolver = names.address.to_string();
    let answer =
        tokio::task::spawn_blocking(move || desk.plan(&["-f", arg(&list), "-o", "json", "--resolver", &resolver])).await.expect("run");
    assert_eq!((answer.code, answer.verdicts()), (Some(0), vec!["a Good".to_owned()]), "{answer:?}");
}

/// Where a person watches, a bar says what is being asked: `script` gives the run a terminal.
#[test]
fn progress_is_shown_on_a_terminal() {
    let (shop, desk) = (Shop::open(), Desk::new());
    let list = desk.file("values.yaml", &format!("images:\n- {{name: watched, url: '{}'}}\n", shop.url("slow/noble.qcow2")));
    let mut command = desk.command("/usr/bin/script");
    let line = format!("{BINARY} plan -f {} --egress-allow-loopback", list.display());
    let output = command.env("TERM", "xterm").args(["--quiet", "--return", "--command", &line, "/dev/null"]).output().expect("script");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("0/1 asking about watched"), "{text}");
    // The bar is gone before the table comes.
    assert!(text.rfind("asking about watched") < text.find("VERDICT"), "{text}");
}
