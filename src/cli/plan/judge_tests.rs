use rstest::rstest;
use serde_json::Value;

use super::{Peek, Report, Served, Verdict, judge, worth_asking};
use crate::{
    cli::{
        Exit,
        plan::{input, show},
    },
    intake::{Extent, Seen},
    model::DiskSize,
    rules::Reason,
};

const ID: &str = "ce4c980550dd2ab1b17bbf2b08801c7eb59418eafe8f279833297925d67c7515";
const MIB: u64 = 1 << 20;

fn candidates(text: &str) -> Vec<input::Candidate> {
    input::read("values.yaml", text).expect("readable").candidates
}

fn served(length: Option<u64>, virtual_size: Option<&str>) -> Peek {
    let virtual_size = virtual_size.map(|size| size.parse().expect(size));
    let judged = Ok(Seen { format: Some("raw.xz".to_owned()), virtual_size, extent: Extent::Beginning });
    Peek::Served(Served { length, resolved_url: "https://e.example/final".into(), schematic_id: None, passed_over: Vec::new(), judged })
}

fn failed(reason: Reason) -> Peek {
    Peek::Failed { reason, message: "What happened.".into(), passed_over: Vec::new() }
}

/// A report about one entry with this `storage`.
fn sized(storage: &str, peek: Peek) -> Report {
    judge(&candidates(&format!("images:\n- name: a\n  url: https://e.example/a\n  storage: {storage}\n")), &[peek])
}

#[test]
fn a_good_image_has_its_names_and_sizes() {
    let list = format!(
        "images:\n- {{schematicID: {ID}, version: v1.13.6, storage: {{targets: [{{size: 6Gi}}, {{storageClassName: fast}}, {{storageClassName: files, volumeMode: Filesystem}}]}}}}\n"
    );
    let report = judge(&candidates(&list), &[served(Some(100 * MIB), Some("4250Mi"))]);
    let row = &report.images[0];
    assert_eq!((row.name.as_str(), row.verdict, report.exit()), ("talos-v1.13.6-b5a1de36eb14", Verdict::Good, Exit::Ok));
    let golden = format!("talos-worker-{ID}-v1.13.6");
    let goldens: Vec<_> =
        row.goldens.iter().map(|golden| (golden.name.clone().expect("name"), golden.size_bytes.map(|bytes| bytes / MIB))).collect();
    // A class that is said to be a file system keeps CDI's share of it.
    assert_eq!(goldens, [(golden.clone(), Some(6144)), (format!("{golden}-fast"), Some(4250)), (format!("{golden}-files"), Some(4505))]);
    assert_eq!((report.totals.download_bytes, report.totals.store_bytes), (100 * MIB, (6144 + 4250 + 4505) * MIB));
    assert!(report.totals.download_is_complete && report.totals.store_is_complete);
}

#[rstest]
#[case::fits("4250Mi", Some("4250Mi"), Verdict::Good)]
#[case::larger("6Gi", Some("4250Mi"), Verdict::Good)]
#[case::too_small("4Gi", Some("4250Mi"), Verdict::Refused)]
#[case::decimal("4G", Some("4Gi"), Verdict::Refused)]
#[case::not_known("1Mi", None, Verdict::Good)]
fn a_stated_size_must_hold_the_disk(#[case] storage: &str, #[case] virtual_size: Option<&str>, #[case] verdict: Verdict) {
    let report = sized(storage, served(Some(1), virtual_size));
    assert_eq!(report.images[0].verdict, verdict);
    if verdict == Verdict::Refused {
        let problem = &report.images[0].problems[0];
        assert_eq!((problem.reason, problem.field.as_deref(), problem.line), (Reason::SizeTooSmall, Some("storage"), 4));
        let needed: DiskSize = virtual_size.expect("known").parse().expect("size");
        assert!(problem.message.contains(&format!("write `{needed}`")), "{}", problem.message);
        assert_eq!((report.exit(), report.totals.store_bytes), (Exit::No, 0));
    }
}

