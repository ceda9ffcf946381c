//! The `golden-catalog` binary: parses the command line, runs one command, and turns its outcome into an exit code.

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    golden_catalog::cli::main(golden_catalog::cli::Arguments::parse())
}
