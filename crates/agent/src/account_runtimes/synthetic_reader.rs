//! In place of the reader of a scope whose objects are not read: they follow from the account's settings.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::channel::mpsc;
use tokio::time::sleep;
use ulid::Ulid;

use crate::watch::{ReaderInput, ReaderSink, queue};
use kubesvc_core::cache::synthetic::{SYNTHETIC_VERSION, SyntheticObject};
use kubesvc_core::wire::events::blob::Encoding;
use kubesvc_core::wire::events::event::{Body, Operation};
use kubesvc_core::wire::events::{Blob, Event, Synced};

#[cfg(test)]
mod tests;

/// Delay before rows that could not be read are asked for again.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// Sends the objects of a scope, and the end of each other one that has a row; then there is nothing more to do.
pub(super) async fn run(
    objects: Arc<[SyntheticObject]>,
    mut inputs: mpsc::Receiver<ReaderInput>,
    sink: impl ReaderSink,
) {
    let (sync_key, rows) = loop {
        let sync_key = Ulid::generate().to_string();
        sink.sync_start(sync_key.clone());
        match basis(&sync_key, &mut inputs).await {
            Some(Ok(rows)) => break (sync_key, rows),
            Some(Err(())) => sleep(RETRY_DELAY).await,
            None => return,
        }
    };
    let mut deleted = 0;
    for (namespace, name) in rows {
        if !namespace.is_empty() || !objects.iter().any(|object| object.name == name) {
            deleted += 1;
            let gone = Event { namespace, name, op: Operation::Delete.into(), ..Event::default() };
            queue(&sink, Event { rv: SYNTHETIC_VERSION.to_owned(), ..gone }).await;
        }
    }
    for object in &*objects {
        queue(&sink, upsert(object)).await;
    }
    let sent = u64::try_from(objects.len()).unwrap_or(u64::MAX);
    let rv = SYNTHETIC_VERSION.to_owned();
    sink.synced(Synced { sync_key, rv, listed: sent, sent, deleted, ..Synced::default() });
}

/// Namespaces and names of the rows that the hub has; an error if they cannot be read, `None` if the reader is stopped.
async fn basis(
    key: &str,
    inputs: &mut mpsc::Receiver<ReaderInput>,
) -> Option<Result<HashSet<(String, String)>, ()>> {
    loop {
        let ReaderInput::Basis { sync_key, frames } = inputs.next().await? else { continue };
        if sync_key == key {
            let rows: Result<Vec<_>, _> = frames.collect();
            let rows = rows.map_err(|failure| {
                tracing::warn!(
                    "the rows of a scope cannot be read, and are asked for again: {}",
                    failure.message
                );
            });
            let names = |rows: Vec<Vec<_>>| {
                rows.into_iter()
                    .flatten()
                    .map(|row: kubesvc_core::wire::events::BasisRow| (row.namespace, row.name))
            };
            return Some(rows.map(|rows| names(rows).collect()));
        }
    }
}

fn upsert(object: &SyntheticObject) -> Event {
    let data = object.body.clone().into_bytes();
    let size = u32::try_from(data.len()).unwrap_or(u32::MAX);
    Event {
        op: Operation::Upsert.into(),
        name: object.name.clone(),
        rv: SYNTHETIC_VERSION.to_owned(),
        hash: object.hash.to_vec(),
        body: Some(Body::Blob(Blob { encoding: Encoding::Raw.into(), size, data })),
        ..Event::default()
    }
}
