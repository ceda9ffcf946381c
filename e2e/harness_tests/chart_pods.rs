//! What the chart says about Pods, which nothing here runs: judged as objects that the API server accepts, and by their selectors.

use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{PodTemplateSpec, Service},
        networking::v1::NetworkPolicy,
        policy::v1::PodDisruptionBudget,
    },
    apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString},
};
use kube::{Api, ResourceExt as _, api::ListParams};
use serde_json::Value;

use crate::{CLUSTER, LED, chart::render, harness::Needs};

/// Whether a selector selects Pods of a template. Only what the chart uses of selectors.
fn selects(selector: &LabelSelector, pods: &PodTemplateSpec) -> bool {
    assert!(selector.match_expressions.is_none(), "{selector:?}");
    let labels = pods.metadata.as_ref().and_then(|meta| meta.labels.clone()).unwrap_or_default();
    let wanted = selector.match_labels.clone().unwrap_or_default();
    !wanted.is_empty() && wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
}

#[tokio::test]
async fn every_role_has_its_policy_its_budget_and_its_spread() {
    let Some(cluster) = CLUSTER.on(Needs::Any).await else { return };
    let _shared = LED.read().await;
    let release = cluster.install_chart("{}").await;
    let (admin, namespace) = (cluster.admin(), &*release.namespace);
    let all = ListParams::default();
    let deployments = Api::<Deployment>::namespaced(admin.clone(), namespace).list(&all).await.unwrap().items;
    let policies = Api::<NetworkPolicy>::namespaced(admin.clone(), namespace).list(&all).await.unwrap().items;
    let budgets = Api::<PodDisruptionBudget>::namespaced(admin.clone(), namespace).list(&all).await.unwrap().items;
    let services = Api::<Service>::namespaced(admin, namespace).list(&all).await.unwrap().items;
    assert!(!deployments.is_empty());

    for deployment in &deployments {
        let name = deployment.name_any();
        let spec = deployment.spec.as_ref().unwrap();
        let (pods, pod) = (&spec.template, spec.template.spec.as_ref().unwrap());
        assert!(selects(&spec.selector, pods), "{name}");
        let own: Vec<_> =
            policies.iter().filter(|policy| selects(policy.spec.as_ref().unwrap().pod_selector.as_ref().unwrap(), pods)).collect();
        assert_eq!(own.len(), 1, "{name} has one policy");
        let policy = own[0].spec.as_ref().unwrap();
        assert_eq!(policy.policy_types.as_deref().unwrap(), ["Ingress", "Egress"], "{name}");
        // A port that a policy, a probe or a Service calls by name is one of the container's.
        let container = &pod.containers[0];
        let ports: Vec<_> = container.ports.iter().flatten().filter_map(|port| port.name.as_deref()).collect();
        for port in policy.ingress.iter().flatten().flat_map(|rule| rule.ports.iter().flatten()) {
            let Some(IntOrString::String(port)) = &port.port else { panic!("{name}: {port:?}") };
            assert!(ports.contains(&port.as_str()), "{name}: {port} in {ports:?}");
        }
        // Nothing that it listens on is left out of the policy.
        let opened = policy.ingress.iter().flatten().flat_map(|rule| rule.ports.iter().flatten()).count();
        assert_eq!(opened, ports.len(), "{name}: {ports:?}");
        let budget: Vec<_> = budgets
            .iter()
            .filter_map(|budget| budget.spec.as_ref())
            .filter(|budget| selects(budget.selector.as_ref().unwrap(), pods))
            .collect();
        assert_eq!(budget.len(), 1, "{name} has one budget");
        assert_eq!(budget[0].max_unavailable, Some(IntOrString::Int(1)), "{name}");
        let spread = &pod.topology_spread_constraints.as_ref().unwrap()[0];
        assert!(selects(spread.label_selector.as_ref().unwrap(), pods), "{name}");
        assert_eq!(spread.topology_key, "kubernetes.io/hostname", "{name}");

        let resources = container.resources.as_ref().unwrap();
        assert!(
            resources.requests.as_ref().unwrap().contains_key("memory") && resources.limits.as_ref().unwrap().contains_key("memory"),
            "{name}"
        );
        let (of_pod, own) = (pod.security_context.as_ref().unwrap(), container.security_context.as_ref().unwrap());
        assert_eq!((of_pod.run_as_non_root, of_pod.run_as_user), (Some(true), Some(65532)), "{name}");
        assert_eq!(of_pod.seccomp_profile.as_ref().unwrap().type_, "RuntimeDefault", "{name}");
        assert_eq!((own.read_only_root_filesystem, own.allow_privilege_escalation), (Some(true), Some(false)), "{name}");
        assert_eq!(own.capabilities.as_ref().unwrap().drop.as_deref().unwrap(), ["ALL"], "{name}");
        // One role's selectors are no other's.
        let others = deployments.iter().filter(|other| other.name_any() != name);
        assert!(others.into_iter().all(|other| !selects(&other.spec.as_ref().unwrap().selector, pods)), "{name}");
    }
    // A Service with a selector reaches Pods of exactly one role.
    for service in &services {
        let Some(selector) = service.spec.as_ref().unwrap().selector.clone() else { continue };
        let selector = LabelSelector { match_labels: Some(selector), ..Default::default() };
        let reached = deployments.iter().filter(|deployment| selects(&selector, &deployment.spec.as_ref().unwrap().template)).count();
        assert_eq!(reached, 1, "{}", service.name_any());
    }
}

