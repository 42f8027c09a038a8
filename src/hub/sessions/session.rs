//! One stream of one agent: its identity, what it was sent and what it answered.
//!
//! One task owns the stream (`session_loop`). The rest of the hub reads the session and wakes accounts in it.

mod account_work;
pub(crate) mod contest;
pub(crate) mod frame_queue;
pub(crate) mod identified;
mod lifetime;
pub(crate) mod session_loop;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::hub::agent_status::registration::SessionRef;
use crate::hub::sessions::ledger::Ledger;
use crate::hub::sessions::mass_delete_guard::MissingAccountState;
use crate::hub::static_accounts::OwnAccounts;
use crate::hub::table_writers::caching_commands::CachingCommands;
use crate::hub::zone_probes::probe::SessionProbes;
use contest::Contest;
use identified::{Identified, SessionIdentity};
use kubesvc_core::lifecycle::{AgentProcess, CachingReport, Fact, Offer, Presence, SessionFact, Tick};
use kubesvc_core::{AgentId, AgentKey, BootId, GrantEpoch, SessionId, ZoneId};
use kubesvc_runtime::work_queue::WorkQueue;
use lifetime::SessionLifetime;

pub(crate) use lifetime::ApprovalSource;

static SERIALS: AtomicU64 = AtomicU64::new(1);

/// The agent process of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AgentIdentity {
    /// The agent id.
    pub(crate) id: AgentId,
    pub(crate) zone: ZoneId,
    pub(crate) boot_id: BootId,
    /// Number of the connection, counted by the process from 1.
    pub(crate) connect_seq: i64,
    pub(crate) version: String,
    /// uid of kube-system of the cluster that the agent runs in; empty if unknown.
    pub(crate) cluster_uid: String,
    pub(crate) takes_zstd: bool,
    pub(crate) streams_objects: bool,
    pub(crate) takes_requests: bool,
    /// Whether it says that a cluster refuses the credential of an account that it holds.
    pub(crate) tells_refusals: bool,
    /// Whether it sends new tokens within its session.
    pub(crate) renews_tokens: bool,
    /// Remote address, also the key of the log rate limit.
    pub(crate) peer: Option<SocketAddr>,
}

impl AgentIdentity {
    /// The agent among all agents.
    pub(crate) fn key(&self) -> AgentKey {
        AgentKey::new(&self.id, &self.zone)
    }
}

/// Start of a session and time of its last frame.
struct SessionTimes {
    /// The leader's tick at the start.
    since: Tick,
    connected_since: Timestamp,
    last_frame: Mutex<(Instant, Timestamp)>,
}

/// One stream of one agent.
pub(crate) struct Session {
    /// Unique in this process.
    pub(crate) serial: u64,
    /// ULID, known to the agent and named in its KubesvcAgent.
    pub(crate) id: SessionId,
    pub(crate) agent: AgentIdentity,
    /// What its agent may do by its credential, where that counts.
    pub(crate) identity: SessionIdentity,
    times: SessionTimes,
    lifetime: SessionLifetime,
    /// Cancelled when the stream is released: no frame is sent or received after that.
    pub(crate) ended: CancellationToken,
    /// Accounts to check again.
    pub(crate) wakes: WorkQueue<String>,
    pub(crate) ledger: Mutex<Ledger>,
    /// Verdicts on accounts without an object. Locked after the ledger.
    pub(crate) missing_accounts: Mutex<HashMap<String, MissingAccountState>>,
    /// Commands to stream an account's objects, as sent to the agent.
    pub(crate) cached: Mutex<CachingCommands>,
    /// What the agent says of the objects that it streams, by uid of the account.
    pub(crate) caching_reports: Mutex<HashMap<Arc<str>, CachingReport>>,
    pub(crate) zone_probes: Mutex<SessionProbes>,
    pub(crate) own: OwnAccounts,
    /// Other processes under the agent's id.
    pub(crate) contest: Mutex<Contest>,
    /// Whether its stream of requests is open.
    reachable: AtomicBool,
    /// Number of writes that its agent was given and has not answered.
    writes: Arc<watch::Sender<usize>>,
}

/// A write that an agent makes, until this is dropped.
pub(crate) struct SessionWrite(Arc<watch::Sender<usize>>);

impl Drop for SessionWrite {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl Session {
    /// Begins the session of an agent, which claims more accounts than were accepted if `has_unheard`. `identified`: its
    /// identity, where identities count.
    pub(crate) fn new(
        agent: AgentIdentity,
        identified: Option<Identified>,
        has_unheard: bool,
        tick: Tick,
    ) -> Self {
        let now = Timestamp::now();
        Self {
            serial: SERIALS.fetch_add(1, Ordering::Relaxed),
            id: ulid::Ulid::generate().to_string().into(),
            agent,
            identity: SessionIdentity::new(identified),
            times: SessionTimes {
                since: tick,
                connected_since: now,
                last_frame: Mutex::new((Instant::now(), now)),
            },
            lifetime: SessionLifetime::new(has_unheard),
            ended: CancellationToken::new(),
            wakes: WorkQueue::default(),
            ledger: Mutex::new(Ledger::new(tick)),
            missing_accounts: Mutex::default(),
            contest: Mutex::default(),
            cached: Mutex::default(),
            caching_reports: Mutex::default(),
            zone_probes: Mutex::default(),
            own: OwnAccounts::default(),
            reachable: AtomicBool::new(false),
            writes: Arc::default(),
        }
    }

