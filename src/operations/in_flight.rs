//! How many operations run: of an account, of a caller, and of the replica.

use std::sync::Arc;

use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::refusal::OperationRefusal;
use crate::access::{CallerCounts, Principal, ShortRequest, Via};
use kubesvc_runtime::limits::KeyedLimit;

/// Maximum number of operations of an account at once.
const MAX_OF_ACCOUNT: usize = 256;
/// Maximum number of operations of a replica at once.
const MAX_OF_REPLICA: usize = 20_000;

/// Room for operations.
#[derive(Debug)]
pub(super) struct InFlight {
    /// By uid.
    accounts: KeyedLimit<String>,
    replica: Arc<Semaphore>,
    callers: Arc<CallerCounts>,
    /// Number of operations that run.
    pub(super) running: Gauge,
}

/// An operation that is counted until this is dropped.
#[derive(Debug)]
pub(super) struct CountedOperation {
    _of_account: OwnedSemaphorePermit,
    _of_replica: OwnedSemaphorePermit,
    /// `None`: nobody knows whose it is.
    _of_caller: Option<ShortRequest>,
    running: Gauge,
}

impl InFlight {
    /// Room without operations. The requests of a caller are counted together with those that came another way.
    pub(super) fn new(callers: Arc<CallerCounts>) -> Self {
        Self {
            accounts: KeyedLimit::new(MAX_OF_ACCOUNT),
            replica: Arc::new(Semaphore::new(MAX_OF_REPLICA)),
            callers,
            running: Gauge::default(),
        }
    }

    /// Counts an operation; the error says which bound is reached.
    pub(super) fn add(
        &self,
        account_uid: &str,
        principal: &Principal,
    ) -> Result<CountedOperation, OperationRefusal> {
        let too_many = |what: String| OperationRefusal::TooMany(format!("{what}; try again"));
        let of_replica = Arc::clone(&self.replica).try_acquire_owned();
        let of_replica =
            of_replica.map_err(|_| too_many(format!("{MAX_OF_REPLICA} operations run at this replica")))?;
        let of_account = self.accounts.of(account_uid.to_owned()).try_acquire_owned();
        let of_account =
            of_account.map_err(|_| too_many(format!("{MAX_OF_ACCOUNT} operations of the account run")))?;
        // If callers need not be known, one count would be that of all of them, and of those who are anonymous elsewhere.
        let is_known = principal.via != Via::Nobody;
        let of_caller = is_known.then(|| self.callers.short(&principal.name)).transpose();
        let of_caller = of_caller.map_err(|error| OperationRefusal::TooMany(error.to_string()))?;
        self.running.inc();
        Ok(CountedOperation {
            _of_account: of_account,
            _of_replica: of_replica,
            _of_caller: of_caller,
            running: self.running.clone(),
        })
    }
}

impl Drop for CountedOperation {
    fn drop(&mut self) {
        self.running.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::callers::MAX_SHORT_OF_CALLER;
    use crate::operations::tests::fakes::principal;

    #[test]
    fn neither_a_caller_nor_an_account_uses_up_what_others_may_have() {
        let (callers, one, two) = (Arc::<CallerCounts>::default(), principal("one"), principal("two"));
        let in_flight = InFlight::new(Arc::clone(&callers));
        let elsewhere: Vec<_> = (0..50).map(|_| callers.short("one").expect("room")).collect();
        let of_one: Vec<_> = std::iter::from_fn(|| in_flight.add("a", &one).ok()).collect();
        assert_eq!(of_one.len(), MAX_SHORT_OF_CALLER - 50, "with those that came by the gateway");
        drop(elsewhere);
        let of_two: Vec<_> = std::iter::from_fn(|| in_flight.add("a", &two).ok()).collect();
        assert_eq!(of_one.len() + of_two.len(), MAX_OF_ACCOUNT);
        let elsewhere = in_flight.add("b", &two).expect("room for another account");
        drop((of_one, of_two, elsewhere));
        let nobody = Principal { via: Via::Nobody, ..principal("system:anonymous") };
        let all: Vec<_> = std::iter::from_fn(|| in_flight.add("a", &nobody).ok()).collect();
        assert_eq!(all.len(), MAX_OF_ACCOUNT);
        drop(all);
        let again: Vec<_> = std::iter::from_fn(|| callers.short("one").ok()).collect();
        assert_eq!(again.len(), MAX_SHORT_OF_CALLER, "nothing of it is left");
        assert_eq!(in_flight.running.get(), 0);
    }

    #[test]
    fn callers_who_need_not_be_known_share_the_bounds_of_accounts_alone() {
        let callers = Arc::<CallerCounts>::default();
        let in_flight = InFlight::new(Arc::clone(&callers));
        let nobody = Principal { via: Via::Nobody, ..principal("system:anonymous") };
        let all: Vec<_> = std::iter::from_fn(|| in_flight.add("a", &nobody).ok()).collect();
        assert_eq!(all.len(), MAX_OF_ACCOUNT);
        let elsewhere = in_flight.add("b", &nobody);
        assert!(elsewhere.is_ok(), "a flood of one account leaves the others their room");
        assert!(callers.short("system:anonymous").is_ok(), "and so the anonymous callers of the gateway");
    }
}
