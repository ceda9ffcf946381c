//! R10: what CDI's words about an import mean.
//!
//! CDI almost never says `Failed`: a dead importer is `ImportInProgress` for ever. The words
//! below are those of CDI v1.64, with v1.65's; what is not known counts as work under way, and the deadline catches it.

use super::Reason;

/// A condition of a DataVolume.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CdiCondition {
    /// `Some(true)` for True, `Some(false)` for False, else `None`.
    pub status: Option<bool>,
    /// Its reason.
    pub reason: String,
    /// Its message.
    pub message: String,
}

/// What the spool saw of an importer since its path was granted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ImporterFacts {
    /// It asked with the right token.
    pub connected: bool,
    /// It asked with a wrong token, and not with the right one since.
    pub wrong_token: bool,
    /// Its TLS handshake failed, and none has worked since.
    pub tls_failed: bool,
}

/// The newest Warning about what CDI made for an import: its pod and its volumes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Told {
    /// Kind and name of the object, such as `Pod importer-prime-…`.
    pub about: String,
    /// The Event's reason, such as `FailedMount`.
    pub reason: String,
    /// Its words.
    pub message: String,
}

/// What is known of an import that is not over.
#[derive(Debug, Clone, Copy)]
pub struct ImportFacts<'a> {
    /// CDI's phase.
    pub phase: &'a str,
    /// The condition `Bound`.
    pub bound: &'a CdiCondition,
    /// The condition `Running`.
    pub running: &'a CdiCondition,
    /// How often the importer was restarted.
    pub restarts: i64,
    /// What the spool saw.
    pub importer: ImporterFacts,
    /// The golden it is copied from, where it is no import from the spool.
    pub copies: Option<&'a str>,
    /// The StorageClass of scratch space.
    pub scratch_class: &'a str,
    /// The newest Warning.
    pub told: Option<&'a Told>,
    /// Whether nothing has moved for a while, so that what passes by itself in every import counts as trouble.
    pub is_quiet: bool,
}

type Trouble = Option<(Reason, String)>;

/// R10: the trouble an import or a copy is in, or `None` where it goes its way. The normal restart for scratch space is no trouble.
pub fn import_trouble(facts: ImportFacts<'_>) -> Trouble {
    let from_spool = || if facts.copies.is_none() { of_the_spool(facts) } else { None };
    from_spool().or_else(|| of_the_claim(facts)).or_else(|| of_the_worker(facts)).or_else(|| of_silence(facts))
}

/// What the spool knows better than CDI. A handshake that failed is nobody's by itself (it ends before the path is sent), so the
/// importer's own words must agree.
fn of_the_spool(facts: ImportFacts<'_>) -> Trouble {
    let ImportFacts { importer, running, bound, .. } = facts;
    let speaks_of_it = |message: &str| ["x509", "certificate", "tls:"].iter().any(|word| message.contains(word));
    let fails = running.reason == "Error" && running.status != Some(true);
    let said = speaks_of_it(&running.message) && fails || speaks_of_it(&bound.message);
    if !importer.connected && (said || importer.tls_failed && fails && running.message.is_empty()) {
        return Some((Reason::ImporterTLSFailed, "The importer does not accept the spool's certificate.".to_owned()));
    }
    importer.wrong_token.then(|| (Reason::ImporterUnauthorized, "The importer asked the spool with a wrong token.".to_owned()))
}

/// What the condition `Bound` says.
fn of_the_claim(facts: ImportFacts<'_>) -> Trouble {
    let message = &facts.bound.message;
    let source = facts.copies.unwrap_or("?");
    let (reason, text) = match facts.bound.reason.as_str() {
        "ErrExceededQuota" => (Reason::QuotaExceeded, told("CDI could not create a volume", message)),
        "ErrClaimNotValid" => (Reason::ImportFailed, told("CDI cannot make a volume from the DataVolume", message)),
        "ClaimLost" => (Reason::ClaimLost, told("The golden's claim is lost", message)),
        "CloneValidationFailed" => (Reason::ImportFailed, told(&format!("CDI does not copy the golden {source}"), message)),
        "CloneWithoutSource" if facts.is_quiet => (Reason::ImportFailed, told(&format!("CDI does not find the golden {source}"), message)),
        "CreatingScratchSpace" if facts.is_quiet => {
            let what = format!("CDI cannot have scratch space in StorageClass {}", facts.scratch_class);
            (Reason::ScratchUnavailable, told(&what, message))
        }
        _ => return None,
    };
    Some((reason, text))
}

