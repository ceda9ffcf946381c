//! The fence (R23, R24): goldens go when nothing needs them, and never while something does, however the two race.

use std::time::Duration;

use golden_catalog::{api::GoldenImage, rules::marks};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, DynamicObject, Patch, PatchParams},
};
use serde_json::json;
use tokio::sync::Notify;

use crate::{
    harness::{self, Cluster, eventually, until, until_gone},
    moments::VIRTUAL_MACHINES,
    objects::{Disk, Form, RIGHT, object},
    proxy::ApiProxy,
    stage::{self, CATALOG, Launch, Options, Stage, images},
    stand::{Stand, create, golden, is_admitted, own_hurried_cluster, set_status, stand},
};

/// How long a golden is closed before it goes, short for tests.
const WAIT: &str = "4s";
/// The same where consumers race: longer than the API server lets a request take, as a hoster's must be.
pub const RACE_WAIT: &str = "10s";
/// How long the API server lets a request take there, in seconds.
pub const REQUEST_TIMEOUT: u8 = 5;

async fn claims(cluster: &Cluster) -> Api<DynamicObject> {
    cluster.api(&cluster.admin(), "v1", "PersistentVolumeClaim", CATALOG).await
}

/// From a list to a golden that retires when its consumer goes, comes back, goes with its object, and outlives its object.
#[tokio::test(flavor = "multi_thread")]
async fn an_image_retires_when_its_consumer_goes() {
    if stand().await.is_none() {
        return;
    }
    let options = harness::Options::default().controller_manager().foreign_crds(harness::Flavor::chosen());
    let cluster = Cluster::start(options).await;
    let (nginx, _) = stage::upstream();
    let dir = harness::scratch_dir_on_disk("images");
    let raw = images::raw_disk(dir.path(), "disk", 64 << 20, 4, 3);
    nginx.put("noble.qcow2", &std::fs::read(images::qcow2(&raw)).expect("qcow2"));
    let url = format!("http://{}/noble.qcow2", nginx.http);
    let list = json!([{ "name": "noble", "url": url }]);
    let stage =
        Stage::set(&cluster, Options { images: list, settings: json!({ "retireWait": WAIT }), admission: true, ..Options::default() })
            .await;
    let leader = stage.launch("leader", Launch { arguments: vec!["--access-enforced".to_owned()], ..Launch::default() });
    let scraped = harness::Port::reserve();
    let admission = stage.admission_scraped("admission", &scraped.address()).await;
    admission.ready().await;
    leader.ready().await;
    stage.until("noble", "Ready", "True").await;
    let tenant = cluster.namespace("tenant").await;
    let disk = Disk { golden: "vm-default-images-noble", ..RIGHT };
    eventually("the webhooks are filled in and a VM is admitted", || async {
        create(&cluster, &tenant, &object(Form::Machine, "vm", disk), false).await.map(drop).map_err(|refused| refused.message)
    })
    .await;

    // A clone ends, with all that CDI makes for it on the way.
    let volumes_of = cluster.api(&cluster.admin(), "cdi.kubevirt.io/v1beta1", "DataVolume", &tenant).await;
    let asked = object(Form::Volume, "clone", Disk { class: None, size: "1Gi", ..disk });
    create(&cluster, &tenant, &asked, false).await.unwrap_or_else(|refused| panic!("{}", refused.message));
    let made =
        until(volumes_of.clone(), "clone", "it is cloned", |volume: &DynamicObject| volume.data["status"]["phase"] == "Succeeded").await;
    assert_eq!(made.annotations().get(marks::GOLDEN).map(String::as_str), Some("vm-default-images-noble"));
    let claims_of = cluster.api(&cluster.admin(), "v1", "PersistentVolumeClaim", &tenant).await;
    let claim = claims_of.get("clone").await.expect("its claim");
    assert_eq!(claim.annotations().get(marks::GOLDEN).map(String::as_str), Some("vm-default-images-noble"), "CDI copies the marks");
    volumes_of.delete("clone", &DeleteParams::default()).await.expect("a consumer always goes");
    until_gone(claims_of, "clone").await;

    a_target_leaves_the_list(&stage, &tenant, &url).await;

    // By a golden's own name while it has an image, it would do nothing now, and something unasked later.
    let slip = harness::cli(Some(cluster.admin_kubeconfig()), ["retire", "vm-default-images-noble"]).await;
    assert_eq!(slip.code, Some(2), "{slip:?}");
    assert!(slip.stderr.contains("a golden of the GoldenImage noble: run `golden-catalog retire noble`"), "{slip:?}");
    let told = harness::cli(Some(cluster.admin_kubeconfig()), ["retire", "noble"]).await.ok();
    assert!(told.contains("noble is to go"), "{told}");
    let retiring = stage.until("noble", "Retiring", "True").await;
    let pool = format!("{}/VirtualMachine/vm", &*tenant);
    eventually("the blockers are told", || async {
        let image = stage.images().get("noble").await.map_err(|error| error.to_string())?;
        let message = harness::condition(&image, "Retiring").map(|condition| condition.message).unwrap_or_default();
        if message.contains(&pool) { Ok(()) } else { Err(format!("{message} ({retiring:?})")) }
    })
    .await;
    let refused = eventually("new pools are turned away", || async {
        match create(&cluster, &tenant, &object(Form::Machine, "late", disk), true).await {
            Err(refused) => Ok(refused.message),
            Ok(_) => Err("admitted".to_owned()),
        }
    })
    .await;
    assert!(refused.contains("is being retired") && refused.contains("R23"), "{refused}");
    // The pool that uses it goes on.
    let mut own = object(Form::Volume, "vm-second", disk);
    own["metadata"]["annotations"] = json!({ marks::POOL: pool });
    create(&cluster, &tenant, &own, true).await.unwrap_or_else(|refused| panic!("{}", refused.message));
    let volumes = cluster.api(&cluster.admin(), "cdi.kubevirt.io/v1beta1", "DataVolume", CATALOG).await;
    volumes.delete("vm-default-images-noble", &DeleteParams::default()).await.expect_err("in use");

    // Its volume is storage's and whose claim it was: a hoster who keeps volumes has it still.
    let pvs = cluster.api(&cluster.admin(), "v1", "PersistentVolume", "").await;
    let pv = claims(&cluster).await.get("vm-default-images-noble").await.expect("its claim").data["spec"]["volumeName"].clone();
    let pv = pv.as_str().expect("a bound claim has a volume");
    let retain = Patch::Merge(json!({ "spec": { "persistentVolumeReclaimPolicy": "Retain" } }));
    let volume = pvs.patch(pv, &PatchParams::default(), &retain).await.expect("a hoster's own");

    // The last consumer goes, and so does the golden; nothing is imported again.
    let machines = cluster.api(&cluster.admin(), "kubevirt.io/v1", "VirtualMachine", &tenant).await;
    machines.delete("vm", &DeleteParams::default()).await.expect("a consumer always goes");
    until_gone(volumes.clone(), "vm-default-images-noble").await;
    until_gone(claims(&cluster).await, "vm-default-images-noble").await;
    stage.until_reason("noble", "Retired").await;
    assert!(volumes.get_opt("vm-default-images-noble").await.expect("asked").is_none());
    let kept = until(pvs, pv, "its claim is gone", |pv: &DynamicObject| pv.data["status"]["phase"] == "Released").await;
    assert_eq!((kept.uid(), &kept.metadata.deletion_timestamp), (volume.uid(), &None));
    assert_eq!(
        (&kept.data["spec"]["capacity"], &kept.data["spec"]["csi"]),
        (&volume.data["spec"]["capacity"], &volume.data["spec"]["csi"])
    );

    // Taken back it is made anew, under the same name.
    harness::cli(Some(cluster.admin_kubeconfig()), ["retire", "noble", "--undo"]).await.ok();
    stage.until("noble", "Ready", "True").await;

    // Deleted with `Delete`: the object waits for its golden, the golden for its consumers.
    let policy = Patch::Merge(json!({ "spec": { "deletionPolicy": "Delete" } }));
    stage.images().patch("noble", &PatchParams::default(), &policy).await.expect("a free field");
    until(stage.images(), "noble", "our finalizer is on it", |image: &GoldenImage| !image.finalizers().is_empty()).await;
    create(&cluster, &tenant, &object(Form::Machine, "vm", disk), false).await.unwrap_or_else(|refused| panic!("{}", refused.message));
    stage.list(json!([])).await;
    stage.images().delete("noble", &DeleteParams::default()).await.expect("deletion is asked for");
    stage.until_reason("noble", "Retiring").await;
    assert!(claims(&cluster).await.get_opt("vm-default-images-noble").await.expect("asked").is_some());
    machines.delete("vm", &DeleteParams::default()).await.expect("a consumer always goes");
    until_gone(stage.images(), "noble").await;
    until_gone(claims(&cluster).await, "vm-default-images-noble").await;

    // Deleted with `Retain`: the object goes at once; its golden stays, protected, until it is retired by name.
    stage.list(json!([{ "name": "noble", "url": url }])).await;
    stage.until("noble", "Ready", "True").await;
    let few = json!({ "policy": "Selected", "namespaceSelector": { "matchLabels": { "licensed": "yes" } } });
    stage.list(json!([{ "name": "noble", "url": url, "access": few }])).await;
    until(claims(&cluster).await, "vm-default-images-noble", "the golden says whom it is for", |claim: &DynamicObject| {
        claim.annotations().get(marks::ACCESS).is_some_and(|access| access.contains("licensed"))
    })
    .await;
    stage.list(json!([])).await;
    stage.until("noble", "Unlisted", "True").await;
    stage.images().delete("noble", &DeleteParams::default()).await.expect("it goes");
    until_gone(stage.images(), "noble").await;
    // Whom it was for can clone it still, and nobody else can.
    eventually("the deletion is seen, and others are refused", || async {
        match create(&cluster, &tenant, &object(Form::Volume, "private", disk), true).await {
            Err(refused) if refused.message.contains("its GoldenImage is gone") && refused.message.contains("R18") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let licensed = format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {}, labels: {{licensed: \"yes\"}}}}}}", &*tenant);
    cluster.apply(&licensed).await;
    let made =
        create(&cluster, &tenant, &object(Form::Volume, "private", disk), true).await.unwrap_or_else(|told| panic!("{}", told.message));
    assert!(made.warnings.iter().any(|warning| warning.contains("is unmanaged")), "{:?}", made.warnings);
    let refused = volumes.delete("vm-default-images-noble", &DeleteParams::default()).await.expect_err("protected").to_string();
    assert!(refused.contains("golden-catalog retire vm-default-images-noble"), "{refused}");
    a_golden_whose_data_volume_vanished_is_kept(&stage, &scraped.address()).await;
    create(&cluster, &tenant, &object(Form::Volume, "private", disk), true).await.unwrap_or_else(|told| panic!("{}", told.message));
    harness::cli(Some(cluster.admin_kubeconfig()), ["retire", "vm-default-images-noble"]).await.ok();
    until_gone(claims(&cluster).await, "vm-default-images-noble").await;
    // An object that goes with our finalizer, as it should, is no step that failed.
    let log = leader.log();
    let failed: Vec<_> = log.lines().filter(|line| line.contains("a step failed") && line.contains("not found")).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    what_is_refused_is_told_and_done_when_it_is_allowed(&stage, &url).await;
    let other = format!("http://{}/other.qcow2", nginx.http);
    nginx.put("other.qcow2", &std::fs::read(images::qcow2(&raw)).expect("qcow2"));
    a_golden_goes_on_no_word_of_another_source(&stage, &url, &other).await;
    a_former_package_cannot_take_its_goldens_along(&stage, &url).await;
}

/// The DataVolume of a golden that no image has is deleted while nobody is asked about DataVolumes; the garbage collector would take its claim
/// along, and is asked about that.
async fn a_golden_whose_data_volume_vanished_is_kept(stage: &Stage<'_>, scraped: &str) {
    let (cluster, golden) = (stage.cluster, "vm-default-images-noble");
    let kept = claims(cluster).await.get(golden).await.expect("its claim").uid();
    let refusals = async || {
        let client = reqwest::Client::builder().no_proxy().build().expect("a client");
        let text = client.get(format!("http://{scraped}/metrics")).send().await.expect("metrics").text().await.expect("metrics");
        let count = "golden_image_admission_reviews_total{webhook=\"goldens\",verdict=\"refused\"} ";
        text.lines().find_map(|line| line.strip_prefix(count)?.parse::<u64>().ok()).unwrap_or_default()
    };
    let asks = async |operations: &[&str]| {
        let configurations: Api<ValidatingWebhookConfiguration> = Api::all(cluster.admin());
        let found = configurations.get(crate::stand::CONFIGURATIONS).await.expect("the webhooks");
        let index = found.webhooks.iter().flatten().position(|webhook| webhook.name.starts_with("goldens.")).expect("the guard");
        let path = format!("/webhooks/{index}/rules/0/operations");
        let patch = serde_json::from_value(json!([{ "op": "replace", "path": path, "value": operations }])).expect("a patch");
        configurations.patch(crate::stand::CONFIGURATIONS, &PatchParams::default(), &Patch::Json::<()>(patch)).await.expect("patched");
    };
    asks(&["UPDATE"]).await;
    let volumes = cluster.api(&cluster.admin(), "cdi.kubevirt.io/v1beta1", "DataVolume", CATALOG).await;
    let before = eventually("nobody is asked about DataVolumes", || async {
        let before = refusals().await;
        volumes.delete(golden, &DeleteParams::default()).await.map(|_| before).map_err(|error| error.to_string())
    })
    .await;
    until_gone(volumes, golden).await;
    eventually("the garbage collector is refused the claim", || async {
        if refusals().await > before { Ok(()) } else { Err("not yet".to_owned()) }
    })
    .await;
    let refused = claims(cluster).await.delete(golden, &DeleteParams::default().dry_run()).await.expect_err("a golden still").to_string();
    for text in ["take that off its `metadata.ownerReferences`", "golden-catalog retire vm-default-images-noble"] {
        assert!(refused.contains(text), "{refused}");
    }
    let claim = claims(cluster).await.get(golden).await.expect("it is kept");
    assert_eq!((claim.uid(), claim.metadata.deletion_timestamp), (kept, None));
    asks(&["CREATE", "UPDATE", "DELETE"]).await;
}

/// A GoldenImage is made again under its name, of another source: forcing that one out takes nothing of the former one's golden, which goes
/// by its own name; and force ends with the retirement that it was written for.
async fn a_golden_goes_on_no_word_of_another_source(stage: &Stage<'_>, url: &str, other: &str) {
    let (cluster, golden) = (stage.cluster, "vm-default-images-noble");
    stage.list(json!([{ "name": "noble", "url": url }])).await;
    stage.until("noble", "Ready", "True").await;
    let kept = claims(cluster).await.get(golden).await.expect("claim").uid();
    stage.list(json!([])).await;
    stage.until("noble", "Unlisted", "True").await;
    stage.images().delete("noble", &DeleteParams::default()).await.expect("it goes");
    until_gone(stage.images(), "noble").await;
    stage.list(json!([{ "name": "noble", "url": other }])).await;
    stage.until_reason("noble", "NameConflict").await;
    harness::cli(Some(cluster.admin_kubeconfig()), ["retire", "noble", "--force", "the other is poisoned"]).await.ok();
    let is_over = |image: &GoldenImage| {
        harness::condition(image, "Ready").is_some_and(|ready| ready.reason == "Retired")
            && !image.annotations().contains_key(marks::FORCE_RETIRE)
    };
    until(stage.images(), "noble", "it has no golden, and nothing of the force is left", is_over).await;
    let claim = claims(cluster).await.get(golden).await.expect("the golden stays");
    assert_eq!((claim.uid(), &claim.metadata.deletion_timestamp), (kept, &None));
    assert!(!claim.annotations().contains_key(marks::RETIRED), "{:?}", claim.annotations());
    harness::cli(Some(cluster.admin_kubeconfig()), ["retire", golden]).await.ok();
    until_gone(claims(cluster).await, golden).await;
    stage.list(json!([])).await;
    stage.until("noble", "Unlisted", "True").await;
    stage.images().delete("noble", &DeleteParams::default()).await.expect("nothing of it is left");
    until_gone(stage.images(), "noble").await;
}

const FROZEN: &str = r#"
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: frozen}
spec:
  matchConstraints:
    resourceRules:
      - {apiGroups: [cdi.kubevirt.io], apiVersions: [v1beta1], operations: [UPDATE], resources: [datavolumes]}
  validations:
    - expression: "!(has(object.metadata.annotations) && 'kubernetes-worker-image.cozystack.io/retiring' in object.metadata.annotations)"
      message: storage is frozen today
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: frozen}
spec: {policyName: frozen, validationActions: [Deny]}
"#;

/// A policy refuses one of the marks: the image says so, with who refuses what; when it is allowed, the retirement ends by itself.
async fn what_is_refused_is_told_and_done_when_it_is_allowed(stage: &Stage<'_>, url: &str) {
    let (cluster, golden) = (stage.cluster, "vm-default-images-noble");
    stage.list(json!([{ "name": "noble", "url": url }])).await;
    stage.until("noble", "Ready", "True").await;
    cluster.apply(FROZEN).await;
    // In force a moment after it is there; asked as who may write the marks.
    let daemon = cluster.client_as_service_account(stage::NAMESPACE, harness::chart::CONTROLLER).await;
    let as_daemon = cluster.api(&daemon, "cdi.kubevirt.io/v1beta1", "DataVolume", CATALOG).await;
    let probe = Patch::Merge(json!({ "metadata": { "annotations": { marks::RETIRING: "since now" } } }));
    eventually("the policy is in force", async || match as_daemon.patch(golden, &PatchParams::default().dry_run(), &probe).await {
        Err(kube::Error::Api(status)) if status.message.contains("storage is frozen today") => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    harness::cli(Some(cluster.admin_kubeconfig()), ["retire", "noble"]).await.ok();
    let told = stage.until("noble", "WriteRefused", "True").await;
    for text in ["DataVolume cozy-public/vm-default-images-noble", "'frozen'", "storage is frozen today", "goes on by itself"] {
        assert!(told.reason == "CannotRetire" && told.message.contains(text), "{told:?}");
    }
    let image = stage.until_reason("noble", "CannotRetire").await;
    let retiring = harness::condition(&image, "Retiring").expect("it is to go still");
    assert!(retiring.message.contains("storage is frozen today"), "{retiring:?}");
    let events = cluster.api(&cluster.admin(), "events.k8s.io/v1", "Event", CATALOG).await;
    harness::until_listed(events, "", "an Event on the claim says so too", |events: &[DynamicObject]| {
        events.iter().any(|event| event.data["reason"] == "CannotRetire" && event.data["regarding"]["name"] == golden)
    })
    .await;
    for kind in ["ValidatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy"] {
        let api = cluster.api(&cluster.admin(), "admissionregistration.k8s.io/v1", kind, "").await;
        api.delete("frozen", &DeleteParams::default()).await.expect("deleted");
    }
    until_gone(claims(cluster).await, golden).await;
    until(stage.images(), "noble", "it is retired, and nothing is refused any more", |image: &GoldenImage| {
        harness::condition(image, "WriteRefused").is_none()
            && harness::condition(image, "Ready").is_some_and(|ready| ready.reason == "Retired")
    })
    .await;
    stage.list(json!([])).await;
    stage.until("noble", "Unlisted", "True").await;
    stage.images().delete("noble", &DeleteParams::default()).await.expect("nothing of it is left");
    until_gone(stage.images(), "noble").await;
}

/// A target that the list adds and drops again: its golden is closed to new pools, waits for the VM that uses it, and goes, with every
/// webhook in force; the image's other golden is as it was.
async fn a_target_leaves_the_list(stage: &Stage<'_>, tenant: &str, url: &str) {
    let cluster = stage.cluster;
    let golden = "vm-default-images-noble-wffc";
    let disk = Disk { golden, class: Some("wffc"), ..RIGHT };
    let with = |targets: serde_json::Value| json!([{ "name": "noble", "url": url, "storage": { "targets": targets } }]);
    stage.list(with(json!([{}, { "storageClassName": "wffc" }]))).await;
    until(stage.images(), "noble", "both goldens are Ready", |image: &GoldenImage| {
        let targets = image.status.as_ref().map(|status| status.targets.as_slice()).unwrap_or_default();
        targets.len() == 2 && harness::condition(image, "Ready").is_some_and(|ready| ready.status == "True")
    })
    .await;
    let kept = claims(cluster).await.get("vm-default-images-noble").await.expect("claim").uid();
    let asked = object(Form::Machine, "beside", disk);
    eventually("a VM uses the further golden", || async {
        create(cluster, tenant, &asked, false).await.map(drop).map_err(|refused| refused.message)
    })
    .await;
    stage.list(with(json!([{}]))).await;
    let pool = format!("{tenant}/VirtualMachine/beside");
    until(stage.images(), "noble", "who needs it is told, and the rest is Ready", |image: &GoldenImage| {
        harness::condition(image, "Retiring").is_some_and(|told| told.message.contains(golden) && told.message.contains(&pool))
            && harness::condition(image, "Ready").is_some_and(|ready| ready.status == "True")
    })
    .await;
    let refused = eventually("new pools are turned away", || async {
        match create(cluster, tenant, &object(Form::Machine, "later", disk), true).await {
            Err(refused) if refused.message.contains("R23") => Ok(refused.message),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    assert!(refused.contains("is being retired"), "{refused}");
    // A clone of the wrong class is not sent to a golden that is to go.
    let astray = Disk { class: Some("wffc"), golden: "vm-default-images-noble", ..RIGHT };
    let refused = create(cluster, tenant, &object(Form::Machine, "astray", astray), true).await.expect_err("another class").message;
    assert!(refused.contains("R14") && !refused.contains(golden), "{refused}");
    let volumes = cluster.api(&cluster.admin(), "cdi.kubevirt.io/v1beta1", "DataVolume", CATALOG).await;
    volumes.delete(golden, &DeleteParams::default()).await.expect_err("in use");
    let machines = cluster.api(&cluster.admin(), "kubevirt.io/v1", "VirtualMachine", tenant).await;
    machines.delete("beside", &DeleteParams::default()).await.expect("a consumer always goes");
    until_gone(volumes, golden).await;
    until_gone(claims(cluster).await, golden).await;
    until(stage.images(), "noble", "as if it had never been", |image: &GoldenImage| {
        let targets = image.status.as_ref().map(|status| status.targets.as_slice()).unwrap_or_default();
        targets.len() == 1
            && harness::condition(image, "Retiring").is_none()
            && harness::condition(image, "Ready").is_some_and(|ready| ready.status == "True")
    })
    .await;
    assert_eq!(claims(cluster).await.get("vm-default-images-noble").await.expect("claim").uid(), kept);
    stage.list(json!([{ "name": "noble", "url": url }])).await;
}

/// Helm reads `keep` from its own manifest at an uninstall, where the former chart never wrote it. Whoever forgets to empty the list first
/// (docs/migration.md) meets the fence.
async fn a_former_package_cannot_take_its_goldens_along(stage: &Stage<'_>, url: &str) {
    let cluster = stage.cluster;
    let chart = harness::repository().join("e2e/charts/vm-default-images");
    let images = format!("images={}", json!([{ "name": "former", "url": url, "storage": "1Gi", "storageClass": "replicated" }]));
    let release = ["vm-default-images", "--namespace", "cozy-system"];
    let install =
        ["install", release[0], chart.to_str().expect("UTF-8"), release[1], release[2], "--create-namespace", "--set-json", &images];
    cluster.helm(install).await.ok();
    let volumes = cluster.api(&cluster.admin(), "cdi.kubevirt.io/v1beta1", "DataVolume", CATALOG).await;
    let imported = until(volumes.clone(), "vm-default-images-former", "the former chart's image is imported", |volume: &DynamicObject| {
        volume.data["status"]["phase"] == "Succeeded"
    })
    .await;
    stage.list(json!([{ "name": "former", "url": url }])).await;
    stage.until("former", "Ready", "True").await;
    until(volumes.clone(), "vm-default-images-former", "it is taken over", |volume: &DynamicObject| {
        volume.labels().get(marks::GOLDEN).is_some_and(|value| value == marks::GOLDEN_VALUE)
    })
    .await;
    // Helm says that it failed, and not why.
    cluster.helm(["uninstall", release[0], release[1], release[2]]).await.err();
    let kept = volumes.get("vm-default-images-former").await.expect("it is kept");
    assert_eq!((kept.uid(), &kept.metadata.deletion_timestamp), (imported.uid(), &None));
    assert!(claims(cluster).await.get("vm-default-images-former").await.expect("its claim too").metadata.deletion_timestamp.is_none());
}

/// A seeded source of small numbers.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

/// When the consumer comes.
#[derive(Debug, Clone, Copy)]
enum When {
    /// Before the first mark: the leader stands still until the consumer was answered.
    First,
    /// When the first mark is there.
    Late,
    /// After this time.
    After(Duration),
}

/// One race: a golden without an image is asked to go, and a pool that never used it asks for a clone a little later. Whoever wins, never
/// both. Goldens that are still being made race in `unfinished`.
async fn race(cluster: &Cluster, tenant: &str, name: String, when: When, answered: &Notify) -> bool {
    golden(cluster, &name, "replicated", "1Gi", "Block").await;
    let claims = claims(cluster).await;
    let ask = Patch::Merge(json!({ "metadata": { "annotations": { marks::RETIRE_REQUESTED: "now" } } }));
    harness::made(async || claims.patch(&name, &PatchParams::default(), &ask).await).await.expect("asked to go");
    match when {
        When::First => {}
        When::Late => {
            eventually(&format!("{name} is closed"), || async {
                match claims.get_opt(&name).await.map_err(|error| error.to_string())? {
                    Some(claim) if !claim.annotations().get(marks::RETIRING).is_some_and(|mark| mark.starts_with("closed")) => {
                        Err(format!("{:?}", claim.annotations()))
                    }
                    _ => Ok(()),
                }
            })
            .await;
        }
        When::After(delay) => tokio::time::sleep(delay).await,
    }
    let golden: &'static str = name.clone().leak();
    let asked = object(Form::Machine, &format!("vm-{name}"), Disk { golden, ..RIGHT });
    let is_admitted = is_admitted(cluster, tenant, &asked).await;
    if matches!(when, When::First) {
        answered.notify_one();
    }
    is_admitted
}

/// When the consumer of a round comes: half of them within the time in which the first mark is written, the first before it and the second after.
fn when(dice: &mut Dice, round: usize) -> When {
    match round {
        0 => When::First,
        1 => When::Late,
        _ if dice.roll(2) == 0 => When::After(Duration::from_millis(dice.roll(1200))),
        _ => When::After(Duration::from_millis(dice.roll(11_000))),
    }
}

async fn races(rounds: usize, at_once: usize, seed: u64) {
    if stand().await.is_none() {
        return;
    }
    harness::tell(&format!("{rounds} races, {at_once} at once, seed {seed}"));
    let cluster = own_hurried_cluster(REQUEST_TIMEOUT).await;
    let stand = Stand::build(&cluster).await;
    let proxy = ApiProxy::start(cluster.control_plane(), None).await;
    let leader = stand.leader_by(&cluster, "fence", RACE_WAIT, Some(&proxy)).await;
    let tenant = cluster.namespace("tenant").await;
    let mut dice = Dice(seed);
    let (mut admitted, mut refused, mut done) = (0, 0, 0);
    while done < rounds {
        let batch: Vec<(String, When)> =
            (0..at_once.min(rounds - done)).map(|n| (format!("race-{}", done + n), when(&mut dice, done + n))).collect();
        let (is_begin, answered) = (done == 0, Notify::new());
        done += batch.len();
        if is_begin {
            leader.pause();
        }
        let racing = batch.iter().map(|(name, when)| race(&cluster, &tenant, name.clone(), *when, &answered));
        let racing = futures::future::join_all(racing);
        // The leader's watches fall behind: it stands still now and then, with all connections open.
        let pauses: Vec<(u64, u64)> = (0..3).map(|_| (dice.roll(1500), dice.roll(900))).collect();
        let holding_up = async {
            if is_begin {
                answered.notified().await;
                leader.go_on();
            }
            for (before, pause) in pauses {
                tokio::time::sleep(Duration::from_millis(before)).await;
                leader.pause();
                tokio::time::sleep(Duration::from_millis(pause)).await;
                leader.go_on();
            }
        };
        // So does its watch of what consumes goldens alone, past the whole wait at times, while all else it does goes on.
        let holds: Vec<(u64, u64)> = (0..2).map(|_| (dice.roll(1500), dice.roll(14_000))).collect();
        let holding_back = async {
            for (before, hold) in holds {
                tokio::time::sleep(Duration::from_millis(before)).await;
                proxy.hold_watches(Some(VIRTUAL_MACHINES));
                tokio::time::sleep(Duration::from_millis(hold)).await;
                proxy.hold_watches(None);
            }
        };
        let (won, (), ()) = tokio::join!(racing, holding_up, holding_back);
        for ((name, when), consumer_won) in batch.iter().zip(won) {
            let claims = claims(&cluster).await;
            if consumer_won {
                admitted += 1;
                // The golden opens again for the pool that has it, and stays.
                until(claims, name, "it is kept", |claim: &DynamicObject| {
                    assert!(claim.metadata.deletion_timestamp.is_none(), "{name}: admitted ({when:?}) and deleted all the same");
                    claim.annotations().get(marks::RETIRING).is_some_and(|value| value.starts_with("since "))
                })
                .await;
            } else {
                refused += 1;
                eventually(&format!("{name} goes"), || async {
                    match claims.get_opt(name).await.map_err(|error| error.to_string())? {
                        None => Ok(()),
                        Some(claim) if claim.metadata.deletion_timestamp.is_some() => Ok(()),
                        Some(claim) => Err(format!("{:?}", claim.annotations())),
                    }
                })
                .await;
            }
        }
    }
    println!("{admitted} consumers were admitted and their goldens stayed; {refused} were refused and their goldens went");
    assert!(admitted > 0 && refused > 0, "a race that one side always wins shows nothing");
}

/// A sample for every run.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_and_a_retirement_never_both_win() {
    races(24, 24, 0x5eed).await;
}

/// `make soak`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "500 rounds take minutes"]
async fn five_hundred_races() {
    races(500, 50, 0x5eed_0500).await;
}

/// Force that somebody wrote on a golden's PVC, where no leader takes it off, is no word of whoever retires its image without force.
async fn force_left_on_a_golden_is_taken_off(cluster: &Cluster) {
    golden(cluster, "armed", "replicated", "6Gi", "Block").await;
    golden(cluster, "another-armed", "replicated", "6Gi", "Block").await;
    let image = json!({
        "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": "armed" },
        "spec": { "source": { "http": { "url": "https://x.example/armed.qcow2" } } },
    });
    cluster.apply(&image.to_string()).await;
    let claims = claims(cluster).await;
    let uid = claims.get("armed").await.expect("claim").uid();
    let record = json!({ "targets": [{ "requestedClass": "", "golden": "armed", "claimUID": uid, "attempts": 1 }] });
    set_status(cluster, "cozystack.io/v1alpha1", "GoldenImage", "", "armed", record).await;
    let arm = Patch::Merge(json!({ "metadata": { "annotations": { marks::FORCE_RETIRE: "long ago" } } }));
    for asked in [&["retire", "armed"][..], &["retire", "armed", "--undo"]] {
        for name in ["armed", "another-armed"] {
            harness::made(async || claims.patch(name, &PatchParams::default(), &arm).await).await.expect("armed");
        }
        harness::cli(Some(cluster.admin_kubeconfig()), asked).await.ok();
        let is_armed = async |name: &str| claims.get(name).await.expect("claim").annotations().contains_key(marks::FORCE_RETIRE);
        assert_eq!((is_armed("armed").await, is_armed("another-armed").await), (false, true), "{asked:?}");
    }
    let images = cluster.api(&cluster.admin(), "cozystack.io/v1alpha1", "GoldenImage", "").await;
    images.delete("armed", &DeleteParams::default()).await.expect("nothing keeps it");
}

/// By force it goes in spite of what needs it, and says so.
pub async fn force_is_told(cluster: &Cluster, stand: &Stand) {
    force_left_on_a_golden_is_taken_off(cluster).await;
    let leader = stand.leader(cluster, "force", "60s").await;
    let tenant = cluster.namespace("tenant").await;
    golden(cluster, "forced", "replicated", "6Gi", "Block").await;
    create(cluster, &tenant, &object(Form::Machine, "needs-forced", Disk { golden: "forced", ..RIGHT }), false)
        .await
        .unwrap_or_else(|refused| panic!("{}", refused.message));
    // Asked to go without force first: that it is kept shows that the leader knows who needs it.
    harness::cli(Some(cluster.admin_kubeconfig()), ["retire", "forced"]).await.ok();
    crate::moments::until_kept(cluster, "forced").await;
    harness::cli(Some(cluster.admin_kubeconfig()), ["retire", "forced", "--force", "the disk is poisoned"]).await.ok();
    let claims = claims(cluster).await;
    until(claims, "forced", "it goes", |claim: &DynamicObject| claim.metadata.deletion_timestamp.is_some()).await;
    let events = cluster.api(&cluster.admin(), "events.k8s.io/v1", "Event", CATALOG).await;
    harness::until_listed(events, "", "an Event says why and what needed it", |events: &[DynamicObject]| {
        events.iter().any(|event| {
            let note = event.data["note"].as_str().unwrap_or_default();
            note.contains("the disk is poisoned") && note.contains("needs-forced") && event.data["type"] == "Warning"
        })
    })
    .await;
    leader.kill();
    drop(leader);
    crate::moments::release_lease(cluster).await;
}
