//! Seen at a glance: alerts and dashboard, held to promtool's unit tests and shown on a real Prometheus that scrapes the running daemon
//! while faults are made and healed; the status page in a real browser; what Events and `kubectl describe` tell.

#[path = "alerts/clones.rs"]
mod clones;
#[path = "alerts/page.rs"]
mod page;
#[path = "alerts/panels.rs"]
mod panels;
#[path = "alerts/prometheus.rs"]
mod prometheus;

#[path = "cdi/mod.rs"]
mod cdi;
#[path = "harness/mod.rs"]
mod harness;
#[path = "stage/mod.rs"]
mod stage;
#[path = "upstream/mod.rs"]
mod upstream;

use std::{
    collections::BTreeSet,
    process::Command,
    time::{Duration, SystemTime},
};

use golden_catalog::{api::GoldenImage, run::metrics::Metrics};
use harness::{Needs, Port, repository};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use prometheus::{Prometheus, promtool, rendered};
use serde_json::{Value, json};
use stage::{Launch, NAMESPACE, Options, Stage, images};
use upstream::{Authority, nginx::Nginx};

static CLUSTER: harness::Shared =
    harness::Shared::new(|| harness::Options::default().controller_manager().foreign_crds(harness::Flavor::Trimmed));

const MIB: u64 = 1 << 20;

fn rules(groups: &Value) -> Vec<&Value> {
    groups.as_array().into_iter().flatten().flat_map(|group| group["rules"].as_array().into_iter().flatten()).collect()
}

/// The chart renders one text as either kind, promtool is content with it, and its unit tests hold.
#[test]
fn rules_hold_promtools_unit_tests() {
    let manifest = rendered("PrometheusRule");
    let other = rendered("VMRule");
    assert_eq!((manifest["kind"].as_str(), manifest["apiVersion"].as_str()), (Some("PrometheusRule"), Some("monitoring.coreos.com/v1")));
    assert_eq!((other["kind"].as_str(), other["apiVersion"].as_str()), (Some("VMRule"), Some("operator.victoriametrics.com/v1beta1")));
    assert_eq!(manifest["spec"], other["spec"]);

    let mut groups = manifest["spec"]["groups"].clone();
    let dir = harness::scratch_dir("rules");
    std::fs::write(dir.join("whole.yaml"), json!({ "groups": groups }).to_string()).expect("rules");
    promtool(dir.path(), &["check", "rules", "whole.yaml"]).expect("promtool is content");
    for group in groups.as_array_mut().expect("groups") {
        for rule in group["rules"].as_array_mut().expect("rules") {
            rule.as_object_mut().expect("rule").remove("annotations");
        }
    }
    std::fs::write(dir.join("rules.yaml"), json!({ "groups": groups }).to_string()).expect("rules");
    let unit = std::fs::read_to_string(repository().join("e2e/alerts/unit.yaml")).expect("unit tests");
    std::fs::write(dir.join("unit.yaml"), &unit).expect("unit tests");
    promtool(dir.path(), &["test", "rules", "unit.yaml"]).unwrap_or_else(|said| panic!("{said}"));
    for rule in rules(&manifest["spec"]["groups"]) {
        assert!(unit.contains(&format!("alertname: {},", rule["alert"].as_str().expect("alert"))), "{rule} has no unit test");
    }
}

/// Each alert has a runbook, each runbook an alert, and each says what a person needs.
#[test]
fn every_alert_has_its_runbook() {
    let manifest = rendered("PrometheusRule");
    let mut named = BTreeSet::new();
    for rule in rules(&manifest["spec"]["groups"]) {
        let alert = rule["alert"].as_str().expect("alert");
        named.insert(format!("{alert}.md"));
        assert_eq!(rule["annotations"]["runbook_url"], format!("https://docs.test/runbooks/{alert}.md"));
        assert_eq!(rule["labels"]["service"], "golden-images");
        assert!(matches!(rule["labels"]["severity"].as_str(), Some("warning" | "major" | "critical")), "{alert}");
        let page = std::fs::read_to_string(repository().join("docs/runbooks").join(format!("{alert}.md"))).unwrap_or_default();
        for part in [format!("# {alert}\n"), "**What it means.**".into(), "**Look.**".into(), "**Do.**".into(), "**It ends**".into()] {
            assert!(page.contains(&part), "docs/runbooks/{alert}.md lacks {part:?}");
        }
    }
    let files: BTreeSet<_> = std::fs::read_dir(repository().join("docs/runbooks"))
        .expect("runbooks")
        .map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned())
        .collect();
    assert_eq!(files, named);
}

