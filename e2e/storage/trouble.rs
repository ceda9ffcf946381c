//! R10: what CDI and storage do to an import, told with its reason, and healed without a hand.

use golden_catalog::api::GoldenImage;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
};
use serde_json::json;

use super::{
    cdi::Behaviour,
    harness::{self, Daemon},
    scene::{Scene, end, hurried},
    stage::{CATALOG, NAMESPACE},
};

/// Each way an import goes wrong (as CDI v1.64 was seen to tell it), the reason it is told with, and a word of the message.
fn troubles() -> Vec<(&'static str, Behaviour, &'static str, &'static str)> {
    let text = |text: &str| text.to_owned();
    vec![
        ("scratch", Behaviour::NoScratch { message: text("no room left in the pool") }, "ScratchUnavailable", "StorageClass replicated"),
        ("volume", Behaviour::NoVolume { message: text("pool is full") }, "VolumeNotMade", "pool is full"),
        ("nowhere", Behaviour::Unschedulable, "Unschedulable", "cannot be scheduled"),
        ("pull", Behaviour::ImagePull { message: text("registry is away") }, "ImportFailed", "registry is away"),
        ("pod", Behaviour::ErrStartingPod { message: text("violates PodSecurity") }, "ImportFailed", "violates PodSecurity"),
        ("claims", Behaviour::ClaimQuota { message: text("exceeded quota: small") }, "QuotaExceeded", "exceeded quota: small"),
        ("pods", Behaviour::PodQuota { message: text("exceeded quota: pods") }, "QuotaExceeded", "exceeded quota: pods"),
        ("silent", Behaviour::NeverConnect, "ImporterNotConnected", "has not reached the spool"),
        ("unreached", Behaviour::Refused, "ImporterNotConnected", "has not reached the spool"),
        ("token", Behaviour::WrongToken, "ImporterUnauthorized", "wrong token"),
        ("authority", Behaviour::BadCa, "ImporterTLSFailed", "certificate"),
    ]
}

pub async fn every_trouble_is_told_and_heals_by_itself(scene: &Scene<'_>) {
    for (at, (name, behaviour, ..)) in troubles().into_iter().enumerate() {
        scene.disk(name, 100 + at as u64);
        scene.stage.cdi.script(&format!("vm-default-images-{name}"), behaviour);
        scene.image(name, json!([{}])).await;
    }
    for (name, _, reason, word) in troubles() {
        // Another controller's words may come first.
        let image = harness::until(scene.stage.images(), name, &format!("{reason} is told with {word:?}"), |image: &GoldenImage| {
            harness::condition(image, "Ready").is_some_and(|ready| ready.reason == reason && ready.message.contains(word))
        })
        .await;
        let ready = harness::condition(&image, "Ready").expect("Ready");
        assert!(ready.message.len() > word.len() + 20, "{name} has no remedy: {}", ready.message);
        scene.stage.cdi.unscript(&format!("vm-default-images-{name}"));
    }
    for (name, ..) in troubles() {
        scene.stage.until(name, "Ready", "True").await;
        let status = scene.stage.images().get(name).await.expect("image").status.expect("status");
        assert!(status.targets[0].last_failure.is_none(), "a healed target has no failure: {status:?}");
        assert_eq!(scene.fetches(name), 1, "{name}");
    }
    nothing_shows_the_spools_paths(scene).await;
}

/// CDI's importers are sent through a proxy that does not know the spool: told with the host that must be left out of it.
pub async fn a_proxy_in_the_way_is_named(scene: &Scene<'_>) {
    let golden = "vm-default-images-proxied";
    scene.stage.cdi.script(golden, Behaviour::NeverConnect);
    let configs = scene.stage.cluster.api(&scene.stage.cluster.admin(), "cdi.kubevirt.io/v1beta1", "CDIConfig", "").await;
    let through = |proxy: serde_json::Value| Patch::Merge(json!({ "spec": { "importProxy": proxy } }));
    let proxy = json!({ "HTTPSProxy": "http://proxy.example:3128", "noProxy": "registry.example" });
    configs.patch("config", &PatchParams::default(), &through(proxy)).await.expect("a proxy");
    scene.disk("proxied", 31);
    scene.image("proxied", json!([{}])).await;
    let ready = scene.until_reason("proxied", "ImportProxyInTheWay").await;
    assert!(ready.message.contains(&format!("golden-catalog-spool.{NAMESPACE}.svc")), "{}", ready.message);
    // As the remedy says; then the importer is only late.
    let left_out = json!({ "HTTPSProxy": "http://proxy.example:3128", "noProxy": "registry.example,.svc" });
    configs.patch("config", &PatchParams::default(), &through(left_out)).await.expect("left out");
    scene.until_reason("proxied", "ImporterNotConnected").await;
    configs.patch("config", &PatchParams::default(), &through(serde_json::Value::Null)).await.expect("no proxy");
    scene.stage.cdi.unscript(golden);
    scene.stage.until("proxied", "Ready", "True").await;
}

/// CDI quotes the URL it imports from; its path is as good as a key.
async fn nothing_shows_the_spools_paths(scene: &Scene<'_>) {
    let leaks = |text: &str| {
        text.match_indices("/v1/disks/").any(|(at, mark)| text[at + mark.len()..].starts_with(|c: char| c.is_ascii_hexdigit()))
    };
    let images = scene.stage.images().list(&Default::default()).await.expect("images");
    let statuses = serde_json::to_string(&images.items.iter().map(|image| &image.status).collect::<Vec<_>>()).expect("JSON");
    assert!(!leaks(&statuses));
    let events: Api<k8s_openapi::api::events::v1::Event> = Api::namespaced(scene.stage.cluster.admin(), "default");
    let events = events.list(&Default::default()).await.expect("events");
    assert!(!events.items.is_empty() && !leaks(&serde_json::to_string(&events.items).expect("JSON")));
}

