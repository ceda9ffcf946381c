//! The field paths that are read here, held against the real CRDs where a copy of them lies beside the work tree.

use std::path::PathBuf;

use kube::Resource;
use rstest::rstest;
use serde_json::Value;

use super::*;

/// The CRD in this file, or `None` on a machine that has no copy; `E2E_CRDS` names another folder, as for the end-to-end tests.
fn crd(file: &str) -> Option<Value> {
    let beside = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/crds");
    let path = std::env::var_os("E2E_CRDS").map_or_else(beside, PathBuf::from).join(file);
    if !path.exists() {
        return None;
    }
    let text = std::fs::read_to_string(path).expect("a readable CRD");
    Some(serde_saphyr::from_str(&text).expect("a CRD"))
}

/// Whether the schema knows the dotted path; `[]` steps into a list, `*` into a map, and a subtree that keeps unknown fields knows all.
fn knows(schema: &Value, path: &str) -> bool {
    let Some((step, rest)) = (!path.is_empty()).then(|| path.split_once('.').unwrap_or((path, ""))) else { return true };
    if schema["x-kubernetes-preserve-unknown-fields"] == Value::Bool(true) {
        return true;
    }
    let next = match step {
        "[]" => &schema["items"],
        "*" => &schema["additionalProperties"],
        step => &schema["properties"][step],
    };
    !next.is_null() && knows(next, rest)
}

fn check<K: Resource<DynamicType = ()>>(file: &str, paths: &[&str]) {
    let Some(crd) = crd(file) else { return };
    assert_eq!(crd["spec"]["group"], *K::group(&()));
    assert_eq!(crd["spec"]["names"]["plural"], *K::plural(&()));
    assert_eq!(crd["spec"]["names"]["kind"], *K::kind(&()));
    let versions = crd["spec"]["versions"].as_array().expect("versions");
    let version = versions.iter().find(|version| version["name"] == *K::version(&())).expect("the version is there");
    assert_eq!(version["served"], true);
    for path in paths {
        assert!(knows(&version["schema"]["openAPIV3Schema"], path), "{file} does not know {path}");
    }
}

