//! What an intake would say, as far as the first mebibyte of an artifact proves it: nothing is stored.

use bytes::Bytes;

use super::{
    IntakeError, blocking,
    container::{largest_first, two},
    fetch::blame,
};
use crate::{
    artifact::{LayerPreview, LayerProbe, LayerProber, Limits, Prober, preview, preview_layer},
    model::{Architecture, ContainerReference, Digest, DiskSize, HttpUrl, SchematicId, Source},
    rules::Reason,
    source::{Egress, Facts, Layer, OpenRequest, Opened, Registry, SourceError},
};

/// What one look found.
#[derive(Debug)]
pub struct Peek {
    /// The places that were asked before the one that was judged, and why none of them counts.
    pub passed_over: Vec<PassedOver>,
    /// What the one that was judged has, or why no place would show it.
    pub answer: Result<Served, IntakeError>,
}

/// A place whose bytes do not count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassedOver {
    /// What is wrong with it.
    pub reason: Reason,
    /// In words, with its public address.
    pub message: String,
}

/// An artifact that is served.
#[derive(Debug)]
pub struct Served {
    /// Where it comes from after redirects, in its public form.
    pub resolved_url: String,
    /// How many bytes a fetch transfers, where they are announced: of a container image every layer once, though one is kept.
    pub download: Option<u64>,
    /// How many bytes were read for this: at most 1 MiB, and a registry's documents.
    pub read: u64,
    /// The ID that a factory gave a schematic document.
    pub schematic_id: Option<SchematicId>,
    /// What the bytes are, or what an intake would say of them.
    pub judged: Result<Seen, IntakeError>,
}

/// What the first bytes tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// How the disk is packed; `None` where that was not seen.
    pub format: Option<String>,
    /// The size as a guest sees it, where it shows.
    pub virtual_size: Option<DiskSize>,
    /// How far this was seen.
    pub extent: Extent,
}

/// How much of an artifact a look has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// All of it: a fetch of the same bytes finds nothing else.
    Whole,
    /// The beginning of the disk; a fetch may still find it cut or damaged, or a second one beside it.
    Beginning,
    /// Not even that: the disk begins further on in its container image, or there is none.
    NotSeen,
}

/// One place's answer.
struct Looked {
    from: HttpUrl,
    is_mirror: bool,
    failures: Vec<SourceError>,
    served: Served,
}

/// Other layers of a container image that are read beside the largest: each costs a request.
const MOST_OTHERS: usize = 8;

/// Looks at an artifact as [`super::Intake::run`] takes it in: at the first place that serves it, and where a mirror's bytes are
/// bad, at the next. `digest` is the one that its bytes must have, where one is known.
pub async fn peek(egress: &Egress, limits: &Limits, ask: &OpenRequest<'_>, digest: Option<Digest>) -> Peek {
    let mut demoted = ask.demoted.to_vec();
    let (mut passed_over, mut last) = (Vec::<PassedOver>::new(), None);
    loop {
        let ask = OpenRequest { resume: None, demoted: &demoted, ..*ask };
        let looked = match ask.source {
            Source::ContainerDisk { reference, architecture } => in_container(egress, limits, &ask, reference, *architecture).await,
            Source::TalosFactory(_) | Source::Http { .. } => in_file(egress, limits, &ask, digest).await,
        };
        let Looked { from, is_mirror, failures, mut served } = match looked {
            Ok(looked) => looked,
            Err(error) => return Peek { passed_over, answer: Err(error) },
        };
        let mut pass = |reason: Reason, message: String| {
            let new = PassedOver { reason, message };
            // One that is down is asked in every round.
            if !passed_over.contains(&new) {
                passed_over.push(new);
            }
        };
        failures.iter().for_each(|failure| pass(failure.reason(), failure.to_string()));
        if demoted.contains(&from) {
            // Every other place failed, and this one has been judged.
            let last = Box::new(last.unwrap_or(IntakeError::Cancelled));
            return Peek { passed_over, answer: Err(IntakeError::MirrorsOnly { last }) };
        }
        match served.judged {
            Err(error) if is_mirror && (error.blames_the_bytes() || matches!(error, IntakeError::Source(_))) => {
                pass(error.reason(), error.to_string());
                demoted.push(from);
                last = Some(error);
            }
            judged => {
                served.judged = judged;
                return Peek { passed_over, answer: Ok(served) };
            }
        }
    }
}

