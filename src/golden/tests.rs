//! The life of an image told as decisions: each test observes, decides, and looks at status and actions.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Action, ClaimView, ClassChoice, ClassFound, CredentialsView, DataVolumeView, Decision, FetchView, GoldenView, GrantView, Metadata,
    Observed, ObservedTarget, Permits, Reference, Retirement, Settings, SpooledView, UsageView, decide,
};
use crate::{
    api::{ConditionType, GoldenImageStatus, TargetStatus, find_condition, is_true, parse_image},
    catalog::Listing,
    model::{Digest, DiskSize, VolumeMode},
    rules::{
        CdiCondition, Reason,
        modes::ClaimProperties,
        provenance::{Consent, Provenance},
    },
};

pub(super) fn now() -> Timestamp {
    Timestamp::from_second(1_796_000_000).expect("time")
}

pub(super) fn later(seconds: u64) -> Timestamp {
    super::decide::after(now(), Duration::from_secs(seconds))
}

pub(super) fn class(name: &str) -> ClassChoice {
    ClassChoice::Found(ClassFound {
        name: name.parse().expect("class"),
        provisioner: "linstor.csi.linbit.com".into(),
        properties: vec![ClaimProperties { access_modes: vec!["ReadWriteMany".into()], volume_mode: Some(VolumeMode::Block) }],
        minimum: None,
        overheads: crate::rules::size::Overheads::default(),
        scratch_class: name.into(),
        warnings: Vec::new(),
        drift: None,
    })
}

pub(super) fn observed(spec: Value) -> Observed {
    let object = json!({ "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": "a" }, "spec": spec });
    let image = parse_image(&serde_json::from_value(object).expect("readable"));
    let targets = image.as_ref().map_or(1, |image| image.targets.len());
    Observed {
        metadata: Metadata { name: "a".into(), uid: "uid".into(), generation: Some(1), retry: None },
        image,
        status: GoldenImageStatus::default(),
        listing: Listing::ByHand,
        duplicate_of: None,
        ca: Reference::NotNamed,
        credentials: CredentialsView::default(),
        cdi_installed: true,
        spooled: None,
        fetch: FetchView::Idle,
        coming_size: None,
        hung: None,
        upstream: None,
        targets: vec![
            ObservedTarget {
                name: None,
                taken_by: None,
                class: class("replicated"),
                golden: GoldenView::default(),
                quotas: Vec::new()
            };
            targets
        ],
        leaving: Vec::new(),
        usage: UsageView::NotCounted,
        retirement: Retirement::default(),
        refused: None,
        permits: Permits { fetch: true, imports: 8 },
        begun: Vec::new(),
    }
}

pub(super) fn http() -> Observed {
    observed(json!({ "source": { "http": { "url": "https://e.example/a.qcow2" } } }))
}

pub(super) fn disk() -> Digest {
    Digest::of(b"disk")
}

pub(super) fn spooled() -> SpooledView {
    SpooledView {
        artifact_digest: Digest::of(b"artifact"),
        artifact_size: 1000,
        format: "qcow2".into(),
        resolved_url: Some("https://e.example/a.qcow2".into()),
        etag: None,
        resolved_time: Some(now()),
        disk_digest: disk(),
        virtual_size: DiskSize::from_bytes((4 << 30) + 1).expect("size"),
        digest_matched: false,
        container: None,
    }
}

pub(super) fn volume(phase: &str) -> DataVolumeView {
    DataVolumeView { uid: "dv".into(), ours: true, disk_digest: Some(disk().to_string()), phase: phase.into(), ..DataVolumeView::default() }
}

pub(super) fn claim() -> ClaimView {
    ClaimView { uid: "pvc".into(), ours: true, bound: true, class: Some("replicated".into()), ..ClaimView::default() }
}

pub(super) fn run(observed: &Observed) -> Decision {
    decide(observed, &Settings::default(), now())
}

pub(super) fn ready(decision: &Decision) -> (String, String, String) {
    let condition = find_condition(&decision.status.conditions, ConditionType::Ready).expect("Ready");
    (condition.status.clone(), condition.reason.clone(), condition.message.clone())
}

pub(super) fn reason(decision: &Decision) -> String {
    ready(decision).1
}

/// An image whose golden was Ready once.
pub(super) fn made() -> Observed {
    let mut observed = http();
    observed.spooled = Some(spooled());
    let begun = run(&observed);
    observed.status = begun.status;
    observed.targets[0].golden.volume = Some(volume("Succeeded"));
    observed.targets[0].golden.claim = Some(claim());
    let done = run(&observed);
    assert_eq!(reason(&done), "Ready");
    observed.status = done.status;
    observed.targets[0].golden.grant = GrantView::Refused;
    observed.upstream = Some(super::UpstreamView { checked: now(), difference: None });
    observed
}

#[test]
fn a_new_image_is_fetched_with_the_attempt_on_record() {
    let decision = run(&http());
    assert_eq!(reason(&decision), "Fetching");
    assert_eq!(decision.after, [Action::Fetch { largest_target: None }]);
    assert_eq!(decision.status.fetch.as_ref().map(|fetch| fetch.attempts), Some(1));
    assert!(decision.status.targets[0].golden.is_none());
}

#[test]
fn without_its_turn_nothing_begins() {
    let mut observed = http();
    observed.permits = Permits::default();
    let decision = run(&observed);
    assert_eq!((reason(&decision).as_str(), decision.after.len()), ("Queued", 0));
    assert!(decision.wants.fetch);
}

#[test]
fn a_verified_disk_is_ordered_with_everything_explicit() {
    let mut observed = http();
    observed.spooled = Some(spooled());
    let decision = run(&observed);
    let order =
        decision.after.iter().find_map(|action| if let Action::CreateVolume(order) = action { Some(order) } else { None }).expect("order");
    assert_eq!(order.golden.as_str(), "vm-default-images-a");
    assert_eq!((order.class.as_str(), order.size.to_string().as_str(), order.volume_mode), ("replicated", "4097Mi", VolumeMode::Block));
    let status = &decision.status.targets[0];
    assert_eq!((status.attempts, status.golden.as_deref()), (1, Some("vm-default-images-a")));
    assert_eq!(decision.status.disk.as_ref().map(|disk| disk.digest.clone()), Some(disk().to_string()));
    // Secret and CA come before the DataVolume that names them.
    let places: Vec<_> = decision
        .after
        .iter()
        .map(|action| matches!(action, Action::WriteHeaders { .. }) as u8 + 2 * matches!(action, Action::CreateVolume(_)) as u8)
        .collect();
    assert!(places.iter().position(|p| *p == 1) < places.iter().position(|p| *p == 2));
}

#[test]
fn killed_between_status_and_volume_the_same_attempt_goes_on() {
    let mut observed = http();
    observed.spooled = Some(spooled());
    observed.status = run(&observed).status;
    let again = run(&observed);
    assert_eq!(again.status.targets[0].attempts, 1);
    assert!(again.after.iter().any(|action| matches!(action, Action::CreateVolume(_))));
}

