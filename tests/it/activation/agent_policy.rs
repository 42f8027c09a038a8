//! The agent's own file takes precedence over whatever the hub sends.

use kubesvc_core::State;
use serde_json::json;

use super::Scene;
use kubesvc_testkit::kubeconfig::Proof;
use kubesvc_testkit::{folder::Folder, must};

pub(super) async fn agent_policy_refuses_loopback_and_allows_exec_for_own_accounts(scene: &Scene) {
    let Scene { world, cluster, .. } = scene;
    let printed = json!({
        "kind": "ExecCredential",
        "apiVersion": "client.authentication.k8s.io/v1",
        "status": {"token": cluster.token()},
    });
    let exec = json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1",
        "interactiveMode": "Never",
        "command": "sh",
        "args": ["-c", format!("printf %s '{printed}'")],
    }});
    let with_exec =
        cluster.kubeconfig_with(Proof::Token("none")).replace("{token: \"none\"}", &exec.to_string());
    let folder = must(Folder::new("exec"));
    let file = must(folder.write("kubeconfig", &with_exec));
    let _agent = world
        .agent("agent-strict")
        .zone("strict")
        .setting("kubernetes.policy.loopback", json!(false))
        .setting("kubernetes.execCommands", json!(["sh"]))
        .setting(
            "kubernetes.accounts",
            json!([{"name": "mine", "kubeconfigFile": file.display().to_string()}]),
        )
        .start()
        .await;
    world.account("theirs").zone("strict").kubeconfig(&cluster.kubeconfig()).create().await;
    let refused = world.until_reason("theirs", State::Failed, "Forbidden").await;
    let message = refused.status_or_default().error_message.clone().unwrap_or_default();
    assert!(message.starts_with("policy: ") && message.contains("kubernetes.policy.loopback"), "{message}");
    world.until("mine", State::Active).await;
}
