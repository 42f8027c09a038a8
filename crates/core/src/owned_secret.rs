//! The Secret that kubesvc creates for the kubeconfigs of one account, and the rules for writing it.
//!
//! It carries labels and an annotation that name the account's object, but no owner reference: after a restore from a
//! backup, that would name the uid of the former object, and the garbage collector would delete the credential. The
//! operator deletes the Secret in the last step before it removes the account's finalizer. No other Secret is ever
//! written or deleted.
//!
//! REST and the adoption of rows create the Secret before the object. The Secret's version keeps concurrent requests
//! apart: a request that finds an existing Secret first *claims* it, which changes its version, then checks whether
//! the object exists, and only then replaces the Secret at the claimed version. A request that has created the object
//! and finds the Secret in the version it prepared therefore knows that no other request will overwrite it; otherwise
//! it writes its contents again.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource as _;
use kube::core::params::Preconditions;
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;

use super::spec::{DEFAULT_SECRET_KEY, KubeconfigSource, SecretKeyReference};
use super::{
    ACCOUNT_LABEL, AGENT_CONTENTS_OF_ANNOTATION, CLAIMED_ANNOTATION, CONTENTS_OF_ANNOTATION, KubesvcAccount,
    MANAGED_BY, MANAGED_BY_LABEL, ORIGIN_LABEL, ORIGIN_MIGRATED, ORIGIN_REST, WATCH_LABEL, object_names,
};

/// Key of the account's own kubeconfig in the Secret.
pub const OWN_KEY: &str = DEFAULT_SECRET_KEY;
/// Key of the agents' kubeconfig in the Secret.
pub const AGENT_KEY: &str = "agent-kubeconfig";

/// Kubeconfigs by their key in the Secret.
pub type Contents<'a> = BTreeMap<&'static str, &'a SecretString>;

/// Namespace and name of an account's object.
pub type ObjectName<'a> = (&'a str, &'a str);

/// The version of a Secret that was read or written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretVersion {
    uid: Option<String>,
    resource_version: Option<String>,
}

impl SecretVersion {
    /// The version of a Secret with this metadata.
    pub fn of(metadata: &ObjectMeta) -> Self {
        Self { uid: metadata.uid.clone(), resource_version: metadata.resource_version.clone() }
    }

    /// The preconditions that the Secret still has this version.
    pub fn preconditions(&self) -> Preconditions {
        Preconditions { uid: self.uid.clone(), resource_version: self.resource_version.clone() }
    }
}

/// The next step in preparing the Secret for an account that is about to be created.
#[derive(Debug, PartialEq)]
pub enum Preparation {
    /// It does not exist: create it.
    Create,
    /// The object exists: it was created meanwhile.
    Taken,
    /// The garbage collector will delete it, and with it the new account's credential: delete it, and start again.
    Remove,
    /// Claim it with [`claim`], and start again.
    Claim,
    /// Replace it.
    Replace(Box<Secret>),
}

/// Decides the next step in preparing a Secret that is kubesvc's, if it exists. `stands`: whether the object existed
/// after the Secret was read.
pub fn preparation(present: Option<Secret>, stands: bool, wanted: &Secret) -> Preparation {
    let Some(present) = present else { return Preparation::Create };
    let metadata = &present.metadata;
    if stands {
        return Preparation::Taken;
    }
    if !owners(metadata).is_empty() {
        return Preparation::Remove;
    }
    if annotation(metadata, CLAIMED_ANNOTATION).is_none() {
        return Preparation::Claim;
    }
    Preparation::Replace(Box::new(replaced(present, wanted)))
}

