//! One catalog through a hoster's life: releases come and go, images stay.

use std::time::Duration;

use kube::ResourceExt as _;
use serde_json::json;

use crate::{
    harness,
    site::Site,
    stage::{CATALOG, NAMESPACE},
};

const ELSEWHERE: &str = "catalog-two";
/// As long as a Pod may take to end, and then some.
const END: Duration = harness::PATIENCE;
/// The deadline of an uninstall, for helm to hold.
const DEADLINE: [&str; 3] = ["--wait", "--timeout", "60s"];

/// No node runs Pods here: the Deployment wants none, and the test starts the daemon by hand.
const NO_PODS: [&str; 2] = ["--set", "controller.replicas=0"];

#[tokio::test(flavor = "multi_thread")]
async fn releases_come_and_go_and_images_stay() {
    let Some(site) = Site::alone(&[NAMESPACE, ELSEWHERE]).await else { return };
    let image = |name: &str, url: &str| json!({ "name": name, "url": url });
    let (a, b, c) = (site.upload("a", 1), site.upload("b", 2), site.upload("c", 3));
    let create = ["--create-namespace", NO_PODS[0], NO_PODS[1]];

    // The first install, looked at first: the kind is not there yet, and that is no trouble.
    let one = json!([image("a", &a)]);
    site.cluster.kubectl(["create", "namespace", NAMESPACE]).await.ok();
    site.catalog("install", "first", NAMESPACE, one.clone(), &["--dry-run=server", NO_PODS[0], NO_PODS[1]]).await.ok();
    site.cluster.kubectl(["delete", "namespace", NAMESPACE]).await.ok();
    site.catalog("install", "first", NAMESPACE, one, &create).await.ok();
    let daemon = site.daemon("first", NAMESPACE).await;
    site.until_ready("a").await;

    // Upgrades: some more, and some dropped, which stay.
    let to_go = |name: &str| json!({ "name": name, "url": site.upload(name, 5), "deletionPolicy": "Delete" });
    let more = json!([image("a", &a), image("b", &b), to_go("deleted"), to_go("left")]);
    site.catalog("upgrade", "first", NAMESPACE, more, &NO_PODS).await.ok();
    for name in ["b", "deleted", "left"] {
        site.until_ready(name).await;
    }
    site.catalog("upgrade", "first", NAMESPACE, json!([image("b", &b)]), &NO_PODS).await.ok();
    // An edit is refused by name and with the move, and nothing has changed.
    let refused = site.catalog("upgrade", "first", NAMESPACE, json!([image("b", &c)]), &NO_PODS).await.err();
    assert!(refused.contains("images[0] (b) was edited") && refused.contains("The supported move is a new entry"), "{refused}");
    // Two releases may share the catalog; one of them guards the clones.
    site.cluster.kubectl(["create", "namespace", ELSEWHERE]).await.ok();
    let look = ["--dry-run=server", NO_PODS[0], NO_PODS[1]];
    let refused = site.catalog("install", "second", ELSEWHERE, json!([]), &look).await.err();
    assert!(
        refused.contains("admission.enabled: the release first in the namespace") && refused.contains("uninstall that one"),
        "{refused}"
    );
    let unguarded = [&look[..], &["--set", "admission.enabled=false"]].concat();
    site.catalog("install", "second", ELSEWHERE, json!([]), &unguarded).await.ok();

    // One catalog for the cluster: neither this release nor another leads in a second namespace beside it.
    site.cluster.kubectl(["create", "namespace", "other-catalog"]).await.ok();
    let other = [&unguarded[..], &["--set", "catalogNamespace=other-catalog"]].concat();
    for (verb, release, namespace) in [("upgrade", "first", NAMESPACE), ("install", "second", ELSEWHERE)] {
        let refused = site.catalog(verb, release, namespace, json!([]), &other).await.err();
        assert!(refused.contains("the catalog in \"cozy-public\" is led by first"), "{release}: {refused}");
    }

    // Deleted with `deletionPolicy: Delete`, an image waits for its golden, and for the daemon; before an uninstall it is let go.
    harness::until_condition(site.images(), "deleted", "Unlisted", "True").await;
    site.delete_and_hang("deleted").await;
    let retain = ["patch", "goldenimage", "deleted", "--type", "merge", "-p", r#"{"spec":{"deletionPolicy":"Retain"}}"#];
    site.cluster.kubectl(retain).await.ok();
    site.until_gone("deleted").await;

    let kept = site.kept().await;
    assert_eq!(kept.len(), 11, "four goldens, one of them without its GoldenImage: {kept:?}");

    // Removed while the daemon runs; its Pod ends with the Deployment.
    let mut uninstall = vec!["uninstall", "first", "--namespace", NAMESPACE];
    uninstall.extend(DEADLINE);
    site.cluster.helm(uninstall).await.ok();
    assert!(daemon.terminate(END).await.is_some(), "the daemon ends without rights too");
    site.nothing_left_of("first").await;
    assert_eq!(site.kept().await, kept);
    site.cluster.kubectl(["get", "customresourcedefinition", "goldenimages.cozystack.io"]).await.ok();
    // Forgotten before the uninstall: the way out that docs/migration.md has.
    site.delete_and_hang("left").await;
    site.cluster.kubectl(["patch", "goldenimage", "left", "--type", "merge", "-p", r#"{"metadata":{"finalizers":null}}"#]).await.ok();
    site.until_gone("left").await;
    let kept = site.kept().await;
    assert_eq!(kept.len(), 10, "its golden stays: {kept:?}");

    site.catalog("install", "second", ELSEWHERE, json!([]), &other).await.ok();

    // Elsewhere, under another name, without a flag for what the first one left.
    let list = json!([image("b", &b), image("c", &c)]);
    site.catalog("install", "second", ELSEWHERE, list.clone(), &create).await.ok();
    let daemon = site.daemon("second", ELSEWHERE).await;
    site.until_ready("c").await;
    harness::until(site.images(), "b", "taken into the new list", |image| {
        let listed = image.annotations().get("kubernetes-worker-image.cozystack.io/listed-in");
        listed.is_some_and(|list| list.starts_with(ELSEWHERE))
    })
    .await;
    site.until_ready("b").await;
    let now = site.kept().await;
    assert!(kept.iter().all(|(name, uid)| now.get(name) == Some(uid)), "{kept:?} in {now:?}");
    assert_eq!((site.fetches("a"), site.fetches("b"), site.fetches("c")), (1, 1, 1), "nothing was downloaded again");

    // A namespace deleted under a running daemon.
    site.cluster.kubectl(["delete", "namespace", ELSEWHERE, "--timeout=60s"]).await.ok();
    assert!(daemon.terminate(END).await.is_some());
    assert_eq!(site.kept().await, now);
    // The webhooks go after the namespace that owns them.
    harness::eventually("nothing hangs, and no webhook is left", async || {
        let hangs = site.all_objects(|item| item.pointer("/metadata/deletionTimestamp").is_some()).await;
        let hooks = site.all_objects(|item| item["kind"].as_str().is_some_and(|kind| kind.ends_with("WebhookConfiguration"))).await;
        let left: Vec<_> = hangs.into_iter().chain(hooks.into_iter().filter(|hook| hook.contains("golden-catalog"))).collect();
        if left.is_empty() { Ok(()) } else { Err(left.join(", ")) }
    })
    .await;

    // And back, under yet another name.
    site.catalog("install", "third", ELSEWHERE, list.clone(), &create).await.ok();
    let daemon = site.daemon("third", ELSEWHERE).await;
    let d = site.upload("d", 4);
    site.catalog("upgrade", "third", ELSEWHERE, json!([image("b", &b), image("c", &c), image("d", &d)]), &NO_PODS).await.ok();
    site.until_ready("d").await;
    let last = site.kept().await;
    assert!(now.iter().all(|(name, uid)| last.get(name) == Some(uid)), "{now:?} in {last:?}");
    assert_eq!((site.fetches("b"), site.fetches("c")), (1, 1));

    // The goldens' namespace deleted, which takes the Role along by which the daemon leads there: as docs/operations.md has it.
    let hooks = ["delete", "validatingwebhookconfiguration,mutatingwebhookconfiguration", "-l", "app.kubernetes.io/name=golden-catalog"];
    site.cluster.kubectl(hooks).await.ok();
    harness::eventually("the catalog's namespace is deleted", async || {
        let said = site.cluster.kubectl(["delete", "namespace", CATALOG, "--ignore-not-found", "--timeout=60s"]).await;
        if said.code == Some(0) { Ok(()) } else { Err(said.stderr) }
    })
    .await;
    site.cluster.kubectl(["create", "namespace", CATALOG]).await.ok();
    harness::eventually("the log says what is missing", async || {
        let log = daemon.log();
        if log.contains("`helm upgrade` makes the Role again") { Ok(()) } else { Err(log) }
    })
    .await;
    site.catalog("upgrade", "third", ELSEWHERE, list, &NO_PODS).await.ok();
    for name in ["b", "c"] {
        harness::until(site.images(), name, "it is made anew", |image| {
            let target = image.status.as_ref().and_then(|status| status.targets.first());
            let claim = target.and_then(|target| Some((target.golden.as_ref()?, target.claim_uid.as_ref()?)));
            let is_anew = claim.is_some_and(|(golden, uid)| last.get(&format!("PersistentVolumeClaim/{golden}")) != Some(uid));
            is_anew && harness::condition(image, "Ready").is_some_and(|condition| condition.status == "True")
        })
        .await;
    }
    assert!(daemon.terminate(END).await.is_some_and(|status| status.success()), "{}", daemon.log());
}
