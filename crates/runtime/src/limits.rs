//! Limits of which each key, such as a caller, has its own.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::Semaphore;

/// Number of keys below which none is forgotten.
const FEW_KEYS: usize = 64;

/// Permits of keys, as many of each. Of the keys in memory, about half are held or waited for, unless they are few.
#[derive(Debug)]
pub struct KeyedLimit<K> {
    permits: usize,
    keys: Mutex<Keys<K>>,
}

#[derive(Debug)]
struct Keys<K> {
    known: HashMap<K, Weak<Semaphore>>,
    /// Number of keys at which those that nothing holds are forgotten: to look for them at each new key would take as long as
    /// there are keys.
    forget_at: usize,
}

impl<K: Eq + Hash> KeyedLimit<K> {
    /// So many permits of each key.
    pub fn new(permits: usize) -> Self {
        Self { permits, keys: Mutex::new(Keys { known: HashMap::new(), forget_at: FEW_KEYS }) }
    }

    /// The permits of a key.
    pub fn of(&self, key: K) -> Arc<Semaphore> {
        let mut keys = self.keys.lock();
        if let Some(known) = keys.known.get(&key).and_then(Weak::upgrade) {
            return known;
        }
        if keys.known.len() >= keys.forget_at {
            keys.known.retain(|_, known| known.strong_count() > 0);
            keys.forget_at = FEW_KEYS.max(2 * keys.known.len());
        }
        let new = Arc::new(Semaphore::new(self.permits));
        keys.known.insert(key, Arc::downgrade(&new));
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
        let others: Vec<_> = (3..FEW_KEYS).map(|key| limit.of(key)).collect();
        drop(held);
        assert!(limit.of(1).try_acquire_owned().is_ok(), "it was given back");
        drop(others);
        (0..10 * FEW_KEYS).for_each(|key| drop(limit.of(1000 + key)));
        assert!(limit.keys.lock().known.len() <= FEW_KEYS, "others are forgotten");
    }
}
