//! Accounts managed by a GitOps tool can be changed only there, unless a caller insists.

use kubesvc_core::{FINALIZER, KubesvcAccount, State};
use serde_json::{Value, json};

use crate::world::{Answer, Call, World};

const DYNAMIC: &str = "/armory/accounts/dynamic";
const ACCOUNTS: &str = "/armory/accounts";

/// The marks of each tool, and how the message names it.
fn tools() -> [(&'static str, Value, &'static str); 5] {
    [
        (
            "argo",
            json!({"annotations": {"argocd.argoproj.io/tracking-id": "fleet:kubesvc.io/KubesvcAccount:ns/argo"}}),
            "managed by Argo CD application fleet; change it there",
        ),
        (
            "flux",
            json!({"labels": {"kustomize.toolkit.fluxcd.io/name": "apps", "kustomize.toolkit.fluxcd.io/namespace": "flux-system"}}),
            "managed by Flux Kustomization flux-system/apps; change it there",
        ),
        (
            "flux-helm",
            json!({"labels": {"helm.toolkit.fluxcd.io/name": "accounts", "helm.toolkit.fluxcd.io/namespace": "ops"}}),
            "managed by Flux HelmRelease ops/accounts; change it there",
        ),
        (
            "helm",
            json!({"labels": {"app.kubernetes.io/managed-by": "Helm"}, "annotations": {"meta.helm.sh/release-name": "fleet"}}),
            "managed by Helm release fleet; change it there",
        ),
        (
            "helm-alone",
            json!({"labels": {"app.kubernetes.io/managed-by": "Helm"}}),
            "managed by Helm; change it there",
        ),
    ]
}

async fn apply(world: &World, name: &str, metadata: &Value) {
    let mut object = json!({
        "apiVersion": "kubesvc.io/v1alpha1", "kind": "KubesvcAccount", "metadata": metadata,
        "spec": {"state": "INACTIVE", "kubeconfig": {"file": "/opt/armory/prod"}}
    });
    object["metadata"]["name"] = json!(name);
    world.apply(&object.to_string()).await;
    world.until(name, State::Inactive).await;
}

/// Every call that would change or delete an account.
async fn writes(world: &World, name: &str, query: &str) -> Vec<(&'static str, Answer)> {
    let patch = json!([{"name": name, "state": "ACTIVE", "zoneId": "nobody"}]);
    let put = json!({"name": name, "kinds": ["pod"]});
    let switch = json!({"name": name, "state": "ACTIVE"});
    vec![
        ("PUT", world.rest("PUT", &format!("{DYNAMIC}{query}"), &put).await),
        ("PUT with a state", world.rest("PUT", &format!("{DYNAMIC}{query}"), &switch).await),
        ("PATCH", world.rest("PATCH", &format!("{ACCOUNTS}{query}"), &patch).await),
        ("PATCH, the other address", world.rest("PATCH", &format!("{DYNAMIC}{query}"), &patch).await),
        ("DELETE", world.rest("DELETE", &format!("{ACCOUNTS}{query}"), &json!([name])).await),
        ("DELETE of one", world.call(Call::new("DELETE", &format!("{ACCOUNTS}/{name}{query}"))).await),
    ]
}

/// The parts that only the tool may change.
fn kept(account: &KubesvcAccount) -> Value {
    let metadata = &account.metadata;
    json!([account.uid(), account.spec, metadata.labels, metadata.annotations, metadata.deletion_timestamp])
}

