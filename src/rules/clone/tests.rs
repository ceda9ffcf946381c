use rstest::rstest;

use super::*;
use crate::rules::{class::ClassFacts, freeze::FrozenBy, marks, size::Volume};

const GOLDEN: &str = "talos-worker-ce4c-v1.13.6";

fn size(text: &str) -> DiskSize {
    text.parse().expect(text)
}

fn class(name: &str, expands: bool) -> ClassFacts {
    let provisioner = "linstor.csi.linbit.com".to_owned();
    ClassFacts { name: name.to_owned(), provisioner, allows_expansion: expands, ..ClassFacts::default() }
}

/// Two expandable classes on one driver (`replicated` is the default), one that cannot grow, one tied to nodes.
fn classes() -> Classes {
    let mut list = vec![class("replicated", true), class("local", true), class("rigid", false)];
    list[0].is_default = true;
    list[1].parameters.insert("linstor.csi.linbit.com/allowRemoteVolumeAccess".into(), "false".into());
    list.into_iter().map(|class| (class.name.clone(), class)).collect()
}

fn profiles() -> BTreeMap<String, Profile> {
    let properties = vec![ClaimProperties { access_modes: vec!["ReadWriteMany".into()], volume_mode: Some(VolumeMode::Block) }];
    let profile = Profile { properties, minimum: None };
    ["replicated", "local", "rigid"].map(|class| (class.to_owned(), profile.clone())).into()
}

fn golden() -> GoldenFacts {
    GoldenFacts {
        name: GOLDEN.to_owned(),
        image: Some("talos".to_owned()),
        access: Access::AllTenants,
        progress: Progress::Ready,
        volume: SourceVolume {
            class: Some("replicated".to_owned()),
            request: Some(size("6Gi")),
            capacity: Some(size("6Gi")),
            volume_mode: Some(VolumeMode::Block),
        },
        fence: Fence::Open,
        targets: vec![Target { golden: GOLDEN.to_owned(), class: Some("replicated".to_owned()) }],
    }
}

fn request() -> CloneRequest {
    CloneRequest {
        subject: Subject { kind: SubjectKind::DataVolume, namespace: "tenant-a".into(), name: "disk-1".into(), disk: None },
        source: Source::Claim(GOLDEN.to_owned()),
        through: None,
        shape: Shape::Storage,
        class: StatedClass::Named("replicated".into()),
        size: StatedSize::Bytes(size("20Gi")),
        volume_mode: None,
        content_type: None,
        access_modes: Vec::new(),
        annotations: BTreeMap::new(),
        pool: Pool::new("tenant-a", Pool::WORKERS, "demo-md0"),
    }
}

/// The facts of a case, which [`verdict`] borrows into a [`Situation`].
struct Case {
    request: CloneRequest,
    source: Known<SourceFacts>,
    classes: Classes,
    profiles: BTreeMap<String, Profile>,
    pool: Known<PoolFacts>,
    labels: Known<BTreeMap<String, String>>,
}

fn case(change: impl FnOnce(&mut Case, &mut GoldenFacts)) -> Case {
    let mut case = Case {
        request: request(),
        source: Ok(SourceFacts::Missing),
        classes: classes(),
        profiles: profiles(),
        pool: Ok(PoolFacts::default()),
        labels: Ok(BTreeMap::new()),
    };
    let mut golden = golden();
    change(&mut case, &mut golden);
    if case.source == Ok(SourceFacts::Missing) {
        case.source = Ok(SourceFacts::Golden(golden));
    }
    case
}

fn verdict(case: &Case) -> Verdict {
    verdict_with(case, &Overheads::default())
}

fn verdict_with(case: &Case, overheads: &Overheads) -> Verdict {
    judge(
        &case.request,
        &Situation {
            catalog_namespace: "cozy-public",
            source: case.source.clone(),
            classes: Ok(&case.classes),
            profiles: Ok(&case.profiles),
            overheads,
            pool: case.pool.clone(),
            namespace_labels: case.labels.as_ref().map_err(Clone::clone),
            node_local: &["topolvm.io".to_owned()],
        },
    )
}

