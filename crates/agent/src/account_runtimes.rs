//! Work that runs for the agent's accounts.
//!
//! [`AccountRuntimes`] executes those effects of [`AccountTable`](super::account_table::AccountTable) that take time: it
//! starts the work of an account, stops it, and holds back the reports about an account until what was stopped for it
//! has ended. The work owns the client of the account's cluster, whose connections end with it. Nothing is kept here
//! for an account that is only held: that costs memory, but no task and no connection.
//!
//! Such work is the activation of a definition. [`CachingSupervisor`] runs the accounts whose objects are streamed: it
//! chooses their scopes, and reads each.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::account_table::Attempt;
use kubesvc_core::wire::common::AccountRef;
use kubesvc_core::wire::ops::AccountResult;

mod caching_supervisor;
mod look_schedule;
mod reader_sink;
mod scope_readers;
mod start_groups;
mod synthetic_reader;
#[cfg(test)]
mod tests;

pub(super) use caching_supervisor::{
    CachingSupervisor, CredentialVerdicts, LostAccount, ReaderTrackers, ReadingParts,
};

/// Maximum time in which stopped work comes to its end by itself; then it is cut.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// The running work of all accounts; `T` is its result.
#[derive(Debug)]
pub(super) struct AccountRuntimes<T> {
    running: JoinSet<Option<T>>,
    /// Uid and attempt of each task.
    tasks: HashMap<Id, (String, Attempt)>,
    /// By uid.
    accounts: HashMap<String, AccountRuntime>,
    delayed_reports: usize,
}

/// An account for which work runs.
#[derive(Debug, Default)]
struct AccountRuntime {
    /// Running work with the token that stops it, by attempt.
    works: Vec<(Attempt, CancellationToken)>,
    /// Reports to send once the stopped work has ended, in this order.
    reports: Vec<AccountResult>,
    /// The account as it was held, if it is held no longer: a hello names it until the stopped work has ended.
    stopped: Option<AccountRef>,
}

impl AccountRuntime {
    fn is_stopping(&self) -> bool {
        self.works.iter().any(|(_, stop)| stop.is_cancelled())
    }
}

#[derive(Debug, PartialEq)]
pub(super) struct EndedWork<T> {
    pub(super) uid: String,
    pub(super) attempt: Attempt,
    pub(super) end: WorkEnd<T>,
    /// Reports that wait no longer.
    pub(super) reports: Vec<AccountResult>,
}

#[derive(Debug, PartialEq)]
pub(super) enum WorkEnd<T> {
    /// By itself, with this result.
    Done(T),
    Panicked,
    /// It was stopped, so its result does not count.
    Stopped,
}

