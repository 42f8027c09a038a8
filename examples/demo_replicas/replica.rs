//! The replicas as processes, and what each says of itself.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::stage::{NAMESPACE, program, until_ready, with_log};
use super::{LEASE, http_get};
use kubesvc_testkit::{folder::Folder, ports, process::Process, wait::try_eventually};

/// How long another one may take to lead: what the Lease takes to run out, and far more than the rest needs.
const NEXT: Duration = Duration::from_secs(4 * LEASE);

/// A replica of the operator.
pub(crate) struct Replica {
    pub(crate) id: String,
    pub(crate) rest: u16,
    pub(crate) hub: u16,
    settings: PathBuf,
    kubeconfig: PathBuf,
    log: PathBuf,
    process: Process,
}

impl Replica {
    /// Starts one.
    ///
    /// # Errors
    ///
    /// It does not become ready; the text has its last lines.
    pub(crate) async fn start(
        folder: &Folder,
        number: usize,
        kubeconfig: &Path,
        database: &str,
    ) -> Result<Self, String> {
        let (id, rest, hub) = (format!("replica-{number}"), ports::free(), ports::free());
        let settings = folder.write(&format!("{id}.yml"), &settings((rest, hub, ports::free()), database))?;
        let log = folder.file(&format!("{id}.log"));
        let process = launch(&id, &settings, kubeconfig, &log)?;
        let replica = Self { id, rest, hub, settings, kubeconfig: kubeconfig.to_owned(), log, process };
        until_ready(&replica.process, rest).await?;
        Ok(replica)
    }

    /// Starts it again where it was.
    ///
    /// # Errors
    ///
    /// As [`Replica::start`].
    pub(crate) async fn start_again(&mut self) -> Result<(), String> {
        self.process = launch(&self.id, &self.settings, &self.kubeconfig, &self.log)?;
        until_ready(&self.process, self.rest).await
    }

    /// Its process.
    pub(crate) fn process(&self) -> &Process {
        &self.process
    }

    /// Whether it runs.
    pub(crate) fn runs(&self) -> bool {
        self.process.exited().is_none()
    }

    /// Whether it leads, as it says itself.
    ///
    /// # Errors
    ///
    /// It does not answer.
    pub(crate) async fn leads(&self) -> Result<bool, String> {
        let metrics = http_get::get_ok(self.rest, "/metrics").await?;
        Ok(metrics.lines().any(|line| line == "kubesvc_leader 1"))
    }
}

/// The place of the one that leads; exactly one does.
///
/// # Errors
///
/// None does in time, or several do.
pub(crate) async fn until_one_leads(replicas: &[Replica]) -> Result<usize, String> {
    let found = try_eventually("one replica that leads", NEXT, async || {
        let mut leading = Vec::new();
        for (at, replica) in replicas.iter().enumerate().filter(|(_, replica)| replica.runs()) {
            if replica.leads().await? {
                leading.push(at);
            }
        }
        match leading[..] {
            [one] => Ok(one),
            _ => Err(format!("{} replicas lead", leading.len())),
        }
    });
    found.await.map_err(|reason| replicas.iter().fold(reason, |text, one| with_log(&text, &one.process)))
}

fn launch(id: &str, settings: &Path, kubeconfig: &Path, log: &Path) -> Result<Process, String> {
    let mut command = Command::new(program("kubesvc-operator")?);
    command.arg("--config").arg(settings).arg("--kubeconfig").arg(kubeconfig);
    command.args(["--namespace", NAMESPACE]).env("POD_NAME", id);
    Process::spawn(&format!("kubesvc-operator {id}"), &command, log)
}

fn settings((rest, hub, calls): (u16, u16, u16), database: &str) -> String {
    format!(
        "server: {{address: 127.0.0.1, port: {rest}}}
kubesvc:
  grpc: {{server: {{address: 127.0.0.1, port: {hub}}}}}
  replicas: {{port: {calls}}}
  database: {{url: '{database}'}}
  # Shorter than usual, so that nobody has to wait for the next leader.
  leaderElection: {{leaseDurationSeconds: {LEASE}, renewDeadlineSeconds: {}, retryPeriodSeconds: 1}}
",
        LEASE * 2 / 3
    )
}
