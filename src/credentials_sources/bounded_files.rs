//! Bounded reads of the operator's own files.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use secrecy::SecretString;

/// Maximum size of a file with a password, in bytes.
const MAX_SECRET_BYTES: u64 = 64 * 1024;

/// Time limit for reading a file.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a file of the operator cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system refuses.
    #[error("the file {path} cannot be read: {}", advice(source))]
    Unreadable {
        /// Its path.
        path: String,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// A folder, a pipe, or another thing.
    #[error("{0} is no regular file")]
    NoFile(String),
    /// More bytes than it may have.
    #[error("the file {path} has more than {max} bytes")]
    TooLarge {
        /// Its path.
        path: String,
        /// The bound.
        max: u64,
    },
    /// Not UTF-8.
    #[error("the file {0} is not UTF-8")]
    NoText(String),
    /// A file with a password has none.
    #[error("the file {0} is empty: write the password into it")]
    Empty(String),
    /// The files changed with every try to read them together.
    #[error("the files change while they are read")]
    Changing,
    /// A link leads out of the folders.
    #[error("{0} leads out of its folder: put the file itself there")]
    Outside(String),
    /// The file system does not answer.
    #[error("the file system does not answer in time")]
    Slow,
    /// The thread that read ended early.
    #[error("reading files was interrupted")]
    Interrupted,
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            "it does not exist; put it there, or correct its path"
        }
        io::ErrorKind::PermissionDenied => "the operator may not read it",
        _ => "the system reports an error",
    }
}

/// Reads a text of at most `max` bytes. Blocks.
pub(super) fn read_text(path: &Path, max: u64) -> Result<String, FileError> {
    let shown = || path.display().to_string();
    let unreadable = |source| FileError::Unreadable { path: shown(), source };
    // Before opening it: opening a pipe blocks until it has a writer.
    if !fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(FileError::NoFile(shown()));
    }
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(max + 1).read_to_end(&mut bytes)).map_err(unreadable)?;
    if bytes.len() as u64 > max {
        return Err(FileError::TooLarge { path: shown(), max });
    }
    String::from_utf8(bytes).map_err(|_| FileError::NoText(shown()))
}

/// Reads a file of at most `max` bytes.
///
/// # Errors
/// See [`FileError`].
pub(super) async fn read_text_file(path: PathBuf, max: u64) -> Result<SecretString, FileError> {
    in_time(move || read_text(&path, max)).await
}

/// Reads a file of at most `max` bytes, which may be a credential, below one of these folders: links may not lead out of
/// them.
///
/// # Errors
/// See [`FileError`].
pub async fn read_text_file_below(
    folders: Vec<PathBuf>,
    path: PathBuf,
    max: u64,
) -> Result<SecretString, FileError> {
    let read = move || {
        let shown = || path.display().to_string();
        let real = path.canonicalize().map_err(|source| FileError::Unreadable { path: shown(), source })?;
        let is_below = |folder: &PathBuf| folder.canonicalize().is_ok_and(|folder| real.starts_with(folder));
        match folders.iter().any(is_below) {
            true => read_text(&real, max),
            false => Err(FileError::Outside(shown())),
        }
    };
    in_time(read).await
}

/// Runs a read on a thread that may block, within [`READ_TIMEOUT`].
async fn in_time(
    read: impl FnOnce() -> Result<String, FileError> + Send + 'static,
) -> Result<SecretString, FileError> {
    let read = tokio::time::timeout(READ_TIMEOUT, tokio::task::spawn_blocking(read));
    let read = read.await.map_err(|_| FileError::Slow)?;
    Ok(read.map_err(|_| FileError::Interrupted)??.into())
}

/// Reads a password, without the line break at its end.
pub(super) async fn read_password(path: &Path) -> Result<SecretString, FileError> {
    let (owned, shown) = (path.to_owned(), path.display().to_string());
    let read = tokio::task::spawn_blocking(move || read_text(&owned, MAX_SECRET_BYTES));
    let text = read.await.map_err(|_| FileError::Interrupted)??;
    match text.trim_end_matches(['\r', '\n']) {
        "" => Err(FileError::Empty(shown)),
        password => Ok(password.into()),
    }
}
