//! Who a disk belongs to: the pool (docs/consumers.md).
//!
//! | object | what tells | pool | shape from |
//! |---|---|---|---|
//! | any disk | annotation `kubernetes-worker-image.cozystack.io/pool`, if it is `<namespace>/<Kind>/<name>` with the object's own namespace | as written | the pool chart's disk template |
//! | worker disk | its VM's instance template: label `cluster.x-k8s.io/deployment-name: kubernetes-<cluster>-<pool>` | `<ns>/KubernetesNodes/<cluster>-<pool>` | kubernetes-nodes `templates/nodegroup.yaml` |
//! | worker disk of another chart | its VM's label `cluster.x-k8s.io/deployment-name` | the same | Cluster API |
//! | machine template | the same label inside its VM template, else the MachineDeployment or MachineSet that names it | the same | `nodegroup.yaml` |
//! | MachineDeployment | its name `kubernetes-<cluster>-<pool>` | the same | `nodegroup.yaml` |
//! | MachineSet | label `cluster.x-k8s.io/deployment-name`, else its owner | the same | Cluster API |
//! | VM disk, claim | labels `apps.cozystack.io/application.kind: VMDisk` and `….name` | `<ns>/VMDisk/<name>` | Cozystack's lineage webhook |
//! | VM disk, DataVolume | label `app.kubernetes.io/instance: vm-disk-<name>` | `<ns>/VMDisk/<name>` | vm-disk `templates/dv.yaml` |
//! | disk of a VM's template | owner VirtualMachine, which has no Cluster API label | `<ns>/VirtualMachine/<vm>` | KubeVirt |
//! | anything else | | `unknown` | |
//!
//! The label `apps.cozystack.io/application.kind: Kubernetes` on worker VMs names the parent cluster on purpose and is never read as a pool.

use std::{collections::BTreeMap, fmt};

use super::marks;

/// Cluster API's label with the name of the MachineDeployment.
pub const DEPLOYMENT_NAME: &str = "cluster.x-k8s.io/deployment-name";
/// Cozystack's label with the kind of the application an object belongs to.
pub const APPLICATION_KIND: &str = "apps.cozystack.io/application.kind";
/// Cozystack's label with the name of that application.
pub const APPLICATION_NAME: &str = "apps.cozystack.io/application.name";
/// Helm's label with the release.
pub const INSTANCE: &str = "app.kubernetes.io/instance";

/// The owner of worker disks, or the VM application of VM disks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pool {
    /// `<namespace>/<kind>/<name>`.
    Known {
        /// The namespace.
        namespace: String,
        /// The kind, such as `KubernetesNodes`.
        kind: String,
        /// The name.
        name: String,
    },
    /// Nobody can tell.
    Unknown,
}

impl Pool {
    /// The text for [`Pool::Unknown`]: B29 wants it said, not left out.
    pub const UNKNOWN: &str = "unknown";
    /// The kind of a worker pool.
    pub const WORKERS: &str = "KubernetesNodes";
    /// The kind of a VM disk application.
    pub const VM_DISK: &str = "VMDisk";
    /// The kind of a VM that stands alone.
    pub const VIRTUAL_MACHINE: &str = "VirtualMachine";

    /// A pool by its parts.
    pub fn new(namespace: &str, kind: &str, name: &str) -> Self {
        Self::Known { namespace: namespace.to_owned(), kind: kind.to_owned(), name: name.to_owned() }
    }

    /// The worker pool of a MachineDeployment.
    pub fn workers(namespace: &str, deployment: &str) -> Self {
        let name = deployment.strip_prefix("kubernetes-").filter(|rest| !rest.is_empty()).unwrap_or(deployment);
        Self::new(namespace, Self::WORKERS, name)
    }

    /// Whether its disks are those of Kubernetes workers, which move between nodes.
    pub fn is_workers(&self) -> bool {
        matches!(self, Self::Known { kind, .. } if kind == Self::WORKERS)
    }
}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known { namespace, kind, name } => write!(f, "{namespace}/{kind}/{name}"),
            Self::Unknown => f.write_str(Self::UNKNOWN),
        }
    }
}

