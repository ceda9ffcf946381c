//! Goldens in use are kept: every way to lose one is refused, with who needs it and what to do.

use golden_catalog::rules::marks;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::{
    harness::{self, Cluster},
    objects::{Disk, Form, RIGHT, object},
    stand::{CATALOG, NAMESPACE, claim, create, golden, set_status, stand, unfinished_golden},
};

const KINDS: [(&str, &str); 2] = [("cdi.kubevirt.io/v1beta1", "DataVolume"), ("v1", "PersistentVolumeClaim")];

async fn delete(cluster: &Cluster, kind: (&str, &str), name: &str, params: &DeleteParams) -> Result<(), String> {
    let api = cluster.api(&cluster.admin(), kind.0, kind.1, CATALOG).await;
    harness::made(async || api.delete(name, params).await).await.map(drop).map_err(|error| error.to_string())
}

async fn patch(cluster: &Cluster, kind: (&str, &str), name: &str, patch: Value) -> Result<(), String> {
    let api = cluster.api(&cluster.admin(), kind.0, kind.1, CATALOG).await;
    let ask = async || api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await;
    harness::made(ask).await.map(drop).map_err(|error| error.to_string())
}

#[tokio::test]
async fn a_golden_in_use_cannot_be_lost() {
    let Some((cluster, _)) = stand().await else { return };
    let tenant = cluster.namespace("tenant").await;
    golden(cluster, "guarded", "replicated", "6Gi", "Block").await;
    let machine = object(Form::Machine, "needs-it", Disk { golden: "guarded", ..RIGHT });
    create(cluster, &tenant, &machine, false).await.unwrap_or_else(|refused| panic!("{}", refused.message));
    let pool = format!("{}/VirtualMachine/needs-it", &*tenant);
    for kind in KINDS {
        let refused = harness::eventually("the ledger has the VM", || async {
            let refused = delete(cluster, kind, "guarded", &DeleteParams::default()).await.expect_err("in use");
            if refused.contains(&pool) { Ok(refused) } else { Err(refused) }
        })
        .await;
        assert!(refused.contains("golden-catalog retire guarded") && refused.contains("R23"), "{refused}");
        for params in [
            DeleteParams::orphan(),
            DeleteParams::foreground(),
            DeleteParams::background().grace_period(0),
            DeleteParams::default().dry_run(),
        ] {
            delete(cluster, kind, "guarded", &params).await.expect_err("in use");
        }
        let api = cluster.api(&cluster.admin(), kind.0, kind.1, CATALOG).await;
        let named = ListParams::default().fields("metadata.name=guarded");
        let refused = api.delete_collection(&DeleteParams::default(), &named).await.expect_err("a collection with a golden in it");
        assert!(refused.to_string().contains(&pool), "{refused}");

        // The mark, and the marks of the fence.
        for labels in [json!({ marks::GOLDEN: null }), json!({ marks::GOLDEN: "false" })] {
            let refused = patch(cluster, kind, "guarded", json!({ "metadata": { "labels": labels } })).await.expect_err("its mark stays");
            assert!(refused.contains("must keep its mark") && refused.contains(&pool), "{refused}");
        }
        for key in [marks::RETIRING, marks::RETIRED] {
            let refused =
                patch(cluster, kind, "guarded", json!({ "metadata": { "annotations": { key: "x" } } })).await.expect_err("ours alone");
            assert!(refused.contains("golden-catalog alone"), "{refused}");
        }
        // Made to look like one of CDI's temporaries, it would be guarded no more.
        for disguise in [
            json!({ "labels": { "cdi.kubevirt.io/OwnedByUID": "x" } }),
            json!({ "annotations": { "cdi.kubevirt.io/OwnedByUID": "x" } }),
            json!({ "annotations": { "cdi.kubevirt.io/storage.populator.kind": "VolumeCloneSource" } }),
            json!({ "ownerReferences": [{ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "x", "uid": "x", "controller": true }] }),
        ] {
            let refused = patch(cluster, kind, "guarded", json!({ "metadata": disguise.clone() })).await.expect_err("it is none of CDI's");
            assert!(refused.contains("must keep its mark") && refused.contains(&pool), "{disguise}: {refused}");
        }
        // Everything else is nobody's business.
        patch(
            cluster,
            kind,
            "guarded",
            json!({ "metadata": { "annotations": { "x": "1", marks::RETIRE_REQUESTED: "x" }, "labels": { "x": "1" } } }),
        )
        .await
        .expect("metadata");
        patch(cluster, kind, "guarded", json!({ "metadata": { "finalizers": ["example.org/x"] } })).await.expect("a finalizer");
        patch(cluster, kind, "guarded", json!({ "metadata": { "finalizers": null, "annotations": { marks::RETIRE_REQUESTED: null } } }))
            .await
            .expect("off again");
        set_status(cluster, kind.0, kind.1, CATALOG, "guarded", json!({ "conditions": [] })).await;
    }
    let namespaces: kube::Api<k8s_openapi::api::core::v1::Namespace> = kube::Api::all(cluster.admin());
    let refused = namespaces.delete(CATALOG, &DeleteParams::default()).await.expect_err("goldens in it").to_string();
    assert!(refused.contains("holds golden images") && refused.contains("golden-catalog retire"), "{refused}");
    namespaces.delete(&cluster.namespace("other").await, &DeleteParams::default()).await.expect("any other namespace");

    // Nothing needs it any more: the fence decides, not a scan.
    let machines = cluster.api(&cluster.admin(), "kubevirt.io/v1", "VirtualMachine", &tenant).await;
    machines.delete("needs-it", &DeleteParams::default()).await.expect("a consumer always goes");
    harness::eventually("the ledger has seen it go", || async {
        let refused = delete(cluster, KINDS[0], "guarded", &DeleteParams::default()).await.expect_err("not retired");
        if refused.contains("nothing is seen to need it") { Ok(()) } else { Err(refused) }
    })
    .await;

    // The daemon's own identity writes the marks; then it goes, and its claim after it.
    let daemon = cluster.client_as_service_account(NAMESPACE, harness::chart::CONTROLLER).await;
    for kind in KINDS {
        let api = cluster.api(&daemon, kind.0, kind.1, CATALOG).await;
        let mark = json!({ "metadata": { "annotations": { marks::RETIRING: "closed since now", marks::RETIRED: "now" } } });
        api.patch("guarded", &PatchParams::default(), &Patch::Merge(&mark)).await.expect("the daemon's marks");
    }
    let refused =
        create(cluster, &tenant, &object(Form::Volume, "late", Disk { golden: "guarded", ..RIGHT }), false).await.expect_err("retired");
    assert!(refused.message.contains("R23"), "{}", refused.message);
    for kind in KINDS {
        delete(cluster, kind, "guarded", &DeleteParams::default()).await.unwrap_or_else(|refused| panic!("{refused}"));
    }
}

