//! What is admitted, and what it leaves with.

use golden_catalog::rules::marks;
use kube::{Api, api::DynamicObject};
use serde_json::{Value, json};

use crate::{
    harness,
    objects::{Disk, Form, RIGHT, data_source, object},
    stand::{CATALOG, Made, create, golden, stand},
};

/// A disk leaves with class, golden and pool; templates stay as written; a dry run gives the same and leaves nothing.
#[tokio::test]
async fn each_right_clone_is_admitted_in_each_form_and_disks_are_completed() {
    let Some((cluster, _)) = stand().await else { return };
    let tenant = cluster.namespace("tenant").await;
    cluster.apply_in(CATALOG, &data_source("golden").to_string()).await;
    for form in Form::ALL {
        for class in [Some("replicated"), None] {
            // A bare claim without a class has the cluster's default before any webhook sees it.
            let name = format!("right-{form:?}-{}", class.unwrap_or("none")).to_lowercase();
            let asked = object(form, &name, Disk { class, ..RIGHT });
            let tried = create(cluster, &tenant, &asked, true).await.unwrap_or_else(|refused| panic!("{name}: {}", refused.message));
            let api: Api<DynamicObject> = cluster
                .api(&cluster.admin(), asked["apiVersion"].as_str().expect("text"), asked["kind"].as_str().expect("text"), &tenant)
                .await;
            assert!(api.get_opt(&name).await.expect("asked").is_none(), "{name}: a dry run leaves nothing");
            let made = create(cluster, &tenant, &asked, false).await.unwrap_or_else(|refused| panic!("{name}: {}", refused.message));
            assert_eq!(tried.object["spec"], made.object["spec"], "{name}: a dry run shows what would be");
            if !form.is_disk() {
                assert_eq!(made.object.pointer(form.class_path()), asked.pointer(form.class_path()), "{name}: templates stay as written");
                assert!(made.object["metadata"]["annotations"].is_null(), "{name}");
                continue;
            }
            assert_eq!(made.object.pointer(form.class_path()), Some(&json!("replicated")), "{name}");
            let annotations = &made.object["metadata"]["annotations"];
            assert_eq!((&annotations[marks::GOLDEN], &annotations[marks::POOL]), (&json!("golden"), &json!("unknown")), "{name}");
            for field in ["source", "sourceRef", "dataSourceRef"] {
                let mut source = made.object["spec"][field].clone();
                // Kubernetes spells out what is absent.
                if let Some(source) = source.as_object_mut() {
                    source.retain(|_, value| !value.is_null());
                }
                assert_eq!(source, asked["spec"][field], "{name}: the source is what CDI's token names");
            }
        }
    }
}

fn annotation(made: &Made, key: &str) -> Option<String> {
    made.object["metadata"]["annotations"][key].as_str().map(str::to_owned)
}

/// The creators of Cozystack: Helm's VM disks, KubeVirt for a VM of a pool and for a tenant's own, a chart that says the pool itself.
#[tokio::test]
async fn the_pool_is_told_by_whoever_creates() {
    let Some((cluster, _)) = stand().await else { return };
    let tenant = cluster.namespace("tenant").await;
    let pool = |name: &str| format!("{}/{name}", &*tenant);

    let mut helm = object(Form::Volume, "vm-disk-data", RIGHT);
    helm["metadata"]["labels"] = json!({ "app.kubernetes.io/instance": "vm-disk-data", "app.kubernetes.io/managed-by": "Helm" });
    let made = create(cluster, &tenant, &helm, false).await.expect("Helm's disk");
    assert_eq!(annotation(&made, marks::POOL), Some(pool("VMDisk/data")));

    let mut told = object(Form::Volume, "told", Disk { annotation: Some((marks::POOL, "another-tenant/VMDisk/x")), ..RIGHT });
    let made = create(cluster, &tenant, &told, true).await.expect("a disk with a false pool");
    assert_eq!(annotation(&made, marks::POOL).as_deref(), Some("unknown"), "nobody speaks for another's namespace");
    told["metadata"]["annotations"][marks::POOL] = pool("KubernetesNodes/demo-md1").into();
    told["metadata"]["annotations"][marks::GOLDEN] = "something-else".into();
    let made = create(cluster, &tenant, &told, true).await.expect("a chart's disk");
    assert_eq!(annotation(&made, marks::POOL), Some(pool("KubernetesNodes/demo-md1")));
    assert_eq!(annotation(&made, marks::GOLDEN).as_deref(), Some("golden"), "the source says which golden");
    assert!(made.warnings.iter().any(|warning| warning.contains("is corrected")), "{:?}", made.warnings);

    // KubeVirt's controller makes the disk right after the VM, before any watch need have told us of it: twenty times.
    for round in 0..20 {
        for (labels, expected) in [
            (json!({ "cluster.x-k8s.io/deployment-name": "kubernetes-demo-md0" }), pool("KubernetesNodes/demo-md0")),
            (json!({}), pool(&format!("VirtualMachine/vm-{round}-own"))),
        ] {
            let name = if labels == json!({}) { format!("vm-{round}-own") } else { format!("vm-{round}") };
            let mut machine = object(Form::Machine, &name, RIGHT);
            machine["spec"]["template"]["metadata"]["labels"] = labels;
            let machine = create(cluster, &tenant, &machine, false).await.expect("a VM").object;
            let made = create(cluster, &tenant, &disk_of(&machine), false).await.expect("its disk");
            assert_eq!(annotation(&made, marks::POOL), Some(expected), "{name}");
        }
    }
}

