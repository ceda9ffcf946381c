//! A schematic's ID without a factory.
//!
//! A factory's ID is the sha256 of the document as its YAML library writes it (siderolabs/image-factory
//! `pkg/schematic/schematic.go`). Two things make that uncertain from outside: what the factory's version
//! knows, and when that library quotes. So this gives an ID only for documents whose every string it is certain about, and
//! the answer of a factory always counts for more.

mod yaml;

use serde_json::{Map, Value};
use yaml::Scalar;

use crate::model::{Digest, Schematic, SchematicId, Source};

/// The ID that factories give to `document`, where that is certain.
pub fn local_schematic_id(document: &Value) -> Option<SchematicId> {
    Digest::of(canonical_yaml(document)?.as_bytes()).hex().parse().ok()
}

/// The ID of a source's schematic, where it is given, or where the one that factories give is certain.
pub fn certain_schematic_id(source: &Source) -> Option<SchematicId> {
    let Source::TalosFactory(talos) = source else { return None };
    match &talos.schematic {
        Schematic::Id(id) => Some(id.clone()),
        Schematic::Document(document) => local_schematic_id(document),
    }
}

/// The document in the form whose sha256 is its ID; `None` where that form is not certain: an unknown field, a value of
/// another type, a string that may need quotes.
pub fn canonical_yaml(document: &Value) -> Option<String> {
    let empty = Map::new();
    // A factory reads an empty document as the plain schematic.
    let document = if document.is_null() { &empty } else { document.as_object()? };
    let mut out = String::new();
    known(document, &["overlay", "customization"])?;
    if let Some(overlay) = set(document, "overlay") {
        write_overlay(&mut out, overlay.as_object()?)?;
    }
    let customization = match set(document, "customization") {
        Some(customization) => write_customization(customization.as_object()?)?,
        None => String::new(),
    };
    if customization.is_empty() {
        out.push_str("customization: {}\n");
    } else {
        out.push_str("customization:\n");
        out.push_str(&customization);
    }
    Some(out)
}

/// `Some` where `map` has no other fields than `names`: a factory refuses any other.
fn known(map: &Map<String, Value>, names: &[&str]) -> Option<()> {
    map.keys().all(|key| names.contains(&key.as_str())).then_some(())
}

/// The field `name`, unless it is absent or null.
fn set<'a>(map: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    map.get(name).filter(|value| !value.is_null())
}

/// A line `name: value` at `depth`.
fn line(out: &mut String, depth: usize, name: &str, value: &Scalar) {
    out.push_str(&"    ".repeat(depth));
    out.push_str(name);
    out.push_str(": ");
    value.write(out, depth + 1);
}

/// A field that is omitted where empty.
fn optional_line(out: &mut String, depth: usize, map: &Map<String, Value>, name: &str) -> Option<()> {
    match set(map, name) {
        None => {}
        Some(Value::String(text)) if text.is_empty() => {}
        Some(value) => line(out, depth, name, &Scalar::text(value.as_str()?)?),
    }
    Some(())
}

/// A list of strings that is omitted where empty. Order and repetitions stay: they are part of the ID.
fn strings(out: &mut String, depth: usize, map: &Map<String, Value>, name: &str) -> Option<()> {
    let Some(list) = set(map, name) else { return Some(()) };
    let list = list.as_array()?;
    if list.is_empty() {
        return Some(());
    }
    out.push_str(&format!("{}{name}:\n", "    ".repeat(depth)));
    for item in list {
        let item = Scalar::text(item.as_str()?)?;
        out.push_str(&"    ".repeat(depth + 1));
        out.push_str("- ");
        // A block of several lines inside a list is indented by rules this writer does not know.
        item.is_one_line().then(|| item.write(out, depth + 2))?;
    }
    Some(())
}

