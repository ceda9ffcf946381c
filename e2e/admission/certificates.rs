//! The webhook's certificate is replaced again and again while it is asked: renewed by the leader, handed over to cert-manager, made anew
//! by another CA. No call fails.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use golden_catalog::run::certs::{self, Keeper, Profile, Resolver, SELF_ISSUED, WEBHOOK_TLS};
use k8s_openapi::{
    ByteString,
    api::{
        admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
        core::v1::Secret,
    },
    jiff::Timestamp,
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{
    harness::{self, Cluster, eventually, until},
    objects::{Form, RIGHT, object},
    stand::{CONFIGURATIONS, NAMESPACE, Stand, create},
};

/// How far the change to another CA is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// Until callers are told both.
    Published,
    /// Until the new certificate is served, which takes a minute.
    Served,
}

/// What those who call have seen.
#[derive(Default)]
struct Seen {
    clones: AtomicUsize,
    handshakes: AtomicUsize,
    served: Mutex<Vec<Vec<u8>>>,
    failed: Mutex<Vec<String>>,
}

impl Seen {
    fn fail(&self, what: String) {
        self.failed.lock().expect("no panic under this lock").push(what);
    }

    /// Waits until everybody has called so many times more.
    async fn more(&self, calls: usize) {
        let before = (self.clones.load(Ordering::SeqCst), self.handshakes.load(Ordering::SeqCst));
        eventually("calls go on", || async {
            let now = (self.clones.load(Ordering::SeqCst), self.handshakes.load(Ordering::SeqCst));
            if now.0 >= before.0 + calls && now.1 >= before.1 + calls { Ok(()) } else { Err(format!("{before:?} {now:?}")) }
        })
        .await;
    }

    /// Waits until handshakes get this certificate.
    async fn until_served(&self, secret: &Secret) {
        let wanted = leaf(secret);
        eventually("the certificate is served", || async {
            let served = self.served.lock().expect("no panic under this lock").last().cloned();
            if served.as_ref() == Some(&wanted) { Ok(()) } else { Err("another one is".to_owned()) }
        })
        .await;
    }
}

fn field<'a>(secret: &'a Secret, name: &str) -> &'a [u8] {
    secret.data.as_ref().and_then(|data| data.get(name)).map(|value| value.0.as_slice()).unwrap_or_default()
}

fn leaf(secret: &Secret) -> Vec<u8> {
    CertificateDer::from_pem_slice(field(secret, "tls.crt")).map(|der| der.to_vec()).unwrap_or_default()
}

/// What the API server is told to trust.
async fn told(cluster: &Cluster) -> String {
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(cluster.admin());
    let found = configurations.get(CONFIGURATIONS).await.expect("the webhooks");
    let bundle = found.webhooks.into_iter().flatten().next().and_then(|webhook| webhook.client_config.ca_bundle);
    String::from_utf8(bundle.expect("a CA").0).expect("PEM")
}

/// One new connection, by who trusts what the API server is told to trust; gives the certificate that was served. The API server itself
/// keeps its connections, so that it alone would show little.
fn handshake(address: &str, bundle: &str) -> Result<Vec<u8>, String> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(bundle.as_bytes()).flatten());
    let config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let host = address.rsplit_once(':').map(|(host, _)| host.to_owned()).ok_or("an address")?;
    let name = rustls::pki_types::ServerName::try_from(host).map_err(|error| error.to_string())?;
    let mut tls = rustls::ClientConnection::new(Arc::new(config), name).map_err(|error| error.to_string())?;
    let mut stream = TcpStream::connect(address).map_err(|error| error.to_string())?;
    let mut answer = Vec::new();
    let request = format!("POST /nothing HTTP/1.1\r\nHost: {address}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    let mut talk = rustls::Stream::new(&mut tls, &mut stream);
    talk.write_all(request.as_bytes()).map_err(|error| error.to_string())?;
    // How the server ends the connection is no matter once it has answered.
    let _ = talk.read_to_end(&mut answer);
    if !answer.starts_with(b"HTTP/1.1 ") {
        return Err(format!("answered {:?}", String::from_utf8_lossy(&answer)));
    }
    Ok(tls.peer_certificates().and_then(|chain| chain.first()).map(|der| der.to_vec()).unwrap_or_default())
}

