//! What an entry says of its goldens and may say otherwise at any time (R4): texts for people, and what virtual machines get. The goldens follow.

use std::collections::BTreeSet;

use super::{ClaimView, Observed, ObservedTarget, manifest::Told, target::controlling};
use crate::{
    api::{GoldenImageStatus, TargetStatus, VirtualMachineDefaultsSpec},
    model::{Image, Source, VirtualMachineDefaults},
    rules::marks::{self, DEFAULT_INSTANCETYPE, DEFAULT_PREFERENCE, Marks},
};

/// What of it a golden is to be given, and what of it is to go.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Said {
    /// What virtual machines get.
    pub defaults: VirtualMachineDefaults,
    /// The keys of labels and annotations that say what the entry says no more. Where what is given has the key still, that stays.
    pub outdated: BTreeSet<String>,
}

/// What virtual machines of the image get: as the entry says, and for the rest as its container disk does. That is known from the spool, and
/// from the record once the spool has let it go: what the entry said then cannot be told from what the disk says, and stays until it is given
/// another value.
pub(super) fn defaults(image: &Image, observed: &Observed) -> VirtualMachineDefaults {
    let container = observed.spooled.as_ref().and_then(|spooled| spooled.container.as_ref());
    let of_disk = match (&image.source, container) {
        (_, Some(container)) => container.defaults.clone(),
        (Source::ContainerDisk { .. }, None) => on_record(&observed.status),
        (Source::Http { .. } | Source::TalosFactory(_), None) => VirtualMachineDefaults::default(),
    };
    image.defaults.or(&of_disk)
}

/// The defaults for the record: as they are, and those that were taken out for as long as a golden of ours carries them. The label is
/// KubeVirt's, and anybody may set it: by the record it is known to be ours to take off, whenever we are killed.
pub(super) fn defaults_to_record(image: &Image, observed: &Observed) -> VirtualMachineDefaults {
    let former = on_record(&observed.status);
    let carried = |key: &str, value: Option<String>| {
        value.filter(|value| observed.views().any(|view| carriers(view).any(|found| found.labels.get(key) == Some(value))))
    };
    defaults(image, observed).or(&VirtualMachineDefaults {
        instancetype: carried(DEFAULT_INSTANCETYPE, former.instancetype),
        preference: carried(DEFAULT_PREFERENCE, former.preference),
    })
}

/// What stands on the objects of a golden that are ours: those that it is written on, now or when it is made.
fn carriers(view: &ObservedTarget) -> impl Iterator<Item = &Marks> {
    let claim = view.golden.claim.as_ref();
    let speaks = |volume: &&super::DataVolumeView| volume.ours && claim.is_none_or(|claim| claim.heeds(volume));
    let volume = view.golden.volume.as_ref().filter(speaks).map(|volume| &volume.free);
    claim.filter(|claim| claim.ours).map(|claim| &claim.free).into_iter().chain(volume)
}

fn on_record(status: &GoldenImageStatus) -> VirtualMachineDefaults {
    status.defaults.as_ref().map(VirtualMachineDefaultsSpec::facts).unwrap_or_default()
}

/// What is to be written on a golden's claim and the DataVolume that speaks for it, and whether they say it already.
pub(super) fn said(image: &Image, observed: &Observed, view: &ObservedTarget, claim: &ClaimView, status: &TargetStatus) -> (Said, bool) {
    let defaults = defaults(image, observed);
    let told = Told::of(&image.source);
    let mut wanted = marks::golden_marks(&marks::GoldenMarks {
        default_instancetype: defaults.instancetype.as_deref(),
        default_preference: defaults.preference.as_deref(),
        ..told.marks(image)
    });
    if status.adopted == Some(true) {
        // A text that we do not have stays as its former owner wrote it.
        wanted.annotations.retain(|_, value| !value.is_empty());
    }
    let former = on_record(&observed.status);
    let found = || controlling(view, claim).map(|volume| &volume.free).into_iter().chain([&claim.free]);
    let outdated: BTreeSet<String> = found().flat_map(|found| marks::outdated(&wanted, found, &former)).collect();
    let is_said = outdated.is_empty() && found().all(|found| marks::is_said(&wanted, found));
    (Said { defaults, outdated }, is_said)
}
