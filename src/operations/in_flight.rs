//! How many operations run: of an account, of a caller, and of the replica.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;

use super::refusal::OperationRefusal;

/// Maximum number of operations of an account at once.
const MAX_OF_ACCOUNT: usize = 256;
/// Maximum number of operations of a caller at once.
const MAX_OF_PRINCIPAL: usize = 200;
/// Maximum number of operations of a replica at once.
const MAX_OF_REPLICA: usize = 20_000;

/// What runs.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    counted: Mutex<Counted>,
    /// The number of all.
    pub(super) running: Gauge,
}

#[derive(Debug, Default)]
struct Counted {
    /// By uid.
    accounts: HashMap<String, usize>,
    /// By name.
    principals: HashMap<String, usize>,
    total: usize,
}

/// An operation that is counted until this is dropped.
#[derive(Debug)]
pub(super) struct CountedOperation {
    in_flight: Arc<InFlight>,
    account_uid: String,
    principal: String,
}

impl InFlight {
    /// Counts an operation; the error says which bound is reached.
    pub(super) fn add(
        self: &Arc<Self>,
        account_uid: &str,
        principal: &str,
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
        if of(&counted.principals, principal) >= MAX_OF_PRINCIPAL {
            return Err(OperationRefusal::TooMany(format!(
                "{MAX_OF_PRINCIPAL} operations of this caller run; try again"
            )));
        }
        *counted.accounts.entry(account_uid.to_owned()).or_default() += 1;
        *counted.principals.entry(principal.to_owned()).or_default() += 1;
        counted.total += 1;
        self.running.inc();
        Ok(CountedOperation {
            in_flight: Arc::clone(self),
            account_uid: account_uid.to_owned(),
            principal: principal.to_owned(),
        })
    }
}

impl Drop for CountedOperation {
    fn drop(&mut self) {
        let mut counted = self.in_flight.counted.lock();
        counted.total -= 1;
        self.in_flight.running.dec();
        subtract(&mut counted.accounts, &self.account_uid);
        subtract(&mut counted.principals, &self.principal);
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

    #[test]
    fn neither_a_caller_nor_an_account_uses_up_what_others_may_have() {
        let in_flight = Arc::<InFlight>::default();
        let of_one: Vec<_> = std::iter::from_fn(|| in_flight.add("a", "one").ok()).collect();
        assert_eq!(of_one.len(), MAX_OF_PRINCIPAL);
        let of_two: Vec<_> = std::iter::from_fn(|| in_flight.add("a", "two").ok()).collect();
        assert_eq!(of_one.len() + of_two.len(), MAX_OF_ACCOUNT);
        let elsewhere = in_flight.add("b", "two").expect("room for another account");
        drop((of_one, of_two, elsewhere));
        assert!(
            in_flight.counted.lock().accounts.is_empty() && in_flight.counted.lock().principals.is_empty()
        );
        assert_eq!(in_flight.running.get(), 0);
    }
}
