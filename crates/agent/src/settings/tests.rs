//! Tests of the settings, each a table of cases.

mod accounts;
mod auth;
mod files;
mod hub;
mod tls;

use std::path::{Path, PathBuf};

use super::AgentSettings;
use kubesvc_runtime::config::{Loaded, UnknownKeys};

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

    fn agent(&self, unknown: UnknownKeys) -> Result<Loaded<AgentSettings>, String> {
        self.shorten(super::load(self.root(), &|_| None, unknown).map_err(|e| e.to_string()))
    }

    fn shorten<T>(&self, result: Result<Loaded<T>, String>) -> Result<Loaded<T>, String> {
        let mut loaded = result.map_err(|e| self.short(&e))?;
        for warning in &mut loaded.warnings {
            *warning = self.short(warning);
        }
        Ok(loaded)
    }
}

/// Loads the agent's settings from one file, `armory-agent.yml`.
fn agent(yaml: &str) -> Result<Loaded<AgentSettings>, String> {
    Files::new(&[("armory-agent.yml", yaml)]).agent(UnknownKeys::Error)
}

fn error<T>(result: Result<Loaded<T>, String>) -> String {
    result.err().unwrap_or_else(|| "no error".to_owned())
}
