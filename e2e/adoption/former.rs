//! Goldens of the former catalogs: taken over, left alone, given back.

use golden_catalog::api::GoldenImage;
use kube::{
    ResourceExt as _,
    api::{DeleteParams, DynamicObject, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{
    crd, harness,
    scene::{Goldens, Scene},
    stage::{CATALOG, images},
};

pub const SCHEMATIC: &str = "ce4c980550dd2ab1b17bbf2b08801c7eb59418eafe8f279833297925d67c7515";
const TALOS: &str = "talos-v1.13.6-b5a1de36eb14";
/// The former charts' namespace.
pub const SYSTEM: &str = "cozy-system";
const MIB: u64 = 1 << 20;

/// The images whose goldens are the same as the former catalogs'.
pub const ADOPTED: [&str; 3] = ["noble", "hand", TALOS];

fn golden_of(image: &str) -> String {
    if image == TALOS { format!("talos-worker-{SCHEMATIC}-v1.13.6") } else { format!("vm-default-images-{image}") }
}

fn former_list(scene: &Scene<'_>) -> Value {
    let image = |name: &str| json!({ "name": name, "url": scene.url(&format!("{name}.img")), "storage": "1Gi" });
    json!([image("noble"), image("other"), image("collected")])
}

async fn helm(scene: &Scene<'_>, chart: &str, images: &Value, more: &[&str]) {
    let chart_path = harness::repository().join("e2e/charts").join(chart);
    let images = format!("images={images}");
    let mut arguments =
        vec!["upgrade", "--install", chart, chart_path.to_str().expect("UTF-8"), "--namespace", SYSTEM, "--create-namespace"];
    arguments.extend(["--set-json", &images]);
    arguments.extend(more);
    scene.stage.cluster.helm(arguments).await.ok();
}

/// The two charts' goldens, by Helm, and one by hand (`hack/cdi_golden_image_create.sh`), imported by CDI as they were.
pub async fn install(scene: &Scene<'_>) {
    let raw = images::raw_disk(scene.dir.path(), "disk", 48 * MIB, 4, 5);
    let bytes = std::fs::read(images::qcow2(&raw)).expect("qcow2");
    let talos = format!("image/{SCHEMATIC}/v1.13.6/openstack-amd64.raw.xz");
    for name in ["noble.img", "other.img", "collected.img", "hand.img", &talos] {
        scene.nginx.put(name, &bytes);
    }
    helm(scene, "vm-default-images", &former_list(scene), &[]).await;
    let factory = format!("imageFactoryURL={}", scene.url(""));
    let list = json!([{ "schematicID": SCHEMATIC, "version": "v1.13.6", "storage": "1Gi" }]);
    helm(scene, "worker-images", &list, &["--set", &factory]).await;
    let hand = json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
        "metadata": {
            "name": "vm-default-images-hand", "namespace": CATALOG,
            "annotations": { "cdi.kubevirt.io/storage.bind.immediate.requested": "true" },
        },
        "spec": {
            "source": { "http": { "url": scene.url("hand.img") } },
            "storage": { "resources": { "requests": { "storage": "1Gi" } }, "storageClassName": "replicated" },
        },
    });
    scene.stage.cluster.apply(&hand.to_string()).await;
    let volumes = scene.volumes().await;
    for image in ["noble", "other", "collected", "hand", TALOS] {
        harness::until(volumes.clone(), &golden_of(image), "it is imported", |volume: &DynamicObject| {
            volume.data["status"]["phase"] == "Succeeded"
        })
        .await;
    }
    // CDI before v1.62 could take a finished DataVolume away and leave its claim.
    scene.stage.cdi.garbage_collect(CATALOG, &golden_of("collected"));
    harness::until_gone(volumes, &golden_of("collected")).await;
}

pub fn entries(scene: &Scene<'_>) -> Value {
    json!([
        { "name": "noble", "url": scene.url("noble.img"), "storageClass": "replicated", "storage": "1024Mi", "description": "Noble" },
        { "name": "hand", "url": scene.url("hand.img") },
        { "name": "other", "url": scene.url("another.img") },
        { "name": "collected", "url": scene.url("collected.img") },
        { "schematicID": SCHEMATIC, "version": "v1.13.6", "factoryURL": scene.url("").trim_end_matches('/') },
    ])
}

