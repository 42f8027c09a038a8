//! The watch that feeds the index of accounts.

use std::collections::HashSet;
use std::sync::Arc;

use futures::StreamExt;
use kube::runtime::watcher::Event;
use kube::{Api, Client, ResourceExt};
use tokio_util::sync::CancellationToken;
use tracing::error;

use super::guarded::GuardedAccount;
use super::index::{AccountIndex, AccountKey};
use crate::telemetry::outages;

/// Keeps the index in step with one namespace, or all of them, until cancelled. A malformed object is logged
/// and left out; it does not stop the watch. The watch restarts with a list when it was lost or when
/// [`AccountIndex::list_anew`] requests that; such a list is not served from the API server's watch cache.
pub async fn watch_accounts(
    client: Client,
    namespace: Option<String>,
    accounts: Arc<AccountIndex>,
    stop: CancellationToken,
) {
    let api: Api<GuardedAccount> = match &namespace {
        Some(namespace) => Api::namespaced(client, namespace),
        None => Api::all(client),
    };
    let new_stream = || crate::watch_backoff::events(api.clone(), crate::watch_backoff::config());
    let (mut stream, mut wishes) = (new_stream(), accounts.asked());
    let (mut listing, mut asked) = (HashSet::new(), *wishes.borrow_and_update());
    loop {
        let event = tokio::select! {
            () = stop.cancelled() => return,
            // The sender lives as long as the accounts.
            _ = wishes.changed() => {
                asked = *wishes.borrow_and_update();
                stream = new_stream();
                continue;
            }
            event = stream.next() => event,
        };
        match event {
            None => return,
            Some(Ok(Event::Init)) => {
                listing.clear();
                accounts.list_begins(namespace.as_deref());
            }
            Some(Ok(Event::InitApply(object))) => {
                listing.insert(key_of(&object));
                take_in(&accounts, object);
            }
            Some(Ok(Event::InitDone)) => {
                accounts.listed(namespace.as_deref(), &std::mem::take(&mut listing), asked);
            }
            Some(Ok(Event::Apply(object))) => take_in(&accounts, object),
            Some(Ok(Event::Delete(object))) => accounts.gone(&key_of(&object)),
            Some(Err(outage)) => outages::log_transition("KubesvcAccounts", &outage),
        }
    }
}

fn take_in(accounts: &AccountIndex, object: GuardedAccount) {
    let key = key_of(&object);
    match object.into_result() {
        Ok(account) => accounts.seen(account),
        Err(invalid) => {
            error!(account = %key, error = invalid.to_string(), "ignored a malformed KubesvcAccount; correct the object");
        }
    }
}

fn key_of(object: &GuardedAccount) -> AccountKey {
    AccountKey { namespace: object.namespace().unwrap_or_default(), name: object.name_any() }
}
