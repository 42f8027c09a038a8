//! One run of a program: without a shell and without input, in a process group that is killed at the end, within bounds
//! of time and output.

use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use secrecy::zeroize::Zeroizing;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// Time limit for one run.
const RUN_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of the part of standard error that is kept, in bytes.
const MAX_ERROR_OUTPUT_BYTES: u64 = 4096;

/// Why there is no output of a program. No message has any of its output.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("cannot be started")]
    Start(#[source] io::Error),
    #[error("did not end within {} s", RUN_TIMEOUT.as_secs())]
    Late,
    #[error("cannot be waited for")]
    Wait(#[source] io::Error),
    #[error("ended with exit code {0}")]
    ExitCode(i32),
    #[error("was killed")]
    Killed,
    #[error("has printed more than {0} bytes")]
    TooLong(u64),
}

/// A program that has ended.
pub struct EndedProgram {
    status: io::Result<ExitStatus>,
    max: u64,
    output: Zeroizing<Vec<u8>>,
    /// The beginning of its standard error.
    pub errors: Zeroizing<Vec<u8>>,
}

impl EndedProgram {
    /// Its standard output.
    ///
    /// # Errors
    /// It has failed, or has printed too much.
    pub fn output(self) -> Result<Zeroizing<Vec<u8>>, RunError> {
        if self.output.len() as u64 > self.max {
            return Err(RunError::TooLong(self.max));
        }
        let status = self.status.map_err(RunError::Wait)?;
        match status.code() {
            _ if status.success() => Ok(self.output),
            Some(code) => Err(RunError::ExitCode(code)),
            None => Err(RunError::Killed),
        }
    }
}

/// Runs a program to its end. `max` bounds its standard output, in bytes.
///
/// # Errors
/// It does not start, or does not end in time.
pub async fn run(command: &mut Command, max: u64) -> Result<EndedProgram, RunError> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    let mut child = command.spawn().map_err(RunError::Start)?;
    let mut group = ProcessGroup::of(&child);
    let (output, errors) = (child.stdout.take(), child.stderr.take());
    let finished = async {
        // Child processes that the program leaves behind would keep its output open.
        let ended = async {
            let status = child.wait().await;
            group.kill();
            status
        };
        tokio::join!(ended, read(output, max), read_and_drain(errors))
    };
    let (status, output, errors) = timeout(RUN_TIMEOUT, finished).await.map_err(|_| RunError::Late)?;
    Ok(EndedProgram { status, max, output, errors })
}

/// The program with this bare name in the absolute folders of a PATH.
pub fn in_path(name: &str, path: Option<&OsStr>) -> Option<PathBuf> {
    let folders = path.into_iter().flat_map(std::env::split_paths).filter(|folder| folder.is_absolute());
    folders.map(|folder| folder.join(name)).find(|path| is_program(path))
}

/// Whether there is an executable file at this path.
pub fn is_program(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// Process group of a program. Killed on drop: nothing of it outlives the run.
struct ProcessGroup(Option<Pid>);

impl ProcessGroup {
    fn of(child: &Child) -> Self {
        Self(child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw))
    }

    fn kill(&mut self) {
        if let Some(group) = self.0.take() {
            // The group may already be gone, which is fine.
            let _ = killpg(group, Signal::SIGKILL);
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Reads at most one byte more than `most`; then the program finds its output closed.
async fn read(from: Option<impl AsyncRead + Unpin>, most: u64) -> Zeroizing<Vec<u8>> {
    let mut bytes = Zeroizing::new(Vec::new());
    if let Some(from) = from {
        // What was read before an error counts.
        let _ = from.take(most + 1).read_to_end(&mut bytes).await;
    }
    bytes
}

/// Reads the beginning of a program's standard error, and discards the rest so that the program can continue.
async fn read_and_drain(from: Option<impl AsyncRead + Unpin>) -> Zeroizing<Vec<u8>> {
    let mut bytes = Zeroizing::new(Vec::new());
    if let Some(mut from) = from {
        let _ = (&mut from).take(MAX_ERROR_OUTPUT_BYTES).read_to_end(&mut bytes).await;
        let _ = tokio::io::copy(&mut from, &mut tokio::io::sink()).await;
    }
    bytes
}
