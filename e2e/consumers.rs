//! Who needs a golden: every form of reference on a real API server, told alike by the daemon's status and by the command line; marks, stuck clones, kinds that come and go.

#[path = "consumers/backfill.rs"]
mod backfill;
#[path = "cdi/mod.rs"]
mod cdi;
#[path = "harness/mod.rs"]
mod harness;
#[path = "consumers/kinds.rs"]
mod kinds;
#[path = "stage/mod.rs"]
mod stage;
#[path = "upstream/mod.rs"]
mod upstream;
#[path = "consumers/waiting.rs"]
mod waiting;

use golden_catalog::api::{ConsumersStatus, GoldenImage};
use harness::Needs;
use k8s_openapi::api::events::v1::Event;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use stage::{CATALOG, NAMESPACE, Options, Stage, images};

static CLUSTER: harness::Shared =
    harness::Shared::new(|| harness::Options::default().controller_manager().foreign_crds(harness::Flavor::Trimmed));

const IMAGE: &str = "noble";
const GOLDEN: &str = "vm-default-images-noble";
const GOLDEN_MARK: &str = "kubernetes-worker-image.cozystack.io/golden";
const POOL_MARK: &str = "kubernetes-worker-image.cozystack.io/pool";
const TENANT: &str = "tenant-a";
const CDI: &str = "cdi.kubevirt.io/v1beta1";

/// What every chapter uses.
struct Scene<'a> {
    stage: Stage<'a>,
}

impl Scene<'_> {
    async fn apply(&self, object: Value) {
        self.stage.cluster.apply(&object.to_string()).await;
    }

    async fn api(&self, version: &str, kind: &str, namespace: &str) -> Api<DynamicObject> {
        self.stage.cluster.api(&self.stage.cluster.admin(), version, kind, namespace).await
    }

    /// Runs `golden-catalog` with all rights.
    async fn cli(&self, arguments: &[&str]) -> harness::Output {
        harness::cli(Some(self.stage.cluster.admin_kubeconfig()), arguments).await
    }

    /// What the command line says of the image, as JSON.
    async fn told(&self, name: &str) -> Value {
        let output = self.cli(&["consumers", name, "--output=json"]).await.ok();
        serde_json::from_str(&output).expect("JSON")
    }

    async fn status(&self) -> ConsumersStatus {
        self.status_of(IMAGE).await
    }

    async fn status_of(&self, name: &str) -> ConsumersStatus {
        let image = self.stage.images().get(name).await.expect("image");
        image.status.and_then(|status| status.consumers).unwrap_or_default()
    }

    /// Waits until the daemon's counts are the command line's, and gives them.
    async fn agreed(&self) -> Value {
        self.agreed_on(IMAGE).await
    }

    async fn agreed_on(&self, name: &str) -> Value {
        // Both are asked anew each time: CDI's clones come and go while they are counted.
        harness::eventually("the daemon counts as the command line does", async || {
            let told = self.told(name).await;
            let image = self.stage.images().get(name).await.map_err(|error| error.to_string())?;
            let status = image.status.as_ref().and_then(|status| status.consumers.clone()).ok_or("nothing is counted")?;
            let in_use = harness::condition(&image, "InUse").map(|condition| condition.status);
            let counts = json!({
                "clones": status.clones, "pools": status.pools, "virtualMachines": status.virtual_machines,
                "templates": status.templates, "namespaces": status.namespaces,
            });
            let same = counts.as_object().into_iter().flatten().all(|(key, value)| told["counts"][key] == *value);
            let blocks = if told["counts"]["blocking"].as_u64() > Some(0) { "True" } else { "False" };
            if same && in_use.as_deref() == Some(blocks) { Ok(told) } else { Err(format!("{} and {counts}, {in_use:?}", told["counts"])) }
        })
        .await
    }

    /// Each consumer as `Kind namespace/name of pool (evidence) blocks`.
    async fn lines(&self, name: &str) -> Vec<String> {
        let told = self.told(name).await;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let pools = told["pools"].as_array().cloned().unwrap_or_default();
        let mut lines: Vec<String> = pools
            .iter()
            .flat_map(|pool| {
                pool["consumers"].as_array().cloned().unwrap_or_default().into_iter().map(move |consumer| (pool["pool"].clone(), consumer))
            })
            .map(|(pool, consumer)| {
                let blocks = if consumer["blocks"].is_string() { "blocks" } else { "listed" };
                format!(
                    "{} {}/{} of {} ({}): {blocks}",
                    text(&consumer["kind"]),
                    text(&consumer["namespace"]),
                    text(&consumer["name"]),
                    text(&pool),
                    text(&consumer["evidence"])
                )
            })
            .collect();
        lines.sort();
        lines
    }

    async fn annotations(
        &self,
        version: &str,
        kind: &str,
        name: &str,
        what: &str,
        holds: impl Fn(&DynamicObject) -> bool,
    ) -> DynamicObject {
        harness::until(self.api(version, kind, TENANT).await, name, what, holds).await
    }

    /// Waits for an Event about an object of the tenant that says all this: what is known of it at first may be less.
    async fn event(&self, name: &str, reason: &str, words: &[&str]) {
        harness::eventually(&format!("an Event {reason} about {name} says {words:?}"), || async {
            let notes = self.notes(name, reason).await.map_err(|error| error.to_string())?;
            let tells = |note: &String| words.iter().all(|word| note.contains(word));
            if notes.iter().any(tells) { Ok(()) } else { Err(format!("{notes:?}")) }
        })
        .await;
    }

    /// Nothing was told about an object of the tenant until now that calls it stuck.
    async fn was_never_stuck(&self, name: &str, because: &str) {
        let wrong = self.notes(name, "CloneStuck").await.expect("events");
        assert!(wrong.is_empty(), "{name} was told to be stuck {because}: {wrong:?}");
    }

    /// The Events of this reason about an object of the tenant.
    async fn notes(&self, name: &str, reason: &str) -> kube::Result<Vec<String>> {
        let api: Api<Event> = Api::namespaced(self.stage.cluster.admin(), TENANT);
        let about = api.list(&ListParams::default()).await?.items.into_iter().filter(|event| {
            event.reason.as_deref() == Some(reason) && event.regarding.as_ref().and_then(|object| object.name.as_deref()) == Some(name)
        });
        Ok(about.filter_map(|event| event.note).collect())
    }
}

