//! The consumer ledger with the watches that feed it: one component for whoever must know who needs a golden (the leader,
//! admission, the command line).
//!
//! Each kind is watched in all namespaces, decoded straight into the ledger's rows, and only where the cluster has it: a kind whose CustomResourceDefinition comes is watched from then on, one whose definition goes has no objects any more. No PersistentVolume is watched: the one thing a rule reads of it, its driver, Kubernetes writes on the claim too (`volume.kubernetes.io/storage-provisioner`), and a claim without it counts as dependent.

use std::{
    collections::BTreeMap,
    sync::{Arc, RwLockReadGuard},
    time::Instant,
};

use k8s_openapi::api::core::v1::Namespace;
use kube::Client;

use super::{
    LedgerSink, Pulse, Selection, Store, Watch, WatchSettings, WatchState,
    evidence::Observe,
    feed,
    ledger::{CloneEnd, Kind, Ledger},
};
use crate::{
    foreign::{
        Claim, DataSource, DataVolume, KubevirtMachineTemplate, MachineDeployment, MachineSet, VirtualMachine, VolumeCloneSource,
        VolumeSnapshot, WorkerClass,
    },
    rules::clone::{Known, Unknown},
};

/// Further versions of Cluster API's kinds that decode as `v1beta1` does, for servers that no longer serve that.
const CLUSTER_API: &[&str] = &["v1beta2"];

/// Who needs a golden, kept up to date by watches. Cheap to clone; clones share one ledger.
#[derive(Clone)]
pub struct ConsumerWatch {
    sink: LedgerSink,
    pulses: Arc<Vec<(Kind, Pulse)>>,
    namespaces: Store<BTreeMap<String, String>>,
    namespaces_pulse: Pulse,
}

impl ConsumerWatch {
    /// An empty ledger and its watches, none of which runs yet: every look-up is unknown until [`Self::watches`] have run.
    pub fn new(catalog_namespace: &str, settings: WatchSettings) -> Self {
        let state = |kind| WatchState::new(kind, settings.limit, Instant::now());
        let pulses = Kind::ALL.map(|kind| {
            let pulse = match definition(kind) {
                Some(definition) => state(kind.everywhere()).optional(definition),
                None => state(kind.everywhere()),
            };
            (kind, Arc::new(pulse))
        });
        Self {
            sink: LedgerSink::new(Ledger::new(catalog_namespace)),
            pulses: Arc::new(pulses.into()),
            namespaces: Store::new(|_| {}),
            namespaces_pulse: Arc::new(state("Namespace")),
        }
    }

    /// The watches that feed the ledger, to be run. `client` must not retry by itself ([`crate::run::client::reader`]).
    pub fn watches(&self, client: &Client, settings: WatchSettings) -> Vec<Watch> {
        vec![
            self.run::<DataVolume>(client, settings, &[]),
            self.run::<Claim>(client, settings, &[]),
            self.run::<VolumeSnapshot>(client, settings, &[]),
            self.run::<VirtualMachine>(client, settings, &[]),
            self.run::<KubevirtMachineTemplate>(client, settings, &[]),
            self.run::<MachineDeployment>(client, settings, CLUSTER_API),
            self.run::<MachineSet>(client, settings, CLUSTER_API),
            self.run::<VolumeCloneSource>(client, settings, &[]),
            self.run::<DataSource>(client, settings, &[]),
            self.run::<WorkerClass>(client, settings, &[]),
        ]
    }

    /// The watch of namespaces' labels (R18), for whoever judges clones.
    pub fn namespaces_watch(&self, client: &Client, settings: WatchSettings) -> Watch {
        let (client, pulse) = (client.clone(), Arc::clone(&self.namespaces_pulse));
        let mut sink = self.namespaces.sink(|namespace: Namespace| Some(namespace.metadata.labels.unwrap_or_default()));
        let state = Arc::clone(&pulse);
        Watch { pulse, run: Box::pin(async move { feed(client, Selection::default(), settings, &state, &mut sink).await }) }
    }

