//! What people and programs see of cached objects: REST and the plugin.

use std::path::Path;

use k8s_openapi::api::apps::v1::Deployment;
use kube::api::PostParams;
use kubesvc_core::State;
use serde_json::{Value, json};

use crate::world::{Agent, MAX_WAIT, Operator, World, case, run_cases};
use kubesvc_testkit::kubectl::{self, Output};
use kubesvc_testkit::{must, wait::eventually};

const PLUGIN: &str = env!("CARGO_BIN_EXE_kubectl-kubesvc");
const CACHE: &str = "/agents/kubernetes/accounts/prod/cache";

fn deployment(name: &str) -> Deployment {
    let labels = json!({"app": name});
    let deployment = json!({
        "metadata": {"name": name},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        }
    });
    serde_json::from_value(deployment).expect("a fixed object")
}

async fn create(world: &World, name: &str) {
    let created = world.api::<Deployment>().create(&PostParams::default(), &deployment(name)).await;
    must(created.map_err(|e| e.to_string()));
}

/// An account `prod` that is ACTIVE, with what is cached of it.
async fn account(world: &World) {
    let cluster = world.cluster("spinnaker").await;
    let account = world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig());
    account.spec("omitNamespaces", json!(["left-out"])).create().await;
    world.until("prod", State::Active).await;
}

/// Waits until an answer is as wanted.
async fn until_answer(asked: &Operator, path: &str, holds: impl Fn(&Value) -> bool) -> Value {
    eventually(path, MAX_WAIT, async || {
        let answer = asked.get(path).await?;
        if answer.status == 200 && holds(&answer.json) { Ok(answer.json) } else { Err(answer.to_string()) }
    })
    .await
}

fn object_path(world: &World, kind: &str, name: &str) -> String {
    format!("{CACHE}?kind={kind}&namespace={}&name={name}", world.namespace())
}

#[tokio::test(flavor = "multi_thread")]
async fn rest_and_plugin_show_what_is_cached_and_what_is_not() {
    let kinds = json!(["deployment", "secret", "statefulSet"]);
    let world = World::prepare().setting("kubesvc.cache.cacheKinds", kinds).start().await;
    let agent = world.agent("agent-1").start().await;
    create(&world, "web").await;
    account(&world).await;
    run_cases([case(rest_shows_what_is_cached_and_why_an_object_is_missing(&world))]).await;
    let why = why_says_which_kinds_lag_or_cannot_be_read_and_that_the_agent_is_gone(&world, &agent);
    run_cases([case(why)]).await;
    agent.launch();
    run_cases([case(plugin_shows_what_is_cached_and_says_the_next_step(&world))]).await;
}

async fn rest_shows_what_is_cached_and_why_an_object_is_missing(world: &World) {
    let operator = world.operator();
    let cache = until_answer(operator, CACHE, |cache| cache["synced"] == true).await;
    assert_eq!((&cache["account"], &cache["agentId"]), (&json!("prod"), &json!("agent-1")), "{cache}");
    assert!(cache["epoch"].as_i64() > Some(0), "{cache}");
    let kinds: Vec<_> = cache["kinds"].as_array().expect("kinds").iter().map(|kind| &kind["kind"]).collect();
    assert_eq!(kinds, ["deployment", "secret", "statefulSet"]);
    let web = until_answer(operator, &object_path(world, "Deployment.apps", "web"), |cache| {
        cache["object"]["cached"] == true
    })
    .await;
    let version = web["object"]["resourceVersion"].as_str().map(str::to_owned);
    let live = must(world.api::<Deployment>().get("web").await.map_err(|e| e.to_string()));
    assert!(version.is_some() && web["object"]["uid"] == json!(live.metadata.uid), "{web}");
    let reason = async |path: String| {
        let answer = must(operator.get(&path).await);
        (answer.json["object"]["reason"].clone(), answer.json["object"]["message"].clone())
    };
    let (missing, _) = reason(object_path(world, "deploy", "never-there")).await;
    assert_eq!(missing, "NOT_THERE");
    let (left_out, message) = reason(object_path(world, "configMap", "one")).await;
    assert_eq!(left_out, "LEFT_OUT");
    assert!(message.as_str().is_some_and(|text| text.contains("kubesvc.cache.cacheKinds")), "{message}");
    let (omitted, message) = reason(format!("{CACHE}?kind=deployment&namespace=left-out&name=web")).await;
    assert_eq!(omitted, "LEFT_OUT");
    assert!(message.as_str().is_some_and(|text| text.contains("omitNamespaces")), "{message}");
    assert_eq!(must(operator.get("/agents/kubernetes/accounts/nobody/cache").await).status, 404);
    assert_eq!(must(operator.get(&format!("{CACHE}?kind=bananas")).await).status, 404);
}

