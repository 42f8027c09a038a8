//! The accounts of a request: finds their objects by name, read from the API server, runs their writes, and combines
//! the results.

use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use tokio::time::Instant;

use super::RestState;
use super::callers::RestCaller;
use super::error::RestError;
use crate::access::AccessResource;
use crate::informers::AccountKey;
use kubesvc_core::name_precedence::Precedence;
use kubesvc_core::{KubesvcAccount, object_names};
use kubesvc_runtime::account_secret::{AccountSecret, SecretWriter};
use kubesvc_runtime::kube_access::KubeObjects;

/// Maximum number of concurrent requests to the API server for one REST call.
const MAX_CONCURRENT_LOOKUPS: usize = 16;
/// Time limit for looking up all accounts of a request.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(30);
/// Time during which a request may start writes of accounts. Writes that were started run to completion.
const WRITE_START_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs all writes, a few at a time, and returns their results in order. Writes that were not started within the time
/// limit fail without being started, which bounds the time of the request.
pub(super) async fn all<T: Send + 'static>(
    writes: Vec<BoxFuture<'_, Result<T, RestError>>>,
) -> Vec<Result<T, RestError>> {
    let until = Instant::now() + WRITE_START_TIMEOUT;
    let begun: Vec<_> = writes.into_iter().map(|write| begin(write, until)).collect();
    stream::iter(begun).buffered(MAX_CONCURRENT_LOOKUPS).collect().await
}

fn begin<T: Send + 'static>(
    write: BoxFuture<'_, Result<T, RestError>>,
    until: Instant,
) -> BoxFuture<'_, Result<T, RestError>> {
    async move {
        if Instant::now() >= until {
            return Err(RestError::unavailable(format!(
                "the Kubernetes API server is slow: accounts not started within {} s were skipped; check the accounts and try again",
                WRITE_START_TIMEOUT.as_secs()
            )));
        }
        write.await
    }
    .boxed()
}

/// Combines the problems of a request into one error. Only those with the lowest status code are reported, because
/// the request fails for them first.
pub(super) fn refuse_if_any(problems: Vec<RestError>) -> Result<(), RestError> {
    const MAX_NAMES_LISTED: usize = 10;
    let Some(status) = problems.iter().map(|problem| problem.status).min() else { return Ok(()) };
    let of_it: Vec<String> = problems
        .into_iter()
        .filter(|problem| problem.status == status)
        .map(|problem| problem.message)
        .collect();
    let more = of_it.len().saturating_sub(MAX_NAMES_LISTED);
    let mut message = of_it.into_iter().take(MAX_NAMES_LISTED).collect::<Vec<_>>().join("; ");
    if more > 0 {
        message.push_str(&format!("; and {more} more"));
    }
    Err(RestError::new(status, message))
}

/// Returns the results of all accounts, or the first problem with the number of accounts that succeeded.
pub(super) fn summed_up<T>(results: Vec<Result<T, RestError>>) -> Result<Vec<T>, RestError> {
    let count = results.len();
    let (mut good, mut first) = (Vec::new(), None);
    for result in results {
        match result {
            Ok(value) => good.push(value),
            Err(problem) => first = first.or(Some(problem)),
        }
    }
    match first {
        None => Ok(good),
        Some(problem) if count == 1 => Err(problem),
        Some(RestError { status, message }) => {
            let done = good.len();
            Err(RestError::new(status, format!("{message}; {done} of {count} accounts were done")))
        }
    }
}

/// Until the index is synced, an account whose object name differs from its own name cannot be found.
pub(super) const NOT_READ_YET: &str = "the accounts are still being read from Kubernetes; try again";

/// What exists under an account name.
#[derive(Default)]
pub(super) struct FoundAccount {
    /// The account. If several objects have the name, the one that Spinnaker sees.
    pub(super) account: Option<KubesvcAccount>,
    /// Account name of another object that occupies the derived object name.
    pub(super) in_the_way: Option<String>,
    /// Whether there is something that the caller may not know of.
    pub(super) is_hidden: bool,
}

/// What exists under an account name, whoever asks.
#[derive(Default)]
struct ObjectsOfName {
    account: Option<KubesvcAccount>,
    in_the_way: Option<KubesvcAccount>,
    /// An account of another installation, and that.
    foreign: Option<(KubesvcAccount, String)>,
}

impl RestState {
    /// The accounts in a namespace, at the API server.
    pub(super) fn objects(&self, namespace: &str) -> KubeObjects<KubesvcAccount> {
        self.kube.namespaced(namespace)
    }

