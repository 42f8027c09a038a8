//! The fences in `kubesvc_caching`, for accounts whose objects this replica's agents stream. A fence is raised once
//! the agent is elected and holds the account; the agent is told after that. All pending fences share few
//! transactions, outside of any term. When no agent is elected any more, the leader raises the fence, so that no
//! further batch is accepted.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tracing::{debug, warn};

use crate::hub::context::HubContext;
use crate::hub::sessions::events::{SessionEvent, SessionSubscriber};
use crate::hub::sessions::session::Session;
use crate::hub::sessions::wire_conversion;
use crate::hub::table_writers::caching_commands::{CachingCommand, CachingCommands, CachingProcess};
use crate::hub::table_writers::{RETRY_DELAYS, ROWLESS_RETRY_DELAY, TableWriters, with_timeout};
use kubesvc_core::wire::common;
use kubesvc_core::wire::ops::{self, hub_frame::Frame};
use kubesvc_core::{CachingEpoch, KubesvcAccount, State};
use kubesvc_runtime::background_tasks::{AttemptOutcome, BackgroundTasks, TaskSpec};
use kubesvc_runtime::crash_points;
use kubesvc_runtime::work_queue::WorkQueue;
use kubesvc_store::{Fence, RaiseOutcome, StoreError};

/// Maximum number of fences in one transaction.
const MAX_FENCES_PER_TRANSACTION: usize = 256;
/// Delay before a fence that the database refuses is tried again.
const REFUSED_RETRY_DELAY: Duration = Duration::from_secs(30);
/// Interval between comparisons with all stored fences.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of accounts handled in one pass.
const MAX_ACCOUNTS_PER_PASS: usize = 100_000;

/// Accounts whose fence may have to be raised.
#[derive(Default)]
pub(crate) struct DirtyFences(Arc<WorkQueue<String>>);

impl SessionSubscriber for DirtyFences {
    fn session_event(&self, _serial: u64, event: SessionEvent<'_>) {
        match event {
            SessionEvent::Stood { accounts, .. } => self.0.wake_all(accounts.iter().cloned()),
            SessionEvent::AnswerChanged(uid) | SessionEvent::Released(uid) | SessionEvent::FenceLost(uid) => {
                self.0.wake(uid.to_owned());
            }
            _ => {}
        }
    }

    fn account_changed(&self, uid: &str, _serials: &[u64]) {
        self.0.wake(uid.to_owned());
    }
}

/// Starts the task that keeps the fences in step.
pub(crate) fn start(background: &BackgroundTasks, tables: &Arc<TableWriters>) {
    let [first, longest] = RETRY_DELAYS;
    let task = TaskSpec::new("fences", "Raises the fences in kubesvc_caching for elected agents");
    let accounts = Arc::clone(&tables.context.accounts);
    // A new leader raises the fences of accounts without an elected agent.
    let all = move || accounts.all().iter().map(|account| account.uid().to_owned()).collect::<Vec<_>>();
    let task = task.woken_by(&tables.wakes.fences.0).batch(MAX_ACCOUNTS_PER_PASS);
    let task = task.wake_on_change(tables.context.leadership.follow(), all).every(CHECK_INTERVAL).at_start();
    // Each request has a time limit.
    let task = task.without_deadline().retry_delays(first, longest);
    let task =
        task.log_failure(|error| warn!(error, "cannot update the fences in kubesvc_caching; retrying"));
    let reconciler = FenceReconciler { tables: Arc::clone(tables), stored: HashMap::new() };
    let reconciler = Arc::new(Mutex::new(reconciler));
    background.start(task, move |uids| reconcile(Arc::clone(&reconciler), uids));
}

async fn reconcile(reconciler: Arc<Mutex<FenceReconciler>>, uids: Vec<String>) -> AttemptOutcome<String> {
    let mut reconciler = reconciler.lock().await;
    if !uids.is_empty() {
        return reconciler.raise(uids).await;
    }
    match reconciler.check().await {
        Ok(uids) => reconciler.raise(uids).await,
        Err(error) => AttemptOutcome::failed(error.in_full()),
    }
}

