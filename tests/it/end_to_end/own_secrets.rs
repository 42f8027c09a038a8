//! The Secret created for an account stays with the account, through a backup and its restore, and no longer.

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ObjectMeta, PostParams};
use kubesvc_core::{KubesvcAccount, State};
use serde_json::json;

use crate::world::{MAX_WAIT, World};
use kubesvc_testkit::{must, wait::eventually};

const NAME: &str = "prod-kubeconfig";

async fn secret(world: &World) -> Option<Secret> {
    must(world.api::<Secret>().get_opt(NAME).await.map_err(|error| error.to_string()))
}

async fn make<K>(world: &World, object: &K) -> K
where
    K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::Serialize
        + serde::de::DeserializeOwned,
{
    must(world.api::<K>().create(&PostParams::default(), object).await.map_err(|error| error.to_string()))
}

/// The metadata that a restore brings back: everything except what the API server set.
fn restored(metadata: ObjectMeta) -> ObjectMeta {
    ObjectMeta {
        uid: None,
        resource_version: None,
        creation_timestamp: None,
        managed_fields: None,
        generation: None,
        ..metadata
    }
}

async fn post(world: &World, kubeconfig: &str) {
    let body = json!({"name": "prod", "zoneId": "east", "state": "ACTIVE", "kubeconfigContents": kubeconfig});
    let answer = world.rest("POST", "/armory/accounts/dynamic", &body).await;
    assert_eq!(answer.status, 202, "{answer}");
}

async fn until_gone(world: &World) {
    world.until_gone("prod").await;
    assert_eq!(secret(world).await.map(|secret| secret.metadata), None, "it goes before the account");
}

#[tokio::test(flavor = "multi_thread")]
async fn own_secret_of_a_restored_account_has_no_owner_and_is_deleted_with_it() {
    let (world, cluster, _agent) = World::with_agent().await;
    post(&world, &cluster.kubeconfig()).await;
    let account = world.until("prod", State::Active).await;
    let backup = secret(&world).await.expect("it was made");
    // The garbage collector deletes what belongs to a uid that is gone.
    assert_eq!(backup.metadata.owner_references, None);
    let label = |key: &str| backup.metadata.labels.as_ref().and_then(|all| all.get(key)).map(String::as_str);
    assert_eq!(label("app.kubernetes.io/managed-by"), Some("kubesvc"));
    assert_eq!(label("kubesvc.io/account"), Some("prod"));
    world.delete("prod").await;
    until_gone(&world).await;

    make(&world, &Secret { metadata: restored(backup.metadata), ..backup }).await;
    let again = KubesvcAccount { metadata: restored(account.metadata), status: None, ..account };
    make(&world, &again).await;
    world.until("prod", State::Active).await;
    world.delete("prod").await;
    until_gone(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn own_secret_of_an_earlier_version_loses_its_owner_and_a_foreign_one_stays() {
    let (world, cluster, _agent) = World::with_agent().await;
    post(&world, &cluster.kubeconfig()).await;
    let account = world.until("prod", State::Active).await;
    // The state that version 0.1.0 left, after a restore.
    let mut earlier = secret(&world).await.expect("it was made");
    earlier.metadata.annotations = None;
    earlier
        .metadata
        .labels
        .get_or_insert_default()
        .retain(|key, _| !key.contains("account") && key.starts_with("kubesvc"));
    earlier.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "kubesvc.io/v1alpha1".to_owned(),
        kind: "KubesvcAccount".to_owned(),
        name: "prod".to_owned(),
        uid: "00000000-0000-0000-0000-000000000000".to_owned(),
        ..OwnerReference::default()
    }]);
    let replaced = world.api::<Secret>().replace(NAME, &PostParams::default(), &earlier).await;
    must(replaced.map_err(|error| error.to_string()));
    eventually("a Secret without an owner", MAX_WAIT, async || {
        let metadata = secret(&world).await.ok_or("it is gone")?.metadata;
        let labelled = metadata.labels.as_ref().is_some_and(|all| all.contains_key("kubesvc.io/account"));
        let free = metadata.owner_references.is_none();
        if labelled && free { Ok(()) } else { Err(format!("{metadata:?}")) }
    })
    .await;
    assert_eq!(world.until("prod", State::Active).await.uid(), account.uid());

    // The Secret belongs to someone else now.
    let mut theirs = secret(&world).await.expect("it stays");
    theirs.metadata.labels = None;
    let replaced = world.api::<Secret>().replace(NAME, &PostParams::default(), &theirs).await;
    must(replaced.map_err(|error| error.to_string()));
    world.delete("prod").await;
    world.until_gone("prod").await;
    assert!(secret(&world).await.is_some(), "it is not kubesvc's to delete");
}