/// A disk as an application makes it, older than the daemon: without any mark.
fn disk(name: &str, source: Value, labels: Value) -> Value {
    json!({
        "apiVersion": CDI, "kind": "DataVolume", "metadata": { "namespace": TENANT, "name": name, "labels": labels },
        "spec": { "source": source, "storage": { "storageClassName": "replicated", "resources": { "requests": { "storage": "1Gi" } } } },
    })
}

fn from_golden(golden: &str) -> Value {
    json!({ "pvc": { "namespace": CATALOG, "name": golden } })
}

/// What Cozystack's `packages/apps/kubernetes-nodes` and `vm-disk` render.
fn virtual_machine(name: &str, instance_labels: Value) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": { "namespace": TENANT, "name": name },
        "spec": {
            "runStrategy": "Halted",
            "dataVolumeTemplates": [{
                "metadata": { "name": format!("{name}-system") },
                "spec": { "source": from_golden(GOLDEN), "storage": { "resources": { "requests": { "storage": "1Gi" } } } },
            }],
            "template": { "metadata": { "labels": instance_labels }, "spec": { "domain": { "devices": {} } } },
        },
    })
}

fn worker_labels(pool: &str) -> Value {
    json!({
        "cluster.x-k8s.io/deployment-name": format!("kubernetes-demo-{pool}"),
        "apps.cozystack.io/application.kind": "Kubernetes", "apps.cozystack.io/application.name": "demo",
    })
}

fn machine_template(name: &str, labels: Value) -> Value {
    json!({
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": "KubevirtMachineTemplate", "metadata": { "namespace": TENANT, "name": name },
        "spec": { "template": { "spec": {
            "virtualMachineBootstrapCheck": { "checkStrategy": "none" },
            "virtualMachineTemplate": { "metadata": { "namespace": TENANT }, "spec": {
                "runStrategy": "Always",
                "dataVolumeTemplates": [{ "metadata": { "name": "disk-system" }, "spec": { "source": from_golden(GOLDEN), "storage": { "resources": { "requests": { "storage": "1Gi" } } } } }],
                "template": { "metadata": { "labels": labels }, "spec": { "domain": { "devices": {} } } },
            } },
        } } },
    })
}

fn holder(kind: &str, name: &str, template: &str, labels: Value) -> Value {
    let infrastructure =
        json!({ "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": "KubevirtMachineTemplate", "name": template });
    json!({
        "apiVersion": "cluster.x-k8s.io/v1beta1", "kind": kind, "metadata": { "namespace": TENANT, "name": name, "labels": labels },
        "spec": {
            "clusterName": "kubernetes-demo", "replicas": 0, "selector": { "matchLabels": { "pool": name } },
            "template": { "spec": { "clusterName": "kubernetes-demo", "bootstrap": { "dataSecretName": "none" }, "infrastructureRef": infrastructure } },
        },
    })
}

