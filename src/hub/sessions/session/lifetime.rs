//! From when an agent counts until its stream ends: its approval, what it claimed before, and why it is closed.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::Session;
use crate::hub::agent_admission::claimed_accounts::ForeignClaims;
use kubesvc_core::agent_resource::SessionEnd;
use kubesvc_core::lifecycle::SessionEnding;
use kubesvc_core::report_outbox::OutboxEntry;

/// Why the stream of an agent ends that was approved after it had said what it holds.
const APPROVED_AFTER_HELLO: &str = "it was approved, and says anew what it holds";

/// Why the stream of an agent ends that claimed more accounts than were taken in at once.
const MORE_CLAIMS: &str = "it holds more accounts that are none of its zone, and says them anew";

/// Why the stream of an agent ends whose certificate or token has expired.
const EXPIRED: &str = "its credential has expired";

/// State of a session beside its accounts.
pub(super) struct SessionLifetime {
    /// Whether the agent is given accounts.
    approved: watch::Sender<bool>,
    /// Where that was read. Held while an approval is applied.
    approval_source: Mutex<ApprovalSource>,
    /// The agent is approved, or was before: it may hold accounts, and what it says counts.
    was_approved: AtomicBool,
    /// The agent has said something of its accounts that was not taken in, since it was never approved.
    has_ignored_claims: AtomicBool,
    claims: ClaimedAccounts,
    /// The version of the agent's object that first named this session; 0 before that.
    named_since: AtomicU64,
    /// The outbox as it was written last.
    outbox: Mutex<Vec<OutboxEntry>>,
    closing: Closing,
}

impl SessionLifetime {
    /// `has_ignored_claims`: the agent has already claimed accounts that were not taken in.
    pub(super) fn new(has_ignored_claims: bool) -> Self {
        Self {
            approved: watch::Sender::new(false),
            approval_source: Mutex::new(ApprovalSource::Watch(0)),
            was_approved: AtomicBool::new(false),
            has_ignored_claims: AtomicBool::new(has_ignored_claims),
            claims: ClaimedAccounts::default(),
            named_since: AtomicU64::new(0),
            outbox: Mutex::default(),
            closing: Closing::default(),
        }
    }
}

/// Where an approval was read, with the version of the agent's object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ApprovalSource {
    /// The answer to the session's registration.
    Registration(u64),
    /// The watch of KubesvcAgents.
    Watch(u64),
}

impl ApprovalSource {
    fn version(self) -> u64 {
        let (Self::Registration(version) | Self::Watch(version)) = self;
        version
    }

    /// Whether this was read before `other`. What the watch shows comes in order whatever its version, which is an earlier
    /// one after the API server was restored from a backup.
    fn is_older_than(self, other: Self) -> bool {
        match (self, other) {
            (Self::Watch(_), Self::Watch(_)) => false,
            _ => self.version() < other.version(),
        }
    }
}

/// Accounts that the agent claimed in its hello and that are none of its zone.
#[derive(Default)]
struct ClaimedAccounts {
    /// Their uids, until they stand in the ledger.
    uids: Mutex<HashSet<String>>,
    /// Their room.
    permits: Mutex<Option<OwnedSemaphorePermit>>,
    /// It claimed more of these than were taken in; they are heard when it says hello again.
    has_more: AtomicBool,
}

/// Why and how the stream ends.
#[derive(Default)]
struct Closing {
    close: CancellationToken,
    because: Mutex<&'static str>,
    /// The agent has said that it stops.
    drains: AtomicBool,
    /// The agent has said goodbye.
    goodbye: AtomicBool,
    /// Somebody asked for its end.
    requested: AtomicBool,
    /// The agent lost its identity.
    revoked: AtomicBool,
    /// Another replica has the agent's stream by now; this one ends soon.
    superseded: AtomicBool,
}

impl Session {
    /// Whether the agent is given accounts.
    pub(crate) fn is_approved(&self) -> bool {
        *self.lifetime.approved.borrow()
    }

    /// Whether the agent is approved, or was before. What one that never was says counts for no account.
    pub(crate) fn was_approved(&self) -> bool {
        self.lifetime.was_approved.load(Ordering::SeqCst)
    }

    /// The agent was approved at some time.
    pub(crate) fn set_was_approved(&self) {
        self.lifetime.was_approved.store(true, Ordering::SeqCst);
    }

