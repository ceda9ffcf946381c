//! R3: one image once, whoever comes first, by hand or from a list, from one list or from those of two releases.

use golden_catalog::{api::GoldenImage, catalog::LISTED_IN};
use k8s_openapi::api::{coordination::v1::Lease, events::v1::Event};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::{Value, json};

use crate::{
    former,
    harness::{self, Daemon},
    scene::{Goldens, Scene},
    stage::{CATALOG, NAMESPACE},
};

/// The second release and its namespace.
const SECOND: &str = "cozy-second";

/// An image that makes nothing: who is first does not depend on goldens.
fn idle(scene: &Scene<'_>, name: &str, file: &str) -> Value {
    json!({ "name": name, "url": scene.url(file), "suspend": true })
}

async fn by_hand(scene: &Scene<'_>, name: &str, file: &str) {
    let object = json!({
        "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": name },
        "spec": { "source": { "http": { "url": scene.url(file) } }, "suspend": true },
    });
    let object: GoldenImage = serde_json::from_value(object).expect("object");
    scene.stage.images().create(&PostParams::default(), &object).await.expect("created");
}

async fn listed(scene: &Scene<'_>, more: Vec<Value>) {
    let mut list = former::entries(scene);
    list.as_array_mut().expect("list").extend(more);
    scene.list(list).await;
}

/// Waits for the Event on the list of `namespace` that refuses the entry `name` because of `first`, and sees that it became no object.
async fn refused(scene: &Scene<'_>, namespace: &str, name: &str, first: &str) {
    let api: Api<Event> = Api::namespaced(scene.stage.cluster.admin(), namespace);
    harness::eventually(&format!("{namespace}: the entry {name} is refused because of {first}"), async || {
        let events = api.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        let notes = events.items.iter().filter(|event| event.reason.as_deref() == Some("DuplicateIdentity"));
        let notes: Vec<_> = notes.filter_map(|event| event.note.clone()).collect();
        let tells = |note: &String| note.contains(&format!("({name})")) && note.contains(&format!("same image as {first}"));
        if notes.iter().any(tells) { Ok(()) } else { Err(format!("{notes:?}")) }
    })
    .await;
    assert!(scene.stage.images().get_opt(name).await.expect("asked").is_none(), "{name} was made all the same");
}

async fn gone(scene: &Scene<'_>, names: &[&str]) {
    for name in names {
        scene.stage.images().delete(name, &DeleteParams::default()).await.expect("deleted");
        harness::until_gone(scene.stage.images(), name).await;
    }
}

async fn is_listed_in(scene: &Scene<'_>, name: &str, namespace: &str) -> GoldenImage {
    harness::until(scene.stage.images(), name, &format!("it is in the list of {namespace}"), |image: &GoldenImage| {
        image.annotations().get(LISTED_IN).is_some_and(|list| list.starts_with(&format!("{namespace}/")))
            && harness::condition(image, "Unlisted").is_none()
    })
    .await
}

/// By hand and from the list, in both orders; two entries of one list, in both orders.
pub async fn whoever_is_first_stays_first(scene: &Scene<'_>) {
    // The entry first.
    by_hand(scene, "by-hand", "noble.img").await;
    let told = scene.stage.until_reason("by-hand", "DuplicateIdentity").await;
    let accepted = harness::condition(&told, "Accepted").expect("Accepted");
    assert!(accepted.status == "False" && accepted.message.contains("same image as noble"), "{}", accepted.message);
    gone(scene, &["by-hand"]).await;

    // The object first; when it goes, the entry takes its place without a hand.
    by_hand(scene, "early", "early.img").await;
    scene.stage.until_reason("early", "Suspended").await;
    listed(scene, vec![idle(scene, "late", "early.img")]).await;
    refused(scene, NAMESPACE, "late", "early").await;
    gone(scene, &["early"]).await;
    scene.stage.until_reason("late", "Suspended").await;

    // Two of one list; turned round, the first is the one that is there.
    let (one, two) = (idle(scene, "one", "pair.img"), idle(scene, "two", "pair.img"));
    listed(scene, vec![one.clone(), two.clone()]).await;
    scene.stage.until_reason("one", "Suspended").await;
    refused(scene, NAMESPACE, "two", "one").await;
    // A further entry shows that the list was read again.
    listed(scene, vec![two.clone(), one.clone(), idle(scene, "read-again", "again.img")]).await;
    scene.stage.until_reason("read-again", "Suspended").await;
    assert!(scene.stage.images().get_opt("two").await.expect("asked").is_none(), "the order of the list moves nothing");
    is_listed_in(scene, "one", NAMESPACE).await;
    // The other way round from the beginning.
    scene.list(former::entries(scene)).await;
    scene.stage.until("one", "Unlisted", "True").await;
    gone(scene, &["one", "late", "read-again"]).await;
    listed(scene, vec![two, one]).await;
    scene.stage.until_reason("two", "Suspended").await;
    refused(scene, NAMESPACE, "one", "two").await;
    scene.list(former::entries(scene)).await;
    scene.stage.until("two", "Unlisted", "True").await;
    gone(scene, &["two"]).await;
}

