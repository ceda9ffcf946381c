//! `golden-catalog plan`: what a list would become, told before anything is installed.
//!
//! [`input`] and [`secrets`] read files, [`ask`] peeks at upstreams, [`judge`] decides, [`show`] prints. Nothing is written anywhere.

mod against;
mod ask;
mod input;
mod judge;
mod lines;
mod secrets;
mod settings;
mod show;

use std::{
    io::{Read as _, Write as _},
    net::SocketAddr,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

use super::{Exit, Failure, Output};
use crate::{
    artifact::Limits,
    daemon::Settings,
    source::{Egress, EgressSettings, ProxySettings},
};

/// What `--help` says about exit codes.
pub(super) const EXIT_CODES: &str = "\
Exit codes:
   0  every image is good, or accepted: not asked about (`--offline`), or its disk not seen within what was read
   1  at least one image is refused
   2  nothing is refused, but an upstream could not be asked, or only with a Secret that was not given
  64  wrong usage, or a file that cannot be read or holds no images

Upstream is asked for at most the first mebibyte of each image. A schematic document is given to its factory, as the daemon would.";

/// Arguments of `plan`.
#[derive(Debug, clap::Args)]
pub struct PlanArguments {
    /// Values files of the chart, or GoldenImage manifests; `-` reads standard input.
    #[arg(long = "file", short, value_name = "FILE", required = true, num_args = 1..)]
    files: Vec<PathBuf>,
    /// Asks no upstream: checks only what the files say.
    #[arg(long)]
    offline: bool,
    /// Holds the files against the cluster of the current kubeconfig too: edits of images that exist, names and goldens that are
    /// taken, and which goldens of the former charts would be taken over. Nothing is written.
    #[arg(long)]
    against_cluster: bool,
    /// The namespace of the goldens, for `--against-cluster`.
    #[arg(long, default_value = "cozy-public")]
    catalog_namespace: String,
    /// The form of the answer.
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
    /// Settings of the daemon instead of those in the values files: a map of them, a values file of the chart, or the ConfigMap
    /// `golden-catalog-settings`. Mirrors, proxies, CA bundle, deadlines and limits are used.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// PEM certificates to trust besides the system's and the settings'.
    #[arg(long, value_name = "FILE")]
    ca_bundle: Option<PathBuf>,
    /// Secrets of images that have a `credentialsSecretRef`, as `kubectl get secret NAME -o yaml` prints them; `-` reads standard
    /// input, so that they need no file. Without it such an image's upstream cannot be asked, and its verdict is Unknown.
    #[arg(long, value_name = "FILE", conflicts_with = "offline")]
    secrets: Option<PathBuf>,
    /// For tests: lets upstreams be on loopback addresses.
    #[arg(long)]
    egress_allow_loopback: bool,
    /// For tests: asks this DNS server instead of the system's.
    #[arg(long, value_name = "ADDR")]
    resolver: Option<SocketAddr>,
}

/// See [`EXIT_CODES`].
pub(super) async fn run(arguments: PlanArguments) -> Result<Exit, Failure> {
    let (candidates, values) = candidates(&arguments.files)?;
    let settings = settings(&arguments, values)?;
    let egress = Egress::new(settings.egress.clone()).map_err(|error| Failure::usage(error.to_string()))?;
    let secrets = secrets(&arguments)?;
    // Asked first: without it there is no verdict, whatever upstream says.
    let live = match arguments.against_cluster {
        true => Some(against::Live::read(crate::cli::client().await?, &arguments.catalog_namespace).await?),
        false => None,
    };
    let peeks = if arguments.offline {
        vec![judge::Peek::NotAsked; candidates.len()]
    } else {
        say_test_settings(&settings.egress);
        let limits = Limits { max_virtual_size: settings.largest_disk.bytes(), ..Limits::default() };
        ask::ask(&egress, &limits, &secrets, &candidates, &judge::worth_asking(&candidates)).await
    };
    let mut report = judge::judge(&candidates, &peeks);
    if let Some(live) = live {
        against::hold_against(&mut report, &candidates, &judge::ids(&candidates, &peeks), &live);
    }
    let text = match arguments.output {
        Output::Table => show::text(&report),
        Output::Json => serde_json::to_string_pretty(&report).map_err(|error| Failure::new(error.to_string()))? + "\n",
    };
    // Whoever reads may have seen enough (`| head`): the verdict is in the exit code too.
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::new(format!("cannot write the answer: {error}"))),
        _ => Ok(report.exit()),
    }
}

