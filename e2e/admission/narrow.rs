//! With nobody to ask: what does not touch the catalog goes on in every namespace, and clones of goldens are refused.

use golden_catalog::rules::marks;
use serde_json::{Value, json};

use crate::{
    harness,
    objects::{Disk, Form, RIGHT, by_pointer, data_source, object},
    stand::{CATALOG, NAMESPACE, Stand, create, own_cluster, replace, stand},
};

/// Objects that clone nothing of the catalog.
fn unrelated(namespace: &str) -> Vec<Value> {
    let volume = |name: &str, spec: Value| json!({ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "metadata": { "name": name }, "spec": spec });
    let storage = json!({ "resources": { "requests": { "storage": "1Gi" } } });
    let mut machine = object(Form::Machine, "vm", RIGHT);
    machine["spec"]["dataVolumeTemplates"][0]["spec"]["source"] = json!({ "blank": {} });
    let mut plain = machine.clone();
    plain["metadata"]["name"] = "vm-without-templates".into();
    plain["spec"].as_object_mut().expect("spec").remove("dataVolumeTemplates");
    let mut template = object(Form::Template, "template", RIGHT);
    template["spec"]["template"]["spec"]["virtualMachineTemplate"]["spec"] = machine["spec"].clone();
    vec![
        json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "pod" }, "spec": { "containers": [{ "name": "c", "image": "x" }] } }),
        json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "claim" }, "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } } }),
        json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "claim-of-own" }, "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } }, "dataSource": { "kind": "PersistentVolumeClaim", "name": "claim" } } }),
        volume("import", json!({ "source": { "http": { "url": "https://x.example/a" } }, "storage": storage })),
        volume("blank", json!({ "source": { "blank": {} }, "storage": storage })),
        json!({ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
            "metadata": { "name": "restored-import", "annotations": { marks::CDI_PREPOPULATED: "restored-import" } },
            "spec": { "source": { "blank": {} }, "storage": storage } }),
        volume("own-clone", json!({ "source": { "pvc": { "namespace": namespace, "name": "claim" } }, "storage": storage })),
        volume(
            "own-snapshot",
            json!({ "source": { "snapshot": { "namespace": namespace, "name": "s" } }, "pvc": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } } }),
        ),
        json!({ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataSource", "metadata": { "name": "own" }, "spec": { "source": { "pvc": { "namespace": namespace, "name": "claim" } } } }),
        machine,
        plain,
        template,
    ]
}

