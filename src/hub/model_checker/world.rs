//! The state of the world.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::hub::model_checker::checks::Property;
use crate::hub::model_checker::leader::Pending;
use crate::hub::model_checker::scenario::{Faults, PersonAction, Scenario};
use crate::hub::model_checker::shared::Shared;
use crate::hub::sessions::ledger::Ledger;
use kubesvc_agent::{AccountTable, Attempt};
use kubesvc_core::report_outbox::OutboxEntry;
use kubesvc_core::spec::{KubeconfigSource, SecretKeyReference};
use kubesvc_core::wire::common::AccountRef;
use kubesvc_core::wire::ops::AccountResult;
use kubesvc_core::{KubesvcAccount, KubesvcAccountSpec, KubesvcAgent, ORIGIN_AGENT, ORIGIN_LABEL};

pub(super) const ZONES: [&str; 2] = ["east", "west"];
pub(super) const REPLICAS: usize = 2;
pub(super) const REPLICA_NAMES: [&str; REPLICAS] = ["0", "1"];
/// The leader's ticks do not advance; steps state that time has passed.
pub(super) const NOW: u64 = 1000;

/// Session counter; no part of the state.
pub(super) type SessionNumber = u32;

/// KubesvcAgents, by the index of the agent; `None` if it never connected.
pub(super) type AgentObjectVersions = Arc<Vec<Option<Shared<KubesvcAgent>>>>;

/// Rules of the protocol that can be left out, to show what each one is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rules {
    /// A status write carries the version it was decided on.
    pub(super) preconditions: bool,
    /// A grant changes its zone only through None.
    pub(super) zone_over_none: bool,
    /// A report counts for the uid it names.
    pub(super) uids: bool,
    /// A revoke waits for a report of each connected session.
    pub(super) reports_only: bool,
    /// A session is written to its object before it is sent anything.
    pub(super) registration: bool,
    /// A second process with a connected agent's id is refused.
    pub(super) one_process: bool,
    /// Rows are written under the leader's term.
    pub(super) terms: bool,
    /// The sessions are read before a revoke ends.
    pub(super) sessions_read: bool,
    /// A read of the sessions counts for the next decision only.
    pub(super) reads_afresh: bool,
    /// The account's object is read before it is first sent to a session.
    pub(super) object_read: bool,
    /// A revoke waits for agents whose approval was withdrawn.
    pub(super) unapproved_awaited: bool,
    /// The session named in the agent's object counts, not an earlier one here.
    pub(super) in_force_only: bool,
    /// A static account is sent only to agents that list it.
    pub(super) own_lists: bool,
    /// A static account stays while an agent that listed it is away.
    pub(super) away_lists: bool,
    /// Only approved agents offer a zone.
    pub(super) approved_offers: bool,
}