/// Each reason with which a peek can end.
#[rstest]
#[case(Reason::NotFound, Verdict::Refused, Exit::No)]
#[case(Reason::Unauthorized, Verdict::Refused, Exit::No)]
#[case(Reason::Forbidden, Verdict::Refused, Exit::No)]
#[case(Reason::EgressRefused, Verdict::Refused, Exit::No)]
#[case(Reason::InvalidSource, Verdict::Refused, Exit::No)]
#[case(Reason::Corrupt, Verdict::Refused, Exit::No)]
#[case(Reason::NotADiskImage, Verdict::Refused, Exit::No)]
#[case(Reason::UnsupportedFormat, Verdict::Refused, Exit::No)]
#[case(Reason::TooLarge, Verdict::Refused, Exit::No)]
#[case(Reason::Unavailable, Verdict::Unknown, Exit::Unknown)]
#[case(Reason::RateLimited, Verdict::Unknown, Exit::Unknown)]
#[case(Reason::TLSFailed, Verdict::Unknown, Exit::Unknown)]
fn what_upstream_answers_is_a_verdict_with_a_remedy(#[case] reason: Reason, #[case] verdict: Verdict, #[case] exit: Exit) {
    for peek in [
        failed(reason),
        Peek::Served(Served {
            length: Some(5),
            resolved_url: String::new(),
            schematic_id: None,
            passed_over: Vec::new(),
            judged: Err((reason, "What happened.".into())),
        }),
    ] {
        let report = sized("6Gi", peek);
        assert_eq!((report.images[0].verdict, report.exit()), (verdict, exit));
        let text = show::text(&report);
        assert!(text.contains(&format!("values.yaml:2: a: {reason}: What happened. ")), "{text}");
        assert!(report.images[0].problems[0].remedy.len() > 20, "{text}");
    }
}

#[test]
fn a_refusal_weighs_more_than_an_unknown() {
    let list = candidates("images:\n- {name: a, url: 'https://e.example/a'}\n- {name: b, url: 'https://e.example/b'}\n");
    let report = judge(&list, &[failed(Reason::Unavailable), failed(Reason::NotFound)]);
    assert_eq!((report.exit(), report.totals.refused, report.totals.unknown), (Exit::No, 1, 1));
    assert!(show::text(&report).contains("2 images: 1 refused, 1 unknown. To fetch: unknown. To store: unknown in 1 golden."));
}

#[test]
fn r3_the_later_of_one_identity_is_refused_whatever_the_file() {
    let mut list = candidates("images:\n- {name: a, url: 'https://e.example/a'}\n");
    let other =
        "apiVersion: cozystack.io/v1alpha1\nkind: GoldenImage\nmetadata: {name: b}\nspec: {source: {http: {url: 'https://e.example/a'}}}\n";
    list.extend(input::read("more.yaml", other).expect("manifest").candidates);
    assert_eq!(worth_asking(&list), [true, false]);
    let report = judge(&list, &[served(Some(7), Some("1Gi")), Peek::NotAsked]);
    let problem = &report.images[1].problems[0];
    assert_eq!((report.images[0].verdict, report.images[1].verdict), (Verdict::Good, Verdict::Refused));
    assert_eq!(problem.reason, Reason::DuplicateIdentity);
    assert!(problem.message.contains("b (more.yaml:1) is the same image as a (values.yaml:2)"), "{}", problem.message);
    // It is fetched and stored once.
    assert_eq!((report.totals.download_bytes, report.totals.store_bytes), (7, 1 << 30));
}

#[test]
fn a_document_and_its_id_are_one_image() {
    // The ID of the empty schematic.
    let vanilla = "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba";
    let list = format!(
        "images:\n- {{schematicID: {vanilla}, version: v1.13.6}}\n- {{name: b, schematic: {{customization: {{}}}}, version: v1.13.6}}\n"
    );
    let report = judge(&candidates(&list), &[Peek::NotAsked, Peek::NotAsked]);
    assert_eq!(report.images[1].problems[0].reason, Reason::DuplicateIdentity);

    // A document whose ID only the factory knows gets its golden's name from there.
    let list = "images:\n- {name: b, schematic: {customization: {unheardOf: 1}}, version: v1.13.6}\n";
    assert_eq!(judge(&candidates(list), &[Peek::NotAsked]).images[0].goldens[0].name, None);
    let Peek::Served(answer) = served(None, None) else { unreachable!() };
    let report = judge(&candidates(list), &[Peek::Served(Served { schematic_id: Some(ID.parse().expect("ID")), ..answer })]);
    assert_eq!(report.images[0].goldens[0].name, Some(format!("talos-worker-{ID}-v1.13.6")));
}