/// The Secret to write after the account was created, if others have written to the prepared one. `None` if it is as
/// prepared, or holds what was stored for the account since.
pub fn completion(
    present: &Secret,
    prepared: &SecretVersion,
    made: &KubesvcAccount,
    wanted: &Secret,
) -> Option<Secret> {
    let metadata = &present.metadata;
    let stored: BTreeSet<&str> = marked_as(metadata, made.uid()).collect();
    let all_stored = wanted.data.iter().flatten().all(|(key, _)| stored.contains(key.as_str()));
    if SecretVersion::of(metadata) == *prepared || all_stored {
        return None;
    }
    let mut secret = replaced(present.clone(), wanted);
    for key in stored {
        keep(present, &mut secret, key);
    }
    Some(secret)
}

/// The merge patch that claims a Secret in the version that was read.
pub fn claim(read: &ObjectMeta) -> serde_json::Value {
    json!({"metadata": {
        "uid": read.uid,
        "resourceVersion": read.resource_version,
        "annotations": {CLAIMED_ANNOTATION: "true"},
    }})
}

/// A reference to a key of the Secret of the account with this object name: [`OWN_KEY`] or [`AGENT_KEY`].
pub fn source(object: &str, key: &str) -> KubeconfigSource {
    let name = object_names::credential_secret_name(object);
    let key = (key != DEFAULT_SECRET_KEY).then(|| key.to_owned());
    KubeconfigSource { secret_ref: Some(SecretKeyReference { name, key }), ..Default::default() }
}

/// The keys that the account's spec names in the Secret of its own object.
pub fn keys_named_by(account: &KubesvcAccount) -> BTreeSet<&str> {
    let secret = object_names::credential_secret_name(account.metadata.name.as_deref().unwrap_or_default());
    let named = account.spec.sources().filter_map(|(_, source)| source.secret_ref.as_ref());
    named.filter(|named| named.name == secret).map(SecretKeyReference::key).collect()
}

/// Whether the account's spec names the Secret of its own object.
pub fn is_named_by(account: &KubesvcAccount) -> bool {
    !keys_named_by(account).is_empty()
}

/// The Secret for the object at `object_name`. With `account`, its contents are marked as that account's.
pub fn wanted(
    object_name: ObjectName<'_>,
    origin: &str,
    contents: &Contents<'_>,
    account: Option<&KubesvcAccount>,
) -> Secret {
    let (namespace, object) = object_name;
    let bytes = |contents: &SecretString| ByteString(contents.expose_secret().as_bytes().to_vec());
    let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    let labels = [(WATCH_LABEL, "true"), (ORIGIN_LABEL, origin)].into_iter().map(owned);
    let marks = |account: &KubesvcAccount| {
        let keys = contents.keys().map(|key| mark_of(key));
        keys.map(|mark| owned((mark, account.uid()))).collect::<Vec<_>>()
    };
    let annotations = account.map(marks).unwrap_or_default();
    Secret {
        metadata: ObjectMeta {
            name: Some(object_names::credential_secret_name(object)),
            namespace: Some(namespace.to_owned()),
            labels: Some(labels.chain(identity_labels(object)).collect()),
            annotations: Some(annotations.into_iter().chain([identity_annotation(object_name)]).collect()),
            ..ObjectMeta::default()
        },
        data: Some(contents.iter().map(|(key, contents)| ((*key).to_owned(), bytes(contents))).collect()),
        ..Secret::default()
    }
}

/// Whether this is the Secret that was created for the object at `object_name`.
pub fn is_ours(metadata: &ObjectMeta, object_name: ObjectName<'_>) -> bool {
    let (key, identity) = identity_annotation(object_name);
    let mut labels = identity_labels(object_name.1).into_iter();
    labels.all(|(key, value)| label(metadata, &key) == Some(value.as_str()))
        && annotation(metadata, &key) == Some(identity.as_str())
}

/// Whether an earlier version of kubesvc created it for the object at `object_name`: it has none of the labels yet, and
/// may belong to the object by an owner reference.
pub fn is_of_earlier_version(metadata: &ObjectMeta, (_, object): ObjectName<'_>) -> bool {
    let is_origin = |origin| origin == ORIGIN_REST || origin == ORIGIN_MIGRATED;
    label(metadata, ORIGIN_LABEL).is_some_and(is_origin)
        && label(metadata, MANAGED_BY_LABEL).is_none()
        && metadata.name.as_deref() == Some(object_names::credential_secret_name(object).as_str())
        && owners(metadata).iter().all(|owner| is_account(owner) && owner.name == object)
}

