//! What a hoster may set: flags for who and where, one YAML file for how. Read and checked once, before anything starts.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Deserialize;

use crate::{
    api::yaml_fault,
    golden,
    model::{DiskSize, HttpUrl, public_words},
    run::lease::Timing,
    source::{EgressSettings, ProxySettings},
    world::WatchSettings,
};

/// Which of the two roles a process has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Role {
    /// Judges clones and deletions; talks to the API server only.
    Admission,
    /// Fetches, serves and writes; one of several holds the Lease.
    Controller,
    /// Both, for a laptop.
    All,
}

/// The form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// Text for people.
    Text,
}

/// Arguments of `golden-catalog run`.
#[derive(Debug, Clone, clap::Args)]
pub struct RunArguments {
    /// Which part this process plays.
    #[arg(long, value_enum, default_value = "controller", env = "GOLDEN_CATALOG_ROLE")]
    pub role: Role,
    /// The namespace the daemon runs in: its Secrets, and the ConfigMap with the image list.
    #[arg(long, default_value = "cozy-kubernetes-worker-image", env = "POD_NAMESPACE")]
    pub namespace: String,
    /// The namespace of the goldens, and of the Lease.
    #[arg(long, default_value = "cozy-public")]
    pub catalog_namespace: String,
    /// The name this process is known by; the Lease adds something random to it.
    #[arg(long, default_value = "golden-catalog", env = "POD_NAME")]
    pub identity: String,
    /// The address of this process that importers can reach, for the spool's EndpointSlice. Without it none is written.
    #[arg(long, env = "POD_IP")]
    pub pod_ip: Option<std::net::IpAddr>,
    /// A YAML file with what the chart's values hold under `settings`.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where the spool keeps its disks.
    #[arg(long, default_value = "/var/lib/golden-catalog/spool")]
    pub spool_dir: PathBuf,
    /// How much of the spool's volume may be used, such as `64Gi`; overrides the settings file.
    #[arg(long, value_parser = |text: &str| text.parse::<DiskSize>().map_err(|error| error.to_string()))]
    pub spool_size: Option<DiskSize>,
    /// Where the spool listens for importers.
    #[arg(long, default_value = "0.0.0.0:8443")]
    pub spool_listen: SocketAddr,
    /// The URL under which importers reach the spool. Default: the Service `golden-catalog-spool` of this namespace.
    #[arg(long)]
    pub spool_url: Option<String>,
    /// Where the webhook listens for the API server, in the roles `admission` and `all`.
    #[arg(long, default_value = "0.0.0.0:9443")]
    pub webhook_listen: SocketAddr,
    /// The host under which the API server reaches the webhook. Default: the Service `golden-catalog-admission` of this namespace.
    #[arg(long)]
    pub webhook_host: Option<String>,
    /// Says that admission runs beside the controller, so that images for selected namespaces may be made (R18): the chart does.
    #[arg(long)]
    pub access_enforced: bool,
    /// Where metrics are served.
    #[arg(long, default_value = "0.0.0.0:8080")]
    pub metrics_listen: SocketAddr,
    /// Where liveness and readiness are served.
    #[arg(long, default_value = "0.0.0.0:8081")]
    pub health_listen: SocketAddr,
    /// Where the status page is served, best on loopback: it names tenants' pools. Without it there is none.
    #[arg(long)]
    pub status_listen: Option<SocketAddr>,
    /// The form of log lines.
    #[arg(long, value_enum, default_value = "json")]
    pub log_format: LogFormat,
    /// Which log lines: `info`, `debug`, or a filter such as `golden_catalog=debug`.
    #[arg(long, default_value = "info", env = "GOLDEN_CATALOG_LOG")]
    pub log: String,
    /// For tests: lets upstreams be on loopback addresses.
    #[arg(long)]
    pub egress_allow_loopback: bool,
    /// For tests: asks this DNS server instead of the system's.
    #[arg(long, value_name = "ADDR")]
    pub resolver: Option<SocketAddr>,
}

