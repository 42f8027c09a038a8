//! Settings of the two programs: YAML in the documented shape, the environment, and flags.
//!
//! Precedence from lowest to highest: defaults, each file in order, the environment, flags ([`Loaded::set`]). Keys
//! match regardless of case, hyphens and underscores, and dotted keys are nested keys, as in Spring. Each
//! program has structs of its own, written with [`settings!`](crate::settings), whose fields declare their keys, and one
//! list of the keys without effect; the checks, `--print-config`, the reference and the schema derive from these
//! ([`Spec`]). All mistakes are reported at once, each with file, line and key; secrets are never shown.
//!
//! `null` leaves a setting unchanged. `false`, `0` and empty lists set it.

mod error;
mod group;
mod keys;
mod kind;
mod layer;
mod print;
mod row;
mod schema;
mod values;
mod verdict;
mod yaml;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

use clap::ValueEnum;
use serde::Deserialize;

pub use error::{ConfigError, ConfigProblem, Origin};
pub use group::{
    DatabaseUrl, FromSetting, Group, Key, LimitsAt, Password, Reader, Rows, Source, group, key, list, named,
    names, parsed,
};
pub use keys::fold;
pub use kind::*;
pub use print::redact_url;
pub use row::{FileShape, RefusalRule, SettingRow, SettingUse, Spec, Unread};
pub use values::{SettingList, Values};
pub use verdict::SettingVerdict;
pub use yaml::{MAX_BYTES as MAX_FILE_BYTES, MappingEntry, YamlNode, YamlValue, shown};

/// How to treat a key that is in no table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum UnknownKeys {
    /// Exit with an error.
    #[default]
    Error,
    /// Log a warning and ignore the key.
    Warn,
}

/// The settings of a program.
pub trait Settings: Group {
    /// Every key of the program.
    fn spec() -> &'static Spec;

    /// Warnings about settings that contradict each other, one line each.
    ///
    /// # Errors
    /// Settings that cannot be read.
    fn notes(_values: &Values) -> Result<Vec<String>, ConfigError> {
        Ok(Vec::new())
    }
}

/// Settings with the origin of each.
pub struct Loaded<T> {
    /// The effective settings.
    pub settings: T,
    /// Warnings for the log, one line each.
    pub warnings: Vec<String>,
    values: Values,
}

impl<T: Settings> Loaded<T> {
    /// Overrides the setting with this documented key by a command-line flag. Lists are comma-separated.
    ///
    /// # Errors
    /// The value is not allowed, or no setting has the key. The settings are then unchanged.
    pub fn set(&mut self, key: &str, value: &str, flag_name: &str) -> Result<(), ConfigError> {
        self.values.flag(key, value, flag_name)?;
        self.settings = T::read(&Reader::new(&self.values))?;
        Ok(())
    }

    /// Every setting that is read, as YAML that can be loaded again, each with its origin in a comment. Secrets are
    /// redacted. Settings that are accepted but not read, and unknown keys, are listed at the end.
    pub fn print(&self) -> String {
        print::effective(&self.values)
    }

    /// The origin of a setting, by its documented key; `None` for a key that is not read.
    pub fn origin(&self, key: &str) -> Option<&Origin> {
        self.values.slots.get(&fold(key)).map(|slot| &slot.origin)
    }

    /// The documented keys of settings whose values differ in `other`. A list of groups counts as one.
    pub fn differences(&self, other: &Self) -> Vec<&'static str> {
        let value = |values: &Values, id: &String| values.slots.get(id).map(|slot| slot.value.clone());
        let ids = self.values.slots.iter().chain(&other.values.slots);
        let differing = ids.filter(|(id, _)| value(&self.values, id) != value(&other.values, id));
        let keys: BTreeSet<_> =
            differing.map(|(_, slot)| slot.row.key.split("[]").next().unwrap_or_default()).collect();
        keys.into_iter().collect()
    }

    /// Reads the files, of which later ones override earlier ones, and the environment, which overrides them all.
    ///
    /// # Errors
    /// Everything that is wrong with the files and the environment.
    pub fn read(
        files: &[PathBuf],
        env: &dyn Fn(&str) -> Option<String>,
        unknown: UnknownKeys,
    ) -> Result<Self, ConfigError> {
        let mut values = Values::new(T::spec());
        for path in files {
            match yaml::read(path) {
                Ok((file, root)) => values.file(&file, &root, unknown),
                Err(problem) => values.problems.push(problem),
            }
        }
        values.environment(env);
        values.finish()?;
        let settings = T::read(&Reader::new(&values))?;
        let mut warnings = std::mem::take(&mut values.warnings);
        warnings.extend(T::notes(&values)?);
        Ok(Self { settings, warnings, values })
    }
}

/// Files read for a report, also with problems that keep a program from starting.
pub struct InspectedSettings<T> {
    /// The settings without those that have a problem; `None` if what is left does not go together.
    pub settings: Option<T>,
    /// What keeps the program from starting.
    pub problems: Vec<ConfigProblem>,
    /// What the program warns of.
    pub warnings: Vec<String>,
}

impl<T: Settings> InspectedSettings<T> {
    /// Reads the files like [`Loaded::read`], without an environment.
    pub fn read(files: &[PathBuf]) -> Self {
        let mut values = Values::new(T::spec());
        for path in files {
            match yaml::read(path) {
                Ok((file, root)) => values.file(&file, &root, UnknownKeys::Error),
                Err(problem) => values.problems.push(problem),
            }
        }
        let mut problems = values.finish().err().map(|error| error.problems).unwrap_or_default();
        let settings = T::read(&Reader::new(&values));
        let settings = settings.map_err(|error| problems.extend(error.problems)).ok();
        Self { settings, problems, warnings: std::mem::take(&mut values.warnings) }
    }
}

/// Prints the same as [`Loaded::print`], which contains no secrets.
impl<T: Settings> fmt::Debug for Loaded<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.print())
    }
}

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
