//! One process: arguments, supervised tasks, and the two states of a replica: waiting, and leading.

use std::{
    net::SocketAddr,
    process::ExitCode,
    sync::{Arc, RwLock},
    time::Duration,
};

use kube::{Api, Client};
use tokio::{net::TcpListener, sync::Notify};
use tokio_util::sync::CancellationToken;

use super::{
    LogFormat, Role, RunArguments, Settings,
    act::Hands,
    admit, consumers,
    controller::{Shared, Term},
    crd, endpoints, fence,
    index::Index,
    left, list, numbers, page, webhooks,
};
use crate::{
    api::{ConditionType, GoldenImage, is_true},
    artifact::Limits,
    golden::Queue,
    intake::{Bandwidth, Intake},
    run::{
        certs::{self, Keeper, Profile, Resolver},
        client, events,
        health::{self, Health, Probe},
        lease::{self, Claim, Elector, Leadership},
        metrics::Metrics,
        shutdown::{Stage, Supervisor},
    },
    source::Egress,
    spool::{self, Registry, SpoolKey, Store},
    world::{Changed, Cluster, ConsumerWatch},
};

/// How long tasks may take to end.
pub(super) const GRACE: Duration = Duration::from_secs(25);

/// Runs the daemon to its end.
pub fn main(arguments: RunArguments) -> ExitCode {
    if let Err(error) = start_log(&arguments) {
        eprintln!("error: {error}");
        return ExitCode::from(64);
    }
    let settings = match arguments.settings() {
        Ok(settings) => settings,
        Err(error) => {
            tracing::error!(%error, "the settings are wrong");
            return ExitCode::from(64);
        }
    };
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(%error, "cannot start");
            return ExitCode::FAILURE;
        }
    };
    let outcome = runtime.block_on(run(arguments, settings));
    // A blocking read of a failing volume must not hold up the end.
    runtime.shutdown_timeout(Duration::from_secs(5));
    match outcome {
        Ok(code) => code,
        Err(error) => {
            tracing::error!(%error, "the daemon ends");
            ExitCode::FAILURE
        }
    }
}

fn start_log(arguments: &RunArguments) -> Result<(), String> {
    let filter = tracing_subscriber::EnvFilter::try_new(&arguments.log).map_err(|error| format!("--log: {error}"))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match arguments.log_format {
        LogFormat::Json => builder.json().flatten_event(true).with_current_span(false).with_span_list(false).init(),
        LogFormat::Text => builder.with_target(false).init(),
    }
    Ok(())
}

