//! `golden-catalog schematic-id`: the ID that a factory gives a schematic document, computed without a factory.

use std::{io::Read as _, path::PathBuf};

use super::{Exit, Failure};
use crate::api::yaml_fault;

/// Arguments of `schematic-id`.
#[derive(Debug, clap::Args)]
pub struct SchematicArguments {
    /// The schematic document, YAML or JSON; `-` reads standard input.
    #[arg(long, short, value_name = "FILE")]
    file: PathBuf,
}

/// The longest document that is read, in bytes.
const LONGEST: u64 = 1 << 20;

/// Exit code 0 with the ID, 1 when the document needs a factory to say, 2 when it cannot be read.
pub(super) fn run(arguments: &SchematicArguments) -> Result<Exit, Failure> {
    let mut text = String::new();
    let shown = arguments.file.display();
    let reader: Box<dyn std::io::Read> = if arguments.file.as_os_str() == "-" {
        Box::new(std::io::stdin())
    } else {
        Box::new(std::fs::File::open(&arguments.file).map_err(|error| Failure::new(format!("cannot read {shown}: {error}")))?)
    };
    reader.take(LONGEST).read_to_string(&mut text).map_err(|error| Failure::new(format!("cannot read {shown}: {error}")))?;
    let document: serde_json::Value =
        serde_saphyr::from_str(&text).map_err(|error| Failure::new(format!("{shown} is not YAML or JSON: {}", yaml_fault(&error))))?;
    match crate::source::local_schematic_id(&document) {
        Some(id) => {
            println!("{id}");
            Ok(Exit::Ok)
        }
        None => {
            eprintln!(
                "{shown}: the ID depends on how the factory spells this document: post it to the factory (POST /schematics) and use its answer"
            );
            Ok(Exit::No)
        }
    }
}
