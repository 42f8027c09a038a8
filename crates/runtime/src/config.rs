//! Settings of the two programs: YAML in the documented shape, the environment, and flags.
//!
//! Precedence from lowest to highest: defaults, each file in order, the environment, flags ([`Loaded::set`]). Keys
//! match regardless of case, hyphens and underscores, and dotted keys are nested keys, as in Spring. One table per
//! program (`operator/keys.rs`, `agent/keys.rs`) lists the keys; the checks, `--print-config` and the [`reference()`]
//! derive from it. All mistakes are reported at once, each with file, line and key; secrets are never shown.
//!
//! `null` leaves a setting unchanged. `false`, `0` and empty lists set it.

pub mod agent;
pub mod operator;

mod error;
mod layer;
mod logging;
mod print;
mod schema;
mod setting_type;
mod table;
#[cfg(test)]
mod tests;
mod values;
mod yaml;

use std::collections::BTreeSet;
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use clap::ValueEnum;

pub use error::{ConfigError, ConfigProblem, Origin};
pub use logging::{LogFormat, LogLevel, LoggingSettings};
pub use print::redact_url;
pub use setting_type::RolePermissions;
pub use yaml::MAX_BYTES as MAX_FILE_BYTES;

use agent::AgentSettings;
use operator::OperatorSettings;
use table::Spec;
use values::Values;

/// How to treat a key that is in no table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum UnknownKeys {
    /// Exit with an error.
    #[default]
    Error,
    /// Log a warning and ignore the key.
    Warn,
}

/// The program that a list of settings is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingsProgram {
    /// `kubesvc-operator`
    Operator,
    /// `kubesvc-agent`
    Agent,
}

impl SettingsProgram {
    fn spec(self) -> &'static Spec {
        match self {
            Self::Operator => &operator::SPEC,
            Self::Agent => &agent::SPEC,
        }
    }
}

/// Settings with the origin of each.
pub struct Loaded<T> {
    /// The effective settings.
    pub settings: T,
    /// Warnings for the log, one line each.
    pub warnings: Vec<String>,
    values: Values,
    build: fn(&Values) -> Result<T, ConfigError>,
}

impl<T> Loaded<T> {
    /// Overrides the setting with this documented key by a command-line flag. Lists are comma-separated.
    ///
    /// # Errors
    /// The value is not allowed, or no setting has the key. The settings are then unchanged.
    pub fn set(&mut self, key: &str, value: &str, flag_name: &str) -> Result<(), ConfigError> {
        self.values.flag(key, value, flag_name)?;
        self.settings = (self.build)(&self.values)?;
        Ok(())
    }

    /// Every setting that is read, as YAML that can be loaded again, each with its origin in a comment. Secrets are
    /// redacted. Settings that are accepted but not read, and unknown keys, are listed at the end.
    pub fn print(&self) -> String {
        print::effective(&self.values)
    }

    /// The origin of a setting, by its documented key; `None` for a key that is not read.
    pub fn origin(&self, key: &str) -> Option<&Origin> {
        self.values.slots.get(key).map(|slot| &slot.origin)
    }

    /// The documented keys of settings whose values differ in `other`. A list of groups counts as one.
    pub fn differences(&self, other: &Self) -> Vec<&'static str> {
        let value = |values: &Values, id: &String| values.slots.get(id).map(|slot| slot.value.clone());
        let ids = self.values.slots.iter().chain(&other.values.slots);
        let differing = ids.filter(|(id, _)| value(&self.values, id) != value(&other.values, id));
        let keys: BTreeSet<_> =
            differing.map(|(_, slot)| slot.row.key.split("[]").next().unwrap_or(slot.row.key)).collect();
        keys.into_iter().collect()
    }

    fn read(
        spec: &'static Spec,
        build: fn(&Values) -> Result<T, ConfigError>,
        files: &[PathBuf],
        env: &dyn Fn(&str) -> Option<String>,
        unknown: UnknownKeys,
    ) -> Result<Self, ConfigError> {
        let mut values = Values::new(spec);
        for path in files {
            match yaml::read(path) {
                Ok((file, root)) => values.file(&file, &root, unknown),
                Err(problem) => values.problems.push(problem),
            }
        }
        values.environment(env);
        values.finish()?;
        let (settings, warnings) = (build(&values)?, std::mem::take(&mut values.warnings));
        Ok(Self { settings, warnings, values, build })
    }
}

