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
//! Nothing here reads a clock: time comes in as [`Tick`]s of the leader, and wall time only to be stamped.

mod caching_agent;
mod cluster_identity;
mod displayed_state;
mod facts;
mod listed;
mod observation;
mod retry;
mod revoke_progress;
mod rules;
mod status_change;
mod status_writer;
mod zone_choice;
mod zone_reports;
mod zone_retention;

pub use cluster_identity::{Comparison, Evidence, compare, is_another_cluster, mismatch, short};
pub use displayed_state::displayed_state;
pub(crate) use displayed_state::{generation_is_unhandled, retry_is_unhandled};
pub use facts::silence;
pub use observation::{
    AgentProcess, AgentReport, ClusterIdentity, CredentialFact, Fact, LifecyclePolicy, Observation, Offer,
    Presence, Rival, RowFact, SessionEnding, SessionFact, Tick,
};
pub use retry::{Retry, backoff, plan};
pub use status_writer::{EventDraft, StatusWrite};
pub use zone_reports::runs_in_another_cluster;

use facts::Facts;
use rules::Verdict;

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

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