/// How often upstream was asked for what is taken over, and by how many requests each importer was at work.
pub fn work(scene: &Scene<'_>) -> (usize, Vec<usize>) {
    let talos = format!("/image/{SCHEMATIC}/v1.13.6/openstack-amd64.raw.xz");
    let requests = scene.upstream_requests(&["/noble.img", "/hand.img", &talos, "/schematics"]);
    (requests, ADOPTED.iter().map(|image| scene.stage.cdi.requests_of(CATALOG, &golden_of(image)).len()).collect())
}

/// R5: same UIDs, nothing asked of upstream, nothing imported since there was a daemon (`worked` is from before), `keep` written.
pub async fn goldens_are_taken_over(scene: &Scene<'_>, before: &Goldens, worked: (usize, Vec<usize>)) {
    for image in ADOPTED {
        scene.stage.until(image, "Ready", "True").await;
    }
    for image in ADOPTED {
        let object = scene.stage.images().get(image).await.expect("image");
        let verified = harness::condition(&object, "Verified").expect("Verified");
        assert_eq!((verified.status.as_str(), verified.reason.as_str()), ("Unknown", "Adopted"), "{image}");
        let target = object.status.expect("status").targets.remove(0);
        assert_eq!((target.golden.as_deref(), target.adopted, target.attempts), (Some(golden_of(image).as_str()), Some(true), 0));
        assert_eq!(target.claim_uid.as_ref(), before.get(&format!("pvc/{}", golden_of(image))), "{image}");
        for (kind, api) in [("dv", scene.volumes().await), ("pvc", scene.claims().await)] {
            let marked = harness::until(api, &golden_of(image), "it is marked", |object: &DynamicObject| {
                object.labels().get("kubernetes-worker-image.cozystack.io/golden").is_some_and(|value| value == "true")
                    && object.annotations().get("helm.sh/resource-policy").is_some_and(|policy| policy == "keep")
            })
            .await;
            assert_eq!(marked.labels().get("kubernetes-worker-image.cozystack.io/image").map(String::as_str), Some(image), "{kind}");
        }
    }
    // The claim says that it was this very one, and its UID is what no backup copies; what a release before that left is brought up to
    // date, and `Ready` is never False meanwhile (seen by the whole story).
    for (image, left) in ADOPTED.into_iter().zip([json!("true"), Value::Null, json!("0a000000-0000-4000-8000-000000000001")]) {
        let (claims, golden) = (scene.claims().await, golden_of(image));
        let uid = before.get(&format!("pvc/{golden}")).expect("UID");
        let is_meant = |claim: &DynamicObject| claim.annotations().get("kubernetes-worker-image.cozystack.io/adopt") == Some(uid);
        harness::until(claims.clone(), &golden, "it says by its UID that it was taken over", is_meant).await;
        let before_that = json!({ "metadata": { "annotations": { "kubernetes-worker-image.cozystack.io/adopt": left } } });
        claims.patch(&golden, &PatchParams::default(), &Patch::Merge(&before_that)).await.expect("patched");
        harness::until(claims, &golden, "it says so again", is_meant).await;
    }
    // Helm's own notes are as they were: the old release still knows its goldens.
    let noble = scene.volumes().await.get(&golden_of("noble")).await.expect("volume");
    assert_eq!(noble.annotations().get("meta.helm.sh/release-name").map(String::as_str), Some("vm-default-images"));
    assert_eq!(&scene.goldens().await, before);
    assert_eq!(work(scene), worked, "upstream was asked, or an importer was at work");
}

/// Not equal: told with the difference, never patched, never deleted.
pub async fn what_differs_is_left_alone_and_told(scene: &Scene<'_>, before: &Goldens) {
    let other = scene.stage.until_reason("other", "NameConflict").await;
    let ready = harness::condition(&other, "Ready").expect("Ready");
    assert!(ready.message.contains("/other.img") && ready.message.contains("/another.img"), "{}", ready.message);
    for api in [scene.volumes().await, scene.claims().await] {
        let object = api.get(&golden_of("other")).await.expect("there");
        assert!(!object.labels().keys().any(|label| label.starts_with("kubernetes-worker-image")), "{:?}", object.labels());
        assert!(!object.annotations().contains_key("helm.sh/resource-policy"));
    }
    assert_eq!(&scene.goldens().await, before);
}

