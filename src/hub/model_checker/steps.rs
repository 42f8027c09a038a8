//! All possible next steps.

use std::sync::Arc;

use crate::hub::model_checker::leader::Mood;
use crate::hub::model_checker::scenario::PersonAction;
use crate::hub::model_checker::world::{
    ModelReplica, ModelWorld, REPLICA_NAMES, REPLICAS, SessionNumber, ZONES, made, session_of,
};
use kubesvc_core::{DesiredState, ZoneId};

/// One step. Replicas, sessions and processes are named by their index in the world before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ModelStep {
    /// A person performs the next action of the script.
    Wish,
    /// A replica that believes to lead decides and acts.
    Lead(u8, Mood),
    /// It decides, and sleeps.
    Doze(u8),
    /// It wakes, and acts.
    Act(u8),
    /// A replica's watch shows the next version of the account.
    Watch(u8),
    /// A replica's watch shows the KubesvcAgents.
    WatchAgents(u8),
    TakeLead(u8),
    /// A replica learns that it leads no more.
    LoseLead(u8),
    /// A replica dies, and restarts.
    Crash(u8),
    /// The leader considers a session away for the grace.
    Gone(u8, SessionNumber),
    /// A session checks its accounts.
    CheckAccounts(u8),
    ToAgent(u8),
    ToHub(u8),
    Report(u8),
    /// The hub detects that a stream is gone.
    End(u8),
    /// The object records that the stream is gone.
    ReportDisconnect(u8),
    /// A process finishes starting the first, or second, account of its kind.
    Finish(u8, u8, bool),
    /// A process loses its stream.
    Cut(u8),
    /// A process learns that the hub closed its stream.
    Closed(u8),
    Restart(u8),
    Connect(u8, u8),
}

fn small(number: usize) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}

impl ModelWorld {
    /// Returns all steps that may be possible now.
    pub(super) fn steps(&self) -> Vec<ModelStep> {
        let mut steps = Vec::with_capacity(32);
        if !self.script.is_empty() {
            steps.push(ModelStep::Wish);
        }
        for replica in 0..REPLICAS {
            self.steps_of_replica(replica, &mut steps);
        }
        for index in 0..self.sessions.len() {
            self.steps_of_session(index, &mut steps);
        }
        for index in 0..self.processes.len() {
            self.steps_of_process(index, &mut steps);
        }
        steps
    }

    fn steps_of_replica(&self, number: usize, steps: &mut Vec<ModelStep>) {
        let replica = &self.replicas[number];
        let place = small(number);
        if replica.lag > 0 {
            steps.push(ModelStep::Watch(place));
        }
        steps.push(ModelStep::WatchAgents(place));
        if self.faults.crashes > 0 {
            steps.push(ModelStep::Crash(place));
        }
        match replica.leads {
            None if self.faults.takeovers > 0 => steps.push(ModelStep::TakeLead(place)),
            None => {}
            Some(_) if replica.pending.is_some() => steps.push(ModelStep::Act(place)),
            Some(term) => {
                let leads = term == self.term;
                if !leads {
                    steps.push(ModelStep::LoseLead(place));
                }
                if leads || self.faults.late > 0 {
                    steps.push(ModelStep::Lead(place, Mood::Prompt));
                    if self.faults.delays > 0 {
                        steps.extend([
                            ModelStep::Lead(place, Mood::Due),
                            ModelStep::Lead(place, Mood::Silent),
                        ]);
                    }
                }
                if leads && self.faults.sleeps > 0 {
                    steps.push(ModelStep::Doze(place));
                }
                // A leader that has read the sessions decides before its next tick.
                if replica.has_read.is_none() || !self.rules.reads_afresh {
                    steps.extend(self.away_from(number).into_iter().map(|id| ModelStep::Gone(place, id)));
                }
            }
        }
    }

    fn steps_of_session(&self, index: usize, steps: &mut Vec<ModelStep>) {
        let (session, place) = (&self.sessions[index], small(index));
        if session.ended {
            steps.push(ModelStep::ReportDisconnect(place));
            return;
        }
        steps.push(ModelStep::CheckAccounts(place));
        if !session.to_agent.is_empty() {
            steps.push(ModelStep::ToAgent(place));
        }
        if !session.to_hub.is_empty() {
            steps.push(ModelStep::ToHub(place));
        }
        steps.push(ModelStep::Report(place));
        if self.processes[session.process].stream != Some(session.id) {
            steps.push(ModelStep::End(place));
        }
    }

