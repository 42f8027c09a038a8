//! What people and programs see of cached objects: REST, its changes through any replica, and the plugin.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use http::Request;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kubesvc_core::State;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

use crate::world::{Agent, Database, MAX_WAIT, Operator, World, case, run_cases};
use kubesvc_testkit::kubectl::{self, Output};
use kubesvc_testkit::process::{Process, Streams};
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

async fn scale(world: &World, name: &str, replicas: u32) {
    let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
    let patched = world.api::<Deployment>().patch(name, &PatchParams::default(), &patch).await;
    must(patched.map_err(|e| e.to_string()));
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

/// The lines of a call that follows changes. Dropped, the caller is gone.
struct Changes {
    lines: Arc<Mutex<Vec<Value>>>,
    _reading: AbortOnDropHandle<()>,
}

impl Changes {
    async fn of(asked: &Operator) -> Self {
        let (port, lines) = (asked.rest_port(), Arc::<Mutex<Vec<Value>>>::default());
        let stream = must(TcpStream::connect(("127.0.0.1", port)).await.map_err(|e| e.to_string()));
        let opened = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = must(opened.map_err(|e| e.to_string()));
        let request = Request::get(format!("{CACHE}/changes"))
            .header("host", format!("127.0.0.1:{port}"))
            .body(Empty::<Bytes>::new())
            .expect("a request");
        let connection = AbortOnDropHandle::new(tokio::spawn(connection));
        let mut answer = must(sender.send_request(request).await.map_err(|e| e.to_string()));
        assert_eq!(answer.status(), 200);
        let read = Arc::clone(&lines);
        let reading = async move {
            let (_connection, _sender, mut rest) = (connection, sender, Vec::new());
            while let Some(Ok(frame)) = answer.frame().await {
                rest.extend(frame.into_data().unwrap_or_default());
                while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = rest.drain(..=end).collect();
                    read.lock().extend(serde_json::from_slice::<Value>(&line));
                }
            }
        };
        Self { lines, _reading: AbortOnDropHandle::new(tokio::spawn(reading)) }
    }

    /// Waits for a line.
    async fn until(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        eventually(what, MAX_WAIT, async || {
            let lines = self.lines.lock().clone();
            lines.iter().rev().find(|line| holds(line)).cloned().ok_or_else(|| format!("{lines:?}"))
        })
        .await
    }

    async fn until_change(&self, op: &str, name: &str) -> Value {
        self.until(&format!("{op} of {name}"), |line| line["op"] == op && line["name"] == name).await
    }
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

async fn changes_are_seen_through(database: Database) {
    let prepare = World::prepare().database(database).setting("server.address", "*");
    let world = prepare.setting("kubesvc.cache.cacheKinds", json!(["deployment"])).start().await;
    let second = world.replica("operator-1").await;
    world.publish("operator-0", world.operator(), true).await;
    world.publish("operator-1", &second, true).await;
    let agent = world.agent("agent-1").start().await;
    account(&world).await;
    until_answer(&second, CACHE, |cache| cache["synced"] == true).await;
    let (here, relayed) = (Changes::of(world.operator()).await, Changes::of(&second).await);
    for changes in [&here, &relayed] {
        let line = changes.until("where it follows", |line| line["op"] == "FOLLOWING").await;
        assert_eq!((&line["agentId"], &line["replica"]), (&json!("agent-1"), &json!("operator-0")), "{line}");
    }
    create(&world, "web").await;
    scale(&world, "web", 3).await;
    for changes in [&here, &relayed] {
        let line = changes.until_change("UPSERT", "web").await;
        assert_eq!((&line["kind"], &line["namespace"]), (&json!("deployment"), &json!(world.namespace())));
        assert!(line["uid"].is_string() && line["resourceVersion"].is_string(), "{line}");
    }
    let deleted = world.api::<Deployment>().delete("web", &DeleteParams::default()).await;
    must(deleted.map_err(|e| e.to_string()));
    here.until_change("DELETE", "web").await;
    relayed.until_change("DELETE", "web").await;

    // The agent restarts: the call goes on.
    agent.kill();
    create(&world, "unseen").await;
    relayed.until("the end of the stream", |line| line["op"] == "MOVED").await;
    agent.launch();
    let followed = |line: &Value| line["op"] == "FOLLOWING";
    eventually("the next stream", MAX_WAIT, async || {
        let count = relayed.lines.lock().iter().filter(|line| followed(line)).count();
        if count > 1 { Ok(()) } else { Err(format!("{count}")) }
    })
    .await;
    create(&world, "api").await;
    relayed.until_change("UPSERT", "api").await;
    world.delete("prod").await;
    relayed.until("the end of the account", |line| line["op"] == "GONE").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_are_passed_on_by_the_other_replica() {
    changes_are_seen_through(Database::Postgres).await;
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
    let closed = plugin(world, &["tail", "prod", "--operator-url", "http://127.0.0.1:1"]).await;
    assert!(closed.code == Some(1) && closed.stderr.contains("--operator-url"), "{closed:?}");

    tail_ends_with_the_account(world, &url).await;
}

async fn tail_ends_with_the_account(world: &World, url: &str) {
    let mut command = Command::new(PLUGIN);
    command
        .args(["tail", "prod", "-o", "json", "-n", world.namespace(), "--operator-url", url])
        .env("KUBECONFIG", world.control_plane().kubeconfig_path());
    let (output, errors) = (world.folder().file("tail.out"), world.folder().file("tail.err"));
    let streams = Streams { input: None, output: Some(output.clone()), errors };
    let tail = must(Process::spawn_with("kubectl kubesvc tail", &command, &streams));
    let until_printed = async |text: &str| {
        eventually(&format!("{text} printed"), MAX_WAIT, async || {
            let printed = std::fs::read_to_string(&output).unwrap_or_default();
            if printed.contains(text) { Ok(()) } else { Err(format!("{printed}{}", tail.log_text())) }
        })
        .await;
    };
    until_printed("FOLLOWING").await;
    scale(world, "web", 2).await;
    until_printed("UPSERT").await;
    world.delete("prod").await;
    let ended = must(tail.wait(MAX_WAIT).await);
    assert_eq!(ended.code(), Some(0), "it ends with the account: {}", tail.log_text());
    until_printed("GONE").await;
    world.until_gone("prod").await;
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
