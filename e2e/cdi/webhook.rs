//! Imitates CDI's admission of DataVolumes: `datavolume-validate` and `datavolume-mutate`, served over TLS on loopback and registered by URL.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use axum::{Json, Router, extract::State, http::StatusCode, routing::post};
use axum_server::tls_rustls::RustlsConfig;
use base64::{Engine, engine::general_purpose::STANDARD};
use k8s_openapi::{
    ByteString,
    api::{
        admissionregistration::v1::{
            MutatingWebhook, MutatingWebhookConfiguration, RuleWithOperations, ValidatingWebhook, ValidatingWebhookConfiguration,
            WebhookClientConfig,
        },
        core::v1::{Namespace, PersistentVolumeClaim},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{
    Ctx,
    api::Written,
    cache::Key,
    names,
    types::{DataSource, DataVolume},
    validate::{self, Refusal},
};

const VALIDATE: &str = "cdi-api-datavolume-validate";
const MUTATE: &str = "cdi-api-datavolume-mutate";

impl Written for Namespace {}

/// The served webhooks.
pub(super) struct Webhook {
    pub(super) up: Arc<AtomicBool>,
    server: axum_server::Handle<SocketAddr>,
}

#[derive(Clone)]
struct Shared {
    ctx: Arc<Ctx>,
    up: Arc<AtomicBool>,
}

impl Webhook {
    /// Serves and registers both.
    pub(super) async fn start(ctx: Arc<Ctx>) -> Self {
        let certified =
            rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).expect("a certificate for the stand-in's webhooks");
        let (certificate, key) = (certified.cert.pem(), certified.signing_key.serialize_pem());
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a loopback port for the stand-in's webhooks");
        listener.set_nonblocking(true).expect("a listener for tokio");
        let address = listener.local_addr().expect("the listener's address");
        let config =
            RustlsConfig::from_pem(certificate.clone().into_bytes(), key.into_bytes()).await.expect("TLS for the stand-in's webhooks");
        let up = Arc::new(AtomicBool::new(true));
        let app = Router::new()
            .route("/datavolume-validate", post(validate))
            .route("/datavolume-mutate", post(mutate))
            .with_state(Shared { ctx: ctx.clone(), up: up.clone() });
        let server = axum_server::Handle::new();
        let serving = axum_server::from_tcp_rustls(listener, config).expect("a server for the stand-in's webhooks").handle(server.clone());
        ctx.spawn(async move {
            // Ends with the stand-in.
            let _ = serving.serve(app.into_make_service()).await;
        });
        let webhook = Self { up, server };
        webhook.register(&ctx, address, &certificate).await;
        webhook
    }

    async fn register(&self, ctx: &Ctx, address: SocketAddr, certificate: &str) {
        self.remove(ctx).await;
        let client = |path: &str| WebhookClientConfig {
            ca_bundle: Some(ByteString(certificate.as_bytes().to_vec())),
            url: Some(format!("https://{address}{path}")),
            ..WebhookClientConfig::default()
        };
        let rules = Some(vec![RuleWithOperations {
            api_groups: Some(vec![names::GROUP.into()]),
            api_versions: Some(vec!["v1beta1".into()]),
            operations: Some(vec!["CREATE".into(), "UPDATE".into()]),
            resources: Some(vec!["datavolumes".into()]),
            scope: Some("Namespaced".into()),
        }]);
        let metadata = |name: &str| ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() };
        let validating = ValidatingWebhookConfiguration {
            metadata: metadata(VALIDATE),
            webhooks: Some(vec![ValidatingWebhook {
                name: "datavolume-validate.cdi.kubevirt.io".into(),
                client_config: client("/datavolume-validate"),
                rules: rules.clone(),
                failure_policy: Some("Fail".into()),
                match_policy: Some("Exact".into()),
                side_effects: "None".into(),
                timeout_seconds: Some(30),
                admission_review_versions: vec!["v1".into()],
                ..ValidatingWebhook::default()
            }]),
        };
        let mutating = MutatingWebhookConfiguration {
            metadata: metadata(MUTATE),
            webhooks: Some(vec![MutatingWebhook {
                name: "datavolume-mutate.cdi.kubevirt.io".into(),
                client_config: client("/datavolume-mutate"),
                rules,
                failure_policy: Some("Fail".into()),
                match_policy: Some("Exact".into()),
                side_effects: "None".into(),
                timeout_seconds: Some(30),
                admission_review_versions: vec!["v1".into()],
                ..MutatingWebhook::default()
            }]),
        };
        ctx.api.create(&validating).await.expect("the validating webhook is registered");
        ctx.api.create(&mutating).await.expect("the mutating webhook is registered");
        self.until_called(ctx).await;
    }

    /// The API server learns of webhooks by watch: waits until it calls them, told by a refusal that only they give.
    async fn until_called(&self, ctx: &Ctx) {
        let probe = json!({
            "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
            "metadata": { "name": "cdi-stand-in-probe", "namespace": "default" },
            "spec": { "source": { "blank": {} }, "storage": {} },
        });
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while std::time::Instant::now() < deadline {
            let request = http::Request::post("/apis/cdi.kubevirt.io/v1beta1/namespaces/default/datavolumes?dryRun=All")
                .header("content-type", "application/json")
                .body(probe.to_string().into_bytes())
                .expect("a request");
            let answer: Result<Value, kube::Error> = ctx.api.client.request(request).await;
            if answer.is_err_and(|error| error.to_string().contains("Storage size is missing")) {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        panic!("the API server does not call the webhooks of the stand-in for CDI");
    }

    async fn remove(&self, ctx: &Ctx) {
        if let Ok(Some(old)) = ctx.api.get::<ValidatingWebhookConfiguration>(&Key::new("", VALIDATE)).await {
            ctx.api.delete(&*old).await.expect("an older webhook is taken away");
        }
        if let Ok(Some(old)) = ctx.api.get::<MutatingWebhookConfiguration>(&Key::new("", MUTATE)).await {
            ctx.api.delete(&*old).await.expect("an older webhook is taken away");
        }
    }

    /// Takes both away and ends the server.
    pub(super) async fn unregister(self, ctx: &Ctx) {
        self.remove(ctx).await;
        self.server.shutdown();
    }
}

type Answer = Result<Json<Value>, StatusCode>;

fn review(request: &Value, response: Value) -> Answer {
    let mut response = response;
    response["uid"] = request["uid"].clone();
    Ok(Json(json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response })))
}

