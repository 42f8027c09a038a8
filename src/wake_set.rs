//! Wake-ups: which things to look at again. A wake-up carries no data, and any number of them for one thing are one.

use std::hash::Hash;

use indexmap::IndexSet;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// A set of keys to look at again, taken out in the order they came in. It is bounded by the number of things there
/// are: a key is in it once.
#[derive(Debug)]
pub struct WakeSet<K> {
    keys: Mutex<OrderedKeys<K>>,
    notify: Notify,
}

impl<K> Default for WakeSet<K> {
    fn default() -> Self {
        Self { keys: Mutex::default(), notify: Notify::new() }
    }
}

/// Keys in two halves: to take from the front of one set would move all the others, at each take.
#[derive(Debug)]
struct OrderedKeys<K> {
    /// The older half, the oldest last.
    next: IndexSet<K>,
    /// Those that came after these were put there, the oldest first.
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

impl<K: Hash + Eq> WakeSet<K> {
    /// Marks a key to be looked at.
    pub fn wake(&self, key: K) {
        if self.keys.lock().insert(key) {
            self.notify.notify_one();
        }
    }

    /// Marks many keys at once.
    pub fn wake_all(&self, keys: impl IntoIterator<Item = K>) {
        {
            let mut all = self.keys.lock();
            for key in keys {
                all.insert(key);
            }
        }
        self.notify.notify_one();
    }

    /// Takes up to `max` keys, waiting until there is one. For a single consumer; cancelling it loses nothing.
    pub async fn take(&self, max: usize) -> Vec<K> {
        loop {
            let taken = self.try_take(max);
            if !taken.is_empty() {
                return taken;
            }
            self.notify.notified().await;
        }
    }

    /// Takes up to `max` keys that are there now.
    pub fn try_take(&self, max: usize) -> Vec<K> {
        let mut keys = self.keys.lock();
        let taken = std::iter::from_fn(|| keys.pop()).take(max).collect();
        if keys.len() > 0 {
            self.notify.notify_one();
        }
        taken
    }

    /// How many keys wait.
    pub fn len(&self) -> usize {
        self.keys.lock().len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_taken_once_and_in_the_order_they_came_in() {
        let wakes = WakeSet::default();
        wakes.wake_all([1, 2, 3]);
        assert_eq!(wakes.try_take(1), [1]);
        wakes.wake_all([3, 1, 4]);
        wakes.wake(2);
        assert_eq!((wakes.len(), wakes.try_take(2)), (4, vec![2, 3]));
        wakes.wake(2);
        assert_eq!(wakes.try_take(9), [1, 4, 2]);
        assert!(wakes.is_empty());
    }

    /// It takes well under a second. To move those that stay at each take would take many minutes.
    #[test]
    fn a_million_keys_are_taken_one_at_a_time_within_a_minute() {
        let wakes = WakeSet::default();
        wakes.wake_all(0..1_000_000_u32);
        let begun = std::time::Instant::now();
        for key in 0..1_000_000 {
            assert_eq!(wakes.try_take(1), [key]);
            assert!(begun.elapsed() < std::time::Duration::from_secs(60), "at {key}");
        }
    }
}
