//! What the API server's audit log says of the requests it answered: who, what, by which role.

use super::Cluster;
use serde_json::Value;
use std::io::{Read, Seek, SeekFrom};

/// A place in the audit log; see [`Cluster::audit_mark`].
#[derive(Debug, Clone, Copy)]
pub struct Mark(u64);

/// One answered request. A watch is there twice: when it began and when it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The user; a ServiceAccount is `system:serviceaccount:NAMESPACE:NAME`.
    pub user: String,
    /// The program that asked.
    pub user_agent: String,
    /// get, list, watch, create, update, patch, delete, deletecollection.
    pub verb: String,
    /// The API group, empty for the core one.
    pub group: String,
    /// The plural, empty for a request that is about no resource.
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    /// The HTTP status answered.
    pub code: u16,
    /// The path and query asked for; the query names the field manager.
    pub uri: String,
    /// Which binding and role allowed it, in the authorizer's words (`RBAC: allowed by …`); empty for `system:masters`.
    pub allowed_by: String,
    /// The authorizer's decision: `allow` or `forbid`.
    pub decision: String,
    /// `RequestReceived` is left out; `ResponseStarted` is the begin of a watch, `ResponseComplete` all else.
    pub stage: String,
}

impl Request {
    /// Whether it asks for a change.
    pub fn is_write(&self) -> bool {
        matches!(self.verb.as_str(), "create" | "update" | "patch" | "delete" | "deletecollection")
    }

    /// Whether the ServiceAccount of this name asked.
    pub fn is_by(&self, namespace: &str, service_account: &str) -> bool {
        self.user == format!("system:serviceaccount:{namespace}:{service_account}")
    }

    /// Whether the authorizer refused it; a quota or a webhook answers with the same status.
    pub fn is_forbidden(&self) -> bool {
        self.decision == "forbid"
    }

    /// One line of the log.
    pub fn parse(line: &str) -> Self {
        let event: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("a line of the audit log: {error}: {line}"));
        let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        Self {
            user: text("/user/username"),
            user_agent: text("/userAgent"),
            verb: text("/verb"),
            group: text("/objectRef/apiGroup"),
            resource: text("/objectRef/resource"),
            subresource: text("/objectRef/subresource"),
            namespace: text("/objectRef/namespace"),
            name: text("/objectRef/name"),
            code: event.pointer("/responseStatus/code").and_then(Value::as_u64).unwrap_or_default() as u16,
            uri: text("/requestURI"),
            allowed_by: text("/annotations/authorization.k8s.io~1reason"),
            decision: text("/annotations/authorization.k8s.io~1decision"),
            stage: text("/stage"),
        }
    }
}

impl Cluster {
    /// The present end of the audit log: whatever was answered before is before the mark. Needs the private control plane.
    pub async fn audit_mark(&self) -> Mark {
        Mark(self.audit_fence().await)
    }

    /// The requests answered since the mark, in the order they were logged.
    pub async fn requests_since(&self, mark: Mark) -> Vec<Request> {
        let end = self.audit_fence().await;
        let text = self.read_audit(mark.0);
        // What is logged behind the fence may be half a line yet.
        let whole = &text[..usize::try_from(end - mark.0).expect("a log that fits")];
        let mut requests = whole.lines().map(Request::parse).collect::<Vec<_>>();
        requests.retain(|request| !request.uri.contains("e2e-fence"));
        requests
    }

    /// Asks something recognisable and waits until the log has it: what was answered before is then in the log. Gives the place behind it.
    async fn audit_fence(&self) -> u64 {
        let fence = format!("/version?e2e-fence={}", super::unique());
        let before = std::fs::metadata(self.control_plane().audit_log()).map(|m| m.len()).unwrap_or_default();
        let request = http::Request::get(&fence).body(Vec::new()).expect("a request for /version");
        self.admin().request_text(request).await.expect("ask for the version");
        super::eventually("the audit log has the last request", || async {
            let text = self.read_audit(before);
            let end = text.find(&fence).and_then(|at| Some(at + text[at..].find('\n')? + 1));
            end.map(|end| before + end as u64).ok_or_else(|| "not yet".to_owned())
        })
        .await
    }

    fn read_audit(&self, offset: u64) -> String {
        let mut file = std::fs::File::open(self.control_plane().audit_log()).expect("open the audit log");
        file.seek(SeekFrom::Start(offset)).expect("seek in the audit log");
        let mut text = String::new();
        file.read_to_string(&mut text).expect("read the audit log");
        text
    }
}
