//! Credit of the Caching streams: the limit of uncommitted bytes of each at the hub. Pure.
//!
//! Each stream has [`BASE_CREDIT`] while it is open. A stream that needs more borrows from one pool, in the order of
//! requests. Committed bytes return to the pool first, and only then to the stream's own credit. A loan cannot be
//! revoked from an agent that holds it, so one that is unused for too long ends its stream.
//!
//! Invariant for each stream: the agent's available credit plus the uncommitted bytes is [`BASE_CREDIT`] plus its loan.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::hub::sessions::ledger::HubUptime;

/// Credit of each stream without a loan, in bytes.
pub(crate) const BASE_CREDIT: u64 = 64 * 1024;
/// Maximum loan of one stream, in bytes: more than the largest event.
pub(crate) const MAX_LOAN: u64 = 4 * 1024 * 1024;
/// Time after which an unused loan ends its stream, while no commit of the stream is pending.
pub(crate) const UNUSED_LOAN_LIMIT: Duration = Duration::from_secs(60);

/// A Caching stream of this process.
pub(crate) type StreamId = u64;

/// A batch larger than the credit of its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a batch of {bytes} bytes exceeds the credit of {available} bytes; send Want and wait for Credit")]
pub(crate) struct CreditExceeded {
    bytes: u64,
    available: u64,
}

#[derive(Debug, Default)]
struct ReceiverCredit {
    /// Bytes that the agent may still send.
    available: u64,
    /// Uncommitted bytes.
    pending: u64,
    /// Bytes borrowed from the pool.
    lent: u64,
    /// Bytes requested and not lent yet.
    wanted: u64,
    is_queued: bool,
    /// Time of the last loan, batch or commit.
    used_at: HubUptime,
}

/// The credit of all streams of a replica.
#[derive(Debug)]
pub(crate) struct CreditPool {
    free: u64,
    lent: u64,
    max_loan: u64,
    streams: HashMap<StreamId, ReceiverCredit>,
    /// Streams that wait for a loan, in the order of requests.
    queue: VecDeque<StreamId>,
}

impl CreditPool {
    pub(crate) fn new(size: u64) -> Self {
        // A loan larger than the pool would never be granted.
        let max_loan = MAX_LOAN.min(size);
        Self { free: size, lent: 0, max_loan, streams: HashMap::new(), queue: VecDeque::new() }
    }

    /// Adds a stream. Returns its first credit.
    pub(crate) fn open(&mut self, stream: StreamId, now: HubUptime) -> u64 {
        let credit = ReceiverCredit { available: BASE_CREDIT, used_at: now, ..ReceiverCredit::default() };
        self.streams.insert(stream, credit);
        BASE_CREDIT
    }

    /// Removes a stream; its loan returns to the pool.
    pub(crate) fn close(&mut self, stream: StreamId) {
        if let Some(credit) = self.streams.remove(&stream) {
            self.repay(credit.lent);
            self.queue.retain(|queued| *queued != stream);
        }
    }

    /// Deducts the bytes of a batch from its stream's credit.
    pub(crate) fn take(
        &mut self,
        stream: StreamId,
        bytes: u64,
        now: HubUptime,
    ) -> Result<(), CreditExceeded> {
        let available = self.streams.get(&stream).map_or(0, |credit| credit.available);
        let credit = self.streams.get_mut(&stream).filter(|credit| credit.available >= bytes);
        let credit = credit.ok_or(CreditExceeded { bytes, available })?;
        credit.available -= bytes;
        credit.pending += bytes;
        credit.used_at = now;
        Ok(())
    }

    /// Records how many bytes wait at the agent, replacing an earlier number. With 0, the agent returns its unused
    /// loan.
    pub(crate) fn want(&mut self, stream: StreamId, bytes: u64) {
        let Some(credit) = self.streams.get_mut(&stream) else { return };
        credit.wanted = bytes;
        if bytes == 0 {
            let unused = credit.available.saturating_sub(BASE_CREDIT);
            credit.available -= unused;
            credit.lent -= unused;
            self.repay(unused);
        }
        self.enqueue(stream);
    }

    /// Releases committed or dropped bytes. Returns the agent's new credit for them.
    pub(crate) fn give_back(&mut self, stream: StreamId, bytes: u64, now: HubUptime) -> u64 {
        let Some(credit) = self.streams.get_mut(&stream) else { return 0 };
        credit.used_at = now;
        let bytes = bytes.min(credit.pending);
        let repaid = bytes.min(credit.lent);
        credit.pending -= bytes;
        credit.lent -= repaid;
        credit.available += bytes - repaid;
        self.repay(repaid);
        self.enqueue(stream);
        bytes - repaid
    }

