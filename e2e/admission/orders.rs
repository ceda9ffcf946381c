//! The API server calls mutating webhooks by the order of their names: ours completes a disk whether CDI's comes before or after.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{Json, Router, extract::State, routing::post};
use axum_server::tls_rustls::RustlsConfig;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use golden_catalog::rules::marks;
use kube::{Api, api::DynamicObject};
use serde_json::{Value, json};

use crate::{
    harness::{Cluster, eventually},
    objects::{Disk, Form, RIGHT, object},
    stand::{CATALOG, create},
};

/// CDI's annotation with the right to clone, which names the source.
const TOKEN: &str = "cdi.kubevirt.io/storage.clone.token";

/// Imitates the mutating webhook of CDI (`datavolume-mutate`): at creation it puts a whole new map of annotations, with its token, in the
/// place of the one it was shown. Beside that it adds the label of Helm's release, as a webhook of the platform may, so that the pool is
/// known only after it.
struct Standin {
    configuration: &'static str,
    asked: Arc<AtomicUsize>,
    server: axum_server::Handle<SocketAddr>,
}

impl Standin {
    async fn start(cluster: &Cluster, configuration: &'static str) -> Self {
        let certified = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).expect("a certificate");
        let (certificate, key) = (certified.cert.pem(), certified.signing_key.serialize_pem());
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        listener.set_nonblocking(true).expect("a listener for tokio");
        let address = listener.local_addr().expect("an address");
        let tls = RustlsConfig::from_pem(certificate.clone().into_bytes(), key.into_bytes()).await.expect("TLS");
        let asked = Arc::new(AtomicUsize::new(0));
        let app = Router::new().route("/mutate", post(mutate)).with_state(Arc::clone(&asked));
        let server = axum_server::Handle::new();
        let serving = axum_server::from_tcp_rustls(listener, tls).expect("a server").handle(server.clone());
        tokio::spawn(serving.serve(app.into_make_service()));
        let webhook = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration", "metadata": { "name": configuration },
            "webhooks": [{ "name": "datavolume-mutate.cdi.kubevirt.io", "sideEffects": "None", "admissionReviewVersions": ["v1"],
                "failurePolicy": "Fail", "clientConfig": { "url": format!("https://{address}/mutate"), "caBundle": STANDARD.encode(certificate) },
                "rules": [{ "apiGroups": ["cdi.kubevirt.io"], "apiVersions": ["v1beta1"], "operations": ["CREATE"], "resources": ["datavolumes"], "scope": "Namespaced" }] }],
        });
        cluster.apply(&webhook.to_string()).await;
        Self { configuration, asked, server }
    }

    async fn end(self, cluster: &Cluster) {
        let api = cluster.api(&cluster.admin(), "admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", "").await;
        api.delete(self.configuration, &Default::default()).await.expect("taken away");
        // Not before the API server has stopped asking.
        let blank = json!({ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "metadata": { "name": "blank" }, "spec": { "source": { "blank": {} }, "storage": {} } });
        eventually("it is asked no more", || async {
            let before = self.asked.load(Ordering::SeqCst);
            create(cluster, "default", &blank, true).await.map_err(|refused| refused.message)?;
            if self.asked.load(Ordering::SeqCst) == before { Ok(()) } else { Err("it is asked".to_owned()) }
        })
        .await;
        self.server.shutdown();
    }
}

async fn mutate(State(asked): State<Arc<AtomicUsize>>, Json(review): Json<Value>) -> Json<Value> {
    asked.fetch_add(1, Ordering::SeqCst);
    let request = &review["request"];
    let mut response = json!({ "uid": request["uid"], "allowed": true });
    let source = &request["object"]["spec"]["source"]["pvc"];
    if source.is_object() {
        let with = |field: &str, key: &str, value: String| {
            let mut map = request["object"]["metadata"][field].as_object().cloned().unwrap_or_default();
            map.insert(key.to_owned(), value.into());
            json!({ "op": "add", "path": format!("/metadata/{field}"), "value": map })
        };
        let text = |field: &str| source[field].as_str().unwrap_or_default();
        let token = format!("{}/{}", text("namespace"), text("name"));
        let patch = json!([with("annotations", TOKEN, token), with("labels", "app.kubernetes.io/instance", "vm-disk-late".to_owned())]);
        response["patchType"] = "JSONPatch".into();
        response["patch"] = STANDARD.encode(patch.to_string()).into();
    }
    Json(json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response }))
}

/// Before ours by its name, and after it: the disk leaves with everything either gives it.
pub async fn admission_works_before_cdis_webhook_and_after_it(cluster: &Cluster) {
    let tenant = cluster.namespace("tenant").await;
    for configuration in ["cdi-api-datavolume-mutate", "zz-cdi-api-datavolume-mutate"] {
        let other = Standin::start(cluster, configuration).await;
        let ask = |name: &str| {
            let mut asked = object(Form::Volume, name, Disk { class: None, ..RIGHT });
            asked["metadata"]["annotations"] = json!({ "own": "stays" });
            asked
        };
        let name = if configuration.starts_with("zz") { "after" } else { "before" };
        let tried = eventually("the API server asks the other webhook too", || async {
            let tried = create(cluster, &tenant, &ask(name), true).await.map_err(|refused| refused.message)?;
            if tried.object["metadata"]["annotations"][TOKEN].is_string() { Ok(tried) } else { Err("it does not".to_owned()) }
        })
        .await;
        let made =
            create(cluster, &tenant, &ask(name), false).await.unwrap_or_else(|refused| panic!("{configuration}: {}", refused.message));
        for object in [&tried.object, &made.object] {
            let pool = format!("{}/VMDisk/late", &*tenant);
            let expected = json!({ "own": "stays", TOKEN: format!("{CATALOG}/golden"), marks::GOLDEN: "golden", marks::POOL: pool });
            assert_eq!(object["metadata"]["annotations"], expected, "{configuration}");
            assert_eq!(object.pointer("/spec/storage/storageClassName"), Some(&json!("replicated")), "{configuration}");
            assert_eq!(object["spec"]["source"], ask(name)["spec"]["source"], "{configuration}: the token names the source");
        }
        // What is wrong is refused in either order.
        let wrong = object(Form::Volume, "wrong", Disk { class: Some("local"), ..RIGHT });
        let refused = create(cluster, &tenant, &wrong, false).await.expect_err("another class");
        assert!(refused.message.contains("R14"), "{configuration}: {}", refused.message);
        other.end(cluster).await;
    }
    let volumes: Api<DynamicObject> = cluster.api(&cluster.admin(), "cdi.kubevirt.io/v1beta1", "DataVolume", &tenant).await;
    let names: Vec<_> =
        volumes.list(&Default::default()).await.expect("list").items.into_iter().filter_map(|one| one.metadata.name).collect();
    assert_eq!(names, ["after", "before"], "dry runs and refusals leave nothing");
}
