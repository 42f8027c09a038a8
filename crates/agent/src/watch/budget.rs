//! Limits on concurrent lists, per account and agent, and on their memory: for bases, and for the objects they have
//! sent.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::scrub::MAX_LINE_BYTES;

/// Memory for the bases of all running lists, in KiB.
const BASIS_KIB: u32 = 32 * 1024;
/// Memory of a row of a basis, in bytes.
const ROW_BYTES: u64 = 100;
/// Memory for the objects that all lists have sent, in KiB. Separate from that of the bases, for which lists wait:
/// waiting lists keep this memory, so with one pool each could wait for another.
const SENT_KIB: usize = 32 * 1024;
/// Sent objects per KiB: a hash takes 9 bytes of a table that is half full at worst, and 32 bytes while the table
/// grows.
const SENT_OBJECTS_PER_KIB: usize = 32;

/// Bounds of concurrent lists, shared by clones.
#[derive(Clone, Debug)]
pub struct ListBudget {
    agent: Arc<Semaphore>,
    account: Arc<Semaphore>,
    basis: Arc<Semaphore>,
    sent: Arc<Semaphore>,
}

/// Permission to list, until dropped.
#[derive(Debug)]
pub struct ListPermit {
    /// `None` after [`Self::leave_turn`].
    turn: Option<ListTurn>,
    basis: Option<OwnedSemaphorePermit>,
}

/// A turn among the lists of the account and of the agent, until dropped.
#[derive(Debug)]
pub(super) struct ListTurn {
    _permits: Vec<OwnedSemaphorePermit>,
}

impl ListPermit {
    /// Takes memory for a basis of `rows` rows, if available. A basis larger than the whole budget takes all of it.
    pub(super) fn reserve(&mut self, rows: u64) -> bool {
        self.basis.as_mut().is_some_and(|basis| grow(basis, basis_kib(rows)))
    }

    /// Leaves the turn to other lists while this one cannot proceed. Its basis stays counted.
    pub fn leave_turn(&mut self) {
        self.turn = None;
    }

    pub(super) fn has_turn(&self) -> bool {
        self.turn.is_some()
    }

    pub(super) fn retake_turn(&mut self, turn: ListTurn) {
        self.turn = Some(turn);
    }
}

/// Memory for the objects that the lists of one scope have sent, until dropped.
#[derive(Debug, Default)]
pub(super) struct SentMemory(Option<OwnedSemaphorePermit>);

impl SentMemory {
    /// Takes memory for this many objects, if available.
    pub(super) fn reserve(&mut self, budget: &ListBudget, objects: usize) -> bool {
        let kib = u32::try_from(objects.div_ceil(SENT_OBJECTS_PER_KIB)).unwrap_or(u32::MAX);
        if let Some(memory) = &mut self.0 {
            return grow(memory, kib);
        }
        self.0 = Arc::clone(&budget.sent).try_acquire_many_owned(kib).ok();
        self.0.is_some()
    }
}

/// Takes permits up to this number, if available.
fn grow(held: &mut OwnedSemaphorePermit, permits: u32) -> bool {
    let more = permits.saturating_sub(u32::try_from(held.num_permits()).unwrap_or(u32::MAX));
    if more == 0 {
        return true;
    }
    match Arc::clone(held.semaphore()).try_acquire_many_owned(more) {
        Ok(more) => {
            held.merge(more);
            true
        }
        Err(_) => false,
    }
}

/// Memory for this many rows, in KiB; at most the whole budget.
fn basis_kib(rows: u64) -> u32 {
    let kib = (rows.saturating_mul(ROW_BYTES) / 1024).clamp(1, BASIS_KIB.into());
    u32::try_from(kib).unwrap_or(BASIS_KIB)
}

impl ListBudget {
    /// A budget of concurrent lists in the agent, and in each account; 0: no bound.
    pub fn new(in_agent: usize, in_account: usize) -> Self {
        Self {
            agent: bound(in_agent),
            account: bound(in_account),
            basis: Arc::new(Semaphore::new(BASIS_KIB as usize)),
            sent: Arc::new(Semaphore::new(SENT_KIB)),
        }
    }

    /// The budget of another account of the agent.
    #[must_use]
    pub fn for_account(&self, in_account: usize) -> Self {
        Self { account: bound(in_account), ..self.clone() }
    }

    /// Waits until a list with a basis of `rows` rows may begin. A basis larger than the whole budget runs alone.
    pub async fn acquire(self, rows: u64) -> ListPermit {
        let basis = Arc::clone(&self.basis);
        let turn = Some(self.turn().await);
        ListPermit { turn, basis: basis.acquire_many_owned(basis_kib(rows)).await.ok() }
    }

    /// Waits for a turn, in FIFO order. Lists that hold a turn may wait for memory, so a list that has its basis must
    /// not wait for long.
    pub(super) async fn turn(self) -> ListTurn {
        // The account's first, so that a list waiting for it does not keep other accounts from listing. Always in this
        // order, to avoid a deadlock.
        let mut permits = Vec::with_capacity(2);
        for bound in [self.account, self.agent] {
            permits.extend(bound.acquire_owned().await);
        }
        ListTurn { _permits: permits }
    }
}

