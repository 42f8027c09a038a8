//! Commands that change accounts and wait for them.

use kubesvc_core::{KubesvcAccount, State};
use serde_json::json;

use super::{EXEC, Scene, plugin, row, shown};
use crate::world::World;

/// In a world without other accounts.
pub(super) async fn deactivate_activate_retry_and_wait_work(scene: &Scene) {
    let Scene { world, cluster, .. } = scene;
    for name in ["one", "two"] {
        world.account(name).zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    }
    let told = shown(world, &["wait", "--all", "--timeout", "45s"]).await;
    assert!(told.contains("kubesvcaccount.kubesvc.io/one is ready (ACTIVE)"), "{told}");
    assert_eq!(told.lines().count(), 2, "{told}");

    let told = shown(world, &["deactivate", "one", "--wait", "--timeout", "45s"]).await;
    assert_eq!(
        told.lines().collect::<Vec<_>>(),
        ["kubesvcaccount.kubesvc.io/one deactivated", "kubesvcaccount.kubesvc.io/one is INACTIVE"]
    );
    assert_eq!(world.state("one").await, Some(State::Inactive));
    written_by_the_plugin(&world.object("one").await.expect("it is there"));
    assert!(shown(world, &["deactivate", "one"]).await.contains("is to be INACTIVE already"));
    let told = shown(world, &["activate", "--all", "--wait", "--timeout=45s"]).await;
    assert!(told.contains("one activated") && told.contains("two is to be ACTIVE already"), "{told}");
    assert_eq!(world.state("one").await, Some(State::Active));

    a_stalled_one(world, &cluster.kubeconfig()).await;
    a_deleted_one(world).await;
    for name in ["two", "bad"] {
        world.delete(name).await;
        world.until_gone(name).await;
    }
}

/// Checks the field manager. It must not start with `kubectl`, or Flux would drop the fields that it set.
fn written_by_the_plugin(account: &KubesvcAccount) {
    let managers = account.metadata.managed_fields.iter().flatten();
    let managers: Vec<_> = managers.filter_map(|entry| entry.manager.as_deref()).collect();
    assert!(managers.contains(&"kubesvc-plugin"), "{managers:?}");
}

async fn a_stalled_one(world: &World, good: &str) {
    world.account("bad").zone("east").kubeconfig(EXEC).create().await;
    world.until_reason("bad", State::Failed, "ExecForbidden").await;
    let ended = plugin(world, &["wait", "--all", "--timeout", "45s"]).await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("1 of 3 accounts are not ready: someone must act"), "{ended:?}");
    assert!(ended.stderr.contains("bad is FAILED: ") && ended.stderr.contains("runs a program"), "{ended:?}");
    let ended = plugin(world, &["wait", "--all", "--keep-going", "--timeout", "1s"]).await;
    assert!(ended.code == Some(1) && ended.stderr.contains("timed out after 1s"), "{ended:?}");

    // An unwatched Secret is read again when a retry is asked for.
    world.secret("bad", good.as_bytes(), false).await;
    assert!(shown(world, &["retry", "bad"]).await.contains("kubesvcaccount.kubesvc.io/bad is tried again"));
    let told = shown(world, &["wait", "bad", "--for", "active", "--timeout", "45s"]).await;
    assert!(told.contains("bad is ACTIVE"), "{told}");
    let asked = world.object("bad").await.expect("it is there");
    let value = asked.annotation("kubesvc.io/retry").unwrap_or_default();
    assert!(value.parse::<ulid::Ulid>().is_ok(), "{value}");
}

async fn a_deleted_one(world: &World) {
    let look = plugin(world, &["wait", "one", "--for", "deleted", "--timeout", "0"]).await;
    assert!(look.code == Some(1) && look.stderr.contains("looked once"), "{look:?}");
    world.delete("one").await;
    let told = shown(world, &["wait", "one", "--for=deleted", "--timeout=45s"]).await;
    assert_eq!(told.trim_end(), "kubesvcaccount.kubesvc.io/one deleted");
    assert_eq!(world.object("one").await, None);
    let gone = shown(world, &["wait", "one", "never-was", "--for=deleted"]).await;
    assert_eq!(gone.lines().count(), 2, "{gone}");
}

/// In a world without other accounts and without an operator.
pub(super) async fn gitops_owned_account_is_unchanged_unless_forced(world: &World) {
    for name in ["kept", "free"] {
        world.account(name).create().await;
    }
    world.annotate("kept", "argocd.argoproj.io/tracking-id", "fleet:kubesvc.io/KubesvcAccount:ns/kept").await;
    let ended = plugin(world, &["deactivate", "--all"]).await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stdout.contains("free deactivated") && !ended.stdout.contains("kept"), "{ended:?}");
    assert!(
        ended.stderr.contains("kept is managed by Argo CD application fleet: set spec.state: INACTIVE there")
            && ended.stderr.contains("--force"),
        "{ended:?}"
    );
    let kept = world.object("kept").await.expect("it is there");
    assert_eq!(kept.spec.state, None);
    assert!(shown(world, &["deactivate", "kept", "--force"]).await.contains("kept deactivated"));
    let kept = world.object("kept").await.expect("it is there");
    assert_eq!(serde_json::to_value(kept.spec.state).ok(), Some(json!("INACTIVE")));
    let why = shown(world, &["why", "kept"]).await;
    assert!(why.contains("Argo CD application fleet; change it there"), "{why}");
    for name in ["kept", "free"] {
        world.delete(name).await;
    }
}

pub(super) async fn agent_gets_accounts_only_while_approved(scene: &Scene) {
    let Scene { world, cluster, .. } = scene;
    let _agent = world.agent("worker-1").zone("approved").start().await;
    let by = async || {
        let table = shown(world, &["agents", "--zone", "approved"]).await;
        row(&table, "worker-1").last().map(|by| (*by).to_owned())
    };
    assert_eq!(by().await.as_deref(), Some("auto"));
    let revoke = ["agents", "revoke", "--automatic", "--zone", "approved"];
    assert!(shown(world, &revoke).await.contains("worker-1"));
    assert_eq!(by().await.as_deref(), Some("<none>"));
    world.account("awaiting").zone("approved").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until_reason("awaiting", State::Failed, "NoAgent").await;
    let why = shown(world, &["why", "awaiting"]).await;
    assert!(why.contains("connected, and not approved"), "{why}");
    let near = plugin(world, &["agents", "approve", "wroker-1"]).await;
    assert!(near.code == Some(1) && near.stderr.contains("did you mean worker-1?"), "{near:?}");
    assert!(shown(world, &["agents", "approve", "worker-1"]).await.contains("approved"));
    let person = by().await.unwrap_or_default();
    assert!(!["auto", "<none>"].contains(&person.as_str()), "{person}");
    assert_eq!(shown(world, &revoke).await, "", "a person has approved it");
    shown(world, &["wait", "awaiting", "--timeout", "45s"]).await;
    assert!(shown(world, &["agents", "approve", "worker-1"]).await.contains("approved already"));
}
