//! Child processes that write their output to files, and the reaper: however a test process ends, its children and
//! folders are removed.

use std::{
    fs::{self, File},
    io::Write,
    os::unix::process::{CommandExt, ExitStatusExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::LazyLock,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use parking_lot::Mutex;

use super::wait;

/// The child waits until the reaper watches it. If this process dies before that, the child reads the end of the pipe
/// and never executes the program.
const WAIT_FOR_REAPER: &str = r#"read -r go && input=$1 && shift && exec "$@" <"$input""#;

/// Time limit for the threads of a paused process to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Files for a child's input and output.
#[derive(Debug, Clone, Default)]
pub struct Streams {
    /// Standard input; empty by default.
    pub input: Option<PathBuf>,
    /// Standard output; by default the same file as standard error.
    pub output: Option<PathBuf>,
    /// Standard error.
    pub errors: PathBuf,
}

/// A running program that leads its own process group. The group is killed on drop.
#[derive(Debug)]
pub struct Process {
    name: String,
    pid: u32,
    log: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    child: Child,
    /// Set once the child was waited for. From then on, the process id may belong to another process.
    status: Option<ExitStatus>,
}

impl Process {
    /// Starts `command` with all output in the file `log`.
    ///
    /// Uses the program, arguments, environment and folder of `command`, but not its streams.
    ///
    /// # Errors
    ///
    /// The program does not exist or the log cannot be written.
    pub fn spawn(name: &str, command: &Command, log: &Path) -> Result<Self, String> {
        Self::spawn_with(name, command, &Streams { errors: log.to_path_buf(), ..Streams::default() })
    }

    /// Like [`Process::spawn`], with separate files for input and output.
    ///
    /// # Errors
    ///
    /// The program does not exist or a file cannot be opened.
    pub fn spawn_with(name: &str, command: &Command, streams: &Streams) -> Result<Self, String> {
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
        watch_process(pid);
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

    /// The name passed to [`Process::spawn`].
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Process id.
    pub fn id(&self) -> u32 {
        self.pid
    }

    /// File with the output.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Returns the whole output so far.
    pub fn log_text(&self) -> String {
        fs::read(&self.log).map_or_else(|_| String::new(), |text| String::from_utf8_lossy(&text).into_owned())
    }

    /// Returns the last lines of the output.
    pub fn log_tail(&self, lines: usize) -> String {
        let text = self.log_text();
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// Returns the exit status if the process has ended.
    pub fn exited(&self) -> Option<ExitStatus> {
        let mut state = self.state.lock();
        if state.status.is_none()
            && let Ok(Some(status)) = state.child.try_wait()
        {
            forget_process(self.pid);
            state.status = Some(status);
        }
        state.status
    }

    /// Waits for the end of work that takes minutes, and shows that it goes on. Blocks.
    pub fn wait_shown(&self, progress: &mut wait::Progress) -> ExitStatus {
        loop {
            if let Some(status) = self.exited() {
                return status;
            }
            progress.tick();
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Checks that the process is running.
    ///
    /// # Errors
    ///
    /// The process has ended with any status. The message contains the end of its output.
    pub fn check_running(&self) -> Result<(), String> {
        match self.exited() {
            None => Ok(()),
            Some(status) => Err(format!("{} ended: {}\n{}", self.name, describe(status), self.log_tail(30))),
        }
    }

    /// Sends a signal to the process group, unless the process has ended.
    pub fn signal(&self, signal: Signal) {
        if self.exited().is_none() {
            self.send(signal);
        }
    }

    /// Call it only before the leader was waited for: until then the id cannot belong to another process.
    fn send(&self, signal: Signal) {
        let pid = i32::try_from(self.pid).expect("process ids are positive i32");
        match killpg(Pid::from_raw(pid), signal) {
            // macOS returns EPERM for a group that contains only a dead leader.
            Ok(()) | Err(Errno::ESRCH | Errno::EPERM) => {}
            Err(e) => eprintln!("{}: {signal} to {}: {e}", self.name, self.pid),
        }
    }

    /// Pauses the process group (SIGSTOP): its connections stay open and nothing answers.
    pub fn pause(&self) {
        self.signal(Signal::SIGSTOP);
        // The signal reaches one thread, which stops the others: on a loaded machine these run on for a moment.
        let begun = Instant::now();
        while !self.is_stopped() && begun.elapsed() < STOP_TIMEOUT {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether no thread of the leader runs.
    pub fn is_stopped(&self) -> bool {
        let Ok(threads) = fs::read_dir(format!("/proc/{}/task", self.pid)) else { return true };
        // The state follows the thread's name in parentheses.
        let runs =
            |stat: &str| stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['T', 'Z', 'X']));
        !threads
            .flatten()
            .any(|thread| fs::read_to_string(thread.path().join("stat")).is_ok_and(|stat| runs(&stat)))
    }

    /// Resumes a paused process group (SIGCONT).
    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Kills the process group and waits for the end of its leader.
    pub fn kill(&self) {
        let mut state = self.state.lock();
        if state.status.is_some() {
            return;
        }
        self.send(Signal::SIGKILL);
        forget_process(self.pid);
        state.status = Some(state.child.wait().unwrap_or_else(|_| ExitStatus::from_raw(9)));
    }

    /// Waits until the process ends.
    ///
    /// # Errors
    ///
    /// It still runs after `timeout`.
    pub async fn wait(&self, timeout: Duration) -> Result<ExitStatus, String> {
        wait::try_eventually(&format!("the end of {}", self.name), timeout, async || {
            self.exited().ok_or_else(|| format!("still running; its last lines:\n{}", self.log_tail(10)))
        })
        .await
    }

    /// Sends SIGTERM and waits until the process ends.
    ///
    /// # Errors
    ///
    /// It still runs after `timeout`; it is then killed.
    pub async fn terminate(&self, timeout: Duration) -> Result<ExitStatus, String> {
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

/// Kills the newest processes first, so that an API server ends before the etcd that it would otherwise wait for.
const REAPER_SCRIPT: &str = r#"
trap '' INT TERM HUP
pids=
while read -r what value; do
  case $what in
    pid) pids="$value $pids" ;;
    gone) kept=; for pid in $pids; do [ "$pid" = "$value" ] || kept="$kept $pid"; done; pids=$kept ;;
    dir) set -- "$@" "$value" ;;
  esac
done
for pid in $pids; do kill -9 "-$pid"; done
tries=0
while [ "$tries" -lt 50 ] && [ "$#" -gt 0 ]; do
  rm -rf -- "$@"
  left=; for dir in "$@"; do [ -e "$dir" ] && left=yes; done
  [ -n "$left" ] || break
  tries=$((tries + 1)); sleep 0.1
done
"#;

/// A watchdog outside the test process that removes its children and folders however it ends: a shell script in its own
/// process group that reads from a pipe what to watch. Only the test process holds the other end, so the pipe closes when
/// that process ends, SIGKILL and abort included.
static REAPER: LazyLock<Mutex<Child>> = LazyLock::new(|| {
    let child = Command::new("sh")
        .args(["-c", REAPER_SCRIPT, "kubesvc-reaper"])
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("`sh` must be there to look after child processes");
    Mutex::new(child)
});

fn tell_reaper(line: &str) {
    let mut reaper = REAPER.lock();
    let pipe = reaper.stdin.as_mut().expect("its standard input was asked for");
    pipe.write_all(line.as_bytes()).expect("the reaper of this test process was killed");
}

/// Ensures that the process group `pid` does not outlive this process.
fn watch_process(pid: u32) {
    tell_reaper(&format!("pid {pid}\n"));
}

/// Stops watching a process group that has ended, since its id may be reused.
fn forget_process(pid: u32) {
    tell_reaper(&format!("gone {pid}\n"));
}

/// Ensures that the folder does not outlive this process.
pub(super) fn watch_folder(path: &Path) {
    tell_reaper(&format!("dir {}\n", path.display()));
}
