use super::*;
use crate::run::metrics::Format;
use std::sync::Mutex;

fn note(name: &str, text: &str) -> Note {
    let regarding =
        ObjectReference { kind: Some("GoldenImage".into()), name: Some(name.into()), uid: Some("u".into()), ..ObjectReference::default() };
    Note { regarding, severity: Severity::Warning, reason: "NotFound".into(), action: "Fetch", text: text.into() }
}

/// What an API server was asked: method, path, body.
type Asked = Arc<Mutex<Vec<(String, String, serde_json::Value)>>>;

/// An API server that answers with the codes given, in turn, and then 201 for ever.
async fn server(codes: &'static [u16]) -> (Asked, Client) {
    let asked = Asked::default();
    let state = asked.clone();
    let app = axum::Router::new().fallback(move |request: axum::extract::Request| {
        let asked = state.clone();
        async move {
            let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
            let body = axum::body::to_bytes(request.into_body(), 1 << 20).await.unwrap();
            let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
            let mut asked = asked.lock().unwrap();
            asked.push((method, path, body.clone()));
            let code = codes.get(asked.len() - 1).copied().unwrap_or(201);
            let status = serde_json::json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no", "code": code});
            let answer = if code < 300 { body } else { status };
            (axum::http::StatusCode::from_u16(code).unwrap(), axum::Json(answer))
        }
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    (asked, crate::run::client::reader(&kube::Config::new(url)).unwrap())
}

/// Tells these notes, stops the publisher once the server was asked that often, and gives what it was asked and the metrics.
/// Not sooner: what still waits when it is stopped must go out within [`LAST_WORDS`], and a slow machine may need longer.
async fn told(codes: &'static [u16], notes: Vec<Note>, requests: usize) -> (Vec<(String, String, serde_json::Value)>, String) {
    let (asked, client) = server(codes).await;
    let metrics = Arc::new(Metrics::new());
    let (recorder, publisher) = recorder(client, "cozystack.io/golden-catalog", "pod-1", metrics.clone());
    for note in notes {
        recorder.tell(note);
    }
    let stop = CancellationToken::new();
    let enough = async {
        while asked.lock().unwrap().len() < requests {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        stop.cancel();
    };
    tokio::time::timeout(Duration::from_secs(120), async { tokio::join!(publisher.run(stop.clone()), enough) }).await.unwrap();
    let asked = asked.lock().unwrap().clone();
    (asked, metrics.scrape(Format::Text).unwrap())
}

#[tokio::test]
async fn a_repeat_is_counted_and_another_text_is_told_anew() {
    let (asked, _) = told(&[], vec![note("i", "one"), note("i", "one"), note("i", "two")], 3).await;
    let methods: Vec<&str> = asked.iter().map(|(method, ..)| method.as_str()).collect();
    assert_eq!(methods, ["POST", "PATCH", "POST"]);
    let (_, path, event) = &asked[0];
    assert_eq!(path, "/apis/events.k8s.io/v1/namespaces/default/events", "where kubectl describe looks for cluster-scoped objects");
    let name = event["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("i.") && name.len() == "i.".len() + 16, "{name}");
    assert_eq!(
        (event["type"].as_str(), event["reason"].as_str(), event["note"].as_str()),
        (Some("Warning"), Some("NotFound"), Some("one"))
    );
    assert!(asked[1].1.ends_with(name));
    assert_eq!(asked[1].2["series"]["count"], 2);
    assert_eq!(asked[2].2["note"], "two", "not the first text again");
}

#[tokio::test]
async fn a_deleted_event_is_made_anew_and_a_taken_name_is_changed() {
    let notes = vec![note("i", "one"), note("i", "one"), note("i", "one")];
    let (asked, metrics) = told(&[201, 404, 409, 201, 200], notes, 5).await;
    let methods: Vec<&str> = asked.iter().map(|(method, ..)| method.as_str()).collect();
    // The third note is the second of the new series.
    assert_eq!(methods, ["POST", "PATCH", "POST", "POST", "PATCH"]);
    assert_ne!(asked[2].2["metadata"]["name"], asked[3].2["metadata"]["name"]);
    assert_eq!(asked[4].2["series"]["count"], 2);
    let lost: Vec<&str> = metrics.lines().filter(|line| line.starts_with("golden_image_events_lost_total{")).collect();
    assert!(!lost.is_empty() && lost.iter().all(|line| line.ends_with(" 0")), "{lost:?}");
}

#[tokio::test]
async fn what_is_refused_is_counted_and_the_next_one_still_goes_out() {
    let (asked, metrics) = told(&[403], vec![note("i", "one"), note("i", "two")], 2).await;
    assert_eq!(asked.len(), 2);
    assert!(metrics.contains("golden_image_events_lost_total{cause=\"refused\"} 1\n"), "{metrics}");
}

#[tokio::test]
async fn a_full_queue_drops_and_counts_without_waiting() {
    let notes = (0..QUEUE + 10).map(|n| note(&n.to_string(), "one")).collect();
    let (asked, metrics) = told(&[], notes, QUEUE).await;
    assert_eq!(asked.len(), QUEUE);
    assert!(metrics.contains("golden_image_events_lost_total{cause=\"queue_full\"} 10\n"), "{metrics}");
}

#[test]
fn long_texts_are_cut_between_characters() {
    assert_eq!(cut("short", 10), "short");
    assert_eq!(cut(&"x".repeat(1024), 1024).len(), 1024);
    for text in ["ä".repeat(1000), "x".to_owned() + &"ä".repeat(1000), "🙂".repeat(600), "x".repeat(5000)] {
        let cut = cut(&text, NOTE_LIMIT);
        assert!(cut.len() <= NOTE_LIMIT && cut.len() > NOTE_LIMIT - 8, "{}", cut.len());
        assert!(cut.ends_with('…') && text.starts_with(cut.trim_end_matches('…')));
    }
}

#[test]
fn names_fit_the_api_whatever_the_object_is_called() {
    for object in ["x".repeat(253), "a.b-".repeat(63), String::new()] {
        let name = name(&ObjectReference { name: Some(object), ..ObjectReference::default() }).unwrap();
        assert!(name.len() <= 253 && !name.contains("-."), "{name}");
    }
}
