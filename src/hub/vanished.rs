//! Accounts of which many vanish at once. An API server that starts, or that was restored, may show less than there is:
//! before an agent is told to drop them, all accounts are listed once more.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::Hub;
use super::session::Session;

/// More than so many of a session's accounts, and more than a tenth of them, are many.
const FEW: usize = 10;
/// From one list to the next.
const PAUSE: Duration = Duration::from_secs(1);

/// Whether that many of a session's accounts are so many that what shows it is doubted.
pub(super) fn is_doubtful(vanished: usize, of: usize) -> bool {
    vanished > FEW.max(of / 10)
}

/// Accounts that sessions wait for a list for, by the session's serial.
#[derive(Default)]
pub(super) struct Vanished {
    waiting: Mutex<HashMap<u64, HashSet<String>>>,
    more: Notify,
}

impl Vanished {
    /// A session waits for a list before it drops this account.
    pub(super) fn doubt(&self, serial: u64, uid: &str) {
        self.waiting.lock().entry(serial).or_default().insert(uid.to_owned());
        self.more.notify_one();
    }

    fn take(&self) -> HashMap<u64, HashSet<String>> {
        std::mem::take(&mut *self.waiting.lock())
    }
}

/// Lists all accounts anew whenever many have vanished, until stopped.
pub(super) async fn keep(hub: Arc<Hub>, stop: CancellationToken) {
    while stop.run_until_cancelled(hub.vanished.more.notified()).await.is_some() {
        let looked = async {
            look(&hub).await;
            tokio::time::sleep(PAUSE).await;
        };
        if stop.run_until_cancelled(looked).await.is_none() {
            return;
        }
    }
}

async fn look(hub: &Hub) {
    let waiting = hub.vanished.take();
    let count: usize = waiting.values().map(HashSet::len).sum();
    if count == 0 {
        return;
    }
    info!(accounts = count, "many accounts have vanished at once; all are listed before agents drop them");
    hub.accounts.list_anew().await;
    for (serial, uids) in waiting {
        let Some(session) = hub.registry.by_serial(serial) else { continue };
        session.listed_without.lock().extend(uids.iter().cloned());
        session.wakes.wake_all(uids);
    }
}

/// Of these accounts of a session those that it must not drop yet: many have vanished, and no list has shown that since.
pub(super) fn doubted(hub: &Hub, session: &Session, uids: &[String]) -> HashSet<String> {
    let has_vanished = |uid: &str| hub.accounts.by_uid(uid).is_none();
    if !uids.iter().any(|uid| has_vanished(uid)) {
        return HashSet::new();
    }
    let ledger = session.ledger.lock();
    let mut listed_without = session.listed_without.lock();
    listed_without.retain(|uid| ledger.entry(uid).is_some() && has_vanished(uid));
    let (mut all, mut vanished) = (0, HashSet::new());
    for (uid, _) in ledger.entries().filter(|(_, entry)| entry.may_hold()) {
        all += 1;
        if has_vanished(uid) && !listed_without.contains(uid) {
            vanished.insert(uid.clone());
        }
    }
    if is_doubtful(vanished.len(), all) { vanished } else { HashSet::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_ten_and_more_than_a_tenth_are_doubtful() {
        for (vanished, of, doubtful) in [
            (10, 10, false),
            (11, 11, true),
            (11, 109, true),
            (11, 110, false),
            (100, 1000, false),
            (101, 1000, true),
        ] {
            assert_eq!(is_doubtful(vanished, of), doubtful, "{vanished} of {of}");
        }
    }
}
