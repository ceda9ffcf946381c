//! A scripted Talos Image Factory: its answers are those seen of the public factory.

use golden_catalog::{
    model::{Digest, Schematic, SchematicId, Source, TalosFactory},
    rules::Reason,
    source::{Credentials, Fault, OpenRequest, SchematicRequest},
};
use rstest::rstest;
use serde_json::json;

use crate::{
    drain, egress, pattern, settings,
    upstream::{Answer, Upstream},
};

const ID: &str = "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba";
const IMAGE: &str = "/image/376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba/v1.13.6/openstack-amd64.raw.xz";

fn talos(up: &Upstream, schematic: Schematic) -> Source {
    Source::TalosFactory(TalosFactory {
        schematic,
        version: "v1.13.6".parse().expect("version"),
        platform: "openstack".parse().expect("platform"),
        architecture: golden_catalog::model::Architecture::Amd64,
        secure_boot: false,
        factory_url: up.url("").parse().expect("URL"),
    })
}

fn by_id(up: &Upstream) -> Source {
    talos(up, Schematic::Id(ID.parse().expect("ID")))
}

fn by_document(up: &Upstream) -> Source {
    talos(up, Schematic::Document(json!({"customization": {}})))
}

fn created(id: &str) -> Answer {
    Answer::new(201, format!("{{\"id\":\"{id}\",\"schematic\":\"customization: {{}}\\n\"}}")).header("Content-Type", "application/json")
}

fn unknown() -> Answer {
    Answer::text(404, &format!("schematic ID \"{ID}\" not found\n"))
}

#[tokio::test]
async fn an_image_by_id() {
    let up = Upstream::start().await;
    up.on(IMAGE, Answer::new(200, pattern(5000)).header("Content-Type", "application/x-xz"));
    let source = by_id(&up);
    let opened = egress(settings()).open(&OpenRequest::new(&source)).await.expect("image");
    assert_eq!(opened.schematic_id.as_ref().map(SchematicId::as_str), Some(ID));
    assert_eq!(opened.facts.accepts_ranges, None);
    assert_eq!(drain(opened).await.expect("whole"), pattern(5000));
    assert_eq!(up.total(), 1);
}

#[tokio::test]
async fn a_document_is_given_once_and_its_returned_id_counts() {
    let up = Upstream::start().await;
    // Not the ID that this document has: the factory alone says.
    let other = "ce4c980550dd2ab1b17bbf2b08801c7eb59418eafe8f279833297925d67c7515";
    up.on("/schematics", created(other));
    up.on(&IMAGE.replace(ID, other), Answer::new(200, "image"));
    let source = by_document(&up);
    let egress = egress(settings());
    let opened = egress.open(&OpenRequest::new(&source)).await.expect("image");
    let id = opened.schematic_id.clone().expect("ID");
    assert_eq!(id.as_str(), other);
    // Recorded, it is not asked for again.
    egress.open(&OpenRequest { schematic_id: Some(&id), ..OpenRequest::new(&source) }).await.expect("again");
    let posts = up.hits("/schematics");
    assert_eq!((posts.len(), posts[0].method.as_str()), (1, "POST"));
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&posts[0].body).expect("JSON"), json!({"customization": {}}));
}

#[tokio::test]
async fn a_refused_document_is_the_entrys_fault_with_the_factorys_words() {
    let up = Upstream::start().await;
    up.on("/schematics", Answer::text(400, "yaml: construct errors: line 1: field something not found in type schematic.Schematic\n"));
    let source = by_document(&up);
    let error = egress(settings()).open(&OpenRequest::new(&source)).await.expect_err("refused");
    assert_eq!(error.reason(), Reason::InvalidSource);
    assert!(error.to_string().contains("field something not found in type schematic.Schematic"), "{error}");
    assert_eq!(up.hits("/schematics").len(), 1);
}

#[rstest]
#[case(Answer::new(200, "<html>"), "not JSON")]
#[case(Answer::new(201, "{}"), "no `id`")]
#[case(Answer::new(201, "{\"id\":\"../../x\"}"), "no schematic ID")]
#[tokio::test]
async fn what_is_no_factory(#[case] answer: Answer, #[case] what: &str) {
    let up = Upstream::start().await;
    up.on("/schematics", answer);
    let error = egress(settings()).open(&OpenRequest::new(&by_document(&up))).await.expect_err("no factory");
    assert_eq!(error.reason(), Reason::Unavailable);
    assert!(error.to_string().contains(what), "{error}");
}

