//! Reads the files that contain credentials.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use secrecy::zeroize::Zeroizing;
use sha2::{Digest, Sha256};

use crate::account::kubeconfig::{KubeconfigError, vet_file_path};
use crate::agent::failure::before_send;
use crate::agent::watched_files::ReadFile;
use crate::wire::common::Failure;
use crate::wire::common::failure::Class;

/// Maximum size of a kubeconfig, certificate, key or token, in bytes.
pub const MAX_FILE_BYTES: u64 = 256 * 1024;

/// Runs blocking work on a thread for it.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(before_send(Class::Internal, format!("reading a file failed: {error}"))))
}

/// Resolves a path from the hub, following symbolic links, if the target is below one of the folders.
pub(super) fn below(path: &str, folders: &[PathBuf]) -> Result<PathBuf, Failure> {
    let refuse = |refusal: KubeconfigError| before_send(Class::BadReference, refusal.to_string());
    let asked = vet_file_path(path, folders).map_err(refuse)?;
    let real = fs::canonicalize(asked).map_err(|error| unreadable(asked, &error))?;
    // Symbolic links may be followed, but not out of the folders, which may be links themselves.
    let real_folders: Vec<_> = folders.iter().filter_map(|folder| fs::canonicalize(folder).ok()).collect();
    let leads_out = || {
        before_send(
            Class::BadReference,
            format!("{path} is a link that leads out of the folders that the agent allows"),
        )
    };
    let text = real.to_str().ok_or_else(leads_out)?;
    vet_file_path(text, &real_folders).map_err(|_| leads_out())?;
    Ok(real)
}

/// Reads a regular file of limited size. `shown` is the path that messages contain.
pub(super) fn read(path: &Path, shown: &Path) -> Result<Zeroizing<Vec<u8>>, Failure> {
    let irregular = || before_send(Class::BadReference, format!("{} is no regular file", shown.display()));
    // Opening a named pipe would block, so check first, and check the opened file again.
    if !fs::metadata(path).map_err(|error| unreadable(shown, &error))?.is_file() {
        return Err(irregular());
    }
    let file = File::open(path).map_err(|error| unreadable(shown, &error))?;
    if !file.metadata().map_err(|error| unreadable(shown, &error))?.is_file() {
        return Err(irregular());
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(8 * 1024));
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(|error| unreadable(shown, &error))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(before_send(
            Class::BadKubeconfig,
            format!("{} is larger than {MAX_FILE_BYTES} bytes", shown.display()),
        ));
    }
    Ok(bytes)
}

/// The path and digest of a file, for watching it.
pub(super) fn read_file(path: &Path, bytes: &[u8]) -> ReadFile {
    ReadFile { path: path.to_owned(), digest: Sha256::digest(bytes).into() }
}

/// The failure of an unreadable file. Retryable, because a missing file may be created later.
fn unreadable(path: &Path, error: &io::Error) -> Failure {
    let message = format!("{} cannot be read on the agent: {error}", path.display());
    Failure { retryable: true, ..before_send(Class::BadReference, message) }
}
