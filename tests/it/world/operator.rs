//! The operator's process, which a test may end and start as often as it likes.

use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use parking_lot::Mutex;

use super::rest::{self, Call};
use crate::harness::{must, process::Process, wait::try_eventually};

/// How long a start may take.
const START: Duration = Duration::from_secs(45);
/// A program starts with the soft bound on open files that processes usually have.
pub(super) const AS_USUAL: &str = r#"ulimit -Sn 1024; exec "$0" "$@""#;
/// A program that starts like this gets an error at its file limit and no signal, as at the end of a full disk.
const BEARING_FILE_LIMITS: &str = r#"ulimit -Sn 1024; trap "" XFSZ && exec "$0" "$@""#;
/// SIGTERM ends the programs within 20 s.
const END: Duration = Duration::from_secs(25);

/// What each start has in common.
pub(super) struct Launch {
    /// The replica's id.
    pub(super) id: String,
    pub(super) config: PathBuf,
    pub(super) kubeconfig: PathBuf,
    pub(super) namespace: String,
    pub(super) environment: Vec<(String, String)>,
    pub(super) log: PathBuf,
    pub(super) bears_file_limits: bool,
    pub(super) rest: u16,
    pub(super) hub: u16,
}

/// The operator of a world. It keeps ports, database and log over all its starts.
pub(crate) struct Operator {
    launch: Launch,
    process: Mutex<Option<Process>>,
}

impl Operator {
    pub(super) fn new(launch: Launch) -> Self {
        Self { launch, process: Mutex::new(None) }
    }

    /// What its starts have in common.
    pub(super) fn launch(&self) -> &Launch {
        &self.launch
    }

    /// The id under which its replica is known.
    pub(crate) fn replica_id(&self) -> &str {
        &self.launch.id
    }

    /// Starts it and waits until it says that it is ready.
    pub(crate) async fn start(&self) {
        self.launch_with(&[]);
        self.ready().await;
    }

    /// Starts it with these further environment variables, and waits for nothing: it may end on its way.
    pub(crate) fn launch_with(&self, environment: &[(&str, &str)]) {
        let script = if self.launch.bears_file_limits { BEARING_FILE_LIMITS } else { AS_USUAL };
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", script, env!("CARGO_BIN_EXE_kubesvc-operator")])
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
        // The old one first: it holds the ports.
        *process = None;
        *process = Some(must(Process::spawn("kubesvc-operator", &command, &self.launch.log)));
    }

    /// Waits until it says that it is ready.
    pub(crate) async fn ready(&self) {
        must(self.try_ready().await);
    }

    /// As [`Operator::ready`].
    ///
    /// # Errors
    ///
    /// It has ended, or is not ready in time; the text has the end of its log, or what it says is missing.
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

    /// An error with the end of its log, if it does not run.
    ///
    /// # Errors
    ///
    /// It has ended, or was not started.
    pub(crate) fn check_running(&self) -> Result<(), String> {
        self.process
            .lock()
            .as_ref()
            .map_or_else(|| Err("it was not started".to_owned()), Process::check_running)
    }

    /// Kills it (SIGKILL).
    pub(crate) fn kill(&self) {
        if let Some(process) = &*self.process.lock() {
            process.kill();
        }
    }

    /// Kills it and starts it again.
    pub(crate) async fn kill_and_start(&self) {
        self.kill();
        self.start().await;
    }

    /// Asks it to end (SIGTERM) and waits.
    pub(crate) async fn terminate(&self) -> ExitStatus {
        let process = self.process.lock().take().expect("the operator was started");
        must(process.terminate(END).await)
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.process.lock().as_ref().map(Process::id).expect("the operator was started")
    }

    /// Waits for an end that nobody has asked for.
    ///
    /// # Errors
    ///
    /// It still runs when `timeout` is over.
    pub(crate) async fn ended(&self, timeout: Duration) -> Result<ExitStatus, String> {
        try_eventually("the end of the operator", timeout, async || {
            self.exited().ok_or_else(|| "it still runs".to_owned())
        })
        .await
    }

    /// How it ended, if it has.
    pub(crate) fn exited(&self) -> Option<ExitStatus> {
        self.process.lock().as_ref().and_then(Process::exited)
    }

    /// Whether it runs.
    pub(crate) fn is_running(&self) -> bool {
        self.check_running().is_ok()
    }

    /// Stops it in its tracks (SIGSTOP).
    pub(crate) fn pause(&self) {
        if let Some(process) = &*self.process.lock() {
            process.pause();
        }
    }

    /// Whether it stands still, by whoever's hand.
    pub(crate) fn is_paused(&self) -> bool {
        // The state follows the name of the program, which stands in brackets.
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id())).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    }

    /// Lets a paused one run on.
    pub(crate) fn resume(&self) {
        if let Some(process) = &*self.process.lock() {
            process.resume();
        }
    }

    /// Everything it has logged, over all its starts.
    pub(crate) fn log_text(&self) -> String {
        std::fs::read(&self.launch.log)
            .map_or_else(|_| String::new(), |text| String::from_utf8_lossy(&text).into_owned())
    }

    /// The port of the REST API.
    pub(crate) fn rest_port(&self) -> u16 {
        self.launch.rest
    }

    /// The port of the hub.
    pub(crate) fn hub_port(&self) -> u16 {
        self.launch.hub
    }
}
