//! Taking over what is there already (R5): goldens of the former catalogs, made by Helm or by hand, and volumes that a restore
//! brought back. Metadata is written and nothing else: the volume keeps its UID, upstream is not asked, nothing is imported.

use std::collections::BTreeMap;

use kube::ResourceExt as _;

use super::{
    Action, ClaimView, DataVolumeView, GoldenView, ObservedTarget,
    decide::{Draft, after},
    free,
    import::{conflict, patience_for},
    manifest::Told,
    target::TargetState,
};
use crate::{
    api::{ConditionType, GoldenImageStatus, TargetStatus, find_condition},
    foreign::{Claim, DataVolume},
    model::{Architecture, ClassName, DiskSize, GoldenName, HttpUrl, Image, Platform, SchematicId, Source, Target, VirtualMachineDefaults},
    rules::{
        Reason,
        adopt::{Adoption, Origin, Stranger, Wanted, adoption},
        marks,
        provenance::{Consent, Provenance, Unmarked, alone_message, brought_back_message, replaced_message, unmarked_message},
    },
};

/// What there is to be read of a volume that may be adopted by the image of this identity.
pub fn stranger(volume: Option<&DataVolume>, claim: Option<&Claim>, provenance: Provenance, identity: Option<&str>) -> Stranger {
    let uid = claim.and_then(|claim| claim.uid());
    let annotations = [claim.map(|claim| claim.annotations()), volume.map(|volume| volume.annotations())];
    let labels = [claim.map(|claim| claim.labels()), volume.map(|volume| volume.labels())];
    let consents = annotations.into_iter().flatten().filter_map(|annotations| annotations.get(marks::ADOPT)).map(String::as_str);
    let consent = Consent::read(consents, uid.as_deref());
    let is_marked = labels.into_iter().flatten().any(marks::is_marked);
    // The name of an image is a hoster's to change: the mark of this identity under another name is this image still. One of another
    // identity is not, whatever consent was written on it when that one took it over.
    let is_of_identity =
        |labels: &BTreeMap<String, String>| identity.is_some() && labels.get(marks::IDENTITY).map(String::as_str) == identity;
    let is_this_image = is_marked && labels.into_iter().flatten().all(|labels| marks::is_marked(labels) && is_of_identity(labels));
    let of_another = labels.into_iter().flatten().filter(|labels| marks::is_marked(labels)).find_map(|labels| {
        let other = labels.get(marks::IDENTITY).filter(|other| identity.is_some_and(|own| own != other.as_str()))?;
        let image = labels.get(marks::IMAGE).map_or("another image", String::as_str);
        Some(Origin::Other(format!("it carries the mark of {image} (identity {other})")))
    });
    let claim_spec = claim.and_then(|claim| claim.spec.read());
    let volume_spec = volume.and_then(|volume| volume.spec.read());
    let asked = volume_spec.and_then(|spec| spec.storage.as_ref().or(spec.pvc.as_ref())).and_then(|spec| spec.storage_request());
    let size = asked.or_else(|| claim_spec.and_then(|spec| spec.storage_request()));
    Stranger {
        origin: of_another.unwrap_or_else(|| if is_this_image { Origin::ThisImage } else { origin(volume, claim) }),
        class: claim_spec.and_then(|spec| spec.storage_class_name.clone()),
        size: size.and_then(|size| DiskSize::from_bytes(size.bytes()?)),
        volume_mode: claim_spec.and_then(|spec| spec.volume_mode.clone()),
        access_modes: claim_spec.and_then(|spec| spec.access_modes.clone()).unwrap_or_default(),
        uid,
        is_marked,
        consent,
        provenance,
    }
}

/// CDI's annotation on a claim that it imported without its populators: the URL.
const IMPORT_ENDPOINT: &str = "cdi.kubevirt.io/storage.import.endpoint";

