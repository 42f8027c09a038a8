//! The work of a session on its accounts: checks each, prepares its credential, and makes frames of at most 50
//! accounts or 1 MiB.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use prost::Message;
use tracing::warn;

use crate::hub::account_objects::is_still_granted;
use crate::hub::sessions::duties::{self, Duty, SessionView};
use crate::hub::sessions::events::SessionEvent;
use crate::hub::sessions::ledger::{HubUptime, LedgerEntry, PendingCommand};
use crate::hub::sessions::session::Session;
use crate::hub::sessions::session::frame_queue::FrameQueue;
use crate::hub::sessions::session::session_loop::SessionParts;
use crate::hub::sessions::session::session_loop::detached;
use crate::hub::sessions::{mass_delete_guard, wire_conversion};
use crate::informers::version_of;
use kubesvc_core::failure::{Failure, FailureClass};
use kubesvc_core::lifecycle::{self, AgentReport, Fact};
use kubesvc_core::wire::ops::hub_frame::Frame;
use kubesvc_core::wire::{MAX_ACCOUNTS_IN_BATCH, MAX_BATCH_BYTES, common, ops};
use kubesvc_core::{GrantEpoch, GrantPhase, KubesvcAccount};
use kubesvc_runtime::telemetry::outages::warn_unless_away;

/// Maximum number of concurrent credential reads of one session.
const MAX_CREDENTIAL_READS: usize = 32;
/// Time limit for reading a credential, excluding the wait for a permit.
const CREDENTIAL_TIMEOUT: Duration = Duration::from_secs(30);
/// Delay before an account that could not be sent is checked again; the leader decides meanwhile.
const UNSENT_RETRY_DELAY: Duration = Duration::from_secs(5);
/// Size of a frame without its accounts, in bytes.
const FRAME_OVERHEAD_BYTES: usize = 1024;

/// An account that is ready to be sent, or the reason why it is not.
enum PreparedAccount {
    Spec(Box<ops::AccountSpec>),
    Failed(Failure),
    /// The credential differs from the one of the grant.
    CredentialMismatch,
    /// Retry later: the object cannot be read, or differs from the watched one.
    Later,
    /// The account is gone, or owes something else by now.
    Unwanted,
}

struct PreparedAdd {
    uid: String,
    epoch: GrantEpoch,
    ready: PreparedAccount,
}

pub(super) struct AccountWork {
    parts: Arc<SessionParts>,
    session: Arc<Session>,
    batch_bytes: usize,
    to_prepare: VecDeque<(String, GrantEpoch)>,
    preparing: FuturesUnordered<BoxFuture<'static, PreparedAdd>>,
    adds: Vec<ops::AccountSpec>,
    drops: Vec<common::AccountRef>,
    later: BTreeSet<(HubUptime, String)>,
}

impl AccountWork {
    pub(super) fn new(parts: Arc<SessionParts>, session: Arc<Session>, max_message_bytes: usize) -> Self {
        Self {
            parts,
            session,
            batch_bytes: MAX_BATCH_BYTES.min(max_message_bytes.saturating_sub(FRAME_OVERHEAD_BYTES)),
            to_prepare: VecDeque::new(),
            preparing: FuturesUnordered::new(),
            adds: Vec::new(),
            drops: Vec::new(),
            later: BTreeSet::new(),
        }
    }

    /// Checks accounts and starts what they owe.
    pub(super) fn check_accounts(&mut self, uids: Vec<String>) {
        if !self.session.was_approved() {
            // The agent was never approved: it holds nothing, and its reports do not count.
            return;
        }
        let doubted = mass_delete_guard::held_back(&self.parts.sessions, &self.session, &uids);
        for uid in uids {
            if !doubted.contains(&uid) {
                self.check(uid);
            }
        }
        self.begin_preparing();
    }

    /// Schedules another check of an account, if a time is given.
    pub(super) fn check_later(&mut self, again: Option<(HubUptime, String)>) {
        self.later.extend(again);
    }

