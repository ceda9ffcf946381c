//! Kinds that come and go while the daemon runs: an uninstalled one has no objects, which is known and no trouble; one that comes back is watched again, without a restart.

use std::collections::BTreeMap;

use golden_catalog::api::GoldenImage;
use kube::api::{DeleteParams, DynamicObject, PostParams};
use serde_json::{Value, json};

use crate::{
    CDI, GOLDEN, Scene, TENANT, from_golden, harness, holder, machine_template,
    stage::{CATALOG, NAMESPACE},
    virtual_machine,
};

/// An image that no golden is made of: worker classes count for it by its identity.
const BY_IDENTITY: &str = "kairos";
const REFERENCE: &str = "registry.example.com/kairos@sha256:eb87a994833d82feb2279575aafa42a06c5feb124ea72cae6efc0ee46bb729d8";

/// Every kind of the ledger that need not be installed, but DataVolumes, without which there are no goldens.
const DEFINITIONS: [&str; 8] = [
    "virtualmachines.kubevirt.io",
    "kubevirtmachinetemplates.infrastructure.cluster.x-k8s.io",
    "machinedeployments.cluster.x-k8s.io",
    "machinesets.cluster.x-k8s.io",
    "volumeclonesources.cdi.kubevirt.io",
    "datasources.cdi.kubevirt.io",
    "volumesnapshots.snapshot.storage.k8s.io",
    "workerclasses.cozystack.io",
];

/// What the daemon counts of a kind once it is back.
const BACK: [(&str, usize); 6] = [
    ("VirtualMachine", 1),
    ("KubevirtMachineTemplate", 2),
    ("VolumeCloneSource", 1),
    ("DataSource", 1),
    ("VolumeSnapshot", 1),
    ("WorkerClass", 1),
];

/// Requests of one kind that are none of a storm: a kind that is not there is looked for twice a minute.
const FEW: usize = 40;

/// The daemon's own counts of a kind, by its metrics, and whether its ledger is known.
async fn counted(scene: &Scene<'_>) -> (BTreeMap<String, usize>, bool) {
    let metrics = scene.stage.metrics().await;
    let mut counts = BTreeMap::new();
    for line in metrics.lines() {
        let Some((label, value)) = line.strip_prefix("golden_image_consumers{").and_then(|rest| rest.rsplit_once(' ')) else { continue };
        let kind = label.split("kind=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
        *counts.entry(kind.to_owned()).or_default() += value.parse::<usize>().expect("a count");
    }
    (counts, metrics.lines().any(|line| line == "golden_image_ledger_known 1"))
}

/// Waits until the daemon counts so many objects of each kind and knows all it must.
async fn until_counted(scene: &Scene<'_>, what: &str, expected: impl Fn(&str, usize) -> usize) {
    harness::eventually(what, async || {
        let (counts, known) = counted(scene).await;
        let is_right = |(kind, number): &(&str, usize)| counts.get(*kind).copied().unwrap_or(0) == expected(kind, *number);
        if known && BACK.iter().all(is_right) { Ok(()) } else { Err(format!("known: {known}, {counts:?}")) }
    })
    .await;
}

/// All at once, as when those projects are uninstalled.
pub async fn come_and_go(scene: &Scene<'_>) {
    let image = json!({
        "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": BY_IDENTITY },
        "spec": { "source": { "containerDisk": { "reference": REFERENCE } }, "suspend": true },
    });
    let image: GoldenImage = serde_json::from_value(image).expect("object");
    scene.stage.images().create(&PostParams::default(), &image).await.expect("created");
    harness::eventually("the class that is there counts", async || {
        let (counts, _) = counted(scene).await;
        if counts.get("WorkerClass") == Some(&1) { Ok(()) } else { Err(format!("{counts:?}")) }
    })
    .await;

    let mark = scene.stage.cluster.audit_mark().await;
    let definitions = scene.api("apiextensions.k8s.io/v1", "CustomResourceDefinition", "default").await;
    for definition in DEFINITIONS {
        definitions.delete(definition, &DeleteParams::default()).await.unwrap_or_else(|error| panic!("{definition}: {error}"));
    }
    for definition in DEFINITIONS {
        harness::until_gone(definitions.clone(), definition).await;
    }
    // Known to be none, by the daemon and by the command line alike; what has a kind left still counts.
    until_counted(scene, "nothing counts without its kind", |_, _| 0).await;
    scene.agreed().await;
    let told = scene.cli(&["check-delete", GOLDEN]).await;
    assert_eq!(told.code, Some(1), "in use by disks, and known: {told:?}");
    let asked = scene.stage.cluster.requests_since(mark).await;
    for definition in DEFINITIONS {
        let (resource, group) = definition.split_once('.').expect("plural.group");
        let of_kind = |request: &&harness::Request| {
            request.resource == resource && request.group == group && request.is_by(NAMESPACE, harness::chart::CONTROLLER)
        };
        let number = asked.iter().filter(of_kind).count();
        assert!(number < FEW, "{number} requests of {definition}");
    }

    scene.stage.cluster.install_foreign_crds(harness::Flavor::Trimmed).await;
    scene.apply(virtual_machine("back", json!({}))).await;
    // Whose templates these are only their holders say.
    for (kind, pool, labels) in [
        ("MachineDeployment", "md4", json!({})),
        ("MachineSet", "md5", json!({ "cluster.x-k8s.io/deployment-name": "kubernetes-demo-md5" })),
    ] {
        let (template, name) = (format!("kubernetes-demo-{pool}-back"), format!("kubernetes-demo-{pool}"));
        scene.apply(machine_template(&template, json!({}))).await;
        scene.apply(holder(kind, &name, &template, labels)).await;
    }
    scene
        .apply(json!({
            "apiVersion": CDI, "kind": "VolumeCloneSource", "metadata": { "namespace": CATALOG, "name": "volume-clone-source-1d2e6a1b-4c5f-4e1a-9b7c-00112233aabb" },
            "spec": { "source": { "kind": "PersistentVolumeClaim", "name": GOLDEN } },
        }))
        .await;
    scene
        .apply(json!({ "apiVersion": CDI, "kind": "DataSource", "metadata": { "namespace": CATALOG, "name": "newest" }, "spec": { "source": from_golden(GOLDEN) } }))
        .await;
    scene
        .apply(json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": { "namespace": CATALOG, "name": "before-upgrade" },
            "spec": { "source": { "persistentVolumeClaimName": GOLDEN } },
        }))
        .await;
    scene
        .apply(json!({
            "apiVersion": "cozystack.io/v1alpha1", "kind": "WorkerClass", "metadata": { "name": "kairos" },
            "spec": { "bootstrap": "kairos", "image": { "kubernetesVersion": "v1.35.6", "reference": REFERENCE } },
        }))
        .await;
    until_counted(scene, "each kind counts again", |_, number| number).await;
    scene.agreed().await;
    let lines = scene.lines(crate::IMAGE).await;
    for pool in ["md4", "md5"] {
        let expected = format!(
            "KubevirtMachineTemplate {TENANT}/kubernetes-demo-{pool}-back of {TENANT}/KubernetesNodes/demo-{pool} (by spec): blocks"
        );
        assert!(lines.contains(&expected), "{expected} is not among\n{}", lines.join("\n"));
    }
    scene.stage.images().delete(BY_IDENTITY, &DeleteParams::default()).await.expect("deleted");
}

