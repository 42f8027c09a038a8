//! Credit: how many bytes of a request the other side may send, and the memory that all requests of a process share.
//!
//! Credit is a hard limit, since what was granted cannot be taken back. A window begins at [`INITIAL_CREDIT`] for a body
//! or a recalled answer, at [`INITIAL_ANSWER_CREDIT`] for any other answer, and doubles, up to [`MAX_CREDIT`], each time
//! that an eighth of it was used while the receiver keeps up. Later would be too late for a sender that is far away: it
//! waits while the grant is on its way. When many requests share the memory, each of those other answers begins with less,
//! and no window grows while half of the memory is in use: callers that stop reading keep what their windows have
//! grown to.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Credit of a body, or of an answer that is recalled, at its beginning, in bytes. Both ends count on it.
pub const INITIAL_CREDIT: u32 = 256 * 1024;
/// Credit of an answer at its beginning, in bytes, as long as few requests share the memory. Each doubling takes a round
/// trip, and most lists are complete with this.
pub const INITIAL_ANSWER_CREDIT: u32 = 1024 * 1024;
/// Maximum credit of a request, in bytes.
pub const MAX_CREDIT: u32 = 8 * 1024 * 1024;
/// Credit that each request has at least, in bytes. It counts against no sum, so that a request finds room as long as the
/// number of requests allows it.
pub const MIN_CREDIT: u32 = 16 * 1024;
/// Maximum credit of all requests of an agent's stream together beyond [`MIN_CREDIT`] each, in bytes.
pub const MAX_CREDIT_OF_AGENT: u64 = 16 * 1024 * 1024;
/// Maximum credit of all requests of a replica together beyond [`MIN_CREDIT`] each, in bytes.
pub const MAX_CREDIT_OF_REPLICA: u64 = 512 * 1024 * 1024;
/// Fraction of the free memory that one request may have at its beginning.
const INITIAL_FRACTION: u64 = 16;

/// Why a request that sends more than it may cannot go on.
pub const OVERRUN: &str = "more was sent than the credit allows";
/// Why a request whose bytes find no room cannot go on.
pub const NO_MEMORY: &str = "there is no memory for it";

/// Fraction of the memory into which windows grow.
const GROWABLE_FRACTION: u64 = 2;
/// Fraction of a window after whose use it doubles.
const GROWTH_FRACTION: u32 = 8;
/// Fraction of a window that a grant has at least: a smaller one is not worth a frame.
const GRANT_FRACTION: u32 = 4;

/// Memory that windows share: of a stream, and of the process if there is a parent.
#[derive(Debug)]
pub struct CreditBudget {
    max: u64,
    used: AtomicU64,
    parent: Option<Arc<CreditBudget>>,
}

impl CreditBudget {
    /// A budget of so many bytes, all of them also of the parent's.
    pub fn new(max: u64, parent: Option<Arc<Self>>) -> Arc<Self> {
        Arc::new(Self { max, used: AtomicU64::new(0), parent })
    }

    /// Bytes that are free, here and in the parent.
    pub fn free(&self) -> u64 {
        let own = self.max.saturating_sub(self.used.load(Ordering::Relaxed));
        self.parent.as_ref().map_or(own, |parent| own.min(parent.free()))
    }

    /// Bytes by which windows may grow: the rest of all is for those that begin.
    fn growable(&self) -> u64 {
        let own = (self.max / GROWABLE_FRACTION).saturating_sub(self.used.load(Ordering::Relaxed));
        self.parent.as_ref().map_or(own, |parent| own.min(parent.growable()))
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: u64) -> bool {
        let more = |used: u64| used.checked_add(bytes).filter(|used| *used <= self.max);
        if self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_err() {
            return false;
        }
        let is_taken = self.parent.as_ref().is_none_or(|parent| parent.take(bytes));
        if !is_taken {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
        }
        is_taken
    }

    fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(parent) = &self.parent {
            parent.give_back(bytes);
        }
    }
}

/// The receiver's side of one direction of a request, which has memory of the budget until it is dropped.
#[derive(Debug)]
pub struct Window {
    budget: Arc<CreditBudget>,
    size: u32,
    /// Bytes that may be held and count against no sum.
    uncounted: u32,
    /// Bytes of the budget that are taken whether they are held or not.
    reserved: u32,
    /// Bytes that the other side may still send.
    granted: u32,
    /// Bytes that arrived and are not consumed.
    held: u32,
    /// Bytes that were consumed since the window had this size.
    consumed: u32,
}

