//! A small world: one account name, four agents in three zones, one operator that can end at any point.

use std::collections::{BTreeSet, VecDeque};

use super::{Crash, Deed, LifecycleStep, SimSecret, StepOutcome, checks};
use crate::failure::{Failure, FailureClass};
use crate::lifecycle::fixtures::{AccountFixture, account, cluster_named, failure, wall};
use crate::lifecycle::{
    Action, AgentProcess, AgentReport, ClusterIdentity, CredentialFact, Decision, Fact, LifecyclePolicy,
    Observation, Presence, RowFact, SessionEnding, SessionFact, Tick, decide,
};
use crate::{ELECT_CACHING_ANNOTATION, FINALIZER, GrantPhase, KubesvcAccount, RETRY_ANNOTATION, State};

mod agents;
mod caching_agent;
mod healing;

use crate::ids::ZoneId;
use agents::SimAgent;

type VettingResult = Result<CredentialFact, Failure>;

/// What the operator remembers; lost when it ends.
#[derive(Debug, Default)]
struct SimMemory {
    leading_since: Tick,
    /// The version of the object that it sees.
    view: usize,
    stage: Option<(String, State, i64, i32)>,
    since: Tick,
    credential: Fact<VettingResult>,
    judged: Option<VettingResult>,
    changed: bool,
    sessions_are_read: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Sim {
    now: Tick,
    policy: LifecyclePolicy,
    /// All versions of the object, the absent ones too.
    versions: Vec<Option<KubesvcAccount>>,
    made: usize,
    forced: bool,
    row: Option<String>,
    /// Somebody else's row of this name stands in the database.
    foreign: bool,
    database: bool,
    secret: VettingResult,
    secrets: usize,
    retries: usize,
    memory: SimMemory,
    agents: [SimAgent; 4],
    answers: VecDeque<agents::SimAnswer>,
    heard: BTreeSet<(String, i64)>,
    late: Option<(KubesvcAccount, Action)>,
    /// Since when agents have waited to be registered.
    queue_since: Option<Tick>,
    writes: usize,
    states: Vec<&'static str>,
}

impl Sim {
    pub(super) fn new() -> Self {
        Self {
            now: 100,
            policy: LifecyclePolicy::default(),
            versions: vec![None],
            made: 0,
            forced: false,
            row: None,
            foreign: false,
            database: true,
            secret: Ok(CredentialFact::new(Some("secret/0".to_owned()))),
            secrets: 0,
            retries: 0,
            memory: SimMemory::default(),
            agents: [
                SimAgent::new("agent-0", "east"),
                SimAgent::new("agent-1", "east"),
                SimAgent::new("agent-2", "west"),
                SimAgent::new("agent-3", "north"),
            ],
            answers: VecDeque::new(),
            heard: BTreeSet::new(),
            late: None,
            queue_since: None,
            writes: 0,
            states: Vec::new(),
        }
    }

    pub(super) fn states_written(&self) -> &[&'static str] {
        &self.states
    }

    pub(super) fn report(&self, broken: &str, steps: &[LifecycleStep]) -> String {
        let object = self.object().map(|object| (&object.metadata, &object.spec.zone_id, &object.status));
        format!(
            "{broken}\nafter {steps:?}\nstates written: {:?}\nobject: {object:?}\nrow: {:?}\nagents: {:#?}\n{:?}",
            self.states, self.row, self.agents, self.memory
        )
    }

    /// Whether agents that wait to be registered keep everybody from being taken for gone.
    fn is_protected(&self) -> bool {
        self.queue_since.is_some_and(|since| self.now < since + 600)
    }

    fn object(&self) -> Option<&KubesvcAccount> {
        self.versions.last()?.as_ref()
    }

    pub(super) fn step(&mut self, step: &LifecycleStep) -> Result<(), String> {
        match step {
            LifecycleStep::Decide { lag, crash } => self.leads(*lag, *crash)?,
            LifecycleStep::LateWrite => {
                if let Some((seen, action)) = self.late.take() {
                    self.apply(&seen, action, true)?;
                }
            }
            LifecycleStep::Send => self.send(),
            LifecycleStep::Act { agent, outcome } => self.agent_acts(*agent, *outcome)?,
            LifecycleStep::Deliver { index, again } => self.deliver(*index, *again),
            LifecycleStep::Wait(ticks) => self.now += ticks,
            LifecycleStep::Queue(waits) => {
                self.queue_since = waits.then(|| self.queue_since.unwrap_or(self.now));
            }
            LifecycleStep::Cut(agent) => self.cut(*agent),
            LifecycleStep::Die { agent, goodbye } => self.die(*agent, *goodbye),
            LifecycleStep::Connect(agent) => self.connect(*agent),
            LifecycleStep::Lose(agent) => self.lose(*agent),
            LifecycleStep::Judge { agent, refused } => self.judge_credential(*agent, *refused),
            LifecycleStep::Recheck => self.resolve(),
            LifecycleStep::Crash => self.crash(),
            LifecycleStep::Database(up) => self.database = *up,
            LifecycleStep::ForeignRow(there) => self.foreign = *there && self.row.is_none(),
            LifecycleStep::List { agent, lists } => self.agents[*agent].lists = *lists,
            LifecycleStep::Person(deed) => self.person(*deed),
            LifecycleStep::Work(rounds) => {
                for _ in 0..*rounds {
                    self.round()?;
                }
            }
        }
        checks::rows(self.row.as_deref(), self.object())
    }