fn origin(volume: Option<&DataVolume>, claim: Option<&Claim>) -> Origin {
    if let Some(volume) = volume {
        let Some(spec) = volume.spec.read() else { return Origin::Unknown };
        if spec.content_type.as_deref().is_some_and(|kind| kind != "kubevirt") {
            return Origin::Other("its DataVolume is an archive, not a disk".to_owned());
        }
        let named = |what: &crate::foreign::NamespacedName| {
            format!("{}/{}", what.namespace.as_deref().unwrap_or("?"), what.name.as_deref().unwrap_or("?"))
        };
        return match &spec.source {
            Some(source) => match (&source.http, &source.pvc, &source.snapshot) {
                (Some(http), _, _) => http.url.clone().map_or(Origin::Unknown, Origin::Url),
                (None, Some(of), _) => Origin::Other(format!("its DataVolume is a clone of the claim {}", named(of))),
                (None, None, Some(of)) => Origin::Other(format!("its DataVolume is a clone of the snapshot {}", named(of))),
                (None, None, None) => Origin::Other("its DataVolume is no import from a URL".to_owned()),
            },
            None => Origin::Other("its DataVolume is no import from a URL".to_owned()),
        };
    }
    let annotations = claim.map(|claim| claim.annotations());
    let get = |key: &str| annotations.and_then(|annotations| annotations.get(key)).filter(|value| !value.is_empty()).cloned();
    if let Some(url) = get(IMPORT_ENDPOINT) {
        return Origin::Url(url);
    }
    match (get(marks::SCHEMATIC_ID), get(marks::TALOS_VERSION)) {
        (Some(schematic), Some(version)) => Origin::Talos { schematic, version },
        _ => Origin::Unknown,
    }
}

/// What an image wants of a golden, in the terms of the rule.
#[derive(Debug, Clone)]
pub struct Asked<'a> {
    golden: &'a str,
    image: String,
    identity: Option<String>,
    target: &'a Target,
    url: Option<HttpUrl>,
    talos: Option<(String, String)>,
    volume_mode: Option<String>,
}

impl Asked<'_> {
    /// The rule's own form of it.
    pub fn as_wanted(&self) -> Wanted<'_> {
        Wanted {
            golden: self.golden,
            url: self.url.as_ref(),
            talos: self.talos.as_ref().map(|(schematic, version)| (schematic.as_str(), version.as_str())),
            class: self.target.class.as_ref().map(ClassName::as_str),
            size: self.target.size,
            volume_mode: self.volume_mode.as_deref(),
            access_modes: &self.target.access_modes,
        }
    }
}

/// What `image` wants of the golden of `target`. `id` is its schematic's, as far as it is known.
pub fn wanted<'a>(image: &Image, id: Option<&SchematicId>, target: &'a Target, golden: &'a str) -> Asked<'a> {
    let url = match &image.source {
        Source::TalosFactory(talos) => talos.schematic.id().or(id).map(|id| crate::source::image_url(talos, id)),
        Source::Http { url, .. } => Some(url.clone()),
        Source::ContainerDisk { .. } => None,
    };
    let talos = match &image.source {
        Source::TalosFactory(talos)
            if talos.platform == Platform::default() && talos.architecture == Architecture::Amd64 && !talos.secure_boot =>
        {
            talos.schematic.id().or(id).map(|id| (id.to_string(), talos.version.to_string()))
        }
        _ => None,
    };
    let (name, identity) = (image.name.to_string(), image.identity(id).map(|identity| identity.to_string()));
    Asked { golden, image: name, identity, target, url, talos, volume_mode: target.volume_mode.map(|mode| mode.to_string()) }
}

