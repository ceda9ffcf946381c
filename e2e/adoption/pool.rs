//! A worker pool that clones a golden of the former chart: nothing of the move, nor of the way back, replaces its machines.

use kube::{ResourceExt as _, api::DynamicObject};

use crate::{
    former::SCHEMATIC,
    harness::{self, TestNamespace},
    scene::Scene,
};

const RELEASE: &str = "kubernetes-nodes-alpha-md0";

/// A pool by the platform's chart of today, and the machine template it runs.
pub struct Pool {
    namespace: TestNamespace,
    template: (String, String),
}

impl Pool {
    /// By the pool chart of today, from the former chart's golden.
    pub async fn install(scene: &Scene<'_>) -> Self {
        let cluster = scene.stage.cluster;
        let schema = harness::repository().join("e2e/charts/schemas/machinehealthchecks.yaml");
        cluster.apply(&std::fs::read_to_string(schema).expect("a schema")).await;
        cluster.api(&cluster.admin(), "cluster.x-k8s.io/v1beta1", "MachineHealthCheck", "default").await;
        let namespace = cluster.namespace("tenant").await;
        let mut pool = Self { namespace, template: Default::default() };
        pool.helm(scene, "pool-today", &[]).await;
        pool.template = pool.template(scene).await;
        pool
    }

    async fn helm(&self, scene: &Scene<'_>, chart: &str, more: &[&str]) {
        let chart = harness::repository().join("e2e/charts").join(chart);
        let image = format!(r#"osImage={{"builtin":{{"schematicID":"{SCHEMATIC}"}}}}"#);
        let mut arguments = vec!["upgrade", "--install", RELEASE, chart.to_str().expect("UTF-8"), "--namespace", &self.namespace];
        arguments.extend(["--set", "cluster=alpha", "--set", "roles={md0}", "--set-json", &image]);
        arguments.extend(more);
        scene.stage.cluster.helm(arguments).await.ok();
    }

    /// The machine template that the pool's MachineDeployment runs, by name and UID: another one means other machines.
    async fn template(&self, scene: &Scene<'_>) -> (String, String) {
        let cluster = scene.stage.cluster;
        let get = async |version: &str, kind: &str, name: &str| -> DynamicObject {
            cluster
                .api(&cluster.admin(), version, kind, &self.namespace)
                .await
                .get(name)
                .await
                .unwrap_or_else(|error| panic!("{kind} {name}: {error}"))
        };
        let deployment = get("cluster.x-k8s.io/v1beta1", "MachineDeployment", "kubernetes-alpha-md0").await;
        let name = deployment.data["spec"]["template"]["spec"]["infrastructureRef"]["name"].as_str().expect("a template").to_owned();
        let template = get("infrastructure.cluster.x-k8s.io/v1alpha1", "KubevirtMachineTemplate", &name).await;
        let source = template.data.pointer("/spec/template/spec/virtualMachineTemplate/spec/dataVolumeTemplates/0/spec/source/pvc/name");
        assert_eq!(source.and_then(|name| name.as_str()), Some(format!("talos-worker-{SCHEMATIC}-v1.13.6").as_str()));
        (name, template.uid().expect("a UID"))
    }

    /// Whatever was done around it, and also where its release is upgraded for another reason.
    pub async fn is_not_replaced(&self, scene: &Scene<'_>, chart: &str) {
        assert_eq!(self.template(scene).await, self.template, "before {chart}");
        for more in [&[][..], &["--set", "maxReplicas=5"], &[]] {
            self.is_upgraded(scene, chart, more).await;
        }
    }

    /// One upgrade, which keeps the machines.
    pub async fn is_upgraded(&self, scene: &Scene<'_>, chart: &str, more: &[&str]) {
        self.helm(scene, chart, more).await;
        assert_eq!(self.template(scene).await, self.template, "{chart} {more:?}");
    }
}
