//! Which StorageClass is meant where none is named (R12, R14), and what follows for an image's targets.

use std::{cmp::Reverse, collections::BTreeMap, fmt};

use super::Reason;

/// A StorageClass, as far as a rule reads it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClassFacts {
    /// Its name.
    pub name: String,
    /// The provisioner, for CSI the driver's name.
    pub provisioner: String,
    /// The provisioner's parameters.
    pub parameters: BTreeMap<String, String>,
    /// Whether volumes can grow.
    pub allows_expansion: bool,
    /// Whether volumes may only be made in some places of the cluster.
    pub has_allowed_topologies: bool,
    /// Whether volumes are made when a pod first needs them.
    pub waits_for_consumer: bool,
    /// Whether it is the cluster's default.
    pub is_default: bool,
    /// Whether only the annotation's former beta name says so: Kubernetes still reads it, CDI does not.
    pub is_beta_default: bool,
    /// Whether it is KubeVirt's default for disks.
    pub is_virt_default: bool,
    /// When it was created, in seconds since 1970.
    pub created: i64,
}

/// The cluster's StorageClasses by name.
pub type Classes = BTreeMap<String, ClassFacts>;

/// What an object says about its StorageClass.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum StatedClass {
    /// Nothing: the default is meant.
    #[default]
    Absent,
    /// The empty text: no class is meant, which for CDI leads nowhere.
    Empty,
    /// This one.
    Named(String),
}

impl StatedClass {
    /// The class an optional field states.
    pub fn of(field: Option<&str>) -> Self {
        match field {
            None => Self::Absent,
            Some("") => Self::Empty,
            Some(name) => Self::Named(name.to_owned()),
        }
    }
}

/// Who completes a claim, which decides which default is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// CDI completes `spec.storage`: KubeVirt's default class comes first, and a file system's overhead is added.
    Storage,
    /// Nobody: a claim, or a DataVolume's `spec.pvc`, which Kubernetes reads as it stands.
    Claim,
}

/// The class a claim without one gets (R14): KubeVirt's default before the cluster's, the newest of several, then the name.
///
/// As CDI chooses (`GetPlatformDefaultStorageClass` in its pkg/controller/common/util.go), and Kubernetes' admission plugin, which knows no KubeVirt default. A class that is default by the beta annotation alone is what CDI does not see and Kubernetes fills in afterwards, so it comes last for CDI and counts in full for a bare claim. The chart decides alike (`defaultClasses` in e2e/charts/vectors.yaml).
pub fn default_class(classes: &Classes, shape: Shape) -> Option<&ClassFacts> {
    let newest = |is_default: fn(&ClassFacts) -> bool| {
        classes.values().filter(|class| is_default(class)).min_by_key(|class| (Reverse(class.created), class.name.as_str()))
    };
    match shape {
        Shape::Storage => newest(|class| class.is_virt_default)
            .or_else(|| newest(|class| class.is_default))
            .or_else(|| newest(|class| class.is_beta_default)),
        Shape::Claim => newest(|class| class.is_default || class.is_beta_default),
    }
}

/// Why a target's class cannot be settled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClassTrouble {
    /// None is named and the cluster has no default.
    NoDefault,
    /// The one named does not exist.
    NotFound(String),
    /// Two targets of one image are one class.
    Duplicate {
        /// The class.
        class: String,
        /// Which targets, counted from zero.
        targets: (usize, usize),
    },
}

impl ClassTrouble {
    /// The reason to show.
    pub const fn reason(&self) -> Reason {
        match self {
            Self::NoDefault => Reason::NoDefaultClass,
            Self::NotFound(_) => Reason::ClassNotFound,
            Self::Duplicate { .. } => Reason::DuplicateClass,
        }
    }
}

impl fmt::Display for ClassTrouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDefault => write!(f, "no StorageClass is named and the cluster has no default one"),
            Self::NotFound(class) => write!(f, "StorageClass {class:?} does not exist"),
            Self::Duplicate { class, targets: (first, second) } => {
                write!(f, "targets {first} and {second} are both for StorageClass {class:?}")
            }
        }
    }
}

