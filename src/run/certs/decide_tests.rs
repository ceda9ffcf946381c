use super::*;
use crate::run::certs::{
    SELF_ISSUED, Served, issue,
    material::{BUNDLE, CERT, KEY, NEXT, SIGNING},
};
use k8s_openapi::{ByteString, api::core::v1::Secret};

const NAME: &str = "golden-catalog-spool-tls";
const DAY: Duration = Duration::from_secs(24 * 3600);

fn profile() -> Profile {
    Profile::new(vec!["golden-catalog-spool.cozy.svc".to_owned(), "127.0.0.1".to_owned()])
}

fn day(n: u32) -> Timestamp {
    after(Timestamp::from_second(1_800_000_000).unwrap(), n * DAY)
}

/// Does what `keep` does, without an API server.
fn settle(mut secret: Option<Secret>, now: Timestamp, hold: bool) -> (Secret, Vec<Action>) {
    let mut done = vec![];
    loop {
        let observed = secret.as_ref().map(Observed::of);
        let action = decide(observed.as_ref(), &profile(), now, hold);
        if matches!(action, Action::Keep | Action::Use) {
            return (secret.unwrap(), done);
        }
        assert!(done.len() < 5, "never settles: {done:?}");
        secret = Some(issue::apply(&action, NAME, secret, observed.as_ref(), &profile(), now).unwrap());
        done.push(action);
    }
}

fn fresh() -> Secret {
    settle(None, day(0), false).0
}

/// Whether a client that was told `bundle` trusts what `secret` serves.
fn trusts(bundle: &Secret, secret: &Secret, now: Timestamp) -> bool {
    let leaf = Observed::of(secret).leaf.unwrap();
    leaf.trusted_by(&Observed::of(bundle).bundle, &profile().names, now).is_ok()
}

fn set(secret: &mut Secret, field: &str, value: Option<&[u8]>) {
    let data = secret.data.as_mut().unwrap();
    match value {
        Some(value) => data.insert(field.to_owned(), ByteString(value.to_vec())),
        None => data.remove(field),
    };
}

fn get(secret: &Secret, field: &str) -> Vec<u8> {
    secret.data.as_ref().unwrap()[field].0.clone()
}

#[test]
fn the_first_secret_is_whole_and_stays_as_it_is() {
    let (secret, done) = settle(None, day(0), false);
    assert_eq!(done, [Action::Issue]);
    assert_eq!(secret.type_.as_deref(), Some("kubernetes.io/tls"));
    assert!(trusts(&secret, &secret, day(0)));
    let served = Served::load(NAME, &secret).unwrap();
    assert!(!served.is_provided());
    assert_eq!(served.trouble(&profile().names, day(0)), None);
    assert!(!served.bundle().contains("PRIVATE"));
    assert_eq!(settle(Some(secret.clone()), day(59), false), (secret, vec![]));
}

#[test]
fn a_certificate_is_renewed_before_its_end_by_the_same_ca() {
    let before = fresh();
    let (secret, done) = settle(Some(before.clone()), day(60), false);
    assert_eq!(done, [Action::Renew]);
    assert_eq!(get(&secret, BUNDLE), get(&before, BUNDLE));
    assert!(trusts(&before, &secret, day(60)), "clients that were told the former bundle go on");
}

#[test]
fn what_ended_while_nobody_ran_is_issued_anew_at_the_start() {
    let (secret, done) = settle(Some(fresh()), day(200), false);
    assert_eq!(done, [Action::Renew]);
    assert!(trusts(&secret, &secret, day(200)));
    let (secret, done) = settle(Some(fresh()), day(9 * 365), false);
    assert_eq!(done, [Action::Issue]);
    assert!(trusts(&secret, &secret, day(9 * 365)));
    assert_eq!(Observed::of(&secret).bundle.len(), 1, "the CA that ended is gone");
}

#[test]
fn a_new_ca_is_published_first_signs_after_the_overlap_and_waits_for_those_still_at_work() {
    let start = day(4 * 365);
    let (before, _) = settle(Some(fresh()), day(4 * 365 - 1), false);
    let (published, done) = settle(Some(before.clone()), start, false);
    assert_eq!(done, [Action::Prepare]);
    assert_eq!(get(&published, CERT), get(&before, CERT), "the present CA goes on signing");
    assert_eq!(Observed::of(&published).bundle.len(), 2);
    // Not before the overlap, and not while an import begun before it is under way.
    assert_eq!(settle(Some(published.clone()), after(start, DAY / 2), false).1, []);
    assert_eq!(settle(Some(published.clone()), day(4 * 365 + 2), true).1, []);
    let (switched, done) = settle(Some(published.clone()), day(4 * 365 + 2), false);
    assert_eq!(done, [Action::Switch]);
    assert!(trusts(&published, &switched, day(4 * 365 + 2)), "a bundle from the overlap trusts the new certificate");
    assert!(!trusts(&before, &switched, day(4 * 365 + 2)), "which is what the overlap is for");
    assert!(trusts(&switched, &before, day(4 * 365 + 2)), "a replica that has not reloaded yet is trusted too");
    assert!(!switched.data.as_ref().unwrap().contains_key(NEXT.0));
}

#[test]
fn a_change_of_the_ca_cannot_be_held_up_until_the_present_one_ends() {
    // Looked at every ten days by somebody who always says "hold".
    let mut secret = fresh();
    for n in (0..5 * 365 + 200).step_by(10) {
        secret = settle(Some(secret), day(n), true).0;
        assert!(trusts(&secret, &secret, day(n)), "day {n}");
    }
}

