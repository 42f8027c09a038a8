//! The `logging` settings of both programs.

use std::collections::BTreeMap;

use super::error::ConfigProblem;
use super::setting_type::SettingType;
use super::table::{SettingRow, inert, read};
use super::values::Values;

/// Logging settings of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggingSettings {
    /// The minimum level that is written.
    pub level: LogLevel,
    /// The format of a line.
    pub format: LogFormat,
    /// Constant fields on each line. Their names are chosen by the user.
    pub fields: BTreeMap<String, String>,
}

impl Default for LoggingSettings {
    fn default() -> Self {
        Self { level: LogLevel::Info, format: LogFormat::Auto, fields: BTreeMap::new() }
    }
}

/// The minimum level that is written. The documented `panic` and `fatal` are read as [`LogLevel::Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// What needs a person.
    Error,
    /// Also what may come to need a person.
    Warn,
    /// Also what a person would want to know afterwards.
    Info,
    /// Also each step of kubesvc itself; libraries stay at [`LogLevel::Info`].
    Debug,
    /// Also everything else that kubesvc logs; libraries stay at [`LogLevel::Info`].
    Trace,
}

/// The format of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line, for machines.
    Json,
    /// [`LogFormat::Text`] on a terminal, [`LogFormat::Json`] otherwise.
    Auto,
}

const LEVELS: SettingType =
    SettingType::Choice(&["panic", "fatal", "error", "warn", "warning", "info", "debug", "trace"]);
const FORMATS: SettingType = SettingType::Choice(&["text", "json", "auto"]);
const ROTATION: &str = "logs go to standard output, where the container runtime keeps and rotates them";

/// The settings of both programs.
pub(crate) const ROWS: &[SettingRow] = &[
    read("logging.level", LEVELS, "info", "least level written; RUST_LOG stands over it"),
    read("logging.format", FORMATS, "auto", "text or json; auto is text on a terminal and json otherwise"),
    read("logging.fields.*", SettingType::Text { max: 1024 }, "", "a constant field on each log line"),
];

/// The documented log file settings, which exist only in the agent's file.
pub(crate) const FILE_ROWS: &[SettingRow] = &[
    inert("logging.file", ROTATION, "log file"),
    inert("logging.multiWrite", ROTATION, "log file and standard output at once"),
    inert("logging.maxSizeMb", ROTATION, "size at which the log file is rotated"),
    inert("logging.maxAgeDays", ROTATION, "age of the oldest log file"),
    inert("logging.maxBackups", ROTATION, "number of rotated log files"),
    inert("logging.localTime", "log times are always UTC", "local time in logs"),
    inert("logging.compress", ROTATION, "compression of rotated log files"),
];

pub(crate) fn build(values: &Values) -> Result<LoggingSettings, ConfigProblem> {
    let level = match values.string("logging.level")?.as_str() {
        "panic" | "fatal" | "error" => LogLevel::Error,
        "warn" | "warning" => LogLevel::Warn,
        "debug" => LogLevel::Debug,
        "trace" => LogLevel::Trace,
        _ => LogLevel::Info,
    };
    let format = match values.string("logging.format")?.as_str() {
        "text" => LogFormat::Text,
        "json" => LogFormat::Json,
        _ => LogFormat::Auto,
    };
    Ok(LoggingSettings { level, format, fields: values.names("logging.fields") })
}