/// The class of a golden's target (R12): the one named, or today's default where the text is empty. To be asked once and then frozen.
///
/// # Errors
/// When there is no default, or the class does not exist; both heal by themselves.
pub fn target_class<'a>(stated: &str, classes: &'a Classes) -> Result<&'a ClassFacts, ClassTrouble> {
    if stated.is_empty() {
        return default_class(classes, Shape::Storage).ok_or(ClassTrouble::NoDefault);
    }
    classes.get(stated).ok_or_else(|| ClassTrouble::NotFound(stated.to_owned()))
}

/// `DuplicateClass`: whether another target of the image has the class of this one, which has no golden. The other is one that has its
/// golden, wherever it stands, or an earlier one. Targets not resolved yet are `None`.
pub fn taken_class(index: usize, resolved: &[Option<&str>], is_made: impl Fn(usize) -> bool) -> Option<ClassTrouble> {
    let class = (*resolved.get(index)?)?;
    let of_class = |other: &usize| *other != index && resolved[*other] == Some(class);
    let others = || (0..resolved.len()).filter(of_class);
    let other = others().find(|other| is_made(*other)).or_else(|| others().find(|other| *other < index))?;
    Some(ClassTrouble::Duplicate { class: class.to_owned(), targets: (index.min(other), index.max(other)) })
}

/// `DefaultClassDrift`: a target that named no class was frozen to one that is no longer the default. Nothing changes; the message says so.
pub fn default_class_drift(frozen: &str, classes: &Classes) -> Option<String> {
    let now = default_class(classes, Shape::Storage)?;
    (now.name != frozen)
        .then(|| format!("the golden is in StorageClass {frozen}, which was the default when it was made; the default is now {}", now.name))
}

