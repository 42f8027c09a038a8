//! Sections of aligned `Name:  value` lines.

use super::{style, text};

/// A builder of lines. Each line is a heading, or a name with a value at some depth.
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
                    let value = if name.trim() == "State:" { style::state(value) } else { value.clone() };
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