#[test]
fn applied_once_a_decision_is_empty() {
    let mut observed = http();
    observed.spooled = Some(spooled());
    observed.status = run(&observed).status;
    observed.targets[0].golden = GoldenView {
        volume: Some(volume("ImportInProgress")),
        grant: GrantView::Serving { disk: disk(), ready: true },
        headers_written: Some((1, 0, 0)),
        ..GoldenView::default()
    };
    let first = run(&observed);
    observed.status = first.status.clone();
    let second = run(&observed);
    assert_eq!((second.before.as_slice(), second.after.as_slice(), second.notes.as_slice()), (&[][..], &[][..], &[][..]));
    assert_eq!(second.status, first.status);

    let mut done = made();
    let first = run(&done);
    done.status = first.status.clone();
    let second = run(&done);
    assert_eq!((second.before.len(), second.after.len(), second.status == first.status), (0, 0, true), "{second:?}");
}

/// Secret and CA are written again for importers that cannot start, and not for those that are only slow: writes do not grow with load.
#[test]
fn an_importer_at_work_costs_no_writes() {
    let mut observed = http();
    observed.spooled = Some(spooled());
    observed.status = run(&observed).status;
    let since = Timestamp::from_second(now().as_second() - 400).expect("time");
    for (is_pulling, written, restarts, expected) in
        [(false, Some((1, 0, 0)), 0, true), (true, Some((1, 0, 0)), 0, false), (true, Some((1, 0, 0)), 1, true), (true, None, 0, true)]
    {
        observed.targets[0].golden = GoldenView {
            volume: Some(DataVolumeView { restarts, ..volume("ImportInProgress") }),
            grant: GrantView::Serving { disk: disk(), ready: true },
            headers_written: written,
            moved: Some(since),
            is_pulling,
            ..GoldenView::default()
        };
        let writes = run(&observed).after.iter().any(|action| matches!(action, Action::WriteHeaders { .. }));
        assert_eq!(writes, expected, "pulling: {is_pulling}, written: {written:?}, restarts: {restarts}");
    }
}

#[test]
fn r8_ready_puts_the_claim_on_record_and_closes_the_path() {
    let mut observed = http();
    observed.spooled = Some(spooled());
    observed.status = run(&observed).status;
    observed.targets[0].golden.volume = Some(volume("Succeeded"));
    let unbound = run(&observed);
    assert_eq!(ready(&unbound).0, "False");
    observed.targets[0].golden.claim = Some(claim());
    let decision = run(&observed);
    assert_eq!(ready(&decision).0, "True");
    assert_eq!(decision.status.targets[0].claim_uid.as_deref(), Some("pvc"));
    assert!(matches!(decision.before[..], [Action::DeleteHeaders { .. }]));
    assert!(decision.after.iter().any(|action| matches!(action, Action::Refuse { .. })));
    assert!(!is_true(&decision.status.conditions, ConditionType::Reconciling));
}

#[test]
fn r7_another_volume_under_the_name_is_not_this_golden() {
    let mut observed = made();
    observed.targets[0].golden.claim = Some(ClaimView { uid: "other".into(), ..claim() });
    let decision = run(&observed);
    assert_eq!(reason(&decision), "GoldenReplaced");
    assert!(decision.after.iter().all(|action| !matches!(action, Action::DeleteVolume { .. } | Action::CreateVolume(_))));
}

#[test]
fn a_lost_claim_under_a_live_volume_is_told_and_not_imported_again() {
    let mut observed = made();
    observed.targets[0].golden.claim = None;
    let decision = run(&observed);
    assert_eq!(reason(&decision), "GoldenMissing");
    assert_eq!(decision.after, []);
}

#[test]
fn a_golden_that_is_gone_altogether_is_made_anew_from_the_same_disk() {
    let mut observed = made();
    observed.targets[0].golden = GoldenView::default();
    let decision = run(&observed);
    assert!(decision.after.iter().any(|action| matches!(action, Action::CreateVolume(order) if order.disk == disk())), "{decision:?}");

    // The spool lost it: fetched again, and only the same disk will do.
    observed.spooled = None;
    let decision = run(&observed);
    assert_eq!(decision.after, [Action::Fetch { largest_target: None }]);
    observed.spooled = Some(SpooledView { disk_digest: Digest::of(b"other"), ..spooled() });
    let decision = run(&observed);
    assert_eq!(reason(&decision), "UpstreamChanged");
    assert!(is_true(&decision.status.conditions, ConditionType::Stalled));
    assert_eq!(decision.status.disk.as_ref().map(|d| d.digest.clone()), Some(disk().to_string()));
}

#[test]
fn a_refetch_with_other_bytes_begins_an_unfinished_import_anew() {
    let mut observed = http();
    observed.spooled = Some(spooled());
    observed.status = run(&observed).status;
    observed.targets[0].golden.volume = Some(volume("ImportInProgress"));
    observed.spooled = Some(SpooledView { disk_digest: Digest::of(b"other"), ..spooled() });
    let decision = run(&observed);
    assert!(
        decision.after.contains(&Action::DeleteVolume { golden: "vm-default-images-a".parse().expect("name"), uid: "dv".into() }),
        "{decision:?}"
    );
}

/// The import ended in the moment in which it was to be begun anew: its deletion was refused, or cut off.
#[test]
fn a_golden_is_of_the_disk_that_it_was_imported_from() {
    let mut observed = http();
    observed.spooled = Some(spooled());
    observed.status = run(&observed).status;
    observed.targets[0].golden.volume = Some(volume("ImportInProgress"));
    observed.spooled = Some(SpooledView { disk_digest: Digest::of(b"other"), ..spooled() });
    let anew = run(&observed);
    assert!(anew.after.iter().any(|action| matches!(action, Action::DeleteVolume { .. })));
    let recorded = |status: &GoldenImageStatus| status.disk.as_ref().map(|disk| disk.digest.clone());
    assert_eq!(recorded(&anew.status), Some(disk().to_string()));
    let ended = |status: GoldenImageStatus| {
        let mut ended = observed.clone();
        ended.status = status;
        ended.targets[0].golden.volume = Some(volume("Succeeded"));
        let request = DiskSize::from_bytes(5 << 30);
        ended.targets[0].golden.claim = Some(ClaimView { disk_digest: Some(disk().to_string()), request, ..claim() });
        run(&ended)
    };
    let done = ended(anew.status.clone());
    assert_eq!((recorded(&done.status), reason(&done).as_str()), (Some(disk().to_string()), "Ready"));
    // As a former release left it: the other disk is on record already.
    let mut former = anew.status.clone();
    former.disk.as_mut().expect("disk").digest = Digest::of(b"other").to_string();
    let done = ended(former);
    assert_eq!(recorded(&done.status), Some(disk().to_string()));

    // Gone, as it mostly is: the record moves on.
    observed.status = anew.status;
    observed.targets[0].golden.volume = None;
    let moved = run(&observed);
    assert_eq!(recorded(&moved.status), Some(Digest::of(b"other").to_string()));
    assert!(moved.after.iter().any(|action| matches!(action, Action::CreateVolume(order) if order.disk == Digest::of(b"other"))));
}

