//! A stand-in for kube-proxy: what the Service `golden-catalog-spool` does in a cluster. Each new connection goes to the address
//! that the EndpointSlice names at that moment; nobody there means that it is refused.
//!
//! The API server takes no loopback address in an EndpointSlice, so daemons name addresses of the documentation's network
//! (RFC 5737), and a map says where on loopback each of them listens.

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, Client};
use std::{collections::BTreeMap, sync::Arc};
use tokio::net::{TcpListener, TcpStream};

/// The running stand-in; it ends with the runtime of the test.
pub struct Service {
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Service {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Service {
    /// Listens at `address` and leads to what `addresses` says of the slice's address.
    pub async fn start(client: Client, namespace: &str, address: &str, addresses: BTreeMap<String, String>) -> Self {
        let slices: Api<EndpointSlice> = Api::namespaced(client, namespace);
        let listener = TcpListener::bind(address).await.expect("listen");
        let addresses = Arc::new(addresses);
        let task = tokio::spawn(async move {
            loop {
                let Ok((mut near, _)) = listener.accept().await else { continue };
                let (slices, addresses) = (slices.clone(), Arc::clone(&addresses));
                tokio::spawn(async move {
                    let slice = slices.get_opt("golden-catalog-spool").await.ok().flatten()?;
                    let address = slice.endpoints.into_iter().next()?.addresses.into_iter().next()?;
                    let mut far = TcpStream::connect(addresses.get(&address)?).await.ok()?;
                    tokio::io::copy_bidirectional(&mut near, &mut far).await.ok()
                });
            }
        });
        Self { task }
    }
}
