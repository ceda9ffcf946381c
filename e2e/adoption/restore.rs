//! R7: goldens that a backup brought back, under new UIDs: reported, taken over when a person says so, never imported over.

use std::collections::BTreeMap;

use golden_catalog::api::GoldenImage;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{
    back,
    harness::{self, Daemon},
    scene::Scene,
    stage::{CATALOG, images},
    twins::end,
};

const ADOPT: &str = "kubernetes-worker-image.cozystack.io/adopt";
/// CDI's words for backup tools (doc of CDI, "Backing up and restoring KubeVirt resources"): the claim is filled, and for whom.
const POPULATED_FOR: &str = "cdi.kubevirt.io/storage.populatedFor";

/// Velero's label on everything that it restores.
const RESTORED_BY: &str = "velero.io/restore-name";

/// What comes back of one image.
struct Case {
    name: &'static str,
    /// The DataVolume too, which CDI then calls Succeeded, unseen.
    has_volume: bool,
    /// The GoldenImage's status is there, with the UID of the claim that was.
    has_status: bool,
    /// It is a golden of a former catalog, which was lost before the image was listed.
    is_former: bool,
    /// What brought it back left our marks out.
    is_bare: bool,
}

const CASES: [Case; 7] = [
    Case { name: "pair", has_volume: true, has_status: true, is_former: false, is_bare: false },
    Case { name: "pair-elsewhere", has_volume: true, has_status: false, is_former: false, is_bare: false },
    Case { name: "claim", has_volume: false, has_status: true, is_former: false, is_bare: false },
    Case { name: "bare", has_volume: false, has_status: true, is_former: false, is_bare: true },
    Case { name: "claim-elsewhere", has_volume: false, has_status: false, is_former: false, is_bare: false },
    Case { name: "relic", has_volume: true, has_status: false, is_former: true, is_bare: false },
    Case { name: "relic-claim", has_volume: false, has_status: false, is_former: true, is_bare: false },
];

/// What is lost and restored once more, from a backup that was taken after a person had consented.
const AGAIN: [&str; 3] = ["pair", "claim-elsewhere", "relic"];

impl Case {
    fn golden(&self) -> String {
        format!("vm-default-images-{}", self.name)
    }

    fn image(&self, scene: &Scene<'_>) -> GoldenImage {
        let spec = json!({ "source": { "http": { "url": scene.url(&format!("{}.img", self.name)) } } });
        let object =
            json!({ "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": self.name }, "spec": spec });
        serde_json::from_value(object).expect("object")
    }

    async fn make(&self, scene: &Scene<'_>) {
        scene.stage.images().create(&PostParams::default(), &self.image(scene)).await.expect("created");
    }

    /// What the former charts, or a hand, had CDI import.
    async fn make_formerly(&self, scene: &Scene<'_>) {
        let object = json!({
            "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
            "metadata": {
                "name": self.golden(), "namespace": CATALOG,
                "annotations": { "cdi.kubevirt.io/storage.bind.immediate.requested": "true" },
            },
            "spec": {
                "source": { "http": { "url": scene.url(&format!("{}.img", self.name)) } },
                "storage": { "resources": { "requests": { "storage": "1Gi" } }, "storageClassName": "replicated" },
            },
        });
        create(&scene.volumes().await, object).await;
    }

    async fn is_imported(&self, scene: &Scene<'_>) {
        harness::until(scene.volumes().await, &self.golden(), "it is imported", |volume: &DynamicObject| {
            volume.data["status"]["phase"] == "Succeeded"
        })
        .await;
    }

    /// Everything that anybody asked: of upstream for the bytes, and an importer of the spool.
    fn asked(&self, scene: &Scene<'_>) -> (usize, usize) {
        (scene.upstream_requests(&[&format!("/{}.img", self.name)]), scene.stage.cdi.requests_of(CATALOG, &self.golden()).len())
    }

    /// The GoldenImage as a fresh cluster has it: without status.
    async fn make_elsewhere(&self, scene: &Scene<'_>) {
        if scene.stage.images().get_opt(self.name).await.expect("asked").is_some() {
            scene.stage.images().delete(self.name, &DeleteParams::default()).await.expect("deleted");
            harness::until_gone(scene.stage.images(), self.name).await;
        }
        self.make(scene).await;
    }

    async fn claim_uid(&self, scene: &Scene<'_>) -> Option<String> {
        scene.claims().await.get(&self.golden()).await.expect("the claim").uid()
    }
}