/// R5: what stands under the golden's name without this image's mark. `None` where nothing does, or what does is its.
pub(super) fn progress(
    draft: &mut Draft<'_>,
    target: &Target,
    golden: &GoldenName,
    view: &ObservedTarget,
    status: &mut TargetStatus,
) -> Option<TargetState> {
    let (volume, claim) = (view.golden.volume.as_ref(), view.golden.claim.as_ref());
    let found = view.golden.stranger.as_ref()?;
    if volume.is_some_and(|volume| volume.ours) || claim.is_some_and(|claim| claim.ours) {
        return None;
    }
    if volume.is_some_and(|volume| volume.terminating) || claim.is_some_and(|claim| claim.terminating) {
        let message = format!("Waiting for the former {golden}, which is being deleted, to be gone.");
        return Some(TargetState::working(Reason::GoldenTerminating, message));
    }
    let asked = wanted(draft.image, draft.schematic_id.as_ref(), target, golden.as_str());
    match adoption(&asked.as_wanted(), found) {
        Adoption::Adopt => {}
        Adoption::Refuse(why) => return Some(TargetState::trouble(Reason::NameConflict, format!("{why}."))),
        Adoption::BroughtBack(why) => return Some(TargetState::trouble(Reason::GoldenReplaced, why)),
    }
    // One that stands beside a restored claim and was never heard by CDI says nothing of it.
    let speaks = |volume: &&DataVolumeView| claim.is_none_or(|claim| claim.heeds(volume));
    if let Some(volume) = volume.filter(speaks).filter(|volume| volume.phase != "Succeeded") {
        return Some(of_another(draft, golden, volume, view, status));
    }
    let Some(claim) = claim.filter(|claim| claim.bound && !claim.lost) else {
        return Some(TargetState::trouble(Reason::ClaimLost, format!("The PVC {golden} is not bound to a volume.")));
    };
    // What it was made from stands on it, as on a golden that has the image's name.
    if found.origin == Origin::ThisImage
        && let Some(conflict) = conflict(draft, &status.requested_class, golden, claim, view)
    {
        return Some(conflict);
    }
    Some(take(draft, golden, view, claim, status))
}

/// An import that somebody else began: waited for as long as one of ours would be. It is not ours to end, and where it stands still a person is
/// told why.
fn of_another(
    draft: &mut Draft<'_>,
    golden: &GoldenName,
    volume: &DataVolumeView,
    view: &ObservedTarget,
    status: &TargetStatus,
) -> TargetState {
    let phase = if volume.phase.is_empty() { "no phase yet" } else { &volume.phase };
    let size = view.golden.stranger.as_ref().and_then(|found| found.size);
    let patience = patience_for(draft.settings.import_deadline, size, volume, false);
    let moved = view.golden.moved.or(volume.created).unwrap_or(draft.now).min(draft.now);
    let deadline = after(moved, patience);
    let how = match volume.phase.as_str() {
        "Failed" => "has failed".to_owned(),
        _ if draft.now >= deadline => format!("has made no progress for {} minutes", patience.as_secs() / 60),
        _ => {
            draft.wake_at(deadline);
            let message = format!("{golden} is being imported by whoever made it, and is taken over when that is done (CDI: {phase}).");
            return TargetState::working(Reason::Importing, message);
        }
    };
    let reason = Reason::ForeignImportStalled;
    let said = [&volume.running, &volume.bound].into_iter().find(|said| said.status != Some(true) && !said.message.is_empty());
    if said.is_none()
        && let Some(told) = find_condition(&status.conditions, ConditionType::Ready).filter(|told| told.reason == reason.as_str())
    {
        // CDI says why an importer failed only until its next start.
        return TargetState::trouble(reason, reason.without_remedy(&told.message));
    }
    let words = said.map(|said| format!(": {}", said.message)).unwrap_or_default();
    TargetState::trouble(reason, format!("The DataVolume {golden}, which the catalog did not make, {how} (CDI: {phase}{words})."))
}