/// Asserts a refusal by exactly these rules, whose messages name disk and golden and contain these texts.
#[track_caller]
fn refused(case: &Case, rules: &[Rule], texts: &[&str]) {
    let Verdict::Refuse(violations) = verdict(case) else { panic!("not refused: {:?}", verdict(case)) };
    assert_eq!(violations.iter().map(|v| v.rule).collect::<Vec<_>>(), rules, "{violations:?}");
    for violation in &violations {
        assert!(violation.message.contains("tenant-a/") && violation.message.contains(case.request.source.name()), "{}", violation.message);
    }
    let message = verdict(case).message().expect("a message");
    for text in texts {
        assert!(message.contains(text), "{text:?} is not in {message:?}");
    }
}

#[track_caller]
fn allowed(case: &Case, warnings: &[&str]) -> Patch {
    let verdict = verdict(case);
    let Verdict::Allow { patch, warnings: found } = verdict else { panic!("not allowed: {verdict:?}") };
    assert_eq!(found.len(), warnings.len(), "{found:?}");
    for (found, text) in found.iter().zip(warnings) {
        assert!(found.contains(text), "{text:?} is not in {found:?}");
    }
    patch
}

#[test]
fn a_good_clone_leaves_with_class_and_marks() {
    let patch = allowed(&case(|_, _| {}), &[]);
    assert_eq!(patch.class.as_deref(), Some("replicated"));
    assert_eq!(patch.annotations, marks::consumer_marks(GOLDEN, "tenant-a/KubernetesNodes/demo-md0").annotations);
    let unknown = allowed(&case(|case, _| case.request.pool = Pool::Unknown), &[]);
    assert_eq!(unknown.annotations[marks::POOL], "unknown", "B29: said, not left out");
}

#[rstest]
#[case::waits(Progress::Pending("importing, 40%".into()), true, "not ready yet (importing, 40%)")]
#[case::suspended(Progress::Suspended, true, "is suspended: the clone waits until the hoster sets `spec.suspend: false`")]
#[case::failed(Progress::Failed { reason: Reason::DigestMismatch, message: "got another digest".into() }, false, "DigestMismatch): got another digest. Nothing was imported.")]
#[case::retired(Progress::Failed { reason: Reason::Retired, message: "The image is retired".into() }, false, "(Retired): The image is retired. Use another image.")]
#[case::leaving(Progress::Failed { reason: Reason::Retiring, message: "The image is being deleted.".into() }, false, "(Retiring): The image is being deleted. Use another image.")]
#[case::going(Progress::Terminating, false, "is being deleted")]
fn r13_progress(#[case] progress: Progress, #[case] admitted: bool, #[case] text: &str) {
    let case = case(|_, golden| golden.progress = progress);
    if admitted {
        allowed(&case, &[text]);
    } else {
        refused(&case, &[Rule::R13], &[text]);
    }
}

#[test]
fn r13_what_stands_there_instead() {
    refused(&case(|case, _| case.source = Ok(SourceFacts::Temporary)), &[Rule::R13], &["CDI made"]);
    let mut missing = case(|_, _| {});
    missing.source = Ok(SourceFacts::Missing);
    refused(&missing, &[Rule::R13], &["does not exist", "create the image"]);
    missing.request.subject.kind = SubjectKind::DataSource;
    assert!(matches!(verdict(&missing), Verdict::Allow { .. }), "a DataSource may be written first");
}

#[test]
fn r13_a_hand_made_image_is_admitted_and_told() {
    let volume = golden().volume;
    let unmarked = |is_populated| Ok(SourceFacts::Unmarked { volume: volume.clone(), is_populated });
    let patch = allowed(&case(|case, _| case.source = unmarked(true)), &["not managed by the catalog"]);
    assert_eq!(patch, Patch::default(), "its disks are left alone");
    allowed(&case(|case, _| case.source = unmarked(false)), &["not managed", "not been filled"]);
    let other_class = |case: &mut Case| case.request.class = StatedClass::Named("local".into());
    allowed(
        &case(|case, _| {
            case.source = unmarked(true);
            other_class(case)
        }),
        &["not managed", "cannot clone across classes"],
    );
}

#[test]
fn r24_an_unmanaged_golden_is_clonable() {
    let patch = allowed(&case(|_, golden| golden.image = None), &["unmanaged"]);
    assert_eq!(patch.annotations[marks::GOLDEN], GOLDEN);
}

