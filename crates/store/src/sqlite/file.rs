//! The database file and its lock file.

use std::fs::{File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;

use crate::StoreError;

const SQLITE_MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// Resolves links and dots in the path, so that one file has one lock whatever path names it.
pub(super) fn locate(path: &Path) -> Result<PathBuf, StoreError> {
    let shown = path.display();
    if let Ok(real) = path.canonicalize() {
        return Ok(real);
    }
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let Some(name) = path.file_name() else {
        return Err(StoreError::Unfit(format!("the path of the database, {shown}, names no file")));
    };
    match folder.canonicalize() {
        Ok(folder) => Ok(folder.join(name)),
        Err(error) => Err(StoreError::Unfit(format!(
            "the folder of the database, {}, cannot be used ({error}): make it, or give kubesvc.database.url \
             another path",
            folder.display()
        ))),
    }
}

/// Checks that the file is a writable database before SQLite opens it. A missing or empty file is accepted.
pub(super) fn inspect(path: &Path) -> Result<(), StoreError> {
    let shown = path.display();
    if path.is_dir() {
        return Err(StoreError::Unfit(format!(
            "the path of the database, {shown}, is a folder: add the name of a file to it"
        )));
    }
    let mut head = Vec::with_capacity(SQLITE_MAGIC.len());
    match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => {
            file.take(SQLITE_MAGIC.len() as u64)
                .read_to_end(&mut head)
                .map_err(|error| barred(path, &error))?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(barred(path, &error)),
    }
    if !head.is_empty() && head != SQLITE_MAGIC {
        return Err(StoreError::Unfit(not_a_database(&shown.to_string())));
    }
    Ok(())
}

/// Mode of the database files and of the lock: they hold the definitions and zones of all accounts.
const OWNER_ONLY_MODE: u32 = 0o600;

/// Restricts SQLite's files to their owner, and creates the database file if it is missing: SQLite gives `-wal` and
/// `-shm` the mode of the database. A file of another owner keeps its mode, and a warning is logged.
pub(super) fn close_to_others(path: &Path) -> Result<(), StoreError> {
    let opened = open_own(path).map_err(|error| barred(path, &error))?;
    restrict(path, &opened);
    for suffix in ["-wal", "-shm"] {
        let beside = with_suffix(path, suffix);
        let opened = OpenOptions::new().read(true).custom_flags(OFlag::O_NOFOLLOW.bits()).open(&beside);
        if let Ok(opened) = opened {
            restrict(&beside, &opened);
        }
    }
    Ok(())
}

/// Opens a file to read and write, without following a link. Creates it with [`OWNER_ONLY_MODE`] if it is missing.
fn open_own(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(OWNER_ONLY_MODE)
        .custom_flags(OFlag::O_NOFOLLOW.bits())
        .open(path)
}

fn restrict(path: &Path, file: &File) {
    let Ok(metadata) = file.metadata() else { return };
    if metadata.mode() & 0o777 == OWNER_ONLY_MODE {
        return;
    }
    if let Err(error) = file.set_permissions(Permissions::from_mode(OWNER_ONLY_MODE)) {
        tracing::warn!(file = %path.display(), %error, "other users may open this database file; make kubesvc its owner, or set its mode to 0600");
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(suffix);
    PathBuf::from(path)
}

fn barred(path: &Path, error: &io::Error) -> StoreError {
    StoreError::Unfit(format!(
        "the database needs {} to be readable and writable ({error}): check the rights and the owner of the file \
         and of its folder, and that the disk is not mounted read-only",
        path.display()
    ))
}

/// `PATH.lock`, locked by this process. The kernel releases the lock when the process ends, in whatever way; the file
/// stays.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

/// Refuses a lock file that is a link: the owner written into the lock must not overwrite another file.
fn linked(path: &Path) -> StoreError {
    StoreError::Unfit(format!(
        "{} is a link or no ordinary file, and kubesvc writes only into a lock file of its own: remove it",
        path.display()
    ))
}

fn unfit_lock(path: &Path, error: &io::Error) -> StoreError {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ELOOP) => linked(path),
        _ => barred(path, error),
    }
}

impl Lock {
    /// Acquires the lock, or returns an error that names its owner.
    pub(super) fn acquire(database: &Path) -> Result<Self, StoreError> {
        let path = with_suffix(database, ".lock");
        let mut file = open_own(&path).map_err(|error| unfit_lock(&path, &error))?;
        let found = file.metadata().map_err(|error| barred(&path, &error))?;
        if !found.is_file() || found.nlink() > 1 {
            return Err(linked(&path));
        }
        restrict(&path, &file);
        match file.try_lock() {
            Ok(()) => {
                // Only informational: without it the lock is held all the same.
                let owner =
                    format!("{}:{}", gethostname::gethostname().to_string_lossy(), std::process::id());
                let _ = file
                    .set_len(0)
                    .and_then(|()| file.rewind())
                    .and_then(|()| file.write_all(owner.as_bytes()));
                Ok(Self { _file: file })
            }
            Err(TryLockError::WouldBlock) => {
                let mut owner = String::new();
                let _ = (&mut file).take(300).read_to_string(&mut owner);
                Err(StoreError::InUse { database: database.display().to_string(), owner })
            }
            Err(TryLockError::Error(error)) => Err(StoreError::Unfit(format!(
                "the file {} cannot be locked ({error}): put the database on a local disk",
                path.display()
            ))),
        }
    }
}

/// The message for a file that is not a SQLite database.
pub(super) fn not_a_database(path: &str) -> String {
    format!(
        "{path} is no SQLite database and was left as it is: give kubesvc.database.url another path, or move it away"
    )
}
