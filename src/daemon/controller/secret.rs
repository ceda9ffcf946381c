//! The one place that reads an upstream's credentials: from the daemon's own namespace, when an attempt begins, for that
//! attempt only.

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};

use crate::{
    golden::FetchView,
    model::{SecretName, Source},
    rules::Reason,
    run::api_error,
    source::{Credentials, SecretError, credentials_for},
};

/// A Secret that an image names, yet to be read.
pub(super) struct SecretOf {
    pub client: Client,
    pub namespace: String,
    /// `None` where the image names none.
    pub name: Option<SecretName>,
    pub source: Source,
}

/// Why there are no credentials. No message holds anything of the Secret's values.
#[derive(Debug, thiserror::Error)]
pub(super) enum CredentialsError {
    /// It is not there.
    #[error("The Secret {0} (`credentialsSecretRef`) does not exist")]
    NotFound(String),
    /// It could not be read.
    #[error("The Secret {0} (`credentialsSecretRef`) could not be read: {1}")]
    Unread(String, String),
    /// It does not hold what is needed.
    #[error("{0}")]
    Content(#[from] SecretError),
}

impl CredentialsError {
    pub fn reason(&self) -> Reason {
        match self {
            Self::Unread(..) => Reason::Unavailable,
            Self::NotFound(_) => Reason::ReferenceNotFound,
            Self::Content(error) => error.reason(),
        }
    }

    /// The same as the end of a job.
    pub fn view(&self) -> FetchView {
        FetchView::Failed { reason: self.reason(), message: format!("{self}."), retry_after: None }
    }
}

impl SecretOf {
    /// What the upstream is shown: nothing where no Secret is named, and never nothing where one is.
    pub async fn read(&self) -> Result<Vec<Credentials>, CredentialsError> {
        let Some(name) = &self.name else { return Ok(Vec::new()) };
        let shown = format!("{}/{name}", self.namespace);
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let secret = api.get_opt(name.as_str()).await.map_err(|error| CredentialsError::Unread(shown.clone(), api_error(&error)))?;
        let secret = secret.ok_or(CredentialsError::NotFound(shown))?;
        let data = secret.data.unwrap_or_default();
        let get = |key: &str| data.get(key).map(|value| value.0.as_slice());
        Ok(credentials_for(&self.namespace, name, secret.type_.as_deref().unwrap_or_default(), get, &self.source)?)
    }
}
