//! The agent: dials the hub, takes the accounts granted to its zone, and reaches their clusters.
//!
//! | module | owns |
//! |---|---|
//! | `link` | the one stream to the hub: dialling, hello, heartbeats, reconnecting |
//! | `account_table` | what a command does to the table of accounts (pure) |
//! | `accounts` | executing the effects, and sending the reports |
//! | `account` | what runs for an account: it is started, stopped, and waited for |
//! | `activation` | from an account's definition to the identity of its cluster; probes |
//! | `caching` | the stream of cached objects: queues, batches, credit, where each scope goes on (pure) |
//! | `cluster` | the only way to a cluster: TLS, requests, failures |
//! | `watch` | how the objects of a scope are listed and watched (pure) |
//! | `requests` | HTTP requests of the hub to the accounts' API servers |
//! | `scrub` | the bytes of a list or watch become events (pure) |
//! | `hub_token` | the bearer token for the hub: its source, and until when it holds |
//! | `program_run`, `regular_file` | one run of a program, and reading a file, within bounds |
//! | `tls` | the files of TLS to the hub and of the health server, which may change |
//! | `static_accounts` | the accounts of the agent's own file, and whether the file is valid |
//! | `watch_registry` | which scopes are read at present, for people and metrics |
//! | `watched_files` | files that take effect when they change |
//! | `health`, `metrics` | answers to probes, people and Prometheus, over `http` |
//! | `program` | the composition root of `kubesvc-agent` |
//!
//! Nothing runs for an account that is merely held: only its definition and the identity of its cluster stay
//! in memory.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, watch as watch_channel};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use kubesvc_core::AgentId;
use kubesvc_runtime::background_tasks::{AttemptOutcome, BackgroundTasks, TaskRegistry, TaskSpec, blocking};

mod account_runtimes;
mod account_table;
mod activation;
mod caching;
mod cluster;
mod command_executor;
mod health;
mod http_server;
mod hub_token;
mod link;
mod metrics;
mod program;
mod program_run;
mod regular_file;
mod requests;
mod scrub;
pub mod settings;
mod static_accounts;
mod tls;
mod watch;
mod watch_registry;
mod watched_files;
mod wire_failure;

pub use account_table::{AccountTable, Attempt, Effect};
pub use activation::{ActivatedAccount, Activator, Definition, DefinitionOrigin};
pub use caching::{
    AccountSender, DeliveryNumbers, EncodedFrame, NextFrame, QueueMemory, ReaderCommand, ReaderId,
};
pub use cluster::{
    ClusterClient, ClusterContext, ClusterEndpoint, ClusterRequest, ClusterResponse, RequestBody,
    ResponseBody, Use,
};
pub use program::main;

use account_runtimes::{CachingSupervisor, CredentialVerdicts, ReaderTrackers, ReadingParts};
use activation::{MAX_FILE_BYTES, Programs};
use caching::{SharedStream, StreamDriver};
use command_executor::{Activators, SharedParts};
use health::AgentStatus;
use http_server::Server;
use hub_token::{HubToken, TokenSettingError};
use link::{HubCredentials, Link, StopSignals};
use metrics::{AgentMetrics, CachedObjectCounts};
use requests::RequestService;
use requests::driver::RequestsDriver;
use scrub::CompressorError;
use settings::AgentSettings;
use static_accounts::StaticAccountFile;
use tls::{AgentTls, TlsSettingError};
use watch_registry::WatchRegistry;
use watched_files::{AccountFiles, ReadFile};

/// Maximum number of batches of file changes that wait to be processed; at the limit, no files are checked.
const MAX_WAITING_CHANGES: usize = 16;

/// Maximum number of the hub's commands for readers of objects that wait; at the limit, the stream is not read.
const MAX_WAITING_NOTICES: usize = 1024;

/// Maximum number of accounts that were found lost and wait to be told; at the limit, further ones wait where they were
/// found, and are read no more.
const MAX_WAITING_LOSSES: usize = 256;

#[derive(Clone, Debug)]
struct AgentOptions {
    /// Id of the agent; unique among the agents of the hub.
    pub agent_id: AgentId,
    /// The zone whose accounts it takes.
    pub zone_id: String,
    pub version: String,
    /// The settings at the start. [`Self::own`] has the accounts, which follow their file.
    pub settings: AgentSettings,
    pub own: StaticAccountFile,
    /// Address for metrics; empty or `*` for all addresses.
    pub metrics_address: String,
    /// Namespace and pod, if the agent runs in Kubernetes.
    pub place: Option<(String, String)>,
    /// Maximum number of accounts that are started at once.
    pub activation_concurrency: usize,
    /// Interval between checks of the accounts' files.
    pub file_pace: Duration,
    /// Interval between checks of the files of TLS, and of the source of the token.
    pub tls_pace: Duration,
}