/// Prints the same as [`Loaded::print`], which contains no secrets.
impl<T> fmt::Debug for Loaded<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.print())
    }
}

/// Loads the operator's settings. The files may be Clouddriver's own: only `kubesvc`, `armory.kubesvc`, `server` and
/// `logging` are read. Later files override earlier ones, and `env` overrides them all.
///
/// # Errors
/// Everything that is wrong with the files and the environment.
pub fn load_operator(
    files: &[PathBuf],
    env: &dyn Fn(&str) -> Option<String>,
    unknown: UnknownKeys,
) -> Result<Loaded<OperatorSettings>, ConfigError> {
    let mut loaded = Loaded::read(&operator::SPEC, operator::build, files, env, unknown)?;
    loaded.warnings.extend(operator::notes(&loaded.values)?);
    Ok(loaded)
}

/// Loads the agent's settings from `armory-agent.yml` and, overriding it, `armory-agent-local.yml` in `dir`; each may
/// end in `.yaml` instead. Without either file the defaults apply, and a warning names the folder.
///
/// # Errors
/// Everything that is wrong with the files and the environment, or both endings of one file exist.
pub fn load_agent(
    dir: &Path,
    env: &dyn Fn(&str) -> Option<String>,
    unknown: UnknownKeys,
) -> Result<Loaded<AgentSettings>, ConfigError> {
    let mut files = Vec::new();
    for stem in AGENT_FILES {
        files.extend(either_ending(dir, stem)?);
    }
    let mut loaded = Loaded::read(&agent::SPEC, agent::build, &files, env, unknown)?;
    agent::resolve_paths(&mut loaded.settings.accounts, dir)?;
    if files.is_empty() {
        let dir = dir.display();
        let warning =
            format!("{dir}: neither armory-agent.yml nor armory-agent-local.yml is here; defaults hold");
        loaded.warnings.insert(0, warning);
    }
    Ok(loaded)
}

const AGENT_FILES: [&str; 2] = ["armory-agent", "armory-agent-local"];
const ENDINGS: [&str; 2] = ["yml", "yaml"];

/// Every file that [`load_agent`] would read in this folder, whether it exists or not.
pub fn agent_files(dir: &Path) -> Vec<PathBuf> {
    let paths =
        AGENT_FILES.iter().flat_map(|stem| ENDINGS.map(|ending| dir.join(format!("{stem}.{ending}"))));
    paths.collect()
}

/// The one file with this name, if any.
fn either_ending(dir: &Path, stem: &str) -> Result<Option<PathBuf>, ConfigProblem> {
    let unreadable =
        |path: &Path, why: String| ConfigProblem::Unreadable { file: path.display().to_string().into(), why };
    let mut found = Vec::new();
    for ending in ENDINGS {
        let path = dir.join(format!("{stem}.{ending}"));
        match std::fs::metadata(&path) {
            Ok(_) => found.push(path),
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(unreadable(&path, e.to_string())),
        }
    }
    if let [first, second] = found.as_slice() {
        let why = format!("{} is there too; keep one of the two", first.display());
        return Err(unreadable(second, why));
    }
    Ok(found.pop())
}

/// All documented settings of a program as a Markdown table: key, type, default, when it is read, meaning.
pub fn reference(program: SettingsProgram) -> String {
    print::reference(program.spec())
}

/// The JSON schema of a program's settings file, in the documented spelling of the keys. It refuses wrong values of
/// documented keys, and leaves other keys to the program.
pub fn settings_schema(program: SettingsProgram) -> serde_json::Value {
    let title = match program {
        SettingsProgram::Operator => "Settings of kubesvc-operator",
        SettingsProgram::Agent => "Settings of kubesvc-agent",
    };
    schema::settings_schema(program.spec(), title)
}