    fn run<K: Observe>(&self, client: &Client, settings: WatchSettings, versions: &'static [&'static str]) -> Watch {
        let pulse = self.pulse(K::KIND);
        let (client, state, mut sink) = (client.clone(), Arc::clone(&pulse), self.sink.clone());
        let selection = Selection { versions, ..Selection::default() };
        Watch { pulse, run: Box::pin(async move { feed::<K>(client, selection, settings, &state, &mut sink).await }) }
    }

    /// The signs of life of one kind's watch.
    pub fn pulse(&self, kind: Kind) -> Pulse {
        Arc::clone(&self.pulses[kind as usize].1)
    }

    /// The ledger, to be asked; watches wait meanwhile. What a watch that is broken, refused or silent told does not count as known.
    pub fn read(&self) -> RwLockReadGuard<'_, Ledger> {
        for (kind, pulse) in self.pulses.iter() {
            self.sink.doubt(*kind, pulse.known().err().map(|unknown| unknown.to_string()));
        }
        self.sink.read()
    }

    /// Whether every kind is known, so that "none" may be said.
    ///
    /// # Errors
    /// Which are not, and why.
    pub fn known(&self) -> Known<()> {
        self.read().known(&Kind::ALL)
    }

    /// Begins or ends to keep the ends of clones for [`Self::take_ends`].
    pub fn follow_ends(&self, follow: bool) {
        self.sink.follow_ends(follow);
    }

    /// The clones whose end was seen since the last call, after [`Self::follow_ends`].
    pub fn take_ends(&self) -> Vec<CloneEnd> {
        self.sink.take_ends()
    }

    /// Wakes whenever the ledger may answer otherwise than before.
    pub fn changes(&self) -> tokio::sync::watch::Receiver<u64> {
        self.sink.changes()
    }

    /// The labels of a namespace (R18); an absent one has none.
    ///
    /// # Errors
    /// While namespaces are not all known; [`Self::namespaces_watch`] must run.
    pub fn namespace_labels(&self, namespace: &str) -> Known<Arc<BTreeMap<String, String>>> {
        self.namespaces_pulse.known().map_err(|unknown| Unknown(unknown.to_string()))?;
        Ok(self.namespaces.get("", namespace).unwrap_or_default())
    }
}

/// The CustomResourceDefinition of a kind that need not be installed.
const fn definition(kind: Kind) -> Option<&'static str> {
    Some(match kind {
        Kind::Claim => return None,
        Kind::DataVolume => "datavolumes.cdi.kubevirt.io",
        Kind::CloneSource => "volumeclonesources.cdi.kubevirt.io",
        Kind::DataSource => "datasources.cdi.kubevirt.io",
        Kind::Snapshot => "volumesnapshots.snapshot.storage.k8s.io",
        Kind::VirtualMachine => "virtualmachines.kubevirt.io",
        Kind::MachineTemplate => "kubevirtmachinetemplates.infrastructure.cluster.x-k8s.io",
        Kind::MachineDeployment => "machinedeployments.cluster.x-k8s.io",
        Kind::MachineSet => "machinesets.cluster.x-k8s.io",
        Kind::WorkerClass => "workerclasses.cozystack.io",
    })
}

#[cfg(test)]
mod tests {
    use kube::Resource as _;

    use super::*;

    #[test]
    fn definitions_are_named_as_the_kinds_are_served() {
        let named = |group: std::borrow::Cow<'_, str>, plural: std::borrow::Cow<'_, str>| format!("{plural}.{group}");
        macro_rules! named {
            ($($kind:ident),*) => { $(assert_eq!(definition($kind::KIND), Some(named($kind::group(&()), $kind::plural(&())).as_str()));)* };
        }
        named!(
            DataVolume,
            VolumeCloneSource,
            DataSource,
            VolumeSnapshot,
            VirtualMachine,
            KubevirtMachineTemplate,
            MachineDeployment,
            MachineSet,
            WorkerClass
        );
        assert_eq!(definition(Kind::Claim), None, "every cluster has claims");
    }

    #[test]
    fn nothing_is_known_before_the_watches_run() {
        let watch = ConsumerWatch::new("cozy-public", WatchSettings::default());
        let unknown = watch.known().expect_err("unknown").to_string();
        assert!(unknown.contains("DataVolume") && unknown.contains("not all read yet"), "{unknown}");
        assert!(watch.namespace_labels("tenant-a").is_err());
    }
}
