//! The spool's EndpointSlice: its Service has no selector, so that importers always reach whoever leads.

use std::{net::IpAddr, pin::pin, time::Duration};

use futures::StreamExt as _;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
    runtime::{WatchStreamExt as _, watcher},
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::RunArguments;
use crate::golden::manifest::managers;

/// The Service of the spool, and the name of its one EndpointSlice.
pub const SERVICE: &str = "golden-catalog-spool";

/// Points the Service at this process for as long as it leads: whoever takes the EndpointSlice away or edits it gets it back.
/// Without an address of our own (a laptop) there is nothing to point at.
pub async fn keep(client: Client, arguments: &RunArguments, stop: CancellationToken) {
    let Some(address) = arguments.pod_ip else {
        stop.cancelled().await;
        return;
    };
    let api: Api<EndpointSlice> = Api::namespaced(client, &arguments.namespace);
    let slice = slice(&arguments.namespace, address, arguments.spool_listen.port());
    // Once without a look, so that importers find us soon.
    let mut due = true;
    let mut wait = FIRST_WAIT;
    let mut shown = pin!(watcher::watch_object(api.clone(), SERVICE).backoff(watcher::DefaultBackoff::default()));
    loop {
        if due {
            match api.patch(SERVICE, &PatchParams::apply(managers::GOLDEN).force(), &Patch::Apply(&slice)).await {
                Ok(_) => {
                    tracing::info!(%address, "importers reach the spool here");
                    wait = FIRST_WAIT;
                }
                Err(error) if crate::run::client::is_lost(&error) => return,
                Err(error) => {
                    tracing::warn!(error = crate::run::api_error(&error), retry_in = ?wait, "cannot write the spool's EndpointSlice");
                    tokio::select! { () = stop.cancelled() => return, () = tokio::time::sleep(wait) => {} }
                    wait = (wait * 2).min(LONGEST_WAIT);
                    continue;
                }
            }
        }
        due = tokio::select! {
            () = stop.cancelled() => return,
            event = shown.next() => match event {
                Some(Ok(shown)) => shown.is_none_or(|shown| !leads_here(&shown, &slice)),
                // Its watch is broken and begun again with a delay of its own; what was last known holds until then.
                Some(Err(_)) => false,
                None => return,
            },
        };
    }
}

const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Whether a slice says all that ours does; what others add to it is theirs.
fn leads_here(shown: &EndpointSlice, ours: &serde_json::Value) -> bool {
    let Ok(shown) = serde_json::to_value(shown) else { return false };
    ["/endpoints/0/addresses", "/endpoints/0/conditions/ready", "/ports/0/port", "/addressType", "/metadata/labels"].iter().all(|pointer| {
        match (shown.pointer(pointer), ours.pointer(pointer)) {
            (Some(serde_json::Value::Object(shown)), Some(serde_json::Value::Object(ours))) => {
                ours.iter().all(|(key, value)| shown.get(key) == Some(value))
            }
            (shown, ours) => shown == ours,
        }
    }) && shown["endpoints"].as_array().map(Vec::len) == Some(1)
}

fn slice(namespace: &str, address: IpAddr, port: u16) -> serde_json::Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": SERVICE,
            "namespace": namespace,
            "labels": { "kubernetes.io/service-name": SERVICE, "endpointslice.kubernetes.io/managed-by": "golden-catalog" },
        },
        "addressType": if address.is_ipv4() { "IPv4" } else { "IPv6" },
        "endpoints": [{ "addresses": [address.to_string()], "conditions": { "ready": true } }],
        "ports": [{ "name": "https", "port": port, "protocol": "TCP" }],
    })
}