    /// Counts a write that the agent is given.
    pub(crate) fn write_began(&self) -> SessionWrite {
        self.writes.send_modify(|count| *count += 1);
        SessionWrite(Arc::clone(&self.writes))
    }

    /// Waits until the agent has answered all writes.
    pub(crate) async fn writes_ended(&self) {
        // The sender lives as long as self.
        let _ = self.writes.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Whether both are streams of one process: its id alone proves nothing where agents have identities.
    pub(crate) fn is_of_process(&self, other: &Self) -> bool {
        let identified = other.identity.get();
        let shown = identified.as_ref().map(|shown| (&shown.rights, &shown.credential));
        self.agent.boot_id == other.agent.boot_id && self.identity.is_same_agent(shown)
    }

    fn process(&self) -> AgentProcess {
        AgentProcess {
            boot_id: self.agent.boot_id.clone(),
            since: self.times.since,
            streams_objects: Some(self.agent.streams_objects),
            ..AgentProcess::default()
        }
    }

    /// Returns the session as its KubesvcAgent names it.
    pub(crate) fn reference(&self) -> SessionRef<'_> {
        SessionRef { agent_id: &self.agent.id, zone: &self.agent.zone, id: &self.id }
    }

    /// Start of the stream.
    pub(crate) fn connected_since(&self) -> Timestamp {
        self.times.connected_since
    }

    /// Time since the last frame.
    pub(crate) fn silent_for(&self) -> Duration {
        self.times.last_frame.lock().0.elapsed()
    }

    /// Time of the last frame.
    pub(crate) fn last_seen(&self) -> Timestamp {
        self.times.last_frame.lock().1
    }

    fn frame(&self, tick: Tick) {
        *self.times.last_frame.lock() = (Instant::now(), Timestamp::now());
        self.ledger.lock().frame(tick);
    }

    /// Returns what the leader sees of this session for an account at `epoch`. Silence about an older epoch does not
    /// count: the session may not have seen this one yet.
    pub(crate) fn fact(&self, uid: &str, epoch: GrantEpoch, now: Tick) -> SessionFact {
        let ledger = self.ledger.lock();
        let owes = ledger.entry(uid).and_then(|entry| entry.owed).is_some_and(|(owed, _)| owed == epoch);
        SessionFact {
            agent_id: self.agent.id.clone(),
            zone: self.agent.zone.clone(),
            approved: self.is_approved(),
            presence: Presence::Connected,
            process: self.process(),
            report: ledger.entry(uid).and_then(|entry| entry.report.clone()),
            silent_for: ledger.silent_for(uid, now).filter(|_| owes),
            unanswered: ledger.entry(uid).and_then(|entry| entry.unanswered),
            offer: None,
            lists: Fact::Unknown,
            cluster_uid: self.agent.cluster_uid.clone(),
            caching: self.caching_reports.lock().get(uid).cloned(),
        }
    }

    /// Returns what the leader sees of this session for an account that is not in its ledger.
    pub(crate) fn unlisted_fact(&self, offer: Option<(i64, Offer)>) -> SessionFact {
        SessionFact {
            agent_id: self.agent.id.clone(),
            zone: self.agent.zone.clone(),
            approved: self.is_approved(),
            presence: Presence::Connected,
            process: self.process(),
            report: None,
            silent_for: None,
            unanswered: None,
            offer,
            lists: Fact::Unknown,
            cluster_uid: self.agent.cluster_uid.clone(),
            caching: None,
        }
    }

    /// Whether its stream of requests is open. An agent that is too old for one counts as reachable: it holds its accounts
    /// as before.
    pub(crate) fn is_reachable(&self) -> bool {
        !self.agent.takes_requests || self.reachable.load(Ordering::Relaxed)
    }

    /// Records whether its stream of requests is open. Returns whether that is new.
    pub(crate) fn set_reachable(&self, reachable: bool) -> bool {
        self.reachable.swap(reachable, Ordering::Relaxed) != reachable
    }

    /// Whether the agent reported that it holds the account.
    pub(crate) fn holds(&self, uid: &str) -> bool {
        self.held_name(uid).is_some()
    }

    /// Name of the account if the agent reported that it holds it.
    pub(crate) fn held_name(&self, uid: &str) -> Option<String> {
        let ledger = self.ledger.lock();
        ledger.entry(uid).filter(|entry| entry.reported_held()).map(|entry| entry.name.clone())
    }

    /// Whether the agent reported that it holds the account, or its hello says so.
    pub(crate) fn holds_or_claims(&self, uid: &str) -> bool {
        self.ledger.lock().entry(uid).is_some_and(|entry| entry.held.is_some())
    }

    /// Number of accounts held, and of those that failed to be added or dropped or were lost.
    pub(crate) fn counts(&self) -> (usize, usize) {
        self.ledger.lock().counts()
    }

    /// Names of the accounts that the agent reported to hold, sorted.
    pub(crate) fn held_names(&self) -> Vec<String> {
        let mut names: Vec<_> = {
            let ledger = self.ledger.lock();
            let held = ledger.entries().filter(|(_, entry)| entry.reported_held());
            held.map(|(_, entry)| entry.name.clone()).collect()
        };
        names.sort();
        names
    }

    /// Uids of all accounts in the ledger.
    pub(crate) fn uids(&self) -> Vec<String> {
        self.ledger.lock().uids().cloned().collect()
    }
}