/// The pool an annotation names, if it may be believed on an object in this namespace: three parts of the right form, the object's own namespace.
///
/// A tenant can write the annotation, so it is believed about the tenant's own namespace and nothing else. The text `unknown` tells nothing.
pub fn plausible_pool(annotation: &str, namespace: &str) -> Option<Pool> {
    let mut parts = annotation.split('/');
    let (space, kind, name) = (parts.next()?, parts.next()?, parts.next()?);
    let kind_fits =
        kind.len() <= 63 && kind.starts_with(|c: char| c.is_ascii_uppercase()) && kind.bytes().all(|c| c.is_ascii_alphanumeric());
    let name_byte = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, b'-' | b'.');
    let name_fits = (1..=253).contains(&name.len()) && name.bytes().all(name_byte);
    let fits = parts.next().is_none() && space == namespace && kind_fits && name_fits;
    fits.then(|| Pool::new(space, kind, name))
}

/// Where an object's pool is to be found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PoolClue {
    /// The object itself tells.
    Here(Pool),
    /// The VirtualMachine of this name, in the same namespace, tells: by its labels, else it is the pool itself.
    Machine(String),
    /// The object says nothing.
    Nothing,
}

type Texts = BTreeMap<String, String>;

/// The pool of a disk, as far as the disk tells. `machine` is the VirtualMachine that owns its DataVolume.
pub fn disk_pool(namespace: &str, labels: &Texts, annotations: &Texts, machine: Option<&str>) -> PoolClue {
    if let Some(pool) = annotations.get(marks::POOL).and_then(|text| plausible_pool(text, namespace)) {
        return PoolClue::Here(pool);
    }
    if let Some(machine) = machine {
        return PoolClue::Machine(machine.to_owned());
    }
    let application =
        labels.get(APPLICATION_KIND).is_some_and(|kind| kind == Pool::VM_DISK).then(|| labels.get(APPLICATION_NAME)).flatten();
    let release = labels.get(INSTANCE).and_then(|release| release.strip_prefix("vm-disk-"));
    match application.map(String::as_str).or(release).filter(|name| !name.is_empty()) {
        Some(name) => PoolClue::Here(Pool::new(namespace, Pool::VM_DISK, name)),
        None => PoolClue::Nothing,
    }
}

