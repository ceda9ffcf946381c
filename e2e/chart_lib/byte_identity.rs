//! A chart that moves to the library and sets nothing new renders the same bytes: the name of a machine template is a hash of its
//! text, and another name replaces every worker of a pool.
//!
//! `pool-today` and `vm-disk-today` are the charts before, `pool` and `vm-disk` the charts after.

use crate::helm::{chart, repository, template};

const CERTIFICATE: &str = "talos.imageFactoryCA=-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----";

fn pool(chart_name: &str, arguments: &[&str]) -> Result<String, String> {
    let arguments = [&["--set", "cluster=alpha"], arguments].concat();
    template("kubernetes-nodes-alpha-md0", "tenant-a", &chart(chart_name), &arguments)
}

/// The stored rendering is what `pool-today` gives: `helm template kubernetes-nodes-alpha-md0 -n tenant-a e2e/charts/pool-today
/// --set cluster=alpha`.
#[test]
fn a_pool_without_os_image_renders_the_stored_bytes() {
    let stored = std::fs::read_to_string(repository().join("e2e/charts/pool.golden.yaml")).expect("read the stored rendering");
    assert_eq!(pool("pool-today", &[]).expect("render"), stored);
    assert_eq!(pool("pool", &[]).expect("render"), stored);
}

