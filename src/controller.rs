//! The controller: observes each account, asks the pure lifecycle what to do, and does it.
//!
//! It is level-triggered. A wake-up (a changed object, a report of an agent, a timer, the resync) only says *look
//! again*; the action follows from what is then observed. Each action is one write, and after a crash before or after
//! it, the next look continues from the state it left.

mod account_rows;
mod act;
mod adoption;
mod dead_replicas;
mod events;
mod foreign_accounts;
mod listings;
mod observe;
mod owned_secrets;
mod reconcile;
#[cfg(test)]
mod tests;
mod transient_state;

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::clouddriver::Registrations;
use crate::connected_agents::{ConnectedAgents, LeaderClock};
use crate::informers::{AccountIndex, AccountKey, AgentIndex};
use crate::leases::{LeaseObjects, Mandate, Replicas};
use crate::secrets::CredentialSource;
use account_rows::ForeignRows;
use adoption::SkippedRows;
use events::Events;
use foreign_accounts::ForeignAccounts;
use kubesvc_core::ReplicaId;
use kubesvc_core::lifecycle::{LifecyclePolicy, Tick};
use kubesvc_core::secret_reference::is_read_by_operator;
use kubesvc_core::source_rules::SourceRules;
use kubesvc_runtime::background_tasks::{AttemptOutcome, TaskRegistry, TaskSpec};
use kubesvc_runtime::kube_access::KubeAccess;
use kubesvc_runtime::work_queue::WorkQueue;
use kubesvc_store::Store;
use kubesvc_store::account_projection::Projection;
use listings::Listings;
use reconcile::ReconcileSchedule;
use transient_state::{Elections, TransientStates};

pub use adoption::AdoptedRows;

/// Maximum number of uids, or of Secrets, looked up at once.
const MAX_WAKES_PER_BATCH: usize = 1024;
/// Interval at which all accounts are reconciled and unwatched credentials are read again.
const RESYNC_INTERVAL: Duration = Duration::from_secs(600);

/// Dependencies of the controller, assembled by the composition root. Clones share all of it.
#[derive(Clone)]
pub struct ControllerContext {
    /// Access to the API server, within the rate limit of writes.
    pub kube: KubeAccess,
    /// Index of the accounts as last seen.
    pub accounts: Arc<AccountIndex>,
    /// The connected agents.
    pub connected_agents: Arc<dyn ConnectedAgents>,
    /// Index of the agents' objects as last seen.
    pub agents: Arc<AgentIndex>,
    /// Names of the agents' objects that changed.
    pub changed_agents: Arc<WorkQueue<String>>,
    /// Resolver of credentials.
    pub credentials: Arc<dyn CredentialSource>,
    /// Writer of the rows.
    pub projection: Arc<Projection>,
    /// The database, for reads.
    pub store: Arc<dyn Store>,
    /// Where foreign rows become accounts; `None` if they are left alone.
    pub adopts: Option<AdoptedRows>,
    /// Settings of the lifecycle.
    pub policy: LifecyclePolicy,
    /// Which accounts may use credentials outside their own namespace.
    pub source_rules: Arc<SourceRules>,
    /// What is known of accounts in Clouddriver; `None`: it is not called.
    pub registrations: Option<Arc<Registrations>>,
    /// The leader's clock, in seconds.
    pub ticks: Arc<LeaderClock>,
    /// uids of accounts that the hub wants reconciled.
    pub wakes: Arc<WorkQueue<String>>,
    /// Secrets that changed, by namespace and name.
    pub changed_secrets: Arc<WorkQueue<(String, String)>>,
    /// Secrets that an earlier version of kubesvc may have created, by namespace and name.
    pub outdated_secrets: Arc<WorkQueue<(String, String)>>,
    /// Registry of the leader's tasks.
    pub tasks: TaskRegistry,
    /// id of this replica, for Events.
    pub replica_id: ReplicaId,
    /// Metrics of the controller.
    pub metrics: ControllerMetrics,
    /// The right to lead.
    pub mandate: Mandate,
    /// Which replicas are alive.
    pub replicas: Arc<Replicas>,
    /// The Leases of all replicas.
    pub leases: LeaseObjects,
}

/// The controller while it leads.
struct Controller {
    context: ControllerContext,
    schedule: ReconcileSchedule,
    transient_states: TransientStates,
    events: Events,
    /// Elections that are being written.
    elections: Elections,
    /// Foreign rows.
    foreign_rows: ForeignRows,
    /// Foreign rows that adoption cannot take.
    skipped: SkippedRows,
    /// What was told of accounts that another installation serves.
    foreign_accounts: ForeignAccounts,
    /// Account names listed in agents' own files.
    listings: Listings,
    leading_since: Tick,
}

impl Controller {
    fn new(context: ControllerContext, events: Events) -> Self {
        let schedule = ReconcileSchedule::new(context.accounts.follow());
        let leading_since = context.ticks.now();
        Self {
            context,
            schedule,
            transient_states: TransientStates::default(),
            events,
            elections: Elections::default(),
            foreign_rows: ForeignRows::default(),
            skipped: SkippedRows::default(),
            foreign_accounts: ForeignAccounts::default(),
            listings: Listings::default(),
            leading_since,
        }
    }
}

/// Leads until `stop`, then finishes the work in progress and returns. When `over` is cancelled, leadership is lost
/// and everything ends immediately. Can be called again; only the ticks carry over.
pub async fn run(context: ControllerContext, stop: CancellationToken, over: CancellationToken) {
    over.run_until_cancelled(lead(context, stop, over.clone())).await;
}