/// The DataVolume that KubeVirt makes from a VM's first template.
fn disk_of(machine: &Value) -> Value {
    let template = &machine["spec"]["dataVolumeTemplates"][0];
    json!({ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "spec": template["spec"],
        "metadata": { "name": template["metadata"]["name"], "labels": { "kubevirt.io/created-by": machine["metadata"]["uid"] },
            "ownerReferences": [{ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": machine["metadata"]["name"], "uid": machine["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true }] } })
}

/// What is not forbidden is told.
#[tokio::test]
async fn warnings_are_told_and_nothing_is_refused_for_them() {
    let Some((cluster, _)) = stand().await else { return };
    let tenant = cluster.namespace("tenant").await;
    crate::stand::golden(cluster, "golden-pinned", "pinned", "6Gi", "Block").await;
    for (form, disk, says) in [
        (Form::Volume, Disk { golden: "hand-made", ..RIGHT }, "is not managed by the catalog"),
        (Form::Volume, Disk { golden: "hand-made", class: Some("local"), ..RIGHT }, "storage cannot clone across classes"),
        (Form::Volume, RIGHT, "is unmanaged"),
        (Form::Template, Disk { golden: "golden-local", class: Some("local"), ..RIGHT }, "tied to nodes"),
        // By its provisioner, which the setting `nodeLocalProvisioners` names.
        (Form::Template, Disk { golden: "golden-pinned", class: Some("pinned"), ..RIGHT }, "its provisioner one-node.example.org keeps"),
    ] {
        let made =
            create(cluster, &tenant, &object(form, "warned", disk), true).await.unwrap_or_else(|refused| panic!("{}", refused.message));
        assert!(made.warnings.iter().any(|warning| warning.contains(says)), "{says}: {:?}", made.warnings);
    }
}

