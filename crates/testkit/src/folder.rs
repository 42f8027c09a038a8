//! A temporary folder that is removed however the test process ends.

use std::path::{Path, PathBuf};

use super::process;

/// A temporary folder. Removed on drop, or by the reaper if the process dies.
#[derive(Debug)]
pub struct Folder(tempfile::TempDir);

impl Folder {
    /// Creates an empty folder whose name starts with `kubesvc-` and `name`.
    ///
    /// # Errors
    ///
    /// The system's folder for temporary files is not writable.
    pub fn new(name: &str) -> Result<Self, String> {
        let mut folder = tempfile::Builder::new()
            .prefix(&format!("kubesvc-{name}-"))
            .tempdir()
            .map_err(|e| format!("no folder in {}: {e}", std::env::temp_dir().display()))?;
        if std::env::var_os("KUBESVC_TEST_KEEP").is_some() {
            folder.disable_cleanup(true);
            eprintln!("kept: {}", folder.path().display());
        } else {
            process::watch_folder(folder.path());
        }
        Ok(Self(folder))
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Path of a file in the folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file that only this user can read.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf, String> {
        use std::{fs::OpenOptions, io::Write, os::unix::fs::OpenOptionsExt};
        let path = self.file(name);
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(path)
    }
}