#[tokio::test]
async fn an_endless_answer_to_a_document_ends() {
    let up = Upstream::start().await;
    up.on("/schematics", Answer::new(201, "[".repeat(64 << 10)).no_length().endless());
    let error = egress(settings()).open(&OpenRequest::new(&by_document(&up))).await.expect_err("endless");
    assert_eq!(error.reason(), Reason::TooLarge, "{error}");
}

/// B03: a replica that has not heard of a schematic just given says 404 for a while.
#[tokio::test]
async fn a_404_after_our_own_post_is_soon_asked_again_and_heals() {
    let up = Upstream::start().await;
    up.on("/schematics", created(ID));
    up.sequence(IMAGE, [unknown(), Answer::new(200, "image")]);
    let source = by_document(&up);
    let egress = egress(settings());
    let error = egress.open(&OpenRequest::new(&source)).await.expect_err("not yet");
    assert!(matches!(error.fault(), Fault::SchematicNotYetKnown { .. }), "{error}");
    assert_eq!((error.reason(), error.retry_after().map(|delay| delay.as_secs())), (Reason::Unavailable, Some(30)));
    let opened = egress.open(&OpenRequest::new(&source)).await.expect("now");
    assert_eq!(drain(opened).await.expect("whole"), b"image");
}

/// A factory that was set up anew has lost the schematic: it is given again without a hand.
#[tokio::test]
async fn a_recorded_schematic_that_the_factory_lost_is_given_again() {
    let up = Upstream::start().await;
    up.on("/schematics", created(ID));
    up.on(IMAGE, unknown());
    let source = by_document(&up);
    let id = ID.parse().expect("ID");
    let request = OpenRequest { schematic_id: Some(&id), ..OpenRequest::new(&source) };
    let error = egress(settings()).open(&request).await.expect_err("lost");
    assert!(matches!(error.fault(), Fault::SchematicNotYetKnown { .. }), "{error}");
    assert_eq!(up.hits("/schematics").len(), 1);
}

#[tokio::test]
async fn a_schematic_whose_id_changed_is_told() {
    let up = Upstream::start().await;
    up.on("/schematics", created("ce4c980550dd2ab1b17bbf2b08801c7eb59418eafe8f279833297925d67c7515"));
    up.on(IMAGE, unknown());
    let source = by_document(&up);
    let id = ID.parse().expect("ID");
    let request = OpenRequest { schematic_id: Some(&id), ..OpenRequest::new(&source) };
    let error = egress(settings()).open(&request).await.expect_err("changed");
    assert_eq!(error.reason(), Reason::InvalidSource, "{error}");
    assert!(error.to_string().contains(ID) && error.to_string().contains("ce4c9805"), "{error}");
}

#[rstest]
#[case(unknown(), Reason::NotFound, "never given")]
#[case(Answer::text(404, "failed to get kernel: version 9.9.9 is not available\n"), Reason::NotFound, "version 9.9.9 is not available")]
#[case(
    Answer::text(400, "error parsing profile from path: invalid profile path: \"metal-amd64.ssd\"\n"),
    Reason::InvalidSource,
    "invalid profile path"
)]
#[case(
    Answer::text(400, "official extension \"x\" is not available for Talos version v1.13.6\n"),
    Reason::InvalidSource,
    "official extension"
)]
#[case(Answer::text(401, "authentication required to access this schematic\n").header("WWW-Authenticate", "Basic realm=\"x\""), Reason::Unauthorized, "authentication required")]
#[case(Answer::text(403, "access denied\n"), Reason::Forbidden, "access denied")]
#[case(Answer::text(500, "internal server error\n"), Reason::Unavailable, "internal server error")]
#[case(Answer::text(503, ""), Reason::Unavailable, "503")]
#[tokio::test]
async fn answers_about_an_image(#[case] answer: Answer, #[case] reason: Reason, #[case] text: &str) {
    let up = Upstream::start().await;
    up.on(IMAGE, answer);
    let error = egress(settings()).open(&OpenRequest::new(&by_id(&up))).await.expect_err("no image");
    assert_eq!(error.reason(), reason, "{error}");
    assert!(error.to_string().contains(text), "{error}");
    assert_eq!(up.total(), 1);
}

/// A 404 for the version is no reason to give the document again.
#[tokio::test]
async fn a_missing_version_is_not_a_missing_schematic() {
    let up = Upstream::start().await;
    up.on("/schematics", created(ID));
    up.on(IMAGE, Answer::text(404, "version 1.13.6 is not available\n"));
    let id = ID.parse().expect("ID");
    let source = by_document(&up);
    let request = OpenRequest { schematic_id: Some(&id), ..OpenRequest::new(&source) };
    let error = egress(settings()).open(&request).await.expect_err("no version");
    assert_eq!(error.reason(), Reason::NotFound, "{error}");
    assert!(up.hits("/schematics").is_empty());
}

