//! An admission Pod that goes, as one that is replaced does: whoever still asks it gets its verdict.

use serde_json::json;

use crate::{
    harness::{self, Daemon, Port, eventually, scratch_dir},
    hostile::{Connection, bundle, is_let_in, review},
    objects::{Form, RIGHT, object},
    stand::{NAMESPACE, stand},
};

#[tokio::test(flavor = "multi_thread")]
async fn who_is_asked_to_end_says_so_and_goes_on_answering_for_a_while() {
    let Some((cluster, _)) = stand().await else { return };
    let (dir, webhook, health, metrics) = (scratch_dir("leaving"), Port::reserve(), Port::reserve(), Port::reserve());
    let settings = dir.join("settings.yaml");
    std::fs::write(&settings, json!({ "admissionLinger": "15s" }).to_string()).expect("settings");
    let (address, at) = (webhook.address(), health.address());
    let daemon = Daemon::builder("leaving")
        .args([
            "run".to_owned(),
            "--role=admission".to_owned(),
            format!("--config={}", settings.display()),
            format!("--webhook-listen={address}"),
            "--webhook-host=127.0.0.1".to_owned(),
            format!("--health-listen={at}"),
            format!("--metrics-listen={}", metrics.address()),
            "--log-format=text".to_owned(),
        ])
        .kubeconfig(&cluster.kubeconfig_as_service_account(NAMESPACE, harness::chart::ADMISSION).await)
        .health(at)
        .keeping([webhook, health, metrics])
        .start();
    daemon.ready().await;
    let bundle = bundle(cluster).await;
    let question = review(&object(Form::Volume, "asked", RIGHT));
    let mut known = Connection::open(&address, &bundle).expect("a connection");
    daemon.ask_to_end();
    eventually("it is not ready any more", || async {
        match daemon.probe_text("readyz").await {
            Ok((503, text)) if text.contains("it was asked to end") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    assert_eq!(daemon.probe("livez").await, Ok(200));
    // At once, as there are seconds only in which it answers.
    let again = question.clone();
    let anew = tokio::task::spawn_blocking(move || Connection::open(&address, &bundle)?.verdict(&question));
    let known = tokio::task::spawn_blocking(move || known.verdict(&again));
    let answers = [anew.await.expect("no panic"), known.await.expect("no panic")];
    assert!(answers.iter().all(is_let_in), "{answers:?}\n{}", daemon.log());
    let ended = daemon.wait(harness::PATIENCE).await.expect("it ends by itself");
    assert!(ended.success(), "{ended}");
}
