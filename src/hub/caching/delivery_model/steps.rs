//! What may happen, and how often.

use super::settings::Setting;

/// How often each thing may happen.
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
    /// Readers that go on after their end.
    pub(super) late_reads: u8,
    /// Batches that hold one upsert each, where there is a choice.
    pub(super) small_batches: u8,
    /// Changes for which the agent has no room.
    pub(super) refusals: u8,
    /// Times after which a change that waits keeps its place.
    pub(super) waits: u8,
    /// Changes of which kinds are watched.
    pub(super) kinds: u8,
    pub(super) shapes: u8,
    pub(super) filters: u8,
}

/// Faults, under settings that stay.
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

/// Changes of objects, by the index of their name, and whether the object is there after it: one object changes before
/// and after the other, and one is gone again at once.
pub(super) const BURSTS: [[(usize, bool); 3]; 2] =
    [[(0, true), (1, true), (0, true)], [(0, true), (0, false), (1, true)]];

/// A step, with the index of the process, or of the object, that takes it.
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
    /// A process finds out.
    TakeSettings(usize),
    Read(usize),
    LateRead(usize),
    /// There is no room for what would be read next.
    Refuse(usize),
    Bookmark(usize),
    Send(usize),
    SendSmall(usize),
    HubReceives(usize),
    HubReads(usize),
    HubCommits(usize),
    /// All batches that wait, in one transaction.
    HubCommitsAll(usize),
    AgentReceives(usize),
    Cut(usize),
    Connect(usize),
    Crash(usize),
    Move(usize),
    OffOn(usize),
    Relist(usize),
    /// A hub that slept commits a batch of a stream that is gone.
    SleeperCommits(usize),
    SleeperEnds(usize),
    /// The leader deletes a row of a scope that is removed.
    Sweep,
    LoseCommit,
}

impl Step {
    /// Whether it needs no fault and no change.
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

    /// Takes the step off the budget.
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
