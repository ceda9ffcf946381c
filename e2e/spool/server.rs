//! The server, asked over real TLS by reqwest, curl and bare connections.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    sync::Arc,
    time::{Duration, Instant},
};

use golden_catalog::{
    rules::Reason,
    spool::{Change, server::Settings},
};
use reqwest::{
    Method, StatusCode,
    header::{
        ACCEPT_ENCODING, ACCEPT_RANGES, AUTHORIZATION, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, ETAG, IF_RANGE,
        RANGE, RETRY_AFTER,
    },
};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, pki_types::pem::PemObject as _};

use crate::support::{Authority, Granted, MIB, PATIENCE, Running, content, run, take_in};

/// A TLS connection with nothing above it.
fn connect(running: &Running) -> StreamOwned<ClientConnection, TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(rustls::pki_types::CertificateDer::from_pem_slice(running.authority.pem.as_bytes()).expect("pem")).expect("root");
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(running.address).expect("connect");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    let connection = ClientConnection::new(Arc::new(config), "localhost".try_into().expect("name")).expect("client");
    StreamOwned::new(connection, stream)
}

fn head_of(granted: &Granted) -> String {
    let path = granted.url.split_once("localhost").and_then(|(_, rest)| rest.split_once('/')).expect("path").1;
    format!("GET /{path} HTTP/1.1\r\nhost: localhost\r\nauthorization: {}\r\n", granted.token)
}

/// What the importer of CDI v1.64 was seen to do.
#[tokio::test]
async fn an_importer_opens_closes_and_opens_again() {
    let running = Running::start(Settings::default());
    let disk = content(1, 40 * MIB);
    let granted = running.disk(&disk).await;
    let client = running.authority.client();
    let ask = |method| client.request(method, &granted.url).header(AUTHORIZATION, &granted.token).header(ACCEPT_ENCODING, "gzip");
    for round in 0..2 {
        let head = ask(Method::HEAD).send().await.expect("head");
        assert_eq!(head.status(), StatusCode::OK);
        let header = |name| head.headers().get(name).map(|value| value.to_str().expect("text").to_owned());
        assert_eq!(header(CONTENT_LENGTH), Some(disk.len().to_string()));
        assert_eq!(header(ETAG), Some(format!("\"{}\"", granted.grant.disk)));
        assert_eq!(
            (header(ACCEPT_RANGES).as_deref(), header(CACHE_CONTROL).as_deref(), header(CONTENT_ENCODING)),
            (Some("bytes"), Some("no-store"), None)
        );
        let mut get = ask(Method::GET).send().await.expect("get");
        assert_eq!((get.headers().get(CONTENT_ENCODING), get.content_length()), (None, Some(disk.len() as u64)));
        if round == 0 {
            let first = get.chunk().await.expect("chunk").expect("bytes");
            assert!(disk.starts_with(&first));
            drop(get);
        } else {
            assert_eq!(get.bytes().await.expect("body"), disk);
        }
    }
    let facts = running.facts(&granted, |facts| facts.open_requests == 0).await;
    assert_eq!((facts.requests, facts.full_downloads, facts.wrong_tokens), (4, 1, 0));
    assert!(facts.bytes_sent >= disk.len() as u64 && facts.first_request < facts.last_request, "{facts:?}");
}

#[tokio::test]
async fn curl_gets_the_disk_by_tls_1_2_and_1_3_whole_and_in_parts() {
    let running = Running::start(Settings::default());
    let disk = content(1, 5 * MIB + 17);
    let granted = running.disk(&disk).await;
    let ca = running.root.path().join("ca.pem");
    std::fs::write(&ca, &running.authority.pem).expect("write");
    let header = format!("Authorization: {}", granted.token);
    let (ca, url) = (ca.display().to_string(), granted.url.clone());
    let curl = move |more: &[&str]| run("curl", &[&["-sS", "--fail", "--cacert", &ca, "-H", &header], more, &[&url]].concat());
    tokio::task::spawn_blocking(move || {
        for version in [&["--tls-max", "1.2"][..], &["--tlsv1.3"], &["--http2"], &["--compressed"]] {
            assert_eq!(curl(version), (true, disk.clone()), "{version:?}");
        }
        assert_eq!(curl(&["-r", "1000-4194304"]), (true, disk[1000..=4_194_304].to_vec()));
        assert_eq!(curl(&["-r", "-17"]), (true, disk[disk.len() - 17..].to_vec()));
        assert!(!curl(&["--tls-max", "1.1"]).0);
    })
    .await
    .expect("curl");
}

