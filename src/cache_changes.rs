//! The committed changes of cached objects, for readers who follow an account. The hub publishes what a transaction
//! wrote, after its commit; REST reads. Accounts that nobody follows cost a look at a counter.
//!
//! Each reader has a bounded queue. One that is too slow loses lines, and is told how many in their place.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Maximum number of calls that follow changes at the same time, over all accounts of a replica.
pub const MAX_READERS: usize = 64;
/// Maximum number of lines that wait for one reader.
pub const MAX_LINES: usize = 1024;

/// What was done to a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ChangeOperation {
    /// It was inserted or replaced.
    Upsert,
    /// It was deleted.
    Delete,
}

/// A committed change of a row: names and versions, nothing of the object's contents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CommittedChange<'a> {
    /// Time of the commit.
    pub time: Timestamp,
    /// Name of the account.
    pub account: &'a str,
    /// What was done.
    pub op: ChangeOperation,
    /// `kubesvc_cache.kind`.
    pub kind: &'a str,
    /// Namespace; empty if the object has none.
    pub namespace: &'a str,
    /// Name.
    pub name: &'a str,
    /// Version of the object in its cluster.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub resource_version: &'a str,
    /// uid of the object in its cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<&'a str>,
}

/// What a reader gets next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FeedItem {
    /// A change as a line of JSON, without a line feed.
    Line(Arc<str>),
    /// This number of lines was lost here, because the reader was too slow.
    Lost(u64),
}

/// Changes on their way from the writers to the readers of this replica.
pub struct ChangeFeed {
    readers: AtomicUsize,
    by_account: Mutex<HashMap<String, Vec<Arc<ReaderQueue>>>>,
    places: Arc<Semaphore>,
}

impl Default for ChangeFeed {
    fn default() -> Self {
        Self {
            readers: AtomicUsize::new(0),
            by_account: Mutex::default(),
            places: Arc::new(Semaphore::new(MAX_READERS)),
        }
    }
}

