//! Least privilege, proven by use: which rights that the chart gives were never used by the whole suite.
//!
//! `make test` runs this last. Every private control plane of the suite leaves its audit log in the folder `E2E_AUDIT`; what the
//! chart's ServiceAccounts asked there is compared with the rules that the chart renders. A right that nothing uses is to be
//! taken out of the chart, or excused here with the reason.

#[path = "harness/mod.rs"]
mod harness;

use std::{
    collections::BTreeSet,
    io::{BufRead as _, BufReader},
    path::Path,
};

use harness::Request;
use serde_json::Value;

const OWN: &str = "cozy-kubernetes-worker-image";
const CATALOG: &str = "cozy-public";

/// Rights that no test can use, each with the reason. `role/verb resource.group`, as the list below prints them.
const EXCUSED: &[(&str, &str)] = &[
    (
        "golden-catalog-controller: create datavolumes/source.cdi.kubevirt.io (catalog)",
        "CDI asks the authorizer for it on our behalf (SubjectAccessReview) whenever a clone is patched; nobody ever sends such a request",
    ),
    ("golden-catalog-controller: get cdis.cdi.kubevirt.io (cluster)", NO_OPERATOR),
    ("golden-catalog-controller: list cdis.cdi.kubevirt.io (cluster)", NO_OPERATOR),
    ("golden-catalog-controller: watch cdis.cdi.kubevirt.io (cluster)", NO_OPERATOR),
];
const NO_OPERATOR: &str = "the stand-in for CDI has no operator, so that no cluster of a test has the kind CDI";

/// One thing that a ServiceAccount may do, and where: cluster-wide, in its own namespace, in the catalog's, or in `default`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    account: String,
    place: &'static str,
    verb: String,
    group: String,
    resource: String,
    names: Vec<String>,
}

impl Right {
    fn shown(&self) -> String {
        let names = if self.names.is_empty() { String::new() } else { format!(" [{}]", self.names.join(", ")) };
        let group = if self.group.is_empty() { String::new() } else { format!(".{}", self.group) };
        format!("{}: {} {}{group}{names} ({})", self.account, self.verb, self.resource, self.place)
    }

    /// Whether a request used this right. Namespaces are told apart by kind only, because tests name their own.
    fn used_by(&self, request: &Request) -> bool {
        let Some((namespace, account)) = request.user.strip_prefix("system:serviceaccount:").and_then(|user| user.split_once(':')) else {
            return false;
        };
        let place = match request.namespace.as_str() {
            "" => "cluster",
            "default" => "default",
            own if own == namespace => "own",
            _ => "catalog",
        };
        let resource = match request.subresource.as_str() {
            "" => request.resource.clone(),
            sub => format!("{}/{sub}", request.resource),
        };
        account == self.account
            && (self.place == "cluster" || self.place == place)
            // Server-side apply asks for both when it makes the object.
            && (request.verb == self.verb || (self.verb == "create" && request.verb == "patch" && request.code == 201))
            && request.group == self.group
            && resource == self.resource
            && (self.names.is_empty() || self.names.contains(&request.name))
            && request.code < 400
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().map(text).collect()
}

/// The rights of the ServiceAccounts, from the chart's roles and bindings.
fn rights() -> BTreeSet<Right> {
    let chart = harness::chart::folder();
    let out = std::process::Command::new(harness::helm())
        .args(["template", "kubernetes-worker-image"])
        .arg(chart)
        .args(["--namespace", OWN, "--set", &format!("catalogNamespace={CATALOG}")])
        .env("KUBECONFIG", "/nonexistent")
        .output()
        .expect("run helm");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let objects: Vec<Value> = serde_saphyr::from_multiple(&String::from_utf8(out.stdout).expect("UTF-8")).expect("YAML");
    let mut rights = BTreeSet::new();
    for binding in objects.iter().filter(|object| object["kind"].as_str().is_some_and(|kind| kind.ends_with("RoleBinding"))) {
        let role = objects
            .iter()
            .find(|role| {
                role["kind"] == binding["roleRef"]["kind"]
                    && role["metadata"]["name"] == binding["roleRef"]["name"]
                    && role["metadata"]["namespace"] == binding["metadata"]["namespace"]
            })
            .unwrap_or_else(|| panic!("no role for {binding}"));
        let place = match binding["metadata"]["namespace"].as_str() {
            None => "cluster",
            Some(OWN) => "own",
            Some(CATALOG) => "catalog",
            Some("default") => "default",
            Some(other) => panic!("a role in {other}"),
        };
        for account in binding["subjects"].as_array().expect("subjects").iter().map(|subject| text(&subject["name"])) {
            for rule in role["rules"].as_array().expect("rules") {
                let names = texts(&rule["resourceNames"]);
                for group in texts(&rule["apiGroups"]) {
                    for resource in texts(&rule["resources"]) {
                        for verb in texts(&rule["verbs"]) {
                            let account = account.clone();
                            rights.insert(Right {
                                account,
                                place,
                                verb,
                                group: group.clone(),
                                resource: resource.clone(),
                                names: names.clone(),
                            });
                        }
                    }
                }
            }
        }
    }
    assert!(rights.len() > 20, "the chart gives more than {} rights", rights.len());
    rights
}

/// The requests of the suite's daemons; the tests themselves ask by other programs.
fn requests(folder: &Path) -> Vec<Request> {
    let mut requests = Vec::new();
    for file in std::fs::read_dir(folder).expect("the folder E2E_AUDIT").flatten() {
        let lines = BufReader::new(std::fs::File::open(file.path()).expect("a log")).lines();
        // A server that was killed may have left half a line.
        let is_whole = |line: &String| serde_json::from_str::<serde_json::Value>(line).is_ok();
        let lines = lines.map_while(Result::ok).filter(|line| line.contains("system:serviceaccount:") && is_whole(line));
        requests.extend(lines.map(|line| Request::parse(&line)).filter(|request| request.user_agent.starts_with("golden-catalog")));
    }
    requests
}

#[test]
fn every_right_is_used() {
    let Some(folder) = std::env::var_os("E2E_AUDIT").filter(|folder| !folder.is_empty()) else {
        harness::skip("needs the audit logs of the whole suite: `make test` without TESTS");
        return;
    };
    let requests = requests(Path::new(&folder));
    assert!(requests.len() > 100, "{} requests of daemons in {}: did the suite run?", requests.len(), folder.display());
    let (used, unused): (Vec<Right>, Vec<Right>) =
        rights().into_iter().partition(|right| requests.iter().any(|request| right.used_by(request)));
    // To read one shows nothing that listing all does not: it is told, and no failure.
    let is_shown = |right: &Right| {
        let list = Right { verb: "list".into(), ..right.clone() };
        right.verb == "get" && used.contains(&list)
    };
    let (beside, unused): (Vec<Right>, Vec<Right>) = unused.into_iter().partition(is_shown);
    for right in beside {
        println!("never used, beside a list that is: {}", right.shown());
    }
    let excused = |right: &Right| EXCUSED.iter().any(|(shown, _)| *shown == right.shown());
    for right in unused.iter().filter(|right| excused(right)) {
        println!("excused: {}", right.shown());
    }
    let stale: Vec<_> = EXCUSED.iter().filter(|(shown, _)| !unused.iter().any(|right| right.shown() == *shown)).collect();
    let left: Vec<_> = unused.iter().filter(|right| !excused(right)).map(Right::shown).collect();
    assert!(left.is_empty(), "given by the chart and never used by the suite:\n{}", left.join("\n"));
    assert!(stale.is_empty(), "excused and yet used, or not given any more: {stale:?}");
}
