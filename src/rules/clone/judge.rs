use std::collections::BTreeMap;

use kube::core::{Selector, SelectorExt as _};

use super::{
    Access, CloneRequest, Fence, GoldenFacts, Known, Patch, Progress, Rule, Situation, Source, SourceFacts, SourceVolume, StatedSize,
    SubjectKind, Unknown, Verdict, Violation,
};
use crate::rules::{
    Reason,
    capability::node_pinned,
    class::{ClassFacts, Shape, StatedClass, default_class},
    marks,
    modes::foreseen_mode,
    pool::Pool,
    size::{Volume, VolumeMode, in_one_unit},
};

/// Decides on one clone (R13–R18, R21, R23). Every rule is asked, so that a refusal names all that is wrong at once.
pub fn judge(request: &CloneRequest, situation: &Situation<'_>) -> Verdict {
    let source = match &situation.source {
        Ok(source) => source,
        Err(unknown) => return Verdict::Unknown(vec![unknown.clone()]),
    };
    let mut judgement = Judgement { request, situation, at: describe(request, situation), findings: Findings::default() };
    match source {
        SourceFacts::Temporary => {
            judgement.refuse(Rule::R13, "is something CDI made for another disk and will vanish; clone a golden image")
        }
        SourceFacts::Missing => {
            // A DataSource may be written before what it points to; nothing is cloned by it.
            if request.subject.kind != SubjectKind::DataSource {
                judgement.refuse(Rule::R13, "does not exist and no GoldenImage makes it: create the image, or correct the name");
            }
        }
        SourceFacts::Unmarked { volume, is_populated } => return judgement.hand_made(volume, *is_populated),
        SourceFacts::Golden(golden) => return judgement.golden(golden),
    }
    judgement.findings.verdict(Patch::default())
}

/// Whether the verdict hangs on the pool that asks: its class where the disk states none, whether it uses the golden where that takes no
/// new pools. It is told by all disks of the pool, which nobody looks at for nothing.
pub fn asks_of_pool(request: &CloneRequest, source: &Known<SourceFacts>) -> bool {
    let takes_no_new_pools = matches!(source, Ok(SourceFacts::Golden(golden)) if golden.fence == Fence::Retiring);
    request.class == StatedClass::Absent || takes_no_new_pools
}

/// `<subject>: <source>`, the start of every message.
fn describe(request: &CloneRequest, situation: &Situation<'_>) -> String {
    let through = request.through.as_ref().map(|through| format!(" (through DataSource {through})")).unwrap_or_default();
    format!("{}: golden {}/{}{through}", request.subject, situation.catalog_namespace, request.source.name())
}

#[derive(Default)]
struct Findings {
    violations: Vec<Violation>,
    warnings: Vec<String>,
    unknown: Vec<Unknown>,
}

/// R13: what a clone is told that waits for a golden of a suspended image. Whoever clones can rarely do it themselves.
pub fn suspended_message(image: &str) -> String {
    format!(
        "is not made, and nobody works on it, because GoldenImage {image:?} is suspended: the clone waits until the hoster sets `spec.suspend: false` on it"
    )
}

impl Findings {
    /// A certain refusal stands whatever else is unknown.
    fn verdict(self, patch: Patch) -> Verdict {
        if !self.violations.is_empty() {
            Verdict::Refuse(self.violations)
        } else if !self.unknown.is_empty() {
            Verdict::Unknown(self.unknown)
        } else {
            Verdict::Allow { patch, warnings: self.warnings }
        }
    }
}

/// A class and where it comes from.
struct Settled {
    class: String,
    from: String,
}

struct Judgement<'a> {
    request: &'a CloneRequest,
    situation: &'a Situation<'a>,
    at: String,
    findings: Findings,
}

