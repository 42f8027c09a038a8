//! Operations on accounts: running their programs, and the records of what was done, by whom, and how it ended.
//!
//! An operation is checked, entered among the known ones, and run by a task of its own, which outlives the call: it commits
//! the operation's row, asks its program for requests, sends them through [`AccountRequests`], and commits the end before
//! the caller is answered. The row has the id of each write that decides before that is sent, so that it never says less
//! than what was done.
//!
//! | module | owns |
//! |---|---|
//! | [`submission`] | a call: its checks in order, its id, and the wait for its end |
//! | [`checks`] | rights, time limit, identity and id of an operation; pure |
//! | [`runner`], [`job`] | the requests of one operation, and how far it is |
//! | [`failures`] | what a request without an answer means, and whether the operation runs again; pure |
//! | [`document_threads`] | threads for manifests that take long |
//! | [`known_operations`] | operations that run here, and answers of those that ran a moment ago |
//! | [`in_flight`] | room for operations: of an account, of a caller, of the replica |
//! | [`cluster_kinds`] | kinds of the clusters of accounts |
//! | [`records`] | what is recorded of an operation; pure |
//! | [`row_writer`], [`pending_rows`] | the rows to be written; which ones are queued is pure |
//! | [`audit_lines`] | audit lines of refused calls and of writes |
//! | [`caller_records`], [`record_view`] | records for callers, and results that people give |
//! | [`settlement`] | ends of what dead replicas and former processes left open, and the purge of the history |
//! | [`refusal`], [`metrics`] | why a call is refused; `kubesvc_operations_*` |

mod audit_lines;
mod caller_records;
mod checks;
mod cluster_kinds;
mod document_threads;
mod failures;
mod in_flight;
mod job;
mod known_operations;
mod metrics;
mod pending_rows;
mod record_view;
mod records;
mod refusal;
mod row_writer;
mod runner;
mod settlement;
mod submission;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use prometheus_client::registry::Registry;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::info;

pub use known_operations::EndedOperation;
pub use record_view::OperationRecordView;
pub use refusal::OperationRefusal;
pub use settlement::OperationUpkeep;
pub use submission::{OperationCall, OperationCaller, Submitted};

use crate::access::audit::{AuditEvent, AuditLine, AuditLog};
use crate::access::{Access, CallerCounts};
use crate::connected_agents::AccountRequests;
use crate::informers::AccountIndex;
use crate::leases::Replicas;
use cluster_kinds::ClusterKinds;
use document_threads::DocumentThreads;
use in_flight::InFlight;
use job::Job;
use known_operations::KnownOperations;
use kubesvc_core::ReplicaId;
use kubesvc_core::cron::CronSchedule;
use kubesvc_core::operations::{ObjectKey, Outcome};
use kubesvc_runtime::crash_points;
use kubesvc_runtime::limits::KeyedLimit;
use kubesvc_store::{OpenOperation, OperationChange, OperationRecord, OperationStore};
use metrics::OperationMetrics;
use row_writer::RowWriter;
use runner::now_ms;

/// Time limit for the commit of an end, for which its caller waits.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// Time that running operations have when the replica stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Takes records of what begins and ends elsewhere. Writing them is off the critical path of a call.
#[async_trait]
pub trait OperationHistory: Send + Sync {
    /// Records what was given to an agent, so that another replica settles it if this one dies. Never waits.
    fn begun(&self, open: OpenOperation);

    /// Records what ended. Never waits: with the database away 10,000 records wait, then the oldest are dropped and
    /// counted.
    fn ended(&self, record: OperationRecord);

    /// Writes the rows that wait, so that who reads next finds them. Waits for at most a second.
    async fn flush(&self);
}

/// Settings of operations.
#[derive(Clone, Debug)]
pub struct OperationSettings {
    /// Id of this replica.
    pub replica_id: ReplicaId,
    /// Time for an operation that writes, unless its caller says another.
    pub write_time: Duration,
    /// Time for an operation that only reads, unless its caller says another.
    pub read_time: Duration,
    /// Maximum number of runs after the first one.
    pub max_retries: u32,
    /// Time for which the history is kept.
    pub kept_for: Duration,
    /// When the history is purged.
    pub purge: CronSchedule,
    /// Maximum number of rows of the history.
    pub max_rows: u64,
    /// Maximum length of the metrics' label `result`, in characters.
    pub max_result_label: usize,
    /// Whether an account that a caller may not get is answered as one that does not exist.
    pub hides_accounts: bool,
}

/// What operations are made with.
#[derive(Clone)]
pub struct OperationPorts {
    /// The accounts as last seen.
    pub accounts: Arc<AccountIndex>,
    /// The way to their API servers.
    pub requests: Arc<dyn AccountRequests>,
    /// Who may do what.
    pub access: Arc<dyn Access>,
    /// The rows.
    pub store: Arc<dyn OperationStore>,
    /// Which replicas are alive.
    pub replicas: Arc<Replicas>,
    /// Lines of who did what.
    pub audit: AuditLog,
    /// How many requests of one caller run at this replica.
    pub callers: Arc<CallerCounts>,
}

