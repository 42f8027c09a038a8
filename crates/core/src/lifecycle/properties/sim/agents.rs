//! The agents, and the hub in the operator that sends them what the object says.

use super::*;
use crate::ids::ZoneId;
use crate::lifecycle::Offer;
use crate::{BootId, DesiredState, GrantEpoch};

/// What an agent is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SimCommand {
    Add(String, i64),
    Drop(String, i64),
    /// Whether it can take the account of this generation.
    Probe(String, i64),
}

/// What an agent answers.
#[derive(Clone, Debug)]
pub(super) enum SimReply {
    Report(i64, AgentReport),
    Offer(i64, Offer),
}

/// An answer on its way.
#[derive(Clone, Debug)]
pub(super) struct SimAnswer {
    agent: usize,
    session: u64,
    uid: String,
    said: SimReply,
}

#[derive(Debug)]
pub(super) struct SimAgent {
    pub(super) id: &'static str,
    pub(super) zone: &'static str,
    known: bool,
    pub(super) connected: bool,
    cut_at: Tick,
    /// How its stream ended.
    ending: SessionEnding,
    /// Since when it stands.
    since: Tick,
    /// Counts its processes.
    pub(super) boot: u64,
    session: u64,
    /// The uid it holds, and for which epoch.
    pub(super) holds: Option<(String, i64)>,
    /// Whether its own file has the account.
    pub(super) lists: bool,
    inbox: VecDeque<SimCommand>,
    /// What the hub remembers of the probes: the uid, and the generation that was asked about.
    probed: Option<(String, i64)>,
    offer: Option<(String, i64, Offer)>,
    /// What the hub remembers of the session.
    report: Option<(String, i64, AgentReport)>,
    in_flight: Option<(SimCommand, Tick)>,
}

impl SimAgent {
    pub(super) fn new(id: &'static str, zone: &'static str) -> Self {
        Self {
            id,
            zone,
            known: false,
            connected: false,
            cut_at: 0,
            ending: SessionEnding::default(),
            since: 0,
            boot: 1,
            session: 0,
            holds: None,
            lists: true,
            probed: None,
            offer: None,
            inbox: VecDeque::new(),
            report: None,
            in_flight: None,
        }
    }

    /// The hub takes in a word; false if it is older than one that is known.
    fn takes_in(&mut self, uid: &str, epoch: i64, report: &AgentReport) -> bool {
        self.in_flight.take_if(|(command, _)| {
            matches!(command, SimCommand::Add(of, at) | SimCommand::Drop(of, at) if of == uid && *at == epoch)
        });
        let older = self.report.as_ref().is_some_and(|(of, at, _)| of == uid && *at > epoch);
        if !older {
            self.report = Some((uid.to_owned(), epoch, report.clone()));
        }
        !older
    }

    /// The hub takes in the answer to a probe that it still waits for.
    fn answers(&mut self, uid: String, generation: i64, offer: Offer) {
        if self.probed.as_ref().is_some_and(|(of, at)| *of == uid && *at == generation) {
            if matches!(offer, Offer::No(_)) {
                self.probed = None;
            }
            self.offer = Some((uid, generation, offer));
        }
    }

    fn forget_offers(&mut self) {
        self.probed = None;
        self.offer = None;
    }

    pub(super) fn boot_id(&self) -> BootId {
        format!("{}-{}", self.id, self.boot).into()
    }

    /// Whether it holds the account under this epoch and the hub knows.
    pub(super) fn is_known_to_hold(&self, uid: &str, epoch: i64) -> bool {
        self.connected
            && matches!(&self.report, Some((of, at, AgentReport::Held(_))) if of == uid && *at == epoch)
    }

    /// Whether the hub knows that it does not hold the account under this epoch.
    pub(super) fn says_no(&self, uid: &str, epoch: i64) -> bool {
        matches!(&self.report, Some((of, at, report))
            if of == uid && *at == epoch && !matches!(report, AgentReport::Held(_)))
    }

    /// Whether it ever connected.
    pub(super) fn is_known(&self) -> bool {
        self.known
    }

    /// Since when it is away, and why.
    pub(super) fn away(&self) -> (Tick, SessionEnding) {
        (self.cut_at, self.ending)
    }

    pub(super) fn has_work(&self) -> bool {
        !self.inbox.is_empty()
    }
}

impl Sim {
    pub(super) fn connect(&mut self, agent: usize) {
        self.cut(agent);
        let agent = &mut self.agents[agent];
        agent.known = true;
        agent.connected = true;
        agent.since = self.now;
        agent.session += 1;
    }

