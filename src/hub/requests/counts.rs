//! How many requests run: of an account, of an agent, and of the replica.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;

use kubesvc_core::requests::MAX_REQUESTS_OF_AGENT;

/// Maximum number of short requests of an account at once.
const MAX_SHORT_OF_ACCOUNT: usize = 256;
/// Maximum number of long requests of an account at once: watches, followed logs, upgrades.
const MAX_LONG_OF_ACCOUNT: usize = 512;
/// Maximum number of requests of a replica at once.
const MAX_OF_REPLICA: usize = 20_000;
/// Maximum size of the bodies that are held at once, in bytes.
const MAX_BODIES_BYTES: usize = 256 * 1024 * 1024;

/// What runs.
#[derive(Debug, Default)]
pub(super) struct RequestCounts {
    counted: Mutex<Counted>,
    /// The number of all.
    pub(super) running: Gauge,
}

#[derive(Debug, Default)]
struct Counted {
    /// Short and long requests of each account, by uid.
    accounts: HashMap<String, [usize; 2]>,
    total: usize,
    bodies: usize,
}

/// A request that is counted until this is dropped.
#[derive(Debug)]
pub(super) struct CountedRequest {
    counts: Arc<RequestCounts>,
    uid: String,
    kind: usize,
    body: usize,
}

impl RequestCounts {
    /// Counts a request; the error says which bound is reached.
    pub(super) fn add(
        self: &Arc<Self>,
        uid: &str,
        is_long: bool,
        body: usize,
    ) -> Result<CountedRequest, String> {
        let mut counted = self.counted.lock();
        let kind = usize::from(is_long);
        let max = [MAX_SHORT_OF_ACCOUNT, MAX_LONG_OF_ACCOUNT][kind];
        if counted.total >= MAX_OF_REPLICA {
            return Err(format!("{MAX_OF_REPLICA} requests run at this replica; try again"));
        }
        if counted.bodies + body > MAX_BODIES_BYTES {
            return Err("the bodies of requests have no room at this replica; try again".to_owned());
        }
        let of_account = counted.accounts.get(uid).copied().unwrap_or_default();
        if of_account[kind] >= max {
            let what = if is_long { "watches and other long requests" } else { "requests" };
            return Err(format!("{max} {what} of the account run; try again"));
        }
        counted.accounts.entry(uid.to_owned()).or_default()[kind] += 1;
        counted.total += 1;
        self.running.inc();
        counted.bodies += body;
        Ok(CountedRequest { counts: Arc::clone(self), uid: uid.to_owned(), kind, body })
    }

    /// Whether an agent with so many requests takes another one.
    pub(super) fn has_room(of_agent: usize) -> bool {
        of_agent < MAX_REQUESTS_OF_AGENT
    }
}

impl Drop for CountedRequest {
    fn drop(&mut self) {
        let mut counted = self.counts.counted.lock();
        counted.total -= 1;
        self.counts.running.dec();
        counted.bodies -= self.body;
        if let Some(of_account) = counted.accounts.get_mut(&self.uid) {
            of_account[self.kind] -= 1;
            if *of_account == [0, 0] {
                counted.accounts.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_account_does_not_use_up_what_others_may_have() {
        let counts = Arc::<RequestCounts>::default();
        let short: Vec<_> = std::iter::from_fn(|| counts.add("a", false, 0).ok()).collect();
        assert_eq!(short.len(), MAX_SHORT_OF_ACCOUNT);
        let long: Vec<_> = std::iter::from_fn(|| counts.add("a", true, 0).ok()).collect();
        assert_eq!(long.len(), MAX_LONG_OF_ACCOUNT);
        let other = counts.add("b", false, 0).expect("room for another account");
        drop((short, long));
        assert_eq!((counts.running.get(), counts.counted.lock().total), (1, 1));
        drop(other);
        assert!(counts.counted.lock().accounts.is_empty());
        assert!(counts.add("a", false, MAX_BODIES_BYTES + 1).is_err());
    }
}