/// Whether a Secret may be one of kubesvc that still has an owner reference or lacks its labels.
pub fn may_be_outdated(metadata: &ObjectMeta) -> bool {
    let ours = label(metadata, ORIGIN_LABEL).is_some();
    ours && (label(metadata, MANAGED_BY_LABEL).is_none() || owners(metadata).iter().any(is_account))
}

/// The merge patch that sets the labels on a Secret of an earlier version and removes its owner references. `None` if
/// it is not of the object at `object_name`, or is up to date.
pub fn update_of(read: &ObjectMeta, object_name: ObjectName<'_>) -> Option<serde_json::Value> {
    if !may_be_outdated(read) || !(is_ours(read, object_name) || is_of_earlier_version(read, object_name)) {
        return None;
    }
    let (key, identity) = identity_annotation(object_name);
    let owners: Vec<_> = owners(read).iter().filter(|owner| !is_account(owner)).collect();
    Some(json!({"metadata": {
        "uid": read.uid,
        "resourceVersion": read.resource_version,
        "labels": identity_labels(object_name.1).into_iter().collect::<BTreeMap<_, _>>(),
        "annotations": {key: identity},
        "ownerReferences": owners,
    }}))
}

/// Whether some of a Secret's contents are marked as those of the account with this uid.
pub fn has_contents_of(metadata: &ObjectMeta, uid: &str) -> bool {
    marked_as(metadata, uid).next().is_some()
}

/// The keys whose contents are marked as those of the account with this uid.
fn marked_as(metadata: &ObjectMeta, uid: &str) -> impl Iterator<Item = &'static str> {
    [OWN_KEY, AGENT_KEY].into_iter().filter(move |key| annotation(metadata, mark_of(key)) == Some(uid))
}

/// The annotation that marks the contents of a key as an account's.
fn mark_of(key: &str) -> &'static str {
    if key == AGENT_KEY { AGENT_CONTENTS_OF_ANNOTATION } else { CONTENTS_OF_ANNOTATION }
}

/// Copies the contents under a key, and their mark, from one Secret to another.
fn keep(from: &Secret, to: &mut Secret, key: &str) {
    let Some(contents) = from.data.as_ref().and_then(|data| data.get(key)) else { return };
    to.data.get_or_insert_default().insert(key.to_owned(), contents.clone());
    if let Some(uid) = annotation(&from.metadata, mark_of(key)) {
        to.metadata.annotations.get_or_insert_default().insert(mark_of(key).to_owned(), uid.to_owned());
    }
}

/// Updates an existing Secret of kubesvc to `wanted`. Returns `None` if it is up to date. Contents under the
/// account's other `keys` are kept, so that changing one kubeconfig does not lose the other.
pub fn brought_to(present: Secret, wanted: &Secret, keys: &BTreeSet<&str>) -> Option<Secret> {
    let before = present.clone();
    let mut after = replaced(present, wanted);
    let is_wanted = |key: &str| wanted.data.as_ref().is_some_and(|data| data.contains_key(key));
    for key in keys.iter().filter(|key| !is_wanted(key)) {
        keep(&before, &mut after, key);
    }
    (after != before).then_some(after)
}

/// Removes the kubeconfigs that the account does not name, from a Secret of kubesvc; the account names `keys`.
/// Returns `None` if there are none to remove.
pub fn trimmed(present: &Secret, keys: &BTreeSet<&str>) -> Option<Secret> {
    let is_unused = |key: &str| [OWN_KEY, AGENT_KEY].contains(&key) && !keys.contains(key);
    let mut after = present.clone();
    after.data.get_or_insert_default().retain(|key, _| !is_unused(key));
    let annotations = after.metadata.annotations.get_or_insert_default();
    [OWN_KEY, AGENT_KEY].into_iter().filter(|key| is_unused(key)).for_each(|key| {
        annotations.remove(mark_of(key));
    });
    (after.data != present.data).then_some(after)
}

