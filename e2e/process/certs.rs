//! Certificates and keys in real Secrets: two of us, hands, cert-manager.

use super::{
    CLUSTER,
    harness::{Needs, eventually},
};
use golden_catalog::run::{
    certs::{Action, Error, Keeper, KeptSpoolKey, Profile, Resolver, SELF_ISSUED, SPOOL_KEY, SPOOL_TLS, keep},
    lease::{Elector, LEASE_NAME, Timing},
};
use k8s_openapi::{ByteString, api::core::v1::Secret, jiff::Timestamp};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use std::{sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;

fn profile() -> Profile {
    Profile::new(vec!["golden-catalog-spool.cozy.svc".to_owned()])
}

fn days(days: u64) -> Timestamp {
    Timestamp::now() + Duration::from_secs(days * 24 * 3600)
}

#[tokio::test]
async fn two_of_us_end_with_one_certificate_and_one_key() {
    let Some(cluster) = CLUSTER.on(Needs::Any).await else { return };
    let namespace = cluster.namespace("certs").await;
    let secrets: Api<Secret> = Api::namespaced(cluster.admin(), &namespace);
    let profile = profile();
    for at in [days(0), days(70), days(4 * 365 + 10), days(4 * 365 + 20), days(20 * 365)] {
        let (one, two) = tokio::join!(keep(&secrets, SPOOL_TLS, &profile, at, false), keep(&secrets, SPOOL_TLS, &profile, at, false));
        let ((one, did), (two, also_did)) = (one.unwrap(), two.unwrap());
        assert_eq!((one.bundle(), one.not_after()), (two.bundle(), two.not_after()));
        // Each step is done once, by whoever came first.
        let mut all: Vec<String> = did.iter().chain(&also_did).map(|action| format!("{action:?}")).collect();
        assert!(!all.is_empty());
        all.sort();
        let mut once = all.clone();
        once.dedup();
        assert_eq!(all, once);
        assert_eq!(one.trouble(&profile.names, at), None);
    }

    let keys = futures::future::join_all((0..8).map(|_| KeptSpoolKey::obtain(&secrets, SPOOL_KEY))).await;
    let keys: Vec<[u8; 32]> = keys.into_iter().map(|key| *key.unwrap().as_bytes()).collect();
    assert!(keys.iter().all(|key| *key == keys[0] && *key != [0; 32]));
    // A slip of a hand is refused by the API server.
    let slip = Patch::Merge(serde_json::json!({"stringData": {"key": "oops"}}));
    assert!(secrets.patch(SPOOL_KEY, &PatchParams::default(), &slip).await.is_err());
    assert_eq!(*KeptSpoolKey::obtain(&secrets, SPOOL_KEY).await.unwrap().as_bytes(), keys[0]);
}

#[tokio::test]
async fn what_is_not_ours_is_used_or_refused_and_stays_as_it_is() {
    let Some(cluster) = CLUSTER.on(Needs::Any).await else { return };
    let namespace = cluster.namespace("certs").await;
    let secrets: Api<Secret> = Api::namespaced(cluster.admin(), &namespace);
    let profile = profile();
    // As cert-manager leaves it, made from one of ours.
    keep(&secrets, "source", &profile, days(0), false).await.unwrap();
    let mut provided = secrets.get("source").await.unwrap();
    provided.metadata = kube::core::ObjectMeta { name: Some(SPOOL_TLS.into()), ..Default::default() };
    provided.data.as_mut().unwrap().retain(|field, _| ["tls.crt", "tls.key", "ca.crt"].contains(&field.as_str()));
    let before = secrets.create(&PostParams::default(), &provided).await.unwrap();
    let (served, did) = keep(&secrets, SPOOL_TLS, &profile, days(1000), false).await.unwrap();
    assert!(served.is_provided() && did.is_empty());
    assert!(served.trouble(&profile.names, days(1000)).is_some(), "it ended, which is told");
    assert_eq!(secrets.get(SPOOL_TLS).await.unwrap().metadata.resource_version, before.metadata.resource_version);

    // Half of it.
    let half = Patch::Merge(serde_json::json!({"data": {"ca.crt": null}}));
    let before = secrets.patch(SPOOL_TLS, &PatchParams::default(), &half).await.unwrap();
    let error = keep(&secrets, SPOOL_TLS, &profile, days(0), false).await.unwrap_err();
    assert!(matches!(error, Error::Foreign { .. }) && error.to_string().contains("ca.crt is missing"), "{error}");
    assert_eq!(secrets.get(SPOOL_TLS).await.unwrap().metadata.resource_version, before.metadata.resource_version);

    // A key of the wrong kind.
    let wrong = Secret { data: Some([("key".to_owned(), ByteString(vec![1; 5]))].into()), ..Secret::default() };
    let wrong = Secret { metadata: kube::core::ObjectMeta { name: Some(SPOOL_KEY.into()), ..Default::default() }, ..wrong };
    secrets.create(&PostParams::default(), &wrong).await.unwrap();
    assert!(matches!(KeptSpoolKey::obtain(&secrets, SPOOL_KEY).await, Err(Error::SpoolKey { .. })));
}

#[tokio::test]
async fn the_leader_issues_everybody_serves_and_a_hand_is_followed() {
    let Some(cluster) = CLUSTER.on(Needs::Any).await else { return };
    let namespace = cluster.namespace("certs").await;
    let secrets: Api<Secret> = Api::namespaced(cluster.admin(), &namespace);
    let kubeconfig = kube::config::Kubeconfig::read_from(cluster.admin_kubeconfig()).unwrap();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await.unwrap();
    let stop = CancellationToken::new();
    let keeper = |resolver: &Arc<Resolver>| Keeper {
        namespace: namespace.to_string(),
        name: SPOOL_TLS.to_owned(),
        profile: profile(),
        resolver: resolver.clone(),
        interval: Duration::from_secs(5),
        settle: Duration::from_millis(200),
        configurations: None,
    };
    let serves = async |resolver: &Arc<Resolver>, secret: &Secret| {
        let bundle = String::from_utf8(secret.data.as_ref().unwrap()["ca.crt"].0.clone()).unwrap();
        eventually("the new certificate is served", || async {
            let same = resolver.served().is_some_and(|served| served.bundle() == bundle);
            if same { Ok(()) } else { Err("not yet".to_owned()) }
        })
        .await;
    };

    // Nobody leads yet: nothing is issued.
    let (follower, leader) = (Resolver::new(), Resolver::new());
    let (config_of_follower, of_follower, stop_follower) = (config.clone(), keeper(&follower), stop.clone());
    tokio::spawn(async move { of_follower.run(&config_of_follower, None, || false, stop_follower).await });
    let (elector, leadership) = Elector::new(&config, &namespace, LEASE_NAME, "me".into(), Timing::default()).unwrap();
    assert!(secrets.get_opt(SPOOL_TLS).await.unwrap().is_none());
    tokio::spawn(elector.run(stop.clone()));
    let (config_of_leader, of_leader, stop_leader) = (config.clone(), keeper(&leader), stop.clone());
    tokio::spawn(async move { of_leader.run(&config_of_leader, Some(leadership), || false, stop_leader).await });
    let issued = super::harness::until(secrets.clone(), SPOOL_TLS, "it is issued", |_| true).await;
    serves(&leader, &issued).await;
    serves(&follower, &issued).await;

    // Broken by hand: the last good one is served on, and the leader mends it.
    let broken = Patch::Merge(serde_json::json!({"data": {"tls.crt": ""}}));
    secrets.patch(SPOOL_TLS, &PatchParams::default(), &broken).await.unwrap();
    let whole = |secret: &Secret| secret.data.as_ref().is_some_and(|data| !data["tls.crt"].0.is_empty());
    super::harness::until(secrets.clone(), SPOOL_TLS, "it is mended", whole).await;
    assert!(follower.served().is_some());

    // Deleted by hand: issued anew, by another CA, which everybody serves soon.
    secrets.delete(SPOOL_TLS, &DeleteParams::default()).await.unwrap();
    let anew =
        super::harness::until(secrets.clone(), SPOOL_TLS, "it is issued anew", |secret| secret.metadata.uid != issued.metadata.uid).await;
    serves(&leader, &anew).await;
    serves(&follower, &anew).await;
    assert!(anew.metadata.annotations.unwrap().contains_key(SELF_ISSUED));
    assert_eq!(golden_catalog::run::certs::decide(None, &profile(), days(0), false), Action::Issue);
    stop.cancel();
}