#[tokio::test]
async fn who_may_not_have_it_is_told_why_and_no_more() {
    let running = Running::start(Settings::default());
    let disk = content(1, MIB);
    let granted = running.disk(&disk).await;
    let client = running.authority.client();
    let status = async |url: &str, token: Option<&str>, method: Method| {
        let mut request = client.request(method, url);
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, token);
        }
        let response = request.send().await.expect("answer");
        assert_eq!(response.headers()[CACHE_CONTROL], "no-store");
        response.status().as_u16()
    };
    let other = running.registry.grant(&golden_catalog::spool::Grant { uid: "other".into(), ..granted.grant.clone() });
    assert_eq!(status(&granted.url, None, Method::GET).await, 401);
    assert_eq!(status(&granted.url, Some("Bearer x"), Method::GET).await, 401);
    assert_eq!(status(&granted.url, Some(&other.authorization()), Method::HEAD).await, 401);
    assert_eq!(status(&format!("{}0", granted.url), Some(&granted.token), Method::GET).await, 404);
    assert_eq!(status(&granted.url.replace("/v1/", "/v1/../v1/x/"), Some(&granted.token), Method::GET).await, 404);
    assert_eq!(status(&granted.url, Some(&granted.token), Method::POST).await, 405);
    let facts = running.facts(&granted, |facts| facts.wrong_tokens == 3).await;
    assert_eq!((facts.last_wrong_token.map(|(_, peer)| peer.to_string()), facts.requests), (Some("127.0.0.1".into()), 0));

    running.registry.retire(&granted.grant);
    assert_eq!(status(&granted.url, Some(&granted.token), Method::GET).await, 410);
    assert_eq!(status(&granted.url, None, Method::HEAD).await, 410);
    running.registry.revoke(&granted.grant);
    assert_eq!(status(&granted.url, Some(&granted.token), Method::GET).await, 404);
    running.grant(&disk);
    assert_eq!(status(&granted.url, Some(&granted.token), Method::GET).await, 200);
}

#[tokio::test]
async fn a_new_leader_tells_importers_to_come_back_until_it_knows_all_goldens() {
    let running = Running::start(Settings::default());
    let granted = running.disk(&content(1, MIB)).await;
    // A registry of its own, with a key of its own, that has not been told yet.
    let registry = golden_catalog::spool::Registry::new(golden_catalog::spool::SpoolKey::generate().expect("random"));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let port = listener.local_addr().expect("address").port();
    let (config, store, stop) = (running.certificate.config(), running.store.clone(), running.stop.clone());
    tokio::spawn(golden_catalog::spool::server::serve(listener, config, registry.clone(), store, Settings::default(), stop));
    let url = format!("https://localhost:{port}/v1/disks/00");
    let response = running.authority.client().get(&url).send().await.expect("answer");
    assert_eq!((response.status().as_u16(), response.headers().contains_key(RETRY_AFTER)), (503, true));
    registry.all_known();
    assert_eq!(running.authority.client().get(&url).send().await.expect("answer").status().as_u16(), 404);
    drop(granted);
}

