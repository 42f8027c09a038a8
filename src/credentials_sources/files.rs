//! Files on the operator's disk. Each read looks at the targets of the paths, so it makes no difference whether a file
//! is written in place, replaced, or swapped behind the symbolic links of a mounted ConfigMap or Secret.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

use super::bounded_files::{FileError, read_text};
use super::{CredentialsSource, SourceReadError};
use kubesvc_clouddriver::sources::{NamedText, SourceSnapshot, read_files};

/// Interval of reads while the files are followed.
const INTERVAL: Duration = Duration::from_secs(5);
/// Maximum size of a file, in bytes.
const MAX_FILE_BYTES: u64 = 16 << 20;
/// Maximum number of tries to read files that are swapped meanwhile.
const MAX_TRIES: usize = 3;

/// Texts of files, read again only if they change.
pub(super) struct TextReader {
    pub(super) name: Arc<str>,
    pub(super) profiles: Vec<String>,
    pub(super) vars: Arc<BTreeMap<String, String>>,
    /// Digest of what was read last, and what it means.
    known: Mutex<Option<([u8; 32], Arc<SourceSnapshot>)>>,
}

impl TextReader {
    pub(super) fn new(name: Arc<str>, profiles: Vec<String>, vars: Arc<BTreeMap<String, String>>) -> Self {
        Self { name, profiles, vars, known: Mutex::default() }
    }

    /// The accounts in these files.
    pub(super) fn read(&self, files: &[NamedText]) -> Result<Arc<SourceSnapshot>, SourceReadError> {
        let mut hash = Sha256::new();
        for NamedText { name, text } in files {
            for part in [name, text] {
                hash.update((part.len() as u64).to_le_bytes());
                hash.update(part);
            }
        }
        let digest = hash.finalize().into();
        if let Some((known, snapshot)) = &*self.known.lock()
            && *known == digest
        {
            return Ok(Arc::clone(snapshot));
        }
        let snapshot = Arc::new(read_files(&self.name, files, &self.profiles, &self.vars)?);
        *self.known.lock() = Some((digest, Arc::clone(&snapshot)));
        Ok(snapshot)
    }
}

/// Reads files by their paths. All of them must exist: a missing one may be the one that counts.
pub(super) struct FileSource {
    paths: Vec<PathBuf>,
    reader: Arc<TextReader>,
}

impl FileSource {
    pub(super) fn new(paths: Vec<PathBuf>, reader: TextReader) -> Self {
        Self { paths, reader: Arc::new(reader) }
    }
}

#[async_trait]
impl CredentialsSource for FileSource {
    fn interval(&self) -> Duration {
        INTERVAL
    }

    async fn read(&self) -> Result<Arc<SourceSnapshot>, SourceReadError> {
        let (paths, reader) = (self.paths.clone(), Arc::clone(&self.reader));
        let read = tokio::task::spawn_blocking(move || reader.read(&texts(&paths)?));
        read.await.map_err(|_| FileError::Interrupted)?
    }
}

/// The texts of files that were not swapped meanwhile.
fn texts(paths: &[PathBuf]) -> Result<Vec<NamedText>, FileError> {
    let targets = || -> Vec<_> { paths.iter().map(|path| fs::canonicalize(path).ok()).collect() };
    for _ in 0..MAX_TRIES {
        let before = targets();
        let read = paths.iter().map(|path| {
            let text = read_text(path, MAX_FILE_BYTES)?;
            Ok(NamedText { name: path.display().to_string(), text })
        });
        let read: Result<Vec<_>, FileError> = read.collect();
        if before == targets() {
            return read;
        }
    }
    Err(FileError::Changing)
}