async fn plugin(world: &World, arguments: &[&str]) -> Output {
    let kubeconfig = world.control_plane().kubeconfig_path();
    must(kubectl::run(Path::new(PLUGIN), &kubeconfig, arguments.iter().copied(), "").await)
}

async fn plugin_shows_what_is_cached_and_says_the_next_step(world: &World) {
    until_why(world, true, "up to date: ").await;
    let url = format!("http://127.0.0.1:{}", world.operator().rest_port());
    let namespace = world.namespace();
    let shown = async |arguments: &[&str]| {
        let all = [arguments, &["-n", namespace, "--operator-url", &url]].concat();
        must(plugin(world, &all).await.ok())
    };
    let cache = shown(&["cache", "prod"]).await;
    assert!(
        cache.contains("agent-1") && cache.lines().any(|line| line.starts_with("deployment ")),
        "{cache}"
    );
    let web = shown(&["cache", "prod", "deployment/web"]).await;
    assert!(web.contains("is cached"), "{web}");
    let missing = shown(&["cache", "ksa/prod", "configmap/web", "-o", "json"]).await;
    let missing: Value = serde_json::from_str(&missing).expect("JSON");
    assert_eq!(missing["object"]["setting"], "kubesvc.cache.cacheKinds", "{missing}");
    let nobody = plugin(world, &["cache", "nobody", "-n", namespace, "--operator-url", &url]).await;
    assert!(nobody.code == Some(1) && nobody.stderr.contains("does not exist"), "{nobody:?}");
    let why = shown(&["why", "prod"]).await;
    assert!(why.contains("up to date: ") && !why.contains("kubectl kubesvc cache"), "{why}");
    // Nothing publishes the operator as a Service here: the API server says so, and `why` needs no operator.
    let why = must(plugin(world, &["why", "prod", "-n", namespace]).await.ok());
    assert!(why.contains("cannot be asked") && why.contains("kubectl kubesvc cache prod -n "), "{why}");
    let unpublished = plugin(world, &["cache", "prod", "-n", namespace]).await;
    assert!(
        unpublished.code == Some(1) && unpublished.stderr.contains("--operator-namespace"),
        "{unpublished:?}"
    );
    let closed = plugin(world, &["cache", "prod", "--operator-url", "http://127.0.0.1:1"]).await;
    assert!(closed.code == Some(1) && closed.stderr.contains("--operator-url"), "{closed:?}");
}

/// What `why` says of an account's cached objects, once it is up to date or not, and has the part.
async fn until_why(world: &World, up_to_date: bool, part: &str) -> Value {
    let url = format!("http://127.0.0.1:{}", world.operator().rest_port());
    let arguments = ["why", "prod", "-o", "json", "-n", world.namespace(), "--operator-url", &url];
    eventually(part, MAX_WAIT, async || {
        let said = plugin(world, &arguments).await.ok()?;
        let said: Value = serde_json::from_str(&said).map_err(|error| error.to_string())?;
        let summary = said["cachedObjects"]["summary"].as_str().unwrap_or_default();
        if said["cachedObjects"]["upToDate"] == up_to_date && summary.contains(part) {
            Ok(said)
        } else {
            Err(said.to_string())
        }
    })
    .await
}

async fn why_says_which_kinds_lag_or_cannot_be_read_and_that_the_agent_is_gone(world: &World, agent: &Agent) {
    until_why(world, true, "up to date: ").await;

    // As if nothing had been heard of a kind: it is again when the next bookmark comes, within a minute.
    let age =
        "UPDATE kubesvc_resourceversion SET last_updated = last_updated - 600000 WHERE kind = 'deployment'";
    assert_eq!(world.execute(age).await, 1);
    let late = until_why(world, false, "deployment: lags, nothing was heard of it for 10m").await;
    let command = format!("kubectl kubesvc cache prod -n {}", world.namespace());
    assert!(
        late["advice"].as_array().is_some_and(|all| all.iter().any(|one| one["command"] == command)),
        "{late}"
    );

    // As a kind that may not be read.
    let problem = "UPDATE kubesvc_resourceversion SET problem = 'no right' WHERE kind = 'secret'";
    assert_eq!(world.execute(problem).await, 1);
    until_why(world, false, "secret: no right").await;
    let quiet = "UPDATE kubesvc_resourceversion SET problem = NULL, last_updated = last_updated + 600000";
    world.execute(quiet).await;
    agent.kill();
    until_why(world, false, "nobody reads them now").await;
}