/// What was taken over as it is was made from nobody knows what: it binds no other golden to a disk.
#[test]
fn an_adopted_golden_freezes_no_disk() {
    let mut observed = self::observed(json!({
        "source": { "http": { "url": "https://e.example/a.qcow2" } },
        "storage": { "targets": [{ "storageClassName": "replicated" }, { "storageClassName": "local" }] },
    }));
    observed.targets[1].class = class("local");
    let target = |name: &str, class: &str| TargetStatus {
        requested_class: class.into(),
        golden: Some(name.into()),
        storage_class_name: Some(class.into()),
        ..TargetStatus::default()
    };
    let adopted = TargetStatus { claim_uid: Some("pvc".into()), adopted: Some(true), ..target("vm-default-images-a", "replicated") };
    let begun = TargetStatus {
        started_time: Some(crate::golden::decide::whole_seconds(now())),
        attempts: 1,
        ..target("vm-default-images-a-local", "local")
    };
    observed.status.disk = Some(crate::api::DiskStatus { digest: disk().to_string(), virtual_size: "1Gi".into() });
    observed.status.targets = vec![adopted, begun];
    observed.targets[0].golden.claim = Some(ClaimView { disk_digest: None, adopt: Some("pvc".into()), ..claim() });
    // Restored as it was made: its own disk stands on it.
    observed.targets[0].golden.volume =
        Some(DataVolumeView { disk_digest: Some(Digest::of(b"former").to_string()), ..volume("Succeeded") });
    observed.targets[1].name = "vm-default-images-a-local".parse().ok();
    observed.targets[1].golden.volume = Some(DataVolumeView { uid: "dv2".into(), ..volume("ImportInProgress") });
    observed.spooled = Some(SpooledView { disk_digest: Digest::of(b"other"), ..spooled() });
    assert_eq!(observed.status.frozen_disk(), None);
    let anew = run(&observed);
    assert!(anew.after.iter().any(|action| matches!(action, Action::DeleteVolume { uid, .. } if uid == "dv2")), "{anew:?}");
    assert_ne!(reason(&anew), "UpstreamChanged");
    let mut gone = observed.clone();
    gone.status = anew.status;
    gone.targets[1].golden.volume = None;
    let made = run(&gone);
    let is_of_other = |action: &Action| matches!(action, Action::CreateVolume(order) if order.disk == Digest::of(b"other"));
    assert!(made.after.iter().any(is_of_other), "{made:?}");
    observed.status.targets[0].adopted = None;
    assert_eq!(observed.status.frozen_disk(), Some(disk()));
}

#[test]
fn while_the_disk_is_fetched_again_the_importer_is_held() {
    let mut observed = http();
    observed.spooled = Some(spooled());
    observed.status = run(&observed).status;
    observed.spooled = None;
    observed.targets[0].golden.volume = Some(volume("ImportInProgress"));
    let decision = run(&observed);
    assert!(decision.after.iter().any(|action| matches!(action, Action::Serve { ready: false, .. })), "{decision:?}");
    assert!(decision.after.iter().any(|action| matches!(action, Action::Fetch { .. })));
}

#[test]
fn r9_a_failure_is_recorded_once_and_waits() {
    let mut observed = http();
    observed.status = run(&observed).status;
    observed.fetch = FetchView::Failed { reason: Reason::Unavailable, message: "connection refused".into(), retry_after: None };
    let decision = run(&observed);
    assert_eq!(reason(&decision), "Unavailable");
    assert_eq!(decision.after, []);
    let fetch = decision.status.fetch.clone().expect("fetch");
    assert!(fetch.next_attempt_time.is_some() && fetch.started_time.is_none());
    assert!(decision.wake.is_some());
    observed.status = decision.status;
    let again = run(&observed);
    assert_eq!((again.status.fetch.as_ref(), again.notes.len()), (Some(&fetch), 0));
    // Its time has come: the next attempt.
    let next = decide(&observed, &Settings::default(), later(3600));
    assert_eq!(next.status.fetch.as_ref().map(|fetch| fetch.attempts), Some(2));
    assert!(matches!(next.after[..], [Action::Fetch { .. }]));
}

#[test]
fn r9_not_found_stalls_after_its_patience_and_heals_by_itself() {
    let mut observed = http();
    observed.status = run(&observed).status;
    observed.fetch = FetchView::Failed { reason: Reason::NotFound, message: "404".into(), retry_after: None };
    let first = run(&observed);
    assert!(!is_true(&first.status.conditions, ConditionType::Stalled));
    observed.status = first.status;
    // Later failures of the same kind do not move the beginning.
    observed.status.fetch.as_mut().expect("fetch").started_time = Some(super::decide::whole_seconds(later(600)));
    let second = decide(&observed, &Settings::default(), later(600));
    assert!(!is_true(&second.status.conditions, ConditionType::Stalled));
    observed.status = second.status;
    observed.status.fetch.as_mut().expect("fetch").started_time = Some(super::decide::whole_seconds(later(901)));
    let third = decide(&observed, &Settings::default(), later(901));
    assert!(is_true(&third.status.conditions, ConditionType::Stalled), "{third:?}");
    assert_eq!(reason(&third), "NotFound");
    assert!(third.wake.is_some(), "a slow retry goes on");
    observed.status = third.status;
    observed.fetch = FetchView::Idle;
    observed.spooled = Some(spooled());
    let healed = decide(&observed, &Settings::default(), later(2000));
    assert!(!is_true(&healed.status.conditions, ConditionType::Stalled));
}

#[test]
fn a_terminal_reason_stalls_at_once_and_the_retry_annotation_starts_over() {
    let mut observed = http();
    observed.status = run(&observed).status;
    observed.fetch = FetchView::Failed { reason: Reason::NotADiskImage, message: "an HTML page".into(), retry_after: None };
    let decision = run(&observed);
    assert!(is_true(&decision.status.conditions, ConditionType::Stalled));
    assert!(ready(&decision).2.contains("Point the entry at"), "{decision:?}");
    observed.status = decision.status;
    observed.fetch = FetchView::Idle;
    assert_eq!(run(&observed).after, []);
    observed.metadata.retry = Some("1".into());
    let retried = run(&observed);
    assert!(matches!(retried.after[..], [Action::Fetch { .. }]), "{retried:?}");
}

#[test]
fn spool_full_waits_and_is_no_attempt() {
    let mut observed = http();
    observed.status = run(&observed).status;
    observed.fetch = FetchView::Failed { reason: Reason::SpoolFull, message: "needs 5 GiB".into(), retry_after: None };
    let decision = run(&observed);
    assert_eq!(decision.status.fetch.as_ref().map(|fetch| fetch.attempts), Some(0));
    assert_eq!(reason(&decision), "SpoolFull");
}

/// No attempt is counted, and upstream is all the same asked less often the longer there is no room.
#[test]
fn the_wait_for_room_grows_with_the_time_it_lasts() {
    for (lasted, least, most) in [(0, 5, 15), (30, 30, 31), (240, 240, 241), (3600, 600, 601)] {
        let mut observed = http();
        observed.status = run(&observed).status;
        observed.fetch = FetchView::Failed { reason: Reason::SpoolFull, message: "needs 5 GiB".into(), retry_after: None };
        observed.status = run(&observed).status;
        observed.status.fetch.as_mut().expect("fetch").started_time = Some(super::decide::whole_seconds(later(lasted)));
        let fetch = decide(&observed, &Settings::default(), later(lasted)).status.fetch.expect("fetch");
        let wait = fetch.next_attempt_time.expect("next").0.duration_since(later(lasted)).as_secs();
        assert!((least..=most).contains(&wait) && fetch.attempts == 0, "after {lasted} s: {wait} s, {} attempts", fetch.attempts);
    }
}

