//! What a replica does when it leads.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use kube::{Api, Client};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{
    RunArguments,
    act::Hands,
    consumers,
    controller::{Shared, Term},
    crd, endpoints, fence, left, list,
    main::Fatal,
    numbers,
    tried::Waiting,
    wake, webhooks,
};
use crate::{
    run::{
        certs::{self, Resolver},
        client,
        lease::{Claim, Leadership},
    },
    spool::{self, Registry, SpoolKey, Store},
    world::Pulse,
};

/// How long the loops of a term that is over may take to end.
const END: Duration = Duration::from_secs(2);
/// How long importers may go on at the end of the process, which keeps the Lease meanwhile.
const SENDING: Duration = Duration::from_secs(10);
/// How often a new term looks whether what it waits for is there.
const LOOK: Duration = Duration::from_millis(50);

/// A replica that leads when the Lease is its own.
pub(super) struct Leader {
    pub config: kube::Config,
    pub shared: Arc<Shared>,
    pub leadership: Leadership,
    pub resolver: Arc<Resolver>,
    pub webhook: Arc<Resolver>,
    pub spool_url: crate::model::HttpUrl,
    pub arguments: RunArguments,
    pub hold: Duration,
    pub list_changed: Arc<Notify>,
    pub store: Store,
    pub crd: crd::Seen,
    /// How often the CRD had been seen to lack fields when the images were last read.
    pub read_after: AtomicU64,
    /// The watch of the images, which sends what the CRD has.
    pub images: Option<Pulse>,
    pub crd_upgrade: bool,
    /// How long one read of the API server may take.
    pub api_patience: Duration,
    pub served: Arc<numbers::Served>,
}

