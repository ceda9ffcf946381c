//! What a tenant packs into one object costs a bounded time and memory, whatever it is.

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::Api;
use serde_json::{Value, json};

use crate::{
    objects::{Disk, Form, RIGHT, object},
    stand::{CONFIGURATIONS, create, stand},
};

/// The memory that the chart allows the admission role, in MiB.
const ALLOWED: u64 = 256;

/// A VirtualMachine of so many disks.
fn machine(name: &str, disks: usize, golden: impl Fn(usize) -> String) -> Value {
    let mut machine = object(Form::Machine, name, Disk { class: None, ..RIGHT });
    let template = machine["spec"]["dataVolumeTemplates"][0].take();
    let templates = (0..disks).map(|number| {
        let mut template = template.clone();
        template["metadata"]["name"] = format!("{name}-{number}").into();
        template["spec"]["source"]["pvc"]["name"] = golden(number).into();
        template
    });
    machine["spec"]["dataVolumeTemplates"] = templates.collect();
    machine
}

#[tokio::test]
async fn an_object_of_too_many_disks_or_goldens_is_refused() {
    let Some((cluster, _)) = stand().await else { return };
    let tenant = cluster.namespace("tenant").await;
    let made = create(cluster, &tenant, &machine("many", 256, |_| "golden".to_owned()), true).await;
    made.unwrap_or_else(|refused| panic!("{}", refused.message));
    let refused = create(cluster, &tenant, &machine("more", 257, |_| "golden".to_owned()), true).await.expect_err("too many disks");
    assert!(refused.code == 403 && refused.message.contains("257 clones") && refused.message.contains("256"), "{}", refused.message);
    let refused = create(cluster, &tenant, &machine("all", 33, |number| format!("g{number}")), true).await.expect_err("too many goldens");
    assert!(refused.code == 403 && refused.message.contains("33 different golden images"), "{}", refused.message);
}

/// Nearly as large as the API server takes objects, and of what takes the most memory when it is read: thousands of disks, and parts that
/// nobody reads.
#[tokio::test]
async fn large_questions_do_not_fill_the_memory() {
    let Some((cluster, stand)) = stand().await else { return };
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(cluster.admin());
    let found = configurations.get(CONFIGURATIONS).await.expect("the webhooks");
    let bundle = found.webhooks.into_iter().flatten().next().and_then(|webhook| webhook.client_config.ca_bundle).expect("a CA");
    let authority = reqwest::Certificate::from_pem_bundle(&bundle.0).expect("certificates");
    let client = reqwest::Client::builder().no_proxy().tls_certs_only(authority).build().expect("a client");
    let bulk: Value = (0..280_000).map(|_| json!({ "a": 0 })).collect();
    let mut unread = machine("unread", 257, |_| "golden".to_owned());
    unread["spec"]["bulk"] = bulk.clone();
    let mut odd = machine("odd", 1, |_| "golden".to_owned());
    odd["spec"]["dataVolumeTemplates"][0]["spec"] = json!({ "source": { "pvc": { "namespace": "cozy-public", "name": 3 } }, "bulk": bulk });
    let many = machine("many", 5_000, |_| "golden".to_owned());
    // One after the other: other tests ask meanwhile.
    for object in [&many, &unread, &odd] {
        let review = json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": { "uid": "u", "operation": "CREATE",
            "kind": { "group": "kubevirt.io", "version": "v1", "kind": "VirtualMachine" }, "namespace": "tenant", "object": object } });
        let answer = client.post(format!("https://{}/clones", stand.address())).body(review.to_string()).send().await.expect("an answer");
        let text = answer.text().await.expect("an answer");
        let answer: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert_eq!(answer["response"]["allowed"], false, "{text}");
    }
    let peak = stand.peak_memory();
    assert!(peak < ALLOWED, "{peak} MiB");
}