    /// Applies an approval, or its withdrawal, unless a later one was applied: registration and the watch do not wait for
    /// each other. Returns whether the approval has changed and the session goes on.
    pub(crate) fn approve(&self, approved: bool, source: ApprovalSource) -> bool {
        let mut applied = self.lifetime.approval_source.lock();
        if source.is_older_than(*applied) {
            return false;
        }
        *applied = source;
        if approved {
            self.set_was_approved();
            if self.lifetime.has_ignored_claims.load(Ordering::SeqCst) {
                self.close(APPROVED_AFTER_HELLO);
                return false;
            }
        }
        self.lifetime.approved.send_replace(approved) != approved
    }

    /// Waits until the agent is given accounts.
    pub(crate) async fn until_approved(&self) {
        // The sender lives as long as self, so this ends only when the value is true.
        let _ = self.lifetime.approved.subscribe().wait_for(|approved| *approved).await;
    }

    /// What an agent that was never approved says of its accounts is not taken in. Once it is approved it has to say it
    /// anew, on a new stream.
    pub(crate) fn ignore_claims(&self) {
        self.lifetime.has_ignored_claims.store(true, Ordering::SeqCst);
        if self.was_approved() {
            self.close(APPROVED_AFTER_HELLO);
        }
    }

    /// What it claimed of accounts that are none of its zone.
    pub(crate) fn claimed(&self, foreign: ForeignClaims) {
        *self.lifetime.claims.uids.lock() = foreign.uids;
        *self.lifetime.claims.permits.lock() = foreign.permit;
        self.lifetime.claims.has_more.store(foreign.more, Ordering::Relaxed);
    }

    /// Takes the uids of these, for the ledger.
    pub(crate) fn take_claimed_uids(&self) -> HashSet<String> {
        std::mem::take(&mut *self.lifetime.claims.uids.lock())
    }

    /// The session has ended: nothing is kept of what was only claimed, though the session itself is remembered for a while.
    pub(crate) fn forget_claims(&self) {
        self.ledger.lock().forget_foreign();
        drop(self.lifetime.claims.permits.lock().take());
        *self.missing_accounts.lock() = HashMap::new();
        drop(self.wakes.try_take(usize::MAX));
    }

    /// An account that it claimed, and that is none of its zone, is settled. Where no more are open, and it had claimed
    /// more than were taken in, it is to say hello again.
    pub(super) fn foreign_claim_resolved(&self, no_more: bool) {
        let one = self.lifetime.claims.permits.lock().as_mut().and_then(|permits| permits.split(1));
        drop(one);
        if no_more && self.lifetime.claims.has_more.load(Ordering::Relaxed) {
            self.close(MORE_CLAIMS);
        }
    }

    /// Closes the stream if the agent claimed more foreign accounts than were accepted, none of the accepted ones is open,
    /// and further ones would be accepted now. An agent none of whose claims was accepted would keep all of them otherwise.
    pub(crate) fn hear_further_claims(&self) {
        let claims = &self.lifetime.claims;
        if !claims.has_more.load(Ordering::Relaxed)
            || !self.was_approved()
            || self.ledger.lock().foreign() > 0
        {
            return;
        }
        let has_free_permits =
            claims.permits.lock().as_ref().is_some_and(|permit| permit.semaphore().available_permits() > 0);
        if has_free_permits {
            self.close(MORE_CLAIMS);
        }
    }

    /// The agent's object names this session since this version.
    pub(crate) fn registered(&self, version: u64) {
        self.lifetime.named_since.store(version, Ordering::Relaxed);
    }

    /// Whether this session stood in its agent's object before something was written as this version: then whoever leads
    /// and reads the sessions after that knows of it. Versions of all objects are counted by one etcd.
    pub(crate) fn connected_before(&self, version: u64) -> bool {
        let registered = self.lifetime.named_since.load(Ordering::Relaxed);
        registered > 0 && version > registered
    }

    /// Whether an outbox says something else than what was written. What nothing waits for any more may be left
    /// standing, unless it would be taken for the session's last word.
    pub(crate) fn has_unwritten(
        &self,
        outbox: &[OutboxEntry],
        may_stand: impl Fn(&OutboxEntry) -> bool,
    ) -> bool {
        let written = self.lifetime.outbox.lock();
        let may_stand = outbox.is_empty() && written.iter().all(may_stand);
        !may_stand && *written != outbox
    }

    /// The outbox was written.
    pub(crate) fn reported(&self, outbox: Vec<OutboxEntry>) {
        *self.lifetime.outbox.lock() = outbox;
    }

