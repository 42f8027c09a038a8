//! The watch that feeds the index.

use std::collections::HashSet;
use std::sync::Arc;

use futures::StreamExt;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt};
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use super::guarded::Guarded;
use super::index::{AccountKey, Accounts};

/// Keeps the index in step with one namespace, or all of them, until cancelled. A malformed object is logged and left
/// out; it does not stop the watch. A lost watch is resumed with backoff.
pub async fn watch_accounts(
    client: Client,
    namespace: Option<String>,
    accounts: Arc<Accounts>,
    stop: CancellationToken,
) {
    let api: Api<Guarded> = match &namespace {
        Some(namespace) => Api::namespaced(client, namespace),
        None => Api::all(client),
    };
    let stream = watcher::watcher(api, watcher::Config::default()).default_backoff();
    let mut stream = std::pin::pin!(stream.take_until(stop.cancelled_owned()));
    let mut listing = HashSet::new();
    while let Some(event) = stream.next().await {
        match event {
            Ok(Event::Init) => listing.clear(),
            Ok(Event::InitApply(object)) => {
                listing.insert(key_of(&object));
                take_in(&accounts, object);
            }
            Ok(Event::InitDone) => accounts.listed(namespace.as_deref(), &std::mem::take(&mut listing)),
            Ok(Event::Apply(object)) => take_in(&accounts, object),
            Ok(Event::Delete(object)) => accounts.gone(&key_of(&object)),
            Err(problem) => {
                warn!(error = %crate::telemetry::errors::chain(&problem), "watch of KubesvcAccounts");
            }
        }
    }
}

fn take_in(accounts: &Accounts, object: Guarded) {
    let key = key_of(&object);
    match object.into_result() {
        Ok(account) => accounts.seen(account),
        Err(invalid) => {
            error!(account = %key, error = invalid, "malformed KubesvcAccount is left out; correct it");
        }
    }
}

fn key_of(object: &Guarded) -> AccountKey {
    AccountKey { namespace: object.namespace().unwrap_or_default(), name: object.name_any() }
}
