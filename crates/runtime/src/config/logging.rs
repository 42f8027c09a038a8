//! The `logging` settings of both programs.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::group::{FromSetting, key, names};
use super::kind::SettingType;

const LEVELS: SettingType =
    SettingType::Choice(&["panic", "fatal", "error", "warn", "warning", "info", "debug", "trace"]);
const FORMATS: SettingType = SettingType::Choice(&["text", "json", "auto"]);

crate::settings! {
    /// Logging settings of a program.
    pub struct LoggingSettings {
        /// least level written; RUST_LOG stands over it
        level: LogLevel = key("level", LEVELS, "info");
        /// text or json; auto is text on a terminal and json otherwise
        format: LogFormat = key("format", FORMATS, "auto");
        /// a constant field on each log line
        fields: BTreeMap<String, String> = names("fields.*", SettingType::Text(1024));
    }
}

impl Default for LoggingSettings {
    fn default() -> Self {
        Self { level: LogLevel::Info, format: LogFormat::Auto, fields: BTreeMap::new() }
    }
}

/// The minimum level that is written. The documented `panic` and `fatal` are read as [`LogLevel::Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// What needs a person.
    #[serde(alias = "panic", alias = "fatal")]
    Error,
    /// Also what may come to need a person.
    #[serde(alias = "warning")]
    Warn,
    /// Also what a person would want to know afterwards.
    Info,
    /// Also each step of kubesvc itself; libraries stay at [`LogLevel::Info`].
    Debug,
    /// Also everything else that kubesvc logs; libraries stay at [`LogLevel::Info`].
    Trace,
}

/// The format of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line, for machines.
    Json,
    /// [`LogFormat::Text`] on a terminal, [`LogFormat::Json`] otherwise.
    Auto,
}

impl FromSetting for LogLevel {}
impl FromSetting for LogFormat {}