/// A finished clone keeps its golden where it depends on it; in a class whose clones stand alone by the hoster's word (the setting
/// `independentClasses`) it does not, for admission as for the leader.
#[tokio::test]
async fn a_finished_clone_keeps_its_golden_where_it_depends_on_it() {
    let Some((cluster, _)) = stand().await else { return };
    let tenant = cluster.namespace("tenant").await;
    for (name, class, depends) in [("depended-on", "replicated", true), ("stood-alone-of", "fixed", false)] {
        golden(cluster, name, class, "6Gi", "Block").await;
        let refusal = async |what: &str, holds: &dyn Fn(&str) -> bool| {
            harness::eventually(what, || async {
                let refused = delete(cluster, KINDS[0], name, &DeleteParams::default()).await.expect_err("not retired");
                if holds(&refused) { Ok(()) } else { Err(refused) }
            })
            .await;
        };
        let nothing = |refused: &str| refused.contains("nothing is seen to need it");
        // While it is made, in either class.
        let disk = format!("of-{name}");
        let asked = object(Form::Volume, &disk, Disk { golden: name, class: Some(class), size: "6Gi", ..RIGHT });
        let made = create(cluster, &tenant, &asked, false).await.unwrap_or_else(|refused| panic!("{}", refused.message));
        refusal("the clone is seen", &|refused| !nothing(refused) && refused.contains(&*tenant)).await;
        let metadata = &made.object["metadata"];
        let mut claim = crate::stand::bound_claim(&disk, class, "6Gi", json!({}), json!({ marks::GOLDEN: name }));
        claim["metadata"]["ownerReferences"] = json!([{ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "name": disk, "uid": metadata["uid"], "controller": true, "blockOwnerDeletion": true }]);
        cluster.apply_in(&tenant, &claim.to_string()).await;
        let bound = json!({ "phase": "Bound", "capacity": { "storage": "6Gi" }, "accessModes": ["ReadWriteMany"] });
        set_status(cluster, "v1", "PersistentVolumeClaim", &tenant, &disk, bound).await;
        set_status(cluster, "cdi.kubevirt.io/v1beta1", "DataVolume", &tenant, &disk, json!({ "phase": "Succeeded" })).await;
        let finished = |refused: &str| refused.contains("built on the golden's");
        if depends {
            refusal("the finished clone keeps it", &finished).await;
        } else {
            refusal("the finished clone stands alone", &nothing).await;
        }
    }
}

