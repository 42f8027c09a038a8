//! When each account is reconciled; no account is reconciled by two workers at once.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::account::lifecycle::Tick;
use crate::objects::AccountKey;
use crate::wake_set::WakeSet;

/// Accounts that wait, are due later, or are being reconciled. Bounded by the number of accounts.
pub(super) struct Schedule {
    pub(super) wakes: Arc<WakeSet<AccountKey>>,
    timers: Mutex<Timers>,
    under_way: Mutex<HashMap<AccountKey, bool>>,
}

#[derive(Default)]
struct Timers {
    by_tick: BTreeMap<Tick, HashSet<AccountKey>>,
    by_key: HashMap<AccountKey, Tick>,
}

impl Schedule {
    pub(super) fn new(wakes: Arc<WakeSet<AccountKey>>) -> Self {
        Self { wakes, timers: Mutex::default(), under_way: Mutex::default() }
    }

    /// Schedules an account for a tick, or sooner if something wakes it; `None`: only then.
    pub(super) fn look_again(&self, key: &AccountKey, at: Option<Tick>) {
        let mut timers = self.timers.lock();
        if let Some(before) = timers.by_key.remove(key)
            && let Some(keys) = timers.by_tick.get_mut(&before)
        {
            keys.remove(key);
        }
        if let Some(at) = at {
            timers.by_key.insert(key.clone(), at);
            timers.by_tick.entry(at).or_default().insert(key.clone());
        }
    }

    /// Wakes the accounts that are due.
    pub(super) fn wake_due(&self, now: Tick) {
        let mut timers = self.timers.lock();
        let later = timers.by_tick.split_off(&(now + 1));
        let due = std::mem::replace(&mut timers.by_tick, later);
        for key in due.into_values().flatten() {
            timers.by_key.remove(&key);
            self.wakes.wake(key);
        }
    }

    /// Begins to reconcile an account. Returns `false` if a worker already does; the account is then woken again
    /// afterwards.
    pub(super) fn begin(&self, key: &AccountKey) -> bool {
        let mut under_way = self.under_way.lock();
        if let Some(again) = under_way.get_mut(key) {
            *again = true;
            return false;
        }
        under_way.insert(key.clone(), false);
        true
    }

    /// Ends a reconciliation. Wakes the account if it was requested meanwhile.
    pub(super) fn end(&self, key: &AccountKey) {
        if self.under_way.lock().remove(key) == Some(true) {
            self.wakes.wake(key.clone());
        }
    }
}
