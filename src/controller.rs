//! The controller: observes each account, asks the pure lifecycle what to do, and does it.
//!
//! It is level-triggered. A wake-up (a changed object, a report of an agent, a timer, the resync) only says *look
//! again*; the action follows from what is then observed. Each action is one write, and after a crash before or after
//! it, the next look continues from the state it left.

mod act;
mod adoption;
mod dead_replicas;
mod elections;
mod events;
mod foreign_rows;
mod leader;
mod listings;
mod memory;
mod metrics;
mod observe;
mod owned_secrets;
mod reconcile;
mod schedule;
mod workers;

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::account::failure::FailureClass;
use crate::account::lifecycle::{LifecyclePolicy, RowFact};
use crate::account::name_precedence::awaits_request;
use crate::account::row::{self, AccountRow};
use crate::account::secret_reference::is_read_by_operator;
use crate::account::source_rules::SourceRules;
use crate::account::{GrantPhase, KubesvcAccount};
use crate::background_tasks::{Outcome, TaskRegistry, TaskSpec};
use crate::budget::Budget;
use crate::fleet::{Fleet, Ticks};
use crate::leases::{LeaseObjects, Mandate, Replicas};
use crate::objects::{AccountIndex, AccountKey, AgentIndex};
use crate::secrets::CredentialSource;
use crate::store::Store;
use crate::store::projection::Projection;
use crate::telemetry::errors::chain;
use crate::wake_set::WakeSet;

pub use adoption::AdoptedRows;
pub use metrics::ControllerMetrics;

/// Maximum number of accounts reconciled concurrently.
const MAX_CONCURRENT_ACCOUNTS: usize = 64;
/// Maximum number of uids, or of Secrets, looked up at once.
const MAX_WAKES_PER_BATCH: usize = 1024;
/// Interval at which all accounts are reconciled and unwatched credentials are read again.
const RESYNC_INTERVAL: Duration = Duration::from_secs(600);
/// Interval between comparisons of rows and objects.
const ROW_COMPARISON_INTERVAL: Duration = Duration::from_secs(60);

/// Dependencies of the controller, assembled by the composition root. Clones share all of it.
#[derive(Clone)]
pub struct ControllerContext {
    /// Client for objects.
    pub client: Client,
    /// Index of the accounts as last seen.
    pub accounts: Arc<AccountIndex>,
    /// The connected agents.
    pub fleet: Arc<dyn Fleet>,
    /// Index of the agents' objects as last seen.
    pub agents: Arc<AgentIndex>,
    /// Names of the agents' objects that changed.
    pub changed_agents: Arc<WakeSet<String>>,
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
    /// The leader's clock, in seconds.
    pub ticks: Arc<Ticks>,
    /// uids of accounts that the hub wants reconciled.
    pub wakes: Arc<WakeSet<String>>,
    /// Secrets that changed, by namespace and name.
    pub changed_secrets: Arc<WakeSet<(String, String)>>,
    /// Secrets that an earlier version of kubesvc may have created, by namespace and name.
    pub outdated_secrets: Arc<WakeSet<(String, String)>>,
    /// Rate limit of writes to the API server.
    pub budget: Budget,
    /// Registry of the leader's tasks.
    pub tasks: TaskRegistry,
    /// id of this replica, for Events.
    pub replica_id: String,
    /// Metrics of the controller.
    pub metrics: ControllerMetrics,
    /// The right to lead.
    pub mandate: Mandate,
    /// Which replicas are alive.
    pub replicas: Arc<Replicas>,
    /// The replicas' Leases; `None` with a single replica.
    pub leases: Option<LeaseObjects>,
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
    let telling = over.child_token();
    let events = events::Events::start(context.client.clone(), &context.replica_id, telling.clone());
    let _ended = telling.drop_guard();
    let controller = Arc::new(leader::Controller::new(context, events));
    info!(accounts = controller.context.accounts.len(), "started leading");
    tokio::join!(
        workers::run(Arc::clone(&controller), stop.clone(), over),
        keep_time(&controller, &stop),
        follow_fleet(&controller, &stop),
        follow_secrets(&controller, &stop),
        listings::follow(&controller, &stop),
        owned_secrets::keep_updated(&controller, &stop),
        resync(&controller, &stop),
        repair_rows(&controller, &stop),
        adoption::run(&controller, &stop),
        dead_replicas::run(&controller, &stop),
    );
}

/// Advances the leader's seconds. For a process that was suspended, one tick passes however long that took, and none
/// if its mandate expired meanwhile.
async fn keep_time(controller: &leader::Controller, stop: &CancellationToken) {
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
        Outcome::Done
    };
    context.tasks.drive(second, stop, tick).await;
}

async fn follow_fleet(controller: &leader::Controller, stop: &CancellationToken) {
    let context = &controller.context;
    let task = TaskSpec::new("reports of agents", "Wakes accounts of which agents said something");
    let task = task.woken_by(&context.wakes).batch(MAX_WAKES_PER_BATCH);
    let wake = |uids: Vec<String>| async move {
        let accounts = uids.iter().filter_map(|uid| context.accounts.by_uid(uid));
        controller.schedule.wakes.wake_all(accounts.map(|account| AccountKey::of(&account)));
        Outcome::Done
    };
    context.tasks.drive(task, stop, wake).await;
}

