use super::*;
use crate::run::certs::{Action, Observed, Profile, issue};
use k8s_openapi::api::core::v1::Secret;
use rustls::{ClientConfig, RootCertStore, pki_types::pem::PemObject};
use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

const HOST: &str = "spool.test";

fn secret(former: Option<&Secret>, action: &Action) -> Secret {
    let profile = Profile::new(vec![HOST.to_owned()]);
    let observed = former.map(Observed::of);
    issue::apply(action, "s", former.cloned(), observed.as_ref(), &profile, Timestamp::now()).unwrap()
}

fn served(secret: &Secret) -> Served {
    Served::load("s", secret).unwrap()
}

/// A server that answers each connection with one byte.
fn serve(resolver: Arc<Resolver>) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let config = server_config(resolver, &[]).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, config) = (stream.unwrap(), config.clone());
            std::thread::spawn(move || {
                let mut tls = rustls::ServerConnection::new(config).unwrap();
                let mut tls = rustls::Stream::new(&mut tls, &mut stream);
                let mut request = [0];
                // A client may go away.
                let _ = tls.read_exact(&mut request).and_then(|()| tls.write_all(b"!"));
            });
        }
    });
    address
}

/// One call by a client that trusts `bundle` and speaks one version of TLS; gives the certificate that was served.
fn call(address: std::net::SocketAddr, bundle: &str, version: &'static rustls::SupportedProtocolVersion) -> Result<Vec<u8>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in rustls::pki_types::CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let config = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[version]).unwrap();
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let mut tls = rustls::ClientConnection::new(Arc::new(config), HOST.try_into().unwrap()).unwrap();
    let mut stream = TcpStream::connect(address).map_err(|e| e.to_string())?;
    let mut answer = [0];
    let mut tls_stream = rustls::Stream::new(&mut tls, &mut stream);
    tls_stream.write_all(b"?").and_then(|()| tls_stream.read_exact(&mut answer)).map_err(|e| e.to_string())?;
    Ok(tls.peer_certificates().unwrap()[0].to_vec())
}

#[test]
fn a_replaced_certificate_is_served_at_the_next_handshake_and_no_call_fails_meanwhile() {
    let first = secret(None, &Action::Issue);
    let resolver = Resolver::new();
    assert_eq!(resolver.offer(served(&first), Told::Nothing, SETTLE), Offer::Served);
    assert_eq!(resolver.offer(served(&first), Told::Nothing, SETTLE), Offer::Known, "the same again is no change");
    let address = serve(resolver.clone());

    let (stop, calls) = (Arc::new(AtomicBool::new(false)), [0, 1].map(|_| Arc::new(AtomicUsize::new(0))));
    // Clients know the bundle from before: renewals by the same CA must not concern them.
    let bundle = served(&first).bundle().to_owned();
    let callers: Vec<_> = [&rustls::version::TLS12, &rustls::version::TLS13]
        .into_iter()
        .zip(&calls)
        .map(|(version, calls)| {
            let (stop, calls, bundle) = (stop.clone(), calls.clone(), bundle.clone());
            std::thread::spawn(move || {
                let mut seen = std::collections::BTreeSet::new();
                while !stop.load(Ordering::SeqCst) {
                    seen.insert(call(address, &bundle, version).unwrap());
                    calls.fetch_add(1, Ordering::SeqCst);
                }
                seen
            })
        })
        .collect();
    let mut current = first;
    for round in 1..=5 {
        let count = || calls.each_ref().map(|calls| calls.load(Ordering::SeqCst));
        let before = count();
        // Ten of each: the second is certain to have begun in this round. One that has ended failed; its join says why.
        while count().iter().zip(before).any(|(now, before)| *now < before + 10) && !callers.iter().any(|caller| caller.is_finished()) {
            std::thread::yield_now();
        }
        current = secret(Some(&current), &Action::Renew);
        assert_eq!(resolver.offer(served(&current), Told::Nothing, SETTLE), Offer::Served, "round {round}");
        let next = call(address, &bundle, &rustls::version::TLS13).unwrap();
        assert_eq!(next, resolver.served().unwrap().pair.certified.cert[0].to_vec(), "the very next handshake has it");
    }
    stop.store(true, Ordering::SeqCst);
    for caller in callers {
        assert!(caller.join().unwrap().len() > 1, "callers saw several certificates");
    }
}

#[test]
fn without_a_certificate_handshakes_fail_until_there_is_one() {
    let resolver = Resolver::new();
    let secret = secret(None, &Action::Issue);
    let address = serve(resolver.clone());
    assert_eq!(resolver.seconds_left(Timestamp::now()), None);
    assert!(call(address, served(&secret).bundle(), &rustls::version::TLS13).is_err());
    resolver.offer(served(&secret), Told::Nothing, SETTLE);
    call(address, served(&secret).bundle(), &rustls::version::TLS13).unwrap();
    let days = resolver.seconds_left(Timestamp::now()).unwrap() / 86_400.0;
    assert!((89.0..=90.0).contains(&days), "{days}");
}

