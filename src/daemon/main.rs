//! One process: arguments and supervised tasks.

use std::{
    net::SocketAddr,
    process::ExitCode,
    sync::{Arc, RwLock},
    time::Duration,
};

use tokio::{net::TcpListener, sync::Notify};

use super::{
    LogFormat, Role, RunArguments, Settings, admit, consumers, controller::Shared, crd, index::Index, lead::Leader, numbers, page, wake,
};
use crate::{
    artifact::Limits,
    golden::Queue,
    intake::{Bandwidth, Intake},
    run::{
        certs::{self, Keeper, Profile, Resolver},
        client, events,
        health::{self, Health, Probe},
        lease::{self, Elector},
        metrics::Metrics,
        shutdown::{Stage, Supervisor},
    },
    source::Egress,
    spool::{self, Store},
    world::ConsumerWatch,
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
    #[error("{0}")]
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
    let config = super::cluster().await.map_err(Fatal::Config)?;
    let reader = client::reader(&config)?;
    let metrics = Arc::new(Metrics::new());
    let health = Health::new();
    let mut supervisor = Supervisor::new();

    let (health_listener, metrics_listener) = (listen(arguments.health_listen).await?, listen(arguments.metrics_listen).await?);
    let status_listener = match arguments.status_listen {
        Some(address) => Some((address, listen(address).await?)),
        None => None,
    };
    // Held by a leader only; that it can be had is seen at the start.
    drop(super::lead::listen(arguments.spool_listen).map_err(|error| Fatal::Listen(arguments.spool_listen, error))?);

    let identity = lease::identity(&arguments.identity)?;
    let timing = settings.timing()?;
    let (elector, leadership) = Elector::new(&config, &arguments.catalog_namespace, lease::LEASE_NAME, identity.clone(), timing)?;

    let (directory, size) = (arguments.spool_dir.clone(), settings.spool_size.bytes());
    let shown = directory.display().to_string();
    let opening = tokio::task::spawn_blocking(move || Store::open(&directory, size));
    // Nothing is served before, so a volume that hangs now ends in a restart by the kubelet: the log says why.
    let hangs = async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        tracing::warn!(spool = shown, "the spool's volume does not answer: nothing begins before it does");
        std::future::pending::<()>().await;
    };
    let store = tokio::select! {
        opened = opening => opened.map_err(|error| Fatal::Other(error.to_string()))??,
        () = hangs => unreachable!("it never ends"),
    };
    let egress = Egress::new(settings.egress.clone())?;
    let intake = intake(&settings, &egress, &store);

    let queue: Arc<Queue<String>> = Arc::default();
    let list_changed = Arc::new(Notify::new());
    let index: Arc<Index> = Arc::default();
    let goldens_changed = tokio::sync::watch::Sender::new(());
    let cluster = wake::cluster(&queue, &list_changed, &goldens_changed, &index);
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
        fence_troubles: super::fence::Troubles::default(),
        goldens_changed,
        workers: settings.workers,
    });

    let mut pulses = Vec::new();
    let watching = settings.watch();
    let own = cluster.watches(&reader, &arguments.namespace, &arguments.catalog_namespace, watching);
    let images = own.iter().map(|watch| &watch.pulse).find(|pulse| pulse.kind() == "GoldenImage").cloned();
    let (crd_seen, crd) = tokio::sync::watch::channel(None);
    for watch in own.into_iter().chain(ledger.watches(&reader, watching)).chain([crd::watch(&reader, watching, crd_seen)]) {
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
    health.add(Probe::Ready, "CRD", {
        let (crd, is_upgraded) = (crd.clone(), settings.crd_upgrade);
        move || crd.borrow().as_ref().map_or_else(|| Err("our CRD is not seen yet".to_owned()), |live| live.ready(is_upgraded))
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
        let shared = Arc::clone(&shared);
        let make = move || {
            let inventory = consumers::Inventory::of(&cluster);
            let standing = inventory.standing(&shared.catalog);
            let storage = shared.usage.storage(&inventory.classes);
            page::look(&cluster, &namespace, metrics.is_leading(), |image| {
                page::users(&shared.consumers, &inventory.goldens(image, &standing, &shared.index), storage)
            })
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
        configurations: None,
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
            read_after: std::sync::atomic::AtomicU64::new(0),
            images,
            crd_upgrade: settings.crd_upgrade,
            api_patience: settings.api_patience,
            served,
        };
        move |stop| leader.run(stop)
    });

    tracing::info!(identity, version = env!("CARGO_PKG_VERSION"), "golden-catalog runs");
    let ending = supervisor.run(GRACE).await.map_err(|error| Fatal::Other(error.to_string()))?;
    tracing::info!(?ending, "golden-catalog ends");
    Ok(ending.exit_code())
}

/// The intake with the hoster's limits.
fn intake(settings: &Settings, egress: &Egress, store: &Store) -> Intake {
    let bandwidth =
        settings.bandwidth.and_then(|rate| std::num::NonZeroU64::new(rate.bytes())).map_or_else(Bandwidth::default, Bandwidth::limited);
    let limits = Limits { max_virtual_size: settings.largest_disk.bytes(), ..Limits::default() };
    Intake { egress: egress.clone(), store: store.clone(), limits, bandwidth }
}