#[tokio::test]
async fn what_holds_nothing_or_is_none_of_ours_may_go() {
    let Some((cluster, _)) = stand().await else { return };
    // An import that never ended.
    unfinished_golden(cluster, "unfinished", "replicated", "6Gi").await;
    harness::eventually("the unfinished import goes", || async { delete(cluster, KINDS[0], "unfinished", &DeleteParams::orphan()).await })
        .await;
    // Its claim, as the garbage collector takes it.
    delete(cluster, KINDS[1], "unfinished", &DeleteParams::default()).await.unwrap_or_else(|refused| panic!("{refused}"));
    // A claim whose volume is lost holds no disk any more, and neither does its DataVolume.
    golden(cluster, "lost", "replicated", "6Gi", "Block").await;
    for kind in KINDS {
        delete(cluster, kind, "lost", &DeleteParams::default().dry_run()).await.expect_err("it is a golden");
    }
    set_status(cluster, "v1", "PersistentVolumeClaim", CATALOG, "lost", json!({ "phase": "Lost" })).await;
    for kind in KINDS.into_iter().rev() {
        delete(cluster, kind, "lost", &DeleteParams::default()).await.unwrap_or_else(|refused| panic!("{} {refused}", kind.1));
    }
    // CDI's temporaries carry whatever labels the tenant's claim had.
    for name in ["prime-1", "tmp-pvc-2"] {
        claim(cluster, name, "replicated", "6Gi", "Block", json!({ marks::GOLDEN: "true" }), json!({}), Value::Null).await;
        delete(cluster, KINDS[1], name, &DeleteParams::default()).await.unwrap_or_else(|refused| panic!("{name}: {refused}"));
    }
    // A hand-made image is the hoster's own.
    claim(cluster, "hand-made-2", "replicated", "6Gi", "Block", json!({}), json!({}), Value::Null).await;
    delete(cluster, KINDS[1], "hand-made-2", &DeleteParams::default()).await.unwrap_or_else(|refused| panic!("{refused}"));
}

/// CDI binds a golden's claim as the last step of its import, and says so on the DataVolume a moment later.
#[tokio::test]
async fn an_import_that_ends_in_this_moment_is_kept() {
    let Some((cluster, _)) = stand().await else { return };
    golden(cluster, "ends-now", "replicated", "6Gi", "Block").await;
    set_status(cluster, "cdi.kubevirt.io/v1beta1", "DataVolume", CATALOG, "ends-now", json!({ "phase": "ImportInProgress" })).await;
    for kind in KINDS {
        delete(cluster, kind, "ends-now", &DeleteParams::default().dry_run()).await.expect_err("it is a golden");
    }
    // Where the class has no CSI driver the claim is bound from the beginning.
    let pod = json!({ "metadata": { "annotations": { marks::CDI_POD_PHASE: "Running" } } });
    patch(cluster, KINDS[1], "ends-now", pod).await.expect("as CDI writes it");
    for kind in KINDS {
        delete(cluster, kind, "ends-now", &DeleteParams::default()).await.unwrap_or_else(|refused| panic!("{refused}"));
    }
}

/// The garbage collector takes a claim whose DataVolume is gone. One that was never there can be written on it, by hand or by a restore.
#[tokio::test]
async fn a_golden_on_record_does_not_go_with_an_owner_that_never_was() {
    let Some((cluster, _)) = stand().await else { return };
    golden(cluster, "on-record", "replicated", "6Gi", "Block").await;
    let claims = cluster.api(&cluster.admin(), "v1", "PersistentVolumeClaim", CATALOG).await;
    let uid = claims.get("on-record").await.expect("a claim").metadata.uid;
    let image = json!({ "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": "recorded" },
        "spec": { "source": { "http": { "url": "https://x.example/recorded.qcow2" } } } });
    create(cluster, "", &image, false).await.unwrap_or_else(|refused| panic!("{}", refused.message));
    let target = json!({ "requestedClass": "", "storageClassName": "replicated", "golden": "on-record", "claimUID": uid });
    set_status(cluster, "cozystack.io/v1alpha1", "GoldenImage", "", "recorded", json!({ "targets": [target] })).await;
    let dry_run = || DeleteParams::default().dry_run();
    harness::eventually("the record is known", || async {
        let refused = delete(cluster, KINDS[1], "on-record", &dry_run()).await.expect_err("it is a golden");
        if refused.contains("golden-catalog retire recorded") { Ok(()) } else { Err(refused) }
    })
    .await;
    let owner = json!([{ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "name": "on-record", "uid": "another", "controller": true }]);
    patch(cluster, KINDS[1], "on-record", json!({ "metadata": { "ownerReferences": owner } })).await.expect("metadata");
    let refused = delete(cluster, KINDS[1], "on-record", &dry_run()).await.expect_err("it is a golden still");
    assert!(refused.contains("golden-catalog retire recorded") && refused.contains("metadata.ownerReferences"), "{refused}");
    let images = cluster.api(&cluster.admin(), "cozystack.io/v1alpha1", "GoldenImage", "").await;
    images.delete("recorded", &DeleteParams::default()).await.expect("deleted");
}

