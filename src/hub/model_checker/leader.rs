//! Next steps of a replica that leads, or believes to lead.

use crate::hub::model_checker::checks::Property;
use crate::hub::model_checker::shared::Shared;
use crate::hub::model_checker::world::{
    HubSession, ModelReplica, ModelWorld, NOW, ObjectVersion, REPLICA_NAMES, SessionReading, number_of,
    session_of,
};
use kubesvc_core::lifecycle::{
    Action, AgentProcess, AgentReport, CredentialFact, Fact, LifecyclePolicy, Observation, Offer, Presence,
    RowFact, SessionFact, StatusWrite, Tick, decide,
};
use kubesvc_core::report_outbox::OutboxEntry;
use kubesvc_core::{FINALIZER, GrantPhase, KubesvcAccount, KubesvcAgent};

/// Ticks after which an agent with an outstanding answer counts as silent.
const OPERATION_WAIT: Tick = 30;

/// Assumptions of the leader about time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Mood {
    /// No retry is due and no agent is silent.
    Prompt,
    /// Every pending retry is due.
    Due,
    /// Every agent with an outstanding answer is silent.
    Silent,
}

/// A decision, and the object it is based on.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) seen: Option<ObjectVersion>,
    /// `None`: the object was deleted, and its row follows.
    pub(super) action: Option<Action>,
}

impl ModelWorld {
    /// The leader decides and acts. Returns whether anything changed.
    pub(super) fn lead(&mut self, replica: usize, mood: Mood) -> bool {
        if self.replicas[replica].leads.is_none() || self.replicas[replica].pending.is_some() {
            return false;
        }
        match self.intent(replica, mood) {
            Some(pending) => self.carry_out(replica, pending),
            // The read of the sessions is stale at the next decision.
            None => self.rules.reads_afresh && self.replicas[replica].has_read.take().is_some(),
        }
    }

    /// The leader decides, and sleeps before it acts.
    pub(super) fn doze(&mut self, replica: usize) -> bool {
        let pending = self.intent(replica, Mood::Prompt);
        let counts =
            |one: &Pending| !matches!(one.action, Some(Action::ReadSessions | Action::ResolveCredential));
        self.replicas[replica].pending = pending.filter(counts).map(Shared::new);
        self.replicas[replica].pending.is_some()
    }

    /// The leader wakes, and acts.
    pub(super) fn act(&mut self, replica: usize) -> bool {
        let Some(pending) = self.replicas[replica].pending.take() else { return false };
        self.carry_out(replica, (*pending).clone());
        true
    }

    /// Returns the decision, from what the replica sees.
    fn intent(&self, replica: usize, mood: Mood) -> Option<Pending> {
        let Some(seen) = self.seen_by(replica).cloned() else {
            return self.row.is_some().then_some(Pending { seen: None, action: None });
        };
        let action = self.decision(replica, &seen, mood)?;
        Some(Pending { seen: Some(seen), action: Some(action) })
    }

    fn carry_out(&mut self, replica: usize, pending: Pending) -> bool {
        let (Some(seen), Some(action)) = (pending.seen, pending.action) else {
            return self.write_row(replica, None);
        };
        match action {
            Action::InsertRow => self.write_row(replica, Some(number_of(seen.uid()))),
            Action::DeleteRows { .. } => self.write_row(replica, None),
            Action::ReadSessions => {
                let epoch = seen.status_or_default().epoch;
                self.replicas[replica].agents = self.agents.clone();
                let (uid, before) = (number_of(seen.uid()), self.next_session);
                self.replicas[replica].has_read = Some(SessionReading { uid, epoch: epoch.0, before });
                self.forget_gone(replica);
                true
            }
            Action::ResolveCredential => false,
            // An agent that lists the account connects before the object exists.
            Action::DeleteObject if !self.knows_listing_agents(replica) => false,
            Action::DeleteObject => {
                let what = || "an account that an agent lists was deleted by itself".to_owned();
                self.breaks(Property::ListedStays, what);
                true
            }
            Action::AddFinalizer | Action::RemoveFinalizer | Action::WriteStatus(_) => {
                self.write(replica, &seen, action)
            }
        }
    }