/// The settings file. Every field has a default, which the chart's README tells.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Settings {
    /// R11: imports at once.
    pub max_concurrent_imports: usize,
    /// R11: fetches at once.
    pub max_concurrent_fetches: usize,
    /// Bytes a second for all fetches together; absent: unlimited.
    pub bandwidth: Option<DiskSize>,
    /// Fetch attempts before an image counts as terminally failed.
    pub fetch_attempts: i32,
    /// Import attempts before a target counts as terminally failed.
    pub import_attempts: i32,
    /// The shortest delay between attempts.
    #[serde(deserialize_with = "crate::daemon::settings::duration")]
    pub backoff_min: Duration,
    /// The longest delay between attempts.
    #[serde(deserialize_with = "crate::daemon::settings::duration")]
    pub backoff_max: Duration,
    /// How often a file that is not there is asked for.
    #[serde(deserialize_with = "crate::daemon::settings::duration")]
    pub not_found_interval: Duration,
    /// How long NotFound, Unauthorized and Forbidden may last before they count as terminal.
    #[serde(deserialize_with = "crate::daemon::settings::duration")]
    pub patience: Duration,
    /// The slow retry of what cannot succeed without a change.
    #[serde(deserialize_with = "crate::daemon::settings::duration")]
    pub terminal_interval: Duration,
    /// How long an import may make no progress.
    #[serde(deserialize_with = "crate::daemon::settings::duration")]
    pub import_deadline: Duration,
    /// How long an import may make no progress before what passes by itself in every import is told as trouble.
    #[serde(deserialize_with = "crate::daemon::settings::duration")]
    pub import_quiet: Duration,
    /// How long an importer's request is held while its disk is fetched again.
    #[serde(deserialize_with = "crate::daemon::settings::duration")]
    pub importer_hold: Duration,
    /// How often upstream is asked whether it serves other bytes (R6).
    #[serde(deserialize_with = "crate::daemon::settings::duration")]
    pub upstream_check: Duration,
    /// How long a watch may hear nothing from the API server before liveness fails.
    #[serde(deserialize_with = "crate::daemon::settings::duration")]
    pub watch_limit: Duration,
    /// How long one question of the leader may wait for the API server; longer than that one's `--request-timeout` (60 s).
    #[serde(deserialize_with = "crate::daemon::settings::duration")]
    pub api_patience: Duration,
    /// How long a golden that is to go is closed before it is looked at once more; must be longer than the API server's `--request-timeout` (60 s).
    #[serde(deserialize_with = "crate::daemon::settings::duration")]
    pub retire_wait: Duration,
    /// How much of the spool's volume may be used, by allocated bytes.
    pub spool_size: DiskSize,
    /// The largest disk, as a guest sees it.
    pub largest_disk: DiskSize,
    /// How many images are worked on at once.
    pub workers: usize,
    /// Whether the leader brings our CRD forward to its own release. Off, a field that is missing is reported, and the daemon
    /// is not ready.
    pub crd_upgrade: bool,
    /// The least time between two writes of one image's consumer counts.
    #[serde(deserialize_with = "crate::daemon::settings::duration")]
    pub consumers_interval: Duration,
    /// Marks written on consumers' disks a second (R25).
    pub backfill_rate: u32,
    /// How long a clone may stand still before it is told.
    #[serde(deserialize_with = "crate::daemon::settings::duration")]
    pub stuck_clone: Duration,
    /// Classes whose finished clones do not depend on their golden, by the hoster's word (`docs/consumers.md`).
    pub independent_classes: std::collections::BTreeSet<String>,
    /// R17: provisioners whose volumes live on one node; a list that is given replaces the one that is built in.
    pub node_local_provisioners: Vec<String>,
    /// How long an admission Pod that is asked to end goes on answering; at most 15 s, of the 30 s that Kubernetes leaves it.
    #[serde(deserialize_with = "crate::daemon::settings::duration")]
    pub admission_linger: Duration,
    /// The Lease's times.
    pub lease: LeaseSettings,
    /// How upstreams are reached.
    pub egress: EgressSettings,
}

/// client-go's three times of a Lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct LeaseSettings {
    /// How long a Lease holds without renewal.
    #[serde(deserialize_with = "crate::daemon::settings::duration")]
    pub duration: Duration,
    /// How long the leader tries to renew before it gives up.
    #[serde(deserialize_with = "crate::daemon::settings::duration")]
    pub renew_deadline: Duration,
    /// How often it tries.
    #[serde(deserialize_with = "crate::daemon::settings::duration")]
    pub retry_period: Duration,
}

