//! Queue of one task: which keys are due when. Pure; the caller passes the time.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::wake_set::WakeSet;

/// Number of remembered rests below which expired ones are not removed.
const MIN_PRUNED_LEN: usize = 64;

/// Unit of work: a key, or `None` for a run with an empty batch.
pub(super) type Slot<K> = Option<K>;

/// Slots that wait and slots that are being applied. Bounded by the number of distinct keys. When the queue is dropped,
/// keys that are left return to the wake set, where the next driver of the task finds them.
pub(super) struct TaskQueue<K: Clone + Eq + Hash> {
    wakes: Option<Arc<WakeSet<K>>>,
    /// Delay between a wake-up and its attempt.
    gather: Duration,
    due: BTreeMap<(Instant, u64), Slot<K>>,
    queued: HashSet<Slot<K>>,
    /// Slots being applied, and whether each was woken since its attempt started.
    running: HashMap<Slot<K>, bool>,
    not_before: HashMap<Slot<K>, Instant>,
    prune_at: usize,
    arrivals: u64,
}

impl<K: Clone + Eq + Hash> TaskQueue<K> {
    pub(super) fn new(wakes: Option<Arc<WakeSet<K>>>, gather: Duration) -> Self {
        Self {
            wakes,
            gather,
            due: BTreeMap::new(),
            queued: HashSet::new(),
            running: HashMap::new(),
            not_before: HashMap::new(),
            prune_at: MIN_PRUNED_LEN,
            arrivals: 0,
        }
    }

    /// Queues a slot, or marks it for another attempt if it is being applied.
    pub(super) fn mark(&mut self, slot: Slot<K>, now: Instant) {
        if let Some(again) = self.running.get_mut(&slot) {
            *again = true;
            return;
        }
        let earliest = now + self.gather;
        let at = self.not_before.get(&slot).map_or(earliest, |rest| earliest.max(*rest));
        if self.queued.insert(slot.clone()) {
            self.arrivals += 1;
            self.due.insert((at, self.arrivals), slot);
        }
    }

    /// Time of the next attempt.
    pub(super) fn next(&self) -> Option<Instant> {
        self.due.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes up to `most` slots that are due. They count as being applied until [`end`](Self::end). A run with an empty
    /// batch is taken alone.
    pub(super) fn take(&mut self, now: Instant, most: usize) -> Vec<Slot<K>> {
        let mut taken = Vec::new();
        while taken.len() < most
            && let Some(entry) = self.due.first_entry()
            && entry.key().0 <= now
            && (taken.is_empty() || entry.get().is_some())
        {
            let slot = entry.remove();
            let is_run = slot.is_none();
            self.queued.remove(&slot);
            self.running.insert(slot.clone(), false);
            taken.push(slot);
            if is_run {
                break;
            }
        }
        taken
    }

    /// Ends an attempt. The slots rest for `rest`, then those that were woken meanwhile are applied again. The slots in
    /// `again` are applied again after their delay, and not earlier, even if they are woken.
    pub(super) fn end(
        &mut self,
        slots: &[Slot<K>],
        rest: Duration,
        again: (Vec<Slot<K>>, Duration),
        now: Instant,
    ) {
        let mut woken = Vec::new();
        for slot in slots {
            self.rest(slot, rest, now);
            woken.extend(self.running.remove(slot).filter(|again| *again).map(|_| slot.clone()));
        }
        let (again, after) = again;
        for slot in again {
            self.rest(&slot, after, now);
            self.mark(slot, now);
        }
        woken.into_iter().for_each(|slot| self.mark(slot, now));
    }

    fn rest(&mut self, slot: &Slot<K>, rest: Duration, now: Instant) {
        if rest.is_zero() {
            self.not_before.remove(slot);
            return;
        }
        self.not_before.insert(slot.clone(), now + rest);
        if self.not_before.len() >= self.prune_at {
            self.not_before.retain(|_, until| *until > now);
            self.prune_at = MIN_PRUNED_LEN.max(2 * self.not_before.len());
        }
    }

    /// Number of queued slots.
    pub(super) fn len(&self) -> usize {
        self.due.len()
    }
}

impl<K: Clone + Eq + Hash> Drop for TaskQueue<K> {
    fn drop(&mut self) {
        let Some(wakes) = &self.wakes else { return };
        let left: Vec<K> = self.running.keys().chain(&self.queued).flatten().cloned().collect();
        if !left.is_empty() {
            wakes.wake_all(left);
        }
    }
}