    /// Forgets sessions that were away for the grace and are not named any more.
    pub(super) fn forget_gone(&mut self, replica: usize) {
        let ModelReplica { agents, gone, .. } = &mut self.replicas[replica];
        if !gone.is_empty() {
            let named: Vec<_> = agents.iter().flatten().filter_map(|agent| session_of(agent)).collect();
            gone.retain(|id| named.contains(id));
        }
    }

    fn decision(&self, replica: usize, account: &KubesvcAccount, mood: Mood) -> Option<Action> {
        let sessions = self.facts(replica, account, mood);
        let status = account.status_or_default();
        let has_read = self.replicas[replica]
            .has_read
            .is_some_and(|read| (read.uid, read.epoch) == (number_of(account.uid()), status.epoch.0));
        let observation = Observation {
            account,
            now: NOW,
            wall: jiff::Timestamp::UNIX_EPOCH,
            leading_since: 0,
            policy: &self.policy(),
            in_state_since: if mood == Mood::Due { 0 } else { NOW },
            credential: Fact::Known(Ok(CredentialFact::new(Some("v".into())))),
            credential_slow: false,
            credential_changed: false,
            credential_expiry: Fact::Unknown,
            row: match self.row {
                Some(uid) if uid == number_of(account.uid()) => RowFact::Present,
                _ => RowFact::Absent,
            },
            sessions: &sessions,
            sessions_are_read: !self.rules.sessions_read || has_read,
            backlog_since: None,
            rival: None,
            listed_by: Fact::Known(None),
            name_is_held: false,
            left_out_written: None,
            unreadable_replaced_from: 0,
            clouddriver_file: None,
            registration: None,
        };
        decide(&observation).action
    }

    /// Whether the leader knows an agent that lists the account.
    fn knows_listing_agents(&self, replica: usize) -> bool {
        self.replicas[replica].agents.iter().flatten().any(|agent| self.lists(agent.spec.agent_id.as_str()))
    }

    /// Its ticks do not advance, so no agent is away for the cleanup time.
    fn policy(&self) -> LifecyclePolicy {
        LifecyclePolicy {
            max_retries: 3,
            retry_first: 5,
            retry_multiplier: 2.0,
            retry_max: 300,
            orphan_grace: 30,
            operation_wait: OPERATION_WAIT,
            account_cleanup: 2 * NOW,
            clean_unused_accounts: false,
            offers: true,
            agent_wins: false,
            installation: None,
        }
    }

    /// The sessions as the leader sees them: its own directly, others through their objects in its watch.
    fn facts(&self, replica: usize, account: &KubesvcAccount, mood: Mood) -> Vec<SessionFact> {
        let counts = |session: &&HubSession| session.replica == replica && !self.gives_way(replica, session);
        let own: Vec<_> = self.standing().filter(counts).collect();
        let mut facts: Vec<_> = own.iter().map(|session| self.own_fact(session, account, mood)).collect();
        for agent in self.replicas[replica].agents.iter().flatten() {
            if !own.iter().any(|session| session.agent_id == agent.spec.agent_id) {
                facts.extend(self.reported_fact(replica, agent, account));
            }
        }
        if !self.rules.unapproved_awaited {
            let has_it = |fact: &SessionFact| !matches!(fact.report, None | Some((_, AgentReport::Dropped)));
            facts.retain(|fact| fact.approved || has_it(fact));
        }
        if !self.rules.reports_only && account.status_or_default().phase() == GrantPhase::Revoking {
            let epoch = account.status_or_default().epoch;
            facts
                .iter_mut()
                .for_each(|fact| fact.report = fact.report.take().or(Some((epoch, AgentReport::Dropped))));
        }
        facts
    }

    /// Whether another replica has the agent's stream by now, according to the objects that a replica has seen.
    fn gives_way(&self, replica: usize, session: &HubSession) -> bool {
        let agent = self.replicas[replica].agents[session.agent].as_ref();
        let named = agent.and_then(|agent| agent.status.as_ref()?.session.as_ref());
        let is_elsewhere = named.is_some_and(|named| named.replica != REPLICA_NAMES[replica]);
        let is_later = agent.and_then(|agent| session_of(agent)).is_some_and(|id| id > session.id);
        self.rules.in_force_only && is_elsewhere && is_later
    }