/// What the condition `Running` says.
fn of_the_worker(facts: ImportFacts<'_>) -> Trouble {
    let ImportFacts { running, restarts, importer, .. } = facts;
    let message = &running.message;
    let (reason, text) = match running.reason.as_str() {
        "Unschedulable" => (Reason::Unschedulable, told("The importer pod cannot be scheduled", message)),
        "ErrExceededQuota" => (Reason::QuotaExceeded, told("CDI could not create the importer pod", message)),
        "ErrStartingPod" => (Reason::ImportFailed, told("The importer pod could not be created", message)),
        "ImagePullFailed" => (Reason::ImportFailed, told("The importer pod's own image cannot be pulled", message)),
        "ChecksumError" => (Reason::ImportFailed, told("CDI found other bytes than were announced", message)),
        "OOMKilled" if restarts > 1 => (Reason::ImportFailed, told("The importer ran out of memory", message)),
        "Error" if running.status != Some(true) => match facts.copies {
            Some(source) => (Reason::ImportFailed, told(&format!("The copy from the golden {source} fails"), message)),
            None if !importer.connected => {
                (Reason::ImporterNotConnected, told("The importer fails and has not reached the spool", message))
            }
            None => (Reason::ImportFailed, told(&format!("The importer fails (restarted {restarts} times)"), message)),
        },
        _ => return None,
    };
    Some((reason, text))
}

/// What is known when nothing moves: the phase, the newest Warning, what storage said last.
fn of_silence(facts: ImportFacts<'_>) -> Trouble {
    if matches!(facts.phase, "PendingPopulation" | "WaitForFirstConsumer") {
        let text = format!(
            "CDI waits for a first consumer ({}) although immediate binding was asked for; the class binds with WaitForFirstConsumer.",
            facts.phase
        );
        return Some((Reason::ImportStalled, text));
    }
    if !facts.is_quiet {
        return None;
    }
    let works = facts.restarts > 0 || facts.running.status == Some(true);
    if works && facts.copies.is_none() && !facts.importer.connected {
        let words = facts.bound.message.split_once("] : ").map_or("", |(_, words)| words);
        return Some((Reason::ImporterNotConnected, told("The importer runs and has not reached the spool", words)));
    }
    if let Some(Told { about, reason, message }) = facts.told.filter(|told| !is_conflict(&told.message)) {
        let kind = match reason.as_str() {
            "FailedScheduling" => Reason::Unschedulable,
            "ProvisioningFailed" | "FailedBinding" | "VolumeFailedDelete" | "FailedMount" | "FailedAttachVolume" | "FailedMapVolume" => {
                Reason::VolumeNotMade
            }
            _ => Reason::ImportStalled,
        };
        return Some((kind, told(&format!("{about} ({reason})"), message)));
    }
    // With populators CDI puts the newest event of the volume it fills behind this.
    let words = facts.bound.message.split_once("] : ").map(|(_, words)| words).filter(|words| !words.trim().is_empty());
    let waits = facts.bound.status == Some(false) && !facts.importer.connected;
    words.filter(|_| waits).map(|words| (Reason::VolumeNotMade, told("Storage has not made the volume", words)))
}

/// Two controllers wrote one object at a time (apimachinery's `OptimisticLockErrorMsg`): tried again at once, and nobody's to mend.
fn is_conflict(message: &str) -> bool {
    message.contains("the object has been modified")
}