/// Alerts and panels name only metrics that there are.
#[test]
fn alerts_and_panels_name_metrics_that_exist() {
    let metrics = Metrics::new();
    let known: BTreeSet<_> = metrics.descriptions().iter().map(|metric| metric.name.as_str()).collect();
    let manifest = rendered("PrometheusRule");
    let alerts = rules(&manifest["spec"]["groups"]).into_iter().map(|rule| rule["expr"].as_str().expect("expr").to_owned());
    let panels = panels::queries(&panels::dashboard()).into_iter().map(|(_, expression)| expression);
    for expression in alerts.chain(panels) {
        let words = expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).filter(|word| word.starts_with("golden_image_"));
        for word in words {
            let base = word.trim_end_matches("_bucket");
            assert!(known.contains(base), "{word} in {expression}");
        }
    }
}

/// Grafana's own types, from its npm package.
#[test]
fn the_dashboard_agrees_with_grafanas_types() {
    let out = Command::new(repository().join("e2e/dashboard/check.sh"))
        .arg(repository().join("helm/kubernetes-worker-image/dashboards/golden-images.json"))
        .output()
        .expect("run check.sh");
    assert!(out.status.success(), "{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
}

struct Scene<'a> {
    stage: Stage<'a>,
    nginx: Nginx,
    prometheus: Prometheus,
    scraped: Port,
    admission: Port,
    pages: Port,
    dir: harness::ScratchDir,
}

impl Scene<'_> {
    /// The daemon, where Prometheus and the browser find it.
    fn daemon(&self) -> harness::Daemon {
        let arguments = vec![format!("--status-listen={}", self.pages.address()), "--log-format=json".to_owned()];
        self.stage.launch("a", Launch { scraped: Some(self.scraped.address()), arguments, ..Launch::default() })
    }

    /// The admission role, where Prometheus finds it.
    async fn admission(&self) -> harness::Daemon {
        self.stage.admission_scraped("admission", &self.admission.address()).await
    }

    fn disk(&self, name: &str, seed: u64) {
        let raw = images::raw_disk(self.dir.path(), name, 48 * MIB, 6, seed);
        self.nginx.put(name, &std::fs::read(images::qcow2(&raw)).expect("qcow2"));
    }

    async fn image(&self, name: &str, class: &str) {
        let url = format!("http://{}/{name}", self.nginx.http);
        let object = json!({
            "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": name },
            "spec": { "source": { "http": { "url": url } }, "storage": { "targets": [{ "storageClassName": class }] } },
        });
        let object: GoldenImage = serde_json::from_value(object).expect("object");
        self.stage.images().create(&PostParams::default(), &object).await.expect("created");
    }

    async fn retry(&self, name: &str) {
        let retry = json!({ "metadata": { "annotations": { "kubernetes-worker-image.cozystack.io/retry": "now" } } });
        self.stage.images().patch(name, &PatchParams::default(), &Patch::Merge(&retry)).await.expect("annotated");
    }
}

/// The rules' expressions as they are, with waits of a second: only the `for` of each rule is another, and how long what is counted over a
/// while is told.
fn impatient(groups: &Value) -> Value {
    let mut groups = groups.clone();
    for group in groups.as_array_mut().expect("groups") {
        for rule in group["rules"].as_array_mut().expect("rules") {
            let rule = rule.as_object_mut().expect("rule");
            if rule.contains_key("for") {
                rule.insert("for".to_owned(), json!("1s"));
            }
            let expression = rule["expr"].as_str().expect("expr").replace("[1h])) > 0", "[30s])) > 0").replace("[5m])) > 0", "[30s])) > 0");
            rule.insert("expr".to_owned(), json!(expression));
        }
    }
    groups
}

