//! Pods that hold a golden so that no clone can start (R26).

/// A pod, as far as the rule reads it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodFacts {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Whether it has ended (`Succeeded` or `Failed`).
    pub has_ended: bool,
    /// Whether it is the reading end of one of CDI's copies (its name ends `-source-pod`, label `cdi.kubevirt.io: cdi-clone-source`).
    pub is_clone_reader: bool,
    /// The claims it uses.
    pub volumes: Vec<ClaimUse>,
}

/// One claim in a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClaimUse {
    /// The claim, in the pod's namespace.
    pub claim: String,
    /// `persistentVolumeClaim.readOnly` of the pod's volume.
    pub read_only: bool,
    /// For each mount in a container, whether it is read-only.
    pub mounts_read_only: Vec<bool>,
    /// Whether a container uses it as a device: without `read_only` the node attaches it for writing.
    pub as_device: bool,
}

/// Whether a pod keeps a golden from being cloned (R26): CDI waits, without a word on the clone, while a pod can write to its source.
///
/// The exemptions are CDI's (`GetPodsUsingPVCs` in its pkg/controller/common/util.go): a read-only volume, a volume whose every mount is read-only, and CDI's own reader.
pub fn holds_golden(pod: &PodFacts, catalog_namespace: &str, golden: &str) -> bool {
    let writes =
        |volume: &ClaimUse| volume.claim == golden && !volume.read_only && (volume.as_device || volume.mounts_read_only.contains(&false));
    pod.namespace == catalog_namespace && !pod.has_ended && !pod.is_clone_reader && pod.volumes.iter().any(writes)
}

/// The message of `InUseByPod`: names up to three pods.
pub fn in_use_message(pods: &[&PodFacts]) -> Option<String> {
    let names: Vec<String> = pods.iter().take(3).map(|pod| format!("{}/{}", pod.namespace, pod.name)).collect();
    let more = pods.len().saturating_sub(names.len());
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!names.is_empty()).then(|| format!("clones wait while a pod can write to the golden: {}{more}", names.join(", ")))
}

/// What is told of a golden that is being deleted: any pod that uses its claim keeps it there (Kubernetes' finalizer `pvc-protection`).
pub fn going_message<'a>(pods: impl Iterator<Item = &'a PodFacts>, catalog_namespace: &str, golden: &str) -> String {
    let uses =
        |pod: &&PodFacts| pod.namespace == catalog_namespace && !pod.has_ended && pod.volumes.iter().any(|volume| volume.claim == golden);
    let names: Vec<String> = pods.filter(uses).map(|pod| format!("{}/{}", pod.namespace, pod.name)).collect();
    match names[..] {
        [] => golden.to_owned(),
        _ => format!("{golden}, which stays as long as a pod uses its PVC: {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn r26_any_pod_keeps_what_is_being_deleted() {
        let ended = PodFacts { has_ended: true, ..pod(false, &[], true) };
        let told = |pods: &[PodFacts], golden: &str| going_message(pods.iter(), "cozy-public", golden);
        assert_eq!(told(&[pod(true, &[], false), ended.clone()], "g"), "g, which stays as long as a pod uses its PVC: cozy-public/debug");
        assert_eq!((told(&[ended], "g").as_str(), told(&[pod(true, &[], false)], "h").as_str()), ("g", "h"));
    }

    fn pod(read_only: bool, mounts: &[bool], as_device: bool) -> PodFacts {
        let volume = ClaimUse { claim: "g".into(), read_only, mounts_read_only: mounts.to_vec(), as_device };
        PodFacts {
            namespace: "cozy-public".into(),
            name: "debug".into(),
            volumes: vec![ClaimUse::default(), volume],
            ..PodFacts::default()
        }
    }

    #[rstest]
    #[case::writes(pod(false, &[false], false), true)]
    #[case::one_mount_writes(pod(false, &[true, false], false), true)]
    #[case::device(pod(false, &[], true), true)]
    #[case::read_only_volume(pod(true, &[false], true), false)]
    #[case::all_mounts_read_only(pod(false, &[true, true], false), false)]
    #[case::not_mounted(pod(false, &[], false), false)]
    #[case::ended(PodFacts { has_ended: true, ..pod(false, &[false], false) }, false)]
    #[case::cdi_reader(PodFacts { is_clone_reader: true, ..pod(false, &[], true) }, false)]
    #[case::elsewhere(PodFacts { namespace: "tenant-a".into(), ..pod(false, &[false], false) }, false)]
    fn r26(#[case] pod: PodFacts, #[case] holds: bool) {
        assert_eq!(holds_golden(&pod, "cozy-public", "g"), holds);
        assert!(!holds_golden(&pod, "cozy-public", "another"));
    }

    #[test]
    fn the_message_is_bounded() {
        let pod = pod(false, &[false], false);
        assert_eq!(in_use_message(&[]), None);
        let message = in_use_message(&[&pod; 5]).expect("pods");
        assert!(message.ends_with("cozy-public/debug, cozy-public/debug, cozy-public/debug and 2 more"), "{message}");
    }
}
