//! What callers of the webhook trust: what its configurations tell the API server.

use super::Served;
use crate::run::api_error;
use k8s_openapi::{
    ByteString,
    api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    jiff::Timestamp,
};
use kube::{Api, Client};
use std::time::Duration;

/// The longest a look may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Whether callers trust a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// All do.
    Trusted,
    /// Some do not: its CA is not published to them yet.
    Untrusted,
    /// Nobody is told anything, or we may not see what.
    Nothing,
    /// It could not be seen this time.
    Unknown,
}

impl Told {
    /// What follows from the CAs that each caller is told, of each kind of configuration.
    fn of(kinds: [Result<Vec<Option<ByteString>>, Self>; 2], served: &Served, now: Timestamp) -> Self {
        let trusts = |bundle: &Option<ByteString>| bundle.as_ref().is_some_and(|bundle| served.is_vouched_for(&bundle.0, now));
        let bundles: Vec<_> = kinds.iter().flatten().flatten().collect();
        if bundles.iter().any(|bundle| !trusts(bundle)) {
            Self::Untrusted
        } else if kinds.contains(&Err(Self::Unknown)) {
            Self::Unknown
        } else if bundles.is_empty() {
            Self::Nothing
        } else {
            Self::Trusted
        }
    }
}

/// Looks at the webhook configurations of this name.
pub(super) async fn told(client: &Client, name: &str, served: &Served) -> Told {
    let mutating = async {
        let found = Api::<MutatingWebhookConfiguration>::all(client.clone()).get(name).await.map_err(unseen)?;
        Ok(found.webhooks.into_iter().flatten().map(|webhook| webhook.client_config.ca_bundle).collect())
    };
    let validating = async {
        let found = Api::<ValidatingWebhookConfiguration>::all(client.clone()).get(name).await.map_err(unseen)?;
        Ok(found.webhooks.into_iter().flatten().map(|webhook| webhook.client_config.ca_bundle).collect())
    };
    let look = async { tokio::join!(mutating, validating) };
    match tokio::time::timeout(PATIENCE, look).await {
        Ok((mutating, validating)) => Told::of([mutating, validating], served, Timestamp::now()),
        Err(_) => Told::Unknown,
    }
}

/// What not being shown a configuration says.
fn unseen(error: kube::Error) -> Told {
    match &error {
        kube::Error::Api(status) if matches!(status.code, 403 | 404) => Told::Nothing,
        _ => {
            tracing::debug!(error = api_error(&error), "the webhook configurations cannot be read");
            Told::Unknown
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::certs::{Action, Profile, issue};

    #[test]
    fn one_caller_that_does_not_trust_it_is_one_too_many() {
        let profile = Profile::new(vec!["a.test".to_owned()]);
        let issued = || issue::apply(&Action::Issue, "s", None, None, &profile, Timestamp::now()).unwrap();
        let (ours, other) = (Served::load("s", &issued()).unwrap(), Served::load("s", &issued()).unwrap());
        let pem = |text: &str| Some(ByteString(text.as_bytes().to_vec()));
        let (trusts, not) = (pem(ours.bundle()), pem(other.bundle()));
        let both = pem(&format!("{}{}", other.bundle(), ours.bundle()));
        for (mutating, validating, expected) in [
            (Ok(vec![trusts.clone()]), Ok(vec![both.clone(), trusts.clone()]), Told::Trusted),
            (Ok(vec![trusts.clone()]), Ok(vec![both, not.clone()]), Told::Untrusted),
            (Ok(vec![trusts.clone()]), Ok(vec![None]), Told::Untrusted),
            (Ok(vec![trusts.clone()]), Ok(vec![pem("hello")]), Told::Untrusted),
            (Ok(vec![trusts.clone()]), Err(Told::Nothing), Told::Trusted),
            (Ok(vec![trusts.clone()]), Err(Told::Unknown), Told::Unknown),
            (Err(Told::Unknown), Ok(vec![not]), Told::Untrusted),
            (Err(Told::Nothing), Err(Told::Unknown), Told::Unknown),
            (Err(Told::Nothing), Err(Told::Nothing), Told::Nothing),
            (Ok(vec![]), Err(Told::Nothing), Told::Nothing),
        ] {
            assert_eq!(Told::of([mutating.clone(), validating.clone()], &ours, Timestamp::now()), expected, "{mutating:?} {validating:?}");
        }
    }
}
