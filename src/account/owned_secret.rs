//! The Secret of our own making that holds the kubeconfig of one account. It belongs to the account's object, is labelled
//! with where it came from, and no other Secret is ever written.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource as _;
use secrecy::{ExposeSecret, SecretString};

use super::spec::{DEFAULT_SECRET_KEY, KubeconfigSource, SecretKeyReference};
use super::{
    CONTENTS_OF_ANNOTATION, KubesvcAccount, ORIGIN_LABEL, ORIGIN_MIGRATED, ORIGIN_REST, WATCH_LABEL, names,
};

/// The reference to the Secret of the account at an object name.
pub fn source(object: &str) -> KubeconfigSource {
    let name = names::credential_secret_name(object);
    KubeconfigSource { secret_ref: Some(SecretKeyReference { name, key: None }), ..Default::default() }
}

/// Whether an account's spec names the Secret of its own object.
pub fn is_named_by(account: &KubesvcAccount) -> bool {
    let object = account.metadata.name.as_deref().unwrap_or_default();
    let named = account.spec.kubeconfig.secret_ref.as_ref();
    named.is_some_and(|secret| secret.name == names::credential_secret_name(object))
}

/// The Secret for the object of this namespace and name. With an owner, its contents are marked as that account's.
pub fn wanted(
    (namespace, object): (&str, &str),
    origin: &str,
    contents: &SecretString,
    owner: Option<&KubesvcAccount>,
) -> Secret {
    let bytes = ByteString(contents.expose_secret().as_bytes().to_vec());
    let labels = [(WATCH_LABEL, "true"), (ORIGIN_LABEL, origin)];
    Secret {
        metadata: ObjectMeta {
            name: Some(names::credential_secret_name(object)),
            namespace: Some(namespace.to_owned()),
            labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
            annotations: owner
                .map(|account| [(CONTENTS_OF_ANNOTATION.to_owned(), account.uid().to_owned())].into()),
            owner_references: owner.map(|account| vec![owner_of(account)]),
            ..ObjectMeta::default()
        },
        data: Some([(DEFAULT_SECRET_KEY.to_owned(), bytes)].into()),
        ..Secret::default()
    }
}

/// The reference to an account as the owner.
pub fn owner_of(account: &KubesvcAccount) -> OwnerReference {
    OwnerReference {
        api_version: KubesvcAccount::api_version(&()).into_owned(),
        kind: KubesvcAccount::kind(&()).into_owned(),
        name: account.metadata.name.clone().unwrap_or_default(),
        uid: account.uid().to_owned(),
        ..OwnerReference::default()
    }
}

/// The owners that a Secret has.
pub fn owners(metadata: &ObjectMeta) -> &[OwnerReference] {
    metadata.owner_references.as_deref().unwrap_or_default()
}

/// Whether we made it, for an object of this name.
pub fn is_ours(metadata: &ObjectMeta, object: &str) -> bool {
    let origin = metadata.labels.as_ref().and_then(|labels| labels.get(ORIGIN_LABEL));
    let labelled = origin.is_some_and(|origin| origin == ORIGIN_REST || origin == ORIGIN_MIGRATED);
    let kind = KubesvcAccount::kind(&());
    labelled && owners(metadata).iter().all(|owner| owner.kind == kind && owner.name == object)
}

/// The uid of an owner that is not the one meant.
pub fn stale_owner<'m>(metadata: &'m ObjectMeta, owner: Option<&KubesvcAccount>) -> Option<&'m str> {
    let mut uids = owners(metadata).iter().map(|reference| reference.uid.as_str());
    uids.find(|uid| owner.is_none_or(|account| account.uid() != *uid))
}

/// The uid of the account that a Secret's contents are marked as.
pub fn contents_of(metadata: &ObjectMeta) -> Option<&str> {
    metadata.annotations.as_ref()?.get(CONTENTS_OF_ANNOTATION).map(String::as_str)
}

