//! The rules of the lifecycle, in the order in which they are asked.
//!
//! A rule looks at the [`Facts`] and says what to do, or nothing. The first one that answers decides. To add one: a
//! function in the file of its situation, and its line below. The rules of [`MAINTENANCE`] are here.
//!
//! Beside the state stands the *grant*: None, Open or Revoking for one zone. It is what keeps an account out of two
//! zones at once, and the rules together hold these invariants:
//!
//! - the zone changes only Revoking → None → Open, never in one write, and the finalizer goes only from None;
//! - a revoke ends when each connected session of the zone has said Dropped for this uid and epoch; a session that
//!   has been away for the grace counts as dropped; silence does not;
//! - a Revoking grant is finished before anything else;
//! - an answer counts only for the uid and epoch it names.

mod deletion;
mod object;
mod registration;
mod revoke;
mod zone_holding;
mod zone_search;

use super::Action;
use super::caching_agent_election::{ElectionOutcome, election};
use super::facts::{Facts, earlier};
use super::observation::Tick;
use super::status_change::StatusChange;
use super::zone_choice::ZoneRetention;
use crate::{DesiredState, GrantPhase, State};

/// The lifecycle of an account.
#[rustfmt::skip]
const RULES: &[(Situation, &[Rule])] = &[
    (Situation::Any, &[object::take_over]),
    (Situation::BeingDeleted, &[
        deletion::delete_row_left_behind,
        registration::leave_clouddriver,
        deletion::begin_revoke,
        deletion::end_revoke,
        revoke::confirm,
        deletion::take_over_revoke,
        deletion::revoke_again,
        revoke::fail,
        revoke::acknowledge_retry,
        revoke::await_answers,
        deletion::delete_row,
        deletion::remove_finalizer,
    ]),
    (Situation::Live, &[
        object::delete_unlisted,
        object::give_way,
        object::await_request,
        object::respect_foreign_row,
        object::await_release,
        object::add_finalizer,
        object::insert_row,
    ]),
    (Situation::Revoking, &[
        revoke::confirm,
        revoke::end_in_failed,
        revoke::end,
        revoke::try_again,
        revoke::turn_into_deactivation,
        revoke::fail,
        revoke::acknowledge_retry,
        revoke::await_answers,
    ]),
    (Situation::Undesired, &[
        registration::leave_clouddriver,
        revoke::deactivate,
        revoke::become_inactive,
    ]),
    (Situation::Unplaced, &[
        zone_search::await_another_choice,
        zone_search::await_retry,
        zone_search::await_credential,
        zone_search::refuse_credential,
        zone_search::open_grant,
        zone_search::ask_for_offers,
        zone_search::await_agents,
        zone_search::fail_without_agent,
        zone_search::fail_for_ambiguity,
        zone_search::fail_without_zone,
    ]),
    (Situation::Placed, &[
        zone_holding::move_to_pinned_zone,
        zone_holding::leave_deserted_zone,
        zone_holding::leave_zone_of_several_clusters,
    ]),
    (Situation::PlacedAndFailed, &[
        zone_holding::heal,
        zone_holding::try_again,
        zone_holding::drop_in_another_cluster,
        zone_holding::acknowledge_in_failed,
        zone_holding::await_retry,
    ]),
    (Situation::PlacedAndWell, &[
        zone_holding::reopen_changed,
        zone_holding::refuse_credential,
        zone_holding::fail_unauthorized,
        zone_holding::become_active,
        zone_holding::acknowledge,
        zone_holding::orphan,
        zone_holding::await_answers,
        zone_holding::await_return,
        zone_holding::try_next_zone,
        zone_holding::fail,
    ]),
];

/// What is kept up of an account that needs nothing else now. Each is asked, and the first that acts decides; what they
/// wait for is waited for together.
#[rustfmt::skip]
const MAINTENANCE: &[(Situation, MaintenanceRule)] = &[
    (Situation::PlacedAndWell, replace_caching_agent),
    (Situation::PlacedAndWell, show_left_out),
    (Situation::PlacedAndWell, restate_credential),
    (Situation::PlacedAndWell, warn_of_expiry),
    (Situation::Placed,        recheck_deserted_zone),
    (Situation::Live,          update_listing_condition),
    (Situation::Live,          recheck_unlisted),
    (Situation::Live,          registration::show_registration),
];

