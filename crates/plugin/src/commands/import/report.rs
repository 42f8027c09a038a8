//! The report of an import. Pure. It has keys, names and reasons, and no value of a file or a row.

use kubesvc_runtime::terminal::{Table, text};
use serde::Serialize;

use super::agents::VendorAgent;
use super::rows::{RowLine, RowResult};
use super::settings::{SettingLine, SettingResult};

/// First line where the API of accounts is not served.
const NO_GATEWAY: &str = "The API of accounts (gateway) is not served here: without it, or kubeconfigs of its own, \
                          Clouddriver loses the accounts in step 5, when the plugin is removed, and Spinnaker's deploys end.";
/// In place of the accounts, if the command was given no database.
const NO_DATABASE: &str = "None: give --database for the dynamic accounts.";
const DRY_RUN_NEXT: &str = "Nothing was written. The next step is the same command without --dry-run.";
const INCOMPLETE_NEXT: &str =
    "The next step is the same command again, when what is incomplete can be read and created.";
const NEXT: &str =
    "The next step is 2 of docs/migrate-from-scale-agent.md: kubesvc's agents beside the vendor's.";

/// What was found and done.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ImportReport {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) warning: Option<&'static str>,
    pub(super) dry_run: bool,
    /// The operator's file.
    pub(super) settings_file: String,
    pub(super) settings: Vec<SettingLine>,
    pub(super) agents: Vec<VendorAgent>,
    /// Namespace of the accounts.
    pub(super) namespace: String,
    pub(super) accounts: Vec<RowLine>,
    /// Whether the command was given the database.
    #[serde(skip)]
    pub(super) has_database: bool,
    /// What it lacks, and why.
    pub(super) incomplete: Vec<String>,
}

impl ImportReport {
    /// The warning of an installation with or without the API of accounts.
    pub(super) fn warning(has_gateway: bool) -> Option<&'static str> {
        (!has_gateway).then_some(NO_GATEWAY)
    }

    /// Whether something was refused.
    pub(super) fn has_refusals(&self) -> bool {
        self.settings.iter().any(|one| one.result == SettingResult::Refused)
            || self.agents.iter().any(|one| !one.refused.is_empty())
            || self.accounts.iter().any(|one| one.result == RowResult::Refused)
    }

    /// The report for people.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.warning.iter().map(|warning| text::bold(warning)).collect();
        let written = if self.dry_run { "would be written to" } else { "written to" };
        lines.push(heading(&format!("Settings of the operator, {written} {}", self.settings_file)));
        let mut table = Table::new(vec!["SETTING", "RESULT", "FILE", "REASON"]);
        for one in &self.settings {
            table.row([&one.key, one.result.as_str(), &one.file, &one.reason].map(str::to_owned));
        }
        push(&mut lines, &table, self.settings.len(), "The files have no [armory.]kubesvc settings.");
        for agent in &self.agents {
            self.agent(agent, &mut lines);
        }
        let created = if self.dry_run { "would be created in" } else { "created in" };
        lines.push(heading(&format!("Accounts of kubesvc_accounts, {created} namespace {}", self.namespace)));
        let mut table = Table::new(vec!["NAME", "RESULT", "STATUS", "DESIRED", "ZONE", "REASON"]);
        for one in &self.accounts {
            let zone = one.zone_id.clone().unwrap_or_default();
            let desired = one.desired_state.unwrap_or_default().to_owned();
            let (result, status) = (one.result.as_str().to_owned(), one.status.clone());
            table.row([one.name.clone(), result, status, desired, zone, one.reason.clone()]);
        }
        let none = if self.has_database { "The table has no rows." } else { NO_DATABASE };
        push(&mut lines, &table, self.accounts.len(), none);
        if !self.incomplete.is_empty() {
            lines.push(heading("Incomplete"));
            lines.extend(self.incomplete.iter().map(|why| format!("  {}", text::line(why))));
        }
        let next = match (self.dry_run, self.incomplete.is_empty()) {
            (true, _) => DRY_RUN_NEXT,
            (false, true) => NEXT,
            (false, false) => INCOMPLETE_NEXT,
        };
        lines.extend([String::new(), next.to_owned()]);
        lines
    }

    fn agent(&self, agent: &VendorAgent, lines: &mut Vec<String>) {
        lines.push(heading(&format!("Agent of {}", text::line(&agent.config))));
        let zones: Vec<_> = agent.zone_ids.iter().map(|zone| text::line(zone)).collect();
        lines.push(match (agent.zone_is_written, zones.as_slice()) {
            (true, zones) => format!("  zoneId: {}, as the files say", zones.join(" ")),
            (false, []) => {
                "  zoneId: DEPLOYMENT_NAMESPACE of the vendor's agent; kubesvc's agent must set it".to_owned()
            }
            (false, zones) => format!("  zoneId: {}; kubesvc's agent must set it", zones.join(" or ")),
        });
        let mut table = Table::new(vec!["ACCOUNT", "CREDENTIAL"]);
        for one in &agent.accounts {
            table.row([one.name.clone(), one.credential.clone()]);
        }
        push(lines, &table, agent.accounts.len(), "The files have no accounts.");
        let listed = [("refused", &agent.refused), ("ignored", &agent.ignored)];
        for (what, all) in listed {
            lines.extend(all.iter().map(|one| format!("  {what}: {}", text::line(one))));
        }
    }
}

fn heading(text: &str) -> String {
    format!("\n{}:", text::bold(&text::line(text)))
}

fn push(lines: &mut Vec<String>, table: &Table, rows: usize, none: &str) {
    match rows {
        0 => lines.push(format!("  {none}")),
        _ => lines.extend(table.lines().into_iter().map(|line| format!("  {line}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_says_what_ends_without_the_gateway() {
        let mut report = ImportReport {
            warning: ImportReport::warning(false),
            dry_run: true,
            settings_file: "kubesvc.yml".to_owned(),
            settings: Vec::new(),
            agents: Vec::new(),
            namespace: "spin".to_owned(),
            accounts: Vec::new(),
            has_database: false,
            incomplete: vec!["a\x1bb".to_owned()],
        };
        let lines = report.lines();
        assert!(lines[0].contains("step 5") && lines[0].contains("deploys end"), "{lines:?}");
        assert!(lines.iter().any(|line| line.contains("a\\u{1b}b")), "{lines:?}");
        assert!(lines.iter().any(|line| line.contains("give --database")), "{lines:?}");
        report.has_database = true;
        assert!(report.lines().iter().any(|line| line.contains("has no rows")));
        for (dry_run, incomplete, part) in [
            (true, vec!["a".to_owned()], "without --dry-run"),
            (false, vec!["a".to_owned()], "same command again"),
            (false, Vec::new(), "next step is 2"),
        ] {
            (report.dry_run, report.incomplete) = (dry_run, incomplete);
            let last = report.lines().pop().unwrap_or_default();
            assert!(last.contains(part), "{last:?} lacks {part:?}");
        }
        report.warning = ImportReport::warning(true);
        assert!(!report.lines().join("\n").contains("step 5"));
        assert!(!report.has_refusals());
    }
}