#[test]
fn r13_class_and_size_not_known_yet() {
    let case = case(|_, golden| {
        golden.progress = Progress::Pending("asking upstream".into());
        golden.volume = SourceVolume::default();
    });
    let patch = allowed(&case, &["asking upstream", "no StorageClass yet", "no size yet"]);
    assert_eq!(patch.class.as_deref(), Some("replicated"));
}

fn second_target() -> Target {
    Target { golden: format!("{GOLDEN}-local"), class: Some("local".to_owned()) }
}

#[rstest]
#[case::no_such_target(&[], "rigid", "write `storageClassName: replicated`, or add a target for \"rigid\"")]
#[case::another_target(&[second_target()], "local", "clone talos-worker-ce4c-v1.13.6-local instead, which is in \"local\"")]
#[case::others_exist(&[second_target()], "rigid", "or clone one of talos-worker-ce4c-v1.13.6 in \"replicated\", talos-worker-ce4c-v1.13.6-local in \"local\"")]
fn r14_names_both_classes_and_what_would_fit(#[case] more: &[Target], #[case] stated: &str, #[case] advice: &str) {
    let case = case(|case, golden| {
        case.request.class = StatedClass::Named(stated.into());
        case.request.size = StatedSize::Absent;
        golden.targets.extend_from_slice(more);
    });
    refused(&case, &[Rule::R14], &["is in StorageClass \"replicated\"", &format!("the disk in {stated:?} (it states)"), advice]);
}

/// What nobody makes goldens for has no image to add a target to.
#[test]
fn r14_without_an_image_no_target_can_be_added_to_one() {
    let mismatch = |change: fn(&mut Case, &mut GoldenFacts)| {
        case(|case, golden| {
            case.request.class = StatedClass::Named("rigid".into());
            case.request.size = StatedSize::Absent;
            change(case, golden);
        })
    };
    let gone = mismatch(|_, golden| (golden.image, golden.targets) = (None, Vec::new()));
    refused(&gone, &[Rule::R14], &["or create the GoldenImage with a target for \"rigid\""]);
    let hand_made = mismatch(|case, golden| {
        case.source = Ok(SourceFacts::Unmarked { volume: golden.volume.clone(), is_populated: true });
    });
    let Verdict::Allow { warnings, .. } = verdict(&hand_made) else { panic!("a hand-made image is admitted") };
    assert!(warnings.iter().any(|warning| warning.ends_with("write `storageClassName: replicated`")), "{warnings:?}");
}

/// R14, R15, B17: who decides on a class that is not stated.
#[rstest]
#[case::frozen_by_disks(Some(("replicated", FrozenBy::Disks)), "local", Ok("replicated"))]
#[case::frozen_elsewhere(Some(("local", FrozenBy::Template)), "replicated", Err("in \"local\" (pool tenant-a/KubernetesNodes/demo-md0 has by its newest machine template)"))]
#[case::new_pool(None, "replicated", Ok("replicated"))]
#[case::new_pool_after_the_default_moved(None, "local", Err("in \"local\" (is the default)"))]
fn r15_absent_class(#[case] frozen: Option<(&str, FrozenBy)>, #[case] default: &str, #[case] expected: Result<&str, &str>) {
    let case = case(|case, _| {
        case.request.class = StatedClass::Absent;
        case.pool = Ok(PoolFacts { class: frozen.map(|(class, by)| PoolClass { class: class.into(), by }), uses_golden: false });
        for class in case.classes.values_mut() {
            class.is_default = class.name == default;
        }
        case.request.subject.kind = SubjectKind::DataVolume;
        case.request.pool = Pool::new("tenant-a", Pool::WORKERS, "demo-md0");
    });
    match expected {
        Ok(class) => assert_eq!(allowed(&case, &[]).class.as_deref(), Some(class)),
        Err(text) => refused(&case, &[Rule::R14], &[text]),
    }
}

#[test]
fn r14_virt_default_counts_only_where_cdi_completes_the_claim() {
    let mut case = case(|case, _| {
        case.request.class = StatedClass::Absent;
        case.request.volume_mode = Some(VolumeMode::Block);
        if let Some(local) = case.classes.get_mut("local") {
            local.is_virt_default = true;
        }
    });
    refused(&case, &[Rule::R14], &["in \"local\" (is the default)"]);
    case.request.shape = Shape::Claim;
    allowed(&case, &[]);
}

