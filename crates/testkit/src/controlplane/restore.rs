//! A control plane whose etcd goes back to an earlier state, as after a restore from a backup: versions are used again.

use std::{fs, path::Path};

use super::{ControlPlane, START, start::start_etcd};

/// Folder of etcd's data, and of its copy.
const DATA: &str = "etcd";
const BACKUP: &str = "etcd-backup";

impl ControlPlane {
    /// Copies the data of etcd. The control plane is restarted for that.
    ///
    /// # Errors
    ///
    /// The data cannot be copied, or a program does not start again.
    pub async fn back_up(&mut self) -> Result<(), String> {
        self.replace_data(DATA, BACKUP).await
    }

    /// Brings back the data of the last [`ControlPlane::back_up`]. The control plane is restarted for that.
    ///
    /// # Errors
    ///
    /// There is no copy, or a program does not start again.
    pub async fn restore(&mut self) -> Result<(), String> {
        self.replace_data(BACKUP, DATA).await
    }

    async fn replace_data(&mut self, from: &str, to: &str) -> Result<(), String> {
        self.stop_apiserver();
        self.etcd.terminate(START).await?;
        let (from, to) = (self.folder.file(from), self.folder.file(to));
        if to.exists() {
            fs::remove_dir_all(&to).map_err(|e| format!("{}: {e}", to.display()))?;
        }
        copy(&from, &to)?;
        self.etcd = start_etcd(&self.assets, &self.folder).await?;
        self.start_apiserver().await
    }
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let problem = |error: std::io::Error| format!("{}: {error}", from.display());
    if !from.is_dir() {
        return fs::copy(from, to).map(drop).map_err(problem);
    }
    fs::create_dir_all(to).map_err(problem)?;
    for entry in fs::read_dir(from).map_err(problem)? {
        let entry = entry.map_err(problem)?;
        copy(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}
