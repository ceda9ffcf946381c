//! Secrets from a manifest, so that `plan` can ask about images whose credentials are in the cluster.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Secret;

use super::lines::{Kind, Node, documents};
use crate::{
    model::{SecretName, Source},
    source::{Credentials, SecretError, credentials_for},
};

/// The Secrets that were given, by name. Whose namespace they are of is not asked: there is one of the daemon.
#[derive(Default)]
pub(super) struct Secrets(BTreeMap<String, Secret>);

impl Secrets {
    /// Reads manifests, as `kubectl get secret NAME -o yaml` prints them; objects of other kinds are passed over.
    ///
    /// # Errors
    /// What is wrong with the file, and in which line. Nothing of what a Secret holds is repeated.
    pub fn read(file: &str, text: &str) -> Result<Self, String> {
        let documents = documents(text).map_err(|what| format!("{file} is not valid YAML: {what}"))?;
        let mut secrets = Self::default();
        for document in &documents {
            match document.get("items").and_then(Node::items) {
                Some(items) => items.iter().try_for_each(|item| secrets.take(file, item))?,
                None => secrets.take(file, document)?,
            }
        }
        if secrets.0.is_empty() {
            Err(format!("{file} holds no Secret: give it as `kubectl get secret NAME -o yaml` prints it"))
        } else {
            Ok(secrets)
        }
    }

    fn take(&mut self, file: &str, node: &Node) -> Result<(), String> {
        if !matches!(node.kind, Kind::Map(_)) || node.get("kind").and_then(Node::text) != Some("Secret") {
            return Ok(());
        }
        let wrong = |what: &str| format!("{file}:{}: {what}", node.line);
        // What serde says of a wrong value may repeat it.
        let mut secret: Secret =
            serde_json::from_value(node.value()).map_err(|_| wrong("this is no Secret: `data` must hold base64, `stringData` text"))?;
        let name = secret.metadata.name.clone().ok_or_else(|| wrong("the Secret has no name"))?;
        let written = secret.string_data.take().unwrap_or_default();
        let written = written.into_iter().map(|(key, value)| (key, k8s_openapi::ByteString(value.into_bytes())));
        secret.data.get_or_insert_default().extend(written);
        match self.0.insert(name, secret) {
            None => Ok(()),
            Some(_) => Err(wrong("a Secret of this name was given before")),
        }
    }

    /// Whether none was given.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What an upstream is shown: `None` where the Secret was not given.
    ///
    /// # Errors
    /// As the daemon's, which reads Secrets by the same function.
    pub fn credentials(&self, name: &SecretName, source: &Source) -> Option<Result<Vec<Credentials>, SecretError>> {
        let secret = self.0.get(name.as_str())?;
        let get = |key: &str| secret.data.as_ref()?.get(key).map(|value| value.0.as_slice());
        let namespace = secret.metadata.namespace.as_deref().unwrap_or("default");
        Some(credentials_for(namespace, name, secret.type_.as_deref().unwrap_or_default(), get, source))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::Secrets;
    use crate::model::{Architecture, Source};

    fn count(text: &str, name: &str) -> Option<Result<usize, String>> {
        let source = Source::Http { url: "https://up.example/a.qcow2".parse().expect("url"), architecture: Architecture::Amd64 };
        let secrets = Secrets::read("s.yaml", text).expect("read");
        Some(secrets.credentials(&name.parse().expect("name"), &source)?.map(|found| found.len()).map_err(|error| error.to_string()))
    }

    const TOKEN: &str = "apiVersion: v1\nkind: Secret\nmetadata: {name: a, namespace: ns}\ntype: Opaque\ndata: {token: aHVudGVyMg==}\n";

    #[test]
    fn secrets_are_read_as_kubectl_prints_them_and_as_people_write_them() {
        assert_eq!(count(TOKEN, "a"), Some(Ok(1)));
        assert_eq!(count(TOKEN, "b"), None);
        let written = "kind: Secret\nmetadata: {name: a}\ntype: kubernetes.io/basic-auth\nstringData: {username: u, password: p}\n";
        assert_eq!(count(written, "a"), Some(Ok(1)));
        let list =
            "kind: List\nitems:\n- {kind: ConfigMap, metadata: {name: a}}\n- {kind: Secret, metadata: {name: a}, stringData: {token: t}}\n";
        assert_eq!(count(list, "a"), Some(Ok(1)));
        let empty = count("kind: Secret\nmetadata: {name: a, namespace: ns}\n", "a").expect("given").expect_err("empty");
        assert!(empty.contains("ns/a") && empty.contains("`token`"), "{empty}");
    }

    #[rstest]
    #[case("", "holds no Secret")]
    #[case("kind: ConfigMap\n", "holds no Secret")]
    #[case("kind: Secret\ndata: {token: 'hunter2 is no base64'}\n", "s.yaml:1: this is no Secret")]
    #[case("kind: Secret\nstringData: {token: t}\n", "has no name")]
    #[case(
        "kind: Secret\nmetadata: {name: a}\n---\nkind: Secret\nmetadata: {name: a}\n",
        "s.yaml:4: a Secret of this name was given before"
    )]
    #[case("kind: [hunter2\n", "not valid YAML")]
    fn what_is_wrong_with_the_file_is_told_without_what_it_holds(#[case] text: &str, #[case] expected: &str) {
        let error = Secrets::read("s.yaml", text).err().expect(expected);
        assert!(error.contains(expected) && !error.contains("hunter2"), "{error}");
    }
}