/// Whatever ID a factory gives to a document, it gives it to each who has the same; and who has got it is still known by it.
#[test]
fn one_document_twice_is_one_image_before_its_factory_is_asked() {
    let entry = |name: &str, of: &str, more: &str| format!("- {{name: {name}, schematic: {of}, version: v1.13.6{more}}}\n");
    let list = [
        entry("a", "{customization: {unheardOf: 1, more: 2}}", ""),
        entry("b", "'{customization: {more: 2, unheardOf: 1}}'", ", architecture: amd64"),
        entry("c", "{customization: {unheardOf: 2}}", ""),
        entry("d", "{customization: {unheardOf: 1, more: 2}}", ", architecture: arm64"),
    ];
    let candidates = candidates(&format!("images:\n{}", list.concat()));
    assert_eq!(worth_asking(&candidates), [true, false, true, true]);
    let Peek::Served(answer) = served(None, None) else { unreachable!() };
    let answered = Peek::Served(Served { schematic_id: Some(ID.parse().expect("ID")), ..answer });
    for first in [Peek::NotAsked, answered] {
        let report = judge(&candidates, &[first, Peek::NotAsked, Peek::NotAsked, Peek::NotAsked]);
        let refused: Vec<_> = report.images.iter().filter(|row| row.verdict == Verdict::Refused).map(|row| &row.problems[0]).collect();
        let [problem] = refused[..] else { panic!("{refused:?}") };
        assert_eq!((problem.reason, problem.line), (Reason::DuplicateIdentity, 3));
        assert!(
            problem.message.contains("is the same image as a (values.yaml:2) (their `schematic` is one document)"),
            "{}",
            problem.message
        );
    }
}

#[test]
fn one_name_is_one_image_and_one_golden() {
    let list = candidates(
        "images:\n- {name: a, url: 'https://e.example/a', storage: {targets: [{}, {storageClassName: b}]}}\n- {name: a, url: 'https://e.example/other'}\n- {name: a-b, url: 'https://e.example/ab'}\n",
    );
    let report = judge(&list, &vec![Peek::NotAsked; 3]);
    let reasons: Vec<_> = report.images.iter().map(|row| row.problems.first().map(|problem| problem.reason)).collect();
    assert_eq!(reasons, [None, Some(Reason::InvalidEntry), Some(Reason::NameConflict)]);
    assert!(report.images[2].problems[0].message.contains("vm-default-images-a-b"), "{report:?}");
}

#[test]
fn what_is_doubtful_is_a_warning_and_no_refusal() {
    let list = candidates(
        "images:\n- {name: a, url: 'http://e.example/latest/a', suspend: true}\n- {name: b, url: 'https://e.example/current/b', digest: 'sha256:0000000000000000000000000000000000000000000000000000000000000000'}\n",
    );
    let report = judge(&list, &vec![served(Some(1), Some("1Gi")); 2]);
    assert_eq!(report.images.iter().map(|row| row.warnings.len()).collect::<Vec<_>>(), [3, 0]);
    assert_eq!(report.exit(), Exit::Ok);
    assert!(show::text(&report).contains("values.yaml:2: a: warning: The address is a rolling one (`latest`)"));
}

#[test]
fn without_upstream_only_the_rules_speak() {
    let list = candidates("images:\n- {name: a, url: 'https://e.example/a', storage: 6Gi}\n- {name: b, url: nonsense}\n");
    let report = judge(&list, &vec![Peek::NotAsked; 2]);
    assert_eq!(report.images.iter().map(|row| row.verdict).collect::<Vec<_>>(), [Verdict::Accepted, Verdict::Refused]);
    assert_eq!((report.totals.download_is_complete, report.totals.store_bytes, report.totals.store_is_complete), (false, 6 << 30, true));
}

