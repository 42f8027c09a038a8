//! One stream of one agent: who it is, what it was told and what it has said.
//!
//! A task of its own owns the stream (`session_loop`); the rest of the hub reads the session and wakes it.

mod account_work;
mod answers;
pub(in crate::hub) mod detached;
pub(in crate::hub) mod outbox;
pub(in crate::hub) mod session_loop;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, watch};
use tokio_util::sync::CancellationToken;

use crate::account::agent_resource::SessionEnd;
use crate::account::lifecycle::{
    AgentProcess, AgentReport, Fact, Offer, Presence, SessionEnding, SessionFact, Tick,
};
use crate::account::outbox::OutboxEntry;
use crate::account::{BootId, GrantEpoch, KubesvcAccount, SessionId};
use crate::hub::admission::foreign_claims::ForeignClaims;
use crate::hub::admission::hello::AcceptedHello;
use crate::hub::sessions::ledger::Ledger;
use crate::hub::sessions::mass_delete_guard::VanishedState;
use crate::hub::static_accounts::sync::{ListProblem, ReportedList};
use crate::hub::tables::caching_commands::CachingCommands;
use crate::hub::zone_probes::probe::ZoneProbes;
use crate::wake_set::WakeSet;

static SERIALS: AtomicU64 = AtomicU64::new(1);

/// Why the stream of an agent ends that was approved after it had said what it holds.
const APPROVED_AFTER_HELLO: &str = "it was approved, and says anew what it holds";

/// Why the stream of an agent ends that claimed more accounts than were taken in at once.
const CLAIMS_LEFT: &str = "it holds more accounts that are none of its zone, and says them anew";

/// One stream of one agent, as the whole hub sees it.
pub(in crate::hub) struct Session {
    /// Unique in this process.
    pub(in crate::hub) serial: u64,
    /// A ULID, as the agent and its object know it.
    pub(in crate::hub) id: SessionId,
    pub(in crate::hub) agent_id: String,
    pub(in crate::hub) zone: String,
    pub(in crate::hub) boot_id: BootId,
    pub(in crate::hub) connect_seq: i64,
    pub(in crate::hub) version: String,
    pub(in crate::hub) connected_since: Timestamp,
    /// Where its agent dials from.
    peer: Option<SocketAddr>,
    approved: watch::Sender<bool>,
    /// The agent is approved, or was before: it may hold accounts, and what it says counts.
    was_approved: AtomicBool,
    /// The agent has said something of its accounts that was not taken in, since it was never approved.
    has_unheard: AtomicBool,
    /// The version of the agent's object that first named this session; 0 before that.
    registered: AtomicU64,
    /// The outbox as it was written last.
    reported: Mutex<Vec<OutboxEntry>>,
    last_frame: Mutex<(Instant, Timestamp)>,
    pub(in crate::hub) close: CancellationToken,
    closed_because: Mutex<&'static str>,
    /// The agent has said goodbye.
    goodbye: AtomicBool,
    /// Somebody asked for its end.
    requested: AtomicBool,
    /// The leader's tick at which it was begun.
    since: Tick,
    /// Another replica has the agent's stream by now; this one ends soon.
    superseded: AtomicBool,
    /// The stream is let go of; nothing more is sent or heard on it.
    pub(in crate::hub) ended: CancellationToken,
    /// Accounts to look at again.
    pub(in crate::hub) wakes: WakeSet<String>,
    pub(in crate::hub) ledger: Mutex<Ledger>,
    /// What was found out about accounts that no object has; to be locked after the ledger.
    pub(in crate::hub) vanished_accounts: Mutex<HashMap<String, VanishedState>>,
    /// Accounts that it claimed and that are none of its zone, until they stand in the ledger.
    pub(in crate::hub) foreign_uids: Mutex<HashSet<String>>,
    /// Room for the accounts that it claimed and that are none of its zone.
    foreign: Mutex<Option<OwnedSemaphorePermit>>,
    /// It claimed more of these than were taken in; they are heard when it says hello again.
    claims_more: AtomicBool,
    /// What its agent was told of the accounts whose objects it streams.
    pub(in crate::hub) cached: Mutex<CachingCommands>,
    /// What it was asked about accounts without a zone.
    pub(in crate::hub) zone_probes: Mutex<ZoneProbes>,
    /// The accounts of the agent's own file.
    pub(in crate::hub) list: Mutex<ReportedList>,
    /// An account that may be one of its own has changed or is gone.
    pub(in crate::hub) own_changed: Notify,
    /// uid of kube-system of the cluster that the agent runs in; empty where it has not said.
    pub(in crate::hub) cluster_uid: String,
    /// Accounts that are kept from the agent because they are bound to another cluster, and why; the first 100.
    kept_from: Mutex<BTreeMap<String, String>>,
}