/// A claim whose DataVolume is gone does not say where its bytes came from: a person does.
pub async fn what_cannot_be_told_is_taken_over_when_asked(scene: &Scene<'_>, before: &Goldens) {
    let told = scene.stage.until_reason("collected", "NameConflict").await;
    let message = harness::condition(&told, "Ready").expect("Ready").message.clone();
    let uid = scene.claims().await.get(&golden_of("collected")).await.expect("claim").uid().expect("UID");
    assert!(message.contains(&format!("kubernetes-worker-image.cozystack.io/adopt: {uid}")), "{message}");
    let consent = json!({ "metadata": { "annotations": { "kubernetes-worker-image.cozystack.io/adopt": "true" } } });
    scene.claims().await.patch(&golden_of("collected"), &PatchParams::default(), &Patch::Merge(&consent)).await.expect("annotated");
    scene.stage.until("collected", "Ready", "True").await;
    harness::until(scene.claims().await, &golden_of("collected"), "the word is turned into what is meant", |claim: &DynamicObject| {
        claim.annotations().get("kubernetes-worker-image.cozystack.io/adopt") == Some(&uid)
    })
    .await;
    assert_eq!(&scene.goldens().await, before);
}

/// The migration's order, and its way back (docs/migration.md).
pub async fn the_old_list_can_be_emptied_and_filled_again(scene: &Scene<'_>, before: &Goldens) {
    // `other` is not ours: whoever owns it may take it away.
    helm(scene, "vm-default-images", &json!([]), &[]).await;
    harness::until_gone(scene.volumes().await, &golden_of("other")).await;
    let kept = |all: &Goldens| -> Goldens {
        all.iter()
            .filter(|(name, _)| !name.contains("other") && !name.contains("collected"))
            .map(|(name, uid)| (name.clone(), uid.clone()))
            .collect()
    };
    assert_eq!(kept(&scene.goldens().await), kept(before));
    let mut list = former_list(scene);
    list.as_array_mut().expect("list").truncate(1);
    helm(scene, "vm-default-images", &list, &[]).await;
    let worker = json!([{ "schematicID": SCHEMATIC, "version": "v1.13.6", "storage": "1Gi" }]);
    let factory = format!("imageFactoryURL={}", scene.url(""));
    helm(scene, "worker-images", &worker, &["--set", &factory]).await;
    assert_eq!(kept(&scene.goldens().await), kept(before), "the old charts take their goldens up as they are");
    scene.stage.until("noble", "Ready", "True").await;
    // Upstream has no `another.img`: the name is free, and the image says what is wrong with its own source.
    scene.stage.until_reason("other", "NotFound").await;
}

/// R24: an entry that is dropped takes nothing with it; put back, it is as it was.
pub async fn an_entry_leaves_and_comes_back(scene: &Scene<'_>, before: &Goldens) {
    let mut fewer = entries(scene);
    fewer.as_array_mut().expect("list").remove(0);
    scene.list(fewer).await;
    scene.stage.until("noble", "Unlisted", "True").await;
    scene.stage.until("noble", "Ready", "True").await;
    scene.list(entries(scene)).await;
    harness::until(scene.stage.images(), "noble", "it is listed again", |image: &GoldenImage| {
        harness::condition(image, "Unlisted").is_none()
    })
    .await;
    let uid = scene.claims().await.get(&golden_of("noble")).await.expect("claim").uid();
    assert_eq!(uid.as_ref(), before.get(&format!("pvc/{}", golden_of("noble"))));
}

/// R4, and free fields: what an entry says no more, the object does not say either.
pub async fn edits_are_told_and_fields_that_leave_are_taken_off(scene: &Scene<'_>) {
    let mut edited = entries(scene);
    edited[0]["url"] = json!(format!("{}?token=hunter2", scene.url("noble.img")));
    edited[1]["storageClass"] = json!("wffc");
    scene.list(edited).await;
    let told = scene.stage.until("noble", "EntryEdited", "True").await;
    assert!(told.message.contains("images[0] (noble)") && told.message.contains("`url`"), "{}", told.message);
    assert!(told.message.contains("→") && !told.message.contains("hunter2"), "{}", told.message);
    let told = scene.stage.until("hand", "EntryEdited", "True").await;
    assert!(told.message.contains("storage.targets"), "{}", told.message);

    let mut without = entries(scene);
    without[0].as_object_mut().expect("entry").remove("description");
    scene.list(without).await;
    let noble = harness::until(scene.stage.images(), "noble", "the description is taken off", |image: &GoldenImage| {
        image.spec.description.is_none() && harness::condition(image, "EntryEdited").is_none()
    })
    .await;
    assert!(noble.spec.storage.is_some());
    scene.list(entries(scene)).await;
    harness::until(scene.stage.images(), "hand", "the edit is taken back", |image: &GoldenImage| {
        harness::condition(image, "EntryEdited").is_none()
    })
    .await;

    // A digest may be given once: by hand it is no edit of the entry, whose free fields still arrive, also on what was taken over.
    let digest = format!("sha256:{}", "1".repeat(64));
    let given = Patch::Merge(json!({ "spec": { "digest": digest } }));
    scene.stage.images().patch("hand", &PatchParams::default(), &given).await.expect("given");
    let mut more = entries(scene);
    more[1]["defaults"] = json!({ "preference": "ubuntu" });
    scene.list(more).await;
    for (api, is_there) in [(scene.volumes().await, true), (scene.claims().await, true), (scene.claims().await, false)] {
        if !is_there {
            scene.list(entries(scene)).await;
        }
        harness::until(api, &golden_of("hand"), "what virtual machines get is as the entry says", |object: &DynamicObject| {
            object.labels().get("instancetype.kubevirt.io/default-preference").map(String::as_str) == is_there.then_some("ubuntu")
        })
        .await;
    }
    let hand = scene.stage.images().get("hand").await.expect("image");
    assert_eq!(hand.spec.digest, Some(digest));
    assert!(harness::condition(&hand, "EntryEdited").is_none(), "{:?}", hand.status);
}

