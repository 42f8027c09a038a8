//! What an agent does about the objects that it streams: when the cluster behind an account becomes another one, and
//! what people and Prometheus see of it.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::api::{Api, PostParams};
use kubesvc_core::{RETRY_ANNOTATION, State};
use serde_json::{Value, json};

use crate::faults::proxy::{Proxy, ProxyMode};
use crate::world::{Agent, CachedObject, MAX_WAIT, World, get_from};
use kubesvc_testkit::controlplane::{ControlPlane, StartOptions};
use kubesvc_testkit::{must, ports, wait::eventually};

/// Kind of the objects in these tests, as the table has it.
const KIND: &str = "configMap";

fn port(url: &str) -> u16 {
    must(url.rsplit(':').next().unwrap_or_default().parse().map_err(|_| format!("{url} has no port")))
}

async fn create(client: Client, namespace: &str, name: &str) {
    let object: ConfigMap = must(
        serde_json::from_value(json!({"metadata": {"name": name}, "data": {"a": "b"}}))
            .map_err(|e| e.to_string()),
    );
    let created = Api::namespaced(client, namespace).create(&PostParams::default(), &object).await;
    must(created.map_err(|e| e.to_string()));
}

async fn until_rows(world: &World, what: &str, holds: impl Fn(&[CachedObject]) -> bool) {
    eventually(what, MAX_WAIT, async || {
        let rows = world.try_cached_objects().await?;
        if holds(&rows) { Ok(()) } else { Err(format!("{} rows", rows.len())) }
    })
    .await;
}

async fn watches(agent: &Agent) -> Result<Value, String> {
    agent.try_get("/watches").await.map(|answer| answer.json)
}