async fn in_file(egress: &Egress, limits: &Limits, ask: &OpenRequest<'_>, digest: Option<Digest>) -> Result<Looked, IntakeError> {
    let peeked = egress.peek(ask, Prober::MAX).await?;
    let Facts { from, is_mirror, resolved_url, length, .. } = peeked.facts;
    let (head, is_whole) = (peeked.head, peeked.is_whole);
    let read = head.len() as u64;
    let (limits, at) = (limits.clone(), resolved_url.clone());
    let judged = blocking(move |_| judge_file(&head, length, is_whole, digest, &at, &limits)).await?;
    let served = Served { resolved_url, download: length, read, schematic_id: peeked.schematic_id, judged };
    Ok(Looked { from, is_mirror, failures: peeked.failures, served })
}

/// In the order of an intake: what the first bytes show, then the digest, then the structure.
fn judge_file(
    head: &Bytes,
    total: Option<u64>,
    is_whole: bool,
    digest: Option<Digest>,
    from: &str,
    limits: &Limits,
) -> Result<Seen, IntakeError> {
    Prober::new(total, limits).feed(head).map_err(|error| blame(error, from))?;
    if is_whole {
        check_digest(head, digest, from)?;
    }
    let seen = preview(head, total, is_whole, limits).map_err(|error| blame(error, from))?;
    Ok(Seen {
        format: seen.probe.map(|probe| probe.format.to_string()),
        virtual_size: seen.probe.and_then(|probe| probe.virtual_size),
        extent: match seen.probe {
            _ if seen.is_whole => Extent::Whole,
            Some(_) => Extent::Beginning,
            None => Extent::NotSeen,
        },
    })
}

fn check_digest(bytes: &[u8], known: Option<Digest>, from: &str) -> Result<(), IntakeError> {
    let found = Digest::of(bytes);
    match known.filter(|known| *known != found) {
        Some(expected) => Err(IntakeError::DigestMismatch { expected, found, size: bytes.len() as u64, from: from.to_owned() }),
        None => Ok(()),
    }
}

/// The largest layer, which most likely holds the disk, and before it what else can be read to its end within half a mebibyte.
async fn in_container(
    egress: &Egress,
    limits: &Limits,
    ask: &OpenRequest<'_>,
    reference: &ContainerReference,
    architecture: Architecture,
) -> Result<Looked, IntakeError> {
    let mut registry = egress.registry(ask, reference, architecture);
    let image = registry.image().await?;
    let layers = largest_first(&image);
    let download = layers.iter().fold(0_u64, |sum, layer| sum.saturating_add(layer.size));
    let Some((largest, others)) = layers.split_first() else { return Err(IntakeError::Cancelled) };
    let mut room = Prober::MAX as u64;
    let mut all_are_read = others.len() <= MOST_OTHERS;
    let mut holders: Vec<Holder> = Vec::new();
    for layer in others.iter().rev().take(MOST_OTHERS).chain([largest]) {
        let is_largest = layer == largest;
        if !is_largest && layer.size > room / 2 {
            all_are_read = false;
            continue;
        }
        let Look { facts, failures, read, judged } = look(&mut registry, layer, room, is_largest, limits).await?;
        room -= read.min(room);
        let seen = |judged| Looked {
            from: facts.from.clone(),
            is_mirror: facts.is_mirror,
            failures,
            served: Served {
                resolved_url: facts.resolved_url.clone(),
                download: Some(download),
                read: Prober::MAX as u64 - room,
                schematic_id: None,
                judged,
            },
        };
        let preview = match judged {
            Ok(preview) => preview,
            Err(error) => return Ok(seen(Err(error))),
        };
        all_are_read &= preview.is_read;
        holders.extend(preview.disk.map(|disk| Holder {
            layer: *layer,
            disk: disk.map_err(|error| blame(error, &facts.resolved_url)),
            is_whole: preview.is_whole,
        }));
        if is_largest {
            let missing = preview.missing.map(|fault| blame(fault.into(), &facts.resolved_url));
            return Ok(seen(judge_layers(holders, all_are_read, missing)));
        }
    }
    Err(IntakeError::Cancelled)
}

