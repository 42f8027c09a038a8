//! The lists of namespaces that this replica's agents reported. They are too long for an object, so only the rows
//! have them.
//!
//! All pending lists share a transaction. They use the connection that writes rows; a transaction for each list would
//! delay the rows that activations wait for.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::hub::sessions::events::{SessionEvent, SessionSubscriber};
use crate::hub::tables::Tables;
use crate::store::{NamespaceList, Store, StoreError};
use crate::telemetry::errors::chain;
use crate::wake_set::WakeSet;

/// Maximum number and total bytes of lists in one write.
const MAX_LISTS_PER_WRITE: usize = 256;
const MAX_BYTES_PER_WRITE: usize = 1 << 20;
/// Maximum number of retries of a list whose row does not exist yet.
const MAX_RETRIES: usize = 4;
/// Delay between retries, growing up to the maximum while the database is unavailable.
const RETRY_DELAY: Duration = Duration::from_secs(1);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(30);
/// Interval of rewrites, and maximum number of lists in each: a row may have been inserted again without its list.
/// Rewriting an unchanged list has no effect.
const REWRITE_INTERVAL: Duration = Duration::from_secs(60);
const MAX_LISTS_PER_REWRITE: usize = 1000;

/// Maximum size of the lists of static accounts, in bytes: an agent may have 1,000 such accounts with 10,000
/// namespaces each.
const MAX_STATIC_BYTES: usize = 32 * 1024 * 1024;
/// Size of a name without its characters, in bytes.
const BYTES_PER_NAME: usize = size_of::<String>() + 16;

/// Lists by account uid.
#[derive(Debug, Default)]
struct Lists {
    of_accounts: HashMap<String, Arc<[String]>>,
    /// Size of each list of a static account, in bytes.
    static_bytes: HashMap<String, usize>,
    all_static_bytes: usize,
}

/// The lists of static accounts have reached their maximum size.
#[derive(Debug, PartialEq, Eq)]
struct NoRoom;

impl Lists {
    fn get(&self, uid: &str) -> Option<&Arc<[String]>> {
        self.of_accounts.get(uid)
    }

    fn uids(&self) -> Vec<String> {
        self.of_accounts.keys().cloned().collect()
    }

    /// Stores a list. Returns whether it changed.
    fn put(&mut self, uid: &str, names: Vec<String>, is_static: bool) -> Result<bool, NoRoom> {
        if self.of_accounts.get(uid).is_some_and(|before| **before == *names) {
            return Ok(false);
        }
        self.remove(uid);
        if is_static {
            let bytes = names.iter().map(|name| name.len() + BYTES_PER_NAME).sum();
            if self.all_static_bytes + bytes > MAX_STATIC_BYTES {
                return Err(NoRoom);
            }
            self.all_static_bytes += bytes;
            self.static_bytes.insert(uid.to_owned(), bytes);
        }
        self.of_accounts.insert(uid.to_owned(), names.into());
        Ok(true)
    }

    fn remove(&mut self, uid: &str) {
        self.of_accounts.remove(uid);
        self.all_static_bytes -= self.static_bytes.remove(uid).unwrap_or_default();
    }
}

/// The lists, and the accounts whose list is to be written. A list is dropped when no session has its account any
/// more.
#[derive(Default)]
pub(in crate::hub) struct NamespaceLists {
    lists: Mutex<Lists>,
    dirty: WakeSet<String>,
}

impl NamespaceLists {
    fn get(&self, uid: &str) -> Option<Vec<String>> {
        self.lists.lock().get(uid).map(|names| names.to_vec())
    }
}

impl SessionSubscriber for NamespaceLists {
    fn session_event(&self, _serial: u64, _event: SessionEvent<'_>) {}

    fn account_orphaned(&self, uid: &str) {
        self.lists.lock().remove(uid);
    }
}

impl Tables {
    /// Stores the namespaces that an agent reported for an account.
    pub(in crate::hub) fn tell_namespaces(&self, uid: &str, namespaces: Vec<String>) {
        let is_static = self.context.accounts.by_uid(uid).is_some_and(|account| account.is_static());
        let told = &self.wakes.namespaces;
        let put = told.lists.lock().put(uid, namespaces, is_static);
        match put {
            Ok(true) => told.dirty.wake(uid.to_owned()),
            Ok(false) => {}
            Err(NoRoom) => {
                self.context.metrics.ignore("namespaces_room");
                if self.context.may_log("namespaces_room", None) {
                    warn!(
                        uid,
                        "no room for the namespaces of an account of an agent's own file; they are not shown"
                    );
                }
            }
        }
    }

