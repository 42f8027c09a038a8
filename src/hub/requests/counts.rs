//! The requests that run: how many of an account, of an agent, and of the replica; and those of accounts that are taken
//! from their zone, which end.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use tokio_util::sync::CancellationToken;

use crate::connected_agents::{RequestError, RequestErrorKind};
use kubesvc_core::ZoneId;
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
    counted: Mutex<RequestTotals>,
    /// The number of all.
    pub(super) running: Gauge,
}

#[derive(Debug, Default)]
struct RequestTotals {
    /// By uid, and by the number that its entry was given.
    accounts: HashMap<String, AccountCount>,
    entries: u64,
    total: usize,
    bodies: usize,
}

/// The requests of an account under one grant of its zone.
#[derive(Debug)]
struct AccountCount {
    entry: u64,
    zone: ZoneId,
    /// Cancelled when the zone no longer has the account.
    taken: CancellationToken,
    /// Short and long ones.
    running: [usize; 2],
}

/// A request that is counted until this is dropped.
#[derive(Debug)]
pub(super) struct CountedRequest {
    counts: Arc<RequestCounts>,
    uid: String,
    entry: u64,
    kind: usize,
    body: usize,
    /// Cancelled when the account is taken from its zone.
    pub(super) taken: CancellationToken,
}

impl RequestCounts {
    /// Counts a request; the error says which bound is reached.
    pub(super) fn add(
        self: &Arc<Self>,
        (uid, zone): (&str, &ZoneId),
        is_long: bool,
        body: usize,
    ) -> Result<CountedRequest, RequestError> {
        let too_many = |message: String| RequestError::new(RequestErrorKind::TooMany, message);
        let mut counted = self.counted.lock();
        let kind = usize::from(is_long);
        let max = [MAX_SHORT_OF_ACCOUNT, MAX_LONG_OF_ACCOUNT][kind];
        if counted.total >= MAX_OF_REPLICA {
            return Err(too_many(format!("{MAX_OF_REPLICA} requests run at this replica; try again")));
        }
        if counted.bodies + body > MAX_BODIES_BYTES {
            return Err(too_many(
                "the bodies of requests have no room at this replica; try again".to_owned(),
            ));
        }
        let of_account =
            counted.accounts.get(uid).filter(|one| one.zone == *zone && !one.taken.is_cancelled());
        if of_account.is_some_and(|one| one.running[kind] >= max) {
            let what = if is_long { "watches and other long requests" } else { "requests" };
            return Err(too_many(format!("{max} {what} of the account run; try again")));
        }
        if of_account.is_none() {
            counted.entries += 1;
            let count = AccountCount {
                entry: counted.entries,
                zone: zone.clone(),
                taken: CancellationToken::new(),
                running: [0, 0],
            };
            if let Some(former) = counted.accounts.insert(uid.to_owned(), count) {
                former.taken.cancel();
            }
        }
        let of_account = counted.accounts.get_mut(uid).expect("it was inserted above");
        of_account.running[kind] += 1;
        let (entry, taken) = (of_account.entry, of_account.taken.clone());
        counted.total += 1;
        self.running.inc();
        counted.bodies += body;
        Ok(CountedRequest { counts: Arc::clone(self), uid: uid.to_owned(), entry, kind, body, taken })
    }

    /// Ends the requests of accounts that their zone no longer has. `zone_of` returns the zone that may be asked.
    pub(super) fn end_taken(&self, zone_of: impl Fn(&str) -> Option<ZoneId>) {
        let running: Vec<_> = {
            let counted = self.counted.lock();
            counted.accounts.iter().map(|(uid, count)| (uid.clone(), count.zone.clone())).collect()
        };
        for (uid, zone) in running {
            if zone_of(&uid).as_ref() == Some(&zone) {
                continue;
            }
            let counted = self.counted.lock();
            if let Some(count) = counted.accounts.get(&uid).filter(|count| count.zone == zone) {
                count.taken.cancel();
            }
        }
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
        let of_account = counted.accounts.get_mut(&self.uid).filter(|count| count.entry == self.entry);
        if let Some(of_account) = of_account {
            of_account.running[self.kind] -= 1;
            if of_account.running == [0, 0] {
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
        let short: Vec<_> = std::iter::from_fn(|| counts.add(("a", &"z".into()), false, 0).ok()).collect();
        assert_eq!(short.len(), MAX_SHORT_OF_ACCOUNT);
        let long: Vec<_> = std::iter::from_fn(|| counts.add(("a", &"z".into()), true, 0).ok()).collect();
        assert_eq!(long.len(), MAX_LONG_OF_ACCOUNT);
        let other = counts.add(("b", &"z".into()), false, 0).expect("room for another account");
        drop((short, long));
        assert_eq!((counts.running.get(), counts.counted.lock().total), (1, 1));
        drop(other);
        assert!(counts.counted.lock().accounts.is_empty());
        assert!(counts.add(("a", &"z".into()), false, MAX_BODIES_BYTES + 1).is_err());
    }

    #[test]
    fn requests_of_an_account_that_its_zone_lost_end_and_new_ones_are_counted_anew() {
        let counts = Arc::<RequestCounts>::default();
        let [one, two] = ["a", "b"].map(|uid| counts.add((uid, &"z".into()), false, 0).expect("room"));
        counts.end_taken(|uid| (uid == "b").then(|| "z".into()));
        assert!(one.taken.is_cancelled() && !two.taken.is_cancelled());
        let anew = counts.add(("a", &"z".into()), false, 0).expect("room");
        assert!(!anew.taken.is_cancelled());
        let moved = counts.add(("a", &"y".into()), false, 0).expect("room");
        assert!(anew.taken.is_cancelled() && !moved.taken.is_cancelled());
        drop((one, two, anew));
        assert_eq!(counts.running.get(), 1);
        drop(moved);
        assert!(counts.counted.lock().accounts.is_empty());
    }
}
