//! One stream of one agent: who it is, what it was told and what it has said.
//!
//! A task of its own owns the stream (`session_loop`); the rest of the hub reads the session and wakes it.

mod account_work;
mod answers;
pub(in crate::hub) mod detached;
pub(in crate::hub) mod frame_queue;
mod lifetime;
mod own_accounts;
pub(in crate::hub) mod session_loop;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::account::lifecycle::{AgentProcess, AgentReport, Fact, Offer, Presence, SessionFact, Tick};
use crate::account::{BootId, GrantEpoch, SessionId};
use crate::hub::admission::hello::AcceptedHello;
use crate::hub::agent_status::registration::SessionRef;
use crate::hub::sessions::ledger::Ledger;
use crate::hub::sessions::mass_delete_guard::VanishedState;
use crate::hub::tables::caching_commands::CachingCommands;
use crate::hub::zone_probes::probe::ZoneProbes;
use crate::wake_set::WakeSet;
use lifetime::{Approval, ClaimedAccounts, Closing, ObjectState};
use own_accounts::OwnAccounts;

static SERIALS: AtomicU64 = AtomicU64::new(1);

/// The process at the other end.
pub(in crate::hub) struct AgentIdentity {
    /// Its agent id.
    pub(in crate::hub) id: String,
    pub(in crate::hub) zone: String,
    pub(in crate::hub) boot_id: BootId,
    /// Counts the connections of the process.
    pub(in crate::hub) connect_seq: i64,
    pub(in crate::hub) version: String,
    /// uid of kube-system of the cluster that it runs in; empty where it has not said.
    pub(in crate::hub) cluster_uid: String,
    /// Where it dials from; the lines about what it does wrong are counted by that.
    pub(in crate::hub) peer: Option<SocketAddr>,
}

/// When a session began, and when its agent was heard last.
struct SessionTimes {
    /// The leader's tick at which it was begun.
    since: Tick,
    connected_since: Timestamp,
    last_frame: Mutex<(Instant, Timestamp)>,
}

/// One stream of one agent, as the whole hub sees it.
pub(in crate::hub) struct Session {
    /// Unique in this process.
    pub(in crate::hub) serial: u64,
    /// A ULID, as the agent and its object know it.
    pub(in crate::hub) id: SessionId,
    pub(in crate::hub) agent: AgentIdentity,
    times: SessionTimes,
    approval: Approval,
    claims: ClaimedAccounts,
    object: ObjectState,
    closing: Closing,
    /// The stream is let go of; nothing more is sent or heard on it.
    pub(in crate::hub) ended: CancellationToken,
    /// Accounts to look at again.
    pub(in crate::hub) wakes: WakeSet<String>,
    pub(in crate::hub) ledger: Mutex<Ledger>,
    /// What was found out about accounts that no object has; to be locked after the ledger.
    pub(in crate::hub) vanished_accounts: Mutex<HashMap<String, VanishedState>>,
    /// What its agent was told of the accounts whose objects it streams.
    pub(in crate::hub) cached: Mutex<CachingCommands>,
    /// What it was asked about accounts without a zone.
    pub(in crate::hub) zone_probes: Mutex<ZoneProbes>,
    pub(in crate::hub) own: OwnAccounts,
}

impl Session {
    pub(in crate::hub) fn new(greeting: &AcceptedHello, peer: Option<SocketAddr>, tick: Tick) -> Self {
        let now = Timestamp::now();
        Self {
            serial: SERIALS.fetch_add(1, Ordering::Relaxed),
            id: ulid::Ulid::generate().to_string().into(),
            agent: AgentIdentity {
                id: greeting.agent_id.clone(),
                zone: greeting.zone.clone(),
                boot_id: greeting.boot_id.clone(),
                connect_seq: greeting.connect_seq,
                version: greeting.version.clone(),
                cluster_uid: greeting.cluster_uid.clone(),
                peer,
            },
            times: SessionTimes {
                since: tick,
                connected_since: now,
                last_frame: Mutex::new((Instant::now(), now)),
            },
            approval: Approval::new(greeting.has_unheard),
            claims: ClaimedAccounts::default(),
            object: ObjectState::default(),
            closing: Closing::default(),
            ended: CancellationToken::new(),
            wakes: WakeSet::default(),
            ledger: Mutex::new(Ledger::new(tick)),
            vanished_accounts: Mutex::default(),
            cached: Mutex::default(),
            zone_probes: Mutex::default(),
            own: OwnAccounts::default(),
        }
    }

    fn process(&self) -> AgentProcess {
        AgentProcess {
            boot_id: self.agent.boot_id.clone(),
            since: self.times.since,
            ..AgentProcess::default()
        }
    }

    /// The session, as the object of its agent names it.
    pub(in crate::hub) fn reference(&self) -> SessionRef<'_> {
        SessionRef { agent_id: &self.agent.id, zone: &self.agent.zone, id: &self.id }
    }

    /// Since when its stream stands.
    pub(in crate::hub) fn connected_since(&self) -> Timestamp {
        self.times.connected_since
    }

    /// For how long no frame has come.
    pub(in crate::hub) fn silent_for(&self) -> Duration {
        self.times.last_frame.lock().0.elapsed()
    }

    /// When the last frame came.
    pub(in crate::hub) fn last_seen(&self) -> Timestamp {
        self.times.last_frame.lock().1
    }

    fn frame(&self, tick: Tick) {
        *self.times.last_frame.lock() = (Instant::now(), Timestamp::now());
        self.ledger.lock().frame(tick);
    }

    /// What the leader is told of this session about an account that is at `epoch`. Silence about an older epoch is
    /// none about this one, which the session may not have seen yet.
    pub(in crate::hub) fn fact(&self, uid: &str, epoch: GrantEpoch, now: Tick) -> SessionFact {
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
            offer: None,
            lists: Fact::Unknown,
            cluster_uid: self.agent.cluster_uid.clone(),
        }
    }

    /// What the leader is told of this session about an account that it has had nothing to do with.
    pub(in crate::hub) fn stranger(&self, offer: Option<(i64, Offer)>) -> SessionFact {
        SessionFact {
            agent_id: self.agent.id.clone(),
            zone: self.agent.zone.clone(),
            approved: self.is_approved(),
            presence: Presence::Connected,
            process: self.process(),
            report: None,
            silent_for: None,
            offer,
            lists: Fact::Unknown,
            cluster_uid: self.agent.cluster_uid.clone(),
        }
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
