use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn clock() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

fn held(holder: &str, renewed: i64, transitions: i32) -> Lease {
    let mut lease = Lease::default();
    lease.metadata.name = Some("golden-catalog".into());
    lease.metadata.resource_version = Some(renewed.to_string());
    lease.spec = Some(LeaseSpec {
        holder_identity: Some(holder.into()),
        lease_duration_seconds: Some(15),
        lease_transitions: Some(transitions),
        renew_time: Some(MicroTime(Timestamp::from_second(renewed).unwrap())),
        ..LeaseSpec::default()
    });
    lease
}

fn candidate() -> Candidate {
    Candidate::new("b".into(), Timing::default())
}

fn spec(step: &Step) -> &LeaseSpec {
    match step {
        Step::Create(lease) | Step::Replace(lease) => lease.spec.as_ref().unwrap(),
        Step::Stand { .. } => panic!("{step:?}"),
    }
}

#[test]
fn the_first_candidate_creates_the_lease() {
    let step = candidate().step(None, false, Instant::now(), clock());
    assert!(matches!(step, Step::Create(_)));
    let spec = spec(&step);
    assert_eq!(spec.holder_identity.as_deref(), Some("b"));
    assert_eq!((spec.lease_transitions, spec.lease_duration_seconds), (Some(1), Some(15)));
    assert_eq!(spec.acquire_time, Some(MicroTime(clock())));
}

#[test]
fn a_lease_is_taken_only_when_it_stood_still_for_its_whole_duration_by_our_own_clock() {
    let (mut us, start) = (candidate(), Instant::now());
    // The holder's clock is years behind: that says nothing.
    us.observe(&held("a", 5, 3), start);
    let step = us.step(Some(&held("a", 5, 3)), false, start + 14 * SECOND, clock());
    assert_eq!(step, Step::Stand { holder: "a".into(), until: start + 15 * SECOND });
    // Renewed: the time starts again.
    us.observe(&held("a", 7, 3), start + 14 * SECOND);
    assert!(matches!(us.step(Some(&held("a", 7, 3)), false, start + 28 * SECOND, clock()), Step::Stand { .. }));
    // Read again without a change: it does not.
    us.observe(&held("a", 7, 3), start + 28 * SECOND);
    let step = us.step(Some(&held("a", 7, 3)), false, start + 29 * SECOND, clock());
    let Step::Replace(lease) = &step else { panic!("{step:?}") };
    assert_eq!(lease.metadata.resource_version.as_deref(), Some("7"), "the write must fail if the Lease changed meanwhile");
    assert_eq!(spec(&step).lease_transitions, Some(4));
}

#[test]
fn an_edited_label_is_no_sign_of_life() {
    let (mut us, start) = (candidate(), Instant::now());
    us.observe(&held("a", 5, 3), start);
    let mut labelled = held("a", 5, 3);
    labelled.metadata.resource_version = Some("99".into());
    labelled.metadata.labels = Some([("x".to_owned(), "y".to_owned())].into());
    us.observe(&labelled, start + 10 * SECOND);
    let Step::Replace(lease) = us.step(Some(&labelled), false, start + 15 * SECOND, clock()) else { panic!("stands") };
    assert!(lease.metadata.labels.is_some(), "what others wrote stays");
}

#[test]
fn a_released_lease_is_taken_at_once() {
    let (mut us, now) = (candidate(), Instant::now());
    let released = Candidate::released(held("a", 5, 3), clock());
    us.observe(&released, now);
    assert_eq!(spec(&us.step(Some(&released), false, now, clock())).lease_transitions, Some(4));
}

#[test]
fn a_renewal_keeps_its_term_and_a_new_term_of_the_same_process_does_not() {
    let (mut us, now) = (candidate(), Instant::now());
    us.observe(&held("b", 5, 4), now);
    assert_eq!(spec(&us.step(Some(&held("b", 5, 4)), true, now, clock())).lease_transitions, Some(4));
    assert_eq!(spec(&us.step(Some(&held("b", 5, 4)), false, now, clock())).lease_transitions, Some(5));
}

#[test]
fn deleting_the_lease_does_not_stop_its_holder_so_the_others_wait_it_out() {
    let (mut us, start) = (candidate(), Instant::now());
    us.observe(&held("a", 5, 3), start);
    assert!(matches!(us.step(None, false, start + 14 * SECOND, clock()), Step::Stand { .. }));
    let step = us.step(None, false, start + 15 * SECOND, clock());
    assert!(matches!(step, Step::Create(_)));
    assert_eq!(spec(&step).lease_transitions, Some(4), "epochs go on growing");
    // Its holder makes it again at once and stays in its term.
    let mut holder = Candidate::new("a".into(), Timing::default());
    holder.observe(&held("a", 5, 3), start);
    assert_eq!(spec(&holder.step(None, true, start, clock())).lease_transitions, Some(3));
}

#[test]
fn a_hand_written_lease_cannot_block_for_ever_nor_break_the_count() {
    let (mut us, start) = (candidate(), Instant::now());
    for (duration, transitions) in [(Some(i32::MAX), i32::MAX), (Some(-5), -7), (None, 0)] {
        let mut lease = held("a", 5, transitions);
        lease.spec.as_mut().unwrap().lease_duration_seconds = duration;
        us.observe(&lease, start);
        let step = us.step(Some(&lease), false, start + 60 * SECOND, clock());
        assert_eq!(spec(&step).lease_transitions, Some(1), "{duration:?}");
    }
    let empty = Lease { spec: None, ..held("a", 5, 3) };
    us.observe(&empty, start);
    assert!(matches!(us.step(Some(&empty), false, start, clock()), Step::Replace(_)));
}

#[test]
fn the_holders_duration_counts_not_ours() {
    let (mut us, start) = (candidate(), Instant::now());
    let mut lease = held("a", 5, 3);
    lease.spec.as_mut().unwrap().lease_duration_seconds = Some(40);
    us.observe(&lease, start);
    assert!(matches!(us.step(Some(&lease), false, start + 39 * SECOND, clock()), Step::Stand { .. }));
}

#[test]
fn times_that_contradict_each_other_are_refused() {
    let ms = Duration::from_millis;
    assert_eq!(Timing::new(15 * SECOND, 10 * SECOND, 2 * SECOND), Ok(Timing::default()));
    for (lease, deadline, retry) in [
        (10 * SECOND, 10 * SECOND, 2 * SECOND),
        (15 * SECOND, 2 * SECOND, 2 * SECOND),
        (15 * SECOND, 10 * SECOND, ms(0)),
        (ms(1500), ms(1000), ms(100)),
        (120 * SECOND, 10 * SECOND, 2 * SECOND),
    ] {
        let error = Timing::new(lease, deadline, retry).unwrap_err();
        assert!(error.to_string().contains("renew deadline"), "{error}");
    }
}
