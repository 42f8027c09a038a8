//! Wake-ups: keys to look at again. A wake-up carries no data, and repeated wake-ups for one key coalesce.

use std::hash::Hash;

use indexmap::IndexSet;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// A set of keys to look at again, taken in insertion order. Each key is in it at most once, so its size is bounded
/// by the number of things that exist.
#[derive(Debug)]
pub struct WorkQueue<K> {
    keys: Mutex<OrderedKeys<K>>,
    notify: Notify,
}

impl<K> Default for WorkQueue<K> {
    fn default() -> Self {
        Self { keys: Mutex::default(), notify: Notify::new() }
    }
}

/// Keys in two halves. With a single set, each removal at the front would move all other keys.
#[derive(Debug)]
struct OrderedKeys<K> {
    /// The older half, with the oldest key last.
    next: IndexSet<K>,
    /// Keys inserted since `next` was filled, with the oldest key first.
    newer: IndexSet<K>,
}

impl<K> Default for OrderedKeys<K> {
    fn default() -> Self {
        Self { next: IndexSet::new(), newer: IndexSet::new() }
    }
}

impl<K: Hash + Eq> OrderedKeys<K> {
    fn insert(&mut self, key: K) -> bool {
        !self.next.contains(&key) && self.newer.insert(key)
    }

    fn pop(&mut self) -> Option<K> {
        if self.next.is_empty() {
            std::mem::swap(&mut self.next, &mut self.newer);
            self.next.reverse();
        }
        self.next.pop()
    }

    fn len(&self) -> usize {
        self.next.len() + self.newer.len()
    }
}

impl<K: Hash + Eq> WorkQueue<K> {
    /// Inserts a key and notifies the consumer.
    pub fn wake(&self, key: K) {
        if self.keys.lock().insert(key) {
            self.notify.notify_one();
        }
    }

    /// Inserts many keys and notifies the consumer once.
    pub fn wake_all(&self, keys: impl IntoIterator<Item = K>) {
        {
            let mut all = self.keys.lock();
            for key in keys {
                all.insert(key);
            }
        }
        self.notify.notify_one();
    }

    /// Takes up to `max` keys, and waits until there is at least one. For a single consumer. Cancel safe.
    pub async fn take(&self, max: usize) -> Vec<K> {
        loop {
            let taken = self.try_take(max);
            if !taken.is_empty() {
                return taken;
            }
            self.notify.notified().await;
        }
    }

    /// Takes up to `max` keys without waiting.
    pub fn try_take(&self, max: usize) -> Vec<K> {
        let mut keys = self.keys.lock();
        let taken = std::iter::from_fn(|| keys.pop()).take(max).collect();
        if keys.len() > 0 {
            self.notify.notify_one();
        }
        taken
    }

    /// Number of keys in the set.
    pub fn len(&self) -> usize {
        self.keys.lock().len()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_taken_once_and_in_the_order_they_came_in() {
        let wakes = WorkQueue::default();
        wakes.wake_all([1, 2, 3]);
        assert_eq!(wakes.try_take(1), [1]);
        wakes.wake_all([3, 1, 4]);
        wakes.wake(2);
        assert_eq!((wakes.len(), wakes.try_take(2)), (4, vec![2, 3]));
        wakes.wake(2);
        assert_eq!(wakes.try_take(9), [1, 4, 2]);
        assert!(wakes.is_empty());
    }

    /// Takes well under a second. Moving the remaining keys at each removal would take many minutes.
    #[test]
    fn a_million_keys_are_taken_one_at_a_time_within_a_minute() {
        let wakes = WorkQueue::default();
        wakes.wake_all(0..1_000_000_u32);
        let begun = std::time::Instant::now();
        for key in 0..1_000_000 {
            assert_eq!(wakes.try_take(1), [key]);
            assert!(begun.elapsed() < std::time::Duration::from_secs(60), "at {key}");
        }
    }
}
