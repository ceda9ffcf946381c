//! Writes that the API server refuses and that nothing else waits for, and what goes on meanwhile, told as decisions.

use super::{
    Action, GrantView, Observed, Retirement,
    tests::{claim, http, made, ready, run, spooled, volume},
};
use crate::{
    api::{ConditionType, find_condition, is_true},
    rules::Reason,
};

fn refused(what: &str) -> Option<(Reason, String)> {
    Some((Reason::CreateRefused, format!("The API server refuses {what}: no.")))
}

/// What the condition `WriteRefused` says.
fn told(decision: &super::Decision) -> Option<String> {
    let condition = find_condition(&decision.status.conditions, ConditionType::WriteRefused)?;
    assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("True", "CreateRefused"));
    Some(condition.message.clone())
}

/// An import that is over.
fn over() -> Observed {
    let mut observed = http();
    observed.spooled = Some(spooled());
    observed.status = run(&observed).status;
    observed.targets[0].golden.volume = Some(volume("Succeeded"));
    observed.targets[0].golden.claim = Some(claim());
    observed
}

#[test]
fn r10_a_secret_that_may_not_be_deleted_keeps_the_golden_from_nothing_and_is_not_forgotten() {
    let delete = [Action::DeleteHeaders { golden: "vm-default-images-a".parse().expect("name") }];
    let mut observed = over();
    assert_eq!(run(&observed).before, delete);
    // The decision that is made again once the API server has refused.
    observed.targets[0].golden.undeleted = refused("the deletion of the header Secret vm-default-images-a");
    let done = run(&observed);
    assert_eq!(ready(&done).0, "True");
    assert_eq!(done.status.targets[0].claim_uid.as_deref(), Some("pvc"));
    let message = told(&done).expect("told");
    assert!(message.contains("refuses the deletion of the header Secret vm-default-images-a: no. Allow what"), "{message}");
    assert!(done.notes.iter().any(|note| note.warning && note.message == message), "{:?}", done.notes);

    // Tried again at each look, and told once.
    observed.status = done.status.clone();
    observed.targets[0].golden.grant = GrantView::Refused;
    let again = run(&observed);
    assert_eq!((again.before.as_slice(), &again.status, again.notes.len()), (&delete[..], &done.status, 0));
    // Another process knows nothing but what is on record; and nothing is left of it once it is done.
    observed.targets[0].golden.undeleted = None;
    let mended = run(&observed);
    assert_eq!((mended.before.as_slice(), told(&mended)), (&delete[..], None));
    observed.status = mended.status;
    assert_eq!(run(&observed).before, []);
}

#[test]
fn r10_marks_that_may_not_be_written_are_told_on_a_golden_that_is_ready() {
    let mut observed = made();
    observed.targets[0].golden.claim.as_mut().expect("claim").ours = false;
    observed.targets[0].golden.refused = refused("the marks of the golden's PVC");
    let decision = run(&observed);
    assert_eq!(ready(&decision).0, "True");
    assert!(told(&decision).expect("told").contains("the marks of the golden's PVC"));
    assert!(decision.after.iter().any(|action| matches!(action, Action::Mark { .. })), "tried again: {decision:?}");
}

#[test]
fn r23_a_finalizer_that_may_not_be_written_keeps_the_image_from_nothing() {
    let mut observed = http();
    observed.retirement = Retirement { waits_for_goldens: true, ..Retirement::default() };
    observed.refused = refused("the finalizer");
    let decision = run(&observed);
    assert_eq!(decision.before, [Action::Finalizer(true)]);
    assert_eq!(decision.after, [Action::Fetch { largest_target: None }]);
    let message = told(&decision).expect("told");
    assert!(message.contains("refuses the finalizer: no. If the object is deleted before, its goldens stay. Allow what"), "{message}");
    // It is on: what was said before is over. So it is where none is wanted any more.
    observed.retirement.has_finalizer = true;
    assert_eq!(told(&run(&observed)), None);
    observed.retirement = Retirement::default();
    assert_eq!(told(&run(&observed)), None);

    // One that may not be taken off keeps the object, which says so.
    observed.retirement =
        Retirement { is_wanted: true, is_deleted: true, waits_for_goldens: true, has_finalizer: true, ..Retirement::default() };
    let last = run(&observed);
    assert_eq!(last.before, [Action::Finalizer(false)]);
    assert!(told(&last).expect("told").contains("The object stays until then."), "{last:?}");
    assert!(!is_true(&last.status.conditions, ConditionType::Retiring));
}
