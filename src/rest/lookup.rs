//! From an account's name to its object, as the API server has it now.

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use kube::Api;

use super::RestState;
use super::api::{Call, Resource, ask_for};
use super::error::Problem;
use crate::account::precedence::takes_precedence;
use crate::account::{KubesvcAccount, names};
use crate::objects::AccountKey;

/// How many requests to the API server one call of REST has under way.
const AT_ONCE: usize = 16;

/// Waits for all, a few at once, and returns what they came to in their order.
pub(super) async fn all<T>(futures: Vec<BoxFuture<'_, T>>) -> Vec<T> {
    stream::iter(futures).buffered(AT_ONCE).collect().await
}

/// What stands under a name.
#[derive(Default)]
pub(super) struct Found {
    /// The account; the one that Spinnaker sees, where several objects have the name.
    pub(super) account: Option<KubesvcAccount>,
    /// The account name of another object that has the derived object name.
    pub(super) in_the_way: Option<String>,
}

impl RestState {
    /// The API of accounts in a namespace.
    pub(super) fn api(&self, namespace: &str) -> Api<KubesvcAccount> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// The account of this name: at its derived object name, then wherever the index has seen the name. An object
    /// with another account name does not match.
    pub(super) async fn find(&self, name: &str) -> Result<Found, Problem> {
        let derived = AccountKey {
            namespace: self.settings.accounts_namespace.clone(),
            name: names::object_name(name),
        };
        let mut keys = vec![derived];
        keys.extend(self.accounts.by_account_name(name).iter().map(|account| AccountKey::of(account)));
        let mut found = Found::default();
        for (index, key) in keys.iter().enumerate() {
            if keys[..index].contains(key) {
                continue;
            }
            match self.read(key).await? {
                Some(account) if account.account_name() == name => found.consider(account),
                Some(other) if index == 0 => found.in_the_way = Some(other.account_name().to_owned()),
                _ => {}
            }
        }
        Ok(found)
    }

    /// The same for many names, in their order.
    pub(super) async fn find_all(&self, names: &[&str]) -> Result<Vec<Found>, Problem> {
        all(names.iter().map(|name| self.find(name).boxed()).collect()).await.into_iter().collect()
    }

    /// An object as the API server has it now.
    pub(super) async fn read(&self, key: &AccountKey) -> Result<Option<KubesvcAccount>, Problem> {
        let call =
            Call { verb: "get", resource: Resource::Account, namespace: &key.namespace, name: &key.name };
        Ok(ask_for(call, self.api(&key.namespace).get(&key.name)).await?)
    }
}

impl Found {
    /// Keeps the account that has the name by right: a declared one before a static one, then the older.
    fn consider(&mut self, account: KubesvcAccount) {
        if self.account.as_ref().is_none_or(|known| takes_precedence(&account, known)) {
            self.account = Some(account);
        }
    }
}
