//! What a tenant packs into one object costs a bounded time and memory, whatever it is.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::Api;
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use serde_json::{Value, json};

use crate::{
    harness::{Cluster, PATIENCE, eventually},
    objects::{Disk, Form, RIGHT, object},
    stand::{CONFIGURATIONS, create, stand},
};

/// The memory that the chart allows the admission role, in MiB.
const ALLOWED: u64 = 256;

/// Held by the tests of which one opens more connections than are taken, and the others have some by which nothing was asked yet.
static CONNECTIONS: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

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
    let _alone = CONNECTIONS.lock().await;
    let client = client(cluster).await;
    let url = format!("https://{}/clones", stand.address());
    let bulk: Value = (0..280_000).map(|_| json!({ "a": 0 })).collect();
    let mut unread = machine("unread", 257, |_| "golden".to_owned());
    unread["spec"]["bulk"] = bulk.clone();
    let mut odd = machine("odd", 1, |_| "golden".to_owned());
    odd["spec"]["dataVolumeTemplates"][0]["spec"] = json!({ "source": { "pvc": { "namespace": "cozy-public", "name": 3 } }, "bulk": bulk });
    let many = machine("many", 5_000, |_| "golden".to_owned());
    // One after the other: other tests ask meanwhile.
    for object in [&many, &unread, &odd] {
        let question = review(object);
        let text = eventually("a large question is judged", || async {
            // A server that is busy may refuse it before it is all sent, which not every client likes.
            let answer = client.post(&url).body(question.clone()).send().await.map_err(|error| format!("{error:?}"))?;
            let (status, text) = (answer.status().as_u16(), answer.text().await.map_err(|error| format!("{error:?}"))?);
            // What cannot be read has no verdict, however often it is asked.
            if status != 200 && is_to_ask_again(status, &text) { Err(text) } else { Ok(text) }
        })
        .await;
        let answer: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert_eq!(answer["response"]["allowed"], false, "{text}");
    }
    let peak = stand.peak_memory();
    assert!(peak < ALLOWED, "{peak} MiB");
}

/// What the API server is told to trust.
pub async fn bundle(cluster: &Cluster) -> Vec<u8> {
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(cluster.admin());
    let found = configurations.get(CONFIGURATIONS).await.expect("the webhooks");
    found.webhooks.into_iter().flatten().next().and_then(|webhook| webhook.client_config.ca_bundle).expect("a CA").0
}

/// One who calls the webhook, by a new connection each time: one by which a question was refused before it was all read is closed.
async fn client(cluster: &Cluster) -> reqwest::Client {
    let authority = reqwest::Certificate::from_pem_bundle(&bundle(cluster).await).expect("certificates");
    reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).tls_certs_only(authority).build().expect("a client")
}

/// The question whether an object may be created.
pub fn review(object: &Value) -> String {
    let group = object["apiVersion"].as_str().and_then(|version| version.split_once('/')).map_or("", |(group, _)| group);
    let kind = json!({ "group": group, "version": "v1", "kind": object["kind"] });
    let request = json!({ "uid": "u", "operation": "CREATE", "kind": kind, "namespace": "tenant", "object": object });
    json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request }).to_string()
}

/// A connection, by which HTTP/1.1 is written by hand.
pub struct Connection(BufReader<rustls::StreamOwned<rustls::ClientConnection, TcpStream>>);