impl Session {
    pub(in crate::hub) fn new(greeting: &AcceptedHello, peer: Option<SocketAddr>, tick: Tick) -> Self {
        let now = Timestamp::now();
        Self {
            serial: SERIALS.fetch_add(1, Ordering::Relaxed),
            id: ulid::Ulid::generate().to_string().into(),
            agent_id: greeting.agent_id.clone(),
            zone: greeting.zone.clone(),
            boot_id: greeting.boot_id.clone(),
            connect_seq: greeting.connect_seq,
            version: greeting.version.clone(),
            connected_since: now,
            peer,
            approved: watch::Sender::new(false),
            was_approved: AtomicBool::new(false),
            has_unheard: AtomicBool::new(greeting.has_unheard),
            registered: AtomicU64::new(0),
            reported: Mutex::default(),
            last_frame: Mutex::new((Instant::now(), now)),
            close: CancellationToken::new(),
            closed_because: Mutex::new(""),
            goodbye: AtomicBool::new(false),
            requested: AtomicBool::new(false),
            superseded: AtomicBool::new(false),
            since: tick,
            ended: CancellationToken::new(),
            wakes: WakeSet::default(),
            ledger: Mutex::new(Ledger::new(tick)),
            vanished_accounts: Mutex::default(),
            foreign_uids: Mutex::default(),
            foreign: Mutex::default(),
            claims_more: AtomicBool::new(false),
            cached: Mutex::default(),
            zone_probes: Mutex::default(),
            list: Mutex::default(),
            own_changed: Notify::new(),
            cluster_uid: greeting.cluster_uid.clone(),
            kept_from: Mutex::default(),
        }
    }

