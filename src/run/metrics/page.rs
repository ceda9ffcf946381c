//! The table of metrics, `docs/metrics.md`.

use super::Metrics;

/// The page, made from what is registered.
pub fn page() -> String {
    let mut page = String::from(
        "# Metrics\n\nGenerated from `src/run/metrics` by `make generate`; do not edit.\n\nServed at `/metrics` on port 8080 of both roles, as Prometheus text, or as OpenMetrics to whoever asks for it by `Accept`. Label values are names of golden images, names of StorageClasses they have targets for, and words from closed lists (`reason` is one of [reasons.md](reasons.md)): never an address, a digest, a tenant or free text, so the number of series is bounded by the catalog. What concerns one image comes from the leader only; its series go away with the image, with a removed target, with a former reason, and when the process stops leading. `process_*` metrics have their usual names and meanings.\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n",
    );
    for metric in Metrics::new().descriptions() {
        let labels: Vec<_> = metric.labels.iter().map(|label| format!("`{}`", label.trim_start_matches("r#"))).collect();
        page.push_str(&format!("| `{}` | {} | {} | {} |\n", metric.name, metric.kind, labels.join(", "), metric.help));
    }
    page
}