    /// Both ends see it at once, and an Add in progress is given up.
    pub(super) fn cut(&mut self, agent: usize) {
        let agent = &mut self.agents[agent];
        if agent.connected {
            agent.cut_at = self.now;
            agent.ending = SessionEnding::Cut;
        }
        agent.connected = false;
        agent.inbox.clear();
        agent.report = None;
        agent.in_flight = None;
        agent.forget_offers();
    }

    /// Its process ends, with a goodbye or without; the next one holds nothing.
    pub(super) fn die(&mut self, agent: usize, says_goodbye: bool) {
        self.cut(agent);
        let agent = &mut self.agents[agent];
        agent.ending = if says_goodbye { SessionEnding::Goodbye } else { agent.ending };
        agent.boot += 1;
        agent.holds = None;
    }

    /// The operator has ended, and with it every stream.
    pub(super) fn lose_streams(&mut self) {
        for agent in 0..self.agents.len() {
            self.cut(agent);
            self.agents[agent].ending = SessionEnding::ReplicaLost;
        }
    }

    pub(super) fn lose(&mut self, agent: usize) {
        let Some((uid, epoch)) = self.agents[agent].holds.take() else { return };
        // A stream keeps its order: what was said before is not heard after it.
        self.answers.retain(|answer| answer.agent != agent);
        let session = self.agents[agent].session;
        let report = AgentReport::Lost(failure(FailureClass::Unreachable));
        self.answers.push_back(SimAnswer { agent, session, uid, said: SimReply::Report(epoch, report) });
    }

    /// The cluster refuses the credential of what an agent holds, or accepts it, and the agent says so.
    pub(super) fn judge_credential(&mut self, agent: usize, is_refused: bool) {
        let Some((uid, epoch)) = self.agents[agent].holds.clone() else { return };
        let session = self.agents[agent].session;
        let refused = is_refused.then(|| failure(FailureClass::Auth));
        let report = AgentReport::Held(ClusterIdentity { refused, ..cluster_named("prod") });
        self.answers.push_back(SimAnswer { agent, session, uid, said: SimReply::Report(epoch, report) });
    }

    pub(super) fn sessions(&self, uid: &str) -> Vec<SessionFact> {
        let known = self.agents.iter().filter(|agent| agent.known);
        known
            .map(|agent| SessionFact {
                agent_id: agent.id.into(),
                zone: agent.zone.into(),
                approved: true,
                presence: if agent.connected {
                    Presence::Connected
                } else {
                    Presence::Away(agent.cut_at.max(self.memory.leading_since))
                },
                process: AgentProcess {
                    boot_id: agent.boot_id(),
                    since: agent.since,
                    ending: agent.ending,
                    ..AgentProcess::default()
                },
                report: agent
                    .report
                    .as_ref()
                    .filter(|(said_of, ..)| agent.connected && said_of == uid)
                    .map(|(_, epoch, report)| (GrantEpoch(*epoch), report.clone())),
                silent_for: agent.in_flight.as_ref().map(|(_, sent)| self.now - sent),
                unanswered: None,
                offer: agent
                    .offer
                    .as_ref()
                    .filter(|(asked_of, ..)| agent.connected && asked_of == uid)
                    .map(|(_, generation, offer)| (*generation, offer.clone())),
                lists: Fact::Known(agent.lists),
                cluster_uid: String::new(),
                caching: None,
            })
            .collect()
    }

    /// Each session is sent what the operator's view of the object says, one command at a time.
    pub(super) fn send(&mut self) {
        let seen = self.versions[self.memory.view].clone();
        let now = self.now;
        self.probe(seen.as_ref());
        for agent in self.agents.iter_mut().filter(|agent| agent.connected && agent.in_flight.is_none()) {
            let command = match &seen {
                Some(account) => command_for(agent, account),
                None => agent.holds.clone().map(|(uid, epoch)| SimCommand::Drop(uid, epoch)),
            };
            if let Some(command) = command {
                agent.in_flight = Some((command.clone(), now));
                agent.inbox.push_back(command);
            }
        }
    }

    /// Each session is asked once about each generation, and again after a no; nobody is while no offer is awaited.
    fn probe(&mut self, seen: Option<&KubesvcAccount>) {
        let asks = seen.filter(|account| {
            let status = account.status_or_default();
            let open = account.desired() == DesiredState::Active && !account.is_being_deleted();
            open && account.spec.zone_id.is_none() && status.state() == State::ToMigrate
        });
        for agent in &mut self.agents {
            let Some(account) = asks else {
                agent.forget_offers();
                continue;
            };
            let about = (account.uid().to_owned(), account.generation());
            if agent.connected && agent.probed.as_ref() != Some(&about) {
                agent.inbox.push_back(SimCommand::Probe(about.0.clone(), about.1));
                agent.probed = Some(about);
            }
        }
    }

