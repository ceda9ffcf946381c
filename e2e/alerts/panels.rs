//! The dashboard's panels, asked of a real Prometheus.

use serde_json::{Map, Value, json};

use super::prometheus::Prometheus;
use crate::harness::{eventually, repository};

/// How far back panels look here.
const SECONDS: u64 = 150;

/// The dashboard.
pub fn dashboard() -> Value {
    let path = repository().join("helm/kubernetes-worker-image/dashboards/golden-images.json");
    serde_json::from_str(&std::fs::read_to_string(path).expect("the dashboard")).expect("JSON")
}

/// Every query of every panel: the panel, and the expression as Grafana sends it with all images chosen.
pub fn queries(dashboard: &Value) -> Vec<(Value, String)> {
    let panels = dashboard["panels"].as_array().cloned().unwrap_or_default();
    let mut queries = Vec::new();
    for panel in panels {
        for target in panel["targets"].as_array().cloned().unwrap_or_default() {
            let text = target["expr"].as_str().expect("an expression");
            let text = text.replace("$__rate_interval", "20s").replace("$__range", &format!("{SECONDS}s")).replace("$image", ".*");
            queries.push((panel.clone(), text));
        }
    }
    queries
}

/// Asks every query until it answers with data, and gives the data by panel for drawing.
pub async fn all_have_data(prometheus: &Prometheus) -> Value {
    let mut drawn = Map::new();
    for (panel, expression) in queries(&dashboard()) {
        let title = panel["title"].as_str().unwrap_or_default().to_owned();
        let over_time = matches!(panel["type"].as_str(), Some("timeseries" | "state-timeline"));
        let look = async || {
            let found = if over_time { prometheus.range(&expression, SECONDS).await? } else { prometheus.query(&expression).await? };
            let is_number = |sample: &Value| sample[1].as_str().is_some_and(|number| number != "NaN");
            let some =
                |series: &Value| series["values"].as_array().map_or(is_number(&series["value"]), |samples| samples.iter().any(is_number));
            if found.iter().any(some) { Ok(found) } else { Err(format!("no data for {expression}: {found:?}")) }
        };
        let data = eventually(&format!("the panel {title:?} shows something"), look).await;
        let entry = drawn.entry(panel["id"].to_string()).or_insert_with(|| json!([]));
        if let Some(list) = entry.as_array_mut() {
            list.push(Value::Array(data));
        }
    }
    Value::Object(drawn)
}