/// Permits for this many lists; 0: no bound.
fn bound(lists: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(if lists == 0 { Semaphore::MAX_PERMITS } else { lists }))
}

/// Size from which a line or item needs a turn, in bytes.
pub(super) const LARGE_PIECE_BYTES: usize = 256 * 1024;
/// Memory for large lines and items, in bytes; each may grow up to the maximum of a line.
const LARGE_PIECES_BYTES: usize = 64 * 1024 * 1024;

/// The turns of an agent's large lines and items, shared by clones.
#[derive(Clone, Debug)]
pub struct LargePieces(Arc<Semaphore>);

/// A turn, until dropped.
#[derive(Debug)]
pub(super) struct LargePieceTurn {
    _permit: Option<OwnedSemaphorePermit>,
}

impl Default for LargePieces {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(LARGE_PIECES_BYTES / MAX_LINE_BYTES)))
    }
}

impl LargePieces {
    pub(super) async fn turn(self) -> LargePieceTurn {
        LargePieceTurn { _permit: self.0.acquire_owned().await.ok() }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt as _;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn list_waits_for_its_account_and_for_the_agent() {
        let first = ListBudget::new(2, 1);
        let second = first.for_account(1);
        let listing = first.clone().acquire(10).await;
        assert!(first.clone().acquire(10).now_or_never().is_none(), "the account lists");
        let other = second.acquire(10).await;
        assert!(first.for_account(1).acquire(10).now_or_never().is_none(), "the agent has two lists");
        drop((listing, other));
        assert!(first.acquire(10).now_or_never().is_some());
    }

    #[tokio::test]
    async fn zero_is_no_bound() {
        let budget = ListBudget::new(0, 0);
        let mut listing = Vec::new();
        for _ in 0..1000 {
            let listed = timeout(Duration::from_secs(10), budget.clone().acquire(1)).await;
            listing.push(listed.expect("a list runs"));
        }
    }

    #[tokio::test]
    async fn list_that_cannot_go_on_leaves_its_turn_and_keeps_its_memory() {
        let budget = ListBudget::new(1, 1);
        let mut waiting = budget.clone().acquire(1).await;
        waiting.leave_turn();
        let other = budget.clone().acquire(1).now_or_never().expect("there is a turn");
        assert!(!waiting.has_turn() && budget.clone().turn().now_or_never().is_none());
        drop(other);
        waiting.retake_turn(budget.clone().turn().now_or_never().expect("there is a turn"));
        assert!(waiting.has_turn() && budget.clone().acquire(1).now_or_never().is_none());
        drop(waiting);
        let mut large = budget.clone().acquire(u64::MAX).await;
        large.leave_turn();
        assert!(budget.acquire(1).now_or_never().is_none(), "its rows are in memory");
    }

    #[tokio::test]
    async fn list_larger_than_all_memory_runs_alone() {
        let budget = ListBudget::new(8, 8);
        let huge = budget.clone().acquire(u64::MAX).await;
        assert!(budget.clone().acquire(1).now_or_never().is_none());
        drop(huge);
        let _small = budget.clone().acquire(1).await;
        assert!(budget.acquire(u64::MAX).now_or_never().is_none());
    }

    #[tokio::test]
    async fn memory_of_a_basis_grows_while_there_is_some() {
        let budget = ListBudget::new(8, 8);
        let mut first = budget.clone().acquire(0).await;
        assert!(first.reserve(200_000));
        let mut second = budget.clone().acquire(100_000).await;
        assert!(!second.reserve(200_000), "the first has more than half");
        drop(first);
        assert!(second.reserve(200_000) && second.reserve(u64::MAX), "it is alone");
        assert!(budget.acquire(1).now_or_never().is_none());
    }

    #[tokio::test]
    async fn what_lists_remember_to_have_sent_is_a_million_objects_in_all() {
        const MAX_OBJECTS: usize = 1024 * 1024;
        let budget = ListBudget::new(8, 8);
        let (mut first, mut second) = (SentMemory::default(), SentMemory::default());
        assert!(second.reserve(&budget.for_account(8), 32));
        assert!([1, 33, 1000, MAX_OBJECTS - 32].into_iter().all(|objects| first.reserve(&budget, objects)));
        assert!(!first.reserve(&budget, MAX_OBJECTS - 31) && !second.reserve(&budget, 33));
        assert!(budget.clone().acquire(u64::MAX).now_or_never().is_some(), "rows have memory of their own");
        drop(first);
        assert!(second.reserve(&budget, MAX_OBJECTS));
    }

    #[tokio::test]
    async fn four_have_their_turn_and_the_fifth_waits() {
        let pieces = LargePieces::default();
        let mut turns = Vec::new();
        for _ in 0..4 {
            turns.push(pieces.clone().turn().await);
        }
        assert!(pieces.clone().turn().now_or_never().is_none());
        turns.pop();
        assert!(pieces.turn().now_or_never().is_some());
    }
}
