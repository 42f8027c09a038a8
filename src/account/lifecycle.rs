//! The lifecycle: one observation of one account in, at most one action out.
//!
//! ```text
//!            desired ACTIVE                      Held
//!  INACTIVE ───────────────▶ (TO_MIGRATE) ─▶ ACTIVATING ─▶ ACTIVE ◀─▶ ORPHANED
//!      ▲                                        │   ▲ retry   │
//!      │ all dropped                            ▼   │         │ desired INACTIVE
//!      └────────────────────────────────────── FAILED ◀── DEACTIVATING
//!  being deleted: DELETING ◀─▶ DELETE_FAILED, then rows, then the finalizer
//! ```
//!
//! Beside the state stands the *grant*: None, Open or Revoking for one zone. It is what keeps an account out of two
//! zones at once, and these rules hold it:
//!
//! - the zone changes only Revoking → None → Open, never in one write, and the finalizer goes only from None;
//! - a revoke ends when each connected session of the zone has said Dropped for this uid and epoch; a session that
//!   has been away for the grace counts as dropped; silence does not;
//! - a Revoking grant is finished before anything else;
//! - an answer counts only for the uid and epoch it names.
//!
//! Nothing here reads a clock: time comes in as [`Tick`]s of the leader, and wall time only to be stamped.

mod active;
mod caching_agent;
mod cluster_identity;
mod context;
mod deletion;
mod displayed_state;
mod listed;
mod name_conflict;
mod observation;
mod retry;
mod revoke;
mod write;
mod zone_choice;
mod zone_reports;
mod zone_retention;

pub use cluster_identity::{Comparison, Evidence, compare, is_another_cluster, mismatch, short};
pub use context::silence;
pub use displayed_state::displayed_state;
pub(crate) use displayed_state::{generation_is_unhandled, retry_is_unhandled};
pub use observation::{
    AgentProcess, AgentReport, ClusterIdentity, CredentialFact, Fact, LifecyclePolicy, Observation, Offer,
    Presence, Rival, RowFact, SessionEnding, SessionFact, Tick,
};
pub use retry::{Retry, backoff, plan};
pub use write::{EventDraft, StatusWrite};
pub use zone_reports::runs_in_another_cluster;

use super::name_precedence::awaits_request;
use super::state::{DesiredState, GrantPhase, State};
use context::{LifecycleContext, earlier};
use zone_retention::ZoneRetention;

/// The one thing to do now. Each is one request; a crash before or after it leaves a state that the next observation
/// continues from.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Put our finalizer on the object.
    AddFinalizer,
    /// Take our finalizer off; the object goes with its last one.
    RemoveFinalizer,
    /// Insert the account's row, and wait until it is committed.
    InsertRow,
    /// Delete the account's rows, and wait until that is committed.
    DeleteRows,
    /// Read and vet the credential, so that the next observation knows it.
    ResolveCredential,
    /// Read the sessions of the account's zone from the API server, so that the next observation knows those that a watch
    /// has not shown yet: a revoke is about to end, or the zone to be called deserted.
    ReadSessions,
    /// Delete the object itself: a static account that its agents no longer list.
    DeleteObject,
    /// Write the status.
    WriteStatus(Box<StatusWrite>),
}

/// What to do now, and when to look again if nothing wakes us before.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// At most one action.
    pub action: Option<Action>,
    /// Look again at this tick; absent: a change of something observed will wake us.
    pub wake: Option<Tick>,
}

impl Decision {
    pub(crate) fn nothing() -> Self {
        Self::default()
    }

    pub(crate) fn wait_until(tick: Tick) -> Self {
        Self { action: None, wake: Some(tick) }
    }
}

impl From<Action> for Decision {
    fn from(action: Action) -> Self {
        Self { action: Some(action), wake: None }
    }
}

/// Decides. The same observation gives the same decision.
pub fn decide(observation: &Observation<'_>) -> Decision {
    let context = LifecycleContext::new(observation);
    if observation.account.is_being_deleted() {
        return deletion::decide(&context);
    }
    match zone_retention::of_static(&context) {
        ZoneRetention::Over if !observation.sessions_are_read => Action::ReadSessions.into(),
        ZoneRetention::Over => Action::DeleteObject.into(),
        ZoneRetention::Until(again) => {
            let decision = live(&context);
            let wake = if decision.action.is_none() { earlier(decision.wake, again) } else { None };
            Decision { wake, ..decision }
        }
    }
}

/// The object is there to stay. Where there is nothing else to do, its status says which agent lists its name too.
fn live(context: &LifecycleContext<'_>) -> Decision {
    let decision = to_desired(context);
    if decision.action.is_some() || !listed::is_to_be_told(context, decision.wake) {
        return decision;
    }
    write::listing_told(context).into()
}

/// The way to what is desired.
fn to_desired(context: &LifecycleContext<'_>) -> Decision {
    let observation = context.observation;
    if let Some(first) = observation.rival {
        return name_conflict::duplicate(context, first);
    }
    if awaits_request(observation.account) {
        return name_conflict::waits(context);
    }
    if let Some(decision) = name_conflict::foreign_row(context) {
        return decision;
    }
    if observation.name_is_held && context.status.phase() == GrantPhase::None {
        // Its agents and its row have the name. It loses them now, and this one is looked at until then.
        return Decision::wait_until(observation.now + 1);
    }
    if !observation.account.has_finalizer() {
        return Action::AddFinalizer.into();
    }
    if observation.row == RowFact::Absent {
        return Action::InsertRow.into();
    }
    match (context.status.phase(), observation.account.desired()) {
        (GrantPhase::Revoking, _) => revoke::decide(context),
        (GrantPhase::Open, DesiredState::Inactive) => {
            revoke::begin(context, State::Deactivating).forgiven().into()
        }
        (GrantPhase::None, DesiredState::Inactive) => revoke::rest(context),
        (GrantPhase::None, DesiredState::Active) => active::open(context),
        (GrantPhase::Open, DesiredState::Active) => active::keep(context),
    }
}

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