impl Window {
    /// Opens a window of at most `wanted` bytes, and at least [`MIN_CREDIT`].
    pub fn open(budget: &Arc<CreditBudget>, wanted: u32) -> Self {
        let share = u32::try_from(budget.free() / INITIAL_FRACTION).unwrap_or(u32::MAX);
        let size = wanted.min(share.saturating_add(MIN_CREDIT));
        let reserved = size.saturating_sub(MIN_CREDIT);
        let is_taken = budget.take(reserved.into());
        let (size, reserved) = if is_taken { (size, reserved) } else { (MIN_CREDIT, 0) };
        Self::new(budget, size, MIN_CREDIT, reserved)
    }

    /// Opens a window of exactly this size, which the other side counts on. Its memory is taken when bytes arrive, so that
    /// a request which sends few has room whatever the others have.
    pub fn open_unreserved(budget: &Arc<CreditBudget>, size: u32) -> Self {
        Self::new(budget, size, MIN_CREDIT, 0)
    }

    /// Opens a window of exactly this size, all of which counts against no sum: it has room also where open requests have
    /// reserved all memory. Only for what is read at once.
    pub fn open_uncounted(budget: &Arc<CreditBudget>, size: u32) -> Self {
        Self::new(budget, size, size, 0)
    }

    /// A window whose reserved bytes are taken.
    fn new(budget: &Arc<CreditBudget>, size: u32, uncounted: u32, reserved: u32) -> Self {
        Self { budget: Arc::clone(budget), size, uncounted, reserved, granted: size, held: 0, consumed: 0 }
    }

    /// Bytes of the budget that are taken while so many are held.
    fn taken(&self, held: u32) -> u64 {
        self.reserved.max(held.saturating_sub(self.uncounted)).into()
    }

    /// The credit at its beginning.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Whether everything that arrived is consumed.
    pub fn is_drained(&self) -> bool {
        self.held == 0
    }

