//! CDI's webhooks: specs, edits, claims that are taken, permission to clone.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, ServiceAccount};
use kube::{
    Api, Client, ResourceExt,
    api::{DynamicObject, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{
    cdi::{names, types::DataVolume},
    harness,
    room::{Room, of, room},
    upstream::{Answer, DISK, UPSTREAM},
};

/// Creates a DataVolume as it is written, with default or strict field validation.
async fn create(client: &Client, namespace: &str, dv: &Value, strict: bool) -> Result<Value, String> {
    let validation = if strict { "Strict" } else { "Warn" };
    let request =
        http::Request::post(format!("/apis/cdi.kubevirt.io/v1beta1/namespaces/{namespace}/datavolumes?fieldValidation={validation}"))
            .header("content-type", "application/json")
            .body(dv.to_string().into_bytes())
            .unwrap();
    client.request::<Value>(request).await.map_err(|error| error.to_string())
}

async fn refused(room: &Room, dv: &Value) -> String {
    create(&room.client, room.ns(), dv, true).await.expect_err("CDI refuses it")
}

/// Sizes, sources, modes: refused in CDI's words.
#[tokio::test]
async fn bad_specs_are_refused() {
    let Some(room) = room().await else { return };
    let good = room.import("golden", "https://example.org/disk");
    let mut no_size = good.clone();
    no_size["spec"]["storage"].as_object_mut().unwrap().remove("resources");
    let mut small = good.clone();
    small["spec"]["storage"]["resources"]["requests"]["storage"] = json!("1Ki");
    let mut two_sources = good.clone();
    two_sources["spec"]["source"]["blank"] = json!({});
    let mut two_targets = good.clone();
    two_targets["spec"]["pvc"] = json!({ "accessModes": ["ReadWriteOnce"] });
    for (dv, message) in [
        (no_size, "Storage size is missing"),
        (small, "Storage size should be at least 1MiB"),
        (two_sources, "Multiple Data volume sources"),
        (two_targets, "Duplicate storage definition, both target storage and target pvc defined"),
    ] {
        let refusal = refused(&room, &dv).await;
        assert!(refusal.contains(message), "{message}: {refusal}");
        assert!(refusal.contains("datavolume-validate.cdi.kubevirt.io"), "{refusal}");
    }
}

/// "`http.checksum`: strict decoding rejects it, default decoding drops it silently (exists from v1.65)."
#[tokio::test]
async fn an_unknown_checksum_is_dropped_silently() {
    let Some(room) = room().await else { return };
    room.access().await;
    let url = UPSTREAM.put(&format!("/{}/disk", room.ns()), Answer::File(DISK.qcow2.clone()));
    let mut dv = room.import("golden", &url);
    dv["spec"]["source"]["http"]["checksum"] = json!(format!("sha256:{}", "0".repeat(64)));
    let strict = create(&room.client, room.ns(), &dv, true).await.expect_err("strict decoding rejects it");
    assert!(strict.contains("checksum"), "{strict}");
    let created = create(&room.client, room.ns(), &dv, false).await.unwrap();
    assert!(created["spec"]["source"]["http"]["checksum"].is_null());
    room.until_succeeded("golden").await;
}

/// The spec is immutable by value; metadata is free.
#[tokio::test]
async fn spec_edits_are_refused_and_metadata_is_free() {
    let Some(room) = room().await else { return };
    room.golden("golden").await;
    let patch = async |patch: Value| {
        room.dvs().patch("golden", &PatchParams::default(), &Patch::Merge(patch)).await.map(drop).map_err(|error| error.to_string())
    };
    let refusal = patch(json!({ "spec": { "source": { "http": { "url": "https://example.org/other" } } } })).await.unwrap_err();
    assert!(refusal.contains("Cannot update DataVolume Spec"), "{refusal}");
    let refusal = patch(json!({ "spec": { "storage": { "resources": { "requests": { "storage": "32Mi" } } } } })).await.unwrap_err();
    assert!(refusal.contains("Cannot update DataVolume Spec"), "{refusal}");
    patch(json!({ "spec": { "storage": { "resources": { "requests": { "storage": "16384Ki" } } } } }))
        .await
        .expect("the same size spelled otherwise");
    patch(json!({ "metadata": { "labels": { "example.org/mark": "yes" } } })).await.expect("metadata is free");
}

/// A claim of the name that no DataVolume owns: refused at creation, unless adoption is asked for; an adopted claim is Succeeded at once, and lost it is Failed.
#[tokio::test]
async fn a_taken_claim_is_refused_or_adopted() {
    let Some(room) = room().await else { return };
    room.apply(&json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "golden" },
        "spec": { "storageClassName": "replicated", "accessModes": ["ReadWriteOnce"], "volumeMode": "Block", "resources": { "requests": { "storage": "16Mi" } } },
    }))
    .await;
    let bound = |pvc: &PersistentVolumeClaim| pvc.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
    let claim = harness::until(room.pvcs(), "golden", "a plain claim is provisioned", bound).await;
    let mut dv = room.import("golden", "https://example.org/disk");
    let refusal = refused(&room, &dv).await;
    assert!(refusal.contains(&format!("Destination PVC {}/golden already exists", room.ns())), "{refusal}");
    dv["metadata"]["annotations"][names::ALLOW_ADOPTION] = json!("true");
    room.apply(&dv).await;
    room.until_succeeded("golden").await;
    assert_eq!(room.pvcs().get("golden").await.unwrap().uid(), claim.uid());
    room.cdi.lose_claim(room.ns(), "golden").await;
    room.until("golden", "Failed", |status| status.phase == "Failed" && of(status, "Bound").1 == "ClaimLost").await;
}

