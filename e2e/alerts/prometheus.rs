//! A real Prometheus (Debian's) that scrapes daemons and judges the chart's rules.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use serde_json::{Value, json};

use crate::{
    harness::{self, Cluster, ScratchDir},
    upstream::process::{Process, free_address},
};

/// A running Prometheus.
pub struct Prometheus {
    address: SocketAddr,
    client: reqwest::Client,
    _process: Process,
    _dir: ScratchDir,
}

impl Prometheus {
    /// Scrapes `targets` and evaluates `groups` as often as it can; of the API server it takes what it counts of webhooks.
    pub fn start(targets: &[String], api_server: &Cluster, groups: &Value) -> Self {
        let dir = harness::scratch_dir("prometheus");
        let address = free_address();
        let rules = dir.join("rules.yaml");
        std::fs::write(&rules, json!({ "groups": groups }).to_string()).expect("rules");
        let config = json!({
            "global": { "scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms" },
            "rule_files": [rules],
            "scrape_configs": [
                { "job_name": "golden-catalog", "static_configs": [{ "targets": targets }] },
                of_api_server(api_server, dir.path()),
            ],
        });
        let file = dir.join("prometheus.yaml");
        std::fs::write(&file, config.to_string()).expect("configuration");
        let mut command = Command::new("prometheus");
        command.args([
            format!("--config.file={}", file.display()),
            format!("--storage.tsdb.path={}", dir.join("data").display()),
            format!("--web.listen-address={address}"),
            // The rules are in test files; a lookback of five minutes would keep series that a dead process left.
            "--query.lookback-delta=3s".to_owned(),
        ]);
        let process = Process::start(command, address, &dir.join("log"));
        let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(60)).build().expect("client");
        Self { address, client, _process: process, _dir: dir }
    }

    async fn ask(&self, path: &str, query: &[(&str, String)]) -> Result<Value, String> {
        let mut url = reqwest::Url::parse(&format!("http://{}/api/v1/{path}", self.address)).expect("URL");
        for (key, value) in query {
            url.query_pairs_mut().append_pair(key, value);
        }
        let answer = self.client.get(url).send().await.map_err(|error| error.to_string())?;
        let answer: Value = answer.json().await.map_err(|error| error.to_string())?;
        match answer["status"].as_str() {
            Some("success") => Ok(answer["data"].clone()),
            _ => Err(answer["error"].to_string()),
        }
    }

    /// The series that an expression gives now.
    pub async fn query(&self, expression: &str) -> Result<Vec<Value>, String> {
        let data = self.ask("query", &[("query", expression.to_owned())]).await?;
        Ok(data["result"].as_array().cloned().unwrap_or_default())
    }

    /// The series that an expression gave during the last `seconds`.
    pub async fn range(&self, expression: &str, seconds: u64) -> Result<Vec<Value>, String> {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock").as_secs();
        let query =
            [("query", expression.to_owned()), ("start", (now - seconds).to_string()), ("end", now.to_string()), ("step", "1".to_owned())];
        let data = self.ask("query_range", &query).await?;
        Ok(data["result"].as_array().cloned().unwrap_or_default())
    }

    /// The alerts that fire now.
    pub async fn firing(&self) -> Result<Vec<Value>, String> {
        let data = self.ask("alerts", &[]).await?;
        let alerts = data["alerts"].as_array().cloned().unwrap_or_default();
        Ok(alerts.into_iter().filter(|alert| alert["state"] == "firing").collect())
    }

    /// Waits until an alert fires about what `labels` say, and gives it.
    pub async fn until_fires(&self, name: &str, labels: &[(&str, &str)]) -> Value {
        let found = harness::eventually(&format!("{name} fires for {labels:?}"), async || {
            let firing = self.firing().await?;
            let alert = firing.iter().find(|alert| is(alert, name, labels)).cloned();
            alert.ok_or_else(|| format!("{:?}", names(&firing)))
        })
        .await;
        eprintln!("fires: {name} {labels:?}");
        found
    }

    /// Waits until an alert about what `labels` say fires no more.
    pub async fn until_ends(&self, name: &str, labels: &[(&str, &str)]) {
        harness::eventually(&format!("{name} ends for {labels:?}"), async || {
            let firing = self.firing().await?;
            match firing.iter().find(|alert| is(alert, name, labels)) {
                Some(alert) => Err(alert.to_string()),
                None => Ok(()),
            }
        })
        .await;
        eprintln!("ends: {name} {labels:?}");
    }
}

/// How the API server is scraped: seldom, since it has much to say, of which one metric is kept.
fn of_api_server(cluster: &Cluster, dir: &Path) -> Value {
    let authority = dir.join("api-server.crt");
    std::fs::write(&authority, cluster.control_plane().ca_pem()).expect("write the CA");
    let text = std::fs::read_to_string(cluster.admin_kubeconfig()).expect("the kubeconfig");
    let kubeconfig: Value = serde_saphyr::from_str(&text).expect("a kubeconfig");
    let url = cluster.control_plane().url();
    json!({
        "job_name": "apiserver", "scheme": "https", "scrape_interval": "2s", "scrape_timeout": "2s",
        "authorization": { "credentials": kubeconfig["users"][0]["user"]["token"] },
        "tls_config": { "ca_file": authority },
        "static_configs": [{ "targets": [url.trim_start_matches("https://")] }],
        "metric_relabel_configs": [{ "source_labels": ["__name__"], "regex": "apiserver_admission_webhook_rejection_count", "action": "keep" }],
    })
}

fn is(alert: &Value, name: &str, labels: &[(&str, &str)]) -> bool {
    alert["labels"]["alertname"] == name && labels.iter().all(|(key, value)| alert["labels"][key] == *value)
}

fn names(alerts: &[Value]) -> Vec<String> {
    alerts.iter().map(|alert| format!("{} {}", alert["labels"]["alertname"], alert["labels"]["image"])).collect()
}

/// `promtool` with these arguments, in a folder; what it said when it was not content.
pub fn promtool(dir: &Path, arguments: &[&str]) -> Result<(), String> {
    let out = Command::new("promtool").current_dir(dir).args(arguments).output().expect("run promtool (make setup)");
    let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    if out.status.success() { Ok(()) } else { Err(said) }
}

/// The rule groups as the chart renders them for a kind, and what else it says about them.
pub fn rendered(kind: &str) -> Value {
    let dir = harness::scratch_dir("helm");
    let chart: PathBuf = harness::chart::folder();
    let out = Command::new(harness::helm())
        .args(["template", "golden-catalog"])
        .arg(chart)
        .args(["--namespace", "cozy-kubernetes-worker-image", "--show-only", "templates/alerts.yaml", "--set"])
        .arg(format!("monitoring.alerts={kind},monitoring.runbookURL=https://docs.test/runbooks"))
        .env("KUBECONFIG", dir.join("none"))
        .env("HELM_CACHE_HOME", dir.path())
        .output()
        .expect("run helm");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_saphyr::from_str(&String::from_utf8(out.stdout).expect("UTF-8")).expect("a manifest")
}