/// Why the daemon could not begin, or had to end.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fatal {
    #[error("no cluster: {0}")]
    Config(String),
    #[error(transparent)]
    Kube(#[from] kube::Error),
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, std::io::Error),
    #[error(transparent)]
    Spool(#[from] spool::SpoolError),
    #[error(transparent)]
    Egress(#[from] crate::source::InvalidSettings),
    #[error(transparent)]
    Lease(#[from] lease::TimingError),
    #[error(transparent)]
    Randomness(#[from] crate::run::NoRandomness),
    #[error(transparent)]
    Settings(#[from] super::SettingsError),
    #[error(transparent)]
    Certificates(#[from] certs::Error),
    #[error("{0}")]
    Other(String),
}

/// Takes a port.
pub(super) async fn listen(address: SocketAddr) -> Result<TcpListener, Fatal> {
    TcpListener::bind(address).await.map_err(|error| Fatal::Listen(address, error))
}

async fn run(arguments: RunArguments, settings: Settings) -> Result<ExitCode, Fatal> {
    if arguments.role == Role::Admission {
        return admit::run(arguments, settings).await;
    }
    let config = kube::Config::infer().await.map_err(|error| Fatal::Config(error.to_string()))?;
    let reader = client::reader(&config)?;
    let metrics = Arc::new(Metrics::new());
    let health = Health::new();
    let mut supervisor = Supervisor::new();

    let (health_listener, metrics_listener) = (listen(arguments.health_listen).await?, listen(arguments.metrics_listen).await?);
    let status_listener = match arguments.status_listen {
        Some(address) => Some((address, listen(address).await?)),
        None => None,
    };
    let spool_listener = std::net::TcpListener::bind(arguments.spool_listen)
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
        .map_err(|error| Fatal::Listen(arguments.spool_listen, error))?;

    let identity = lease::identity(&arguments.identity)?;
    let timing = lease::Timing::new(settings.lease.duration, settings.lease.renew_deadline, settings.lease.retry_period)?;
    let (elector, leadership) = Elector::new(&config, &arguments.catalog_namespace, lease::LEASE_NAME, identity.clone(), timing)?;

    let (directory, size) = (arguments.spool_dir.clone(), settings.spool_size.bytes());
    let store =
        tokio::task::spawn_blocking(move || Store::open(&directory, size)).await.map_err(|error| Fatal::Other(error.to_string()))??;
    let egress = Egress::new(settings.egress.clone())?;
    let intake = intake(&settings, &egress, &store);

    let queue: Arc<Queue<String>> = Arc::default();
    let list_changed = Arc::new(Notify::new());
    let index: Arc<Index> = Arc::default();
    let goldens_changed: Arc<Notify> = Arc::default();
    let cluster = cluster(&queue, &list_changed, &goldens_changed, &index);
    let ledger = ConsumerWatch::new(&arguments.catalog_namespace, settings.watch());
    let (recorder, publisher) = events::recorder(reader.clone(), "cozystack.io/golden-catalog", &identity, Arc::clone(&metrics));
    let spool_url = arguments.spool_url()?;
    let spool_host = spool_url.url().host_str().unwrap_or_default().to_owned();
    let shared = Arc::new(Shared {
        settings: crate::golden::Settings {
            access_is_enforced: arguments.access_enforced || arguments.role == Role::All,
            ..settings.golden()
        },
        cluster: cluster.clone(),
        consumers: ledger.clone(),
        usage: Arc::new(consumers::Usage::new(settings.consumers())),
        namespace: arguments.namespace.clone(),
        catalog: arguments.catalog_namespace.clone(),
        spool_host: spool_host.clone(),
        store: store.clone(),
        egress,
        intake,
        queue,
        index,
        listings: RwLock::default(),
        recorder,
        metrics: Arc::clone(&metrics),
        limits: (settings.max_concurrent_fetches, settings.max_concurrent_imports),
        retire_wait: settings.retire_wait,
        goldens_changed,
        workers: settings.workers,
    });

    let mut pulses = Vec::new();
    let watching = settings.watch();
    let own = cluster.watches(&reader, &arguments.namespace, &arguments.catalog_namespace, watching);
    for watch in own.into_iter().chain(ledger.watches(&reader, watching)) {
        let pulse = watch.pulse.clone();
        pulses.push(pulse.clone());
        health.add(Probe::Live, &format!("watch {}", pulse.kind()), {
            let pulse = pulse.clone();
            move || pulse.live(std::time::Instant::now())
        });
        health.add(Probe::Ready, &format!("watch {}", pulse.kind()), {
            let pulse = pulse.clone();
            move || pulse.ready()
        });
        supervisor.spawn(&format!("watch {}", pulse.kind()), Stage::Work, |stop| async move {
            tokio::select! { () = stop.cancelled() => {}, () = watch.run => {} }
            Ok::<_, String>(())
        });
    }
    let scraped = ledger.clone();
    metrics.on_scrape(move |metrics| {
        for pulse in &pulses {
            metrics.watch(pulse.kind(), pulse.sample(std::time::Instant::now()));
        }
        let held = scraped.read();
        metrics.ledger(held.len(), held.heap_bytes(), held.known(&crate::world::ledger::Kind::ALL).is_ok());
    });
    let resolver = Resolver::new();
    let served = Arc::new(numbers::Served::default());
    numbers::reckon_at_scrapes(&metrics, &cluster, &store, &resolver, &served);
    health.add(Probe::Ready, "caches", {
        let cluster = cluster.clone();
        move || cluster.unknown().map_or(Ok(()), |kind| Err(format!("{kind} are not synced yet")))
    });
    let (crd_seen, crd) = tokio::sync::watch::channel(None);
    supervisor.spawn("our CRD", Stage::Work, {
        let reader = reader.clone();
        |stop| async move {
            crd::follow(reader, crd_seen, stop).await;
            Ok::<_, String>(())
        }
    });
    health.add(Probe::Ready, "CRD", {
        let crd = crd.clone();
        move || crd.borrow().as_ref().map_or_else(|| Err("our CRD is not seen yet".to_owned()), crd::Live::usable)
    });
    let failed = supervisor.failed();
    health.add(Probe::Live, "tasks", move || failed.get().map_or(Ok(()), |why| Err(why.clone())));

    supervisor.spawn("lease", Stage::Base, |stop| async move {
        elector.run(stop).await;
        Ok::<_, String>(())
    });
    supervisor.spawn("events", Stage::Base, |stop| async move {
        publisher.run(stop).await;
        Ok::<_, String>(())
    });
    supervisor.spawn("health", Stage::Base, |stop| health::serve(health_listener, Arc::clone(&health).router(), stop));
    supervisor.spawn("metrics", Stage::Base, |stop| health::serve(metrics_listener, health::metrics_router(Arc::clone(&metrics)), stop));

    if let Some((address, listener)) = status_listener {
        let (cluster, metrics, namespace) = (cluster.clone(), Arc::clone(&metrics), arguments.namespace.clone());
        let (ledger, usage) = (ledger.clone(), Arc::clone(&shared.usage));
        let make = move || {
            let independent = &usage.settings().independent_classes;
            page::look(&cluster, &namespace, metrics.is_leading(), |image| page::users(&cluster, &ledger, independent, image))
        };
        let router = page::router(address.ip().is_loopback(), make);
        supervisor.spawn("status page", Stage::Base, |stop| health::serve(listener, router, stop));
    }
    let keeper = Keeper {
        namespace: arguments.namespace.clone(),
        name: certs::SPOOL_TLS.to_owned(),
        profile: Profile::new(vec![spool_host]),
        resolver: Arc::clone(&resolver),
        interval: Duration::from_secs(60),
        settle: certs::SETTLE,
    };
    supervisor.spawn("certificates", Stage::Work, {
        let (config, leadership) = (config.clone(), leadership.clone());
        // While an import begun under the old CA may still run, the old CA stays in the bundle.
        let cluster = cluster.clone();
        let importing = move || {
            cluster.volumes.all().iter().any(|volume| volume.status.read().and_then(|status| status.phase.as_deref()) != Some("Succeeded"))
        };
        move |stop| async move { keeper.run(&config, Some(leadership), importing, stop).await }
    });
    let webhook = Resolver::new();
    supervisor.spawn("webhook certificate", Stage::Work, {
        let (keeper, config, leadership) = (admit::keeper(&arguments, &webhook), config.clone(), leadership.clone());
        move |stop| async move { keeper.run(&config, Some(leadership), || false, stop).await }
    });
    if arguments.role == Role::All {
        admit::start(&mut supervisor, &config, &arguments, &settings, ledger.clone(), &metrics, &health, &webhook)?;
    }
    supervisor.spawn("leader", Stage::Work, {
        let leader = Leader {
            config,
            shared,
            leadership,
            resolver,
            webhook,
            spool_url,
            arguments,
            hold: settings.importer_hold,
            list_changed,
            store,
            crd,
            crd_upgrade: settings.crd_upgrade,
            served,
        };
        move |stop| leader.run(spool_listener, stop)
    });

    tracing::info!(identity, version = env!("CARGO_PKG_VERSION"), "golden-catalog runs");
    let ending = supervisor.run(GRACE).await.map_err(|error| Fatal::Other(error.to_string()))?;
    tracing::info!(?ending, "golden-catalog ends");
    Ok(ending.exit_code())
}

fn cluster(queue: &Arc<Queue<String>>, list_changed: &Arc<Notify>, goldens_changed: &Arc<Notify>, index: &Arc<Index>) -> Cluster {
    let (queue, list_changed, index) = (Arc::clone(queue), Arc::clone(list_changed), Arc::clone(index));
    let goldens_changed = Arc::clone(goldens_changed);
    // The stores must know themselves to find the image of a golden: filled in once, right after they are made.
    let known: Arc<std::sync::OnceLock<Cluster>> = Arc::default();
    let itself = Arc::clone(&known);
    let cluster = Cluster::new(move |changed| {
        let Some(cluster) = itself.get() else { return };
        match changed {
            Changed::Image(name) => {
                index.update(&name, cluster.images.get("", &name).as_deref());
                queue.add(name);
                list_changed.notify_one();
                goldens_changed.notify_one();
            }
            Changed::Golden(golden) => {
                index.images_of(&golden).into_iter().for_each(|name| queue.add(name));
                goldens_changed.notify_one();
            }
            Changed::Quota => waiting_for_quota(cluster).into_iter().for_each(|name| queue.add(name)),
            Changed::Storage => not_ready(cluster).into_iter().for_each(|name| queue.add(name)),
            Changed::ConfigMap(name) => {
                if name == list::LIST.0 {
                    list_changed.notify_one();
                }
                not_ready(cluster).into_iter().for_each(|name| queue.add(name));
            }
            Changed::Secret(name) => naming(cluster, &name).into_iter().for_each(|image| queue.add(image)),
        }
    });
    let _ = known.set(cluster.clone());
    cluster
}

/// The images that name this Secret.
fn naming(cluster: &Cluster, secret: &str) -> Vec<String> {
    use kube::ResourceExt as _;
    let images = cluster.images.all();
    let names =
        |image: &&Arc<crate::api::GoldenImage>| image.spec.credentials_secret_ref.as_ref().is_some_and(|named| named.name == secret);
    images.iter().filter(names).map(|image| image.name_any()).collect()
}

fn not_ready(cluster: &Cluster) -> Vec<String> {
    use kube::ResourceExt as _;
    // Drift of the default class is told on Ready images too.
    cluster.images.all().iter().map(|image| image.name_any()).collect()
}

/// The images with a target that a ResourceQuota keeps waiting. Its use changes with every claim, so nobody else is woken.
fn waiting_for_quota(cluster: &Cluster) -> Vec<String> {
    use kube::ResourceExt as _;
    let waits = |image: &&Arc<crate::api::GoldenImage>| {
        let targets = image.status.iter().flat_map(|status| &status.targets);
        targets.flat_map(|target| &target.conditions).any(|condition| condition.reason == crate::rules::Reason::QuotaExceeded.as_str())
    };
    cluster.images.all().iter().filter(waits).map(|image| image.name_any()).collect()
}

/// The intake with the hoster's limits.
fn intake(settings: &Settings, egress: &Egress, store: &Store) -> Intake {
    let bandwidth =
        settings.bandwidth.and_then(|rate| std::num::NonZeroU64::new(rate.bytes())).map_or_else(Bandwidth::default, Bandwidth::limited);
    let limits = Limits { max_virtual_size: settings.largest_disk.bytes(), ..Limits::default() };
    Intake { egress: egress.clone(), store: store.clone(), limits, bandwidth }
}

/// What a replica does when it leads.
struct Leader {
    config: kube::Config,
    shared: Arc<Shared>,
    leadership: Leadership,
    resolver: Arc<Resolver>,
    webhook: Arc<Resolver>,
    spool_url: crate::model::HttpUrl,
    arguments: RunArguments,
    hold: Duration,
    list_changed: Arc<Notify>,
    store: Store,
    crd: crd::Seen,
    crd_upgrade: bool,
    served: Arc<numbers::Served>,
}

impl Leader {
    async fn run(mut self, listener: std::net::TcpListener, stop: CancellationToken) -> Result<(), Fatal> {
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
            let outcome = tokio::select! {
                outcome = self.lead(&claim, &listener, term.clone()) => outcome,
                () = claim.lost() => Ok(()),
            };
            term.cancel();
            self.shared.metrics.leads(false);
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

    async fn lead(&self, claim: &Claim, listener: &std::net::TcpListener, stop: CancellationToken) -> Result<(), Fatal> {
        let writer = client::writer(&self.config, claim)?;
        let upgrade = async {
            if self.crd_upgrade {
                crd::keep(writer.clone(), self.crd.clone(), stop.clone()).await;
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = upgrade => Ok(()),
            outcome = self.work(writer.clone(), listener, stop.clone()) => outcome,
        }
    }

    /// What a leader does once it can: with a CRD that lacks fields, what is written there would be lost.
    async fn work(&self, writer: Client, listener: &std::net::TcpListener, stop: CancellationToken) -> Result<(), Fatal> {
        let mut seen = self.crd.clone();
        tokio::select! { () = stop.cancelled() => return Ok(()), () = async { drop(seen.wait_for(Option::is_some).await) } => {} }
        let usable = seen.borrow().as_ref().map(crd::Live::usable);
        if let Some(Err(why)) = usable {
            let turned_off = if self.crd_upgrade { "" } else { " (`crdUpgrade` is off: install the CRD of this release by hand)" };
            tracing::warn!("{why}{turned_off}; waiting for it");
        }
        tokio::select! { () = stop.cancelled() => return Ok(()), () = crd::usable(&mut seen) => {} }
        let secrets: Api<k8s_openapi::api::core::v1::Secret> = Api::namespaced(writer.clone(), &self.arguments.namespace);
        let key = certs::KeptSpoolKey::obtain(&secrets, certs::SPOOL_KEY).await?;
        let key = SpoolKey::from_bytes(key.as_bytes()).map_err(|error| Fatal::Other(error.to_string()))?;
        let registry = Registry::new(key);
        self.served.count(registry.clone());
        while !self.shared.cluster.is_known() || self.resolver.served().is_none() {
            tokio::select! { () = stop.cancelled() => return Ok(()), () = tokio::time::sleep(Duration::from_millis(50)) => {} }
        }
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
        let settings = spool::server::Settings { hold: self.hold, ..spool::server::Settings::default() };
        let tls = certs::server_config(Arc::clone(&self.resolver), &["http/1.1"]).map_err(|error| Fatal::Other(error.to_string()))?;
        let listener = listener.try_clone().map_err(|error| Fatal::Listen(self.arguments.spool_listen, error))?;
        let server = spool::server::serve(listener, tls, registry.clone(), self.store.clone(), settings, stop.clone());
        let wake = wake_on_spool(&registry, &self.store, Arc::clone(&self.shared), stop.clone());
        let endpoints = endpoints::keep(writer.clone(), &self.arguments, stop.clone());
        let consumers = consumers::run(Arc::clone(&self.shared), writer.clone(), stop.clone());
        let fence = fence::keep(Arc::clone(&self.shared), writer.clone(), stop.clone());
        let left = left::keep(Arc::clone(&self.shared), writer.clone(), stop.clone());
        let webhooks = async {
            // With admission off the chart renders no configurations, and gives no right to ask for them.
            if self.shared.settings.access_is_enforced {
                webhooks::keep(writer.clone(), &self.arguments.namespace, Arc::clone(&self.webhook), stop.clone()).await;
            }
        };
        let listing = list::run(Arc::clone(&self.shared), writer.clone(), Arc::clone(&self.list_changed), stop.clone());
        tokio::select! {
            outcome = server => outcome.map_err(|error| Fatal::Other(format!("the spool's server: {error}")))?,
            () = endpoints => {},
            () = async { tokio::join!(term.run(stop.clone()), listing, wake, consumers, webhooks, fence, left); } => {},
        }
        Ok(())
    }
}

/// Looks at images again when their importer was seen, or a disk came or went.
async fn wake_on_spool(registry: &Registry, store: &Store, shared: Arc<Shared>, stop: CancellationToken) {
    use kube::ResourceExt as _;
    let (mut seen, mut disks) = (registry.changes(), store.changes());
    let wake = |concerned: &dyn Fn(&GoldenImage) -> bool, wait: Duration| {
        let at = tokio::time::Instant::now() + wait;
        shared.cluster.images.all().iter().filter(|image| concerned(image)).for_each(|image| shared.queue.add_at(image.name_any(), at));
    };
    loop {
        let change = tokio::select! {
            () = stop.cancelled() => return,
            change = seen.recv() => Some(change),
            changed = disks.changed() => { if changed.is_err() { return } None },
        };
        match change {
            Some(Ok(spool::Change::Request(grant))) => wake(&|image| image.uid().as_deref() == Some(grant.uid.as_str()), Duration::ZERO),
            // Whose importer it was, a handshake that failed does not say: it is the trouble of one that waits for its import.
            // A port scan or a broken client does this many times a second, which is one look all the same.
            Some(Ok(spool::Change::Handshake)) => wake(&is_importing, Duration::from_secs(1)),
            // A disk came or went, or more happened than could be followed: no news for a golden that is made.
            Some(Err(_)) | None => wake(&is_unfinished, Duration::ZERO),
        }
    }
}

/// Whether an import of this image is under way.
fn is_importing(image: &GoldenImage) -> bool {
    image.status.as_ref().is_some_and(|status| status.targets.iter().any(|target| target.started_time.is_some()))
}

/// Whether something of this image is still to be made.
fn is_unfinished(image: &GoldenImage) -> bool {
    image.status.as_ref().is_none_or(|status| !is_true(&status.conditions, ConditionType::Ready))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::{is_importing, is_unfinished};

    /// What wakes whom: a port scan of the spool is nothing to a golden that is Ready.
    #[rstest]
    #[case::new(Value::Null, false, true)]
    #[case::importing(json!({ "targets": [{ "requestedClass": "", "attempts": 1, "startedTime": "2026-01-01T00:00:00Z" }] }), true, true)]
    #[case::ready(json!({ "targets": [{ "requestedClass": "", "attempts": 1, "claimUID": "u" }], "conditions": [{ "type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }] }), false, false)]
    fn who_is_woken(#[case] status: Value, #[case] by_handshake: bool, #[case] by_disk: bool) {
        let image = serde_json::from_value(json!({
            "apiVersion": "cozystack.io/v1alpha1", "kind": "GoldenImage", "metadata": { "name": "a" },
            "spec": { "source": {} }, "status": status,
        }))
        .expect("object");
        assert_eq!((is_importing(&image), is_unfinished(&image)), (by_handshake, by_disk));
    }
}
