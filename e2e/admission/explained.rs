//! `explain` says what admission says, from the cluster and from files.

use serde_json::{Value, json};

use crate::{
    harness,
    objects::{Disk, Form, RIGHT, object},
    stand::{CATALOG, create, set_status, stand},
};

#[tokio::test]
async fn explain_says_what_admission_says_live_and_offline() {
    let Some((cluster, _)) = stand().await else { return };
    let tenant = cluster.namespace("tenant").await;
    let ask = async |arguments: &[&str]| harness::cli(Some(cluster.admin_kubeconfig()), ["explain"].iter().chain(arguments)).await;

    create(cluster, &tenant, &object(Form::Machine, "good", RIGHT), false).await.unwrap_or_else(|refused| panic!("{}", refused.message));
    let good = ask(&[&format!("{}/vm/good", &*tenant)]).await;
    assert_eq!(good.code, Some(0), "{good:?}");
    assert!(good.stdout.contains("Admitted") && good.stdout.contains("good-disk"), "{}", good.stdout);
    let pool = ask(&[&format!("{}/VirtualMachine/good", &*tenant), "-o", "json"]).await.ok();
    let pool: Value = serde_json::from_str(&pool).expect("JSON");
    assert_eq!(pool["disks"][0]["pool"], format!("{}/VirtualMachine/good", &*tenant));
    // What its disk waits for, which KubeVirt names as the template says. A disk of the VM's own name is another.
    for (disk, phase) in [("good-disk", "CloneScheduled"), ("good", "Paused")] {
        let volume = object(Form::Volume, disk, RIGHT);
        create(cluster, &tenant, &volume, false).await.unwrap_or_else(|refused| panic!("{}", refused.message));
        set_status(cluster, "cdi.kubevirt.io/v1beta1", "DataVolume", &tenant, disk, json!({ "phase": phase })).await;
    }
    let waits = ask(&[&format!("{}/vm/good", &*tenant)]).await.ok();
    assert!(waits.contains("waits: CDI is at CloneScheduled") && !waits.contains("Paused"), "{waits}");
    assert_eq!(ask(&[&format!("{}/dv/nothing", &*tenant)]).await.code, Some(2));
    assert_eq!(ask(&["nonsense"]).await.code, Some(64));

    // What admission would refuse, from files: the verdict is the same, word for word.
    let wrong = object(Form::Volume, "wrong", Disk { class: Some("local"), ..RIGHT });
    let refused = create(cluster, &tenant, &wrong, true).await.expect_err("another class").message;
    let mut exported = wrong.clone();
    exported["metadata"]["namespace"] = (&*tenant).into();
    // A kind of which the export holds nothing is not known.
    let image = json!({ "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": "explained" },
        "spec": { "source": { "http": { "url": "https://x.example/explained.qcow2" } } } });
    cluster.apply(&image.to_string()).await;
    let files = cluster.dir().join("export.json");
    let kinds =
        "persistentvolumeclaims,datavolumes.cdi.kubevirt.io,storageclasses,storageprofiles.cdi.kubevirt.io,goldenimages.cozystack.io";
    let rest = cluster.kubectl(["get", kinds, "-A", "-o", "json"]).await.ok();
    std::fs::write(&files, rest).expect("write");
    let disk = cluster.dir().join("disk.json");
    std::fs::write(&disk, exported.to_string()).expect("write");
    let (files, disk) = (files.display().to_string(), disk.display().to_string());
    let subject = format!("{}/datavolume/wrong", &*tenant);
    let told = harness::cli(None, ["explain", &subject, "-f", &files, &disk, "--complete"]).await;
    assert_eq!(told.code, Some(1), "{told:?}");
    let reason = refused.split("denied the request: ").nth(1).expect("a reason").trim_end_matches(" (R14)");
    assert!(told.stdout.contains(reason), "{reason}\n{}", told.stdout);

    // Files that do not hold everything give no verdict where it hangs on the rest.
    let mut pooled = exported;
    pooled["spec"]["storage"].as_object_mut().expect("storage").remove("storageClassName");
    pooled["metadata"]["annotations"] =
        json!({ "kubernetes-worker-image.cozystack.io/pool": format!("{}/KubernetesNodes/demo-md0", &*tenant) });
    std::fs::write(&disk, pooled.to_string()).expect("write");
    let told = harness::cli(None, ["explain", &subject, "-f", &files, &disk]).await;
    assert_eq!(told.code, Some(2), "{told:?}");
    assert!(
        told.stdout.contains("not known") && told.stdout.contains("`kubectl get virtualmachines.kubevirt.io -A -o yaml`"),
        "{}",
        told.stdout
    );
    let told = harness::cli(None, ["explain", &subject, "-f", &files, &disk, "--complete"]).await;
    assert_eq!(told.code, Some(0), "{told:?}");
    assert!(told.stdout.contains("replicated") && told.stdout.contains(CATALOG), "{}", told.stdout);
    assert!(!told.stdout.contains("tied to nodes"), "{}", told.stdout);
    let local = "--node-local-provisioner=linstor.csi.linbit.com";
    let told = harness::cli(None, ["explain", &subject, "-f", &files, &disk, "--complete", local]).await;
    assert_eq!(told.code, Some(0), "a warning refuses nothing: {told:?}");
    assert!(told.stdout.contains("tied to nodes (its provisioner linstor.csi.linbit.com keeps"), "{}", told.stdout);
}

/// What cannot be read is there all the same: no verdict, as from admission, and never "does not exist".
#[tokio::test]
async fn what_cannot_be_read_gives_no_verdict() {
    let folder = tempfile::tempdir().expect("a directory");
    let odd = |kind: &str, version: &str, namespace: &str, name: &str| {
        let metadata = json!({ "namespace": namespace, "name": name, "labels": "odd" });
        json!({ "apiVersion": version, "kind": kind, "metadata": metadata, "spec": {} })
    };
    let mut disk = object(Form::Volume, "disk", Disk { golden: "odd", ..RIGHT });
    disk["metadata"]["namespace"] = "tenant".into();
    let objects = [disk, odd("PersistentVolumeClaim", "v1", CATALOG, "odd"), odd("VirtualMachine", "kubevirt.io/v1", "tenant", "vm")];
    let files: Vec<String> = objects
        .iter()
        .enumerate()
        .map(|(number, object)| {
            let path = folder.path().join(format!("{number}.json"));
            std::fs::write(&path, object.to_string()).expect("write");
            path.display().to_string()
        })
        .collect();
    let ask = async |subject: &str| {
        harness::cli(None, ["explain", subject, "--complete", "-f"].into_iter().chain(files.iter().map(String::as_str))).await
    };
    let told = ask("tenant/dv/disk").await;
    assert_eq!(told.code, Some(2), "{told:?}");
    assert!(told.stdout.contains("PersistentVolumeClaim cozy-public/odd cannot be read"), "{}", told.stdout);
    let told = ask("tenant/vm/vm").await;
    assert_eq!(told.code, Some(2), "{told:?}");
    assert!(told.stderr.contains("VirtualMachine tenant/vm cannot be read"), "{}", told.stderr);
}