async fn until_watches(agent: &Agent, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    eventually(what, MAX_WAIT, async || {
        let watches = watches(agent).await?;
        if holds(&watches) { Ok(watches) } else { Err(watches.to_string()) }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn account_whose_cluster_is_replaced_while_it_streams_leaves_active_and_keeps_its_rows() {
    let world = World::prepare().setting("kubesvc.cache.cacheKinds", json!([KIND])).start().await;
    let cluster = world.cluster("rich").await;
    let mut options = StartOptions::without_audit();
    options.add_user_with_token("rich", &["system:masters"], cluster.token());
    let other = must(ControlPlane::reused(options).await);
    let agent = world.agent("agent-1").start().await;
    let proxy = Proxy::to(port(cluster.server())).await;
    // Without an authority, so that no certificate shows that the cluster is another one.
    let url = format!("https://127.0.0.1:{}", proxy.port());
    let kubeconfig = cluster.kubeconfig_in_one_line().replace(cluster.server(), &url);
    let (client, namespace) = (world.api::<ConfigMap>().into_client(), world.namespace());
    create(client.clone(), namespace, "before").await;
    create(other.client().await, "default", "of-the-other-cluster").await;
    world.account("prod").zone("east").kubeconfig(&kubeconfig).create().await;
    world.until("prod", State::Active).await;
    let has = |rows: &[CachedObject], name: &str| rows.iter().any(|row| row.0 == KIND && row.2 == name);
    until_rows(&world, "the object that was there", |rows| has(rows, "before")).await;

    proxy.lead_to(port(&other.server_url()));
    proxy.set(ProxyMode::Cut);
    until_watches(&agent, "no way to the cluster", |watches| watches["watches"][0]["state"] == "WAITING")
        .await;
    proxy.set(ProxyMode::Open);
    let failed = world.until_reason("prod", State::Failed, "ClusterMismatch").await;
    let message = failed.status_or_default().error_message.clone().unwrap_or_default();
    assert!(message.contains("another cluster"), "{message}");
    until_watches(&agent, "no watch of the account", |watches| watches["total"] == 0).await;
    let rows = must(world.try_cached_objects().await);
    assert!(has(&rows, "before") && !has(&rows, "of-the-other-cluster"), "{rows:?}");

    proxy.lead_to(port(cluster.server()));
    world.annotate("prod", RETRY_ANNOTATION, "the cluster is back").await;
    world.until("prod", State::Active).await;
    create(client, namespace, "after").await;
    until_rows(&world, "what came since", |rows| has(rows, "before") && has(rows, "after")).await;
    let rows = must(world.try_cached_objects().await);
    assert!(!has(&rows, "of-the-other-cluster"), "{rows:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn watches_and_metrics_of_an_agent_say_what_it_reads() {
    let kinds = json!([KIND, "secret"]);
    let world = World::prepare().setting("kubesvc.cache.cacheKinds", kinds).start().await;
    let metrics = ports::free();
    let agent = world.agent("agent-1").setting("prometheus", json!({"enabled": true, "port": metrics}));
    let agent = agent.start().await;
    let none = must(watches(&agent).await);
    assert_eq!(none, json!({"total": 0, "watches": []}));
    assert_eq!(agent.get("/operations").await.json, json!({"total": 0, "operations": []}));
    let (client, namespace) = (world.api::<ConfigMap>().into_client(), world.namespace());
    create(client.clone(), namespace, "one").await;
    // May read the one kind, and not the other.
    let cluster = world.cluster_without_rights("half").await;
    let rule = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]}]);
    allow(&world, "half", rule).await;
    world
        .account("prod")
        .zone("east")
        .spec("namespaces", json!([namespace]))
        .kubeconfig(&cluster.kubeconfig())
        .create()
        .await;
    world.until("prod", State::Active).await;

    let shown = until_watches(&agent, "a watch and a problem", |watches| {
        watches["watches"][0]["state"] == "WATCHING" && watches["watches"][1]["problem"].is_string()
    })
    .await;
    assert_eq!(shown["total"], 2, "{shown}");
    let (read, refused) = (&shown["watches"][0], &shown["watches"][1]);
    assert_eq!(
        [&read["account"], &read["kind"], &read["group"], &read["namespace"]],
        [&json!("prod"), &json!("ConfigMap"), &json!(""), &json!(namespace)]
    );
    assert!(read["resourceVersion"].is_string() && read["since"].is_string(), "{read}");
    assert_eq!((&refused["kind"], &refused["state"]), (&json!("Secret"), &json!("WAITING")), "{refused}");
    assert!(refused["problem"].as_str().is_some_and(|problem| problem.contains("403")), "{refused}");

    let text = eventually("the metrics", MAX_WAIT, async || {
        let text = get_from(metrics, "/metrics").await?.text;
        let wanted = [
            "kubesvc_watches 1",
            "kubesvc_resource_agent_total 2",
            "kubesvc_events_sent_total{event_kind=\"ConfigMap\"}",
            "kubesvc_events_bytes_sent_total{event_group=\"\"}",
            "kubesvc_lists_total{why=\"start\"}",
            "kubesvc_cache_problems{why=\"FORBIDDEN\"} 1",
            "kubesvc_cache_pending_bytes",
            "kubesvc_cluster_connections",
        ];
        let missing: Vec<_> = wanted.into_iter().filter(|one| !text.contains(one)).collect();
        if missing.is_empty() { Ok(text) } else { Err(format!("without {missing:?}:\n{text}")) }
    })
    .await;
    assert!(!text.contains("\"prod\"") && !text.contains(namespace), "no label names an account: {text}");

    world.delete("prod").await;
    world.until_gone("prod").await;
    until_watches(&agent, "no watch of an account that is gone", |watches| watches["total"] == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn accounts_of_which_nothing_is_cached_keep_no_connection() {
    let world = World::prepare().setting("kubesvc.cache.cacheKinds", json!([])).start().await;
    let metrics = ports::free();
    let agent = world.agent("agent-1").setting("prometheus", json!({"enabled": true, "port": metrics}));
    let _agent = agent.start().await;
    let cluster = world.cluster("rich").await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("prod", State::Active).await;
    eventually("an account that streams over no connection", MAX_WAIT, async || {
        let text = get_from(metrics, "/metrics").await?.text;
        let wanted = ["kubesvc_accounts_cached 1", "kubesvc_cluster_connections 0"];
        let missing: Vec<_> = wanted.into_iter().filter(|one| !text.contains(one)).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("without {missing:?}:\n{text}")) }
    })
    .await;
}

/// Gives a user rights in the world's namespace.
async fn allow(world: &World, user: &str, rules: Value) {
    use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
    let name = format!("{user}-reads");
    let role: Role = must(
        serde_json::from_value(json!({"metadata": {"name": name}, "rules": rules}))
            .map_err(|e| e.to_string()),
    );
    let binding: RoleBinding = must(
        serde_json::from_value(json!({
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": user, "namespace": world.namespace()}]
        }))
        .map_err(|e| e.to_string()),
    );
    let post = PostParams::default();
    must(world.api::<Role>().create(&post, &role).await.map_err(|e| e.to_string()));
    must(world.api::<RoleBinding>().create(&post, &binding).await.map_err(|e| e.to_string()));
}
