//! Credentials are issued, rotated, revoked and mixed up.

use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kubesvc_core::{KubesvcAccount, State, WATCH_LABEL};
use serde_json::json;

use crate::stories::on_one_database;
use crate::world::{Cluster, Database, World, condition};
use kubesvc_testkit::{controlplane, kubeconfig::Proof, must};

on_one_database! {
    rotated_secret_is_sent_to_the_agent,
    account_waits_for_a_missing_secret,
    refused_token_stops_retries_and_a_new_token_reactivates,
    kubeconfig_with_exec_is_refused_and_named,
    secret_reference_is_resolved_and_stored_as_a_reference,
    reference_to_an_unavailable_engine_names_the_engine,
    deleted_secret_is_reported_at_the_next_change_and_nothing_is_lost,
}

async fn rotated_secret_is_sent_to_the_agent(database: Database) {
    let world = World::on(database).await;
    let (old, new) = (world.cluster("spinnaker").await, world.cluster("spinnaker-2").await);
    let _agent = world.agent("agent-1").start().await;
    world.account("prod").zone("east").kubeconfig(&old.kubeconfig()).create().await;
    let before = world.until("prod", State::Active).await;
    let before = before.status_or_default();
    world.secret("prod", new.kubeconfig().as_bytes(), true).await;
    let after = world
        .until_account("prod", "is ACTIVE with the new credential", |account| {
            let status = account.status_or_default();
            status.state() == State::Active && status.credential_version != before.credential_version
        })
        .await;
    assert_eq!(after.status_or_default().epoch.0, before.epoch.0 + 1);
    world.until_row("prod", "ACTIVE").await;
}

async fn account_waits_for_a_missing_secret(database: Database) {
    let world = World::on(database).await;
    let cluster = world.cluster("spinnaker").await;
    let _agent = world.agent("agent-1").start().await;
    world.account("prod").zone("east").create().await;
    let failed = world.until_reason("prod", State::Failed, "CredentialMissing").await;
    let why = failed.status_or_default().error_message.clone().unwrap_or_default();
    assert!(why.contains("Secret") && why.contains("prod"), "{why}");
    world.secret("prod", cluster.kubeconfig().as_bytes(), true).await;
    world.until_row("prod", "ACTIVE").await;
}

async fn refused_token_stops_retries_and_a_new_token_reactivates(database: Database) {
    let world = World::on(database).await;
    let cluster = world.cluster("spinnaker").await;
    let _agent = world.agent("agent-1").start().await;
    world
        .account("prod")
        .zone("east")
        .kubeconfig(&cluster.kubeconfig_with(Proof::Token("revoked")))
        .create()
        .await;
    let stalled = world
        .until_account("prod", "is stalled", |account| {
            condition(account, "Stalled").is_some_and(|stalled| stalled.status == "True")
        })
        .await;
    let status = stalled.status_or_default();
    assert_eq!((status.state(), status.failed_count), (State::Failed, 4), "{status:#?}");
    assert_eq!(status.next_retry_time, None, "a refused credential is not tried for ever");
    assert!(!format!("{status:?}").contains("revoked"), "no credential is told: {status:?}");
    world.secret("prod", cluster.kubeconfig().as_bytes(), true).await;
    let active = world.until("prod", State::Active).await;
    assert_eq!(active.status_or_default().failed_count, 0);
    world.until_row("prod", "ACTIVE").await;
}

async fn kubeconfig_with_exec_is_refused_and_named(database: Database) {
    let world = World::on(database).await;
    let cluster = world.cluster("spinnaker").await;
    let _agent = world.agent("agent-1").start().await;
    let command = "exec: {apiVersion: client.authentication.k8s.io/v1, command: sh}";
    let runs = cluster.kubeconfig().replace("{token:", &format!("{{{command}, token:"));
    world.account("prod").zone("east").kubeconfig(&runs).create().await;
    let failed = world.until_reason("prod", State::Failed, "ExecForbidden").await;
    let status = failed.status_or_default();
    assert_eq!((status.failed_count, status.granted_zone()), (1, None), "it is given to nobody: {status:#?}");
    let row = world.until_row("prod", "FAILED").await;
    assert!(row.error_message.as_deref().is_some_and(|why| why.contains("exec")), "{row:?}");
    world.secret("prod", cluster.kubeconfig().as_bytes(), true).await;
    world.until_row("prod", "ACTIVE").await;
}

async fn secret_reference_is_resolved_and_stored_as_a_reference(database: Database) {
    let world = World::on(database).await;
    let (old, new) = (world.cluster("spinnaker").await, world.cluster("spinnaker-2").await);
    let _agent = world.agent("agent-1").start().await;
    world.secret("kubeconfigs", old.kubeconfig().as_bytes(), true).await;
    let reference = "encryptedFile:k8s!n:kubeconfigs!k:kubeconfig";
    let applied = world.account("applied").zone("east").spec("kubeconfig", json!({"reference": reference}));
    applied.create().await;
    let body = json!([{"name": "posted", "zoneId": "east", "kubeconfigFile": "secret://k8s?n=kubeconfigs&k=kubeconfig", "state": "ACTIVE"}]);
    let answer = world.rest("POST", "/armory/accounts/dynamic", &body).await;
    assert_eq!(answer.status, 202, "{answer}");
    for (name, kept) in [("applied", reference), ("posted", "secret://k8s?n=kubeconfigs&k=kubeconfig")] {
        let row = world.until_row(name, "ACTIVE").await;
        let definition = row.definition.unwrap_or_default();
        assert!(definition.contains(kept) && !definition.contains(old.token()), "{definition}");
    }
    // A rotation also reaches accounts that refer to the Secret.
    let epoch = world.until("applied", State::Active).await.status_or_default().epoch;
    world.secret("kubeconfigs", new.kubeconfig().as_bytes(), true).await;
    world
        .until_account("applied", "is ACTIVE with the new credential", |account| {
            let status = account.status_or_default();
            status.state() == State::Active && status.epoch > epoch
        })
        .await;
}

