//! The lists of namespaces that this replica's agents reported. They are too long for an object, so only the rows
//! have them.
//!
//! All pending lists share a transaction. They use the connection that writes rows; a transaction for each list would
//! delay the rows that activations wait for.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tracing::{debug, warn};

use crate::hub::sessions::events::{SessionEvent, SessionSubscriber};
use crate::hub::table_writers::{RETRY_DELAYS, ROWLESS_RETRY_DELAY, TableWriters};
use kubesvc_runtime::background_tasks::{AttemptOutcome, BackgroundTasks, TaskSpec};
use kubesvc_runtime::work_queue::WorkQueue;
use kubesvc_store::{NamespaceList, NamespaceStore, StoreError};

/// Maximum number and total bytes of lists in one write.
const MAX_LISTS_PER_WRITE: usize = 256;
const MAX_BYTES_PER_WRITE: usize = 1 << 20;
/// Maximum number of retries of a list whose row does not exist yet.
const MAX_RETRIES: usize = 4;
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
    /// Accounts whose list follows their cached objects. What agents report of them does not count.
    cached: HashSet<String>,
    /// Generation of the account under which its cached Namespaces were last read, unless they have changed since.
    read: HashMap<String, i64>,
}

/// The lists of static accounts have reached their maximum size.
#[derive(Debug, PartialEq, Eq)]
struct ListsTooLong;

impl Lists {
    fn get(&self, uid: &str) -> Option<&Arc<[String]>> {
        self.of_accounts.get(uid)
    }

    fn uids(&self) -> Vec<String> {
        self.of_accounts.keys().cloned().collect()
    }

    /// Stores a list. Returns whether it changed.
    fn put(&mut self, uid: &str, names: Vec<String>, is_static: bool) -> Result<bool, ListsTooLong> {
        if self.of_accounts.get(uid).is_some_and(|before| **before == *names) {
            return Ok(false);
        }
        self.remove(uid);
        if is_static {
            let bytes = names.iter().map(|name| name.len() + BYTES_PER_NAME).sum();
            if self.all_static_bytes + bytes > MAX_STATIC_BYTES {
                return Err(ListsTooLong);
            }
            self.all_static_bytes += bytes;
            self.static_bytes.insert(uid.to_owned(), bytes);
        }
        self.of_accounts.insert(uid.to_owned(), names.into());
        Ok(true)
    }

    fn forget(&mut self, uid: &str) {
        self.cached.remove(uid);
        self.read.remove(uid);
        self.remove(uid);
    }

    fn remove(&mut self, uid: &str) {
        self.of_accounts.remove(uid);
        self.all_static_bytes -= self.static_bytes.remove(uid).unwrap_or_default();
    }
}

/// The lists, and the accounts whose list is to be written. A list is dropped when no session has its account any
/// more.
#[derive(Default)]
pub(crate) struct NamespaceLists {
    lists: Mutex<Lists>,
    dirty: Arc<WorkQueue<String>>,
    /// Accounts whose cached Namespaces changed.
    pub(super) cached: Arc<WorkQueue<String>>,
}

impl NamespaceLists {
    /// Lets the list of an account be what agents report, from the next report on.
    pub(super) fn unfollow(&self, uid: &str) {
        self.lists.lock().cached.remove(uid);
    }

    /// Whether the cached Namespaces of an account are to be read under this generation. They count as read from then on.
    pub(super) fn begin_read(&self, uid: &str, generation: i64) -> bool {
        self.lists.lock().read.insert(uid.to_owned(), generation) != Some(generation)
    }

    /// Records that the cached Namespaces of an account have changed, or could not be read.
    pub(super) fn unread(&self, uid: &str) {
        self.lists.lock().read.remove(uid);
    }

    fn get(&self, uid: &str) -> Option<Vec<String>> {
        self.lists.lock().get(uid).map(|names| names.to_vec())
    }
}