/// The worker pool of a VirtualMachine or machine template, by the labels of its instance template and its own.
pub fn machine_pool(namespace: &str, instance_labels: &Texts, own_labels: &Texts) -> Option<Pool> {
    let name = instance_labels.get(DEPLOYMENT_NAME).or_else(|| own_labels.get(DEPLOYMENT_NAME))?;
    (!name.is_empty()).then(|| Pool::workers(namespace, name))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn map(pairs: &[(&str, &str)]) -> Texts {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[rstest]
    #[case("tenant-a/KubernetesNodes/demo-md0", true)]
    #[case("tenant-a/VMDisk/a.b-c", true)]
    #[case("tenant-b/KubernetesNodes/demo-md0", false)]
    #[case("unknown", false)]
    #[case("", false)]
    #[case("tenant-a/KubernetesNodes", false)]
    #[case("tenant-a/KubernetesNodes/", false)]
    #[case("tenant-a/KubernetesNodes/a/b", false)]
    #[case("tenant-a/kubernetesnodes/a", false)]
    #[case("tenant-a/Kubernetes Nodes/a", false)]
    #[case("tenant-a//a", false)]
    #[case("tenant-a/KubernetesNodes/A", false)]
    #[case("tenant-a/KubernetesNodes/<b>", false)]
    fn an_annotation_is_believed_about_its_own_namespace(#[case] text: &str, #[case] believed: bool) {
        let pool = plausible_pool(text, "tenant-a");
        assert_eq!(pool.is_some(), believed);
        assert!(pool.is_none_or(|pool| pool.to_string() == text));
    }

    #[test]
    fn an_annotation_is_bounded() {
        assert_eq!(plausible_pool(&format!("tenant-a/VMDisk/{}", "a".repeat(254)), "tenant-a"), None);
        assert_eq!(plausible_pool(&format!("tenant-a/V{}/a", "a".repeat(63)), "tenant-a"), None);
    }

    /// What Cozystack's `packages/apps/kubernetes-nodes` and `vm-disk` render.
    #[rstest]
    #[case::chart(&[], &[(marks::POOL, "tenant-a/KubernetesNodes/demo-md0")], Some("kubernetes-demo-md0-x"), PoolClue::Here(Pool::new("tenant-a", "KubernetesNodes", "demo-md0")))]
    #[case::another_namespaces_annotation(&[], &[(marks::POOL, "tenant-b/KubernetesNodes/x")], Some("kubernetes-demo-md0-x"), PoolClue::Machine("kubernetes-demo-md0-x".into()))]
    #[case::worker_without_annotation(&[("kubevirt.io/created-by", "uid")], &[], Some("kubernetes-demo-md0-x"), PoolClue::Machine("kubernetes-demo-md0-x".into()))]
    #[case::says_unknown(&[], &[(marks::POOL, "unknown")], Some("vm"), PoolClue::Machine("vm".into()))]
    #[case::vm_disk_volume(&[("app.kubernetes.io/instance", "vm-disk-data"), ("app.kubernetes.io/managed-by", "Helm")], &[], None, PoolClue::Here(Pool::new("tenant-a", "VMDisk", "data")))]
    #[case::vm_disk_claim(&[(APPLICATION_KIND, "VMDisk"), (APPLICATION_NAME, "data")], &[], None, PoolClue::Here(Pool::new("tenant-a", "VMDisk", "data")))]
    #[case::parent_cluster(&[(APPLICATION_KIND, "Kubernetes"), (APPLICATION_NAME, "demo")], &[], None, PoolClue::Nothing)]
    #[case::other_release(&[("app.kubernetes.io/instance", "postgres-db")], &[], None, PoolClue::Nothing)]
    #[case::bare(&[], &[], None, PoolClue::Nothing)]
    fn a_disks_pool(
        #[case] labels: &[(&str, &str)],
        #[case] annotations: &[(&str, &str)],
        #[case] machine: Option<&str>,
        #[case] expected: PoolClue,
    ) {
        assert_eq!(disk_pool("tenant-a", &map(labels), &map(annotations), machine), expected);
    }

    #[rstest]
    #[case::chart(&[(DEPLOYMENT_NAME, "kubernetes-demo-md0"), (APPLICATION_KIND, "Kubernetes"), (APPLICATION_NAME, "demo")], &[], Some("tenant-a/KubernetesNodes/demo-md0"))]
    #[case::on_the_vm(&[], &[(DEPLOYMENT_NAME, "kubernetes-demo-md0")], Some("tenant-a/KubernetesNodes/demo-md0"))]
    #[case::another_platform(&[(DEPLOYMENT_NAME, "workers")], &[], Some("tenant-a/KubernetesNodes/workers"))]
    #[case::only_the_prefix(&[(DEPLOYMENT_NAME, "kubernetes-")], &[], Some("tenant-a/KubernetesNodes/kubernetes-"))]
    #[case::application_only(&[(APPLICATION_KIND, "Kubernetes"), (APPLICATION_NAME, "demo")], &[], None)]
    #[case::empty(&[(DEPLOYMENT_NAME, "")], &[], None)]
    fn a_machines_pool(#[case] instance: &[(&str, &str)], #[case] own: &[(&str, &str)], #[case] expected: Option<&str>) {
        let pool = machine_pool("tenant-a", &map(instance), &map(own));
        assert_eq!(pool.as_ref().map(ToString::to_string).as_deref(), expected);
        assert!(pool.is_none_or(|pool| pool.is_workers()));
    }
}