/// Takes the spool's port. Only for as long as this replica leads: whoever is led to another one then is refused at once, and tries again
/// soon, where the kernel would else take the connection and keep it waiting for nobody.
pub(super) fn listen(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

impl Leader {
    /// Leads whenever the Lease is held, until `stop`.
    pub(super) async fn run(mut self, stop: CancellationToken) -> Result<(), Fatal> {
        loop {
            let claim = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                claim = self.leadership.acquired() => match claim {
                    Some(claim) => claim,
                    // The elector has ended: so does the process.
                    None => { stop.cancelled().await; return Ok(()) }
                },
            };
            self.shared.metrics.leads(true);
            tracing::info!(epoch = claim.epoch(), "leading");
            let term = stop.child_token();
            let outcome = {
                // On the heap, as all that it does: one future of all of it would be larger than a thread's stack is safe for.
                let mut lead = Box::pin(self.lead(&claim, term.clone()));
                // Ended, not dropped: its loops put in order what they leave, and its server lets go of importers.
                let longest = tokio::select! {
                    outcome = &mut lead => Err(outcome),
                    () = claim.lost() => Ok(END),
                    () = stop.cancelled() => Ok(END + SENDING),
                };
                term.cancel();
                match longest {
                    Ok(longest) => tokio::time::timeout(longest, lead).await.unwrap_or(Ok(())),
                    Err(outcome) => outcome,
                }
            };
            self.shared.metrics.leads(false);
            // Whoever leads next says so, if it is so.
            self.shared.metrics.webhooks_missing(0);
            match outcome {
                Ok(()) if stop.is_cancelled() => return Ok(()),
                Ok(()) => tracing::warn!("no longer leading"),
                Err(error) => {
                    tracing::error!(%error, "leading failed; tried again");
                    tokio::select! { () = stop.cancelled() => return Ok(()), () = tokio::time::sleep(Duration::from_secs(5)) => {} }
                }
            }
        }
    }

    async fn lead(&self, claim: &Claim, stop: CancellationToken) -> Result<(), Fatal> {
        let writer = client::writer(&self.config, claim, self.api_patience)?;
        let upgrade = async {
            if self.crd_upgrade {
                Box::pin(crd::keep(writer.clone(), self.crd.clone(), stop.clone())).await;
            }
            std::future::pending::<()>().await;
        };
        let work = async {
            loop {
                let losses = tokio::select! { () = stop.cancelled() => return Ok(()), losses = self.crd_is_usable(&writer) => losses };
                let part = stop.child_token();
                let outcome = tokio::select! {
                    outcome = Box::pin(self.work(writer.clone(), part.clone())) => Some(outcome),
                    // As at the start: what is written now would be stored without the fields that are missing.
                    _ = crd::lost(self.crd.clone(), losses) => None,
                };
                part.cancel();
                if let Some(outcome) = outcome {
                    return outcome;
                }
            }
        };
        tokio::select! {
            () = upgrade => Ok(()),
            outcome = work => outcome,
        }
    }

    /// Waits until the CRD has every field of this release, and the images are known with all of theirs: with one that lacks some, what is
    /// written there would be lost, and so is what this replica read then, leading or not. Gives how often it had lacked some by then.
    async fn crd_is_usable(&self, client: &Client) -> u64 {
        let mut seen = self.crd.clone();
        drop(seen.wait_for(Option::is_some).await);
        let usable = seen.borrow().as_ref().map(crd::Live::usable);
        if let Some(Err(why)) = &usable {
            let turned_off = if self.crd_upgrade { "" } else { " (`crdUpgrade` is off: install the CRD of this release by hand)" };
            tracing::warn!("{why}{turned_off}; nothing is written until it has them");
        }
        let losses = loop {
            let losses = crd::usable(&mut seen).await;
            let mut waiting = Waiting::begin(Instant::now());
            self.all_is_listed(&mut waiting).await;
            let lacked = losses > self.read_after.load(Ordering::Relaxed);
            crd::read_anew(client, &self.shared.cluster.images, self.images.as_deref(), lacked).await;
            self.read_after.store(losses, Ordering::Relaxed);
            // It may have been lost once more while they were read.
            if seen.borrow().as_ref().is_some_and(|live| live.losses == losses) {
                break losses;
            }
        };
        if let Some(Err(_)) = usable {
            tracing::info!("the CRD has every field of this release");
        }
        losses
    }

    /// Waits until every kind has been listed: unknown is not none.
    async fn all_is_listed(&self, waiting: &mut Waiting) {
        while let Some(kind) = self.shared.cluster.unknown() {
            waiting.tell(&format!("the {kind} have not been listed yet"));
            tokio::time::sleep(LOOK).await;
        }
    }

    /// What a leader does once it can.
    async fn work(&self, writer: Client, stop: CancellationToken) -> Result<(), Fatal> {
        let secrets: Api<k8s_openapi::api::core::v1::Secret> = Api::namespaced(writer.clone(), &self.arguments.namespace);
        let key = certs::KeptSpoolKey::obtain(&secrets, certs::SPOOL_KEY).await?;
        let key = SpoolKey::from_bytes(key.as_bytes()).map_err(|error| Fatal::Other(error.to_string()))?;
        let registry = Registry::new(key);
        self.served.count(registry.clone());
        let ready = async {
            let mut waiting = Waiting::begin(Instant::now());
            while self.resolver.served().is_none() {
                waiting.tell("the spool's certificate is not issued yet");
                tokio::time::sleep(LOOK).await;
            }
            self.all_is_listed(&mut waiting).await;
        };
        tokio::select! { () = stop.cancelled() => return Ok(()), () = ready => {} }
        let resolver = Arc::clone(&self.resolver);
        let hands = Hands {
            client: writer.clone(),
            catalog: self.arguments.catalog_namespace.clone(),
            spool_url: self.spool_url.clone(),
            registry: registry.clone(),
            ca_bundle: Arc::new(move || resolver.bundle()),
            ca_written: Arc::default(),
        };
        let term = Term::new(Arc::clone(&self.shared), hands, stop.clone());
        let settings = spool::server::Settings { hold: self.hold, grace: SENDING, ..spool::server::Settings::default() };
        let tls = certs::server_config(Arc::clone(&self.resolver), &["http/1.1"]).map_err(|error| Fatal::Other(error.to_string()))?;
        let listener = listen(self.arguments.spool_listen).map_err(|error| Fatal::Listen(self.arguments.spool_listen, error))?;
        let server = Box::pin(spool::server::serve(listener, tls, registry.clone(), self.store.clone(), settings, stop.clone()));
        let wake = Box::pin(wake::on_spool(&registry, &self.store, Arc::clone(&self.shared), stop.clone()));
        let endpoints = Box::pin(endpoints::keep(writer.clone(), &self.arguments, stop.clone()));
        let consumers = Box::pin(consumers::run(Arc::clone(&self.shared), writer.clone(), stop.clone()));
        let fence = Box::pin(fence::keep(Arc::clone(&self.shared), writer.clone(), stop.clone()));
        let left = Box::pin(left::keep(Arc::clone(&self.shared), writer.clone(), stop.clone()));
        let webhooks = Box::pin(async {
            // With admission off the chart renders no configurations, and gives no right to ask for them.
            if self.shared.settings.access_is_enforced {
                let (namespace, webhook) = (&self.arguments.namespace, Arc::clone(&self.webhook));
                webhooks::keep(writer.clone(), namespace, webhook, &self.shared.metrics, stop.clone()).await;
            }
        });
        let listing = Box::pin(list::run(Arc::clone(&self.shared), writer.clone(), Arc::clone(&self.list_changed), stop.clone()));
        let server = async { server.await.map_err(|error| Fatal::Other(format!("the spool's server: {error}"))) };
        let loops = async {
            let loops =
                async { tokio::join!(endpoints, Box::pin(term.run(stop.clone())), listing, wake, consumers, webhooks, fence, left) };
            // One that waits for an API server is not waited for: its write, if it is on its way, keeps the Lease by itself.
            let too_long = async {
                stop.cancelled().await;
                tokio::time::sleep(END).await;
            };
            tokio::select! { _ = loops => {}, () = too_long => {} }
            Ok(())
        };
        tokio::try_join!(server, loops).map(drop)
    }
}
