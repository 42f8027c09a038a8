//! The engine `file`: a file on the operator's disk, below a folder that the settings allow.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use async_trait::async_trait;
use secrecy::SecretSlice;
use secrecy::zeroize::Zeroize;

use super::engine::{Engine, ResolvedSecret, missing, refused_because};
use kubesvc_core::failure::{Failure, FailureClass};
use kubesvc_core::secret_reference::Reference;

/// The setting that lists the allowed folders.
const SETTING: &str = "kubesvc.secrets.folders";
/// Maximum size of a file, in bytes.
const MAX_FILE_BYTES: u64 = 256 * 1024;
/// Timeout for reading one file.
const READ_TIMEOUT: Duration = Duration::from_secs(15);

/// Reads files below these folders; off if there are none.
pub(super) struct FileEngine {
    folders: Vec<PathBuf>,
}

impl FileEngine {
    pub(super) fn new(folders: Vec<PathBuf>) -> Self {
        Self { folders }
    }
}

#[async_trait]
impl Engine for FileEngine {
    fn name(&self) -> &'static str {
        "file"
    }

    async fn resolve(&self, reference: &Reference, _: &str, _: &str) -> Result<ResolvedSecret, Failure> {
        let path = PathBuf::from(reference.get("p").unwrap_or_default());
        let folders = self.folders.clone();
        let shown = path.display().to_string();
        let reading = tokio::task::spawn_blocking(move || read(&path, &folders));
        match tokio::time::timeout(READ_TIMEOUT, reading).await {
            Ok(Ok(found)) => found,
            Ok(Err(_)) => Err(unreadable(&shown, "reading it was aborted")),
            Err(_) => Err(unreadable(&shown, "the disk does not answer")),
        }
    }
}

/// Reads a file. Symbolic links are resolved first, and their target must be below an allowed folder as well.
fn read(path: &Path, folders: &[PathBuf]) -> Result<ResolvedSecret, Failure> {
    check(path, folders)?;
    let shown = path.display().to_string();
    let target = fs::canonicalize(path).map_err(|error| read_failure(&shown, &error))?;
    let really = |folder: &PathBuf| fs::canonicalize(folder).is_ok_and(|folder| target.starts_with(folder));
    if !folders.iter().any(really) {
        return Err(refused_because(format!(
            "the file {shown} leads out of the folders that {SETTING} lists"
        )));
    }
    let no_file = || refused_because(format!("{shown} is no regular file"));
    // Check before opening: opening a named pipe would block until it has a writer.
    if !fs::metadata(&target).map_err(|error| read_failure(&shown, &error))?.is_file() {
        return Err(no_file());
    }
    let mut file = File::open(&target).map_err(|error| read_failure(&shown, &error))?;
    let metadata = file.metadata().map_err(|error| read_failure(&shown, &error))?;
    if !metadata.is_file() {
        return Err(no_file());
    }
    if metadata.len() > MAX_FILE_BYTES {
        return Err(too_large(&shown));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.len() + 1).unwrap_or_default());
    file.by_ref()
        .take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| read_failure(&shown, &error))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        bytes.zeroize();
        return Err(too_large(&shown));
    }
    let written = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let version = format!("file/{}-{}", written.unwrap_or_default().as_nanos(), bytes.len());
    Ok(ResolvedSecret {
        content: SecretSlice::from(bytes),
        holder: None,
        version: Some(version),
        is_copy: true,
        expires: None,
    })
}

/// Checks a path as far as possible without disk access.
fn check(path: &Path, folders: &[PathBuf]) -> Result<(), Failure> {
    if folders.is_empty() {
        return Err(refused_because(format!(
            "secret engine \"file\" is off; list the folders that accounts may name in the operator's setting {SETTING}"
        )));
    }
    if !path.is_absolute() || path.components().any(|part| part == Component::ParentDir) {
        return Err(refused_because("p must be an absolute path without .."));
    }
    if !folders.iter().any(|folder| path.starts_with(folder)) {
        return Err(refused_because(format!(
            "the file {} is outside of the folders that the operator's setting {SETTING} lists",
            path.display()
        )));
    }
    Ok(())
}

fn read_failure(shown: &str, error: &io::Error) -> Failure {
    if error.kind() == io::ErrorKind::NotFound {
        return missing(format!(
            "the file {shown} is not there on the operator; put it there, or correct p in the reference"
        ));
    }
    unreadable(shown, &error.kind().to_string())
}

fn unreadable(shown: &str, why: &str) -> Failure {
    Failure::new(FailureClass::Internal, format!("the file {shown} cannot be read by the operator: {why}"))
}

fn too_large(shown: &str) -> Failure {
    let kib = MAX_FILE_BYTES / 1024;
    Failure::new(FailureClass::BadKubeconfig, format!("the file {shown} has more than {kib} KiB"))
}
