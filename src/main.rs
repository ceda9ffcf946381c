//! The `golden-catalog` binary: parses the command line, runs one command, and turns its outcome into an exit code.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used))]

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    match golden_catalog::cli::Arguments::try_parse() {
        Ok(arguments) => golden_catalog::cli::main(arguments),
        // Help and version are answers, not errors; everything else is a usage error (`EX_USAGE`).
        Err(error) => {
            let _ = error.print();
            if error.use_stderr() { ExitCode::from(64) } else { ExitCode::SUCCESS }
        }
    }
}