#[test]
fn r14_empty_and_none() {
    refused(
        &case(|case, _| case.request.class = StatedClass::Empty),
        &[Rule::R14],
        &["`storageClassName: \"\"`", "write `storageClassName: replicated`"],
    );
    let none = case(|case, _| {
        case.request.class = StatedClass::Absent;
        case.classes.values_mut().for_each(|class| class.is_default = false);
    });
    refused(&none, &[Rule::R14], &["no default one", "write `storageClassName: replicated`"]);
    let gone = case(|case, _| {
        case.classes.remove("replicated");
    });
    refused(&gone, &[Rule::R14], &["StorageClass \"replicated\" does not exist"]);
}

/// B21.
#[rstest]
#[case("6Gi", None)]
#[case("6144Mi", None)]
#[case("6442450944", None)]
#[case("6G", Some("asks storage for 6144Mi, the disk for 5722.04Mi: a clone cannot be smaller; write a size of 6Gi or more"))]
#[case("5Gi", Some("asks storage for 6Gi, the disk for 5Gi"))]
fn r16_not_smaller(#[case] stated: &str, #[case] text: Option<&str>) {
    let case = case(|case, _| case.request.size = StatedSize::Bytes(size(stated)));
    match text {
        None => drop(allowed(&case, &[])),
        Some(text) => refused(&case, &[Rule::R16], &[text]),
    }
}

#[rstest]
#[case::storage_is_inflated(Shape::Storage, "10Gi", "11381663335", true)]
#[case::a_claim_is_not(Shape::Claim, "10Gi", "11381663335", false)]
#[case::a_claim_of_the_full_size(Shape::Claim, "11381663335", "11381663335", true)]
fn r16_overhead_as_cdi_counts_it(#[case] shape: Shape, #[case] stated: &str, #[case] request: &str, #[case] fits: bool) {
    let case = case(|case, golden| {
        case.request.shape = shape;
        case.request.size = StatedSize::Bytes(size(stated));
        case.request.volume_mode = Some(VolumeMode::Filesystem);
        golden.volume.volume_mode = Some(VolumeMode::Filesystem);
        golden.volume.request = Some(size(request));
        golden.volume.capacity = None;
    });
    if fits { drop(allowed(&case, &[])) } else { refused(&case, &[Rule::R16], &["a clone cannot be smaller"]) }
}

#[rstest]
#[case::grows_where_it_can("replicated", "20Gi", "6Gi", true)]
#[case::cannot_grow("rigid", "20Gi", "6Gi", false)]
#[case::same_size("rigid", "6Gi", "6Gi", true)]
#[case::within_what_it_holds("rigid", "7Gi", "8Gi", true)]
fn r16_growth(#[case] class: &str, #[case] stated: &str, #[case] capacity: &str, #[case] fits: bool) {
    let case = case(|case, golden| {
        case.request.class = StatedClass::Named(class.into());
        case.request.size = StatedSize::Bytes(size(stated));
        golden.volume.class = Some(class.into());
        golden.volume.capacity = Some(size(capacity));
    });
    if fits {
        drop(allowed(&case, &[]))
    } else {
        refused(&case, &[Rule::R16], &["holds 6Gi, the disk wants 20Gi", "allowVolumeExpansion: true"])
    }
}

/// B20.
#[rstest]
#[case::stated(Some(VolumeMode::Filesystem), Shape::Storage, Some("has volumeMode Block, the disk states Filesystem"))]
#[case::from_the_profile(None, Shape::Storage, None)]
#[case::a_claims_default(None, Shape::Claim, Some("the disk would get Filesystem"))]
#[case::equal(Some(VolumeMode::Block), Shape::Claim, None)]
fn r16_modes(#[case] stated: Option<VolumeMode>, #[case] shape: Shape, #[case] text: Option<&str>) {
    let case = case(|case, _| {
        case.request.volume_mode = stated;
        case.request.shape = shape;
    });
    match text {
        None => drop(allowed(&case, &[])),
        Some(text) => refused(&case, &[Rule::R16], &[text, "write `volumeMode: Block`"]),
    }
}