#[tokio::test(flavor = "multi_thread")]
async fn alerts_fire_while_a_fault_lasts_and_panels_show_it() {
    let Some(cluster) = CLUSTER.on(Needs::Scripted).await else { return };
    let (nginx, authority) = stage::upstream();
    let settings = json!({
        "patience": "2s", "notFoundInterval": "2s", "terminalInterval": "10m", "spoolSize": "700Mi",
        "consumersInterval": "1s", "stuckClone": "5s", "retireWait": "4s",
    });
    let cdi = |options| cdi::Options { clone_strategy_override: None, ..options };
    let stage = Stage::set(cluster, Options { settings, classes: NO_DEFAULT, admission: true, cdi, ..Options::default() }).await;
    let (scraped, admission, pages) = (Port::reserve(), Port::reserve(), Port::reserve());
    let groups = impatient(&rendered("PrometheusRule")["spec"]["groups"]);
    let prometheus = Prometheus::start(&[scraped.address(), admission.address()], cluster, &groups);
    let scene = Scene { stage, nginx, prometheus, scraped, admission, pages, dir: harness::scratch_dir_on_disk("alerts") };
    for alert in ["GoldenImageNoLeader", "GoldenImageAdmissionDown"] {
        readable(&scene.prometheus.until_fires(alert, &[]).await);
    }
    let daemon = scene.daemon();
    let admission = scene.admission().await;
    daemon.ready().await;
    admission.ready().await;
    for alert in ["GoldenImageNoLeader", "GoldenImageAdmissionDown"] {
        scene.prometheus.until_ends(alert, &[]).await;
    }

    faults_of_images(&scene).await;
    is_told_in_lines_of_json(&daemon);
    let both = faults_of_the_daemon(&scene, daemon, admission, &authority).await;
    drop(both);
}

const NO_DEFAULT: &str = r#"
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: replicated}
provisioner: linstor.csi.linbit.com
allowVolumeExpansion: true
volumeBindingMode: Immediate
"#;

async fn faults_of_images(scene: &Scene<'_>) {
    let prometheus = &scene.prometheus;
    // A good one, so that panels have what they show on good days.
    scene.disk("good", 1);
    scene.image("good", "replicated").await;
    scene.stage.until("good", "Ready", "True").await;

    scene.disk("classless", 2);
    scene.image("classless", "").await;
    scene.image("missing", "replicated").await;
    scene.nginx.put("page", b"<!DOCTYPE html><html><body>Please sign in</body></html>");
    scene.image("page", "replicated").await;
    scene.disk("slow", 3);
    scene.stage.cdi.script("vm-default-images-slow", cdi::Behaviour::StuckAt(34.0));
    scene.image("slow", "replicated").await;
    // Larger than the spool: mostly holes, and refused before it is read.
    let huge = images::raw_disk(&scene.nginx.files(), "huge-disk", 2048 * MIB, 1, 9);
    std::fs::rename(huge, scene.nginx.files().join("huge")).expect("file");
    scene.image("huge", "replicated").await;
    scene.stage.list(json!([{ "name": "Bad Name", "url": "nonsense" }])).await;

    let about = |image| [("image", image)];
    let fired = [
        prometheus.until_fires("GoldenImageNoDefaultClass", &about("classless")).await,
        prometheus.until_fires("GoldenImageNotImporting", &about("classless")).await,
        prometheus.until_fires("GoldenImageUpstreamFailing", &[("image", "missing"), ("reason", "NotFound")]).await,
        prometheus.until_fires("GoldenImageStalled", &about("missing")).await,
        prometheus.until_fires("GoldenImageVerificationFailed", &[("image", "page"), ("reason", "NotADiskImage")]).await,
        prometheus.until_fires("GoldenImageNoProgress", &[("image", "slow"), ("storage_class", "replicated")]).await,
        prometheus.until_fires("GoldenImageSpoolNearFull", &[]).await,
        prometheus.until_fires("GoldenImageEntryRefused", &[]).await,
    ];
    for alert in fired {
        readable(&alert);
    }
    let of_good: Vec<_> =
        prometheus.firing().await.expect("alerts").into_iter().filter(|alert| alert["labels"]["image"] == "good").collect();
    assert!(of_good.is_empty(), "{of_good:?}");

    clones::go_wrong(scene).await;
    let data = panels::all_have_data(prometheus).await;
    if let Some(path) = std::env::var_os("E2E_PANELS") {
        std::fs::write(path, data.to_string()).expect("write the panels' data");
    }

    page::is_shown_in_a_browser(&scene.stage, &scene.pages.address()).await;
    described(scene).await;
    clones::described(scene).await;

    // Healed, one by one.
    clones::are_healed(scene).await;
    scene.stage.cluster.apply(&format!("{NO_DEFAULT}\n---\n{DEFAULT}")).await;
    scene.disk("missing", 4);
    scene.disk("page", 5);
    scene.retry("page").await;
    scene.stage.cdi.unscript("vm-default-images-slow");
    scene.stage.images().delete("huge", &DeleteParams::default()).await.expect("deleted");
    scene.stage.list(json!([])).await;
    for (alert, image) in [
        ("GoldenImageNoDefaultClass", "classless"),
        ("GoldenImageNotImporting", "classless"),
        ("GoldenImageUpstreamFailing", "missing"),
        ("GoldenImageStalled", "missing"),
        ("GoldenImageVerificationFailed", "page"),
        ("GoldenImageNoProgress", "slow"),
    ] {
        prometheus.until_ends(alert, &about(image)).await;
    }
    prometheus.until_ends("GoldenImageSpoolNearFull", &[]).await;
    prometheus.until_ends("GoldenImageEntryRefused", &[]).await;
    for image in ["classless", "missing", "page", "slow"] {
        scene.stage.until(image, "Ready", "True").await;
    }
    clones::go_on(scene).await;
    every_metric_was_fed(prometheus).await;
    let gone = prometheus.query("{__name__=~\"golden_image_.+\",image=\"huge\"}").await.expect("query");
    assert!(gone.is_empty(), "{gone:?}");
}

