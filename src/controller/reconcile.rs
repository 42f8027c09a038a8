//! Reconciles accounts: which one is due when, and one pass over one account, which observes, decides and acts until
//! there is nothing to do now.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use tracing::{debug, warn};

use super::Controller;
use super::account_rows::calls_for_row;
use super::act::ActionOutcome;
use crate::informers::AccountKey;
use kubesvc_core::lifecycle::{RowFact, Tick};
use kubesvc_core::{KubesvcAccount, account_row};
use kubesvc_runtime::background_tasks::{AttemptOutcome, TaskSpec};
use kubesvc_runtime::telemetry::errors::chain;
use kubesvc_runtime::telemetry::outages::warn_unless_away;
use kubesvc_runtime::work_queue::WorkQueue;

/// Maximum number of accounts reconciled concurrently.
const MAX_CONCURRENT_ACCOUNTS: usize = 64;
/// Maximum number of actions of one account before other accounts get their turn.
const MAX_ACTIONS_PER_PASS: usize = 8;
/// Delay, in ticks, before checking again whether an object is gone.
const GONE_RECHECK_TICKS: Tick = 5;
/// Time limit for a new list of all accounts that a worker waits for.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum delay after failed requests, in ticks.
const MAX_ERROR_PAUSE_TICKS: Tick = 30;
/// Time limit for work in progress when the operator stops: long enough for one action, and short enough to write the
/// last rows and release the Lease in time.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay, in ticks, before an account whose reconciliation panicked is reconciled again.
const PANIC_RETRY_TICKS: Tick = 30;

/// Reconciles until stopped, then waits for actions in progress for at most [`FINISH_TIMEOUT`]; the next leader
/// repeats what is not done by then. When leadership is lost, waits for nothing: the caller drops this.
pub(super) async fn run(controller: Arc<Controller>, stop: &CancellationToken) {
    let task = TaskSpec::new("reconciler", "Observes accounts, and does what the lifecycle decides");
    let task = task.woken_by(&controller.schedule.wakes).concurrency(MAX_CONCURRENT_ACCOUNTS);
    let passes = TaskTracker::new();
    passes.close();
    // A pass bounds its own waits, and a panic in it ends only this pass.
    let pass = |keys: Vec<AccountKey>| {
        let (worker, stop, accounts) = (Arc::clone(&controller), stop.clone(), keys.clone());
        let pass = passes.spawn(async move {
            for key in &accounts {
                worker.reconcile(key, &stop).await;
            }
        });
        let controller = &controller;
        AbortOnDropHandle::new(pass).map(move |ended| match ended {
            Ok(()) => AttemptOutcome::Done,
            Err(panicked) => {
                let again_at = controller.context.ticks.now() + PANIC_RETRY_TICKS;
                keys.iter().for_each(|key| controller.schedule.requeue(key, Some(again_at)));
                AttemptOutcome::Refused(panicked.to_string())
            }
        })
    };
    let reconciled = controller.context.tasks.drive(task.without_deadline().finishes(), stop, pass);
    let too_late = stop.cancelled().then(|()| tokio::time::sleep(FINISH_TIMEOUT));
    tokio::select! {
        () = reconciled => {}
        () = too_late => warn!("some accounts were not reconciled in time; the next leader reconciles them"),
    }
    // Those that were cut end where they wait next.
    passes.wait().await;
}

impl Controller {
    /// Reconciles one account until there is nothing to do now. After `stop`, finishes the current action and
    /// returns.
    pub(super) async fn reconcile(&self, key: &AccountKey, stop: &CancellationToken) {
        self.context.metrics.reconciles.inc();
        for _ in 0..MAX_ACTIONS_PER_PASS {
            if stop.is_cancelled() {
                return;
            }
            if !self.context.mandate.holds() {
                // The process was suspended, or is cut off from the API server. If no other replica leads, it
                // continues in a moment.
                self.schedule.requeue(key, Some(self.context.ticks.now() + 1));
                return;
            }
            let Some(account) = self.context.accounts.get(key) else {
                self.schedule.requeue(key, None);
                self.confirm_deletion(key).await;
                return;
            };
            let transient_state = self.transient_states.observe(&account, self.context.ticks.now());
            self.wake_younger(&account);
            let decision = self.decide(&account, &transient_state);
            let Some(action) = decision.action else {
                self.project_row(&account);
                self.schedule.requeue(key, decision.wake);
                return;
            };
            debug!(account = account.account_name(), uid = account.uid(), ?action, "acting");
            match self.act(&account, action).await {
                Ok(ActionOutcome::Done) => {}
                Ok(ActionOutcome::Conflict) => {
                    // Someone else wrote; the watch will show it and wake the account.
                    self.context.metrics.conflicts.inc();
                    self.schedule.requeue(key, Some(self.context.ticks.now() + 5));
                    return;
                }
                Err(error) => {
                    self.context.metrics.failed_requests.inc();
                    let pause = self.pause_after_error(account.uid());
                    warn_unless_away!(account = account.account_name(), error = %chain(&error), pause, "cannot reconcile the account; retrying");
                    self.schedule.requeue(key, Some(self.context.ticks.now() + pause));
                    return;
                }
            }
        }
        self.schedule.wakes.wake(key.clone());
    }