/// Rereads the credential of each account that names a changed Secret.
async fn follow_secrets(controller: &leader::Controller, stop: &CancellationToken) {
    let context = &controller.context;
    let task = TaskSpec::new("changed Secrets", "Has the credentials of accounts read again");
    let task = task.woken_by(&context.changed_secrets).batch(MAX_WAKES_PER_BATCH);
    let recheck = |changed: Vec<(String, String)>| async move {
        for (namespace, name) in changed {
            for account in context.accounts.by_secret(&namespace, &name) {
                controller.memories.recheck_credential(account.uid());
                controller.schedule.wakes.wake(AccountKey::of(&account));
            }
        }
        Outcome::Done
    };
    context.tasks.drive(task, stop, recheck).await;
}

async fn resync(controller: &leader::Controller, stop: &CancellationToken) {
    let context = &controller.context;
    let task = TaskSpec::new("resync", "Wakes all accounts").every(RESYNC_INTERVAL);
    let wake_all = |_: Vec<()>| async {
        for account in context.accounts.all() {
            if is_read_by_operator(account.spec.agent_source()) {
                controller.memories.recheck_credential(account.uid());
            }
            controller.schedule.wakes.wake(AccountKey::of(&account));
        }
        Outcome::Done
    };
    context.tasks.drive(task, stop, wake_all).await;
}

/// Repairs rows that were edited, or that a crash left behind their object: immediately, then once a minute, and
/// whenever the database is available again.
async fn repair_rows(controller: &leader::Controller, stop: &CancellationToken) {
    let projection = &controller.context.projection;
    let task = TaskSpec::new("row comparison", "Repairs rows that differ from their objects");
    let task = task.every(ROW_COMPARISON_INTERVAL).at_start().on_change(projection.watch());
    let task = task.without_deadline().logs_itself();
    controller.context.tasks.drive(task, stop, |_: Vec<()>| compare_rows(controller)).await;
}

async fn compare_rows(controller: &leader::Controller) -> Outcome {
    let projection = &controller.context.projection;
    if projection.problem().is_some() {
        // The next run follows as soon as the database is available.
        return Outcome::Done;
    }
    let outcome = match projection.repair(|| expected_rows(&controller.context)).await {
        Ok(repair) if repair.is_nothing() => Outcome::Done,
        Ok(repair) => {
            info!(
                inserted = repair.inserted,
                updated = repair.updated,
                deleted = repair.deleted,
                refused = repair.refused,
                "repaired rows"
            );
            Outcome::Done
        }
        Err(error) => {
            warn!(error = %chain(&error), "rows were not compared; tried again in a minute");
            Outcome::Refused(chain(&error))
        }
    };
    foreign_rows::tell(controller);
    // Accounts that waited for the database, or for a foreign row to go, can continue.
    let all = controller.context.accounts.all();
    let waiting = all.iter().filter(|one| one.is_being_deleted() || waits_for_its_row(one));
    controller.schedule.wakes.wake_all(waiting.map(|one| AccountKey::of(one)));
    outcome
}

/// Whether the account has no row because a foreign row has its name.
fn waits_for_its_row(account: &KubesvcAccount) -> bool {
    account.status_or_default().failure_class() == Some(FailureClass::RowExists)
}

/// The rows that should exist: one for each account that has kubesvc's finalizer and its name to itself. An account
/// that is being deleted keeps its row but gets no new one.
fn expected_rows(context: &ControllerContext) -> Vec<AccountRow> {
    let accounts = context.accounts.all();
    accounts
        .iter()
        .filter(|account| calls_for_row(context, account))
        .map(|account| row::of(account))
        .collect()
}

/// Whether an account should have a row, and the row can be written without the lifecycle.
fn calls_for_row(context: &ControllerContext, account: &KubesvcAccount) -> bool {
    let may = match context.projection.fact(account.uid(), account.account_name()) {
        RowFact::Present => true,
        RowFact::Foreign => false,
        RowFact::Absent | RowFact::Unavailable => !account.is_being_deleted() && !waits_for_its_row(account),
    };
    may && account.has_finalizer() && rival_of(context, account).is_none() && !awaits_request(account)
}

/// The object that takes precedence over this one under the same account name, if any.
fn rival_of(context: &ControllerContext, account: &KubesvcAccount) -> Option<Arc<KubesvcAccount>> {
    let first = context.accounts.by_account_name(account.account_name()).into_iter().next()?;
    context.accounts.precedence().takes_precedence(&first, account).then_some(first)
}

/// Whether another object still has a grant under the account's name, although this one takes precedence.
fn is_name_held(context: &ControllerContext, account: &KubesvcAccount) -> bool {
    let namesakes = context.accounts.by_account_name(account.account_name());
    let precedence = context.accounts.precedence();
    let holds = |other: &Arc<KubesvcAccount>| {
        precedence.takes_precedence(account, other) && other.status_or_default().phase() != GrantPhase::None
    };
    namesakes.iter().any(holds)
}
