//! What it means when the API server does not take an object that an import needs.

use super::Reason;
use crate::model::redact;

/// What the API server answered.
#[derive(Debug, Clone, Copy, Default)]
pub struct Answer<'a> {
    /// The HTTP status.
    pub code: u16,
    /// The machine's reason, such as `Forbidden`.
    pub reason: &'a str,
    /// Its words.
    pub message: &'a str,
}

/// R10: why an object was refused, where somebody must do something about it; `None` where asking again is all there is to do
/// (the API server is busy, restarting, or saw a conflict).
///
/// A quota, a policy, a webhook that refuses or does not answer, missing rights, a missing namespace, and a field that this
/// CDI does not know are all answers of the API server and nothing that CDI would ever tell.
pub fn refusal(what: &str, answer: Answer<'_>) -> Option<(Reason, String)> {
    let Answer { code, message, .. } = answer;
    let reason = match code {
        403 if message.contains("exceeded quota") => Reason::QuotaExceeded,
        400 | 422 if message.contains("unknown field") => Reason::CDIUnsupported,
        // A webhook that does not answer is a 500 with these words (`apiserver/pkg/admission/plugin/webhook/errors`).
        500 if !message.contains("failed calling webhook") => return None,
        409 | 429 | 503 | 504 => return None,
        400..=599 => Reason::CreateRefused,
        _ => return None,
    };
    let told = if message.is_empty() { format!("HTTP {code} {}", answer.reason) } else { redact(message) };
    Some((reason, format!("The API server refuses {what}: {}.", told.trim().trim_end_matches('.'))))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{Answer, refusal};
    use crate::rules::Reason;

    #[rstest]
    #[case::quota(
        403,
        "datavolumes.cdi.kubevirt.io \"a\" is forbidden: exceeded quota: small, requested: count/datavolumes=1",
        Some(Reason::QuotaExceeded)
    )]
    #[case::policy(422, "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no", Some(Reason::CreateRefused))]
    #[case::webhook(403, "admission webhook \"w\" denied the request: no", Some(Reason::CreateRefused))]
    #[case::webhook_away(500, "Internal error occurred: failed calling webhook \"w\": connection refused", Some(Reason::CreateRefused))]
    #[case::rights(403, "datavolumes.cdi.kubevirt.io is forbidden: User \"x\" cannot create resource", Some(Reason::CreateRefused))]
    #[case::no_namespace(404, "namespaces \"cozy-public\" not found", Some(Reason::CreateRefused))]
    #[case::other_cdi(400, "strict decoding error: unknown field \"spec.source.http.secretExtraHeaders\"", Some(Reason::CDIUnsupported))]
    #[case::busy(429, "too many requests", None)]
    #[case::away(503, "", None)]
    #[case::etcd(500, "etcdserver: leader changed", None)]
    #[case::conflict(409, "already exists", None)]
    #[case::fine(200, "", None)]
    fn r10_a_refused_object(#[case] code: u16, #[case] message: &str, #[case] expected: Option<Reason>) {
        let found = refusal("the DataVolume a", Answer { code, reason: "R", message });
        assert_eq!(found.as_ref().map(|(reason, _)| *reason), expected, "{found:?}");
        assert!(found.is_none_or(|(_, text)| text.starts_with("The API server refuses the DataVolume a: ") && text.ends_with('.')));
    }

    #[test]
    fn what_it_quotes_is_redacted() {
        let message = "admission webhook \"w\" denied the request: url https://s:8443/v1/disks/0123 with Bearer 4567 is not allowed";
        let (_, text) = refusal("the DataVolume a", Answer { code: 403, reason: "Forbidden", message }).expect("refused");
        assert!(!text.contains("0123") && !text.contains("4567") && text.contains("is not allowed"), "{text}");
    }
}