/// A layer that holds a disk.
struct Holder {
    layer: Layer,
    disk: Result<LayerProbe, IntakeError>,
    is_whole: bool,
}

/// What the layers come to. `missing` is what the largest has in the disk's place, where it has none for certain.
fn judge_layers(mut holders: Vec<Holder>, all_are_read: bool, missing: Option<IntakeError>) -> Result<Seen, IntakeError> {
    if let [first, second, ..] = &holders[..] {
        return Err(two(&first.layer, &second.layer));
    }
    match (holders.pop(), missing) {
        (Some(Holder { disk, is_whole, .. }), _) => {
            let disk = disk?;
            Ok(Seen {
                format: disk.format.map(|format| format.to_string()),
                virtual_size: disk.virtual_size,
                extent: match disk.format {
                    Some(_) if all_are_read && is_whole => Extent::Whole,
                    Some(_) => Extent::Beginning,
                    None => Extent::NotSeen,
                },
            })
        }
        (None, Some(missing)) if all_are_read => Err(missing),
        (None, _) => Ok(Seen { format: None, virtual_size: None, extent: Extent::NotSeen }),
    }
}

/// What a look at one layer found.
struct Look {
    facts: Facts,
    failures: Vec<SourceError>,
    read: u64,
    judged: Result<LayerPreview, IntakeError>,
}

/// Looks at the first `most` bytes of a layer.
async fn look(registry: &mut Registry<'_>, layer: &Layer, most: u64, is_largest: bool, limits: &Limits) -> Result<Look, IntakeError> {
    let most = usize::try_from(most).unwrap_or(Prober::MAX);
    let (Opened { facts, mut body, .. }, failures) = registry.begin(layer, most).await?;
    let head = match body.head(most).await {
        Ok((head, _)) => head,
        Err(error) => return Ok(Look { facts, failures, read: body.received(), judged: Err(error.into()) }),
    };
    let read = head.len() as u64;
    let (layer, limits, at) = (*layer, limits.clone(), facts.resolved_url.clone());
    let judged = blocking(move |_| judge_layer(&head, &layer, is_largest, &at, &limits)).await?;
    Ok(Look { facts, failures, read, judged })
}

/// In the order of an intake: of the layer that it takes, what the first bytes show comes before the digest.
fn judge_layer(head: &Bytes, layer: &Layer, is_largest: bool, from: &str, limits: &Limits) -> Result<LayerPreview, IntakeError> {
    let is_other = head.len() as u64 == layer.size && Digest::of(head) != layer.digest;
    if is_other && is_largest {
        LayerProber::new(layer.size, limits).feed(head).map_err(|error| blame(error, from))?;
    }
    if is_other {
        check_digest(head, Some(layer.digest), from)?;
    }
    preview_layer(head, layer.size, limits).map_err(|error| blame(error, from))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{Extent, Holder, judge_layers};
    use crate::{
        artifact::{ContainerFault, LayerProbe},
        intake::fetch::blame,
        model::Digest,
        source::Layer,
    };

    fn holder(n: &u8) -> Holder {
        let disk = Ok(LayerProbe { format: None, virtual_size: None });
        Holder { layer: Layer { digest: Digest::of(&[*n]), size: 5 }, disk, is_whole: true }
    }

    #[rstest]
    #[case::two(&[1, 2], false, false, Err("SeveralDiskFiles"))]
    #[case::none(&[], true, true, Err("NoDiskFile"))]
    #[case::none_but_another_layer_was_not_read(&[], false, true, Ok(Extent::NotSeen))]
    #[case::none_so_far(&[], false, false, Ok(Extent::NotSeen))]
    #[case::one_that_only_begins(&[1], true, true, Ok(Extent::NotSeen))]
    fn layers_come_to_one_verdict(
        #[case] holders: &[u8],
        #[case] all_are_read: bool,
        #[case] largest_has_none: bool,
        #[case] expected: Result<Extent, &str>,
    ) {
        let holders = holders.iter().map(holder).collect();
        let missing = largest_has_none.then(|| blame(ContainerFault::None { found: "nothing".into() }.into(), "https://up.example/layer"));
        let told = judge_layers(holders, all_are_read, missing);
        assert_eq!(told.map(|seen| seen.extent).map_err(|error| error.reason().as_str().to_owned()), expected.map_err(str::to_owned));
    }
}
