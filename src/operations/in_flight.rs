//! How many operations run: of an account, of a caller, and of the replica.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;

use super::refusal::OperationRefusal;
use crate::access::{CallerCounts, Principal, ShortRequest, Via};

/// Maximum number of operations of an account at once.
const MAX_OF_ACCOUNT: usize = 256;
/// Maximum number of operations of a replica at once.
const MAX_OF_REPLICA: usize = 20_000;

/// What runs.
#[derive(Debug)]
pub(super) struct InFlight {
    counted: Mutex<OperationTotals>,
    callers: Arc<CallerCounts>,
    /// The number of all.
    pub(super) running: Gauge,
}

#[derive(Debug, Default)]
struct OperationTotals {
    /// By uid.
    accounts: HashMap<String, usize>,
    total: usize,
}

/// An operation that is counted until this is dropped.
#[derive(Debug)]
pub(super) struct CountedOperation {
    in_flight: Arc<InFlight>,
    account_uid: String,
    /// `None`: nobody knows whose it is.
    _of_caller: Option<ShortRequest>,
}

impl InFlight {
    /// Nothing that runs. The requests of a caller are counted together with those that came another way.
    pub(super) fn new(callers: Arc<CallerCounts>) -> Self {
        Self { counted: Mutex::default(), callers, running: Gauge::default() }
    }

    /// Counts an operation; the error says which bound is reached.
    pub(super) fn add(
        self: &Arc<Self>,
        account_uid: &str,
        principal: &Principal,
    ) -> Result<CountedOperation, OperationRefusal> {
        let mut counted = self.counted.lock();
        if counted.total >= MAX_OF_REPLICA {
            return Err(OperationRefusal::TooMany(format!(
                "{MAX_OF_REPLICA} operations run at this replica; try again"
            )));
        }
        if of(&counted.accounts, account_uid) >= MAX_OF_ACCOUNT {
            return Err(OperationRefusal::TooMany(format!(
                "{MAX_OF_ACCOUNT} operations of the account run; try again"
            )));
        }
        // If callers need not be known, one count would be that of all of them, and of those who are anonymous elsewhere.
        let is_known = principal.via != Via::Nobody;
        let of_caller = is_known.then(|| self.callers.short(&principal.name)).transpose();
        let of_caller = of_caller.map_err(|error| OperationRefusal::TooMany(error.to_string()))?;
        *counted.accounts.entry(account_uid.to_owned()).or_default() += 1;
        counted.total += 1;
        self.running.inc();
        Ok(CountedOperation {
            in_flight: Arc::clone(self),
            account_uid: account_uid.to_owned(),
            _of_caller: of_caller,
        })
    }
}

impl Drop for CountedOperation {
    fn drop(&mut self) {
        let mut counted = self.in_flight.counted.lock();
        counted.total -= 1;
        self.in_flight.running.dec();
        subtract(&mut counted.accounts, &self.account_uid);
    }
}

fn of(counts: &HashMap<String, usize>, key: &str) -> usize {
    counts.get(key).copied().unwrap_or_default()
}

fn subtract<K: Eq + Hash>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::MAX_SHORT_OF_CALLER;
    use crate::operations::tests::fakes::principal;

    #[test]
    fn neither_a_caller_nor_an_account_uses_up_what_others_may_have() {
        let (callers, one, two) = (Arc::<CallerCounts>::default(), principal("one"), principal("two"));
        let in_flight = Arc::new(InFlight::new(Arc::clone(&callers)));
        let elsewhere: Vec<_> = (0..50).map(|_| callers.short("one").expect("room")).collect();
        let of_one: Vec<_> = std::iter::from_fn(|| in_flight.add("a", &one).ok()).collect();
        assert_eq!(of_one.len(), MAX_SHORT_OF_CALLER - 50, "with those that came by the gateway");
        drop(elsewhere);
        let of_two: Vec<_> = std::iter::from_fn(|| in_flight.add("a", &two).ok()).collect();
        assert_eq!(of_one.len() + of_two.len(), MAX_OF_ACCOUNT);
        let elsewhere = in_flight.add("b", &two).expect("room for another account");
        drop((of_one, of_two, elsewhere));
        assert!(in_flight.counted.lock().accounts.is_empty());
        let again: Vec<_> = std::iter::from_fn(|| callers.short("one").ok()).collect();
        assert_eq!(again.len(), MAX_SHORT_OF_CALLER, "nothing of it is left");
        assert_eq!(in_flight.running.get(), 0);
    }

    #[test]
    fn callers_who_need_not_be_known_share_the_bounds_of_accounts_alone() {
        let callers = Arc::<CallerCounts>::default();
        let in_flight = Arc::new(InFlight::new(Arc::clone(&callers)));
        let nobody = Principal { via: Via::Nobody, ..principal("system:anonymous") };
        let all: Vec<_> = std::iter::from_fn(|| in_flight.add("a", &nobody).ok()).collect();
        assert_eq!(all.len(), MAX_OF_ACCOUNT);
        let elsewhere = in_flight.add("b", &nobody);
        assert!(elsewhere.is_ok(), "a flood of one account leaves the others their room");
        assert!(callers.short("system:anonymous").is_ok(), "and so the anonymous callers of the gateway");
    }
}