fn refused(request: &Value, message: &str) -> Answer {
    review(request, json!({ "allowed": false, "status": { "message": message, "reason": "Invalid", "code": 422 } }))
}

async fn validate(State(shared): State<Shared>, Json(review_of): Json<Value>) -> Answer {
    if !shared.up.load(Ordering::SeqCst) {
        return Err(StatusCode::SERVICE_UNAVAILABLE);
    }
    let request = &review_of["request"];
    let creating = request["operation"] == "CREATE";
    let (new, old) = (&request["object"], &request["oldObject"]);
    if new["metadata"]["deletionTimestamp"].is_string() {
        return review(request, json!({ "allowed": true }));
    }
    if !creating && !validate::same_spec(&old["spec"], &new["spec"]) {
        return refused(request, " Cannot update DataVolume Spec");
    }
    if let Err(Refusal(message)) = validate::spec(&new["spec"]) {
        return refused(request, &format!(" {message}"));
    }
    if creating {
        let key = Key::new(request["namespace"].as_str().unwrap_or_default(), new["metadata"]["name"].as_str().unwrap_or_default());
        let found = shared.ctx.api.get::<PersistentVolumeClaim>(&key).await.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
        let adopt = new["metadata"]["annotations"][names::ALLOW_ADOPTION] == "true";
        let taken = found.is_some_and(|pvc| {
            let populated = pvc.annotations().get(names::POPULATED_FOR) == Some(&key.name);
            let owned = pvc.owner_references().iter().any(|owner| owner.controller == Some(true) && owner.kind == "DataVolume");
            !populated && !owned && !adopt
        });
        if taken {
            return refused(request, &format!(" Destination PVC {key} already exists"));
        }
    }
    review(request, json!({ "allowed": true }))
}

