//! Who asks for a clone in a bad moment of a retirement, and what retiring does where not all can be known or be done: never both a clone and
//! a golden that goes, and nothing that is silent.

use std::time::Duration;

use golden_catalog::{
    api::{GoldenImage, parse_image},
    rules::marks,
};
use k8s_openapi::{api::coordination::v1::Lease, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, DynamicObject, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{
    harness::{self, Cluster, History, eventually, until, until_gone},
    objects::{Disk, Form, RIGHT, object},
    proxy::{ApiProxy, Side},
    stand::{CATALOG, Stand, create, golden},
};

/// How long a golden is closed before it goes.
const WAIT: &str = "1s";
/// The longest a leader may take to a write of a retirement, on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// The path of the watch of virtual machines, in every namespace.
pub const VIRTUAL_MACHINES: &str = "/apis/kubevirt.io/v1/virtualmachines?";

async fn claims(cluster: &Cluster) -> Api<DynamicObject> {
    cluster.api(&cluster.admin(), "v1", "PersistentVolumeClaim", CATALOG).await
}

async fn machines(cluster: &Cluster, namespace: &str) -> Api<DynamicObject> {
    cluster.api(&cluster.admin(), "kubevirt.io/v1", "VirtualMachine", namespace).await
}

async fn ask_to_go(cluster: &Cluster, name: &str) {
    let ask = Patch::Merge(json!({ "metadata": { "annotations": { marks::RETIRE_REQUESTED: "now" } } }));
    let claims = claims(cluster).await;
    harness::made(async || claims.patch(name, &PatchParams::default(), &ask).await).await.expect("asked to go");
}

fn machine(name: &str, golden: &str) -> Value {
    let golden: &'static str = golden.to_owned().leak();
    object(Form::Machine, name, Disk { golden, ..RIGHT })
}

fn mark_of(claim: &DynamicObject) -> &str {
    claim.annotations().get(marks::RETIRING).map_or("", String::as_str)
}

/// Waits until a golden is open to the pools that have it and to no other, and is not to go meanwhile.
pub async fn until_kept(cluster: &Cluster, name: &str) {
    until(claims(cluster).await, name, "it is kept", |claim: &DynamicObject| {
        assert!(claim.metadata.deletion_timestamp.is_none(), "{name} goes, though it is needed");
        mark_of(claim).starts_with("since ")
    })
    .await;
}

/// Waits until a golden is gone, or would be if the cluster had a garbage collector.
async fn until_it_goes(cluster: &Cluster, name: &str) {
    let claims = claims(cluster).await;
    eventually(&format!("{name} goes"), async || match claims.get_opt(name).await.map_err(|error| error.to_string())? {
        Some(claim) if claim.metadata.deletion_timestamp.is_none() => {
            let volumes = cluster.api(&cluster.admin(), "cdi.kubevirt.io/v1beta1", "DataVolume", CATALOG).await;
            match volumes.get_opt(name).await.map_err(|error| error.to_string())? {
                Some(volume) => Err(format!("{:?}", volume.annotations())),
                None => Ok(()),
            }
        }
        _ => Ok(()),
    })
    .await;
}

/// A leader that dies does not give the Lease back; nobody needs to wait for that here.
pub async fn release_lease(cluster: &Cluster) {
    let leases: Api<Lease> = Api::namespaced(cluster.admin(), CATALOG);
    let free = Patch::Merge(json!({ "spec": { "holderIdentity": "", "leaseDurationSeconds": 1 } }));
    leases.patch("golden-catalog", &PatchParams::default(), &free).await.expect("released");
}

/// The daemon stands still on either side of each write of a retirement, and a pool that never used the golden asks for a clone in that very
/// moment. It is admitted and the golden stays, or refused and the golden goes: as the next leader finds it, whichever moment it was.
pub async fn a_consumer_at_each_moment_of_a_retirement_wins_or_loses(cluster: &Cluster, stand: &Stand) {
    let tenant = cluster.namespace("tenant").await;
    let mut asked: Vec<(String, bool)> = Vec::new();
    // Marks on claim and DataVolume, twice, and the deletion. After each is before the next.
    for (n, side) in [(1, Side::Before), (1, Side::After), (2, Side::After), (3, Side::After), (4, Side::After), (5, Side::After)] {
        let name = format!("moment-{n}-{side:?}").to_lowercase();
        golden(cluster, &name, "replicated", "1Gi", "Block").await;
        ask_to_go(cluster, &name).await;
        let proxy = ApiProxy::start(cluster.control_plane(), None).await;
        proxy.trap_at(&format!("/{name}"), n, side);
        // It goes on with what its predecessor left, too.
        let leader = stand.leader_by(cluster, &format!("trapped-{n}-{side:?}"), WAIT, Some(&proxy)).await;
        let trapped = tokio::time::timeout(PATIENCE, proxy.trapped()).await;
        assert!(trapped.is_ok(), "{name}: the leader never made that write\n{}", leader.log());
        let is_admitted = create(cluster, &tenant, &machine(&format!("vm-{name}"), &name), false).await.is_ok();
        leader.kill();
        drop(leader);
        release_lease(cluster).await;
        asked.push((name, is_admitted));
    }
    let last = stand.leader(cluster, "after-all", WAIT).await;
    for (name, is_admitted) in &asked {
        match is_admitted {
            true => until_kept(cluster, name).await,
            false => until_it_goes(cluster, name).await,
        }
    }
    let admitted: Vec<_> = asked.iter().filter(|(_, is_admitted)| *is_admitted).map(|(name, _)| name.as_str()).collect();
    assert_eq!(admitted, ["moment-1-before"], "from the first mark on nobody new is let in");
    // Nothing is left for the tests after this one.
    machines(cluster, &tenant).await.delete("vm-moment-1-before", &DeleteParams::default()).await.expect("a consumer always goes");
    until_it_goes(cluster, "moment-1-before").await;
    last.kill();
    drop(last);
    release_lease(cluster).await;
}

/// What the leader's watches are late with, and what it may not ask, costs no golden: it looks at the API server itself before the last
/// mark, and where that cannot be asked it says so, waits longer each time, and goes on by itself.
pub async fn what_the_leader_does_not_hear_costs_no_golden(cluster: &Cluster, stand: &Stand) {
    let tenant = cluster.namespace("tenant").await;
    let proxy = ApiProxy::start(cluster.control_plane(), None).await;
    for name in ["unheard", "unasked", "going", "unfinished-clone"] {
        golden(cluster, name, "replicated", "1Gi", "Block").await;
    }
    let leader = stand.leader_by(cluster, "deaf", WAIT, Some(&proxy)).await;
    let listed = |path: &str| path.contains(VIRTUAL_MACHINES) && path.contains("watch=true");
    eventually("the leader watches VirtualMachines", async || {
        if proxy.seen().iter().any(|seen| listed(&seen.path)) { Ok(()) } else { Err("not yet".to_owned()) }
    })
    .await;

    // Only the watch is late: admission let the consumer in, and the leader is not told.
    proxy.hold_watches(Some(VIRTUAL_MACHINES));
    create(cluster, &tenant, &machine("unheard-of", "unheard"), false).await.unwrap_or_else(|refused| panic!("{}", refused.message));
    let mut unheard = History::of(claims(cluster).await, "unheard").await;
    ask_to_go(cluster, "unheard").await;
    unheard.once("it seems free to the leader", |claim: &DynamicObject| mark_of(claim).starts_with("closed")).await;
    until_kept(cluster, "unheard").await;
    proxy.hold_watches(None);

    // Terminating consumers: a VM that only waits for its finalizers does not count, a disk whose clone has not ended does.
    let mut held = machine("held", "going");
    held["metadata"]["finalizers"] = json!(["example.org/x"]);
    create(cluster, &tenant, &held, false).await.unwrap_or_else(|refused| panic!("{}", refused.message));
    let mut disk = object(Form::Volume, "filling", Disk { golden: "unfinished-clone", ..RIGHT });
    disk["metadata"]["finalizers"] = json!(["example.org/x"]);
    create(cluster, &tenant, &disk, false).await.unwrap_or_else(|refused| panic!("{}", refused.message));
    let disks = cluster.api(&cluster.admin(), "cdi.kubevirt.io/v1beta1", "DataVolume", &tenant).await;
    machines(cluster, &tenant).await.delete("held", &DeleteParams::default()).await.expect("a consumer always goes");
    disks.delete("filling", &DeleteParams::default()).await.expect("a consumer always goes");
    for name in ["going", "unfinished-clone"] {
        ask_to_go(cluster, name).await;
    }
    until_it_goes(cluster, "going").await;
    until_kept(cluster, "unfinished-clone").await;
    let off = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    disks.patch("filling", &PatchParams::default(), &off).await.expect("its clone is given up");
    machines(cluster, &tenant).await.patch("held", &PatchParams::default(), &off).await.expect("it goes");
    until_it_goes(cluster, "unfinished-clone").await;

    a_wish_that_is_taken_back_unheard_keeps_its_golden(cluster, &tenant, &proxy).await;

    // The question itself is refused: told on the golden, which stays, until it is allowed.
    proxy.forbid(Some(VIRTUAL_MACHINES));
    ask_to_go(cluster, "unasked").await;
    let events = cluster.api(&cluster.admin(), "events.k8s.io/v1", "Event", CATALOG).await;
    harness::until_listed(events, "", "an Event says what is refused", |events: &[DynamicObject]| {
        events.iter().any(|event| {
            let note = event.data["note"].as_str().unwrap_or_default();
            let is_ours = event.data["reason"] == "CannotRetire" && event.data["regarding"]["name"] == "unasked";
            is_ours && note.contains("VirtualMachine objects cannot be listed") && note.contains("by itself")
        })
    })
    .await;
    let claim = claims(cluster).await.get("unasked").await.expect("it stays");
    assert!(claim.metadata.deletion_timestamp.is_none() && mark_of(&claim).starts_with("closed"), "{:?}", claim.annotations());
    proxy.forbid(None);
    until_it_goes(cluster, "unasked").await;

    machines(cluster, &tenant).await.delete("unheard-of", &DeleteParams::default()).await.expect("a consumer always goes");
    until_it_goes(cluster, "unheard").await;
    leader.kill();
    drop(leader);
    release_lease(cluster).await;
}

/// A retirement is taken back while the leader hears nothing of images: before the mark that has no way back it asks for the wish itself.
async fn a_wish_that_is_taken_back_unheard_keeps_its_golden(cluster: &Cluster, tenant: &str, proxy: &ApiProxy) {
    const IMAGE: &str = "unheard-wish";
    golden(cluster, "wished", "replicated", "1Gi", "Block").await;
    let image = json!({ "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": IMAGE },
        "spec": { "source": { "http": { "url": "https://e.example/unheard" } }, "suspend": true, "retire": true } });
    let object: GoldenImage = serde_json::from_value(image.clone()).expect("an image");
    let identity = parse_image(&object).expect("an image").identity(None).expect("an identity").to_string();
    let of_image = Patch::Merge(json!({ "metadata": { "labels": { marks::IMAGE: IMAGE, marks::IDENTITY: identity } } }));
    claims(cluster).await.patch("wished", &PatchParams::default(), &of_image).await.expect("marked");
    create(cluster, tenant, &machine("wishes", "wished"), false).await.unwrap_or_else(|refused| panic!("{}", refused.message));
    cluster.apply(&image.to_string()).await;
    until_kept(cluster, "wished").await;

    proxy.hold_watches(Some("/goldenimages?"));
    let images = cluster.api(&cluster.admin(), "cozystack.io/v1alpha1", "GoldenImage", "").await;
    let back = Patch::Merge(json!({ "spec": { "retire": false } }));
    images.patch(IMAGE, &PatchParams::default(), &back).await.expect("taken back");
    let asked =
        || proxy.seen().iter().filter(|seen| seen.method == http::Method::GET && seen.path.ends_with("/goldenimages/unheard-wish")).count();
    let before = asked();
    machines(cluster, tenant).await.delete("wishes", &DeleteParams::default()).await.expect("a consumer always goes");
    eventually("the leader asks what is wished", async || if asked() > before { Ok(()) } else { Err("not yet".to_owned()) }).await;
    proxy.hold_watches(None);
    until(claims(cluster).await, "wished", "it is as it was", |claim: &DynamicObject| {
        assert!(claim.metadata.deletion_timestamp.is_none(), "it goes, though nobody wishes that any more");
        mark_of(claim).is_empty()
    })
    .await;
    images.delete(IMAGE, &DeleteParams::default()).await.expect("deleted");
    until_gone(images, IMAGE).await;
}

