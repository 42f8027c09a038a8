//! The agents, and the hub in the operator that sends them what the object says.

use super::*;

/// What an agent is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Add(String, i64),
    Drop(String, i64),
}

/// An answer on its way.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    agent: usize,
    session: u64,
    uid: String,
    epoch: i64,
    word: Word,
}

#[derive(Debug)]
pub(super) struct Agent {
    id: &'static str,
    pub(super) zone: &'static str,
    known: bool,
    pub(super) connected: bool,
    cut_at: Tick,
    session: u64,
    /// The uid it holds, and for which epoch.
    pub(super) holds: Option<(String, i64)>,
    inbox: VecDeque<Command>,
    /// What the hub remembers of the session.
    word: Option<(String, i64, Word)>,
    in_flight: Option<(Command, Tick)>,
}

impl Agent {
    pub(super) fn new(id: &'static str, zone: &'static str) -> Self {
        Self {
            id,
            zone,
            known: false,
            connected: false,
            cut_at: 0,
            session: 0,
            holds: None,
            inbox: VecDeque::new(),
            word: None,
            in_flight: None,
        }
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
        agent.session += 1;
    }

    /// Both ends see it at once, and an Add in progress is given up.
    pub(super) fn cut(&mut self, agent: usize) {
        let agent = &mut self.agents[agent];
        if agent.connected {
            agent.cut_at = self.now;
        }
        agent.connected = false;
        agent.inbox.clear();
        agent.word = None;
        agent.in_flight = None;
    }

    pub(super) fn lose(&mut self, agent: usize) {
        let Some((uid, epoch)) = self.agents[agent].holds.take() else { return };
        // A stream keeps its order: what was said before is not heard after it.
        self.answers.retain(|answer| answer.agent != agent);
        let session = self.agents[agent].session;
        let word = Word::Lost(failure(FailureClass::Unreachable));
        self.answers.push_back(Answer { agent, session, uid, epoch, word });
    }

    pub(super) fn sessions(&self, uid: &str) -> Vec<SessionFact> {
        let known = self.agents.iter().filter(|agent| agent.known);
        known
            .map(|agent| SessionFact {
                agent_id: agent.id.to_owned(),
                zone: agent.zone.to_owned(),
                approved: true,
                presence: if agent.connected {
                    Presence::Connected
                } else {
                    Presence::Away(agent.cut_at.max(self.memory.leading_since))
                },
                word: agent
                    .word
                    .as_ref()
                    .filter(|(said_of, ..)| agent.connected && said_of == uid)
                    .map(|(_, epoch, word)| (*epoch, word.clone())),
                silent_for: agent.in_flight.as_ref().map(|(_, sent)| self.now - sent),
                offer: None,
                lists: Fact::Unknown,
            })
            .collect()
    }

    /// Each session is sent what the operator's view of the object says, one command at a time.
    pub(super) fn send(&mut self) {
        let seen = self.versions[self.memory.view].clone();
        let now = self.now;
        for agent in self.agents.iter_mut().filter(|agent| agent.connected && agent.in_flight.is_none()) {
            let command = match &seen {
                Some(account) => command_for(agent, account),
                None => agent.holds.clone().map(|(uid, epoch)| Command::Drop(uid, epoch)),
            };
            if let Some(command) = command {
                agent.in_flight = Some((command.clone(), now));
                agent.inbox.push_back(command);
            }
        }
    }

    pub(super) fn agent_acts(&mut self, index: usize, outcome: Outcome) -> Result<(), String> {
        let Some(command) = self.agents[index].inbox.pop_front() else { return Ok(()) };
        let (uid, epoch, word) = match (command, outcome) {
            (Command::Add(uid, epoch) | Command::Drop(uid, epoch), Outcome::Fails(class)) => {
                (uid, epoch, Word::Failed(failure(class)))
            }
            (Command::Add(uid, epoch), Outcome::Done) => {
                self.check_add(index, &uid)?;
                self.agents[index].holds = Some((uid.clone(), epoch));
                (uid, epoch, Word::Held(cluster_named("prod")))
            }
            (Command::Drop(uid, epoch), Outcome::Done) => {
                self.agents[index].holds.take_if(|(held, since)| *held == uid && *since <= epoch);
                (uid, epoch, Word::Dropped)
            }
        };
        let session = self.agents[index].session;
        self.answers.push_back(Answer { agent: index, session, uid, epoch, word });
        Ok(())
    }

    fn check_add(&self, index: usize, uid: &str) -> Result<(), String> {
        let agent = &self.agents[index];
        let status =
            self.object().filter(|object| object.uid() == uid).map(KubesvcAccount::status_or_default);
        let granted = status.as_ref().and_then(|status| status.granted_zone());
        if granted == Some(agent.zone) || self.forced {
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
        agent.in_flight.take_if(|(command, _)| {
            let (Command::Add(uid, epoch) | Command::Drop(uid, epoch)) = command;
            *uid == answer.uid && *epoch == answer.epoch
        });
        let older =
            agent.word.as_ref().is_some_and(|(uid, epoch, _)| *uid == answer.uid && *epoch > answer.epoch);
        if !older {
            if matches!(answer.word, Word::Held(_)) {
                self.heard.insert((answer.uid.clone(), answer.epoch));
            }
            agent.word = Some((answer.uid, answer.epoch, answer.word));
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
fn command_for(agent: &Agent, account: &KubesvcAccount) -> Option<Command> {
    let status = account.status_or_default();
    let (uid, epoch) = (account.uid().to_owned(), status.epoch);
    let said = agent.word.as_ref().filter(|(of, at, _)| *of == uid && *at == epoch).map(|(.., word)| word);
    let here = status.granted_zone() == Some(agent.zone);
    match (status.phase(), status.state()) {
        (GrantPhase::Open, State::Activating | State::Active | State::Orphaned) if here => {
            let current = status.grant.as_ref().is_some_and(|grant| grant.generation == account.generation());
            let wanting = match said {
                None | Some(Word::Lost(_) | Word::Dropped) => true,
                Some(Word::Failed(_)) => status.state() == State::Active,
                Some(Word::Held(_)) => false,
            };
            (wanting && current).then_some(Command::Add(uid, epoch))
        }
        (GrantPhase::Open, _) if here => None,
        (GrantPhase::Revoking, _) if here => {
            let answered = matches!(said, Some(Word::Dropped | Word::Failed(_)));
            (!answered).then_some(Command::Drop(uid, epoch))
        }
        _ => agent.holds.clone().map(|(held, since)| Command::Drop(held, since)),
    }
}
