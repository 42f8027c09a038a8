//! Aligned output: columns as kubectl aligns them (uppercase headings, three spaces between columns, no borders), and
//! sections of fields.

use comfy_table::presets::NOTHING;
use comfy_table::{Cell, ContentArrangement};

use super::text;

/// Placeholder for an empty cell, so that columns can be split at white space.
const NO_VALUE: &str = "<none>";

/// A builder of a table. Cells are escaped for a terminal when they are added.
#[derive(Clone, Debug)]
pub struct Table {
    headings: Vec<&'static str>,
    rows: Vec<Vec<String>>,
    /// Index of the column whose cells are colored as states.
    state: Option<usize>,
}

impl Table {
    /// Creates a table with these headings.
    pub fn new(headings: Vec<&'static str>) -> Self {
        let state = headings.iter().position(|heading| *heading == "STATE");
        Self { headings, rows: Vec::new(), state }
    }

    /// Adds a row with a cell for each heading. An empty cell is shown as `<none>`.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let shown = |cell: String| {
            let cell = text::line(&cell);
            if cell.is_empty() { NO_VALUE.to_owned() } else { cell }
        };
        self.rows.push(cells.into_iter().map(shown).collect());
    }

    /// Returns the lines of the table with colored states, the headings first.
    pub fn lines(&self) -> Vec<String> {
        let mut table = comfy_table::Table::new();
        table.load_style(NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(self.headings.iter().map(Cell::new));
        for row in &self.rows {
            table.add_row(row.iter().map(Cell::new));
        }
        for column in table.column_iter_mut() {
            column.set_padding((0, 3));
        }
        let mut lines: Vec<_> = table.lines().map(|line| line.trim_end().to_owned()).collect();
        if let Some(state) = self.state {
            for (line, row) in lines.iter_mut().skip(1).zip(&self.rows) {
                colour(line, row, state);
            }
        }
        lines
    }
}

/// Colors the cell of one column. The cells occur in the line in order with only spaces between them, so each cell is
/// the first match after the previous one.
fn colour(line: &mut String, row: &[String], column: usize) {
    let mut at = 0;
    for (index, cell) in row.iter().enumerate() {
        let Some(found) = line.get(at..).and_then(|rest| rest.find(cell.as_str())) else { return };
        let (begin, end) = (at + found, at + found + cell.len());
        if index == column {
            line.replace_range(begin..end, &text::colored_state(cell));
            return;
        }
        at = end;
    }
}

/// A builder of sections of aligned `Name:  value` lines. Each line is a heading, or a name with a value at some
/// depth.
#[derive(Clone, Debug, Default)]
pub struct Fields {
    lines: Vec<FieldLine>,
}

#[derive(Clone, Debug)]
enum FieldLine {
    Heading(String),
    Field(usize, String, String),
    Text(String),
}

impl Fields {
    /// Adds a section heading. The fields that follow are indented.
    pub fn section(&mut self, heading: &str) {
        self.lines.push(FieldLine::Heading(heading.to_owned()));
    }

    /// Adds a field at the top level.
    pub fn top(&mut self, name: &str, value: impl AsRef<str>) {
        self.push(0, name, value.as_ref());
    }

    /// Adds a field of a section.
    pub fn field(&mut self, name: &str, value: impl AsRef<str>) {
        self.push(1, name, value.as_ref());
    }

    /// Adds a field of a section if it has a value.
    pub fn optional(&mut self, name: &str, value: Option<impl AsRef<str>>) {
        if let Some(value) = value.filter(|value| !value.as_ref().is_empty()) {
            self.field(name, value);
        }
    }

    /// Adds lines of a section that are already aligned, such as those of a table.
    pub fn lines(&mut self, lines: impl IntoIterator<Item = String>) {
        self.lines.extend(lines.into_iter().map(FieldLine::Text));
    }

    fn push(&mut self, depth: usize, name: &str, value: &str) {
        self.lines.push(FieldLine::Field(depth, text::line(name), text::line(value)));
    }

    /// Renders all lines with the values aligned in one column.
    pub fn render(&self) -> String {
        let width = self.lines.iter().map(|line| match line {
            FieldLine::Field(depth, name, _) => depth * 2 + name.chars().count() + 1,
            FieldLine::Heading(_) | FieldLine::Text(_) => 0,
        });
        let width = width.max().unwrap_or_default() + 2;
        let mut out = String::new();
        for line in &self.lines {
            let text = match line {
                FieldLine::Heading(heading) => format!("{heading}:"),
                FieldLine::Text(text) => format!("  {text}"),
                FieldLine::Field(depth, name, value) => {
                    let name = format!("{}{name}:", "  ".repeat(*depth));
                    let value =
                        if name.trim() == "State:" { text::colored_state(value) } else { value.clone() };
                    format!("{name:width$}{value}")
                }
            };
            out.push_str(text.trim_end());
            out.push('\n');
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: &[[&str; 3]]) -> Vec<String> {
        let mut table = Table::new(vec!["NAME", "STATE", "ZONE"]);
        for row in rows {
            table.row(row.map(str::to_owned));
        }
        table.lines()
    }

    #[test]
    fn columns_are_aligned_and_lines_have_no_trailing_spaces() {
        let lines = table(&[["a", "INACTIVE", "east"], ["longer-name", "TO_MIGRATE", ""]]);
        assert_eq!(
            lines,
            [
                "NAME          STATE        ZONE",
                "a             INACTIVE     east",
                "longer-name   TO_MIGRATE   <none>"
            ]
        );
    }

    #[test]
    fn a_state_is_coloured_in_its_own_column_alone() {
        let lines = table(&[["ACTIVE", "ACTIVE", "FAILED"]]);
        assert_eq!(lines[1], "ACTIVE   \x1b[32mACTIVE\x1b[0m   FAILED");
    }

    #[test]
    fn wide_and_hostile_text_keeps_the_columns_and_the_terminal() {
        let lines = table(&[["東京", "FAILED", "x\x1b[2J"], ["ab\ncd", "FAILED", "y"]]);
        assert_eq!(lines[1], "東京    \x1b[31mFAILED\x1b[0m   x\\u{1b}[2J");
        assert_eq!(lines[2], "ab cd   \x1b[31mFAILED\x1b[0m   y");
        assert_eq!(lines.len(), 3);
    }

    #[test]
    fn values_stand_in_one_column() {
        let mut fields = Fields::default();
        fields.top("Name", "prod");
        fields.section("Status");
        fields.field("Kube Version", "v1.36.3");
        fields.optional("Zone", Some(""));
        fields.optional("Message", Some("two\nlines\x1b"));
        let expected =
            "Name:            prod\nStatus:\n  Kube Version:  v1.36.3\n  Message:       two lines\\u{1b}\n";
        assert_eq!(fields.render(), expected);
    }
}