fn write_overlay(out: &mut String, overlay: &Map<String, Value>) -> Option<()> {
    known(overlay, &["image", "name", "options"])?;
    let text = |name| Scalar::text(set(overlay, name)?.as_str().filter(|text| !text.is_empty())?);
    out.push_str("overlay:\n");
    line(out, 1, "image", &text("image")?);
    line(out, 1, "name", &text("name")?);
    let Some(options) = set(overlay, "options") else { return Some(()) };
    let options = options.as_object()?;
    if options.is_empty() {
        return Some(());
    }
    out.push_str("    options:\n");
    let mut options: Vec<_> = options.iter().collect();
    options.sort_by_key(|(key, _)| key.as_str());
    for (key, value) in options {
        // The library sorts keys by a rule of its own, which for letters only is the plain one.
        let plain_key = !key.is_empty() && key.bytes().all(|c| c.is_ascii_alphabetic()) && Scalar::text(key)?.is_plain();
        line(out, 2, plain_key.then_some(key)?, &Scalar::any(value)?);
    }
    Some(())
}

fn write_customization(map: &Map<String, Value>) -> Option<String> {
    known(map, &["embeddedMachineConfiguration", "extraKernelArgs", "meta", "systemExtensions", "bootloader", "secureboot", "diskImage"])?;
    let mut out = String::new();
    optional_line(&mut out, 1, map, "embeddedMachineConfiguration")?;
    strings(&mut out, 1, map, "extraKernelArgs")?;
    write_meta(&mut out, map)?;
    if let Some(extensions) = set(map, "systemExtensions") {
        let extensions = extensions.as_object()?;
        known(extensions, &["officialExtensions"])?;
        let mut inner = String::new();
        strings(&mut inner, 2, extensions, "officialExtensions")?;
        section(&mut out, "systemExtensions", &inner);
    }
    match set(map, "bootloader").map(Value::as_str) {
        None | Some(Some("none")) => {}
        Some(Some(kind @ ("dual-boot" | "sd-boot" | "grub"))) => line(&mut out, 1, "bootloader", &Scalar::text(kind)?),
        Some(_) => return None,
    }
    if let Some(secureboot) = set(map, "secureboot") {
        let secureboot = secureboot.as_object()?;
        known(secureboot, &["enrollKeys", "includeWellKnownCertificates"])?;
        // `enrollKeys` is newer than the vectors that could be checked.
        let mut inner = String::new();
        if set(secureboot, "enrollKeys").is_some() {
            return None;
        }
        if set(secureboot, "includeWellKnownCertificates").map_or(Some(false), Value::as_bool)? {
            inner.push_str("        includeWellKnownCertificates: true\n");
        }
        section(&mut out, "secureboot", &inner);
    }
    if let Some(disk) = set(map, "diskImage") {
        let disk = disk.as_object()?;
        known(disk, &["sectorSize"])?;
        let sector = set(disk, "sectorSize").map_or(Some(0), Value::as_u64)?;
        let inner = if sector == 0 { String::new() } else { format!("        sectorSize: {sector}\n") };
        section(&mut out, "diskImage", &inner);
    }
    Some(out)
}

/// The list of `{key, value}`, with both always written.
fn write_meta(out: &mut String, map: &Map<String, Value>) -> Option<()> {
    let Some(meta) = set(map, "meta") else { return Some(()) };
    let meta = meta.as_array()?;
    if meta.is_empty() {
        return Some(());
    }
    out.push_str("    meta:\n");
    for entry in meta {
        let entry = entry.as_object()?;
        known(entry, &["key", "value"])?;
        let key = u8::try_from(set(entry, "key")?.as_u64()?).ok()?;
        let value = Scalar::text(set(entry, "value")?.as_str()?)?;
        out.push_str(&format!("        - key: {key}\n"));
        out.push_str("          value: ");
        value.is_one_line().then(|| value.write(out, 3))?;
    }
    Some(())
}

/// A section of `customization`, left out where it has nothing in it.
fn section(out: &mut String, name: &str, inner: &str) {
    if !inner.is_empty() {
        out.push_str(&format!("    {name}:\n{inner}"));
    }
}

#[cfg(test)]
mod tests;