fn claim(namespace: &str, name: &str, labels: Value, annotations: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "namespace": namespace, "name": name, "labels": labels, "annotations": annotations },
        "spec": { "accessModes": ["ReadWriteMany"], "volumeMode": "Block", "storageClassName": "elsewhere", "resources": { "requests": { "storage": "1Gi" } } },
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn what_still_needs_this_golden() {
    let Some(cluster) = CLUSTER.on(Needs::Scripted).await else { return };
    let (nginx, _) = stage::upstream();
    let dir = harness::scratch_dir_on_disk("consumers");
    let raw = images::raw_disk(dir.path(), "disk", 48 << 20, 6, 7);
    nginx.put("noble.qcow2", &std::fs::read(images::qcow2(&raw)).expect("qcow2"));
    let options = Options {
        images: json!([{ "name": IMAGE, "url": format!("http://{}/noble.qcow2", nginx.http) }]),
        settings: json!({ "consumersInterval": "1s", "stuckClone": "3s" }),
        ..Options::default()
    };
    let scene = Scene { stage: Stage::set(cluster, options).await };
    scene.apply(json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": TENANT } })).await;
    let daemon = scene.stage.daemon("a");
    daemon.ready().await;
    scene.stage.until(IMAGE, "Ready", "True").await;

    nobody_uses_it(&scene).await;
    every_form_of_reference_counts(&scene).await;
    a_disk_that_goes_does_not_count(&scene).await;
    r25_marks_are_written_restored_and_corrected(&scene).await;
    r15_the_class_of_a_pool_scaled_to_zero_is_on_record(&scene).await;
    a_worker_class_names_its_image_by_identity(&scene).await;
    kinds::come_and_go(&scene).await;
    waiting::disks_that_wait_hide_no_stuck_clone(&scene).await;
    waiting::a_clone_waits_for_an_image_that_has_not_begun(&scene).await;
    a_clone_that_does_not_move_is_told(&scene).await;
    a_clone_that_was_copied_is_counted_with_its_cause(&scene).await;
    let daemon = a_restart_writes_nothing(&scene, daemon).await;
    let daemon = backfill::older_disks_are_marked_one_by_one(&scene.stage, daemon).await;
    what_goes_is_free_again(&scene).await;
    drop(daemon);
    kinds::explain_reads_pools_of_a_newer_cluster_api(&scene).await;
}

async fn nobody_uses_it(scene: &Scene<'_>) {
    let unused = scene.stage.until(IMAGE, "InUse", "False").await;
    assert_eq!(unused.reason, "Unused");
    let status = scene.status().await;
    assert!(status.clones == 0 && status.unused_since.is_some() && status.last_clone_time.is_none(), "{status:?}");
    for name in [IMAGE, GOLDEN] {
        let free = scene.cli(&["check-delete", name]).await.ok();
        assert!(free.starts_with("free: nothing needs"), "{free}");
    }
    let slip = scene.cli(&["check-delete", "nobel"]).await;
    assert_eq!((slip.code, slip.stderr.contains("there is no GoldenImage")), (Some(2), true), "{slip:?}");
    assert_eq!(scene.cli(&["check-delete"]).await.code, Some(64));
    let nowhere = harness::cli(None, ["check-delete", IMAGE]).await;
    assert_eq!(nowhere.code, Some(2), "{nowhere:?}");
}

/// R22: all forms, beside what must not count.
async fn every_form_of_reference_counts(scene: &Scene<'_>) {
    // Disks: by claim, by a chain of DataSources, by snapshot, by mark alone, by CDI's former annotation.
    scene.apply(disk("vm-disk-data", from_golden(GOLDEN), json!({ "app.kubernetes.io/instance": "vm-disk-data" }))).await;
    let pointer = |namespace: &str, name: &str, to: Value| json!({ "apiVersion": CDI, "kind": "DataSource", "metadata": { "namespace": namespace, "name": name }, "spec": { "source": to } });
    scene.apply(pointer(CATALOG, "newest", from_golden(GOLDEN))).await;
    let chained = json!({
        "apiVersion": CDI, "kind": "DataVolume", "metadata": { "namespace": TENANT, "name": "chained" },
        "spec": {
            "sourceRef": { "kind": "DataSource", "namespace": CATALOG, "name": "newest" },
            "storage": { "storageClassName": "replicated", "resources": { "requests": { "storage": "1Gi" } } },
        },
    });
    scene.apply(chained).await;
    scene.apply(json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": { "namespace": CATALOG, "name": "before-upgrade" },
        "spec": { "source": { "persistentVolumeClaimName": GOLDEN } },
    }))
    .await;
    scene.apply(disk("of-snapshot", json!({ "snapshot": { "namespace": CATALOG, "name": "before-upgrade" } }), json!({}))).await;
    scene.apply(claim(TENANT, "orphan", json!({}), json!({ GOLDEN_MARK: GOLDEN, POOL_MARK: "tenant-a/VMDisk/orphan" }))).await;
    scene.apply(claim(TENANT, "former", json!({}), json!({ "k8s.io/CloneRequest": format!("{CATALOG}/{GOLDEN}") }))).await;
    // A claim without a DataVolume, through what CDI clones by.
    scene
        .apply(json!({
            "apiVersion": CDI, "kind": "VolumeCloneSource", "metadata": { "namespace": CATALOG, "name": "by-hand" },
            "spec": { "source": { "kind": "PersistentVolumeClaim", "name": GOLDEN } },
        }))
        .await;
    let mut by_reference = claim(TENANT, "by-reference", json!({}), json!({ "cdi.kubevirt.io/dataSourceNamespace": CATALOG }));
    by_reference["spec"]["dataSourceRef"] = json!({ "apiGroup": "cdi.kubevirt.io", "kind": "VolumeCloneSource", "name": "by-hand" });
    scene.apply(by_reference).await;
    // A worker of a pool, and a VM that stands alone.
    scene.apply(virtual_machine("kubernetes-demo-md0-abcde", worker_labels("md0"))).await;
    scene.apply(virtual_machine("lonely", json!({}))).await;
    // Pools: one scaled to zero; an old template that only a MachineSet holds.
    scene.apply(machine_template("kubernetes-demo-md1-aaaaaa", worker_labels("md1"))).await;
    scene.apply(holder("MachineDeployment", "kubernetes-demo-md1", "kubernetes-demo-md1-aaaaaa", json!({}))).await;
    scene.apply(machine_template("kubernetes-demo-md2-old", json!({}))).await;
    scene
        .apply(holder(
            "MachineSet",
            "kubernetes-demo-md2-1",
            "kubernetes-demo-md2-old",
            json!({ "cluster.x-k8s.io/deployment-name": "kubernetes-demo-md2" }),
        ))
        .await;
    // A clone in flight whose disk is not known.
    scene.apply(json!({
        "apiVersion": CDI, "kind": "VolumeCloneSource", "metadata": { "namespace": CATALOG, "name": "volume-clone-source-0d2e6a1b-4c5f-4e1a-9b7c-00112233aabb" },
        "spec": { "source": { "kind": "PersistentVolumeClaim", "name": GOLDEN } },
    }))
    .await;
    // What does not count: CDI's temporaries with a tenant's marks, another golden's disk, a disk of its own namespace.
    scene
        .apply(claim(
            CATALOG,
            "tmp-pvc-0d2e6a1b-4c5f-4e1a-9b7c-00112233aabb",
            json!({ "cdi.kubevirt.io/OwnedByUID": "0d2e6a1b-4c5f-4e1a-9b7c-00112233aabb" }),
            json!({ GOLDEN_MARK: GOLDEN, "cdi.kubevirt.io/storage.populator.kind": "VolumeCloneSource" }),
        ))
        .await;
    scene.apply(disk("other", json!({ "pvc": { "namespace": TENANT, "name": GOLDEN } }), json!({}))).await;
    // An odd object ends no scan: the template is no text the reader foresaw, and still names the golden.
    let mut odd = machine_template("odd", json!({}));
    odd["spec"]["template"]["spec"]["virtualMachineTemplate"]["spec"]["template"]["spec"]["volumes"] = json!("none");
    if scene.stage.cluster.try_apply(&scene.stage.cluster.admin(), TENANT, &odd.to_string()).await.is_err() {
        scene.apply(machine_template("odd", json!({}))).await;
    }

    scene.annotations(CDI, "DataVolume", "vm-disk-data", "the clone is done", |volume| volume.data["status"]["phase"] == "Succeeded").await;
    scene.annotations(CDI, "DataVolume", "chained", "the clone is done", |volume| volume.data["status"]["phase"] == "Succeeded").await;
    let told = scene.agreed().await;
    let lines = scene.lines(IMAGE).await;
    for expected in [
        "Disk tenant-a/vm-disk-data of tenant-a/VMDisk/data (by spec): blocks",
        "Disk tenant-a/chained of unknown (by DataSource): blocks",
        "Disk tenant-a/of-snapshot of unknown (by spec): blocks",
        "Disk tenant-a/orphan of tenant-a/VMDisk/orphan (by mark): blocks",
        "Disk tenant-a/former of unknown (by CDI's record): blocks",
        "VirtualMachine tenant-a/kubernetes-demo-md0-abcde of tenant-a/KubernetesNodes/demo-md0 (by spec): blocks",
        "VirtualMachine tenant-a/lonely of tenant-a/VirtualMachine/lonely (by spec): blocks",
        "KubevirtMachineTemplate tenant-a/kubernetes-demo-md1-aaaaaa of tenant-a/KubernetesNodes/demo-md1 (by spec): blocks",
        "KubevirtMachineTemplate tenant-a/kubernetes-demo-md2-old of tenant-a/KubernetesNodes/demo-md2 (by spec): blocks",
        "VolumeCloneSource cozy-public/volume-clone-source-0d2e6a1b-4c5f-4e1a-9b7c-00112233aabb of unknown (by CDI's record): blocks",
        "VolumeSnapshot cozy-public/before-upgrade of unknown (by spec): blocks",
        "DataSource cozy-public/newest of unknown (by spec): listed",
    ] {
        assert!(lines.iter().any(|line| line == expected), "{expected} is not among\n{}", lines.join("\n"));
    }
    for counts in ["tenant-a/odd ", "Disk tenant-a/by-reference "] {
        assert!(lines.iter().any(|line| line.contains(counts)), "{counts} is not among {lines:#?}");
    }
    assert!(!lines.iter().any(|line| line.contains("tmp-pvc") || line.contains("/other ")), "{lines:#?}");
    assert_eq!((&told["free"], told["counts"]["virtualMachines"].as_u64()), (&json!(false), Some(2)));

    // The answer to "may it go": no, by pool, with what blocks; the golden's own name gives the same.
    for name in [IMAGE, GOLDEN] {
        let refused = scene.cli(&["check-delete", name]).await;
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.stdout.contains("in use: ") && refused.stdout.contains("tenant-a/KubernetesNodes/demo-md1"), "{}", refused.stdout);
    }
    let table = scene.cli(&["consumers", IMAGE, "--limit", "1"]).await.ok();
    assert!(table.starts_with("POOL") && table.contains("and ") && table.contains(" more"), "{table}");
    let status = scene.cli(&["status"]).await;
    assert!(status.stdout.contains("CLONES"), "{}", status.stdout);
    let condition = scene.stage.until(IMAGE, "InUse", "True").await;
    assert!(!condition.message.contains("tenant"), "counts only: {}", condition.message);
}

