//! Credentials that a cluster refuses after their accounts were activated, with real API servers.

use std::time::Duration;

use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::DeleteParams;
use kubesvc_core::{KubesvcAccount, State};
use serde_json::json;

use crate::faults::proxy::Proxy;
use crate::operations::EVERYTHING;
use crate::operations::callers::Caller;
use crate::world::{World, condition};
use kubesvc_testkit::controlplane::{ControlPlane, StartOptions};
use kubesvc_testkit::kubeconfig::{self, Proof};
use kubesvc_testkit::{must, wait::eventually};

/// Maximum time until an account is in a state: the next look at its cluster after 30 s at most, refusals for 30 s, and a
/// minute until the next request of the agent.
const MAX_WAIT: Duration = Duration::from_secs(150);

fn port(url: &str) -> u16 {
    must(url.rsplit(':').next().unwrap_or_default().parse().map_err(|_| format!("{url} has no port")))
}

async fn until(world: &World, name: &str, state: State) -> KubesvcAccount {
    eventually(&format!("{name} is {state}"), MAX_WAIT, async || {
        let account = world.try_object(name).await?.ok_or("it is gone")?;
        let status = account.status_or_default();
        let is_there = status.state() == state;
        if is_there { Ok(account) } else { Err(format!("it is {}, {:?}", status.state(), status.reason())) }
    })
    .await
}

/// An account that is held and whose credential is refused, in each view.
async fn is_unauthorized(world: &World, caller: &Caller, name: &str) -> KubesvcAccount {
    let failed = until(world, name, State::Failed).await;
    let status = failed.status_or_default();
    let message = status.error_message.clone().unwrap_or_default();
    assert_eq!((status.reason(), status.failed_count), (Some("Unauthorized"), 1), "{message}");
    assert!(message.contains("answered 401") && !message.contains("closed"), "{message}");
    assert_eq!((status.agent_count, status.next_retry_time.is_none()), (Some(1), true), "{status:#?}");
    assert_eq!(condition(&failed, "Stalled").map(|one| one.status).as_deref(), Some("True"));
    world.until_row(name, "FAILED").await;
    let discovery = json!({"operation": format!("account {{ name: \"{name}\" }} discovery {{}}")});
    let answer = caller.run(world.operator(), "?wait=10s", &discovery).await;
    assert_eq!(answer.status, 409, "{answer}");
    assert!(answer.text.contains("its cluster refuses the account's credential (401)"), "{answer}");
    failed
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_credential_fails_its_account_until_it_is_renewed_or_accepted_again() {
    let world = World::prepare().setting("kubesvc.cache.cacheKinds", json!(["configMap"])).start().await;
    let (revoked, swapped) = (world.cluster("revoked").await, world.cluster("swapped").await);
    let caller = world.caller("caller", EVERYTHING).await;
    let _agent = world.agent("agent-1").start().await;
    // An API server that knows none of these tokens.
    let stranger = must(ControlPlane::reused(StartOptions::without_audit()).await);
    let proxy = Proxy::to(port(swapped.server())).await;
    let url = format!("https://127.0.0.1:{}", proxy.port());
    // Without an authority, so that no certificate reveals the swap.
    let open = swapped.kubeconfig_in_one_line().replace(swapped.server(), &url);
    world.account("revoked").zone("east").kubeconfig(&revoked.kubeconfig()).create().await;
    world.account("swapped").zone("east").kubeconfig(&open).create().await;
    let (before, _) =
        (until(&world, "swapped", State::Active).await, until(&world, "revoked", State::Active).await);

    let deleted = world.api::<ServiceAccount>().delete("revoked", &DeleteParams::default()).await;
    must(deleted.map_err(|e| e.to_string()));
    proxy.lead_to(port(&stranger.server_url()));
    proxy.cut();
    tokio::join!(is_unauthorized(&world, &caller, "revoked"), is_unauthorized(&world, &caller, "swapped"));

    proxy.lead_to(port(swapped.server()));
    proxy.cut();
    let renewed = kubeconfig::yaml(revoked.server(), revoked.authority(), Proof::Token(swapped.token()));
    world.secret("revoked", renewed.as_bytes(), true).await;
    let renewed = until(&world, "revoked", State::Active).await;
    assert!(renewed.status_or_default().epoch.0 > 1, "a new definition");
    let accepted = until(&world, "swapped", State::Active).await;
    let (was, is) = (before.status_or_default(), accepted.status_or_default());
    assert_eq!((is.epoch, is.failed_count, &is.caching), (was.epoch, 0, &was.caching), "the same definition");
}