pub async fn attempts_are_kept_spent_and_begun_anew(scene: &Scene<'_>, daemon: Daemon) -> Daemon {
    let golden = "vm-default-images-stuck";
    let at_work = |attempts: i32| {
        move |image: &GoldenImage| {
            image.status.as_ref().and_then(|status| status.targets.first()).is_some_and(|target| {
                target.attempts == attempts && target.started_time.is_some() && target.progress_percent.is_some_and(|percent| percent > 0)
            })
        }
    };
    // It has its whole disk, which CDI converts without a word: it has as long as 8 GiB take at 8 MiB/s, also of a daemon that did not see
    // it download.
    scene.stage.cdi.script("vm-default-images-converts", Behaviour::StuckAt(100.0));
    scene.large_disk("converts", 8 << 30, 32);
    scene.image("converts", json!([{}])).await;
    harness::until(scene.volumes().await, "vm-default-images-converts", "CDI has downloaded it", |volume: &DynamicObject| {
        volume.data["status"]["progress"] == "100.00%"
    })
    .await;
    scene.stage.cdi.script(golden, Behaviour::StuckAt(30.0));
    scene.disk("stuck", 30);
    scene.image("stuck", json!([{}])).await;
    harness::until(scene.stage.images(), "stuck", "the first attempt stands still", at_work(1)).await;
    let volume = async || scene.volumes().await.get_opt(golden).await.expect("asked").and_then(|volume| volume.metadata.uid);
    let before = volume().await;
    scene.stage.kill(daemon).await;
    let daemon = scene.stage.daemon("a");
    daemon.ready().await;
    scene.stage.until_looked(0, scene.stage.images().list(&Default::default()).await.expect("images").items.len() as u64).await;
    assert_eq!((scene.target("stuck", 0).await.attempts, volume().await), (1, before), "a restart is no attempt");
    end(daemon).await;
    // Told for five seconds: then the slow retry is a third attempt.
    let mut history = harness::History::of(scene.stage.images(), "stuck").await;
    let daemon = scene.stage.daemon_with("a", &hurried(2));
    daemon.ready().await;
    let is_stalled = |image: &GoldenImage| harness::condition(image, "Stalled").is_some_and(|stalled| stalled.status == "True");
    let spent = history.once("its attempts are spent", is_stalled).await;
    let stalled = harness::condition(&spent, "Stalled").expect("it was just there");
    assert!(stalled.message.contains("2 attempts are spent") && stalled.message.contains("/retry: <new value>"), "{}", stalled.message);
    let target = &spent.status.as_ref().expect("status").targets[0];
    assert_eq!((target.attempts, target.started_time.as_ref()), (2, None));
    // That took two deadlines.
    let converts = scene.target("converts", 0).await;
    assert!(converts.attempts == 1 && converts.last_failure.is_none(), "the restart cost it its time: {converts:?}");
    end(daemon).await;
    let daemon = scene.stage.daemon("a");
    daemon.ready().await;
    scene.stage.cdi.unscript("vm-default-images-converts");
    scene.stage.until("converts", "Ready", "True").await;
    scene.stage.cdi.unscript(golden);
    scene.retry("stuck", "1").await;
    scene.stage.until("stuck", "Ready", "True").await;
    let image = scene.stage.images().get("stuck").await.expect("image");
    assert!(harness::condition(&image, "Stalled").is_none());
    assert_eq!(scene.fetches("stuck"), 1);
    daemon
}

/// R26: nothing runs the pod here; that it is there, and not over, is what CDI looks at.
pub async fn a_pod_that_holds_a_golden_is_named(scene: &Scene<'_>) {
    let golden = "vm-default-images-several";
    let pod = |name: &str, read_only: bool| -> Pod {
        serde_json::from_value(json!({
            "metadata": { "name": name, "namespace": CATALOG },
            "spec": {
                "containers": [{ "name": "c", "image": "none.example/none", "volumeDevices": [{ "name": "disk", "devicePath": "/dev/disk" }] }],
                "volumes": [{ "name": "disk", "persistentVolumeClaim": { "claimName": golden, "readOnly": read_only } }],
            },
        }))
        .expect("pod")
    };
    let pods: Api<Pod> = Api::namespaced(scene.stage.cluster.admin(), CATALOG);
    pods.create(&PostParams::default(), &pod("reader", true)).await.expect("created");
    pods.create(&PostParams::default(), &pod("writer", false)).await.expect("created");
    let told = scene.stage.until("several", "InUseByPod", "True").await;
    assert!(told.message.contains("cozy-public/writer") && !told.message.contains("reader"), "{}", told.message);
    scene.stage.until("several", "Ready", "True").await;
    pods.delete("writer", &DeleteParams::default().grace_period(0)).await.expect("deleted");
    harness::until(scene.stage.images(), "several", "nobody holds it", |image: &GoldenImage| {
        harness::condition(image, "InUseByPod").is_none()
    })
    .await;
    pods.delete("reader", &DeleteParams::default().grace_period(0)).await.expect("deleted");
}
