//! Schedule of one task: which keys are due when, and when the task pauses. The caller passes the time; pure except for
//! jitter.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use tokio::time::Instant;

use super::AttemptOutcome;
use crate::work_queue::WorkQueue;

/// Number of remembered rests below which expired ones are not removed.
const MIN_PRUNED_LEN: usize = 64;

/// Unit of work: a key, or `None` for a run with an empty batch.
pub(super) type Slot<K> = Option<K>;

/// Slots that wait and slots that are being applied. Bounded by the number of distinct keys. When the schedule is
/// dropped, keys that are left return to the work queue, where the next driver of the task finds them.
pub(super) struct Schedule<K: Clone + Eq + Hash> {
    wakes: Option<Arc<WorkQueue<K>>>,
    /// Delay between a wake-up and its attempt.
    gather: Duration,
    /// Minimum interval between two attempts at one slot.
    min_interval: Duration,
    retry: TaskBackoff,
    /// Time until which [`AttemptOutcome::Pause`] lets no attempt start.
    paused_until: Option<Instant>,
    due: BTreeMap<(Instant, u64), Slot<K>>,
    queued: HashSet<Slot<K>>,
    /// Slots being applied, and whether each was woken since its attempt started.
    running: HashMap<Slot<K>, bool>,
    not_before: HashMap<Slot<K>, Instant>,
    prune_at: usize,
    arrivals: u64,
}

impl<K: Clone + Eq + Hash> Schedule<K> {
    /// Creates an empty schedule. As many consecutive failures as `concurrency` pause the task.
    pub(super) fn new(
        wakes: Option<Arc<WorkQueue<K>>>,
        [gather, min_interval]: [Duration; 2],
        retry_delays: [Duration; 2],
        concurrency: usize,
    ) -> Self {
        Self {
            wakes,
            gather,
            min_interval,
            retry: TaskBackoff::new(retry_delays, concurrency),
            paused_until: None,
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

    /// Time until which no attempt starts, if the task pauses.
    pub(super) fn paused_until(&self, now: Instant) -> Option<Instant> {
        self.retry.paused_until(now).max(self.paused_until.filter(|until| *until > now))
    }

    /// Takes up to `most` slots that are due. They count as being applied until [`ended`](Self::ended). A run with an empty
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

    /// Ends an attempt. The slots rest, then those that were woken meanwhile are applied again. Those that the outcome
    /// names are applied again after its delay, and not earlier, even if they are woken.
    pub(super) fn ended(&mut self, slots: &[Slot<K>], outcome: AttemptOutcome<K>, now: Instant) {
        let rest =
            if matches!(outcome, AttemptOutcome::Unchanged) { Duration::ZERO } else { self.min_interval };
        if !matches!(outcome, AttemptOutcome::Failed(..)) {
            self.retry.succeeded();
        }
        let (again, after) = match outcome {
            AttemptOutcome::Done | AttemptOutcome::Unchanged | AttemptOutcome::Refused(_) => {
                (Vec::new(), Duration::ZERO)
            }
            AttemptOutcome::Failed(keys, _) => (named(keys, slots), self.retry.failed(now)),
            AttemptOutcome::Again(keys, after) => (named(keys, slots), after),
            AttemptOutcome::Pause(after) => {
                self.paused_until = self.paused_until.max(Some(now + after));
                (slots.to_vec(), Duration::ZERO)
            }
        };
        let mut woken = Vec::new();
        for slot in slots {
            self.rest(slot, rest, now);
            woken.extend(self.running.remove(slot).filter(|again| *again).map(|_| slot.clone()));
        }
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

impl<K: Clone + Eq + Hash> Drop for Schedule<K> {
    fn drop(&mut self) {
        let Some(wakes) = &self.wakes else { return };
        let left: Vec<K> = self.running.keys().chain(&self.queued).flatten().cloned().collect();
        if !left.is_empty() {
            wakes.wake_all(left);
        }
    }
}

/// The slots of these keys, or the whole batch if there are none.
fn named<K: Clone>(keys: Vec<K>, batch: &[Slot<K>]) -> Vec<Slot<K>> {
    if keys.is_empty() { batch.to_vec() } else { keys.into_iter().map(Some).collect() }
}

/// Back-off of one task. A failed key is retried after the current delay. After as many consecutive failures as attempts
/// may run concurrently, a dependency is at fault rather than the keys: no attempt starts until the delay has passed, and
/// the next delay is longer.
struct TaskBackoff {
    delays: [Duration; 2],
    growing: ExponentialBackoff,
    delay: Duration,
    max_failures: usize,
    failures: usize,
    paused_until: Option<Instant>,
}

impl TaskBackoff {
    fn new(delays: [Duration; 2], concurrency: usize) -> Self {
        let [delay, _] = delays;
        let growing = growing(delays);
        let mut retry =
            Self { delays, growing, delay, max_failures: concurrency, failures: 0, paused_until: None };
        retry.grow();
        retry
    }

    /// Records a failed attempt, and returns the delay before its retry.
    fn failed(&mut self, now: Instant) -> Duration {
        let delay = self.delay;
        self.failures += 1;
        if self.failures >= self.max_failures {
            self.failures = 0;
            self.paused_until = Some(now + delay);
            self.grow();
        }
        delay
    }

    /// Records an attempt that did not fail.
    fn succeeded(&mut self) {
        self.growing = growing(self.delays);
        (self.failures, self.paused_until) = (0, None);
        self.grow();
    }

    /// Time until which no attempt starts, if the task pauses.
    fn paused_until(&self, now: Instant) -> Option<Instant> {
        self.paused_until.filter(|until| *until > now)
    }

    fn grow(&mut self) {
        self.delay = self.growing.next().unwrap_or(self.delays[1]);
    }
}

fn growing([first, longest]: [Duration; 2]) -> ExponentialBackoff {
    let growing = ExponentialBuilder::default().with_min_delay(first).with_max_delay(longest);
    growing.without_max_times().with_jitter().build()
}
