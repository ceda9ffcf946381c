//! Events as the API server takes them and as `kubectl describe` shows them.

use super::{
    CLUSTER,
    harness::{Needs, eventually},
};
use golden_catalog::run::{
    events::{Note, Severity, recorder},
    metrics::{Format, Metrics},
};
use k8s_openapi::api::{core::v1::ConfigMap, core::v1::Namespace, events::v1::Event};
use kube::{
    Api, Resource,
    api::{DeleteParams, ListParams, PostParams},
};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

#[tokio::test]
async fn events_are_taken_counted_made_anew_and_shown() {
    let Some(cluster) = CLUSTER.on(Needs::Any).await else { return };
    let namespace = cluster.namespace("events").await;
    let maps: Api<ConfigMap> = Api::namespaced(cluster.admin(), &namespace);
    let map: ConfigMap = serde_json::from_value(serde_json::json!({"metadata": {"name": "subject"}})).unwrap();
    let map = maps.create(&PostParams::default(), &map).await.unwrap();
    let metrics = Arc::new(Metrics::new());
    let (recorder, publisher) = recorder(cluster.admin(), "cozystack.io/golden-catalog", "pod-1_abcd", metrics.clone());
    let stop = CancellationToken::new();
    let publishing = tokio::spawn(publisher.run(stop.clone()));
    let note = |text: &str| Note {
        regarding: map.object_ref(&()),
        severity: Severity::Warning,
        reason: "NotFound".into(),
        action: "Fetch",
        text: text.to_owned(),
    };

    let long = "Upstream has no such file: ".to_owned() + &"ä".repeat(2000);
    recorder.tell(note(&long));
    recorder.tell(note("another text"));
    recorder.tell(note("another text"));
    let events: Api<Event> = Api::namespaced(cluster.admin(), &namespace);
    let listed = async |wanted: fn(&[Event]) -> bool| {
        eventually("the events", || async {
            let list = events.list(&ListParams::default()).await.unwrap().items;
            if wanted(&list) { Ok(list) } else { Err(format!("{list:#?}")) }
        })
        .await
    };
    let count = |event: &Event| event.series.as_ref().map(|series| series.count);
    let list = listed(|list| list.len() == 2 && list.iter().any(|event| event.series.is_some())).await;
    let again = list.iter().find(|event| event.note.as_deref() == Some("another text")).unwrap();
    assert_eq!((count(again), again.reporting_controller.as_deref()), (Some(2), Some("cozystack.io/golden-catalog")));

    // Deleted by hand, the next one is made anew.
    events.delete(again.metadata.name.as_deref().unwrap(), &DeleteParams::default()).await.unwrap();
    recorder.tell(note("another text"));
    listed(|list| list.iter().any(|event| event.note.as_deref() == Some("another text") && event.series.is_none())).await;

    let described = cluster.kubectl(["describe", "configmap", "subject", "-n", &namespace]).await.ok();
    assert!(described.contains("Warning") && described.contains("NotFound") && described.contains("another text"), "{described}");

    // About an object without a namespace.
    let object = Api::<Namespace>::all(cluster.admin()).get(&namespace).await.unwrap();
    recorder.tell(Note { regarding: object.object_ref(&()), ..note("about a namespace") });
    eventually("kubectl describe shows it", || async {
        let text = cluster.kubectl(["describe", "namespace", &namespace]).await.ok();
        // kubectl lists no events for namespaces in older versions; the Event itself is what counts.
        let events: Api<Event> = Api::namespaced(cluster.admin(), "default");
        let about = events.list(&ListParams::default()).await.unwrap().items;
        let found = about.iter().any(|event| event.regarding.as_ref().is_some_and(|to| to.name.as_deref() == Some(&*namespace)));
        if found { Ok(()) } else { Err(text) }
    })
    .await;

    stop.cancel();
    publishing.await.unwrap();
    let text = metrics.scrape(Format::Text).unwrap();
    let mut lost = text.lines().filter(|line| line.starts_with("golden_image_events_lost_total{"));
    assert!(lost.all(|line| line.ends_with("} 0")), "{text}");
}

#[tokio::test]
async fn events_that_may_not_be_written_cost_nothing_but_a_count() {
    let Some(cluster) = CLUSTER.on(Needs::Any).await else { return };
    let namespace = cluster.namespace("events").await;
    cluster.kubectl(["create", "serviceaccount", "mute", "-n", &namespace]).await.ok();
    let client = cluster.client_as_service_account(&namespace, "mute").await;
    let metrics = Arc::new(Metrics::new());
    let (recorder, publisher) = recorder(client, "cozystack.io/golden-catalog", "pod-1", metrics.clone());
    let regarding = k8s_openapi::api::core::v1::ObjectReference { name: Some("x".into()), ..Default::default() };
    recorder.tell(Note { regarding, severity: Severity::Normal, reason: "Ready".into(), action: "Import", text: "done".into() });
    let stop = CancellationToken::new();
    let publishing = tokio::spawn(publisher.run(stop.clone()));
    eventually("it is counted", || async {
        let text = metrics.scrape(Format::Text).unwrap();
        if text.contains("golden_image_events_lost_total{cause=\"refused\"} 1\n") { Ok(()) } else { Err(text) }
    })
    .await;
    stop.cancel();
    publishing.await.unwrap();
}