    pub(super) fn agent_acts(&mut self, index: usize, outcome: StepOutcome) -> Result<(), String> {
        let Some(command) = self.agents[index].inbox.pop_front() else { return Ok(()) };
        let session = self.agents[index].session;
        let (uid, epoch, report) = match (command, outcome) {
            (SimCommand::Probe(uid, generation), outcome) => {
                let offer = match outcome {
                    StepOutcome::Done => Offer::Yes,
                    StepOutcome::Fails(class) => Offer::No(failure(class)),
                };
                let said = SimReply::Offer(generation, offer);
                self.answers.push_back(SimAnswer { agent: index, session, uid, said });
                return Ok(());
            }
            (SimCommand::Add(uid, epoch) | SimCommand::Drop(uid, epoch), StepOutcome::Fails(class)) => {
                (uid, epoch, AgentReport::Failed(failure(class)))
            }
            (SimCommand::Add(uid, epoch), StepOutcome::Done) => {
                self.check_add(index, &uid)?;
                self.agents[index].holds = Some((uid.clone(), epoch));
                (uid, epoch, AgentReport::Held(cluster_named("prod")))
            }
            (SimCommand::Drop(uid, epoch), StepOutcome::Done) => {
                self.agents[index].holds.take_if(|(held, since)| *held == uid && *since <= epoch);
                (uid, epoch, AgentReport::Dropped)
            }
        };
        self.answers.push_back(SimAnswer {
            agent: index,
            session,
            uid,
            said: SimReply::Report(epoch, report),
        });
        Ok(())
    }

    fn check_add(&self, index: usize, uid: &str) -> Result<(), String> {
        let agent = &self.agents[index];
        let status =
            self.object().filter(|object| object.uid() == uid).map(KubesvcAccount::status_or_default);
        let granted = status.as_ref().and_then(|status| status.granted_zone());
        if granted == Some(&ZoneId::from(agent.zone)) || self.forced {
            return Ok(());
        }
        Err(format!("{} of {} took {uid}, which is granted to {granted:?}", agent.id, agent.zone))
    }

    pub(super) fn deliver(&mut self, index: usize, again: bool) {
        if self.answers.is_empty() {
            return;
        }
        let index = index % self.answers.len();
        let answer = if again && self.answers.len() < 12 {
            self.answers.get(index).cloned()
        } else {
            self.answers.remove(index)
        };
        let Some(answer) = answer else { return };
        let agent = &mut self.agents[answer.agent];
        if !agent.connected || agent.session != answer.session {
            return;
        }
        match answer.said {
            SimReply::Report(epoch, report) => {
                let news = agent.takes_in(&answer.uid, epoch, &report);
                if news && matches!(report, AgentReport::Held(_)) {
                    self.heard.insert((answer.uid, epoch));
                }
            }
            SimReply::Offer(generation, offer) => agent.answers(answer.uid, generation, offer),
        }
    }

    /// All answers of now, in their order.
    pub(super) fn deliver_all(&mut self) {
        while !self.answers.is_empty() {
            self.deliver(0, false);
        }
    }
}

/// What the hub tells a session that it has not been told, or not answered for this epoch.
fn command_for(agent: &SimAgent, account: &KubesvcAccount) -> Option<SimCommand> {
    let status = account.status_or_default();
    let (uid, epoch) = (account.uid().to_owned(), status.epoch.0);
    let said =
        agent.report.as_ref().filter(|(of, at, _)| *of == uid && *at == epoch).map(|(.., report)| report);
    // The hub sends an account of agents' own files to none that does not list it.
    let open = status.phase() == GrantPhase::Open;
    let here = status.granted_zone() == Some(&ZoneId::from(agent.zone))
        && (!open || !account.is_static() || agent.lists);
    match (status.phase(), status.state()) {
        (GrantPhase::Open, State::Activating | State::Active | State::Orphaned) if here => {
            let current = status.grant.as_ref().is_some_and(|grant| grant.generation == account.generation());
            let wanting = match said {
                None | Some(AgentReport::Lost(_) | AgentReport::Dropped) => true,
                Some(AgentReport::Failed(_)) => status.state() == State::Active,
                Some(AgentReport::Held(_)) => false,
            };
            (wanting && current).then_some(SimCommand::Add(uid, epoch))
        }
        (GrantPhase::Open, _) if here => None,
        (GrantPhase::Revoking, _) if here => {
            let answered = matches!(said, Some(AgentReport::Dropped | AgentReport::Failed(_)));
            (!answered).then_some(SimCommand::Drop(uid, epoch))
        }
        _ => agent.holds.clone().map(|(held, since)| SimCommand::Drop(held, since)),
    }
}