async fn call(cluster: &Cluster, stand: &Stand, seen: &Seen, stop: &CancellationToken) {
    let tenant = cluster.namespace("calling").await;
    let clones = async {
        let asked = object(Form::Volume, "asked", RIGHT);
        while !stop.is_cancelled() {
            match create(cluster, &tenant, &asked, true).await {
                Ok(_) => drop(seen.clones.fetch_add(1, Ordering::SeqCst)),
                // A machine that is too busy for a verdict in time is no matter of certificates.
                Err(refused) if refused.message.contains("deadline exceeded") || refused.message.contains("took too long") => {}
                Err(refused) => seen.fail(format!("a clone: {refused:?}")),
            }
        }
    };
    let handshakes = async {
        while !stop.is_cancelled() {
            let (address, bundle) = (stand.address(), told(cluster).await);
            match tokio::task::spawn_blocking(move || handshake(&address, &bundle)).await.expect("a handshake") {
                Ok(certificate) => {
                    let mut served = seen.served.lock().expect("no panic under this lock");
                    if served.last() != Some(&certificate) {
                        served.push(certificate);
                    }
                    seen.handshakes.fetch_add(1, Ordering::SeqCst);
                }
                Err(error) => seen.fail(format!("a handshake: {error}")),
            }
        }
    };
    tokio::join!(clones, handshakes);
}

/// Each change is waited for, and then many more calls.
pub async fn are_replaced_while_calls_go_on(cluster: &Cluster, stand: &Stand, until_when: Until) {
    let leader = stand.leader(cluster, "certificates", "60s").await;
    let secrets: Api<Secret> = Api::namespaced(cluster.admin(), NAMESPACE);
    let (seen, stop) = (Seen::default(), CancellationToken::new());
    let changes = async {
        let mut former = vec![secrets.get(WEBHOOK_TLS).await.expect("issued")];
        seen.more(20).await;
        // Unusable: the leader renews it, by the same CA, and everybody serves the last good one meanwhile.
        for _ in 0..2 {
            let broken = Patch::Merge(json!({ "data": { "tls.crt": "" } }));
            secrets.patch(WEBHOOK_TLS, &PatchParams::default(), &broken).await.expect("broken by hand");
            let of_before = leaf(former.last().expect("one"));
            let renewed = until(secrets.clone(), WEBHOOK_TLS, "it is renewed", |secret: &Secret| {
                !leaf(secret).is_empty() && leaf(secret) != of_before
            })
            .await;
            seen.until_served(&renewed).await;
            seen.more(20).await;
            former.push(renewed);
        }
        // As cert-manager keeps it: certificate, key and CA, without our mark; rotated by it.
        for generation in &former[..2] {
            let mut provided = secrets.get(WEBHOOK_TLS).await.expect("there");
            provided.metadata.resource_version = None;
            provided.metadata.managed_fields = None;
            // One that it took over from us keeps our annotation.
            assert!(provided.annotations().contains_key(SELF_ISSUED));
            provided.annotations_mut().insert("cert-manager.io/certificate-name".to_owned(), "webhook".to_owned());
            let fields = ["tls.crt", "tls.key", "ca.crt"];
            provided.data = Some(fields.map(|name| (name.to_owned(), ByteString(field(generation, name).to_vec()))).into());
            let provided = secrets.replace(WEBHOOK_TLS, &PostParams::default(), &provided).await.expect("as cert-manager writes it");
            seen.until_served(generation).await;
            seen.more(20).await;
            let now = secrets.get(WEBHOOK_TLS).await.expect("there");
            assert_eq!(now.resource_version(), provided.resource_version(), "what is cert-manager's is never written");
        }
        // Taken away: issued anew, by another CA. Callers learn of it before they meet it.
        secrets.delete(WEBHOOK_TLS, &DeleteParams::default()).await.expect("deleted by hand");
        let anew = until(secrets.clone(), WEBHOOK_TLS, "it is issued anew", |secret: &Secret| !leaf(secret).is_empty()).await;
        let (old, new) = (certificates(field(&former[0], "ca.crt")), certificates(field(&anew, "ca.crt")));
        eventually("callers are told both", || async {
            let told = certificates(told(cluster).await.as_bytes());
            if old.iter().chain(&new).all(|ca| told.contains(ca)) { Ok(()) } else { Err(format!("{} CAs", told.len())) }
        })
        .await;
        seen.more(20).await;
        if until_when == Until::Served {
            seen.until_served(&anew).await;
            // Each part has the whole patience.
            for _ in 0..10 {
                seen.more(20).await;
            }
        }
        stop.cancel();
    };
    tokio::join!(changes, call(cluster, stand, &seen, &stop));
    let (clones, handshakes) = (seen.clones.load(Ordering::SeqCst), seen.handshakes.load(Ordering::SeqCst));
    let failed = seen.failed.into_inner().expect("no panic under this lock");
    println!("{clones} clones asked for and {handshakes} handshakes made; {} failed", failed.len());
    assert!(failed.is_empty(), "{failed:#?}\n{}", leader.log());
    leader.kill();
}

