//! The consumer ledger filled from the API server itself, once: for the moment in which a cache, however fresh, is not enough (R23).

use std::time::Duration;

use kube::{Client, Resource, api::ListParams, core::Request};
use serde::de::DeserializeOwned;

use super::{
    evidence::Observe,
    ledger::{Kind, Ledger},
    watch::{Item, page},
};
use crate::{
    foreign::{
        Claim, DataSource, DataVolume, KubevirtMachineTemplate, MachineDeployment, MachineDeploymentV1Beta2, MachineSet, MachineSetV1Beta2,
        VirtualMachine, VolumeCloneSource, VolumeSnapshot, WorkerClass,
    },
    rules::clone::{Known, Unknown},
    run::{api_error, backoff::Backoff, client::READ_TIMEOUT},
};

/// Objects in a page.
const PAGE: u32 = 500;

/// Lists every kind of consumer. Each list is consistent: it shows whatever was written before it was asked for.
///
/// # Errors
/// When any kind could not be listed whole; a kind that is not installed has no objects.
pub async fn fresh_ledger(client: &Client, catalog_namespace: &str) -> Known<Ledger> {
    let mut ledger = Ledger::new(catalog_namespace);
    fill::<DataVolume>(client, &mut ledger).await?;
    fill::<Claim>(client, &mut ledger).await?;
    fill::<VolumeSnapshot>(client, &mut ledger).await?;
    fill::<VirtualMachine>(client, &mut ledger).await?;
    fill::<KubevirtMachineTemplate>(client, &mut ledger).await?;
    if !fill::<MachineDeployment>(client, &mut ledger).await? {
        fill::<MachineDeploymentV1Beta2>(client, &mut ledger).await?;
    }
    if !fill::<MachineSet>(client, &mut ledger).await? {
        fill::<MachineSetV1Beta2>(client, &mut ledger).await?;
    }
    fill::<VolumeCloneSource>(client, &mut ledger).await?;
    fill::<DataSource>(client, &mut ledger).await?;
    fill::<WorkerClass>(client, &mut ledger).await?;
    ledger.known(&Kind::ALL)?;
    Ok(ledger)
}

/// How often one page is asked for where the API server fails in passing: a look has many pages, and would be thrown away whole for one.
const TRIES: u32 = 4;

/// The waits between.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(1));

/// Whether a failure may be over the next moment: no refusal, but an API server that is busy, failing, or cut off.
fn may_pass(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code == 429 || status.code >= 500,
        _ => true,
    }
}

fn failed<K: Resource<DynamicType = ()>>(why: &dyn std::fmt::Display) -> Unknown {
    Unknown(format!("{} objects cannot be listed: {why}", K::kind(&())))
}

/// One page, as the API server writes it; nothing where it does not know the kind.
async fn ask<K: Resource<DynamicType = ()>>(client: &Client, request: &Request, params: &ListParams) -> Known<Option<String>> {
    let mut tries = 0;
    loop {
        tries += 1;
        let asked = request.list(params).map_err(|error| failed::<K>(&error))?;
        // The page and all: what a hoster grants single questions of the leader is not asked here.
        match tokio::time::timeout(READ_TIMEOUT, client.request_text(asked)).await {
            Ok(Ok(text)) => return Ok(Some(text)),
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => return Ok(None),
            Ok(Err(error)) if tries < TRIES && may_pass(&error) => tokio::time::sleep(PAUSES.grown(tries)).await,
            Ok(Err(error)) => return Err(failed::<K>(&api_error(&error))),
            Err(_) => return Err(Unknown(format!("the API server did not list {} objects in time", K::kind(&())))),
        }
    }
}

/// Lists a kind page by page; says whether the API server knows it. No more than a page is held.
async fn each_item<K>(client: &Client, namespace: Option<&str>, mut take: impl FnMut(Item<K>) -> Known<()>) -> Known<bool>
where
    K: Resource<DynamicType = ()> + DeserializeOwned,
{
    let request = Request::new(K::url_path(&(), namespace));
    // Without a resourceVersion the API server answers with the newest state.
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let Some(text) = ask::<K>(client, &request, &params).await? else { return Ok(false) };
        let page = page::<K>(&text).map_err(|error| failed::<K>(&error))?;
        drop(text);
        page.items.into_iter().try_for_each(&mut take)?;
        let Some(token) = page.continue_token else { return Ok(true) };
        params = params.continue_token(&token);
    }
}

/// Lists a kind, or its objects in one namespace, and gives each object once; no more than a page is held. Says whether the API server knows
/// the kind. What cannot be read is left out.
///
/// # Errors
/// When not all could be listed.
pub async fn each_listed<K>(client: &Client, namespace: Option<&str>, mut take: impl FnMut(K)) -> Known<bool>
where
    K: Resource<DynamicType = ()> + DeserializeOwned,
{
    let object = |item| {
        if let Item::Object(object) = item {
            take(object);
        }
        Ok(())
    };
    each_item(client, namespace, object).await
}

/// Lists one kind; says whether the API server knows it. An object that cannot be read ends no list: it may need any golden.
async fn fill<K: Observe>(client: &Client, ledger: &mut Ledger) -> Known<bool> {
    ledger.begin(K::KIND);
    let observe = |item: Item<K>| {
        match &item {
            Item::Object(object) => ledger.observe(object),
            Item::Unreadable { key: Some(key), .. } => ledger.unreadable(K::KIND, key.namespace.as_deref().unwrap_or_default(), &key.name),
            Item::Unreadable { key: None, error, .. } => return Err(failed::<K>(error)),
        }
        Ok(())
    };
    let is_there = each_item(client, None, observe).await?;
    if is_there {
        ledger.commit(K::KIND);
    } else {
        ledger.not_installed(K::KIND);
    }
    Ok(is_there)
}