    /// The Secret that holds the kubeconfigs given to REST for one account.
    pub(super) fn secret<'k>(&self, key: &'k AccountKey) -> AccountSecret<'k> {
        AccountSecret::of(&self.kube, (&key.namespace, &key.name), SecretWriter::REST)
    }

    /// Finds the account of this name, for kubesvc itself: see [`RestState::find_as`].
    pub(super) async fn find(&self, name: &str) -> Result<FoundAccount, RestError> {
        self.find_as(&RestCaller::kubesvc(), name, "get").await
    }

    /// Finds the account of this name for a caller that wants to do this with it. One that it may not get is not found.
    /// Returns an error if none is found and the index is not synced, 409 if another installation serves it, or 403.
    pub(super) async fn find_as(
        &self,
        caller: &RestCaller,
        name: &str,
        verb: &'static str,
    ) -> Result<FoundAccount, RestError> {
        self.find_for(caller, name, verb, AccessResource::Accounts).await
    }

    /// The same for a right on another resource than the account.
    pub(super) async fn find_for(
        &self,
        caller: &RestCaller,
        name: &str,
        verb: &'static str,
        resource: AccessResource,
    ) -> Result<FoundAccount, RestError> {
        caller.needs_no_right();
        let ObjectsOfName { account, in_the_way, foreign } = self.look_up(name).await?;
        let hidden = FoundAccount { is_hidden: true, ..FoundAccount::default() };
        if let Some((account, operator)) = foreign {
            let sees = caller.sees(&account, verb, resource).await?;
            return if sees { Err(RestError::foreign(name, &operator)) } else { Ok(hidden) };
        }
        if let Some(account) = account {
            if !caller.sees(&account, verb, resource).await? {
                return Ok(hidden);
            }
            if verb != "get" {
                let namespace = account.metadata.namespace.as_deref().unwrap_or_default();
                caller.writes(name, namespace, account.uid());
            }
            return Ok(FoundAccount { account: Some(account), ..FoundAccount::default() });
        }
        match in_the_way {
            Some(other) if !caller.sees(&other, "get", AccessResource::Accounts).await? => Ok(hidden),
            Some(other) => Ok(FoundAccount {
                in_the_way: Some(other.account_name().to_owned()),
                ..FoundAccount::default()
            }),
            None => Ok(FoundAccount::default()),
        }
    }

    /// Looks at the derived object name, then wherever the index has seen the name. An object with another account name does
    /// not match.
    async fn look_up(&self, name: &str) -> Result<ObjectsOfName, RestError> {
        let derived = AccountKey {
            namespace: self.settings.accounts_namespace.clone(),
            name: object_names::object_name(name),
        };
        let mut keys = vec![derived];
        keys.extend(self.accounts.by_account_name(name).iter().map(|account| AccountKey::of(account)));
        let mut found = ObjectsOfName::default();
        for (index, key) in keys.iter().enumerate() {
            if keys[..index].contains(key) {
                continue;
            }
            match self.read(key).await? {
                Some(account) if account.account_name() == name => {
                    if let Some(operator) = self.accounts.foreign_operator(&account) {
                        let operator = operator.to_owned();
                        return Ok(ObjectsOfName { foreign: Some((account, operator)), ..found });
                    }
                    found.consider(account, self.accounts.precedence());
                }
                Some(other) if index == 0 => found.in_the_way = Some(other),
                _ => {}
            }
        }
        if found.account.is_none() && !self.accounts.is_synced() {
            return Err(RestError::unavailable(NOT_READ_YET));
        }
        Ok(found)
    }

    /// Finds many accounts for a caller that wants to do this with each, in order. Fails at the first one that cannot be read,
    /// or with which it may not do that.
    pub(super) async fn find_all(
        &self,
        caller: &RestCaller,
        names: &[(&str, &'static str)],
    ) -> Result<Vec<FoundAccount>, RestError> {
        let each: Vec<BoxFuture<'_, _>> =
            names.iter().map(|(name, verb)| self.find_as(caller, name, verb).boxed()).collect();
        let finding = stream::iter(each).buffered(MAX_CONCURRENT_LOOKUPS).try_collect();
        tokio::time::timeout(LOOKUP_TIMEOUT, finding).await.unwrap_or_else(|_| {
            Err(RestError::unavailable(format!(
                "the accounts could not be looked up within {} s, and nothing was done; try again, with fewer accounts per request",
                LOOKUP_TIMEOUT.as_secs()
            )))
        })
    }

    /// Reads an object from the API server.
    pub(super) async fn read(&self, key: &AccountKey) -> Result<Option<KubesvcAccount>, RestError> {
        Ok(self.objects(&key.namespace).get(&key.name).await?)
    }
}

impl ObjectsOfName {
    /// Keeps the account that takes precedence for the name.
    fn consider(&mut self, account: KubesvcAccount, precedence: Precedence) {
        if self.account.as_ref().is_none_or(|known| precedence.takes_precedence(&account, known)) {
            self.account = Some(account);
        }
    }
}