/// Reason why an agent could not start, or ended before it was told to.
#[derive(Debug, thiserror::Error)]
enum AgentError {
    /// The health port is in use, or the address is not one of this machine.
    #[error("cannot listen on {address} for health checks: {source}; free it, or set another server.port")]
    HealthPort { address: String, source: std::io::Error },
    /// The metrics port is in use, or the address is not one of this machine.
    #[error("cannot listen on {address} for metrics: {source}; free it, or set another prometheus.port")]
    MetricsPort { address: String, source: std::io::Error },
    #[error("{hub:?} is no address of a hub; use HOST:PORT")]
    HubAddress { hub: String },
    #[error(transparent)]
    Tls(#[from] TlsSettingError),
    #[error(transparent)]
    Token(#[from] TokenSettingError),
    #[error("a task that must go on has ended: {0}")]
    Ended(String),
    #[error(transparent)]
    Compressor(#[from] CompressorError),
    #[error("{option} {problem}")]
    Option { option: &'static str, problem: &'static str },
}

/// An agent that has bound its ports and has not dialled yet.
#[derive(Debug)]
struct Agent {
    health: Server,
    metrics: Option<Server>,
    link: Link,
    /// What is looked at again while it runs, and the interval.
    credentials: (AgentTls, Option<Arc<HubToken>>, Duration),
    files: FileWatch,
    caching: (StreamDriver, CachingSupervisor),
    requests: (RequestsDriver, Arc<RequestService>),
    background: BackgroundTasks,
    tasks: TaskTracker,
    /// Ends what goes on beside the link.
    ends: CancellationToken,
}

impl Agent {
    /// Checks the options and binds the ports.
    pub async fn bind(options: AgentOptions) -> Result<Self, AgentError> {
        check_id("the agent id", options.agent_id.as_str(), 191)?;
        check_id("the zone id", &options.zone_id, 255)?;
        let tls = AgentTls::read(&options.settings).await?;
        let token = match options.settings.hub.token.clone() {
            Some(settings) => Some(HubToken::read(settings).await?),
            None => None,
        };
        let table = Arc::new(Mutex::new(AccountTable::default()));
        let counted = AgentMetrics::default();
        let status = Arc::new(AgentStatus::new(&options, table.clone()));
        let (tasks, ends) = (TaskTracker::new(), CancellationToken::new());
        let background = BackgroundTasks::new(tasks.clone(), ends.clone(), TaskRegistry::default());
        let (shared, watches) =
            (Arc::new(SharedStream::new(QueueMemory::default())), WatchRegistry::default());
        let clusters = ClusterContext { requests: counted.requests.clone(), ..ClusterContext::default() };
        let watched = (watches.clone(), Arc::clone(&shared));
        let counts_of_objects = cached_object_counts(&watches, &shared, &clusters);
        let (changes, changed_files) = mpsc::channel(MAX_WAITING_CHANGES);
        let files = Arc::new(Mutex::new(AccountFiles::new(MAX_FILE_BYTES)));
        let files = FileWatch { pace: options.file_pace, table: table.clone(), files, changes };
        let settings = &options.settings;
        let activator = Activator {
            clusters,
            policy: settings.policy.clone(),
            programs: Programs::new(settings.exec_commands.clone(), std::env::var_os("PATH")),
            ..Activator::new(settings.kubeconfig_folders.clone(), options.activation_concurrency)
        };
        let activators = Activators { all: activator, own: options.own.clone() };
        let (caching_changed, readers) = (Arc::new(Notify::new()), ReaderTrackers::default());
        let (connection, connections) = watch_channel::channel(None);
        let (notices, noticed) = mpsc::channel(MAX_WAITING_NOTICES);
        let (losses, lost_accounts) = mpsc::channel(MAX_WAITING_LOSSES);
        let metrics_of_objects = counted.cached_objects.clone();
        let driver = StreamDriver::new(Arc::clone(&shared), connections, notices, metrics_of_objects.clone());
        let changes_of = (Arc::clone(&table), Arc::clone(&caching_changed));
        let credential_judged = Arc::new(Notify::new());
        let credentials =
            CredentialVerdicts { table: Arc::clone(&table), changed: Arc::clone(&credential_judged) };
        let metrics = metrics_of_objects;
        let told = ReadingParts { readers: readers.clone(), losses, credentials, watches, metrics };
        let caching_supervisor = CachingSupervisor::new(
            changes_of,
            activators.clone(),
            (shared, noticed),
            (settings.reading.clone(), settings.budgets.clone(), told),
        )?;
        let (request_settings, counts) = (settings.requests.clone(), counted.account_requests.clone());
        let requests = RequestService::new(Arc::clone(&table), activators.clone(), request_settings, counts);
        let registry = background.registry();
        let port_tls = tls.server.as_ref().map(|server| Arc::clone(&server.port));
        let parts = (&requests, registry);
        let health =
            http_server::bind_health(&options, port_tls, &counted, status.clone(), watched, parts).await?;
        let metrics =
            http_server::bind_metrics(&options, &counted, table.clone(), counts_of_objects, registry).await?;
        let (requests_connection, sessions) = watch_channel::channel(None);
        let requests_driver = RequestsDriver::new(Arc::clone(&requests), sessions);
        let parts = SharedParts {
            requests_connection,
            requests: Arc::clone(&requests),
            table,
            activators,
            caching_changed,
            connection,
            dynamic_accounts: settings.dynamic_accounts,
            metrics: counted,
            changed_files,
            lost_accounts,
            credential_judged,
            readers,
        };
        let credentials_pace = options.tls_pace;
        let credentials = HubCredentials { tls: tls.hub.clone(), token: token.clone() };
        let link = Link::new(options, credentials, parts, status)?;
        let caching = (driver, caching_supervisor);
        let requests = (requests_driver, requests);
        let credentials = (tls, token, credentials_pace);
        Ok(Self { health, metrics, link, credentials, files, caching, requests, background, tasks, ends })
    }

    /// Tasks that run beside the link, until it ends.
    pub fn background(&self) -> &BackgroundTasks {
        &self.background
    }

    /// Runs until `stop` is cancelled, then says goodbye to the hub. Ends in the same way if an essential
    /// task ends: an agent that answers no probes, or notices no file changes, is better restarted.
    pub async fn run(self, stop: CancellationToken) -> Result<(), AgentError> {
        let Self { health, metrics, link, credentials, files, caching, requests, background, tasks, ends } =
            self;
        background.spawn("health checks", "Answers probes and people", health.serve(ends.clone()));
        if let Some(metrics) = metrics {
            background.spawn("metrics", "Answers Prometheus", metrics.serve(ends.clone()));
        }
        files.start(&background);
        let (tls, token, pace) = credentials;
        tls.watch(pace, &background);
        if let Some(token) = token {
            token.watch(pace, &background);
        }
        let (driver, accounts) = caching;
        let driving = until(ends.clone(), driver.run());
        background.spawn("stream of cached objects", "Sends what is read of clusters to the hub", driving);
        let reading = until(ends.clone(), accounts.run());
        background.spawn("cached accounts", "Reads the objects of accounts", reading);
        let (driver, requests) = requests;
        let serving = until(ends.clone(), driver.run());
        background.spawn("stream of requests", "Makes the hub's requests to clusters", serving);
        let leave = CancellationToken::new();
        let signals = StopSignals { draining: stop.clone(), leave: leave.clone() };
        let drained = async {
            stop.cancelled().await;
            requests.drain().await;
            leave.cancel();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = accompanied(link.run(signals), &leave, &ends) => {}
            () = drained => {}
        }
        tasks.close();
        tasks.wait().await;
        background.failed_task().map_or(Ok(()), |why| Err(AgentError::Ended(why.to_owned())))
    }
}

/// Counts for metrics what is read of clusters.
fn cached_object_counts(
    watches: &WatchRegistry,
    shared: &Arc<SharedStream>,
    clusters: &ClusterContext,
) -> impl Fn() -> CachedObjectCounts + Clone + Send + Sync + 'static {
    let (watches, shared, budget) = (watches.clone(), Arc::clone(shared), clusters.budget.clone());
    move || CachedObjectCounts {
        watches: watches.counts(),
        pending_bytes: shared.pending_bytes(),
        cluster_connections: budget.open_connections(),
    }
}

/// Runs the link to its end, then ends the tasks next to it. If one of those ends first, the link is told to
/// leave.
async fn accompanied(link: impl Future<Output = ()>, leave: &CancellationToken, ends: &CancellationToken) {
    let mut link = std::pin::pin!(link);
    tokio::select! {
        () = &mut link => {}
        () = ends.cancelled() => {
            leave.cancel();
            link.await;
        }
    }
    ends.cancel();
}

/// Runs a task that has no end of its own.
async fn until(ends: CancellationToken, task: impl Future<Output = ()>) {
    let _ = ends.run_until_cancelled(task).await;
}

/// Watches the files of the accounts that are held.
#[derive(Debug)]
struct FileWatch {
    pace: Duration,
    table: Arc<Mutex<AccountTable>>,
    files: Arc<Mutex<AccountFiles>>,
    changes: mpsc::Sender<Vec<ReadFile>>,
}

impl FileWatch {
    fn start(self, background: &BackgroundTasks) {
        let task = TaskSpec::new("watch of the accounts' files", "Looks for changed files of held accounts");
        // File operations block, and a mount may hang.
        let task = task.every(self.pace).without_deadline();
        let watch = Arc::new(self);
        background.start(task, move |_| Arc::clone(&watch).check());
    }

    async fn check(self: Arc<Self>) -> AttemptOutcome {
        let (files, in_use) = (Arc::clone(&self.files), self.table.lock().files());
        let changed = blocking(move || files.lock().poll(&in_use)).await;
        if !changed.is_empty() {
            // Fails if the receiver is gone: the agent is stopping, and this task with it.
            let _ = self.changes.send(changed).await;
        }
        AttemptOutcome::Done
    }
}

fn check_id(option: &'static str, id: &str, max: usize) -> Result<(), AgentError> {
    let problem = if id.is_empty() {
        "is empty"
    } else if id.chars().count() > max {
        "is too long"
    } else if id.contains(char::is_control) {
        "holds control characters"
    } else if id.trim() != id {
        "begins or ends with white space"
    } else {
        return Ok(());
    };
    Err(AgentError::Option { option, problem })
}

#[cfg(test)]
mod tests;
