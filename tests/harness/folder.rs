//! A temporary folder that goes away however the test process ends.

use std::path::{Path, PathBuf};

use super::reaper;

/// Removed on drop, or by the reaper if the process ends without one.
#[derive(Debug)]
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    /// A new empty folder whose name starts with `kubesvc-` and `name`.
    ///
    /// # Errors
    ///
    /// The folder for temporary files cannot be written.
    pub(crate) fn new(name: &str) -> Result<Self, String> {
        let mut folder = tempfile::Builder::new()
            .prefix(&format!("kubesvc-{name}-"))
            .tempdir()
            .map_err(|e| format!("no folder in {}: {e}", std::env::temp_dir().display()))?;
        if std::env::var_os("KUBESVC_TEST_KEEP").is_some() {
            folder.disable_cleanup(true);
            eprintln!("kept: {}", folder.path().display());
        } else {
            reaper::watch_folder(folder.path());
        }
        Ok(Self(folder))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// The path of a file in it.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file into it that only this user can read.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<PathBuf, String> {
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