async fn leads(scene: &Scene<'_>, name: &str) {
    let leases: Api<Lease> = Api::namespaced(scene.stage.cluster.admin(), CATALOG);
    harness::until(leases, "golden-catalog", &format!("{name} leads"), |lease: &Lease| {
        lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).is_some_and(|holder| holder.starts_with(&format!("{name}_")))
    })
    .await;
}

/// Ends a daemon, which does so when asked to, and without a fault.
pub async fn end(daemon: Daemon) {
    let ended = daemon.terminate(harness::PATIENCE).await.expect("it ends when asked to");
    assert!(ended.success(), "{ended:?}\n{}", daemon.log());
}

/// Two releases over the same goldens: one Lease, so one list at a time is worked on, and neither takes the other's images away. An entry moves from one list to the other and back.
pub async fn two_releases_share_one_catalog(scene: &Scene<'_>, first: Daemon, before: &Goldens) -> Daemon {
    let kept =
        |all: Goldens| -> Goldens { all.into_iter().filter(|(name, _)| name.ends_with("-hand") || name.ends_with("-noble")).collect() };
    let goldens = kept(before.clone());
    // `hand` is in both lists for a moment, as whoever moves an entry has it; `again` is the first's `noble`.
    let only = idle(scene, "only-second", "second.img");
    let moved = json!({ "name": "hand", "url": scene.url("hand.img") });
    let again = json!({ "name": "again", "url": scene.url("noble.img") });
    scene.stage.second_release(SECOND, json!([again, moved.clone(), only.clone()])).await;
    let second = scene.stage.launch("second", scene.stage.of_release(SECOND).await);
    second.ready().await;
    leads(scene, "a").await;
    is_listed_in(scene, "hand", NAMESPACE).await;

    // The second leads: its list counts now, and what only the first has is nobody's loss.
    end(first).await;
    leads(scene, "second").await;
    scene.stage.until_reason("only-second", "Suspended").await;
    refused(scene, SECOND, "again", "noble").await;
    is_listed_in(scene, "hand", SECOND).await;
    is_listed_in(scene, "noble", NAMESPACE).await;
    scene.stage.until("hand", "Ready", "True").await;
    scene.stage.until("noble", "Ready", "True").await;

    // The first again, without the entry that moved, and with an image that the second had first.
    let mut list = former::entries(scene);
    let entries = list.as_array_mut().expect("list");
    entries.retain(|entry| entry["name"] != "hand");
    entries.push(idle(scene, "late-first", "second.img"));
    scene.list(list).await;
    end(second).await;
    let first = scene.stage.daemon("a");
    leads(scene, "a").await;
    first.ready().await;
    refused(scene, NAMESPACE, "late-first", "only-second").await;
    is_listed_in(scene, "hand", SECOND).await;
    is_listed_in(scene, "only-second", SECOND).await;
    scene.stage.until("hand", "Ready", "True").await;

    // And back.
    scene.stage.cluster.helm(["uninstall", SECOND, "--namespace", SECOND]).await.ok();
    gone(scene, &["only-second"]).await;
    scene.list(former::entries(scene)).await;
    is_listed_in(scene, "hand", NAMESPACE).await;
    scene.stage.until("hand", "Ready", "True").await;
    assert_eq!(kept(scene.goldens().await), goldens, "the goldens are the same all along");
    first
}
