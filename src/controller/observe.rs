//! Fills the observation; decides nothing.

use jiff::Timestamp;

use super::memory::Memory;
use super::reconcile::Controller;
use crate::account::KubesvcAccount;
use crate::account::lifecycle::{Observation, RowFact, SessionFact, decide};
use crate::account::lifecycle::{Action, Decision};
use crate::store::projection::RowPresence;

impl Controller {
    /// What is to be done for an account, as it is seen now.
    pub(super) fn decide(&self, account: &KubesvcAccount, memory: &Memory) -> Decision {
        let context = &self.context;
        let sessions: Vec<SessionFact> = context.fleet.sessions(account.uid());
        let rival = self.rival_of(account);
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
            rival: rival.as_deref(),
        };
        let decision = decide(&observation);
        let asks_nothing = decision.action.is_none();
        let active = account.status.as_ref().is_some_and(|status| status.granted_zone().is_some());
        if memory.recheck && asks_nothing && active && !account.is_being_deleted() {
            return Action::ResolveCredential.into();
        }
        decision
    }

    fn row_fact(&self, account: &KubesvcAccount, memory: &Memory) -> RowFact {
        match self.context.projection.fact(account.uid()) {
            RowPresence::Present => RowFact::Present,
            RowPresence::Absent if memory.row_refused && !account.is_being_deleted() => RowFact::Unavailable,
            RowPresence::Absent => RowFact::Absent,
            RowPresence::Unavailable => RowFact::Unavailable,
        }
    }

    /// An older object with the same account name, as namespace/name.
    pub(super) fn rival_of(&self, account: &KubesvcAccount) -> Option<String> {
        let oldest = self.context.accounts.by_account_name(account.account_name()).into_iter().next()?;
        (oldest.uid() != account.uid()).then(|| crate::objects::AccountKey::of(&oldest).to_string())
    }
}
