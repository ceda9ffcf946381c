//! What a StorageClass cannot do that clones want: told on the golden before the first clone (R17).

use super::{class::ClassFacts, dependence::is_known_driver};

/// Provisioners whose volumes live on one node, unless the setting `nodeLocalProvisioners` says others (R17).
pub const NODE_LOCAL_PROVISIONERS: [&str; 8] = [
    "topolvm.io",
    "topolvm.cybozu.com",
    "local.csi.openebs.io",
    "zfs.csi.openebs.io",
    "openebs.io/local",
    "rancher.io/local-path",
    "kubernetes.io/no-provisioner",
    "hostpath.csi.k8s.io",
];

/// Why a class's volumes cannot be used from every node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodePinned {
    /// A parameter such as LINSTOR's `allowRemoteVolumeAccess: "false"`.
    NoRemoteAccess(String),
    /// The class has `allowedTopologies`.
    AllowedTopologies,
    /// The provisioner is a node-local one.
    Provisioner(String),
}

impl std::fmt::Display for NodePinned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoRemoteAccess(parameter) => write!(f, "it sets `{parameter}: \"false\"`"),
            Self::AllowedTopologies => f.write_str("it has `allowedTopologies`"),
            Self::Provisioner(provisioner) => write!(f, "its provisioner {provisioner} keeps volumes on one node"),
        }
    }
}

/// Whether a class's volumes are tied to some nodes (R17), and by what.
pub fn node_pinned<S: AsRef<str>>(class: &ClassFacts, node_local: &[S]) -> Option<NodePinned> {
    let closed = |(key, value): &(&String, &String)| {
        (key.as_str() == "allowRemoteVolumeAccess" || key.ends_with("/allowRemoteVolumeAccess"))
            && value.trim().eq_ignore_ascii_case("false")
    };
    if let Some((parameter, _)) = class.parameters.iter().find(closed) {
        return Some(NodePinned::NoRemoteAccess(parameter.clone()));
    }
    if class.has_allowed_topologies {
        return Some(NodePinned::AllowedTopologies);
    }
    let local = node_local.iter().any(|provisioner| provisioner.as_ref() == class.provisioner);
    local.then(|| NodePinned::Provisioner(class.provisioner.clone()))
}

/// How CDI will clone within a class.
#[derive(Debug, Clone, Copy, Default)]
pub struct Strategy<'a> {
    /// The CDI object's `cloneStrategyOverride`, which wins over all profiles.
    pub overall: Option<&'a str>,
    /// The StorageProfile's `cloneStrategy`.
    pub profile: Option<&'a str>,
    /// Whether a VolumeSnapshotClass of the class's driver exists.
    pub has_snapshot_class: bool,
}

impl Strategy<'_> {
    /// The strategy CDI uses (its pkg/controller/clone/planner.go): the override, the profile, else snapshots where there is a class for them.
    fn effective(&self) -> &str {
        self.overall.or(self.profile).unwrap_or(if self.has_snapshot_class { "snapshot" } else { "copy" })
    }
}

/// Something a class cannot do well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shortfall {
    /// Clones larger than the golden are copied over the network.
    NoExpansion,
    /// Clones can only run where the golden's volume lies.
    NodePinned(NodePinned),
    /// Nothing is known of the provisioner's clones.
    UnknownProvisioner(String),
    /// CDI copies instead of cloning.
    Copies,
    /// CDI would clone by snapshot and finds no VolumeSnapshotClass.
    NoSnapshotClass,
}

impl Shortfall {
    /// What is wrong with the class and what to do, in one sentence each.
    pub fn message(&self, class: &str) -> String {
        match self {
            Self::NoExpansion => format!(
                "class {class:?} has no `allowVolumeExpansion`: a disk larger than the golden would be copied over the network and is refused; set it on the class"
            ),
            Self::NodePinned(why) => format!(
                "class {class:?} is tied to nodes ({why}): a clone can only run where the golden's volume lies; use a replicated class for workers"
            ),
            Self::UnknownProvisioner(provisioner) => format!(
                "nothing is known about clones of provisioner {provisioner} (class {class:?}): a finished clone counts as depending on the golden; try one clone first"
            ),
            Self::Copies => format!(
                "CDI copies disks of class {class:?} over the network instead of cloning them: set `cloneStrategy: csi-clone` in the StorageProfile {class:?} if the driver can clone"
            ),
            Self::NoSnapshotClass => format!(
                "CDI clones class {class:?} by snapshot but finds no VolumeSnapshotClass of its driver and would copy: create one, or set `cloneStrategy: csi-clone` in the StorageProfile {class:?}"
            ),
        }
    }
}

