//! Turns of the accounts on the stream. Only accounts that may have something to send are polled, so that an event does
//! not cost a scan of all accounts.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Instant;

/// Result of an account that waits for credit.
#[derive(Clone, Copy, Debug)]
struct Blocked {
    /// Credit that was offered, in bytes.
    credit: usize,
    /// Minimum credit needed, in bytes.
    needed: usize,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Turns {
    /// Accounts that may have something to send; blocked ones with their last result.
    ready: BTreeMap<Arc<str>, Option<Blocked>>,
    /// Times at which other accounts will have something to send, by account and in order.
    due: BTreeMap<Arc<str>, Instant>,
    by_time: BTreeSet<(Instant, Arc<str>)>,
    /// The account served last.
    served: Option<Arc<str>>,
}

impl Turns {
    /// Marks an account as one that may have something to send.
    pub(super) fn wake(&mut self, uid: &Arc<str>) {
        self.ready.insert(Arc::clone(uid), None);
    }

    /// Wakes the accounts whose time has come.
    pub(super) fn wake_due(&mut self, now: Instant) {
        while self.next_due().is_some_and(|at| at <= now)
            && let Some((_, uid)) = self.by_time.pop_first()
        {
            self.due.remove(&uid);
            self.wake(&uid);
        }
    }

    /// Earliest time at which another account will have something to send.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Number of accounts that may have something to send.
    pub(super) fn ready_count(&self) -> usize {
        self.ready.len()
    }

    pub(super) fn served(&self) -> Option<&Arc<str>> {
        self.served.as_ref()
    }

    /// The ready account after `uid`, wrapping around.
    pub(super) fn next_after(&self, uid: Option<&str>) -> Option<Arc<str>> {
        let after = |uid: &str| self.ready.range::<str, _>((Bound::Excluded(uid), Bound::Unbounded)).next();
        let next = uid.and_then(after).or_else(|| self.ready.first_key_value());
        next.map(|(uid, _)| Arc::clone(uid))
    }

    /// Records that an account was served. It may have more.
    pub(super) fn serve(&mut self, uid: &Arc<str>) {
        self.wake(uid);
        self.served = Some(Arc::clone(uid));
    }

    /// Records that an account has nothing to send until `until`, if any.
    pub(super) fn rest(&mut self, uid: &Arc<str>, until: Option<Instant>) {
        self.forget(uid);
        if let Some(at) = until {
            self.due.insert(Arc::clone(uid), at);
            self.by_time.insert((at, Arc::clone(uid)));
        }
    }

    /// Records that an account was offered `credit` bytes and needs more.
    pub(super) fn block(&mut self, uid: &Arc<str>, credit: usize, needed: usize) {
        self.ready.insert(Arc::clone(uid), Some(Blocked { credit, needed }));
    }

    /// Bytes needed by an account that is known to be blocked at `credit`, because it was offered as much before.
    pub(super) fn still_needed(&self, uid: &str, credit: usize) -> Option<usize> {
        let blocked = self.ready.get(uid).copied().flatten()?;
        (credit <= blocked.credit).then_some(blocked.needed)
    }

    /// Removes an account.
    pub(super) fn forget(&mut self, uid: &Arc<str>) {
        self.ready.remove(uid);
        if let Some(at) = self.due.remove(uid) {
            self.by_time.remove(&(at, Arc::clone(uid)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn turns(uids: &[&str]) -> Turns {
        let mut turns = Turns::default();
        uids.iter().for_each(|uid| turns.wake(&Arc::from(*uid)));
        turns
    }

    #[test]
    fn turns_go_round_from_the_account_that_was_served_last() {
        let mut turns = turns(&["a", "b", "c"]);
        let mut served = Vec::new();
        for _ in 0..4 {
            let last = turns.served().cloned();
            let next = turns.next_after(last.as_deref()).expect("some are ready");
            turns.serve(&next);
            served.push(next);
        }
        assert_eq!(served.join(" "), "a b c a");
        turns.forget(&Arc::from("b"));
        assert_eq!(turns.next_after(Some("a")).as_deref(), Some("c"));
        assert_eq!(turns.next_after(Some("b")).as_deref(), Some("c"));
    }

    #[test]
    fn account_without_anything_to_send_is_not_asked_until_it_is_woken_or_due() {
        let (now, later) = (Instant::now(), Duration::from_secs(60));
        let mut turns = turns(&["a", "b", "c"]);
        turns.rest(&Arc::from("a"), None);
        turns.rest(&Arc::from("b"), Some(now + 2 * later));
        turns.rest(&Arc::from("c"), Some(now + later));
        assert_eq!((turns.ready_count(), turns.next_due()), (0, Some(now + later)));
        turns.wake_due(now);
        assert_eq!(turns.next_after(None), None);
        turns.wake_due(now + later);
        assert_eq!((turns.ready_count(), turns.next_after(None).as_deref()), (1, Some("c")));
        turns.wake(&Arc::from("a"));
        assert_eq!((turns.ready_count(), turns.next_due()), (2, Some(now + 2 * later)));
        // The latest result counts.
        turns.rest(&Arc::from("b"), Some(now + 3 * later));
        assert_eq!(turns.next_due(), Some(now + 3 * later));
        turns.forget(&Arc::from("b"));
        assert_eq!(turns.next_due(), None);
    }

    #[test]
    fn account_that_waits_for_credit_is_asked_again_with_more_credit_or_something_new() {
        let mut turns = turns(&["a"]);
        let uid: Arc<str> = Arc::from("a");
        assert_eq!(turns.still_needed("a", 0), None);
        turns.block(&uid, 10, 25);
        assert_eq!([5, 10, 11].map(|credit| turns.still_needed("a", credit)), [Some(25), Some(25), None]);
        turns.wake(&uid);
        assert_eq!((turns.still_needed("a", 5), turns.ready_count()), (None, 1));
    }
}