/// R22: a disk that is on its way out needs the golden while it is being cloned, and not once that is done.
async fn a_disk_that_goes_does_not_count(scene: &Scene<'_>) {
    let mut going = disk("going", from_golden(GOLDEN), json!({}));
    going["metadata"]["finalizers"] = json!(["e2e.example/held"]);
    scene.apply(going).await;
    scene.annotations(CDI, "DataVolume", "going", "the clone is done", |volume| volume.data["status"]["phase"] == "Succeeded").await;
    let is_told = async || scene.lines(IMAGE).await.iter().any(|line| line.contains("Disk tenant-a/going "));
    assert!(is_told().await, "it counts as long as nobody deletes it");
    let (volumes, claims) = (scene.api(CDI, "DataVolume", TENANT).await, scene.api("v1", "PersistentVolumeClaim", TENANT).await);
    volumes.delete("going", &DeleteParams::background()).await.expect("deletion is asked for");
    claims.delete("going", &DeleteParams::default()).await.expect("deleted");
    harness::until_gone(claims, "going").await;
    assert!(volumes.get("going").await.expect("it is held").metadata.deletion_timestamp.is_some());
    assert!(!is_told().await, "its clone has ended, and it goes");
    scene.agreed().await;
    let free = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    volumes.patch("going", &PatchParams::default(), &free).await.expect("let go");
    harness::until_gone(volumes, "going").await;
}