impl ChangeFeed {
    /// Takes one of the [`MAX_READERS`] places for a call; `None` if all are taken.
    pub fn place(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.places).try_acquire_owned().ok()
    }

    /// Reads the changes of an account, from now on. For a call that has a place.
    pub fn follow(self: &Arc<Self>, uid: &str) -> ChangeReader {
        let queue = Arc::<ReaderQueue>::default();
        let mut by_account = self.by_account.lock();
        by_account.entry(uid.to_owned()).or_default().push(Arc::clone(&queue));
        self.readers.fetch_add(1, Ordering::SeqCst);
        ChangeReader { feed: Arc::clone(self), uid: uid.to_owned(), queue }
    }

    /// Whether anybody reads changes of any account.
    pub fn has_readers(&self) -> bool {
        self.readers.load(Ordering::SeqCst) > 0
    }

    /// Publishes what was committed for an account. `changes` is called only if somebody reads them.
    pub fn publish<'a, C>(&self, uid: &str, changes: impl FnOnce() -> C)
    where
        C: Iterator<Item = CommittedChange<'a>>,
    {
        if !self.has_readers() {
            return;
        }
        let readers = self.by_account.lock().get(uid).cloned().unwrap_or_default();
        if readers.is_empty() {
            return;
        }
        for change in changes() {
            // Text and numbers are always JSON.
            let Ok(line) = serde_json::to_string(&change) else { continue };
            let line: Arc<str> = line.into();
            readers.iter().for_each(|reader| reader.push(Arc::clone(&line)));
        }
    }

    fn leave(&self, uid: &str, queue: &Arc<ReaderQueue>) {
        let mut by_account = self.by_account.lock();
        if let Some(readers) = by_account.get_mut(uid) {
            readers.retain(|reader| !Arc::ptr_eq(reader, queue));
            if readers.is_empty() {
                by_account.remove(uid);
            }
        }
        self.readers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The lines that wait for one reader.
#[derive(Default)]
struct ReaderQueue {
    waiting: Mutex<WaitingLines>,
    arrived: Notify,
}

#[derive(Debug, Default)]
struct WaitingLines {
    lines: VecDeque<Arc<str>>,
    lost: u64,
}

impl WaitingLines {
    /// Adds a line. After the first one that is lost, all are, until the reader has been told: so it is told where.
    fn push(&mut self, line: Arc<str>) {
        if self.lost > 0 || self.lines.len() >= MAX_LINES {
            self.lost += 1;
        } else {
            self.lines.push_back(line);
        }
    }

    fn take(&mut self) -> Option<FeedItem> {
        if let Some(line) = self.lines.pop_front() {
            return Some(FeedItem::Line(line));
        }
        let lost = std::mem::take(&mut self.lost);
        (lost > 0).then_some(FeedItem::Lost(lost))
    }
}

impl ReaderQueue {
    fn push(&self, line: Arc<str>) {
        self.waiting.lock().push(line);
        self.arrived.notify_one();
    }
}

/// One reader of the changes of an account. Dropped, it reads no more.
pub struct ChangeReader {
    feed: Arc<ChangeFeed>,
    uid: String,
    queue: Arc<ReaderQueue>,
}

impl ChangeReader {
    /// The next item. Cancel safe.
    pub async fn next(&self) -> FeedItem {
        loop {
            let arrived = self.queue.arrived.notified();
            if let Some(item) = self.queue.waiting.lock().take() {
                return item;
            }
            arrived.await;
        }
    }
}

impl Drop for ChangeReader {
    fn drop(&mut self) {
        self.feed.leave(&self.uid, &self.queue);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    fn change(name: &str) -> CommittedChange<'_> {
        CommittedChange {
            time: Timestamp::UNIX_EPOCH,
            account: "prod",
            op: ChangeOperation::Upsert,
            kind: "deployment",
            namespace: "shop",
            name,
            resource_version: "7",
            uid: None,
        }
    }

    fn publish(feed: &ChangeFeed, uid: &str, names: &[&str]) {
        feed.publish(uid, || names.iter().map(|name| change(name)));
    }

    fn next(reader: &ChangeReader) -> Option<FeedItem> {
        reader.next().now_or_never()
    }

    #[test]
    fn readers_get_the_changes_of_their_account_and_nobody_else_pays() {
        let feed = Arc::<ChangeFeed>::default();
        feed.publish("uid", || -> std::iter::Empty<CommittedChange<'_>> { unreachable!("nobody reads") });
        let reader = feed.follow("uid");
        feed.publish("other", || -> std::iter::Empty<CommittedChange<'_>> { unreachable!("nobody reads") });
        publish(&feed, "uid", &["a"]);
        let line = r#"{"time":"1970-01-01T00:00:00Z","account":"prod","op":"UPSERT","kind":"deployment","namespace":"shop","name":"a","resourceVersion":"7"}"#;
        assert_eq!(next(&reader), Some(FeedItem::Line(line.into())));
        assert_eq!(next(&reader), None);
        drop(reader);
        assert!(!feed.has_readers() && feed.by_account.lock().is_empty());
    }

    #[test]
    fn a_slow_reader_is_told_how_many_lines_it_lost_and_where() {
        let feed = Arc::<ChangeFeed>::default();
        let (slow, quick) = (feed.follow("uid"), feed.follow("uid"));
        for _ in 0..MAX_LINES + 5 {
            publish(&feed, "uid", &["a"]);
            assert!(matches!(next(&quick), Some(FeedItem::Line(_))));
        }
        assert!(matches!(next(&slow), Some(FeedItem::Line(_))));
        publish(&feed, "uid", &["lost too: lines after the first lost one would hide the gap"]);
        for _ in 1..MAX_LINES {
            assert!(matches!(next(&slow), Some(FeedItem::Line(_))));
        }
        assert_eq!(next(&slow), Some(FeedItem::Lost(6)));
        assert_eq!(next(&slow), None);
        publish(&feed, "uid", &["b"]);
        assert!(matches!(next(&slow), Some(FeedItem::Line(_))));
    }

    #[test]
    fn places_are_limited_and_come_back() {
        let feed = ChangeFeed::default();
        let places: Vec<_> = (0..MAX_READERS).map_while(|_| feed.place()).collect();
        assert_eq!(places.len(), MAX_READERS);
        assert!(feed.place().is_none());
        drop(places);
        assert!(feed.place().is_some());
    }
}
