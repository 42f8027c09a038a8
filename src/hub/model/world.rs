//! What the world consists of.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::account::outbox::OutboxEntry;
use crate::account::spec::{KubeconfigSource, SecretKeyReference};
use crate::account::{KubesvcAccount, KubesvcAccountSpec, KubesvcAgent, ORIGIN_AGENT, ORIGIN_LABEL};
use crate::agent::reactions::{AccountTable, Attempt};
use crate::hub::model::checks::Property;
use crate::hub::model::leader::Pending;
use crate::hub::model::scenario::{Faults, PersonAction, Scenario};
use crate::hub::model::shared::Shared;
use crate::hub::sessions::ledger::Ledger;
use crate::wire::common::AccountRef;
use crate::wire::ops::AccountResult;

pub(super) const ZONES: [&str; 2] = ["east", "west"];
pub(super) const REPLICAS: usize = 2;
pub(super) const REPLICA_NAMES: [&str; REPLICAS] = ["0", "1"];
/// The leader's ticks stand still; what takes time is said to have taken it.
pub(super) const NOW: u64 = 1000;

/// Counts sessions; what it counts to is no part of a world.
pub(super) type SessionNumber = u32;

/// The agents' objects, by the place of the agent; absent: it never connected.
pub(super) type AgentObjectVersions = Arc<Vec<Option<Shared<KubesvcAgent>>>>;

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
    /// A reading of the sessions counts for the look that follows it, and for no later one.
    pub(super) reads_afresh: bool,
    /// The object is read before a session is sent it for the first time.
    pub(super) object_read: bool,
    /// A revoke waits for agents whose approval was withdrawn.
    pub(super) unapproved_awaited: bool,
    /// What counts is the session that the agent's object names, and not the one that stood here before.
    pub(super) in_force_only: bool,
    /// An account of an agent's own file goes to agents alone that list it themselves.
    pub(super) own_lists: bool,
    /// It stays while an agent that listed it last is away.
    pub(super) away_lists: bool,
    /// A zone is offered by approved agents alone.
    pub(super) approved_offers: bool,
}

/// What the account is like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum AccountVariant {
    /// It names its zone.
    #[default]
    Pinned,
    /// It names none, and is given to a zone whose agents offer; agents with this id are strangers, never approved.
    Unpinned { stranger: &'static str },
    /// It is of the file of the agents with this id.
    Listed { by: &'static str },
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
        reads_afresh: true,
        object_read: true,
        unapproved_awaited: true,
        in_force_only: true,
        own_lists: true,
        away_lists: true,
        approved_offers: true,
    };
}

/// One version of the account's object.
pub(super) type ObjectVersion = Shared<KubesvcAccount>;

/// A frame on its way to an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ToAgent {
    Add { uid: String, epoch: i64, generation: i64 },
    Drop { uid: String, epoch: i64 },
}

/// A stream at a replica.
#[derive(Clone, Debug)]
pub(super) struct HubSession {
    pub(super) id: SessionNumber,
    pub(super) replica: usize,
    pub(super) process: usize,
    /// The place of its agent.
    pub(super) agent: usize,
    pub(super) agent_id: &'static str,
    pub(super) zone: &'static str,
    pub(super) boot: u8,
    /// Whether the agent is given accounts, as far as its replica knows.
    pub(super) approved: bool,
    pub(super) ledger: Ledger,
    /// How many versions of the account's object had been stored when it was registered.
    pub(super) registered_at: u32,
    pub(super) reported: Vec<OutboxEntry>,
    /// It has ended, and its object is still to say so.
    pub(super) ended: bool,
    pub(super) to_agent: VecDeque<ToAgent>,
    pub(super) to_hub: VecDeque<AccountResult>,
}

/// A process of an agent.
#[derive(Clone, Debug)]
pub(super) struct ModelProcess {
    /// The place of its agent; two processes under one id have one.
    pub(super) agent: usize,
    pub(super) agent_id: &'static str,
    pub(super) zone: &'static str,
    /// Distinguishes processes and their restarts.
    pub(super) boot: u8,
    /// Counts its connections.
    pub(super) seq: u32,
    pub(super) table: AccountTable,
    /// The session at the other end of its stream.
    pub(super) stream: Option<SessionNumber>,
    pub(super) starting: BTreeMap<String, (Attempt, AccountRef)>,
}