/// What is written on an adopted golden's DataVolume and PVC: our marks as far as they are known (nobody can say afterwards what
/// the bytes were), and that Helm keeps it. A text that we do not have stays as its former owner wrote it.
pub fn marks_of(image: &Image, status: &GoldenImageStatus, target: &TargetStatus, defaults: &VirtualMachineDefaults) -> marks::Marks {
    let schematic_id = status.resolved_schematic();
    let mut marks = marks::golden_marks(&marks::GoldenMarks {
        identity: image.identity(schematic_id.as_ref()).as_ref(),
        schematic_id: schematic_id.as_ref().map(SchematicId::as_str),
        storage_class: target.storage_class_name.as_deref(),
        minimum_size: target.size.as_ref().and_then(|size| size.parse().ok()),
        default_instancetype: defaults.instancetype.as_deref(),
        default_preference: defaults.preference.as_deref(),
        ..Told::of(&image.source).marks(image)
    });
    marks.annotations.retain(|_, value| !value.is_empty());
    marks.annotations.insert("helm.sh/resource-policy".to_owned(), "keep".to_owned());
    marks
}

/// Puts on record what an adopted claim is.
fn record(claim: &ClaimView, golden: &GoldenName, status: &mut TargetStatus) {
    status.golden = Some(golden.to_string());
    status.claim_uid = Some(claim.uid.clone());
    status.storage_class_name.clone_from(&claim.class);
    status.size = claim.request.map(|size| size.to_string());
    status.volume_mode.clone_from(&claim.volume_mode);
    status.access_modes.clone_from(&claim.access_modes);
    status.started_time = None;
    status.progress_time = None;
    status.progress_percent = None;
    status.next_attempt_time = None;
    status.adopted = Some(true);
}

/// Takes a claim over as it is.
fn take(draft: &mut Draft<'_>, golden: &GoldenName, view: &ObservedTarget, claim: &ClaimView, status: &mut TargetStatus) -> TargetState {
    record(claim, golden, status);
    let volume_uid = view.golden.volume.as_ref().filter(|volume| claim.heeds(volume)).map(|volume| volume.uid.clone());
    let (said, _) = free::said(draft.image, draft.observed, view, claim, status);
    draft.after.push(Action::Adopt { golden: golden.clone(), claim_uid: claim.uid.clone(), volume_uid, said });
    TargetState::ready()
}

/// Whose golden it would be.
struct Whose<'a> {
    golden: &'a str,
    image: &'a str,
    identity: Option<&'a str>,
}

/// R7: why what stands under the name is not believed to be the golden, with what to do; nothing where it is. `recorded` is the UID on record.
fn replaced(asked: &Whose<'_>, recorded: Option<&str>, view: &GoldenView) -> Option<String> {
    let (golden, claim) = (asked.golden, view.claim.as_ref()?);
    let unmarked = |why: &str| {
        let is_of_another = view.stranger.as_ref().is_some_and(|found| found.is_marked);
        let Whose { image, identity, .. } = *asked;
        unmarked_message(Unmarked { golden, claim_uid: &claim.uid, why, image, identity, is_of_another })
    };
    if let Some(recorded) = recorded {
        return match (claim.uid == recorded, claim.ours) {
            (true, _) => None,
            (false, true) => Some(replaced_message(golden, &claim.uid, recorded)),
            (false, false) => Some(unmarked(&format!("has the UID {}, the golden on record had {recorded}", claim.uid))),
        };
    }
    if claim.terminating {
        return None;
    }
    if !claim.ours {
        // Beside our own DataVolume, which would speak for it.
        let volume = view.volume.as_ref().filter(|volume| volume.ours)?;
        return claim.brought_back(volume).map(|why| unmarked(&format!("was brought back by a restore ({why})")));
    }
    let back = |why: String| brought_back_message(golden, &claim.uid, &why);
    match &view.volume {
        // A claim that this DataVolume never filled, whatever CDI says of it: CDI takes over what a backup tool tells it to, unseen.
        Some(volume) => claim.brought_back(volume).map(back),
        // Its DataVolume is gone, and it goes too.
        None if is_being_collected(claim) => None,
        None => match claim.provenance(None) {
            Provenance::FilledHere if claim.garbage_collected && claim.bound => None,
            Provenance::BroughtBack(why) => Some(back(why)),
            Provenance::FilledHere | Provenance::Unsaid => Some(alone_message(golden, &claim.uid)),
        },
    }
}