struct FenceReconciler {
    tables: Arc<TableWriters>,
    /// The stored fences as far as known; none of a deleted account.
    stored: HashMap<String, CachingEpoch>,
}

impl FenceReconciler {
    /// Reads all fences. Returns the accounts whose fence must be raised again.
    async fn check(&mut self) -> Result<Vec<String>, StoreError> {
        let rows = with_timeout(self.tables.rows.fences.fences()).await?;
        self.stored = rows.into_iter().map(|row| (row.uid, row.epoch)).collect();
        let mut uids = Vec::new();
        for session in self.tables.sessions.registry.connected() {
            uids.extend(session.cached.lock().compare(&self.stored));
        }
        if self.tables.context.is_leading() {
            let accounts = self.tables.context.accounts.all();
            uids.extend(accounts.iter().filter(|one| is_nobodys(one)).map(|one| one.uid().to_owned()));
        }
        Ok(uids)
    }

    /// Raises the fences of these accounts, and wakes the sessions that must be told.
    async fn raise(&mut self, uids: Vec<String>) -> AttemptOutcome<String> {
        let (mut again, mut after, mut failure) = (Vec::new(), REFUSED_RETRY_DELAY, None);
        let wanted: Vec<_> = uids.iter().filter_map(|uid| self.wanted(uid)).collect();
        for some in wanted.chunks(MAX_FENCES_PER_TRANSACTION) {
            let fences: Vec<Fence> = some.iter().map(|(fence, _)| fence.clone()).collect();
            match self.try_raise(&fences).await {
                Ok(raised) => {
                    let raised: HashMap<_, _> = raised.into_iter().collect();
                    for (fence, session) in some {
                        let raised = raised.get(&fence.uid).copied();
                        if let Some(delay) = self.apply_outcome(fence, session.as_deref(), raised) {
                            again.push(fence.uid.clone());
                            after = delay.min(after);
                        }
                    }
                }
                Err(error) => {
                    again.extend(fences.into_iter().map(|fence| fence.uid));
                    failure = Some(error);
                }
            }
        }
        match failure {
            Some(error) => AttemptOutcome::Failed(again, error.in_full()),
            None if again.is_empty() => AttemptOutcome::Done,
            None => AttemptOutcome::Again(again, after),
        }
    }

    /// Raises fences in one transaction.
    async fn raise_in_one(&self, fences: &[Fence]) -> Result<Vec<(String, RaiseOutcome)>, StoreError> {
        let raise = self.tables.rows.fences.raise_fences(fences);
        with_timeout(crash_points::around(Some("fence"), raise)).await
    }

    /// Raises fences. One that the database refuses is absent in the result, and does not block the others.
    async fn try_raise(&self, fences: &[Fence]) -> Result<Vec<(String, RaiseOutcome)>, StoreError> {
        match self.raise_in_one(fences).await {
            Err(StoreError::Refused { .. }) => {
                let mut raised = Vec::new();
                for fence in fences.chunks(1) {
                    match self.raise_in_one(fence).await {
                        Ok(one) => raised.extend(one),
                        Err(problem @ StoreError::Refused { .. }) => {
                            if self.tables.context.may_log("fences", None) {
                                warn!(error = problem.in_full(), "the database refuses a fence; retrying");
                            }
                        }
                        Err(problem) => return Err(problem),
                    }
                }
                Ok(raised)
            }
            answer => answer,
        }
    }

    /// Applies the answer of the database. Returns the delay after which the fence is raised again, if it is.
    fn apply_outcome(
        &mut self,
        fence: &Fence,
        session: Option<&Session>,
        raised: Option<RaiseOutcome>,
    ) -> Option<Duration> {
        match raised {
            Some(RaiseOutcome::Stands) => {
                self.stored.insert(fence.uid.clone(), fence.epoch);
                let session = session?;
                session.cached.lock().fenced(&fence.uid, fence.epoch);
                session.wakes.wake(fence.uid.clone());
                debug!(
                    agentId = session.agent.id.as_str(),
                    uid = fence.uid,
                    epoch = fence.epoch.0,
                    "raised the fence for the elected agent"
                );
                None
            }
            // The account's object will show the later election.
            Some(RaiseOutcome::Higher(epoch)) => {
                self.stored.insert(fence.uid.clone(), epoch);
                debug!(uid = fence.uid, epoch = fence.epoch.0, stands = epoch.0, "another agent was elected");
                None
            }
            Some(RaiseOutcome::Missing) => {
                self.stored.remove(&fence.uid);
                // The leader inserts the row shortly. Until then no batch of the account is accepted.
                session.map(|_| ROWLESS_RETRY_DELAY)
            }
            None => Some(REFUSED_RETRY_DELAY),
        }
    }

