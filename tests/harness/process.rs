//! A child process with its output in a file, and no way to outlive the test.

use std::{
    fs::File,
    io::Write,
    os::unix::process::{CommandExt, ExitStatusExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use parking_lot::Mutex;

use super::{reaper, wait};

/// The child waits until the reaper knows it. If this process dies before, the child reads the end of the pipe instead
/// and never becomes the program.
const WAIT_FOR_REAPER: &str = r#"read -r go && input=$1 && shift && exec "$@" <"$input""#;

/// Where a child's input and output go.
#[derive(Debug, Clone, Default)]
pub(crate) struct Streams {
    /// Standard input; empty without it.
    pub(crate) input: Option<PathBuf>,
    /// Standard output; without it, with the errors.
    pub(crate) output: Option<PathBuf>,
    /// Standard error.
    pub(crate) errors: PathBuf,
}

/// A running program, leader of a process group of its own. Killed, with its group, on drop.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    pid: u32,
    log: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    child: Child,
    /// Set once it has been waited for; from then on the number may belong to somebody else.
    status: Option<ExitStatus>,
}

impl Process {
    /// Starts `command` with everything it prints in the file `log`.
    ///
    /// Program, arguments, environment and folder of `command` count; its streams do not.
    ///
    /// # Errors
    ///
    /// The program is not there or the log cannot be written.
    pub(crate) fn spawn(name: &str, command: &Command, log: &Path) -> Result<Self, String> {
        Self::spawn_with(name, command, &Streams { errors: log.to_path_buf(), ..Streams::default() })
    }

    /// As [`Process::spawn`], with more say about where its input and output go.
    ///
    /// # Errors
    ///
    /// The program is not there or one of the files cannot be opened.
    pub(crate) fn spawn_with(name: &str, command: &Command, streams: &Streams) -> Result<Self, String> {
        let program = Path::new(command.get_program());
        if program.components().count() > 1 && !program.is_file() {
            return Err(format!("{name}: no such program: {}", program.display()));
        }
        let append = |path: &Path| {
            File::options()
                .create(true)
                .append(true)
                .open(path)
                .map_err(|e| format!("{name}: log {}: {e}", path.display()))
        };
        let errors = append(&streams.errors)?;
        let output = match &streams.output {
            Some(path) => append(path)?,
            None => errors.try_clone().map_err(|e| format!("{name}: {e}"))?,
        };
        let mut sh = Command::new("sh");
        sh.args(["-c", WAIT_FOR_REAPER, name])
            .arg(streams.input.as_deref().unwrap_or(Path::new("/dev/null")))
            .arg(program)
            .args(command.get_args())
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(output)
            .stderr(errors);
        for (key, value) in command.get_envs() {
            match value {
                Some(value) => sh.env(key, value),
                None => sh.env_remove(key),
            };
        }
        if let Some(folder) = command.get_current_dir() {
            sh.current_dir(folder);
        }
        let mut child = sh.spawn().map_err(|e| format!("{name}: cannot start: {e}"))?;
        let pid = child.id();
        reaper::watch_process(pid);
        let stdin = child.stdin.take();
        let process = Self {
            name: name.into(),
            pid,
            log: streams.errors.clone(),
            state: Mutex::new(State { child, status: None }),
        };
        stdin
            .expect("its standard input was asked for")
            .write_all(b"go\n")
            .map_err(|e| format!("{name}: cannot start: {e}"))?;
        Ok(process)
    }

    /// The name it was started under.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.pid
    }

    /// The file with its output.
    pub(crate) fn log(&self) -> &Path {
        &self.log
    }

    /// All of its output so far.
    pub(crate) fn log_text(&self) -> String {
        std::fs::read(&self.log)
            .map_or_else(|_| String::new(), |text| String::from_utf8_lossy(&text).into_owned())
    }

    /// The last lines of its output.
    pub(crate) fn log_tail(&self, lines: usize) -> String {
        let text = self.log_text();
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// How it ended, if it has.
    pub(crate) fn exited(&self) -> Option<ExitStatus> {
        let mut state = self.state.lock();
        if state.status.is_none()
            && let Ok(Some(status)) = state.child.try_wait()
        {
            reaper::forget_process(self.pid);
            state.status = Some(status);
        }
        state.status
    }

    /// An error with the end of its output, if it has ended.
    ///
    /// # Errors
    ///
    /// It has ended, whatever with.
    pub(crate) fn check_running(&self) -> Result<(), String> {
        match self.exited() {
            None => Ok(()),
            Some(status) => Err(format!("{} ended: {}\n{}", self.name, describe(status), self.log_tail(30))),
        }
    }

    /// Sends a signal to the whole process group; none if it has ended.
    pub(crate) fn signal(&self, signal: Signal) {
        if self.exited().is_none() {
            self.send(signal);
        }
    }

    /// Only while the leader has not been waited for: until then the number cannot belong to another process.
    fn send(&self, signal: Signal) {
        let pid = i32::try_from(self.pid).expect("process ids are positive i32");
        match killpg(Pid::from_raw(pid), signal) {
            // EPERM: macOS says so of a group in which only a dead leader is left.
            Ok(()) | Err(Errno::ESRCH | Errno::EPERM) => {}
            Err(e) => eprintln!("{}: {signal} to {}: {e}", self.name, self.pid),
        }
    }

    /// Stops it in its tracks (SIGSTOP): its connections stay open and nothing answers.
    pub(crate) fn pause(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Lets a paused one run on.
    pub(crate) fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Kills the process group at once and waits for the end of its leader.
    pub(crate) fn kill(&self) {
        let mut state = self.state.lock();
        if state.status.is_some() {
            return;
        }
        self.send(Signal::SIGKILL);
        reaper::forget_process(self.pid);
        state.status = Some(state.child.wait().unwrap_or_else(|_| ExitStatus::from_raw(9)));
    }

    /// Waits for its end.
    ///
    /// # Errors
    ///
    /// It still runs when `timeout` is over.
    pub(crate) async fn wait(&self, timeout: Duration) -> Result<ExitStatus, String> {
        wait::try_eventually(&format!("the end of {}", self.name), timeout, async || {
            self.exited().ok_or_else(|| format!("still running; its last lines:\n{}", self.log_tail(10)))
        })
        .await
    }

    /// Asks it to end (SIGTERM) and waits.
    ///
    /// # Errors
    ///
    /// It still runs when `timeout` is over; it is killed then.
    pub(crate) async fn terminate(&self, timeout: Duration) -> Result<ExitStatus, String> {
        self.signal(Signal::SIGTERM);
        let ended = self.wait(timeout).await;
        if ended.is_err() {
            self.kill();
        }
        ended
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn describe(status: ExitStatus) -> String {
    match status.signal() {
        Some(number) => format!("killed by {}", Signal::try_from(number).map_or("a signal", Signal::as_str)),
        None => format!("exit code {}", status.code().unwrap_or_default()),
    }
}