#[rstest]
#[case(marks::CDI_USE_POPULATOR, "false", true)]
#[case(marks::CDI_USE_POPULATOR, "0", true)]
#[case(marks::CDI_USE_POPULATOR, "False", true)]
#[case(marks::CDI_USE_POPULATOR, "no", true)]
#[case(marks::CDI_USE_POPULATOR, "copy", true)]
#[case(marks::CDI_USE_POPULATOR, "true", false)]
#[case(marks::CDI_USE_POPULATOR, "T", false)]
#[case(marks::CDI_CLONE_TYPE, "copy", true)]
#[case(marks::CDI_CLONE_TYPE, "csi-clone", false)]
#[case(marks::CDI_CLONE_TYPE, "snapshot", false)]
#[case(marks::CDI_CLONE_TYPE, "", true)]
#[case(marks::CDI_CLONE_TYPE, "network", true)]
#[case(marks::CDI_CLONE_TYPE, "CSI-Clone", true)]
fn r16_forced_copies(#[case] key: &str, #[case] value: &str, #[case] copies: bool) {
    let case = case(|case, _| {
        case.request.annotations.insert(key.into(), value.into());
    });
    if copies { refused(&case, &[Rule::R16], &[key, "remove it"]) } else { drop(allowed(&case, &[])) }
}

/// CDI takes the way that is written on a DataVolume as it is, and knows two for a snapshot. A claim is not its to make.
#[rstest]
#[case::a_claim(Source::Claim(GOLDEN.into()), SubjectKind::DataVolume, "csi-clone", true)]
#[case::a_snapshot(Source::Snapshot(GOLDEN.into()), SubjectKind::DataVolume, "csi-clone", false)]
#[case::a_snapshot_of_a_vm(Source::Snapshot(GOLDEN.into()), SubjectKind::VirtualMachine, "csi-clone", false)]
#[case::a_snapshot_as_one(Source::Snapshot(GOLDEN.into()), SubjectKind::DataVolume, "snapshot", true)]
#[case::kubernetes_own(Source::Claim(GOLDEN.into()), SubjectKind::Claim, "anything", true)]
fn r16_a_way_that_cdi_does_not_know(#[case] source: Source, #[case] kind: SubjectKind, #[case] way: &str, #[case] admitted: bool) {
    let case = case(|case, _| {
        case.request.source = source;
        case.request.subject.kind = kind;
        case.request.annotations.insert(marks::CDI_CLONE_TYPE.into(), way.into());
    });
    if admitted { drop(allowed(&case, &[])) } else { refused(&case, &[Rule::R16], &["would never be cloned", "csi-clone", "remove it"]) }
}

#[rstest]
#[case::of_a_claim(Source::Claim(GOLDEN.into()), Some("archive"), false)]
#[case::a_disk(Source::Claim(GOLDEN.into()), None, true)]
#[case::of_a_snapshot_nobody_asks(Source::Snapshot(GOLDEN.into()), Some("archive"), true)]
fn r16_a_disk_is_cloned_as_a_disk(#[case] source: Source, #[case] content: Option<&str>, #[case] admitted: bool) {
    for kind in [SubjectKind::DataVolume, SubjectKind::VirtualMachine, SubjectKind::MachineTemplate] {
        let case = case(|case, _| {
            case.request.source = source.clone();
            case.request.subject.kind = kind;
            case.request.content_type = content.map(str::to_owned);
        });
        if admitted { drop(allowed(&case, &[])) } else { refused(&case, &[Rule::R16], &["`contentType: archive`", "remove it"]) }
    }
}

/// A class that makes claims no smaller than 4Gi: the golden of a smaller disk has that size, and of a device CDI compares what is written.
#[rstest]
#[case::a_device(
    VolumeMode::Block,
    Shape::Storage,
    "2Gi",
    Some("asks storage for 4Gi, the disk for 2Gi: a clone cannot be smaller; write a size of 4Gi or more")
)]
#[case::a_device_in_full(VolumeMode::Block, Shape::Storage, "4Gi", None)]
#[case::a_file_system(VolumeMode::Filesystem, Shape::Storage, "2Gi", None)]
#[case::a_claim(VolumeMode::Filesystem, Shape::Claim, "2Gi", Some("write a size of 4Gi or more"))]
fn r16_what_the_classs_minimum_hides(#[case] mode: VolumeMode, #[case] shape: Shape, #[case] stated: &str, #[case] text: Option<&str>) {
    let case = case(|case, golden| {
        case.request.shape = shape;
        case.request.volume_mode = Some(mode);
        case.request.size = StatedSize::Bytes(size(stated));
        case.profiles.values_mut().for_each(|profile| profile.minimum = Some(size("4Gi")));
        (golden.volume.request, golden.volume.capacity, golden.volume.volume_mode) = (Some(size("4Gi")), None, Some(mode));
    });
    match text {
        None => drop(allowed(&case, &[])),
        Some(text) => refused(&case, &[Rule::R16], &[text]),
    }
}