/// Kind of the account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum AccountVariant {
    /// It names its zone.
    #[default]
    Pinned,
    /// It names no zone and is granted to a zone whose agents offer. Agents with this id were never approved.
    Unpinned { unlisted_fact: &'static str },
    /// It is in the file of the agents with this id.
    Listed { by: &'static str },
}

impl Rules {
    pub(super) const ALL: Self = Self {
        preconditions: true,
        zone_over_none: true,
        uids: true,
        reports_only: true,
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
    /// Index of its agent.
    pub(super) agent: usize,
    pub(super) agent_id: &'static str,
    pub(super) zone: &'static str,
    pub(super) boot: u8,
    /// Whether the agent is approved, as far as its replica knows.
    pub(super) approved: bool,
    pub(super) ledger: Ledger,
    /// Number of versions of the account's object stored before its registration.
    pub(super) registered_at: u32,
    pub(super) reported: Vec<OutboxEntry>,
    /// Ended, but not yet in its object.
    pub(super) ended: bool,
    pub(super) to_agent: VecDeque<ToAgent>,
    pub(super) to_hub: VecDeque<AccountResult>,
}

/// An agent process.
#[derive(Clone, Debug)]
pub(super) struct ModelProcess {
    /// Index of its agent; two processes with one id share it.
    pub(super) agent: usize,
    pub(super) agent_id: &'static str,
    pub(super) zone: &'static str,
    /// Distinguishes processes and their restarts.
    pub(super) boot: u8,
    /// Number of its connections.
    pub(super) seq: u32,
    pub(super) table: AccountTable,
    /// Session at the other end of its stream.
    pub(super) stream: Option<SessionNumber>,
    pub(super) starting: BTreeMap<String, (Attempt, AccountRef)>,
}

/// Validity of a read of the sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SessionReading {
    pub(super) uid: u8,
    pub(super) epoch: i64,
    /// Sessions from this number on were registered later.
    pub(super) before: SessionNumber,
}

/// One replica of the operator.
#[derive(Clone, Debug, Default)]
pub(super) struct ModelReplica {
    /// Number of versions by which its watch of the account lags.
    pub(super) lag: usize,
    /// KubesvcAgents as its watch shows them.
    pub(super) agents: AgentObjectVersions,
    /// Term under which it believes to lead.
    pub(super) leads: Option<u32>,
    /// Sessions that have been away for the grace, by its ticks.
    pub(super) gone: BTreeSet<SessionNumber>,
    /// Set after it has read the sessions, until it decides.
    pub(super) has_read: Option<SessionReading>,
    /// A decision that it has not carried out yet, because it sleeps.
    pub(super) pending: Option<Shared<Pending>>,
    /// Start of the replica; earlier sessions of it are lost.
    pub(super) since: SessionNumber,
}

/// The whole world.
#[derive(Clone, Debug)]
pub(super) struct ModelWorld {
    pub(super) rules: Rules,
    pub(super) kind: AccountVariant,
    pub(super) faults: Faults,
    /// Remaining actions of people, in order.
    pub(super) script: &'static [PersonAction],
    /// Versions of the object, newest last; `None`: deleted. As many as the slowest watch needs.
    pub(super) objects: Vec<Option<ObjectVersion>>,
    /// Number of versions of the object.
    pub(super) stored: u32,
    /// Number of objects created under the name.
    pub(super) made: u8,
    /// uid in the account's row.
    pub(super) row: Option<u8>,
    pub(super) term: u32,
    pub(super) agents: AgentObjectVersions,
    pub(super) replicas: [ModelReplica; REPLICAS],
    pub(super) sessions: Vec<Shared<HubSession>>,
    pub(super) processes: Vec<Shared<ModelProcess>>,
    pub(super) next_session: SessionNumber,
    /// Reports sent by agents: uid, epoch and zone of what was held.
    pub(super) held: Arc<BTreeSet<(u8, i64, &'static str)>>,
    /// The first violated property.
    pub(super) broken: Option<(Property, String)>,
    /// A property that is not checked.
    pub(super) ignored: Option<Property>,
}

/// Number in an account's uid.
pub(super) fn number_of(uid: &str) -> u8 {
    uid.strip_prefix('u').and_then(|number| number.parse().ok()).unwrap_or_default()
}

/// Session named by an agent's object.
pub(super) fn session_of(agent: &KubesvcAgent) -> Option<SessionNumber> {
    agent.status.as_ref()?.session.as_ref()?.id.as_str().parse().ok()
}

/// An account that a person has just created.
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
    /// Initial world: no agent is connected, the first replica leads, the account was just created.
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

    /// Initial world with an account of this kind.
    pub(super) fn with(mut self, kind: AccountVariant) -> Self {
        self.kind = kind;
        let versions = std::mem::take(&mut self.objects).into_iter();
        let of_kind = |one: ObjectVersion| Shared::new(self.of_kind((*one).clone()));
        let versions = versions.map(|version| version.map(of_kind)).collect();
        Self { objects: versions, ..self }
    }

    /// A new account of this world.
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

    /// Whether an agent may be sent the account, as far as its own file decides that.
    pub(super) fn lists(&self, agent_id: &str) -> bool {
        !matches!(self.kind, AccountVariant::Listed { by } if by != agent_id)
    }

    /// Whether an agent is approved when it connects.
    pub(super) fn approves(&self, agent_id: &str) -> bool {
        !matches!(self.kind, AccountVariant::Unpinned { unlisted_fact } if unlisted_fact == agent_id)
    }

    /// Returns the newest version of the object.
    pub(super) fn object(&self) -> Option<&ObjectVersion> {
        self.objects.last().and_then(Option::as_ref)
    }

    /// Returns the object as a replica's watch shows it.
    pub(super) fn seen_by(&self, replica: usize) -> Option<&ObjectVersion> {
        let index = self.objects.len().checked_sub(1 + self.replicas[replica].lag)?;
        self.objects[index].as_ref()
    }

    /// Whether the version that a session's replica sees was written after the session's registration.
    pub(super) fn is_seen_since(&self, session: &HubSession) -> bool {
        let lag = u32::try_from(self.replicas[session.replica].lag).unwrap_or(u32::MAX);
        self.stored.saturating_sub(lag) > session.registered_at
    }

    /// Stores a new version of the object that no watch shows yet. Fields for people only are removed.
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

    /// Drops versions that every watch has shown.
    pub(super) fn forget_old_versions(&mut self) {
        let oldest = self.replicas.iter().map(|replica| replica.lag).max().unwrap_or_default();
        let superfluous = self.objects.len().saturating_sub(oldest + 1);
        self.objects.drain(..superfluous);
    }

    /// Records a violated property.
    pub(super) fn breaks(&mut self, property: Property, what: impl FnOnce() -> String) {
        if self.ignored != Some(property) && self.broken.is_none() {
            self.broken = Some((property, what()));
        }
    }

    /// Whether the session named by an agent's object is lost because its replica has died since.
    pub(super) fn is_lost(&self, agent: &KubesvcAgent) -> bool {
        let session = agent.status.as_ref().and_then(|status| status.session.as_ref());
        let place = session.and_then(|one| REPLICA_NAMES.iter().position(|name| *name == one.replica));
        place.zip(session_of(agent)).is_some_and(|(place, id)| id < self.replicas[place].since)
    }

    /// Returns the connected sessions.
    pub(super) fn standing(&self) -> impl Iterator<Item = &HubSession> {
        self.sessions.iter().map(|session| &**session).filter(|session| !session.ended)
    }
}