    fn own_fact(&self, session: &HubSession, account: &KubesvcAccount, mood: Mood) -> SessionFact {
        let entry = session.ledger.entry(self.uid_on_the_wire(account.uid()));
        let epoch = account.status_or_default().epoch;
        let owes = entry.and_then(|entry| entry.owed).is_some_and(|(owed, _)| owed == epoch);
        let silent = if mood == Mood::Silent { OPERATION_WAIT } else { 0 };
        SessionFact {
            report: entry.and_then(|entry| entry.report.clone()),
            silent_for: owes.then_some(silent),
            approved: session.approved || !self.rules.approved_offers,
            // Every probed agent can reach the cluster.
            offer: account.needs_zone_probe().then(|| (account.generation(), Offer::Yes)),
            lists: Fact::Known(self.lists(session.agent_id) || !self.rules.own_lists),
            ..fact(session.agent_id, session.zone, Presence::Connected)
        }
    }

    fn reported_fact(
        &self,
        replica: usize,
        agent: &KubesvcAgent,
        account: &KubesvcAccount,
    ) -> Option<SessionFact> {
        let status = agent.status.as_ref()?;
        let session = status.session.as_ref()?;
        let (id, zone) = (&agent.spec.agent_id, &agent.spec.zone_id);
        let gone = session_of(agent).is_some_and(|id| self.replicas[replica].gone.contains(&id));
        // The death of a replica is not known at once.
        if !status.connected || session.replica == REPLICA_NAMES[replica] || (gone && self.is_lost(agent)) {
            let away = fact(id.as_str(), zone.as_str(), Presence::Away(if gone { 0 } else { NOW }));
            let lists = match self.rules.away_lists {
                true => Fact::Known(self.lists(id.as_str())),
                false => Fact::Unknown,
            };
            return Some(SessionFact { approved: agent.spec.approved, lists, ..away });
        }
        let said = |entry: &&OutboxEntry| !self.rules.uids || entry.uid == account.uid();
        let entry = status.outbox.iter().find(said);
        let word = entry.and_then(OutboxEntry::report);
        let offer = entry.and_then(|entry| entry.offer(account));
        let approved = agent.spec.approved || !self.rules.approved_offers;
        let lists = Fact::Known(self.lists(id.as_str()) || !self.rules.own_lists);
        Some(SessionFact {
            report: word,
            approved,
            offer,
            lists,
            ..fact(id.as_str(), zone.as_str(), Presence::Connected)
        })
    }

    /// Writes the object. With preconditions, only over the version that was seen.
    fn write(&mut self, replica: usize, seen: &ObjectVersion, action: Action) -> bool {
        let Some(now) = self.object().cloned() else { return false };
        if self.rules.preconditions && !now.is(seen) {
            return false;
        }
        let mut account = (*now).clone();
        let finalizers = account.metadata.finalizers.get_or_insert_default();
        match action {
            Action::AddFinalizer => finalizers.push(FINALIZER.to_owned()),
            Action::RemoveFinalizer => finalizers.clear(),
            Action::WriteStatus(write) => {
                let status = self.bent(seen, *write).status;
                self.check_status(replica, &now, &status);
                account.status = Some(status);
            }
            _ => return false,
        }
        let gone = account.is_being_deleted() && !account.has_finalizer();
        if gone {
            self.check_end(&now);
        }
        self.store((!gone).then_some(account));
        self.replicas[replica].lag = 0;
        self.replicas[replica].has_read = None;
        true
    }

    /// The status that is written if a zone may change without None: the other zone at once.
    fn bent(&self, seen: &ObjectVersion, mut write: StatusWrite) -> StatusWrite {
        let wanted = seen.spec.zone_id.clone();
        let leaves = write.status.granted_zone() != wanted.as_ref() && !seen.is_being_deleted();
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

    fn write_row(&mut self, replica: usize, row: Option<u8>) -> bool {
        let Some(term) = self.replicas[replica].leads else { return false };
        if term != self.term {
            if self.rules.terms {
                self.replicas[replica].leads = None;
                return true;
            }
            self.check_late_row(term, row);
        }
        std::mem::replace(&mut self.row, row) != row
    }
}

fn fact(agent_id: &str, zone: &str, presence: Presence) -> SessionFact {
    SessionFact {
        agent_id: agent_id.into(),
        zone: zone.into(),
        approved: true,
        presence,
        process: AgentProcess::default(),
        report: None,
        silent_for: None,
        unanswered: None,
        offer: None,
        lists: Fact::Unknown,
        cluster_uid: String::new(),
        caching: None,
    }
}
