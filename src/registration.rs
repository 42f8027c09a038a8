//! Registers ACTIVE accounts in a stock Clouddriver, and removes those that go; and sees which migrated accounts Clouddriver
//! has of its own. Only the leader does; what is done next
//! for a name is decided in [`kubesvc_clouddriver::registration`].
//!
//! The state of each name is its row in `kubesvc_pushed`, committed under the leader's term before the call that it stands
//! for. What is known of each account is published for the controller ([`Registrations`]), which writes the condition, and
//! keeps an account that goes until Clouddriver has it no longer.

mod book;
mod calls;
mod metrics;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::clouddriver::{ClouddriverAccounts, Registrations};
use crate::connected_agents::LeaderClock;
use crate::informers::{AccountIndex, AccountKey};
use crate::leases::Mandate;
use book::Book;
use kubesvc_clouddriver::registration::{RegistrationSettings, RegistrationTimes, Tick};
use kubesvc_runtime::background_tasks::{AttemptOutcome, TaskRegistry, TaskSpec};
use kubesvc_runtime::telemetry::errors::chain;
use kubesvc_runtime::work_queue::WorkQueue;
use kubesvc_store::Store;
use kubesvc_store::account_projection::Projection;

pub use metrics::RegistrationMetrics;

/// Maximum number of concurrent calls to Clouddriver.
const MAX_CONCURRENT_CALLS: usize = 8;
/// Maximum number of changed accounts noted at once.
const MAX_NOTED: usize = 1024;
/// Delay before the table is read again after a failure.
const TABLE_RETRY_DELAY: Duration = Duration::from_secs(2);

/// Which accounts are registered, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Whether accounts are registered; if not, Clouddriver's accounts are only listed.
    pub registers: bool,
    /// Namespaces whose accounts are registered.
    pub namespaces: HashSet<String>,
    /// What all definitions have in common.
    pub definitions: RegistrationSettings,
    /// Intervals.
    pub times: RegistrationTimes,
    /// Whether a row that somebody changed is written again.
    pub force: bool,
    /// Whether the namespaces that an agent found are sent for accounts that name none.
    pub fills_namespaces: bool,
}

/// What registering works with.
#[derive(Clone)]
pub struct RegistrationPorts {
    /// Clouddriver.
    pub clouddriver: Arc<dyn ClouddriverAccounts>,
    /// Index of the accounts as last seen.
    pub accounts: Arc<AccountIndex>,
    /// The database.
    pub store: Arc<dyn Store>,
    /// Has the leader's term.
    pub projection: Arc<Projection>,
    /// Where what is known is published.
    pub registrations: Arc<Registrations>,
    /// uids of accounts that the controller shall look at.
    pub wakes: Arc<WorkQueue<String>>,
    /// The leader's clock.
    pub ticks: Arc<LeaderClock>,
    /// Registry of the leader's tasks.
    pub tasks: TaskRegistry,
    /// Metrics.
    pub metrics: RegistrationMetrics,
}

/// Registers accounts while this replica leads.
pub struct Registrar {
    policy: Policy,
    ports: RegistrationPorts,
}

/// The registrar of one leadership.
struct LeaderRegistrations<'r> {
    policy: &'r Policy,
    ports: &'r RegistrationPorts,
    mandate: Mandate,
    book: Mutex<Book>,
    names: Arc<WorkQueue<String>>,
    due: Mutex<BTreeMap<Tick, HashSet<String>>>,
}

impl Registrar {
    /// A registrar that does nothing until it is run.
    pub fn new(policy: Policy, ports: RegistrationPorts) -> Self {
        Self { policy, ports }
    }

    /// Registers accounts until `stop`. A caller that loses the lead drops the call.
    pub async fn run(&self, mandate: &Mandate, stop: &CancellationToken) {
        let term = LeaderRegistrations {
            policy: &self.policy,
            ports: &self.ports,
            mandate: mandate.clone(),
            book: Mutex::default(),
            names: Arc::default(),
            due: Mutex::default(),
        };
        if stop.run_until_cancelled(term.prepare()).await.is_none() {
            return;
        }
        tokio::join!(
            term.follow_accounts(stop),
            term.read_lists(stop),
            term.wake_due(stop),
            term.settle_names(stop)
        );
    }
}

