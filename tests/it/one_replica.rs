//! An operator without others, where several replicas were before.

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

use crate::world::{MAX_WAIT, World};
use kubesvc_core::agent_resource::SessionEnd;
use kubesvc_core::{KubesvcAgent, object_names};
use kubesvc_testkit::{must, wait::eventually};

/// The Lease of a replica that was killed.
const LEFT: &str = "kubesvc-replica-operator-2";

#[tokio::test(flavor = "multi_thread")]
async fn only_replica_clears_up_after_replicas_that_are_gone() {
    let prepare = World::prepare()
        // An agent that a person approved is kept.
        .setting("kubesvc.agents.approval", "manual")
        .operator_env("KUBESVC_AGENTS_GONE_SECONDS", "8")
        .operator_env("KUBESVC_LEASES_GONE_SECONDS", "4");
    let world = prepare.without_operator().start().await;
    let lease: Lease = must(
        serde_json::from_value(json!({
            "metadata": {"name": LEFT},
            "spec": {"holderIdentity": "operator-2", "leaseDurationSeconds": 15},
        }))
        .map_err(|error| error.to_string()),
    );
    must(world.api().create(&PostParams::default(), &lease).await.map_err(|error| error.to_string()));
    let name = object_names::agent_object_name(&"agent-1".into(), &"east".into());
    world
        .apply(&format!(
            "apiVersion: kubesvc.io/v1alpha1\nkind: KubesvcAgent\nmetadata: {{name: {name}}}\n\
             spec: {{agentId: agent-1, zoneId: east, approved: true}}\n"
        ))
        .await;
    let agents = world.api::<KubesvcAgent>();
    let status = json!({"status": {
        "connected": true, "approvedOnce": true,
        "session": {"id": "s", "bootId": "b", "connectSeq": 1, "replica": "operator-2", "incarnation": "i"},
    }});
    let patched = agents.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status)).await;
    must(patched.map_err(|error| error.to_string()));

    world.operator().start().await;
    eventually("the agent is disconnected", MAX_WAIT, async || {
        let agent = agents.get(&name).await.map_err(|error| error.to_string())?;
        let status = agent.status.unwrap_or_default();
        let end = status.session.as_ref().and_then(|session| session.ended);
        if !status.connected && end == Some(SessionEnd::ReplicaLost) {
            Ok(())
        } else {
            Err(format!("{status:?}"))
        }
    })
    .await;
    eventually("the Lease is gone", MAX_WAIT, async || match world.lease(LEFT).await {
        None => Ok(()),
        Some(lease) => Err(format!("{lease:?}")),
    })
    .await;
    assert!(world.lease("kubesvc-operator").await.is_some(), "the leader's stays");
}
