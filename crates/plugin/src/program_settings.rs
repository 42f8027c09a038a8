//! The settings of operator and agent, by which `import` judges files. The programs own them; the composition root of the
//! workspace passes them in, so that the plugin links neither program.

use std::path::Path;

use kubesvc_runtime::config::{ConfigError, Spec};

/// How the programs read their files.
#[derive(Clone, Copy, Debug)]
pub struct ProgramSettings {
    /// Every setting of the operator.
    pub operator: fn() -> &'static Spec,
    /// Reads a file as the operator does at its start.
    pub check_operator: fn(&Path) -> Result<(), ConfigError>,
    /// Reads the files of a folder as an agent does at its start, as far as possible.
    pub agent: fn(&Path) -> AgentFiles,
}

/// The files of an agent.
#[derive(Clone, Debug, Default)]
pub struct AgentFiles {
    /// The zone, if the files name it.
    pub zone_id: Option<String>,
    /// The accounts; `None`: what is wrong with the files hides them.
    pub accounts: Option<Vec<StaticAccount>>,
    /// What keeps the agent from starting, one line each, without values.
    pub refused: Vec<String>,
    /// What has no effect, one line each.
    pub ignored: Vec<String>,
}

/// An account of an agent's own file.
#[derive(Clone, Debug)]
pub struct StaticAccount {
    /// Its name in Spinnaker.
    pub name: String,
    /// The kind of its credential.
    pub credential: String,
}