#[rstest]
#[case::none_given(false, "of the daemon's namespace, which was not given: upstream")]
#[case::another_given(true, "which was not given; the Secrets that were given are others: upstream")]
fn an_image_whose_credentials_are_absent_is_unknown_and_says_so(#[case] others: bool, #[case] expected: &str) {
    let list = candidates(
        "images:\n- {name: a, url: 'https://e.example/a', credentialsSecretRef: {name: reg}, access: {policy: AllTenants}}\n- {name: b, url: 'https://e.example/b'}\n",
    );
    let report = judge(&list, &[Peek::Private { secret: "reg".into(), others }, served(Some(1), Some("1Gi"))]);
    assert_eq!((report.images[0].verdict, report.totals.not_asked, report.exit()), (Verdict::Unknown, 0, Exit::Unknown));
    let text = show::text(&report);
    assert!(text.contains("Unknown: ReferenceNotFound") && text.contains(expected) && text.contains("the Secret reg"), "{text}");
    assert!(text.contains("2 images: 0 refused, 1 unknown."), "{text}");
    // What a rule refuses is refused all the same, and not asked about on purpose is accepted.
    let twice = candidates(
        "images:\n- {name: b, url: 'https://e.example/a'}\n- {name: a, url: 'https://e.example/a', credentialsSecretRef: {name: reg}, access: {policy: AllTenants}}\n",
    );
    let report = judge(&twice, &[served(Some(1), Some("1Gi")), Peek::Private { secret: "reg".into(), others }]);
    assert_eq!((report.images[1].verdict, report.exit()), (Verdict::Refused, Exit::No));
    let report = judge(&list, &[Peek::NotAsked, Peek::NotAsked]);
    assert_eq!((report.totals.not_asked, report.exit()), (2, Exit::Ok));
}

#[test]
fn the_table_and_the_json() {
    let list = candidates("storageClass: replicated\nimages:\n- name: a\n  url: https://e.example/a\n- name: B\n  url: nonsense\n");
    let report = judge(&list, &[served(Some(1536 << 10), Some("4250Mi")), Peek::NotAsked]);
    let text = show::text(&report);
    let lines: Vec<_> = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(lines[0], "NAME GOLDEN CLASS SIZE DOWNLOAD VIRTUAL SIZE FORMAT VERDICT");
    assert_eq!(lines[1], "a vm-default-images-a replicated 4250Mi 1.5Mi 4250Mi raw.xz Good");
    assert_eq!(lines[2], "B - - - - - - Refused: InvalidEntry");
    assert!(lines[4].starts_with("values.yaml:5: B: InvalidEntry: `name`: \"B\" is not a valid image name"), "{text}");
    assert!(lines[5].starts_with("values.yaml:6: B: InvalidEntry: `url`:"), "{text}");
    assert_eq!(lines[7], "2 images: 1 refused, 0 unknown. To fetch: 1.5Mi. To store: 4.1Gi in 1 golden.");

    let json: Value = serde_json::to_value(&report).expect("JSON");
    let row = &json["images"][0];
    assert_eq!(
        (row["verdict"].as_str(), row["downloadBytes"].as_u64(), row["format"].as_str()),
        (Some("Good"), Some(1536 << 10), Some("raw.xz"))
    );
    assert_eq!(row["goldens"][0]["storageClassName"], "replicated");
    assert_eq!(row["resolvedURL"], "https://e.example/final");
    let problem = &json["images"][1]["problems"][0];
    assert_eq!(
        (problem["reason"].as_str(), problem["field"].as_str(), problem["line"].as_u64()),
        (Some("InvalidEntry"), Some("name"), Some(5))
    );
    assert_eq!(json["totals"]["storeBytes"], 4250 * MIB);
}

#[test]
fn a_disk_that_was_not_seen_is_no_good_one() {
    let list = candidates("images:\n- {name: a, url: 'https://e.example/a'}\n");
    let Peek::Served(answer) = served(Some(5), None) else { unreachable!() };
    let judged = Ok(Seen { format: None, virtual_size: None, extent: Extent::NotSeen });
    let report = judge(&list, &[Peek::Served(Served { judged, ..answer })]);
    assert_eq!((report.images[0].verdict, report.exit()), (Verdict::Accepted, Exit::Ok));
    assert_eq!((report.totals.not_asked, report.totals.not_seen), (0, 1));
    let text = show::text(&report);
    assert!(text.contains("not seen within 1 MiB") && text.contains("0 unknown, 1 not seen."), "{text}");
    assert_eq!(serde_json::to_value(&report).expect("JSON")["images"][0]["seen"], "NotSeen");
}

#[test]
fn what_was_passed_over_is_told_with_what_was_judged() {
    let list = candidates("images:\n- {name: a, url: 'https://e.example/a'}\n");
    let Peek::Served(answer) = served(Some(5), Some("1Gi")) else { unreachable!() };
    let report = judge(&list, &[Peek::Served(Served { passed_over: vec!["NotADiskImage: It is an HTML page.".into()], ..answer })]);
    let text = show::text(&report);
    assert_eq!(report.images[0].verdict, Verdict::Good);
    assert!(text.contains("passed over, and https://e.example/final judged: NotADiskImage: It is an HTML page."), "{text}");
}
