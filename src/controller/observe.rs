//! Fills the observation; decides nothing.

use jiff::Timestamp;

use super::leader::Controller;
use super::memory::Memory;
use super::rival_of;
use crate::account::lifecycle::{Action, Decision, Observation, RowFact, SessionFact, decide};
use crate::account::{DesiredState, GrantPhase, KubesvcAccount, State};
use crate::objects::AccountKey;

impl Controller {
    /// What is to be done for an account, as it is seen now.
    pub(super) fn decide(&self, account: &KubesvcAccount, memory: &Memory) -> Decision {
        let context = &self.context;
        let mut sessions: Vec<SessionFact> = context.fleet.sessions(account.uid());
        let loads = context.accounts.cached_by(sessions.iter().map(|session| session.agent_id.as_str()));
        for (session, load) in sessions.iter_mut().zip(loads) {
            session.process.load = load + self.elections.of(&session.agent_id);
        }
        let rival = rival_of(context, account).map(|rival| AccountKey::of(&rival).to_string());
        let observation = Observation {
            account,
            now: context.ticks.now(),
            wall: Timestamp::now(),
            leading_since: self.leading_since,
            policy: &context.policy,
            in_state_since: memory.since,
            credential: memory.credential.clone(),
            credential_slow: memory.credential_slow,
            credential_changed: memory.credential_changed,
            row: self.row_fact(account, memory),
            sessions: &sessions,
            sessions_are_read: memory.sessions_are_read || context.fleet.is_all_here(),
            backlog_since: context.replicas.backlog_since(context.ticks.now()),
            rival: rival.as_deref(),
        };
        let decision = decide(&observation);
        if memory.recheck && decision.action.is_none() && may_need_its_credential(account) {
            return Action::ResolveCredential.into();
        }
        decision
    }

    fn row_fact(&self, account: &KubesvcAccount, memory: &Memory) -> RowFact {
        match self.context.projection.fact(account.uid(), account.account_name()) {
            RowFact::Absent if memory.row_refused && !account.is_being_deleted() => RowFact::Unavailable,
            // The lifecycle inserts its row, and that takes the place of the other.
            RowFact::Foreign if self.context.adopts.is_some() && !memory.row_refused => RowFact::Absent,
            fact => fact,
        }
    }
}

/// Whether a changed credential would change what is to be done.
fn may_need_its_credential(account: &KubesvcAccount) -> bool {
    let status = account.status_or_default();
    let awaits = matches!(status.state(), State::Failed | State::ToMigrate);
    let matters = status.phase() == GrantPhase::Open || awaits;
    matters && account.desired() == DesiredState::Active && !account.is_being_deleted()
}