/// Volumes lost and brought back while no daemon runs: into the same cluster, and into one that has never seen the image; and lost and
/// brought back once more, with the consent that was given to the first.
///
/// Gives the daemon and its guard, which is on from then on.
pub async fn restored_goldens_are_reported_and_taken_over_when_asked(scene: &Scene<'_>, daemon: Daemon) -> (Daemon, Daemon) {
    let raw = images::raw_disk(scene.dir.path(), "restored", 32 << 20, 4, 9);
    let bytes = std::fs::read(images::qcow2(&raw)).expect("qcow2");
    for case in &CASES {
        scene.nginx.put(&format!("{}.img", case.name), &bytes);
        match case.is_former {
            true => case.make_formerly(scene).await,
            false => case.make(scene).await,
        }
    }
    for case in &CASES {
        match case.is_former {
            true => case.is_imported(scene).await,
            false => drop(scene.stage.until(case.name, "Ready", "True").await),
        }
    }
    end(daemon).await;
    let all: Vec<_> = CASES.iter().collect();
    let before = lose_and_restore(scene, &all).await;
    plan_foretells_it(scene, &all).await;
    let daemon = scene.stage.daemon("a");
    daemon.ready().await;
    reported_and_then_taken(scene, &all, &before).await;
    end(daemon).await;

    // The backup of what was taken over consents to nothing.
    let again: Vec<_> = CASES.iter().filter(|case| AGAIN.contains(&case.name)).collect();
    let before = lose_and_restore(scene, &again).await;
    plan_foretells_it(scene, &again).await;
    let guarded = back::guarded(scene).await;
    reported_and_then_taken(scene, &again, &before).await;
    for case in &CASES {
        scene.stage.images().delete(case.name, &DeleteParams::default()).await.expect("deleted");
    }
    guarded
}

/// What was asked of anybody, and the claim's UID now.
type Before = ((usize, usize), Option<String>);

/// All at once: most of it is waiting for controllers.
async fn lose_and_restore(scene: &Scene<'_>, cases: &[&Case]) -> Vec<Before> {
    let one = async |case: &Case| {
        let former = case.claim_uid(scene).await;
        restore(scene, case).await;
        let now = case.claim_uid(scene).await;
        assert_ne!(now, former, "{}", case.name);
        let asked = case.asked(scene);
        if !case.has_status {
            case.make_elsewhere(scene).await;
        }
        (asked, now)
    };
    futures::future::join_all(cases.iter().map(|case| one(case))).await
}

/// `plan --against-cluster` says of each what the daemon will say.
async fn plan_foretells_it(scene: &Scene<'_>, cases: &[&Case]) {
    let images: Vec<_> = cases.iter().map(|case| json!({ "name": case.name, "url": scene.url(&format!("{}.img", case.name)) })).collect();
    let report = scene.planned("restored", &json!(images)).await;
    for (case, row) in cases.iter().zip(report["images"].as_array().expect("images")) {
        let problem = &row["problems"][0];
        let uid = case.claim_uid(scene).await.expect("UID");
        let has_value = problem["message"].as_str().is_some_and(|message| message.contains(&format!("{ADOPT}: {uid}")));
        assert!(problem["reason"] == "GoldenReplaced" && has_value, "{}: {row}", case.name);
    }
}

/// Told with the very value that is wanted; a word that came with the backup is none; and when a person sets it, taken over as it is.
async fn reported_and_then_taken(scene: &Scene<'_>, cases: &[&Case], before: &[Before]) {
    let mut remedies = Vec::new();
    for (case, (_, uid)) in cases.iter().zip(before) {
        let told = scene.stage.until_reason(case.name, "GoldenReplaced").await;
        let ready = harness::condition(&told, "Ready").expect("Ready");
        let wanted = format!("{ADOPT}: {}", uid.as_deref().expect("UID"));
        assert!(ready.message.contains(&wanted), "{}: {}", case.name, ready.message);
        remedies.push(named_by(&ready.message));
    }
    for (case, (labels, annotations)) in cases.iter().zip(remedies) {
        assert_eq!((annotations.len(), labels.len()), (1, if case.is_bare { 3 } else { 0 }), "{}: {labels:?}", case.name);
        let consent = json!({ "metadata": { "annotations": annotations, "labels": labels } });
        scene.claims().await.patch(&case.golden(), &PatchParams::default(), &Patch::Merge(&consent)).await.expect("annotated");
    }
    for (case, (asked, uid)) in cases.iter().zip(before) {
        scene.stage.until(case.name, "Ready", "True").await;
        let image = scene.stage.images().get(case.name).await.expect("image");
        let verified = harness::condition(&image, "Verified").expect("Verified");
        assert_eq!((verified.status.as_str(), verified.reason.as_str()), ("Unknown", "Adopted"), "{}", case.name);
        let target = image.status.expect("status").targets.remove(0);
        assert_eq!((target.adopted, &target.claim_uid), (Some(true), uid), "{}", case.name);
        assert_eq!(&case.claim_uid(scene).await, uid, "{}: the claim is the one that came back", case.name);
        assert_eq!(&case.asked(scene), asked, "{}: upstream was asked, or an importer was at work", case.name);
        let volume = scene.volumes().await.get_opt(&case.golden()).await.expect("asked");
        assert_eq!(volume.is_some(), case.has_volume, "{}: a DataVolume was made or taken away", case.name);
        // The marks are written after the status: the next restore copies them.
        harness::until(scene.claims().await, &case.golden(), "it carries our mark", |claim: &DynamicObject| {
            claim.labels().get("kubernetes-worker-image.cozystack.io/image").is_some_and(|image| image == case.name)
        })
        .await;
    }
}

