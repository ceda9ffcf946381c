//! The admission role as a process, alone or beside the controller.

use std::{net::TcpListener, process::ExitCode, sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;

use super::{
    RunArguments, Settings,
    main::{Fatal, GRACE, listen},
    webhooks,
};
use crate::{
    admission::{Live, Scene, daemon_user, server},
    run::{
        certs::{self, Keeper, Profile, Resolver},
        client,
        health::{self, Health, Probe},
        metrics::Metrics,
        shutdown::{Stage, Supervisor},
    },
    world::{ConsumerWatch, Watch},
};

/// Runs the admission role alone, to its end.
pub(super) async fn run(arguments: RunArguments, settings: Settings) -> Result<ExitCode, Fatal> {
    let config = super::cluster().await.map_err(Fatal::Config)?;
    let (metrics, health) = (Arc::new(Metrics::new()), Health::new());
    let mut supervisor = Supervisor::new();
    let (health_listener, metrics_listener) = (listen(arguments.health_listen).await?, listen(arguments.metrics_listen).await?);
    let resolver = Resolver::new();
    let consumers = ConsumerWatch::new(&arguments.catalog_namespace, settings.watch());
    watch(&mut supervisor, &health, &metrics, consumers.watches(&client::reader(&config)?, settings.watch()));
    start(&mut supervisor, &config, &arguments, &settings, consumers, &metrics, &health, &resolver)?;
    let keeper = keeper(&arguments, &resolver);
    // Who may only read one Secret leads nothing: the controller's leader issues and renews.
    supervisor.spawn("webhook certificate", Stage::Work, {
        let config = config.clone();
        move |stop| async move { keeper.run(&config, None, || false, stop).await }
    });
    let failed = supervisor.failed();
    health.add(Probe::Live, "tasks", move || failed.get().map_or(Ok(()), |why| Err(why.clone())));
    // API servers go on asking until they have heard that this Pod goes, and get verdicts until then.
    supervisor.linger(settings.admission_linger);
    let ending = supervisor.ending();
    health.add(Probe::Ready, "process", move || if ending.is_cancelled() { Err("it was asked to end".to_owned()) } else { Ok(()) });
    supervisor.spawn("health", Stage::Base, |stop| health::serve(health_listener, Arc::clone(&health).router(), stop));
    supervisor.spawn("metrics", Stage::Base, |stop| health::serve(metrics_listener, health::metrics_router(Arc::clone(&metrics)), stop));
    tracing::info!(version = env!("CARGO_PKG_VERSION"), "golden-catalog judges");
    let ending = supervisor.run(GRACE).await.map_err(|error| Fatal::Other(error.to_string()))?;
    tracing::info!(?ending, "golden-catalog ends");
    Ok(ending.exit_code())
}

/// Keeps the webhook's certificate in step with its Secret.
pub(super) fn keeper(arguments: &RunArguments, resolver: &Arc<Resolver>) -> Keeper {
    Keeper {
        namespace: arguments.namespace.clone(),
        name: certs::WEBHOOK_TLS.to_owned(),
        profile: Profile::new(vec![arguments.webhook_host()]),
        resolver: Arc::clone(resolver),
        interval: Duration::from_secs(60),
        settle: certs::SETTLE,
        configurations: Some(webhooks::name(&arguments.namespace)),
    }
}

/// Runs watches, with their signs of life on probes and metrics.
fn watch(supervisor: &mut Supervisor, health: &Health, metrics: &Metrics, watches: Vec<Watch>) {
    let mut pulses = Vec::new();
    for watch in watches {
        let pulse = watch.pulse.clone();
        pulses.push(pulse.clone());
        let name = format!("watch {} for admission", pulse.kind());
        health.add(Probe::Live, &name, {
            let pulse = pulse.clone();
            move || pulse.live(std::time::Instant::now())
        });
        health.add(Probe::Ready, &name, move || pulse.ready());
        supervisor.spawn(&name, Stage::Work, |stop| async move {
            tokio::select! { () = stop.cancelled() => {}, () = watch.run => {} }
            Ok::<_, String>(())
        });
    }
    metrics.on_scrape(move |metrics| {
        for pulse in &pulses {
            metrics.watch(pulse.kind(), pulse.sample(std::time::Instant::now()));
        }
    });
}

/// Starts the server and the watches of its own; whoever calls keeps `resolver` filled and `consumers` watched.
#[allow(clippy::too_many_arguments, reason = "the parts of a process")]
pub(super) fn start(
    supervisor: &mut Supervisor,
    config: &kube::Config,
    arguments: &RunArguments,
    settings: &Settings,
    consumers: ConsumerWatch,
    metrics: &Arc<Metrics>,
    health: &Arc<Health>,
    resolver: &Arc<Resolver>,
) -> Result<(), Fatal> {
    let reader = client::reader(config)?;
    let listener = TcpListener::bind(arguments.webhook_listen)
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
        .map_err(|error| Fatal::Listen(arguments.webhook_listen, error))?;
    let scene =
        Scene::new(&arguments.catalog_namespace, consumers, settings.independent_classes.clone(), &settings.node_local_provisioners);
    watch(supervisor, health, metrics, scene.watches(&reader, settings.watch()));
    metrics.on_scrape({
        let (resolver, scene) = (Arc::clone(resolver), scene.clone());
        move |metrics| {
            metrics.certificate("webhook", resolver.seconds_left(Timestamp::now()));
            metrics.admission_ready(resolver.served().is_some() && scene.known().is_ok());
        }
    });
    health.add(Probe::Ready, "what verdicts depend on", {
        let scene = scene.clone();
        move || scene.known().map_err(|unknown| unknown.to_string())
    });
    health.add(Probe::Ready, "webhook certificate", {
        let resolver = Arc::clone(resolver);
        move || resolver.served().map(drop).ok_or_else(|| format!("Secret {} is not there yet", certs::WEBHOOK_TLS))
    });
    let app = server::App {
        scene,
        live: Live::new(reader.clone(), &arguments.catalog_namespace),
        client: reader,
        namespace: arguments.namespace.clone(),
        daemon: daemon_user(&arguments.namespace),
        metrics: Arc::clone(metrics),
    };
    let tls = certs::server_config(Arc::clone(resolver), &["h2", "http/1.1"]).map_err(|error| Fatal::Other(error.to_string()))?;
    supervisor.spawn("webhook", Stage::Work, |stop| server::serve(listener, tls, app, server::Settings::default(), stop));
    Ok(())
}
