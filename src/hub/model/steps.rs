//! All that can happen next.

use super::leader::Mood;
use super::world::{REPLICAS, World, ZONES, made};
use crate::account::DesiredState;

/// What a person does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Wish {
    OtherZone,
    OtherState,
    Delete,
    MakeAnew,
}

/// One thing that happens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Step {
    Wish(Wish),
    /// A replica that believes to lead looks.
    Lead(usize, Mood),
    /// A replica's watch shows the next version of the object.
    Watch(usize),
    /// A replica's watch shows the agents' objects.
    WatchAgents(usize),
    TakeLead(usize),
    /// A replica learns that it leads no more.
    LoseLead(usize),
    /// A session has been away for the grace, says the leader.
    Gone(usize, String),
    /// A session looks at its accounts.
    Look(String),
    ToAgent(String),
    ToHub(String),
    Report(String),
    /// The hub finds that a stream is gone.
    End(String),
    /// The object says that the stream is gone.
    TellEnded(String),
    /// An attempt of a process ends.
    Finish(usize, String, bool),
    /// A process loses its stream.
    Cut(usize),
    Restart(usize),
    Connect(usize, usize),
}

impl World {
    /// All steps that may be possible now.
    pub(super) fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.faults.wishes > 0 {
            let wishes = [Wish::OtherZone, Wish::OtherState, Wish::Delete, Wish::MakeAnew];
            steps.extend(wishes.map(Step::Wish));
        }
        for replica in 0..REPLICAS {
            self.steps_of_replica(replica, &mut steps);
        }
        for session in &self.sessions {
            let id = || session.id.clone();
            if session.ended {
                steps.push(Step::TellEnded(id()));
                continue;
            }
            steps.extend([Step::Look(id()), Step::ToAgent(id()), Step::ToHub(id()), Step::Report(id())]);
            if self.processes[session.process].stream.as_deref() != Some(&session.id) {
                steps.push(Step::End(id()));
            }
        }
        for (index, process) in self.processes.iter().enumerate() {
            for uid in process.starting.keys() {
                steps.push(Step::Finish(index, uid.clone(), true));
                if self.faults.failures > 0 {
                    steps.push(Step::Finish(index, uid.clone(), false));
                }
            }
            if process.stream.is_none() {
                steps.extend((0..REPLICAS).map(|replica| Step::Connect(index, replica)));
            } else if self.faults.cuts > 0 {
                steps.push(Step::Cut(index));
            }
            if self.faults.restarts > 0 {
                steps.push(Step::Restart(index));
            }
        }
        steps
    }

    fn steps_of_replica(&self, number: usize, steps: &mut Vec<Step>) {
        let replica = &self.replicas[number];
        if replica.lag > 0 {
            steps.push(Step::Watch(number));
        }
        steps.push(Step::WatchAgents(number));
        match replica.leads {
            None if self.faults.takeovers > 0 => steps.push(Step::TakeLead(number)),
            None => {}
            Some(term) => {
                steps.push(Step::Lead(number, Mood::Prompt));
                if self.faults.delays > 0 {
                    steps.extend([Step::Lead(number, Mood::Due), Step::Lead(number, Mood::Silent)]);
                }
                if term != self.term {
                    steps.push(Step::LoseLead(number));
                }
                steps.extend(self.away_from(number).into_iter().map(|id| Step::Gone(number, id)));
            }
        }
    }

    /// Sessions that a replica sees to be away and that may come back, as far as it knows.
    pub(super) fn away_from(&self, number: usize) -> Vec<String> {
        let replica = &self.replicas[number];
        let away = replica.agents.values().filter_map(|agent| {
            let status = agent.status.as_ref()?;
            let session = status.session.as_ref()?;
            let here = session.replica == number.to_string();
            let stands = self.standing().any(|one| one.id == session.id);
            (!status.connected || (here && !stands)).then(|| session.id.clone())
        });
        away.filter(|id| !replica.gone.contains(id)).collect()
    }

    /// The world after a step; absent where the step changes nothing.
    pub(super) fn after(&self, step: &Step) -> Option<Self> {
        let mut world = self.clone();
        if !world.take(step) {
            return None;
        }
        world.keep_up();
        world.check();
        Some(world)
    }

    /// No watch lags further behind than it may.
    fn keep_up(&mut self) {
        let most = usize::from(self.faults.lag);
        self.replicas.iter_mut().for_each(|replica| replica.lag = replica.lag.min(most));
        self.forget_old_versions();
    }

    fn take(&mut self, step: &Step) -> bool {
        match step {
            Step::Wish(wish) => self.wish(*wish),
            Step::Lead(replica, mood) => {
                let changed = self.lead(*replica, *mood);
                self.faults.delays -= u8::from(changed && *mood != Mood::Prompt && self.faults.delays > 0);
                changed
            }
            Step::Watch(replica) => {
                self.replicas[*replica].lag -= 1;
                true
            }
            Step::WatchAgents(replica) => self.watch_agents(*replica),
            Step::TakeLead(replica) => {
                self.faults.takeovers = self.faults.takeovers.saturating_sub(1);
                self.take_lead(*replica);
                true
            }
            Step::LoseLead(replica) => self.replicas[*replica].leads.take().is_some(),
            Step::Gone(replica, id) => self.replicas[*replica].gone.insert(id.clone()),
            Step::Look(id) => self.with(id, Self::look),
            Step::ToAgent(id) => self.with(id, Self::hand_to_agent),
            Step::ToHub(id) => self.with(id, Self::hand_to_hub),
            Step::Report(id) => self.with(id, Self::report),
            Step::End(id) => self.with(id, |world, index| {
                let session = &mut world.sessions[index];
                session.to_agent.clear();
                session.to_hub.clear();
                !std::mem::replace(&mut session.ended, true)
            }),
            Step::TellEnded(id) => self.with(id, Self::tell_ended),
            Step::Finish(process, uid, succeeds) => {
                self.faults.failures -= u8::from(!succeeds);
                self.finish(*process, uid, *succeeds)
            }
            Step::Cut(process) => {
                self.faults.cuts -= 1;
                self.cut(*process)
            }
            Step::Restart(process) => {
                self.faults.restarts -= 1;
                self.restart(*process);
                true
            }
            Step::Connect(process, replica) => self.connect(*process, *replica),
        }
    }

    fn with(&mut self, id: &str, step: impl FnOnce(&mut Self, usize) -> bool) -> bool {
        let index = self.sessions.iter().position(|session| session.id == id);
        index.is_some_and(|index| step(self, index))
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
        self.close_superseded(number);
    }

    pub(super) fn cut(&mut self, number: usize) -> bool {
        let process = &mut self.processes[number];
        process.table.stream_lost();
        process.starting.clear();
        process.stream.take().is_some()
    }

    fn restart(&mut self, number: usize) {
        let process = &mut self.processes[number];
        process.table = Default::default();
        process.starting.clear();
        process.stream = None;
        process.boot += 1;
        process.seq = 0;
    }

    fn wish(&mut self, wish: Wish) -> bool {
        self.faults.wishes -= 1;
        let Some(now) = self.object().cloned() else {
            if wish != Wish::MakeAnew || self.made > 1 {
                return false;
            }
            self.made += 1;
            self.store(Some(made(self.made)));
            return true;
        };
        let mut account = now.account.clone();
        if account.is_being_deleted() {
            return false;
        }
        match wish {
            Wish::MakeAnew => return false,
            Wish::Delete => {
                let time = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH);
                account.metadata.deletion_timestamp = Some(time);
                let gone = !account.has_finalizer();
                self.store((!gone).then_some(account));
                return true;
            }
            Wish::OtherZone => {
                let other = ZONES.into_iter().find(|zone| account.spec.zone_id.as_deref() != Some(zone));
                account.spec.zone_id = other.map(str::to_owned);
            }
            Wish::OtherState => {
                let inactive = account.desired() == DesiredState::Active;
                account.spec.state =
                    Some(if inactive { DesiredState::Inactive } else { DesiredState::Active });
            }
        }
        account.metadata.generation = account.metadata.generation.map(|generation| generation + 1);
        self.store(Some(account));
        true
    }
}
