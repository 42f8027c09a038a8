//! Secrets that were made for an account belong to it, though whoever made them died before it could say so.

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::PostParams;
use kubesvc::account::{
    FINALIZER, KubesvcAccount, KubesvcAccountSpec, ORIGIN_LABEL, ORIGIN_MIGRATED, ORIGIN_REST, owned_secret,
};
use secrecy::SecretString;

use super::on_each_database;
use crate::harness::{must, wait::eventually};
use crate::world::{Database, PATIENCE, World};

on_each_database! {
    an_account_that_was_a_row_has_its_row_once_its_secret_belongs_to_it,
    a_secret_without_an_owner_goes_with_its_account,
}

/// An account and its Secret as a crash leaves them right after the object.
async fn leave_without_owner(world: &World, name: &str, origin: &str) -> KubesvcAccount {
    let kubeconfig = SecretString::from(world.cluster(name).await.kubeconfig());
    let secret = owned_secret::wanted((world.namespace(), name), origin, &kubeconfig, None);
    must(world.api().create(&PostParams::default(), &secret).await.map_err(|error| error.to_string()));
    let spec = KubesvcAccountSpec {
        zone_id: Some("east".to_owned()),
        kubeconfig: owned_secret::source(name),
        ..KubesvcAccountSpec::default()
    };
    let mut account = KubesvcAccount::new(name, spec);
    account.metadata.labels = Some([(ORIGIN_LABEL.to_owned(), origin.to_owned())].into());
    account.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    must(world.api().create(&PostParams::default(), &account).await.map_err(|error| error.to_string()))
}

async fn owners(world: &World, name: &str) -> Result<Vec<OwnerReference>, String> {
    let named = owned_secret::source(name).secret_ref.expect("it names one");
    let secret = world.api::<Secret>().get(&named.name).await.map_err(|error| error.to_string())?;
    Ok(secret.metadata.owner_references.unwrap_or_default())
}

async fn until_owned(world: &World, account: &KubesvcAccount) {
    let name = account.account_name();
    eventually(&format!("an owner of the Secret of {name}"), PATIENCE, async || {
        let owners = owners(world, name).await?;
        let is_owned = owners.iter().any(|owner| owner.uid == account.uid());
        if is_owned { Ok(()) } else { Err(format!("its owners are {owners:?}")) }
    })
    .await;
}

async fn an_account_that_was_a_row_has_its_row_once_its_secret_belongs_to_it(database: Database) {
    let world = World::prepare()
        .database(database)
        .setting("kubesvc.dynamicAccounts.adoptRows", true)
        // One write after another, so that the rows could overtake them.
        .setting("kubesvc.kubernetes.qps", 2)
        .setting("kubesvc.kubernetes.burst", 1)
        .without_operator()
        .start()
        .await;
    let mut accounts = Vec::new();
    for name in ["one", "two", "three"] {
        accounts.push(leave_without_owner(&world, name, ORIGIN_MIGRATED).await);
    }
    world.operator().launch_with(&[("KUBESVC_CRASH_AT", "adopt-secret-owner:before#2")]);
    eventually("the crash before the second owner", PATIENCE, async || {
        world.operator().exited().ok_or("it goes on".to_owned())
    })
    .await;
    for account in &accounts {
        let owners = must(owners(&world, account.account_name()).await);
        let row = world.row(account.account_name()).await;
        assert!(!owners.is_empty() || row.is_none(), "the Secret has no owner: {row:?}");
    }
    world.operator().start().await;
    let _agent = world.agent("agent-1").start().await;
    for account in &accounts {
        until_owned(&world, account).await;
        world.until_row(account.account_name(), "ACTIVE").await;
    }
}

async fn a_secret_without_an_owner_goes_with_its_account(database: Database) {
    let world = World::on(database).await;
    let _agent = world.agent("agent-1").start().await;
    let account = leave_without_owner(&world, "prod", ORIGIN_REST).await;
    world.until_row("prod", "ACTIVE").await;
    world.delete("prod").await;
    world.until_gone("prod").await;
    // The control plane here has no garbage collector, which removes what belongs to nobody that is there.
    until_owned(&world, &account).await;
}