/// What the leader does, by hand: tells the callers of one kind of configuration whom to trust.
async fn tell<K>(cluster: &Cluster, bundle: &str)
where
    K: kube::Resource<DynamicType = (), Scope = kube::core::ClusterResourceScope>,
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned + serde::Serialize,
{
    let api: Api<K> = Api::all(cluster.admin());
    let found = serde_json::to_value(api.get(CONFIGURATIONS).await.expect("the webhooks")).expect("JSON");
    let bundle = serde_json::to_value(ByteString(bundle.as_bytes().to_vec())).expect("JSON");
    let count = found["webhooks"].as_array().expect("webhooks").len();
    let patch = (0..count).map(|at| json!({ "op": "replace", "path": format!("/webhooks/{at}/clientConfig/caBundle"), "value": bundle }));
    let patch = serde_json::from_value(patch.collect()).expect("a patch");
    api.patch(CONFIGURATIONS, &PatchParams::default(), &Patch::<K>::Json(patch)).await.expect("told");
}

/// Nobody leads, and the Secret has a certificate by another CA: it is served once all callers are told of that CA, whatever the clock says.
/// With the rights that the chart gives.
pub async fn another_ca_is_served_once_callers_are_told(cluster: &Cluster) {
    let secrets: Api<Secret> = Api::namespaced(cluster.admin(), NAMESPACE);
    let before = secrets.get(WEBHOOK_TLS).await.expect("issued");
    let kubeconfig = cluster.kubeconfig_as_service_account(NAMESPACE, harness::chart::ADMISSION).await;
    let kubeconfig = kube::config::Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await.expect("a configuration");
    let (resolver, profile, stop) = (Resolver::new(), Profile::new(vec!["127.0.0.1".to_owned()]), CancellationToken::new());
    let keeper = Keeper {
        namespace: NAMESPACE.to_owned(),
        name: WEBHOOK_TLS.to_owned(),
        profile: profile.clone(),
        resolver: Arc::clone(&resolver),
        interval: std::time::Duration::from_secs(60),
        settle: std::time::Duration::ZERO,
        configurations: Some(CONFIGURATIONS.to_owned()),
    };
    let keeping = tokio::spawn({
        let stop = stop.clone();
        async move { keeper.run(&config, None, || false, stop).await }
    });
    let serves = |bundle: String| {
        let resolver = Arc::clone(&resolver);
        move || {
            let served = resolver.served().map(|served| served.bundle().to_owned());
            let outcome = if served.as_ref() == Some(&bundle) { Ok(()) } else { Err(format!("{served:?}")) };
            async move { outcome }
        }
    };
    let old = String::from_utf8(field(&before, "ca.crt").to_vec()).expect("PEM");
    eventually("the present one is served", serves(old.clone())).await;

    let (other, _) = certs::keep(&secrets, "another", &profile, Timestamp::now(), false).await.expect("issued");
    let other = other.bundle().to_owned();
    let mut provided = before.clone();
    provided.metadata.resource_version = None;
    provided.metadata.managed_fields = None;
    provided.data = secrets.get("another").await.expect("there").data;
    secrets.replace(WEBHOOK_TLS, &PostParams::default(), &provided).await.expect("another CA");
    let sees = |wanted: String| {
        let resolver = Arc::clone(&resolver);
        move || {
            let seen = resolver.bundle().unwrap_or_default();
            let outcome = if seen.contains(&wanted) { Ok(()) } else { Err(seen) };
            async move { outcome }
        }
    };
    eventually("the other CA is seen", sees(other.clone())).await;
    // One kind of the two is told, and the Secret written anew, for which it looks again.
    let both = format!("{old}{other}");
    tell::<MutatingWebhookConfiguration>(cluster, &both).await;
    let touched = Patch::Merge(json!({ "metadata": { "annotations": { "touched": "yes" } } }));
    secrets.patch(WEBHOOK_TLS, &PatchParams::default(), &touched).await.expect("touched");
    let tenant = cluster.namespace("untold").await;
    for _ in 0..3 {
        create(cluster, &tenant, &object(Form::Volume, "asked", RIGHT), true).await.unwrap_or_else(|refused| panic!("{refused:?}"));
    }
    assert_eq!(resolver.served().map(|served| served.bundle().to_owned()), Some(old.clone()), "callers do not know the other yet");
    tell::<ValidatingWebhookConfiguration>(cluster, &both).await;
    eventually("the other one is served", serves(other)).await;
    // As it was, for who comes next; at once, as the one who answers the API server goes over to the other a minute after it is told, too.
    let mut again = before;
    again.metadata.resource_version = None;
    again.metadata.managed_fields = None;
    secrets.replace(WEBHOOK_TLS, &PostParams::default(), &again).await.expect("put back");
    stop.cancel();
    keeping.await.expect("no panic").expect("it ends");
    secrets.delete("another", &DeleteParams::default()).await.expect("deleted");
    tell::<MutatingWebhookConfiguration>(cluster, &old).await;
    tell::<ValidatingWebhookConfiguration>(cluster, &old).await;
}

fn certificates(pem: &[u8]) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().expect("PEM")
}