    /// The leader's next look: never at an older version than before.
    fn leads(&mut self, lag: usize, crash: Crash) -> Result<(), String> {
        let latest = self.versions.len() - 1;
        self.memory.view = self.memory.view.max(latest.saturating_sub(lag));
        let Some(seen) = self.versions[self.memory.view].clone() else { return Ok(()) };
        let Some(action) = self.decided(&seen)?.action else { return Ok(()) };
        // Whom it elects holds the account now; by the time of a late write it may be gone.
        if let Action::WriteStatus(write) = &action {
            self.check_caching(&seen, &write.status)?;
        }
        match crash {
            Crash::No => self.apply(&seen, action, false),
            Crash::Before => {
                self.crash();
                Ok(())
            }
            Crash::After => {
                self.apply(&seen, action, false)?;
                self.crash();
                Ok(())
            }
            Crash::Paused => {
                self.late = Some((seen, action));
                self.crash();
                Ok(())
            }
        }
    }

    fn decided(&mut self, seen: &KubesvcAccount) -> Result<Decision, String> {
        let status = seen.status_or_default();
        let stage = Some((seen.uid().to_owned(), status.state(), status.epoch.0, status.failed_count));
        if self.memory.stage != stage {
            if self.memory.stage.as_ref().is_some_and(|stage| stage.0 != seen.uid()) {
                self.memory.credential = Fact::Unknown;
                self.memory.judged = None;
            }
            self.memory.stage = stage;
            self.memory.since = self.now;
        }
        let sessions = self.sessions(seen.uid());
        let row = match &self.row {
            _ if !self.database => RowFact::Unavailable,
            Some(uid) if uid == seen.uid() => RowFact::Present,
            _ if self.foreign => RowFact::Foreign,
            _ => RowFact::Absent,
        };
        let observation = Observation {
            account: seen,
            now: self.now,
            wall: wall(self.now),
            leading_since: self.memory.leading_since,
            policy: &self.policy,
            in_state_since: self.memory.since,
            credential: self.memory.credential.clone(),
            credential_slow: self.now.is_multiple_of(3),
            credential_changed: self.memory.changed,
            credential_expiry: Fact::Unknown,
            row,
            sessions: &sessions,
            sessions_are_read: self.memory.sessions_are_read,
            backlog_since: self.queue_since,
            rival: None,
            listed_by: Fact::Known(None),
            name_is_held: false,
            left_out_written: None,
            unreadable_replaced_from: 0,
            clouddriver_file: None,
            registration: None,
        };
        let decision = decide(&observation);
        if row == RowFact::Foreign
            && matches!(decision.action, Some(Action::InsertRow | Action::DeleteRows { .. }))
        {
            return Err("somebody else's row was touched".to_owned());
        }
        if decision != decide(&observation) {
            return Err("the same input decided otherwise".to_owned());
        }
        Ok(decision)
    }

    /// Does what was decided on `seen`. A leader of before (`deposed`) is refused by the database.
    fn apply(&mut self, seen: &KubesvcAccount, action: Action, deposed: bool) -> Result<(), String> {
        match action {
            Action::ResolveCredential => self.resolve(),
            // The database refuses a row over one that is not ours.
            Action::InsertRow if self.foreign => {}
            Action::InsertRow if self.database && !deposed => self.row = Some(seen.uid().to_owned()),
            Action::DeleteRows { .. } if self.database && !deposed => {
                self.row.take_if(|row| row == seen.uid());
            }
            Action::InsertRow | Action::DeleteRows { .. } => {}
            Action::ReadSessions => self.memory.sessions_are_read = true,
            write => {
                let version = |one: &KubesvcAccount| one.metadata.resource_version.clone();
                let fresh =
                    self.object().is_some_and(|now| now.uid() == seen.uid() && version(now) == version(seen));
                if fresh {
                    self.write(seen, write)?;
                    if !deposed {
                        self.memory.view = self.versions.len() - 1;
                    }
                }
            }
        }
        Ok(())
    }