    /// Lends free bytes in the order of requests. A request that does not fit blocks later ones, which would starve it.
    /// Returns the streams with their new credit.
    pub(crate) fn lend(&mut self, now: HubUptime) -> Vec<(StreamId, u64)> {
        let mut loans = Vec::new();
        while let Some(stream) = self.queue.front().copied() {
            let Some(credit) = self.streams.get_mut(&stream) else {
                self.queue.pop_front();
                continue;
            };
            let loan = credit.wanted.min(self.max_loan - credit.lent);
            if loan > self.free {
                break;
            }
            self.queue.pop_front();
            credit.is_queued = false;
            if loan == 0 {
                continue;
            }
            // An agent that still wants more asks again.
            credit.wanted = 0;
            credit.lent += loan;
            credit.available += loan;
            credit.used_at = now;
            self.free -= loan;
            self.lent += loan;
            loans.push((stream, loan));
        }
        loans
    }

    /// Whether a stream has had an unused loan, and has sent nothing, for too long. Pending commits do not count: they
    /// may keep the agent from sending more while the database is unavailable.
    pub(crate) fn is_overdue(&self, stream: StreamId, now: HubUptime) -> bool {
        self.streams.get(&stream).is_some_and(|credit| {
            credit.lent > 0 && credit.pending == 0 && now.saturating_sub(credit.used_at) >= UNUSED_LOAN_LIMIT
        })
    }

    /// Bytes lent to all streams.
    pub(crate) fn lent(&self) -> u64 {
        self.lent
    }