impl SessionSubscriber for NamespaceLists {
    fn session_event(&self, _serial: u64, event: SessionEvent<'_>) {
        if let SessionEvent::NamespacesWritten(uid) = event {
            self.unread(uid);
            self.cached.wake(uid.to_owned());
        }
    }

    /// The list depends on the spec too: it is derived again under each generation.
    fn account_changed(&self, uid: &str, _serials: &[u64]) {
        if self.lists.lock().of_accounts.contains_key(uid) {
            self.cached.wake(uid.to_owned());
        }
    }

    fn account_orphaned(&self, uid: &str) {
        self.lists.lock().forget(uid);
    }
}

impl TableWriters {
    /// Stores the namespaces that an agent reported for an account.
    pub(crate) fn record_namespaces(&self, uid: &str, namespaces: Vec<String>) {
        if !self.wakes.namespaces.lists.lock().cached.contains(uid) {
            self.put_namespaces(uid, namespaces, true);
        }
    }

    /// Stores the namespaces that an agent reported for an account, to be written in a while if nothing better is known
    /// by then.
    pub(crate) fn record_old_namespaces(&self, uid: &str, namespaces: Vec<String>) {
        if !self.wakes.namespaces.lists.lock().cached.contains(uid) {
            self.put_namespaces(uid, namespaces, false);
        }
    }

    /// Stores the namespaces of an account according to its cached objects.
    pub(super) fn follow_cached_namespaces(&self, uid: &str, namespaces: Vec<String>) {
        self.wakes.namespaces.lists.lock().cached.insert(uid.to_owned());
        self.put_namespaces(uid, namespaces, true);
    }

    fn put_namespaces(&self, uid: &str, namespaces: Vec<String>, is_due: bool) {
        let is_static = self.context.accounts.by_uid(uid).is_some_and(|account| account.is_static());
        let pending = &self.wakes.namespaces;
        let put = pending.lists.lock().put(uid, namespaces, is_static);
        match put {
            Ok(true) if is_due => pending.dirty.wake(uid.to_owned()),
            Ok(_) => {}
            Err(ListsTooLong) => {
                self.context.metrics.ignore("namespaces_room");
                if self.context.may_log("namespaces_room", None) {
                    warn!(
                        uid,
                        "the namespaces of a static account are not shown: all lists together are too long"
                    );
                }
            }
        }
    }

    /// Returns the namespaces that an agent of this replica reported for an account.
    pub(crate) fn namespaces(&self, uid: &str) -> Option<Vec<String>> {
        self.wakes.namespaces.get(uid)
    }
}

/// Lists that were not written.
#[derive(Debug, Default)]
struct UnwrittenLists {
    /// Without a row, or refused by the database.
    rowless: Vec<String>,
    /// The database is unavailable.
    unavailable: Vec<String>,
    /// Why it is unavailable.
    error: Option<String>,
}

/// Remaining retries of lists without a row. Pure.
#[derive(Debug, Default)]
struct RowlessLists(HashMap<String, usize>);

impl RowlessLists {
    /// Records an attempt at these lists. A list without a row is retried a few times, one that waits for the database
    /// without limit.
    fn tried(&mut self, tried: &[String], missed: UnwrittenLists) -> AttemptOutcome<String> {
        let mut before: HashMap<_, _> = tried.iter().filter_map(|uid| self.0.remove_entry(uid)).collect();
        let mut again = Vec::new();
        for uid in missed.rowless {
            let left = before.remove(&uid).map_or(MAX_RETRIES, |left| left.saturating_sub(1));
            if left > 0 {
                self.0.insert(uid.clone(), left);
                again.push(uid);
            }
        }
        for uid in missed.unavailable {
            self.0.extend(before.remove_entry(&uid));
            again.push(uid);
        }
        match missed.error {
            Some(error) => AttemptOutcome::Failed(again, error),
            None if again.is_empty() => AttemptOutcome::Done,
            None => AttemptOutcome::Again(again, ROWLESS_RETRY_DELAY),
        }
    }
}

