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
#[derive(Debug, Clone, Copy)]
pub struct Need<'a> {
    /// The golden's StorageClass.
    pub class: &'a str,
    /// The class of scratch space, where CDI needs any.
    pub scratch_class: Option<&'a str>,
    /// The golden's claim, as large as CDI makes it.
    pub claim: DiskSize,
}

impl Need<'_> {
    /// How much of a quota's resource it takes. CDI fills a second claim of the same size and moves its volume to the golden's; an import needs scratch space of the
    /// same size beside them.
    fn of(self, resource: &str) -> u64 {
        let claims = [Some(self.class), Some(self.class), self.scratch_class];
        let count = |class: Option<&str>| claims.iter().flatten().filter(|own| class.is_none_or(|class| class == **own)).count() as u64;
        let storage = |class| count(class).saturating_mul(self.claim.bytes());
        if let Some((class, rest)) = resource.split_once(".storageclass.storage.k8s.io/") {
            return match rest {
                "requests.storage" => storage(Some(class)),
                "persistentvolumeclaims" => count(Some(class)),
                _ => 0,
            };
        }
        match resource {
            "requests.storage" => storage(None),
            "persistentvolumeclaims" | "count/persistentvolumeclaims" => count(None),
            "pods" | "count/pods" | "count/datavolumes.cdi.kubevirt.io" => 1,
            _ => 0,
        }
    }
}

/// Why a quota does not let an import begin, or `None`. What CPU and memory CDI's pods ask for is CDI's to know: it tells.
pub fn shortage(need: Need<'_>, quotas: &[Quota]) -> Option<String> {
    quotas.iter().find_map(|quota| {
        quota.hard.iter().find_map(|(resource, hard)| {
            let wanted = need.of(resource);
            let used = quota.used.get(resource).copied().unwrap_or(0);
            let is_short = wanted > 0 && used.saturating_add(wanted) > *hard;
            let show = |amount: u64| {
                if resource.ends_with("requests.storage") { bytes(amount) } else { amount.to_string() }
            };
            is_short.then(|| {
                format!(
                    "ResourceQuota {} allows {} of `{resource}`, {} is used, and making the golden takes {} for a while (the golden, the volume that CDI fills, scratch space).",
                    quota.name,
                    show(*hard),
                    show(used),
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

    use super::{Need, Quota, shortage};

    const GIB: u64 = 1 << 30;

    fn quota(resource: &str, hard: u64, used: u64) -> Quota {
        Quota { name: "small".into(), hard: [(resource.to_owned(), hard)].into(), used: [(resource.to_owned(), used)].into() }
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
        let need = Need { class: "a", scratch_class: Some("s"), claim: (4 * GIB).to_string().parse().expect("size") };
        let found = shortage(need, &[Quota::default(), quota]);
        assert_eq!(found.is_some(), told.is_some(), "{found:?}");
        assert!(told.is_none_or(|told| found.as_ref().is_some_and(|found| found.contains(told))), "{found:?}");
    }

    #[test]
    fn a_copy_needs_no_scratch_space() {
        let need = Need { class: "a", scratch_class: None, claim: GIB.to_string().parse().expect("size") };
        assert_eq!(shortage(need, &[quota("requests.storage", 2 * GIB, 0)]), None);
    }
}