    /// Returns the namespaces that an agent of this replica reported for an account.
    pub(in crate::hub) fn namespaces(&self, uid: &str) -> Option<Vec<String>> {
        self.wakes.namespaces.get(uid)
    }
}

/// Where the lists are written.
#[async_trait]
pub trait NamespaceRows: Send + Sync {
    /// Writes all of these lists or none. Returns the uids without a row.
    ///
    /// # Errors
    /// The database is unavailable or refuses one.
    async fn put(&self, lists: &[NamespaceList]) -> Result<Vec<String>, StoreError>;
}

/// The lists in the database.
pub struct StoredNamespaces(pub Arc<dyn Store>);

#[async_trait]
impl NamespaceRows for StoredNamespaces {
    async fn put(&self, lists: &[NamespaceList]) -> Result<Vec<String>, StoreError> {
        self.0.put_namespace_lists(lists).await
    }
}

/// Lists that were not written.
#[derive(Debug, Default)]
struct UnwrittenLists {
    /// Without a row, or refused by the database.
    rowless: Vec<String>,
    /// The database is unavailable.
    unavailable: Vec<String>,
}

/// Lists to be retried, each once, and the time of the retry.
struct RetryQueue {
    /// Remaining retries of each list without a row.
    left: HashMap<String, usize>,
    at: Instant,
    pause: Duration,
}

impl RetryQueue {
    fn new(now: Instant) -> Self {
        Self { left: HashMap::new(), at: now, pause: RETRY_DELAY }
    }

    fn uids(&self) -> Vec<String> {
        self.left.keys().cloned().collect()
    }