    /// Returns the fence to raise for an account, and its session.
    fn wanted(&mut self, uid: &str) -> Option<(Fence, Option<Arc<Session>>)> {
        let Some(account) = self.tables.context.accounts.by_uid(uid) else {
            self.stored.remove(uid);
            return None;
        };
        let status = account.status_or_default();
        let caching = status.caching.as_ref()?;
        let Some(agent_id) = &caching.agent_id else {
            let is_to_rise = self.stored.get(uid).is_none_or(|stands| *stands < caching.epoch);
            // Without a row no batch is accepted either.
            let is_ours = self.tables.context.is_leading() && !account.is_being_deleted();
            let fence = Fence {
                uid: uid.to_owned(),
                epoch: caching.epoch,
                agent_id: None,
                boot_id: None,
                replica_id: None,
            };
            return (is_to_rise && is_ours).then_some((fence, None));
        };
        let session =
            self.tables.sessions.registry.of_process(agent_id, caching.boot_id.as_ref()?.as_str())?;
        if !self.tables.sessions.registry.is_connected(&session) {
            return None;
        }
        // Computed before the lock, because it locks the ledger.
        let process = candidate(&session, &account);
        let epoch = session.cached.lock().to_raise(process, &account)?;
        let fence = Fence {
            uid: uid.to_owned(),
            epoch,
            agent_id: Some(session.agent.id.clone()),
            boot_id: Some(session.agent.boot_id.to_string()),
            replica_id: Some(self.tables.context.settings.replica_id.clone()),
        };
        Some((fence, Some(session)))
    }
}

/// Whether the account was streamed by an agent and no agent is elected now.
fn is_nobodys(account: &KubesvcAccount) -> bool {
    account.status_or_default().caching.as_ref().is_some_and(|caching| caching.agent_id.is_none())
}

fn candidate<'s>(session: &'s Session, account: &KubesvcAccount) -> CachingProcess<'s> {
    let uid = account.uid();
    // In FAILED no Add asks what the agent holds: its objects are streamed with an earlier definition.
    let is_failed = account.status_or_default().state() == State::Failed;
    let holds = if is_failed { session.holds_or_claims(uid) } else { session.holds(uid) };
    CachingProcess {
        agent_id: &session.agent.id,
        boot_id: &session.agent.boot_id,
        zone: &session.agent.zone,
        holds: session.is_approved() && holds,
    }
}

/// Returns the command for a session's agent about an account, and records it as sent.
pub(crate) fn assignment(context: &HubContext, session: &Session, uid: &str) -> Option<Frame> {
    let Some(account) = context.accounts.by_uid(uid) else {
        if context.accounts.is_synced() {
            session.cached.lock().forget(uid);
        }
        return None;
    };
    let say = {
        let process = candidate(session, &account);
        let mut cached: parking_lot::MutexGuard<'_, CachingCommands> = session.cached.lock();
        cached.command(process, &account)
    };
    let (epoch, on) = match say {
        CachingCommand::Nothing => return None,
        CachingCommand::Start(epoch) => (epoch, true),
        CachingCommand::Stop(epoch) => (epoch, false),
    };
    // A changed spec is a new generation, which is told to the agent again under the same epoch, with its rules.
    let rules = context.caching_rules.as_ref().filter(|_| on).map(|rules| rules.rules(&account));
    let name = account.account_name();
    let account =
        wire_conversion::account_ref(uid, name, account.status_or_default().epoch, account.generation());
    Some(Frame::CachingAssignment(ops::CachingAssignment {
        fence: Some(common::Fence { account_uid: uid.to_owned(), caching_epoch: epoch.to_wire() }),
        on,
        account: Some(account),
        rules,
    }))
}