/// What need not have moved by then: trouble that is not made, or later, and depths that a scrape may miss.
const AT_REST: &[&str] = &[
    "golden_image_webhooks_missing",
    "golden_image_events_lost_total",
    "golden_image_watch_failures_total",
    "golden_image_watch_unreadable_objects",
    "golden_image_queue_depth",
    "golden_image_objects_in_backoff",
];

/// As the chart has the daemon log, and as the runbooks search it: one object a line, and the image by name.
fn is_told_in_lines_of_json(daemon: &harness::Daemon) {
    let log = daemon.log();
    // The last line may be half written.
    let log = log.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect();
    for line in &lines {
        assert!(["timestamp", "level", "target", "message"].iter().all(|field| line[*field].is_string()), "{line}");
    }
    for image in ["good", "missing"] {
        assert!(lines.iter().any(|line| line["image"] == image), "no line names {image}");
    }
}

/// Each metric of the documentation was served by a running daemon, and told something.
async fn every_metric_was_fed(prometheus: &Prometheus) {
    for metric in Metrics::new().descriptions() {
        let name = if metric.kind == "histogram" { format!("{}_count", metric.name) } else { metric.name.clone() };
        let found = prometheus.query(&format!("max_over_time({name}[30m])")).await.expect("query");
        let told = found.iter().any(|series| series["value"][1].as_str().is_some_and(|value| value != "0"));
        let is_at_rest = AT_REST.contains(&metric.name.as_str()) && !found.is_empty();
        assert!(told || is_at_rest, "{name} is documented, and nothing feeds it: {found:?}");
    }
}

/// `kubectl describe` tells a person the story: what happened to an image, in order, and what to do.
async fn described(scene: &Scene<'_>) {
    let cluster = scene.stage.cluster;
    harness::eventually("kubectl describe tells a golden's story too", async || {
        let text = cluster.kubectl(["describe", "datavolume", "vm-default-images-good", "-n", stage::CATALOG]).await.stdout;
        let (_, events) = text.split_once("\nEvents:").ok_or("no Events")?;
        let told = ["The golden of image good can be cloned.", "golden-catalog"];
        told.iter().all(|part| events.contains(part)).then_some(()).ok_or_else(|| events.to_owned())
    })
    .await;
    for (name, told) in [
        ("good", vec!["Fetching", "Importing", "Ready", "The golden image can be cloned."]),
        ("page", vec!["Warning", "NotADiskImage", "Point the entry at a qcow2 or raw disk image."]),
        ("classless", vec!["Warning", "NoDefaultClass", "Mark a StorageClass as default"]),
    ] {
        harness::eventually(&format!("kubectl describe gi {name} tells the story"), async || {
            let text = cluster.kubectl(["describe", "goldenimage", name]).await.stdout;
            let (_, events) = text.split_once("\nEvents:").ok_or("no Events")?;
            match told.iter().find(|part| !events.contains(**part)) {
                None => Ok(()),
                Some(part) => Err(format!("{part} is not in {events}")),
            }
        })
        .await;
    }
}