    /// Records the result of a write. Lists that wait for the database are retried without limit.
    fn tried(&mut self, tried: &[String], missed: UnwrittenLists, now: Instant) {
        let was_due = self.left.is_empty() || self.at <= now;
        let mut before: HashMap<_, _> = tried.iter().filter_map(|uid| self.left.remove_entry(uid)).collect();
        if was_due {
            self.pause = if missed.unavailable.is_empty() {
                RETRY_DELAY
            } else {
                (self.pause * 2).min(MAX_RETRY_DELAY)
            };
            self.at = now + self.pause;
        }
        for uid in missed.rowless {
            let left = before.remove(&uid).map_or(MAX_RETRIES, |left| left.saturating_sub(1));
            if left > 0 {
                self.left.insert(uid, left);
            }
        }
        for uid in missed.unavailable {
            let left = before.remove(&uid).unwrap_or(MAX_RETRIES);
            self.left.insert(uid, left);
        }
    }
}

/// Writes the list of each account for which an agent reported one, until stopped. A list lost in a crash is written
/// when an agent holds the account again.
pub(in crate::hub) async fn run(tables: Arc<Tables>, stop: CancellationToken) {
    let NamespaceLists { lists, dirty } = &*tables.wakes.namespaces;
    let mut again = RetryQueue::new(Instant::now());
    let mut check = tokio::time::interval(REWRITE_INTERVAL);
    check.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut checked = String::new();
    loop {
        let at = again.at;
        let next = async {
            tokio::select! {
                uids = dirty.take(MAX_LISTS_PER_WRITE) => uids,
                () = tokio::time::sleep_until(at), if !again.left.is_empty() => again.uids(),
                _ = check.tick() => {
                    let told = lists.lock().uids();
                    dirty.wake_all(next_after(told, &mut checked));
                    Vec::new()
                }
            }
        };
        let Some(uids) = stop.run_until_cancelled(next).await else { return };
        let Some(missed) = stop.run_until_cancelled(write(&tables, &uids)).await else { return };
        if !uids.is_empty() {
            again.tried(&uids, missed, Instant::now());
        }
    }
}

/// Returns the next uids in order after `last`, starting over at the end.
fn next_after(mut uids: Vec<String>, last: &mut String) -> Vec<String> {
    uids.sort_unstable();
    let begin = uids.partition_point(|uid| uid.as_str() <= last.as_str());
    let mut next = uids.split_off(begin);
    next.truncate(MAX_LISTS_PER_REWRITE);
    *last = if next.len() < MAX_LISTS_PER_REWRITE {
        String::new()
    } else {
        next.last().cloned().unwrap_or_default()
    };
    next
}

/// Writes the lists of these accounts. Returns those to be retried.
async fn write(tables: &Tables, uids: &[String]) -> UnwrittenLists {
    let rows = &*tables.rows.namespaces;
    let (mut missed, mut lists, mut bytes) = (UnwrittenLists::default(), Vec::new(), 0);
    for uid in uids {
        let Some(namespaces) = tables.namespaces(uid) else { continue };
        bytes += namespaces.iter().map(String::len).sum::<usize>();
        lists.push(NamespaceList { uid: uid.clone(), namespaces });
        if bytes >= MAX_BYTES_PER_WRITE || lists.len() >= MAX_LISTS_PER_WRITE {
            put(rows, &std::mem::take(&mut lists), &mut missed).await;
            bytes = 0;
        }
    }
    put(rows, &lists, &mut missed).await;
    missed
}

async fn put(rows: &dyn NamespaceRows, lists: &[NamespaceList], missed: &mut UnwrittenLists) {
    if lists.is_empty() {
        return;
    }
    match rows.put(lists).await {
        // One list at fault does not block the others.
        Err(StoreError::Refused { .. }) if lists.len() > 1 => {
            for list in lists.chunks(1) {
                missed.take(list, rows.put(list).await);
            }
        }
        answer => missed.take(lists, answer),
    }
}

impl UnwrittenLists {
    fn take(&mut self, lists: &[NamespaceList], answer: Result<Vec<String>, StoreError>) {
        let error = match answer {
            Ok(rowless) => return self.rowless.extend(rowless),
            Err(error) => error,
        };
        debug!(lists = lists.len(), error = %chain(&error), "namespaces were not written");
        let uids = lists.iter().map(|list| list.uid.clone());
        match error {
            StoreError::Unavailable(_) => self.unavailable.extend(uids),
            _ => self.rowless.extend(uids),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uids(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn the_lists_of_static_accounts_have_a_bound_and_give_their_room_back() {
        let names = || (0..10_000).map(|one| format!("{one:0>20}")).collect::<Vec<_>>();
        let mut lists = Lists::default();
        let taken =
            (0..1000).filter(|one| lists.put(&format!("static-{one}"), names(), true) == Ok(true)).count();
        assert!(taken > 40 && taken < 100 && lists.all_static_bytes <= MAX_STATIC_BYTES, "{taken}");
        assert_eq!(lists.put("static-999", names(), true), Err(NoRoom));
        assert_eq!(lists.put("declared", names(), false), Ok(true), "those have room of their own");
        assert_eq!(lists.put("static-0", names(), true), Ok(false));
        lists.remove("static-0");
        assert_eq!(lists.put("static-999", names(), true), Ok(true));
        lists.uids().iter().for_each(|uid| lists.remove(uid));
        assert_eq!((lists.all_static_bytes, lists.static_bytes.len()), (0, 0));
    }

    #[test]
    fn a_list_waits_for_the_database_however_long_that_is_away() {
        let mut now = Instant::now();
        let mut again = RetryQueue::new(now);
        let mut pauses = Vec::new();
        for _ in 0..50 {
            again.tried(
                &uids(&["u"]),
                UnwrittenLists { unavailable: uids(&["u"]), ..UnwrittenLists::default() },
                now,
            );
            assert_eq!(again.uids(), ["u"]);
            pauses.push((again.at - now).as_secs());
            now = again.at;
        }
        assert_eq!((&pauses[..6], pauses[49]), (&[2, 4, 8, 16, 30, 30][..], 30));
        again.tried(&uids(&["u"]), UnwrittenLists::default(), now);
        assert!(again.uids().is_empty(), "it was written");
    }

    #[test]
    fn a_list_without_a_row_is_given_up_until_it_is_checked() {
        let mut now = Instant::now();
        let mut again = RetryQueue::new(now);
        let mut tries = 0;
        loop {
            again.tried(
                &uids(&["u"]),
                UnwrittenLists { rowless: uids(&["u"]), ..UnwrittenLists::default() },
                now,
            );
            tries += 1;
            now = again.at;
            if again.left.is_empty() {
                break;
            }
        }
        assert_eq!(tries, 1 + MAX_RETRIES);
    }

    #[test]
    fn every_list_is_checked_in_turn() {
        let all: Vec<String> = (0..2500).map(|number| format!("{number:05}")).collect();
        let (mut last, mut seen) = (String::new(), Vec::new());
        for count in [1000, 1000, 500] {
            let next = next_after(all.clone(), &mut last);
            assert_eq!(next.len(), count);
            seen.extend(next);
        }
        assert_eq!(seen, all);
        assert_eq!(next_after(all.clone(), &mut last)[0], all[0]);
    }
}
