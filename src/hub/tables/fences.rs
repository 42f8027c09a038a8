//! The fences in `kubesvc_caching`, for accounts whose objects this replica's agents stream. A fence is raised once
//! the agent is elected and holds the account; the agent is told after that. All pending fences share few
//! transactions, outside of any term. When no agent is elected any more, the leader raises the fence, so that no
//! further batch is accepted.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::account::{CachingEpoch, KubesvcAccount};
use crate::crash;
use crate::hub::context::HubContext;
use crate::hub::sessions::events::{SessionEvent, SessionSubscriber};
use crate::hub::sessions::session::Session;
use crate::hub::sessions::wire_conversion;
use crate::hub::tables::Tables;
use crate::hub::tables::caching_commands::{CachingCommand, CachingCommands, CachingProcess};
use crate::store::{Fence, RaiseOutcome, Store, StoreError, StoredFence};
use crate::wake_set::WakeSet;
use crate::wire::common;
use crate::wire::ops::{self, hub_frame::Frame};

/// Maximum number of fences in one transaction.
const MAX_FENCES_PER_TRANSACTION: usize = 256;
/// Time limit for one request to the database.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Delay before a fence without a row is retried, and first delay after a failure of the database.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Maximum delay after a failure of the database.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(30);
/// Interval between comparisons with all stored fences.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of accounts handled in one pass.
const MAX_ACCOUNTS_PER_PASS: usize = 100_000;

/// The fences.
#[async_trait]
pub trait FenceRows: Send + Sync {
    /// Raises fences; see [`Store::raise_fences`].
    ///
    /// # Errors
    /// The database is unavailable or refuses one.
    async fn raise(&self, fences: &[Fence]) -> Result<Vec<(String, RaiseOutcome)>, StoreError>;

    /// Returns all fences.
    ///
    /// # Errors
    /// The database is unavailable.
    async fn standing(&self) -> Result<Vec<StoredFence>, StoreError>;
}

/// The fences in the database.
pub struct StoredFences(pub Arc<dyn Store>);

#[async_trait]
impl FenceRows for StoredFences {
    async fn raise(&self, fences: &[Fence]) -> Result<Vec<(String, RaiseOutcome)>, StoreError> {
        crash::point("fence:before");
        let raised = self.0.raise_fences(fences).await;
        crash::point("fence:after");
        raised
    }

    async fn standing(&self) -> Result<Vec<StoredFence>, StoreError> {
        self.0.fences().await
    }
}

/// Accounts whose fence may have to be raised.
#[derive(Default)]
pub(in crate::hub) struct DirtyFences(WakeSet<String>);

impl SessionSubscriber for DirtyFences {
    fn session_event(&self, _serial: u64, event: SessionEvent<'_>) {
        match event {
            SessionEvent::Stood { accounts, .. } => self.0.wake_all(accounts.iter().cloned()),
            SessionEvent::AnswerChanged(uid) | SessionEvent::Released(uid) => self.0.wake(uid.to_owned()),
            SessionEvent::Ended { .. }
            | SessionEvent::Listed(_)
            | SessionEvent::ProblemsChanged
            | SessionEvent::OfferChanged(..) => {}
        }
    }

    fn account_changed(&self, uid: &str, _serials: &[u64]) {
        self.0.wake(uid.to_owned());
    }
}

/// Keeps the fences in step until stopped.
pub(in crate::hub) async fn run(tables: Arc<Tables>, stop: CancellationToken) {
    let mut reconciler = FenceReconciler {
        tables: Arc::clone(&tables),
        stored: HashMap::new(),
        retry: HashSet::new(),
        wait: RETRY_DELAY,
    };
    let mut leads = tables.context.leadership.follow();
    let mut check = tokio::time::interval(CHECK_INTERVAL);
    check.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut retry_at = Instant::now();
    loop {
        let next = async {
            tokio::select! {
                _ = check.tick() => reconciler.check().await,
                uids = tables.wakes.fences.0.take(MAX_ACCOUNTS_PER_PASS) => uids,
                // The sender lives as long as the hub.
                _ = leads.changed() => tables.context.accounts.all().iter().map(|one| one.uid().to_owned()).collect(),
                () = tokio::time::sleep_until(retry_at), if !reconciler.retry.is_empty() => {
                    reconciler.retry.drain().collect()
                }
            }
        };
        let Some(uids) = stop.run_until_cancelled(next).await else { return };
        if stop.run_until_cancelled(reconciler.raise(uids)).await.is_none() {
            return;
        }
        if !reconciler.retry.is_empty() && retry_at <= Instant::now() {
            retry_at = Instant::now() + reconciler.wait;
        }
    }
}

struct FenceReconciler {
    tables: Arc<Tables>,
    /// The stored fences as far as known; none of a deleted account.
    stored: HashMap<String, CachingEpoch>,
    retry: HashSet<String>,
    wait: Duration,
}

impl FenceReconciler {
    /// Reads all fences. Returns the accounts whose fence must be raised again.
    async fn check(&mut self) -> Vec<String> {
        let rows = match with_timeout(self.tables.rows.fences.standing()).await {
            Ok(rows) => rows,
            Err(problem) => {
                debug!(error = problem.in_full(), "kubesvc_caching cannot be read");
                return Vec::new();
            }
        };
        self.stored = rows.into_iter().map(|row| (row.uid, row.epoch)).collect();
        let mut uids = Vec::new();
        for session in self.tables.sessions.registry.connected() {
            uids.extend(session.cached.lock().compare(&self.stored));
        }
        if self.tables.context.is_leading() {
            let accounts = self.tables.context.accounts.all();
            uids.extend(accounts.iter().filter(|one| is_nobodys(one)).map(|one| one.uid().to_owned()));
        }
        uids
    }