/// The operations of this replica.
pub struct Operations {
    this: Weak<Self>,
    settings: OperationSettings,
    accounts: Arc<AccountIndex>,
    requests: Arc<dyn AccountRequests>,
    access: Arc<dyn Access>,
    store: Arc<dyn OperationStore>,
    replicas: Arc<Replicas>,
    audit: AuditLog,
    known: KnownOperations,
    in_flight: InFlight,
    /// One operation at a time for each object of an account, which has this uid.
    turns: KeyedLimit<(String, ObjectKey)>,
    kinds: ClusterKinds,
    documents: DocumentThreads,
    rows: RowWriter,
    metrics: Arc<OperationMetrics>,
    tasks: TaskTracker,
    is_draining: AtomicBool,
    /// Held by the one who settles what other processes left open.
    settling: tokio::sync::Mutex<()>,
    begun: Instant,
    /// When this process began, in epoch milliseconds. None of its operations is older.
    began_ms: i64,
}

impl Operations {
    /// Creates the operations of this replica.
    pub fn new(settings: OperationSettings, ports: OperationPorts) -> Arc<Self> {
        let in_flight = InFlight::new(ports.callers);
        let running = in_flight.running.clone();
        let metrics = Arc::new(OperationMetrics::new(running, settings.max_result_label));
        Arc::new_cyclic(|this| Self {
            this: this.clone(),
            settings,
            accounts: ports.accounts,
            requests: ports.requests,
            access: ports.access,
            rows: RowWriter::new(Arc::clone(&ports.store), Arc::clone(&metrics)),
            store: ports.store,
            replicas: ports.replicas,
            audit: ports.audit,
            known: KnownOperations::default(),
            in_flight,
            turns: KeyedLimit::new(1),
            kinds: ClusterKinds::default(),
            documents: DocumentThreads::default(),
            metrics,
            tasks: TaskTracker::new(),
            is_draining: AtomicBool::new(false),
            settling: tokio::sync::Mutex::default(),
            begun: Instant::now(),
            began_ms: now_ms(),
        })
    }

    /// Adds the metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        self.metrics.register(registry);
    }

    /// Writes rows until `stop`; then waits for what runs, at most ten seconds, and for `served`, and writes the last rows.
    /// `served` is cancelled once no caller is served any more: until then requests end, whose callers have their answers
    /// and whose agents are told to forget them.
    pub async fn write_rows(&self, stop: CancellationToken, served: CancellationToken) {
        let written = CancellationToken::new();
        let drained = async {
            stop.cancelled().await;
            self.is_draining.store(true, Ordering::Relaxed);
            self.tasks.close();
            let ended = timeout(DRAIN_TIMEOUT, self.tasks.wait());
            let (ended, ()) = tokio::join!(ended, served.cancelled());
            if ended.is_err() {
                let left = self.known.running();
                info!(operations = left, "operations still run; another replica settles them");
            }
            written.cancel();
        };
        tokio::join!(drained, self.rows.run(written.clone()));
    }

    /// Time since the start.
    fn clock(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Ends an operation that ran here: in its row, then for those who wait. An end that cannot be committed in time is
    /// queued.
    async fn ended(&self, job: &Job, outcome: Outcome, before_send: bool) {
        let (record, agent) = {
            let progress = job.progress.lock();
            let answered = progress.answered.as_ref().map(|(agent, time)| (agent, *time));
            let replica_id = &self.settings.replica_id;
            let warnings = progress.warnings.clone();
            let record = OperationRecord { warnings, ..progress.record.clone() };
            // The one that was asked last, also if it did not answer.
            let agent = record.sent.as_ref().map(|sent| sent.id.clone()).unwrap_or_default();
            (records::ended(record, &outcome, before_send, answered, replica_id, now_ms()), agent)
        };
        let duration = job.started.elapsed();
        let kind = job.operation.kind();
        let result = outcome.failure.as_ref().map_or("OK", |failure| failure.class.as_str());
        self.metrics.ended(kind.name, record.outcome.as_str(), result, duration.as_secs_f64());
        if !kind.reads {
            let object = job.operation.object();
            let object = object.as_ref();
            self.audit.write(&AuditLine {
                operation_id: &job.id,
                principal: Some(&job.principal),
                claimed: job.claimed.as_deref().unwrap_or_default(),
                account: &record.account,
                uid: &job.account_uid,
                agent: &agent,
                verb: kind.name,
                resource: object.map_or("", |object| &object.kind),
                namespace: object.map_or("", |object| &object.namespace),
                name: object.map_or("", |object| &object.name),
                code: Some(outcome.status),
                duration: Some(duration),
                reason: record.outcome.as_str(),
                ..AuditLine::new(AuditEvent::Write, record.request_id.as_deref().unwrap_or_default())
            });
        }
        let ended = EndedOperation {
            status: outcome.status,
            duration_ms: i64::try_from(duration.as_millis()).unwrap_or(i64::MAX),
            body: outcome.body,
            failure: outcome.failure,
            before_send,
            warnings: record.warnings.clone(),
        };
        let end = OperationChange::End(Box::new(record));
        let committing = crash_points::around(Some("operation-end"), self.rows.commit(end.clone()));
        if !matches!(timeout(END_TIMEOUT, committing).await, Ok(Ok(_))) {
            self.rows.queue(end);
        }
        self.known.end(&job.id, ended, self.clock());
    }
}

#[async_trait]
impl OperationHistory for Operations {
    fn begun(&self, open: OpenOperation) {
        self.rows.queue(OperationChange::Open(Box::new(open)));
    }

    fn ended(&self, record: OperationRecord) {
        self.rows.queue(OperationChange::End(Box::new(record)));
    }

    async fn flush(&self) {
        self.rows.flush(caller_records::FLUSH_TIMEOUT).await;
    }
}