    /// Number of streams that wait for a loan.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.len()
    }

    fn repay(&mut self, bytes: u64) {
        self.free += bytes;
        self.lent -= bytes;
    }

    /// Queues a stream that wants and may have a loan. A stream at its maximum is queued again with its next commit.
    fn enqueue(&mut self, stream: StreamId) {
        let Some(credit) = self.streams.get_mut(&stream) else { return };
        if credit.wanted > 0 && credit.lent < self.max_loan && !credit.is_queued {
            credit.is_queued = true;
            self.queue.push_back(stream);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1024 * 1024;
    const NOW: HubUptime = Duration::ZERO;

    fn pool(size: u64, streams: u64) -> CreditPool {
        let mut pool = CreditPool::new(size);
        (0..streams).for_each(|stream| assert_eq!(pool.open(stream, NOW), BASE_CREDIT));
        pool
    }

    #[test]
    fn a_stream_has_its_base_credit_again_after_each_commit() {
        let mut pool = pool(MIB, 1);
        assert_eq!(pool.take(0, 60_000, NOW), Ok(()));
        let refusal = pool.take(0, 6_000, NOW).expect_err("it is more than is left");
        assert_eq!(refusal, CreditExceeded { bytes: 6_000, available: BASE_CREDIT - 60_000 });
        assert_eq!(pool.give_back(0, 60_000, NOW), 60_000);
        assert_eq!(pool.take(0, BASE_CREDIT, NOW), Ok(()));
        assert!(pool.take(7, 1, NOW).is_err(), "there is no such stream");
    }

    #[test]
    fn a_loan_returns_to_the_pool_with_the_commit() {
        let mut pool = pool(MIB, 1);
        pool.want(0, 100_000);
        assert_eq!((pool.lend(NOW), pool.lent()), (vec![(0, 100_000)], 100_000));
        assert_eq!(pool.take(0, 150_000, NOW), Ok(()));
        assert_eq!(pool.give_back(0, 120_000, NOW), 20_000, "the loan is repaid first");
        assert_eq!((pool.lent(), pool.lend(NOW)), (0, vec![]));
        assert_eq!(pool.give_back(0, 30_000, NOW), 30_000);
        assert_eq!(pool.give_back(0, 30_000, NOW), 0, "nothing is pending any more");
    }

    #[test]
    fn loans_are_given_in_the_order_of_asking_and_a_small_one_does_not_overtake() {
        let mut pool = pool(4 * MIB, 3);
        pool.want(0, 3 * MIB);
        pool.want(1, 2 * MIB);
        pool.want(2, 1);
        assert_eq!(pool.lend(NOW), [(0, 3 * MIB)]);
        assert_eq!(pool.waiting(), 2);
        assert_eq!(pool.take(0, MIB, NOW), Ok(()));
        assert_eq!(pool.give_back(0, MIB, NOW), 0);
        assert_eq!(pool.lend(NOW), [(1, 2 * MIB)]);
        pool.close(1);
        assert_eq!(pool.lend(NOW), [(2, 1)]);
        assert_eq!(pool.waiting(), 0);
    }

    #[test]
    fn a_stream_at_its_maximum_gets_more_with_its_next_commit_and_blocks_no_other() {
        let mut pool = pool(10 * MIB, 2);
        pool.want(0, 6 * MIB);
        assert_eq!(pool.lend(NOW), [(0, MAX_LOAN)]);
        pool.want(0, 2 * MIB);
        pool.want(1, MIB);
        assert_eq!(pool.lend(NOW), [(1, MIB)]);
        assert_eq!(pool.take(0, MIB, NOW), Ok(()));
        assert_eq!((pool.give_back(0, MIB, NOW), pool.lend(NOW)), (0, vec![(0, MIB)]));
    }

    #[test]
    fn an_agent_that_wants_nothing_returns_what_it_has_not_used() {
        let mut pool = pool(MIB, 1);
        pool.want(0, 100_000);
        assert_eq!(pool.lend(NOW).len(), 1);
        assert_eq!(pool.take(0, 70_000, NOW), Ok(()));
        pool.want(0, 0);
        assert_eq!((pool.lent(), pool.lend(NOW)), (70_000, vec![]));
        assert_eq!(pool.take(0, BASE_CREDIT, NOW), Ok(()));
        assert!(pool.take(0, 1, NOW).is_err());
        assert_eq!(pool.give_back(0, 70_000 + BASE_CREDIT, NOW), BASE_CREDIT);
        assert_eq!(pool.lent(), 0);
    }

    #[test]
    fn a_loan_is_at_most_as_large_as_the_pool() {
        let mut pool = pool(MIB, 1);
        pool.want(0, 3 * MIB);
        assert_eq!(pool.lend(NOW), [(0, MIB)]);
    }

    #[test]
    fn a_loan_unused_for_a_minute_is_overdue_and_one_that_waits_for_its_commit_is_not() {
        let mut pool = pool(MIB, 2);
        let later = NOW + UNUSED_LOAN_LIMIT;
        assert!(!pool.is_overdue(0, later), "it has no loan");
        pool.want(0, 1000);
        pool.want(1, 1000);
        assert_eq!(pool.lend(NOW).len(), 2);
        assert_eq!(pool.take(1, BASE_CREDIT, NOW), Ok(()));
        assert!(!pool.is_overdue(0, later - Duration::from_millis(1)));
        assert_eq!([pool.is_overdue(0, later), pool.is_overdue(1, later)], [true, false]);
        // One of two loads is committed, so the rest may be used.
        assert_eq!(pool.give_back(1, 600, later), 0);
        assert!(!pool.is_overdue(1, later + UNUSED_LOAN_LIMIT), "some of it still waits");
        assert_eq!(pool.take(0, 10, later), Ok(()));
        assert_eq!(pool.give_back(0, 10, later + UNUSED_LOAN_LIMIT), 0);
        assert!(!pool.is_overdue(0, later + UNUSED_LOAN_LIMIT));
        assert!(pool.is_overdue(0, later + 2 * UNUSED_LOAN_LIMIT));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Want(u64, u64),
        Take(u64, u64),
        GiveBack(u64, u64),
        Reopen(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let stream = 0..4_u64;
        let bytes = 0..6 * MIB;
        prop_oneof![
            (stream.clone(), prop_oneof![Just(0), bytes.clone()])
                .prop_map(|(stream, bytes)| Step::Want(stream, bytes)),
            (stream.clone(), bytes.clone()).prop_map(|(stream, bytes)| Step::Take(stream, bytes)),
            (stream.clone(), bytes).prop_map(|(stream, bytes)| Step::GiveBack(stream, bytes)),
            stream.prop_map(Step::Reopen),
        ]
    }

    proptest! {
        #[test]
        fn no_byte_of_credit_is_lost_or_made(steps in prop::collection::vec(step(), 0..200)) {
            let size = 9 * MIB;
            let mut pool = pool(size, 4);
            // Available credit in each agent's view.
            let mut agents = [BASE_CREDIT; 4];
            for step in steps {
                match step {
                    Step::Want(stream, bytes) => {
                        pool.want(stream, bytes);
                        if bytes == 0 {
                            agents[stream as usize] = agents[stream as usize].min(BASE_CREDIT);
                        }
                    }
                    Step::Take(stream, bytes) => {
                        let taken = pool.take(stream, bytes, NOW).is_ok();
                        prop_assert_eq!(taken, bytes <= agents[stream as usize]);
                        agents[stream as usize] -= if taken { bytes } else { 0 };
                    }
                    Step::GiveBack(stream, bytes) => agents[stream as usize] += pool.give_back(stream, bytes, NOW),
                    Step::Reopen(stream) => {
                        pool.close(stream);
                        agents[stream as usize] = pool.open(stream, NOW);
                    }
                }
                for (stream, credit) in pool.lend(NOW) {
                    agents[stream as usize] += credit;
                }
                let lent: u64 = pool.streams.values().map(|credit| credit.lent).sum();
                prop_assert_eq!((pool.lent(), pool.free + lent), (lent, size));
                for (stream, credit) in &pool.streams {
                    prop_assert_eq!(credit.available, agents[*stream as usize]);
                    prop_assert_eq!(credit.available + credit.pending, BASE_CREDIT + credit.lent);
                    prop_assert!(credit.lent <= MAX_LOAN);
                }
            }
        }
    }
}
