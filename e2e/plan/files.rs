//! Which files are read, and what is said about those that cannot be.

use rstest::rstest;

use crate::{BINARY, Desk, arg};

const ONE: &str = "images:\n- {name: a, url: 'https://e.example/a', storage: 1Gi}\n";
const MANIFESTS: &str = "apiVersion: cozystack.io/v1alpha1\nkind: GoldenImage\nmetadata:\n  name: b\nspec:\n  source:\n    http:\n      url: https://e.example/a\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: ca}\n---\napiVersion: cozystack.io/v1alpha1\nkind: GoldenImage\nmetadata:\n  name: c\nspec:\n  source:\n    http:\n      url: nonsense\n  digest: sha256:00\n  sizes: 5\n";

#[test]
fn several_files_and_standard_input_are_one_list() {
    let desk = Desk::new();
    let first = desk.file("one.yaml", ONE);
    let answer = desk.run(desk.command(BINARY), &["--offline", "-o", "json", "-f", arg(&first), "-"], Some(MANIFESTS));
    assert_eq!(answer.code, Some(1), "{answer:?}");
    assert_eq!(answer.verdicts(), ["a Accepted", "b Refused DuplicateIdentity", "c Refused InvalidEntry"]);
    let json = answer.json();
    let message = json["images"][1]["problems"][0]["message"].as_str().expect("message");
    assert!(message.contains(&format!("b (<stdin>:1) is the same image as a ({}:2)", first.display())), "{message}");
    let problems = json["images"][2]["problems"].as_array().expect("problems");
    let lines: Vec<_> = problems.iter().map(|problem| (problem["line"].as_u64(), problem["field"].as_str())).collect();
    assert_eq!(lines, [(Some(21), Some("spec.source.http.url")), (Some(22), Some("spec.digest")), (Some(23), Some("spec.sizes"))]);
    // The flag may also be repeated.
    let second = desk.file("two.yaml", MANIFESTS);
    let answer = desk.plan(&["--offline", "-f", arg(&first), "-f", arg(&second), "-o", "json"]);
    assert_eq!(answer.verdicts().len(), 3);
}

#[rstest]
#[case::syntax("images: [\n", "is not valid YAML")]
#[case::twice("images: []\nimages: []\n", "line 2")]
#[case::form("storageClass: a\nimages: 5\n", ":2: `images` must be a list")]
#[case::other("other: 1\n", "holds neither `images` nor a GoldenImage")]
#[case::empty("", "holds neither `images` nor a GoldenImage")]
fn a_file_that_says_nothing_is_a_usage_error(#[case] text: &str, #[case] expected: &str) {
    let desk = Desk::new();
    let file = desk.file("values.yaml", text);
    let answer = desk.plan(&["-f", arg(&file)]);
    assert_eq!((answer.code, answer.stdout.as_str()), (Some(64), ""));
    assert!(answer.stderr.contains(expected) && answer.stderr.contains(arg(&file)), "{}", answer.stderr);
}

#[test]
fn every_file_that_cannot_be_read_is_told() {
    let desk = Desk::new();
    let good = desk.file("one.yaml", ONE);
    let answer = desk.plan(&["-f", arg(&good), "/nowhere/a.yaml", "/nowhere/b.yaml"]);
    assert_eq!((answer.code, answer.stdout.as_str()), (Some(64), ""));
    assert!(answer.stderr.contains("/nowhere/a.yaml") && answer.stderr.contains("/nowhere/b.yaml"), "{}", answer.stderr);
}

#[rstest]
#[case(&[])]
#[case(&["-f"])]
#[case(&["-f", "-", "-"])]
#[case(&["-f", "-", "--output", "xml"])]
#[case(&["-f", "-", "--config", "/nowhere/settings.yaml"])]
#[case(&["-f", "-", "--ca-bundle", "/nowhere/ca.pem"])]
#[case(&["-f", "-", "--ca-bundle", "/etc/hostname"])]
fn wrong_usage_is_64(#[case] arguments: &[&str]) {
    let desk = Desk::new();
    let answer = desk.run(desk.command(BINARY), arguments, Some(""));
    assert_eq!(answer.code, Some(64), "{answer:?}");
    assert!(answer.stdout.is_empty() && answer.stderr.contains("error"), "{answer:?}");
}

#[test]
fn an_empty_list_is_good() {
    let desk = Desk::new();
    let answer = desk.run(desk.command(BINARY), &["-f", "-"], Some("images: []\n"));
    assert_eq!((answer.code, answer.stdout.as_str()), (Some(0), "No images are listed.\n"));
}

#[test]
fn the_help_names_the_exit_codes() {
    let desk = Desk::new();
    let output = desk.command(BINARY).args(["plan", "--help"]).output().expect("help");
    let text = String::from_utf8(output.stdout).expect("text");
    for code in ["   0  every image", "   1  at least one", "   2  nothing is refused", "  64  wrong usage"] {
        assert!(text.contains(code), "{code}\n{text}");
    }
}