/// A golden that is still being made is judged by what is known of it; one that failed is refused with its own reason.
#[tokio::test]
async fn a_golden_that_is_not_there_yet_is_waited_for_unless_it_failed() {
    let Some((cluster, _)) = stand().await else { return };
    let tenant = cluster.namespace("tenant").await;
    let image = |name: &str| {
        json!({ "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": name },
            "spec": { "source": { "http": { "url": format!("https://x.example/{name}.qcow2"), } }, "storage": { "targets": [{ "storageClassName": "replicated", "size": "6Gi" }] } } })
    };
    for name in ["coming", "failed", "fresh"] {
        cluster.apply(&image(name).to_string()).await;
    }
    let condition = |kind: &str, status: &str, reason: &str, message: &str| json!({ "type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": "2026-11-29T10:00:00Z" });
    let target = |name: &str| json!({ "requestedClass": "replicated", "storageClassName": "replicated", "size": "6Gi", "volumeMode": "Block", "golden": format!("vm-default-images-{name}"), "attempts": 1 });
    let coming = json!({ "targets": [target("coming")], "conditions": [condition("Ready", "False", "Fetching", "")] });
    let failed = json!({ "targets": [target("failed")], "conditions": [condition("Ready", "False", "NotADiskImage", "It is an HTML page."), condition("Stalled", "True", "NotADiskImage", "It is an HTML page.")] });
    crate::stand::set_status(cluster, "cozystack.io/v1alpha1", "GoldenImage", "", "coming", coming).await;
    crate::stand::set_status(cluster, "cozystack.io/v1alpha1", "GoldenImage", "", "failed", failed).await;
    let ask = |golden: &'static str, class: Option<&'static str>| object(Form::Volume, "early", Disk { golden, class, ..RIGHT });
    let tried = crate::harness::eventually("the watch has the statuses", || async {
        match create(cluster, &tenant, &ask("vm-default-images-failed", Some("replicated")), true).await {
            Err(refused) if refused.message.contains("NotADiskImage") => Ok(refused.message),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    assert!(tried.contains("It is an HTML page") && tried.contains("Point the entry at a qcow2"), "{tried}");
    for golden in ["vm-default-images-coming", "vm-default-images-fresh"] {
        let made =
            create(cluster, &tenant, &ask(golden, Some("replicated")), true).await.unwrap_or_else(|refused| panic!("{}", refused.message));
        assert!(made.warnings.iter().any(|warning| warning.contains("is not ready yet")), "{:?}", made.warnings);
        let refused = create(cluster, &tenant, &ask(golden, Some("local")), true).await.expect_err("its frozen class is known");
        assert!(refused.message.contains("R14"), "{}", refused.message);
    }
    // Nobody works on this one.
    let mut suspended = image("suspended");
    suspended["spec"]["suspend"] = true.into();
    cluster.apply(&suspended.to_string()).await;
    // Of several targets the first has the plain name unless another is made before it; the others' names are theirs alone.
    let mut several = image("several");
    several["spec"]["storage"]["targets"] = json!([{ "storageClassName": "replicated" }, { "storageClassName": "local" }]);
    cluster.apply(&several.to_string()).await;
    let admitted = async |golden: &'static str, class: &'static str| {
        crate::harness::eventually("the watch has the images", || async {
            create(cluster, &tenant, &ask(golden, Some(class)), true).await.map_err(|refused| refused.message)
        })
        .await
        .warnings
    };
    let warnings = admitted("vm-default-images-suspended", "replicated").await;
    assert!(
        warnings.iter().any(|warning| warning.contains("is suspended: the clone waits") && warning.contains("`spec.suspend: false`")),
        "{warnings:?}"
    );
    assert!(!warnings.iter().any(|warning| warning.contains("is not ready yet")), "{warnings:?}");
    for (golden, class) in [("vm-default-images-several", "local"), ("vm-default-images-several-local", "local")] {
        let warnings = admitted(golden, class).await;
        assert!(warnings.iter().any(|warning| warning.contains("is not ready yet")), "{warnings:?}");
    }
    let refused =
        create(cluster, &tenant, &ask("vm-default-images-several-local", Some("replicated")), true).await.expect_err("another class");
    assert!(refused.message.contains("R14"), "{}", refused.message);
}

/// A controller makes what it is refused again and again, under names that the API server gives: each answer is of its moment.
#[tokio::test]
async fn a_creator_that_asks_again_is_admitted_when_it_is_right() {
    let Some((cluster, _)) = stand().await else { return };
    let tenant = cluster.namespace("tenant").await;
    let generated = |form| {
        let mut asked = object(form, "named-by-the-api-server", Disk { golden: "made-later", ..RIGHT });
        let meta = asked["metadata"].as_object_mut().expect("metadata");
        meta.remove("name");
        meta.insert("generateName".to_owned(), "worker-".into());
        asked
    };
    let forms = [Form::Volume, Form::Claim, Form::Machine, Form::Template];
    for form in forms {
        let refused = create(cluster, &tenant, &generated(form), false).await.expect_err("there is no such golden");
        assert!(refused.code == 403 && refused.message.contains("worker-") && refused.message.contains("R13"), "{form:?}: {refused:?}");
    }
    golden(cluster, "made-later", "replicated", "6Gi", "Block").await;
    for form in forms {
        let made = harness::eventually("asked again it is admitted", async || {
            create(cluster, &tenant, &generated(form), false).await.map_err(|refused| refused.message)
        })
        .await;
        let meta = &made.object["metadata"];
        assert!(meta["name"].as_str().is_some_and(|name| name.starts_with("worker-") && name.len() > 7), "{form:?}: {meta}");
        if form.is_disk() {
            assert_eq!(meta["annotations"][marks::GOLDEN], "made-later", "{form:?}");
        }
    }
}
