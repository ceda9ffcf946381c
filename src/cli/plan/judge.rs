//! From what was asked for and what upstream said to a verdict for each image: pure, so that every case is a line of a table.

use std::collections::BTreeMap;

use serde::Serialize;

use super::input::Candidate;
use crate::{
    api::GoldenImageStatus,
    cli::Exit,
    intake::{Extent, Seen},
    model::{DiskSize, Image, Sameness, SchematicId, VolumeMode},
    rules::{
        Reason,
        class::Shape,
        duplicate_message, moving_source_warnings,
        size::{Overheads, Volume, golden_size},
    },
    source::certain_schematic_id,
};

/// What upstream said about one image.
#[derive(Debug, Clone)]
pub(super) enum Peek {
    /// Upstream was not asked: `--offline`, or the image is refused anyway.
    NotAsked,
    /// It wants credentials, and they were not given; `others` says whether some were.
    Private { secret: String, others: bool },
    /// It serves bytes.
    Served(Served),
    /// It does not.
    Failed { reason: Reason, message: String, passed_over: Vec<String> },
}

/// What is known of an artifact from its first mebibyte.
#[derive(Debug, Clone)]
pub(super) struct Served {
    /// The announced length.
    pub length: Option<u64>,
    /// Where it comes from after redirects, in its public form.
    pub resolved_url: String,
    /// The ID that the factory gave a schematic document.
    pub schematic_id: Option<SchematicId>,
    /// Why other places, asked before, are not the one that was judged.
    pub passed_over: Vec<String>,
    /// What the bytes are.
    pub judged: Result<Seen, (Reason, String)>,
}

/// The whole answer of `plan`. What is written as JSON.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    pub images: Vec<Row>,
    pub totals: Totals,
}

/// One image.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row {
    pub name: String,
    pub file: String,
    pub line: u64,
    pub verdict: Verdict,
    /// Why it is not good; empty where it is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<Problem>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// The golden of each target.
    pub goldens: Vec<Golden>,
    /// Bytes to fetch, once for all targets; absent where upstream announced nothing or was not asked.
    pub download_bytes: Option<u64>,
    pub virtual_size_bytes: Option<u64>,
    pub format: Option<String>,
    /// How much of the image this rests on: `Whole`, `Beginning` or `NotSeen`; absent where upstream showed no disk or was not asked.
    #[serde(serialize_with = "as_word")]
    pub seen: Option<Extent>,
    #[serde(rename = "resolvedURL")]
    pub resolved_url: Option<String>,
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Problem {
    #[serde(serialize_with = "as_text")]
    pub reason: Reason,
    /// The field, where it is one field's fault.
    pub field: Option<String>,
    /// The line of that field, or of the image.
    pub line: u64,
    pub message: String,
    /// What to do, where the message does not say it already.
    #[serde(serialize_with = "unless_empty")]
    pub remedy: &'static str,
}

fn unless_empty<S: serde::Serializer>(text: &&'static str, serializer: S) -> Result<S::Ok, S::Error> {
    (!text.is_empty()).then_some(*text).serialize(serializer)
}

fn as_word<S: serde::Serializer>(seen: &Option<Extent>, serializer: S) -> Result<S::Ok, S::Error> {
    let word = seen.map(|seen| match seen {
        Extent::Whole => "Whole",
        Extent::Beginning => "Beginning",
        Extent::NotSeen => "NotSeen",
    });
    word.serialize(serializer)
}

fn as_text<S: serde::Serializer>(reason: &Reason, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(reason.as_str())
}

/// One golden that would be made.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Golden {
    /// Absent while a schematic's ID is not known.
    pub name: Option<String>,
    /// Absent: the cluster's default.
    pub storage_class_name: Option<String>,
    /// The stated size, or the one that follows from the disk; absent where neither is known.
    pub size_bytes: Option<u64>,
}

/// What becomes of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) enum Verdict {
    /// Every rule holds and upstream serves a disk that fits.
    Good,
    /// No rule refuses it; whether upstream serves a disk that fits is not known: it was not asked, or the disk was not seen.
    Accepted,
    /// It would not become a golden as it is.
    Refused,
    /// Upstream could not be asked.
    Unknown,
}

