//! Files made from the code are what the code makes.

use crate::harness::repository;

#[path = "chart_values.rs"]
mod chart_values;

/// `UPDATE=1 cargo test --test harness generated` (`make generate`) writes them instead.
#[test]
fn generated_files_are_up_to_date() {
    let crd = golden_catalog::api::crd_yaml().unwrap();
    let name = "cozystack.io_goldenimages.yaml";
    let reasons = golden_catalog::cli::reasons_page();
    let (schema, readme) = (chart_values::schema(), chart_values::readme());
    let metrics = golden_catalog::run::metrics::page();
    let api = golden_catalog::cli::api_page();
    let dashboard = dashboard();
    let files = [
        (format!("crds/{name}"), &crd),
        (format!("helm/kubernetes-worker-image/crds/{name}"), &crd),
        ("docs/reasons.md".to_owned(), &reasons),
        ("helm/kubernetes-worker-image/values.schema.json".to_owned(), &schema),
        ("helm/kubernetes-worker-image/README.md".to_owned(), &readme),
        ("docs/metrics.md".to_owned(), &metrics),
        ("docs/api.md".to_owned(), &api),
        (DASHBOARD.to_owned(), &dashboard),
    ];
    for (file, made) in files {
        let path = repository().join(file);
        if std::env::var_os("UPDATE").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, made).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(found == *made, "{} is not what the code makes: run `make generate`", path.display());
    }
}

const DASHBOARD: &str = "helm/kubernetes-worker-image/dashboards/golden-images.json";

/// The dashboard as it is, with each reason's remedy in the column that shows reasons.
fn dashboard() -> String {
    let text = std::fs::read_to_string(repository().join(DASHBOARD)).unwrap();
    let mut dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
    let reasons = golden_catalog::rules::Reason::ALL.iter().filter(|reason| !reason.remedy().is_empty()).enumerate();
    let words: serde_json::Map<_, _> = reasons
        .map(|(index, reason)| {
            (reason.to_string(), serde_json::json!({ "index": index, "text": format!("{reason}: {}", reason.remedy()) }))
        })
        .collect();
    for panel in dashboard["panels"].as_array_mut().unwrap() {
        for row in panel.pointer_mut("/fieldConfig/overrides").and_then(serde_json::Value::as_array_mut).into_iter().flatten() {
            if row.pointer("/matcher/options").is_none_or(|column| column != "reason") {
                continue;
            }
            for property in row["properties"].as_array_mut().unwrap() {
                if property["id"] == "mappings" {
                    property["value"] = serde_json::json!([{ "type": "value", "options": words }]);
                }
            }
        }
    }
    serde_json::to_string_pretty(&dashboard).unwrap() + "\n"
}
