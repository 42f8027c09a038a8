//! The lists of namespaces that agents of this replica saw: too long for an object, so the row alone has them.
//!
//! All that wait share a transaction. They are written on the one connection that writes rows too, and a transaction for
//! each would hold up the rows that activations wait for.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::Hub;
use crate::fleet::Fleet as _;
use crate::store::{NamespaceList, Store, StoreError};
use crate::telemetry::errors::chain;

/// How many lists are written together at most, and about how many bytes.
const MOST_LISTS: usize = 256;
const MOST_BYTES: usize = 1 << 20;
/// How often a list is tried again while the row is not there yet, or the database is not.
const TRIES_AGAIN: usize = 4;
/// How long to wait between tries.
const PAUSE: Duration = Duration::from_secs(1);

/// Where the lists are kept.
#[async_trait]
pub trait NamespaceRows: Send + Sync {
    /// Writes all of these lists or none. Answers with the uids that have no row.
    ///
    /// # Errors
    /// The database cannot be used, or refuses one.
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

/// Writes the list of each account that an agent has told one of. What is missed by a crash is written when an agent
/// holds the account again.
pub(super) async fn keep(hub: Arc<Hub>, stop: CancellationToken) {
    let mut again: HashMap<String, usize> = HashMap::new();
    let mut at = Instant::now();
    loop {
        let next = async {
            tokio::select! {
                uids = hub.listed.take(MOST_LISTS) => Some(uids),
                () = tokio::time::sleep_until(at), if !again.is_empty() => None,
            }
        };
        let Some(next) = stop.run_until_cancelled(next).await else { return };
        let is_first = next.is_some();
        let uids = next.unwrap_or_else(|| again.keys().cloned().collect());
        let Some(missed) = stop.run_until_cancelled(write(&hub, uids)).await else { return };
        if is_first {
            if again.is_empty() {
                at = Instant::now() + PAUSE;
            }
            again.extend(missed.into_iter().map(|uid| (uid, TRIES_AGAIN)));
        } else {
            at = Instant::now() + PAUSE;
            let left = |uid: String| Some((again.get(&uid)?.checked_sub(1).filter(|left| *left > 0)?, uid));
            again = missed.into_iter().filter_map(left).map(|(left, uid)| (uid, left)).collect();
        }
    }
}

/// Writes the lists of these accounts. Answers with those that are to be tried again.
async fn write(hub: &Hub, uids: Vec<String>) -> Vec<String> {
    let rows = &*hub.namespace_rows;
    let (mut missed, mut lists, mut bytes) = (Vec::new(), Vec::new(), 0);
    for uid in uids {
        let Some(namespaces) = hub.namespaces(&uid) else { continue };
        bytes += namespaces.iter().map(String::len).sum::<usize>();
        lists.push(NamespaceList { uid, namespaces });
        if bytes >= MOST_BYTES {
            missed.extend(put(rows, &std::mem::take(&mut lists)).await);
            bytes = 0;
        }
    }
    missed.extend(put(rows, &lists).await);
    missed
}

async fn put(rows: &dyn NamespaceRows, lists: &[NamespaceList]) -> Vec<String> {
    if lists.is_empty() {
        return Vec::new();
    }
    match rows.put(lists).await {
        // The one at fault must not keep the others out.
        Err(StoreError::Refused { .. }) if lists.len() > 1 => {
            let mut missed = Vec::new();
            for list in lists.chunks(1) {
                missed.extend(missing(list, rows.put(list).await));
            }
            missed
        }
        answer => missing(lists, answer),
    }
}

fn missing(lists: &[NamespaceList], answer: Result<Vec<String>, StoreError>) -> Vec<String> {
    answer.unwrap_or_else(|error| {
        debug!(lists = lists.len(), error = %chain(&error), "namespaces were not written");
        lists.iter().map(|list| list.uid.clone()).collect()
    })
}
