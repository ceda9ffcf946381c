//! The leader's side of the fence (R23, R24): when a golden that is to go is closed, looked at once more, marked, and deleted.
//!
//! A scan cannot tell that nobody will clone a golden in the next moment. So new pools are turned away first, by a mark that admission reads live at each verdict. When nothing is seen to need the golden any more, everybody is turned away; then the leader waits longer than a request may take that was let in before, and looks at the API server itself, not at a cache. Only what is free then is marked retired and deleted.

use std::time::Duration;

use crate::rules::{
    clone::{Known, Unknown},
    consumers::Consumers,
    fence::Fence,
};

/// Why a golden is to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wish {
    /// It is not.
    Keep,
    /// Somebody asked for it, when nothing needs it any more.
    Retire,
    /// Somebody asked for it in spite of what needs it, and why.
    Force(String),
}

/// What is known of a golden's consumers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Needed {
    /// From the watches: enough to say "in use", never "free".
    pub seen: Known<Consumers>,
    /// From the API server itself, asked after the wait; `None` where it was not asked since.
    pub asked: Option<Known<Consumers>>,
}

/// One golden of which something is to be done, or was begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    /// What is wanted.
    pub wish: Wish,
    /// The fence on the claim; `None` where there is none, because CDI has not made it yet, or it was lost.
    pub claim: Option<Fence>,
    /// The fence on the DataVolume; `None` where there is none.
    pub volume: Option<Fence>,
    /// Whether either is being deleted.
    pub is_terminating: bool,
    /// Who needs it.
    pub needed: Needed,
    /// How long this process has seen the fence closed. A leader that takes over waits anew: its clock knows nothing of the former one's.
    pub closed_for: Duration,
}

/// What is to be done next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Rest,
    /// Write this fence on claim and DataVolume, on what there is.
    Mark(Fence),
    /// Ask the API server who needs it.
    Ask,
    /// Look again after this time.
    Wait(Duration),
    /// Delete it: the fence is on all of it.
    Delete,
}

/// Decides on the next step. `wait` is longer than the API server lets a request take.
pub fn decide(golden: &Observed, wait: Duration) -> Step {
    if golden.is_terminating {
        return Step::Rest;
    }
    // What is marked retired may be deleted by anybody already: there is no way back.
    if golden.strictest() == Fence::Retired {
        return if golden.is_all(Fence::Retired) { Step::Delete } else { Step::Mark(Fence::Retired) };
    }
    match &golden.wish {
        Wish::Keep if golden.is_all(Fence::Open) => Step::Rest,
        Wish::Keep => Step::Mark(Fence::Open),
        Wish::Force(_) => Step::Mark(Fence::Retired),
        Wish::Retire => retire(golden, wait),
    }
}

impl Observed {
    fn fences(&self) -> impl Iterator<Item = Fence> {
        self.claim.into_iter().chain(self.volume)
    }

    /// What admission goes by.
    fn strictest(&self) -> Fence {
        self.fences().max().unwrap_or_default()
    }

    /// Whether all that there is says this. A claim that CDI has made meanwhile may not, which is mended, and waited for anew.
    pub fn is_all(&self, fence: Fence) -> bool {
        self.fences().all(|found| found == fence)
    }
}

/// Whether nothing keeps it, where that is known.
fn is_free(known: &Known<Consumers>) -> Result<bool, &Unknown> {
    known.as_ref().map(|consumers| consumers.blocking() == 0)
}