/// Sums over everything that is not refused.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Totals {
    pub images: usize,
    pub refused: usize,
    pub unknown: usize,
    /// Images that no rule refuses and whose upstream was not asked.
    pub not_asked: usize,
    /// Images that no rule refuses and whose disk begins behind what was read.
    pub not_seen: usize,
    pub goldens: usize,
    pub download_bytes: u64,
    /// Whether the length of each download is known; otherwise the sum is a lower bound.
    pub download_is_complete: bool,
    pub store_bytes: u64,
    /// Whether the size of each golden is known; otherwise the sum is a lower bound.
    pub store_is_complete: bool,
}

impl Report {
    /// Counts anew, after verdicts were changed.
    pub fn sum_up(&mut self) {
        self.totals = totals(&self.images);
    }

    /// 1 where something is refused, else 2 where an upstream could not be asked, else 0.
    pub fn exit(&self) -> Exit {
        match (self.totals.refused, self.totals.unknown) {
            (0, 0) => Exit::Ok,
            (0, _) => Exit::Unknown,
            _ => Exit::No,
        }
    }
}

/// Which candidates are worth asking upstream about: those that no rule refuses without it.
pub(super) fn worth_asking(candidates: &[Candidate]) -> Vec<bool> {
    let ids: Vec<_> = candidates.iter().map(|candidate| local_id(candidate, &Peek::NotAsked)).collect();
    let refused = duplicates(candidates, &ids);
    candidates.iter().zip(refused).map(|(candidate, refused)| candidate.image.is_ok() && refused.is_none()).collect()
}

/// The schematics' IDs, one a candidate, as far as they are known.
pub(super) fn ids(candidates: &[Candidate], peeks: &[Peek]) -> Vec<Option<SchematicId>> {
    candidates.iter().zip(peeks).map(|(candidate, peek)| local_id(candidate, peek)).collect()
}

/// The verdicts; `peeks` has one item a candidate.
pub(super) fn judge(candidates: &[Candidate], peeks: &[Peek]) -> Report {
    let ids = ids(candidates, peeks);
    let duplicates = duplicates(candidates, &ids);
    let mut images: Vec<_> = candidates
        .iter()
        .zip(peeks)
        .zip(ids.iter().zip(duplicates))
        .map(|((candidate, peek), (id, duplicate))| row(candidate, peek, id.as_ref(), duplicate))
        .collect();
    refuse_taken_names(&mut images);
    let totals = totals(&images);
    Report { images, totals }
}

/// The ID of an image's schematic document: the factory's answer, or what it is certain to be.
fn local_id(candidate: &Candidate, peek: &Peek) -> Option<SchematicId> {
    if let Peek::Served(Served { schematic_id: Some(id), .. }) = peek {
        return Some(id.clone());
    }
    certain_schematic_id(&candidate.image.as_ref().ok()?.source)
}

/// R3 over all files, and one name for one image: the later is refused, naming the first.
fn duplicates(candidates: &[Candidate], ids: &[Option<SchematicId>]) -> Vec<Option<Problem>> {
    let (mut images, mut names): (BTreeMap<Sameness, String>, BTreeMap<String, String>) = Default::default();
    let mut judge = |candidate: &Candidate, id: Option<&SchematicId>| {
        let image = candidate.image.as_ref().ok()?;
        let ways = Sameness::of(image, id);
        if let Some((same, first)) = ways.iter().find_map(|same| Some((same, images.get(same)?))) {
            let message = duplicate_message(&candidate.shown(), first, same);
            return Some(Problem { reason: Reason::DuplicateIdentity, field: None, line: candidate.line(), message, remedy: "" });
        }
        if let Some(first) = names.get(image.name.as_str()) {
            let message = format!("{} has the name of {first}, which is another image: give it a name of its own.", candidate.shown());
            let field = Some("name".to_owned());
            return Some(Problem { reason: Reason::InvalidEntry, field, line: candidate.line(), message, remedy: "" });
        }
        images.extend(ways.into_iter().map(|same| (same, candidate.shown())));
        names.insert(image.name.to_string(), candidate.shown());
        None
    };
    candidates.iter().zip(ids).map(|(candidate, id)| judge(candidate, id.as_ref())).collect()
}