/// GoldenImages as people write them.
#[tokio::test]
async fn golden_images_are_judged_as_they_are_written() {
    let Some((cluster, _)) = stand().await else { return };
    let image = |name: &str, url: &str| json!({ "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": name }, "spec": { "source": { "http": { "url": url } } } });
    create(cluster, "", &image("first", "https://x.example/one.qcow2"), false)
        .await
        .unwrap_or_else(|refused| panic!("{}", refused.message));
    let refused = harness::eventually("the first is known", || async {
        match create(cluster, "", &image("second", "https://x.example/one.qcow2"), true).await {
            Err(refused) => Ok(refused),
            Ok(made) => Err(format!("{made:?}")),
        }
    })
    .await;
    assert!(refused.message.contains("first serves both") && refused.message.contains("R3"), "{}", refused.message);
    let made = create(cluster, "", &image("rolling", "https://x.example/latest/one.qcow2"), true).await.expect("a warning is no refusal");
    assert!(made.warnings.iter().any(|warning| warning.contains("latest")), "{:?}", made.warnings);
    // Values' own entries pass, and the daemon tells their trouble as a condition.
    let daemon = cluster.client_as_service_account(NAMESPACE, harness::chart::CONTROLLER).await;
    let made = crate::stand::create_as(cluster, &daemon, "", &image("second", "https://x.example/one.qcow2"), true).await;
    made.unwrap_or_else(|refused| panic!("{}", refused.message));
    // R2, by the schema before any webhook: not pinned.
    let mut loose = image("loose", "https://x.example/loose.qcow2");
    loose["spec"]["source"] = json!({ "containerDisk": { "reference": "registry.example.com/workers/kairos:v1" } });
    let refused = create(cluster, "", &loose, true).await.expect_err("a tag is no pin");
    assert!(refused.message.contains("sha256"), "{}", refused.message);
    // R4: edited by hand.
    let mut edited =
        cluster.api(&cluster.admin(), "cozystack.io/v1alpha1", "GoldenImage", "").await.get("first").await.expect("it is there");
    edited.data["spec"]["source"]["http"]["url"] = "https://x.example/another.qcow2".into();
    let refused = crate::stand::replace(cluster, "", &serde_json::to_value(&edited).expect("JSON")).await.expect_err("what it is stays");
    assert!(refused.message.contains("R4"), "{}", refused.message);
    // R5: something stands under the golden's name. Whether it is taken over the controller decides.
    let other = json!({ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "metadata": { "name": "vm-default-images-taken" },
        "spec": { "source": { "http": { "url": "https://x.example/other.qcow2" } }, "storage": { "resources": { "requests": { "storage": "1Gi" } } } } });
    cluster.apply_in(CATALOG, &other.to_string()).await;
    harness::eventually("the DataVolume is known", || async {
        let made = create(cluster, "", &image("taken", "https://x.example/taken.qcow2"), true).await.map_err(|refused| refused.message)?;
        if made.warnings.iter().any(|warning| warning.contains("NameConflict (R5)")) { Ok(()) } else { Err(format!("{:?}", made.warnings)) }
    })
    .await;
}

