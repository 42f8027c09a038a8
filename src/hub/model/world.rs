//! What the world consists of.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::account::outbox::OutboxEntry;
use crate::account::spec::{KubeconfigSource, SecretKeyReference};
use crate::account::{KubesvcAccount, KubesvcAccountSpec, KubesvcAgent};
use crate::agent::reactions::{Attempt, Table};
use crate::hub::ledger::Ledger;
use crate::wire::common::AccountRef;
use crate::wire::ops::AccountResult;

pub(super) const ZONES: [&str; 2] = ["east", "west"];
pub(super) const REPLICAS: usize = 2;
/// The leader's ticks stand still; what takes time is said to have taken it.
pub(super) const NOW: u64 = 1000;

/// How often each of these may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Faults {
    /// A person changes what is wanted, deletes the account or makes it anew.
    pub(super) wishes: u8,
    /// Another replica takes the lead.
    pub(super) takeovers: u8,
    /// An agent loses its stream.
    pub(super) cuts: u8,
    /// An agent's process begins anew.
    pub(super) restarts: u8,
    /// An agent cannot take the account.
    pub(super) failures: u8,
    /// The leader thinks that a retry is due, or that an agent is silent.
    pub(super) delays: u8,
    /// How many versions a watch may lag behind.
    pub(super) lag: u8,
    /// A second process has the agent id of the first.
    pub(super) duplicate: bool,
}

/// The rules of the protocol that can be left out, to see what each is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rules {
    /// A status write carries the version that it was decided on.
    pub(super) preconditions: bool,
    /// A grant changes its zone over None only.
    pub(super) zone_over_none: bool,
    /// Words count for the uid that they name.
    pub(super) uids: bool,
    /// A revoke waits for a word of each connected session.
    pub(super) words_only: bool,
    /// A session stands in its object before it is sent anything.
    pub(super) registration: bool,
    /// A second process under a connected agent's id is refused.
    pub(super) one_process: bool,
    /// Rows are written under the term of the lead.
    pub(super) terms: bool,
    /// The sessions are read before a revoke ends.
    pub(super) sessions_read: bool,
    /// The object is read before a session is sent it for the first time.
    pub(super) object_read: bool,
}

impl Rules {
    pub(super) const ALL: Self = Self {
        preconditions: true,
        zone_over_none: true,
        uids: true,
        words_only: true,
        registration: true,
        one_process: true,
        terms: true,
        sessions_read: true,
        object_read: true,
    };
}

/// One version of the account's object.
#[derive(Clone, Debug)]
pub(super) struct Version {
    pub(super) account: KubesvcAccount,
    /// What it says but for its version, in one number.
    pub(super) digest: u64,
}

/// A frame on its way to an agent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum ToAgent {
    Add { uid: String, epoch: i64, generation: i64 },
    Drop { uid: String, epoch: i64 },
}

/// A stream at a replica.
#[derive(Clone, Debug)]
pub(super) struct HubSession {
    pub(super) id: String,
    pub(super) replica: usize,
    pub(super) process: usize,
    pub(super) agent_id: &'static str,
    pub(super) zone: &'static str,
    pub(super) boot: u8,
    pub(super) ledger: Ledger,
    pub(super) reported: Vec<OutboxEntry>,
    /// It has ended, and its object is still to say so.
    pub(super) ended: bool,
    pub(super) to_agent: VecDeque<ToAgent>,
    pub(super) to_hub: VecDeque<AccountResult>,
}

/// A process of an agent.
#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) agent_id: &'static str,
    pub(super) zone: &'static str,
    /// Distinguishes processes and their restarts.
    pub(super) boot: u8,
    pub(super) seq: u8,
    pub(super) table: Table,
    /// The id of the session at the other end of its stream.
    pub(super) stream: Option<String>,
    pub(super) starting: BTreeMap<String, (Attempt, AccountRef)>,
}

/// One replica of the operator.
#[derive(Clone, Debug, Default)]
pub(super) struct Replica {
    /// How many versions of the object its watch lags behind.
    pub(super) lag: usize,
    /// The agents' objects as its watch shows them.
    pub(super) agents: BTreeMap<String, Arc<KubesvcAgent>>,
    /// The term under which it believes that it leads.
    pub(super) leads: Option<u32>,
    /// Sessions that have been away for the grace, by its ticks.
    pub(super) gone: BTreeSet<String>,
    /// The epoch for which it has read the sessions.
    pub(super) has_read: Option<(String, i64)>,
}