/// An enterprise factory wants to know who asks for anything: a schematic given, a disk, its digest. Where several credentials
/// match, the next ones are shown when those before were refused, and never none.
#[tokio::test]
async fn an_enterprise_factory_is_shown_the_password_for_everything() {
    let up = Upstream::start().await;
    let refused =
        || Answer::text(401, "authentication required to access this schematic\n").header("WWW-Authenticate", "Basic realm=\"x\"");
    let sum = "11507a0e2f5e69d5dfa40a62a1bd7b6ee57e6bcd85c67c9b8431b36fff21c437";
    up.sequence("/schematics", [refused(), created(ID)]);
    up.on(IMAGE, Answer::new(200, "image"));
    up.sequence(&format!("{IMAGE}.sha256"), [refused(), Answer::text(200, &format!("{sum}  openstack-amd64.raw.xz\n"))]);
    let pair = |password: &str| Credentials::Basic { username: "robot".to_owned(), password: password.to_owned().into() };
    let credentials = [pair("old"), pair("new")];
    let source = by_document(&up);
    let request = OpenRequest { credentials: &credentials, ..OpenRequest::new(&source) };
    let egress = egress(settings());
    let opened = egress.open(&request).await.expect("image");
    let id = opened.schematic_id.clone().expect("ID");
    assert_eq!(drain(opened).await.expect("whole"), b"image");
    let stated = egress.stated_digest(&OpenRequest { schematic_id: Some(&id), ..request }).await;
    assert_eq!(stated.map(|digest: Digest| digest.to_string()), Some(format!("sha256:{sum}")));
    // robot:old and robot:new.
    let (old, new) = ("Basic cm9ib3Q6b2xk", "Basic cm9ib3Q6bmV3");
    for (path, expected) in [("/schematics", vec![old, new]), (IMAGE, vec![new]), (&format!("{IMAGE}.sha256"), vec![old, new])] {
        let shown: Vec<_> = up.hits(path).iter().map(|hit| hit.header("authorization").unwrap_or("nothing").to_owned()).collect();
        assert_eq!(shown, expected, "{path}");
    }
}

/// B07: 402 on a checksum means only that none is offered.
#[rstest]
#[case(Answer::text(402, "enterprise not enabled: checksum endpoint is not available\n"), None)]
#[case(Answer::text(404, ""), None)]
#[case(Answer::text(500, ""), None)]
#[case(Answer::text(200, "<html>"), None)]
#[case(
    Answer::text(200, "11507a0e2f5e69d5dfa40a62a1bd7b6ee57e6bcd85c67c9b8431b36fff21c437  openstack-amd64.raw.xz\n"),
    Some("sha256:11507a0e2f5e69d5dfa40a62a1bd7b6ee57e6bcd85c67c9b8431b36fff21c437")
)]
#[case(Answer::text(200, "11507a0e2f5e69d5dfa40a62a1bd7b6ee57e6bcd85c67c9b8431b36fff21c437  metal-amd64.raw.xz\n"), None)]
#[tokio::test]
async fn a_stated_digest_or_none(#[case] answer: Answer, #[case] digest: Option<&str>) {
    let up = Upstream::start().await;
    up.on(&format!("{IMAGE}.sha256"), answer);
    let got = egress(settings()).stated_digest(&OpenRequest::new(&by_id(&up))).await;
    assert_eq!(got.map(|digest: Digest| digest.to_string()).as_deref(), digest);
    assert_eq!(up.total(), 1);
}

#[tokio::test]
async fn a_document_is_not_carried_to_another_host() {
    let (up, other) = (Upstream::start().await, Upstream::start().await);
    other.on("/schematics", created(ID));
    up.on("/schematics", Answer::redirect(307, &other.url("/schematics")));
    let mut settings = settings();
    settings.allow_private_redirects = true;
    let document = json!({"customization": {}});
    let url = up.url("").parse().expect("URL");
    let request = SchematicRequest { factory_url: &url, document: &document, ca_bundle: None, credentials: None };
    let error = egress(settings.clone()).resolve_schematic(&request).await.expect_err("elsewhere");
    assert_eq!(error.reason(), Reason::EgressRefused, "{error}");
    assert_eq!(other.connections(), 0);
    // To another path of the same server it is.
    up.on("/schematics", Answer::redirect(308, "/v1/schematics"));
    up.on("/v1/schematics", created(ID));
    assert_eq!(egress(settings).resolve_schematic(&request).await.expect("ID").as_str(), ID);
}
