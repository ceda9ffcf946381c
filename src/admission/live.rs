//! What is read from the API server at each verdict, because a cache may be behind: the golden's claim with its fence, DataSources on the way to it, the VM a disk belongs to, the labels of the namespace that asks.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client, Resource, api::ListParams};
use serde::de::DeserializeOwned;

use crate::{
    foreign::{Claim, DataSource, DataVolume, VirtualMachine, VolumeSnapshot},
    rules::{
        clone::{Known, Unknown},
        marks,
    },
    run::api_error,
};

/// The longest a read may take: a verdict must be there before the API server gives up on us.
const PATIENCE: Duration = Duration::from_secs(2);

/// Reads without a cache.
#[derive(Clone)]
pub struct Live {
    client: Client,
    catalog: String,
}

impl Live {
    /// `client` must not retry by itself ([`crate::run::client::reader`]).
    pub fn new(client: Client, catalog: impl Into<String>) -> Self {
        Self { client, catalog: catalog.into() }
    }

    /// The claim of this name in the catalog namespace.
    ///
    /// # Errors
    /// When the API server does not say in time.
    pub async fn claim(&self, name: &str) -> Known<Option<Claim>> {
        read(Api::namespaced(self.client.clone(), &self.catalog), name).await
    }

    /// The goldens' claims: everything in the catalog namespace with our mark.
    ///
    /// # Errors
    /// As [`Self::claim`].
    pub async fn goldens(&self) -> Known<Vec<Claim>> {
        let api: Api<Claim> = Api::namespaced(self.client.clone(), &self.catalog);
        let selector = ListParams::default().labels(&marks::selector());
        match tokio::time::timeout(PATIENCE, api.list(&selector)).await {
            Ok(Ok(found)) => Ok(found.items),
            Ok(Err(error)) => Err(Unknown(format!("the goldens cannot be listed: {}", api_error(&error)))),
            Err(_) => Err(Unknown("the API server did not list the goldens in time".to_owned())),
        }
    }

    /// The DataVolume of this name in the catalog namespace.
    ///
    /// # Errors
    /// As [`Self::claim`].
    pub async fn volume(&self, name: &str) -> Known<Option<DataVolume>> {
        self.volume_in(&self.catalog, name).await
    }

    /// A DataVolume anywhere.
    ///
    /// # Errors
    /// As [`Self::claim`].
    pub async fn volume_in(&self, namespace: &str, name: &str) -> Known<Option<DataVolume>> {
        read(Api::namespaced(self.client.clone(), namespace), name).await
    }

    /// The VolumeSnapshot of this name in the catalog namespace.
    ///
    /// # Errors
    /// As [`Self::claim`].
    pub async fn snapshot(&self, name: &str) -> Known<Option<VolumeSnapshot>> {
        read(Api::namespaced(self.client.clone(), &self.catalog), name).await
    }

    /// A DataSource anywhere.
    ///
    /// # Errors
    /// As [`Self::claim`].
    pub async fn data_source(&self, namespace: &str, name: &str) -> Known<Option<DataSource>> {
        read(Api::namespaced(self.client.clone(), namespace), name).await
    }

    /// A VirtualMachine anywhere.
    ///
    /// # Errors
    /// As [`Self::claim`].
    pub async fn machine(&self, namespace: &str, name: &str) -> Known<Option<VirtualMachine>> {
        read(Api::namespaced(self.client.clone(), namespace), name).await
    }

    /// The labels of a namespace.
    ///
    /// # Errors
    /// As [`Self::claim`], and when it is not there.
    pub async fn namespace_labels(&self, name: &str) -> Known<BTreeMap<String, String>> {
        let api: Api<Namespace> = Api::all(self.client.clone());
        let found = tokio::time::timeout(PATIENCE, api.get_metadata_opt(name)).await;
        match found {
            Ok(Ok(Some(namespace))) => Ok(namespace.metadata.labels.unwrap_or_default()),
            Ok(Ok(None)) => Err(Unknown(format!("namespace {name} is not there"))),
            Ok(Err(error)) => Err(Unknown(format!("namespace {name} cannot be read: {}", api_error(&error)))),
            Err(_) => Err(Unknown(format!("the API server did not say in time what namespace {name} is like"))),
        }
    }
}

async fn read<K>(api: Api<K>, name: &str) -> Known<Option<K>>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug,
{
    match tokio::time::timeout(PATIENCE, api.get_opt(name)).await {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(error)) => Err(Unknown(format!("{} {name} cannot be read: {}", K::kind(&()), api_error(&error)))),
        Err(_) => Err(Unknown(format!("the API server did not say in time what {} {name} is like", K::kind(&())))),
    }
}