impl<T: Send + 'static> AccountRuntimes<T> {
    pub(super) fn new() -> Self {
        Self { running: JoinSet::new(), tasks: HashMap::new(), accounts: HashMap::new(), delayed_reports: 0 }
    }

    /// Starts work for an account. It should end, with `None`, soon after its token is cancelled;
    /// [`STOP_TIMEOUT`] later it is cut.
    pub(super) fn start<F>(
        &mut self,
        uid: String,
        attempt: Attempt,
        work: impl FnOnce(CancellationToken) -> F,
    ) where
        F: Future<Output = Option<T>> + Send + 'static,
    {
        let stop = CancellationToken::new();
        let task = self.running.spawn(until_cut(work(stop.clone()), stop.clone()));
        self.accounts.entry(uid.clone()).or_default().works.push((attempt, stop));
        self.tasks.insert(task.id(), (uid, attempt));
    }

    /// Stops the work of one attempt.
    pub(super) fn cancel(&mut self, uid: &str, attempt: Attempt) {
        self.stop_where(uid, |running| running == attempt);
    }

    /// Stops everything that runs for an account, except the attempt to keep. `others` ends when what else was stopped
    /// for it has ended; that is awaited for [`STOP_TIMEOUT`] at most.
    pub(super) fn stop(
        &mut self,
        account: AccountRef,
        keep: Option<Attempt>,
        others: Option<impl Future<Output = ()> + Send + 'static>,
    ) {
        self.stop_where(&account.uid, |running| Some(running) != keep);
        if let Some(others) = others {
            self.start(account.uid.clone(), Attempt::NONE, |_| async move {
                others.await;
                None
            });
            self.cancel(&account.uid, Attempt::NONE);
        }
        if let Some(runtime) = self.accounts.get_mut(&account.uid).filter(|runtime| runtime.is_stopping()) {
            runtime.stopped = Some(account);
        }
    }

    /// The accounts that are held no longer, and for which something still runs.
    pub(super) fn stopping(&self) -> impl Iterator<Item = &AccountRef> {
        let stopping = self.accounts.values().filter(|account| account.is_stopping());
        stopping.filter_map(|account| account.stopped.as_ref())
    }

    fn stop_where(&mut self, uid: &str, is_meant: impl Fn(Attempt) -> bool) {
        let works = self.accounts.get(uid).into_iter().flat_map(|account| &account.works);
        works.filter(|(attempt, _)| is_meant(*attempt)).for_each(|(_, stop)| stop.cancel());
    }

    /// Returns the report if it can be sent now. If work of its account is being stopped, the report is kept until
    /// that has ended, and comes with [`EndedWork::reports`].
    pub(super) fn ready_report(&mut self, report: AccountResult) -> Option<AccountResult> {
        let uid = report.account.as_ref().map(|account| account.uid.as_str()).unwrap_or_default();
        match self.accounts.get_mut(uid).filter(|account| account.is_stopping()) {
            Some(account) => {
                account.reports.push(report);
                self.delayed_reports += 1;
                None
            }
            None => Some(report),
        }
    }

    pub(super) fn discard_reports(&mut self) {
        self.accounts.values_mut().for_each(|account| account.reports.clear());
        self.delayed_reports = 0;
    }

    /// Number of reports that wait for work to end.
    pub(super) fn delayed_reports(&self) -> usize {
        self.delayed_reports
    }

    /// Number of works that run, stopped ones included.
    pub(super) fn running_count(&self) -> usize {
        self.tasks.len()
    }

    /// Waits until work ends. Pending while nothing runs.
    pub(super) async fn ended(&mut self) -> EndedWork<T> {
        loop {
            match self.running.join_next_with_id().await {
                None => std::future::pending().await,
                Some(joined) => {
                    if let Some(ended) = self.take(joined) {
                        return ended;
                    }
                }
            }
        }
    }

    /// Work that has ended by now.
    pub(super) fn try_ended(&mut self) -> Option<EndedWork<T>> {
        loop {
            let joined = self.running.try_join_next_with_id()?;
            if let Some(ended) = self.take(joined) {
                return Some(ended);
            }
        }
    }

    fn take(&mut self, joined: Result<(Id, Option<T>), JoinError>) -> Option<EndedWork<T>> {
        let (task, result) = match joined {
            Ok((task, result)) => (task, Some(result)),
            Err(error) => (error.id(), None),
        };
        let (uid, attempt) = self.tasks.remove(&task)?;
        let Entry::Occupied(mut entry) = self.accounts.entry(uid.clone()) else { return None };
        let account = entry.get_mut();
        let at = account.works.iter().position(|(running, _)| *running == attempt)?;
        let (_, stop) = account.works.swap_remove(at);
        let end = match result {
            _ if stop.is_cancelled() => WorkEnd::Stopped,
            Some(Some(result)) => WorkEnd::Done(result),
            // Work has no result only if it was stopped.
            Some(None) | None => WorkEnd::Panicked,
        };
        let has_stopped = !account.is_stopping();
        let reports = if has_stopped { std::mem::take(&mut account.reports) } else { Vec::new() };
        if let Some(stopped) = account.stopped.take_if(|_| has_stopped) {
            tracing::info!(account = %stopped.name, uid = %stopped.uid, epoch = stopped.epoch, "nothing runs for the account any more");
        }
        if account.works.is_empty() {
            entry.remove();
        }
        self.delayed_reports -= reports.len();
        Some(EndedWork { uid, attempt, end, reports })
    }
}

/// Runs work to its end, or until it has not ended within [`STOP_TIMEOUT`] after it was stopped.
async fn until_cut<T>(work: impl Future<Output = Option<T>>, stop: CancellationToken) -> Option<T> {
    let cut = async {
        stop.cancelled().await;
        sleep(STOP_TIMEOUT).await;
    };
    tokio::select! {
        result = work => result,
        () = cut => None,
    }
}