/// The reason while the volume hangs, beside an attempt that goes on as if nothing had been.
#[test]
fn a_volume_that_hangs_is_told_and_costs_no_attempt() {
    let mut observed = http();
    observed.status = run(&observed).status;
    let attempts = observed.status.fetch.as_ref().map(|fetch| fetch.attempts);
    observed.fetch = FetchView::Running { percent: Some(40) };
    observed.hung = Some("The volume does not answer.".into());
    let hung = run(&observed);
    assert_eq!((reason(&hung).as_str(), hung.status.fetch.as_ref().map(|fetch| fetch.attempts)), ("SpoolFailed", attempts));
    assert!(!is_true(&hung.status.conditions, ConditionType::Stalled) && ready(&hung).2.contains("does not answer"), "{hung:?}");
    observed.status = hung.status;
    observed.hung = None;
    let goes_on = run(&observed);
    assert_eq!((reason(&goes_on).as_str(), goes_on.status.fetch.as_ref().map(|fetch| fetch.attempts)), ("Fetching", attempts));
}

#[test]
fn r12_no_default_class_waits_and_starts_by_itself() {
    let mut observed = http();
    observed.targets[0].class = ClassChoice::NoDefault;
    let decision = run(&observed);
    assert_eq!((reason(&decision).as_str(), decision.after.len()), ("NoDefaultClass", 0));
    observed.status = decision.status;
    observed.targets[0].class = class("replicated");
    assert!(matches!(run(&observed).after[..], [Action::Fetch { .. }]));
}

#[test]
fn a_size_that_cannot_hold_the_disk_is_refused_with_the_needed_one() {
    let mut observed =
        observed(json!({ "source": { "http": { "url": "https://e.example/a" } }, "storage": { "targets": [{ "size": "1Gi" }] } }));
    assert!(matches!(run(&observed).after[..], [Action::Fetch { largest_target: Some(size), .. }] if size.to_string() == "1Gi"));
    observed.spooled = Some(spooled());
    let decision = run(&observed);
    assert_eq!(reason(&decision), "SizeTooSmall");
    assert!(ready(&decision).2.contains("needs 4097Mi"), "{decision:?}");
    assert!(decision.after.is_empty());
}

pub(super) fn stranger(url: &str) -> crate::rules::adopt::Stranger {
    crate::rules::adopt::Stranger {
        origin: crate::rules::adopt::Origin::Url(url.into()),
        class: Some("replicated".into()),
        size: None,
        volume_mode: Some("Block".into()),
        access_modes: vec!["ReadWriteMany".into()],
        uid: Some(claim().uid),
        is_marked: false,
        consent: Consent::No,
        provenance: Provenance::FilledHere,
    }
}

/// A golden of a former catalog: same name, same URL, without our mark.
fn former() -> Observed {
    let mut observed = http();
    let target = &mut observed.targets[0];
    target.name = Some("vm-default-images-a".parse().expect("name"));
    target.golden.volume = Some(DataVolumeView { ours: false, disk_digest: None, ..volume("Succeeded") });
    let controller = Some("dv".into());
    target.golden.claim = Some(ClaimView { ours: false, disk_digest: None, artifact_digest: None, controller, ..claim() });
    target.golden.stranger = Some(stranger("https://e.example/a.qcow2"));
    observed
}

/// R5: the first status that is written says Ready; nothing is fetched, nothing imported; applied once, nothing is left to do.
#[test]
fn r5_a_former_golden_is_taken_over_at_once() {
    let mut observed = former();
    let decision = run(&observed);
    assert_eq!(ready(&decision).0, "True");
    let verified = crate::api::find_condition(&decision.status.conditions, crate::api::ConditionType::Verified).expect("Verified");
    assert_eq!((verified.status.as_str(), verified.reason.as_str()), ("Unknown", "Adopted"));
    let target = &decision.status.targets[0];
    assert_eq!((target.adopted, target.claim_uid.as_ref()), (Some(true), Some(&claim().uid)));
    assert!(matches!(&decision.after[..], [Action::Adopt { claim_uid, .. }] if *claim_uid == claim().uid), "{:?}", decision.after);
    assert!(decision.before.is_empty() && decision.wants == super::Wants::default(), "{decision:?}");

    observed.status = decision.status.clone();
    let golden = &mut observed.targets[0].golden;
    golden.volume.as_mut().expect("volume").ours = true;
    golden.claim.as_mut().expect("claim").ours = true;
    // Taken over by a release that did not write for which claim that was: Ready all along, and written once.
    let upgraded = run(&observed);
    assert_eq!(upgraded.status, decision.status);
    assert!(matches!(&upgraded.after[..], [Action::Adopt { claim_uid, .. }] if *claim_uid == claim().uid), "{upgraded:?}");
    observed.targets[0].golden.claim.as_mut().expect("claim").adopt = Some(claim().uid);
    let again = run(&observed);
    assert_eq!((again.status, again.after), (decision.status, vec![]));

    // The status is lost: the marks say the same.
    observed.status = GoldenImageStatus::default();
    let found = run(&observed);
    assert_eq!((ready(&found).0.as_str(), found.status.targets[0].adopted), ("True", Some(true)));
}

/// R5: not the same, not imported yet, going: nothing is written on it.
#[test]
fn r5_what_is_not_ready_to_be_taken_over_is_left_alone() {
    type Change = fn(&mut Observed);
    let cases: [(Change, &str); 5] = [
        (|observed| observed.targets[0].golden.stranger = Some(stranger("https://e.example/other")), "NameConflict"),
        (|observed| observed.targets[0].golden.volume.as_mut().expect("volume").phase = "ImportInProgress".into(), "Importing"),
        (|observed| observed.targets[0].golden.volume.as_mut().expect("volume").terminating = true, "GoldenTerminating"),
        (|observed| observed.targets[0].golden.claim.as_mut().expect("claim").bound = false, "ClaimLost"),
        (|observed| observed.targets[0].golden.claim = None, "ClaimLost"),
    ];
    for (change, expected) in cases {
        let mut observed = former();
        change(&mut observed);
        let decision = run(&observed);
        assert_eq!(reason(&decision), expected);
        assert!(decision.after.is_empty() && decision.before.is_empty(), "{expected}: {decision:?}");
        assert!(decision.status.targets[0].golden.is_none(), "{expected}");
    }
}