impl Default for LeaseSettings {
    fn default() -> Self {
        Self { duration: Duration::from_secs(15), renew_deadline: Duration::from_secs(10), retry_period: Duration::from_secs(2) }
    }
}

impl Default for Settings {
    fn default() -> Self {
        let golden = golden::Settings::default();
        let consumers = super::ConsumerSettings::default();
        let gib = |n: u64| DiskSize::from_bytes(n << 30).unwrap_or_else(|| unreachable!("a constant above zero"));
        Self {
            max_concurrent_imports: 3,
            max_concurrent_fetches: 2,
            bandwidth: None,
            fetch_attempts: golden.fetch_attempts,
            import_attempts: golden.import_attempts,
            backoff_min: golden.backoff.0,
            backoff_max: golden.backoff.1,
            not_found_interval: golden.not_found_interval,
            patience: golden.patience,
            terminal_interval: golden.terminal_interval,
            import_deadline: golden.import_deadline,
            import_quiet: golden.import_quiet,
            importer_hold: Duration::from_secs(300),
            upstream_check: golden.upstream_check,
            watch_limit: WatchSettings::default().limit,
            api_patience: crate::run::client::READ_TIMEOUT,
            retire_wait: Duration::from_secs(75),
            spool_size: gib(64),
            largest_disk: gib(1024),
            workers: 8,
            crd_upgrade: true,
            consumers_interval: consumers.interval,
            backfill_rate: consumers.marks_per_second,
            stuck_clone: consumers.stuck_clone,
            independent_classes: consumers.independent_classes,
            node_local_provisioners: golden.node_local_provisioners,
            admission_linger: Duration::from_secs(5),
            lease: LeaseSettings::default(),
            egress: EgressSettings::default(),
        }
    }
}

impl Settings {
    /// Reads settings; what is not given has its default.
    ///
    /// # Errors
    /// The path of what is wrong, and what is wrong with it in a line that names that path.
    pub fn of(value: serde_json::Value) -> Result<Self, (String, String)> {
        if value.is_null() {
            return Ok(Self::default());
        }
        // Read field by field in their order, a list would pass for a map.
        if !value.is_object() {
            return Err((String::new(), "settings are a map, such as `egress: {mirrors: {…}}`".to_owned()));
        }
        serde_path_to_error::deserialize(value).map_err(|error| {
            let path = error.path().to_string();
            // Our own words repeat no secret of an address, and name forms that only look like one.
            let told = error.inner().to_string();
            let told = if told.starts_with("invalid ") { public_words(&told) } else { told };
            let what = if path == "." { told } else { format!("`{path}`: {told}") };
            (path, what)
        })
    }

    /// What bounds the work for consumers.
    pub fn consumers(&self) -> super::ConsumerSettings {
        super::ConsumerSettings {
            interval: self.consumers_interval,
            marks_per_second: self.backfill_rate,
            stuck_clone: self.stuck_clone,
            independent_classes: self.independent_classes.clone(),
        }
    }

    /// How watches are kept.
    pub fn watch(&self) -> WatchSettings {
        WatchSettings { limit: self.watch_limit, ..WatchSettings::default() }
    }

    /// Holds the settings against each other, as the controller needs them.
    ///
    /// # Errors
    /// The first that makes no sense, with its field.
    pub fn check(&self) -> Result<(), SettingsError> {
        self.check_all_roles()?;
        self.timing().map(drop)
    }

    /// The Lease's times.
    ///
    /// # Errors
    /// When they cannot keep two processes from leading at once.
    pub fn timing(&self) -> Result<Timing, SettingsError> {
        let LeaseSettings { duration, renew_deadline, retry_period } = self.lease;
        Timing::new(duration, renew_deadline, retry_period).map_err(|_| SettingsError::Value {
            field: "lease",
            problem: "must have 1.2 × `retryPeriod` < `renewDeadline` < `duration`, and a `duration` of whole seconds, at most 60s".into(),
        })
    }