    /// Whether the agent's object, at this version, names another session that came after this one.
    pub(crate) fn is_superseded_by(&self, in_force: Option<&str>, version: u64) -> bool {
        self.connected_before(version) && in_force != Some(self.id.as_str())
    }

    /// Another replica has the agent's stream by now.
    pub(crate) fn supersede(&self) {
        self.lifetime.closing.superseded.store(true, Ordering::Relaxed);
    }

    /// Whether another replica has the agent's stream by now: then what that one tells counts, and not this session.
    pub(crate) fn is_superseded(&self) -> bool {
        self.lifetime.closing.superseded.load(Ordering::Relaxed)
    }

    /// Ends the stream soon.
    pub(crate) fn close(&self, because: &'static str) {
        {
            let mut reason = self.lifetime.closing.because.lock();
            if reason.is_empty() {
                *reason = because;
            }
        }
        self.lifetime.closing.close.cancel();
    }

    /// Waits until it is closed.
    pub(crate) async fn until_closed(&self) {
        self.lifetime.closing.close.cancelled().await;
    }

    /// Why it was closed, if it was.
    pub(crate) fn closed_because(&self) -> Option<&'static str> {
        Some(*self.lifetime.closing.because.lock()).filter(|because| !because.is_empty())
    }

    /// Whether it was closed because the agent is approved now, and has to say what it holds.
    pub(crate) fn is_to_say_hello_anew(&self) -> bool {
        self.closed_because() == Some(APPROVED_AFTER_HELLO)
    }

    /// The agent stops: it takes nothing new.
    pub(super) fn record_draining(&self) {
        self.lifetime.closing.drains.store(true, Ordering::Relaxed);
    }

    /// Whether the agent has said that it stops. It takes no further accounts and requests.
    pub(crate) fn is_draining(&self) -> bool {
        self.lifetime.closing.drains.load(Ordering::Relaxed)
    }

    /// The agent's process has ended.
    pub(super) fn record_goodbye(&self) {
        self.lifetime.closing.goodbye.store(true, Ordering::Relaxed);
    }

    /// Ends the stream at a person's request.
    pub(crate) fn close_on_request(&self) {
        self.lifetime.closing.requested.store(true, Ordering::Relaxed);
        self.close("its stream was closed on request");
    }

    /// Ends the stream, since the agent lost its identity. Returns whether that is new.
    pub(crate) fn revoke(&self) -> bool {
        let is_new = !self.lifetime.closing.revoked.swap(true, Ordering::SeqCst);
        if is_new {
            self.close("the agent lost its identity");
        }
        is_new
    }

    /// Ends the stream, since the agent's credential has expired. The agent is waited for: it may come back with another one.
    pub(crate) fn expire(&self) {
        self.close(EXPIRED);
    }

    /// Whether nothing may be sent to the agent any more, or heard from it.
    pub(crate) fn lost_its_credential(&self) -> bool {
        self.is_revoked() || self.closed_because() == Some(EXPIRED)
    }

    /// Whether the agent lost its identity. It is gone at once: nothing waits for it.
    pub(crate) fn is_revoked(&self) -> bool {
        self.lifetime.closing.revoked.load(Ordering::SeqCst)
    }

    /// The status that its stream ends with when it was closed.
    pub(crate) fn closing_status(&self) -> Status {
        let why = self.closed_because().unwrap_or("the stream was closed");
        match why {
            _ if self.is_revoked() => Status::permission_denied(why),
            EXPIRED => Status::unauthenticated(why),
            _ => Status::aborted(why),
        }
    }

    /// Whether somebody asked for its end.
    pub(crate) fn was_closed_on_request(&self) -> bool {
        self.lifetime.closing.requested.load(Ordering::Relaxed)
    }

    /// How its end is written down: one that was requested is told apart, since its id is kept.
    pub(crate) fn end(&self, ending: SessionEnding) -> SessionEnd {
        match () {
            () if self.is_revoked() => SessionEnd::Revoked,
            () if self.was_closed_on_request() => SessionEnd::Requested,
            () => ending.into(),
        }
    }

    /// How it ended.
    pub(crate) fn ending(&self, replica_is_ending: bool) -> SessionEnding {
        match replica_is_ending {
            _ if self.lifetime.closing.goodbye.load(Ordering::Relaxed) => SessionEnding::Goodbye,
            true => SessionEnding::ReplicaLost,
            false => SessionEnding::Cut,
        }
    }
}
