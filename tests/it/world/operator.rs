//! The operator process, which a test may stop and start repeatedly.

use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use parking_lot::Mutex;

use super::rest::{self, Call};
use kubesvc_testkit::{must, process::Process, wait::try_eventually};

/// Time limit for a start.
const START: Duration = Duration::from_secs(45);
/// Starts a program with the usual soft limit on open files.
pub(super) const AS_USUAL: &str = r#"ulimit -Sn 1024; exec "$0" "$@""#;
/// Starts a program that gets an error instead of a signal at its file size limit, like at the end of a full disk.
const BEARING_FILE_LIMITS: &str = r#"ulimit -Sn 1024; trap "" XFSZ && exec "$0" "$@""#;
/// Time limit for a shutdown. SIGTERM ends the programs within 20 s.
const END: Duration = Duration::from_secs(25);

/// Parameters of each start.
pub(super) struct Launch {
    /// Id of the replica.
    pub(super) id: String,
    pub(super) config: PathBuf,
    pub(super) kubeconfig: PathBuf,
    pub(super) namespace: String,
    pub(super) environment: Vec<(String, String)>,
    pub(super) log: PathBuf,
    pub(super) bears_file_limits: bool,
    pub(super) rest: u16,
    pub(super) hub: u16,
    pub(super) calls: u16,
}

/// An operator of a world. It keeps its ports, database and log across restarts.
pub(crate) struct Operator {
    launch: Launch,
    program: Mutex<PathBuf>,
    process: Mutex<Option<Process>>,
}

impl Operator {
    pub(super) fn new(launch: Launch) -> Self {
        let program = Mutex::new(env!("CARGO_BIN_EXE_kubesvc-operator").into());
        Self { launch, program, process: Mutex::new(None) }
    }

    /// Sets the program of the next start, by default that of this version.
    pub(crate) fn set_program(&self, program: PathBuf) {
        *self.program.lock() = program;
    }

    /// Parameters of each start.
    pub(super) fn launch(&self) -> &Launch {
        &self.launch
    }

    /// Id of the replica.
    pub(crate) fn replica_id(&self) -> &str {
        &self.launch.id
    }

    /// Starts the operator and waits until it is ready.
    pub(crate) async fn start(&self) {
        self.launch_with(&[]);
        self.ready().await;
    }

    /// Starts the operator with additional environment variables, without waiting: it may end at any time.
    pub(crate) fn launch_with(&self, environment: &[(&str, &str)]) {
        let script = if self.launch.bears_file_limits { BEARING_FILE_LIMITS } else { AS_USUAL };
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", script])
            .arg(&*self.program.lock())
            .arg("--config")
            .arg(&self.launch.config)
            .arg("--kubeconfig")
            .arg(&self.launch.kubeconfig)
            .args(["--namespace", &self.launch.namespace])
            .env("POD_NAME", &self.launch.id);
        for (name, value) in &self.launch.environment {
            command.env(name, value);
        }
        for (name, value) in environment {
            command.env(name, value);
        }
        let mut process = self.process.lock();
        // Kill the old process first: it holds the ports.
        *process = None;
        *process = Some(must(Process::spawn("kubesvc-operator", &command, &self.launch.log)));
    }

    /// Waits until the operator reports that it is ready.
    pub(crate) async fn ready(&self) {
        must(self.try_ready().await);
    }

    /// Like [`Operator::ready`], but returns errors.
    ///
    /// # Errors
    ///
    /// The operator has ended, or is not ready in time. The message contains the end of its log, or what it reports
    /// as missing.
    pub(crate) async fn try_ready(&self) -> Result<(), String> {
        try_eventually("a ready operator", START, async || {
            if let Err(ended) = self.check_running() {
                return Ok(Err(ended));
            }
            let answer = rest::send(self.launch.rest, Call::get("/health/readiness")).await?;
            if answer.status == 200 { Ok(Ok(())) } else { Err(answer.to_string()) }
        })
        .await?
    }

    /// Checks that the operator is running.
    ///
    /// # Errors
    ///
    /// The operator has ended, or was not started. The message contains the end of its log.
    pub(crate) fn check_running(&self) -> Result<(), String> {
        self.process
            .lock()
            .as_ref()
            .map_or_else(|| Err("it was not started".to_owned()), Process::check_running)
    }

    /// Kills the operator with SIGKILL.
    pub(crate) fn kill(&self) {
        if let Some(process) = &*self.process.lock() {
            process.kill();
        }
    }

    /// Kills the operator and starts it again.
    pub(crate) async fn kill_and_start(&self) {
        self.kill();
        self.start().await;
    }

    /// Sends SIGTERM and waits for the end.
    pub(crate) async fn terminate(&self) -> ExitStatus {
        let process = self.process.lock().take().expect("the operator was started");
        must(process.terminate(END).await)
    }

    /// Process id.
    pub(crate) fn id(&self) -> u32 {
        self.process.lock().as_ref().map(Process::id).expect("the operator was started")
    }

    /// Waits until the operator ends by itself.
    ///
    /// # Errors
    ///
    /// It still runs after `timeout`.
    pub(crate) async fn ended(&self, timeout: Duration) -> Result<ExitStatus, String> {
        try_eventually("the end of the operator", timeout, async || {
            self.exited().ok_or_else(|| "it still runs".to_owned())
        })
        .await
    }

    /// Returns the exit status if the operator has ended.
    pub(crate) fn exited(&self) -> Option<ExitStatus> {
        self.process.lock().as_ref().and_then(Process::exited)
    }

    /// Whether the operator is running.
    pub(crate) fn is_running(&self) -> bool {
        self.check_running().is_ok()
    }

    /// Pauses the operator (SIGSTOP).
    pub(crate) fn pause(&self) {
        if let Some(process) = &*self.process.lock() {
            process.pause();
        }
    }

    /// Whether the process is stopped by SIGSTOP, regardless of the sender.
    pub(crate) fn is_paused(&self) -> bool {
        // The state follows the program's name in parentheses.
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id())).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    }

    /// Resumes a paused operator.
    pub(crate) fn resume(&self) {
        if let Some(process) = &*self.process.lock() {
            process.resume();
        }
    }

    /// Returns the whole log, over all starts.
    pub(crate) fn log_text(&self) -> String {
        std::fs::read(&self.launch.log)
            .map_or_else(|_| String::new(), |text| String::from_utf8_lossy(&text).into_owned())
    }

    /// Port of the REST API.
    pub(crate) fn rest_port(&self) -> u16 {
        self.launch.rest
    }

    /// Port for calls of other replicas.
    pub(crate) fn calls_port(&self) -> u16 {
        self.launch.calls
    }

    /// Port of the hub.
    pub(crate) fn hub_port(&self) -> u16 {
        self.launch.hub
    }
}