/// Answers where it applies.
type Rule = fn(&Facts<'_>) -> Option<Verdict>;

/// The same, told when the account is looked at again.
type MaintenanceRule = fn(&Facts<'_>, Option<Tick>) -> Option<Verdict>;

/// What a rule decides.
pub(super) enum Verdict {
    /// Do this.
    Do(Action),
    /// Change the status.
    Write(Box<StatusChange>),
    /// Do nothing until something changes, or this tick comes.
    Wait(Option<Tick>),
}

impl Verdict {
    /// Do nothing until something changes.
    const NOTHING: Self = Self::Wait(None);

    fn wait_until(tick: Tick) -> Self {
        Self::Wait(Some(tick))
    }
}

impl From<Action> for Verdict {
    fn from(action: Action) -> Self {
        Self::Do(action)
    }
}

impl From<StatusChange> for Verdict {
    fn from(change: StatusChange) -> Self {
        Self::Write(Box::new(change))
    }
}

/// Where rules apply.
#[derive(Clone, Copy)]
enum Situation {
    /// Whatever becomes of the object.
    Any,
    /// The object is being deleted.
    BeingDeleted,
    /// The object is there to stay.
    Live,
    /// Live, and its zone is to drop it.
    Revoking,
    /// Live, to be INACTIVE, and no revoke is under way.
    Undesired,
    /// Live, to be ACTIVE, and no zone has the grant.
    Unplaced,
    /// Live, to be ACTIVE, and a zone has the grant.
    Placed,
    /// Placed, in FAILED.
    PlacedAndFailed,
    /// Placed, in another state than FAILED.
    PlacedAndWell,
}

impl Situation {
    fn holds(self, facts: &Facts<'_>) -> bool {
        let account = facts.observation.account;
        let (phase, desired) = (facts.status.phase(), account.desired());
        let is_placed = phase == GrantPhase::Open && desired == DesiredState::Active;
        let among_live = match self {
            Self::Any => return true,
            Self::BeingDeleted => return account.is_being_deleted(),
            Self::Live => true,
            Self::Revoking => phase == GrantPhase::Revoking,
            Self::Undesired => phase != GrantPhase::Revoking && desired == DesiredState::Inactive,
            Self::Unplaced => phase == GrantPhase::None && desired == DesiredState::Active,
            Self::Placed => is_placed,
            Self::PlacedAndFailed => is_placed && facts.state() == State::Failed,
            Self::PlacedAndWell => is_placed && facts.state() != State::Failed,
        };
        among_live && !account.is_being_deleted()
    }
}

/// Asks the rules.
pub(super) fn verdict(facts: &Facts<'_>) -> Verdict {
    let that_apply = RULES.iter().filter(|(situation, _)| situation.holds(facts));
    let mut wake = match that_apply.flat_map(|(_, rules)| *rules).find_map(|rule| rule(facts)) {
        Some(Verdict::Wait(wake)) => wake,
        Some(acts) => return acts,
        None => None,
    };
    for (_, rule) in MAINTENANCE.iter().filter(|(situation, _)| situation.holds(facts)) {
        match rule(facts, wake) {
            Some(Verdict::Wait(also)) => wake = earlier(wake, also),
            Some(acts) => return acts,
            None => {}
        }
    }
    Verdict::Wait(wake)
}

/// Replaces the agent that streams the objects of an ACTIVE account, when it can no longer or somebody asks for it.
fn replace_caching_agent(facts: &Facts<'_>, _: Option<Tick>) -> Option<Verdict> {
    if facts.state() != State::Active {
        return None;
    }
    match election(facts) {
        ElectionOutcome::Stays => None,
        ElectionOutcome::StaysUntil(tick) => Some(Verdict::wait_until(tick)),
        ElectionOutcome::Goes(..) => Some(StatusChange::acknowledged().electing().into()),
    }
}

/// Says what is left out of the account's objects, when that is something else and at most once a minute.
fn show_left_out(facts: &Facts<'_>, _: Option<Tick>) -> Option<Verdict> {
    let due = facts.left_out_is_due()?;
    Some(if due > facts.observation.now { Verdict::wait_until(due) } else { StatusChange::left_out().into() })
}

/// Writes down the version of a credential whose content has not changed, so that replicas send it.
fn restate_credential(facts: &Facts<'_>, _: Option<Tick>) -> Option<Verdict> {
    facts.credential_is_restated().then(|| StatusChange::acknowledged().with_credential().into())
}

/// Warns before the credential expires, and takes the warning back when it was renewed.
fn warn_of_expiry(facts: &Facts<'_>, _: Option<Tick>) -> Option<Verdict> {
    if facts.expiry_said() != facts.expiry_warning() {
        return Some(StatusChange::expiring().into());
    }
    facts.next_expiry_stage().map(Verdict::wait_until)
}

/// Looks again when the zone that was found for the account has been without agents for too long.
fn recheck_deserted_zone(facts: &Facts<'_>, _: Option<Tick>) -> Option<Verdict> {
    wait_for(ZoneRetention::of_found_zone(facts, facts.zone()))
}

/// Says which agent lists the account's name in its own file, too.
fn update_listing_condition(facts: &Facts<'_>, wake: Option<Tick>) -> Option<Verdict> {
    facts.listing_must_be_written(wake).then(|| StatusChange::listing().into())
}

/// Looks again when an account of an agent's own file may be no longer listed by any.
fn recheck_unlisted(facts: &Facts<'_>, _: Option<Tick>) -> Option<Verdict> {
    wait_for(ZoneRetention::of_static(facts))
}

fn wait_for(retention: ZoneRetention) -> Option<Verdict> {
    match retention {
        ZoneRetention::Until(tick) => tick.map(Verdict::wait_until),
        ZoneRetention::Over => None,
    }
}
