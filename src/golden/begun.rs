//! The imports under way as the cluster shows them: what each takes of a quota at its height, and what of that is there already.

use std::collections::BTreeMap;

use kube::ResourceExt as _;

use super::observe::{CDI_CONFIG, scratch_class};
use crate::{
    api::{GoldenImageStatus, TargetStatus},
    foreign::DataVolume,
    model::{DiskSize, GoldenName, VolumeMode},
    rules::{
        class::Shape,
        pods::PodFacts,
        quota::{Begun, Held, Need},
        size::Volume,
    },
    world::{Cluster, facts},
};

/// What the imports take that this status has on record as begun and that have not ended.
///
/// `known` are the needs of those that were begun before, which stay as they were; `is_copy` says of a golden whose DataVolume is still
/// to be made whether it copies another one.
pub fn needs(
    cluster: &Cluster,
    catalog: &str,
    status: &GoldenImageStatus,
    known: &BTreeMap<GoldenName, Need>,
    is_copy: impl Fn(&GoldenName) -> bool,
) -> BTreeMap<GoldenName, Need> {
    let begun = status.targets.iter().filter(|target| target.started_time.is_some());
    let need = |target: &TargetStatus| {
        let golden: GoldenName = target.golden.as_ref()?.parse().ok()?;
        let volume = cluster.volumes.get(catalog, golden.as_str());
        // Of an image that is not worked on the status stays as it was: what is filled takes no more all the same.
        if volume.as_deref().is_some_and(is_filled) {
            return None;
        }
        let need = match known.get(&golden) {
            Some(known) => known.clone(),
            None => need_of(cluster, target, is_copy(&golden) || volume.as_deref().is_some_and(is_copying))?,
        };
        Some((golden, need))
    };
    begun.filter_map(need).collect()
}

fn is_filled(volume: &DataVolume) -> bool {
    let phase = volume.status.read().and_then(|status| status.phase.as_deref());
    phase == Some("Succeeded") && volume.metadata.deletion_timestamp.is_none()
}

fn is_copying(volume: &DataVolume) -> bool {
    volume.spec.read().and_then(|spec| spec.source.as_ref()).is_some_and(|source| source.pvc.is_some())
}

fn need_of(cluster: &Cluster, target: &TargetStatus, is_copy: bool) -> Option<Need> {
    let class = target.storage_class_name.clone()?;
    let size: DiskSize = target.size.as_ref()?.parse().ok()?;
    let mode = target.volume_mode.as_deref().and_then(VolumeMode::parse).unwrap_or(VolumeMode::Filesystem);
    let config = cluster.cdi_config.get("", CDI_CONFIG);
    let minimum = cluster.profiles.get("", &class).and_then(|profile| facts::profile(&profile).minimum);
    let volume = Volume::new(&class, mode, &facts::overheads(config.as_deref()), minimum);
    let scratch = scratch_class(config.as_deref(), |class| cluster.classes.get("", class).is_some()).unwrap_or_else(|| class.clone());
    Some(Need { claim: volume.requested(size, Shape::Storage), scratch_class: (!is_copy).then_some(scratch), class })
}

/// These imports, each with what is there of it.
pub fn seen<'a>(cluster: &Cluster, catalog: &str, needs: impl IntoIterator<Item = (&'a GoldenName, &'a Need)>) -> Vec<Begun> {
    let seen = needs.into_iter().map(|(golden, need)| Begun { need: need.clone(), held: held(cluster, catalog, golden.as_str()) });
    seen.collect()
}

/// CDI's populators name the claim that they fill `prime-<UID>`, scratch space after it, and a copy's claim `tmp-pvc-<UID>`, by the UID of
/// the golden's claim; without populators scratch space has the golden's own name.
fn held(cluster: &Cluster, catalog: &str, golden: &str) -> Held {
    let has_volume = cluster.volumes.get(catalog, golden).is_some();
    let Some(claim) = cluster.claims.get(catalog, golden) else { return Held { has_volume, ..Held::default() } };
    let uid = claim.uid().unwrap_or_default();
    let names =
        [golden.to_owned(), format!("prime-{uid}"), format!("prime-{uid}-scratch"), format!("tmp-pvc-{uid}"), format!("{golden}-scratch")];
    let mut claims = Vec::new();
    for claim in names.iter().filter_map(|name| cluster.claims.get(catalog, name)) {
        let Some(spec) = claim.spec.read() else { continue };
        let bytes = spec.storage_request().and_then(|request| request.bytes()).unwrap_or(0);
        claims.push((spec.storage_class_name.clone().unwrap_or_default(), bytes));
    }
    let pods = cluster.pods.all();
    let works = |pod: &PodFacts| pod.volumes.iter().any(|volume| names.contains(&volume.claim));
    let has_pod = pods.iter().any(|pod| pod.namespace == catalog && !pod.has_ended && works(pod));
    Held { claims, has_pod, has_volume }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::{needs, seen};
    use crate::{
        api::GoldenImageStatus,
        foreign::{Claim, DataVolume},
        rules::quota::{Held, Need},
        world::{Cluster, Sink as _},
    };

    const CATALOG: &str = "cozy-public";

    fn object<K: DeserializeOwned>(name: &str, more: &Value) -> K {
        let mut object = json!({ "metadata": { "name": name, "namespace": CATALOG, "uid": format!("uid-of-{name}") } });
        for (key, value) in more.as_object().expect("a map") {
            object[key] = value.clone();
        }
        serde_json::from_value(object).expect("an object")
    }

    fn status(started: bool) -> GoldenImageStatus {
        let mut target = json!({
            "requestedClass": "", "attempts": 1, "golden": "g", "storageClassName": "a", "size": "4Gi", "volumeMode": "Block",
        });
        if started {
            target["startedTime"] = json!("2026-01-01T00:00:00Z");
        }
        serde_json::from_value(json!({ "targets": [target] })).expect("a status")
    }

    #[test]
    fn r10_what_is_begun_takes_its_room_until_it_is_filled() {
        let cluster = Cluster::new(|_| {});
        let of = |status: &GoldenImageStatus| needs(&cluster, CATALOG, status, &BTreeMap::new(), |_| false);
        assert!(of(&status(false)).is_empty(), "nothing is begun");
        let begun = of(&status(true));
        let whole = Need { class: "a".into(), scratch_class: Some("a".into()), claim: "4Gi".parse().expect("size") };
        assert_eq!(begun.values().collect::<Vec<_>>(), [&whole]);
        let copied = needs(&cluster, CATALOG, &status(true), &BTreeMap::new(), |_| true);
        assert_eq!(copied.values().collect::<Vec<_>>(), [&Need { scratch_class: None, ..whole }]);
        let there = || seen(&cluster, CATALOG, &begun).into_iter().map(|begun| begun.held).collect::<Vec<_>>();
        assert_eq!(there(), [Held::default()]);

        let volume = |phase: &str| object::<DataVolume>("g", &json!({ "status": { "phase": phase } }));
        cluster.volumes.sink(Some).apply(volume("ImportInProgress"));
        for name in ["g", "prime-uid-of-g", "prime-uid-of-g-scratch", "prime-of-another"] {
            let spec = json!({ "spec": { "storageClassName": "a", "resources": { "requests": { "storage": "4Gi" } } } });
            cluster.claims.sink(Some).apply(object::<Claim>(name, &spec));
        }
        assert_eq!(there(), [Held { claims: vec![("a".into(), 4 << 30); 3], has_pod: false, has_volume: true }]);
        cluster.volumes.sink(Some).apply(volume("Succeeded"));
        assert!(of(&status(true)).is_empty(), "what is filled takes no more");
    }
}