fn row(candidate: &Candidate, peek: &Peek, id: Option<&SchematicId>, duplicate: Option<Problem>) -> Row {
    let mut row = Row {
        name: candidate.name.clone(),
        file: candidate.file.clone(),
        line: candidate.line(),
        verdict: Verdict::Refused,
        problems: Vec::new(),
        warnings: Vec::new(),
        goldens: Vec::new(),
        download_bytes: None,
        virtual_size_bytes: None,
        format: None,
        seen: None,
        resolved_url: None,
    };
    let image = match &candidate.image {
        Ok(image) => image,
        Err(errors) => {
            row.problems = errors.0.iter().map(|error| field_problem(candidate, error.field.clone(), error.message.clone())).collect();
            row.problems.sort_by_key(|problem| problem.line);
            return row;
        }
    };
    row.warnings = moving_source_warnings(&image.source, image.digest.as_ref());
    if image.suspend {
        row.warnings.push("It is suspended: nothing is fetched or made before `suspend` is false.".to_owned());
    }
    let mut virtual_size = None;
    row.verdict = match peek {
        Peek::NotAsked => Verdict::Accepted,
        Peek::Private { secret, others } => private(&mut row, secret, *others),
        Peek::Failed { reason, message, passed_over } => {
            row.warnings.extend(passed_over.iter().map(|why| format!("A mirror was passed over: {why}")));
            failed(&mut row, *reason, message)
        }
        Peek::Served(served) => {
            row.download_bytes = served.length;
            row.resolved_url = Some(served.resolved_url.clone());
            for why in &served.passed_over {
                row.warnings.push(format!("Another address was passed over, and {} judged: {why}", served.resolved_url));
            }
            match &served.judged {
                Ok(seen) => {
                    virtual_size = seen.virtual_size;
                    row.format.clone_from(&seen.format);
                    row.seen = Some(seen.extent);
                    if seen.extent == Extent::NotSeen { not_seen(&mut row) } else { Verdict::Good }
                }
                Err((reason, message)) => failed(&mut row, *reason, message),
            }
        }
    };
    row.virtual_size_bytes = virtual_size.map(DiskSize::bytes);
    goldens(&mut row, candidate, image, id, virtual_size);
    row.problems.extend(duplicate);
    let asked_for = |problem: &Problem| problem.reason == Reason::ReferenceNotFound && matches!(peek, Peek::Private { .. });
    if row.problems.iter().any(|problem| !is_unknown(problem.reason) && !asked_for(problem)) {
        row.verdict = Verdict::Refused;
    }
    row
}

fn field_problem(candidate: &Candidate, field: String, message: String) -> Problem {
    Problem { reason: Reason::InvalidEntry, line: candidate.line_of(&field), field: Some(field), message, remedy: "" }
}

/// Whether a reason says that upstream could not be asked, rather than what it answered.
const fn is_unknown(reason: Reason) -> bool {
    matches!(reason, Reason::Unavailable | Reason::RateLimited | Reason::TLSFailed)
}

fn failed(row: &mut Row, reason: Reason, message: &str) -> Verdict {
    // The common remedies tell what the daemon does; `plan` asks once, from another machine.
    let remedy = match reason {
        Reason::Unavailable => "Check upstream, DNS and proxy from this machine and ask again; the daemon would go on asking.",
        Reason::RateLimited => "Ask again later; the daemon would wait as long as upstream said.",
        Reason::TLSFailed => {
            "Name the upstream's CA with `--ca-bundle FILE` here and in `caBundleRef` for the daemon, or mend its certificate."
        }
        other => other.remedy(),
    };
    row.problems.push(Problem { reason, field: None, line: row.line, message: message.to_owned(), remedy });
    if is_unknown(reason) { Verdict::Unknown } else { Verdict::Refused }
}

/// Without its credentials an upstream cannot be asked, here; whether the daemon has them, only the cluster knows.
fn private(row: &mut Row, secret: &str, others: bool) -> Verdict {
    let others = if others { "; the Secrets that were given are others" } else { "" };
    let message = format!(
        "its credentials are in the Secret {secret} of the daemon's namespace, which was not given{others}: upstream was not asked, so whether the image is there, is a disk and fits is not known."
    );
    let remedy = "Give that Secret by `--secrets FILE`, or ask no upstream by `--offline`.";
    row.problems.push(Problem { reason: Reason::ReferenceNotFound, field: None, line: row.line, message, remedy });
    Verdict::Unknown
}