    /// Returns the time of the next scheduled check.
    pub(super) fn next_check(&self) -> Option<Instant> {
        self.later.first().map(|(at, _)| self.parts.context.started + *at)
    }

    /// Wakes the accounts whose scheduled check is due.
    pub(super) fn wake_due(&mut self) {
        let now = self.parts.context.moment();
        while let Some((at, uid)) = self.later.pop_first() {
            if at > now {
                self.later.insert((at, uid));
                return;
            }
            self.session.wakes.wake(uid);
        }
    }

    /// Whether a credential is being read.
    pub(super) fn is_preparing(&self) -> bool {
        !self.preparing.is_empty()
    }

    /// Waits for a credential, and handles all that are ready.
    pub(super) async fn prepared(&mut self) {
        let Some(first) = self.preparing.next().await else { return };
        self.finish_preparing(first);
        while self.adds.len() < MAX_ACCOUNTS_IN_BATCH
            && let Some(Some(next)) = self.preparing.next().now_or_never()
        {
            self.finish_preparing(next);
        }
        self.begin_preparing();
    }

    /// Makes frames of the gathered accounts.
    pub(super) fn flush(&mut self, frames: &mut FrameQueue) {
        for accounts in std::mem::take(&mut self.drops).chunks(MAX_ACCOUNTS_IN_BATCH) {
            let batch_id = ulid::Ulid::generate().to_string();
            let drops = ops::DeleteAccounts { batch_id, accounts: accounts.to_vec() };
            self.record_sent(accounts.iter(), drops.encoded_len());
            frames.push(Frame::DeleteAccounts(drops));
        }
        let (mut batch, mut bytes) = (Vec::new(), 0);
        for spec in std::mem::take(&mut self.adds) {
            let size = spec.encoded_len() + 8;
            if batch.len() == MAX_ACCOUNTS_IN_BATCH || (bytes + size > self.batch_bytes && !batch.is_empty())
            {
                frames.push(self.add_frame(std::mem::take(&mut batch)));
                bytes = 0;
            }
            bytes += size;
            batch.push(spec);
        }
        if !batch.is_empty() {
            frames.push(self.add_frame(batch));
        }
    }

    fn add_frame(&self, accounts: Vec<ops::AccountSpec>) -> Frame {
        let adds = ops::AddAccounts { batch_id: ulid::Ulid::generate().to_string(), accounts };
        self.record_sent(adds.accounts.iter().filter_map(|spec| spec.account.as_ref()), adds.encoded_len());
        Frame::AddAccounts(adds)
    }

