//! Every refusal in every form: the code, and a message that names disk, golden, both values and what to do.

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use serde_json::json;

use crate::{
    harness::eventually,
    hostile::is_to_ask_again,
    objects::{Disk, Form, RIGHT, data_source, object},
    stand::{CATALOG, CONFIGURATIONS, create, replace, stand},
};

/// What is wrong, and what the message must say; `storage.usePopulator` and the like only count on DataVolumes' annotations.
const WRONG: &[(&str, Disk, &[&str])] = &[
    ("missing", Disk { golden: "no-such-golden", ..RIGHT }, &["no-such-golden", "does not exist", "R13"]),
    ("temporary", Disk { golden: "tmp-pvc-1", ..RIGHT }, &["tmp-pvc-1", "CDI made", "R13"]),
    ("class", Disk { class: Some("local"), ..RIGHT }, &["\"replicated\"", "\"local\"", "storageClassName: replicated", "R14"]),
    ("no-class", Disk { class: Some("nowhere"), golden: "golden", ..RIGHT }, &["\"nowhere\"", "R14"]),
    ("empty-class", Disk { class: Some(""), ..RIGHT }, &["storageClassName: \"\"", "storageClassName: replicated", "R14"]),
    ("small", Disk { size: "5Gi", ..RIGHT }, &["6Gi", "5Gi", "cannot be smaller", "R16"]),
    ("mode", Disk { mode: Some("Filesystem"), ..RIGHT }, &["Block", "Filesystem", "volumeMode: Block", "R16"]),
    ("large", Disk { golden: "golden-fixed", class: Some("fixed"), ..RIGHT }, &["6Gi", "20Gi", "allowVolumeExpansion", "R16"]),
    ("copy", Disk { annotation: Some(("cdi.kubevirt.io/cloneType", "copy")), ..RIGHT }, &["cdi.kubevirt.io/cloneType", "remove it", "R16"]),
    (
        "former",
        Disk { annotation: Some(("volume.beta.kubernetes.io/storage-class", "local")), ..RIGHT },
        &["\"replicated\"", "\"local\"", "R14"],
    ),
    ("spelled", Disk { annotation: Some(("cdi.kubevirt.io/storage.usePopulator", "0")), ..RIGHT }, &["usePopulator", "network", "R16"]),
    ("populator", Disk { annotation: Some(("cdi.kubevirt.io/storage.usePopulator", "false")), ..RIGHT }, &["usePopulator", "R16"]),
];

