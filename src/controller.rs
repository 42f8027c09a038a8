//! The controller: observes each account, asks the pure lifecycle what to do, and does it.
//!
//! It is level-triggered. A wake-up (a changed object, a word from an agent, a timer, the resync) only says *look
//! again*; what is done follows from what is then seen. Each action is one write, and a crash before or after it
//! leaves a state that the next look continues from.

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

/// Maximum number of accounts reconciled at once.
const MAX_CONCURRENT_ACCOUNTS: usize = 64;
/// Interval between looks at all accounts, at which unwatched credentials are read again too.
const RESYNC_INTERVAL: Duration = Duration::from_secs(600);
/// Interval between comparisons of rows and objects.
const ROW_COMPARISON_INTERVAL: Duration = Duration::from_secs(60);

/// What the controller works with; the composition root puts it together. Clones share all of it.
#[derive(Clone)]
pub struct ControllerContext {
    /// The client for objects.
    pub client: Client,
    /// The accounts as last seen.
    pub accounts: Arc<AccountIndex>,
    /// The connected agents.
    pub fleet: Arc<dyn Fleet>,
    /// The agents' objects as last seen.
    pub agents: Arc<AgentIndex>,
    /// Names of those that changed.
    pub changed_agents: Arc<WakeSet<String>>,
    /// Where credentials come from.
    pub credentials: Arc<dyn CredentialSource>,
    /// The rows.
    pub projection: Arc<Projection>,
    /// The database, to be read.
    pub store: Arc<dyn Store>,
    /// Where rows of somebody else's become accounts; none: they are left alone.
    pub adopts: Option<AdoptedRows>,
    /// The lifecycle's settings.
    pub policy: LifecyclePolicy,
    /// Which accounts may use credentials that are not in their own namespace.
    pub source_rules: Arc<SourceRules>,
    /// The leader's seconds.
    pub ticks: Arc<Ticks>,
    /// uids that the hub wants looked at again.
    pub wakes: Arc<WakeSet<String>>,
    /// Secrets that changed, as namespace and name.
    pub changed_secrets: Arc<WakeSet<(String, String)>>,
    /// Secrets that an earlier version of kubesvc may have made, as namespace and name.
    pub outdated_secrets: Arc<WakeSet<(String, String)>>,
    /// How fast transitions may be written.
    pub budget: Budget,
    /// This replica, for Events.
    pub replica_id: String,
    /// Counters.
    pub metrics: ControllerMetrics,
    /// The right to lead.
    pub mandate: Mandate,
    /// Which replicas are alive.
    pub replicas: Arc<Replicas>,
    /// Their Leases; absent where there is one replica.
    pub leases: Option<LeaseObjects>,
}

/// Leads until `stop`: works off what is under way, then returns. At `over` the lead is lost, and everything ends at
/// once, whatever is under way. It may be run again; nothing is remembered but the ticks.
pub async fn run(context: ControllerContext, stop: CancellationToken, over: CancellationToken) {
    over.run_until_cancelled(lead(context, stop, over.clone())).await;
}

