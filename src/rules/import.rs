//! R10: what CDI's words about an import mean.
//!
//! CDI almost never says `Failed` (`reference/cdi.md`, section 1): a dead importer is `ImportInProgress` for ever. The words
//! below are those of CDI v1.64; what is not known counts as work under way, and the deadline catches it.

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
}

/// R10: the trouble an import is in, or `None` where it goes its way. The normal restart for scratch space is no trouble.
pub fn import_trouble(facts: ImportFacts<'_>) -> Option<(Reason, String)> {
    let ImportFacts { phase, bound, running, restarts, importer } = facts;
    if importer.tls_failed && !importer.connected {
        return Some((Reason::ImporterTLSFailed, "The importer does not accept the spool's certificate.".to_owned()));
    }
    if importer.wrong_token {
        return Some((Reason::ImporterUnauthorized, "The importer asked the spool with a wrong token.".to_owned()));
    }
    match bound.reason.as_str() {
        "ErrExceededQuota" => return Some((Reason::QuotaExceeded, told("CDI could not create a volume", &bound.message))),
        "ErrClaimNotValid" => return Some((Reason::ImportFailed, told("CDI cannot make a volume from the DataVolume", &bound.message))),
        "ClaimLost" => return Some((Reason::ClaimLost, told("The golden's claim is lost", &bound.message))),
        _ => {}
    }
    match running.reason.as_str() {
        "Unschedulable" => return Some((Reason::Unschedulable, told("The importer pod cannot be scheduled", &running.message))),
        "ErrExceededQuota" => return Some((Reason::QuotaExceeded, told("CDI could not create the importer pod", &running.message))),
        "ErrStartingPod" => return Some((Reason::ImportFailed, told("The importer pod could not be created", &running.message))),
        "ImagePullFailed" => return Some((Reason::ImportFailed, told("The importer pod's own image cannot be pulled", &running.message))),
        "OOMKilled" if restarts > 1 => return Some((Reason::ImportFailed, told("The importer ran out of memory", &running.message))),
        "Error" if running.status != Some(true) => {
            if !importer.connected {
                return Some((Reason::ImporterNotConnected, told("The importer fails and has not reached the spool", &running.message)));
            }
            return Some((Reason::ImportFailed, told(&format!("The importer fails (restarted {restarts} times)"), &running.message)));
        }
        _ => {}
    }
    match phase {
        "PendingPopulation" | "WaitForFirstConsumer" => Some((
            Reason::ImportStalled,
            format!(
                "CDI waits for a first consumer ({phase}) although immediate binding was asked for; the class binds with WaitForFirstConsumer."
            ),
        )),
        _ => None,
    }
}

fn told(what: &str, message: &str) -> String {
    let message = message.trim();
    if message.is_empty() { format!("{what}.") } else { format!("{what}: {}", message.trim_end_matches('.').to_owned() + ".") }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{CdiCondition, ImportFacts, ImporterFacts, import_trouble};
    use crate::rules::Reason;

    const OK: ImporterFacts = ImporterFacts { connected: true, wrong_token: false, tls_failed: false };
    const NEVER: ImporterFacts = ImporterFacts { connected: false, wrong_token: false, tls_failed: false };

    #[rstest]
    #[case("ImportScheduled", "Pending", "ContainerCreating", 0, NEVER, None)]
    #[case("ImportInProgress", "Pending", "Scratch space required", 1, OK, None)]
    #[case("ImportInProgress", "Pending", "Pod is running", 7, OK, None)]
    #[case("ImportInProgress", "Pending", "OOMKilled", 1, OK, None)]
    #[case("ImportInProgress", "Pending", "OOMKilled", 2, OK, Some(Reason::ImportFailed))]
    #[case("ImportInProgress", "Pending", "Error", 1, OK, Some(Reason::ImportFailed))]
    #[case("ImportInProgress", "Pending", "Error", 1, NEVER, Some(Reason::ImporterNotConnected))]
    #[case("ImportInProgress", "Pending", "ImagePullFailed", 0, NEVER, Some(Reason::ImportFailed))]
    #[case("ImportScheduled", "Pending", "Unschedulable", 0, NEVER, Some(Reason::Unschedulable))]
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
        let condition =
            |reason: &str| CdiCondition { status: Some(reason == "Pod is running"), reason: reason.to_owned(), message: "m".to_owned() };
        let (bound, running) = (condition(bound), condition(running));
        let trouble = import_trouble(ImportFacts { phase, bound: &bound, running: &running, restarts, importer });
        assert_eq!(trouble.map(|(reason, _)| reason), expected);
    }

    #[test]
    fn r10_what_the_spool_knows_comes_first() {
        let none = CdiCondition::default();
        let error = CdiCondition { status: Some(false), reason: "Error".into(), message: "x509".into() };
        let facts = |importer| ImportFacts { phase: "ImportInProgress", bound: &none, running: &error, restarts: 1, importer };
        let tls = import_trouble(facts(ImporterFacts { tls_failed: true, ..NEVER })).expect("trouble");
        assert_eq!(tls.0, Reason::ImporterTLSFailed);
        let token = import_trouble(facts(ImporterFacts { wrong_token: true, ..NEVER })).expect("trouble");
        assert_eq!(token.0, Reason::ImporterUnauthorized);
    }
}