/// What a class cannot do that clones want, worst first.
pub fn shortfalls<S: AsRef<str>>(class: &ClassFacts, strategy: Strategy<'_>, node_local: &[S]) -> Vec<Shortfall> {
    let mut found = Vec::new();
    match strategy.effective() {
        "copy" => found.push(Shortfall::Copies),
        "snapshot" if !strategy.has_snapshot_class => found.push(Shortfall::NoSnapshotClass),
        _ => {}
    }
    found.extend(node_pinned(class, node_local).map(Shortfall::NodePinned));
    if !class.allows_expansion {
        found.push(Shortfall::NoExpansion);
    }
    if !is_known_driver(&class.provisioner) {
        found.push(Shortfall::UnknownProvisioner(class.provisioner.clone()));
    }
    found
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn class(provisioner: &str, parameters: &[(&str, &str)]) -> ClassFacts {
        let parameters = parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        ClassFacts { name: "c".into(), provisioner: provisioner.into(), parameters, allows_expansion: true, ..ClassFacts::default() }
    }

    const LINSTOR: &str = "linstor.csi.linbit.com";

    #[rstest]
    #[case::replicated(class(LINSTOR, &[("linstor.csi.linbit.com/autoPlace", "3")]), None)]
    #[case::local(class(LINSTOR, &[("linstor.csi.linbit.com/allowRemoteVolumeAccess", "false")]), Some("allowRemoteVolumeAccess"))]
    #[case::bare_key(class(LINSTOR, &[("allowRemoteVolumeAccess", "False")]), Some("allowRemoteVolumeAccess"))]
    #[case::remote(class(LINSTOR, &[("linstor.csi.linbit.com/allowRemoteVolumeAccess", "true")]), None)]
    #[case::other_key(class(LINSTOR, &[("notallowRemoteVolumeAccess", "false")]), None)]
    #[case::topologies(ClassFacts { has_allowed_topologies: true, ..class(LINSTOR, &[]) }, Some("allowedTopologies"))]
    #[case::provisioner(class("topolvm.io", &[]), Some("one node"))]
    #[case::configured(class("my.local", &[]), Some("one node"))]
    fn r17_node_pinned(#[case] class: ClassFacts, #[case] why: Option<&str>) {
        let list: Vec<&str> = NODE_LOCAL_PROVISIONERS.iter().copied().chain(["my.local"]).collect();
        let found = node_pinned(&class, &list).map(|pinned| pinned.to_string());
        assert_eq!(found.is_some(), why.is_some(), "{found:?}");
        assert!(why.is_none_or(|why| found.expect("pinned").contains(why)));
    }

    #[rstest]
    #[case::good(class(LINSTOR, &[]), Strategy { overall: Some("csi-clone"), ..Strategy::default() }, &[])]
    #[case::override_wins(class(LINSTOR, &[]), Strategy { overall: Some("csi-clone"), profile: Some("copy"), has_snapshot_class: false }, &[])]
    #[case::copy(class(LINSTOR, &[]), Strategy { profile: Some("copy"), ..Strategy::default() }, &["instead of cloning"])]
    #[case::nothing_known(class(LINSTOR, &[]), Strategy::default(), &["instead of cloning"])]
    #[case::snapshots(class(LINSTOR, &[]), Strategy { has_snapshot_class: true, ..Strategy::default() }, &[])]
    #[case::no_snapshot_class(class(LINSTOR, &[]), Strategy { profile: Some("snapshot"), ..Strategy::default() }, &["no VolumeSnapshotClass"])]
    #[case::no_expansion(ClassFacts { allows_expansion: false, ..class(LINSTOR, &[]) }, Strategy { overall: Some("csi-clone"), ..Strategy::default() }, &["allowVolumeExpansion"])]
    #[case::unknown(class("x.example", &[]), Strategy { overall: Some("csi-clone"), ..Strategy::default() }, &["nothing is known"])]
    #[case::all(ClassFacts { allows_expansion: false, has_allowed_topologies: true, ..class("x.example", &[]) }, Strategy { overall: Some("copy"), ..Strategy::default() },
        &["instead of cloning", "tied to nodes", "allowVolumeExpansion", "nothing is known"])]
    fn what_a_class_cannot_do(#[case] class: ClassFacts, #[case] strategy: Strategy<'_>, #[case] expected: &[&str]) {
        let found: Vec<String> = shortfalls(&class, strategy, &NODE_LOCAL_PROVISIONERS).iter().map(|found| found.message("c")).collect();
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (message, part) in found.iter().zip(expected) {
            assert!(message.contains(part) && message.contains("\"c\""), "{message}");
        }
    }
}