/// Whether a claim without DataVolume is about to be collected, as what its DataVolume owned. CDI's former garbage collection took owners away,
/// and one that is bound may hold a golden: the guard keeps it (R23), and a person says what it is.
pub(super) fn is_being_collected(claim: &ClaimView) -> bool {
    claim.controller.is_some() && !claim.garbage_collected && !claim.bound
}

/// R7: what becomes of something under the name that is not believed to be the golden ([`replaced`]): taken as it is where a person says by
/// the annotation that this very volume is meant, and told otherwise. Nothing where it is believed.
pub(super) fn disbelieved(
    draft: &mut Draft<'_>,
    golden: &GoldenName,
    recorded: Option<&str>,
    view: &ObservedTarget,
    status: &mut TargetStatus,
) -> Option<TargetState> {
    let identity = draft.identity.as_ref().map(ToString::to_string);
    let asked = Whose { golden: golden.as_str(), image: draft.image.name.as_str(), identity: identity.as_deref() };
    let message = replaced(&asked, recorded, &view.golden)?;
    let taken = restored(draft, golden, view, status);
    Some(taken.unwrap_or_else(|| TargetState::trouble(Reason::GoldenReplaced, message)))
}

/// A volume that carries our mark and that a person wants: taken, or waited for until it can be.
fn restored(draft: &mut Draft<'_>, golden: &GoldenName, view: &ObservedTarget, status: &mut TargetStatus) -> Option<TargetState> {
    let is_unbound = |claim: &&ClaimView| claim.ours && !claim.bound && !claim.lost && !claim.terminating;
    if let Some(claim) = view.golden.claim.as_ref().filter(is_unbound).filter(|_| is_meant(&view.golden)) {
        let message = format!(
            "The PVC {golden} ({}) is taken over when it is bound to its volume; in a class that binds at the first consumer a pod must use it once.",
            claim.uid
        );
        return Some(TargetState::trouble(Reason::GoldenReplaced, message));
    }
    let claim = whole_and_meant(&view.golden)?;
    Some(take(draft, golden, view, claim, status))
}

/// The claim with our mark that a person wants taken over as it is, where it can be.
fn whole_and_meant(view: &GoldenView) -> Option<&ClaimView> {
    view.claim.as_ref().filter(|claim| claim.ours && claim.is_whole(view.volume.as_ref()) && is_meant(view))
}

/// Whether a person says by the annotation that this very claim is to be taken.
fn is_meant(view: &GoldenView) -> bool {
    view.stranger.as_ref().is_some_and(|found| found.consent == Consent::OfThisClaim)
}

/// What becomes of a golden's name that something has already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Foretold {
    /// It is taken over as it is.
    TakenOver,
    /// It is left alone, and the image is not Ready.
    Refused(Reason, String),
}

/// What the daemon will say of what stands under a golden's name (R5, R7), for who asks beforehand; nothing where it is, or will be, its
/// own. `recorded` is the UID on the image's record.
pub fn foretell(asked: &Asked<'_>, recorded: Option<&str>, view: &GoldenView) -> Option<Foretold> {
    let (volume, claim) = (view.volume.as_ref(), view.claim.as_ref());
    let is_ours = recorded.is_some() || volume.is_some_and(|volume| volume.ours) || claim.is_some_and(|claim| claim.ours);
    if is_ours {
        let whose = Whose { golden: asked.golden, image: &asked.image, identity: asked.identity.as_deref() };
        let message = replaced(&whose, recorded, view)?;
        return Some(match whole_and_meant(view) {
            Some(_) => Foretold::TakenOver,
            None => Foretold::Refused(Reason::GoldenReplaced, message),
        });
    }
    Some(match adoption(&asked.as_wanted(), view.stranger.as_ref()?) {
        Adoption::Adopt => Foretold::TakenOver,
        Adoption::Refuse(why) => Foretold::Refused(Reason::NameConflict, format!("{why}.")),
        Adoption::BroughtBack(why) => Foretold::Refused(Reason::GoldenReplaced, why),
    })
}
