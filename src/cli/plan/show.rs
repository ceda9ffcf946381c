//! The report as text for people.

use super::judge::{Report, Row, Verdict};
use crate::{
    cli::{Table, table::printable},
    model::DiskSize,
};

/// The table, what is wrong below it, and the totals.
pub(super) fn text(report: &Report) -> String {
    if report.images.is_empty() {
        return "No images are listed.\n".to_owned();
    }
    let mut table = Table::new(["NAME", "GOLDEN", "CLASS", "SIZE", "DOWNLOAD", "VIRTUAL SIZE", "FORMAT", "VERDICT"]);
    let mut stories = String::new();
    for row in &report.images {
        add(&mut table, row);
        stories.push_str(&story(row));
    }
    let gap = if stories.is_empty() { "" } else { "\n" };
    format!("{}{gap}{stories}\n{}\n", table.render(), summary(report))
}

const NONE: &str = "-";

fn add(table: &mut Table, row: &Row) {
    let known = |bytes: Option<u64>, show: fn(u64) -> String| bytes.map_or_else(|| NONE.to_owned(), show);
    let image = |golden: [String; 3], download: String| {
        let [name, class, size] = golden;
        let format = row.format.clone().unwrap_or_else(|| NONE.to_owned());
        [row.name.clone(), name, class, size, download, known(row.virtual_size_bytes, exact), format, verdict(row)]
    };
    if row.goldens.is_empty() {
        table.row(image([NONE, NONE, NONE].map(str::to_owned), NONE.to_owned()));
    }
    for (index, golden) in row.goldens.iter().enumerate() {
        let name = golden.name.clone().unwrap_or_else(|| NONE.to_owned());
        let class = golden.storage_class_name.clone().unwrap_or_else(|| "<default>".to_owned());
        // One download serves every target.
        let download = if index == 0 { known(row.download_bytes, rounded) } else { "same".to_owned() };
        table.row(image([name, class, known(golden.size_bytes, exact)], download));
    }
}

fn verdict(row: &Row) -> String {
    let reason = row.problems.first().map(|problem| format!(": {}", problem.reason)).unwrap_or_default();
    match row.verdict {
        Verdict::Good => "Good".to_owned(),
        Verdict::Accepted => "Accepted".to_owned(),
        Verdict::Refused => format!("Refused{reason}"),
        Verdict::Unknown => format!("Unknown{reason}"),
    }
}

/// What is wrong with an image, a line each, in the `file:line:` form that editors follow.
fn story(row: &Row) -> String {
    let mut text = String::new();
    for problem in &row.problems {
        let field = problem.field.as_ref().map(|field| format!(" `{field}`:")).unwrap_or_default();
        let remedy = if problem.remedy.is_empty() { String::new() } else { format!(" {}", problem.remedy) };
        let line = format!("{}:{}: {}: {}:{field} {}{remedy}", row.file, problem.line, row.name, problem.reason, problem.message);
        text.push_str(&printable(&line));
        text.push('\n');
    }
    for warning in &row.warnings {
        text.push_str(&printable(&format!("{}:{}: {}: warning: {warning}", row.file, row.line, row.name)));
        text.push('\n');
    }
    text
}

fn summary(report: &Report) -> String {
    let totals = &report.totals;
    let sum = |bytes: u64, complete: bool| match (bytes, complete) {
        (0, false) => "unknown".to_owned(),
        (bytes, false) => format!("at least {}", rounded(bytes)),
        (bytes, true) => rounded(bytes),
    };
    let plural = |count: usize, one: &str| if count == 1 { format!("{count} {one}") } else { format!("{count} {one}s") };
    let some = |count: usize, what: &str| if count == 0 { String::new() } else { format!(", {count} {what}") };
    let not_known = some(totals.not_asked, "not asked") + &some(totals.not_seen, "not seen");
    format!(
        "{}: {} refused, {} unknown{not_known}. To fetch: {}. To store: {} in {}.",
        plural(totals.images, "image"),
        totals.refused,
        totals.unknown,
        sum(totals.download_bytes, totals.download_is_complete),
        sum(totals.store_bytes, totals.store_is_complete),
        plural(totals.goldens, "golden"),
    )
}

/// A size as a quantity that can be written into a values file.
fn exact(bytes: u64) -> String {
    DiskSize::from_bytes(bytes).map_or_else(|| bytes.to_string(), |size| size.to_string())
}

/// A number of bytes for people, with at most one decimal: `187.5Mi`.
fn rounded(bytes: u64) -> String {
    let (suffix, factor) =
        [("Ti", 1_u64 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)].into_iter().find(|(_, f)| bytes >= *f).unwrap_or(("", 1));
    let tenths = u128::from(bytes) * 10 / u128::from(factor);
    let fraction = if tenths % 10 == 0 { String::new() } else { format!(".{}", tenths % 10) };
    format!("{}{fraction}{suffix}", tenths / 10)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::rounded;

    #[rstest]
    #[case(0, "0")]
    #[case(1023, "1023")]
    #[case(1024, "1Ki")]
    #[case(196_624, "192Ki")]
    #[case(196_608_000, "187.5Mi")]
    #[case(1 << 40, "1Ti")]
    #[case(u64::MAX, "16777215.9Ti")]
    fn bytes_for_people(#[case] bytes: u64, #[case] text: &str) {
        assert_eq!(rounded(bytes), text);
    }
}