/// R5, R10: an import of somebody else's that stands still is told with CDI's words and what to do, looked at again when it would be that, and
/// taken over when it ends well after all.
#[test]
fn r5_an_import_of_another_that_stands_still_is_told() {
    let mut observed = former();
    let minutes_ago = |minutes: i64| Timestamp::from_second(now().as_second() - 60 * minutes).ok();
    let importing = |moved: i64, phase: &str, percent: u8, said: &str, observed: &mut Observed| {
        let golden = &mut observed.targets[0].golden;
        golden.moved = minutes_ago(moved);
        let volume = golden.volume.as_mut().expect("volume");
        (volume.phase, volume.percent) = (phase.into(), Some(percent));
        volume.running = CdiCondition { status: Some(false), reason: "Error".into(), message: said.into() };
        let decision = run(observed);
        assert!(decision.after.is_empty() && decision.before.is_empty() && decision.wants == super::Wants::default(), "{decision:?}");
        observed.status = decision.status.clone();
        decision
    };
    let waits = importing(14, "ImportInProgress", 0, "404 Not Found", &mut observed);
    assert_eq!((reason(&waits).as_str(), waits.wake), ("Importing", Some(later(60))));
    let told = importing(16, "ImportInProgress", 0, "404 Not Found", &mut observed);
    let (_, why, message) = ready(&told);
    assert_eq!((why.as_str(), told.wake), ("ForeignImportStalled", None));
    for part in ["15 minutes (CDI: ImportInProgress: 404 Not Found).", "delete the DataVolume named"] {
        assert!(message.contains(part), "{message}");
    }
    assert!(!is_true(&told.status.conditions, ConditionType::Stalled) && told.notes.iter().any(|note| note.warning), "{told:?}");
    // The importer is started again, and has nothing to say yet: the status stays as it is.
    assert_eq!(importing(16, "ImportInProgress", 0, "", &mut observed).status, told.status);
    // A large disk that is there whole has time to be converted.
    observed.targets[0].golden.stranger.as_mut().expect("stranger").size = "64Gi".parse().ok();
    assert_eq!(reason(&importing(100, "ImportInProgress", 100, "", &mut observed)), "Importing");
    assert!(ready(&importing(0, "Failed", 0, "", &mut observed)).2.contains("has failed (CDI: Failed)"));
    observed.targets[0].golden.volume.as_mut().expect("volume").phase = "Succeeded".into();
    assert_eq!(reason(&run(&observed)), "Ready");
}

/// A restored volume under a new UID is reported; taken as it is where a person says so.
#[test]
fn r7_another_uid_is_taken_only_when_asked() {
    let mut observed = former();
    observed.status = run(&observed).status;
    let golden = &mut observed.targets[0].golden;
    golden.volume.as_mut().expect("volume").ours = true;
    *golden.claim.as_mut().expect("claim") = ClaimView { uid: "restored".into(), ours: true, ..claim() };
    assert_eq!(reason(&run(&observed)), "GoldenReplaced");
    assert!(ready(&run(&observed)).2.contains("`kubernetes-worker-image.cozystack.io/adopt: restored`"), "the exact value");
    // The word that came back with the backup consents to nothing.
    observed.targets[0].golden.stranger.as_mut().expect("stranger").consent = Consent::OfTheName;
    assert_eq!(reason(&run(&observed)), "GoldenReplaced");
    observed.targets[0].golden.stranger.as_mut().expect("stranger").consent = Consent::OfThisClaim;
    let decision = run(&observed);
    assert_eq!((ready(&decision).0.as_str(), decision.status.targets[0].claim_uid.as_deref()), ("True", Some("restored")));
    // Never one that does not carry our mark, which is what is asked for then, beside the annotation.
    observed.targets[0].golden.claim.as_mut().expect("claim").ours = false;
    let told = run(&observed);
    assert_eq!((reason(&told).as_str(), told.after.len()), ("GoldenReplaced", 0));
    for mark in ["golden: true`", "image: a`", "identity: ", "adopt: restored`"] {
        assert!(ready(&told).2.contains(&format!("`kubernetes-worker-image.cozystack.io/{mark}")), "{mark}: {told:?}");
    }
}

/// A former golden that came back from a backup is the same by its source; what is in it is not known.
#[test]
fn r7_a_restored_former_golden_is_reported_and_taken_only_when_it_is_meant() {
    let mut observed = former();
    let found = observed.targets[0].golden.stranger.as_mut().expect("stranger");
    (found.provenance, found.consent) = (Provenance::BroughtBack("how".into()), Consent::OfTheName);
    observed.targets[0].golden.claim.as_mut().expect("claim").made_for = Some("former".into());
    let told = run(&observed);
    assert_eq!((reason(&told).as_str(), told.after.len(), told.before.len()), ("GoldenReplaced", 0, 0), "{told:?}");
    assert!(ready(&told).2.contains("`kubernetes-worker-image.cozystack.io/adopt: pvc`"), "{told:?}");
    assert!(told.status.targets[0].golden.is_none() && told.wants == super::Wants::default(), "{told:?}");
    observed.targets[0].golden.stranger.as_mut().expect("stranger").consent = Consent::OfThisClaim;
    let taken = run(&observed);
    assert_eq!((ready(&taken).0.as_str(), taken.status.targets[0].adopted), ("True", Some(true)));
    assert!(matches!(&taken.after[..], [Action::Adopt { .. }]), "{taken:?}");
    // CDI never took this one over, and says nothing of it.
    observed.targets[0].golden.claim.as_mut().expect("claim").controller = None;
    observed.targets[0].golden.volume.as_mut().expect("volume").phase = "Pending".into();
    assert_eq!(ready(&run(&observed)).0, "True");
}

/// A backup that was taken after a person consented, restored once more: the consent named the claim that was.
#[test]
fn r7_a_second_restore_is_asked_about_again() {
    let mut observed = made();
    let status = observed.status.clone();
    let restored = |uid: &str, adopt: &str, made_for: &str| ClaimView {
        uid: uid.into(),
        adopt: Some(adopt.into()),
        made_for: Some(made_for.into()),
        controller: Some("dv".into()),
        disk_digest: Some(disk().to_string()),
        ..claim()
    };
    let mut found = stranger("https://spool.example/former");
    found.is_marked = true;
    for (status, consent, adopt, expected) in [
        // As the leader of a former release left it, as a backup has it, and as a person sets it anew; with the status and without.
        (status.clone(), Consent::OfTheName, "true", "GoldenReplaced"),
        (status.clone(), Consent::No, "0a000000-0000-4000-8000-000000000001", "GoldenReplaced"),
        (status, Consent::OfThisClaim, "second", "Ready"),
        (GoldenImageStatus::default(), Consent::OfTheName, "true", "GoldenReplaced"),
        (GoldenImageStatus::default(), Consent::No, "0a000000-0000-4000-8000-000000000001", "GoldenReplaced"),
        (GoldenImageStatus::default(), Consent::OfThisClaim, "second", "Ready"),
    ] {
        observed.status = status;
        found.consent = consent;
        observed.targets[0].golden.stranger = Some(found.clone());
        observed.targets[0].golden.claim = Some(restored("second", adopt, "former"));
        let decision = run(&observed);
        assert_eq!(reason(&decision), expected, "{adopt}");
        if expected == "Ready" {
            let target = &decision.status.targets[0];
            assert_eq!((target.adopted, target.claim_uid.as_deref()), (Some(true), Some("second")));
        }
    }
}

/// Taken over with a consent, its status lost: what its marks say of the bytes was copied with them, and vouches for nothing.
#[test]
fn r7_what_was_taken_over_stays_that_when_its_status_is_lost() {
    let mut observed =
        self::observed(json!({ "source": { "http": { "url": "https://e.example/a" } }, "digest": Digest::of(b"wanted").to_string() }));
    observed.targets[0].golden.volume = Some(volume("Succeeded"));
    observed.targets[0].golden.claim =
        Some(ClaimView { adopt: Some(claim().uid), controller: Some("dv".into()), disk_digest: Some(disk().to_string()), ..claim() });
    let found = run(&observed);
    assert_eq!(
        (ready(&found).0.as_str(), found.status.targets[0].adopted, found.status.disk.is_none()),
        ("True", Some(true), true),
        "{found:?}"
    );
}

