//! A ResourceQuota of the catalog namespace that an import would meet (R10): seen before it is begun, and named.

use std::collections::BTreeMap;

use crate::model::DiskSize;

/// A ResourceQuota, as far as an import is counted by it. One with scopes counts pods of some kind only and is left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Quota {
    /// Its name.
    pub name: String,
    /// What is allowed, by resource: bytes for storage, a number for counts.
    pub hard: BTreeMap<String, u64>,
    /// What is used.
    pub used: BTreeMap<String, u64>,
}

/// What making one golden takes at its height.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Need {
    /// The golden's StorageClass.
    pub class: String,
    /// The class of scratch space, where CDI needs any.
    pub scratch_class: Option<String>,
    /// The golden's claim, as large as CDI makes it.
    pub claim: DiskSize,
}

/// What is there already of the making of one golden.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Held {
    /// The class and the size in bytes of each of its claims.
    pub claims: Vec<(String, u64)>,
    /// Whether a pod works on them.
    pub has_pod: bool,
    /// Whether its DataVolume is there.
    pub has_volume: bool,
}

/// A golden whose making has begun and has not ended. A quota's `used` counts what is there of it, and what it lacks is to come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begun {
    /// What it takes at its height.
    pub need: Need,
    /// What is there already.
    pub held: Held,
}

impl Need {
    /// How much of a quota's resource it takes. CDI fills a second claim of the same size and moves its volume to the golden's; an import needs scratch space of the
    /// same size beside them.
    fn of(&self, resource: &str) -> u64 {
        let claims = [Some(&self.class), Some(&self.class), self.scratch_class.as_ref()];
        amount(resource, claims.into_iter().flatten().map(|class| (class.as_str(), self.claim.bytes())), 1, 1)
    }
}

impl Begun {
    /// How much of a quota's resource it is still to take.
    fn lacks(&self, resource: &str) -> u64 {
        let Held { claims, has_pod, has_volume } = &self.held;
        let claims = claims.iter().map(|(class, bytes)| (class.as_str(), *bytes));
        self.need.of(resource).saturating_sub(amount(resource, claims, u64::from(*has_pod), u64::from(*has_volume)))
    }
}

/// How much of a quota's resource these claims, each with its class and size, and so many pods and DataVolumes are.
fn amount<'a>(resource: &str, claims: impl Iterator<Item = (&'a str, u64)>, pods: u64, volumes: u64) -> u64 {
    let (of_class, rest) = match resource.split_once(".storageclass.storage.k8s.io/") {
        Some((class, rest)) => (Some(class), rest),
        None => (None, resource),
    };
    let sizes = claims.filter(|(class, _)| of_class.is_none_or(|wanted| wanted == *class)).map(|(_, bytes)| bytes);
    match (rest, of_class) {
        ("requests.storage", _) => sizes.fold(0, u64::saturating_add),
        ("persistentvolumeclaims", _) | ("count/persistentvolumeclaims", None) => sizes.count() as u64,
        ("pods" | "count/pods", None) => pods,
        ("count/datavolumes.cdi.kubevirt.io", None) => volumes,
        _ => 0,
    }
}

/// Why a quota does not let an import begin, or `None`. What CPU and memory CDI's pods ask for is CDI's to know: it tells.
///
/// `begun` are the imports under way: what they are still to take is kept for them, or all would begin, and none could end.
pub fn shortage(need: &Need, quotas: &[Quota], begun: &[Begun]) -> Option<String> {
    quotas.iter().find_map(|quota| {
        quota.hard.iter().find_map(|(resource, hard)| {
            let wanted = need.of(resource);
            let used = quota.used.get(resource).copied().unwrap_or(0);
            let lacking = begun.iter().map(|begun| begun.lacks(resource)).fold(0, u64::saturating_add);
            let at_their_height = begun.iter().map(|begun| begun.need.of(resource)).fold(0, u64::saturating_add);
            // What is there may be seen before its use is: they take no less than all that they need.
            let taken = used.saturating_add(lacking).max(at_their_height);
            let is_short = wanted > 0 && taken.saturating_add(wanted) > *hard;
            let show = |amount: u64| {
                if resource.ends_with("requests.storage") { bytes(amount) } else { amount.to_string() }
            };
            let how = if taken > used { "used or kept for other imports under way" } else { "used" };
            is_short.then(|| {
                format!(
                    "ResourceQuota {} allows {} of `{resource}`, {} is {how}, and making the golden takes {} for a while (the golden, the volume that CDI fills, scratch space).",
                    quota.name,
                    show(*hard),
                    show(taken),
                    show(wanted),
                )
            })
        })
    })
}