    fn steps_of_process(&self, index: usize, steps: &mut Vec<ModelStep>) {
        let (process, place) = (&self.processes[index], small(index));
        for number in 0..small(process.starting.len()) {
            steps.push(ModelStep::Finish(place, number, true));
            if self.faults.failures > 0 {
                steps.push(ModelStep::Finish(place, number, false));
            }
        }
        match process.stream {
            None => steps.extend((0..small(REPLICAS)).map(|replica| ModelStep::Connect(place, replica))),
            Some(id) if !self.sessions.iter().any(|session| session.id == id) => {
                steps.push(ModelStep::Closed(place));
            }
            Some(_) if self.faults.cuts > 0 => steps.push(ModelStep::Cut(place)),
            Some(_) => {}
        }
        if self.faults.restarts > 0 {
            steps.push(ModelStep::Restart(place));
        }
    }

    /// Sessions that a replica sees as away and that may come back, as far as it knows.
    pub(super) fn away_from(&self, number: usize) -> Vec<SessionNumber> {
        let replica = &self.replicas[number];
        let away = replica.agents.iter().flatten().filter_map(|agent| {
            let status = agent.status.as_ref()?;
            let id = session_of(agent)?;
            let here = status.session.as_ref()?.replica == REPLICA_NAMES[number];
            let stands = || self.standing().any(|one| one.id == id);
            (!status.connected || (here && !stands()) || self.is_lost(agent)).then_some(id)
        });
        away.filter(|id| !replica.gone.contains(id)).collect()
    }

    /// Whether this world follows from `before` by a step that needs neither a fault nor a person.
    pub(super) fn follows_by_itself(&self, before: &Self) -> bool {
        self.faults == before.faults && self.script.len() == before.script.len()
    }

    /// Returns the world after a step; `None` if the step changes nothing.
    pub(super) fn after(&self, step: ModelStep) -> Option<Self> {
        let mut world = self.clone();
        if !world.take(step) {
            return None;
        }
        world.keep_up();
        world.check();
        Some(world)
    }

    /// Keeps every watch within its maximum lag.
    fn keep_up(&mut self) {
        let most = usize::from(self.faults.lag);
        self.replicas.iter_mut().for_each(|replica| replica.lag = replica.lag.min(most));
        self.forget_old_versions();
    }

    fn take(&mut self, step: ModelStep) -> bool {
        match step {
            ModelStep::Wish => self.wish(),
            ModelStep::Lead(replica, mood) => {
                let leads = self.replicas[usize::from(replica)].leads == Some(self.term);
                let changed = self.lead(replica.into(), mood);
                self.faults.late -= u8::from(changed && !leads);
                self.faults.delays -= u8::from(changed && mood != Mood::Prompt);
                changed
            }
            ModelStep::Doze(replica) => {
                self.faults.sleeps -= 1;
                self.doze(replica.into())
            }
            ModelStep::Act(replica) => self.act(replica.into()),
            ModelStep::Watch(replica) => {
                self.replicas[usize::from(replica)].lag -= 1;
                true
            }
            ModelStep::WatchAgents(replica) => self.watch_agents(replica.into()),
            ModelStep::TakeLead(replica) => {
                self.faults.takeovers -= 1;
                self.take_lead(replica.into());
                true
            }
            ModelStep::LoseLead(replica) => self.replicas[usize::from(replica)].leads.take().is_some(),
            ModelStep::Crash(replica) => {
                self.faults.crashes -= 1;
                self.crash(replica.into());
                true
            }
            ModelStep::Gone(replica, id) => self.replicas[usize::from(replica)].gone.insert(id),
            ModelStep::CheckAccounts(session) => self.check_accounts(session.into()),
            ModelStep::ToAgent(session) => self.hand_to_agent(session.into()),
            ModelStep::ToHub(session) => self.hand_to_hub(session.into()),
            ModelStep::Report(session) => self.report(session.into()),
            ModelStep::End(session) => self.end(session.into()),
            ModelStep::ReportDisconnect(session) => self.report_disconnect(session.into()),
            ModelStep::Finish(process, number, succeeds) => {
                self.faults.failures -= u8::from(!succeeds);
                self.finish(process.into(), number.into(), succeeds)
            }
            ModelStep::Cut(process) => {
                self.faults.cuts -= 1;
                self.cut(process.into())
            }
            ModelStep::Closed(process) => self.cut(process.into()),
            ModelStep::Restart(process) => {
                self.faults.restarts -= 1;
                self.restart(process.into());
                true
            }
            ModelStep::Connect(process, replica) => self.connect(process.into(), replica.into()),
        }
    }