async fn lead(context: ControllerContext, stop: CancellationToken, over: CancellationToken) {
    if stop.run_until_cancelled(context.accounts.synced()).await.is_none() {
        return;
    }
    // Queued Events are dropped when leadership ends.
    let events_stop = over.child_token();
    let events = Events::start(&context.kube, &context.replica_id, events_stop.clone());
    let _ended = events_stop.drop_guard();
    let controller = Arc::new(Controller::new(context, events));
    info!(accounts = controller.context.accounts.len(), "started leading");
    tokio::join!(
        reconcile::run(Arc::clone(&controller), &stop),
        keep_time(&controller, &stop),
        follow_connected_agents(&controller, &stop),
        follow_secrets(&controller, &stop),
        listings::follow(&controller, &stop),
        owned_secrets::keep_updated(&controller, &stop),
        resync(&controller, &stop),
        account_rows::repair(&controller, &stop),
        adoption::run(&controller, &stop),
        dead_replicas::run(&controller, &stop),
        foreign_accounts::run(&controller, &stop),
    );
}

/// Advances the leader's seconds. For a process that was suspended, one tick passes however long that took, and none
/// if its mandate expired meanwhile.
async fn keep_time(controller: &Controller, stop: &CancellationToken) {
    let context = &controller.context;
    let task = TaskSpec::new("clock of the leader", "Counts seconds, and wakes accounts that are due");
    let second = task.every(Duration::from_secs(1));
    let tick = |_: Vec<()>| async {
        if context.mandate.holds() {
            context.ticks.advance();
            // Called every second, so that a backlog that persists is noticed.
            context.replicas.backlog_since(context.ticks.now());
            controller.schedule.wake_due(context.ticks.now());
        }
        AttemptOutcome::Done
    };
    context.tasks.drive(second, stop, tick).await;
}

async fn follow_connected_agents(controller: &Controller, stop: &CancellationToken) {
    let context = &controller.context;
    let task = TaskSpec::new("reports of agents", "Wakes accounts of which agents said something");
    let task = task.woken_by(&context.wakes).batch(MAX_WAKES_PER_BATCH);
    let wake = |uids: Vec<String>| async move {
        let accounts = uids.iter().filter_map(|uid| context.accounts.by_uid(uid));
        controller.schedule.wakes.wake_all(accounts.map(|account| AccountKey::of(&account)));
        AttemptOutcome::Done
    };
    context.tasks.drive(task, stop, wake).await;
}

/// Rereads the credential of each account that names a changed Secret.
async fn follow_secrets(controller: &Controller, stop: &CancellationToken) {
    let context = &controller.context;
    let task = TaskSpec::new("changed Secrets", "Has the credentials of accounts read again");
    let task = task.woken_by(&context.changed_secrets).batch(MAX_WAKES_PER_BATCH);
    let recheck = |changed: Vec<(String, String)>| async move {
        for (namespace, name) in changed {
            for account in context.accounts.by_secret(&namespace, &name) {
                controller.transient_states.recheck_credential(account.uid());
                controller.schedule.wakes.wake(AccountKey::of(&account));
            }
        }
        AttemptOutcome::Done
    };
    context.tasks.drive(task, stop, recheck).await;
}

async fn resync(controller: &Controller, stop: &CancellationToken) {
    let context = &controller.context;
    let task = TaskSpec::new("resync", "Wakes all accounts").every(RESYNC_INTERVAL);
    let wake_all = |_: Vec<()>| async {
        for account in context.accounts.all() {
            if is_read_by_operator(account.spec.agent_source()) {
                controller.transient_states.recheck_credential(account.uid());
            }
            controller.schedule.wakes.wake(AccountKey::of(&account));
        }
        AttemptOutcome::Done
    };
    context.tasks.drive(task, stop, wake_all).await;
}

/// Metrics of the controller. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct ControllerMetrics {
    /// By former and new state.
    transitions: Family<[(&'static str, &'static str); 2], Counter>,
    reconciles: Counter,
    writes: Counter,
    conflicts: Counter,
    failed_requests: Counter,
    dropped_events: Counter,
    foreign_rows: Gauge,
    adopted_rows: Counter,
    unreadable_rows: Gauge,
    adoption_passes: Counter,
}

impl ControllerMetrics {
    /// Registers the metrics under `kubesvc_controller_…`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("kubesvc_controller");
        registry.register("transitions", "State changes written", self.transitions.clone());
        registry.register("looks", "Times an account was looked at", self.reconciles.clone());
        registry.register("writes", "Writes of account objects", self.writes.clone());
        registry.register(
            "conflicts",
            "Writes refused because the object had changed",
            self.conflicts.clone(),
        );
        registry.register("failed_requests", "Requests that failed otherwise", self.failed_requests.clone());
        registry.register(
            "dropped_events",
            "Kubernetes Events that were not written",
            self.dropped_events.clone(),
        );
        registry.register(
            "foreign_rows",
            "Rows of kubesvc_accounts that kubesvc did not write",
            self.foreign_rows.clone(),
        );
        registry.register(
            "adoption_looks",
            "Times the rows that are to become accounts were looked at",
            self.adoption_passes.clone(),
        );
        registry.register("adopted_rows", "Rows that became accounts", self.adopted_rows.clone());
        registry.register(
            "unreadable_rows",
            "Rows that are to become accounts and cannot",
            self.unreadable_rows.clone(),
        );
    }
}
