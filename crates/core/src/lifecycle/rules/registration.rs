//! The account in Clouddriver: it leaves there before its zone has to drop it, and the status says whether it is there.

use super::Verdict;
use crate::lifecycle::facts::Facts;
use crate::lifecycle::observation::Tick;
use crate::lifecycle::status_change::StatusChange;
use crate::registration::RegistrationPresence;
use crate::{DesiredState, GrantPhase, State};

/// Waits until Clouddriver has the account no longer, for a bounded time, before the grant is revoked; says so once.
/// Nothing else of the status changes meanwhile.
pub(super) fn leave_clouddriver(facts: &Facts<'_>) -> Option<Verdict> {
    let until = leaves_until(facts)?;
    let presence = facts.observation.registration.as_ref().map(|registration| registration.presence);
    let is_said = presence == Some(RegistrationPresence::Unknown) || facts.says_it_leaves_clouddriver();
    Some(if is_said { Verdict::wait_until(until) } else { StatusChange::leaving_clouddriver().into() })
}

/// The tick until which the account leaves Clouddriver at most; absent: nothing is waited for.
fn leaves_until(facts: &Facts<'_>) -> Option<Tick> {
    let (observation, account) = (facts.observation, facts.observation.account);
    let registration = observation.registration.as_ref()?;
    let waits = (account.is_being_deleted() || account.desired() == DesiredState::Inactive)
        && facts.status.phase() == GrantPhase::Open
        && registration.presence != RegistrationPresence::Absent
        && observation.now < registration.leaves_until
        && facts.retry_asked().is_none()
        && !facts.is_forced();
    waits.then_some(registration.leaves_until)
}

/// Says whether Clouddriver has the account, when that is something else than the status says. A FAILED account is told
/// with its next status: each write begins its wait for a retry anew.
pub(super) fn show_registration(facts: &Facts<'_>, _: Option<Tick>) -> Option<Verdict> {
    let is_settled = matches!(facts.state(), State::Active | State::Orphaned | State::Inactive);
    let is_shown = is_settled && leaves_until(facts).is_none() && !facts.status.conditions.is_empty();
    (is_shown && facts.clouddriver_is_new()).then(|| StatusChange::registered().into())
}
