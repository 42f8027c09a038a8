//! What changes in a cluster stands in the tables a moment later: from a real API server through a real agent and a
//! real operator into each database.

use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kubesvc_core::{KubesvcAccount, State, conditions};
use serde_json::{Value, json};

use crate::stories::on_one_database;
use crate::world::{CachedObject, Database, MAX_KIND_DELAY, MAX_LEFT_OUT_DELAY, MAX_WAIT, World, condition};
use kubesvc_testkit::{must, wait::eventually};

on_one_database! {
    objects_of_a_cluster_are_rows,
}

/// Data of a Secret that must never leave the API server, and its form in Base64.
const CANARY: [&str; 2] = ["canary-in-a-secret", "Y2FuYXJ5LWluLWEtc2VjcmV0"];

fn deployment(name: &str, replicas: u32) -> Deployment {
    let labels = json!({"app": name});
    let deployment = json!({
        "metadata": {"name": name, "annotations": {"moniker.spinnaker.io/application": "shop"}},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        }
    });
    serde_json::from_value(deployment).expect("a fixed object")
}

/// Waits until the objects of the world's own namespace are as wanted.
async fn until_cached(
    world: &World,
    what: &str,
    holds: impl Fn(&[CachedObject]) -> bool,
) -> Vec<CachedObject> {
    until_cached_within(world, what, MAX_WAIT, holds).await
}

/// Like [`until_cached`], with a time limit.
async fn until_cached_within(
    world: &World,
    what: &str,
    limit: Duration,
    holds: impl Fn(&[CachedObject]) -> bool,
) -> Vec<CachedObject> {
    eventually(what, limit, async || {
        let all = world.try_cached_objects().await?;
        let own: Vec<_> = all.into_iter().filter(|row| row.1 == world.namespace()).collect();
        if holds(&own) { Ok(own) } else { Err(format!("{own:?}")) }
    })
    .await
}

fn body(rows: &[CachedObject], kind: &str, name: &str) -> Value {
    let row = rows.iter().find(|row| row.0 == kind && row.2 == name);
    let body = row.and_then(|row| row.4.as_deref());
    body.and_then(|body| serde_json::from_str(body).ok()).unwrap_or_default()
}