/// Starts the task that writes the list of each account for which an agent reported one. A list lost in a crash is
/// written when an agent holds the account again.
pub(crate) fn start(background: &BackgroundTasks, tables: &Arc<TableWriters>) {
    let [first, longest] = RETRY_DELAYS;
    let task =
        TaskSpec::new("namespace lists", "Writes the namespaces that agents report into rows of accounts");
    let task = task.woken_by(&tables.wakes.namespaces.dirty).batch(MAX_LISTS_PER_WRITE);
    // The store limits the time of each statement.
    let task = task.every(REWRITE_INTERVAL).without_deadline().retry_delays(first, longest).logs_itself();
    let tables = Arc::clone(tables);
    let writer = ListWriter { tables, rowless: Mutex::default(), last_rewritten: Mutex::default() };
    let writer = Arc::new(writer);
    background.start(task, move |uids| Arc::clone(&writer).apply(uids));
}

struct ListWriter {
    tables: Arc<TableWriters>,
    rowless: Mutex<RowlessLists>,
    /// Uid of the last list that was rewritten.
    last_rewritten: Mutex<String>,
}

impl ListWriter {
    /// Writes the lists of these accounts. Without any, marks the next lists to be rewritten.
    async fn apply(self: Arc<Self>, uids: Vec<String>) -> AttemptOutcome<String> {
        if uids.is_empty() {
            let NamespaceLists { lists, dirty, .. } = &*self.tables.wakes.namespaces;
            let all = lists.lock().uids();
            dirty.wake_all(next_after(all, &mut self.last_rewritten.lock()));
            return AttemptOutcome::Unchanged;
        }
        let missed = write(&self.tables, &uids).await;
        self.rowless.lock().tried(&uids, missed)
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
async fn write(tables: &TableWriters, uids: &[String]) -> UnwrittenLists {
    let rows = &*tables.rows.namespaces;
    let (mut missed, mut lists, mut bytes) = (UnwrittenLists::default(), Vec::new(), 0);
    for uid in uids {
        let Some(namespaces) = tables.namespaces(uid) else { continue };
        if tables.is_listed_elsewhere(uid) {
            continue;
        }
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

async fn put(rows: &dyn NamespaceStore, lists: &[NamespaceList], missed: &mut UnwrittenLists) {
    if lists.is_empty() {
        return;
    }
    match rows.put_namespace_lists(lists).await {
        // One list at fault does not block the others.
        Err(StoreError::Refused { .. }) if lists.len() > 1 => {
            for list in lists.chunks(1) {
                missed.take(list, rows.put_namespace_lists(list).await);
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
        let uids = lists.iter().map(|list| list.uid.clone());
        let why = error.in_full();
        debug!(lists = lists.len(), error = why, "cannot write lists of namespaces");
        if matches!(error, StoreError::Unavailable(_)) {
            self.unavailable.extend(uids);
            self.error = Some(why);
        } else {
            self.rowless.extend(uids);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uids(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    /// Refuses all lists of a write that has the account `bad`.
    #[derive(Default)]
    struct RefusingRows(Mutex<Vec<String>>);

    #[async_trait::async_trait]
    impl NamespaceStore for RefusingRows {
        async fn namespaces(&self, _: &str) -> Result<Option<Vec<String>>, StoreError> {
            unreachable!("lists are only written")
        }

        async fn put_namespace_lists(&self, lists: &[NamespaceList]) -> Result<Vec<String>, StoreError> {
            if lists.iter().any(|list| list.uid == "bad") {
                return Err(StoreError::refused("kubesvc_accounts row \"bad\"", "it is bad"));
            }
            self.0.lock().extend(lists.iter().map(|list| list.uid.clone()));
            Ok(Vec::new())
        }
    }

    #[tokio::test]
    async fn a_list_that_the_database_refuses_keeps_no_other_from_being_written() {
        let (rows, mut missed) = (RefusingRows::default(), UnwrittenLists::default());
        let list = |uid: &String| NamespaceList { uid: uid.clone(), namespaces: uids(&["one"]) };
        let lists: Vec<_> = uids(&["a", "bad", "c"]).iter().map(list).collect();
        put(&rows, &lists, &mut missed).await;
        assert_eq!(*rows.0.lock(), ["a", "c"]);
        assert_eq!((missed.rowless, missed.unavailable, missed.error), (uids(&["bad"]), uids(&[]), None));
    }

    #[test]
    fn a_list_is_derived_again_when_the_spec_or_the_cached_objects_change() {
        let lists = NamespaceLists::default();
        lists.lists.lock().put("u", uids(&["one"]), false).expect("it has room");
        let derives = |generation| {
            lists.account_changed("u", &[]);
            lists.account_changed("of another replica", &[]);
            assert_eq!(lists.cached.try_take(9), ["u"]);
            lists.begin_read("u", generation)
        };
        assert!(derives(1));
        assert!(!derives(1), "only its status has changed");
        assert!(derives(2));
        lists.session_event(1, SessionEvent::NamespacesWritten("u"));
        assert_eq!(lists.cached.try_take(9), ["u"]);
        assert!(lists.begin_read("u", 2), "the objects have changed");
    }

    #[test]
    fn namespace_lists_of_static_accounts_are_bounded_and_freed() {
        let names = || (0..10_000).map(|one| format!("{one:0>20}")).collect::<Vec<_>>();
        let mut lists = Lists::default();
        let taken =
            (0..1000).filter(|one| lists.put(&format!("static-{one}"), names(), true) == Ok(true)).count();
        assert!(taken > 40 && taken < 100 && lists.all_static_bytes <= MAX_STATIC_BYTES, "{taken}");
        assert_eq!(lists.put("static-999", names(), true), Err(ListsTooLong));
        assert_eq!(lists.put("declared", names(), false), Ok(true), "those have room of their own");
        assert_eq!(lists.put("static-0", names(), true), Ok(false));
        lists.remove("static-0");
        assert_eq!(lists.put("static-999", names(), true), Ok(true));
        lists.uids().iter().for_each(|uid| lists.remove(uid));
        assert_eq!((lists.all_static_bytes, lists.static_bytes.len()), (0, 0));
    }

    fn unavailable(names: &[&str]) -> UnwrittenLists {
        let error = Some("it is away".to_owned());
        UnwrittenLists { unavailable: uids(names), error, ..UnwrittenLists::default() }
    }

    fn without_row(names: &[&str]) -> UnwrittenLists {
        UnwrittenLists { rowless: uids(names), ..UnwrittenLists::default() }
    }

    #[test]
    fn a_list_waits_for_the_database_however_long_that_is_away() {
        let mut rowless = RowlessLists::default();
        for _ in 0..50 {
            let outcome = rowless.tried(&uids(&["u"]), unavailable(&["u"]));
            assert_eq!(outcome, AttemptOutcome::Failed(uids(&["u"]), "it is away".to_owned()));
        }
        assert_eq!(
            rowless.tried(&uids(&["u"]), UnwrittenLists::default()),
            AttemptOutcome::Done,
            "it was written"
        );
    }

    #[test]
    fn a_list_without_a_row_is_given_up_until_it_is_checked() {
        let mut rowless = RowlessLists::default();
        for _ in 0..MAX_RETRIES {
            let outcome = rowless.tried(&uids(&["u"]), without_row(&["u"]));
            assert_eq!(outcome, AttemptOutcome::Again(uids(&["u"]), ROWLESS_RETRY_DELAY));
            rowless.tried(&uids(&["u"]), unavailable(&["u"]));
        }
        assert_eq!(rowless.tried(&uids(&["u"]), without_row(&["u"])), AttemptOutcome::Done);
        assert!(rowless.0.is_empty(), "nothing is kept of it");
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
