//! What a dry run shows.

use serde_json::Value;

use super::{INCOMPLETE, SOME_REFUSED};
use crate::arguments::{CommandError, complain};
use kubesvc_runtime::terminal::{self, Format, Table, format, text};

/// Shows a plan as the operator sent it. Fails if an account is refused, or if a source was not read completely.
pub(super) fn show(plan: &Value, output: Option<Format>) -> Result<(), CommandError> {
    let accounts = plan["accounts"].as_array().map(Vec::as_slice).unwrap_or_default();
    let rendered = match output {
        Some(Format::Json) => format::json(plan)?,
        Some(Format::Yaml) => format::yaml(plan)?,
        Some(Format::Name) => accounts
            .iter()
            .filter_map(|one| one["name"].as_str())
            .map(text::line)
            .collect::<Vec<_>>()
            .join("\n"),
        Some(Format::Wide) | None => table(plan, accounts),
    };
    if !rendered.is_empty() {
        terminal::print(&rendered)?;
    }
    let warnings = plan["warnings"].as_array().map(Vec::as_slice).unwrap_or_default();
    warnings.iter().filter_map(Value::as_str).for_each(complain);
    let of = |outcome: &str| accounts.iter().filter(|one| one["outcome"] == outcome).count();
    let refused = of("refused") + of("missing");
    terminal::note(&format!(
        "{} to create, {} exist, {} refused, {} declined; nothing was written.",
        of("create"),
        of("exists"),
        refused,
        of("declined")
    ));
    if let Some(source) = plan["unreadSource"].as_str() {
        complain(&format!(
            "credentials source {source:?} was not read completely, and may have more accounts"
        ));
        return Err(CommandError::Ended(INCOMPLETE));
    }
    if refused > 0 { Err(CommandError::Ended(SOME_REFUSED)) } else { Ok(()) }
}

fn table(plan: &Value, accounts: &[Value]) -> String {
    let cell = |one: &Value, key: &str| text::line(one[key].as_str().unwrap_or_default());
    let mut table = Table::new(vec!["ACCOUNT", "OUTCOME", "SOURCE", "ZONE", "CREDENTIAL", "NOTE"]);
    for one in accounts {
        let reason = one["reason"].as_str().map(|reason| format!("{reason}: ")).unwrap_or_default();
        let mut notes: Vec<String> =
            one["message"].as_str().map(|message| format!("{reason}{message}")).into_iter().collect();
        let texts = |key: &str| one[key].as_array().into_iter().flatten().filter_map(Value::as_str);
        let without_effect: Vec<&str> = texts("withoutEffect").collect();
        if !without_effect.is_empty() {
            notes.push(format!("without effect: {}", without_effect.join(", ")));
        }
        notes.extend(texts("warnings").map(str::to_owned));
        let mut cells: Vec<String> =
            ["name", "outcome", "source", "zoneId", "credential"].map(|key| cell(one, key)).into();
        cells.push(text::line(&notes.join("; ")));
        table.row(cells);
    }
    for one in plan["shadowed"].as_array().into_iter().flatten() {
        let note = format!("source {} has an account of this name", cell(one, "by"));
        let cells = [cell(one, "name"), "shadowed".to_owned(), cell(one, "source")];
        table.row(cells.into_iter().chain([String::new(), String::new(), note]));
    }
    let lines = table.lines();
    if lines.len() < 2 { String::new() } else { lines.join("\n") }
}
