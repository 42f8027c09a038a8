//! The object and its row, at the beginning of a life; and the one kind of object that the operator deletes by itself.

use super::Verdict;
use crate::account::lifecycle::Action;
use crate::account::lifecycle::facts::Facts;
use crate::account::lifecycle::observation::RowFact;
use crate::account::lifecycle::zone_retention::{self, ZoneRetention};

/// Deletes the object of an account of an agent's own file, when no agent lists it any more.
pub(super) fn delete_unlisted(facts: &Facts<'_>) -> Option<Verdict> {
    match zone_retention::of_static(facts) {
        ZoneRetention::Over if facts.observation.sessions_are_read => Some(Action::DeleteObject.into()),
        ZoneRetention::Over => Some(Action::ReadSessions.into()),
        ZoneRetention::Until(_) => None,
    }
}

/// Puts our finalizer on, before anything of the account exists elsewhere.
pub(super) fn add_finalizer(facts: &Facts<'_>) -> Option<Verdict> {
    (!facts.observation.account.has_finalizer()).then(|| Action::AddFinalizer.into())
}

/// Inserts the row, before a zone is given the grant.
pub(super) fn insert_row(facts: &Facts<'_>) -> Option<Verdict> {
    (facts.observation.row == RowFact::Absent).then(|| Action::InsertRow.into())
}