async fn reference_to_an_unavailable_engine_names_the_engine(database: Database) {
    let world = World::on(database).await;
    let _agent = world.agent("agent-1").start().await;
    let (refused, forbidden) = ("ReferenceRefused", "SourceForbidden");
    for (name, reference, reason, word) in [
        ("vault", "encrypted:vault!e:secret!p:prod!k:kubeconfig", refused, "vault"),
        ("bucket", "encryptedFile:s3!r:us-west-2!b:bucket!f:prod", refused, "s3"),
        (
            "elsewhere",
            "encryptedFile:k8s!ns:kube-system!n:admin!k:kubeconfig",
            forbidden,
            "kubesvc.secrets.namespaces",
        ),
    ] {
        world.account(name).zone("east").spec("kubeconfig", json!({"reference": reference})).create().await;
        world.until_reason(name, State::Failed, reason).await;
        let row = world.until_row(name, "FAILED").await;
        assert!(row.error_message.as_deref().is_some_and(|why| why.contains(word)), "{row:?}");
    }
}

async fn deleted_secret_is_reported_at_the_next_change_and_nothing_is_lost(database: Database) {
    let world = World::on(database).await;
    let cluster = world.cluster("spinnaker").await;
    let agent = world.agent("agent-1").start().await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("prod", State::Active).await;
    must(world.api::<Secret>().delete("prod", &DeleteParams::default()).await.map_err(|e| e.to_string()));
    world.patch("prod", json!({"spec": {"kinds": ["deployment"]}})).await;
    world.until_reason("prod", State::Failed, "CredentialMissing").await;
    let own = world.ask_agent(&agent).await.expect("it runs");
    assert_eq!(own["accountsHeld"], 1, "the old definition serves until the new one stands: {own}");
    world.secret("prod", cluster.kubeconfig().as_bytes(), true).await;
    world.until_row("prod", "ACTIVE").await;
}

/// All documented examples of Spinnaker keep kubeconfigs in a separate namespace.
#[tokio::test(flavor = "multi_thread")]
async fn secret_of_a_listed_namespace_is_resolved_and_its_rotation_is_sent() {
    let listed = controlplane::shared().await.namespace().await;
    let namespaces = json!([listed.name()]);
    let world =
        World::prepare().without_operator().setting("kubesvc.secrets.namespaces", namespaces).start().await;
    let operator = format!("system:serviceaccount:{}:kubesvc-operator", world.namespace());
    world.let_read("credentials", &operator).await;
    world.operator().start().await;
    let (old, new) = (world.cluster("spinnaker").await, world.cluster("spinnaker-2").await);
    let _agent = world.agent("agent-1").start().await;
    let secret = |cluster: &Cluster| {
        let labels = json!({WATCH_LABEL: "true"});
        let data = json!({"prod": cluster.kubeconfig()});
        json!({"metadata": {"name": "kubeconfigs", "labels": labels}, "stringData": data})
    };
    let secrets = listed.api::<Secret>();
    let made = serde_json::from_value(secret(&old)).expect("a Secret");
    must(secrets.create(&PostParams::default(), &made).await.map_err(|e| e.to_string()));

    let reference = format!("encryptedFile:k8s!n:kubeconfigs!k:prod!ns:{}", listed.name());
    let applied = world.account("applied").zone("east").spec("kubeconfig", json!({"reference": reference}));
    applied.create().await;
    let body = json!([{"name": "posted", "zoneId": "east", "kubeconfigFile": reference, "state": "ACTIVE"}]);
    let answer = world.rest("POST", "/armory/accounts/dynamic", &body).await;
    assert_eq!(answer.status, 202, "{answer}");
    world.until_row("posted", "ACTIVE").await;
    let before = world.until("applied", State::Active).await.status_or_default().epoch;

    let rotated = Patch::Merge(secret(&new));
    must(secrets.patch("kubeconfigs", &PatchParams::default(), &rotated).await.map_err(|e| e.to_string()));
    let is_rotated = |account: &KubesvcAccount| {
        let status = account.status_or_default();
        status.state() == State::Active && status.epoch > before
    };
    world.until_account("applied", "is ACTIVE with the new credential", is_rotated).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unwatched_secret_is_reread_when_an_agent_reconnects() {
    let world = World::start().await;
    let (old, new) = (world.cluster("old").await, world.cluster("new").await);
    let agent = world.agent("agent-1").start().await;
    world.account("prod").zone("east").kubeconfig(&old.kubeconfig()).unwatched().create().await;
    let before = world.until("prod", State::Active).await;
    world.forget_copies("prod").await;
    world.secret("prod", new.kubeconfig().as_bytes(), false).await;
    agent.kill();
    agent.launch();
    let after = world
        .until_account("prod", "is ACTIVE with the new credential", |account| {
            let status = account.status_or_default();
            status.state() == State::Active
                && status.credential_version != before.status_or_default().credential_version
        })
        .await;
    assert_eq!(after.status_or_default().epoch.0, before.status_or_default().epoch.0 + 1);
}
