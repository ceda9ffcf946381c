//! GoldenImages as a verdict reads them, found by the name of a golden.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, PoisonError, RwLock},
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt as _;

use crate::{
    api::{ConditionType, GoldenImage, ImageGolden, TargetStatus, find_condition, is_true, parse_image},
    model::{DiskSize, VolumeMode},
    rules::{
        Precedence, Reason,
        clone::{Access, SourceVolume, Target},
        marks,
    },
    world::Store,
};

/// One golden of an image, made or still to be made.
#[derive(Debug, Clone, PartialEq)]
pub struct GoldenRecord {
    /// Its name.
    pub golden: String,
    /// Whether the name is on record in status; before that it is foreseen.
    pub is_recorded: bool,
    /// Class, size and mode as far as they are frozen.
    pub volume: SourceVolume,
    /// The UID of its claim once it was Ready.
    pub claim_uid: Option<String>,
    /// Why it will not come without somebody's doing.
    pub failed: Option<(Reason, String)>,
    /// What it waits for.
    pub waits_for: String,
    /// Whether nobody works on it, because its image is suspended.
    pub is_suspended: bool,
    /// Whether its target was taken out, so that it is to go.
    pub is_leaving: bool,
}

/// A GoldenImage, trimmed.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageFacts {
    /// Its name.
    pub name: String,
    /// What the image is whatever its name.
    pub identity: Option<String>,
    /// Its place among those that are the same image (R3).
    pub place: Precedence,
    /// Who may clone its goldens (R18).
    pub access: Access,
    /// Its goldens.
    pub goldens: Vec<GoldenRecord>,
}

impl ImageFacts {
    /// What a verdict reads of an image.
    pub fn of(image: &GoldenImage) -> Self {
        let status = image.status.clone().unwrap_or_default();
        let parsed = parse_image(image).ok();
        let resolved = status.resolved_schematic();
        let identity = parsed.as_ref().and_then(|image| image.identity(resolved.as_ref())).map(|identity| identity.to_string());
        // A golden that is to go, and is not there, is made for nobody.
        let retired = match image.spec.retire {
            Some(true) => Some((Reason::Retired, "The image is retired".to_owned())),
            _ => image.is_deleted_with_goldens().then(|| (Reason::Retiring, "The image is being deleted".to_owned())),
        };
        let of_image = stalled(&status.conditions);
        // The image's Stalled repeats the one of its worst target, which is nothing to the others.
        let is_of_a_target = of_image.is_some() && status.targets.iter().any(|target| stalled(&target.conditions) == of_image);
        let failed = |target: Option<&TargetStatus>| {
            let own = target.and_then(|target| stalled(&target.conditions));
            retired.clone().or(own).or_else(|| of_image.clone().filter(|_| !is_of_a_target))
        };
        let goldens = status.goldens(parsed.as_ref(), resolved.as_ref(), None);
        let record = |golden: &ImageGolden<'_>| {
            // What there is to tell of a target that nobody has looked at yet, its image tells.
            let conditions = golden.status.map(|status| status.conditions.as_slice()).filter(|conditions| !conditions.is_empty());
            let ready = find_condition(conditions.unwrap_or(&status.conditions), ConditionType::Ready);
            let is_leaving = parsed.is_some() && golden.target.is_none();
            let claim_uid = golden.status.and_then(|status| status.claim_uid.clone());
            let failed = match golden.status {
                // Nobody finishes what is not made. One that is there is the fence's: pools that use it go on.
                _ if is_leaving => claim_uid.is_none().then(|| (Reason::Retiring, "its target was taken out of the image".to_owned())),
                Some(status) if status.golden.is_some() && is_true(&status.conditions, ConditionType::Ready) => None,
                status => failed(status),
            };
            // An import that was begun goes on, unless it says that it does not.
            let is_under_way = golden.status.is_some_and(|status| status.started_time.is_some())
                && ready.is_some_and(|ready| ready.reason != Reason::Suspended.as_str());
            Some(GoldenRecord {
                golden: golden.name()?.to_owned(),
                is_recorded: golden.is_recorded(),
                volume: volume(golden),
                claim_uid,
                failed,
                waits_for: ready.map_or_else(|| "it has just been made".to_owned(), |ready| ready.reason.clone()),
                is_suspended: image.spec.suspend == Some(true) && !is_under_way,
                is_leaving,
            })
        };
        let goldens = goldens.iter().filter_map(record).collect();
        // An image that cannot be read, but says that not everybody may have it, is for nobody.
        let is_restricted = image.spec.access.is_some() || image.spec.credentials_secret_ref.is_some();
        let unread = if is_restricted { Access::Selected(None) } else { Access::AllTenants };
        let access = parsed.as_ref().map_or(unread, |image| Access::from(&image.access));
        Self { name: image.name_any(), identity, place: image.precedence(), access, goldens }
    }

    /// The goldens that it offers, for messages.
    pub fn targets(&self) -> Vec<Target> {
        let offered = self.goldens.iter().filter(|record| !record.is_leaving);
        offered.map(|record| Target { golden: record.golden.clone(), class: record.volume.class.clone() }).collect()
    }

    /// Its golden of this name.
    pub fn golden(&self, name: &str) -> Option<&GoldenRecord> {
        self.goldens.iter().find(|record| record.golden == name)
    }
}