async fn lead(context: ControllerContext, stop: CancellationToken, over: CancellationToken) {
    if stop.run_until_cancelled(context.accounts.synced()).await.is_none() {
        return;
    }
    // An Event that waits goes with the lead.
    let telling = over.child_token();
    let events = events::Events::start(context.client.clone(), &context.replica_id, telling.clone());
    let _ended = telling.drop_guard();
    let controller = Arc::new(leader::Controller::new(context, events));
    info!(accounts = controller.context.accounts.len(), "leading");
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

/// Advances the leader's seconds. A process that slept finds one tick gone, however long it slept; one whose mandate has
/// run out meanwhile finds none.
async fn keep_time(controller: &leader::Controller, stop: &CancellationToken) {
    let mut second = tokio::time::interval(Duration::from_secs(1));
    second.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    second.tick().await;
    while stop.run_until_cancelled(second.tick()).await.is_some() {
        if !controller.context.mandate.holds() {
            continue;
        }
        controller.context.ticks.advance();
        // Asked each second, so that a queue that goes on is seen to.
        controller.context.replicas.backlog_since(controller.context.ticks.now());
        controller.schedule.wake_due(controller.context.ticks.now());
    }
}

async fn follow_fleet(controller: &leader::Controller, stop: &CancellationToken) {
    while let Some(uids) = stop.run_until_cancelled(controller.context.wakes.take(1024)).await {
        let keys = uids.iter().filter_map(|uid| controller.context.accounts.by_uid(uid));
        controller.schedule.wakes.wake_all(keys.map(|account| AccountKey::of(&account)));
    }
}

/// A Secret changed: accounts that name it have their credential read again.
async fn follow_secrets(controller: &leader::Controller, stop: &CancellationToken) {
    while let Some(changed) = stop.run_until_cancelled(controller.context.changed_secrets.take(1024)).await {
        for (namespace, name) in changed {
            for account in controller.context.accounts.by_secret(&namespace, &name) {
                controller.memories.recheck_credential(account.uid());
                controller.schedule.wakes.wake(AccountKey::of(&account));
            }
        }
    }
}

async fn resync(controller: &leader::Controller, stop: &CancellationToken) {
    let mut period = tokio::time::interval(RESYNC_INTERVAL);
    period.tick().await;
    while stop.run_until_cancelled(period.tick()).await.is_some() {
        for account in controller.context.accounts.all() {
            if is_read_by_operator(account.spec.agent_source()) {
                controller.memories.recheck_credential(account.uid());
            }
            controller.schedule.wakes.wake(AccountKey::of(&account));
        }
    }
}

/// Repairs rows that someone edited, or that a crash left behind their object; the first time at once, and whenever
/// the database is back.
async fn repair_rows(controller: &leader::Controller, stop: &CancellationToken) {
    let mut period = tokio::time::interval(ROW_COMPARISON_INTERVAL);
    period.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let projection = &controller.context.projection;
    let mut trouble = projection.watch();
    loop {
        let due = async {
            tokio::select! {
                _ = period.tick() => {}
                back = trouble.wait_for(Option::is_some) => drop(back),
            }
            // A failing database is compared once it answers again.
            drop(trouble.wait_for(Option::is_none).await);
        };
        if stop.run_until_cancelled(due).await.is_none() {
            return;
        }
        let compared = projection.repair(|| expected_rows(&controller.context));
        match stop.run_until_cancelled(compared).await {
            None => return,
            Some(Ok(repair)) if repair.is_nothing() => {}
            Some(Ok(repair)) => info!(
                inserted = repair.inserted,
                updated = repair.updated,
                deleted = repair.deleted,
                refused = repair.refused,
                "rows repaired"
            ),
            Some(Err(error)) => {
                warn!(error = %chain(&error), "rows were not compared; tried again in a minute");
            }
        }
        foreign_rows::tell(controller);
        // What was waiting for the database, or for somebody else's row to go, can go on.
        let all = controller.context.accounts.all();
        let waiting = all.iter().filter(|one| one.is_being_deleted() || waits_for_its_row(one));
        controller.schedule.wakes.wake_all(waiting.map(|one| AccountKey::of(one)));
    }
}

/// Whether it has no row because somebody else's is in the way.
fn waits_for_its_row(account: &KubesvcAccount) -> bool {
    account.status_or_default().failure_class() == Some(FailureClass::RowExists)
}

/// The rows there should be: one for each account that has our finalizer and its name to itself. An account that is
/// being deleted keeps its row, and is given none.
fn expected_rows(context: &ControllerContext) -> Vec<AccountRow> {
    let accounts = context.accounts.all();
    accounts
        .iter()
        .filter(|account| calls_for_row(context, account))
        .map(|account| row::of(account))
        .collect()
}

/// Whether there should be a row for an account, as far as that can be written without more ado.
fn calls_for_row(context: &ControllerContext, account: &KubesvcAccount) -> bool {
    let may = match context.projection.fact(account.uid(), account.account_name()) {
        RowFact::Present => true,
        RowFact::Foreign => false,
        RowFact::Absent | RowFact::Unavailable => !account.is_being_deleted() && !waits_for_its_row(account),
    };
    may && account.has_finalizer() && rival_of(context, account).is_none() && !awaits_request(account)
}

/// Another object that has the account's name, because it takes precedence.
fn rival_of(context: &ControllerContext, account: &KubesvcAccount) -> Option<Arc<KubesvcAccount>> {
    let first = context.accounts.by_account_name(account.account_name()).into_iter().next()?;
    context.accounts.precedence().takes_precedence(&first, account).then_some(first)
}

/// Whether another object still has a grant under the account's name, though this one takes precedence.
fn is_name_held(context: &ControllerContext, account: &KubesvcAccount) -> bool {
    let namesakes = context.accounts.by_account_name(account.account_name());
    let precedence = context.accounts.precedence();
    let holds = |other: &Arc<KubesvcAccount>| {
        precedence.takes_precedence(account, other) && other.status_or_default().phase() != GrantPhase::None
    };
    namesakes.iter().any(holds)
}
