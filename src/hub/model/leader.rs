//! What a replica that leads, or believes that it does, does next.

use super::world::{NOW, Version, World};
use crate::account::lifecycle::{
    Action, CredentialFact, Fact, Observation, Policy, Presence, Process, RowFact, SessionFact, StatusWrite,
    Word, decide,
};
use crate::account::outbox::OutboxEntry;
use crate::account::{FINALIZER, GrantPhase, KubesvcAccount, KubesvcAgent};
use crate::hub::model::world::HubSession;

/// What the leader takes for true about time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Mood {
    /// Nothing is due and nobody is silent.
    Prompt,
    /// Whatever waits for a retry is due.
    Due,
    /// Whoever owes an answer is silent.
    Silent,
}

impl World {
    /// The leader looks once. Whether anything has changed.
    pub(super) fn lead(&mut self, replica: usize, mood: Mood) -> bool {
        let Some(term) = self.replicas[replica].leads else { return false };
        let Some(seen) = self.seen_by(replica).cloned() else { return self.bury(replica, term) };
        let Some(action) = self.decision(replica, &seen.account, mood) else { return false };
        match action {
            Action::InsertRow => self.write_row(replica, term, Some(seen.account.uid().to_owned())),
            Action::DeleteRows => self.write_row(replica, term, None),
            Action::ReadSessions => {
                let epoch = seen.account.status_or_default().epoch;
                let agents = self.agents.clone();
                let reader = &mut self.replicas[replica];
                reader.agents = agents;
                reader.has_read = Some((seen.account.uid().to_owned(), epoch));
                self.close_superseded(replica);
                true
            }
            Action::ResolveCredential | Action::DeleteObject => false,
            Action::AddFinalizer | Action::RemoveFinalizer | Action::WriteStatus(_) => {
                self.write(replica, &seen, action)
            }
        }
    }

    fn decision(&self, replica: usize, account: &KubesvcAccount, mood: Mood) -> Option<Action> {
        let sessions = self.facts(replica, account, mood);
        let status = account.status_or_default();
        let has_read = Some((account.uid().to_owned(), status.epoch));
        let observation = Observation {
            account,
            now: NOW,
            wall: jiff::Timestamp::UNIX_EPOCH,
            leading_since: 0,
            policy: &Policy::default(),
            in_state_since: if mood == Mood::Due { 0 } else { NOW },
            credential: Fact::Known(Ok(CredentialFact { version: Some("v".into()) })),
            credential_slow: false,
            credential_changed: false,
            row: match &self.row {
                Some(uid) if uid == account.uid() => RowFact::Present,
                _ => RowFact::Absent,
            },
            sessions: &sessions,
            sessions_are_read: !self.rules.sessions_read || self.replicas[replica].has_read == has_read,
            backlog_since: None,
            rival: None,
        };
        decide(&observation).action
    }

    /// The sessions as the leader sees them: its own as they are, the others as its watch shows their objects.
    fn facts(&self, replica: usize, account: &KubesvcAccount, mood: Mood) -> Vec<SessionFact> {
        let own: Vec<_> = self.standing().filter(|session| session.replica == replica).collect();
        let mut facts: Vec<_> = own.iter().map(|session| self.own_fact(session, account, mood)).collect();
        for agent in self.replicas[replica].agents.values() {
            let is_own = |session: &&HubSession| {
                session.agent_id == agent.spec.agent_id && session.zone == agent.spec.zone_id
            };
            if !own.iter().any(is_own) {
                facts.extend(self.told_fact(replica, agent, account));
            }
        }
        if !self.rules.words_only && account.status_or_default().phase() == GrantPhase::Revoking {
            let epoch = account.status_or_default().epoch;
            facts.iter_mut().for_each(|fact| fact.word = fact.word.take().or(Some((epoch, Word::Dropped))));
        }
        facts
    }

    fn own_fact(&self, session: &HubSession, account: &KubesvcAccount, mood: Mood) -> SessionFact {
        let entry = session.ledger.entry(self.uid_on_the_wire(account.uid()));
        let epoch = account.status_or_default().epoch;
        let owes = entry.and_then(|entry| entry.owed).is_some_and(|(owed, _)| owed == epoch);
        let silent = if mood == Mood::Silent { Policy::default().operation_wait } else { 0 };
        SessionFact {
            word: entry.and_then(|entry| entry.word.clone()),
            silent_for: owes.then_some(silent),
            ..fact(session.agent_id, session.zone, Presence::Connected)
        }
    }

    fn told_fact(
        &self,
        replica: usize,
        agent: &KubesvcAgent,
        account: &KubesvcAccount,
    ) -> Option<SessionFact> {
        let status = agent.status.as_ref()?;
        let session = status.session.as_ref()?;
        let (id, zone) = (&agent.spec.agent_id, &agent.spec.zone_id);
        if !status.connected || session.replica == replica.to_string() {
            let gone = self.replicas[replica].gone.contains(&session.id);
            return Some(fact(id, zone, Presence::Away(if gone { 0 } else { NOW })));
        }
        let said = |entry: &&OutboxEntry| !self.rules.uids || entry.uid == account.uid();
        let word = status.outbox.iter().find(said).and_then(OutboxEntry::word);
        Some(SessionFact { word, ..fact(id, zone, Presence::Connected) })
    }

    /// Writes the object. With preconditions, nothing is written over a version that was not seen.
    fn write(&mut self, replica: usize, seen: &Version, action: Action) -> bool {
        if self.rules.preconditions && self.replicas[replica].lag > 0 {
            return false;
        }
        let Some(now) = self.object().cloned() else { return false };
        let mut account = now.account.clone();
        let finalizers = account.metadata.finalizers.get_or_insert_default();
        match action {
            Action::AddFinalizer => finalizers.push(FINALIZER.to_owned()),
            Action::RemoveFinalizer => finalizers.clear(),
            Action::WriteStatus(write) => {
                let status = self.bent(seen, *write).status;
                self.check_status(&now.account, &status);
                account.status = Some(status);
            }
            _ => return false,
        }
        let gone = account.is_being_deleted() && !account.has_finalizer();
        if gone {
            self.check_end(&now.account);
        }
        self.store((!gone).then_some(account));
        self.replicas[replica].lag = 0;
        self.replicas[replica].has_read = None;
        true
    }

    /// What is written instead where the zone need not change over None: the other zone at once.
    fn bent(&self, seen: &Version, mut write: StatusWrite) -> StatusWrite {
        let wanted = seen.account.spec.zone_id.clone();
        let leaves = write.status.granted_zone() != wanted.as_deref() && !seen.account.is_being_deleted();
        if !self.rules.zone_over_none
            && leaves
            && let Some(grant) = &mut write.status.grant
            && grant.phase == GrantPhase::Revoking
        {
            grant.phase = GrantPhase::Open;
            grant.zone = wanted;
        }
        write
    }

    /// The rows of an object that is gone go.
    fn bury(&mut self, replica: usize, term: u32) -> bool {
        self.row.is_some() && self.write_row(replica, term, None)
    }

    fn write_row(&mut self, replica: usize, term: u32, row: Option<String>) -> bool {
        if self.rules.terms && term != self.term {
            self.replicas[replica].leads = None;
            return true;
        }
        let changed = self.row != row;
        self.row = row;
        changed
    }
}

fn fact(agent_id: &str, zone: &str, presence: Presence) -> SessionFact {
    SessionFact {
        agent_id: agent_id.to_owned(),
        zone: zone.to_owned(),
        approved: true,
        presence,
        process: Process::default(),
        word: None,
        silent_for: None,
        offer: None,
        lists: Fact::Unknown,
    }
}
