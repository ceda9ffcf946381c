//! What a test keeps secret shows nowhere: not in a log line or a metric, not in what others than the daemon can read.
//!
//! Every password, token and signature of an upstream in a test holds [`MARK`]. Each [`super::Daemon`] is looked at when it is
//! dropped, each answer of [`super::cli`] when it came, and the whole cluster when a stage (`e2e/stage`) goes: so the whole
//! suite shows that no secret gets out, whatever else a test is about.

use super::Cluster;
use base64::{Engine as _, engine::general_purpose::STANDARD, engine::general_purpose::STANDARD_NO_PAD};
use kube::{Client, Config};
use serde_json::Value;
use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::LazyLock,
    time::Duration,
};

/// A part of every secret.
pub const MARK: &str = "hunter2";

/// The mark in plain, and in base64 (of either alphabet) wherever it stands in what is encoded: `user:hunter2`, a token's claim.
static FORMS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let encoded = (0..3_usize).map(|before| {
        let text = STANDARD_NO_PAD.encode([&[0; 3][..before], MARK.as_bytes()].concat());
        // Less the characters that depend on what stands before or behind it.
        let (first, end) = ((before * 8).div_ceil(6), (before + MARK.len()) * 8 / 6);
        text[first..end].to_owned()
    });
    std::iter::once(MARK.to_owned()).chain(encoded).collect()
});

/// The first secret in a text, with what stands around it.
pub fn leak(text: &str) -> Option<String> {
    let at = FORMS.iter().find_map(|form| text.find(form.as_str()))?;
    let before = text[..at].chars().rev().take(120).collect::<Vec<_>>();
    Some(before.into_iter().rev().chain(text[at..].chars().take(120)).collect())
}

/// That a text holds no secret.
#[track_caller]
pub fn assert_no_leak(place: &str, text: &str) {
    if let Some(found) = leak(text) {
        panic!("{place} shows an upstream's secret: {found}");
    }
}

/// What can be read of an object, wherever it is: each kind's path.
const READ: [&str; 7] = [
    "/apis/cozystack.io/v1alpha1/goldenimages",
    "/apis/cdi.kubevirt.io/v1beta1/datavolumes",
    "/api/v1/persistentvolumeclaims",
    "/api/v1/events",
    "/api/v1/secrets",
    "/api/v1/configmaps",
    "/apis/coordination.k8s.io/v1/leases",
];

impl Cluster {
    /// Every object that could show a secret, with its text: all but the Secrets and ConfigMaps of the daemons' `own`
    /// namespaces, and what a user writes into a GoldenImage.
    pub async fn shown(&self, own: &[String]) -> Vec<(String, String)> {
        shown(Client::try_from(self.admin_config().clone()).expect("make a client"), own).await
    }

    /// That no object shows a secret. Blocks: for the end of a test, where nothing can be awaited.
    pub fn assert_no_leak(&self, own: &[String]) {
        let mut config: Config = self.admin_config().clone();
        config.read_timeout = Some(Duration::from_secs(60));
        let read = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async { shown(Client::try_from(config).expect("make a client"), own).await })
        };
        let objects = std::thread::scope(|scope| scope.spawn(read).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        for (place, text) in objects {
            assert_no_leak(&place, &text);
        }
    }
}

async fn shown(client: Client, own: &[String]) -> Vec<(String, String)> {
    let mut places = Vec::new();
    for path in READ {
        let request = http::Request::get(path).body(Vec::new()).expect("a request");
        let list: Value = match client.request(request).await {
            Ok(list) => list,
            // A cluster without this kind.
            Err(kube::Error::Api(status)) if status.code == 404 => continue,
            Err(error) => panic!("{path}: {error}"),
        };
        let kind = path.rsplit('/').next().unwrap_or_default();
        for mut object in list["items"].as_array().cloned().unwrap_or_default() {
            let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
            let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
            if matches!(kind, "secrets" | "configmaps") && own.contains(&namespace) {
                continue;
            }
            if kind == "goldenimages" {
                object["spec"].take();
                if let Some(annotations) = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
                    annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
                }
            }
            let mut text = object.to_string();
            // A Secret's values are base64.
            for value in object.get("data").and_then(Value::as_object).into_iter().flat_map(|data| data.values()) {
                let decoded = value.as_str().and_then(|value| STANDARD.decode(value).ok()).unwrap_or_default();
                text.push('\n');
                text.push_str(&String::from_utf8_lossy(&decoded));
            }
            places.push((format!("{kind} {namespace}/{name}"), text));
        }
    }
    places
}

/// What a daemon's metrics say; nothing where none answers. Blocks.
pub(super) fn metrics(address: &str) -> String {
    const PATIENCE: Duration = Duration::from_secs(1);
    let ask = || -> std::io::Result<Vec<u8>> {
        let address: SocketAddr = address.parse().map_err(|_| std::io::ErrorKind::InvalidInput)?;
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: daemon\r\nConnection: close\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(answer)
    };
    String::from_utf8_lossy(&ask().unwrap_or_default()).into_owned()
}