async fn mutate(State(shared): State<Shared>, Json(review_of): Json<Value>) -> Answer {
    if !shared.up.load(Ordering::SeqCst) {
        return Err(StatusCode::SERVICE_UNAVAILABLE);
    }
    let request = &review_of["request"];
    let new = &request["object"];
    let allowed = || review(request, json!({ "allowed": true }));
    if new["metadata"]["deletionTimestamp"].is_string() {
        return allowed();
    }
    let Ok(dv) = serde_json::from_value::<DataVolume>(new.clone()) else { return allowed() };
    let namespace = request["namespace"].as_str().unwrap_or_default();
    let source = match clone_source(&shared.ctx, &dv, namespace).await {
        Ok(Some(source)) => source,
        Ok(None) => return allowed(),
        Err(message) => return refused(request, &message),
    };
    if source.namespace == namespace {
        return allowed();
    }
    if shared.ctx.api.get::<Namespace>(&Key::new("", source.namespace.clone())).await.is_ok_and(|found| found.is_none()) {
        return refused(request, &format!("namespaces \"{}\" not found", source.namespace));
    }
    if shared.ctx.opts.authorize && !may_clone(&shared.ctx, &request["userInfo"], &source).await {
        let user = request["userInfo"]["username"].as_str().unwrap_or_default();
        return refused(request, &format!(" User {user} has insufficient permissions in clone source namespace {}", source.namespace));
    }
    // Only at creation; later edits are only checked.
    if request["operation"] != "CREATE" {
        return allowed();
    }
    let token = format!("cdi-stand-in:{}/{}:{namespace}", source.namespace, source.name);
    let mut annotations = dv.annotations().clone();
    annotations.insert(names::CLONE_TOKEN.into(), token);
    let patch = json!([{ "op": "add", "path": "/metadata/annotations", "value": annotations }]);
    review(request, json!({ "allowed": true, "patchType": "JSONPatch", "patch": STANDARD.encode(patch.to_string()) }))
}

/// The claim or snapshot a DataVolume clones, through its DataSource.
async fn clone_source(ctx: &Ctx, dv: &DataVolume, namespace: &str) -> Result<Option<Key>, String> {
    let of = |reference: &super::types::ObjectRef| {
        let namespace = if reference.namespace.is_empty() { namespace } else { &reference.namespace };
        Key::new(namespace, reference.name.clone())
    };
    if let Some(reference) = &dv.spec.source_ref {
        let mut key = Key::new(
            reference.namespace.clone().filter(|ns| !ns.is_empty()).unwrap_or_else(|| namespace.to_owned()),
            reference.name.clone(),
        );
        for _ in 0..2 {
            let found = ctx.api.get::<DataSource>(&key).await.map_err(|error| error.to_string())?;
            let Some(found) = found else { return Err(format!("datasources.cdi.kubevirt.io \"{}\" not found", key.name)) };
            let source = &found.spec.source;
            if let Some(found) = source.pvc.as_ref().or(source.snapshot.as_ref()) {
                return Ok(Some(of(found)));
            }
            let Some(next) = &source.data_source else { return Ok(None) };
            key = Key::new(next.namespace.clone(), next.name.clone());
        }
        return Ok(None);
    }
    let source = dv.spec.source.as_ref();
    Ok(source.and_then(|source| source.pvc.as_ref().or(source.snapshot.as_ref())).map(of))
}

/// CDI's two questions about the requesting user: `datavolumes/source` by name, else `pods` by name.
async fn may_clone(ctx: &Ctx, user: &Value, source: &Key) -> bool {
    for (group, resource, subresource) in [(names::GROUP, "datavolumes", "source"), ("", "pods", "")] {
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {
                "user": user["username"], "groups": user["groups"], "uid": user["uid"], "extra": user["extra"],
                "resourceAttributes": {
                    "namespace": source.namespace, "name": source.name, "verb": "create", "group": group, "resource": resource, "subresource": subresource,
                },
            },
        });
        let request = http::Request::post("/apis/authorization.k8s.io/v1/subjectaccessreviews")
            .header("content-type", "application/json")
            .body(review.to_string().into_bytes());
        let Ok(request) = request else { continue };
        let answer: Result<Value, kube::Error> = ctx.api.client.request(request).await;
        if answer.is_ok_and(|answer| answer["status"]["allowed"] == true) {
            return true;
        }
    }
    false
}