impl Connection {
    /// Opens one, and has its handshake done.
    pub fn open(address: &str, bundle: &[u8]) -> Result<Self, String> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add_parsable_certificates(CertificateDer::pem_slice_iter(bundle).flatten());
        let config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let host = address.rsplit_once(':').map(|(host, _)| host.to_owned()).ok_or("an address")?;
        let name = rustls::pki_types::ServerName::try_from(host).map_err(|error| error.to_string())?;
        let mut tls = rustls::ClientConnection::new(Arc::new(config), name).map_err(|error| error.to_string())?;
        let mut stream = TcpStream::connect(address).map_err(|error| error.to_string())?;
        while tls.is_handshaking() {
            tls.complete_io(&mut stream).map_err(|error| error.to_string())?;
        }
        Ok(Self(BufReader::new(rustls::StreamOwned::new(tls, stream))))
    }

    /// Sends the head of a question and as much of its body as is given.
    fn send(&mut self, length: usize, body: &str) -> Result<(), String> {
        let text = format!("POST /clones HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}");
        let stream = self.0.get_mut();
        stream.write_all(text.as_bytes()).and_then(|()| stream.flush()).map_err(|error| error.to_string())
    }

    /// The status and the body of an answer.
    fn answer(&mut self) -> Result<(u16, String), String> {
        let mut line = || -> Result<String, String> {
            let mut line = String::new();
            self.0.read_line(&mut line).map_err(|error| error.to_string())?;
            Ok(line.trim_end().to_owned())
        };
        let status = line()?;
        let code = status.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or(format!("{status:?}"))?;
        let mut length = 0;
        loop {
            let header = line()?.to_ascii_lowercase();
            match header.split_once(": ") {
                Some(("content-length", value)) => length = value.parse().map_err(|_| header.clone())?,
                Some(_) => {}
                None => break,
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).map_err(|error| error.to_string())?;
        Ok((code, String::from_utf8_lossy(&body).into_owned()))
    }

    /// Asks, and gives the status and the body of the answer.
    fn ask(&mut self, body: &str) -> Result<(u16, String), String> {
        self.send(body.len(), body)?;
        self.answer()
    }

    /// The same, and asks again where there was no verdict, on a machine that is too busy for one.
    pub fn verdict(&mut self, body: &str) -> Result<(u16, String), String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (status, text) = self.ask(body)?;
            if !is_to_ask_again(status, &text) || Instant::now() > deadline {
                return Ok((status, text));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Whether an answer of the server says only that it is busy, or does not know yet. That `disks` was not asked is a verdict.
pub fn is_to_ask_again(status: u16, text: &str) -> bool {
    match status {
        408 => true,
        503 => text.contains("try again"),
        200 => serde_json::from_str::<Value>(text).is_ok_and(|answer| {
            let told = &answer["response"]["status"];
            let message = told["message"].as_str().unwrap_or_default();
            told["code"] == 503 && message.contains("try again") && !message.contains("`disks`")
        }),
        _ => false,
    }
}

/// Whether a right disk is let in by a connection's answer.
pub fn is_let_in(answer: &Result<(u16, String), String>) -> bool {
    let verdict = |text: &str| serde_json::from_str::<Value>(text).ok().map(|answer| answer["response"]["allowed"] == true);
    matches!(answer, Ok((200, text)) if verdict(text) == Some(true))
}

#[tokio::test(flavor = "multi_thread")]
async fn who_announces_much_and_sends_nothing_holds_nobody_up() {
    let Some((cluster, stand)) = stand().await else { return };
    let _alone = CONNECTIONS.lock().await;
    let (address, bundle) = (stand.address(), bundle(cluster).await);
    let (stop, waiting) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let idle: Vec<_> = (0..4)
        .map(|number| {
            let (stop, waiting, address, bundle) = (stop.clone(), waiting.clone(), address.clone(), bundle.clone());
            std::thread::spawn(move || -> Result<Vec<u16>, String> {
                let (mut answers, mut is_first, deadline) = (Vec::new(), true, Instant::now() + 2 * PATIENCE);
                loop {
                    let mut connection = Connection::open(&address, &bundle)?;
                    // Nothing at all, or its first byte.
                    connection.send(8 << 20, if number % 2 == 0 { "" } else { "{" })?;
                    if std::mem::take(&mut is_first) {
                        waiting.fetch_add(1, Ordering::SeqCst);
                    }
                    match connection.answer()? {
                        // Others ask for much meanwhile.
                        (503, text) if text.contains("too much is asked at once") => {}
                        (status, _) => answers.push(status),
                    }
                    let is_told = !answers.is_empty() || Instant::now() > deadline;
                    if is_told && stop.load(Ordering::SeqCst) {
                        return Ok(answers);
                    }
                }
            })
        })
        .collect();
    eventually("they have begun", || async {
        let begun = waiting.load(Ordering::SeqCst);
        if begun >= 4 { Ok(()) } else { Err(format!("{begun}")) }
    })
    .await;
    let question = review(&object(Form::Volume, "asked", RIGHT));
    let asked = tokio::task::spawn_blocking(move || -> Result<Vec<_>, String> {
        let mut connection = Connection::open(&address, &bundle)?;
        Ok((0..12).map(|_| connection.verdict(&question)).collect())
    });
    let answers = asked.await.expect("no panic").expect("a connection");
    stop.store(true, Ordering::SeqCst);
    assert!(answers.iter().all(is_let_in), "{answers:?}");
    for caller in idle {
        let answers = caller.join().expect("no panic").expect("each is answered");
        assert!(!answers.is_empty() && answers.iter().all(|code| *code == 408), "{answers:?}");
    }
}

/// The API server always tells how long its question is.
#[tokio::test]
async fn a_question_of_an_unknown_length_is_refused() {
    let Some((cluster, stand)) = stand().await else { return };
    let client = client(cluster).await;
    let url = format!("https://{}/clones", stand.address());
    let question = review(&object(Form::Volume, "asked", RIGHT));
    let parts = futures::stream::iter([Ok::<_, std::io::Error>(question.clone())]);
    let answer = client.post(&url).body(reqwest::Body::wrap_stream(parts)).send().await.expect("an answer");
    assert_eq!(answer.status(), 411);
    let status = eventually("it is taken where its length is known", || async {
        let answer = client.post(&url).body(question.clone()).send().await.expect("an answer");
        let (status, text) = (answer.status().as_u16(), answer.text().await.expect("an answer"));
        if status != 200 && is_to_ask_again(status, &text) { Err(text) } else { Ok(status) }
    })
    .await;
    assert_eq!(status, 200);
    let too_long = client.post(&url).body("x".repeat((8 << 20) + 1)).send().await;
    // Told before it is all sent, which not every client likes.
    assert!(too_long.as_ref().map_or(true, |answer| answer.status() == 413), "{too_long:?}");
}

/// More connections than are taken, which do nothing: whoever has asked keeps its own, and who comes anew is let in.
#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_keep_nobody_out() {
    let Some((cluster, stand)) = stand().await else { return };
    let _alone = CONNECTIONS.lock().await;
    let (address, bundle) = (stand.address(), bundle(cluster).await);
    let question = review(&object(Form::Volume, "asked", RIGHT));
    let asked = tokio::task::spawn_blocking(move || {
        let mut known = Connection::open(&address, &bundle)?;
        let before = known.verdict(&question);
        let mut idle = Vec::new();
        for _ in 0..600 {
            idle.push(Connection::open(&address, &bundle)?);
        }
        let mut anew = Connection::open(&address, &bundle)?;
        let answers = vec![before, anew.verdict(&question), known.verdict(&question)];
        // One of the first, which went for those after it.
        let gone = idle[0].ask(&question);
        Ok::<_, String>((answers, gone))
    });
    let (answers, gone) = asked.await.expect("no panic").expect("everybody is let in");
    assert!(answers.iter().all(is_let_in), "{answers:?}");
    assert!(gone.is_err(), "{gone:?}");
    // The API server among them.
    let tenant = cluster.namespace("tenant").await;
    create(cluster, &tenant, &object(Form::Volume, "asked", RIGHT), true).await.unwrap_or_else(|refused| panic!("{}", refused.message));
}
