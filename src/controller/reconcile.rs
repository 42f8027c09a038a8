//! Reconciles one account: observe, decide, act, until there is nothing to do now.

use std::time::Duration;

use kube::Api;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::act::{ActionOutcome, timed};
use super::calls_for_row;
use super::leader::Controller;
use crate::account::lifecycle::{RowFact, Tick};
use crate::account::{KubesvcAccount, row};
use crate::objects::AccountKey;
use crate::telemetry::errors::chain;
use crate::telemetry::outages::warn_unless_away;

/// Maximum number of actions of one account before other accounts get their turn.
const MAX_ACTIONS_PER_PASS: usize = 8;
/// Delay, in ticks, before checking again whether an object is gone.
const GONE_RECHECK_TICKS: Tick = 5;
/// Time limit for a new list of all accounts that a worker waits for.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum delay after failed requests, in ticks.
const MAX_ERROR_PAUSE_TICKS: Tick = 30;

impl Controller {
    /// Reconciles one account until there is nothing to do now. After `stop`, finishes the current action and
    /// returns.
    pub(super) async fn reconcile(&self, key: &AccountKey, stop: &CancellationToken) {
        self.context.metrics.looks.inc();
        for _ in 0..MAX_ACTIONS_PER_PASS {
            if stop.is_cancelled() {
                return;
            }
            if !self.context.mandate.holds() {
                // The process was suspended, or is cut off from the API server. If no other replica leads, it
                // continues in a moment.
                self.schedule.look_again(key, Some(self.context.ticks.now() + 1));
                return;
            }
            let Some(account) = self.context.accounts.get(key) else {
                self.schedule.look_again(key, None);
                self.confirm_deletion(key).await;
                return;
            };
            let memory = self.memories.look(&account, self.context.ticks.now());
            self.wake_younger(&account);
            let decision = self.decide(&account, &memory);
            let Some(action) = decision.action else {
                self.project_row(&account);
                self.schedule.look_again(key, decision.wake);
                return;
            };
            debug!(account = account.account_name(), uid = account.uid(), ?action, "acting");
            match self.act(&account, action).await {
                Ok(ActionOutcome::Done) => {}
                Ok(ActionOutcome::Conflict) => {
                    // Someone else wrote; the watch will show it and wake the account.
                    self.context.metrics.conflicts.inc();
                    self.schedule.look_again(key, Some(self.context.ticks.now() + 5));
                    return;
                }
                Err(error) => {
                    self.context.metrics.failed_requests.inc();
                    let pause = self.pause_after_error(account.uid());
                    warn_unless_away!(account = account.account_name(), error = %chain(error.as_ref()), pause, "cannot reconcile the account; retrying");
                    self.schedule.look_again(key, Some(self.context.ticks.now() + pause));
                    return;
                }
            }
        }
        self.schedule.wakes.wake(key.clone());
    }

    /// Queues the row of the current object. Rows edited by hand are left to the periodic comparison.
    pub(super) fn project_row(&self, account: &KubesvcAccount) {
        if calls_for_row(&self.context, account) && self.memories.row_is_current(account) {
            self.context.projection.upsert(row::of(account));
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

    /// Deletes the rows of objects that are gone, and wakes the accounts that waited for their names. The row of a
    /// deleted object is deleted before the object; if a row is left, the watch may be incomplete, so the API server
    /// is asked first.
    async fn confirm_deletion(&self, key: &AccountKey) {
        let known = self.memories.known(key);
        let has_row =
            |(uid, name): &(String, String)| self.context.projection.fact(uid, name) == RowFact::Present;
        if known.iter().any(has_row) && !self.is_gone(key, &known).await {
            self.schedule.look_again(key, Some(self.context.ticks.now() + GONE_RECHECK_TICKS));
            return;
        }
        for (uid, name) in self.memories.forget(key) {
            if let Err(error) = self.context.projection.delete(&uid).await {
                warn!(account = name, error = %chain(&error), "cannot delete the row of a deleted account; it stays until the next comparison");
            }
            let heirs = self.context.accounts.by_account_name(&name);
            self.schedule.wakes.wake_all(heirs.iter().map(|heir| AccountKey::of(heir)));
        }
    }

    /// Whether the API server confirms that none of these objects exists.
    async fn is_gone(&self, key: &AccountKey, known: &[(String, String)]) -> bool {
        let api: Api<KubesvcAccount> = Api::namespaced(self.context.client.clone(), &key.namespace);
        match timed(api.get_metadata_opt(&key.name)).await {
            Ok(Some(there)) if known.iter().any(|(uid, _)| there.metadata.uid.as_deref() == Some(uid)) => {
                warn!(account = %key, "the watch reported an existing account as deleted; listing all accounts again");
                drop(tokio::time::timeout(LIST_TIMEOUT, self.context.accounts.list_anew()).await);
                false
            }
            Ok(_) => true,
            Err(error) => {
                warn_unless_away!(account = %key, error = %chain(error.as_ref()), "cannot check whether the account is deleted; keeping its row");
                false
            }
        }
    }

    fn pause_after_error(&self, uid: &str) -> Tick {
        let mut pause = 1;
        self.memories.update(uid, |memory| {
            pause = (1 << memory.errors.min(5)).min(MAX_ERROR_PAUSE_TICKS);
            memory.errors += 1;
        });
        pause
    }
}
