//! Limits of which each key, such as a caller, has its own.

use std::collections::HashMap;
use std::hash::Hash;
use std::num::NonZeroU32;
use std::sync::{Arc, Weak};

use governor::clock::DefaultClock;
use governor::state::keyed::HashMapStateStore;
use governor::{Quota, RateLimiter};
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

/// A rate of each key. While more than `most` keys have used theirs lately, all share one.
#[derive(Debug)]
pub struct KeyedRate<K: Clone + Eq + Hash> {
    most: usize,
    /// `None`: the shared one.
    rates: RateLimiter<Option<K>, HashMapStateStore<Option<K>>, DefaultClock>,
}

impl<K: Clone + Eq + Hash> KeyedRate<K> {
    /// So many a second of each key, and this burst.
    pub fn new(per_second: NonZeroU32, burst: NonZeroU32, most: usize) -> Self {
        Self { most, rates: RateLimiter::hashmap(Quota::per_second(per_second).allow_burst(burst)) }
    }

    /// Takes one of a key. Returns whether there was one.
    pub fn take(&self, key: &K) -> bool {
        if self.rates.len() >= self.most {
            // A key that has its whole burst again loses nothing by being forgotten.
            self.rates.retain_recent();
        }
        let is_apart = self.rates.len() < self.most;
        self.rates.check_key(&is_apart.then(|| key.clone())).is_ok()
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

    #[test]
    fn each_key_has_its_rate_and_too_many_keys_share_one() {
        let (rate, burst) = (NonZeroU32::MIN, NonZeroU32::new(2).expect("two"));
        let rates = KeyedRate::new(rate, burst, 3);
        assert_eq!([rates.take(&1), rates.take(&1), rates.take(&1)], [true, true, false]);
        assert!(rates.take(&2) && rates.take(&3), "others have theirs");
        assert_eq!([4, 5, 6].map(|key| rates.take(&key)), [true, true, false], "the shared one");
        assert!(rates.rates.len() <= 4);
    }
}
