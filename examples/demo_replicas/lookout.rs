//! Sees every state that an account is ever in.

use std::sync::Arc;

use futures::StreamExt as _;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt as _};
use kubesvc_core::{KubesvcAccount, State};
use parking_lot::Mutex;
use tokio_util::task::AbortOnDropHandle;

use super::stage::NAMESPACE;

/// A watch of the API server, from its start until it is dropped.
pub(crate) struct Lookout {
    seen: Arc<Mutex<Vec<String>>>,
    versions: Arc<Mutex<Vec<String>>>,
    _watching: AbortOnDropHandle<()>,
}

impl Lookout {
    /// Watches one account.
    pub(crate) fn start(client: Client, name: &'static str) -> Self {
        let (seen, versions) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
        let (tell, version) = (Arc::clone(&seen), Arc::clone(&versions));
        let accounts: Api<KubesvcAccount> = Api::namespaced(client, NAMESPACE);
        let watching = tokio::spawn(async move {
            let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
            let mut events = std::pin::pin!(watcher::watcher(accounts, only));
            while let Some(event) = events.next().await {
                match event {
                    Ok(Event::Apply(account) | Event::InitApply(account)) => {
                        let state = account.status_or_default().state();
                        if state != State::Active {
                            tell.lock().push(state.to_string());
                        }
                        version.lock().extend(account.resource_version());
                    }
                    Ok(Event::Delete(_)) => tell.lock().push("gone".to_owned()),
                    Ok(Event::Init | Event::InitDone) => {}
                    Err(error) => tell.lock().push(format!("unseen: {error}")),
                }
            }
        });
        Self { seen, versions, _watching: AbortOnDropHandle::new(watching) }
    }

    /// Whether it has seen the account at all.
    pub(crate) fn has_begun(&self) -> bool {
        !self.versions.lock().is_empty()
    }

    /// How often the object was written since the first look.
    ///
    /// # Errors
    ///
    /// The account was in another state than ACTIVE, or could not be watched.
    pub(crate) fn writes_while_active(&self) -> Result<usize, String> {
        let (seen, mut versions) = (self.seen.lock(), self.versions.lock().clone());
        if !seen.is_empty() {
            return Err(format!("it was not ACTIVE all the time: {}", seen.join(", ")));
        }
        versions.dedup();
        Ok(versions.len().saturating_sub(1))
    }
}
