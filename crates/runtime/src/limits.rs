//! Limits of which each key, such as a caller, has its own.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::Semaphore;

/// Permits of keys, as many of each. Keys that nothing holds or waits for take no memory for long.
#[derive(Debug)]
pub struct KeyedLimit<K> {
    permits: usize,
    keys: Mutex<HashMap<K, Weak<Semaphore>>>,
}

impl<K: Eq + Hash> KeyedLimit<K> {
    /// So many permits of each key.
    pub fn new(permits: usize) -> Self {
        Self { permits, keys: Mutex::default() }
    }

    /// The permits of a key.
    pub fn of(&self, key: K) -> Arc<Semaphore> {
        let mut keys = self.keys.lock();
        if let Some(known) = keys.get(&key).and_then(Weak::upgrade) {
            return known;
        }
        keys.retain(|_, known| known.strong_count() > 0);
        let new = Arc::new(Semaphore::new(self.permits));
        keys.insert(key, Arc::downgrade(&new));
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_has_its_permits_and_is_forgotten_once_none_is_held() {
        let limit = KeyedLimit::new(1);
        let held = limit.of(1).try_acquire_owned().expect("the only one");
        assert!(limit.of(1).try_acquire_owned().is_err());
        drop(limit.of(2).try_acquire_owned().expect("another key's own"));
        assert_eq!(limit.keys.lock().len(), 2);
        drop((limit.of(3), held));
        assert!(limit.of(1).try_acquire_owned().is_ok(), "it was given back");
        assert_eq!(limit.keys.lock().len(), 1, "others are forgotten");
    }
}
