//! Files that take effect when they change.
//!
//! The files are polled, because a mount may not deliver events. Each check looks at the target of the path.
//! It therefore makes no difference whether a file is written in place, replaced by renaming, deleted and
//! created again, or swapped behind the symbolic links of a mounted ConfigMap or Secret.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sha2::{Digest as _, Sha256};

/// SHA-256 of a file's content.
pub type FileDigest = [u8; 32];

/// Minimum age of a file's timestamps at which they are trusted. A younger file may change again without new
/// timestamps, so its content is read.
const MIN_TRUSTED_AGE: Duration = Duration::from_secs(3);

/// What a path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A file with this content.
    File(FileDigest),
    Missing,
    /// Something that cannot be read, and why.
    Unreadable(String),
}

/// A file that was read, and its content.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReadFile {
    /// The path under which it was opened.
    pub path: PathBuf,
    pub digest: FileDigest,
}

/// Metadata that changes when the file may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp {
    device: u64,
    inode: u64,
    len: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

#[derive(Debug)]
struct KnownFile {
    /// `None` if the content must be read at the next check.
    stamp: Option<FileStamp>,
    content: Content,
}

/// Checks files, and reads only those that may have changed. Its calls block.
#[derive(Debug)]
pub struct WatchedFiles {
    max: u64,
    known: HashMap<PathBuf, KnownFile>,
}

impl WatchedFiles {
    /// Creates a watcher. Files larger than `max` bytes count as unreadable.
    pub fn new(max: u64) -> Self {
        Self { max, known: HashMap::new() }
    }

    /// What a path leads to now.
    pub fn content(&mut self, path: &Path) -> Content {
        let (stamp, content) = match self.read_if_changed(path) {
            Ok((_, None)) => match self.known.get(path) {
                Some(known) => return known.content.clone(),
                None => (None, Content::Missing),
            },
            Ok((stamp, Some(content))) => (stamp, content),
            Err(error) if is_missing(&error) => (None, Content::Missing),
            Err(error) => (None, Content::Unreadable(error.to_string())),
        };
        self.known.insert(path.to_owned(), KnownFile { stamp, content: content.clone() });
        content
    }

    /// Forgets all files except these.
    fn keep(&mut self, paths: &HashSet<&Path>) {
        self.known.retain(|path, _| paths.contains(path.as_path()));
    }

    fn read_if_changed(&self, path: &Path) -> io::Result<(Option<FileStamp>, Option<Content>)> {
        let metadata = fs::metadata(path)?;
        if !metadata.is_file() {
            return Ok((None, Some(Content::Unreadable("it is no regular file".to_owned()))));
        }
        let known = self.known.get(path).and_then(|known| known.stamp);
        if known == Some(stamp(&metadata)) {
            return Ok((known, None));
        }
        let mut file = File::open(path)?;
        // Metadata of the opened file: the path may lead elsewhere by now.
        let metadata = file.metadata()?;
        let content = digest(&mut file, self.max)?;
        let stamp = is_trusted(&metadata).then(|| stamp(&metadata));
        Ok((stamp, Some(content)))
    }
}

fn stamp(metadata: &fs::Metadata) -> FileStamp {
    FileStamp {
        device: metadata.dev(),
        inode: metadata.ino(),
        len: metadata.len(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    }
}

fn is_trusted(metadata: &fs::Metadata) -> bool {
    let changed = u64::try_from(metadata.mtime().max(metadata.ctime())).unwrap_or_default();
    let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(changed.saturating_add(1));
    SystemTime::now().duration_since(changed).is_ok_and(|age| age > MIN_TRUSTED_AGE)
}

fn digest(file: &mut File, max: u64) -> io::Result<Content> {
    let mut hash = Sha256::new();
    let mut buffer = [0; 16 * 1024];
    let mut left = max.saturating_add(1);
    loop {
        let want = usize::try_from(left).unwrap_or(buffer.len()).min(buffer.len());
        let read = file.read(&mut buffer[..want])?;
        if read == 0 {
            break;
        }
        left -= read as u64;
        hash.update(&buffer[..read]);
        if left == 0 {
            return Ok(Content::Unreadable(format!("it is larger than {max} bytes")));
        }
    }
    Ok(Content::File(hash.finalize().into()))
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Watches the files with which accounts were started.
#[derive(Debug)]
pub struct AccountFiles {
    files: WatchedFiles,
    /// The last result that was reported or logged, for each file that differs from what some account was
    /// started with.
    reported: HashMap<PathBuf, Content>,
}

impl AccountFiles {
    /// Creates an empty watcher. Files larger than `max` bytes count as unreadable.
    pub fn new(max: u64) -> Self {
        Self { files: WatchedFiles::new(max), reported: HashMap::new() }
    }

    /// Checks all files in use. Returns those whose content differs from what some account was started with,
    /// each content once. A file that is gone or unreadable is only logged: accounts keep what they were
    /// started with.
    pub fn poll(&mut self, in_use: &HashSet<ReadFile>) -> Vec<ReadFile> {
        let mut digests: HashMap<&Path, Vec<FileDigest>> = HashMap::new();
        for file in in_use {
            digests.entry(&file.path).or_default().push(file.digest);
        }
        let paths: HashSet<&Path> = digests.keys().copied().collect();
        self.files.keep(&paths);
        self.reported.retain(|path, _| paths.contains(path.as_path()));
        let mut changed = Vec::new();
        for (path, used) in digests {
            let content = self.files.content(path);
            if used.iter().all(|digest| content == Content::File(*digest)) {
                self.reported.remove(path);
            } else if self.reported.get(path) != Some(&content) {
                self.reported.insert(path.to_owned(), content.clone());
                match content {
                    Content::File(digest) => changed.push(ReadFile { path: path.to_owned(), digest }),
                    Content::Missing => tracing::warn!(
                        file = %path.display(),
                        "the file is gone; accounts keep its previous content"
                    ),
                    Content::Unreadable(why) => tracing::warn!(
                        file = %path.display(),
                        "cannot read the file ({why}); accounts keep its previous content"
                    ),
                }
            }
        }
        changed
    }
}

#[cfg(test)]
mod tests;