/// On a file system CDI puts a share on top of what is written: what is told has none of it yet.
#[rstest]
#[case::too_small("replicated", "9Gi", "11381663335", "write a size of 10Gi or more")]
#[case::too_small_and_rigid("rigid", "9Gi", "11381663335", "write a size of 10Gi (R16)")]
#[case::too_large("rigid", "11381663335", "11381663335", "cannot grow volumes: write a size of 10Gi, or set")]
#[case::taken_over(
    "rigid",
    "10Gi",
    "10Gi",
    "no size in `spec.storage` fits: use `spec.pvc`, to which nothing is added, with a size of 10Gi, or set"
)]
fn r16_the_size_that_then_passes(#[case] class: &str, #[case] stated: &str, #[case] request: &str, #[case] advice: &str) {
    let case = case(|case, golden| {
        case.request.class = StatedClass::Named(class.into());
        case.request.volume_mode = Some(VolumeMode::Filesystem);
        case.request.size = StatedSize::Bytes(size(stated));
        golden.volume = SourceVolume {
            class: Some(class.into()),
            request: Some(size(request)),
            capacity: None,
            volume_mode: Some(VolumeMode::Filesystem),
        };
    });
    refused(&case, &[Rule::R16], &[advice]);
}

proptest::proptest! {
    /// R16's remedy leads out: whatever golden, class and size, what a refusal says to write is admitted when it is written.
    #[test]
    fn r16_what_is_told_to_be_written_is_admitted(
        (request, room) in (1..=1_u64 << 45, 0..=1_u64 << 24),
        (stated, minimum) in (1..=1_u64 << 46, proptest::option::of(1..=1_u64 << 44)),
        thousandths in 0..=1000_u32,
        (is_file, is_claim, is_rigid, is_made, is_snapshot) in proptest::prelude::any::<(bool, bool, bool, bool, bool)>(),
    ) {
        let bytes = |bytes: u64| DiskSize::from_bytes(bytes).expect("in range");
        let mode = if is_file { VolumeMode::Filesystem } else { VolumeMode::Block };
        let overhead = f64::from(thousandths) / 1000.0;
        let overheads = Overheads::parse(Some(&overhead.to_string()), []);
        let minimum = minimum.map(bytes);
        // As CDI makes one, or as somebody made it before.
        let request = if is_made { Volume { mode, overhead, minimum }.claim_for(bytes(request)) } else { bytes(request) };
        let mut case = case(|case, golden| {
            let class = if is_rigid { "rigid" } else { "replicated" };
            case.request.class = StatedClass::Named(class.into());
            case.request.volume_mode = Some(mode);
            case.request.shape = if is_claim { Shape::Claim } else { Shape::Storage };
            case.request.size = StatedSize::Bytes(bytes(stated));
            if is_snapshot {
                case.request.source = Source::Snapshot(GOLDEN.into());
            }
            case.profiles.values_mut().for_each(|profile| profile.minimum = minimum);
            let capacity = Some(bytes(request.bytes() + room));
            golden.volume = SourceVolume { class: Some(class.into()), request: Some(request), capacity, volume_mode: Some(mode) };
        });
        if let Some(message) = verdict_with(&case, &overheads).message() {
            let (_, told) = message.split_once("size of ").expect("a size to write");
            let told = told.split([' ', ',', ';']).next().expect("a size");
            if message.contains("use `spec.pvc`") {
                case.request.shape = Shape::Claim;
            }
            case.request.size = StatedSize::Bytes(size(told));
            let again = verdict_with(&case, &overheads);
            proptest::prop_assert!(matches!(again, Verdict::Allow { .. }), "{message}\n{again:?}");
        }
    }
}

#[test]
fn r16_odd_and_absent_sizes() {
    refused(&case(|case, _| case.request.size = StatedSize::Unreadable("-1Gi".into())), &[Rule::R16], &["\"-1Gi\", which is no size"]);
    allowed(&case(|case, _| case.request.size = StatedSize::Absent), &[]);
    let filesystem = case(|case, golden| {
        case.request.size = StatedSize::Absent;
        case.request.volume_mode = Some(VolumeMode::Filesystem);
        golden.volume.volume_mode = Some(VolumeMode::Filesystem);
    });
    allowed(&filesystem, &["CDI starts a pod on it"]);
}