fn say_test_settings(egress: &EgressSettings) {
    if egress.allow_loopback {
        eprintln!("warning: egress to loopback addresses is allowed: for tests only");
    }
    if let Some(server) = egress.resolver {
        eprintln!("warning: names of upstreams are resolved by {server} instead of the system's resolver: for tests only");
    }
}

/// The Secrets that were given.
fn secrets(arguments: &PlanArguments) -> Result<secrets::Secrets, Failure> {
    let Some(file) = &arguments.secrets else { return Ok(secrets::Secrets::default()) };
    if is_stdin(file) && arguments.files.iter().any(|file| is_stdin(file)) {
        return Err(Failure::usage("standard input (`-`) can be read only once"));
    }
    let shown = shown(file);
    read_text(file, &shown).and_then(|text| secrets::Secrets::read(&shown, &text)).map_err(Failure::usage)
}

/// A file as messages name it.
fn shown(file: &Path) -> String {
    if is_stdin(file) { "<stdin>".to_owned() } else { file.display().to_string() }
}

/// The images of all files, and the settings of those that are values. Every file that cannot be read is told, not only the first.
fn candidates(files: &[PathBuf]) -> Result<(Vec<input::Candidate>, Map<String, Value>), Failure> {
    if files.iter().filter(|file| is_stdin(file)).count() > 1 {
        return Err(Failure::usage("standard input (`-`) can be read only once"));
    }
    let (mut candidates, mut values, mut failures) = (Vec::new(), Map::new(), Vec::new());
    for file in files {
        let shown = shown(file);
        match read_text(file, &shown).and_then(|text| input::read(&shown, &text).map_err(|error| error.to_string())) {
            Ok(found) => {
                candidates.extend(found.candidates);
                settings::merge(&mut values, found.settings);
            }
            Err(failure) => failures.push(failure),
        }
    }
    if failures.is_empty() { Ok((candidates, values)) } else { Err(Failure::usage(failures.join("\nerror: "))) }
}

fn is_stdin(file: &Path) -> bool {
    file.as_os_str() == "-"
}

/// The longest file that is read, in bytes: an image list has at most 1 MiB, a list of manifests with their status more.
const LONGEST: u64 = 16 << 20;

fn read_text(file: &Path, shown: &str) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("cannot read {shown}: {error}");
    let reader: Box<dyn std::io::Read> =
        if is_stdin(file) { Box::new(std::io::stdin()) } else { Box::new(std::fs::File::open(file).map_err(failed)?) };
    let mut bytes = Vec::new();
    let length = reader.take(LONGEST + 1).read_to_end(&mut bytes).map_err(failed)?;
    if length as u64 > LONGEST {
        return Err(format!("cannot read {shown}: it has more than {} MiB", LONGEST >> 20));
    }
    String::from_utf8(bytes).map_err(|_| format!("cannot read {shown}: it is not UTF-8 text"))
}

/// The daemon's settings as far as upstreams are concerned, with what the command line says on top.
fn settings(arguments: &PlanArguments, values: Map<String, Value>) -> Result<Settings, Failure> {
    let text = |path: &Path| read_text(path, &path.display().to_string()).map_err(Failure::usage);
    let given = match &arguments.config {
        None => values,
        Some(path) => settings::read(&path.display().to_string(), &text(path)?, input::is_value).map_err(Failure::usage)?,
    };
    let mut settings = settings::parse(given).map_err(|(_, what)| Failure::usage(format!("the settings are wrong: {what}")))?;
    let egress = &mut settings.egress;
    egress.allow_loopback |= arguments.egress_allow_loopback;
    egress.resolver = arguments.resolver.or(egress.resolver);
    if let Some(path) = &arguments.ca_bundle {
        let bundle = text(path)?;
        egress.ca_bundle = Some(egress.ca_bundle.take().map_or_else(|| bundle.clone(), |global| format!("{global}\n{bundle}")));
    }
    if egress.proxy == ProxySettings::default() {
        egress.proxy = ProxySettings::from_variables(|name| std::env::var(name).ok())
            .map_err(|error| Failure::usage(format!("HTTP_PROXY, HTTPS_PROXY, NO_PROXY: {error}")))?;
    }
    Ok(settings)
}