fn bytes(amount: u64) -> String {
    DiskSize::from_bytes(amount).map_or_else(|| "0".to_owned(), |size| size.to_string())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{Begun, Held, Need, Quota, shortage};

    const GIB: u64 = 1 << 30;

    fn quota(resource: &str, hard: u64, used: u64) -> Quota {
        Quota { name: "small".into(), hard: [(resource.to_owned(), hard)].into(), used: [(resource.to_owned(), used)].into() }
    }

    fn need(gib: u64) -> Need {
        Need { class: "a".into(), scratch_class: Some("s".into()), claim: (gib * GIB).to_string().parse().expect("size") }
    }

    #[rstest]
    #[case::room(quota("requests.storage", 12 * GIB, 0), None)]
    #[case::to_the_byte(quota("requests.storage", 12 * GIB, 1), Some("ResourceQuota small allows 12Gi of `requests.storage`, 1 is used"))]
    #[case::used(quota("requests.storage", 20 * GIB, 10 * GIB), Some("takes 12Gi"))]
    #[case::claims(quota("persistentvolumeclaims", 10, 8), Some("takes 3"))]
    #[case::claims_fit(quota("count/persistentvolumeclaims", 10, 7), None)]
    #[case::own_class(quota("a.storageclass.storage.k8s.io/requests.storage", 7 * GIB, 0), Some("takes 8Gi"))]
    #[case::scratch_class(quota("s.storageclass.storage.k8s.io/requests.storage", 3 * GIB, 0), Some("takes 4Gi"))]
    #[case::other_class(quota("b.storageclass.storage.k8s.io/requests.storage", 0, 0), None)]
    #[case::class_claims(quota("a.storageclass.storage.k8s.io/persistentvolumeclaims", 1, 0), Some("takes 2"))]
    #[case::pods(quota("pods", 3, 3), Some("allows 3 of `pods`"))]
    #[case::not_counted(quota("limits.cpu", 0, 0), None)]
    fn r10_a_quota_in_the_way_is_named(#[case] quota: Quota, #[case] told: Option<&str>) {
        let found = shortage(&need(4), &[Quota::default(), quota], &[]);
        assert_eq!(found.is_some(), told.is_some(), "{found:?}");
        assert!(told.is_none_or(|told| found.as_ref().is_some_and(|found| found.contains(told))), "{found:?}");
    }

    #[test]
    fn a_copy_needs_no_scratch_space() {
        let need = Need { scratch_class: None, ..need(1) };
        assert_eq!(shortage(&need, &[quota("requests.storage", 2 * GIB, 0)], &[]), None);
    }

    /// What is there of an import of 4Gi: the golden, the claim that CDI fills, scratch space.
    fn begun(claims: usize) -> Begun {
        let all = ["a", "a", "s"].map(|class| (class.to_owned(), 4 * GIB));
        Begun { need: need(4), held: Held { claims: all[..claims].to_vec(), has_pod: claims > 1, has_volume: claims > 0 } }
    }

    /// What an import under way still lacks is kept for it, whatever of it the quota counts by now.
    #[rstest]
    #[case::nothing_is_there_yet(quota("persistentvolumeclaims", 5, 0), vec![begun(0)], Some("allows 5 of `persistentvolumeclaims`, 3 is used or kept for other imports under way, and making the golden takes 3"))]
    #[case::one_is_there(quota("persistentvolumeclaims", 5, 1), vec![begun(1)], Some("3 is used or kept for other imports under way"))]
    #[case::all_are_there(quota("persistentvolumeclaims", 5, 3), vec![begun(3)], Some("3 is used, and"))]
    #[case::seen_before_it_is_counted(quota("persistentvolumeclaims", 5, 0), vec![begun(3)], Some("3 is used or kept for other imports under way"))]
    #[case::room_for_both(quota("persistentvolumeclaims", 6, 1), vec![begun(1)], None)]
    #[case::beside_what_was_there(quota("persistentvolumeclaims", 9, 5), vec![begun(1)], Some("7 is used or kept"))]
    #[case::storage(quota("requests.storage", 23 * GIB, 4 * GIB), vec![begun(1)], Some("12Gi is used or kept"))]
    #[case::storage_for_both(quota("requests.storage", 24 * GIB, 4 * GIB), vec![begun(1)], None)]
    #[case::scratch_class(quota("s.storageclass.storage.k8s.io/persistentvolumeclaims", 1, 0), vec![begun(2)], Some("1 is used or kept"))]
    #[case::class_that_is_there(quota("a.storageclass.storage.k8s.io/requests.storage", 16 * GIB, 8 * GIB), vec![begun(2)], None)]
    #[case::pods(quota("pods", 1, 0), vec![begun(1)], Some("1 is used or kept"))]
    #[case::volumes(quota("count/datavolumes.cdi.kubevirt.io", 2, 1), vec![begun(1)], None)]
    #[case::another_class(quota("b.storageclass.storage.k8s.io/persistentvolumeclaims", 0, 0), vec![begun(0)], None)]
    fn r10_what_is_begun_keeps_its_room(#[case] quota: Quota, #[case] begun: Vec<Begun>, #[case] told: Option<&str>) {
        let found = shortage(&need(4), &[quota], &begun);
        assert_eq!(found.is_some(), told.is_some(), "{found:?}");
        assert!(told.is_none_or(|told| found.as_ref().is_some_and(|found| found.contains(told))), "{found:?}");
    }

    /// B04: there is room for one import, and three wait. One begins, and the next one when it has ended.
    #[test]
    fn r10_three_that_wait_for_the_room_of_one_do_not_lock_each_other_out() {
        for quota in [quota("persistentvolumeclaims", 5, 0), quota("requests.storage", 12 * GIB, 0)] {
            let mut under_way: Vec<Begun> = Vec::new();
            let told: Vec<_> = (0..3)
                .map(|_| {
                    let told = shortage(&need(4), std::slice::from_ref(&quota), &under_way);
                    if told.is_none() {
                        under_way.push(begun(0));
                    }
                    told
                })
                .collect();
            assert_eq!(under_way.len(), 1, "{told:?}");
            let kept = |told: &Option<String>| told.as_ref().is_some_and(|told| told.contains("kept for other imports under way"));
            assert_eq!(told.iter().map(kept).collect::<Vec<_>>(), [false, true, true], "{told:?}");
            under_way.clear();
            assert_eq!(shortage(&need(4), &[quota], &under_way), None);
        }
    }
}
