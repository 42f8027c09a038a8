//! From the plugin's settings in Clouddriver's files to the operator's file. Pure.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;

use kubesvc_clouddriver::sources::{Completeness, FileSettings};
use kubesvc_runtime::config::{ConfigError, SettingVerdict, Spec};
use serde::Serialize;
use serde_json::{Number, Value};

/// The roots of the plugin's settings; the second one is Armory CD's, from 2.38.
pub(crate) const ROOTS: [&str; 2] = ["kubesvc", "armory.kubesvc"];
const OTHER_SPELLING: &str = "another spelling of it, or a higher file, sets it too";
const BOTH_ROOTS: &str = "kubesvc and armory.kubesvc set it differently: keep the one that Clouddriver reads";

/// The settings of files, judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportedSettings {
    /// Each setting, in the order of the files.
    pub lines: Vec<SettingLine>,
    /// The operator's file: a line for each setting that is taken, in the same order.
    pub file: String,
    /// Why the files may not have all of Clouddriver's settings.
    pub incomplete: Option<String>,
}

/// One setting, without its value, which may be a credential.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SettingLine {
    /// The key, as it is written.
    pub key: String,
    /// Name of the file.
    pub file: String,
    /// What becomes of it.
    pub result: SettingResult,
    /// Why.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// What becomes of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SettingResult {
    /// It is in the operator's file.
    Taken,
    /// kubesvc has no use for it.
    WithoutEffect,
    /// kubesvc does not know it.
    Unknown,
    /// The operator would not start with it.
    Refused,
}

impl SettingResult {
    /// As a table shows it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Taken => "taken",
            Self::WithoutEffect => "without effect",
            Self::Unknown => "unknown",
            Self::Refused => "refused",
        }
    }
}

impl ImportedSettings {
    /// Refuses the settings that the operator does not accept beside the others. `check` reads the file as it does.
    ///
    /// # Errors
    /// The operator refuses the file for something that is in no line of it.
    pub fn refuse_unfit(
        &mut self,
        check: impl Fn(&str) -> Result<(), ConfigError>,
    ) -> Result<(), ConfigError> {
        while let Err(error) = check(&self.file) {
            let problems = error.problems.iter();
            let unfit: BTreeMap<usize, String> =
                problems.filter_map(|problem| Some((problem.line()?, problem.reason()))).collect();
            let taken = self.lines.iter_mut().filter(|line| line.result == SettingResult::Taken);
            let mut is_changed = false;
            for (line, number) in taken.zip(1..) {
                if let Some(why) = unfit.get(&number) {
                    (line.result, line.reason) = (SettingResult::Refused, why.clone());
                    is_changed = true;
                }
            }
            if !is_changed {
                return Err(error);
            }
            let kept = self.file.lines().zip(1..).filter(|(_, number)| !unfit.contains_key(number));
            self.file = kept.map(|(line, _)| format!("{line}\n")).collect();
        }
        Ok(())
    }
}

/// Judges the settings by those of the operator.
pub fn judged(spec: &'static Spec, found: &FileSettings) -> ImportedSettings {
    let values: Vec<(String, &str, &Value)> = found
        .settings
        .iter()
        .filter_map(|one| Some((spec.identity(&one.key), one.key.as_str(), one.value.as_ref().ok()?)))
        .collect();
    let mut seen = HashSet::new();
    let (mut lines, mut file) = (Vec::new(), String::new());
    for one in &found.settings {
        let identity = spec.identity(&one.key);
        let said = match &one.value {
            _ if !seen.insert(identity.clone()) => (SettingResult::WithoutEffect, OTHER_SPELLING.to_owned()),
            Err(why) => (SettingResult::Refused, why.clone()),
            Ok(value) if contradicts(&values, &identity, root(&one.key), value) => {
                (SettingResult::Refused, BOTH_ROOTS.to_owned())
            }
            Ok(value) => {
                let switches = switches(&values, &identity);
                match spec.judge(&one.key, value, &switches) {
                    SettingVerdict::Taken => {
                        // A key in JSON's quotes, and a value in YAML's flow style, which contains JSON.
                        let key = Value::from(below_kubesvc(&one.key));
                        let _ = writeln!(
                            file,
                            "{key}: {}  # {}",
                            scalars(value),
                            one.file.replace(char::is_control, "?")
                        );
                        (SettingResult::Taken, String::new())
                    }
                    SettingVerdict::NoEffect(why) => (SettingResult::WithoutEffect, why),
                    SettingVerdict::Unknown(None) => (SettingResult::Unknown, String::new()),
                    SettingVerdict::Unknown(Some(near)) => {
                        (SettingResult::Unknown, format!("the nearest one is {near}"))
                    }
                    SettingVerdict::Refused(why) => (SettingResult::Refused, why),
                }
            }
        };
        let (result, reason) = said;
        lines.push(SettingLine { key: one.key.clone(), file: one.file.clone(), result, reason });
    }
    let incomplete = match &found.completeness {
        Completeness::Complete => None,
        Completeness::Partial(why) | Completeness::Unread(why) => Some(why.clone()),
    };
    ImportedSettings { lines, file, incomplete }
}

fn root(key: &str) -> &str {
    if key.starts_with("armory.") { ROOTS[1] } else { ROOTS[0] }
}

/// The key below the root that the operator's file has.
fn below_kubesvc(key: &str) -> &str {
    key.strip_prefix("armory.").unwrap_or(key)
}

/// Whether the other root gives the setting another value. Which of them Clouddriver reads depends on its version.
fn contradicts(values: &[(String, &str, &Value)], identity: &str, of: &str, value: &Value) -> bool {
    let other = values.iter().find(|(same, key, _)| same == identity && root(key) != of);
    other.is_some_and(|(_, _, other)| *other != value)
}

/// The switches of the groups of a setting.
fn switches<'v>(values: &[(String, &'v str, &'v Value)], of: &str) -> Vec<(&'v str, &'v Value)> {
    let is_switch = |identity: &str| {
        identity != of && identity.strip_suffix("enabled").is_some_and(|group| of.starts_with(group))
    };
    let mut seen = HashSet::new();
    let found = values.iter().filter(|(identity, ..)| is_switch(identity) && seen.insert(identity.as_str()));
    found.map(|(_, key, value)| (*key, *value)).collect()
}

/// Numbers and flags without quotes.
fn scalars(value: &Value) -> Value {
    match value {
        Value::String(text) => match text.as_str() {
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            _ => match text.parse::<i64>() {
                Ok(number) if number.to_string() == *text => Value::Number(Number::from(number)),
                _ => value.clone(),
            },
        },
        Value::Array(items) => items.iter().map(scalars).collect(),
        Value::Object(fields) => {
            Value::Object(fields.iter().map(|(key, value)| (key.clone(), scalars(value))).collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}