#[rstest]
#[case::worker_disk(SubjectKind::DataVolume, true, true)]
#[case::template(SubjectKind::MachineTemplate, false, true)]
#[case::vm_disk(SubjectKind::DataVolume, false, false)]
fn r17_workers_in_a_node_pinned_class(#[case] kind: SubjectKind, #[case] workers: bool, #[case] warns: bool) {
    let case = case(|case, golden| {
        case.request.subject.kind = kind;
        case.request.class = StatedClass::Named("local".into());
        case.request.pool = if workers { Pool::new("tenant-a", Pool::WORKERS, "x") } else { Pool::new("tenant-a", Pool::VM_DISK, "x") };
        golden.volume.class = Some("local".into());
    });
    allowed(&case, if warns { &["tied to nodes"] } else { &[] });
}

fn selector(key: &str, value: &str) -> LabelSelector {
    LabelSelector { match_labels: Some([(key.to_owned(), value.to_owned())].into()), ..LabelSelector::default() }
}

#[rstest]
#[case::matches(Some(selector("licensed", "yes")), true)]
#[case::differs(Some(selector("licensed", "no")), false)]
#[case::everything(Some(LabelSelector::default()), true)]
#[case::no_selector(None, false)]
fn r18_selected(#[case] selector: Option<LabelSelector>, #[case] admitted: bool) {
    for kind in
        [SubjectKind::DataVolume, SubjectKind::Claim, SubjectKind::VirtualMachine, SubjectKind::MachineTemplate, SubjectKind::DataSource]
    {
        let case = case(|case, golden| {
            case.request.subject.kind = kind;
            case.request.volume_mode = Some(VolumeMode::Block);
            case.labels = Ok([("licensed".to_owned(), "yes".to_owned())].into());
            golden.access = Access::Selected(selector.clone());
        });
        if admitted {
            drop(allowed(&case, &[]))
        } else {
            refused(&case, &[Rule::R18], &["selected namespaces only", "\"tenant-a\"", "GoldenImage \"talos\""])
        }
    }
}

#[rstest]
#[case::older_than_the_mark(None, true)]
#[case::everybody(Some("AllTenants"), true)]
#[case::chosen(Some(r#"{"matchLabels":{"licensed":"yes"}}"#), true)]
#[case::another(Some(r#"{"matchLabels":{"licensed":"no"}}"#), false)]
#[case::not_to_be_read(Some("edited by hand"), false)]
fn r18_a_golden_without_its_image_is_for_whom_it_was_for(#[case] written: Option<&str>, #[case] admitted: bool) {
    let case = case(|case, golden| {
        case.labels = Ok([("licensed".to_owned(), "yes".to_owned())].into());
        golden.image = None;
        golden.access = Access::of_mark(written);
    });
    if admitted {
        drop(allowed(&case, &["is unmanaged"]))
    } else {
        refused(&case, &[Rule::R18], &["selected namespaces only", "its GoldenImage is gone", "create the GoldenImage again"])
    }
}

#[test]
fn r18_an_operator_nobody_knows_matches_nothing() {
    let requirement =
        k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement { key: "a".into(), operator: "Gt".into(), values: None };
    let odd = LabelSelector { match_expressions: Some(vec![requirement]), match_labels: None };
    refused(&case(|_, golden| golden.access = Access::Selected(Some(odd))), &[Rule::R18], &["selected namespaces only"]);
}

#[rstest]
#[case::known_pool(Fence::Retiring, true, false, true)]
#[case::new_pool(Fence::Retiring, false, false, false)]
#[case::unknown_pool(Fence::Retiring, true, true, false)]
#[case::retired(Fence::Retired, true, false, false)]
fn r23_the_fence(#[case] fence: Fence, #[case] uses_golden: bool, #[case] unknown: bool, #[case] admitted: bool) {
    let case = case(|case, golden| {
        golden.fence = fence;
        case.pool = Ok(PoolFacts { class: None, uses_golden });
        if unknown {
            case.request.pool = Pool::Unknown;
        }
    });
    if admitted { drop(allowed(&case, &[])) } else { refused(&case, &[Rule::R23], &["retire", "use another image"]) }
}