/// All of it.
#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) rules: Rules,
    pub(super) faults: Faults,
    /// Versions of the object, the newest last; absent: it was gone. As many as some watch lags behind.
    pub(super) objects: Vec<Option<Arc<Version>>>,
    /// Counts the objects made under the name.
    pub(super) made: u8,
    /// The uid of the account's row.
    pub(super) row: Option<String>,
    pub(super) term: u32,
    pub(super) agents: BTreeMap<String, Arc<KubesvcAgent>>,
    pub(super) replicas: Vec<Replica>,
    pub(super) sessions: Vec<HubSession>,
    pub(super) processes: Vec<Process>,
    /// Words that agents have sent: uid, epoch and zone of what was held.
    pub(super) held: BTreeSet<(String, i64, String)>,
    /// What is wrong, as soon as something is.
    pub(super) broken: Option<String>,
}

/// An account that a person has just made.
pub(super) fn made(number: u8) -> KubesvcAccount {
    let secret = SecretKeyReference { name: "s".into(), key: None };
    let kubeconfig = KubeconfigSource { secret_ref: Some(secret), ..KubeconfigSource::default() };
    let spec = KubesvcAccountSpec { kubeconfig, zone_id: Some(ZONES[0].into()), ..Default::default() };
    let mut account = KubesvcAccount::new("a", spec);
    account.metadata.namespace = Some("ns".into());
    account.metadata.uid = Some(format!("u{number}"));
    account.metadata.generation = Some(1);
    account
}

impl World {
    /// One agent in each zone, none connected; the first replica leads, and the account was just made.
    pub(super) fn new(faults: Faults, rules: Rules) -> Self {
        let process = |agent_id, zone, boot| Process {
            agent_id,
            zone,
            boot,
            seq: 0,
            table: Table::default(),
            stream: None,
            starting: BTreeMap::new(),
        };
        let mut processes = vec![process("e", ZONES[0], 1), process("w", ZONES[1], 101)];
        if faults.duplicate {
            processes.push(process("e", ZONES[0], 201));
        }
        let mut world = Self {
            rules,
            faults,
            objects: vec![None],
            made: 1,
            row: None,
            term: 1,
            agents: BTreeMap::new(),
            replicas: vec![Replica::default(); REPLICAS],
            sessions: Vec::new(),
            processes,
            held: BTreeSet::new(),
            broken: None,
        };
        world.replicas[0].leads = Some(1);
        world.store(Some(made(1)));
        world.replicas.iter_mut().for_each(|replica| replica.lag = 0);
        world.forget_old_versions();
        world
    }

    /// The object as it is.
    pub(super) fn object(&self) -> Option<&Arc<Version>> {
        self.objects.last().and_then(Option::as_ref)
    }

    /// The object as a replica's watch shows it.
    pub(super) fn seen_by(&self, replica: usize) -> Option<&Arc<Version>> {
        let index = self.objects.len().checked_sub(1 + self.replicas[replica].lag)?;
        self.objects[index].as_ref()
    }

    /// A new version of the object; no watch shows it yet.
    pub(super) fn store(&mut self, account: Option<KubesvcAccount>) {
        let version =
            account.map(|account| Arc::new(Version { digest: super::keys::digest_of(&account), account }));
        self.objects.push(version);
        self.replicas.iter_mut().for_each(|replica| replica.lag += 1);
    }

    /// Forgets versions that every watch has shown.
    pub(super) fn forget_old_versions(&mut self) {
        let oldest = self.replicas.iter().map(|replica| replica.lag).max().unwrap_or_default();
        let superfluous = self.objects.len().saturating_sub(oldest + 1);
        self.objects.drain(..superfluous);
    }

    /// Something is wrong.
    pub(super) fn breaks(&mut self, what: impl Into<String>) {
        self.broken.get_or_insert(what.into());
    }

    /// The sessions that stand.
    pub(super) fn standing(&self) -> impl Iterator<Item = &HubSession> {
        self.sessions.iter().filter(|session| !session.ended)
    }
}
