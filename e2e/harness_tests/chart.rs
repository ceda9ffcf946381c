//! The chart on a real API server: what it makes, and what its identities may do.

use crate::{
    CLUSTER, LED,
    harness::{
        Needs,
        chart::{self, ADMISSION, CONTROLLER},
        unique,
    },
};
use k8s_openapi::{
    api::{
        authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
        core::v1::{ConfigMap, Secret, Service},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

/// What `helm template` makes, without a cluster.
pub fn render(arguments: &[&str]) -> Vec<Value> {
    try_render(arguments).unwrap_or_else(|error| panic!("{error}"))
}

/// What `helm template` makes, or its last words.
pub fn try_render(arguments: &[&str]) -> Result<Vec<Value>, String> {
    let mut command = std::process::Command::new(crate::harness::helm());
    command.args(["template", "catalog"]).arg(chart::folder()).args(["--namespace", "cozy-kubernetes-worker-image"]).args(arguments);
    // A kubeconfig of the person who runs the tests must play no part.
    let out = command.env("KUBECONFIG", "/nonexistent").output().expect("run helm");
    if !out.status.success() {
        return Err(String::from_utf8_lossy(&out.stderr).into_owned());
    }
    let documents: Vec<Value> = serde_saphyr::from_multiple(&String::from_utf8(out.stdout).expect("UTF-8")).expect("YAML");
    Ok(documents.into_iter().filter(|document| !document.is_null()).collect())
}

/// One question to the authorizer: `verb resource[/subresource][.group] [name]`.
async fn may(client: &Client, namespace: &str, question: &str) -> bool {
    let mut words = question.split(' ');
    let (verb, what) = (words.next().unwrap(), words.next().unwrap());
    let (resource, group) = what.split_once('.').unwrap_or((what, ""));
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let attributes = ResourceAttributes {
        verb: Some(verb.into()),
        group: Some(group.into()),
        resource: Some(resource.into()),
        subresource: Some(subresource.into()),
        namespace: Some(namespace.into()),
        name: words.next().map(Into::into),
        ..Default::default()
    };
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
    let review = SelfSubjectAccessReview { spec, ..Default::default() };
    let api: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    api.create(&PostParams::default(), &review).await.unwrap().status.unwrap().allowed
}

/// Where a question is asked.
const CLUSTER_WIDE: &[&str] = &[
    "list goldenimages.cozystack.io",
    "watch goldenimages.cozystack.io",
    "create goldenimages.cozystack.io",
    "patch goldenimages.cozystack.io x",
    "patch goldenimages/status.cozystack.io x",
    "list storageclasses.storage.k8s.io",
    "watch storageclasses.storage.k8s.io",
    "list storageprofiles.cdi.kubevirt.io",
    "list cdiconfigs.cdi.kubevirt.io",
    "list cdis.cdi.kubevirt.io",
    "watch volumesnapshotclasses.snapshot.storage.k8s.io",
    "list customresourcedefinitions.apiextensions.k8s.io",
    "watch customresourcedefinitions.apiextensions.k8s.io",
    // The CRD goes forward with the daemon.
    "patch customresourcedefinitions.apiextensions.k8s.io goldenimages.cozystack.io",
    "list datavolumes.cdi.kubevirt.io",
    "watch persistentvolumeclaims",
];
const NOT_CLUSTER_WIDE: &[&str] = &[
    "delete goldenimages.cozystack.io x",
    "list secrets",
    "list configmaps",
    "list pods",
    "list namespaces",
    "delete namespaces x",
    "patch customresourcedefinitions.apiextensions.k8s.io x",
    "create storageclasses.storage.k8s.io",
    "create clusterrolebindings.rbac.authorization.k8s.io",
];
const IN_CATALOG: &[&str] = &[
    "get datavolumes.cdi.kubevirt.io x",
    "watch datavolumes.cdi.kubevirt.io",
    "create datavolumes.cdi.kubevirt.io",
    "patch datavolumes.cdi.kubevirt.io x",
    "delete datavolumes.cdi.kubevirt.io x",
    "watch persistentvolumeclaims",
    "patch persistentvolumeclaims x",
    "delete persistentvolumeclaims x",
    "watch pods",
    "watch resourcequotas",
    "list events",
    "create secrets",
    "patch secrets x",
    "delete secrets x",
    "create configmaps",
    "patch configmaps golden-catalog-spool-ca",
    "create leases.coordination.k8s.io",
    "update leases.coordination.k8s.io golden-catalog",
    "create events.events.k8s.io",
    "create datavolumes/source.cdi.kubevirt.io",
];
const NOT_IN_CATALOG: &[&str] = &[
    "get secrets x",
    "list secrets",
    "watch secrets",
    "update secrets x",
    "get configmaps x",
    "list configmaps",
    "patch configmaps x",
    "create persistentvolumeclaims",
    "create pods",
    "delete pods x",
    "update leases.coordination.k8s.io x",
    "create rolebindings.rbac.authorization.k8s.io",
];
const IN_OWN: &[&str] = &[
    "get secrets x",
    // Their metadata: credentials that are changed are tried at once.
    "list secrets",
    "watch secrets",
    "create secrets",
    "update secrets golden-catalog-spool-tls",
    "update secrets golden-catalog-webhook-tls",
    "list configmaps",
    "watch configmaps",
    "create endpointslices.discovery.k8s.io",
    "patch endpointslices.discovery.k8s.io golden-catalog-spool",
    "create events.events.k8s.io",
];
const NOT_IN_OWN: &[&str] = &[
    "update secrets x",
    "update secrets golden-catalog-spool-key",
    "patch secrets x",
    "delete secrets x",
    "patch configmaps x",
    "patch endpointslices.discovery.k8s.io x",
    "create pods",
    "patch deployments.apps golden-catalog-controller",
    "create leases.coordination.k8s.io",
];

const ADMISSION_CLUSTER_WIDE: &[&str] = &[
    "list goldenimages.cozystack.io",
    "watch storageclasses.storage.k8s.io",
    "list datavolumes.cdi.kubevirt.io",
    "watch persistentvolumeclaims",
    "get virtualmachines.kubevirt.io x",
    "list kubevirtmachinetemplates.infrastructure.cluster.x-k8s.io",
    "list machinedeployments.cluster.x-k8s.io",
    "get datasources.cdi.kubevirt.io x",
    "get namespaces x",
    "create subjectaccessreviews.authorization.k8s.io",
];

#[tokio::test]
async fn the_controllers_rights_are_what_the_design_says_and_no_more() {
    let Some(cluster) = CLUSTER.on(Needs::Scripted).await else { return };
    let _shared = LED.read().await;
    let release = cluster.install_chart("{}").await;
    let other = cluster.namespace("tenant").await;
    let client = release.client(CONTROLLER).await;
    let (own, catalog) = (&*release.namespace, &*release.catalog);
    let expected = [
        ("", CLUSTER_WIDE, true),
        ("", NOT_CLUSTER_WIDE, false),
        (catalog, IN_CATALOG, true),
        (catalog, NOT_IN_CATALOG, false),
        (own, IN_OWN, true),
        (own, NOT_IN_OWN, false),
        ("default", &["create events.events.k8s.io"], true),
        // What is wrong with a clone is told on the clone.
        (&other, &["create events.events.k8s.io"], true),
        ("default", &["get secrets x", "list configmaps", "list pods"], false),
        (&other, &["get secrets x", "list configmaps", "create datavolumes.cdi.kubevirt.io", "get namespaces"], false),
    ];
    let mut wrong = vec![];
    for (namespace, questions, expected) in expected {
        for question in questions {
            if may(&client, namespace, question).await != expected {
                wrong.push(format!("{question} in {namespace:?}: should be {}", if expected { "allowed" } else { "refused" }));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");

    let admission = release.client(ADMISSION).await;
    let mut wrong = vec![];
    for (namespace, questions, expected) in [
        ("", ADMISSION_CLUSTER_WIDE, true),
        (
            catalog,
            &["get persistentvolumeclaims x", "get datavolumes.cdi.kubevirt.io x", "get volumesnapshots.snapshot.storage.k8s.io x"],
            true,
        ),
        (own, &["get secrets golden-catalog-webhook-tls", "watch secrets golden-catalog-webhook-tls"], true),
        (
            own,
            &[
                "get secrets golden-catalog-spool-tls",
                "get secrets golden-catalog-spool-key",
                "list secrets",
                "watch secrets golden-catalog-spool-tls",
                "update secrets golden-catalog-webhook-tls",
                "list configmaps",
            ],
            false,
        ),
        (
            catalog,
            &[
                "get secrets x",
                "create secrets",
                "create datavolumes.cdi.kubevirt.io",
                "delete datavolumes.cdi.kubevirt.io x",
                "patch persistentvolumeclaims x",
                "update leases.coordination.k8s.io golden-catalog",
            ],
            false,
        ),
        (
            "",
            &[
                "create goldenimages.cozystack.io",
                "patch goldenimages/status.cozystack.io x",
                "list secrets",
                "list pods",
                "list namespaces",
                "list configmaps",
            ],
            false,
        ),
    ] {
        for question in questions {
            if may(&admission, namespace, question).await != expected {
                wrong.push(format!("admission: {question} in {namespace:?}: should be {}", if expected { "allowed" } else { "refused" }));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test]
async fn the_controller_writes_a_header_secret_it_cannot_read() {
    let Some(cluster) = CLUSTER.on(Needs::Any).await else { return };
    let _shared = LED.read().await;
    let release = cluster.install_chart("{}").await;
    let secrets: Api<Secret> = Api::namespaced(release.client(CONTROLLER).await, &release.catalog);
    let apply = PatchParams::apply("golden-catalog/golden").force();
    for token in ["one", "two"] {
        let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "golden" }, "stringData": { "header": token } });
        secrets.patch("golden", &apply, &Patch::Apply(&secret)).await.unwrap();
    }
    for refused in [secrets.get("golden").await.map(drop), secrets.list(&ListParams::default()).await.map(drop)] {
        assert!(refused.unwrap_err().to_string().contains("forbidden"));
    }
    secrets.delete("golden", &DeleteParams::default()).await.unwrap();
}

#[tokio::test]
async fn the_chart_is_made_upgraded_and_removed() {
    let Some(cluster) = CLUSTER.on(Needs::Any).await else { return };
    cluster.helm(["lint", "--strict", chart::folder().to_str().unwrap()]).await.ok();
    let _shared = LED.read().await;
    let release = cluster.install_chart("{images: [{name: a, url: 'https://example.org/a.qcow2'}], storageClass: replicated}").await;

    let list: Api<ConfigMap> = Api::namespaced(cluster.admin(), &release.namespace);
    let text = async || list.get("golden-catalog-images").await.unwrap().data.unwrap()["images.yaml"].clone();
    let read: Value = serde_saphyr::from_str(&text().await).unwrap();
    assert_eq!(read, json!({ "images": [{ "name": "a", "url": "https://example.org/a.qcow2" }], "storageClass": "replicated" }));
    let entries = golden_catalog::catalog::read_list(&text().await).unwrap().entries;
    assert!(matches!(&entries[..], [Ok(entry)] if entry.name.to_string() == "a"), "{entries:?}");

    let services: Api<Service> = Api::namespaced(cluster.admin(), &release.namespace);
    let service = services.get("golden-catalog-spool").await.unwrap().spec.unwrap();
    assert_eq!(service.selector, None, "the leader alone says where the spool is");
    assert_eq!(service.ports.unwrap()[0].port, 8443);

    let settings = list.get("golden-catalog-settings").await.unwrap().data.unwrap()["settings.yaml"].clone();
    let settings: Value = serde_saphyr::from_str(&settings).unwrap();
    assert_eq!((&settings["spoolSize"], &settings["maxConcurrentImports"]), (&json!("64Gi"), &json!(3)));
    assert!(settings.get("bandwidth").is_none(), "what is empty is left out: {settings}");

    release.upgrade("{images: []}").await.ok();
    assert!(golden_catalog::catalog::read_list(&text().await).unwrap().entries.is_empty());
    let refused = release.upgrade("{image: []}").await.err();
    assert!(refused.contains("image"), "{refused}");
    let refused = release.upgrade("{settings: {maxImports: 3}}").await.err();
    assert!(refused.contains("maxImports"), "{refused}");

    release.uninstall().await.ok();
    assert!(list.get_opt("golden-catalog-images").await.unwrap().is_none());
    let kinds: Api<CustomResourceDefinition> = Api::all(cluster.admin());
    kinds.get("goldenimages.cozystack.io").await.expect("the kind and its objects outlive the release");
    let names = ["clusterroles", "clusterrolebindings", "roles", "rolebindings"].join(",");
    let left = cluster.kubectl(["get", &names, "-A", "-o", "name"]).await.ok();
    assert!(!left.contains(&*release.namespace), "{left}");
}

#[tokio::test]
async fn the_chart_cannot_be_put_where_it_would_be_wrong() {
    let Some(cluster) = CLUSTER.on(Needs::Any).await else { return };
    let _shared = LED.read().await;
    let namespace = cluster.namespace("wrong").await;
    let chart = chart::folder();
    let install = ["install", "wrong", chart.to_str().unwrap(), "--namespace", &namespace, "--skip-crds"];

    let missing = format!("catalogNamespace=missing-{}", unique());
    let error = cluster.helm(install.iter().chain(&["--set", &missing])).await.err();
    assert!(error.contains("does not exist") && error.contains("create it"), "{error}");
    let same = format!("catalogNamespace={}", &*namespace);
    let error = cluster.helm(install.iter().chain(&["--set", &same])).await.err();
    assert!(error.contains("the namespace of this release"), "{error}");
    let left = cluster.kubectl(["get", "all,configmaps,serviceaccounts", "-n", &namespace, "-o", "name"]).await.ok();
    assert!(!left.contains("golden-catalog"), "nothing is half made: {left}");
}

/// Where an issuer of cert-manager is named, it is asked for the certificate, into the Secret that the daemon serves from.
#[test]
fn cert_manager_is_asked_where_an_issuer_is_named() {
    let certificates = |arguments: &[&str]| -> Vec<Value> {
        render(arguments).into_iter().filter(|object| object["apiVersion"] == "cert-manager.io/v1").collect()
    };
    assert_eq!(certificates(&[]), Vec::<Value>::new());
    let issuer = ["--set", "admission.issuerRef.name=selfsigned-cluster-issuer", "--set", "admission.issuerRef.kind=ClusterIssuer"];
    assert_eq!(certificates(&[&issuer[..], &["--set", "admission.enabled=false"]].concat()), Vec::<Value>::new());
    let asked = certificates(&issuer);
    let spec = &asked[0]["spec"];
    assert_eq!(spec["secretName"], golden_catalog::run::certs::WEBHOOK_TLS);
    assert_eq!(spec["issuerRef"], json!({ "kind": "ClusterIssuer", "name": "selfsigned-cluster-issuer" }));
    assert_eq!(spec["dnsNames"], json!(["golden-catalog-admission.cozy-kubernetes-worker-image.svc"]));
    for (url, names, addresses) in [
        (
            "https://hook.example.org:9443",
            json!(["golden-catalog-admission.cozy-kubernetes-worker-image.svc", "hook.example.org"]),
            Value::Null,
        ),
        ("https://10.0.0.7:9443", json!(["golden-catalog-admission.cozy-kubernetes-worker-image.svc"]), json!(["10.0.0.7"])),
    ] {
        let asked = certificates(&[&issuer[..], &["--set", &format!("admission.advertisedURL={url}")]].concat());
        assert_eq!((&asked[0]["spec"]["dnsNames"], &asked[0]["spec"]["ipAddresses"]), (&names, &addresses), "{url}");
    }
    let refused = try_render(&["--set", "admission.issuerRef.kind=Issuer"]).expect_err("an issuer has a name");
    assert!(refused.contains("issuerRef"), "{refused}");
}

/// With admission off the controller has no right that only admission needs.
#[test]
fn admission_that_is_off_leaves_no_right_behind() {
    let of = |arguments: &[&str]| render(arguments).iter().map(|object| object["rules"].to_string()).collect::<String>();
    assert!(of(&[]).contains("admissionregistration.k8s.io"));
    let off = of(&["--set", "admission.enabled=false"]);
    assert!(!off.contains("admissionregistration.k8s.io") && !off.contains("subjectaccessreviews"), "{off}");
}

/// With the CRD from the chart itself, as a hoster installs it, and a Deployment that the API server accepts as it is meant.
#[tokio::test]
async fn the_chart_brings_its_kind_along() {
    let Some(_) = CLUSTER.on(Needs::Scripted).await else { return };
    // A server of its own: nothing has installed the kind there.
    let cluster = crate::harness::Cluster::start(crate::harness::Options::default()).await;
    let (namespace, catalog) = (cluster.namespace("daemon").await, cluster.namespace("catalog").await);
    let chart = chart::folder();
    let catalog = format!("catalogNamespace={}", &*catalog);
    let arguments = [chart.to_str().unwrap(), "--namespace", &namespace, "--set", &catalog];
    for verb in [["install", "first"], ["upgrade", "first"]] {
        cluster.helm(verb.iter().chain(&arguments)).await.ok();
    }
    let columns = cluster.kubectl(["get", "goldenimages"]).await;
    assert!(columns.stderr.contains("No resources found"), "{columns:?}");

    let deployment = cluster.kubectl(["get", "deployment", CONTROLLER, "-n", &namespace, "-o", "json"]).await.ok();
    let deployment: Value = serde_json::from_str(&deployment).unwrap();
    let pod = &deployment["spec"]["template"]["spec"];
    assert_eq!(deployment["spec"]["replicas"], 2);
    assert_eq!(pod["serviceAccountName"], CONTROLLER);
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"], true);
    // The Pod Security Standard `restricted`, judged by the server's own admission.
    let label = ["label", "namespace", &namespace, "pod-security.kubernetes.io/warn=restricted"];
    cluster.kubectl(label).await.ok();
    let warned = cluster.helm(["upgrade", "first"].iter().chain(&arguments).chain(&["--set", "controller.replicas=3"])).await;
    assert!(!warned.stderr.contains("would violate PodSecurity"), "{}", warned.stderr);
    warned.ok();
    for size in ["spool.storageClass=replicated", "spool.storageClass="] {
        let upgraded = cluster.helm(["upgrade", "first"].iter().chain(&arguments).chain(&["--set", size])).await;
        upgraded.ok();
    }
    cluster.helm(["uninstall", "first", "--namespace", &namespace]).await.ok();
    cluster.kubectl(["get", "goldenimages"]).await.ok();
}