/// Sets contents, labels and marks as wanted, and keeps what others have added.
fn replaced(mut present: Secret, wanted: &Secret) -> Secret {
    let metadata = &mut present.metadata;
    metadata.labels.get_or_insert_default().extend(wanted.metadata.labels.clone().unwrap_or_default());
    let annotations = metadata.annotations.get_or_insert_default();
    for ours in [CONTENTS_OF_ANNOTATION, AGENT_CONTENTS_OF_ANNOTATION, CLAIMED_ANNOTATION] {
        annotations.remove(ours);
    }
    annotations.extend(wanted.metadata.annotations.clone().unwrap_or_default());
    metadata.owner_references = None;
    present.data.clone_from(&wanted.data);
    present.string_data = None;
    present
}

fn identity_labels(object: &str) -> [(String, String); 2] {
    [
        (MANAGED_BY_LABEL.to_owned(), MANAGED_BY.to_owned()),
        (ACCOUNT_LABEL.to_owned(), object_names::label_value(object)),
    ]
}

/// The exact identity: a label may be too short for it, and a copy in another namespace does not match it.
fn identity_annotation((namespace, object): ObjectName<'_>) -> (String, String) {
    (ACCOUNT_LABEL.to_owned(), format!("{namespace}/{object}"))
}

fn label<'m>(metadata: &'m ObjectMeta, key: &str) -> Option<&'m str> {
    metadata.labels.as_ref()?.get(key).map(String::as_str)
}

fn annotation<'m>(metadata: &'m ObjectMeta, key: &str) -> Option<&'m str> {
    metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

fn owners(metadata: &ObjectMeta) -> &[OwnerReference] {
    metadata.owner_references.as_deref().unwrap_or_default()
}