    fn write(&mut self, seen: &KubesvcAccount, action: Action) -> Result<(), String> {
        let mut account = seen.clone();
        let status = seen.status_or_default();
        match action {
            Action::AddFinalizer => account.metadata.finalizers = Some(vec![FINALIZER.to_owned()]),
            Action::RemoveFinalizer => {
                checks::finalizer_off(seen, self.row.as_deref())?;
                account.metadata.finalizers = None;
            }
            Action::DeleteObject => {
                let zone = seen
                    .spec
                    .zone_id
                    .as_ref()
                    .map(ZoneId::as_str)
                    .or(status.zone_id.as_ref().map(ZoneId::as_str));
                let lists = |agent: &&SimAgent| agent.connected && agent.lists && Some(agent.zone) == zone;
                let listed = self.agents.iter().any(|agent| lists(&agent));
                checks::deletion(seen, listed)?;
                let may_come_back = |agent: &SimAgent| {
                    let (left, _) = agent.away();
                    let left = left.max(self.memory.leading_since);
                    !agent.connected && self.now < left + self.policy.account_cleanup
                };
                let left = self.agents.iter().filter(|agent| Some(agent.zone) == zone && agent.lists);
                let left = left.filter(|agent| agent.is_known()).any(may_come_back);
                checks::cleanup(!left)?;
                let heard = self.agents.iter().any(|agent| agent.connected && Some(agent.zone) == zone);
                checks::queue(
                    heard || !self.is_protected(),
                    "an account was taken from a zone without agents",
                )?;
                account = account.being_deleted().edited();
            }
            Action::WriteStatus(write) => {
                checks::status(seen, &write.status, &self.heard)?;
                let orphaned = write.status.state() == State::Orphaned && status.state() != State::Orphaned;
                checks::queue(!orphaned || !self.is_protected(), "an account was orphaned")?;
                self.states.push(write.status.state().as_str());
                account.status = Some(write.status);
                self.memory.stage = None;
                self.memory.credential = Fact::Unknown;
                self.memory.changed = false;
                self.memory.sessions_are_read = false;
            }
            other => return Err(format!("{other:?} is no write")),
        }
        self.store(account);
        Ok(())
    }

    /// The API server stores a version; an object that is being deleted goes with its last finalizer.
    fn store(&mut self, account: KubesvcAccount) {
        self.writes += 1;
        let version = self.versions.len();
        let goes = account.is_being_deleted() && account.metadata.finalizers.is_none();
        let stored = account.map(|account| account.metadata.resource_version = Some(version.to_string()));
        self.versions.push((!goes).then_some(stored));
    }

    fn resolve(&mut self) {
        let verdict = self.secret.clone();
        self.memory.changed |= self.memory.judged.as_ref().is_some_and(|before| *before != verdict);
        self.memory.judged = Some(verdict.clone());
        self.memory.credential = Fact::Known(verdict);
    }

    /// The operator ends and another begins with a consistent list: what was in memory is gone, and so are the streams.
    fn crash(&mut self) {
        self.lose_streams();
        self.memory = SimMemory {
            leading_since: self.now,
            view: self.versions.len() - 1,
            since: self.now,
            ..SimMemory::default()
        };
    }

    fn person(&mut self, deed: Deed) {
        match deed {
            Deed::Create => return self.create(false),
            Deed::CreateStatic => return self.create(true),
            Deed::ChangeSecret(secret) => return self.change_secret(secret),
            _ => {}
        }
        let Some(before) = self.object().cloned() else { return };
        let mut account = before.clone();
        match deed {
            Deed::Wish(state) => account.spec.state = Some(state),
            Deed::Pin(zone) => account.spec.zone_id = zone.map(ZoneId::from),
            Deed::Define(n) => account.spec.namespaces = vec![format!("n{n}")],
            Deed::Describe(n) => account.spec.environment = Some(format!("e{n}")),
            Deed::Retry => {
                self.retries += 1;
                account = account.annotated(RETRY_ANNOTATION, &self.retries.to_string());
            }
            Deed::Elect => {
                self.retries += 1;
                account = account.annotated(ELECT_CACHING_ANNOTATION, &self.retries.to_string());
            }
            Deed::Delete => account = account.being_deleted(),
            Deed::ForceDelete => {
                account = account.force_deleted();
                self.forced = true;
            }
            Deed::Create | Deed::CreateStatic | Deed::ChangeSecret(_) => {}
        }
        if account.spec != before.spec || account.is_being_deleted() != before.is_being_deleted() {
            account = account.edited();
        }
        if account != before {
            self.store(account);
        }
    }

    fn create(&mut self, from_a_file: bool) {
        if self.object().is_none() && self.made < 3 {
            self.made += 1;
            let uid = format!("uid-{}", self.made);
            let account = account("a").map(|account| account.metadata.uid = Some(uid));
            self.store(if from_a_file { account.static_in("east") } else { account });
        }
    }

    fn change_secret(&mut self, secret: SimSecret) {
        self.secrets += 1;
        self.secret = match secret {
            SimSecret::Good => Ok(CredentialFact::new(Some(format!("secret/{}", self.secrets)))),
            SimSecret::Refused => Err(failure(FailureClass::BadKubeconfig)),
            SimSecret::Missing => Err(failure(FailureClass::CredentialMissing)),
        };
    }
}