fn retire(golden: &Observed, wait: Duration) -> Step {
    match is_free(&golden.needed.seen) {
        // What stands stands while nothing can be said; new pools are kept away all the same.
        Err(_) if golden.strictest() == Fence::Open => Step::Mark(Fence::Retiring),
        Err(_) => Step::Rest,
        Ok(false) if golden.is_all(Fence::Retiring) => Step::Rest,
        Ok(false) => Step::Mark(Fence::Retiring),
        Ok(true) if !golden.is_all(Fence::Closed) => Step::Mark(Fence::Closed),
        Ok(true) if golden.closed_for < wait => Step::Wait(wait - golden.closed_for),
        Ok(true) => match golden.needed.asked.as_ref().map(is_free) {
            None | Some(Err(_)) => Step::Ask,
            Some(Ok(true)) => Step::Mark(Fence::Retired),
            // The watches are behind; pools that use it go on meanwhile.
            Some(Ok(false)) => Step::Mark(Fence::Retiring),
        },
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::rules::{
        consumers::{Consumer, ConsumerKind, Evidence, Standing, Why},
        pool::Pool,
    };

    const WAIT: Duration = Duration::from_secs(75);

    fn known(text: &str) -> Option<Known<Consumers>> {
        Some(match text {
            "-" => return None,
            "?" => Err(Unknown("not read yet".into())),
            "free" => Ok(Consumers::default()),
            _ => Ok(Consumers::group([Consumer {
                kind: ConsumerKind::Disk,
                namespace: "a".into(),
                name: "d".into(),
                pool: Pool::Unknown,
                evidence: Evidence::Spec,
                standing: Standing::Blocks(Why::CloneRunning),
                created: 0,
                copied: None,
            }])),
        })
    }

    fn fence(text: &str) -> Option<Fence> {
        Some(match text {
            "none" => return None,
            "open" => Fence::Open,
            "retiring" => Fence::Retiring,
            "closed" => Fence::Closed,
            _ => Fence::Retired,
        })
    }

    #[rstest]
    #[case::asked_for("retire", "open", "open", "used", "-", 0, Step::Mark(Fence::Retiring))]
    #[case::in_use("retire", "retiring", "retiring", "used", "-", 0, Step::Rest)]
    #[case::free_at_once("retire", "open", "open", "free", "-", 0, Step::Mark(Fence::Closed))]
    #[case::free_now("retire", "retiring", "retiring", "free", "-", 0, Step::Mark(Fence::Closed))]
    #[case::half_closed("retire", "closed", "retiring", "free", "-", 99, Step::Mark(Fence::Closed))]
    #[case::waits("retire", "closed", "closed", "free", "-", 70, Step::Wait(Duration::from_secs(5)))]
    #[case::early_answer_is_no_answer("retire", "closed", "closed", "free", "free", 70, Step::Wait(Duration::from_secs(5)))]
    #[case::asks("retire", "closed", "closed", "free", "-", 75, Step::Ask)]
    #[case::asks_again("retire", "closed", "closed", "free", "?", 80, Step::Ask)]
    #[case::somebody_slipped_in("retire", "closed", "closed", "free", "used", 80, Step::Mark(Fence::Retiring))]
    #[case::seen_meanwhile("retire", "closed", "closed", "used", "-", 10, Step::Mark(Fence::Retiring))]
    #[case::free("retire", "closed", "closed", "free", "free", 75, Step::Mark(Fence::Retired))]
    #[case::half_marked("retire", "retired", "closed", "free", "-", 0, Step::Mark(Fence::Retired))]
    #[case::half_marked_the_other_way("retire", "closed", "retired", "used", "-", 0, Step::Mark(Fence::Retired))]
    #[case::marked("retire", "retired", "retired", "free", "-", 0, Step::Delete)]
    #[case::no_volume("retire", "retired", "none", "free", "-", 0, Step::Delete)]
    #[case::no_claim_yet("retire", "none", "open", "free", "-", 0, Step::Mark(Fence::Closed))]
    #[case::no_claim_yet_and_waited_for("retire", "none", "retiring", "used", "-", 0, Step::Rest)]
    #[case::no_claim_yet_and_not_known("retire", "none", "open", "?", "-", 0, Step::Mark(Fence::Retiring))]
    #[case::no_claim_waits("retire", "none", "closed", "free", "-", 70, Step::Wait(Duration::from_secs(5)))]
    #[case::no_claim_and_free("retire", "none", "closed", "free", "free", 75, Step::Mark(Fence::Retired))]
    #[case::no_claim_and_marked("retire", "none", "retired", "free", "-", 0, Step::Delete)]
    #[case::no_claim_taken_back("keep", "none", "closed", "free", "-", 0, Step::Mark(Fence::Open))]
    #[case::no_claim_forced("force", "none", "open", "used", "-", 0, Step::Mark(Fence::Retired))]
    #[case::a_claim_came_open("retire", "open", "closed", "free", "free", 99, Step::Mark(Fence::Closed))]
    #[case::a_claim_came_open_and_is_used("retire", "open", "retiring", "used", "-", 0, Step::Mark(Fence::Retiring))]
    #[case::a_claim_came_too_late("retire", "open", "retired", "used", "-", 0, Step::Mark(Fence::Retired))]
    #[case::a_claim_came_open_and_not_known("retire", "open", "closed", "?", "-", 0, Step::Rest)]
    #[case::unknown("retire", "retiring", "retiring", "?", "-", 0, Step::Rest)]
    #[case::unknown_keeps_new_pools_away("retire", "open", "open", "?", "-", 0, Step::Mark(Fence::Retiring))]
    #[case::unknown_while_closed("retire", "closed", "closed", "?", "free", 99, Step::Rest)]
    #[case::taken_back("keep", "retiring", "retiring", "used", "-", 0, Step::Mark(Fence::Open))]
    #[case::taken_back_half("keep", "open", "closed", "free", "-", 0, Step::Mark(Fence::Open))]
    #[case::too_late_to_take_back("keep", "retired", "retired", "used", "-", 0, Step::Delete)]
    #[case::nothing_wanted("keep", "open", "open", "used", "-", 0, Step::Rest)]
    #[case::forced("force", "retiring", "retiring", "used", "-", 0, Step::Mark(Fence::Retired))]
    fn r23(
        #[case] wish: &str,
        #[case] claim: &str,
        #[case] volume: &str,
        #[case] seen: &str,
        #[case] asked: &str,
        #[case] closed_for: u64,
        #[case] expected: Step,
    ) {
        let wish = match wish {
            "keep" => Wish::Keep,
            "retire" => Wish::Retire,
            _ => Wish::Force("why".into()),
        };
        let needed = Needed { seen: known(seen).expect("said"), asked: known(asked) };
        let golden = Observed {
            wish,
            claim: fence(claim),
            volume: fence(volume),
            is_terminating: false,
            needed,
            closed_for: Duration::from_secs(closed_for),
        };
        assert_eq!(decide(&golden, WAIT), expected);
        assert_eq!(decide(&Observed { is_terminating: true, ..golden }, WAIT), Step::Rest);
    }
}