/// The container of each role's Pods.
fn containers(arguments: &[&str]) -> Vec<Value> {
    let deployments = render(arguments).into_iter().filter(|object| object["kind"] == "Deployment");
    deployments.map(|deployment| deployment["spec"]["template"]["spec"]["containers"][0].clone()).collect()
}

/// A spool on the node's disk is told to the scheduler and to the kubelet, which else evicts the Pod first and without a word before.
#[test]
fn a_spool_on_the_nodes_disk_is_requested_and_bounded() {
    let of = |arguments: &[&str]| {
        let found = containers(arguments);
        let controller = found.iter().find(|container| container["args"][1] == "--role=controller").unwrap();
        let at = |kind: &str| controller["resources"][kind]["ephemeral-storage"].as_str().map(str::to_owned);
        let rest = (controller["resources"]["requests"]["memory"].clone(), controller["resources"]["limits"]["memory"].clone());
        assert!(rest.0.is_string() && rest.1.is_string(), "what else the values say stays: {rest:?}");
        (at("requests"), at("limits"))
    };
    let (some, none) = (|text: &str| Some(text.to_owned()), (None, None));
    // A gibibyte beyond the volume, for logs.
    assert_eq!(of(&[]), (some("16Gi"), some("72704Mi")));
    assert_eq!(of(&["--set", "spool.size=1Gi,spool.volumeSize=2Gi"]), (some("2Gi"), some("3072Mi")));
    // None at all would be the limit, by the API server's own default.
    assert_eq!(of(&["--set", "spool.request="]), (some("0"), some("72704Mi")));
    assert_eq!(of(&["--set", "spool.request=null"]), (some("0"), some("72704Mi")));
    assert_eq!(of(&["--set", "controller.resources.requests.ephemeral-storage=100Gi"]), (some("100Gi"), None));
    assert_eq!(of(&["--set", "spool.storageClass=replicated"]), none);
    let refused = crate::chart::try_render(&["--set", "spool.request=half"]).expect_err("no size");
    assert!(refused.contains("/spool/request"), "{refused}");
}

#[test]
fn the_image_is_pinned_by_its_digest() {
    let images = |arguments: &[&str]| {
        let mut images: Vec<_> = containers(arguments).iter().map(|container| container["image"].as_str().unwrap().to_owned()).collect();
        assert_eq!(images.len(), 2, "both roles");
        images.dedup();
        let [image] = &images[..] else { panic!("{images:?}") };
        image.clone()
    };
    let digest = |digit: &str| format!("sha256:{}", digit.repeat(64));
    let (one, two) = (digest("1"), digest("2"));
    assert_eq!(images(&["--set", "image=r.example:5000/a/b:1"]), "r.example:5000/a/b:1");
    assert_eq!(images(&["--set", &format!("image=r.example:5000/a/b:1@{one}")]), format!("r.example:5000/a/b:1@{one}"));
    let both = format!("image=r.example:5000/a/b:1@{one},imageDigest={two}");
    assert_eq!(images(&["--set", &both]), format!("r.example:5000/a/b:1@{two}"));
    assert_eq!(images(&["--set", &format!("image=r.example/b,imageDigest={two}")]), format!("r.example/b@{two}"));
    assert_eq!(images(&["--set", "image=r.example/b:1,imageDigest=null"]), "r.example/b:1");
    for (wrong, field) in [("image=r.example/b:1@sha256:1", "/image"), ("image=a b", "/image"), ("imageDigest=latest", "/imageDigest")] {
        let refused = crate::chart::try_render(&["--set", wrong]).expect_err(wrong);
        assert!(refused.contains(field), "{wrong}: {refused}");
    }
}

#[test]
fn importers_of_the_catalog_reach_the_spool_and_nobody_else_does() {
    let objects = render(&["--set", "catalogNamespace=somewhere"]);
    let policy = objects
        .iter()
        .find(|object| object["kind"] == "NetworkPolicy" && object["metadata"]["name"] == "golden-catalog-controller")
        .unwrap();
    let spool: Vec<&Value> =
        policy["spec"]["ingress"].as_array().unwrap().iter().filter(|rule| rule["ports"][0]["port"] == "spool").collect();
    assert_eq!(spool.len(), 1);
    let from = spool[0]["from"].as_array().unwrap();
    assert_eq!(from.len(), 1);
    assert_eq!(from[0]["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"], "somewhere");
    // What CDI puts on every importer's Pod.
    assert_eq!(from[0]["podSelector"]["matchLabels"]["app"], "containerized-data-importer");
}

#[test]
fn policies_can_be_left_to_the_hoster() {
    let kinds = |arguments: &[&str]| render(arguments).iter().filter(|object| object["kind"] == "NetworkPolicy").count();
    assert!(kinds(&[]) >= 1);
    assert_eq!(kinds(&["--set", "networkPolicies.enabled=false"]), 0);
}