/// Permission to clone is asked by the source claim's name: `datavolumes/source` in the source's namespace, for whoever asks; the token comes with it.
#[tokio::test]
async fn cloning_across_namespaces_wants_permission() {
    let Some(room) = room().await else { return };
    room.golden("golden").await;
    let tenant = room.cluster.namespace("tenant").await;
    let accounts: Api<ServiceAccount> = Api::namespaced(room.client.clone(), &tenant);
    let account =
        ServiceAccount { metadata: kube::api::ObjectMeta { name: Some("user".into()), ..Default::default() }, ..Default::default() };
    accounts.create(&PostParams::default(), &account).await.unwrap();
    let subject = json!([{ "kind": "ServiceAccount", "name": "user", "namespace": &*tenant }]);
    let role = |name: &str, rules: Value| json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": { "name": name }, "rules": rules });
    let binding = |name: &str| {
        let reference = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name });
        json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": { "name": name }, "roleRef": reference, "subjects": subject })
    };
    let own = json!([{ "apiGroups": ["cdi.kubevirt.io"], "resources": ["datavolumes"], "verbs": ["create", "get", "patch"] }]);
    room.cluster.apply_in(&tenant, &role("user", own).to_string()).await;
    room.cluster.apply_in(&tenant, &binding("user").to_string()).await;
    let client = room.cluster.client_as_service_account(&tenant, "user").await;
    let dv = room.clone_of("disk", "golden");
    let refusal = harness::eventually("its own role is known", async || match create(&client, &tenant, &dv, true).await {
        Err(refusal) if refusal.contains("cannot create resource") => Err(refusal),
        other => Ok(other.expect_err("no permission yet")),
    })
    .await;
    let user = format!("system:serviceaccount:{}:user", &*tenant);
    assert!(refusal.contains(&format!("User {user} has insufficient permissions in clone source namespace {}", room.ns())), "{refusal}");

    let rule = json!([{ "apiGroups": ["cdi.kubevirt.io"], "resources": ["datavolumes/source"], "resourceNames": ["golden"], "verbs": ["create"] }]);
    room.cluster.apply_in(room.ns(), &role("clone-golden", rule).to_string()).await;
    room.cluster.apply_in(room.ns(), &binding("clone-golden").to_string()).await;
    let created = harness::eventually("the role is known", async || create(&client, &tenant, &dv, true).await).await;
    assert!(created["metadata"]["annotations"][names::CLONE_TOKEN].is_string());
    let dvs: Api<DataVolume> = Api::namespaced(room.client.clone(), &tenant);
    harness::until(dvs.clone(), "disk", "Succeeded", |dv: &DataVolume| {
        dv.status.as_ref().is_some_and(|status| status.phase == "Succeeded")
    })
    .await;
    assert_eq!(room.disk_in(&tenant, "disk").await, room.disk("golden").await);

    // A later patch of metadata asks again, for whoever patches: the trap for back-filled marks.
    let roles: Api<DynamicObject> = room.cluster.api(&room.client, "rbac.authorization.k8s.io/v1", "Role", room.ns()).await;
    roles.delete("clone-golden", &Default::default()).await.unwrap();
    let mine: Api<DataVolume> = Api::namespaced(client, &tenant);
    let mark = Patch::Merge(json!({ "metadata": { "labels": { "example.org/mark": "yes" } } }));
    harness::eventually("the role's end is known", async || match mine.patch("disk", &PatchParams::default(), &mark).await {
        Err(error) if error.to_string().contains("insufficient permissions") => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

/// "CDI apiserver down": every create and update of a DataVolume fails; nothing else does.
#[tokio::test]
async fn a_datasource_that_is_missing_is_refused() {
    let Some(room) = room().await else { return };
    let mut dv = room.clone_of("disk", "golden");
    dv["spec"]["source"] = Value::Null;
    dv["spec"]["sourceRef"] = json!({ "kind": "DataSource", "name": "nothing", "namespace": room.ns() });
    let refusal = refused(&room, &dv).await;
    assert!(refusal.contains("datasources.cdi.kubevirt.io \"nothing\" not found"), "{refusal}");
}