/// A golden's StorageClass was deleted and made anew for another provisioner, whose driver knows nothing of the golden's volume. CDI goes by
/// the class, which is the same by name, and begins a clone that ends nowhere. Nothing changes; the message says so.
///
/// `made_by` is who made the golden's volume, as Kubernetes wrote it on the claim; of volumes that nobody made on demand, or that a class
/// makes at its first consumer, it is not known. In-tree provisioners have another name there (CSI migration), so they are not compared.
pub fn other_provisioner(class: &str, made_by: Option<&str>, now: &str) -> Option<String> {
    let is_in_tree = |name: &str| name.starts_with("kubernetes.io/") && name != "kubernetes.io/no-provisioner";
    let made_by = made_by.filter(|made_by| *made_by != now && !is_in_tree(made_by) && !is_in_tree(now))?;
    Some(format!(
        "StorageClass {class} was made anew for the provisioner {now}, and the golden is a volume of {made_by}: clones of it would hang, or be copied over the network; make the class anew for {made_by}, or add a target in another class and move pools there"
    ))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// `name[*][!][~]@created`: `*` the cluster's default, `!` KubeVirt's, `~` the cluster's by the beta annotation.
    fn classes(list: &str) -> Classes {
        let class = |text: &str| {
            let (name, created) = text.split_once('@').unwrap_or((text, "0"));
            let facts = ClassFacts {
                name: name.trim_end_matches(['*', '!', '~']).to_owned(),
                is_default: name.contains('*'),
                is_beta_default: name.contains('~'),
                is_virt_default: name.contains('!'),
                created: created.parse().expect("a number"),
                ..ClassFacts::default()
            };
            (facts.name.clone(), facts)
        };
        list.split_whitespace().map(class).collect()
    }

    #[rstest]
    #[case::one("a b*", Some("b"), Some("b"))]
    #[case::none("a b", None, None)]
    #[case::no_classes("", None, None)]
    #[case::virt_first("a!@1 b*@9", Some("a"), Some("b"))]
    #[case::virt_alone("a!", Some("a"), None)]
    #[case::newest("a*@5 b*@7 c*@6", Some("b"), Some("b"))]
    #[case::then_name("c*@5 a*@5 b*@5", Some("a"), Some("a"))]
    #[case::newest_virt("a!@1 b!@2 c*@3", Some("b"), Some("c"))]
    #[case::beta_is_last_for_cdi("a*@1 b~@2", Some("a"), Some("b"))]
    #[case::beta_alone("a b~", Some("b"), Some("b"))]
    fn the_default_as_cdi_and_kubernetes_choose_it(#[case] list: &str, #[case] storage: Option<&str>, #[case] claim: Option<&str>) {
        let classes = classes(list);
        let name = |shape| default_class(&classes, shape).map(|class| class.name.as_str());
        assert_eq!((name(Shape::Storage), name(Shape::Claim)), (storage, claim));
    }

    #[rstest]
    #[case("replicated", Ok("replicated"))]
    #[case("", Ok("local"))]
    #[case("gone", Err(Reason::ClassNotFound))]
    fn a_targets_class(#[case] stated: &str, #[case] expected: Result<&str, Reason>) {
        let classes = classes("local* replicated");
        assert_eq!(target_class(stated, &classes).map(|c| c.name.as_str()).map_err(|e| e.reason()), expected);
        assert_eq!(target_class("", &Classes::new()).expect_err("none").reason(), Reason::NoDefaultClass);
    }

    /// Which of the targets have their golden: the class is theirs, wherever they stand.
    #[rstest]
    #[case::alone(0, &[Some("a")], &[], None)]
    #[case::others(2, &[Some("a"), Some("b"), None, None], &[0, 1], None)]
    #[case::not_resolved(2, &[Some("a"), None, None], &[], None)]
    #[case::the_first_keeps_it(0, &[Some("a"), None, Some("b"), Some("a")], &[], None)]
    #[case::the_later_does_not(3, &[Some("a"), None, Some("b"), Some("a")], &[], Some((0, 3)))]
    #[case::put_in_front_of_a_made_one(0, &[Some("a"), Some("b"), Some("a")], &[2], Some((0, 2)))]
    #[case::put_behind_a_made_one(1, &[Some("a"), Some("a")], &[0], Some((0, 1)))]
    fn r12_two_targets_of_one_class(
        #[case] index: usize,
        #[case] resolved: &[Option<&str>],
        #[case] made: &[usize],
        #[case] expected: Option<(usize, usize)>,
    ) {
        let found = taken_class(index, resolved, |other| made.contains(&other)).map(|trouble| match trouble {
            ClassTrouble::Duplicate { targets, .. } => targets,
            other => panic!("{other}"),
        });
        assert_eq!(found, expected);
    }

    #[rstest]
    #[case("local", None)]
    #[case("replicated", Some("replicated, which was the default when it was made; the default is now local"))]
    fn a_moved_default_is_told(#[case] frozen: &str, #[case] told: Option<&str>) {
        let drift = default_class_drift(frozen, &classes("local* replicated"));
        assert_eq!(drift.is_some(), told.is_some());
        assert!(told.is_none_or(|told| drift.expect("drift").contains(told)));
        assert_eq!(default_class_drift(frozen, &Classes::new()), None, "no default is no drift");
    }

    #[rstest]
    #[case::the_same(Some("linstor.csi.linbit.com"), "linstor.csi.linbit.com", false)]
    #[case::another(Some("linstor.csi.linbit.com"), "other.example", true)]
    #[case::nothing_makes_volumes_any_more(Some("linstor.csi.linbit.com"), "kubernetes.io/no-provisioner", true)]
    #[case::not_known(None, "other.example", false)]
    #[case::migrated(Some("ebs.csi.aws.com"), "kubernetes.io/aws-ebs", false)]
    #[case::of_before_the_migration(Some("kubernetes.io/aws-ebs"), "ebs.csi.aws.com", false)]
    fn a_class_made_anew_for_another_provisioner_is_told(#[case] made_by: Option<&str>, #[case] now: &str, #[case] told: bool) {
        let found = other_provisioner("replicated", made_by, now);
        assert_eq!(found.is_some(), told, "{found:?}");
        let words =
            ["StorageClass replicated was made anew".to_owned(), format!("for the provisioner {now}"), "would hang, or be copied".into()];
        let remedy = format!("make the class anew for {}", made_by.unwrap_or_default());
        assert!(found.is_none_or(|found| words.iter().chain([&remedy]).all(|part| found.contains(part))));
    }

    #[rstest]
    #[case(None, StatedClass::Absent)]
    #[case(Some(""), StatedClass::Empty)]
    #[case(Some("a"), StatedClass::Named("a".to_owned()))]
    fn absent_and_empty_differ(#[case] field: Option<&str>, #[case] stated: StatedClass) {
        assert_eq!(StatedClass::of(field), stated);
    }
}