#[test]
fn pools_of_every_kind_render_as_today() {
    let cases: &[&[&str]] = &[
        &["--set", "storageClass="],
        &["--set", "storageClass=local", "--set", "diskSize=50Gi"],
        // A bare number of a values file is a float for both, and stays as ugly as it is.
        &["--set-json", "diskSize=21474836480"],
        &["--set", "diskSize="],
        &["--set", "roles={ingress-nginx,gpu}", "--set", "gpus[0].name=nvidia.com/AD102GL_L40S"],
        &["--set", "resources.cpu=4", "--set", "resources.memory=8Gi"],
        &["--set", "instanceType=u1.medium", "--set", "maxReplicas=3", "--set", "version=v1.34"],
        &["--set", "talos.version=v1.13.7", "--set", "talos.schematicID=abc"],
        &["--set", "talos.version=v1.14.0-alpha.1"],
        &["--set", "talos.imageFactoryURL=https://factory.example:8443/sub/"],
        &["--set", "talos.installerRepository=mirror.example/installer"],
        &["--set-json", r#"talos.registryMirrors={"ghcr.io":{"endpoints":["https://mirror.example"]}}"#],
        &["--set", CERTIFICATE],
        &["--set-json", "osImage={}"],
        &["--set-json", r#"osImage={"factory":{}}"#],
        &["--set-json", r#"osImage={"factory":{"version":"v1.13.8","schematicID":"abc","imageFactoryURL":"https://f.example"}}"#],
    ];
    for case in cases {
        let [today, library] =
            ["pool-today", "pool"].map(|chart| pool(chart, case).unwrap_or_else(|error| panic!("{chart} {case:?}: {error}")));
        assert_eq!(library, today, "{case:?}");
        assert!(today.contains("cdi.kubevirt.io/storage.usePopulator: \"false\""), "{case:?} is on the HTTP path");
    }
}

/// The stored bytes are worth something only if the text they guard reaches the name.
#[test]
fn the_templates_name_follows_its_text() {
    let name = |rendered: String| {
        let line = rendered.lines().find(|line| line.starts_with("  name: kubernetes-alpha-md0-")).expect("a template").to_owned();
        (line, rendered)
    };
    let (stored, _) = name(pool("pool", &[]).expect("render"));
    let (changed, text) = name(pool("pool", &["--set", "diskSize=21Gi"]).expect("render"));
    assert_ne!(stored, changed);
    assert!(text.contains("storage: \"21Gi\""));
}

#[test]
fn a_cloning_pool_drops_what_would_force_a_copy() {
    let rendered = pool("pool", &["--set-json", r#"osImage={"builtin":{}}"#, "--set", CERTIFICATE]).expect("render");
    for absent in ["usePopulator", "source:\n            http", "certConfigMap", "talos-factory-ca"] {
        assert!(!rendered.contains(absent), "{absent} in\n{rendered}");
    }
    let golden = "talos-worker-ce4c980550dd2ab1b17bbf2b08801c7eb59418eafe8f279833297925d67c7515-v1.13.6";
    for present in [
        format!("kubernetes-worker-image.cozystack.io/golden: \"{golden}\""),
        "kubernetes-worker-image.cozystack.io/pool: \"tenant-a/KubernetesNodes/alpha-md0\"".to_owned(),
        format!("namespace: cozy-public\n                  name: \"{golden}\""),
        "installer: \"factory.talos.dev/installer/ce4c980550dd2ab1b17bbf2b08801c7eb59418eafe8f279833297925d67c7515:v1.13.6\"".to_owned(),
    ] {
        assert!(rendered.contains(&present), "{present} is missing in\n{rendered}");
    }
}

#[test]
fn a_refusal_fails_the_render_with_its_words() {
    let error = pool("pool", &["--set-json", r#"osImage={"builtin":{},"factory":{}}"#]).expect_err("both sources");
    assert!(error.ends_with("KubernetesNodes tenant-a/alpha-md0: set only one of osImage.builtin and osImage.factory"), "{error}");
}

#[test]
fn vm_disks_that_clone_nothing_of_the_catalog_render_as_today() {
    let cases: &[&[&str]] = &[
        &[],
        &["--set", "source.http.url=https://example.org/a.qcow2", "--set", "storage=20Gi"],
        &["--set-json", r#"source={"upload":{}}"#, "--set", "optical=true"],
        &["--set", "source.disk.name=other", "--set", "storageClass="],
    ];
    for case in cases {
        let [today, library] =
            ["vm-disk-today", "vm-disk"].map(|name| template("vm-disk-web", "tenant-a", &chart(name), case).expect(name));
        assert_eq!(library, today, "{case:?}");
    }
    let both = ["--set-json", r#"source={"upload":{},"image":{"name":"a"}}"#];
    template("vm-disk-web", "tenant-a", &chart("vm-disk"), &both).expect_err("two sources");
}

#[test]
fn a_vm_disk_from_an_image_says_which_and_whose() {
    let rendered =
        template("vm-disk-web", "tenant-a", &chart("vm-disk"), &["--set", "source.image.name=ubuntu-24.04", "--set", "storage=20Gi"]);
    let disk: serde_json::Value = serde_saphyr::from_str(&rendered.expect("render")).expect("YAML");
    assert_eq!(disk["spec"]["source"]["pvc"], serde_json::json!({"namespace": "cozy-public", "name": "vm-default-images-ubuntu-24.04"}));
    let annotations = &disk["metadata"]["annotations"];
    assert_eq!(annotations["kubernetes-worker-image.cozystack.io/golden"], "vm-default-images-ubuntu-24.04");
    assert_eq!(annotations["kubernetes-worker-image.cozystack.io/pool"], "tenant-a/VMDisk/web");
}

/// A name is a part of other names, and nothing else of the manifest's.
#[test]
fn what_is_no_images_name_is_refused_before_a_cluster_is_asked() {
    for name in [r#""a: b""#, r#""a\n      namespace: tenant-b""#, r#""Ubuntu""#, r#""-a""#, "5", "{}", r#""\u0000""#] {
        let source = format!(r#"source={{"image":{{"name":{name}}}}}"#);
        let error = template("vm-disk-web", "tenant-a", &chart("vm-disk"), &["--set-json", &source]).expect_err(name);
        assert!(error.contains("is not the name of an image") || error.contains("source.image.name is required"), "{name}: {error}");
    }
}

/// A ComputePlane accepts `osImage` and drops it, so its pools stay on the path of today.
#[test]
fn a_compute_plane_pool_renders_as_today() {
    let groups = r#"nodeGroups={"md0":{"maxReplicas":3,"diskSize":"30Gi","roles":["ingress-nginx"],"osImage":{"builtin":{}},"talos":{"version":"v9.9.9"}}}"#;
    let release = template("computeplane", "tenant-a", &chart("computeplane"), &["--set-json", groups]).expect("render");
    let release: serde_json::Value = serde_saphyr::from_str(&release).expect("YAML");
    let values = tempfile::NamedTempFile::with_suffix(".yaml").expect("a file");
    std::fs::write(values.path(), release["spec"]["values"].to_string()).expect("write the values");
    let name = release["metadata"]["name"].as_str().expect("a name");
    let arguments = ["--values", values.path().to_str().expect("UTF-8")];
    let [today, library] = ["pool-today", "pool"].map(|pool| template(name, "tenant-a", &chart(pool), &arguments).expect(pool));
    assert_eq!(library, today);
    assert!(library.contains("storage: \"30Gi\"") && !library.contains("v9.9.9") && library.contains("http:"), "{library}");
}
