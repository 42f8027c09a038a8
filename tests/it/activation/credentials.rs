//! Secrets are created, changed and deleted.

use kubesvc_core::State;
use serde_json::json;

use super::writes;
use crate::world::{World, condition};

#[tokio::test(flavor = "multi_thread")]
async fn invalid_kubeconfig_stalls_its_account_only() {
    let world = World::start().await;
    let cluster = world.cluster("spinnaker").await;
    let _agent = world.agent("agent-1").start().await;
    let bad = cluster.kubeconfig().replace("token:", "tokenFile: /etc/CANARY, token:");
    world.account("bad").zone("east").kubeconfig(&bad).create().await;
    world.account("good").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("good", State::Active).await;
    let account = world.until_reason("bad", State::Failed, "KubeconfigRefused").await;
    assert_eq!(condition(&account, "Stalled").map(|one| one.status).as_deref(), Some("True"));
    let status = account.status.expect("it is FAILED");
    assert_eq!((status.failed_count, status.epoch.0), (1, 0), "no agent was asked: {status:#?}");
    let message = status.error_message.unwrap_or_default();
    assert!(message.contains("users[kubesvc].user.tokenFile") && !message.contains("CANARY"), "{message}");
    assert_eq!(writes(&world, "bad"), 2, "finalizer, FAILED: {:#?}", world.writes_to("bad"));

    world.secret("bad", cluster.kubeconfig().as_bytes(), true).await;
    let healed = world.until("bad", State::Active).await;
    assert_eq!(healed.status_or_default().failed_count, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn rotated_secret_reactivates_and_invalid_secret_is_reported() {
    let world = World::start().await;
    let (old, new) = (world.cluster("old").await, world.cluster("new").await);
    let _agent = world.agent("agent-1").start().await;
    world.account("prod").zone("east").kubeconfig(&old.kubeconfig()).create().await;
    let before = world.until("prod", State::Active).await;

    world.secret("prod", new.kubeconfig().as_bytes(), true).await;
    let rotated = world
        .until_account("prod", "is ACTIVE with the new credential", |account| {
            let status = account.status_or_default();
            status.state() == State::Active
                && status.credential_version != before.status_or_default().credential_version
        })
        .await;
    assert_eq!(rotated.status_or_default().epoch.0, before.status_or_default().epoch.0 + 1);

    world.secret("prod", b"{", true).await;
    let spoilt = world.until_reason("prod", State::Failed, "KubeconfigRefused").await;
    assert_eq!(spoilt.status_or_default().epoch, rotated.status_or_default().epoch, "the epoch is kept");
    world.secret("prod", old.kubeconfig().as_bytes(), true).await;
    world.until("prod", State::Active).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_secret_or_key_is_named_and_its_creation_activates_at_once() {
    // So slow that a timed retry cannot be what repairs the account.
    let world = World::prepare()
        .setting("kubesvc.dynamicAccounts.retryFrequencySeconds", 3600)
        .setting("kubesvc.dynamicAccounts.retryMaxDelaySeconds", 3600)
        .start()
        .await;
    let cluster = world.cluster("spinnaker").await;
    let _agent = world.agent("agent-1").start().await;
    world.account("prod").zone("east").create().await;
    let source = json!({"secretRef": {"name": "keyless", "key": "config"}});
    world.secret("keyless", cluster.kubeconfig().as_bytes(), true).await;
    world.account("keyless").zone("east").spec("kubeconfig", source).create().await;
    for (name, named) in [("prod", "prod"), ("keyless", "config")] {
        let failed = world.until_reason(name, State::Failed, "CredentialMissing").await;
        assert_eq!(condition(&failed, "Reconciling").map(|one| one.status).as_deref(), Some("True"));
        let message = failed.status_or_default().error_message.clone().unwrap_or_default();
        assert!(message.contains(named) && message.contains("Secret"), "{message}");
    }
    world.secret("prod", cluster.kubeconfig().as_bytes(), true).await;
    world.until("prod", State::Active).await;
    world.patch("keyless", json!({"spec": {"kubeconfig": {"secretRef": {"key": "kubeconfig"}}}})).await;
    world.until("keyless", State::Active).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubeconfig_file_is_read_on_the_agent() {
    let world = World::start().await;
    let cluster = world.cluster("spinnaker").await;
    let agent = world.agent("agent-1").start().await;
    let file = agent.kubeconfigs().join("prod.yaml");
    let path = file.display().to_string();
    world.account("prod").zone("east").spec("kubeconfig", json!({"file": path})).create().await;
    world.account("outside").zone("east").spec("kubeconfig", json!({"file": "/etc/hostname"})).create().await;
    let missing = world.until("prod", State::Failed).await;
    let message = missing.status_or_default().error_message.clone().unwrap_or_default();
    assert!(message.contains("prod.yaml"), "{message}");
    let outside = world.until("outside", State::Failed).await;
    let message = outside.status_or_default().error_message.clone().unwrap_or_default();
    assert!(message.contains("kubeconfig.file"), "{message}");
    std::fs::write(&file, cluster.kubeconfig()).expect("the folder is there");
    world.until("prod", State::Active).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_uses_the_kubeconfig_meant_for_agents() {
    let world = World::start().await;
    let cluster = world.cluster("spinnaker").await;
    let _agent = world.agent("agent-1").start().await;
    // The account's own kubeconfig has an address that an agent cannot reach.
    let own = cluster.kubeconfig_at("https://127.0.0.1:1");
    world.secret("for-agents", cluster.kubeconfig().as_bytes(), true).await;
    let source = json!({"secretRef": {"name": "for-agents"}});
    world.account("prod").zone("east").kubeconfig(&own).spec("agentKubeconfig", source).create().await;
    let active = world.until("prod", State::Active).await;
    let host = active.status_or_default().kube_host.clone().unwrap_or_default();
    assert_eq!(host, cluster.server(), "the agent says where it connected");

    // Its Secret is treated like the account's own one: invalid content is noticed at once.
    world.secret("for-agents", b"{", true).await;
    world.until_reason("prod", State::Failed, "KubeconfigRefused").await;
    world.secret("for-agents", cluster.kubeconfig().as_bytes(), true).await;
    world.until("prod", State::Active).await;

    // Without it, the agent gets the other kubeconfig and cannot connect.
    world.patch("prod", json!({"spec": {"agentKubeconfig": null}})).await;
    world
        .until_account("prod", "fails at the other address", |account| {
            let status = account.status_or_default();
            status.state() == State::Failed
                && status.error_message.as_deref().is_some_and(|message| message.contains("127.0.0.1:1"))
        })
        .await;
}