    pub(super) fn take_lead(&mut self, number: usize) {
        self.term += 1;
        let (term, agents) = (self.term, self.agents.clone());
        let replica = &mut self.replicas[number];
        replica.leads = Some(term);
        replica.lag = 0;
        replica.agents = agents;
        replica.gone.clear();
        replica.has_read = None;
    }

    /// Its streams end with it, and no object records that. If it led, another replica leads eventually, or it does
    /// again.
    fn crash(&mut self, number: usize) {
        self.faults.takeovers += u8::from(self.replicas[number].leads == Some(self.term));
        self.sessions.retain(|session| session.replica != number);
        self.replicas[number] =
            ModelReplica { agents: self.agents.clone(), since: self.next_session, ..ModelReplica::default() };
    }

    fn end(&mut self, index: usize) -> bool {
        let session = self.sessions[index].edit();
        session.to_agent.clear();
        session.to_hub.clear();
        !std::mem::replace(&mut session.ended, true)
    }

    pub(super) fn cut(&mut self, number: usize) -> bool {
        let process = self.processes[number].edit();
        process.table.stream_lost();
        process.starting.clear();
        let stream = process.stream.take();
        self.lose_frames(stream);
        stream.is_some()
    }

    fn restart(&mut self, number: usize) {
        let process = self.processes[number].edit();
        process.table = Default::default();
        process.starting.clear();
        process.boot += 1;
        process.seq = 0;
        let stream = process.stream.take();
        self.lose_frames(stream);
    }

    /// Frames on their way to the agent are lost.
    fn lose_frames(&mut self, stream: Option<SessionNumber>) {
        let session = self.sessions.iter_mut().find(|session| Some(session.id) == stream);
        if let Some(session) = session.filter(|session| !session.to_agent.is_empty()) {
            session.edit().to_agent.clear();
        }
    }

    fn disapprove(&mut self) -> bool {
        let Some(mut agent) = self.agents[0].clone() else { return false };
        agent.edit().spec.approved = false;
        Arc::make_mut(&mut self.agents)[0] = Some(agent);
        true
    }

    fn wish(&mut self) -> bool {
        let Some((wish, rest)) = self.script.split_first() else { return false };
        self.script = rest;
        if *wish == PersonAction::Disapprove {
            return self.disapprove();
        }
        let Some(now) = self.object().cloned() else {
            if *wish != PersonAction::Recreate {
                return false;
            }
            self.made += 1;
            let made = self.of_kind(made(self.made));
            self.store(Some(made));
            return true;
        };
        let mut account = (*now).clone();
        if account.is_being_deleted() {
            return false;
        }
        match wish {
            PersonAction::Recreate | PersonAction::Disapprove => return false,
            PersonAction::Delete => {
                let time = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH);
                account.metadata.deletion_timestamp = Some(time);
                let gone = !account.has_finalizer();
                self.store((!gone).then_some(account));
                return true;
            }
            PersonAction::OtherZone => {
                let other = ZONES
                    .into_iter()
                    .find(|zone| account.spec.zone_id.as_ref().map(ZoneId::as_str) != Some(zone));
                account.spec.zone_id = other.map(ZoneId::from);
            }
            PersonAction::OtherState => {
                let inactive = account.desired() == DesiredState::Active;
                account.spec.state =
                    Some(if inactive { DesiredState::Inactive } else { DesiredState::Active });
            }
        }
        account.metadata.generation = account.metadata.generation.map(|generation| generation + 1);
        self.store(Some(account));
        true
    }

    /// Describes a step.
    pub(super) fn describe_step(&self, step: ModelStep) -> String {
        let session = |place: u8| {
            let one = &self.sessions[usize::from(place)];
            format!("{}{}@{}", one.agent_id, one.boot, one.replica)
        };
        let process = |place: u8| {
            let one = &self.processes[usize::from(place)];
            format!("{}{}", one.agent_id, one.boot)
        };
        match step {
            ModelStep::Wish => format!("{:?}", self.script.first()),
            ModelStep::CheckAccounts(place)
            | ModelStep::ToAgent(place)
            | ModelStep::ToHub(place)
            | ModelStep::Report(place)
            | ModelStep::End(place)
            | ModelStep::ReportDisconnect(place) => format!("{step:?}: {}", session(place)),
            ModelStep::Finish(place, ..)
            | ModelStep::Cut(place)
            | ModelStep::Closed(place)
            | ModelStep::Restart(place)
            | ModelStep::Connect(place, _) => format!("{step:?}: {}", process(place)),
            other => format!("{other:?}"),
        }
    }
}
