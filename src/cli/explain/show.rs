use serde_json::{Value, json};

use super::Explained;
use crate::{
    cli::table::{Table, printable},
    rules::clone::Verdict,
};

const fn word(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::NotOurs | Verdict::Allow { .. } => "Admitted",
        Verdict::Refuse(_) => "Refused",
        Verdict::Unknown(_) => "Unknown",
    }
}

/// For people.
pub(super) fn table(subject: &str, catalog: &str, explained: &[Explained]) -> String {
    if explained.is_empty() {
        return format!("{subject} clones nothing of {catalog}: it is not the catalog's to judge.\n");
    }
    let mut table = Table::new(["OBJECT", "DISK", "GOLDEN", "POOL", "CLASS", "VERDICT"]);
    let mut stories = Vec::new();
    for Explained { request, verdict, waits } in explained {
        let class = match verdict {
            Verdict::Allow { patch, .. } => patch.class.clone().unwrap_or_default(),
            _ => String::new(),
        };
        table.row([
            format!("{} {}/{}", request.subject.kind.as_str(), request.subject.namespace, request.subject.name),
            request.subject.disk.clone().unwrap_or_default(),
            request.source.name().to_owned(),
            request.pool.to_string(),
            class,
            word(verdict).to_owned(),
        ]);
        match verdict {
            Verdict::Refuse(violations) => {
                stories.extend(violations.iter().map(|violation| format!("{}: {}", violation.rule, violation.message)))
            }
            Verdict::Unknown(facts) => stories.extend(facts.iter().map(|fact| format!("not known: {fact}"))),
            Verdict::Allow { warnings, .. } => stories.extend(warnings.iter().map(|warning| format!("warning: {warning}"))),
            Verdict::NotOurs => {}
        }
        stories.extend(waits.iter().map(|wait| format!("waits: {wait}")));
    }
    let stories: String = stories.iter().map(|story| format!("\n{}", printable(story))).collect();
    format!("{}{stories}{}", table.render(), if stories.is_empty() { "" } else { "\n" })
}

/// For scripts.
pub(super) fn json(subject: &str, explained: &[Explained]) -> Value {
    let disks: Vec<Value> = explained
        .iter()
        .map(|Explained { request, verdict, waits }| {
            let violations = match verdict {
                Verdict::Refuse(violations) => violations.iter().map(|v| json!({ "rule": v.rule.to_string(), "message": v.message })).collect(),
                _ => Vec::new(),
            };
            let (class, warnings) = match verdict {
                Verdict::Allow { patch, warnings } => (patch.class.clone(), warnings.clone()),
                _ => (None, Vec::new()),
            };
            let unknown = match verdict {
                Verdict::Unknown(facts) => facts.iter().map(ToString::to_string).collect(),
                _ => Vec::new(),
            };
            json!({
                "kind": request.subject.kind.as_str(), "namespace": request.subject.namespace, "name": request.subject.name, "disk": request.subject.disk,
                "golden": request.source.name(), "through": request.through, "pool": request.pool.to_string(), "storageClassName": class,
                "verdict": word(verdict), "violations": violations, "warnings": warnings, "unknown": unknown, "waits": waits,
            })
        })
        .collect();
    json!({ "subject": subject, "disks": disks })
}
