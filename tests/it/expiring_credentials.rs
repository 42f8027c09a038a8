//! Warnings before the credential of an account expires.

use std::path::Path;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use kubesvc_core::{KubesvcAccount, State};
use serde_json::json;

use crate::world::{World, condition};
use kubesvc_testkit::{kubectl, must, wait::eventually};

const MAX_WAIT: Duration = Duration::from_secs(30);
const TYPE: &str = "CredentialExpiring";

/// The Secret of `prod` says that it expires then.
async fn expires_in(world: &World, hours: i64) -> String {
    let at = format!("{:.0}", Timestamp::now() + SignedDuration::from_hours(hours));
    let annotated = json!({"metadata": {"annotations": {"kubesvc.io/credential-expires": at}}});
    let patch = Patch::Merge(annotated);
    let patched = world.api::<Secret>().patch("prod", &PatchParams::default(), &patch).await;
    must(patched.map_err(|e| e.to_string()));
    at
}

async fn account(world: &World) -> KubesvcAccount {
    world.object("prod").await.expect("the account is there")
}

/// Waits until the account warns for this reason, or for none; returns what it says.
async fn until_warned(world: &World, reason: Option<&str>) -> Option<String> {
    eventually(&format!("warned of {reason:?}"), MAX_WAIT, async || {
        let warning = condition(&account(world).await, TYPE);
        let said = warning.as_ref().map(|one| one.reason.as_str());
        if said == reason { Ok(warning.map(|one| one.message)) } else { Err(format!("{said:?}")) }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn credential_that_expires_is_told_of_everywhere_until_it_is_renewed() {
    let world = World::prepare().start().await;
    let _agent = world.agent("agent-1").start().await;
    // A client certificate that does not expire for years, so that the annotation comes first.
    let kubeconfig = world.control_plane().admin_kubeconfig();
    world.account("prod").zone("east").kubeconfig(&kubeconfig).create().await;
    world.until("prod", State::Active).await;
    let epoch = account(&world).await.status_or_default().epoch;

    let at = expires_in(&world, 72).await;
    let message = until_warned(&world, Some("Within7Days")).await.expect("a message");
    assert!(message.contains(&at) && message.contains("kubesvc.io/credential-expires"), "{message}");
    let metric = "kubesvc_controller_accounts_expiring{reason=\"Within7Days\"}";
    assert_eq!(world.operator().metric(metric).await, Ok(1));
    let plugin = Path::new(env!("CARGO_BIN_EXE_kubectl-kubesvc"));
    let kubeconfig = world.control_plane().kubeconfig_path();
    let why = kubectl::run(plugin, &kubeconfig, ["why", "prod", "-n", world.namespace()], "").await;
    let why = must(must(why).ok());
    assert!(why.contains(&at) && why.contains("run the same command again"), "{why}");
    let is_told = async || {
        let events = world.events_about("prod").await;
        let told = events.iter().any(|one| one["reason"] == TYPE && one["type"] == "Warning");
        if told { Ok(()) } else { Err(format!("{events:?}")) }
    };
    eventually("an Event", MAX_WAIT, is_told).await;

    expires_in(&world, 12).await;
    until_warned(&world, Some("Within1Day")).await;
    expires_in(&world, 24 * 365).await;
    until_warned(&world, None).await;
    let status = account(&world).await.status_or_default().into_owned();
    assert_eq!((status.state(), status.epoch), (State::Active, epoch), "the account stays as it is");
}