#[tokio::test]
async fn ranges_are_exact() {
    let running = Running::start(Settings::default());
    let disk = content(1, 3 * MIB + 1);
    let granted = running.disk(&disk).await;
    let length = disk.len();
    let etag = format!("\"{}\"", granted.grant.disk);
    for (range, first, last) in
        [("bytes=0-0", 0, 0), ("bytes=262143-262145", 262_143, 262_145), ("bytes=-1", length - 1, length - 1), ("bytes=5-", 5, length - 1)]
    {
        let response = running.get(&granted).header(RANGE, range).header(IF_RANGE, &etag).send().await.expect("answer");
        assert_eq!(
            (response.status().as_u16(), response.headers()[CONTENT_RANGE].to_str().expect("text")),
            (206, &*format!("bytes {first}-{last}/{length}"))
        );
        assert_eq!(response.content_length(), Some((last - first + 1) as u64));
        assert_eq!(response.bytes().await.expect("body"), disk[first..=last]);
    }
    let response = running.get(&granted).header(RANGE, format!("bytes={length}-")).send().await.expect("answer");
    assert_eq!(
        (response.status().as_u16(), response.headers()[CONTENT_RANGE].to_str().expect("text")),
        (416, &*format!("bytes */{length}"))
    );
    let response = running.get(&granted).header(RANGE, "bytes=0-0").header(IF_RANGE, "\"another\"").send().await.expect("answer");
    assert_eq!((response.status().as_u16(), response.bytes().await.expect("body").len()), (200, length));
}

#[tokio::test]
async fn a_request_for_a_disk_being_fetched_again_is_held_until_it_is_there() {
    let running = Running::start(Settings::default());
    let disk = content(1, MIB);
    let granted = running.grant(&disk);
    let held = tokio::spawn(running.get(&granted).send());
    running.facts(&granted, |facts| facts.waiting == 1).await;
    take_in(&running.store, 2, &content(2, MIB)).await.expect("another one does not help");
    take_in(&running.store, 1, &disk).await.expect("take in");
    let response = held.await.expect("no panic").expect("answer");
    assert_eq!((response.status().as_u16(), response.bytes().await.expect("body").to_vec() == disk), (200, true));
    assert_eq!(running.facts(&granted, |facts| facts.open_requests == 0).await.waiting, 0);
}

#[tokio::test]
async fn a_held_request_ends_with_the_bound_or_with_the_grant_or_with_the_client() {
    let running = Running::start(Settings { hold: Duration::from_millis(50), ..Settings::default() });
    let granted = running.grant(b"nowhere");
    let response = running.get(&granted).send().await.expect("answer");
    assert_eq!((response.status().as_u16(), response.headers().contains_key(RETRY_AFTER)), (503, true));

    let running = Running::start(Settings::default());
    let granted = running.grant(b"nowhere");
    let held = tokio::spawn(running.get(&granted).send());
    running.facts(&granted, |facts| facts.waiting == 1).await;
    held.abort();
    running.facts(&granted, |facts| facts.open_requests == 0).await;

    let held = tokio::spawn(running.get(&granted).send());
    running.facts(&granted, |facts| facts.waiting == 1).await;
    running.registry.retire(&granted.grant);
    assert_eq!(held.await.expect("no panic").expect("answer").status().as_u16(), 410);
}

#[tokio::test]
async fn failed_handshakes_are_remembered_by_peer_and_kind() {
    let running = Running::start(Settings { handshake_timeout: Duration::from_secs(5), ..Settings::default() });
    let mut changes = running.registry.changes();
    let mut failure = async || {
        let change = tokio::time::timeout(PATIENCE, changes.recv()).await.expect("in time").expect("change");
        assert_eq!(change, Change::Handshake);
        running.registry.handshake_failures().last().expect("remembered").clone()
    };
    let stranger = Authority::new("another");
    let url = format!("https://localhost:{}/", running.address.port());
    stranger.client().get(&url).send().await.expect_err("its authority is another one");
    let first = failure().await;
    assert!(first.certificate_refused && first.peer.is_loopback(), "{first:?}");

    TcpStream::connect(running.address).and_then(|mut stream| stream.write_all(b"GET / HTTP/1.1\r\n\r\n")).expect("send");
    let second = failure().await;
    assert!(!second.certificate_refused && second.count == 2, "{second:?}");

    let silent = TcpStream::connect(running.address).expect("connect");
    let third = failure().await;
    assert!(!third.certificate_refused && third.message.contains("too long"), "{third:?}");
    drop(silent);
    assert_eq!(running.registry.handshake_failures().len(), 1);
}