#[test]
fn the_check_can_fail() {
    if let Some(crd) = crd("datavolumes.cdi.kubevirt.io.json") {
        assert!(!knows(&crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"], "spec.source.http.checksum"), "v1.64 has none");
    }
}

/// The paths of a claim inside `spec.pvc` or `spec.storage`, and of a DataVolume's spec.
fn data_volume(at: &str) -> Vec<String> {
    let claim = [
        "accessModes.[]",
        "dataSource.kind",
        "dataSource.name",
        "dataSourceRef.namespace",
        "resources.requests.*",
        "storageClassName",
        "volumeMode",
    ];
    let mut paths: Vec<String> = ["pvc", "storage"].iter().flat_map(|form| claim.map(|path| format!("{at}.{form}.{path}"))).collect();
    let source =
        ["source.http.url", "source.http.certConfigMap", "source.http.secretExtraHeaders.[]", "source.pvc.namespace", "source.pvc.name"];
    let more =
        ["source.snapshot.namespace", "source.snapshot.name", "sourceRef.kind", "sourceRef.namespace", "sourceRef.name", "contentType"];
    paths.extend(source.iter().chain(&more).map(|path| format!("{at}.{path}")));
    paths
}

#[rstest]
fn data_volumes() {
    let mut paths = data_volume("spec");
    let status = ["phase", "progress", "restartCount", "claimName", "conditions.[].type", "conditions.[].message", "conditions.[].reason"];
    paths.extend(status.map(|path| format!("status.{path}")));
    check::<DataVolume>("datavolumes.cdi.kubevirt.io.json", &paths.iter().map(String::as_str).collect::<Vec<_>>());
}

#[rstest]
fn virtual_machines_and_machine_templates() {
    let vm = |at: &str| {
        let mut paths = data_volume(&format!("{at}.dataVolumeTemplates.[].spec"));
        let more =
            ["runStrategy", "dataVolumeTemplates.[].metadata.name", "template.metadata.labels", "template.spec.volumes.[].dataVolume.name"];
        paths.extend(more.iter().chain(&["template.spec.volumes.[].persistentVolumeClaim.claimName"]).map(|path| format!("{at}.{path}")));
        paths
    };
    check::<VirtualMachine>("virtualmachines.kubevirt.io.json", &vm("spec").iter().map(String::as_str).collect::<Vec<_>>());
    let template = "spec.template.spec.virtualMachineTemplate";
    let mut paths = vm(&format!("{template}.spec"));
    paths.push(format!("{template}.metadata.namespace"));
    let file = "kubevirtmachinetemplates.infrastructure.cluster.x-k8s.io.yaml";
    check::<KubevirtMachineTemplate>(file, &paths.iter().map(String::as_str).collect::<Vec<_>>());
}

#[rstest]
fn the_small_kinds() {
    check::<DataSource>(
        "datasources.cdi.kubevirt.io.json",
        &["spec.source.pvc.namespace", "spec.source.snapshot.name", "spec.source.dataSource.namespace"],
    );
    check::<VolumeCloneSource>(
        "volumeclonesources.cdi.kubevirt.io.json",
        &["spec.source.apiGroup", "spec.source.kind", "spec.source.name"],
    );
    check::<StorageProfile>(
        "storageprofiles.cdi.kubevirt.io.json",
        &[
            "spec.cloneStrategy",
            "status.claimPropertySets.[].accessModes.[]",
            "status.claimPropertySets.[].volumeMode",
            "status.cloneStrategy",
            "status.provisioner",
            "status.snapshotClass",
        ],
    );
    check::<CdiConfig>(
        "cdiconfigs.cdi.kubevirt.io.json",
        &[
            "status.filesystemOverhead.global",
            "status.filesystemOverhead.storageClass.*",
            "status.importProxy.HTTPProxy",
            "status.importProxy.HTTPSProxy",
            "status.importProxy.noProxy",
            "status.scratchSpaceStorageClass",
        ],
    );
    check::<VolumeSnapshot>(
        "volumesnapshots.snapshot.storage.k8s.io.json",
        &["spec.source.persistentVolumeClaimName", "status.boundVolumeSnapshotContentName", "status.readyToUse", "status.restoreSize"],
    );
    check::<VolumeSnapshotContent>(
        "volumesnapshotcontents.snapshot.storage.k8s.io.json",
        &["spec.driver", "spec.volumeSnapshotRef.namespace", "spec.volumeSnapshotRef.name"],
    );
}

/// Objects as the real chart and the real controllers write them, trimmed.
#[test]
fn real_shapes_are_read() {
    let template: KubevirtMachineTemplate = serde_json::from_value(serde_json::json!({
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": "KubevirtMachineTemplate",
        "metadata": {"name": "kubernetes-demo-md0-4f1a2b", "namespace": "tenant-a"},
        "spec": {"template": {"spec": {"virtualMachineBootstrapCheck": {"checkStrategy": "none"}, "virtualMachineTemplate": {
            "metadata": {"namespace": "tenant-a", "labels": {"node-role.kubernetes.io/ingress-nginx": ""}},
            "spec": {
                "instancetype": {"kind": "VirtualMachineClusterInstancetype", "name": "u1.medium"}, "runStrategy": "Always",
                "dataVolumeTemplates": [{
                    "metadata": {"name": "disk-system", "annotations": {"kubernetes-worker-image.cozystack.io/golden": "talos-worker-ce4c-v1.13.6"}},
                    "spec": {"source": {"pvc": {"namespace": "cozy-public", "name": "talos-worker-ce4c-v1.13.6"}},
                        "storage": {"resources": {"requests": {"storage": "20Gi"}}, "storageClassName": "replicated"}}}],
                "template": {
                    "metadata": {"labels": {"cluster.x-k8s.io/deployment-name": "kubernetes-demo-md0", "apps.cozystack.io/application.kind": "Kubernetes"}},
                    "spec": {"domain": {}, "volumes": [{"name": "system", "dataVolume": {"name": "disk-system"}}]}}}}}}}
    }))
    .expect("a template");
    let machine = template.spec.read().and_then(|s| s.template.as_ref()?.spec.as_ref()?.virtual_machine_template.as_ref()).expect("a VM");
    assert_eq!(machine.metadata.namespace.as_deref(), Some("tenant-a"));
    let vm = machine.spec.read().expect("a spec");
    let disk = vm.data_volume_templates[0].read().expect("a disk");
    assert_eq!(disk.spec.storage.as_ref().and_then(ClaimSpec::storage_request).and_then(Quantity::bytes), Some(20 << 30));
    let instance = vm.template.as_ref().and_then(Lenient::read).expect("an instance");
    assert_eq!(instance.metadata.labels["cluster.x-k8s.io/deployment-name"], "kubernetes-demo-md0");

    for (reference, version) in [
        (
            serde_json::json!({"apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": "KubevirtMachineTemplate", "name": "t", "namespace": "tenant-a"}),
            "v1beta1",
        ),
        (serde_json::json!({"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "KubevirtMachineTemplate", "name": "t"}), "v1beta2"),
    ] {
        let pool: MachineDeployment =
            serde_json::from_value(serde_json::json!({"spec": {"template": {"spec": {"infrastructureRef": reference}}}})).expect(version);
        let read = pool.spec.read().and_then(|s| s.template.as_ref()?.spec.as_ref()?.infrastructure_ref.as_ref()).expect(version);
        assert_eq!((read.kind.as_deref(), read.name.as_deref()), (Some("KubevirtMachineTemplate"), Some("t")), "{version}");
    }
}