/// R25, through CDI's own admission, which asks again whether we may clone.
async fn r25_marks_are_written_restored_and_corrected(scene: &Scene<'_>) {
    let marked = |golden: &'static str, pool: &'static str| {
        move |object: &DynamicObject| {
            object.annotations().get(GOLDEN_MARK).is_some_and(|found| found == golden)
                && object.annotations().get(POOL_MARK).is_some_and(|found| found == pool)
        }
    };
    let is_right = marked(GOLDEN, "tenant-a/VMDisk/data");
    let is_ours =
        |object: &DynamicObject| object.managed_fields().iter().any(|entry| entry.manager.as_deref() == Some("golden-catalog/marks"));
    // Who marked the claim is not asked here: CDI copies the volume's marks to a claim that it makes after the back-fill.
    let volume = scene.annotations(CDI, "DataVolume", "vm-disk-data", "back-filled", is_right).await;
    assert!(is_ours(&volume), "{:?}", volume.managed_fields());
    scene.annotations("v1", "PersistentVolumeClaim", "vm-disk-data", "back-filled", is_right).await;
    // Taken off by hand, and written over with another golden's name.
    let volumes = scene.api(CDI, "DataVolume", TENANT).await;
    let patch = |value: Value| Patch::Merge(json!({ "metadata": { "annotations": value } }));
    volumes.patch("vm-disk-data", &PatchParams::default(), &patch(json!({ GOLDEN_MARK: null, POOL_MARK: null }))).await.expect("taken off");
    scene.annotations(CDI, "DataVolume", "vm-disk-data", "restored", is_right).await;
    scene
        .api("v1", "PersistentVolumeClaim", TENANT)
        .await
        .patch("vm-disk-data", &PatchParams::default(), &patch(json!({ GOLDEN_MARK: "another" })))
        .await
        .expect("written over");
    let claim = scene.annotations("v1", "PersistentVolumeClaim", "vm-disk-data", "corrected", is_right).await;
    assert!(is_ours(&claim), "{:?}", claim.managed_fields());
    scene.event("vm-disk-data", "MarkCorrected", &["\"another\"", GOLDEN]).await;
    // A golden that is gone is no hindrance: CDI checks the right to a name, not the thing.
    scene.apply(disk("of-a-ghost", from_golden("ghost"), json!({ "app.kubernetes.io/instance": "vm-disk-ghost" }))).await;
    scene.annotations(CDI, "DataVolume", "of-a-ghost", "marked", marked("ghost", "tenant-a/VMDisk/ghost")).await;
    // Metadata of nobody else was touched.
    let other = volumes.get("other").await.expect("volume");
    assert!(!other.annotations().contains_key(GOLDEN_MARK), "{:?}", other.annotations());
}

