//! Requests to accounts' API servers, carried over the connections of this replica's agents.
//!
//! | module | owns |
//! |---|---|
//! | [`stream`] | the stream of one session: its opening, frames, pings, what both sides have |
//! | [`choice`] | which agents may be asked for an account, and in which order; pure |
//! | [`sending`] | one request: an agent, and another one where that is safe |
//! | [`recall`] | the answer of a write, asked for again after a lost stream |
//! | [`answers`] | what an agent answers, and what the caller gets |
//! | [`outcome`] | what a failure means, for reads and for writes; pure |
//! | [`counts`] | how many requests run: of an account, an agent, the replica; which end because their account is taken |
//! | [`metrics`] | `kubesvc_account_requests_*` |
//!
//! A write is opened at a second agent only if the first one says that certainly nothing was executed, or if its `Open`
//! never left this process. After a lost stream its answer is recalled from the same process of the agent, which may
//! connect to another replica: [`request_routing`](crate::request_routing) asks there.

mod answers;
mod choice;
mod counts;
mod metrics;
#[cfg(test)]
mod model;
mod outcome;
mod recall;
mod sending;
mod stream;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio::sync::{Notify, mpsc, watch};
use tonic::{Status, Streaming};

use crate::connected_agents::{AnsweringAgent, AskedAgent};
use crate::hub::account_objects::AccountObjects;
use crate::hub::agent_admission::draining::Draining;
use crate::hub::context::HubContext;
use crate::hub::sessions::Sessions;
use crate::hub::sessions::session::Session;
use crate::hub::sessions::session::identified::Identified;
use counts::RequestCounts;
use kubesvc_core::requests::credit::{CreditBudget, MAX_CREDIT_OF_REPLICA};
use kubesvc_core::requests::wire::HubEnd;
use kubesvc_core::wire::ops::{ApplySettings, RequestDown, RequestUp};
use kubesvc_core::{ReplicaId, SessionId};
use kubesvc_runtime::background_tasks::{AttemptOutcome, BackgroundTasks, TaskSpec};
use kubesvc_runtime::request_channel::RequestChannel;
use metrics::RequestMetrics;

/// Sender into an agent's stream.
type RequestDownSender = mpsc::Sender<Result<RequestDown, Status>>;

/// Maximum number of answered writes of an agent whose `Forget` waits to be sent; further ones are not told, and their
/// answers go after ten minutes. What waits is sent within two seconds, so a burst of writes that the agent refused, and does
/// not keep, takes no place from those that came before it.
const MAX_WAITING_FORGETS: usize = 4096;

/// Interval between looks for accounts that were taken from their zone.
const TAKEN_CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Interval between looks whether this replica's Lease has lapsed.
const LAPSE_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The streams of requests of this replica.
pub(crate) struct Requests {
    context: Arc<HubContext>,
    sessions: Arc<Sessions>,
    draining: Arc<Draining>,
    /// Confirms what a hello claims.
    account_objects: Arc<dyn AccountObjects>,
    streams: Mutex<HashMap<SessionId, Arc<AgentStream>>>,
    /// Counts the streams that were opened or ended.
    changed: watch::Sender<u64>,
    credit: Arc<CreditBudget>,
    counts: Arc<RequestCounts>,
    /// Number of lapses of this replica's Lease after which the accounts were listed anew.
    listed_after: AtomicU64,
    metrics: RequestMetrics,
}

/// The open stream of one session.
pub(super) struct AgentStream {
    session: Arc<Session>,
    /// This replica.
    replica_id: ReplicaId,
    channel: Arc<RequestChannel<HubEnd>>,
    /// What the agent's owner says of applying.
    apply: ApplySettings,
    /// Ids of writes whose answer was received: the agent is told of the first ones next.
    forgets: Mutex<[Vec<String>; 2]>,
    has_forgets: Notify,
    /// Notified when a later stream of the session is opened.
    superseded: Notify,
}

impl AgentStream {
    /// The process at its other end.
    fn agent(&self) -> AnsweringAgent {
        AnsweringAgent {
            agent_id: self.session.agent.id.clone(),
            boot_id: self.session.agent.boot_id.clone(),
        }
    }

