//! How many lists run at once, and how much memory their bases take: in one account, and in the agent.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Memory for the bases of all lists that run, in KiB.
const BASIS_KIB: u32 = 32 * 1024;
/// Memory that a row of a basis takes, in bytes.
const ROW_BYTES: u64 = 100;

/// Bounds the lists that run at once. Clones share the bounds.
#[derive(Clone, Debug)]
pub struct ListBudget {
    agent: Arc<Semaphore>,
    account: Arc<Semaphore>,
    basis: Arc<Semaphore>,
}

/// The right to list, until it is dropped.
#[derive(Debug)]
pub struct ListPermit {
    /// None while the list has left it.
    turn: Option<ListTurn>,
    _basis: Option<OwnedSemaphorePermit>,
}

/// A turn among the lists of the account and of the agent, until it is dropped.
#[derive(Debug)]
pub(super) struct ListTurn {
    _permits: Vec<OwnedSemaphorePermit>,
}

impl ListPermit {
    /// Leaves the turn to other lists, while this one cannot go on. The memory of its basis stays counted.
    pub fn leave_turn(&mut self) {
        self.turn = None;
    }

    /// Whether the list has its turn.
    pub(super) fn has_turn(&self) -> bool {
        self.turn.is_some()
    }

    /// Goes on with another turn.
    pub(super) fn retake_turn(&mut self, turn: ListTurn) {
        self.turn = Some(turn);
    }
}

impl ListBudget {
    /// A budget of this many lists at once in the agent, and in each account; 0: no bound.
    pub fn new(in_agent: usize, in_account: usize) -> Self {
        Self {
            agent: bound(in_agent),
            account: bound(in_account),
            basis: Arc::new(Semaphore::new(BASIS_KIB as usize)),
        }
    }

    /// The budget of another account of the agent.
    #[must_use]
    pub fn for_account(&self, in_account: usize) -> Self {
        Self { account: bound(in_account), ..self.clone() }
    }

    /// Waits until a list may begin whose basis has this many rows. One that takes more than all memory for bases runs
    /// alone.
    pub async fn acquire(self, rows: u64) -> ListPermit {
        let kib = (rows.saturating_mul(ROW_BYTES) / 1024).clamp(1, BASIS_KIB.into());
        let kib = u32::try_from(kib).unwrap_or(BASIS_KIB);
        let basis = Arc::clone(&self.basis);
        let turn = Some(self.turn().await);
        ListPermit { turn, _basis: basis.acquire_many_owned(kib).await.ok() }
    }

    /// Waits for a turn, behind those that wait already. Those that have one may wait for memory, so a list that has its
    /// basis must not wait for long.
    pub(super) async fn turn(self) -> ListTurn {
        // The account's first: whoever waits for it must not keep others from listing. In one order, so that no two
        // wait for one another.
        let mut permits = Vec::with_capacity(2);
        for bound in [self.account, self.agent] {
            permits.extend(bound.acquire_owned().await);
        }
        ListTurn { _permits: permits }
    }
}

/// Permits for this many lists; 0: for any number.
fn bound(lists: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(if lists == 0 { Semaphore::MAX_PERMITS } else { lists }))
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
}
