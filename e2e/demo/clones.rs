//! The second half of the demo: clones are admitted or refused with a reason, a golden in use cannot be lost, and goes when its consumer does.

use std::time::Instant;

use kube::{
    Api,
    api::{DeleteParams, DynamicObject},
};
use serde_json::{Value, json};

use crate::{
    harness::{self, Cluster, Daemon},
    say,
    stage::{CATALOG, Stage},
};

const TENANT: &str = "tenant-demo";
const GOLDEN: &str = "vm-default-images-ubuntu-24.04";
const IMAGE: &str = "ubuntu-24.04";

pub async fn show(began: Instant, stage: &Stage<'_>) -> Result<(), String> {
    let cluster = stage.cluster;
    cluster.apply(&format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {TENANT}}}}}")).await;
    println!();
    say(began, "starting the admission role, as its own ServiceAccount that may only read\n");
    let admission: Daemon = stage.admission("demo-admission").await;
    admission.ready().await;

    let vm = machine("kubevirt.io/v1", "VirtualMachine", "demo-vm", "replicated");
    harness::eventually("the webhooks answer", || async { create(cluster, &vm).await }).await;
    say(began, "a tenant's VM that clones the Ubuntu golden: admitted");
    let disk = json!({ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "metadata": { "name": "demo-disk", "namespace": TENANT },
        "spec": { "source": { "pvc": { "namespace": CATALOG, "name": GOLDEN } }, "storage": { "resources": { "requests": { "storage": "4Gi" } } } } });
    create(cluster, &disk).await?;
    let made = get(cluster, "cdi.kubevirt.io/v1beta1", "DataVolume", "demo-disk").await?;
    say(
        began,
        format!("a disk that states no class: admitted, and completed with class {}", made.data["spec"]["storage"]["storageClassName"]),
    );
    let template = machine("infrastructure.cluster.x-k8s.io/v1alpha1", "KubevirtMachineTemplate", "demo-pool", "wffc");
    match create(cluster, &template).await {
        Ok(()) => return Err("a pool template in another class was admitted".to_owned()),
        Err(refused) => say(began, format!("a pool template in another class: refused\n          {refused}")),
    }

    println!("\n$ golden-catalog consumers {IMAGE}");
    print!("{}", harness::cli(Some(cluster.admin_kubeconfig()), ["consumers", IMAGE]).await.stdout);
    println!("\n$ kubectl -n {CATALOG} delete datavolume {GOLDEN}");
    let volumes = cluster.api(&cluster.admin(), "cdi.kubevirt.io/v1beta1", "DataVolume", CATALOG).await;
    match volumes.delete(GOLDEN, &DeleteParams::default()).await {
        Ok(_) => return Err("a golden in use was deleted".to_owned()),
        Err(error) => println!("{}", message(&error)),
    }
    println!("\n$ golden-catalog retire {IMAGE}");
    print!("{}", harness::cli(Some(cluster.admin_kubeconfig()), ["retire", IMAGE]).await.stdout);
    println!();
    stage.until(IMAGE, "Retiring", "True").await;
    say(began, "retiring: who uses it goes on, new pools are turned away");
    for (api_version, kind, name) in
        [("kubevirt.io/v1", "VirtualMachine", "demo-vm"), ("cdi.kubevirt.io/v1beta1", "DataVolume", "demo-disk")]
    {
        api(cluster, api_version, kind).await.delete(name, &DeleteParams::default()).await.map_err(|error| error.to_string())?;
    }
    say(began, "its last consumers are deleted");
    stage.until_reason(IMAGE, "Retired").await;
    harness::until_gone(volumes, GOLDEN).await;
    say(began, "retired: nothing needed it any more, and its golden is gone");
    Ok(())
}

async fn api(cluster: &Cluster, api_version: &str, kind: &str) -> Api<DynamicObject> {
    cluster.api(&cluster.admin(), api_version, kind, TENANT).await
}

async fn get(cluster: &Cluster, api_version: &str, kind: &str, name: &str) -> Result<DynamicObject, String> {
    api(cluster, api_version, kind).await.get(name).await.map_err(|error| error.to_string())
}

async fn create(cluster: &Cluster, object: &Value) -> Result<(), String> {
    let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
    let parsed = serde_json::from_value(object.clone()).map_err(|error| error.to_string())?;
    let api = api(cluster, &text("apiVersion"), &text("kind")).await;
    harness::made(async || api.create(&Default::default(), &parsed).await).await.map(drop).map_err(|error| message(&error))
}

fn message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

/// A VM, or a worker pool's template, whose disk clones the golden in this class.
fn machine(api_version: &str, kind: &str, name: &str, class: &str) -> Value {
    let template = json!({ "metadata": { "name": format!("{name}-system") }, "spec": { "source": { "pvc": { "namespace": CATALOG, "name": GOLDEN } },
        "storage": { "storageClassName": class, "resources": { "requests": { "storage": "4Gi" } } } } });
    let machine = json!({ "runStrategy": "Halted", "dataVolumeTemplates": [template],
        "template": { "metadata": { "labels": {} }, "spec": { "domain": { "devices": {} }, "volumes": [] } } });
    let spec = match kind {
        "VirtualMachine" => machine,
        _ => {
            let mut machine = machine;
            machine["template"]["metadata"]["labels"]["cluster.x-k8s.io/deployment-name"] = "kubernetes-demo-md0".into();
            json!({ "template": { "spec": { "virtualMachineTemplate": { "metadata": {}, "spec": machine } } } })
        }
    };
    json!({ "apiVersion": api_version, "kind": kind, "metadata": { "name": name, "namespace": TENANT }, "spec": spec })
}