    /// The same process, as one of this replica.
    fn asked_agent(&self) -> AskedAgent {
        AskedAgent { process: self.agent(), replica_id: self.replica_id.clone() }
    }

    /// Tells the agent that the answer of a write was received, once its row has had the time to be committed. Until then
    /// another replica can ask for the answer, should this one die.
    fn forget(&self, request_id: &str) {
        let mut forgets = self.forgets.lock();
        let [due, later] = &mut *forgets;
        if due.len() + later.len() < MAX_WAITING_FORGETS {
            later.push(request_id.to_owned());
        }
        drop(forgets);
        self.has_forgets.notify_one();
    }

    /// The writes whose answers the agent need not keep any longer, and whether there are more: those are due at the next
    /// call.
    fn take_forgets(&self) -> (Vec<String>, bool) {
        let mut forgets = self.forgets.lock();
        let [due, later] = &mut *forgets;
        let taken = std::mem::replace(due, std::mem::take(later));
        (taken, !due.is_empty())
    }
}

impl Requests {
    pub(super) fn new(
        context: Arc<HubContext>,
        sessions: Arc<Sessions>,
        draining: Arc<Draining>,
        account_objects: Arc<dyn AccountObjects>,
    ) -> Self {
        let counts = Arc::<RequestCounts>::default();
        let metrics = RequestMetrics::new(counts.running.clone());
        Self {
            context,
            sessions,
            draining,
            account_objects,
            streams: Mutex::default(),
            changed: watch::Sender::new(0),
            credit: CreditBudget::new(MAX_CREDIT_OF_REPLICA, None),
            counts,
            listed_after: AtomicU64::new(0),
            metrics,
        }
    }

    /// Runs the stream of an agent until it ends.
    pub(super) async fn run(
        self: Arc<Self>,
        inbound: Streaming<RequestUp>,
        sink: RequestDownSender,
        identity: Option<Identified>,
    ) {
        stream::run(self, inbound, sink, identity).await;
    }

    /// Adds the metrics to a registry.
    pub(super) fn register(&self, registry: &mut Registry) {
        self.metrics.register(registry);
    }

    /// Ends requests of accounts that their zone no longer has.
    fn end_taken(&self) {
        self.counts.end_taken(|uid| {
            let account = self.context.accounts.by_uid(uid)?;
            choice::usable(&account).ok().map(|usable| usable.zone)
        });
    }

    /// Whether what this replica knows of accounts is current, so that no request is sent into two zones. While its
    /// Lease is not renewed others may give its accounts away; a watch shows that only after the next renewal.
    fn is_current(&self) -> bool {
        self.context.replicas.lapses() == Some(self.listed_after.load(Ordering::Acquire))
    }

    /// Lists the accounts anew if the Lease has lapsed since they were listed.
    async fn list_after_lapse(&self) {
        let Some(lapses) = self.context.replicas.lapses() else { return };
        if lapses != self.listed_after.load(Ordering::Acquire) {
            self.context.accounts.list_anew().await;
            self.listed_after.store(lapses, Ordering::Release);
        }
    }

    /// The stream of a session.
    fn stream_of(&self, session: &Session) -> Option<Arc<AgentStream>> {
        self.streams.lock().get(&session.id).cloned()
    }
}

/// Starts the tasks that end requests of accounts that are taken from their zone, and that list accounts anew after a
/// lapse of this replica's Lease.
pub(super) fn start(background: &BackgroundTasks, requests: &Arc<Requests>) {
    let task: TaskSpec<()> =
        TaskSpec::new("taken accounts", "Ends requests of accounts that were taken from their zone");
    let of_taken = Arc::clone(requests);
    background.start(task.every(TAKEN_CHECK_INTERVAL), move |_| {
        of_taken.end_taken();
        std::future::ready(AttemptOutcome::Done)
    });
    let task: TaskSpec<()> = TaskSpec::new(
        "accounts after a lapse",
        "Lists the accounts anew before requests are sent again after this replica's Lease had run out",
    );
    let requests = Arc::clone(requests);
    background.start(task.every(LAPSE_CHECK_INTERVAL).without_deadline(), move |_| {
        let requests = Arc::clone(&requests);
        async move {
            requests.list_after_lapse().await;
            AttemptOutcome::Done
        }
    });
}
