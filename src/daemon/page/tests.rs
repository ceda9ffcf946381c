use axum::{
    body::{Body, to_bytes},
    http::{Method, Request},
};
use serde_json::json;
use tower::ServiceExt as _;

use super::{ImageView, Page, State, User, html, router};
use crate::{api::GoldenImage, rules::clone::Unknown};

fn image(name: &str, status: serde_json::Value) -> GoldenImage {
    serde_json::from_value(json!({
        "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": name },
        "spec": { "source": { "http": { "url": "https://cloud.example.org/a.img" } }, "description": "for VMs" }, "status": status,
    }))
    .expect("object")
}

fn condition(kind: &str, status: &str, reason: &str, message: &str) -> serde_json::Value {
    json!({ "type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": "2026-11-29T10:00:00Z" })
}

fn page(images: Vec<ImageView>) -> Page {
    Page { leads: true, images, ..Page::default() }
}

#[test]
fn each_state_is_told() {
    let of = |conditions: Vec<serde_json::Value>| ImageView::new(&image("a", json!({ "conditions": conditions })), Ok(vec![]));
    for (conditions, state) in [
        (vec![condition("Ready", "True", "Ready", "")], State::Ready),
        (vec![condition("Ready", "False", "Importing", "10 %")], State::Working),
        (vec![condition("Ready", "False", "NotFound", "gone"), condition("Stalled", "True", "NotFound", "gone")], State::Stalled),
        (vec![condition("Ready", "False", "Suspended", "")], State::Resting),
        (
            vec![condition("Ready", "False", "Retiring", "No new pools."), condition("Retiring", "True", "Retiring", "No new pools.")],
            State::Resting,
        ),
        (vec![], State::Working),
    ] {
        let view = of(conditions);
        assert_eq!(view.state, state, "{view:?}");
        assert!(view.remarks.is_empty(), "what Ready says is said once: {view:?}");
    }
    let remark = of(vec![condition("Ready", "True", "Ready", ""), condition("UpstreamChanged", "True", "UpstreamChanged", "other bytes")]);
    let text = html::render(&page(vec![remark])).expect("page");
    assert!(text.contains("<b>UpstreamChanged</b>: other bytes"), "{text}");
}

#[test]
fn what_is_known_is_shown_and_what_is_not_is_said() {
    let status = json!({
        "operatingSystem": { "family": "ubuntu", "name": "Ubuntu", "version": "24.04" },
        "targets": [{ "requestedClass": "", "storageClassName": "replicated", "size": "20Gi", "golden": "vm-default-images-a", "attempts": 1,
                      "startedTime": "2026-11-29T10:00:00Z", "progressPercent": 40 }],
        "conditions": [condition("Ready", "False", "Importing", "CDI is importing the golden.")],
    });
    let used =
        ImageView::new(&image("a", status), Ok(vec![User { pool: "tenant-a/KubernetesNodes/c-md0".into(), consumers: 7, blocking: 1 }]));
    let unknown = ImageView::new(&image("b", json!({})), Err(Unknown("disks are not synced yet".into())));
    let text = html::render(&page(vec![used, unknown])).expect("page");
    for part in [
        "Ubuntu 24.04",
        "replicated · 20Gi",
        "value=\"40\"",
        "CDI is importing the golden.",
        "tenant-a/KubernetesNodes/c-md0",
        "<td data-label=\"Consumers\">7</td>",
        "not known, disks are not synced yet",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let empty = html::render(&Page { unknown: Some("GoldenImage".into()), ..Page::default() }).expect("page");
    assert!(empty.contains("Not all is known yet: GoldenImage."), "{empty}");
}

#[test]
fn hostile_texts_stay_texts() {
    let evil = "</td><script>alert(1)</script>\" onmouseover='x' &amp; \u{202e}gpj.exe\u{0}";
    let mut object = image(
        "a",
        json!({ "conditions": [condition("Ready", "False", evil, evil), condition("Odd<b>", "True", "x", &format!("{evil}!"))],
        "operatingSystem": { "name": evil }, "targets": [{ "requestedClass": evil, "size": evil, "golden": evil, "attempts": 0 }] }),
    );
    object.metadata.name = Some(evil.into());
    object.spec.description = Some(evil.into());
    let view = ImageView::new(&object, Ok(vec![User { pool: evil.into(), consumers: 1, blocking: 0 }]));
    let other = ImageView { users: Err(Unknown(evil.into())), ..view.clone() };
    let shown = Page { unknown: Some(evil.into()), refused: vec![(evil.into(), evil.into())], ..page(vec![view, other]) };
    let text = html::render(&shown).expect("page");
    assert!(text.matches("&lt;script&gt;alert(1)").count() >= 12, "{text}");
    for part in ["<script", "onmouseover='", "\u{202e}", "\u{0}", "&amp; \u{202e}", "<b>\""] {
        assert!(!text.contains(part), "{part:?}: {text}");
    }
    assert!(text.contains("&amp;amp;"), "what is escaped already is escaped again: {text}");
}

#[tokio::test]
async fn it_is_read_only_and_for_localhost() {
    let ask = async |loopback: bool, method: Method, path: &str, host: &str| {
        let router = router(loopback, || page(vec![]));
        let request = Request::builder().method(method).uri(path).header("host", host).body(Body::empty()).expect("request");
        let answer = router.oneshot(request).await.expect("answer");
        let (parts, body) = answer.into_parts();
        (parts.status.as_u16(), parts.headers, String::from_utf8(to_bytes(body, 1 << 20).await.expect("body").to_vec()).expect("UTF-8"))
    };
    for (loopback, method, path, host, status) in [
        (true, Method::GET, "/", "localhost:8082", 200),
        (true, Method::GET, "/", "127.0.0.1:40000", 200),
        (true, Method::GET, "/", "[::1]:8082", 200),
        (true, Method::HEAD, "/", "localhost", 200),
        (true, Method::GET, "/", "evil.example", 421),
        (true, Method::GET, "/", "localhost.evil.example:8082", 421),
        (true, Method::GET, "/", "", 421),
        (false, Method::GET, "/", "status.example.org", 200),
        (true, Method::POST, "/", "localhost", 405),
        (true, Method::DELETE, "/", "localhost", 405),
        (true, Method::GET, "/../etc/passwd", "localhost", 404),
        (true, Method::GET, "/metrics", "localhost", 404),
    ] {
        assert_eq!(ask(loopback, method.clone(), path, host).await.0, status, "{method} {path} at {host:?}");
    }
    let (_, headers, text) = ask(true, Method::GET, "/", "localhost").await;
    let policy = headers["content-security-policy"].to_str().expect("text");
    assert!(policy.starts_with("default-src 'none'; style-src 'sha256-") && !policy.contains("unsafe"), "{policy}");
    assert_eq!(headers["x-content-type-options"], "nosniff");
    assert!(!text.contains("http://") && !text.contains("https://") && !text.contains("src="), "no external asset: {text}");
}
