//! A client of each account's cluster for requests, made with its definition when it is first needed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::account_table::{AccountTable, HeldDefinition};
use crate::activation::{Activator, Definition, DiscoveryTags};
use crate::cluster::ClusterClient;
use crate::command_executor::Activators;
use kubesvc_core::cache::selection::ServedKind;
use kubesvc_core::wire::common::Failure;

/// Time for which what a cluster serves is remembered.
const SERVED_KINDS_TIME: Duration = Duration::from_secs(600);
/// Minimum age of a client that is made anew after its credential was refused.
const MIN_RENEWAL_AGE: Duration = Duration::from_secs(10);
/// Number of clients at which those of accounts that are held no longer are removed.
const SWEEP_COUNT: usize = 64;

/// The clients of all accounts.
#[derive(Debug)]
pub(super) struct ClusterClients {
    table: Arc<Mutex<AccountTable>>,
    activators: Activators,
    by_uid: Mutex<HashMap<String, Arc<AccountClient>>>,
}

/// The client of one account, under one definition. Requests that run keep it.
#[derive(Debug)]
pub(super) struct AccountClient {
    definition: Arc<Definition>,
    made: Instant,
    client: OnceCell<ClusterClient>,
    served: tokio::sync::Mutex<Option<(Instant, Arc<Vec<ServedKind>>)>>,
}

impl ClusterClients {
    pub(super) fn new(table: Arc<Mutex<AccountTable>>, activators: Activators) -> Self {
        Self { table, activators, by_uid: Mutex::default() }
    }

    /// The entry of an account, under its definition.
    pub(super) fn of(&self, held: &HeldDefinition) -> Arc<AccountClient> {
        let mut clients = self.by_uid.lock();
        if clients.len() >= SWEEP_COUNT && !clients.contains_key(&held.account.uid) {
            let table = self.table.lock();
            clients.retain(|uid, _| table.held_definition(uid).is_some());
        }
        let known = clients.get(&held.account.uid);
        if let Some(known) = known.filter(|known| Arc::ptr_eq(&known.definition, &held.definition)) {
            return Arc::clone(known);
        }
        let made = Arc::new(AccountClient {
            definition: Arc::clone(&held.definition),
            made: Instant::now(),
            client: OnceCell::new(),
            served: tokio::sync::Mutex::default(),
        });
        clients.insert(held.account.uid.clone(), Arc::clone(&made));
        made
    }

    pub(super) fn forget(&self, uid: &str) {
        self.by_uid.lock().remove(uid);
    }

    /// Forgets a client whose credential the cluster refused, so that the next one has the credential as it is then.
    /// Returns whether another one may fare better.
    pub(super) fn renew(&self, uid: &str, refused: &Arc<AccountClient>) -> bool {
        if refused.made.elapsed() < MIN_RENEWAL_AGE {
            return false;
        }
        let mut clients = self.by_uid.lock();
        if clients.get(uid).is_some_and(|known| Arc::ptr_eq(known, refused)) {
            clients.remove(uid);
        }
        true
    }

    /// The client of an account.
    pub(super) async fn connect(
        &self,
        held: &HeldDefinition,
        entry: &AccountClient,
    ) -> Result<ClusterClient, Failure> {
        entry.client.get_or_try_init(|| self.connect_anew(held)).await.cloned()
    }

    async fn connect_anew(&self, held: &HeldDefinition) -> Result<ClusterClient, Failure> {
        let name = &held.account.name;
        let origin = self.activators.origin(name, held.definition.spec().credential.as_ref());
        let activator = self.activators.activator(name, origin);
        // Each new connection first asks whether it leads to the cluster that the account was activated with.
        let connected = activator.connect(&held.definition, origin, &held.cluster).await;
        connected.map_err(|failure| Failure { before_send: true, ..failure })
    }
}

impl AccountClient {
    /// Whether a kind is cluster-wide; `None` if the cluster does not serve it.
    pub(super) async fn is_cluster_wide(
        &self,
        client: &ClusterClient,
        (group, resource): (&str, &str),
    ) -> Result<Option<bool>, Failure> {
        let mut served = self.served.lock().await;
        let find = |kinds: &[ServedKind]| {
            kinds
                .iter()
                .find(|kind| kind.group == group && kind.plural == resource)
                .map(|kind| !kind.namespaced)
        };
        if let Some((at, kinds)) = &*served
            && at.elapsed() < SERVED_KINDS_TIME
            && let Some(found) = find(kinds)
        {
            return Ok(Some(found));
        }
        let kinds = Activator::changed_kinds(client.clone(), &DiscoveryTags::default()).await;
        let kinds = kinds.map_err(|failure| Failure { before_send: true, ..failure })?;
        let kinds = Arc::new(kinds.map(|served| served.kinds).unwrap_or_default());
        let found = find(&kinds);
        *served = Some((Instant::now(), kinds));
        Ok(found)
    }
}