/// The terminal failure that conditions tell, if they do (R9).
fn stalled(conditions: &[k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition]) -> Option<(Reason, String)> {
    let condition = find_condition(conditions, ConditionType::Stalled).filter(|condition| condition.status == "True")?;
    // A reason of a newer version is still a failure.
    let reason = condition.reason.parse().unwrap_or(Reason::ImportFailed);
    // The message ends with the remedy, which the rule adds itself.
    let message = condition.message.strip_suffix(reason.remedy()).unwrap_or(&condition.message);
    Some((reason, message.trim_end_matches([' ', '.']).to_owned()))
}

/// Class, size and mode, as the record froze them, or as its target has them where no other may come to the name.
fn volume(golden: &ImageGolden<'_>) -> SourceVolume {
    match (golden.status.filter(|status| status.golden.is_some()), golden.target.filter(|_| golden.is_settled)) {
        (Some(status), _) => SourceVolume {
            class: status.storage_class_name.clone(),
            request: status.size.as_ref().and_then(|size| size.parse::<DiskSize>().ok()),
            capacity: None,
            volume_mode: status.volume_mode.as_deref().and_then(VolumeMode::parse),
        },
        (None, Some(target)) => SourceVolume {
            class: target.class.as_ref().map(ToString::to_string),
            request: target.size,
            capacity: None,
            volume_mode: target.volume_mode,
        },
        (None, None) => SourceVolume::default(),
    }
}

type Index = Arc<RwLock<HashMap<String, BTreeSet<String>>>>;

/// All GoldenImages, found by golden.
#[derive(Clone)]
pub struct Images {
    /// By name.
    pub store: Store<ImageFacts>,
    by_golden: Index,
}

impl Default for Images {
    fn default() -> Self {
        let by_golden = Index::default();
        let index = Arc::clone(&by_golden);
        let store = Store::new(move |change: &crate::world::Change<'_, ImageFacts>| {
            let mut index = index.write().unwrap_or_else(PoisonError::into_inner);
            for record in change.old.iter().flat_map(|image| &image.goldens) {
                if let Some(images) = index.get_mut(&record.golden) {
                    images.remove(change.name);
                    if images.is_empty() {
                        index.remove(&record.golden);
                    }
                }
            }
            for record in change.new.iter().flat_map(|image| &image.goldens) {
                index.entry(record.golden.clone()).or_default().insert(change.name.to_owned());
            }
        });
        Self { store, by_golden }
    }
}

impl Images {
    /// The image a golden of this name belongs to: of several the one that has it on record, then the oldest.
    pub fn of_golden(&self, golden: &str) -> Option<Arc<ImageFacts>> {
        self.first(golden, |_, _| true)
    }