    /// Where its agent dials from; the lines about what it does wrong are counted by that.
    pub(in crate::hub) fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// Why it was closed, if it was.
    pub(in crate::hub) fn closed_because(&self) -> Option<&'static str> {
        Some(*self.closed_because.lock()).filter(|because| !because.is_empty())
    }

    /// Whether the agent is given accounts.
    pub(in crate::hub) fn is_approved(&self) -> bool {
        *self.approved.borrow()
    }

    /// Whether the agent is approved, or was before. What one that never was says counts for no account.
    pub(in crate::hub) fn was_approved(&self) -> bool {
        self.was_approved.load(Ordering::SeqCst)
    }

    /// The agent was approved at some time.
    pub(in crate::hub) fn set_was_approved(&self) {
        self.was_approved.store(true, Ordering::SeqCst);
    }

    /// What an agent that was never approved says of its accounts is not taken in. Once it is approved it has to say it
    /// anew, on a new stream.
    pub(in crate::hub) fn ignore_claims(&self) {
        self.has_unheard.store(true, Ordering::SeqCst);
        if self.was_approved() {
            self.close(APPROVED_AFTER_HELLO);
        }
    }

    /// What it claimed of accounts that are none of its zone.
    pub(in crate::hub) fn claimed(&self, foreign: ForeignClaims) {
        *self.foreign_uids.lock() = foreign.uids;
        *self.foreign.lock() = foreign.permit;
        self.claims_more.store(foreign.more, Ordering::Relaxed);
    }

    /// The session has ended: nothing is kept of what was only claimed, though the session itself is remembered for a while.
    pub(in crate::hub) fn forget_claims(&self) {
        self.ledger.lock().forget_foreign();
        drop(self.foreign.lock().take());
        *self.vanished_accounts.lock() = HashMap::new();
        drop(self.wakes.try_take(usize::MAX));
    }

    /// An account that it claimed, and that is none of its zone, is settled. Where no more are open, and it had claimed
    /// more than were taken in, it is to say hello again.
    fn foreign_settled(&self, no_more: bool) {
        let one = self.foreign.lock().as_mut().and_then(|room| room.split(1));
        drop(one);
        if no_more && self.claims_more.load(Ordering::Relaxed) {
            self.close(CLAIMS_LEFT);
        }
    }

    /// Approval was given or taken. Answers whether that is new, and the session goes on.
    pub(in crate::hub) fn approve(&self, approved: bool) -> bool {
        if approved {
            self.set_was_approved();
            if self.has_unheard.load(Ordering::SeqCst) {
                self.close(APPROVED_AFTER_HELLO);
                return false;
            }
        }
        self.approved.send_replace(approved) != approved
    }

    /// The agent's object names this session since this version.
    pub(in crate::hub) fn registered(&self, version: u64) {
        self.registered.store(version, Ordering::Relaxed);
    }

    /// Whether this session stood in its agent's object before something was written as this version: then whoever leads
    /// and reads the sessions after that knows of it. Versions of all objects are counted by one etcd.
    fn connected_before(&self, version: u64) -> bool {
        let registered = self.registered.load(Ordering::Relaxed);
        registered > 0 && version > registered
    }

    /// Whether the agent's object, at this version, names another session that came after this one.
    pub(in crate::hub) fn is_superseded_by(&self, in_force: Option<&str>, version: u64) -> bool {
        self.connected_before(version) && in_force != Some(self.id.as_str())
    }

    /// Another replica has the agent's stream by now.
    pub(in crate::hub) fn supersede(&self) {
        self.superseded.store(true, Ordering::Relaxed);
    }

    /// Whether another replica has the agent's stream by now: then what that one tells counts, and not this session.
    pub(in crate::hub) fn is_superseded(&self) -> bool {
        self.superseded.load(Ordering::Relaxed)
    }

    /// Whether an outbox says something else than what was written. What nothing waits for any more may be left
    /// standing, unless it would be taken for the session's last word.
    pub(in crate::hub) fn is_news(
        &self,
        outbox: &[OutboxEntry],
        may_stand: impl Fn(&OutboxEntry) -> bool,
    ) -> bool {
        let reported = self.reported.lock();
        let may_stand = outbox.is_empty() && reported.iter().all(may_stand);
        !may_stand && *reported != outbox
    }

    /// The outbox was written.
    pub(in crate::hub) fn reported(&self, outbox: Vec<OutboxEntry>) {
        *self.reported.lock() = outbox;
    }

    /// Waits until the agent is given accounts.
    pub(in crate::hub) async fn until_approved(&self) {
        // The sender lives as long as self, so this ends only when the value is true.
        let _ = self.approved.subscribe().wait_for(|approved| *approved).await;
    }

    /// Ends the stream soon.
    pub(in crate::hub) fn close(&self, because: &'static str) {
        {
            let mut reason = self.closed_because.lock();
            if reason.is_empty() {
                *reason = because;
            }
        }
        self.close.cancel();
    }

    /// The agent's process has ended.
    fn said_goodbye(&self) {
        self.goodbye.store(true, Ordering::Relaxed);
    }

    /// Ends the stream at a person's request.
    pub(in crate::hub) fn close_on_request(&self) {
        self.requested.store(true, Ordering::Relaxed);
        self.close("its stream was closed on request");
    }

    /// Whether somebody asked for its end.
    pub(in crate::hub) fn was_closed_on_request(&self) -> bool {
        self.requested.load(Ordering::Relaxed)
    }

    /// How its end is written down: one that was requested is told apart, since its id is kept.
    pub(in crate::hub) fn end(&self, ending: SessionEnding) -> SessionEnd {
        if self.was_closed_on_request() { SessionEnd::Requested } else { ending.into() }
    }

    /// How it ended.
    pub(in crate::hub) fn ending(&self, replica_is_ending: bool) -> SessionEnding {
        match replica_is_ending {
            _ if self.goodbye.load(Ordering::Relaxed) => SessionEnding::Goodbye,
            true => SessionEnding::ReplicaLost,
            false => SessionEnding::Cut,
        }
    }

    fn process(&self) -> AgentProcess {
        AgentProcess { boot_id: self.boot_id.clone(), since: self.since, ..AgentProcess::default() }
    }

    /// For how long no frame has come.
    pub(in crate::hub) fn silent_for(&self) -> Duration {
        self.last_frame.lock().0.elapsed()
    }

    /// When the last frame came.
    pub(in crate::hub) fn last_seen(&self) -> Timestamp {
        self.last_frame.lock().1
    }

    fn frame(&self, tick: Tick) {
        *self.last_frame.lock() = (Instant::now(), Timestamp::now());
        self.ledger.lock().frame(tick);
    }

    /// What the leader is told of this session about an account that is at `epoch`. Silence about an older epoch is
    /// none about this one, which the session may not have seen yet.
    pub(in crate::hub) fn fact(&self, uid: &str, epoch: GrantEpoch, now: Tick) -> SessionFact {
        let ledger = self.ledger.lock();
        let owes = ledger.entry(uid).and_then(|entry| entry.owed).is_some_and(|(owed, _)| owed == epoch);
        SessionFact {
            agent_id: self.agent_id.clone(),
            zone: self.zone.clone(),
            approved: self.is_approved(),
            presence: Presence::Connected,
            process: self.process(),
            report: ledger.entry(uid).and_then(|entry| entry.report.clone()),
            silent_for: ledger.silent_for(uid, now).filter(|_| owes),
            offer: None,
            lists: Fact::Unknown,
            cluster_uid: self.cluster_uid.clone(),
        }
    }

    /// What the leader is told of this session about an account that it has had nothing to do with.
    pub(in crate::hub) fn stranger(&self, offer: Option<(i64, Offer)>) -> SessionFact {
        SessionFact {
            agent_id: self.agent_id.clone(),
            zone: self.zone.clone(),
            approved: self.is_approved(),
            presence: Presence::Connected,
            process: self.process(),
            report: None,
            silent_for: None,
            offer,
            lists: Fact::Unknown,
            cluster_uid: self.cluster_uid.clone(),
        }
    }

    /// Whether the agent's own file has an account, by its name and with its source, as far as it has said.
    pub(in crate::hub) fn lists(&self, account: &KubesvcAccount) -> Fact<bool> {
        match &self.list.lock().listing {
            None => Fact::Unknown,
            Some(listing) => Fact::Known(listing.has(account)),
        }
    }

    /// An account is kept from the agent because of the cluster that it is in or has reached, and why; absent: no longer.
    /// Answers whether that is new.
    pub(in crate::hub) fn keep_from(&self, uid: &str, why: Option<String>) -> bool {
        const MAX_WRONG_CLUSTER_ACCOUNTS: usize = 100;
        let mut kept = self.kept_from.lock();
        match why {
            None => kept.remove(uid).is_some(),
            Some(why) if kept.get(uid) == Some(&why) => false,
            Some(_) if kept.len() >= MAX_WRONG_CLUSTER_ACCOUNTS && !kept.contains_key(uid) => false,
            Some(why) => {
                kept.insert(uid.to_owned(), why);
                true
            }
        }
    }

    /// Why an account is kept from the agent, if it is.
    pub(in crate::hub) fn is_kept_from(&self, uid: &str) -> Option<String> {
        self.kept_from.lock().get(uid).cloned()
    }

    /// Of the accounts that are kept from the agent, how many there are and why the first is.
    pub(in crate::hub) fn all_kept_from(&self) -> Option<(usize, String)> {
        let kept = self.kept_from.lock();
        kept.values().next().map(|first| (kept.len(), first.clone()))
    }

    /// What is wrong with the agent's own accounts.
    pub(in crate::hub) fn list_problem(&self) -> Option<ListProblem> {
        self.list.lock().problem.clone()
    }

    /// Whether the agent holds the account, as far as it has said.
    pub(in crate::hub) fn holds(&self, uid: &str) -> bool {
        self.held_name(uid).is_some()
    }

    /// The name of an account that the agent holds, as far as it has said.
    pub(in crate::hub) fn held_name(&self, uid: &str) -> Option<String> {
        let ledger = self.ledger.lock();
        let held =
            ledger.entry(uid).filter(|entry| matches!(entry.report, Some((_, AgentReport::Held(_)))))?;
        Some(held.name.clone())
    }

    /// How many accounts the agent holds, and how many it could not take or drop or has lost.
    pub(in crate::hub) fn counts(&self) -> (usize, usize) {
        self.ledger.lock().counts()
    }

    /// Names of the accounts that the agent holds, as far as it has said, sorted.
    pub(in crate::hub) fn held_names(&self) -> Vec<String> {
        let mut names: Vec<_> = {
            let ledger = self.ledger.lock();
            let held =
                ledger.entries().filter(|(_, entry)| matches!(entry.report, Some((_, AgentReport::Held(_)))));
            held.map(|(_, entry)| entry.name.clone()).collect()
        };
        names.sort();
        names
    }

    /// Uids of all accounts that the session has to do with.
    pub(in crate::hub) fn uids(&self) -> Vec<String> {
        self.ledger.lock().uids().cloned().collect()
    }
}