/// `a` in class `b`, and `a-b`: the later makes nothing, and names the first.
#[test]
fn a_golden_of_anothers_name_is_not_made() {
    let mut observed = http();
    observed.targets[0].taken_by = Some("first".into());
    observed.targets[0].name = Some("vm-default-images-a".parse().expect("name"));
    observed.spooled = Some(spooled());
    let decision = run(&observed);
    assert_eq!(reason(&decision), "NameConflict");
    assert!(ready(&decision).2.contains("of the image first"), "{decision:?}");
    assert!(decision.after.is_empty() && decision.status.targets[0].golden.is_none(), "{decision:?}");
}

#[test]
fn r5_a_foreign_volume_of_the_name_is_never_touched() {
    let mut observed = http();
    observed.targets[0].golden.volume = Some(DataVolumeView { ours: false, source: "http https://other".into(), ..volume("Succeeded") });
    observed.targets[0].golden.claim = Some(claim());
    observed.spooled = Some(spooled());
    let decision = run(&observed);
    assert_eq!(reason(&decision), "NameConflict");
    assert_eq!(find_condition(&decision.status.conditions, ConditionType::Accepted).map(|c| c.status.as_str()), Some("False"));
    assert_eq!(decision.after, []);
}

#[test]
fn r10_trouble_is_told_at_once_and_given_up_at_the_deadline() {
    let mut observed = http();
    observed.spooled = Some(spooled());
    observed.status = run(&observed).status;
    let mut stuck = volume("ImportInProgress");
    stuck.running = CdiCondition { status: Some(false), reason: "Error".into(), message: "boom".into() };
    stuck.restarts = 3;
    observed.targets[0].golden.volume = Some(stuck);
    observed.targets[0].golden.importer.connected = true;
    let told = run(&observed);
    assert_eq!(reason(&told), "ImportFailed");
    assert!(ready(&told).2.contains("boom"));
    assert!(!told.after.iter().any(|action| matches!(action, Action::DeleteVolume { .. })));
    observed.status = told.status;
    let late = decide(&observed, &Settings::default(), later(16 * 60));
    assert!(late.after.iter().any(|action| matches!(action, Action::DeleteVolume { uid, .. } if uid == "dv")), "{late:?}");
    let target = &late.status.targets[0];
    assert!(target.next_attempt_time.is_some() && target.started_time.is_none() && target.attempts == 1);
    assert!(target.last_failure.as_ref().is_some_and(|failure| failure.message.contains("boom")));
}

#[test]
fn progress_is_written_in_steps_of_ten() {
    let mut observed = http();
    observed.spooled = Some(spooled());
    observed.status = run(&observed).status;
    let mut statuses = Vec::new();
    for percent in 0..=100 {
        observed.targets[0].golden.volume = Some(DataVolumeView { percent: Some(percent), ..volume("ImportInProgress") });
        let decision = run(&observed);
        if decision.status != observed.status {
            statuses.push(decision.status.targets[0].progress_percent);
        }
        observed.status = decision.status;
    }
    assert!(statuses.len() <= 11, "{statuses:?}");
    assert_eq!(statuses.last(), Some(&Some(100)));
}

#[test]
fn ready_is_every_target_and_available_is_one() {
    let mut observed = observed(json!({
        "source": { "http": { "url": "https://e.example/a" } },
        "storage": { "targets": [{ "storageClassName": "replicated" }, { "storageClassName": "local" }] },
    }));
    observed.targets[1].class = class("local");
    observed.spooled = Some(spooled());
    let decision = run(&observed);
    let names: Vec<_> = decision.status.targets.iter().filter_map(|target| target.golden.clone()).collect();
    assert_eq!(names, ["vm-default-images-a", "vm-default-images-a-local"]);
    observed.status = decision.status;
    observed.targets[1].golden.volume = Some(volume("Succeeded"));
    observed.targets[1].golden.claim = Some(ClaimView { class: Some("local".into()), ..claim() });
    let decision = run(&observed);
    assert!(is_true(&decision.status.conditions, ConditionType::Available));
    assert_eq!(ready(&decision).0, "False");
}

#[test]
fn a_schematic_document_is_resolved_first() {
    let mut observed = observed(json!({ "source": { "talosFactory": { "schematic": { "customization": {} }, "version": "v1.13.6" } } }));
    let decision = run(&observed);
    assert_eq!(decision.after, [Action::ResolveSchematic]);
    observed.status = decision.status;
    observed.fetch = FetchView::Schematic("376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba".parse().expect("id"));
    let decision = run(&observed);
    assert!(matches!(decision.after[..], [Action::Fetch { .. }]), "{decision:?}");
    assert!(decision.status.schematic_id.is_some() && decision.status.identity.is_some());
    assert_eq!(decision.status.fetch.as_ref().map(|fetch| fetch.attempts), Some(1));
}

#[test]
fn suspended_nothing_new_begins_and_what_is_there_stays() {
    let mut observed = observed(json!({ "source": { "http": { "url": "https://e.example/a" } }, "suspend": true }));
    let decision = run(&observed);
    assert_eq!(decision.after, []);
    assert_eq!(ready(&decision).0, "False");
    observed.spooled = Some(spooled());
    assert_eq!(run(&observed).after, []);
    assert_eq!(reason(&run(&observed)), "Suspended");
}

#[test]
fn a_cleared_status_is_written_again_from_what_is_there() {
    let mut observed = made();
    let before = run(&observed).status;
    observed.status = GoldenImageStatus::default();
    observed.spooled = None;
    let decision = run(&observed);
    assert_eq!(ready(&decision).0, "True");
    assert_eq!(decision.status.targets[0].claim_uid, before.targets[0].claim_uid);
    assert!(!decision.after.iter().any(|action| matches!(action, Action::Fetch { .. } | Action::CreateVolume(_))), "{decision:?}");
}

#[test]
fn a_golden_of_another_class_or_download_is_not_taken_over() {
    let in_local = |targets: serde_json::Value| {
        let mut observed =
            self::observed(json!({ "source": { "http": { "url": "https://e.example/a.qcow2" } }, "storage": { "targets": targets } }));
        observed.spooled = Some(spooled());
        observed.targets[0].golden.volume = Some(volume("Succeeded"));
        observed.targets[0].golden.claim = Some(ClaimView { class: Some("local".into()), ..claim() });
        run(&observed)
    };
    for asked in [json!([{ "storageClassName": "replicated" }]), json!([{}, { "storageClassName": "local" }])] {
        let decision = in_local(asked);
        let told = find_condition(&decision.status.targets[0].conditions, ConditionType::Ready).expect("told");
        assert!(told.reason == "NameConflict" && told.message.contains("has the StorageClass local, not replicated"), "{told:?}");
        assert!(decision.status.targets[0].claim_uid.is_none());
    }
    // The default class moved since it was made, and the image, or its status, was lost: what the target leaves open its golden decides.
    let decision = in_local(json!([{}]));
    assert_eq!((reason(&decision).as_str(), decision.status.targets[0].storage_class_name.as_deref()), ("Ready", Some("local")));

    let wanted = Digest::of(b"wanted");
    let mut observed = self::observed(json!({ "source": { "http": { "url": "https://e.example/a" } }, "digest": wanted.to_string() }));
    observed.targets[0].golden.volume = Some(volume("Succeeded"));
    observed.targets[0].golden.claim = Some(ClaimView { artifact_digest: Some(Digest::of(b"other").to_string()), ..claim() });
    assert_eq!(reason(&run(&observed)), "NameConflict");
    observed.targets[0].golden.claim = Some(ClaimView { artifact_digest: Some(wanted.to_string()), ..claim() });
    assert_eq!(reason(&run(&observed)), "Ready");
}

