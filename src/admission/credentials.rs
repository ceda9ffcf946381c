//! A GoldenImage may name a Secret only if its author may read it: asked of the API server for the requesting user. This webhook fails closed, unlike the one for the rest of a GoldenImage.

use std::time::Duration;

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::{Api, Client, api::PostParams};
use serde::Deserialize;

use super::{
    Answer,
    review::{self, Object, Request},
};
use crate::{
    model::SecretName,
    rules::{
        clone::{Known, Unknown},
        secret_review::{ReviewAnswer, SecretReview, judge, review_of},
    },
    run::api_error,
};

/// A GoldenImage, as far as it names a Secret.
#[derive(Deserialize)]
struct Naming {
    spec: NamingSpec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NamingSpec {
    credentials_secret_ref: Option<SecretRef>,
}

#[derive(Deserialize)]
struct SecretRef {
    name: Option<String>,
}

/// The Secret that a GoldenImage names.
fn named_secret(object: Option<&Object>) -> Known<Option<String>> {
    let naming: Option<Naming> = object.map(|object| review::read(object)).transpose()?;
    Ok(naming.and_then(|naming| naming.spec.credentials_secret_ref?.name))
}

/// Decides whether whoever asks may have the daemon use the Secret that is named.
pub async fn judge_credentials(request: &Request, client: &Client, namespace: &str, daemon: &str) -> Answer {
    // Entries of values are the hoster's own.
    if request.user_info.username == daemon {
        return Answer::allow();
    }
    let new = match named_secret(request.object.as_ref()) {
        Ok(Some(new)) => new,
        Ok(None) => return Answer::allow(),
        Err(unknown) => return unknown.into(),
    };
    let new: SecretName = match new.parse() {
        Ok(new) => new,
        Err(error) => return Answer::Refuse(format!("`spec.credentialsSecretRef.name`: {error}")),
    };
    let old: Option<SecretName> = named_secret(request.old_object.as_ref()).ok().flatten().and_then(|name| name.parse().ok());
    let Some(review) = review_of(old.as_ref(), Some(&new), namespace) else { return Answer::allow() };
    let answer = ask(request, client, &review).await;
    match (judge(&request.user_info.username, &review, &answer), answer) {
        (Ok(()), _) => Answer::allow(),
        (Err(words), ReviewAnswer::Unknown(_)) => Unknown(words).into(),
        (Err(words), _) => Answer::Refuse(words),
    }
}

async fn ask(request: &Request, client: &Client, review: &SecretReview) -> ReviewAnswer {
    let user = &request.user_info;
    let spec = SubjectAccessReviewSpec {
        user: Some(user.username.clone()),
        uid: Some(user.uid.clone()).filter(|uid| !uid.is_empty()),
        groups: Some(user.groups.clone()),
        extra: Some(user.extra.clone()),
        resource_attributes: Some(ResourceAttributes {
            namespace: Some(review.namespace.clone()),
            name: Some(review.name.to_string()),
            verb: Some(SecretReview::VERB.to_owned()),
            resource: Some(SecretReview::RESOURCE.to_owned()),
            ..ResourceAttributes::default()
        }),
        ..SubjectAccessReviewSpec::default()
    };
    let api: Api<SubjectAccessReview> = Api::all(client.clone());
    let asked = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
    match tokio::time::timeout(Duration::from_secs(2), api.create(&PostParams::default(), &asked)).await {
        Ok(Ok(answered)) => match answered.status {
            Some(status) if status.allowed => ReviewAnswer::Allowed,
            Some(status) => ReviewAnswer::Denied(status.reason.unwrap_or_default()),
            None => ReviewAnswer::Unknown("the API server gave no answer".to_owned()),
        },
        Ok(Err(error)) => ReviewAnswer::Unknown(api_error(&error)),
        Err(_) => ReviewAnswer::Unknown("the API server did not answer in time".to_owned()),
    }
}