/// The labels and the annotation that a message says are to be written, as a person reads them.
fn named_by(message: &str) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
    let quoted = message.split('`').skip(1).step_by(2);
    let pairs = quoted.filter_map(|text| text.split_once(": ")).map(|(key, value)| (key.to_owned(), value.to_owned()));
    pairs.partition(|(key, _)| key != ADOPT)
}

/// Takes DataVolume and claim away and brings back what a backup tool would, on the same storage: other UIDs, no owners, the same labels, annotations and spec.
async fn restore(scene: &Scene<'_>, case: &Case) {
    let golden = case.golden();
    let (volumes, claims) = (scene.volumes().await, scene.claims().await);
    let storage: Api<PersistentVolume> = Api::all(scene.stage.cluster.admin());
    let volume = volumes.get_opt(&golden).await.expect("asked");
    let claim = claims.get(&golden).await.expect("the claim");
    let disk = claim.data["spec"]["volumeName"].as_str().expect("it is bound").to_owned();
    let merge = |value: Value| Patch::Merge(value);
    let retain = merge(json!({ "spec": { "persistentVolumeReclaimPolicy": "Retain" } }));
    storage.patch(&disk, &PatchParams::default(), &retain).await.expect("kept");
    match &volume {
        Some(_) => drop(volumes.delete(&golden, &DeleteParams::background()).await.expect("deleted")),
        None => drop(claims.delete(&golden, &DeleteParams::background()).await.expect("deleted")),
    }
    harness::until_gone(volumes.clone(), &golden).await;
    harness::until_gone(claims.clone(), &golden).await;
    harness::until(storage.clone(), &disk, "it is let go", |disk: &PersistentVolume| {
        disk.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Released")
    })
    .await;
    storage.patch(&disk, &PatchParams::default(), &merge(json!({ "spec": { "claimRef": null } }))).await.expect("free again");

    let mut annotations = json!(claim.annotations());
    let texts = annotations.as_object_mut().expect("a map");
    texts.retain(|key, _| !key.starts_with("pv.kubernetes.io/"));
    if case.has_volume {
        texts.insert(POPULATED_FOR.to_owned(), json!(golden));
    }
    // As a former release left it on what it had taken over.
    texts.entry(ADOPT).or_insert_with(|| json!("true"));
    let labels = |of: &DynamicObject| {
        let mut labels = of.labels().clone();
        labels.retain(|key, _| !case.is_bare || !key.starts_with("kubernetes-worker-image.cozystack.io/"));
        labels.extend(case.is_former.then(|| (RESTORED_BY.to_owned(), "a-restore".to_owned())));
        labels
    };
    let mut spec = claim.data["spec"].clone();
    let fields = spec.as_object_mut().expect("a spec");
    fields.retain(|key, _| key != "dataSource" && key != "dataSourceRef");
    let restored = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "name": golden, "namespace": CATALOG, "labels": labels(&claim), "annotations": annotations }, "spec": spec,
    });
    create(&claims, restored).await;
    let bound: Api<PersistentVolumeClaim> = Api::namespaced(scene.stage.cluster.admin(), CATALOG);
    harness::until(bound, &golden, "it is bound to its former volume", |claim: &PersistentVolumeClaim| {
        claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
    })
    .await;
    if let Some(volume) = volume.filter(|_| case.has_volume) {
        let mut annotations = json!(volume.annotations());
        annotations["cdi.kubevirt.io/storage.prePopulated"] = json!(golden);
        let restored = json!({
            "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
            "metadata": { "name": golden, "namespace": CATALOG, "labels": labels(&volume), "annotations": annotations },
            "spec": volume.data["spec"],
        });
        create(&volumes, restored).await;
        harness::until(volumes, &golden, "CDI takes its word", |volume: &DynamicObject| volume.data["status"]["phase"] == "Succeeded")
            .await;
    }
}

async fn create(api: &Api<DynamicObject>, object: Value) {
    let object: DynamicObject = serde_json::from_value(object).expect("an object");
    api.create(&PostParams::default(), &object).await.unwrap_or_else(|error| panic!("{}: {error}", object.name_any()));
}