/// A pool of a server that does not serve `v1beta1` any more: whose template it is only its MachineDeployment says.
pub async fn explain_reads_pools_of_a_newer_cluster_api(scene: &Scene<'_>) {
    const POOLS: &str = "machinedeployments.cluster.x-k8s.io";
    let definitions = scene.api("apiextensions.k8s.io/v1", "CustomResourceDefinition", "default").await;
    harness::eventually("the server serves the newer version alone", async || {
        let mut found: DynamicObject = definitions.get(POOLS).await.map_err(|error| error.to_string())?;
        let versions = found.data["spec"]["versions"].as_array_mut().ok_or("no versions")?;
        let mut newer = versions.first().cloned().ok_or("no version")?;
        for version in versions.iter_mut() {
            (version["served"], version["storage"]) = (false.into(), false.into());
        }
        (newer["name"], newer["served"], newer["storage"]) = ("v1beta2".into(), true.into(), true.into());
        versions.push(newer);
        definitions.replace(POOLS, &PostParams::default(), &found).await.map(drop).map_err(|error| error.to_string())
    })
    .await;
    scene.apply(machine_template("newer", json!({}))).await;
    let mut pool = holder("MachineDeployment", "kubernetes-demo-md6", "newer", json!({}));
    pool["apiVersion"] = "cluster.x-k8s.io/v1beta2".into();
    let cluster = scene.stage.cluster;
    harness::eventually("a pool is made in the newer version", async || {
        cluster.try_apply(&cluster.admin(), TENANT, &pool.to_string()).await.map(drop).map_err(|error| error.to_string())
    })
    .await;
    let told = scene.cli(&["explain", &format!("{TENANT}/kubevirtmachinetemplate/newer"), "-o", "json"]).await;
    let told: Value = serde_json::from_str(&told.stdout).unwrap_or_else(|error| panic!("{error}: {told:?}"));
    assert_eq!(told["disks"][0]["pool"], format!("{TENANT}/KubernetesNodes/demo-md6"), "{told}");
}
