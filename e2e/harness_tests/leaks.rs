//! Secrets that get out are found, in whatever form and wherever they show.

use crate::{
    CLUSTER,
    harness::{Daemon, MARK, Needs, leak},
};
use base64::{Engine as _, engine::general_purpose::STANDARD, engine::general_purpose::URL_SAFE_NO_PAD};

#[test]
fn a_secret_is_found_in_every_form() {
    for before in ["", "u", "u:", "u:v"] {
        for after in ["", "-", "-x", "-xy"] {
            let plain = format!("{before}{MARK}{after}");
            for text in [plain.clone(), STANDARD.encode(&plain), URL_SAFE_NO_PAD.encode(&plain)] {
                assert!(leak(&format!("é {text} é")).is_some(), "{text}");
            }
        }
    }
    assert_eq!(leak(&format!("a hunter, 2 {}", STANDARD.encode("hunter-2"))), None);
}

#[tokio::test]
async fn what_others_can_read_in_the_cluster_is_looked_through() {
    let Some(cluster) = CLUSTER.on(Needs::Scripted).await else { return };
    let (own, other) = (cluster.namespace("own").await, cluster.namespace("other").await);
    for namespace in [&own, &other] {
        let objects = format!(
            r#"
{{apiVersion: v1, kind: ConfigMap, metadata: {{name: map}}, data: {{a: "u:{MARK}"}}}}
---
{{apiVersion: v1, kind: Secret, metadata: {{name: secret}}, data: {{a: "{}"}}}}
---
{{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {{name: claim, annotations: {{a: "?sig={MARK}"}}}}, spec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 1Gi}}}}}}}}
---
{{apiVersion: v1, kind: Event, metadata: {{name: event}}, involvedObject: {{namespace: "{}"}}, message: "{MARK}", reason: Told, type: Normal}}
"#,
            STANDARD.encode(format!("{{\"auth\":\"{}\"}}", STANDARD.encode(format!("u:{MARK}")))),
            &**namespace
        );
        cluster.apply_in(namespace, &objects).await;
    }
    let shown = cluster.shown(&[own.to_string()]).await;
    let leaks = |namespace: &str| -> Vec<String> {
        let of_namespace = |place: &str| place.split(' ').nth(1).is_some_and(|name| name.starts_with(&format!("{namespace}/")));
        let mut kinds: Vec<_> = shown
            .iter()
            .filter(|(place, text)| of_namespace(place) && leak(text).is_some())
            .filter_map(|(place, _)| place.split(' ').next().map(str::to_owned))
            .collect();
        kinds.sort();
        kinds
    };
    assert_eq!(leaks(&other), ["configmaps", "events", "persistentvolumeclaims", "secrets"]);
    // The daemon's own namespace may hold the list and its Secrets, and nothing else.
    assert_eq!(leaks(&own), ["events", "persistentvolumeclaims"]);
    let own = own.to_string();
    let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| cluster.assert_no_leak(&[own])));
    assert!(found.is_err(), "the end of a stage fails");
}

#[tokio::test]
#[should_panic(expected = "shows an upstream's secret")]
async fn a_daemon_s_log_is_looked_through() {
    let daemon = Daemon::builder("careless").args(["run", "--no-such-flag-as-hunter2"]).start();
    daemon.wait(crate::harness::PATIENCE).await.expect("it ends by itself");
}