const DEFAULT: &str = r#"
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: default, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}
provisioner: linstor.csi.linbit.com
allowVolumeExpansion: true
"#;

async fn faults_of_the_daemon(
    scene: &Scene<'_>,
    daemon: harness::Daemon,
    admission: harness::Daemon,
    authority: &Authority,
) -> (harness::Daemon, harness::Daemon) {
    let prometheus = &scene.prometheus;
    admission.kill();
    drop(admission);
    readable(&prometheus.until_fires("GoldenImageAdmissionDown", &[]).await);
    readable(&clones::until_nobody_can_be_asked(scene).await);
    let admission = scene.admission().await;
    admission.ready().await;
    prometheus.until_ends("GoldenImageAdmissionDown", &[]).await;

    // Taken away as docs/operations.md has it: everybody is ready, and nobody is asked.
    let ours = ["delete", "validatingwebhookconfiguration,mutatingwebhookconfiguration", "-l", "app.kubernetes.io/name=golden-catalog"];
    scene.stage.cluster.kubectl(ours).await.ok();
    readable(&prometheus.until_fires("GoldenImageUnguarded", &[]).await);
    harness::eventually("the log says it", async || {
        let log = daemon.log();
        let told = log.lines().any(|line| line.contains("stands unguarded") && line.contains("disks, clones, goldens"));
        if told { Ok(()) } else { Err(log) }
    })
    .await;
    scene.stage.list(json!([])).await;
    prometheus.until_ends("GoldenImageUnguarded", &[]).await;

    scene.stage.kill(daemon).await;
    readable(&prometheus.until_fires("GoldenImageNoLeader", &[]).await);

    // Somebody provides a certificate that ends in five days.
    let host = format!("golden-catalog-spool.{NAMESPACE}.svc");
    let ends = SystemTime::now() + Duration::from_secs(5 * 24 * 3600);
    let pair = authority.issue_with(&[&host], |parameters| parameters.not_after = ends.into());
    let secrets: Api<Secret> = Api::namespaced(scene.stage.cluster.admin(), NAMESPACE);
    secrets.delete("golden-catalog-spool-tls", &DeleteParams::default()).await.expect("deleted");
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "golden-catalog-spool-tls" }, "type": "kubernetes.io/tls",
        "stringData": { "tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": authority.pem() },
    });
    let secret: Secret = serde_json::from_value(secret).expect("secret");
    secrets.create(&PostParams::default(), &secret).await.expect("created");
    let daemon = scene.daemon();
    daemon.ready().await;
    prometheus.until_ends("GoldenImageNoLeader", &[]).await;
    readable(&prometheus.until_fires("GoldenImageCertificateExpiring", &[("certificate", "spool")]).await);

    // As the runbook says: deleted, a new one is there within a minute.
    secrets.delete("golden-catalog-spool-tls", &DeleteParams::default()).await.expect("deleted");
    harness::until(secrets, "golden-catalog-spool-tls", "a new one is issued", |_: &Secret| true).await;
    prometheus.until_ends("GoldenImageCertificateExpiring", &[]).await;
    prometheus.until_ends("GoldenImageAdmissionUnreachable", &[]).await;
    (daemon, admission)
}

/// What an alert says to a person: whole sentences, every template filled in.
fn readable(alert: &Value) {
    for key in ["summary", "description", "runbook_url"] {
        let text = alert["annotations"][key].as_str().unwrap_or_default();
        assert!(text.len() > 20 && !text.contains("{{") && !text.contains("<error") && !text.contains("  "), "{key}: {alert}");
    }
    let image = alert["labels"]["image"].as_str().unwrap_or_default();
    assert!(alert["annotations"]["summary"].as_str().unwrap_or_default().contains(image), "{alert}");
}