/// A disk that stands further on in its container image says nothing, neither good nor bad.
fn not_seen(row: &mut Row) -> Verdict {
    row.warnings.push(
        "The disk was not seen within 1 MiB, so whether there is one, whether it is alone and what size it has is not known: the daemon reads all of the image once, holds a stated size against the disk before a byte goes to storage, and makes a golden only of one whole disk. An image with the disk alone in one layer (`FROM scratch`, `ADD disk.qcow2 /disk/`) shows it at once."
            .to_owned(),
    );
    Verdict::Accepted
}

fn goldens(row: &mut Row, candidate: &Candidate, image: &Image, id: Option<&SchematicId>, virtual_size: Option<DiskSize>) {
    let fresh = GoldenImageStatus::default();
    for (index, (target, golden)) in image.targets.iter().zip(fresh.goldens(Some(image), id, None)).enumerate() {
        let name = match golden.derived {
            Some(Ok(name)) => Some(name),
            Some(Err(error)) => {
                row.problems.push(field_problem(candidate, "name".to_owned(), error.to_string()));
                None
            }
            // Which class the cluster's default is, only the cluster knows.
            None => image.golden_name(id, None).and_then(Result::ok).map(|name| format!("{name}-<default class>")),
        };
        let class_name = target.class.as_ref().map(crate::model::ClassName::as_str);
        // What a file system takes is known here only where the target says that its class is one; CDI's default share then.
        let mode = target.volume_mode.unwrap_or(VolumeMode::Block);
        let volume = Volume::new(class_name.unwrap_or_default(), mode, &Overheads::default(), None);
        let size = match virtual_size.map(|disk| golden_size(disk, target.size, None)) {
            None => target.size,
            Some(Ok(size)) => Some(size),
            Some(Err(error)) => {
                let field = candidate.size_field(index);
                row.problems.push(Problem {
                    reason: error.reason(),
                    line: candidate.line_of(&field),
                    field: Some(field),
                    message: error.to_string(),
                    remedy: "",
                });
                target.size
            }
        };
        let size_bytes = size.map(|size| volume.requested(size, Shape::Storage).bytes());
        row.goldens.push(Golden { name, storage_class_name: class_name.map(str::to_owned), size_bytes });
    }
}

/// Two images may ask for goldens of one name: `a` in class `b`, and `a-b`.
fn refuse_taken_names(rows: &mut [Row]) {
    let mut owners: BTreeMap<String, String> = BTreeMap::new();
    for row in rows.iter_mut().filter(|row| row.verdict != Verdict::Refused) {
        let names: Vec<_> = row.goldens.iter().filter_map(|golden| golden.name.clone()).collect();
        let shown = format!("{} ({}:{})", row.name, row.file, row.line);
        if let Some((name, first)) = names.iter().find_map(|name| Some((name, owners.get(name)?))) {
            let message = format!("its golden {name} has the name of one of {first}: give the image another name.");
            row.problems.push(Problem { reason: Reason::NameConflict, field: None, line: row.line, message, remedy: "" });
            row.verdict = Verdict::Refused;
            continue;
        }
        owners.extend(names.into_iter().map(|name| (name, shown.clone())));
    }
}

fn totals(rows: &[Row]) -> Totals {
    let count = |verdict| rows.iter().filter(|row| row.verdict == verdict).count();
    let kept = || rows.iter().filter(|row| row.verdict != Verdict::Refused);
    let goldens = || kept().flat_map(|row| &row.goldens);
    let sum = |bytes: &mut dyn Iterator<Item = Option<u64>>| bytes.flatten().fold(0, u64::saturating_add);
    Totals {
        images: rows.len(),
        refused: count(Verdict::Refused),
        unknown: count(Verdict::Unknown),
        not_asked: rows.iter().filter(|row| row.verdict == Verdict::Accepted && row.seen.is_none()).count(),
        not_seen: rows.iter().filter(|row| row.verdict == Verdict::Accepted && row.seen.is_some()).count(),
        goldens: goldens().count(),
        download_bytes: sum(&mut kept().map(|row| row.download_bytes)),
        download_is_complete: kept().all(|row| row.download_bytes.is_some()),
        store_bytes: sum(&mut goldens().map(|golden| golden.size_bytes)),
        store_is_complete: goldens().all(|golden| golden.size_bytes.is_some()),
    }
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
