//! Secrets are created, changed and deleted.

use kubesvc_core::State;
use serde_json::json;

use super::{Scene, writes};
use crate::world::condition;

pub(super) async fn invalid_kubeconfig_stalls_its_account_only(scene: &Scene) {
    let Scene { world, cluster, .. } = scene;
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
    assert_eq!(writes(world, "bad"), 2, "finalizer, FAILED: {:#?}", world.writes_to("bad"));

    world.secret("bad", cluster.kubeconfig().as_bytes(), true).await;
    let healed = world.until("bad", State::Active).await;
    assert_eq!(healed.status_or_default().failed_count, 0);
}

pub(super) async fn rotated_secret_reactivates_and_invalid_secret_is_reported(scene: &Scene) {
    let Scene { world, cluster: old, .. } = scene;
    let new = world.cluster("new").await;
    world.account("rotated").zone("east").kubeconfig(&old.kubeconfig()).create().await;
    let before = world.until("rotated", State::Active).await;

    world.secret("rotated", new.kubeconfig().as_bytes(), true).await;
    let rotated = world
        .until_account("rotated", "is ACTIVE with the new credential", |account| {
            let status = account.status_or_default();
            status.state() == State::Active
                && status.credential_version != before.status_or_default().credential_version
        })
        .await;
    assert_eq!(rotated.status_or_default().epoch.0, before.status_or_default().epoch.0 + 1);

    world.secret("rotated", b"{", true).await;
    let spoilt = world.until_reason("rotated", State::Failed, "KubeconfigRefused").await;
    assert_eq!(spoilt.status_or_default().epoch, rotated.status_or_default().epoch, "the epoch is kept");
    world.secret("rotated", old.kubeconfig().as_bytes(), true).await;
    world.until("rotated", State::Active).await;
}

pub(super) async fn kubeconfig_file_is_read_on_the_agent(scene: &Scene) {
    let Scene { world, cluster, agent } = scene;
    let file = agent.kubeconfigs().join("from-file.yaml");
    let path = file.display().to_string();
    world.account("from-file").zone("east").spec("kubeconfig", json!({"file": path})).create().await;
    world.account("outside").zone("east").spec("kubeconfig", json!({"file": "/etc/hostname"})).create().await;
    let missing = world.until("from-file", State::Failed).await;
    let message = missing.status_or_default().error_message.clone().unwrap_or_default();
    assert!(message.contains("from-file.yaml"), "{message}");
    let outside = world.until("outside", State::Failed).await;
    let message = outside.status_or_default().error_message.clone().unwrap_or_default();
    assert!(message.contains("kubeconfig.file"), "{message}");
    std::fs::write(&file, cluster.kubeconfig()).expect("the folder is there");
    world.until("from-file", State::Active).await;
}

pub(super) async fn agent_uses_the_kubeconfig_meant_for_agents(scene: &Scene) {
    let Scene { world, cluster, .. } = scene;
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