#[tokio::test]
async fn with_nobody_to_ask_only_clones_of_goldens_are_refused() {
    if stand().await.is_none() {
        return;
    }
    let cluster = own_cluster().await;
    let stand = Stand::build(&cluster).await;
    let tenant = cluster.namespace("tenant").await;
    let machine = create(&cluster, &tenant, &object(Form::Machine, "with-golden", RIGHT), false).await.expect("admitted").object;
    let disk = create(&cluster, &tenant, &object(Form::Volume, "disk", RIGHT), false).await.expect("admitted").object;
    let there = Disk { golden: "gone", annotation: Some((marks::CDI_PREPOPULATED, "restored")), ..RIGHT };
    let restored = create(&cluster, &tenant, &object(Form::Volume, "restored", there), false).await.expect("admitted").object;
    cluster.apply_in(CATALOG, &data_source("golden").to_string()).await;
    stand.stop().await;

    for namespace in [&*tenant, "default", "kube-system", NAMESPACE] {
        for asked in unrelated(namespace) {
            let what = format!("{} {} in {namespace}", asked["kind"], asked["metadata"]["name"]);
            let mut made =
                create(&cluster, namespace, &asked, false).await.unwrap_or_else(|refused| panic!("{what}: {}", refused.message)).object;
            made["metadata"]["labels"] = json!({ "x": "1" });
            made["metadata"].as_object_mut().expect("metadata").remove("annotations");
            replace(&cluster, namespace, &made).await.unwrap_or_else(|refused| panic!("updating {what}: {}", refused.message));
            delete(&cluster, namespace, &made).await;
        }
    }
    // Consumers: what changes nothing of what is cloned passes, and so does their end.
    for mut object in [machine, disk] {
        object["metadata"]["annotations"]["x"] = "1".into();
        object["metadata"]["finalizers"] = json!(["example.org/x"]);
        if object["kind"] == "VirtualMachine" {
            object["spec"]["runStrategy"] = "Always".into();
        }
        let object = replace(&cluster, &tenant, &object).await.unwrap_or_else(|refused| panic!("{}", refused.message)).object;
        if object["kind"] == "DataVolume" {
            crate::stand::set_status(&cluster, "cdi.kubevirt.io/v1beta1", "DataVolume", &tenant, "disk", json!({ "phase": "Succeeded" }))
                .await;
        }
        delete(&cluster, &tenant, &object).await;
        let (kind, name) = (object["kind"].as_str().expect("text"), object["metadata"]["name"].as_str().expect("text"));
        let patch = json!({ "metadata": { "finalizers": null } }).to_string();
        cluster.kubectl(["patch", kind, name, "-n", &*tenant, "--type=merge", "-p", &patch]).await.ok();
    }
    // A disk that came back is nobody's business either, until it becomes a clone.
    let mut changed = restored;
    changed["metadata"]["labels"] = json!({ "x": "1" });
    let mut changed = replace(&cluster, &tenant, &changed).await.unwrap_or_else(|refused| panic!("{}", refused.message)).object;
    changed["metadata"].as_object_mut().expect("metadata").remove("annotations");
    let refused = replace(&cluster, &tenant, &changed).await.expect_err("nobody can say whether the clone is right");
    assert!(refused.message.contains("failed calling webhook"), "{}", refused.message);
    delete(&cluster, &tenant, &changed).await;

    // What CDI and the daemon make in the catalog itself.
    for asked in unrelated(CATALOG) {
        create(&cluster, CATALOG, &asked, true)
            .await
            .unwrap_or_else(|refused| panic!("{} in the catalog: {}", asked["kind"], refused.message));
    }
    create(&cluster, CATALOG, &object(Form::Volume, "second-target", RIGHT), true).await.expect("a copy of our own");

    // Clones of goldens, and the stated exception: any sourceRef.
    for form in Form::ALL {
        let refused = create(&cluster, &tenant, &object(form, "refused", RIGHT), true).await.expect_err("nobody can say that it is right");
        assert!(refused.message.contains("failed calling webhook"), "{form:?}: {}", refused.message);
    }
    // GoldenImages are taken, and judged later by the daemon, but none that names a Secret: who may do that only the webhook asks.
    let mut image = json!({ "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": "unasked" },
        "spec": { "source": { "http": { "url": "https://x.example/unasked.qcow2" } }, "access": { "policy": "AllTenants" } } });
    let made = create(&cluster, "", &image, false).await.unwrap_or_else(|refused| panic!("{}", refused.message)).object;
    image["metadata"]["name"] = "unasked-private".into();
    image["spec"]["credentialsSecretRef"] = json!({ "name": "reg" });
    let mut changed = made.clone();
    changed["spec"]["credentialsSecretRef"] = json!({ "name": "reg" });
    for refused in [create(&cluster, "", &image, true).await, replace(&cluster, "", &changed).await] {
        let refused = refused.expect_err("nobody can say whether its author may read that Secret").message;
        assert!(refused.contains("failed calling webhook"), "{refused}");
    }
    let mut described = made;
    described["spec"]["description"] = "as before".into();
    replace(&cluster, "", &described).await.unwrap_or_else(|refused| panic!("{}", refused.message));
    delete(&cluster, "", &described).await;
    let pointer = json!({ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "metadata": { "name": "own-pointer" },
        "spec": { "sourceRef": { "kind": "DataSource", "name": "own" }, "storage": {} } });
    let mut pointed: Vec<Value> = [Form::Machine, Form::Template].map(|form| by_pointer(object(form, "own-pointer", RIGHT), "own")).into();
    pointed.push(pointer);
    pointed.push(json!({ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataSource", "metadata": { "name": "own-pointer" },
        "spec": { "source": { "dataSource": { "namespace": &*tenant, "name": "own" } } } }));
    for asked in &pointed {
        let refused = create(&cluster, &tenant, asked, true).await.expect_err("where a pointer leads only the webhook can tell");
        assert!(refused.message.contains("failed calling webhook"), "{}: {}", asked["kind"], refused.message);
    }

    stand.start(&cluster).await;
    create(&cluster, &tenant, &object(Form::Volume, "again", RIGHT), false).await.expect("the same clone is admitted again");
    for asked in &pointed {
        create(&cluster, &tenant, asked, true).await.unwrap_or_else(|refused| panic!("it leads elsewhere: {}", refused.message));
    }
}

