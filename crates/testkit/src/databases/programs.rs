//! Programs of MariaDB and PostgreSQL, and the user that they run as.

use std::{
    os::unix::fs::chown,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The user `nobody` and its group: both servers refuse to run as root.
const NOBODY: u32 = 65_534;

/// Finds a program on `PATH` or in the folders where Debian installs servers.
///
/// # Errors
///
/// The program is missing. The message names it and the Debian package.
pub(super) fn find(program: &str, package: &str) -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    folders.extend(["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from));
    // The newest PostgreSQL first.
    let mut versions: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .map(|entries| entries.flatten().map(|entry| entry.path().join("bin")).collect())
        .unwrap_or_default();
    versions.sort();
    folders.extend(versions.into_iter().rev());
    folders.into_iter().map(|folder| folder.join(program)).find(|path| path.is_file()).ok_or_else(|| {
        format!("{program} is not there: `make databases` installs it (Debian package {package})")
    })
}

/// Creates a command that runs as the servers' user in this folder, which is given to that user.
///
/// # Errors
///
/// The ownership of the folder cannot be changed.
pub(super) fn command(program: &Path, folder: &Path) -> Result<Command, String> {
    let mut command = if is_root(folder)? {
        chown(folder, Some(NOBODY), Some(NOBODY)).map_err(|e| format!("{}: {e}", folder.display()))?;
        let mut setpriv = Command::new(find("setpriv", "util-linux")?);
        setpriv.args([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")]);
        setpriv.args(["--clear-groups", "--"]).arg(program);
        setpriv
    } else {
        Command::new(program)
    };
    command.current_dir(folder).env("HOME", folder).env("LC_ALL", "C");
    Ok(command)
}

/// Whether this process is root: then the folder belongs to root or already to `nobody`.
fn is_root(folder: &Path) -> Result<bool, String> {
    use std::os::unix::fs::MetadataExt;
    let owner = std::fs::metadata(folder).map_err(|e| format!("{}: {e}", folder.display()))?.uid();
    Ok(owner == 0 || owner == NOBODY)
}

/// Runs a command to its end.
///
/// # Errors
///
/// The command cannot be started, or fails. The message contains its output.
pub(super) fn run(mut command: Command) -> Result<(), String> {
    let name = format!("{command:?}");
    let done = command.stdin(Stdio::null()).output().map_err(|e| format!("{name}: {e}"))?;
    if done.status.success() {
        return Ok(());
    }
    let said = [done.stdout, done.stderr].concat();
    Err(format!("{name}: {}\n{}", done.status, String::from_utf8_lossy(&said)))
}

/// Returns the running child processes of a process. PostgreSQL puts each of its children into a process group of its
/// own.
pub fn children(parent: u32) -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| stat(*pid).is_some_and(|(_, of)| of == parent)).collect()
}

/// Whether a process still has its memory.
pub(super) fn is_running(pid: i32) -> bool {
    stat(pid).is_some_and(|(state, _)| !matches!(state, 'Z' | 'X'))
}

/// State and parent of a process; `None` if there is none.
fn stat(pid: i32) -> Option<(char, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain anything; the state and the parent follow it.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}
