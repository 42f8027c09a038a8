//! An object in a list or watch that may be malformed; it must not stop the others.
//!
//! This does the same as [`DeserializeGuard`] at less than half the cost. That type builds a tree of each
//! object, copies it, and builds the object from the copy. Here the object's text is kept while it is parsed,
//! and parsed again only if it is malformed.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::DeserializeGuard;
use kube::core::error_boundary::InvalidObject;
use serde::de::{Deserialize, Deserializer, Error};
use serde_json::value::RawValue;

use crate::account::KubesvcAccount;

/// Why an object is no account.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct MalformedAccount(String);

/// An account, or the reason why it is malformed. Can be deserialized from JSON only.
#[derive(Clone, Debug)]
pub(super) struct GuardedAccount(DeserializeGuard<KubesvcAccount>);

impl GuardedAccount {
    /// Returns the account, or what is wrong with it.
    pub(super) fn into_result(self) -> Result<KubesvcAccount, MalformedAccount> {
        self.0.0.map_err(|invalid| MalformedAccount(invalid.error))
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
