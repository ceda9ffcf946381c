//! How upstreams are reached: certificates, mirrors, proxies, names; and what a person sees meanwhile.

use serde_json::json;

use crate::{
    BINARY, DISKS, Desk, MIB, Shop, arg, nobody,
    upstream::{
        Authority,
        layout::{Layout, gzip, tar},
        registry::{Guard, Registry, USER},
    },
};

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
    // A mirror's word ends nothing for good, and the host itself cannot be asked here: the daemon would go on asking.
    assert_eq!((answer.code, answer.verdicts()), (Some(2), vec!["a Unknown Unavailable".to_owned()]));
    assert!(answer.stdout.contains("TooLarge") && answer.stdout.contains("the limit of 67108864 bytes"), "{}", answer.stdout);

    let config = desk.file("settings.yaml", "largestdisk: 64Mi\n");
    let answer = desk.plan(&["-f", arg(&list), "--config", arg(&config)]);
    assert_eq!(answer.code, Some(64));
    assert!(answer.stderr.contains("settings.yaml:1:") && answer.stderr.contains("largestdisk"), "{}", answer.stderr);
}

/// The chart's own values, with what it leaves empty, are read as they stand: planned, as `--config`, and as its ConfigMap.
#[test]
fn the_settings_of_the_charts_values_are_the_daemons() {
    let (shop, desk) = (Shop::open(), Desk::new());
    let chart = include_str!("../../helm/kubernetes-worker-image/values.yaml");
    let mirror = format!("    mirrors: {{images.invalid: ['{}']}}\n", shop.url(""));
    let image = "images:\n- {name: a, url: 'https://images.invalid/noble.qcow2'}\n";
    let (with_mirror, with_image) = (chart.replacen("    mirrors: {}\n", &mirror, 1), chart.replacen("images: []\n", image, 1));
    assert!(with_mirror != chart && with_image != chart, "the chart's values have both");
    let values = desk.file("values.yaml", &with_mirror.replacen("images: []\n", image, 1));
    let good = (Some(0), vec!["a Good".to_owned()]);
    let answer = desk.plan(&["-f", arg(&values), "-o", "json"]);
    assert_eq!((answer.code, answer.verdicts()), good, "{answer:?}");

    let list = desk.file("list.yaml", &with_image);
    let whole = desk.file("settings.yaml", &with_mirror);
    let answer = desk.plan(&["-f", arg(&list), "--config", arg(&whole), "-o", "json"]);
    assert_eq!((answer.code, answer.verdicts()), good, "{answer:?}");
    let settings = json!({ "bandwidth": "", "egress": { "caBundle": "", "mirrors": { "images.invalid": [shop.url("")] } } }).to_string();
    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "data": { "settings.yaml": settings } }).to_string();
    let map = desk.file("map.yaml", &map);
    let answer = desk.plan(&["-f", arg(&list), "--config", arg(&map), "-o", "json"]);
    assert_eq!((answer.code, answer.verdicts()), good, "{answer:?}");

    let wrong = desk.file("wrong.yaml", &with_image.replacen("  workers: 8\n", "  workers: 0\n", 1));
    let answer = desk.plan(&["-f", arg(&wrong)]);
    assert_eq!((answer.code, answer.stdout.as_str()), (Some(64), ""), "{answer:?}");
    assert!(answer.stderr.contains("wrong.yaml:") && answer.stderr.contains("`workers` must be at least 1"), "{}", answer.stderr);
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_with_credentials_is_asked_about_when_its_secret_is_given() {
    const PASSWORD: &str = "hunter2-swordfish";
    let (authority, desk) = (Authority::new(), Desk::new());
    let registry = Registry::start(&authority, Guard::Token, PASSWORD).await;
    let mut layout = Layout::default();
    let image = layout.image("amd64", &[gzip(&tar(&[("disk/disk.qcow2", &DISKS[0])]))], &[]);
    let folder = tempfile::tempdir().expect("directory");
    let reference = registry.push(&layout.write(folder.path(), &[("disk", &image)]), "disk", "workers/kairos", &[]);
    let list = desk.file(
        "values.yaml",
        &format!(
            "images:\n- {{name: a, reference: '{reference}', kubernetesVersion: v1.35.6, credentialsSecretRef: {{name: reg}}, access: {{policy: AllTenants}}}}\n"
        ),
    );
    let bundle = desk.file("ca.pem", &authority.pem());
    // The token service is on loopback too.
    let config = desk.file("settings.yaml", "egress: {allowPrivateRedirects: true}\n");
    let files = ["-f", arg(&list), "--ca-bundle", arg(&bundle), "--config", arg(&config), "-o", "json"];
    let secret = |name: &str, password: &str| {
        let auths = json!({ "auths": { registry.address.to_string(): { "username": USER, "password": password } } }).to_string();
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name, "namespace": "ns" },
            "type": "kubernetes.io/dockerconfigjson", "stringData": { ".dockerconfigjson": auths } })
        .to_string()
    };

    let answer = desk.plan(&files);
    assert_eq!((answer.code, answer.verdicts()), (Some(2), vec!["a Unknown ReferenceNotFound".to_owned()]), "{answer:?}");
    let told = answer.json()["images"][0]["problems"][0].to_string();
    assert!(told.contains("the Secret reg") && told.contains("--secrets FILE") && !told.contains("are others"), "{told}");
    let answer = desk.plan(&["-f", arg(&list), "--offline", "-o", "json"]);
    assert_eq!((answer.code, answer.verdicts()), (Some(0), vec!["a Accepted".to_owned()]), "{answer:?}");

    let given = |text: &str| desk.run(desk.command(BINARY), &[&files[..], &["--secrets", "-"]].concat(), Some(text));
    let answer = given(&secret("reg", PASSWORD));
    assert_eq!((answer.code, answer.verdicts()), (Some(0), vec!["a Good".to_owned()]), "{answer:?}");
    assert_eq!(answer.json()["images"][0]["virtualSizeBytes"], 96 * MIB);
    let answer = given(&secret("reg", "hunter3-swordfish"));
    assert_eq!((answer.code, answer.verdicts()), (Some(1), vec!["a Refused Unauthorized".to_owned()]), "{answer:?}");
    assert!(!format!("{answer:?}").contains("hunter3"), "{answer:?}");
    let answer = given(&secret("other", PASSWORD));
    assert_eq!((answer.code, answer.verdicts()), (Some(2), vec!["a Unknown ReferenceNotFound".to_owned()]));
    assert!(answer.stdout.contains("the Secrets that were given are others"), "{}", answer.stdout);
    let answer = given("kind: ConfigMap\n");
    assert_eq!(answer.code, Some(64));
    assert!(answer.stderr.contains("<stdin> holds no Secret"), "{}", answer.stderr);
}