fn is_account(owner: &OwnerReference) -> bool {
    owner.kind == KubesvcAccount::kind(&()) && owner.api_version.starts_with(super::GROUP)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KubesvcAccountSpec;

    const OBJECT_NAME: ObjectName<'_> = ("ns", "prod");

    fn account(uid: &str) -> KubesvcAccount {
        let mut account = KubesvcAccount::new("prod", KubesvcAccountSpec::default());
        account.metadata.uid = Some(uid.to_owned());
        account.spec.kubeconfig = source("prod", OWN_KEY);
        account
    }

    fn secret(contents: &str, account: Option<&KubesvcAccount>) -> Secret {
        wanted(
            OBJECT_NAME,
            ORIGIN_REST,
            &[(OWN_KEY, &SecretString::from(contents.to_owned()))].into(),
            account,
        )
    }

    /// The Secret as an earlier version created it, owned by the account with this uid.
    fn earlier(uid: Option<&str>) -> Secret {
        let mut secret = secret("old", None);
        let labels = secret.metadata.labels.get_or_insert_default();
        labels.retain(|key, _| [WATCH_LABEL, ORIGIN_LABEL].contains(&key.as_str()));
        secret.metadata.annotations = None;
        secret.metadata.owner_references = uid.map(|uid| {
            vec![OwnerReference {
                api_version: KubesvcAccount::api_version(&()).into_owned(),
                kind: KubesvcAccount::kind(&()).into_owned(),
                name: "prod".to_owned(),
                uid: uid.to_owned(),
                ..OwnerReference::default()
            }]
        });
        secret
    }

    #[test]
    fn a_secret_is_ours_by_its_labels_and_the_exact_object_that_it_names() {
        let ours = secret("c", None).metadata;
        assert!(is_ours(&ours, OBJECT_NAME) && ours.owner_references.is_none());
        for other in [("ns", "other"), ("elsewhere", "prod")] {
            assert!(!is_ours(&ours, other), "{other:?}");
        }
        for key in [MANAGED_BY_LABEL, ACCOUNT_LABEL] {
            let mut without = ours.clone();
            without.labels.get_or_insert_default().remove(key);
            assert!(!is_ours(&without, OBJECT_NAME), "{key}");
        }
        assert!(
            !is_ours(&earlier(None).metadata, OBJECT_NAME) && !is_ours(&ObjectMeta::default(), OBJECT_NAME)
        );
        assert!(is_named_by(&account("1")));
    }

    #[test]
    fn names_that_are_no_label_value_have_secrets_that_are_told_apart() {
        let [one, other] = ["a", "b"].map(|end| format!("{}{end}", "x".repeat(200)));
        let of = |object: &str| wanted(("ns", object), "rest", &Contents::new(), None).metadata;
        for object in [&one, &other] {
            let value = label(&of(object), ACCOUNT_LABEL).map(str::to_owned).unwrap_or_default();
            assert!(object_names::is_label_value(&value), "{value}");
            assert!(is_ours(&of(object), ("ns", object)));
        }
        assert!(!is_ours(&of(&one), ("ns", &other)));
    }

    #[test]
    fn the_secret_of_an_earlier_version_gets_its_labels_and_loses_its_owner() {
        for uid in [None, Some("1"), Some("of the account before the restore")] {
            let before = earlier(uid);
            let patch = update_of(&before.metadata, OBJECT_NAME).expect("it is outdated");
            let mut after = serde_json::to_value(&before).expect("a Secret is JSON");
            json_patch(&mut after, &patch);
            let after: Secret = serde_json::from_value(after).expect("a Secret");
            assert!(is_ours(&after.metadata, OBJECT_NAME) && owners(&after.metadata).is_empty());
            assert_eq!(update_of(&after.metadata, OBJECT_NAME), None, "once");
            assert_eq!(after.data, before.data);
        }
        assert_eq!(update_of(&earlier(Some("1")).metadata, ("ns", "other")), None);
        let mut theirs = earlier(Some("1"));
        theirs.metadata.labels = None;
        assert_eq!(update_of(&theirs.metadata, OBJECT_NAME), None, "a person's Secret");
    }

    fn json_patch(into: &mut serde_json::Value, patch: &serde_json::Value) {
        let (Some(into), Some(patch)) = (into.as_object_mut(), patch.as_object()) else {
            return into.clone_from(patch);
        };
        for (key, value) in patch {
            json_patch(into.entry(key).or_insert(serde_json::Value::Null), value);
        }
    }

    #[test]
    fn a_secret_is_written_only_where_it_differs() {
        let (wanted, none) = (secret("new", Some(&account("1"))), BTreeSet::new());
        assert!(brought_to(wanted.clone(), &wanted, &none).is_none());
        for present in [secret("old", Some(&account("1"))), secret("new", None)] {
            assert_eq!(brought_to(present, &wanted, &none), Some(wanted.clone()));
        }
        let mut labelled = wanted.clone();
        labelled.metadata.labels.get_or_insert_default().insert("mine".to_owned(), "x".to_owned());
        labelled.metadata.annotations.get_or_insert_default().insert("mine".to_owned(), "x".to_owned());
        assert!(brought_to(labelled, &wanted, &none).is_none(), "other labels are left alone");
    }

    #[test]
    fn who_has_made_the_account_leaves_what_was_stored_of_the_other_kubeconfig_since() {
        let [mine, theirs, agents] =
            ["mine", "theirs", "agents"].map(|text| SecretString::from(text.to_owned()));
        let made = account("1");
        let secret = |contents: Contents<'_>, of| wanted(OBJECT_NAME, ORIGIN_REST, &contents, of);
        let prepared = secret([(OWN_KEY, &mine)].into(), None);
        let others = secret([(OWN_KEY, &theirs)].into(), None);
        let put = secret([(AGENT_KEY, &agents)].into(), Some(&made));
        let mut after_put = brought_to(others, &put, &keys_named_by(&made)).expect("it differs");
        after_put.metadata.resource_version = Some("3".to_owned());
        let wanted = secret([(OWN_KEY, &mine)].into(), Some(&made));
        let version = SecretVersion::of(&prepared.metadata);
        let completed = completion(&after_put, &version, &made, &wanted).expect("its own was written over");
        assert_eq!(completed.data, secret([(OWN_KEY, &mine), (AGENT_KEY, &agents)].into(), None).data);
        assert_eq!(completion(&completed, &version, &made, &wanted), None, "all of it is the account's");
    }

    #[test]
    fn a_change_of_one_kubeconfig_keeps_the_other_that_the_account_names_and_no_more() {
        let [own, agents, new] = ["own", "agents", "new"].map(|text| SecretString::from(text.to_owned()));
        let secret =
            |contents: Contents<'_>| wanted(OBJECT_NAME, ORIGIN_REST, &contents, Some(&account("1")));
        let both = secret([(OWN_KEY, &own), (AGENT_KEY, &agents)].into());
        let mut named = account("1");
        named.spec.agent_kubeconfig = Some(source("prod", AGENT_KEY));
        assert_eq!(keys_named_by(&named), BTreeSet::from([OWN_KEY, AGENT_KEY]));
        let change = secret([(AGENT_KEY, &new)].into());
        let after = brought_to(both.clone(), &change, &keys_named_by(&named)).expect("it differs");
        assert_eq!(after, secret([(OWN_KEY, &own), (AGENT_KEY, &new)].into()));
        named.spec.kubeconfig = KubeconfigSource { file: Some("/k".to_owned()), ..Default::default() };
        assert_eq!(keys_named_by(&named), BTreeSet::from([AGENT_KEY]));
        let after = brought_to(both.clone(), &change, &keys_named_by(&named)).expect("it differs");
        assert_eq!(after, change, "of an account that was before, nothing stays");
        assert_eq!(trimmed(&both, &keys_named_by(&named)), Some(secret([(AGENT_KEY, &agents)].into())));
        assert_eq!(trimmed(&both, &BTreeSet::from([OWN_KEY, AGENT_KEY])), None);
    }

    #[test]
    fn a_secret_that_is_there_is_claimed_before_it_is_replaced() {
        let wanted = secret("new", None);
        let next = |present: Secret, stands| preparation(Some(present), stands, &wanted);
        assert_eq!(preparation(None, false, &wanted), Preparation::Create);
        let left = secret("left by a crash", None);
        assert_eq!(next(left.clone(), false), Preparation::Claim);
        let mut claimed = left.clone();
        let annotations = claimed.metadata.annotations.get_or_insert_default();
        annotations.insert(CLAIMED_ANNOTATION.to_owned(), "true".to_owned());
        assert_eq!(next(claimed.clone(), false), Preparation::Replace(Box::new(wanted.clone())));
        for present in [left, claimed, earlier(Some("1"))] {
            assert_eq!(next(present, true), Preparation::Taken);
        }
        assert_eq!(next(earlier(Some("gone")), false), Preparation::Remove);
        assert_eq!(next(earlier(None), false), Preparation::Claim);
    }

    #[test]
    fn who_has_made_the_account_writes_once_more_only_where_others_have_written() {
        let version = |mut secret: Secret, version: &str| {
            secret.metadata.resource_version = Some(version.to_owned());
            secret
        };
        let (made, prepared) = (account("1"), version(secret("mine", None), "1"));
        let wanted = secret("mine", Some(&made));
        let next = |present: &Secret| {
            completion(present, &SecretVersion::of(&prepared.metadata), &made, &wanted).is_some()
        };
        assert!(!next(&prepared), "it is as prepared");
        assert!(next(&version(prepared.clone(), "2")), "it may have been claimed");
        assert!(next(&version(secret("of another request", None), "2")));
        assert!(!next(&version(secret("of a PUT since", Some(&made)), "2")));
    }
}
