//! The `AdmissionReview` of `admission.k8s.io/v1`, as far as it is read and written here.

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json, value::RawValue};

use super::{Answer, patch::Operation};
use crate::rules::clone::{Known, Unknown};

/// An object of a question, as text: a tenant writes megabytes of it, and read is only what is needed.
pub type Object = Box<RawValue>;

/// What the API server is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verb {
    /// An object is to be created.
    Create,
    /// An object is to be changed.
    Update,
    /// An object is to be deleted.
    Delete,
    /// A connection to an object, such as `exec`.
    Connect,
}

/// Group, version and kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct GroupKind {
    /// The group, empty for the core one.
    #[serde(default)]
    pub group: String,
    /// The kind.
    pub kind: String,
}

/// Who asks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct User {
    /// The name; a ServiceAccount is `system:serviceaccount:NAMESPACE:NAME`.
    #[serde(default)]
    pub username: String,
    /// The UID.
    #[serde(default)]
    pub uid: String,
    /// Groups.
    #[serde(default)]
    pub groups: Vec<String>,
    /// What the authenticator adds.
    #[serde(default)]
    pub extra: std::collections::BTreeMap<String, Vec<String>>,
}

/// One question.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// To be repeated in the answer.
    pub uid: String,
    /// The object's kind.
    pub kind: GroupKind,
    /// The object's name; may be empty where it is still to be generated.
    #[serde(default)]
    pub name: String,
    /// The object's namespace.
    #[serde(default)]
    pub namespace: String,
    /// What is to be done.
    pub operation: Verb,
    /// Who asks.
    #[serde(default)]
    pub user_info: User,
    /// The object as it would be; absent on deletion.
    #[serde(default)]
    pub object: Option<Object>,
    /// The object as it is; absent on creation.
    #[serde(default)]
    pub old_object: Option<Object>,
}

/// What is read of an object.
///
/// # Errors
/// When it is not of that form.
pub fn read<T: DeserializeOwned>(object: &RawValue) -> Known<T> {
    serde_json::from_str(object.get()).map_err(|error| Unknown(format!("the object cannot be read: {error}")))
}

/// Why a body is no question.
#[derive(Debug, thiserror::Error)]
pub enum NotAReview {
    /// It is no JSON of the form.
    #[error("the body is no AdmissionReview: {0}")]
    Form(#[from] serde_json::Error),
    /// Another version.
    #[error("AdmissionReview {0:?} is not understood: only admission.k8s.io/v1 is")]
    Version(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review {
    api_version: String,
    request: Request,
}

impl Request {
    /// Reads a body.
    ///
    /// # Errors
    /// When it is no `AdmissionReview` of version `v1`.
    pub fn read(body: &[u8]) -> Result<Self, NotAReview> {
        let review: Review = serde_json::from_slice(body)?;
        if review.api_version != "admission.k8s.io/v1" {
            return Err(NotAReview::Version(review.api_version.chars().take(64).collect()));
        }
        Ok(review.request)
    }
}

/// The longest message of an answer, in characters: whoever reads it is a person with a terminal.
const LONGEST: usize = 4096;

fn cut(text: &str) -> String {
    if text.chars().nth(LONGEST).is_none() {
        return text.to_owned();
    }
    text.chars().take(LONGEST - 1).chain(['…']).collect()
}

/// The answer as the API server reads it.
pub fn response(uid: &str, answer: &Answer) -> Value {
    let status =
        |code: u16, reason: &str, message: &str| json!({ "status": "Failure", "code": code, "reason": reason, "message": cut(message) });
    let body = match answer {
        Answer::Allow { patch, warnings } => {
            let mut body = json!({ "uid": uid, "allowed": true });
            // An empty patch is no patch.
            if !patch.is_empty() {
                body["patchType"] = "JSONPatch".into();
                body["patch"] = encode(patch).into();
            }
            if !warnings.is_empty() {
                body["warnings"] = warnings.iter().map(|warning| cut(warning)).collect();
            }
            body
        }
        Answer::Refuse(message) => json!({ "uid": uid, "allowed": false, "status": status(403, "Forbidden", message) }),
        Answer::Later(message) => {
            let mut status = status(503, "ServiceUnavailable", message);
            status["details"] = json!({ "retryAfterSeconds": 1 });
            json!({ "uid": uid, "allowed": false, "status": status })
        }
    };
    json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": body })
}

fn encode(patch: &[Operation]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(json!(patch).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_api_server_sends_and_nothing_else() {
        let body = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "u", "kind": {"group": "cdi.kubevirt.io", "version": "v1beta1", "kind": "DataVolume"}, "operation": "UPDATE", "namespace": "a",
            "userInfo": {"username": "x", "groups": ["g"], "extra": {"k": ["v"]}}, "object": {"spec": {}}, "oldObject": null, "dryRun": true, "options": {}}});
        let request = Request::read(body.to_string().as_bytes()).expect("a review");
        assert_eq!((request.operation, request.user_info.groups.as_slice()), (Verb::Update, ["g".to_owned()].as_slice()));
        assert!(request.object.is_some() && request.old_object.is_none() && request.name.is_empty());
        for bad in ["", "{}", "[]", &body.to_string().replace("/v1\"", "/v1beta1\""), &body.to_string().replace("UPDATE", "BREAK")] {
            assert!(Request::read(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn answers_carry_a_code_and_long_texts_are_cut() {
        let refused = response("u", &Answer::Refuse("é".repeat(LONGEST + 1)));
        assert_eq!(refused["response"]["status"]["code"], 403);
        assert_eq!(refused["response"]["status"]["message"].as_str().map(|text| text.chars().count()), Some(LONGEST));
        let later = response("u", &Answer::Later("not read".into()));
        assert_eq!((later["response"]["allowed"].as_bool(), &later["response"]["status"]["code"]), (Some(false), &json!(503)));
        let allowed = response("u", &Answer::allow());
        assert_eq!(allowed["response"], json!({ "uid": "u", "allowed": true }));
        let patched = Answer::Allow { patch: vec![Operation::add("/a".into(), "b".into())], warnings: vec!["w".into()] };
        let patched = response("u", &patched);
        assert_eq!((patched["response"]["patchType"].as_str(), &patched["response"]["warnings"]), (Some("JSONPatch"), &json!(["w"])));
    }
}
