//! The spool's EndpointSlice: its Service has no selector, so that importers always reach whoever leads.

use std::{net::IpAddr, time::Duration};

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::RunArguments;

/// The Service of the spool, and the name of its one EndpointSlice.
pub const SERVICE: &str = "golden-catalog-spool";

/// Points the Service at this process, once per term. Without an address of our own (a laptop) there is nothing to point at.
///
/// # Errors
/// When the API server refuses for good.
pub async fn keep(client: Client, arguments: &RunArguments, stop: CancellationToken) -> Result<(), kube::Error> {
    let Some(address) = arguments.pod_ip else {
        stop.cancelled().await;
        return Ok(());
    };
    let api: Api<EndpointSlice> = Api::namespaced(client, &arguments.namespace);
    let slice = slice(&arguments.namespace, address, arguments.spool_listen.port());
    let params = PatchParams::apply("golden-catalog/golden").force();
    let mut wait = Duration::from_secs(1);
    loop {
        match api.patch(SERVICE, &params, &Patch::Apply(&slice)).await {
            Ok(_) => {
                tracing::info!(%address, "importers reach the spool here");
                stop.cancelled().await;
                return Ok(());
            }
            Err(error) if crate::run::client::is_lost(&error) => return Ok(()),
            Err(error) => {
                tracing::warn!(error = crate::run::api_error(&error), retry_in = ?wait, "cannot write the spool's EndpointSlice");
                tokio::select! { () = stop.cancelled() => return Ok(()), () = tokio::time::sleep(wait) => {} }
                wait = (wait * 2).min(Duration::from_secs(30));
            }
        }
    }
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