    /// The part of [`Self::check`] that every role needs.
    fn check_all_roles(&self) -> Result<(), SettingsError> {
        let positive = |field, value: usize| {
            if value == 0 { Err(SettingsError::Value { field, problem: "must be at least 1".into() }) } else { Ok(()) }
        };
        positive("maxConcurrentImports", self.max_concurrent_imports)?;
        positive("maxConcurrentFetches", self.max_concurrent_fetches)?;
        positive("workers", self.workers)?;
        positive("backfillRate", usize::try_from(self.backfill_rate).unwrap_or(0))?;
        positive("fetchAttempts", usize::try_from(self.fetch_attempts).unwrap_or(0))?;
        positive("importAttempts", usize::try_from(self.import_attempts).unwrap_or(0))?;
        if self.backoff_min > self.backoff_max {
            return Err(SettingsError::Value { field: "backoffMin", problem: "must not be more than `backoffMax`".into() });
        }
        if self.admission_linger > Duration::from_secs(15) {
            return Err(SettingsError::Value { field: "admissionLinger", problem: "must be at most 15s".into() });
        }
        Ok(())
    }

    /// What decisions depend on.
    pub fn golden(&self) -> golden::Settings {
        golden::Settings {
            fetch_attempts: self.fetch_attempts,
            not_found_interval: self.not_found_interval,
            patience: self.patience,
            backoff: (self.backoff_min, self.backoff_max),
            terminal_interval: self.terminal_interval,
            import_attempts: self.import_attempts,
            import_deadline: self.import_deadline,
            import_quiet: self.import_quiet,
            upstream_check: self.upstream_check,
            node_local_provisioners: self.node_local_provisioners.clone(),
            ..golden::Settings::default()
        }
    }
}

/// Why the daemon does not start.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file cannot be read.
    #[error("cannot read the settings file {0}: {1}")]
    Read(PathBuf, std::io::Error),
    /// The file is not of the form.
    #[error("the settings file {0} is wrong: {1}")]
    Form(PathBuf, String),
    /// A value makes no sense.
    #[error("`{field}` {problem}")]
    Value {
        /// The field or flag.
        field: &'static str,
        /// What is wrong with it.
        problem: String,
    },
}

impl RunArguments {
    /// Reads the settings file, if one is named, and checks everything that can be wrong.
    ///
    /// # Errors
    /// The first thing that is wrong, with its field.
    pub fn settings(&self) -> Result<Settings, SettingsError> {
        let mut settings = match &self.config {
            Some(path) => read(path)?,
            None => Settings::default(),
        };
        settings.spool_size = self.spool_size.unwrap_or(settings.spool_size);
        settings.egress.allow_loopback |= self.egress_allow_loopback;
        settings.egress.resolver = self.resolver.or(settings.egress.resolver);
        if settings.egress.proxy == ProxySettings::default() {
            settings.egress.proxy = ProxySettings::from_variables(|name| std::env::var(name).ok())
                .map_err(|error| SettingsError::Value { field: "HTTP_PROXY, HTTPS_PROXY, NO_PROXY", problem: error.to_string() })?;
        }
        // Who judges clones needs no Lease, and goes on judging whatever is wrong with its times.
        match self.role {
            Role::Admission => settings.check_all_roles()?,
            Role::Controller | Role::All => settings.check()?,
        }
        self.spool_url()?;
        Ok(settings)
    }

    /// The host under which the API server reaches the webhook, for its certificate.
    pub fn webhook_host(&self) -> String {
        self.webhook_host.clone().unwrap_or_else(|| format!("golden-catalog-admission.{}.svc", self.namespace))
    }

    /// The URL under which importers reach the spool.
    ///
    /// # Errors
    /// When the flag is no `https` URL.
    pub fn spool_url(&self) -> Result<HttpUrl, SettingsError> {
        let text = self.spool_url.clone().unwrap_or_else(|| format!("https://golden-catalog-spool.{}.svc:8443", self.namespace));
        let value = |problem: String| SettingsError::Value { field: "--spool-url", problem };
        let url: HttpUrl = text.parse().map_err(|error: crate::model::InvalidValue| value(error.to_string()))?;
        if url.is_https() { Ok(url) } else { Err(value("must be an https URL: tokens are sent to it".into())) }
    }
}

