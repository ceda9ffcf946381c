/// A table of left-aligned columns, as kubectl prints it.
#[derive(Debug, Clone)]
pub struct Table {
    header: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these column heads.
    pub fn new(header: impl IntoIterator<Item = &'static str>) -> Self {
        Self { header: header.into_iter().collect(), rows: Vec::new() }
    }

    /// Adds a row; control characters are taken out, since a hostile name must not move the cursor.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| printable(&cell)).collect());
    }

    /// The table as text, each line ended.
    pub fn render(&self) -> String {
        let header: Vec<String> = self.header.iter().map(ToString::to_string).collect();
        let width = |column: usize| {
            std::iter::once(&header).chain(&self.rows).filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..header.len()).map(width).collect();
        let mut text = String::new();
        for row in std::iter::once(&header).chain(&self.rows) {
            let line: Vec<_> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            text.push_str(line.join("   ").trim_end());
            text.push('\n');
        }
        text
    }
}

/// `text` without control characters, and without those that turn the direction of what follows or are not seen (Unicode
/// TR 36, "Bidirectional Text Spoofing").
pub(super) fn printable(text: &str) -> String {
    let is_unseen =
        |c: char| matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    text.chars().map(|c| if c.is_control() || is_unseen(c) { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::Table;

    #[test]
    fn columns_line_up_and_hostile_text_is_harmless() {
        let mut table = Table::new(["NAME", "READY"]);
        table.row(["a".into(), "True".into()]);
        table.row(["longer\u{1b}[2J".into(), String::new()]);
        table.row(["a\u{202e}b".into(), String::new()]);
        assert_eq!(table.render(), "NAME         READY\na            True\nlonger [2J\na b\n");
    }
}
