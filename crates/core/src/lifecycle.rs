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
//! Beside the state stands the *grant* of a zone. The rules in their order, and the invariants that they hold together,
//! are in `lifecycle/rules.rs`; what they decide from is in `facts.rs`, and `status_writer.rs` alone writes a status.
//!
//! [`displayed_state`] is the state as REST and the row show it.
//!
//! Nothing here reads a clock: time comes in as [`Tick`]s of the leader, and wall time only to be stamped.

mod caching_agent_election;
mod cluster_identity;
mod facts;
mod observation;
mod retry_schedule;
mod rules;
mod status_change;
mod status_writer;
mod zone_choice;
mod zone_reports;

pub use cluster_identity::{is_another_cluster, mismatch, short};
pub use facts::silence;
pub use observation::{
    AgentProcess, AgentReport, CachingReport, ClusterIdentity, CredentialFact, Fact, LifecyclePolicy,
    Observation, Offer, Presence, Rival, RowFact, SessionEnding, SessionFact, Tick, UnansweredMessage,
};
pub use status_writer::{EventDraft, StatusWrite};
pub use zone_reports::runs_in_another_cluster;

use facts::Facts;
use rules::Verdict;

use crate::{DesiredState, GrantPhase, KubesvcAccount, RETRY_ANNOTATION, State};

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
    DeleteRows {
        /// Whether its cached objects stay, for the next account of its name.
        keeps_objects: bool,
    },
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

impl From<Action> for Decision {
    fn from(action: Action) -> Self {
        Self { action: Some(action), wake: None }
    }
}

/// Decides. The same observation gives the same decision.
pub fn decide(observation: &Observation<'_>) -> Decision {
    let facts = Facts::new(observation);
    match rules::verdict(&facts) {
        Verdict::Do(action) => action.into(),
        Verdict::Write(change) => Action::WriteStatus(Box::new(status_writer::write(*change, &facts))).into(),
        Verdict::Wait(wake) => Decision { action: None, wake },
    }
}

/// The state a caller sees: TO_MIGRATE, TO_DEACTIVATE or DELETING where what is desired, a deletion or a retry is not
/// yet handled; else the state of the status.
pub fn displayed_state(account: &KubesvcAccount) -> State {
    let status = account.status_or_default();
    let state = status.state();
    if account.is_being_deleted() {
        return if state == State::DeleteFailed && !retry_is_unhandled(account) {
            state
        } else {
            State::Deleting
        };
    }
    match account.desired() {
        DesiredState::Active => match state {
            State::Inactive => State::ToMigrate,
            State::Failed => failed_and_wanted(account, status.phase()),
            _ => state,
        },
        DesiredState::Inactive => match state {
            State::Active | State::Activating | State::Orphaned | State::ToMigrate => State::ToDeactivate,
            State::Failed => failed_and_unwanted(account, status.phase()),
            _ => state,
        },
    }
}

/// FAILED, and to be ACTIVE. A deactivation that failed is finished first.
fn failed_and_wanted(account: &KubesvcAccount, phase: GrantPhase) -> State {
    if !generation_is_unhandled(account) && !retry_is_unhandled(account) {
        return State::Failed;
    }
    if phase == GrantPhase::Revoking && !was_to_come_back(account) {
        State::Deactivating
    } else {
        State::ToMigrate
    }
}

/// FAILED, and to be INACTIVE. While a deactivation that failed is still wanted, only a retry changes what is shown.
fn failed_and_unwanted(account: &KubesvcAccount, phase: GrantPhase) -> State {
    if generation_is_unhandled(account) && (phase != GrantPhase::Revoking || was_to_come_back(account)) {
        State::ToDeactivate
    } else if retry_is_unhandled(account) {
        State::Deactivating
    } else {
        State::Failed
    }
}

/// Whether the zone had to let go of it for another reason than a deactivation.
fn was_to_come_back(account: &KubesvcAccount) -> bool {
    let (status, pinned) = (account.status_or_default(), account.spec.zone_id.as_ref());
    status.leaves_to_come_back() || (pinned.is_some() && pinned != status.granted_zone())
}

/// Whether the spec is newer than the status.
pub(crate) fn generation_is_unhandled(account: &KubesvcAccount) -> bool {
    account.status_or_default().observed_generation != account.generation()
}

/// Whether a retry was asked for and not acted on.
pub(crate) fn retry_is_unhandled(account: &KubesvcAccount) -> bool {
    unhandled_retry(account).is_some()
}

/// A value of the retry annotation that was not acted on.
fn unhandled_retry(account: &KubesvcAccount) -> Option<&str> {
    let asked = account.annotation(RETRY_ANNOTATION)?;
    let handled = account.status.as_ref().and_then(|status| status.retry_handled.as_deref());
    (handled != Some(&retry_schedule::mark(asked))).then_some(asked)
}

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