#[test]
fn a_digest_given_later_is_held_against_what_was_fetched() {
    let mut observed = made();
    observed.spooled = None;
    if let Ok(image) = &mut observed.image {
        image.digest = Some(Digest::of(b"other"));
    }
    let verified = find_condition(&run(&observed).status.conditions, ConditionType::Verified).cloned().expect("Verified");
    assert_eq!((verified.status.as_str(), verified.reason.as_str()), ("False", "DigestMismatch"));
}

#[test]
fn texts_from_outside_never_outgrow_the_schema() {
    let mut observed = http();
    observed.metadata.retry = Some("x".repeat(5000));
    observed.status = run(&observed).status;
    observed.fetch = FetchView::Failed { reason: Reason::Unavailable, message: "é".repeat(9000), retry_after: None };
    let status = run(&observed).status;
    assert!(status.observed_retry.as_ref().is_some_and(|retry| retry.len() <= 256));
    assert!(status.fetch.and_then(|fetch| fetch.last_failure).is_some_and(|failure| failure.message.chars().count() <= 2048));
    assert!(status.conditions.iter().all(|condition| condition.message.chars().count() <= 2048));
}

#[test]
fn two_targets_that_resolve_to_one_class_make_one_golden() {
    let mut observed = observed(json!({
        "source": { "http": { "url": "https://e.example/a" } },
        "storage": { "targets": [{}, { "storageClassName": "replicated" }] },
    }));
    observed.spooled = Some(spooled());
    let decision = run(&observed);
    let orders = decision.after.iter().filter(|action| matches!(action, Action::CreateVolume(_))).count();
    assert_eq!(orders, 1, "{decision:?}");
    assert!(decision.status.targets[1].conditions.iter().any(|condition| condition.reason == "DuplicateClass"));
}

#[test]
fn r10_a_refused_object_is_told_and_ends_at_the_deadline() {
    let mut observed = http();
    observed.spooled = Some(spooled());
    observed.status = run(&observed).status;
    observed.targets[0].golden.refused = Some((Reason::CreateRefused, "The API server refuses the DataVolume: no.".into()));
    let told = run(&observed);
    assert_eq!(reason(&told), "CreateRefused");
    assert!(ready(&told).2.contains("refuses the DataVolume: no. Allow what"), "{told:?}");
    // Asked again, and again at the deadline.
    assert!(told.after.iter().any(|action| matches!(action, Action::CreateVolume(_))));
    assert_eq!(told.wake, Some(later(15 * 60)));
    observed.status = told.status;
    let late = decide(&observed, &Settings::default(), later(15 * 60));
    let target = &late.status.targets[0];
    assert!(late.after.is_empty(), "{late:?}");
    assert!(target.started_time.is_none() && target.next_attempt_time.is_some() && target.attempts == 1);
    assert_eq!(target.last_failure.as_ref().map(|failure| failure.reason.as_str()), Some("CreateRefused"));
    // The cause is gone: the next attempt begins by itself.
    observed.status = late.status;
    observed.targets[0].golden.refused = None;
    let next = decide(&observed, &Settings::default(), later(3600));
    assert!(next.after.iter().any(|action| matches!(action, Action::CreateVolume(_))));
    assert_eq!(next.status.targets[0].attempts, 2);
}

#[test]
fn a_deletion_that_failed_is_tried_again_at_once() {
    let mut observed = http();
    observed.spooled = Some(spooled());
    observed.status = run(&observed).status;
    observed.targets[0].golden.volume = Some(volume("ImportInProgress"));
    let late = decide(&observed, &Settings::default(), later(16 * 60));
    observed.status = late.status;
    let again = decide(&observed, &Settings::default(), later(16 * 60 + 1));
    assert!(again.after.iter().any(|action| matches!(action, Action::DeleteVolume { uid, .. } if uid == "dv")), "{again:?}");
    let target = &again.status.targets[0];
    assert!(target.started_time.is_none() && target.attempts == 1, "the volume that is to go is no new attempt: {target:?}");
}

fn private(access: Value) -> Observed {
    let mut observed = observed(json!({
        "source": { "http": { "url": "https://e.example/a.qcow2" } }, "credentialsSecretRef": { "name": "reg" }, "access": access,
    }));
    observed.credentials = CredentialsView { reference: Reference::Found, version: Some("1".into()) };
    observed
}

#[test]
fn r18_nothing_is_made_for_selected_namespaces_until_that_is_enforced() {
    let few = private(json!({ "policy": "Selected", "namespaceSelector": { "matchLabels": { "licensed": "yes" } } }));
    let decision = run(&few);
    assert_eq!((reason(&decision).as_str(), decision.after.len()), ("AccessNotEnforced", 0));
    assert!(is_true(&decision.status.conditions, ConditionType::Stalled));
    let enforced = Settings { access_is_enforced: true, ..Settings::default() };
    assert_eq!(reason(&decide(&few, &enforced, now())), "Fetching");
    assert_eq!(reason(&run(&private(json!({ "policy": "AllTenants" })))), "Fetching");
}

/// R18: a golden that outlives its image says itself who may clone it; one that says so is written to no more.
#[test]
fn r18_who_may_clone_is_on_the_golden_too() {
    let few = json!({ "policy": "Selected", "namespaceSelector": { "matchLabels": { "licensed": "yes" } } });
    let mut observed = made();
    observed.image = private(few).image;
    let enforced = Settings { access_is_enforced: true, ..Settings::default() };
    let written = observed.image.as_ref().expect("good").access.written();
    let marks = |observed: &Observed| {
        let actions = decide(observed, &enforced, now()).after;
        actions.iter().filter(|action| matches!(action, Action::Mark { volume_uid: Some(_), .. })).count()
    };
    assert_eq!(marks(&observed), 1, "made before the mark was known");
    observed.targets[0].golden.claim.as_mut().expect("claim").access = Some(written.clone());
    assert_eq!(marks(&observed), 1, "CDI would copy what the DataVolume says");
    observed.targets[0].golden.volume.as_mut().expect("volume").access = Some(written);
    assert_eq!(marks(&observed), 0);
    // Opened again: the mark goes with it.
    observed.image = made().image;
    assert_eq!(marks(&observed), 1);
}

/// R18: edited while nothing enforces it, what is there says at once whom it is for, and nothing else is done.
#[test]
fn r18_what_is_made_already_says_whom_it_is_for_before_that_is_enforced() {
    let few = json!({ "policy": "Selected", "namespaceSelector": { "matchLabels": { "licensed": "yes" } } });
    let mut observed = made();
    observed.targets[0].name = observed.status.targets[0].golden.as_ref().and_then(|name| name.parse().ok());
    observed.image = private(few).image;
    let told = run(&observed);
    assert_eq!(reason(&told), "AccessNotEnforced");
    assert!(matches!(&told.after[..], [Action::Mark { claim_uid, volume_uid: Some(_), .. }] if claim_uid == "pvc"), "{told:?}");
    assert!(is_true(&told.status.conditions, ConditionType::Available), "it is there, and nothing pretends that it is not");
    let written = observed.image.as_ref().expect("good").access.written();
    observed.targets[0].golden.claim.as_mut().expect("claim").access = Some(written.clone());
    observed.targets[0].golden.volume.as_mut().expect("volume").access = Some(written);
    assert_eq!(run(&observed).after, []);
    // What stands under the name is another volume: not ours to mark.
    observed.targets[0].golden.claim = Some(ClaimView { uid: "other".into(), ..claim() });
    assert_eq!(run(&observed).after, []);
}

