//! Possible steps, and their budget.

use super::settings::Setting;

/// Maximum number of steps of each type.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Budget {
    pub(super) writes: u8,
    pub(super) deletes: u8,
    pub(super) others: u8,
    /// Changes that are all read before anything is sent: one of [`BURSTS`].
    pub(super) bursts: u8,
    pub(super) compactions: u8,
    pub(super) cuts: u8,
    pub(super) crashes: u8,
    pub(super) moves: u8,
    pub(super) off_on: u8,
    pub(super) relists: u8,
    pub(super) losses: u8,
    /// Reads of ended readers.
    pub(super) late_reads: u8,
    /// Batches with one upsert each, where there is a choice.
    pub(super) small_batches: u8,
    /// Changes that the agent's queue refuses.
    pub(super) refusals: u8,
    /// Waits after which a queued change keeps its place.
    pub(super) waits: u8,
    /// Changes of the watched kinds.
    pub(super) kinds: u8,
    pub(super) shapes: u8,
    pub(super) filters: u8,
}

/// Faults under constant settings.
pub(super) const FAULTS: Budget = Budget {
    writes: 6,
    deletes: 2,
    others: 2,
    bursts: 1,
    compactions: 1,
    cuts: 3,
    crashes: 1,
    moves: 2,
    off_on: 1,
    relists: 1,
    losses: 0,
    late_reads: 3,
    small_batches: 6,
    refusals: 1,
    waits: 1,
    kinds: 0,
    shapes: 0,
    filters: 0,
};

/// Changes of objects, by the index of their name, with whether the object exists after the change: one object changes
/// before and after the other, and one is deleted right after its change.
pub(super) const BURSTS: [[(usize, bool); 3]; 2] =
    [[(0, true), (1, true), (0, true)], [(0, true), (0, false), (1, true)]];

/// A step, with the index of its process or object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Write(usize),
    Delete(usize),
    Other,
    /// A process reads one of [`BURSTS`].
    Burst(usize, usize),
    Compact,
    Wait,
    /// The settings change.
    Set(Setting),
    /// A process takes the changed settings.
    TakeSettings(usize),
    Read(usize),
    LateRead(usize),
    /// The queue refuses the next change.
    Refuse(usize),
    Bookmark(usize),
    Send(usize),
    SendSmall(usize),
    HubReceives(usize),
    HubReads(usize),
    HubCommits(usize),
    /// Commits all queued batches in one transaction.
    HubCommitsAll(usize),
    AgentReceives(usize),
    Cut(usize),
    Connect(usize),
    Crash(usize),
    Move(usize),
    OffOn(usize),
    Relist(usize),
    /// A paused hub commits a batch of an ended stream.
    SleeperCommits(usize),
    SleeperEnds(usize),
    /// The leader deletes a row of a removed scope.
    Sweep,
    LoseCommit,
}

impl Step {
    /// Whether the step is neither a fault nor a change.
    pub(super) fn happens_by_itself(self) -> bool {
        matches!(
            self,
            Self::Read(_)
                | Self::TakeSettings(_)
                | Self::Send(_)
                | Self::SendSmall(_)
                | Self::HubReceives(_)
                | Self::HubReads(_)
                | Self::HubCommits(_)
                | Self::HubCommitsAll(_)
                | Self::AgentReceives(_)
                | Self::Connect(_)
                | Self::Sweep
        )
    }

    /// Deducts the step from the budget.
    pub(super) fn spend(self, budget: &mut Budget) {
        let left = match self {
            Self::Write(_) => &mut budget.writes,
            Self::Delete(_) => &mut budget.deletes,
            Self::Other => &mut budget.others,
            Self::Burst(..) => &mut budget.bursts,
            Self::Compact => &mut budget.compactions,
            Self::Cut(_) => &mut budget.cuts,
            Self::Crash(_) => &mut budget.crashes,
            Self::Move(_) => &mut budget.moves,
            Self::OffOn(_) => &mut budget.off_on,
            Self::Relist(_) => &mut budget.relists,
            Self::LoseCommit => &mut budget.losses,
            Self::LateRead(_) => &mut budget.late_reads,
            Self::SendSmall(_) => &mut budget.small_batches,
            Self::Refuse(_) => &mut budget.refusals,
            Self::Wait => &mut budget.waits,
            Self::Set(Setting::Kind) => &mut budget.kinds,
            Self::Set(Setting::Shape) => &mut budget.shapes,
            Self::Set(Setting::Filter) => &mut budget.filters,
            Self::TakeSettings(_)
            | Self::Read(_)
            | Self::Bookmark(_)
            | Self::Send(_)
            | Self::HubReceives(_)
            | Self::HubReads(_)
            | Self::HubCommits(_)
            | Self::HubCommitsAll(_)
            | Self::AgentReceives(_)
            | Self::Connect(_)
            | Self::SleeperCommits(_)
            | Self::SleeperEnds(_)
            | Self::Sweep => return,
        };
        *left = left.saturating_sub(1);
    }
}
