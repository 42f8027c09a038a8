//! The controller while it leads: its dependencies and its state.

use super::ControllerContext;
use super::adoption::SkippedRows;
use super::elections::Elections;
use super::events::Events;
use super::foreign_rows::ForeignRows;
use super::listings::Listings;
use super::memory::Memories;
use super::schedule::Schedule;
use crate::account::lifecycle::Tick;

/// The controller while it leads.
pub(super) struct Controller {
    pub(super) context: ControllerContext,
    pub(super) schedule: Schedule,
    pub(super) memories: Memories,
    pub(super) events: Events,
    /// Elections that are being written.
    pub(super) elections: Elections,
    /// Foreign rows.
    pub(super) foreign: ForeignRows,
    /// Foreign rows that adoption cannot take.
    pub(super) skipped: SkippedRows,
    /// Account names listed in agents' own files.
    pub(super) listings: Listings,
    pub(super) leading_since: Tick,
}

impl Controller {
    pub(super) fn new(context: ControllerContext, events: Events) -> Self {
        let schedule = Schedule::new(context.accounts.follow());
        let leading_since = context.ticks.now();
        Self {
            context,
            schedule,
            memories: Memories::default(),
            events,
            elections: Elections::default(),
            foreign: ForeignRows::default(),
            skipped: SkippedRows::default(),
            listings: Listings::default(),
            leading_since,
        }
    }
}