/// A VirtualMachine that another version of its CRD took, and that clones something of the catalog which nobody can tell: stored before our
/// webhooks were there. Gives its namespace.
pub async fn an_odd_machine(cluster: &Cluster) -> harness::TestNamespace {
    let tenant = cluster.namespace("odd").await;
    let definitions: Api<CustomResourceDefinition> = Api::all(cluster.admin());
    let name = "virtualmachines.kubevirt.io";
    let ours = definitions.get(name).await.expect("the CRD");
    let loose = json!({ "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } });
    let mut other = ours.clone();
    for version in &mut other.spec.versions {
        version.schema = serde_json::from_value(loose.clone()).expect("a schema");
    }
    let with = async |definition: &CustomResourceDefinition| {
        let patch = Patch::Merge(json!({ "spec": { "versions": definition.spec.versions } }));
        definitions.patch(name, &PatchParams::default(), &patch).await.expect("another version of the CRD");
    };
    with(&other).await;
    let mut odd = machine("odd", "any");
    odd["spec"]["dataVolumeTemplates"][0]["spec"]["source"]["pvc"]["name"] = json!(["unsure"]);
    cluster.apply(&format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {CATALOG}}}}}")).await;
    eventually("the other version of the CRD takes it", async || {
        create(cluster, &tenant, &odd, false).await.map(drop).map_err(|refused| refused.message)
    })
    .await;
    with(&ours).await;
    tenant
}