/// R15: machine templates that state no class; the default moves, and the pool that has no disk keeps its own.
async fn r15_the_class_of_a_pool_scaled_to_zero_is_on_record(scene: &Scene<'_>) {
    const TEMPLATE: (&str, &str) = ("infrastructure.cluster.x-k8s.io/v1alpha1", "KubevirtMachineTemplate");
    let recorded = |class: &'static str| {
        move |template: &DynamicObject| {
            template.annotations().get("kubernetes-worker-image.cozystack.io/storage-class").is_some_and(|found| found == class)
        }
    };
    for name in ["kubernetes-demo-md1-aaaaaa", "kubernetes-demo-md2-old"] {
        scene.annotations(TEMPLATE.0, TEMPLATE.1, name, "its class is on record", recorded("replicated")).await;
    }
    let default = async |class: &str, is: &str| {
        let patch = json!({ "metadata": { "annotations": { "storageclass.kubernetes.io/is-default-class": is } } });
        let classes = scene.api("storage.k8s.io/v1", "StorageClass", "default").await;
        classes.patch(class, &PatchParams::default(), &Patch::Merge(&patch)).await.expect("annotated");
    };
    default("replicated", "false").await;
    default("wffc", "true").await;
    scene.stage.until(IMAGE, "DefaultClassDrift", "True").await;
    // A new pool has the new default; a new template of the old pool, which has no disk, the old one.
    scene.apply(machine_template("kubernetes-demo-md3-aaaaaa", worker_labels("md3"))).await;
    scene.annotations(TEMPLATE.0, TEMPLATE.1, "kubernetes-demo-md3-aaaaaa", "the new default is on record", recorded("wffc")).await;
    scene.apply(machine_template("kubernetes-demo-md1-bbbbbb", worker_labels("md1"))).await;
    scene.annotations(TEMPLATE.0, TEMPLATE.1, "kubernetes-demo-md1-bbbbbb", "the pool's class is on record", recorded("replicated")).await;
    default("wffc", "false").await;
    default("replicated", "true").await;
    harness::until(scene.stage.images(), IMAGE, "the default is as it was", |image: &GoldenImage| {
        harness::condition(image, "DefaultClassDrift").is_none()
    })
    .await;
}