#[tokio::test(flavor = "multi_thread")]
async fn every_write_to_a_gitops_owned_account_is_409_naming_the_tool() {
    let world = World::start().await;
    for (name, metadata, said) in tools() {
        apply(&world, name, &metadata).await;
        let before = world.object(name).await.expect("it was applied");
        for query in ["", "?force=false"] {
            for (call, answer) in writes(&world, name, query).await {
                assert_eq!(answer.status, 409, "{name} {call}{query}: {answer}");
                let message = answer.json["message"].as_str().unwrap_or_default();
                assert!(
                    message.contains(said) && message.contains("?force=true"),
                    "{call}{query}: {message}"
                );
            }
        }
        for query in ["?force=1", "?force"] {
            for (call, answer) in writes(&world, name, query).await {
                assert_eq!(answer.status, 400, "{name} {call}{query}: {answer}");
            }
        }
        // Both POSTs leave existing accounts alone, and report that in different ways.
        let body = json!({"name": name, "kubeconfigFile": "/opt/armory/other"});
        let answer = world.rest("POST", DYNAMIC, &body).await;
        assert_eq!((answer.status, &answer.json[0]["name"]), (409, &json!(name)), "{answer}");
        let after = world.object(name).await.expect("it was not deleted");
        assert_eq!(kept(&after), kept(&before), "{name}: a refused request changes nothing");
        // A request that would change nothing is not refused.
        let same = json!([{"name": name, "state": "INACTIVE"}]);
        assert_eq!(world.rest("PATCH", ACCOUNTS, &same).await.status, 202);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_gitops_owned_account_blocks_a_request_for_several() {
    let world = World::start().await;
    let (_, metadata, said) = tools().into_iter().next().expect("there are tools");
    apply(&world, "argo", &metadata).await;
    apply(&world, "free", &json!({})).await;
    let names = json!(["free", "argo"]);
    let patch = json!([{"name": "free", "state": "ACTIVE"}, {"name": "argo", "state": "ACTIVE"}]);
    for (method, body) in [("DELETE", &names), ("PATCH", &patch)] {
        let answer = world.rest(method, ACCOUNTS, body).await;
        assert_eq!(answer.status, 409, "{answer}");
        assert!(answer.json["message"].as_str().is_some_and(|message| message.contains(said)), "{answer}");
    }
    for name in ["free", "argo"] {
        let account = world.object(name).await.expect("nothing was deleted");
        assert!(
            !account.is_being_deleted() && account.metadata.generation == Some(1),
            "{name}: {account:#?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn force_changes_and_deletes_gitops_owned_accounts() {
    let world = World::start().await;
    for (name, metadata, _) in tools() {
        apply(&world, name, &metadata).await;
        let put = json!({"name": name, "kinds": ["pod"]});
        let answer = world.rest("PUT", &format!("{DYNAMIC}?force=true"), &put).await;
        assert_eq!(answer.status, 202, "{answer}");
        assert_eq!(world.object(name).await.expect("it is there").spec.kinds, ["pod"]);
    }
    let names: Vec<_> = tools().iter().map(|(name, ..)| *name).collect();
    let answer = world.rest("DELETE", &format!("{ACCOUNTS}?force=true"), &json!(names)).await;
    assert_eq!(answer.status, 202, "{answer}");
    for name in names {
        world.until_gone(name).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rest_does_not_reelect_the_caching_agent_of_gitops_owned_or_deleted_accounts() {
    let world = World::start().await;
    let elect = async |names: Value, query: &str| {
        world.rest("POST", &format!("/armory/agent/assignments{query}"), &names).await
    };
    apply(&world, "free", &json!({})).await;
    for (name, metadata, said) in tools() {
        apply(&world, name, &metadata).await;
        let (before, free) = (world.object(name).await, world.object("free").await);
        let answer = elect(json!(["free", name]), "").await;
        let message = answer.json["message"].as_str().unwrap_or_default();
        let tool = said.split(';').next().expect("the tool");
        assert!(
            answer.status == 409 && message.contains(tool) && message.contains("?force=true"),
            "{answer}"
        );
        assert_eq!(
            (world.object(name).await, world.object("free").await),
            (before, free),
            "nothing was done"
        );
        assert_eq!(elect(json!([name]), "?force=true").await.status, 200);
    }
    world.patch("free", json!({"metadata": {"finalizers": [FINALIZER, "example.com/held"]}})).await;
    world.delete("free").await;
    let answer = elect(json!(["free"]), "").await;
    assert!(answer.status == 409 && answer.to_string().contains("is being deleted"), "{answer}");
    world.patch("free", json!({"metadata": {"finalizers": []}})).await;
}