/// It holds every golden, by name and with what to do, until it is gone.
pub async fn what_cannot_be_read_and_may_need_a_golden_holds_it(cluster: &Cluster, stand: &Stand, odd: harness::TestNamespace) {
    golden(cluster, "unsure", "replicated", "1Gi", "Block").await;
    ask_to_go(cluster, "unsure").await;
    let leader = stand.leader(cluster, "unsure", WAIT).await;
    until_kept(cluster, "unsure").await;
    let named = format!("VirtualMachine {}/odd (it cannot be read, so it may need any golden", &*odd);
    let checked = harness::cli(Some(cluster.admin_kubeconfig()), ["check-delete", "unsure"]).await;
    assert!(checked.code == Some(1) && checked.stdout.contains(&named), "{checked:?}");
    let volumes = cluster.api(&cluster.admin(), "cdi.kubevirt.io/v1beta1", "DataVolume", CATALOG).await;
    let refused = volumes.delete("unsure", &DeleteParams::default()).await.expect_err("it may be needed").to_string();
    assert!(refused.contains(&named), "{refused}");
    machines(cluster, &odd).await.delete("odd", &DeleteParams::default()).await.expect("a consumer always goes");
    until_gone(machines(cluster, &odd).await, "odd").await;
    until_it_goes(cluster, "unsure").await;
    leader.kill();
    drop(leader);
    release_lease(cluster).await;
}
