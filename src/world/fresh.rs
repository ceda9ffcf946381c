//! The consumer ledger filled from the API server itself, once: for the moment in which a cache, however fresh, is not enough (R23).

use std::time::Duration;

use kube::{Client, api::ListParams, core::Request};

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

fn failed<K: Observe>(why: &dyn std::fmt::Display) -> Unknown {
    Unknown(format!("{} objects cannot be listed: {why}", K::KIND))
}

/// One page, as the API server writes it; nothing where it does not know the kind.
async fn ask<K: Observe>(client: &Client, request: &Request, params: &ListParams) -> Known<Option<String>> {
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
            Err(_) => return Err(Unknown(format!("the API server did not list {} objects in time", K::KIND))),
        }
    }
}

/// Lists one kind; says whether the API server knows it. An object that cannot be read ends no list: it may need any golden.
async fn fill<K: Observe>(client: &Client, ledger: &mut Ledger) -> Known<bool> {
    let failed = |why: &dyn std::fmt::Display| failed::<K>(why);
    let request = Request::new(K::url_path(&(), None));
    // Without a resourceVersion the API server answers with the newest state.
    let mut params = ListParams::default().limit(PAGE);
    ledger.begin(K::KIND);
    loop {
        let Some(text) = ask::<K>(client, &request, &params).await? else {
            ledger.not_installed(K::KIND);
            return Ok(false);
        };
        let page = page::<K>(&text).map_err(|error| failed(&error))?;
        for item in &page.items {
            match item {
                Item::Object(object) => ledger.observe(object),
                Item::Unreadable { key: Some(key), .. } => {
                    ledger.unreadable(K::KIND, key.namespace.as_deref().unwrap_or_default(), &key.name)
                }
                Item::Unreadable { key: None, error, .. } => return Err(failed(error)),
            }
        }
        let Some(token) = page.continue_token else { break };
        params = params.continue_token(&token);
    }
    ledger.commit(K::KIND);
    Ok(true)
}
