//! A GoldenImage may name a Secret only if whoever writes it may read that Secret, or anyone who may write
//! GoldenImages could send the daemon's Secrets to a server of his own.

use crate::model::SecretName;

/// A question for the API server, asked as a SubjectAccessReview for the requesting user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretReview {
    /// The daemon's namespace.
    pub namespace: String,
    /// The Secret that is named.
    pub name: SecretName,
}

impl SecretReview {
    /// The verb that is asked about.
    pub const VERB: &str = "get";
    /// The resource that is asked about, of the core group.
    pub const RESOURCE: &str = "secrets";
}

/// What the API server said to a [`SecretReview`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReviewAnswer {
    /// The user may read the Secret.
    Allowed,
    /// The user may not, or the authorizer has no opinion; with its words.
    Denied(String),
    /// It could not be asked; with what went wrong. Unknown is never "allowed".
    Unknown(String),
}

/// Which question a write raises: only a Secret that is newly named does, so that whoever may not read it can still edit the
/// rest. `old` and `new` are `credentialsSecretRef.name` before and after; a source that changes where the credentials go
/// cannot be edited (CEL).
pub fn review_of(old: Option<&SecretName>, new: Option<&SecretName>, namespace: &str) -> Option<SecretReview> {
    let name = new.filter(|new| old != Some(new))?;
    Some(SecretReview { namespace: namespace.to_owned(), name: name.clone() })
}

/// Judges the write by the answer.
///
/// # Errors
/// The refusal, as the user sees it.
pub fn judge(user: &str, review: &SecretReview, answer: &ReviewAnswer) -> Result<(), String> {
    let SecretReview { namespace, name } = review;
    match answer {
        ReviewAnswer::Allowed => Ok(()),
        ReviewAnswer::Denied(words) => {
            let words = if words.is_empty() { String::new() } else { format!(" ({words})") };
            Err(format!(
                "`credentialsSecretRef` names the Secret {namespace}/{name}, which {user:?} may not read{words}: only who may read a Secret may have the daemon send it to an upstream. Ask for `get` on that Secret, or have the hoster name it."
            ))
        }
        ReviewAnswer::Unknown(what) => Err(format!(
            "`credentialsSecretRef` names the Secret {namespace}/{name}, and whether {user:?} may read it could not be found out: {what}. Try again."
        )),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{ReviewAnswer, judge, review_of};
    use crate::model::SecretName;

    fn name(text: Option<&str>) -> Option<SecretName> {
        text.map(|text| text.parse().expect(text))
    }

    #[rstest]
    #[case(None, None, false)]
    #[case(None, Some("a"), true)]
    #[case(Some("a"), Some("a"), false)]
    #[case(Some("a"), Some("b"), true)]
    #[case(Some("a"), None, false)]
    fn only_a_newly_named_secret_is_asked_about(#[case] old: Option<&str>, #[case] new: Option<&str>, #[case] asked: bool) {
        let review = review_of(name(old).as_ref(), name(new).as_ref(), "ns");
        assert_eq!(review.is_some(), asked);
        if let Some(review) = review {
            assert_eq!((review.namespace.as_str(), Some(review.name)), ("ns", name(new)));
        }
    }

    #[rstest]
    #[case(ReviewAnswer::Allowed, None)]
    #[case(ReviewAnswer::Denied(String::new()), Some("may not read:"))]
    #[case(ReviewAnswer::Denied("no role".to_owned()), Some("may not read (no role)"))]
    #[case(ReviewAnswer::Unknown("timeout".to_owned()), Some("could not be found out: timeout"))]
    fn unknown_is_never_allowed(#[case] answer: ReviewAnswer, #[case] refusal: Option<&str>) {
        let review = review_of(None, name(Some("reg")).as_ref(), "ns").expect("asked");
        match (judge("jane", &review, &answer), refusal) {
            (Ok(()), None) => {}
            (Err(text), Some(expected)) => assert!(text.contains(expected) && text.contains("ns/reg") && text.contains("jane"), "{text}"),
            (got, expected) => panic!("{got:?} {expected:?}"),
        }
    }
}