    /// Records bytes that arrived. The error says why the request cannot go on: they exceed the credit, or there is no
    /// memory for them.
    pub fn received(&mut self, bytes: usize) -> Result<(), &'static str> {
        let left = u32::try_from(bytes).ok().and_then(|bytes| self.granted.checked_sub(bytes));
        let left = left.ok_or(OVERRUN)?;
        let held = self.held + self.granted - left;
        if !self.budget.take(self.taken(held) - self.taken(self.held)) {
            return Err(NO_MEMORY);
        }
        (self.held, self.granted) = (held, left);
        Ok(())
    }

    /// Records bytes that were consumed. Returns the credit to grant, 0 if it is too little to be worth a frame.
    pub fn consumed(&mut self, bytes: usize) -> u32 {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let held = self.held.saturating_sub(bytes);
        self.budget.give_back(self.taken(self.held) - self.taken(held));
        self.held = held;
        self.consumed = self.consumed.saturating_add(bytes);
        if self.consumed >= self.size / GROWTH_FRACTION && self.held == 0 {
            self.consumed = 0;
            let more = self.size.min(MAX_CREDIT.saturating_sub(self.size));
            if u64::from(more) <= self.budget.growable() && self.budget.take(more.into()) {
                self.size += more;
                self.reserved += more;
            }
        }
        let more = self.size.saturating_sub(self.granted + self.held);
        if more < self.size / GRANT_FRACTION {
            return 0;
        }
        self.granted += more;
        more
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.budget.give_back(self.taken(self.held));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_window_doubles_while_the_sender_uses_it_up_and_the_receiver_keeps_up() {
        let budget = CreditBudget::new(MAX_CREDIT_OF_AGENT, None);
        let mut window = Window::open(&budget, INITIAL_CREDIT);
        let mut sizes = vec![window.size];
        for _ in 0..5 {
            let granted = window.granted as usize;
            assert_eq!(window.received(granted), Ok(()));
            assert_eq!(window.received(1), Err(OVERRUN), "credit is a hard limit");
            window.consumed(granted);
            sizes.push(window.size);
        }
        let kib = sizes.iter().map(|size| size / 1024).collect::<Vec<_>>();
        assert_eq!(kib, [256, 512, 1024, 2048, 4096, 8192]);
        drop(window);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_window_grows_for_a_receiver_that_reads_frame_by_frame() {
        const FRAME: usize = 32 * 1024;
        let budget = CreditBudget::new(MAX_CREDIT_OF_AGENT, None);
        let mut window = Window::open(&budget, INITIAL_ANSWER_CREDIT);
        // A sender far away: it knows of a grant when it has sent all that it knew of.
        let (mut known, mut on_its_way, mut round_trips) = (window.size() as usize, 0_usize, 1);
        for _ in 0..20_000_000 / FRAME {
            if known < FRAME {
                (known, on_its_way, round_trips) = (known + on_its_way, 0, round_trips + 1);
            }
            assert!(known >= FRAME && window.received(FRAME).is_ok());
            known -= FRAME;
            on_its_way += window.consumed(FRAME) as usize;
        }
        assert!(round_trips <= 4, "{round_trips}");
        assert_eq!(window.size(), MAX_CREDIT);
    }

    #[test]
    fn windows_grow_into_half_of_the_memory_alone() {
        let budget = CreditBudget::new(MAX_CREDIT_OF_AGENT, None);
        let mut windows: Vec<_> = (0..8).map(|_| Window::open(&budget, INITIAL_ANSWER_CREDIT)).collect();
        for _ in 0..12 {
            for window in &mut windows {
                let granted = window.granted as usize;
                assert_eq!(window.received(granted), Ok(()));
                window.consumed(granted);
            }
        }
        assert!(windows.iter().any(|window| window.size() > INITIAL_ANSWER_CREDIT));
        assert!(budget.used() <= MAX_CREDIT_OF_AGENT / 2, "{}", budget.used());
    }

    #[test]
    fn a_receiver_that_stops_reading_is_granted_no_more() {
        let budget = CreditBudget::new(MAX_CREDIT_OF_AGENT, None);
        let mut window = Window::open(&budget, INITIAL_CREDIT);
        assert_eq!(window.received(INITIAL_CREDIT as usize), Ok(()));
        assert_eq!(window.consumed(1000), 0, "too little to be worth a frame");
        assert_eq!(window.received(1), Err(OVERRUN));
    }

    #[test]
    fn as_many_requests_as_an_agent_may_have_find_room() {
        let budget = CreditBudget::new(MAX_CREDIT_OF_AGENT, None);
        let windows: Vec<_> = (0..4096).map(|_| Window::open(&budget, INITIAL_CREDIT)).collect();
        assert!(windows.iter().all(|window| window.size() >= MIN_CREDIT));
        assert!(budget.used() <= MAX_CREDIT_OF_AGENT);
    }

    #[test]
    fn a_stream_takes_no_more_than_its_replica_has() {
        let room = u64::from(INITIAL_CREDIT - MIN_CREDIT);
        let replica = CreditBudget::new(room, None);
        let stream = CreditBudget::new(MAX_CREDIT_OF_AGENT, Some(Arc::clone(&replica)));
        let mut window = Window::open_unreserved(&stream, INITIAL_CREDIT);
        assert_eq!(window.received(INITIAL_CREDIT as usize), Ok(()));
        assert_eq!(Window::open(&stream, INITIAL_CREDIT).size(), MIN_CREDIT);
        assert_eq!(stream.used(), room, "what the replica refuses is not counted");
    }

    #[test]
    fn windows_that_the_other_side_counts_on_have_memory_for_what_they_hold() {
        let budget = CreditBudget::new(MAX_CREDIT_OF_AGENT, None);
        let open = || Window::open_unreserved(&budget, INITIAL_CREDIT);
        // As many as an agent may have, of which each sends a little at a time, as upgraded connections do.
        let mut windows: Vec<_> = (0..4096).map(|_| open()).collect();
        for window in &mut windows {
            assert_eq!(window.received(MIN_CREDIT as usize), Ok(()));
        }
        assert_eq!(budget.used(), 0);
        let full = MAX_CREDIT_OF_AGENT / u64::from(INITIAL_CREDIT - MIN_CREDIT);
        let rest = (INITIAL_CREDIT - MIN_CREDIT) as usize;
        let taken = windows.iter_mut().map_while(|window| window.received(rest).ok()).count();
        assert_eq!(taken as u64, full, "what has no memory is refused");
        assert_eq!(windows.last_mut().map(|window| window.received(rest)), Some(Err(NO_MEMORY)));
        windows[0].consumed(rest);
        assert_eq!(windows.last_mut().map(|window| window.received(rest)), Some(Ok(())));
        drop(windows);
        assert_eq!(budget.used(), 0);
    }

    proptest! {
        #[test]
        fn what_is_granted_and_held_never_exceeds_the_window(steps in proptest::collection::vec((any::<bool>(), 0_usize..300_000), 1..200)) {
            let budget = CreditBudget::new(MAX_CREDIT_OF_AGENT, None);
            let mut window = Window::open(&budget, INITIAL_CREDIT);
            let (mut credit, mut unread) = (window.size() as usize, 0_usize);
            for (arrives, bytes) in steps {
                if arrives {
                    prop_assert_eq!(window.received(bytes).is_ok(), bytes <= credit);
                    if bytes <= credit {
                        (credit, unread) = (credit - bytes, unread + bytes);
                    }
                } else {
                    let bytes = bytes.min(unread);
                    unread -= bytes;
                    credit += window.consumed(bytes) as usize;
                }
                prop_assert!(credit + unread <= MAX_CREDIT as usize);
                prop_assert!((credit + unread) as u64 <= budget.used() + u64::from(MIN_CREDIT));
                prop_assert!(unread > 0 || credit > 0, "a receiver that has read all grants more");
            }
        }
    }
}