async fn objects_of_a_cluster_are_rows(database: Database) {
    let prepare = World::prepare().database(database);
    let world = prepare.setting("kubesvc.cache.cacheKinds", json!(["deployment", "secret"])).start().await;
    let agent = world.agent("agent-1").start().await;
    let (deployments, secrets) = (world.api::<Deployment>(), world.api::<Secret>());
    let post = PostParams::default();
    must(deployments.create(&post, &deployment("web", 1)).await.map_err(|e| e.to_string()));
    let secret = json!({"metadata": {"name": "canary"}, "stringData": {"password": CANARY[0]}});
    let secret: Secret = serde_json::from_value(secret).expect("a fixed object");
    must(secrets.create(&post, &secret).await.map_err(|e| e.to_string()));
    let cluster = world.cluster("spinnaker").await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("prod", State::Active).await;

    // What was there before.
    let rows = until_cached(&world, "the objects that were there", |rows| {
        body(rows, "deployment", "web")["spec"]["replicas"] == 1 && !body(rows, "secret", "canary").is_null()
    })
    .await;
    let web = body(&rows, "deployment", "web");
    assert_eq!((&web["kind"], &web["apiVersion"]), (&json!("Deployment"), &json!("apps/v1")));
    assert!(web["metadata"].get("managedFields").is_none(), "{web}");
    assert!(rows.iter().any(|row| row.2 == "web" && row.3.as_deref() == Some("shop")), "{rows:?}");
    let secret = body(&rows, "secret", "canary");
    assert_eq!(
        secret.as_object().map(|object| object.keys().cloned().collect::<Vec<_>>()),
        Some(vec!["apiVersion".to_owned(), "kind".to_owned(), "metadata".to_owned()])
    );

    // What changes.
    let more = json!({"spec": {"replicas": 3}});
    let patched = deployments.patch("web", &PatchParams::default(), &Patch::Merge(&more)).await;
    must(patched.map_err(|e| e.to_string()));
    must(deployments.create(&post, &deployment("api", 2)).await.map_err(|e| e.to_string()));
    let rows = until_cached(&world, "the changes", |rows| {
        body(rows, "deployment", "web")["spec"]["replicas"] == 3 && !body(rows, "deployment", "api").is_null()
    })
    .await;
    let text = format!("{rows:?}");
    assert!(CANARY.iter().all(|canary| !text.contains(canary)), "{text}");

    // What goes while the agent is away is gone once it is back.
    agent.kill();
    must(deployments.delete("web", &DeleteParams::default()).await.map_err(|e| e.to_string()));
    agent.launch();
    until_cached(&world, "the end of an object", |rows| {
        rows.iter().all(|row| row.2 != "web") && !body(rows, "deployment", "api").is_null()
    })
    .await;
    for log in [agent.log_text(), world.operator().log_text()] {
        assert!(CANARY.iter().all(|canary| !log.contains(canary)), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn account_that_may_not_read_the_cluster_has_rows_for_what_its_settings_name() {
    let prepare = World::prepare().setting("kubesvc.cache.cacheKinds", Value::Null);
    let world = prepare.start().await;
    let _agent = world.agent("agent-1").start().await;
    let cluster = world.cluster("spinnaker").await;
    let account = world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig());
    account
        .spec("onlyNamespacedResources", true)
        .spec("namespaces", json!([world.namespace(), "not-there"]))
        .spec("customResourceDefinitions", json!([{"kind": "Rollout.argoproj.io"}]))
        .create()
        .await;
    world.until("prod", State::Active).await;
    let mut wanted = vec![
        ("customResourceDefinition".to_owned(), "rollouts.argoproj.io".to_owned()),
        ("namespace".to_owned(), "not-there".to_owned()),
        ("namespace".to_owned(), world.namespace().to_owned()),
    ];
    wanted.sort();
    eventually("rows of what the account names", MAX_WAIT, async || {
        let rows = world.try_cached_objects().await?;
        let mut rows: Vec<_> =
            rows.into_iter().filter(|row| row.1.is_empty()).map(|row| (row.0, row.2)).collect();
        rows.sort();
        if rows == wanted { Ok(()) } else { Err(format!("{rows:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_an_inactive_account_go_and_come_back_and_go_with_the_account() {
    let prepare = World::prepare().setting("kubesvc.cache.cacheKinds", json!(["deployment"]));
    let world = prepare.start().await;
    let _agent = world.agent("agent-1").start().await;
    let deployments = world.api::<Deployment>();
    let post = PostParams::default();
    must(deployments.create(&post, &deployment("web", 1)).await.map_err(|e| e.to_string()));
    let cluster = world.cluster("spinnaker").await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    let is_cached = |rows: &[CachedObject]| rows.iter().any(|row| row.2 == "web");
    for _ in 0..2 {
        world.until("prod", State::Active).await;
        until_cached(&world, "the object", is_cached).await;
        world.patch("prod", json!({"spec": {"state": "INACTIVE"}})).await;
        world.until("prod", State::Inactive).await;
        until_cached(&world, "no object of an inactive account", |rows| !is_cached(rows)).await;
        world.patch("prod", json!({"spec": {"state": "ACTIVE"}})).await;
    }
    world.until("prod", State::Active).await;
    until_cached(&world, "the object", is_cached).await;
    world.delete("prod").await;
    world.until_gone("prod").await;
    until_cached(&world, "no object of a deleted account", |rows| !is_cached(rows)).await;
}

/// Waits for the first row of a Secret, such as the one with the account's kubeconfig, after the right was granted.
async fn until_secrets(world: &World) {
    let has_secret = |rows: &[CachedObject]| rows.iter().any(|row| row.0 == "secret");
    until_cached_within(world, "the first row after the right was granted", MAX_KIND_DELAY, has_secret).await;
}

/// Waits until the condition of account `prod` says that this is left out.
async fn until_left_out(world: &World, expected: Option<&str>) -> KubesvcAccount {
    eventually(&format!("{expected:?} is left out"), MAX_LEFT_OUT_DELAY, async || {
        let account = world.try_object("prod").await?.ok_or("it is gone")?;
        let caching = condition(&account, conditions::CACHING);
        let told = caching.as_ref().filter(|one| one.reason == conditions::LEFT_OUT);
        let is_so = caching.is_some() && told.map(|one| one.message.as_str()) == expected;
        if is_so { Ok(account) } else { Err(format!("{caching:?}")) }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn kinds_that_cannot_be_read_are_told_until_the_right_is_granted_and_namespaces_follow() {
    let kinds = json!(["deployment", "secret", "namespace", "Widget.example.com"]);
    let world = World::prepare().setting("kubesvc.cache.cacheKinds", kinds).start().await;
    let agent = world.agent("agent-1").start().await;
    let made = world.api::<Deployment>().create(&PostParams::default(), &deployment("web", 1)).await;
    must(made.map_err(|e| e.to_string()));
    let cluster = world.cluster_with_rights("reader", &["deployments", "namespaces"]).await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("prod", State::Active).await;

    let unserved = "Widget.example.com: the cluster does not serve it";
    let no_right = format!("Secret: the credential may not list and watch it; {unserved}");
    let before = until_left_out(&world, Some(&no_right)).await;
    let added = world.add_namespace("more").await;
    eventually("the list of namespaces has the new one", MAX_WAIT, async || {
        let listed = world.try_row("prod").await?.and_then(|row| row.namespaces).unwrap_or_default();
        if listed.contains(&added) { Ok(()) } else { Err(listed) }
    })
    .await;

    world.may_read("reader", &["deployments", "namespaces", "secrets"]).await;
    until_secrets(&world).await;
    let after = until_left_out(&world, Some(unserved)).await;
    let other = |account: &KubesvcAccount| {
        let mut status = account.status.clone().expect("it has one");
        status.conditions.retain(|condition| condition.type_ != conditions::CACHING);
        status
    };
    assert_eq!(other(&after), other(&before), "streaming writes nothing else");

    // A watch outlives its right: the next process finds out, and the rows stay.
    let has_web = |rows: &[CachedObject]| !body(rows, "deployment", "web").is_null();
    until_cached(&world, "the deployment", has_web).await;
    world.may_read("reader", &["namespaces", "secrets"]).await;
    agent.kill();
    agent.launch();
    let no_right = format!("Deployment.apps: the credential may not list and watch it; {unserved}");
    until_left_out(&world, Some(&no_right)).await;
    let left = world.try_cached_objects().await.expect("the database answers");
    let left: Vec<_> = left.into_iter().filter(|row| row.1 == world.namespace()).collect();
    assert!(has_web(&left), "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_out_reaches_the_leader_from_an_agent_at_a_follower() {
    let prepare = World::prepare().database(Database::Postgres);
    let world = prepare.setting("kubesvc.cache.cacheKinds", json!(["deployment", "secret"])).start().await;
    let follower = world.replica("operator-1").await;
    assert_eq!(world.until_one_leads(&[world.operator(), &follower]).await, 0, "the first one was first");
    let _agent = world.agent("agent-1").hub_port(follower.hub_port()).start().await;
    let cluster = world.cluster_with_rights("reader", &["deployments", "namespaces"]).await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("prod", State::Active).await;
    until_left_out(&world, Some("Secret: the credential may not list and watch it")).await;
    world.may_read("reader", &["deployments", "namespaces", "secrets"]).await;
    until_secrets(&world).await;
    until_left_out(&world, None).await;
}
