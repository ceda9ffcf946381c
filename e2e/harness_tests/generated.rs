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
    let files = [
        (format!("crds/{name}"), &crd),
        (format!("helm/kubernetes-worker-image/crds/{name}"), &crd),
        ("docs/reasons.md".to_owned(), &reasons),
        ("helm/kubernetes-worker-image/values.schema.json".to_owned(), &schema),
        ("helm/kubernetes-worker-image/README.md".to_owned(), &readme),
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