fn told(what: &str, message: &str) -> String {
    let message = message.trim();
    if message.is_empty() { format!("{what}.") } else { format!("{what}: {}", message.trim_end_matches('.').to_owned() + ".") }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{CdiCondition, ImportFacts, ImporterFacts, Told, import_trouble};
    use crate::rules::Reason;

    const OK: ImporterFacts = ImporterFacts { connected: true, wrong_token: false, tls_failed: false };
    const NEVER: ImporterFacts = ImporterFacts { connected: false, wrong_token: false, tls_failed: false };

    fn condition(reason: &str, message: &str) -> CdiCondition {
        CdiCondition { status: Some(reason == "Pod is running"), reason: reason.to_owned(), message: message.to_owned() }
    }

    fn facts<'a>(phase: &'a str, bound: &'a CdiCondition, running: &'a CdiCondition) -> ImportFacts<'a> {
        ImportFacts {
            phase,
            bound,
            running,
            restarts: 0,
            importer: OK,
            copies: None,
            scratch_class: "replicated",
            told: None,
            is_quiet: false,
        }
    }

    #[rstest]
    #[case("ImportScheduled", "Pending", "ContainerCreating", 0, NEVER, None)]
    #[case("ImportInProgress", "Pending", "Scratch space required", 1, OK, None)]
    #[case("ImportInProgress", "Pending", "Pod is running", 7, OK, None)]
    #[case("ImportInProgress", "CreatingScratchSpace", "", 0, OK, None)]
    #[case("ImportInProgress", "Pending", "OOMKilled", 1, OK, None)]
    #[case("ImportInProgress", "Pending", "OOMKilled", 2, OK, Some(Reason::ImportFailed))]
    #[case("ImportInProgress", "Pending", "Error", 1, OK, Some(Reason::ImportFailed))]
    #[case("ImportInProgress", "Pending", "Error", 1, NEVER, Some(Reason::ImporterNotConnected))]
    #[case("ImportInProgress", "Pending", "ImagePullFailed", 0, NEVER, Some(Reason::ImportFailed))]
    #[case("ImportScheduled", "Pending", "Unschedulable", 0, NEVER, Some(Reason::Unschedulable))]
    #[case("ImportScheduled", "Pending", "ErrStartingPod", 0, NEVER, Some(Reason::ImportFailed))]
    #[case("ImportScheduled", "Pending", "ErrExceededQuota", 0, NEVER, Some(Reason::QuotaExceeded))]
    #[case("Failed", "Pending", "ChecksumError", 0, OK, Some(Reason::ImportFailed))]
    #[case("Pending", "ErrExceededQuota", "", 0, NEVER, Some(Reason::QuotaExceeded))]
    #[case("", "ErrClaimNotValid", "", 0, NEVER, Some(Reason::ImportFailed))]
    #[case("Failed", "ClaimLost", "", 0, OK, Some(Reason::ClaimLost))]
    #[case("PendingPopulation", "Pending", "", 0, NEVER, Some(Reason::ImportStalled))]
    fn r10_table(
        #[case] phase: &str,
        #[case] bound: &str,
        #[case] running: &str,
        #[case] restarts: i64,
        #[case] importer: ImporterFacts,
        #[case] expected: Option<Reason>,
    ) {
        let (bound, running) = (condition(bound, "m"), condition(running, "m"));
        let trouble = import_trouble(ImportFacts { restarts, importer, ..facts(phase, &bound, &running) });
        assert_eq!(trouble.map(|(reason, _)| reason), expected);
    }

    #[rstest]
    #[case::scratch("CreatingScratchSpace", "[prime-u] : no such class", None, Some((Reason::ScratchUnavailable, "StorageClass replicated: [prime-u] : no such class")))]
    #[case::provisioner("Pending", "target PVC x Pending and [prime-u] : pool is full", None, Some((Reason::VolumeNotMade, "pool is full")))]
    #[case::no_words("Pending", "PVC g Pending", None, None)]
    #[case::mount("Pending", "", Some("FailedMount"), Some((Reason::VolumeNotMade, "Pod importer-prime-u (FailedMount): timed out")))]
    #[case::scheduling("Pending", "", Some("FailedScheduling"), Some((Reason::Unschedulable, "timed out")))]
    #[case::other("Pending", "", Some("BackOff"), Some((Reason::ImportStalled, "(BackOff): timed out")))]
    #[case::event_first("Pending", "x and [prime-u] : pool is full", Some("ProvisioningFailed"), Some((Reason::VolumeNotMade, "timed out")))]
    fn r10_when_nothing_moves_the_last_words_count(
        #[case] bound: &str,
        #[case] message: &str,
        #[case] event: Option<&str>,
        #[case] expected: Option<(Reason, &str)>,
    ) {
        let (bound, running) = (condition(bound, message), CdiCondition::default());
        let event = event.map(|reason| Told { about: "Pod importer-prime-u".into(), reason: reason.into(), message: "timed out".into() });
        let facts = ImportFacts { importer: NEVER, told: event.as_ref(), ..facts("ImportScheduled", &bound, &running) };
        assert_eq!(import_trouble(facts), None, "it passes by itself");
        let trouble = import_trouble(ImportFacts { is_quiet: true, ..facts });
        assert_eq!(trouble.as_ref().map(|(reason, _)| *reason), expected.map(|(reason, _)| reason), "{trouble:?}");
        assert!(expected.is_none_or(|(_, words)| trouble.as_ref().is_some_and(|(_, text)| text.contains(words))), "{trouble:?}");
    }

    #[test]
    fn r10_a_conflict_between_controllers_hides_no_cause() {
        let (bound, running) = (condition("Pending", "x and [prime-u] : pool is full"), CdiCondition::default());
        let message =
            "Error saving claim: Operation cannot be fulfilled on persistentvolumeclaims \"g\": the object has been modified; try again";
        let event = Told { about: "PersistentVolumeClaim g".into(), reason: "ProvisioningFailed".into(), message: message.into() };
        let facts = ImportFacts { importer: NEVER, told: Some(&event), is_quiet: true, ..facts("ImportScheduled", &bound, &running) };
        let (reason, text) = import_trouble(facts).expect("trouble");
        assert_eq!((reason, text.as_str()), (Reason::VolumeNotMade, "Storage has not made the volume: pool is full."));
    }

    #[test]
    fn r10_an_importer_that_runs_and_never_comes_is_told_when_nothing_moves() {
        let (bound, running) = (condition("Pending", "x and [prime-u] : no route"), condition("Pod is running", ""));
        let facts = ImportFacts { importer: NEVER, ..facts("ImportInProgress", &bound, &running) };
        assert_eq!(import_trouble(facts), None);
        let (reason, text) = import_trouble(ImportFacts { is_quiet: true, ..facts }).expect("trouble");
        assert_eq!((reason, text.as_str()), (Reason::ImporterNotConnected, "The importer runs and has not reached the spool: no route."));
        assert_eq!(import_trouble(ImportFacts { is_quiet: true, importer: OK, ..facts }), None);
    }

    #[test]
    fn r10_what_the_spool_knows_comes_first() {
        let none = CdiCondition::default();
        let error = CdiCondition { status: Some(false), reason: "Error".into(), message: "x509".into() };
        let facts = |importer| ImportFacts { restarts: 1, importer, ..facts("ImportInProgress", &none, &error) };
        let tls = import_trouble(facts(ImporterFacts { tls_failed: true, ..NEVER })).expect("trouble");
        assert_eq!(tls.0, Reason::ImporterTLSFailed);
        let token = import_trouble(facts(ImporterFacts { wrong_token: true, connected: true, ..NEVER })).expect("trouble");
        assert_eq!(token.0, Reason::ImporterUnauthorized);
        // Another importer's handshake failed at the time: this one says that nobody answers.
        let refused = CdiCondition { message: "connection refused".into(), ..error.clone() };
        let other =
            ImportFacts { importer: ImporterFacts { tls_failed: true, ..NEVER }, ..self::facts("ImportInProgress", &none, &refused) };
        assert_eq!(import_trouble(other).map(|(reason, _)| reason), Some(Reason::ImporterNotConnected));
    }

    #[rstest]
    #[case("", "Error", Some("The copy from the golden g fails: m."))]
    #[case("CloneValidationFailed", "", Some("CDI does not copy the golden g: m."))]
    #[case("CloneWithoutSource", "", None)]
    #[case("", "Populator is running", None)]
    fn a_copy_has_no_importer(#[case] bound: &str, #[case] running: &str, #[case] expected: Option<&str>) {
        let (bound, running) = (condition(bound, "m"), condition(running, "m"));
        let trouble = import_trouble(ImportFacts {
            importer: ImporterFacts { wrong_token: true, tls_failed: true, connected: false },
            copies: Some("g"),
            ..facts("CloneInProgress", &bound, &running)
        });
        assert_eq!(trouble.map(|(_, text)| text).as_deref(), expected);
    }
}
