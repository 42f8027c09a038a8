//! What the cluster has been through, seen by a bare watch, and what the rows have shown meanwhile: no row may go back.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::convert::Infallible;
use std::time::Duration;

use futures::StreamExt as _;
use kube::api::{DynamicObject, ListParams, WatchEvent, WatchParams};
use kube::{Api, ResourceExt as _};
use parking_lot::Mutex;

use super::kinds::WrittenKind;
use crate::world::{CachedRow, MAX_WAIT, World, connect};
use kubesvc_testkit::wait::eventually;

/// Interval between two looks at the rows.
const POLL: Duration = Duration::from_millis(60);
/// Interval between two attempts to watch a kind.
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// Time limit for an answer of the database.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// Account, kind and name of a row.
type RowKey = (String, String, String);
/// Uid and version of a row; `None` while there is none.
type Shown = Option<(String, String)>;

/// What was seen so far.
#[derive(Debug, Default)]
pub(crate) struct History {
    versions: Mutex<Versions>,
    rows: Mutex<HashMap<RowKey, Vec<Shown>>>,
}

#[derive(Debug, Default)]
struct Versions {
    /// Kinds that were listed once: from then on each version is seen.
    begun: BTreeSet<String>,
    /// Kind, name, uid and version of each object that was seen.
    seen: HashSet<(String, String, String, String)>,
    /// Kinds of which the watch broke: some versions may have been missed.
    missed: BTreeSet<String>,
}

impl History {
    /// Watches the kinds in the world's namespace, for ever.
    pub(crate) async fn watch(&self, world: &World, kinds: &[WrittenKind]) -> Infallible {
        let client = world.control_plane().client().await;
        let watches = kinds.iter().map(async |kind| {
            let cached = kind.cached(world.namespace());
            let api = kind.api(client.clone(), world.namespace());
            loop {
                // What went wrong makes no difference: the watch may have missed something.
                let _ = self.watch_kind(&api, &cached).await;
                self.versions.lock().missed.insert(cached.clone());
                tokio::time::sleep(RETRY_DELAY).await;
            }
        });
        futures::future::select_all(watches.map(Box::pin)).await.0
    }

    async fn watch_kind(&self, api: &Api<DynamicObject>, kind: &str) -> kube::Result<()> {
        let listed = api.list(&ListParams::default()).await?;
        listed.items.iter().for_each(|object| self.saw(kind, object));
        self.versions.lock().begun.insert(kind.to_owned());
        let version = listed.metadata.resource_version.unwrap_or_default();
        let mut events = api.watch(&WatchParams::default(), &version).await?.boxed();
        while let Some(event) = events.next().await {
            match event? {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => self.saw(kind, &object),
                WatchEvent::Deleted(_) | WatchEvent::Bookmark(_) => {}
                WatchEvent::Error(_) => return Ok(()),
            }
        }
        Ok(())
    }

    /// Waits until all of these kinds are watched.
    pub(crate) async fn until_watched(&self, kinds: &[WrittenKind]) {
        let what = "a bare watch of each kind";
        eventually(what, MAX_WAIT, async || {
            let begun = self.versions.lock().begun.clone();
            if begun.len() == kinds.len() { Ok(()) } else { Err(format!("{begun:?} of {kinds:?}")) }
        })
        .await;
    }

    fn saw(&self, kind: &str, object: &DynamicObject) {
        let (uid, version) =
            (object.uid().unwrap_or_default(), object.resource_version().unwrap_or_default());
        self.versions.lock().seen.insert((kind.to_owned(), object.name_any(), uid, version));
    }

    /// Reads the rows of the world's namespace again and again, for ever.
    pub(crate) async fn poll_rows(&self, world: &World) -> Infallible {
        let mut connection = None;
        loop {
            let polled = tokio::time::timeout(READ_TIMEOUT, async {
                if connection.is_none() {
                    connection = Some(connect(world.database_url()).await?);
                }
                connection.as_mut().expect("it was just opened").cached_rows().await
            });
            match polled.await {
                Ok(Ok(rows)) => {
                    self.polled(rows.into_iter().filter(|row| row.namespace == world.namespace()));
                }
                // The database is away or paused.
                _ => connection = None,
            }
            tokio::time::sleep(POLL).await;
        }
    }

    fn polled(&self, rows: impl Iterator<Item = CachedRow>) {
        let mut now: BTreeMap<RowKey, Shown> = rows
            .map(|row| {
                ((row.account, row.kind, row.name), Some((row.uid.unwrap_or_default(), row.resource_version)))
            })
            .collect();
        let mut known = self.rows.lock();
        for (key, shown) in known.iter_mut() {
            let now = now.remove(key).flatten();
            if shown.last() != Some(&now) {
                shown.push(now);
            }
        }
        known.extend(now.into_iter().map(|(key, shown)| (key, vec![shown])));
    }

    /// Number of versions that the rows have shown.
    pub(crate) fn versions_shown(&self) -> usize {
        self.rows.lock().values().map(|shown| shown.iter().flatten().count()).sum()
    }

    /// Checks that no row went back, and that each has shown versions of its object alone.
    ///
    /// # Errors
    ///
    /// The text names the rows that did not.
    pub(crate) fn verdict(&self) -> Result<(), String> {
        let versions = self.versions.lock();
        let rows = self.rows.lock();
        let faults = rows
            .iter()
            .filter_map(|(key, shown)| Some(format!("{key:?}: {}", fault(key, shown, &versions)?)));
        let faults: Vec<_> = faults.collect();
        if faults.is_empty() { Ok(()) } else { Err(faults.join("\n")) }
    }
}

/// What is wrong with a row. The versions of the tests' API servers are numbers that grow.
fn fault((_, kind, name): &RowKey, shown: &[Shown], versions: &Versions) -> Option<String> {
    let mut last = 0;
    for (uid, version) in shown.iter().flatten() {
        let number: u64 = version.parse().ok()?;
        if number <= last {
            return Some(format!("it went back from {last} to {number}: {shown:?}"));
        }
        last = number;
        let seen = (kind.clone(), name.clone(), uid.clone(), version.clone());
        if !versions.missed.contains(kind) && !versions.seen.contains(&seen) {
            return Some(format!("no object had the version {version} with uid {uid}: {shown:?}"));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{History, Shown, Versions, fault};

    fn shown(versions: &[Option<u64>]) -> Vec<Shown> {
        versions.iter().map(|version| version.map(|version| ("u".to_owned(), version.to_string()))).collect()
    }

    #[test]
    fn row_that_goes_back_or_was_never_there_is_a_fault() {
        let key = ("prod".to_owned(), "secret".to_owned(), "one".to_owned());
        let mut versions = Versions::default();
        for version in [3, 5, 9] {
            let version = version.to_string();
            versions.seen.insert(("secret".to_owned(), "one".to_owned(), "u".to_owned(), version));
        }
        let is_wrong = |all: &[Option<u64>]| fault(&key, &shown(all), &versions).is_some();
        assert!(
            !is_wrong(&[Some(3), None, Some(5), Some(9)]) && !is_wrong(&[]) && !is_wrong(&[None, Some(9)])
        );
        assert!(is_wrong(&[Some(5), Some(3)]), "it goes back");
        assert!(is_wrong(&[Some(5), None, Some(5)]), "an object that was deleted is back");
        assert!(is_wrong(&[Some(3), Some(4)]), "no object had that version");
        assert!(History::default().verdict().is_ok());
    }
}