    /// Queues the row of the current object. Rows edited by hand are left to the periodic comparison.
    pub(super) fn project_row(&self, account: &KubesvcAccount) {
        if calls_for_row(&self.context, account) && self.transient_states.row_needs_projection(account) {
            self.context.projection.upsert(account_row::of(account));
        }
    }

    /// Wakes the objects of the same account name over which this one takes precedence: one of them may still hold
    /// the name.
    fn wake_younger(&self, account: &KubesvcAccount) {
        let namesakes = self.context.accounts.by_account_name(account.account_name());
        let precedence = self.context.accounts.precedence();
        let younger = namesakes.iter().filter(|other| precedence.takes_precedence(account, other));
        self.schedule.wakes.wake_all(younger.map(|other| AccountKey::of(other)));
    }

    /// Deletes the rows of objects that are gone or that another installation serves, and wakes the accounts that waited
    /// for their names. The row of a deleted object is deleted before the object; if a row is left, the watch may be
    /// incomplete, so the API server is asked first.
    async fn confirm_deletion(&self, key: &AccountKey) {
        let foreign = self.context.accounts.foreign_at(key);
        if let Some(foreign) = &foreign {
            self.tell_foreign(foreign);
        }
        let known = self.transient_states.known(key);
        let has_row =
            |(uid, name): &(String, String)| self.context.projection.fact(uid, name) == RowFact::Present;
        if foreign.is_none() && known.iter().any(has_row) && !self.is_gone(key, &known).await {
            self.schedule.requeue(key, Some(self.context.ticks.now() + GONE_RECHECK_TICKS));
            return;
        }
        for (uid, name) in self.transient_states.forget(key) {
            if let Err(error) = self.context.projection.delete(&uid, false).await {
                warn!(account = name, error = %chain(&error), "cannot delete the row of an account that is gone; it stays until the next comparison");
            }
            let heirs = self.context.accounts.by_account_name(&name);
            self.schedule.wakes.wake_all(heirs.iter().map(|heir| AccountKey::of(heir)));
        }
    }

    /// Whether the API server confirms that none of these objects exists.
    async fn is_gone(&self, key: &AccountKey, known: &[(String, String)]) -> bool {
        let objects = self.context.kube.namespaced::<KubesvcAccount>(&key.namespace);
        match objects.get_metadata(&key.name).await {
            Ok(Some(there)) if known.iter().any(|(uid, _)| there.uid.as_deref() == Some(uid)) => {
                warn!(account = %key, "the watch reported an existing account as deleted; listing all accounts again");
                drop(tokio::time::timeout(LIST_TIMEOUT, self.context.accounts.list_anew()).await);
                false
            }
            Ok(_) => true,
            Err(error) => {
                warn_unless_away!(account = %key, error = %chain(&error), "cannot check whether the account is deleted; keeping its row");
                false
            }
        }
    }

    fn pause_after_error(&self, uid: &str) -> Tick {
        let mut pause = 1;
        self.transient_states.update(uid, |transient_state| {
            pause = (1 << transient_state.errors.min(5)).min(MAX_ERROR_PAUSE_TICKS);
            transient_state.errors += 1;
        });
        pause
    }
}

/// When each account is reconciled: those that wait, and those that are due later. Bounded by the number of accounts.
pub(super) struct ReconcileSchedule {
    pub(super) wakes: Arc<WorkQueue<AccountKey>>,
    timers: Mutex<Timers>,
}

#[derive(Default)]
struct Timers {
    by_tick: BTreeMap<Tick, HashSet<AccountKey>>,
    by_key: HashMap<AccountKey, Tick>,
}

impl ReconcileSchedule {
    pub(super) fn new(wakes: Arc<WorkQueue<AccountKey>>) -> Self {
        Self { wakes, timers: Mutex::default() }
    }

    /// Schedules an account for a tick, or sooner if something wakes it; `None`: only then.
    pub(super) fn requeue(&self, key: &AccountKey, at: Option<Tick>) {
        let mut timers = self.timers.lock();
        if let Some(before) = timers.by_key.remove(key)
            && let Some(keys) = timers.by_tick.get_mut(&before)
        {
            keys.remove(key);
        }
        if let Some(at) = at {
            timers.by_key.insert(key.clone(), at);
            timers.by_tick.entry(at).or_default().insert(key.clone());
        }
    }

    /// Wakes the accounts that are due.
    pub(super) fn wake_due(&self, now: Tick) {
        let mut timers = self.timers.lock();
        let later = timers.by_tick.split_off(&(now + 1));
        let due = std::mem::replace(&mut timers.by_tick, later);
        for key in due.into_values().flatten() {
            timers.by_key.remove(&key);
            self.wakes.wake(key);
        }
    }
}
