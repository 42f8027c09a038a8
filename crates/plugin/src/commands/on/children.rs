//! The kubectl processes of `on`: each with a private kubeconfig, which is removed when it ends, also by a signal.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitStatus, Stdio};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use kubesvc_runtime::terminal::format;
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use tempfile::NamedTempFile;
use tokio::process::{Child, Command};
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

use super::lines::Output;
use crate::account_kubeconfig::{Door, NamedAccount};
use crate::arguments::CommandError;

/// Exit code of a process that a signal ended, less the signal.
const SIGNAL_CODE: i32 = 128;

/// How a kubectl ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Exited(u8),
    Killed(i32),
}

impl Ended {
    fn of(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Exited(u8::try_from(code).unwrap_or(u8::MAX)),
            (None, signal) => Self::Killed(signal.unwrap_or_default()),
        }
    }

    /// The exit code that a shell would show.
    pub(super) fn exit_code(self) -> u8 {
        match self {
            Self::Exited(code) => code,
            Self::Killed(signal) => u8::try_from(SIGNAL_CODE + signal).unwrap_or(u8::MAX),
        }
    }
}

/// What is run, and how it reaches accounts.
pub(super) struct Kubectl<'a> {
    pub(super) program: OsString,
    pub(super) arguments: &'a [OsString],
    pub(super) door: Door,
}

impl Kubectl<'_> {
    /// Runs kubectl on one account. It has the terminal, and standard input.
    pub(super) async fn run_alone(
        &self,
        account: &NamedAccount,
        signals: &mut Signals,
    ) -> Result<Ended, CommandError> {
        let file = self.kubeconfig(account)?;
        let mut child = self.spawn(&mut self.command(&file))?;
        loop {
            tokio::select! {
                status = child.wait() => {
                    let status = status.map_err(|error| format!("kubectl: {error}"))?;
                    return Ok(Ended::of(status));
                }
                caught = signals.next() => forward(&child, caught),
            }
        }
    }

    /// Runs kubectl on each account, some at once.
    pub(super) async fn run_each(
        &self,
        accounts: &[NamedAccount],
        parallel: usize,
        output: &Output,
        signals: &mut Signals,
    ) -> Result<Vec<Ended>, CommandError> {
        let runs = accounts.iter().enumerate().map(|(index, account)| self.run_one(account, index, output));
        let all = stream::iter(runs).buffered(parallel).try_collect::<Vec<_>>();
        tokio::select! {
            ended = all => ended.map_err(CommandError::from),
            // The children end with the stream of runs, and their kubeconfigs are removed.
            caught = signals.next() => Err(CommandError::Ended(Ended::Killed(caught as i32).exit_code())),
        }
    }

    async fn run_one(
        &self,
        account: &NamedAccount,
        index: usize,
        output: &Output,
    ) -> Result<Ended, RunError> {
        let file = self.kubeconfig(account)?;
        let mut command = self.command(&file);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = self.spawn(&mut command)?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let (stdout, stderr, status) = tokio::join!(
            async {
                match stdout {
                    Some(stdout) => output.copy(stdout, index, &output.stdout).await,
                    None => Ok(()),
                }
            },
            async {
                match stderr {
                    Some(stderr) => output.copy(stderr, index, &output.stderr).await,
                    None => Ok(()),
                }
            },
            child.wait(),
        );
        stdout.and(stderr).map_err(RunError::Output)?;
        Ok(Ended::of(status.map_err(RunError::Output)?))
    }

    /// Writes a kubeconfig that only this user can read. It is removed on drop.
    fn kubeconfig(&self, account: &NamedAccount) -> Result<NamedTempFile, CommandError> {
        let text = format::yaml(&self.door.kubeconfig(std::slice::from_ref(account))?)?;
        let write = || -> io::Result<NamedTempFile> {
            let mut file = tempfile::Builder::new().prefix("kubesvc-").suffix(".kubeconfig").tempfile()?;
            file.write_all(text.as_bytes())?;
            file.flush()?;
            Ok(file)
        };
        write().map_err(|error| {
            CommandError::Failed(format!("{}: no kubeconfig: {error}", std::env::temp_dir().display()))
        })
    }

    fn command(&self, kubeconfig: &NamedTempFile) -> Command {
        let mut command = Command::new(&self.program);
        command.args(self.arguments).env("KUBECONFIG", kubeconfig.path());
        command
    }

    fn spawn(&self, command: &mut Command) -> Result<Child, CommandError> {
        command.spawn().map_err(|error| {
            let program = self.program.to_string_lossy();
            CommandError::Failed(match error.kind() {
                io::ErrorKind::NotFound => {
                    format!("{program} is not there; install kubectl in PATH, or name it by KUBECTL")
                }
                _ => format!("{program} cannot be run: {error}"),
            })
        })
    }
}

/// Why the runs on several accounts end early.
pub(super) enum RunError {
    Output(io::Error),
    Command(CommandError),
}

impl From<CommandError> for RunError {
    fn from(error: CommandError) -> Self {
        Self::Command(error)
    }
}

impl From<RunError> for CommandError {
    fn from(error: RunError) -> Self {
        match error {
            // Nobody reads why, but what kubectl was doing on other accounts was cut off.
            RunError::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => Self::Ended(1),
            RunError::Output(error) => Self::Failed(format!("kubectl's output: {error}")),
            RunError::Command(error) => error,
        }
    }
}

/// Passes a signal on. A terminal sends its own to kubectl too.
fn forward(child: &Child, caught: Signal) {
    let is_of_terminal = matches!(caught, Signal::SIGINT | Signal::SIGQUIT) && io::stdin().is_terminal();
    let id = child.id().and_then(|id| i32::try_from(id).ok());
    if let Some(id) = id.filter(|_| !is_of_terminal) {
        // It may just have ended.
        let _ = signal::kill(Pid::from_raw(id), caught);
    }
}

/// The signals that end a program. While they are caught, kubeconfigs are removed before it ends.
pub(super) struct Signals {
    streams: [(Signal, Stream); 4],
}

impl Signals {
    /// Begins to catch them.
    pub(super) fn catch() -> Result<Self, CommandError> {
        let catch = |caught: Signal| {
            let stream = signal(SignalKind::from_raw(caught as i32));
            stream.map(|stream| (caught, stream)).map_err(|error| format!("signals: {error}"))
        };
        let streams = [
            catch(Signal::SIGINT)?,
            catch(Signal::SIGTERM)?,
            catch(Signal::SIGHUP)?,
            catch(Signal::SIGQUIT)?,
        ];
        Ok(Self { streams })
    }

    /// Waits for the next one.
    async fn next(&mut self) -> Signal {
        let each = self.streams.iter_mut().map(|(caught, stream)| {
            Box::pin(async move {
                // Never `None`: the stream of a signal has no end.
                stream.recv().await;
                *caught
            })
        });
        futures::future::select_all(each).await.0
    }
}