async fn delete(cluster: &harness::Cluster, namespace: &str, object: &Value) {
    let (api_version, kind) = (object["apiVersion"].as_str().expect("text"), object["kind"].as_str().expect("text"));
    let api = cluster.api(&cluster.admin(), api_version, kind, namespace).await;
    let name = object["metadata"]["name"].as_str().expect("text");
    api.delete(name, &Default::default()).await.unwrap_or_else(|error| panic!("deleting {kind} {name}: {error}"));
}

/// Who may not read what a verdict depends on gives none: never ready, and what still arrives is put off.
#[tokio::test]
async fn unknown_is_never_a_verdict() {
    if stand().await.is_none() {
        return;
    }
    let cluster = own_cluster().await;
    let stand = Stand::build(&cluster).await;
    let tenant = cluster.namespace("tenant").await;
    stand.stop().await;
    // It may list no VMs any more, so it cannot tell pools.
    let roles = cluster.kubectl(["get", "clusterroles", "-o", "name"]).await.ok();
    let role = roles.lines().find(|role| role.contains("golden-catalog") && role.ends_with("-consumers")).expect("the role");
    let rules = cluster.kubectl(["get", role, "-o", "json"]).await.ok();
    let mut rules: Value = serde_json::from_str(&rules).expect("JSON");
    rules["rules"].as_array_mut().expect("rules").retain(|rule| rule["resources"] != json!(["virtualmachines"]));
    cluster.kubectl(["patch", role, "--type=merge", "-p", &json!({ "rules": rules["rules"] }).to_string()]).await.ok();
    stand.start_as(&cluster, harness::chart::ADMISSION).await;
    let mut asked = object(Form::Volume, "unknown", Disk { class: None, ..RIGHT });
    asked["metadata"]["annotations"] = json!({ "kubernetes-worker-image.cozystack.io/pool": format!("{}/KubernetesNodes/a", &*tenant) });
    let put_off = harness::eventually("the webhook answers", || async {
        match create(&cluster, &tenant, &asked, true).await {
            Err(refused) if refused.message.contains("failed calling webhook") => Err(refused.message),
            Err(refused) if refused.message.contains("have not been read yet") && !refused.message.contains("VirtualMachine") => {
                Err(refused.message)
            }
            other => Ok(other),
        }
    })
    .await
    .expect_err("no verdict");
    assert_eq!(put_off.code, 503, "{}", put_off.message);
    assert!(put_off.message.contains("try again") && put_off.message.contains("VirtualMachine"), "{}", put_off.message);
    assert_eq!(stand.probe("readyz").await, Ok(503), "it asks for no questions");
    // A certain refusal stands whatever else is unknown.
    let wrong = object(Form::Volume, "wrong", Disk { class: Some("local"), ..RIGHT });
    harness::eventually("another class is refused for sure", || async {
        // What this hangs on may be read later than what the verdict before hung on.
        match create(&cluster, &tenant, &wrong, true).await {
            Err(refused) if refused.code == 403 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}