async fn a_worker_class_names_its_image_by_identity(scene: &Scene<'_>) {
    const IDENTITY: &str = "e449297b1a4df41248857fc84e978c658a845809";
    let labels = json!({ GOLDEN_MARK: "true", "kubernetes-worker-image.cozystack.io/identity": IDENTITY });
    scene.apply(claim(CATALOG, "kairos-worker-x", labels, json!({}))).await;
    assert_eq!(scene.cli(&["check-delete", "kairos-worker-x"]).await.code, Some(0));
    scene
        .apply(json!({
            "apiVersion": "cozystack.io/v1alpha1", "kind": "WorkerClass", "metadata": { "name": "kairos" },
            "spec": { "bootstrap": "kairos", "image": { "kubernetesVersion": "v1.35.6",
                "reference": "registry.example.com/kairos@sha256:eb87a994833d82feb2279575aafa42a06c5feb124ea72cae6efc0ee46bb729d8" } },
        }))
        .await;
    assert_eq!(scene.lines("kairos-worker-x").await, ["WorkerClass /kairos of unknown (by identity): blocks"]);
    assert_eq!(scene.cli(&["check-delete", "kairos-worker-x"]).await.code, Some(1));
}

/// A pod that writes to the golden holds every clone, and CDI says so nowhere but in an Event on the PVC (R26).
async fn a_clone_that_does_not_move_is_told(scene: &Scene<'_>) {
    scene
        .apply(json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "namespace": CATALOG, "name": "debug" },
            "spec": {
                "containers": [{ "name": "c", "image": "i", "volumeDevices": [{ "name": "v", "devicePath": "/dev/v" }] }],
                "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": GOLDEN } }],
            },
        }))
        .await;
    scene.stage.cdi.until_pod(CATALOG, "debug").await;
    scene.apply(disk("held", from_golden(GOLDEN), json!({}))).await;
    scene.event("held", "CloneStuck", &["CloneSourceInUse", "cozy-public/debug"]).await;
    harness::eventually("explain says the same", async || {
        let explained = scene.cli(&["explain", &format!("{TENANT}/datavolume/held")]).await;
        let says = explained.stdout.contains("waits: the daemon says: CloneSourceInUse");
        if says { Ok(()) } else { Err(format!("{explained:?}")) }
    })
    .await;
    let pods = scene.api("v1", "Pod", CATALOG).await;
    pods.delete("debug", &DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() }).await.expect("deleted");
    scene.annotations(CDI, "DataVolume", "held", "it goes on by itself", |volume| volume.data["status"]["phase"] == "Succeeded").await;
    // A clone of a golden that is not there and will not be.
    scene.event("of-a-ghost", "CloneStuck", &["GoldenMissing"]).await;
    // A quota, and storage that makes no volume: in their own words, until the cause is gone.
    let quota = "exceeded quota: disks, requested: requests.storage=1Gi";
    let causes = [
        ("over-quota", cdi::Behaviour::ClaimQuota { message: quota.into() }, "QuotaExceeded", quota),
        ("no-volume", cdi::Behaviour::NoVolume { message: "no space left in the pool".into() }, "Provisioner", "no space left in the pool"),
    ];
    for (name, behaviour, ..) in &causes {
        scene.stage.cdi.script(&format!("{TENANT}/{name}"), behaviour.clone());
        scene.apply(disk(name, from_golden(GOLDEN), json!({}))).await;
    }
    for (name, _, cause, words) in &causes {
        scene.event(name, "CloneStuck", &[*cause, *words]).await;
        scene.stage.cdi.unscript(&format!("{TENANT}/{name}"));
        scene.annotations(CDI, "DataVolume", name, "it goes on by itself", |volume| volume.data["status"]["phase"] == "Succeeded").await;
    }
}

/// CDI falls back to a copy over the network where storage cannot clone, and says why on the claim alone.
async fn a_clone_that_was_copied_is_counted_with_its_cause(scene: &Scene<'_>) {
    let other = r#"{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: elsewhere-made}, provisioner: two.csi.example, allowVolumeExpansion: true, volumeBindingMode: Immediate}"#;
    scene.stage.cluster.apply(other).await;
    let mut copied = disk("copied", from_golden(GOLDEN), json!({}));
    let storage = &mut copied["spec"]["storage"];
    storage["storageClassName"] = "elsewhere-made".into();
    storage["volumeMode"] = "Block".into();
    storage["accessModes"] = json!(["ReadWriteMany"]);
    scene.apply(copied).await;
    scene.annotations(CDI, "DataVolume", "copied", "the copy is done", |volume| volume.data["status"]["phase"] == "Succeeded").await;
    harness::eventually("the copy is counted", async || {
        let metrics = scene.stage.metrics().await;
        let lines: Vec<&str> = metrics.lines().filter(|line| line.starts_with("golden_image_network_copies{")).collect();
        let counted = "golden_image_network_copies{image=\"noble\",cause=\"OtherDriver\"} 1";
        if lines.contains(&counted) { Ok(()) } else { Err(format!("{lines:?}")) }
    })
    .await;
    // Counts only, whatever tenants do: no disk, pool or namespace of theirs in metrics or status.
    let image = serde_json::to_string(&scene.stage.images().get(IMAGE).await.expect("image").status).expect("JSON");
    assert!(!scene.stage.metrics().await.contains(TENANT) && !image.contains(TENANT), "{image}");
}