/// R24, with the real garbage collector at work.
pub async fn a_deleted_image_and_a_deleted_crd_take_nothing_with_them(scene: &Scene<'_>, before: &Goldens) {
    let requests = || ADOPTED.iter().map(|image| scene.stage.cdi.requests_of(CATALOG, &golden_of(image)).len()).collect::<Vec<_>>();
    let imported = requests();
    let kept = |all: &Goldens| -> Goldens {
        let of_adopted = |name: &str| ADOPTED.iter().any(|image| name.ends_with(&golden_of(image)));
        all.iter().filter(|(name, _)| of_adopted(name)).map(|(name, uid)| (name.clone(), uid.clone())).collect()
    };
    let uid = scene.stage.images().get("noble").await.expect("image").uid();
    scene.stage.images().delete("noble", &DeleteParams::default()).await.expect("deleted");
    harness::until(scene.stage.images(), "noble", "it is made anew and Ready", |image: &GoldenImage| {
        image.uid() != uid && harness::condition(image, "Ready").is_some_and(|ready| ready.status == "True")
    })
    .await;
    assert_eq!(kept(&scene.goldens().await), kept(before));

    crd::delete(scene).await;
    assert_eq!(kept(&scene.goldens().await), kept(before));
    crd::reinstall(scene).await;
    for image in ADOPTED {
        scene.stage.until(image, "Ready", "True").await;
        let object = scene.stage.images().get(image).await.expect("image");
        let target = object.status.expect("status").targets.remove(0);
        assert_eq!(target.claim_uid.as_ref(), before.get(&format!("pvc/{}", golden_of(image))), "{image}");
        assert_eq!(target.adopted, Some(true), "{image}");
    }
    assert_eq!(kept(&scene.goldens().await), kept(before));
    assert_eq!(requests(), imported, "an importer was at work");
}

/// `plan --against-cluster`: what the daemon would say, before it does.
pub async fn plan_tells_it_beforehand(scene: &Scene<'_>) {
    let report = scene.planned("planned", &json!(entries(scene))).await;
    for row in report["images"].as_array().expect("images") {
        let (name, text) = (row["name"].as_str().expect("name"), row.to_string());
        match name {
            "other" => assert!(text.contains("NameConflict") && text.contains("/other.img"), "{text}"),
            "collected" => assert!(text.contains("NameConflict") && text.contains("kubernetes-worker-image.cozystack.io/adopt"), "{text}"),
            _ => assert!(row["verdict"] == "Accepted" && text.contains("is taken over as it is"), "{text}"),
        }
    }
}

/// The same for edits of what is there (R4), and for a second image of one identity (R3).
pub async fn plan_tells_edits(scene: &Scene<'_>) {
    let images = json!([
        { "name": "noble", "url": scene.url("jammy.img"), "storageClass": "replicated", "storage": "1Gi" },
        { "name": "hand", "url": scene.url("hand.img"), "description": "a free field" },
        { "name": "again", "url": scene.url("collected.img") },
    ]);
    let report = scene.planned("edited", &images).await;
    let problem = |at: usize| (report["images"][at]["problems"][0]["reason"].clone(), report["images"][at].to_string());
    let (edited, text) = problem(0);
    assert!(edited == "EntryEdited" && text.contains("noble.img") && text.contains("jammy.img"), "{text}");
    assert_eq!(report["images"][1]["verdict"], "Accepted", "{}", report["images"][1]);
    let (twin, text) = problem(2);
    assert!(twin == "DuplicateIdentity" && text.contains("same image as collected"), "{text}");
}