    /// Raises the fences of these accounts, and wakes the sessions that must be told.
    async fn raise(&mut self, uids: Vec<String>) {
        let wanted: Vec<_> = uids.iter().filter_map(|uid| self.wanted(uid)).collect();
        for some in wanted.chunks(MAX_FENCES_PER_TRANSACTION) {
            let fences: Vec<Fence> = some.iter().map(|(fence, _)| fence.clone()).collect();
            match self.try_raise(&fences).await {
                Ok(raised) => {
                    self.wait = RETRY_DELAY;
                    let raised: HashMap<_, _> = raised.into_iter().collect();
                    for (fence, session) in some {
                        self.settle(fence, session.as_deref(), raised.get(&fence.uid).copied());
                    }
                }
                Err(problem) => {
                    if self.tables.context.may_log("fences", None) {
                        warn!(error = problem.in_full(), "kubesvc_caching cannot be written; tried again");
                    }
                    self.wait = (self.wait * 2).min(MAX_RETRY_DELAY);
                    self.retry.extend(fences.into_iter().map(|fence| fence.uid));
                }
            }
        }
    }

    /// Raises fences; one that the database refuses does not block the others.
    async fn try_raise(&self, fences: &[Fence]) -> Result<Vec<(String, RaiseOutcome)>, StoreError> {
        match with_timeout(self.tables.rows.fences.raise(fences)).await {
            Err(StoreError::Refused { .. }) if fences.len() > 1 => {
                let mut raised = Vec::new();
                for fence in fences.chunks(1) {
                    match with_timeout(self.tables.rows.fences.raise(fence)).await {
                        Ok(one) => raised.extend(one),
                        Err(problem @ StoreError::Refused { .. }) => {
                            warn!(error = problem.in_full(), "a fence is left as it is");
                        }
                        Err(problem) => return Err(problem),
                    }
                }
                Ok(raised)
            }
            answer => answer,
        }
    }

    fn settle(&mut self, fence: &Fence, session: Option<&Session>, raised: Option<RaiseOutcome>) {
        match raised {
            Some(RaiseOutcome::Stands) => {
                self.stored.insert(fence.uid.clone(), fence.epoch);
                let Some(session) = session else { return };
                session.cached.lock().fenced(&fence.uid, fence.epoch);
                session.wakes.wake(fence.uid.clone());
                info!(
                    agentId = session.agent.id,
                    uid = fence.uid,
                    epoch = fence.epoch.0,
                    "the fence is raised for the agent"
                );
            }
            // The account's object will show the later election.
            Some(RaiseOutcome::Higher(epoch)) => {
                self.stored.insert(fence.uid.clone(), epoch);
                debug!(uid = fence.uid, epoch = fence.epoch.0, stands = epoch.0, "somebody else was elected");
            }
            Some(RaiseOutcome::Missing) => {
                self.stored.remove(&fence.uid);
                // The leader inserts the row shortly. Until then no batch of the account is accepted.
                if session.is_some() {
                    self.retry.insert(fence.uid.clone());
                }
            }
            None => {}
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
        let session = self.tables.sessions.registry.of_agent(agent_id)?;
        if !self.tables.sessions.registry.is_connected(&session) {
            return None;
        }
        // Computed before the lock, because it locks the ledger.
        let process = candidate(&session, uid);
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

fn candidate<'s>(session: &'s Session, uid: &str) -> CachingProcess<'s> {
    CachingProcess {
        agent_id: &session.agent.id,
        boot_id: &session.agent.boot_id,
        zone: &session.agent.zone,
        holds: session.is_approved() && session.holds(uid),
    }
}

/// Returns the command for a session's agent about an account, and records it as sent.
pub(in crate::hub) fn assignment(context: &HubContext, session: &Session, uid: &str) -> Option<Frame> {
    let Some(account) = context.accounts.by_uid(uid) else {
        if context.accounts.is_synced() {
            session.cached.lock().forget(uid);
        }
        return None;
    };
    let say = {
        let process = candidate(session, uid);
        let mut cached: parking_lot::MutexGuard<'_, CachingCommands> = session.cached.lock();
        cached.command(process, &account)
    };
    let (epoch, on) = match say {
        CachingCommand::Nothing => return None,
        CachingCommand::Start(epoch) => (epoch, true),
        CachingCommand::Stop(epoch) => (epoch, false),
    };
    let name = account.account_name();
    let account =
        wire_conversion::account_ref(uid, name, account.status_or_default().epoch, account.generation());
    Some(Frame::CachingAssignment(ops::CachingAssignment {
        fence: Some(common::Fence { account_uid: uid.to_owned(), caching_epoch: epoch.to_wire() }),
        on,
        account: Some(account),
    }))
}

async fn with_timeout<T>(answer: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    let late = |_| Err(StoreError::unavailable("it does not answer"));
    tokio::time::timeout(WRITE_TIMEOUT, answer).await.unwrap_or_else(late)
}