#[test]
fn a_missing_secret_is_named_and_a_changed_one_is_tried_at_once() {
    let mut observed = private(json!({ "policy": "AllTenants" }));
    observed.credentials = CredentialsView { reference: Reference::Missing("The Secret ns/reg".into()), version: None };
    let (_, missing, message) = ready(&run(&observed));
    assert_eq!(missing, "ReferenceNotFound");
    assert!(message.starts_with("The Secret ns/reg does not exist."), "{message}");

    observed.credentials = CredentialsView { reference: Reference::Found, version: Some("1".into()) };
    let begun = run(&observed);
    assert_eq!(begun.status.fetch.as_ref().and_then(|fetch| fetch.credentials_version.as_deref()), Some("1"));
    observed.status = begun.status;
    observed.fetch = FetchView::Failed { reason: Reason::Unauthorized, message: "401".into(), retry_after: None };
    observed.status = run(&observed).status;
    // The same Secret waits for its time; another version of it does not.
    assert_eq!(run(&observed).after, []);
    observed.credentials.version = Some("2".into());
    let again = run(&observed);
    assert_eq!(again.after, [Action::Fetch { largest_target: None }]);
    assert_eq!(again.status.fetch.as_ref().map(|fetch| (fetch.attempts, fetch.credentials_version.clone())), Some((1, Some("2".into()))));
}

#[test]
fn what_a_container_disk_says_of_virtual_machines_fills_what_the_spec_leaves_open() {
    let digest = "sha256:eb87a994833d82feb2279575aafa42a06c5feb124ea72cae6efc0ee46bb729d8";
    let mut observed = observed(json!({
        "source": { "containerDisk": { "reference": format!("r.example/f@{digest}") } }, "defaults": { "preference": "fedora" },
    }));
    let defaults = |instancetype: &str, preference: &str| crate::model::VirtualMachineDefaults {
        instancetype: Some(instancetype.into()),
        preference: Some(preference.into()),
    };
    observed.spooled = Some(SpooledView {
        container: Some(crate::model::ContainerFacts {
            index: Some(digest.parse().expect("digest")),
            manifest: Digest::of(b"manifest"),
            layer: Digest::of(b"artifact"),
            defaults: defaults("u1.medium", "other"),
        }),
        ..spooled()
    });
    let decision = run(&observed);
    assert_eq!(decision.status.defaults.as_ref().map(|all| all.facts()), Some(defaults("u1.medium", "fedora")));
    let artifact = decision.status.artifact.expect("artifact");
    assert_eq!((artifact.index_digest.as_deref(), artifact.manifest_digest), (Some(digest), Some(Digest::of(b"manifest").to_string())));
    let order = decision.after.iter().find_map(|action| match action {
        Action::CreateVolume(order) => Some(order),
        _ => None,
    });
    assert_eq!(order.expect("order").defaults, defaults("u1.medium", "fedora"));
}

/// A new leader has asked nobody yet: what is on record stands until upstream has answered, and does not go and come back.
#[test]
fn r6_what_upstream_was_seen_to_serve_stands_until_it_answers() {
    use super::UpstreamView;
    let known = |difference: Option<&str>| UpstreamView { checked: now(), difference: difference.map(str::to_owned) };
    let recorded: Vec<k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition> = serde_json::from_value(json!([{
        "type": "UpstreamChanged", "status": "True", "reason": "UpstreamChanged", "lastTransitionTime": "2026-01-01T00:00:00Z",
        "message": super::summary::with_remedy("The length is 2, not 1.", Reason::UpstreamChanged),
    }]))
    .expect("conditions");
    let asked = |before: Option<&UpstreamView>, recorded: &[_]| UpstreamView::asked(before, recorded, later(5));
    assert_eq!(asked(None, &recorded), UpstreamView { checked: later(5), difference: Some("The length is 2, not 1.".into()) });
    assert_eq!(asked(None, &[]).difference, None);
    assert_eq!(asked(Some(&known(Some("other"))), &recorded).difference.as_deref(), Some("other"));
    assert_eq!(asked(Some(&known(None)), &recorded).difference, None, "upstream answered since: it serves the same again");
}

/// While we have to fetch the disk again ourselves, its importer cannot get anything.
#[test]
fn an_import_whose_disk_the_spool_has_not_got_waits_for_the_spool() {
    let volume = DataVolumeView { disk_digest: Some(disk().to_string()), ..DataVolumeView::default() };
    let copy = DataVolumeView { copies: Some("g".into()), ..volume.clone() };
    let done = DataVolumeView { phase: "Succeeded".into(), ..volume.clone() };
    let another = SpooledView { disk_digest: Digest::of(b"another"), ..spooled() };
    let running = FetchView::Running { percent: None };
    let failed = FetchView::Failed { reason: Reason::Unavailable, message: String::new(), retry_after: None };
    let waits =
        |volume: &DataVolumeView, spooled: Option<&SpooledView>, fetch: &FetchView| volume.waits_for_the_spool(spooled, fetch, false);
    assert!(waits(&volume, None, &running) && waits(&volume, None, &FetchView::Idle));
    assert!(waits(&volume, Some(&another), &running));
    assert!(!waits(&volume, Some(&spooled()), &FetchView::Idle), "the spool has it");
    assert!(!waits(&volume, None, &failed), "an import that nothing comes for ends some time");
    assert!(!waits(&copy, None, &running) && !waits(&done, None, &running));
    assert!(!volume.waits_for_the_spool(None, &FetchView::Idle, true), "nor one whose disk is not fetched for now");
    assert!(volume.waits_for_the_spool(None, &running, true), "whatever is said of later fetches");
}

/// A clock that was ahead by less than the longest of all waits makes no hours of a few seconds.
#[test]
fn a_retry_waits_no_longer_than_it_was_to_wait() {
    let mut observed = http();
    observed.status = run(&observed).status;
    let fetch = |failed: i64, next: i64| crate::api::FetchStatus {
        attempts: 1,
        next_attempt_time: Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::from_second(next).expect("time"))),
        last_failure: Some(crate::api::LastFailure {
            reason: "Unavailable".into(),
            message: "no answer".into(),
            time: k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::from_second(failed).expect("time")),
        }),
        ..Default::default()
    };
    let second = now().as_second();
    let fetches = |observed: &Observed| {
        decide(observed, &Settings::default(), now()).after.iter().any(|action| matches!(action, Action::Fetch { .. }))
    };
    observed.status.fetch = Some(fetch(second - 4, second + 6));
    assert!(!fetches(&observed), "it waits");
    observed.status.fetch = Some(fetch(second + 5 * 3600, second + 5 * 3600 + 10));
    assert!(fetches(&observed), "the clock was ahead");
}