    /// Records the size of a message, in bytes, for each of its accounts.
    fn record_sent<'a>(&self, accounts: impl Iterator<Item = &'a common::AccountRef>, bytes: usize) {
        let mut ledger = self.session.ledger.lock();
        accounts.for_each(|account| ledger.sent(&account.uid, bytes));
    }

    /// Returns the session as its duties see it.
    pub(super) fn view(&self) -> SessionView<'_> {
        SessionView {
            zone: &self.session.agent.zone,
            approved: self.session.is_approved(),
            draining: self.session.is_draining(),
            synced: self.parts.context.accounts.is_synced(),
            lists: None,
            cluster_uid: &self.session.agent.cluster_uid,
            may_hold: true,
            may_offer: self.session.may_offer(),
        }
    }

    /// The same, for one account.
    fn view_for(&self, account: Option<&KubesvcAccount>) -> SessionView<'_> {
        let lists = match account.filter(|account| account.is_static()).map(|one| self.session.lists(one)) {
            Some(Fact::Known(lists)) => Some(lists),
            _ => None,
        };
        SessionView {
            lists,
            may_hold: account.is_none_or(|account| self.session.may_hold(account)),
            ..self.view()
        }
    }

    fn check(&mut self, uid: String) {
        let account = self.parts.context.accounts.by_uid(&uid);
        let (now, tick) = (self.parts.context.moment(), self.parts.context.ticks.now());
        let view = self.view_for(account.as_deref());
        let judged = account.as_deref().is_some_and(|account| self.session.judge(account));
        let mut ledger = self.session.ledger.lock();
        let entry = ledger.entry(&uid);
        let duty = duties::duty(view, account.as_deref(), entry, now);
        self.publish_kept_accounts(&uid, account.as_deref(), entry, duty);
        let name = match (&account, entry) {
            (Some(account), _) => account.account_name().to_owned(),
            (None, Some(entry)) => entry.name.clone(),
            (None, None) => return,
        };
        let is_new = entry.is_none();
        match duty {
            Duty::Nothing if judged => {}
            Duty::Nothing => return,
            Duty::Later(at) => {
                self.later.insert((at, uid));
                return;
            }
            Duty::Add(epoch) if ledger.name_is_busy(&name) => ledger.wait_for_name(&uid, &name, epoch, tick),
            Duty::Add(epoch) => {
                ledger.prepare(&uid, &name, epoch, tick);
                self.to_prepare.push_back((uid.clone(), epoch));
            }
            Duty::Drop(epoch) => {
                ledger.dropping(&uid, &name, epoch, tick);
                self.drops.push(wire_conversion::account_ref(&uid, &name, epoch, 0));
            }
            Duty::DropFromWrongCluster(epoch) => {
                let failure = account
                    .as_deref()
                    .zip(entry)
                    .and_then(|(account, entry)| self.wrong_cluster(account, entry));
                let Some(failure) = failure else { return };
                ledger.dropping_from_wrong_cluster(&uid, epoch, failure, (now, tick));
                self.drops.push(wire_conversion::account_ref(&uid, &name, epoch, 0));
            }
            Duty::ReportDropped(epoch) => {
                ledger.report_dropped(&uid, &name, epoch);
            }
            Duty::Forget => {
                let was_foreign = ledger.forget(&uid);
                let no_more = was_foreign && ledger.foreign() == 0;
                self.session.missing_accounts.lock().remove(&uid);
                self.session.cached.lock().forget(&uid);
                self.session.wakes.wake_all(ledger.freed(&name));
                drop(ledger);
                self.parts.sessions.publish(&self.session, SessionEvent::Released(&uid));
                self.parts.sessions.release(&self.session, [&uid]);
                if was_foreign {
                    self.session.foreign_claim_resolved(no_more);
                }
                return;
            }
        }
        drop(ledger);
        if is_new {
            self.parts.sessions.registry.concern(self.session.serial, [&uid]);
        }
        // An answer is outstanding from now on. The leader may have looked before, and must learn when it is overdue.
        self.parts.sessions.publish(&self.session, SessionEvent::AnswerChanged(&uid));
    }

    /// Records in the agent's conditions that an account is kept from it because it is bound to another cluster,
    /// until the agent holds the account or the account leaves the zone.
    fn publish_kept_accounts(
        &self,
        uid: &str,
        account: Option<&KubesvcAccount>,
        entry: Option<&LedgerEntry>,
        duty: Duty,
    ) {
        let status = account.map(KubesvcAccount::status_or_default);
        let zone = Some(&self.session.agent.zone);
        let granted = account.zip(status.as_deref()).filter(|(_, status)| {
            status.phase() == GrantPhase::Open && status.granted_zone() == zone && self.session.is_approved()
        });
        let own = self.session.agent.cluster_uid.as_str();
        let why = match (granted, duty) {
            (Some((account, status)), _) if lifecycle::runs_in_another_cluster(account, own) => {
                Some(format!(
                    "account {:?} is bound to cluster {}, and agent {} runs in cluster {}: it is not sent the account",
                    account.account_name(),
                    lifecycle::short(status.cluster_uid.as_deref().unwrap_or_default()),
                    self.session.agent.id,
                    lifecycle::short(own),
                ))
            }
            (Some((account, status)), Duty::DropFromWrongCluster(_)) => {
                let reached =
                    entry.and_then(|entry| entry.report.as_ref()).and_then(|(_, report)| match report {
                        AgentReport::Held(reached) => {
                            lifecycle::mismatch(status, &self.session.agent.id, reached)
                        }
                        _ => None,
                    });
                reached.map(|failure| format!("account {:?}: {}", account.account_name(), failure.message))
            }
            // The agent is asked again and may reach the right cluster by now; nothing changes until it reports.
            (Some(_), _)
                if !entry.is_some_and(|entry| matches!(entry.report, Some((_, AgentReport::Held(_))))) =>
            {
                return;
            }
            _ => None,
        };
        let logged_reason = why.as_ref().filter(|_| !matches!(duty, Duty::DropFromWrongCluster(_))).cloned();
        if self.session.keep_from(uid, why) {
            if let Some(why) = logged_reason
                && self.parts.context.may_log("kept_from", self.session.agent.peer)
            {
                warn!(agentId = self.session.agent.id.as_str(), why, "not sending an account to the agent");
            }
            self.session.own.changed.notify_one();
            self.parts.sessions.publish(&self.session, SessionEvent::ProblemsChanged);
        }
    }

    /// Returns why the agent may not keep an account that it reports to hold.
    fn wrong_cluster(&self, account: &KubesvcAccount, entry: &LedgerEntry) -> Option<Failure> {
        let Some((_, AgentReport::Held(reached))) = &entry.report else { return None };
        let failure = lifecycle::mismatch(&account.status_or_default(), &self.session.agent.id, reached)?;
        if self.parts.context.may_log("astray", self.session.agent.peer) {
            let why = &failure.message;
            warn!(
                agentId = self.session.agent.id.as_str(),
                account = entry.name,
                why,
                "telling the agent to drop an account that is bound to another cluster"
            );
        }
        Some(failure)
    }

    fn begin_preparing(&mut self) {
        while self.preparing.len() < MAX_CREDENTIAL_READS
            && let Some((uid, epoch)) = self.to_prepare.pop_front()
        {
            if !self.is_to_prepare(&uid, epoch) {
                continue;
            }
            let (parts, session) = (Arc::clone(&self.parts), Arc::clone(&self.session));
            self.preparing.push(detached(prepare(parts, session, uid, epoch)).boxed());
        }
    }

    fn is_to_prepare(&self, uid: &str, epoch: GrantEpoch) -> bool {
        is_to_prepare(&self.session, uid, epoch)
    }

    /// Discards a prepared Add; the account is checked again.
    fn abandon(&mut self, uid: &str, epoch: GrantEpoch) {
        self.session.ledger.lock().abandon(uid, epoch);
        self.session.wakes.wake(uid.to_owned());
    }

    fn finish_preparing(&mut self, prepared: PreparedAdd) {
        let PreparedAdd { uid, epoch, ready } = prepared;
        if !self.is_to_prepare(&uid, epoch) {
            return;
        }
        let failure = match ready {
            PreparedAccount::Spec(spec) if spec.encoded_len() > self.batch_bytes => {
                Some(too_large(spec.encoded_len()))
            }
            PreparedAccount::Spec(spec) => return self.add(&uid, epoch, *spec),
            PreparedAccount::Failed(failure) => Some(failure),
            PreparedAccount::CredentialMismatch => {
                self.session.ledger.lock().record_credential_mismatch(
                    &uid,
                    epoch,
                    self.parts.context.moment(),
                    UNSENT_RETRY_DELAY,
                );
                return self.unsent(&uid);
            }
            PreparedAccount::Later => None,
            PreparedAccount::Unwanted => return self.abandon(&uid, epoch),
        };
        self.session.ledger.lock().not_sent(
            &uid,
            epoch,
            failure,
            self.parts.context.moment(),
            UNSENT_RETRY_DELAY,
        );
        self.unsent(&uid);
    }

    /// Handles an account that was not sent: the leader may have to act.
    fn unsent(&self, uid: &str) {
        self.session.wakes.wake(uid.to_owned());
        self.parts.sessions.publish(&self.session, SessionEvent::AnswerChanged(uid));
    }

    /// Sends the account if it still owes an Add: objects may have changed while the credential was read.
    fn add(&mut self, uid: &str, epoch: GrantEpoch, spec: ops::AccountSpec) {
        let account = self.parts.context.accounts.by_uid(uid);
        let mut ledger = self.session.ledger.lock();
        let entry = ledger.entry(uid).cloned().map(|mut entry| {
            entry.command = None;
            entry
        });
        let view = self.view_for(account.as_deref());
        let duty = duties::duty(view, account.as_deref(), entry.as_ref(), self.parts.context.moment());
        let free = entry.is_some_and(|entry| !ledger.name_is_busy(&entry.name));
        if duty == Duty::Add(epoch) && free {
            ledger.added(uid, epoch, self.parts.context.ticks.now());
            self.adds.push(spec);
        } else {
            drop(ledger);
            self.abandon(uid, epoch);
        }
    }
}