#[test]
fn a_broken_secret_leaves_the_last_good_certificate_in_place() {
    let good = secret(None, &Action::Issue);
    let resolver = Resolver::new();
    resolver.offer(served(&good), Told::Nothing, SETTLE);
    let mut half = secret(Some(&good), &Action::Renew);
    half.data.as_mut().unwrap().insert("tls.key".to_owned(), good.data.as_ref().unwrap()["tls.key"].clone());
    assert!(Served::load("s", &half).is_err());
    let address = serve(resolver);
    call(address, served(&good).bundle(), &rustls::version::TLS13).unwrap();
}

#[test]
fn a_certificate_by_another_ca_is_served_only_when_callers_had_time_to_learn_of_it() {
    let (first, other) = (secret(None, &Action::Issue), secret(None, &Action::Issue));
    let (old, new) = (served(&first), served(&other));
    let certificate = |served: &Served| served.pair.certified.cert[0].to_vec();
    let resolver = Resolver::new();
    resolver.offer(old.clone(), Told::Nothing, SETTLE);
    assert_eq!(resolver.bundle().as_deref(), Some(old.bundle()));
    let address = serve(resolver.clone());

    assert_eq!(resolver.offer(new.clone(), Told::Nothing, SETTLE), Offer::Waits(SETTLE));
    assert!(matches!(resolver.offer(new.clone(), Told::Nothing, SETTLE), Offer::Waits(left) if left <= SETTLE), "its time goes on");
    let published = resolver.bundle().unwrap();
    for bundle in [old.bundle(), &published] {
        assert_eq!(call(address, bundle, &rustls::version::TLS12).unwrap(), certificate(&old));
    }
    // The Secret is put back: nothing was to be changed.
    assert_eq!(resolver.offer(old.clone(), Told::Nothing, SETTLE), Offer::Known);
    assert_eq!(resolver.bundle().as_deref(), Some(old.bundle()));

    assert_eq!(resolver.offer(new.clone(), Told::Nothing, SETTLE), Offer::Waits(SETTLE));
    assert_eq!(resolver.offer(new.clone(), Told::Nothing, Duration::ZERO), Offer::Served);
    for bundle in [new.bundle(), &published] {
        assert_eq!(call(address, bundle, &rustls::version::TLS13).unwrap(), certificate(&new));
    }
    assert_eq!(resolver.bundle().as_deref(), Some(new.bundle()));
}

#[test]
fn one_that_ended_is_replaced_at_once() {
    let profile = Profile::new(vec![HOST.to_owned()]);
    let long_ago = Timestamp::now() - Duration::from_secs(100 * 86_400);
    let ended = issue::apply(&Action::Issue, "s", None, None, &profile, long_ago).unwrap();
    let resolver = Resolver::new();
    assert_eq!(resolver.offer(served(&ended), Told::Nothing, SETTLE), Offer::Served);
    let new = served(&secret(None, &Action::Issue));
    assert!(!resolver.asks_callers(&new));
    assert_eq!(resolver.offer(new, Told::Untrusted, SETTLE), Offer::Served);
}

#[test]
fn a_certificate_by_another_ca_waits_for_callers_to_be_told() {
    let (old, new) = (served(&secret(None, &Action::Issue)), served(&secret(None, &Action::Issue)));
    let resolver = Resolver::new();
    let at_once = Duration::ZERO;
    resolver.offer(old.clone(), Told::Nothing, at_once);
    assert!(resolver.asks_callers(&new) && !resolver.asks_callers(&old));
    // Published beside the present one, however long nobody fills it in.
    for _ in 0..3 {
        assert_eq!(resolver.offer(new.clone(), Told::Untrusted, at_once), Offer::Untold(at_once));
    }
    let both = resolver.bundle().unwrap();
    assert!(both.contains(old.bundle()) && both.contains(new.bundle()));
    // Not seen is not told; its time begins when it is.
    assert_eq!(resolver.offer(new.clone(), Told::Unknown, at_once), Offer::Untold(at_once));
    assert!(matches!(resolver.offer(new.clone(), Told::Trusted, SETTLE), Offer::Waits(left) if left <= SETTLE));
    assert_eq!(resolver.offer(new.clone(), Told::Untrusted, at_once), Offer::Untold(at_once), "taken back by a hand");
    assert!(resolver.served().unwrap().is_same(&old));
    assert_eq!(resolver.offer(new.clone(), Told::Trusted, at_once), Offer::Served);
    assert!(!resolver.asks_callers(&new));

    // Where nobody is told anything, or it cannot be seen, the clock counts.
    for nothing in [Told::Nothing, Told::Unknown] {
        let resolver = Resolver::new();
        resolver.offer(old.clone(), nothing, at_once);
        assert_eq!(resolver.offer(new.clone(), nothing, at_once), Offer::Waits(at_once));
        assert_eq!(resolver.offer(new.clone(), nothing, at_once), Offer::Served);
    }
    let resolver = Resolver::new();
    resolver.offer(old.clone(), Told::Nothing, at_once);
    resolver.offer(new.clone(), Told::Untrusted, at_once);
    assert_eq!(resolver.offer(new, Told::Nothing, at_once), Offer::Served, "the configurations were taken away");
}