#[test]
fn several_violations_are_told_at_once() {
    let case = case(|case, _| {
        case.request.class = StatedClass::Named("local".into());
        case.request.size = StatedSize::Bytes(size("5Gi"));
        case.request.volume_mode = Some(VolumeMode::Filesystem);
        case.request.shape = Shape::Claim;
        case.request.annotations.insert(marks::CDI_USE_POPULATOR.into(), "false".into());
        case.request.subject.disk = Some("disk-system".into());
        case.request.subject.kind = SubjectKind::MachineTemplate;
    });
    refused(
        &case,
        &[Rule::R14, Rule::R16, Rule::R16, Rule::R16],
        &["disk \"disk-system\" of KubevirtMachineTemplate tenant-a/disk-1", "(R14); ", "(R16)"],
    );
}

/// R21, B25: a fact that cannot be had makes no verdict, unless the refusal is certain without it.
#[test]
fn unknown_is_never_none() {
    let unknown = || Unknown("PersistentVolumeClaims are not read yet".into());
    let mut absent = case(|case, _| {
        case.request.class = StatedClass::Absent;
        case.pool = Err(unknown());
    });
    assert_eq!(verdict(&absent), Verdict::Unknown(vec![unknown()]));
    assert!(verdict(&absent).message().expect("text").contains("try again: PersistentVolumeClaims are not read yet"));
    absent.request.size = StatedSize::Bytes(size("1Gi"));
    refused(&absent, &[Rule::R16], &["smaller"]);
    allowed(&case(|case, _| case.pool = Err(unknown())), &[]);
    let source = case(|case, _| case.source = Err(unknown()));
    assert_eq!(verdict(&source), Verdict::Unknown(vec![unknown()]));
    let labels = case(|case, golden| {
        case.labels = Err(unknown());
        golden.access = Access::Selected(Some(LabelSelector::default()));
    });
    assert_eq!(verdict(&labels), Verdict::Unknown(vec![unknown()]));
    let fenced = case(|case, golden| {
        case.pool = Err(unknown());
        golden.fence = Fence::Retiring;
    });
    assert_eq!(verdict(&fenced), Verdict::Unknown(vec![unknown()]));
}

#[test]
fn templates_stay_as_written_but_their_class_is_told_to_the_leader() {
    for kind in [SubjectKind::VirtualMachine, SubjectKind::MachineTemplate] {
        let patch = allowed(
            &case(|case, _| {
                case.request.subject.kind = kind;
                case.request.class = StatedClass::Absent
            }),
            &[],
        );
        assert_eq!(patch, Patch { class: Some("replicated".into()), annotations: BTreeMap::new() });
    }
}

#[test]
fn a_wrong_mark_is_corrected_and_told() {
    let case = case(|case, _| {
        case.request.annotations.insert(marks::GOLDEN.into(), "another".into());
    });
    let patch = allowed(&case, &["said \"another\" and is corrected"]);
    assert_eq!(patch.annotations[marks::GOLDEN], GOLDEN);
}

#[test]
fn a_data_source_in_between_is_named() {
    let case = case(|case, _| {
        case.request.through = Some("tenant-a/ubuntu".into());
        case.request.class = StatedClass::Named("local".into());
    });
    refused(&case, &[Rule::R14], &["(through DataSource tenant-a/ubuntu)"]);
}

#[test]
fn verdicts_of_several_disks_add_up() {
    let refuse = |text: &str| Verdict::Refuse(vec![Violation { rule: Rule::R14, message: text.into() }]);
    let unknown = || Verdict::Unknown(vec![Unknown("x".into())]);
    let allow = |warning: &str| Verdict::Allow { patch: Patch::default(), warnings: vec![warning.into()] };
    assert_eq!(Verdict::all([]), Verdict::NotOurs);
    assert_eq!(
        Verdict::all([allow("a"), Verdict::NotOurs, allow("b")]),
        Verdict::Allow { patch: Patch::default(), warnings: vec!["a".into(), "b".into()] }
    );
    assert_eq!(Verdict::all([allow("a"), unknown()]), unknown());
    assert_eq!(Verdict::all([unknown(), refuse("a"), allow("b"), refuse("c")]).message().as_deref(), Some("a (R14); c (R14)"));
}