/// Nothing is kept but the objects: the next process finds all as it is, and has nothing to write.
async fn a_restart_writes_nothing(scene: &Scene<'_>, daemon: harness::Daemon) -> harness::Daemon {
    // What came last is marked by now too.
    for name in ["held", "copied", "over-quota", "no-volume"] {
        for (version, kind) in [(CDI, "DataVolume"), ("v1", "PersistentVolumeClaim")] {
            scene.annotations(version, kind, name, "it is marked", |object| object.annotations().contains_key(GOLDEN_MARK)).await;
        }
    }
    scene.agreed().await;
    let before = scene.status().await;
    scene.stage.kill(daemon).await;
    a_lost_record_is_not_free(scene).await;
    let mark = scene.stage.cluster.audit_mark().await;
    let daemon = scene.stage.daemon("a");
    daemon.ready().await;
    // Something that changes shows that it has counted.
    scene.apply(virtual_machine("later", json!({}))).await;
    harness::until(scene.stage.images(), IMAGE, "the new VM counts", |image: &GoldenImage| {
        image
            .status
            .as_ref()
            .and_then(|status| status.consumers.as_ref())
            .is_some_and(|consumers| consumers.virtual_machines == before.virtual_machines + 1)
    })
    .await;
    let writes = scene.stage.cluster.requests_since(mark).await;
    let of_daemon = writes.iter().filter(|request| request.is_write() && request.is_by(NAMESPACE, "golden-catalog-controller"));
    let marks: Vec<String> =
        of_daemon.map(|request| format!("{request:?}")).filter(|request| request.contains(TENANT) && request.contains("patch")).collect();
    assert!(marks.is_empty(), "{marks:#?}");
    daemon
}

/// An image that a backup brought back has no status: its golden stands beside it, and is in use all the same.
async fn a_lost_record_is_not_free(scene: &Scene<'_>) {
    let (images, by_hand) = (scene.stage.images(), PatchParams::default());
    let status = images.get(IMAGE).await.expect("image").status;
    let lost = images.patch_status(IMAGE, &by_hand, &Patch::Merge(json!({ "status": null }))).await.expect("taken off");
    assert!(lost.status.is_none_or(|status| status.targets.is_empty()));
    let refused = scene.cli(&["check-delete", IMAGE]).await;
    assert_eq!((refused.code, refused.stdout.contains("in use: ")), (Some(1), true), "{refused:?}");
    assert_eq!(scene.told(IMAGE).await["goldens"], json!([GOLDEN]));
    images.patch_status(IMAGE, &by_hand, &Patch::Merge(json!({ "status": status }))).await.expect("put back");
}

async fn what_goes_is_free_again(scene: &Scene<'_>) {
    for (version, kind, namespace) in [
        (CDI, "DataVolume", TENANT),
        ("v1", "PersistentVolumeClaim", TENANT),
        ("kubevirt.io/v1", "VirtualMachine", TENANT),
        ("infrastructure.cluster.x-k8s.io/v1alpha1", "KubevirtMachineTemplate", TENANT),
        (CDI, "VolumeCloneSource", CATALOG),
        ("snapshot.storage.k8s.io/v1", "VolumeSnapshot", CATALOG),
        (CDI, "DataSource", CATALOG),
    ] {
        let api = scene.api(version, kind, namespace).await;
        api.delete_collection(&DeleteParams::default(), &ListParams::default()).await.unwrap_or_else(|error| panic!("{kind}: {error}"));
        for object in api.list(&ListParams::default()).await.expect("list").items {
            let none = json!({ "metadata": { "finalizers": null } });
            // It may be gone by now.
            let _ = api.patch(&object.name_any(), &PatchParams::default(), &Patch::Merge(&none)).await;
        }
    }
    let unused = scene.stage.until(IMAGE, "InUse", "False").await;
    harness::until(scene.stage.images(), IMAGE, "nothing uses it", |image: &GoldenImage| {
        harness::condition(image, "InUse").is_some_and(|condition| condition.reason == "Unused")
    })
    .await;
    let status = scene.status().await;
    assert!(status.unused_since.is_some() && status.last_clone_time.is_some() && status.clones == 0, "{status:?} {unused:?}");
    assert_eq!(scene.cli(&["check-delete", IMAGE]).await.code, Some(0));
}