async fn prepare(
    parts: Arc<SessionParts>,
    session: Arc<Session>,
    uid: String,
    epoch: GrantEpoch,
) -> PreparedAdd {
    // The timeout starts after the permit: the wait is not the account's fault.
    let _permit = parts.credentials.permit().await;
    let ready = match parts.context.accounts.by_uid(&uid) {
        // The account may have changed, or be gone, since it was queued.
        Some(account) if is_to_prepare(&session, &uid, epoch) => {
            let ready = ready(&parts, &session, &account, epoch);
            tokio::time::timeout(CREDENTIAL_TIMEOUT, ready)
                .await
                .unwrap_or_else(|_| PreparedAccount::Failed(too_slow()))
        }
        _ => PreparedAccount::Unwanted,
    };
    PreparedAdd { uid, epoch, ready }
}

fn is_to_prepare(session: &Session, uid: &str, epoch: GrantEpoch) -> bool {
    let ledger = session.ledger.lock();
    ledger.entry(uid).is_some_and(|entry| entry.command == Some(PendingCommand::Prepare(epoch)))
}

fn too_slow() -> Failure {
    let message = format!("the credential of the account was not read within {CREDENTIAL_TIMEOUT:?}");
    Failure::new(FailureClass::Timeout, message)
}

async fn ready(
    parts: &SessionParts,
    session: &Session,
    account: &KubesvcAccount,
    epoch: GrantEpoch,
) -> PreparedAccount {
    if !session.may_hold(account) {
        return PreparedAccount::Unwanted;
    }
    let may_be_old = !session.connected_before(version_of(account));
    if parts.context.settings.sessions.clustered
        && may_be_old
        && !session.ledger.lock().is_confirmed(account.uid())
    {
        match is_still_granted(&*parts.account_objects, account).await {
            Ok(true) => session.ledger.lock().confirm(account.uid()),
            Ok(false) => return PreparedAccount::Later,
            Err(problem) => {
                warn_unless_away!(account = account.account_name(), error = %problem, "cannot read the account before sending it; retrying");
                return PreparedAccount::Later;
            }
        }
    }
    let status = account.status_or_default();
    let granted = status.credential_version.as_deref();
    for fresh in [false, true] {
        match parts.credentials.resolve(account, fresh).await {
            Ok(credential) if credential.is(granted) => {
                return PreparedAccount::Spec(Box::new(wire_conversion::account_spec(
                    account,
                    epoch,
                    &credential,
                )));
            }
            Ok(_) => {}
            Err(failure) => return PreparedAccount::Failed(failure),
        }
    }
    PreparedAccount::CredentialMismatch
}

fn too_large(bytes: usize) -> Failure {
    let message = format!("the account takes {bytes} bytes, more than its agent takes in one message");
    Failure::new(FailureClass::BadKubeconfig, message)
}