#[test]
fn through_twelve_years_every_client_that_looked_within_the_overlap_trusts_what_is_served() {
    let mut history: Vec<(u32, Secret)> = vec![];
    let mut secret = None;
    let mut steps = 0;
    for n in 0..12 * 365 {
        let (now_served, done) = settle(secret, day(n), n % 3 == 0);
        steps += done.len();
        history.retain(|(seen, _)| seen + 1 >= n);
        history.push((n, now_served.clone()));
        if !done.is_empty() || n % 30 == 0 {
            for (seen, bundle) in &history {
                assert!(trusts(bundle, &now_served, day(n)), "told on day {seen}, asked on day {n}");
            }
        }
        secret = Some(now_served);
    }
    // 73 renewals, and two changes of the CA of two steps each: nothing is written without need.
    assert!((60..100).contains(&steps), "{steps}");
}

#[test]
fn a_half_written_secret_of_ours_is_mended_with_as_little_as_possible() {
    let whole = fresh();
    let other = fresh();
    let cases: &[(&str, Option<Vec<u8>>, Action)] = &[
        (KEY, None, Action::Renew),
        (CERT, Some(vec![]), Action::Renew),
        (CERT, Some(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_vec()), Action::Renew),
        (CERT, Some(get(&other, CERT)), Action::Renew),
        (BUNDLE, None, Action::Mend),
        (BUNDLE, Some(get(&other, BUNDLE)), Action::Mend),
        (SIGNING.1, None, Action::Issue),
        (SIGNING.0, Some(get(&other, SIGNING.0)), Action::Issue),
        (NEXT.0, Some(b"rubbish".to_vec()), Action::Prepare),
    ];
    for (field, value, action) in cases {
        let mut secret = whole.clone();
        set(&mut secret, field, value.as_deref());
        let (mended, done) = settle(Some(secret), day(1), false);
        assert_eq!(done, std::slice::from_ref(action), "{field}");
        assert!(trusts(&mended, &mended, day(1)), "{field}");
        if !matches!(action, Action::Issue) {
            assert!(trusts(&whole, &mended, day(1)), "{field}: clients that trusted it before go on");
        }
    }
    // Even with the CA's key lost, those who trust the former bundle are served by a replica that has not reloaded.
    let mut secret = whole.clone();
    set(&mut secret, SIGNING.1, None);
    let (mended, _) = settle(Some(secret), day(1), false);
    assert!(trusts(&mended, &whole, day(1)));
}

#[test]
fn other_names_are_a_reason_to_renew() {
    let secret = fresh();
    let moved = Profile { names: vec!["golden-catalog-spool.other.svc".to_owned()], ..profile() };
    assert_eq!(decide(Some(&Observed::of(&secret)), &moved, day(1), false), Action::Renew);
}

#[test]
fn a_clock_that_is_a_little_behind_changes_nothing_and_one_that_was_far_ahead_is_undone() {
    let secret = settle(None, day(10), false).0;
    assert_eq!(settle(Some(secret.clone()), after(day(9), DAY / 2), false).1, []);
    let (secret, done) = settle(Some(secret), day(0), false);
    assert_eq!(done, [Action::Issue]);
    assert!(trusts(&secret, &secret, day(0)));
}

#[test]
fn a_secret_of_somebody_else_is_used_or_refused_but_never_written() {
    let mut provided = fresh();
    // One that was ours before cert-manager took it over keeps our annotation.
    assert!(provided.metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(SELF_ISSUED)));
    provided.metadata.annotations.get_or_insert_default().insert("cert-manager.io/certificate-name".to_owned(), "spool".to_owned());
    // As cert-manager writes it: certificate, key and CA, nothing more.
    provided.data.as_mut().unwrap().retain(|field, _| [CERT, KEY, BUNDLE].contains(&field.as_str()));
    assert_eq!(settle(Some(provided.clone()), day(1000), false), (provided.clone(), vec![]));
    assert!(Served::load(NAME, &provided).unwrap().is_provided());

    let mut without_ca = provided.clone();
    set(&mut without_ca, BUNDLE, None);
    let mut mismatched = provided.clone();
    set(&mut mismatched, KEY, Some(&get(&fresh(), KEY)));
    let empty = Secret { data: None, ..provided };
    for (secret, says) in [(without_ca, "ca.crt is missing"), (mismatched, "do not belong together"), (empty, "tls.crt is missing")] {
        assert_eq!(decide(Some(&Observed::of(&secret)), &profile(), day(1), false), Action::Use);
        let error = Served::load(NAME, &secret).unwrap_err().to_string();
        assert!(error.contains(says) && error.contains("not touched"), "{error}");
        assert!(!error.contains("PRIVATE"), "{error}");
    }
}

#[test]
fn openssl_agrees() {
    let secret = fresh();
    let dir = tempfile::tempdir().unwrap();
    let file = |field: &str| {
        let path = dir.path().join(field);
        std::fs::write(&path, get(&secret, field)).unwrap();
        path
    };
    let at = day(1).as_second().to_string();
    let mut command = std::process::Command::new("openssl");
    command.args(["verify", "-x509_strict", "-purpose", "sslserver", "-attime", &at, "-verify_hostname", &profile().names[0]]);
    let output = command.arg("-CAfile").arg(file(BUNDLE)).arg(file(CERT)).output().unwrap();
    assert!(output.status.success(), "{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
}