    /// The image that what stands under a golden's name belongs to. One that foresees the name says nothing of what another image left there
    /// (R18): it must have a claim of the name on record, or be what the labels of the claim or DataVolume say it is.
    pub fn of_found(&self, golden: &str, meta: &ObjectMeta) -> Option<Arc<ImageFacts>> {
        let identity = meta.labels.as_ref().and_then(|labels| labels.get(marks::IDENTITY));
        // Made before the identity was written on it, or taken off by hand: of the image's name, unless it says whom it is for.
        let says_for_whom = meta.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(marks::ACCESS));
        self.first(golden, |image, record| {
            record.claim_uid.is_some() || identity.map_or(!says_for_whom, |identity| image.identity.as_ref() == Some(identity))
        })
    }

    fn first(&self, golden: &str, counts: impl Fn(&ImageFacts, &GoldenRecord) -> bool) -> Option<Arc<ImageFacts>> {
        let names = self.by_golden.read().unwrap_or_else(PoisonError::into_inner).get(golden).cloned()?;
        let images = names.iter().filter_map(|name| self.store.get("", name));
        images.filter(|image| image.golden(golden).is_some_and(|record| counts(image, record))).min_by_key(|image| {
            let record = image.golden(golden);
            let rank = record.map(|record| (record.claim_uid.is_none(), !record.is_recorded));
            (rank, image.place.clone())
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::world::Sink as _;

    fn image(value: serde_json::Value) -> GoldenImage {
        let mut value = value;
        value["apiVersion"] = "cozystack.io/v1alpha1".into();
        value["kind"] = "GoldenImage".into();
        serde_json::from_value(value).expect("a GoldenImage")
    }

    fn ubuntu(name: &str, status: serde_json::Value) -> GoldenImage {
        image(json!({"metadata": {"name": name, "creationTimestamp": "2026-11-29T10:00:00Z"},
            "spec": {"source": {"http": {"url": "https://x.example/a.qcow2"}}, "storage": {"targets": [{"storageClassName": "replicated", "size": "20Gi"}, {"storageClassName": "local"}]}},
            "status": status}))
    }

    #[test]
    fn goldens_are_foreseen_and_then_recorded() {
        let fresh = ImageFacts::of(&ubuntu("u", json!({})));
        assert_eq!(
            fresh.goldens.iter().map(|record| record.golden.as_str()).collect::<Vec<_>>(),
            ["vm-default-images-u", "vm-default-images-u-local"]
        );
        assert_eq!(fresh.goldens[0].volume, SourceVolume::default(), "which target gets the name is not known yet");
        assert_eq!(fresh.goldens[1].volume.class.as_deref(), Some("local"), "no other has this one");
        let begun = ImageFacts::of(&ubuntu(
            "u",
            json!({"targets": [{"requestedClass": "replicated", "storageClassName": "replicated", "size": "20Gi", "golden": "vm-default-images-u", "claimUID": "c",
                "conditions": [{"type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2026-11-29T10:00:00Z"}]}],
                "conditions": [{"type": "Stalled", "status": "True", "reason": "ClassNotFound", "message": "no", "lastTransitionTime": "2026-11-29T10:00:00Z"}]}),
        ));
        let names: Vec<_> =
            begun.goldens.iter().map(|record| (record.golden.as_str(), record.volume.class.as_deref(), record.failed.is_some())).collect();
        assert_eq!(names, [("vm-default-images-u", Some("replicated"), false), ("vm-default-images-u-local", Some("local"), true)]);
        assert_eq!(begun.golden("vm-default-images-u").and_then(|record| record.claim_uid.as_deref()), Some("c"));
    }

    /// What keeps one target's golden from being made is nothing to those who want another's.
    #[test]
    fn a_targets_terminal_trouble_is_its_own() {
        let stalled = |reason: &str| json!([{"type": "Stalled", "status": "True", "reason": reason, "message": "no", "lastTransitionTime": "2026-11-29T10:00:00Z"}]);
        let failed = |targets: serde_json::Value, of_image: &str| {
            let facts = ImageFacts::of(&ubuntu("u", json!({"targets": targets, "conditions": stalled(of_image)})));
            let failed = facts.goldens.iter().map(|record| (record.golden.clone(), record.failed.clone().map(|(reason, _)| reason)));
            failed.collect::<Vec<_>>()
        };
        let being_made = json!({"requestedClass": "replicated", "golden": "vm-default-images-u", "conditions": []});
        let (first, second) = ("vm-default-images-u".to_owned(), "vm-default-images-u-local".to_owned());
        // Spent, and a class that is there twice.
        for reason in [Reason::ImportFailed, Reason::DuplicateClass] {
            let other = json!({"requestedClass": "local", "golden": null, "conditions": stalled(reason.as_str())});
            assert_eq!(failed(json!([being_made, other]), reason.as_str()), [(first.clone(), None), (second.clone(), Some(reason))]);
            // No golden is on record yet: the first name is for whichever target comes first.
            let unmade = json!({"requestedClass": "replicated", "conditions": []});
            assert_eq!(failed(json!([unmade, other]), reason.as_str()), [(first.clone(), None), (second.clone(), Some(reason))]);
            let stands_still = json!({"requestedClass": "replicated", "conditions": stalled(reason.as_str())});
            let own = "vm-default-images-u-replicated".to_owned();
            let of_the_second = failed(json!([stands_still, {"requestedClass": "local", "conditions": []}]), reason.as_str());
            assert_eq!(of_the_second, [(own, Some(reason)), (first.clone(), None)]);
        }
        // Of the image itself: it concerns all that are not made.
        let of_all = Some(Reason::InvalidEntry);
        assert_eq!(failed(json!([being_made]), "InvalidEntry"), [(first.clone(), of_all), (second.clone(), of_all)]);
        assert_eq!(failed(json!([]), "InvalidEntry"), [(first, of_all), (second, of_all)]);
    }

    /// A target that was taken out: its golden is offered to nobody, and refused where it was never made.
    #[test]
    fn a_golden_that_leaves_is_offered_to_nobody() {
        let ready = json!([{"type": "Ready", "status": "False", "reason": "Retiring", "message": "", "lastTransitionTime": "2026-11-29T10:00:00Z"}]);
        let with = |claim: serde_json::Value| {
            let mut leaving = json!({"requestedClass": "fast", "storageClassName": "fast", "golden": "vm-default-images-u-fast", "conditions": ready.clone()});
            leaving["claimUID"] = claim;
            ImageFacts::of(&ubuntu(
                "u",
                json!({"targets": [{"requestedClass": "replicated", "storageClassName": "replicated", "golden": "vm-default-images-u", "claimUID": "c"}, leaving]}),
            ))
        };
        let made = with(json!("f"));
        let offered: Vec<_> = made.targets().into_iter().map(|target| target.golden).collect();
        assert_eq!(offered, ["vm-default-images-u", "vm-default-images-u-local"]);
        let record = made.golden("vm-default-images-u-fast").expect("known still");
        assert!(record.is_leaving && record.failed.is_none(), "pools that use it go on: {record:?}");
        let unmade = with(serde_json::Value::Null);
        let failed = unmade.golden("vm-default-images-u-fast").and_then(|record| record.failed.clone());
        assert_eq!(failed.map(|(reason, _)| reason), Some(Reason::Retiring));
    }

    /// What is to go is not made any more: deleted with `Delete` like retired. With `Retain` there is nothing to wait for.
    #[test]
    fn what_is_to_go_is_made_for_nobody() {
        let failed = |change: fn(&mut serde_json::Value)| {
            let status = json!({"targets": [{"requestedClass": "replicated", "golden": "vm-default-images-u", "conditions": []}]});
            let mut value = serde_json::to_value(ubuntu("u", status)).expect("JSON");
            change(&mut value);
            let facts = ImageFacts::of(&image(value));
            facts.goldens.into_iter().map(|record| record.failed.map(|(reason, _)| reason)).collect::<Vec<_>>()
        };
        assert_eq!(failed(|_| {}), [None, None]);
        assert_eq!(failed(|image| image["spec"]["retire"] = true.into()), [Some(Reason::Retired); 2]);
        assert_eq!(failed(|image| image["spec"]["deletionPolicy"] = "Delete".into()), [None, None]);
        let change = |image: &mut serde_json::Value| {
            image["spec"]["deletionPolicy"] = "Delete".into();
            image["metadata"]["deletionTimestamp"] = "2026-11-30T10:00:00Z".into();
        };
        assert_eq!(failed(change), [Some(Reason::Retiring); 2]);
        assert_eq!(failed(|image| image["metadata"]["deletionTimestamp"] = "2026-11-30T10:00:00Z".into()), [None, None]);
    }

    #[test]
    fn a_golden_finds_its_image_through_changes() {
        let images = Images::default();
        let mut sink = images.store.sink(|image: GoldenImage| Some(ImageFacts::of(&image)));
        sink.begin();
        sink.apply(ubuntu("u", json!({})));
        sink.synced();
        assert_eq!(images.of_golden("vm-default-images-u").map(|image| image.name.clone()), Some("u".to_owned()));
        assert!(images.of_golden("vm-default-images-other").is_none());
        // Another image claims the name; the one on record keeps it.
        let taken = |uid: &str| json!({"targets": [{"requestedClass": "replicated", "golden": "vm-default-images-u", "claimUID": uid}]});
        sink.apply(ubuntu("b", taken("c")));
        assert_eq!(images.of_golden("vm-default-images-u").map(|image| image.name.clone()), Some("b".to_owned()));
        crate::world::Sink::<GoldenImage>::delete(&mut sink, None, "b");
        crate::world::Sink::<GoldenImage>::delete(&mut sink, None, "u");
        assert!(images.of_golden("vm-default-images-u").is_none());
    }
}
