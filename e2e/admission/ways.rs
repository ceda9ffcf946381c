//! Every way to a golden meets its fence and its access: goldens that nothing records any more, pointers of a tenant's own, marks that a
//! tenant writes.

use golden_catalog::rules::marks;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::{
    harness::{self, Cluster, eventually},
    objects::{Disk, Form, RIGHT, by_pointer, data_source, object},
    stand::{CATALOG, NAMESPACE, claim, create, golden, set_status, stand},
};

/// The marks of the fence on a golden's claim, as the leader writes them.
async fn fence(cluster: &Cluster, golden: &str, marks: Value) {
    let daemon = cluster.client_as_service_account(NAMESPACE, harness::chart::CONTROLLER).await;
    let claims = cluster.api(&daemon, "v1", "PersistentVolumeClaim", CATALOG).await;
    let mark = Patch::Merge(json!({ "metadata": { "annotations": marks } }));
    claims.patch(golden, &PatchParams::default(), &mark).await.expect("the daemon's marks");
}

/// A golden whose DataVolume CDI collected and whose GoldenImage is gone: nothing knows it but its own mark.
#[tokio::test]
async fn a_golden_on_nobodys_record_is_fenced_in_every_form() {
    let Some((cluster, _)) = stand().await else { return };
    let (chosen, other) = (cluster.namespace("chosen").await, cluster.namespace("other").await);
    cluster.apply(&format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {}, labels: {{licensed: \"yes\"}}}}}}", &*chosen)).await;
    let few = json!({ marks::ACCESS: json!({ "matchLabels": { "licensed": "yes" } }).to_string() });
    claim(cluster, "alone", "replicated", "6Gi", "Block", json!({ marks::GOLDEN: "true" }), few, Value::Null).await;
    cluster.apply_in(CATALOG, &data_source("alone").to_string()).await;
    let disk = Disk { golden: "alone", ..RIGHT };
    for form in Form::ALL {
        let name = format!("alone-{form:?}").to_lowercase();
        let refused = create(cluster, &other, &object(form, &name, disk), true).await.expect_err("not for this namespace");
        assert!(refused.code == 403 && refused.message.contains("R18"), "{form:?}: {}", refused.message);
        let made =
            create(cluster, &chosen, &object(form, &name, disk), true).await.unwrap_or_else(|told| panic!("{form:?}: {}", told.message));
        assert!(made.warnings.iter().any(|warning| warning.contains("is unmanaged")), "{form:?}: {:?}", made.warnings);
        let marked = made.object["metadata"]["annotations"][marks::GOLDEN] == "alone";
        assert_eq!(marked, form.is_disk(), "{form:?}: a disk leaves with its marks");
    }
    for marks in [json!({ marks::RETIRING: "closed since now" }), json!({ marks::RETIRED: "now" })] {
        fence(cluster, "alone", marks.clone()).await;
        for form in Form::ALL {
            let refused = create(cluster, &chosen, &object(form, "late", disk), true).await.expect_err("nobody is let in");
            assert!(refused.code == 403 && refused.message.contains("R23"), "{form:?} {marks}: {}", refused.message);
        }
    }
}

/// VMs and machine templates by way of a DataSource of their own namespace, and pools that only say that they use the golden.
#[tokio::test]
async fn a_pointer_of_ones_own_is_no_way_around_the_fence() {
    let Some((cluster, _)) = stand().await else { return };
    let tenant = cluster.namespace("tenant").await;
    golden(cluster, "pointed", "replicated", "6Gi", "Block").await;
    let mut pointer = data_source("pointed");
    pointer["metadata"]["name"] = "ds".into();
    create(cluster, &tenant, &pointer, false).await.unwrap_or_else(|refused| panic!("{}", refused.message));
    let disk = Disk { golden: "pointed", ..RIGHT };
    let pointed = |form: Form, name: &str| by_pointer(object(form, name, disk), "ds");

    // While it is open: admitted, and judged like every other.
    let machine = create(cluster, &tenant, &pointed(Form::Machine, "early"), false).await;
    let machine = machine.unwrap_or_else(|refused| panic!("{}", refused.message)).object;
    for form in [Form::Machine, Form::Template] {
        let wrong = by_pointer(object(form, "wrong", Disk { class: Some("local"), ..disk }), "ds");
        let refused = create(cluster, &tenant, &wrong, true).await.expect_err("another class");
        assert!(
            refused.code == 403 && refused.message.contains("R14") && refused.message.contains("/ds)"),
            "{form:?}: {}",
            refused.message
        );
    }
    // A claim of nothing, whose marks say what they like. The guard names it, so admission knows of it.
    let pool = format!("{}/VMDisk/said", &*tenant);
    let said = crate::stand::bound_claim("said", "replicated", "6Gi", json!({}), json!({ marks::GOLDEN: "pointed", marks::POOL: pool }));
    cluster.apply_in(&tenant, &said.to_string()).await;
    let bound = json!({ "phase": "Bound", "capacity": { "storage": "6Gi" }, "accessModes": ["ReadWriteMany"] });
    set_status(cluster, "v1", "PersistentVolumeClaim", &tenant, "said", bound).await;
    let volumes = cluster.api(&cluster.admin(), "cdi.kubevirt.io/v1beta1", "DataVolume", CATALOG).await;
    let early = format!("{}/VirtualMachine/early", &*tenant);
    eventually("both are known to need it", || async {
        let refused = volumes.delete("pointed", &DeleteParams::default().dry_run()).await.expect_err("in use").to_string();
        if [&pool, &early].iter().all(|pool| refused.contains(pool.as_str())) { Ok(()) } else { Err(refused) }
    })
    .await;

    fence(cluster, "pointed", json!({ marks::RETIRING: "since now" })).await;
    let mut further = pointer.clone();
    further["metadata"]["name"] = "ds2".into();
    further["spec"]["source"] = json!({ "dataSource": { "namespace": &*tenant, "name": "ds" } });
    let mut of_said = object(Form::Volume, "said-2", disk);
    of_said["metadata"]["annotations"] = json!({ marks::POOL: pool });
    for asked in [pointed(Form::Machine, "late"), pointed(Form::Template, "late"), further, of_said] {
        let refused = create(cluster, &tenant, &asked, false).await.expect_err("no new pools");
        assert!(refused.code == 403 && refused.message.contains("R23"), "{}: {}", asked["kind"], refused.message);
    }
    // The VM that was let in gets its disk.
    let owner = json!([{ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "early", "uid": machine["metadata"]["uid"], "controller": true }]);
    let own = json!({ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "metadata": { "name": "early-disk", "ownerReferences": owner },
        "spec": machine["spec"]["dataVolumeTemplates"][0]["spec"] });
    create(cluster, &tenant, &own, true).await.unwrap_or_else(|refused| panic!("{}", refused.message));

    fence(cluster, "pointed", json!({ marks::RETIRING: "closed since now" })).await;
    for asked in [pointed(Form::Machine, "later"), pointed(Form::Template, "later"), own] {
        let refused = create(cluster, &tenant, &asked, true).await.expect_err("nobody");
        assert!(refused.code == 403 && refused.message.contains("R23"), "{}: {}", asked["kind"], refused.message);
    }
}

/// What is refused says whom it would have hit: a WorkerClass names a golden by what it is, also when its GoldenImage is gone. What CDI makes
/// for a moment is nothing that could be retired.
#[tokio::test]
async fn the_guard_counts_all_that_need_a_golden_and_nothing_that_is_none() {
    let Some((cluster, _)) = stand().await else { return };
    let labels = json!({ marks::GOLDEN: "true", marks::IDENTITY: "e449297b1a4df41248857fc84e978c658a845809" });
    claim(cluster, "kairos-worker-x", "replicated", "6Gi", "Block", labels, json!({}), Value::Null).await;
    let reference = "registry.example.com/kairos@sha256:eb87a994833d82feb2279575aafa42a06c5feb124ea72cae6efc0ee46bb729d8";
    let class = json!({ "apiVersion": "cozystack.io/v1alpha1", "kind": "WorkerClass", "metadata": { "name": "kairos" },
        "spec": { "bootstrap": "kairos", "image": { "kubernetesVersion": "v1.35.6", "reference": reference } } });
    cluster.apply(&class.to_string()).await;
    let claims = cluster.api(&cluster.admin(), "v1", "PersistentVolumeClaim", CATALOG).await;
    eventually("the WorkerClass is named", || async {
        let refused = claims.delete("kairos-worker-x", &DeleteParams::default().dry_run()).await.expect_err("not retired").to_string();
        if refused.contains("WorkerClass") { Ok(()) } else { Err(refused) }
    })
    .await;

    // Who can be retired is named: an image of its name, and the golden itself where the image is only of the same source.
    let image = json!({ "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": "x" },
        "spec": { "source": { "containerDisk": { "reference": reference } }, "usages": ["Worker"], "suspend": true,
            "operatingSystem": { "family": "kairos", "kubernetesVersion": "v1.35.6+k3s1" } } });
    cluster.apply(&image.to_string()).await;
    for (of, named) in [("x", "`golden-catalog retire x`"), ("former", "`golden-catalog retire kairos-worker-x`")] {
        let patch = Patch::Merge(json!({ "metadata": { "labels": { marks::IMAGE: of } } }));
        claims.patch("kairos-worker-x", &PatchParams::default(), &patch).await.expect("marked");
        eventually("who can be retired is named", || async {
            let refused = claims.delete("kairos-worker-x", &DeleteParams::default().dry_run()).await.expect_err("not retired").to_string();
            if refused.contains(named) { Ok(()) } else { Err(refused) }
        })
        .await;
    }
    let images = cluster.api(&cluster.admin(), "cozystack.io/v1alpha1", "GoldenImage", "").await;
    images.delete("x", &DeleteParams::default()).await.expect("deleted");

    // First by its name, of all that is listed.
    let copied = json!({ marks::GOLDEN: "true", marks::CDI_OWNED_BY: "x" });
    claim(cluster, "a-temporary", "replicated", "6Gi", "Block", copied, json!({}), Value::Null).await;
    let namespaces: kube::Api<k8s_openapi::api::core::v1::Namespace> = kube::Api::all(cluster.admin());
    let refused = namespaces.delete(CATALOG, &DeleteParams::default().dry_run()).await.expect_err("goldens in it").to_string();
    assert!(refused.contains("holds golden images") && !refused.contains("a-temporary"), "{refused}");
}
