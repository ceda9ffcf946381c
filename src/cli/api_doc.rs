//! The API reference, made from the CustomResourceDefinition: what the API server holds is what the page says.

use serde_json::Value;

/// The page `docs/api.md`.
pub fn api_page() -> String {
    let crd = crate::api::crd();
    let version = &crd["spec"]["versions"][0];
    let schema = &version["schema"]["openAPIV3Schema"];
    let mut page = format!(
        "# API reference\n\nGenerated from the CustomResourceDefinition by `make generate`; do not edit.\n\n`{}`, group `{}`, version `{}`, {} scope, short name `{}`. {}\n",
        text(&crd["spec"]["names"]["kind"]),
        text(&crd["spec"]["group"]),
        text(&version["name"]),
        text(&crd["spec"]["scope"]).to_lowercase(),
        text(&crd["spec"]["names"]["shortNames"][0]),
        line(&schema["description"]),
    );
    for (part, intro) in [
        ("spec", "What a user or the list in values writes. A field marked *required* must be there once what holds it is."),
        ("status", "What the daemon writes. What is absent is not known yet."),
    ] {
        page.push_str(&format!("\n## {part}\n\n{intro}\n\n| field | type | meaning |\n|---|---|---|\n"));
        fields(&mut page, part, &schema["properties"][part]);
    }
    page.push_str("\n## Rules that the API server holds\n\nThey hold with the daemon down.\n\n| where | rule |\n|---|---|\n");
    rules(&mut page, "", schema);
    page.push_str("\n## Columns of `kubectl get`\n\n| column | from |\n|---|---|\n");
    for column in version["additionalPrinterColumns"].as_array().into_iter().flatten() {
        let wide = if column["priority"].as_i64().unwrap_or(0) > 0 { " (with `-o wide`)" } else { "" };
        page.push_str(&format!("| {}{wide} | `{}` |\n", text(&column["name"]), text(&column["jsonPath"]).replace('|', "\\|")));
    }
    page
}

/// A row for each field below `path`, depth first, in the order of the schema.
fn fields(page: &mut String, path: &str, schema: &Value) {
    let required: Vec<_> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let (path, shown) = match field["type"].as_str() {
            Some("array") => (format!("{path}.{name}[]"), &field["items"]),
            _ => (format!("{path}.{name}"), field),
        };
        let required = if required.contains(&name.as_str()) { " *Required.*" } else { "" };
        page.push_str(&format!("| `{path}` | {} | {}{required} |\n", kind(field), line(&field["description"])));
        // Conditions are Kubernetes' own kind, explained in its documentation.
        if name != "conditions" {
            fields(page, &path, shown);
        }
    }
}

/// The type of a field with its limits, in words.
fn kind(field: &Value) -> String {
    let mut kind = match field["type"].as_str() {
        Some("array") => format!("list of {}", kind(&field["items"])),
        Some("object") if field["additionalProperties"].is_object() => "map".to_owned(),
        other => other.unwrap_or("any").to_owned(),
    };
    if let Some(words) = field["enum"].as_array() {
        let words: Vec<_> = words.iter().map(|word| format!("`{}`", text(word))).collect();
        kind = format!("{kind}: {}", words.join(", "));
    }
    if let Some(format) = field["format"].as_str().filter(|format| *format == "date-time") {
        kind = format!("{kind} ({format})");
    }
    for (key, word) in
        [("pattern", "matches"), ("minimum", "at least"), ("maximum", "at most"), ("maxLength", "at most"), ("maxItems", "at most")]
    {
        let limit = &field[key];
        let unit = match key {
            "maxLength" => " characters",
            "maxItems" => " items",
            _ => "",
        };
        match limit {
            Value::String(pattern) => kind.push_str(&format!(", {word} `{}`", pattern.replace('|', "\\|"))),
            Value::Number(number) => kind.push_str(&format!(", {word} {number}{unit}")),
            _ => {}
        }
    }
    kind
}

/// A row for each CEL rule.
fn rules(page: &mut String, path: &str, schema: &Value) {
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        let path = if path.is_empty() { "the object" } else { path.trim_start_matches('.') };
        page.push_str(&format!("| `{path}` | {} |\n", line(&rule["message"])));
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        rules(page, &format!("{path}.{name}"), field);
        if field["items"].is_object() {
            rules(page, &format!("{path}.{name}[]"), &field["items"]);
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// A description on one line, safe in a table's cell.
fn line(value: &Value) -> String {
    text(value).split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::api_page;

    #[test]
    fn every_part_is_there() {
        let page = api_page();
        for part in [
            "| `spec.source` | object |",
            "`spec.storage.targets[].storageClassName`",
            "`status.targets[].claimUID`",
            "source is immutable (R4)",
            "| Ready | `.status.conditions",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
        let cells = page.lines().filter(|line| line.starts_with("| `spec.") || line.starts_with("| `status."));
        for line in cells {
            assert!(!line.ends_with("|  |"), "a field without a description: {line}");
        }
    }
}