fn read(path: &Path) -> Result<Settings, SettingsError> {
    let text = fs::read_to_string(path).map_err(|error| SettingsError::Read(path.to_owned(), error))?;
    if text.trim().is_empty() {
        return Ok(Settings::default());
    }
    let form = |what| SettingsError::Form(path.to_owned(), what);
    let value = serde_saphyr::from_str(&text).map_err(|error| form(yaml_fault(&error)))?;
    Settings::of(value).map_err(|(_, what)| form(what))
}

/// Reads `90s`, `25m`, `1h30m` or `1500ms`.
pub(crate) fn duration<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse::<k8s_openapi::jiff::SignedDuration>()
        .ok()
        .and_then(|duration| Duration::try_from(duration).ok())
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| {
            serde::de::Error::custom(format!("{:?} is not a duration: write it like `90s`, `25m` or `1h30m`", public_words(&text)))
        })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Settings;

    #[test]
    fn an_empty_map_is_the_defaults() {
        let settings: Settings = serde_saphyr::from_str("{}").expect("settings");
        assert_eq!(settings, Settings::default());
        assert_eq!(settings.spool_size.to_string(), "64Gi");
    }

    #[test]
    fn reads_what_a_hoster_writes_and_refuses_slips() {
        let settings: Settings =
            serde_saphyr::from_str("importDeadline: 20m\nbandwidth: 100Mi\nlease: {duration: 3s, renewDeadline: 2s, retryPeriod: 500ms}\n")
                .expect("settings");
        assert_eq!(settings.import_deadline, Duration::from_secs(1200));
        assert_eq!(settings.lease.retry_period, Duration::from_millis(500));
        let read = |text: &str| {
            let file = tempfile::NamedTempFile::new().expect("a file");
            std::fs::write(file.path(), text).expect("write");
            super::read(file.path()).map_err(|error| error.to_string())
        };
        assert_eq!(read("# nothing\n").expect("defaults"), Settings::default());
        assert_eq!(read("workers: 3\n").expect("settings").workers, 3);
        for (bad, expected) in [
            ("workers: 1\nworkers: 2\n", "line 2: the key `workers` is given twice"),
            ("workers: x\n", "is wrong: `workers`: invalid type"),
            ("workrs: 1\n", "is wrong: `workrs`: unknown field"),
            ("egress: {proxy: {http: 'socks5://u:hunter2@x'}}\n", "must be `http://[user:password@]host[:port]`"),
            ("egress: {mirrors: {a: ['ftp://u:hunter2@x']}}\n", "is wrong: `egress.mirrors"),
            ("egress:\n  caBundle: hunter2\n a: [\n", "is wrong: "),
            ("[]\n", "is wrong: settings are a map"),
        ] {
            let told = read(bad).expect_err(bad);
            assert!(told.contains(expected) && !told.contains("hunter2") && !told.contains('\n'), "{told}");
        }
        for (lease, is_good) in [
            ("{}", true),
            ("{duration: 60s, renewDeadline: 59s, retryPeriod: 49s}", true),
            ("{duration: 2m, renewDeadline: 90s, retryPeriod: 10s}", false),
            ("{duration: 15500ms}", false),
            ("{duration: 10s}", false),
            ("{retryPeriod: 9s}", false),
            ("{renewDeadline: 2400ms}", false),
        ] {
            let settings = read(&format!("lease: {lease}\n")).expect(lease);
            let told = settings.check().map_err(|error| error.to_string()).err();
            assert_eq!((told.is_none(), settings.timing().is_ok()), (is_good, is_good), "{lease}: {told:?}");
            assert!(told.is_none_or(|told| told.starts_with("`lease` must have")), "{lease}");
            settings.check_all_roles().expect(lease);
        }
        for (linger, is_good) in [("15s", true), ("15001ms", false)] {
            let settings = read(&format!("admissionLinger: {linger}\n")).expect(linger);
            assert_eq!(settings.check_all_roles().is_ok(), is_good, "{linger}");
        }
        for bad in ["importDeadline: 20", "importdeadline: 20m", "importDeadline: -5m", "spoolSize: 0"] {
            assert!(serde_saphyr::from_str::<Settings>(bad).is_err(), "{bad}");
        }
    }
}
