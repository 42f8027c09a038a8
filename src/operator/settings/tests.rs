//! Tests of the settings, each a table of cases; also of what the settings of both programs have in common.

mod agent_subjects;
mod bearer;
mod cached_objects;
mod closed;
mod credentials_sources;
mod environment;
mod hostile;
mod hub_tls;
mod operator_files;
mod print;
mod rest_auth;
mod rest_tls;
mod schema;
mod spelling;
mod types;

use std::path::{Path, PathBuf};

use super::OperatorSettings;
use kubesvc_agent::settings::AgentSettings;
use kubesvc_runtime::config::{Loaded, Settings, Spec, UnknownKeys};

/// A folder of files, deleted after the test. Messages name files without the folder.
struct Files {
    dir: tempfile::TempDir,
}

impl Files {
    fn new(files: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().expect("a folder for the test");
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).expect("write a file of the test");
        }
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn root(&self) -> &Path {
        self.dir.path()
    }

    fn short(&self, text: &str) -> String {
        text.replace(&format!("{}/", self.root().display()), "")
    }

    fn operator(&self, names: &[&str], unknown: UnknownKeys) -> Result<Loaded<OperatorSettings>, String> {
        let paths: Vec<_> = names.iter().map(|n| self.path(n)).collect();
        self.shorten(super::load(&paths, &|_| None, unknown).map_err(|e| e.to_string()))
    }

    fn agent(&self, unknown: UnknownKeys) -> Result<Loaded<AgentSettings>, String> {
        self.shorten(
            kubesvc_agent::settings::load(self.root(), &|_| None, unknown).map_err(|e| e.to_string()),
        )
    }

    fn shorten<T>(&self, result: Result<Loaded<T>, String>) -> Result<Loaded<T>, String> {
        let mut loaded = result.map_err(|e| self.short(&e))?;
        for warning in &mut loaded.warnings {
            *warning = self.short(warning);
        }
        Ok(loaded)
    }
}

/// Loads the operator's settings from one file, `c.yml`.
fn operator(yaml: &str) -> Result<Loaded<OperatorSettings>, String> {
    Files::new(&[("c.yml", yaml)]).operator(&["c.yml"], UnknownKeys::Error)
}

/// Loads the agent's settings from one file, `armory-agent.yml`.
fn agent(yaml: &str) -> Result<Loaded<AgentSettings>, String> {
    Files::new(&[("armory-agent.yml", yaml)]).agent(UnknownKeys::Error)
}

/// The settings of the operator and of the agent.
fn specs() -> [&'static Spec; 2] {
    [OperatorSettings::spec(), AgentSettings::spec()]
}

fn error<T>(result: Result<Loaded<T>, String>) -> String {
    result.err().unwrap_or_else(|| "no error".to_owned())
}
