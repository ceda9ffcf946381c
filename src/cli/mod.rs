//! Commands for people and scripts: a table for the one, JSON for the other, documented exit codes for both.

mod api_doc;
mod consumers;
mod exit;
mod explain;
mod plan;
mod reasons_doc;
mod retire;
mod schematic;
mod status;
mod survey;
mod table;

use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};

pub use api_doc::api_page;
pub use exit::{Exit, Failure};
pub use reasons_doc::reasons_page;
pub use table::Table;

/// The command line. Installed as `kubectl-golden`, it is a kubectl plugin.
#[derive(Debug, Parser)]
#[command(name = "golden-catalog", version, about, long_about = None, propagate_version = true)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the daemon.
    Run(Box<crate::daemon::RunArguments>),
    /// Show what a list of images would become: names, sizes, downloads and verdicts, without a cluster.
    #[command(after_help = plan::EXIT_CODES)]
    Plan(plan::PlanArguments),
    /// Show the golden images of the cluster.
    Status(status::StatusArguments),
    /// Show who needs a golden, by pool: asks the cluster itself, so the daemon need not run.
    #[command(after_help = consumers::EXIT_CODES)]
    Consumers(consumers::ConsumersArguments),
    /// Answer whether a golden may be deleted; asks the cluster itself, so the daemon need not run.
    #[command(after_help = consumers::CHECK_EXIT_CODES)]
    CheckDelete(consumers::ConsumersArguments),
    /// Say why a disk, VM, machine template or pool is refused or waits.
    #[command(after_help = explain::EXIT_CODES)]
    Explain(explain::ExplainArguments),
    /// Ask for a golden image to go when nothing needs it any more.
    #[command(after_help = retire::EXIT_CODES)]
    Retire(retire::RetireArguments),
    /// Print the ID of a Talos Image Factory schematic document.
    SchematicId(schematic::SchematicArguments),
    /// Print the CustomResourceDefinitions.
    Crds,
}

/// The form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Output {
    /// A table for people.
    #[default]
    Table,
    /// JSON for scripts.
    Json,
}

/// Runs one command to its end.
pub fn main(arguments: Arguments) -> ExitCode {
    let outcome = match arguments.command {
        Command::Run(arguments) => return crate::daemon::main(*arguments),
        Command::Plan(arguments) => block_on(plan::run(arguments)),
        Command::Status(arguments) => block_on(status::run(arguments)),
        Command::Consumers(arguments) => block_on_all_cores(consumers::consumers(arguments)),
        Command::CheckDelete(arguments) => block_on_all_cores(consumers::check_delete(arguments)),
        Command::Explain(arguments) => block_on(explain::run(arguments)),
        Command::Retire(arguments) => block_on(retire::run(arguments)),
        Command::SchematicId(arguments) => schematic::run(&arguments),
        Command::Crds => crate::api::crd_yaml().map_err(|error| Failure::new(error.to_string())).map(|yaml| {
            print!("{yaml}");
            Exit::Ok
        }),
    };
    match outcome {
        Ok(exit) => exit.into(),
        Err(failure) => {
            eprintln!("error: {failure}");
            failure.exit().into()
        }
    }
}

fn block_on<F: Future<Output = Result<Exit, Failure>>>(future: F) -> Result<Exit, Failure> {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(format!("cannot start: {error}")))?
        .block_on(future)
}

/// For commands that read many objects at once.
fn block_on_all_cores<F: Future<Output = Result<Exit, Failure>>>(future: F) -> Result<Exit, Failure> {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(|error| Failure::new(format!("cannot start: {error}")))?.block_on(future)
}

/// A client for the cluster that `KUBECONFIG`, `~/.kube/config` or the Pod's own account names.
async fn client() -> Result<kube::Client, Failure> {
    let config = crate::daemon::cluster().await.map_err(Failure::new)?;
    kube::Client::try_from(config).map_err(|error| Failure::new(crate::run::api_error(&error)))
}
