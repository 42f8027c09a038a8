//! Settling after the last fault: checks that the world comes to rest as desired.

use crate::hub::model_checker::checks::Property;
use crate::hub::model_checker::leader::Mood;
use crate::hub::model_checker::scenario::Faults;
use crate::hub::model_checker::world::{ModelProcess, ModelWorld, REPLICAS, number_of};
use kubesvc_core::{DesiredState, KubesvcAccount, State, ZoneId};

/// Maximum number of rounds until the world must be at rest.
const ROUNDS: usize = 60;

impl ModelWorld {
    /// Runs all steps in one fair order until nothing changes.
    ///
    /// # Errors
    /// The world does not come to rest, violates a property, or rests in another state than desired.
    pub(super) fn converge(&self) -> Result<(), (Property, String)> {
        let mut world = self.clone();
        world.faults = Faults { lag: world.faults.lag, ..Faults::NONE };
        world.script = &[];
        for _ in 0..ROUNDS {
            let before = world.key();
            world.round();
            world.check();
            if let Some(broken) = world.broken {
                return Err(broken);
            }
            if world.key() == before {
                return world.is_as_wanted().map_err(|what| (Property::Rest, what));
            }
        }
        Err((Property::Rest, format!("no rest after {ROUNDS} rounds: {}", world.summary())))
    }

    fn round(&mut self) {
        for replica in 0..REPLICAS {
            self.act(replica);
            if self.replicas[replica].leads.is_some_and(|term| term != self.term) {
                self.replicas[replica].leads = None;
            }
        }
        if self.replicas.iter().all(|replica| replica.leads.is_none()) {
            self.take_lead(0);
        }
        self.end_streams();
        for process in 0..self.processes.len() {
            if self.processes[process].stream.is_none() {
                self.connect(process, process % REPLICAS);
            }
        }
        for replica in 0..REPLICAS {
            self.replicas[replica].lag = 0;
            self.watch_agents(replica);
            for id in self.away_from(replica) {
                self.replicas[replica].gone.insert(id);
            }
        }
        self.forget_old_versions();
        for index in 0..self.sessions.len() {
            self.check_accounts(index);
            while self.hand_to_agent(index) {}
        }
        for process in 0..self.processes.len() {
            while self.finish(process, 0, true) {}
        }
        for index in 0..self.sessions.len() {
            while self.hand_to_hub(index) {}
        }
        let ids: Vec<_> = self.sessions.iter().map(|session| session.id).collect();
        for id in ids {
            if let Some(index) = self.sessions.iter().position(|session| session.id == id) {
                self.report(index);
            }
        }
        for replica in 0..REPLICAS {
            self.watch_agents(replica);
            let acted = self.lead(replica, Mood::Prompt);
            if !acted {
                self.lead(replica, Mood::Due);
            }
        }
    }

    /// Sessions whose agents are gone end, and their objects record it.
    fn end_streams(&mut self) {
        let has_ended = |world: &Self, index: usize| {
            let session = &world.sessions[index];
            session.ended || world.processes[session.process].stream != Some(session.id)
        };
        while let Some(index) = (0..self.sessions.len()).find(|index| has_ended(self, *index)) {
            self.report_disconnect(index);
        }
        // A superseded session has no stream either.
        for process in 0..self.processes.len() {
            let stream = self.processes[process].stream;
            if stream.is_some_and(|id| !self.sessions.iter().any(|session| session.id == id)) {
                self.cut(process);
            }
        }
    }

    fn is_as_wanted(&self) -> Result<(), String> {
        let wrong = |what: &str| Err(format!("at rest {what}: {}", self.summary()));
        let holders = |uid: &str| -> Vec<_> {
            let uid = self.uid_on_the_wire(uid);
            // A process that is refused because of another one with its id keeps what it held.
            let holds = |process: &&ModelProcess| {
                process.stream.is_some()
                    && process.table.held().any(|held| held.account.is_some_and(|one| one.uid == uid))
            };
            self.processes
                .iter()
                .map(|process| &**process)
                .filter(holds)
                .map(|process| process.zone)
                .collect()
        };
        let Some(now) = self.object() else {
            return match &self.row {
                None => Ok(()),
                Some(_) => wrong("a row is left"),
            };
        };
        let account = &**now;
        if account.is_being_deleted() {
            return wrong("the object is still there");
        }
        if self.row != Some(number_of(account.uid())) {
            return wrong("the row is missing");
        }
        let (status, holders) = (account.status_or_default(), holders(account.uid()));
        match account.desired() {
            DesiredState::Inactive if status.state() != State::Inactive => wrong("it is not INACTIVE"),
            DesiredState::Inactive if !holders.is_empty() => wrong("somebody holds it"),
            DesiredState::Inactive => Ok(()),
            DesiredState::Active if !self.has_agent_for(account) => {
                if status.state() != State::Active && holders.is_empty() {
                    Ok(())
                } else {
                    wrong("it is where no agent is approved")
                }
            }
            DesiredState::Active if status.state() != State::Active => wrong("it is not ACTIVE"),
            DesiredState::Active
                if account.spec.zone_id.is_some()
                    && status.granted_zone() != account.spec.zone_id.as_ref() =>
            {
                wrong("it is in another zone")
            }
            DesiredState::Active if holders.is_empty() => wrong("nobody holds it"),
            DesiredState::Active
                if holders.iter().any(|zone| Some(*zone) != status.granted_zone().map(ZoneId::as_str)) =>
            {
                wrong("an agent of another zone holds it")
            }
            DesiredState::Active => Ok(()),
        }
    }

    /// Whether an agent of the account's zone is approved.
    fn has_agent_for(&self, account: &KubesvcAccount) -> bool {
        let zone = account.spec.zone_id.as_ref().map(ZoneId::as_str);
        let agents = self.agents.iter().flatten();
        agents.into_iter().any(|agent| {
            let in_zone = zone.is_none_or(|zone| agent.spec.zone_id == zone);
            agent.spec.approved && in_zone && self.lists(agent.spec.agent_id.as_str())
        })
    }

    /// Describes the world for people.
    pub(super) fn summary(&self) -> String {
        let object = self.object().map(|now| {
            let status = now.status_or_default();
            format!(
                "{} wants {:?} in {:?}; {} epoch {} grant {:?}; {}",
                now.uid(),
                now.desired(),
                now.spec.zone_id,
                status.state(),
                status.epoch,
                status.grant,
                status.error_message.as_deref().unwrap_or_default(),
            )
        });
        let processes: Vec<_> = self
            .processes
            .iter()
            .map(|one| {
                let held: Vec<_> = one
                    .table
                    .held()
                    .filter_map(|held| held.account)
                    .map(|one| (one.uid, one.epoch))
                    .collect();
                format!(
                    "{}{} at {:?} holds {held:?} starts {:?}",
                    one.agent_id,
                    one.boot,
                    one.stream,
                    one.starting.keys()
                )
            })
            .collect();
        let leads: Vec<_> = self.replicas.iter().map(|one| one.leads).collect();
        format!(
            "{object:?}\n  row {:?}, leads {leads:?} of {}\n  {}",
            self.row,
            self.term,
            processes.join("\n  ")
        )
    }
}