impl LeaderRegistrations<'_> {
    /// Reads the table, once all accounts are known: before, every account would seem to be gone.
    async fn prepare(&self) {
        self.ports.accounts.synced().await;
        if !self.policy.registers {
            self.ports.registrations.table_is_read();
            if let Ok(rows) = self.ports.store.pushed().await
                && !rows.is_empty()
            {
                warn!(
                    rows = rows.len(),
                    "Clouddriver may have accounts that kubesvc registered, and kubesvc.clouddriver.push.enabled is false: \
                     they stay there"
                );
            }
            return;
        }
        loop {
            match self.ports.store.pushed().await {
                Ok(rows) => {
                    info!(rows = rows.len(), "registering accounts in Clouddriver");
                    let now = self.ports.ticks.now();
                    let mut book = self.book.lock();
                    book.load(rows, now, self.policy.times);
                    self.ports.metrics.rows(&book);
                    let of_rows: Vec<String> = book.rows().map(|(name, _)| name.clone()).collect();
                    drop(book);
                    of_rows.iter().for_each(|name| self.publish(name));
                    self.ports.registrations.table_is_read();
                    self.names.wake_all(of_rows);
                    return;
                }
                Err(error) => {
                    warn!(error = %chain(&error), "cannot read the accounts registered in Clouddriver; retrying");
                    tokio::time::sleep(TABLE_RETRY_DELAY).await;
                }
            }
        }
    }

    /// Looks at the name of each account that changed.
    async fn follow_accounts(&self, stop: &CancellationToken) {
        let changed = self.ports.accounts.follow();
        let task = TaskSpec::new("accounts for Clouddriver", "Looks at the names of accounts that changed");
        let task = task.woken_by(&changed).batch(MAX_NOTED);
        let note = |keys: Vec<AccountKey>| async move {
            for key in keys {
                let account = self.ports.accounts.get(&key);
                let may_register = self.policy.registers && self.policy.namespaces.contains(&key.namespace);
                let noted = self.book.lock().note(&key, account.as_deref(), may_register);
                if let Some(uid) = noted.gone {
                    self.ports.registrations.forget(&uid);
                }
                self.names.wake_all(noted.names);
            }
            AttemptOutcome::Done
        };
        self.ports.tasks.drive(task, stop, note).await;
    }

    /// Reads the list of accounts that Clouddriver has loaded, and then looks at all names that wait for it.
    async fn read_lists(&self, stop: &CancellationToken) {
        let task =
            TaskSpec::new("list of Clouddriver's accounts", "Sees which accounts Clouddriver has loaded");
        let task = task
            .every(Duration::from_secs(self.policy.times.poll))
            .at_start()
            .deadline(Duration::from_secs(90));
        let task = task.log_failure(|error| warn!(error, "cannot list Clouddriver's accounts; retrying"));
        let read = |_: Vec<()>| async {
            let loaded = self.ports.clouddriver.loaded().await;
            self.ports.metrics.called("list", loaded.is_ok());
            let now = self.ports.ticks.now();
            let outcome = {
                let mut book = self.book.lock();
                let outcome = match loaded {
                    Ok(names) => {
                        book.listing.read(now, names);
                        AttemptOutcome::Done
                    }
                    Err(failure) => {
                        let why = failure.message.clone();
                        book.listing.failed(failure);
                        AttemptOutcome::Refused(why)
                    }
                };
                book.count_loaded();
                self.ports.metrics.rows(&book);
                outcome
            };
            let names = self.book.lock().names_to_settle();
            self.names.wake_all(names);
            outcome
        };
        self.ports.tasks.drive(task, stop, read).await;
    }

    async fn wake_due(&self, stop: &CancellationToken) {
        let task = TaskSpec::new("clock of registrations", "Wakes names that are due");
        let task = task.every(Duration::from_secs(1));
        let wake = |_: Vec<()>| async {
            let now = self.ports.ticks.now();
            let due = {
                let mut waiting = self.due.lock();
                let later = waiting.split_off(&(now + 1));
                std::mem::replace(&mut *waiting, later)
            };
            if !due.is_empty() {
                self.names.wake_all(due.into_values().flatten());
            }
            AttemptOutcome::Done
        };
        self.ports.tasks.drive(task, stop, wake).await;
    }

    async fn settle_names(&self, stop: &CancellationToken) {
        let task = TaskSpec::new("registrations", "Registers accounts in Clouddriver, and removes them");
        // Each call and each statement has a time limit.
        let task = task.woken_by(&self.names).concurrency(MAX_CONCURRENT_CALLS).without_deadline();
        let task =
            task.log_failure(|error| warn!(error, "cannot register an account in Clouddriver; retrying"));
        let settle = |names: Vec<String>| async move {
            for name in &names {
                if let Err(error) = self.settle(name).await {
                    return AttemptOutcome::failed(chain(&error));
                }
            }
            AttemptOutcome::Done
        };
        self.ports.tasks.drive(task, stop, settle).await;
    }
}