/// A Secret may be named by whoever may read it.
#[tokio::test]
async fn a_secret_is_named_only_by_who_may_read_it() {
    let Some((cluster, _)) = stand().await else { return };
    let author = cluster.namespace("author").await;
    cluster.apply_in(&author, "{apiVersion: v1, kind: ServiceAccount, metadata: {name: author}}").await;
    let role = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "author" },
        "rules": [{ "apiGroups": ["cozystack.io"], "resources": ["goldenimages"], "verbs": ["create", "update", "patch", "get"] }] });
    cluster.apply(&role.to_string()).await;
    let subject = json!([{ "kind": "ServiceAccount", "name": "author", "namespace": &*author }]);
    let binding = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": "author" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "author" }, "subjects": subject });
    cluster.apply(&binding.to_string()).await;
    let client = cluster.client_as_service_account(&author, "author").await;
    let image = json!({ "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": "private" },
        "spec": { "source": { "http": { "url": "https://x.example/private.qcow2" } }, "credentialsSecretRef": { "name": "reg" }, "access": { "policy": "AllTenants" } } });
    // RBAC takes a new role up in its own time: until then its author may write no image at all.
    let refused = harness::eventually("its author may write images", || async {
        match crate::stand::create_as(cluster, &client, "", &image, true).await {
            Err(refused) if refused.message.contains("cannot create resource \"goldenimages\"") => Err(refused.message),
            other => Ok(other),
        }
    })
    .await
    .expect_err("its author may not read it");
    assert!(refused.code == 403 && refused.message.contains("/reg") && refused.message.contains("may not read"), "{refused:?}");
    // With the right to that one Secret it may.
    let role = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": { "name": "author" },
        "rules": [{ "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["reg"], "verbs": ["get"] }] });
    cluster.apply_in(NAMESPACE, &role.to_string()).await;
    let binding = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": { "name": "author" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "author" }, "subjects": subject });
    cluster.apply_in(NAMESPACE, &binding.to_string()).await;
    harness::eventually("the right counts", || async {
        crate::stand::create_as(cluster, &client, "", &image, true).await.map(drop).map_err(|refused| refused.message)
    })
    .await;
    crate::stand::create_as(cluster, &client, "", &image, false).await.unwrap_or_else(|refused| panic!("{}", refused.message));
    // A change is judged by the Secret that it names, and only where it names another one.
    let images = cluster.api(&client, "cozystack.io/v1alpha1", "GoldenImage", "").await;
    let change = async |spec: Value| {
        let patch = Patch::Merge(json!({ "spec": spec }));
        images.patch("private", &PatchParams::default(), &patch).await.map(drop).map_err(|error| error.to_string())
    };
    let refused = change(json!({ "credentialsSecretRef": { "name": "another" } })).await.expect_err("its author may not read that one");
    assert!(refused.contains("/another") && refused.contains("may not read"), "{refused}");
    cluster.kubectl(["delete", "rolebinding", "author", "-n", NAMESPACE]).await.ok();
    harness::eventually("the right is taken away", || async {
        match crate::stand::create_as(cluster, &client, "", &image, true).await {
            Err(refused) if refused.message.contains("may not read") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    change(json!({ "description": "as before" })).await.expect("the reference is as it was");
    change(json!({ "credentialsSecretRef": null })).await.expect("anybody may let go of a Secret");
    let refused = change(json!({ "credentialsSecretRef": { "name": "reg" } })).await.expect_err("set again, it is judged again");
    assert!(refused.contains("/reg") && refused.contains("may not read"), "{refused}");
    cluster.kubectl(["delete", "goldenimage", "private"]).await.ok();
}

/// An image for selected namespaces is cloned from there and nowhere else, in every form.
#[tokio::test]
async fn an_image_for_selected_namespaces_reaches_no_other() {
    let Some((cluster, _)) = stand().await else { return };
    let (chosen, other) = (cluster.namespace("chosen").await, cluster.namespace("other").await);
    let label = format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {}, labels: {{licensed: \"yes\"}}}}}}", &*chosen);
    cluster.apply(&label).await;
    let image = json!({ "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": "licensed" },
        "spec": { "source": { "http": { "url": "https://x.example/licensed.qcow2" } }, "access": { "policy": "Selected", "namespaceSelector": { "matchLabels": { "licensed": "yes" } } } } });
    cluster.apply(&image.to_string()).await;
    golden(cluster, "vm-default-images-licensed", "replicated", "6Gi", "Block").await;
    cluster.apply_in(CATALOG, &crate::objects::data_source("vm-default-images-licensed").to_string()).await;
    let disk = Disk { golden: "vm-default-images-licensed", ..RIGHT };
    harness::eventually("the image is known", || async {
        match create(cluster, &other, &object(Form::Volume, "probe", disk), true).await {
            Err(refused) if refused.message.contains("R18") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    for form in Form::ALL {
        let name = format!("licensed-{form:?}").to_lowercase();
        let refused = create(cluster, &other, &object(form, &name, disk), false).await.expect_err("not for this namespace");
        assert!(refused.code == 403 && refused.message.contains("selected namespaces only"), "{form:?}: {}", refused.message);
        create(cluster, &chosen, &object(form, &name, disk), false).await.unwrap_or_else(|refused| panic!("{form:?}: {}", refused.message));
    }
    // Nor by way of a pointer of one's own.
    let mut pointer = crate::objects::data_source("vm-default-images-licensed");
    pointer["metadata"]["name"] = "mine".into();
    create(cluster, &other, &pointer, true).await.expect_err("a pointer is a way to it");
}
