//! What a program makes of one setting that is written for another program.

use std::sync::Arc;

use serde_json::Value;

use super::UnknownKeys;
use super::error::{ConfigProblem, Origin};
use super::keys::{KeyLookup, folded, split};
use super::row::Spec;
use super::values::Values;
use super::yaml::{MappingEntry, YamlNode, YamlValue};

/// What a program makes of one setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingVerdict {
    /// It has its documented effect.
    Taken,
    /// It is accepted without effect, for this reason.
    NoEffect(String),
    /// The program has no such setting; the most similar one, if any.
    Unknown(Option<String>),
    /// The program does not start with it, for this reason, which contains no value.
    Refused(String),
}

const LATER: &str = "this version does not read it";
const ANYWAY: &str = "it asks for what kubesvc does anyway, or its own switch is off";

impl Spec {
    /// The same text for each spelling of a setting.
    pub fn identity(&'static self, key: &str) -> String {
        let Some(path) = split(key) else { return key.to_owned() };
        let path = self.documented_path(&path);
        match self.find(&path) {
            KeyLookup::Setting { id, .. } => id,
            _ => folded(&path),
        }
    }

    /// Judges a setting, given the others of its file, among which may be the switch of its group.
    pub fn judge(
        &'static self,
        key: &str,
        value: &Value,
        beside: &[(impl AsRef<str>, &Value)],
    ) -> SettingVerdict {
        let beside: Vec<_> = beside.iter().map(|(key, value)| entry(key.as_ref(), node(value))).collect();
        let verdict = self.judge_node(key, node(value), beside.clone());
        match (verdict, value.as_array()) {
            // An empty group reads like an empty list.
            (SettingVerdict::Refused(why), Some(items)) if items.is_empty() => {
                let empty = YamlNode { line: 0, value: YamlValue::Map(Vec::new()) };
                match self.judge_node(key, empty, beside) {
                    SettingVerdict::Refused(_) => SettingVerdict::Refused(why),
                    verdict => verdict,
                }
            }
            (verdict, _) => verdict,
        }
    }

    fn judge_node(&'static self, key: &str, node: YamlNode, beside: Vec<MappingEntry>) -> SettingVerdict {
        let file: Arc<str> = "setting".into();
        let group = |entries| YamlNode { line: 0, value: YamlValue::Map(entries) };
        let mut values = Values::new(self);
        values.file(&"beside".into(), &group(beside), UnknownKeys::Warn);
        values.problems.clear();
        values.unread.clear();
        values.file(&file, &group(vec![entry(key, node)]), UnknownKeys::Error);
        values.judge_asked();
        let is_here = |origin: &Origin| matches!(origin, Origin::File { file: of, .. } if *of == file);
        if let Some(problem) = values.problems.iter().find(|problem| problem.origin().is_some_and(is_here)) {
            return match problem {
                ConfigProblem::Unknown { nearest, .. } => SettingVerdict::Unknown(nearest.clone()),
                problem => SettingVerdict::Refused(problem.reason()),
            };
        }
        if let Some(unread) = values.unread.values().next() {
            return SettingVerdict::NoEffect(unread.row.without_effect().unwrap_or(LATER).to_owned());
        }
        match values.slots.values().any(|slot| is_here(&slot.origin)) {
            true => SettingVerdict::Taken,
            false => SettingVerdict::NoEffect(ANYWAY.to_owned()),
        }
    }
}

fn entry(key: &str, node: YamlNode) -> MappingEntry {
    MappingEntry { key: key.to_owned(), line: 0, node }
}

fn node(value: &Value) -> YamlNode {
    let value = match value {
        Value::Null => YamlValue::Null,
        Value::String(text) => YamlValue::Text(text.clone()),
        Value::Bool(_) | Value::Number(_) => YamlValue::Text(value.to_string()),
        Value::Array(items) => YamlValue::List(items.iter().map(node).collect()),
        Value::Object(fields) => {
            YamlValue::Map(fields.iter().map(|(key, value)| entry(key, node(value))).collect())
        }
    };
    YamlNode { line: 0, value }
}