#[tokio::test]
async fn each_wrong_clone_is_refused_in_each_form_with_what_to_do() {
    let Some((cluster, _)) = stand().await else { return };
    let tenant = cluster.namespace("tenant").await;
    for golden in WRONG.iter().map(|(_, disk, _)| disk.golden).collect::<std::collections::BTreeSet<_>>() {
        cluster.apply_in(CATALOG, &data_source(golden).to_string()).await;
    }
    let mut wrong = Vec::new();
    for (what, disk, says) in WRONG {
        for form in Form::ALL {
            let name = format!("{what}-{form:?}").to_lowercase();
            for dry_run in [true, false] {
                match create(cluster, &tenant, &object(form, &name, *disk), dry_run).await {
                    Ok(made) => wrong.push(format!("{name} was admitted: {}", made.object)),
                    Err(refused) => {
                        let missing: Vec<_> = says.iter().filter(|text| !refused.message.contains(**text)).collect();
                        if refused.code != 403 || !missing.is_empty() || !refused.message.contains(&*tenant) {
                            wrong.push(format!("{name}: {} {} lacks {missing:?}", refused.code, refused.message));
                        }
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What CDI takes, and never makes: `validateContentTypes` holds a disk for ever that is to be an archive, and its planner knows three ways.
#[tokio::test]
async fn what_cdi_would_never_make_is_refused() {
    let Some((cluster, _)) = stand().await else { return };
    let tenant = cluster.namespace("tenant").await;
    cluster.apply_in(CATALOG, &data_source("golden").to_string()).await;
    for form in Form::ALL.into_iter().filter(|form| *form != Form::Claim) {
        let mut archive = object(form, "archive", RIGHT);
        let spec = match form {
            Form::Machine => &mut archive["spec"]["dataVolumeTemplates"][0]["spec"],
            Form::Template => &mut archive["spec"]["template"]["spec"]["virtualMachineTemplate"]["spec"]["dataVolumeTemplates"][0]["spec"],
            _ => &mut archive["spec"],
        };
        spec["contentType"] = "archive".into();
        let way = Disk { annotation: Some(("cdi.kubevirt.io/cloneType", "network")), ..RIGHT };
        for (wrong, text) in [(archive, "`contentType: archive`"), (object(form, "way", way), "cdi.kubevirt.io/cloneType")] {
            let refused = create(cluster, &tenant, &wrong, true).await.expect_err("refused");
            assert!(
                refused.code == 403 && refused.message.contains(text) && refused.message.contains("R16"),
                "{form:?}: {}",
                refused.message
            );
        }
        let way = Disk { annotation: Some(("cdi.kubevirt.io/cloneType", "csi-clone")), ..RIGHT };
        create(cluster, &tenant, &object(form, "right", way), true).await.unwrap_or_else(|refused| panic!("{}", refused.message));
    }
}

/// The webhook `disks` writes the class by which `clones` judges: a new disk that comes without it (somebody took `disks` away, or edited
/// it) would get another from CDI.
#[tokio::test]
async fn a_disk_whose_class_was_not_written_is_not_admitted_by_it() {
    let Some((cluster, stand)) = stand().await else { return };
    let configurations: kube::Api<ValidatingWebhookConfiguration> = kube::Api::all(cluster.admin());
    let found = configurations.get(CONFIGURATIONS).await.expect("the webhooks");
    let bundle = found.webhooks.into_iter().flatten().next().and_then(|webhook| webhook.client_config.ca_bundle).expect("a CA");
    let authority = reqwest::Certificate::from_pem_bundle(&bundle.0).expect("certificates");
    let client = reqwest::Client::builder().no_proxy().tls_certs_only(authority).build().expect("a client");
    for (class, form, code) in [
        (None, Form::Volume, Some(503)),
        (None, Form::VolumeOfClaim, Some(503)),
        (Some("replicated"), Form::Volume, None),
        // What makes disks later is completed when it does.
        (None, Form::Machine, None),
    ] {
        let mut disk = object(form, "unwritten", Disk { class, ..RIGHT });
        disk["metadata"]["namespace"] = "tenant".into();
        let (group, kind) = (disk["apiVersion"].as_str().and_then(|version| version.split_once('/')).expect("a group").0, &disk["kind"]);
        let review = json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": { "uid": "u", "operation": "CREATE",
            "kind": { "group": group, "version": "v1", "kind": kind }, "namespace": "tenant", "object": disk } });
        let text = eventually("a verdict", || async {
            let question = client.post(format!("https://{}/clones", stand.address())).body(review.to_string());
            let answer = question.send().await.expect("an answer");
            let (status, text) = (answer.status().as_u16(), answer.text().await.expect("an answer"));
            if is_to_ask_again(status, &text) { Err(text) } else { Ok(text) }
        })
        .await;
        let answer: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        let response = &answer["response"];
        assert_eq!(
            (response["allowed"].as_bool(), response["status"]["code"].as_u64()),
            (Some(code.is_none()), code),
            "{form:?}: {answer}"
        );
        // No other reason for which there is none yet.
        let message = response["status"]["message"].as_str().unwrap_or_default();
        assert!(code.is_none() || message.contains("`disks`"), "{form:?}: {answer}");
        assert!(response.get("patch").is_none(), "{answer}");
    }
}

#[tokio::test]
async fn all_that_is_wrong_is_told_at_once_and_disks_are_told_apart() {
    let Some((cluster, _)) = stand().await else { return };
    let tenant = cluster.namespace("tenant").await;
    let disk = Disk { class: Some("local"), size: "5Gi", mode: Some("Filesystem"), ..RIGHT };
    let refused = create(cluster, &tenant, &object(Form::Volume, "bad", disk), false).await.expect_err("refused");
    for text in ["R14", "R16", "\"local\"", "cannot be smaller", "Filesystem"] {
        assert!(refused.message.contains(text), "{text}: {}", refused.message);
    }
    // One disk of two is wrong: the VM is refused and that disk is named.
    let mut machine = object(Form::Machine, "vm", RIGHT);
    let other = object(Form::Machine, "other", Disk { class: Some("local"), ..RIGHT });
    let templates = machine["spec"]["dataVolumeTemplates"].as_array_mut().expect("templates");
    templates.push(other["spec"]["dataVolumeTemplates"][0].clone());
    let refused = create(cluster, &tenant, &machine, false).await.expect_err("refused");
    assert!(refused.message.contains("\"other-disk\"") && !refused.message.contains("\"vm-disk\""), "{}", refused.message);
}

/// An update is judged by what it changes: the VM as it was stays, and so do its other fields; another disk is a new clone.
#[tokio::test]
async fn an_update_is_judged_by_what_changed() {
    let Some((cluster, _)) = stand().await else { return };
    let tenant = cluster.namespace("tenant").await;
    let made = create(cluster, &tenant, &object(Form::Machine, "vm", RIGHT), false).await.expect("admitted").object;
    let mut started = made.clone();
    started["spec"]["runStrategy"] = "Always".into();
    let started = replace(cluster, &tenant, &started).await.expect("starting a VM is nobody's business").object;
    let mut moved = started.clone();
    moved["spec"]["dataVolumeTemplates"][0]["spec"]["storage"]["storageClassName"] = "local".into();
    let refused = replace(cluster, &tenant, &moved).await.expect_err("another class");
    assert!(refused.message.contains("R14"), "{}", refused.message);
    let mut second = started;
    let more = object(Form::Machine, "two", Disk { golden: "no-such-golden", ..RIGHT });
    second["spec"]["dataVolumeTemplates"].as_array_mut().expect("templates").push(more["spec"]["dataVolumeTemplates"][0].clone());
    let refused = replace(cluster, &tenant, &second).await.expect_err("a disk of nothing");
    assert!(refused.message.contains("two-disk") && !refused.message.contains("vm-disk"), "{}", refused.message);
}

/// A pointer of one's own is followed at once, through any number of steps that CDI follows, also where a watch could not know of it yet.
#[tokio::test]
async fn a_chain_of_data_sources_is_followed_live() {
    let Some((cluster, _)) = stand().await else { return };
    let tenant = cluster.namespace("tenant").await;
    let pointer = |name: &str, source: serde_json::Value| json!({ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataSource", "metadata": { "name": name }, "spec": { "source": source } });
    let disk = |pointer: &str, class: &str| {
        json!({ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "metadata": { "generateName": "d-" },
        "spec": { "sourceRef": { "kind": "DataSource", "name": pointer }, "storage": { "storageClassName": class, "resources": { "requests": { "storage": "20Gi" } } } } })
    };
    for round in 0..20 {
        let (first, second) = (format!("a{round}"), format!("b{round}"));
        create(cluster, &tenant, &pointer(&second, json!({ "pvc": { "namespace": CATALOG, "name": "golden" } })), false)
            .await
            .expect("a pointer");
        create(cluster, &tenant, &pointer(&first, json!({ "dataSource": { "namespace": &*tenant, "name": second } })), false)
            .await
            .expect("a pointer to it");
        let refused = create(cluster, &tenant, &disk(&first, "local"), true).await.expect_err("another class through two pointers");
        assert!(refused.message.contains("R14") && refused.message.contains(&first), "{}", refused.message);
        create(cluster, &tenant, &disk(&first, "replicated"), true).await.expect("the golden's class");
    }
    // Elsewhere, nowhere, and in a circle: not ours to judge.
    create(cluster, &tenant, &pointer("own", json!({ "pvc": { "namespace": &*tenant, "name": "x" } })), false).await.expect("a pointer");
    create(cluster, &tenant, &disk("own", "local"), true).await.expect("a clone of one's own");
    create(cluster, &tenant, &disk("not-there", "local"), true).await.expect("CDI tells what is missing");
    create(cluster, &tenant, &pointer("circle", json!({ "dataSource": { "namespace": &*tenant, "name": "circle" } })), false)
        .await
        .expect("a pointer");
    create(cluster, &tenant, &disk("circle", "local"), true).await.expect("a circle leads nowhere");
}
