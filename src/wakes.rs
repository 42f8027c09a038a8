//! Wake-ups: which things to look at again. A wake-up carries no data, and any number of them for one thing are one.

use std::hash::Hash;

use indexmap::IndexSet;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// A set of keys to look at again, taken out in the order they came in. It is bounded by the number of things there
/// are: a key is in it once.
#[derive(Debug)]
pub struct Wakes<K> {
    keys: Mutex<IndexSet<K>>,
    notify: Notify,
}

impl<K> Default for Wakes<K> {
    fn default() -> Self {
        Self { keys: Mutex::new(IndexSet::new()), notify: Notify::new() }
    }
}

impl<K: Hash + Eq> Wakes<K> {
    /// Marks a key to be looked at.
    pub fn wake(&self, key: K) {
        if self.keys.lock().insert(key) {
            self.notify.notify_one();
        }
    }

    /// Marks many keys at once.
    pub fn wake_all(&self, keys: impl IntoIterator<Item = K>) {
        self.keys.lock().extend(keys);
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
        let count = max.min(keys.len());
        let taken = keys.drain(..count).collect();
        if !keys.is_empty() {
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
