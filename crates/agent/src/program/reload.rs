//! Reloads the settings files while the agent runs: changes of its accounts take effect.
//!
//! A partially written file may be valid, with fewer accounts. A change therefore counts only after the files
//! have looked the same twice, and files that are all missing do not count as a change.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::split;
use crate::settings::{self, AgentSettings};
use crate::static_accounts::StaticAccountFile;
use crate::watched_files::{Content, WatchedFiles};
use kubesvc_runtime::background_tasks::{AttemptOutcome, BackgroundTasks, TaskSpec, blocking};
use kubesvc_runtime::config::{ConfigError, Loaded, MAX_FILE_BYTES, UnknownKeys};

/// The setting that takes effect while the agent runs.
const RELOADED: &str = "kubernetes.accounts";

/// The folder of the settings, and what was read from it.
pub(super) struct SettingsFolder {
    dir: PathBuf,
    unknown: UnknownKeys,
    watched: WatchedFiles,
    seen: Vec<Content>,
    /// State of the files at the last check, if it differed from what was read.
    changing: Option<Vec<Content>>,
    /// The settings with which the agent started.
    pub(super) loaded: Loaded<AgentSettings>,
    /// Warnings that were logged about the last state of the files, so that each is logged only once.
    logged_warnings: Vec<String>,
    /// Changed settings that were logged to take effect at the next start.
    logged_later: Vec<&'static str>,
}

/// Delay between noticing a changed file and checking it again.
const SETTLE_DELAY: Duration = Duration::from_millis(500);

fn refuse(problem: String, own: &StaticAccountFile) {
    tracing::error!("rejected the changed settings; the previous ones stay in effect: {problem}");
    own.reload_failed(problem);
}

fn env(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn read_contents(watched: &mut WatchedFiles, dir: &std::path::Path) -> Vec<Content> {
    settings::files(dir).iter().map(|path| watched.content(path)).collect()
}

impl SettingsFolder {
    /// Loads the settings for the first time.
    pub(super) fn load(dir: PathBuf, unknown: UnknownKeys) -> Result<Self, ConfigError> {
        let mut watched = WatchedFiles::new(MAX_FILE_BYTES);
        // Checked before loading, so that a change in between is noticed later.
        let seen = read_contents(&mut watched, &dir);
        let loaded = settings::load(&dir, &env, unknown)?;
        let (logged_warnings, logged_later) = (loaded.warnings.clone(), Vec::new());
        Ok(Self { dir, unknown, watched, seen, changing: None, loaded, logged_warnings, logged_later })
    }

    /// Checks the files periodically, for as long as the agent runs.
    pub(super) fn watch(self, own: StaticAccountFile, pace: Duration, background: &BackgroundTasks) {
        let task = TaskSpec::new("watch of the settings", "Looks for changed settings files");
        let settings = Arc::new(Mutex::new(self));
        background.start(task.every(pace).without_deadline(), move |_: Vec<()>| {
            let (settings, own) = (Arc::clone(&settings), own.clone());
            async move {
                let check = move || {
                    let mut settings = settings.lock();
                    settings.reload_if_changed(&own);
                    settings.changing.is_some()
                };
                let is_changing = blocking(check).await;
                if is_changing {
                    AttemptOutcome::Again(Vec::new(), SETTLE_DELAY.min(pace))
                } else {
                    AttemptOutcome::Done
                }
            }
        });
    }

    fn reload_if_changed(&mut self, own: &StaticAccountFile) {
        let seen = read_contents(&mut self.watched, &self.dir);
        let before = self.changing.take();
        if seen == self.seen {
            return;
        }
        if before.as_ref() != Some(&seen) {
            self.changing = Some(seen);
            return;
        }
        self.seen = seen;
        if self.seen.iter().all(|content| *content == Content::Missing) {
            return refuse(format!("{}: the settings files are gone", self.dir.display()), own);
        }
        match settings::load(&self.dir, &env, self.unknown) {
            Ok(loaded) => self.take(&loaded, own),
            Err(error) => refuse(error.to_string(), own),
        }
    }

    fn take(&mut self, loaded: &Loaded<AgentSettings>, own: &StaticAccountFile) {
        let mut later = self.loaded.differences(loaded);
        later.retain(|key| *key != RELOADED);
        for warning in loaded.warnings.iter().filter(|warning| !self.logged_warnings.contains(warning)) {
            tracing::warn!("{warning}");
        }
        if later.is_empty() && !self.logged_later.is_empty() {
            tracing::info!("the settings are the same again as at the start of the agent");
        } else if later != self.logged_later {
            let keys = later.join(", ");
            tracing::warn!("changed settings take effect at the next start of the agent: {keys}");
        }
        self.logged_warnings.clone_from(&loaded.warnings);
        self.logged_later = later;
        let (accounts, policies) = split(&loaded.settings.accounts);
        own.set_policies(policies);
        let count = accounts.len();
        if own.replace(accounts) {
            tracing::info!(count, "the accounts in the agent's own file changed");
        }
    }
}

#[cfg(test)]
mod tests;
