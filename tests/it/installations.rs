//! Two installations that watch the same accounts, each with a database and agents of its own: an account is served by the
//! first, until a person asks for the other or the first is gone.

use std::path::Path;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::events::v1::Event;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::world::{MAX_WAIT, World};
use kubesvc_core::{KubesvcAccount, State};
use kubesvc_testkit::{kubectl, must, wait::eventually};

const PLUGIN: &str = env!("CARGO_BIN_EXE_kubectl-kubesvc");

async fn until_foreign(world: &World, expected: u64) {
    eventually(&format!("{expected} foreign accounts"), MAX_WAIT, async || {
        match world.operator().metric("kubesvc_foreign_accounts").await? {
            count if count == expected => Ok(()),
            other => Err(format!("{other} foreign accounts")),
        }
    })
    .await;
}

/// Waits until the account of the first world is ACTIVE and served by the installation in this namespace.
async fn until_served_by(first: &World, namespace: &str) -> KubesvcAccount {
    let what = format!("ACTIVE, served by the installation in {namespace}");
    first
        .until_account("prod", &what, |account| {
            let status = account.status_or_default();
            let operator = status.operator.as_ref().map(|operator| operator.namespace.as_str());
            status.state() == State::Active && operator == Some(namespace)
        })
        .await
}

async fn until_row(world: &World, exists: bool) {
    eventually(&format!("a row: {exists}"), MAX_WAIT, async || match world.try_row("prod").await? {
        row if row.is_some() == exists => Ok(()),
        row => Err(format!("{row:?}")),
    })
    .await;
}

async fn until_event(world: &World, reason: &str) -> String {
    eventually(&format!("an Event {reason}"), MAX_WAIT, async || {
        let events = world.api::<Event>().list(&ListParams::default()).await.map_err(|e| e.to_string())?;
        let found = events.items.into_iter().find(|event| event.reason.as_deref() == Some(reason));
        found.and_then(|event| event.note).ok_or_else(|| "none".to_owned())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_is_left_to_the_installation_that_serves_it_until_it_is_asked_for_or_the_other_is_gone() {
    let (first, cluster, _agent) = World::with_agent().await;
    first.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    let served = until_served_by(&first, first.namespace()).await;

    // The second one watches the first one's namespace too.
    let second = World::prepare()
        .setting("kubesvc.watchNamespaces", json!([first.namespace()]))
        .without_operator()
        .start()
        .await;
    second.may_watch_all().await;
    second.operator().start().await;
    let _its_agent = second.agent("agent-1").start().await;
    until_foreign(&second, 1).await;
    let note = until_event(&first, "ForeignAccount").await;
    assert!(note.contains(&format!("installation in namespace {}", first.namespace())), "{note}");
    let refused =
        second.rest("PATCH", "/armory/accounts", &json!([{"name": "prod", "state": "INACTIVE"}])).await;
    // It is not in the index of the second one, and REST makes accounts in its own namespace: there is none.
    assert_eq!(refused.status, 400, "{refused}");
    assert!(second.row("prod").await.is_none());
    let now = first.object("prod").await.expect("it is there");
    assert_eq!(now.metadata.resource_version, served.metadata.resource_version, "nobody wrote");
    assert_eq!(first.operator().metric("kubesvc_foreign_accounts").await, Ok(0));

    // A person asks.
    let kubeconfig = first.control_plane().kubeconfig_path();
    let words = ["adopt", "prod", "-n", first.namespace(), "--operator-namespace", second.namespace()];
    let adopt = async || kubectl::run(Path::new(PLUGIN), &kubeconfig, words, "").await;
    let none = must(adopt().await);
    assert!(none.code == Some(1) && none.stderr.contains("no operator is installed"), "{none:?}");
    let service: Service = serde_json::from_value(json!({
        "metadata": {"name": "kubesvc-operator"}, "spec": {"ports": [{"name": "http", "port": 7002}]},
    }))
    .expect("a Service");
    let made = second.api::<Service>().create(&PostParams::default(), &service).await;
    must(made.map_err(|e| e.to_string()));
    let said = must(must(adopt().await).ok());
    assert!(said.contains("is to be served by the installation"), "{said}");
    until_served_by(&first, second.namespace()).await;
    until_row(&first, false).await;
    until_row(&second, true).await;
    until_foreign(&first, 1).await;
    until_foreign(&second, 0).await;
    until_event(&first, "TakenOver").await;

    // The first one's namespace is gone, and so is its operator.
    first.operator().kill();
    let written = json!({"status": {"operator": {"namespace": "gone", "uid": "gone"}}});
    first.patch("prod", json!({"metadata": {"annotations": {"kubesvc.io/operator": null}}})).await;
    let objects = first.api::<KubesvcAccount>();
    let patched = objects.patch_status("prod", &PatchParams::default(), &Patch::Merge(&written)).await;
    must(patched.map_err(|e| e.to_string()));
    // It is checked at the start, and once a minute.
    second.operator().kill_and_start().await;
    until_served_by(&first, second.namespace()).await;
    until_row(&second, true).await;
}