/// What a reading of the sessions counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SessionReading {
    pub(super) uid: u8,
    pub(super) epoch: i64,
    /// Sessions from this one on were registered later.
    pub(super) before: SessionNumber,
}

/// One replica of the operator.
#[derive(Clone, Debug, Default)]
pub(super) struct ModelReplica {
    /// How many versions of the object its watch lags behind.
    pub(super) lag: usize,
    /// The agents' objects as a leader's watch shows them.
    pub(super) agents: AgentObjectVersions,
    /// The term under which it believes that it leads.
    pub(super) leads: Option<u32>,
    /// Sessions that have been away for the grace, by its ticks.
    pub(super) gone: BTreeSet<SessionNumber>,
    /// It has read the sessions, and decides next.
    pub(super) has_read: Option<SessionReading>,
    /// What it has decided, and sleeps before it does it.
    pub(super) pending: Option<Shared<Pending>>,
    /// When it began: sessions that it had before this one are lost.
    pub(super) since: SessionNumber,
}

/// All of it.
#[derive(Clone, Debug)]
pub(super) struct ModelWorld {
    pub(super) rules: Rules,
    pub(super) kind: AccountVariant,
    pub(super) faults: Faults,
    /// What people will do, in this order.
    pub(super) script: &'static [PersonAction],
    /// Versions of the object, the newest last; absent: it was gone. As many as some watch lags behind.
    pub(super) objects: Vec<Option<ObjectVersion>>,
    /// Counts versions of the object.
    pub(super) stored: u32,
    /// Counts the objects made under the name.
    pub(super) made: u8,
    /// The uid of the account's row.
    pub(super) row: Option<u8>,
    pub(super) term: u32,
    pub(super) agents: AgentObjectVersions,
    pub(super) replicas: [ModelReplica; REPLICAS],
    pub(super) sessions: Vec<Shared<HubSession>>,
    pub(super) processes: Vec<Shared<ModelProcess>>,
    pub(super) next_session: SessionNumber,
    /// Words that agents have sent: uid, epoch and zone of what was held.
    pub(super) held: Arc<BTreeSet<(u8, i64, &'static str)>>,
    /// What is wrong, as soon as something is.
    pub(super) broken: Option<(Property, String)>,
    /// A property that is not looked at.
    pub(super) ignored: Option<Property>,
}

/// The number of an account's uid.
pub(super) fn number_of(uid: &str) -> u8 {
    uid.strip_prefix('u').and_then(|number| number.parse().ok()).unwrap_or_default()
}

/// The session that an agent's object names.
pub(super) fn session_of(agent: &KubesvcAgent) -> Option<SessionNumber> {
    agent.status.as_ref()?.session.as_ref()?.id.as_str().parse().ok()
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

impl ModelWorld {
    /// No agent is connected, the first replica leads, and the account was just made.
    pub(super) fn new(scenario: &Scenario, rules: Rules) -> Self {
        let places: Vec<&str> = scenario.agents.iter().map(|(id, _)| *id).collect();
        let process = |(index, (agent_id, zone)): (usize, &(&'static str, &'static str))| {
            let boot = 1 + 100 * u8::try_from(index).unwrap_or_default();
            Shared::new(ModelProcess {
                agent: places.iter().position(|one| one == agent_id).unwrap_or_default(),
                agent_id,
                zone,
                boot,
                seq: 0,
                table: AccountTable::default(),
                stream: None,
                starting: BTreeMap::new(),
            })
        };
        let agents: AgentObjectVersions = Arc::new(vec![None; places.len()]);
        let mut world = Self {
            rules,
            kind: AccountVariant::default(),
            faults: scenario.faults,
            script: scenario.script,
            objects: vec![None],
            stored: 0,
            made: 1,
            row: None,
            term: 1,
            agents: agents.clone(),
            replicas: Default::default(),
            sessions: Vec::new(),
            processes: scenario.agents.iter().enumerate().map(process).collect(),
            next_session: 0,
            held: Arc::default(),
            broken: None,
            ignored: None,
        };
        world.replicas[0].leads = Some(1);
        world.replicas.iter_mut().for_each(|replica| replica.agents = agents.clone());
        world.store(Some(made(1)));
        world.replicas.iter_mut().for_each(|replica| replica.lag = 0);
        world.forget_old_versions();
        world
    }

    /// The same with an account of this kind.
    pub(super) fn with(mut self, kind: AccountVariant) -> Self {
        self.kind = kind;
        let versions = std::mem::take(&mut self.objects).into_iter();
        let of_kind = |one: ObjectVersion| Shared::new(self.of_kind((*one).clone()));
        let versions = versions.map(|version| version.map(of_kind)).collect();
        Self { objects: versions, ..self }
    }

    /// An account that was just made, as it is in this world.
    pub(super) fn of_kind(&self, mut account: KubesvcAccount) -> KubesvcAccount {
        match self.kind {
            AccountVariant::Pinned => {}
            AccountVariant::Unpinned { .. } => account.spec.zone_id = None,
            AccountVariant::Listed { .. } => {
                account.metadata.labels = Some([(ORIGIN_LABEL.to_owned(), ORIGIN_AGENT.to_owned())].into());
                account.spec.kubeconfig =
                    KubeconfigSource { file: Some("/k".to_owned()), ..KubeconfigSource::default() };
            }
        }
        account
    }

    /// Whether an agent may be sent the account, as far as that hangs on its own file.
    pub(super) fn lists(&self, agent_id: &str) -> bool {
        !matches!(self.kind, AccountVariant::Listed { by } if by != agent_id)
    }

    /// Whether an agent is approved when it comes.
    pub(super) fn approves(&self, agent_id: &str) -> bool {
        !matches!(self.kind, AccountVariant::Unpinned { stranger } if stranger == agent_id)
    }

    /// The object as it is.
    pub(super) fn object(&self) -> Option<&ObjectVersion> {
        self.objects.last().and_then(Option::as_ref)
    }

    /// The object as a replica's watch shows it.
    pub(super) fn seen_by(&self, replica: usize) -> Option<&ObjectVersion> {
        let index = self.objects.len().checked_sub(1 + self.replicas[replica].lag)?;
        self.objects[index].as_ref()
    }

    /// Whether what a session's replica sees of the object was written after the session was registered.
    pub(super) fn is_seen_since(&self, session: &HubSession) -> bool {
        let lag = u32::try_from(self.replicas[session.replica].lag).unwrap_or(u32::MAX);
        self.stored.saturating_sub(lag) > session.registered_at
    }

    /// A new version of the object; no watch shows it yet. What is only shown to people is taken out.
    pub(super) fn store(&mut self, account: Option<KubesvcAccount>) {
        let version = account.map(|mut account| {
            if let Some(status) = &mut account.status {
                status.agents.clear();
                status.agent_count = None;
                status.conditions.iter_mut().for_each(|condition| condition.message.clear());
            }
            Shared::new(account)
        });
        self.objects.push(version);
        self.stored += 1;
        self.replicas.iter_mut().for_each(|replica| replica.lag += 1);
    }

    /// Forgets versions that every watch has shown.
    pub(super) fn forget_old_versions(&mut self) {
        let oldest = self.replicas.iter().map(|replica| replica.lag).max().unwrap_or_default();
        let superfluous = self.objects.len().saturating_sub(oldest + 1);
        self.objects.drain(..superfluous);
    }

    /// Something is wrong.
    pub(super) fn breaks(&mut self, property: Property, what: impl FnOnce() -> String) {
        if self.ignored != Some(property) && self.broken.is_none() {
            self.broken = Some((property, what()));
        }
    }

    /// Whether the session that an agent's object names is lost: its replica has died since.
    pub(super) fn is_lost(&self, agent: &KubesvcAgent) -> bool {
        let session = agent.status.as_ref().and_then(|status| status.session.as_ref());
        let place = session.and_then(|one| REPLICA_NAMES.iter().position(|name| *name == one.replica));
        place.zip(session_of(agent)).is_some_and(|(place, id)| id < self.replicas[place].since)
    }

    /// The sessions that stand.
    pub(super) fn standing(&self) -> impl Iterator<Item = &HubSession> {
        self.sessions.iter().map(|session| &**session).filter(|session| !session.ended)
    }
}