impl Judgement<'_> {
    fn refuse(&mut self, rule: Rule, text: impl std::fmt::Display) {
        self.findings.violations.push(Violation { rule, message: format!("{} {text}", self.at) });
    }

    fn warn(&mut self, text: impl std::fmt::Display) {
        self.findings.warnings.push(format!("{} {text}", self.at));
    }

    /// The fact, or `None` after noting why it cannot be had.
    fn need<T: Clone>(&mut self, fact: &Known<T>) -> Option<T> {
        match fact {
            Ok(fact) => Some(fact.clone()),
            Err(unknown) => {
                if !self.findings.unknown.contains(unknown) {
                    self.findings.unknown.push(unknown.clone());
                }
                None
            }
        }
    }

    /// A hand-made image (R13): admitted, and what the rules would say of a golden is told as a warning, because nobody promised that this one can be cloned.
    fn hand_made(mut self, volume: &SourceVolume, is_populated: bool) -> Verdict {
        self.warn("is not managed by the catalog: nothing protects it from deletion");
        if !is_populated {
            self.warn("has not been filled yet: the clone waits");
        }
        if self.request.subject.kind != SubjectKind::DataSource {
            let settled = self.settle_class(volume);
            self.class(&settled, volume, None);
            self.fit(&settled, volume);
            self.forced_copy();
        }
        let Findings { violations, mut warnings, .. } = self.findings;
        warnings.extend(violations.into_iter().map(|violation| violation.message));
        Verdict::Allow { patch: Patch::default(), warnings }
    }

    fn golden(mut self, golden: &GoldenFacts) -> Verdict {
        self.access(golden);
        self.fence(golden);
        if self.request.subject.kind == SubjectKind::DataSource {
            return self.findings.verdict(Patch::default());
        }
        self.progress(golden);
        let settled = self.settle_class(&golden.volume);
        self.class(&settled, &golden.volume, Some(golden));
        self.fit(&settled, &golden.volume);
        self.content();
        self.forced_copy();
        self.node_pinned(&settled);
        let patch = self.patch(golden, settled);
        self.findings.verdict(patch)
    }

    /// R13: whether the golden is there, or will be.
    fn progress(&mut self, golden: &GoldenFacts) {
        match &golden.progress {
            Progress::Ready => {}
            Progress::Pending(what) => self.warn(format_args!("is not ready yet ({what}): the clone waits for it")),
            Progress::Suspended => self.warn(match &golden.image {
                Some(image) => suspended_message(image),
                None => "is not ready yet: the clone waits for it".to_owned(),
            }),
            Progress::Failed { reason, message } => {
                // Who clones can neither take a retirement back nor wait it out.
                let remedy = match reason {
                    Reason::Retired | Reason::Retiring => "Use another image.",
                    _ => reason.remedy(),
                };
                let message = message.trim_end_matches('.');
                self.refuse(
                    Rule::R13,
                    format_args!("cannot be made ({reason}): {message}{}{remedy}", if remedy.is_empty() { "" } else { ". " }),
                );
            }
            Progress::Terminating => {
                self.refuse(Rule::R13, "is being deleted: a clone of it would hang; try again when it is gone or made anew")
            }
        }
        if golden.image.is_none() {
            self.warn("is unmanaged: its GoldenImage is gone; re-create that to have it looked after");
        }
    }

    /// R18: whether this namespace may clone the golden.
    fn access(&mut self, golden: &GoldenFacts) {
        let Access::Selected(selector) = &golden.access else { return };
        let Some(labels) = self.need(&self.situation.namespace_labels) else { return };
        let parsed = selector.clone().and_then(|selector| Selector::try_from(selector).ok());
        if !parsed.is_some_and(|selector| selector.matches(labels)) {
            let namespace = &self.request.subject.namespace;
            match &golden.image {
                Some(image) => self.refuse(
                    Rule::R18,
                    format_args!("is for selected namespaces only, and the labels of {namespace:?} do not match `access.namespaceSelector` of GoldenImage {image:?}: ask the hoster"),
                ),
                None => self.refuse(
                    Rule::R18,
                    format_args!(
                        "is for selected namespaces only, and the labels of {namespace:?} do not match: its GoldenImage is gone, and whom that named last (annotation `{}` on the PVC) still counts; ask the hoster to create the GoldenImage again",
                        marks::ACCESS
                    ),
                ),
            }
        }
    }

    /// R23: a golden that is to go takes no new pools, a retired one nobody.
    fn fence(&mut self, golden: &GoldenFacts) {
        match golden.fence {
            Fence::Open => {}
            Fence::Retired => self.refuse(Rule::R23, "is retired: use another image"),
            Fence::Closed => self.refuse(
                Rule::R23,
                "is about to be retired, because nothing seemed to need it any more: use another image, or try again in two minutes; if something needs it after all it opens again",
            ),
            Fence::Retiring => {
                let Some(pool) = self.need(&self.situation.pool) else { return };
                if self.request.pool == Pool::Unknown || !pool.uses_golden {
                    self.refuse(
                        Rule::R23,
                        format_args!(
                            "is being retired: pools that use it go on, but {} is not one of them; use another image",
                            self.request.pool
                        ),
                    );
                }
            }
        }
    }

    /// R14, R15: the class the disk will have.
    fn settle_class(&mut self, source: &SourceVolume) -> Option<Settled> {
        match &self.request.class {
            StatedClass::Named(class) => Some(Settled { class: class.clone(), from: "it states".to_owned() }),
            StatedClass::Empty => {
                let write = source.class.as_ref().map(|class| format!(": write `storageClassName: {class}`")).unwrap_or_default();
                self.refuse(Rule::R14, format_args!("cannot be cloned into `storageClassName: \"\"`, which means no class at all{write}"));
                None
            }
            StatedClass::Absent => {
                let pool = self.need(&self.situation.pool)?;
                if let Some(frozen) = pool.class {
                    let from = format!("pool {} has by {}", self.request.pool, frozen.by);
                    return Some(Settled { class: frozen.class, from });
                }
                let classes = self.need(&self.situation.classes)?;
                let default = default_class(classes, self.request.shape);
                if default.is_none() {
                    let write = source.class.as_ref().map(|class| format!(": write `storageClassName: {class}`")).unwrap_or_default();
                    self.refuse(
                        Rule::R14,
                        format_args!("cannot be cloned: the disk states no StorageClass and the cluster has no default one{write}"),
                    );
                }
                default.map(|class| Settled { class: class.name.clone(), from: "is the default".to_owned() })
            }
        }
    }

    /// R14: one class on both sides, because storage clones within one.
    fn class(&mut self, settled: &Option<Settled>, source: &SourceVolume, golden: Option<&GoldenFacts>) {
        let Some(settled) = settled else { return };
        let Some(class) = &source.class else {
            return self.warn(format_args!("has no StorageClass yet, so that {:?} of the disk cannot be checked", settled.class));
        };
        if *class == settled.class {
            return;
        }
        let targets = golden.map(|golden| golden.targets.as_slice()).unwrap_or_default();
        let fits = targets.iter().find(|target| target.class.as_ref() == Some(&settled.class));
        let others = targets.iter().filter_map(|target| Some(format!("{} in {:?}", target.golden, target.class.as_ref()?)));
        let others: Vec<String> = others.collect();
        let advice = match fits {
            Some(target) => format!("clone {} instead, which is in {:?}", target.golden, settled.class),
            None if others.len() > 1 => format!("write `storageClassName: {class}`, or clone one of {}", others.join(", ")),
            None => {
                let more = match golden.map(|golden| golden.image.is_some()) {
                    Some(true) => format!(", or add a target for {:?} to the image", settled.class),
                    Some(false) => format!(", or create the GoldenImage with a target for {:?}", settled.class),
                    // Nothing makes a hand-made image in other classes.
                    None => String::new(),
                };
                format!("write `storageClassName: {class}`{more}")
            }
        };
        self.refuse(
            Rule::R14,
            format_args!(
                "is in StorageClass {class:?}, the disk in {:?} ({}): storage cannot clone across classes; {advice}",
                settled.class, settled.from
            ),
        );
    }

    /// R16: sizes and modes.
    fn fit(&mut self, settled: &Option<Settled>, source: &SourceVolume) {
        let class = settled.as_ref().map(|settled| settled.class.clone());
        let profile = match &class {
            Some(class) if self.request.shape == Shape::Storage => {
                let Some(profiles) = self.need(&self.situation.profiles) else { return };
                profiles.get(class).cloned().unwrap_or_default()
            }
            _ => super::Profile::default(),
        };
        let foreseen = || foreseen_mode(&self.request.access_modes, &profile.properties, self.request.shape);
        let mode = self.request.volume_mode.or_else(foreseen);
        if let (Some(mode), Some(golden)) = (mode, source.volume_mode)
            && mode != golden
        {
            let how = if self.request.volume_mode.is_some() { "states" } else { "would get" };
            self.refuse(
                Rule::R16,
                format_args!(
                    "has volumeMode {golden}, the disk {how} {mode}: storage cannot clone one into the other; write `volumeMode: {golden}`"
                ),
            );
        }
        let facts = class.as_ref().and_then(|class| self.class_facts(class));
        match &self.request.size.clone() {
            StatedSize::Unreadable(text) => {
                self.refuse(Rule::R16, format_args!("cannot be cloned into a disk of size {text:?}, which is no size"))
            }
            StatedSize::Absent => {
                if self.request.shape == Shape::Storage && source.volume_mode == Some(VolumeMode::Filesystem) {
                    self.warn("is a file on a Filesystem volume and the disk states no size: CDI starts a pod on it to find one, and other clones wait meanwhile; state a size");
                }
            }
            StatedSize::Bytes(size) => {
                let mode = mode.or(source.volume_mode).unwrap_or(VolumeMode::Block);
                let volume = Volume::new(class.as_deref().unwrap_or_default(), mode, self.situation.overheads, profile.minimum);
                self.size(*size, volume, source, facts.as_ref());
            }
        }
    }

    /// R16: not smaller than what the golden's claim asks for, and not larger than it holds where the class cannot grow volumes.
    fn size(&mut self, size: crate::model::DiskSize, volume: Volume, source: &SourceVolume, class: Option<&ClassFacts>) {
        let shape = self.request.shape;
        let requested = volume.requested(size, shape);
        let Some(request) = source.request else {
            return self.warn(format_args!("has no size yet, so that {size} of the disk cannot be checked"));
        };
        let holds = source.capacity.unwrap_or(request);
        let can_grow = class.is_none_or(|class| class.allows_expansion);
        // What is told is what then passes: CDI's share comes on top of what is written.
        let is_of_a_snapshot = matches!(self.request.source, Source::Snapshot(_));
        let smallest = if is_of_a_snapshot { request } else { volume.smallest_for(request, shape) };
        let advice = if can_grow {
            format!("write a size of {smallest} or more")
        } else if volume.requested(smallest, shape) <= holds {
            format!("write a size of {smallest}")
        } else {
            format!("no size in `spec.storage` fits: use `spec.pvc`, to which nothing is added, with a size of {request}")
        };
        // Of a device, and of a snapshot of either kind, CDI compares what is written (`validateClone`, `ValidateSnapshotClone`), before
        // anything is added to it.
        let is_as_written = source.volume_mode == Some(VolumeMode::Block) || is_of_a_snapshot;
        let counted = if is_as_written { size.min(requested) } else { requested };
        if counted < request {
            let (small, large) = in_one_unit(counted, request);
            return self
                .refuse(Rule::R16, format_args!("asks storage for {large}, the disk for {small}: a clone cannot be smaller; {advice}"));
        }
        if let Some(class) = class.filter(|class| requested > holds && !class.allows_expansion) {
            let (held, wanted) = in_one_unit(holds, requested);
            self.refuse(
                Rule::R16,
                format_args!(
                    "holds {held}, the disk wants {wanted}, and class {:?} cannot grow volumes: {advice}, or set `allowVolumeExpansion: true` on the class",
                    class.name
                ),
            );
        }
    }

    /// R16: a golden is a disk, and CDI makes no other content of a claim than it has (`validateContentTypes`).
    fn content(&mut self) {
        let Some(content) = self.request.content_type.as_ref().filter(|_| matches!(self.request.source, Source::Claim(_))) else { return };
        let content: String = content.chars().take(64).collect();
        self.refuse(Rule::R16, format_args!("is a disk, and would never be cloned as `contentType: {content}`: remove it"));
    }

    /// The class's facts; a class that does not exist is told (R14).
    fn class_facts(&mut self, class: &str) -> Option<ClassFacts> {
        let classes = self.need(&self.situation.classes)?;
        let facts = classes.get(class).cloned();
        if facts.is_none() {
            self.refuse(Rule::R14, format_args!("cannot be cloned: the disk's StorageClass {class:?} does not exist"));
        }
        facts
    }

    /// R16: annotations that make CDI copy over the network, or do nothing for ever: it takes the way that is written there as it is.
    fn forced_copy(&mut self) {
        let request = self.request;
        for key in [marks::CDI_USE_POPULATOR, marks::CDI_CLONE_TYPE] {
            let Some(value) = request.annotations.get(key).map(String::as_str) else { continue };
            let what = match (key, value) {
                // As Go reads it: `strconv.ParseBool`.
                (marks::CDI_USE_POPULATOR, "1" | "t" | "T" | "true" | "TRUE" | "True") => continue,
                (marks::CDI_USE_POPULATOR, "0" | "f" | "F" | "false" | "FALSE" | "False") | (marks::CDI_CLONE_TYPE, "copy") => {
                    "would be copied over the network"
                }
                (marks::CDI_USE_POPULATOR, _) => "would never be cloned",
                (_, "snapshot") => continue,
                // A snapshot is cloned as one alone. A claim of its own is not CDI's to make.
                (_, "csi-clone") if matches!(request.source, Source::Claim(_)) => continue,
                _ if request.subject.kind == SubjectKind::Claim => continue,
                _ => "would never be cloned",
            };
            let value: String = value.chars().take(64).collect();
            self.refuse(Rule::R16, format_args!("{what} because of the annotation `{key}: {value:?}`: remove it"));
        }
    }

    /// R17: workers move between nodes; a clone in a node-pinned class does not.
    fn node_pinned(&mut self, settled: &Option<Settled>) {
        let is_worker = self.request.subject.kind == SubjectKind::MachineTemplate || self.request.pool.is_workers();
        let Some(settled) = settled.as_ref().filter(|_| is_worker) else { return };
        let Ok(classes) = &self.situation.classes else { return };
        if let Some(why) = classes.get(&settled.class).and_then(|class| node_pinned(class, self.situation.node_local)) {
            self.warn(format_args!(
                "is in StorageClass {:?}, which is tied to nodes ({why}): a worker can only start where the golden's volume lies; use a replicated class",
                settled.class
            ));
        }
    }

    /// R21: what a disk leaves with. For a template only the class, which the leader records on it (R15).
    fn patch(&mut self, golden: &GoldenFacts, settled: Option<Settled>) -> Patch {
        let class = settled.map(|settled| settled.class);
        if !self.request.subject.kind.is_disk() {
            return Patch { class, annotations: BTreeMap::new() };
        }
        if let Some(found) = self.request.annotations.get(marks::GOLDEN).filter(|found| **found != golden.name) {
            let text = format!("is what the disk's source names; its annotation `{}` said {found:?} and is corrected", marks::GOLDEN);
            self.warn(text);
        }
        Patch { class, annotations: marks::consumer_marks(&golden.name, &self.request.pool.to_string()).annotations }
    }
}
