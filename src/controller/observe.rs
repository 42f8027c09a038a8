//! Builds the observation. Decides nothing.

use jiff::Timestamp;

use super::Controller;
use super::account_rows::{is_name_held, rival_of};
use super::transient_state::TransientState;
use kubesvc_clouddriver::definition::file_on_clouddriver;
use kubesvc_clouddriver::registration::also_condition;
use kubesvc_core::lifecycle::{
    Action, Decision, Fact, Observation, Rival, RowFact, SessionFact, Tick, decide,
};
use kubesvc_core::registration::{ClouddriverFacts, RegistrationPresence};
use kubesvc_core::secret_reference::is_read_by_operator;
use kubesvc_core::{DesiredState, GrantPhase, KubesvcAccount, State};

impl Controller {
    /// Decides what to do for an account as observed now.
    pub(super) fn decide(&self, account: &KubesvcAccount, transient_state: &TransientState) -> Decision {
        let context = &self.context;
        let mut sessions: Vec<SessionFact> = context.connected_agents.sessions(account.uid());
        let loads = context.accounts.cached_by(sessions.iter().map(SessionFact::agent));
        for (session, load) in sessions.iter_mut().zip(loads) {
            session.process.load = load + self.elections.of(&session.agent());
        }
        let rival = rival_of(context, account).map(|rival| Rival::of(&rival));
        let listed_by = self.listings.of(account);
        let observation = Observation {
            account,
            now: context.ticks.now(),
            wall: Timestamp::now(),
            leading_since: self.leading_since,
            policy: &context.policy,
            in_state_since: transient_state.since,
            credential: match context.source_rules.check(account) {
                Ok(()) => transient_state.credential.clone(),
                Err(forbidden) => Fact::Known(Err(forbidden)),
            },
            credential_slow: transient_state.credential_slow,
            credential_changed: transient_state.credential_changed,
            credential_expiry: transient_state.credential_expiry(),
            row: self.row_fact(account, transient_state),
            sessions: &sessions,
            sessions_are_read: transient_state.sessions_are_read || context.connected_agents.is_all_here(),
            backlog_since: context.replicas.backlog_since(context.ticks.now()),
            rival: rival.as_ref(),
            listed_by: match &listed_by {
                Fact::Known(agent) => Fact::Known(agent.as_deref()),
                Fact::Unknown => Fact::Unknown,
            },
            name_is_held: is_name_held(context, account),
            left_out_written: transient_state.left_out_written,
            unreadable_replaced_from: transient_state.elections.unreadable_replaced_from(),
            clouddriver_file: file_on_clouddriver(account),
            registration: self.registration_of(account),
        };
        let mut decision = decide(&observation);
        let may_be_read = context.source_rules.check(account).is_ok();
        if decision.action.is_none() && may_be_read && may_need_its_credential(account) {
            let now = context.ticks.now();
            let again = self.when_mismatched(account, now);
            if transient_state.recheck() || again == Some(now) {
                return Action::ResolveCredential.into();
            }
            if let Some(tick) = again {
                decision.wake = Some(decision.wake.map_or(tick, |wake| wake.min(tick)));
            }
        }
        decision
    }

    /// What is known of the account in Clouddriver. The time for which it is waited for there begins when the account is
    /// first seen to go.
    fn registration_of(&self, account: &KubesvcAccount) -> Option<ClouddriverFacts> {
        let Some(registrations) = &self.context.registrations else {
            return Some(ClouddriverFacts {
                condition: Fact::Known(None),
                also: also_condition(account, None, false),
                presence: RegistrationPresence::Absent,
                leaves_until: 0,
            });
        };
        let leaves = account.is_being_deleted() || account.desired() == DesiredState::Inactive;
        let mut leaving_since = self.context.ticks.now();
        self.transient_states.update(account.uid(), |transient_state| {
            let since = leaves.then(|| transient_state.leaving_since.unwrap_or(leaving_since));
            transient_state.leaving_since = since;
            leaving_since = since.unwrap_or(leaving_since);
        });
        Some(registrations.of(account.uid(), leaving_since))
    }

    /// The tick at which to read the credential again because a session finds another one; `now` if at once. For a
    /// Secret that is not watched, this is the only signal.
    fn when_mismatched(&self, account: &KubesvcAccount, now: Tick) -> Option<Tick> {
        let is_asked_for = account.status_or_default().state() != State::Failed;
        if !is_asked_for || !is_read_by_operator(account.spec.agent_source()) {
            return None;
        }
        if !self.context.connected_agents.credential_mismatch(account.uid()) {
            self.transient_states.credential_matched(account.uid());
            return None;
        }
        Some(self.transient_states.credential_mismatched(account.uid(), now).unwrap_or(now))
    }

    fn row_fact(&self, account: &KubesvcAccount, transient_state: &TransientState) -> RowFact {
        match self.context.projection.fact(account.uid(), account.account_name()) {
            RowFact::Absent if transient_state.row_refused && !account.is_being_deleted() => {
                RowFact::Unavailable
            }
            // The lifecycle then inserts the row, which replaces the foreign one.
            RowFact::Foreign if self.context.adopts.is_some() && !transient_state.row_refused => {
                RowFact::Absent
            }
            fact => fact,
        }
    }
}

/// Whether a changed credential could change the next action.
fn may_need_its_credential(account: &KubesvcAccount) -> bool {
    let status = account.status_or_default();
    let awaits = matches!(status.state(), State::Failed | State::ToMigrate);
    let matters = status.phase() == GrantPhase::Open || awaits;
    matters && account.desired() == DesiredState::Active && !account.is_being_deleted()
}
