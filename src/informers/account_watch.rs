//! The watch that feeds the index of accounts, and its tolerance of malformed objects.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::DeserializeGuard;
use kube::core::error_boundary::InvalidObject;
use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt};
use serde::de::{Deserialize, Deserializer, Error};
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;
use tracing::error;

use super::accounts::{AccountIndex, AccountKey};
use kubesvc_core::KubesvcAccount;
use kubesvc_runtime::kube_access::KubeAccess;
use kubesvc_runtime::telemetry::outages;

/// Keeps the index in step with one namespace, or all of them, until cancelled. A malformed object is logged
/// and left out; it does not stop the watch. The watch restarts with a list when it was lost or when
/// [`AccountIndex::list_anew`] requests that; such a list is not served from the API server's watch cache.
pub async fn watch_accounts(
    kube: KubeAccess,
    namespace: Option<String>,
    accounts: Arc<AccountIndex>,
    stop: CancellationToken,
) {
    let objects = kube.in_namespace::<GuardedAccount>(namespace.as_deref());
    let new_stream = || {
        kubesvc_runtime::watch_backoff::events(
            objects.api().clone(),
            kubesvc_runtime::watch_backoff::config(),
        )
    };
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

/// An account, or the reason why it is malformed; a malformed object must not stop the others. Can be deserialized from
/// JSON only.
///
/// This does the same as [`DeserializeGuard`] at less than half the cost. That type builds a tree of each object, copies
/// it, and builds the object from the copy. Here the object's text is kept while it is parsed, and parsed again only if
/// it is malformed.
#[derive(Clone, Debug)]
struct GuardedAccount(DeserializeGuard<KubesvcAccount>);

impl GuardedAccount {
    /// Returns the account, or what is wrong with it.
    fn into_result(self) -> Result<KubesvcAccount, Box<InvalidObject>> {
        self.0.0.map_err(Box::new)
    }
}

#[derive(serde::Deserialize)]
struct PartialObject {
    metadata: ObjectMeta,
}

impl<'de> Deserialize<'de> for GuardedAccount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let read = match serde_json::from_str(text.get()) {
            Ok(account) => Ok(account),
            Err(problem) => {
                let PartialObject { metadata } =
                    serde_json::from_str(text.get()).map_err(D::Error::custom)?;
                Err(InvalidObject { error: problem.to_string(), metadata })
            }
        };
        Ok(Self(DeserializeGuard(read)))
    }
}

impl Resource for GuardedAccount {
    type DynamicType = <KubesvcAccount as Resource>::DynamicType;
    type Scope = <KubesvcAccount as Resource>::Scope;

    fn kind(kind: &Self::DynamicType) -> Cow<'_, str> {
        KubesvcAccount::kind(kind)
    }

    fn group(kind: &Self::DynamicType) -> Cow<'_, str> {
        KubesvcAccount::group(kind)
    }

    fn version(kind: &Self::DynamicType) -> Cow<'_, str> {
        KubesvcAccount::version(kind)
    }

    fn plural(kind: &Self::DynamicType) -> Cow<'_, str> {
        KubesvcAccount::plural(kind)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.meta_mut()
    }
}

#[cfg(test)]
mod tests {
    use kube::core::{ObjectList, WatchEvent};

    use super::*;

    const GOOD: &str = r#"{"apiVersion":"kubesvc.io/v1alpha1","kind":"KubesvcAccount",
        "metadata":{"name":"good","namespace":"ns"},"spec":{"kubeconfig":{"secretRef":{"name":"s"}}}}"#;
    const BAD: &str = r#"{"apiVersion":"kubesvc.io/v1alpha1","kind":"KubesvcAccount",
        "metadata":{"name":"bad","namespace":"ns"},"spec":{"kubeconfig":7}}"#;

    fn name(object: &GuardedAccount) -> Option<&str> {
        object.meta().name.as_deref()
    }

    #[test]
    fn a_malformed_object_of_a_list_is_named_and_the_others_are_read() {
        let list = format!(r#"{{"apiVersion":"v1","kind":"List","metadata":{{}},"items":[{BAD},{GOOD}]}}"#);
        let list: ObjectList<GuardedAccount> = serde_json::from_str(&list).expect("it is a list");
        let names: Vec<_> = list.items.iter().map(name).collect();
        assert_eq!(names, [Some("bad"), Some("good")]);
        let [bad, good] = <[GuardedAccount; 2]>::try_from(list.items).expect("two");
        let problem = bad.into_result().expect_err("a number is no source").to_string();
        assert!(problem.contains("invalid type: integer `7`"), "{problem}");
        let spec = good.into_result().expect("it is well-formed").spec;
        assert_eq!(spec.kubeconfig.secret_ref.map(|secret| secret.name).as_deref(), Some("s"));
    }

    #[test]
    fn a_malformed_object_of_a_watch_is_named() {
        for (object, expected) in [(GOOD, "good"), (BAD, "bad")] {
            let event = format!(r#"{{"type":"MODIFIED","object":{object}}}"#);
            let event: WatchEvent<GuardedAccount> = serde_json::from_str(&event).expect("it is an event");
            let object = match event {
                WatchEvent::Modified(object) => Some(object),
                _ => None,
            };
            assert_eq!(object.as_ref().and_then(name), Some(expected));
            assert_eq!(object.map(|object| object.into_result().is_ok()), Some(expected == "good"));
        }
    }
}
