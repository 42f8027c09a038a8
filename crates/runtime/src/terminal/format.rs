//! Objects as JSON and YAML, safe for a terminal.

use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Value, json};

use super::OutputError;
use super::text::is_hidden;

/// Output format of `-o`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// JSON.
    Json,
    /// YAML.
    Yaml,
    /// Table with more columns.
    Wide,
    /// One `RESOURCE/NAME` per line.
    Name,
}

/// Formats a value as indented JSON. Characters that could control a terminal are written as escapes such as
/// `\u001b`, which have the same meaning.
///
/// # Errors
///
/// The value has a map with keys that are not strings.
pub fn json(value: &impl Serialize) -> Result<String, OutputError> {
    let text = serde_json::to_string_pretty(value).map_err(OutputError::Json)?;
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        // Outside strings, JSON has no such character except the line feed.
        if is_hidden(character) && character != '\n' {
            out.push_str(&format!("\\u{:04x}", u32::from(character)));
        } else {
            out.push(character);
        }
    }
    Ok(out)
}

/// Formats a value as YAML. Text that could control a terminal is double-quoted and escaped.
///
/// # Errors
///
/// Same as [`json`].
pub fn yaml(value: &impl Serialize) -> Result<String, OutputError> {
    let value = serde_json::to_value(value).map_err(OutputError::Json)?;
    // JSON is YAML: a value whose text YAML would print unescaped is written as JSON instead.
    if any_text(&value, &|text| text.chars().any(|c| is_hidden(c) && c != '\n')) {
        return json(&value);
    }
    serde_saphyr::to_string(&value).map_err(OutputError::Yaml)
}

fn any_text(value: &Value, holds: &impl Fn(&str) -> bool) -> bool {
    match value {
        Value::String(text) => holds(text),
        Value::Array(all) => all.iter().any(|one| any_text(one, holds)),
        Value::Object(all) => all.iter().any(|(key, one)| holds(key) || any_text(one, holds)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Wraps objects in a `List`, as kubectl prints several of them.
pub fn list(items: &[Value]) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": items, "metadata": {"resourceVersion": ""}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_and_yaml_read_back_as_what_they_were_and_steer_no_terminal() {
        let hostile = json!({"a": "esc \x1b[2J csi \u{9b} del \x7f rtl \u{202e}", "b": ["two\nlines", 1, null, "yes", "1"]});
        let plain = json!({"a": "two\nlines", "b": ["no", "0x1f", "- x", "a: b", " ", "", 1.5, true]});
        for value in [hostile, plain] {
            let (json, yaml) = (json(&value).expect("JSON"), yaml(&value).expect("YAML"));
            for text in [&json, &yaml] {
                assert!(!text.chars().any(|c| is_hidden(c) && c != '\n'), "{text:?}");
            }
            assert_eq!(serde_json::from_str::<Value>(&json).expect("JSON"), value);
            assert_eq!(serde_saphyr::from_str::<Value>(&yaml).expect("YAML"), value, "{yaml}");
        }
    }
}