#[tokio::test]
async fn a_disk_is_not_evicted_while_it_is_sent() {
    let running = Running::with_capacity(Settings::default(), 50 * MIB);
    let disk = content(1, 40 * MIB);
    let granted = running.disk(&disk).await;
    let mut response = running.get(&granted).send().await.expect("answer");
    response.chunk().await.expect("chunk").expect("bytes");
    let refused = take_in(&running.store, 2, &content(2, 20 * MIB)).await.expect_err("the disk is being read");
    assert_eq!(refused.reason(), Reason::SpoolFull, "{refused}");
    drop(response);
    running.facts(&granted, |facts| facts.open_requests == 0 && facts.full_downloads == 0).await;
    take_in(&running.store, 2, &content(2, 20 * MIB)).await.expect("the disk is free");
}

#[tokio::test]
async fn a_client_that_stops_reading_is_cut_off() {
    let running = Running::start(Settings { stall_timeout: Duration::from_millis(300), ..Settings::default() });
    let granted = running.disk(&content(1, 40 * MIB)).await;
    let response = running.get(&granted).send().await.expect("answer");
    running.facts(&granted, |facts| facts.open_requests == 0 && facts.full_downloads == 0).await;
    assert!(response.bytes().await.is_err(), "an answer that was cut must not look whole");
}

#[tokio::test]
async fn a_disk_cut_under_the_server_never_looks_whole() {
    let running = Running::start(Settings::default());
    let disk = content(1, 40 * MIB);
    let granted = running.disk(&disk).await;
    let mut response = running.get(&granted).send().await.expect("answer");
    response.chunk().await.expect("chunk").expect("bytes");
    let path = running.root.path().join(format!("disks/{}.qcow2", granted.grant.disk.hex()));
    std::fs::File::options().write(true).open(path).and_then(|file| file.set_len(1)).expect("cut");
    assert!(response.bytes().await.is_err());
    // The next request finds out and waits for the disk to be fetched again.
    let held = tokio::spawn(running.get(&granted).send());
    running.facts(&granted, |facts| facts.waiting == 1).await;
    take_in(&running.store, 1, &disk).await.expect("take in");
    assert_eq!(held.await.expect("no panic").expect("answer").bytes().await.expect("body"), disk);
}

#[tokio::test]
async fn the_certificate_is_replaced_under_an_open_transfer() {
    let running = Running::start(Settings::default());
    let disk = content(1, 40 * MIB);
    let granted = running.disk(&disk).await;
    let mut response = running.get(&granted).send().await.expect("answer");
    let mut body = response.chunk().await.expect("chunk").expect("bytes").to_vec();
    let next = Authority::new("next");
    running.certificate.replace(&next);
    let ask = |authority: &Authority| authority.client().head(&granted.url).header(AUTHORIZATION, &granted.token).send();
    assert_eq!(ask(&next).await.expect("answer").status().as_u16(), 200);
    assert!(ask(&running.authority).await.is_err());
    while let Some(chunk) = response.chunk().await.expect("chunk") {
        body.extend_from_slice(&chunk);
    }
    assert!(body == disk);
}