/// A Secret of ours that stands brought to what is wanted; none if it is that already.
pub fn brought_to(mut present: Secret, wanted: &Secret) -> Option<Secret> {
    let labels = wanted.metadata.labels.clone().unwrap_or_default();
    let held = present.metadata.labels.get_or_insert_default();
    let labelled = labels.iter().all(|(key, value)| held.get(key) == Some(value));
    let owned = owners(&present.metadata).len() == owners(&wanted.metadata).len();
    let marked = contents_of(&present.metadata) == contents_of(&wanted.metadata);
    if present.data == wanted.data && labelled && owned && marked {
        return None;
    }
    let annotations = present.metadata.annotations.get_or_insert_default();
    annotations.remove(CONTENTS_OF_ANNOTATION);
    annotations.extend(wanted.metadata.annotations.clone().unwrap_or_default());
    present.metadata.labels.get_or_insert_default().extend(labels);
    present.data.clone_from(&wanted.data);
    present.string_data = None;
    present.metadata.owner_references.clone_from(&wanted.metadata.owner_references);
    Some(present)
}

/// The merge patch that gives an owner to a Secret without one, at the version that was read.
pub fn owner_patch(secret: &ObjectMeta, owner: &KubesvcAccount) -> serde_json::Value {
    serde_json::json!({
        "metadata": { "resourceVersion": secret.resource_version, "ownerReferences": [owner_of(owner)] }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::KubesvcAccountSpec;

    fn account(uid: &str) -> KubesvcAccount {
        let mut account = KubesvcAccount::new("prod", KubesvcAccountSpec::default());
        account.metadata.uid = Some(uid.to_owned());
        account.spec.kubeconfig = source("prod");
        account
    }

    fn secret(origin: &str, contents: &str, owner: Option<&KubesvcAccount>) -> Secret {
        wanted(("ns", "prod"), origin, &SecretString::from(contents.to_owned()), owner)
    }

    #[test]
    fn a_secret_is_ours_by_its_label_and_its_owners() {
        for (origin, ours) in [("rest", true), ("migrated", true), ("agent", false), ("", false)] {
            assert_eq!(is_ours(&secret(origin, "c", None).metadata, "prod"), ours, "{origin}");
        }
        let owned = secret("rest", "c", Some(&account("1"))).metadata;
        assert!(is_ours(&owned, "prod") && !is_ours(&owned, "other"));
        assert!(!is_ours(&ObjectMeta::default(), "prod"));
        assert!(is_named_by(&account("1")));
    }

    #[test]
    fn an_owner_of_another_uid_is_stale() {
        let owned = secret("rest", "c", Some(&account("1"))).metadata;
        assert_eq!(stale_owner(&owned, Some(&account("1"))), None);
        assert_eq!(stale_owner(&owned, Some(&account("2"))), Some("1"));
        assert_eq!(stale_owner(&owned, None), Some("1"));
    }

    #[test]
    fn a_secret_is_written_only_where_it_differs() {
        let wanted = secret("rest", "new", Some(&account("1")));
        assert!(brought_to(wanted.clone(), &wanted).is_none());
        for present in [secret("rest", "old", Some(&account("1"))), secret("rest", "new", None)] {
            assert_eq!(brought_to(present, &wanted), Some(wanted.clone()));
        }
        let mut labelled = wanted.clone();
        labelled.metadata.labels.get_or_insert_default().insert("mine".to_owned(), "x".to_owned());
        labelled.metadata.annotations.get_or_insert_default().insert("mine".to_owned(), "x".to_owned());
        assert!(brought_to(labelled, &wanted).is_none(), "other labels are left alone");
    }

    #[test]
    fn contents_are_marked_as_of_the_account_that_they_were_written_for() {
        let of = |secret: &Secret| contents_of(&secret.metadata).map(str::to_owned);
        let wanted = secret("rest", "c", Some(&account("1")));
        assert_eq!(of(&wanted).as_deref(), Some("1"));
        // The owner alone may have been set by somebody who does not know whose contents they are.
        let mut owned = secret("rest", "c", Some(&account("1")));
        owned.metadata.annotations = None;
        assert_eq!(brought_to(owned, &wanted), Some(wanted.clone()));
        let prepared = secret("rest", "c", None);
        assert_eq!(of(&prepared), None);
        assert_eq!(of(&brought_to(wanted, &prepared).expect("it differs")), None);
    }
}