#[tokio::test]
async fn connections_heads_and_transfers_are_bounded() {
    let settings = Settings { connections: 2, transfers: 1, header_timeout: Duration::from_secs(5), ..Settings::default() };
    let running = Arc::new(Running::start(settings));
    let granted = running.disk(&content(1, 40 * MIB)).await;
    let first = running.get(&granted).send().await.expect("answer");
    let second = running.get(&granted).send().await.expect("answer");
    assert_eq!((first.status().as_u16(), second.status().as_u16(), second.headers().contains_key(RETRY_AFTER)), (200, 503, true));
    drop(second);
    running.facts(&granted, |facts| facts.open_requests == 1).await;
    let head = head_of(&granted);
    let asked = Arc::clone(&running);
    tokio::task::spawn_blocking(move || {
        let refused = || asked.registry.traffic().connections_refused.load(std::sync::atomic::Ordering::Relaxed);
        let answer = |text: &str| {
            let deadline = Instant::now() + PATIENCE;
            loop {
                let before = refused();
                let mut connection = connect(&asked);
                let mut answer = Vec::new();
                // The server may close while this still writes, and need not say goodbye: what it said before can be read all the same.
                // Not by the stream, which first wants to write what is left, and need not have told that it could not.
                let _ = connection.write_all(text.as_bytes());
                let StreamOwned { conn, sock } = &mut connection;
                while conn.read_tls(sock).is_ok_and(|read| read > 0) && conn.process_new_packets().is_ok() {
                    let _ = conn.reader().read_to_end(&mut answer);
                }
                // While the connection before is still being closed, there is no room for this one.
                if refused() == before {
                    return String::from_utf8_lossy(&answer).into_owned();
                }
                assert!(Instant::now() < deadline, "refused again and again");
            }
        };
        assert!(answer(&format!("{head}x: {}\r\n\r\n", "x".repeat(64 << 10))).starts_with("HTTP/1.1 431"));
        assert!(answer(&format!("{head}{}\r\n", "x: y\r\n".repeat(200))).starts_with("HTTP/1.1 431"));
        // A head that never ends: closed after the deadline, with 408 or nothing.
        let slow = answer(&head);
        assert!(slow.is_empty() || slow.starts_with("HTTP/1.1 408"), "{slow}");
        // The one transfer and one idle connection are all there may be.
        let idle = TcpStream::connect(asked.address).expect("connect");
        let mut third = TcpStream::connect(asked.address).expect("connect");
        third.set_read_timeout(Some(PATIENCE)).expect("timeout");
        assert!(matches!(third.read(&mut [0; 1]), Ok(0) | Err(_)));
        drop(idle);
    })
    .await
    .expect("bare connections");
    assert!(running.registry.traffic().connections_refused.load(std::sync::atomic::Ordering::Relaxed) > 0);
    drop(first);
}

#[tokio::test]
async fn shutdown_lets_open_transfers_end_within_the_grace() {
    for (grace, whole) in [(PATIENCE, true), (Duration::from_millis(50), false)] {
        let running = Running::start(Settings { grace, ..Settings::default() });
        let disk = content(1, 40 * MIB);
        let granted = running.disk(&disk).await;
        let response = running.get(&granted).send().await.expect("answer");
        running.stop.cancel();
        if !whole {
            tokio::time::timeout(PATIENCE, running.serving).await.expect("in time").expect("no panic").expect("serve");
            assert!(response.bytes().await.is_err());
            continue;
        }
        let refused = async {
            // At once, and not after a wait for somebody to accept it.
            while !tokio::net::TcpStream::connect(running.address).await.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionRefused) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, refused).await.expect("no new connections");
        assert_eq!(response.bytes().await.expect("body"), disk);
        tokio::time::timeout(PATIENCE, running.serving).await.expect("in time").expect("no panic").expect("serve");
    }
}

/// What a former leader keeps open nobody answers: whoever is held there would not ask the new one.
#[tokio::test]
async fn at_the_end_a_held_request_is_answered_and_a_dropped_server_cuts_its_connections() {
    let running = Running::start(Settings { grace: PATIENCE, ..Settings::default() });
    let granted = running.grant(b"nowhere");
    let held = tokio::spawn(running.get(&granted).send());
    running.facts(&granted, |facts| facts.waiting == 1).await;
    running.stop.cancel();
    assert_eq!(held.await.expect("no panic").expect("answer").status().as_u16(), 503);
    tokio::time::timeout(PATIENCE, running.serving).await.expect("in time").expect("no panic").expect("serve");

    let running = Running::start(Settings::default());
    let granted = running.disk(&content(1, 40 * MIB)).await;
    let response = running.get(&granted).send().await.expect("answer");
    running.serving.abort();
    assert!(response.bytes().await.is_err());
}
