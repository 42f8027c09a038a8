//! What makes the tables of cached objects differ from a cluster for some time: a cluster that goes back, that is never
//! reached or is very large, and a database without room. Afterwards both are the same, version by version.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kubesvc_core::{ELECT_CACHING_ANNOTATION, State, conditions};
use serde_json::{Value, json};

use crate::faults::proxy::{Proxy, ProxyMode};
use crate::world::{Agent, Cluster, Database, MAX_WAIT, Prepare, World, condition};
use kubesvc_testkit::controlplane::{ControlPlane, StartOptions};
use kubesvc_testkit::databases::{self, Kind};
use kubesvc_testkit::{must, wait::eventually};

/// Kind of the objects in these tests, as the table has it.
const KIND: &str = "configMap";
/// Longest delay before a transaction that failed is repeated.
const MAX_RETRY: Duration = Duration::from_secs(45);
/// Interval at which the leader compares the rows of accounts with their objects, and makes missing fences.
const ROW_COMPARISON_INTERVAL: Duration = Duration::from_secs(60);
/// Time within which an agent says that it never reached a cluster, and the condition follows.
const MAX_UNREAD: Duration = Duration::from_secs(180);

fn port(url: &str) -> u16 {
    must(url.rsplit(':').next().unwrap_or_default().parse().map_err(|_| format!("{url} has no port")))
}

fn object(name: &str, number: usize) -> ConfigMap {
    let object = json!({"metadata": {"name": name}, "data": {"number": number.to_string()}});
    must(serde_json::from_value(object).map_err(|e| e.to_string()))
}

/// The objects of a cluster in a namespace.
struct Objects(Api<ConfigMap>);

impl Objects {
    fn of(client: Client, namespace: &str) -> Self {
        Self(Api::namespaced(client, namespace))
    }

    async fn create(&self, names: &[&str]) {
        for name in names {
            must(self.0.create(&PostParams::default(), &object(name, 0)).await.map_err(|e| e.to_string()));
        }
    }

    async fn change(&self, name: &str, number: usize) {
        let patch = Patch::Merge(json!({"data": {"number": number.to_string()}}));
        must(self.0.patch(name, &PatchParams::default(), &patch).await.map_err(|e| e.to_string()));
    }

    async fn delete(&self, name: &str) {
        must(self.0.delete(name, &DeleteParams::default()).await.map_err(|e| e.to_string()));
    }

    /// Names and versions.
    async fn versions(&self) -> Result<BTreeMap<String, String>, String> {
        let listed = self.0.list(&ListParams::default()).await.map_err(|e| e.to_string())?;
        let version = |one: ConfigMap| {
            (one.metadata.name.unwrap_or_default(), one.metadata.resource_version.unwrap_or_default())
        };
        Ok(listed.items.into_iter().map(version).collect())
    }

    /// Waits until the rows of the namespace are these objects, version by version.
    async fn until_cached(&self, world: &World, what: &str, max_wait: Duration) {
        let namespace = self.0.namespace().unwrap_or_default().to_owned();
        eventually(what, max_wait, async || {
            let rows = async {
                let mut database = world.open_database().await?;
                database.cached_rows().await
            };
            let rows = rows.await.map_err(|e| e.to_string())?;
            let rows = rows.into_iter().filter(|row| row.kind == KIND && row.namespace == namespace);
            let rows: BTreeMap<_, _> = rows.map(|row| (row.name, row.resource_version)).collect();
            let wanted = self.versions().await?;
            if rows == wanted { Ok(()) } else { Err(format!("{rows:?}, and not {wanted:?}")) }
        })
        .await;
    }
}

fn prepare() -> Prepare {
    World::prepare().setting("kubesvc.cache.cacheKinds", json!([KIND]))
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_follow_a_cluster_that_was_restored_to_an_earlier_state() {
    cluster_is_restored(prepare()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a minute each: make faults"]
async fn rows_on_a_server_follow_a_cluster_that_was_restored_to_an_earlier_state() {
    for database in [Database::MariaDb, Database::Postgres] {
        cluster_is_restored(prepare().database(database)).await;
    }
}

async fn cluster_is_restored(prepare: Prepare) {
    let world = prepare.start().await;
    let mut options = StartOptions::without_audit();
    let token = options.add_user("restored", &["system:masters"]);
    let mut plane = must(ControlPlane::start_with(options).await);
    let _agent = world.agent("agent-1").start().await;
    let objects = Objects::of(plane.client().await, "default");
    objects.create(&["stays", "changes", "goes"]).await;
    must(plane.back_up().await);
    world.account("prod").zone("east").kubeconfig(&plane.kubeconfig_for_token(&token)).create().await;
    world.until("prod", State::Active).await;
    objects.until_cached(&world, "what was there", MAX_WAIT).await;
    objects.create(&["is-lost", "is-made-anew"]).await;
    objects.delete("goes").await;
    // So many that the cluster does not come as far again before the agent asks.
    for number in 1..400 {
        objects.change("changes", number).await;
    }
    objects.until_cached(&world, "what came later", MAX_WAIT).await;

    must(plane.restore().await);
    let objects = Objects::of(plane.client().await, "default");
    // The same versions once more, for other contents.
    objects.create(&["is-made-anew", "is-new"]).await;
    for number in 1000..1010 {
        objects.change("changes", number).await;
    }
    objects.until_cached(&world, "the earlier state, and what follows it", MAX_WAIT).await;
    for number in 1010..1080 {
        objects.change("changes", number).await;
    }
    objects.delete("stays").await;
    objects.until_cached(&world, "what came since", MAX_WAIT).await;
    assert_eq!(world.state("prod").await, Some(State::Active));
}

/// Takes the row of the account's fence away while objects change, until the agent has dropped its order.
async fn fence_is_lost(world: &World, agent: &Agent, objects: &Objects, statement: &str) {
    assert_eq!(world.execute(statement).await, 1, "there is a fence");
    let changes = AtomicUsize::new(1);
    eventually("an agent that streams no more", MAX_WAIT, async || {
        objects.change("changes", changes.fetch_add(1, Ordering::Relaxed)).await;
        let log = agent.log_text();
        if log.contains("caching is revoked") { Ok(()) } else { Err(log) }
    })
    .await;
}

/// Creates an account and waits until its objects are rows.
async fn cached_account(world: &World) -> (Cluster, Agent, Objects) {
    let cluster = world.cluster("spinnaker").await;
    let agent = world.agent("agent-1").start().await;
    let objects = Objects::of(world.api::<ConfigMap>().into_client(), world.namespace());
    objects.create(&["stays", "changes", "goes"]).await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("prod", State::Active).await;
    objects.until_cached(world, "what was there", MAX_WAIT).await;
    (cluster, agent, objects)
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_follow_again_when_the_row_of_the_fence_was_away_for_a_moment() {
    let world = prepare().start().await;
    let (_cluster, agent, objects) = cached_account(&world).await;
    let away = "UPDATE kubesvc_caching SET account_uid = 'elsewhere' WHERE account = 'prod'";
    fence_is_lost(&world, &agent, &objects, away).await;
    objects.delete("goes").await;
    // The leader may have made it anew by now.
    world
        .execute(
            "UPDATE kubesvc_caching SET account_uid = (SELECT uid FROM kubesvc_accounts WHERE name = 'prod') \
             WHERE account_uid = 'elsewhere'",
        )
        .await;
    objects.until_cached(&world, "what changed meanwhile", MAX_WAIT).await;
    assert_eq!(world.state("prod").await, Some(State::Active));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a minute: the leader makes the row anew with its next comparison"]
async fn rows_follow_again_when_the_row_of_the_fence_was_deleted() {
    let world = prepare().start().await;
    let (_cluster, agent, objects) = cached_account(&world).await;
    let deleted = "DELETE FROM kubesvc_caching WHERE account = 'prod'";
    fence_is_lost(&world, &agent, &objects, deleted).await;
    objects.delete("goes").await;
    objects.until_cached(&world, "what changed meanwhile", ROW_COMPARISON_INTERVAL + MAX_WAIT).await;
    assert_eq!(world.state("prod").await, Some(State::Active));
}

/// A kind of a group, and one object of it.
async fn add_widget(world: &World, group: &str) {
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("widgets.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced", "names": {"kind": "Widget", "plural": "widgets"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}}}],
        },
    });
    world.apply(&definition.to_string()).await;
    let name = format!("crd/widgets.{group}");
    must(world.kubectl(&["wait", "--for=condition=Established", &name, "--timeout=30s"]).await.ok());
    let widget = json!({"apiVersion": format!("{group}/v1"), "kind": "Widget", "metadata": {"name": "one"}});
    let widget = widget.to_string();
    eventually("a widget", MAX_WAIT, async || {
        world.kubectl_with_input(&["apply", "-f", "-"], &widget).await.ok()
    })
    .await;
}

async fn until_widget(world: &World, group: &str) {
    let kind = format!("Widget.{group}");
    eventually("the widget's row", MAX_WAIT, async || {
        let rows = async { world.open_database().await?.cached_rows().await };
        let rows = rows.await.map_err(|e| e.to_string())?;
        if rows.iter().any(|row| row.kind == kind) { Ok(()) } else { Err(format!("{rows:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_an_aggregated_api_stay_while_its_server_is_down() {
    let [down, up] = ["down.example.com", "up.example.com"];
    let kinds = json!([format!("Widget.{down}"), format!("Widget.{up}")]);
    let prepare = World::prepare().own_control_plane().setting("kubesvc.cache.cacheKinds", kinds);
    let world = prepare.start().await;
    let cluster = world.cluster_with_rights("spinnaker", &["*"]).await;
    let _agent = world.agent("agent-1").start().await;
    add_widget(&world, down).await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    until_widget(&world, down).await;

    // From now on another API server has the group, and is not there.
    let elsewhere = json!({
        "metadata": {"labels": {"kube-aggregator.kubernetes.io/automanaged": null}},
        "spec": {"service": {"namespace": "default", "name": "nobody"}, "insecureSkipTLSVerify": true},
    });
    let service = format!("apiservice/v1.{down}");
    let patch = elsewhere.to_string();
    must(world.kubectl(&["patch", &service, "--type=merge", "-p", &patch]).await.ok());
    let path = format!("/apis/{down}/v1");
    eventually("a group that nobody answers for", MAX_WAIT, async || {
        let listed = world.kubectl(&["get", "--raw", &path]).await;
        if listed.code == Some(0) { Err(listed.stdout) } else { Ok(()) }
    })
    .await;
    // Once there is a row of what came later, the agent has seen what is served now.
    add_widget(&world, up).await;
    until_widget(&world, up).await;
    until_widget(&world, down).await;
    let mut database = must(world.open_database().await.map_err(|e| e.to_string()));
    let removed = "SELECT count(*) FROM kubesvc_resourceversion WHERE state = 'REMOVED'";
    assert_eq!(must(database.number(removed).await.map_err(|e| e.to_string())), 0);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "two minutes: an agent says after one that it never reached the cluster"]
async fn account_whose_agent_never_reached_the_cluster_says_so_until_it_does() {
    cluster_is_not_read(ProxyMode::Cut, "all kinds: the cluster cannot be reached").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "some minutes: an agent says after one that the cluster does not answer, which it waits for longer"]
async fn account_whose_cluster_hangs_says_so_until_it_answers() {
    cluster_is_not_read(ProxyMode::Held, "all kinds: the cluster ").await;
}

/// The reason begins with `why`.
async fn cluster_is_not_read(mode: ProxyMode, why: &str) {
    let world = World::prepare().setting("kubesvc.cache.cacheKinds", json!([KIND])).start().await;
    let cluster = world.cluster("far").await;
    let _agent = world.agent("agent-1").start().await;
    let proxy = Proxy::to(port(cluster.server())).await;
    let kubeconfig = cluster.kubeconfig_at(&format!("https://127.0.0.1:{}", proxy.port()));
    world.account("prod").zone("east").kubeconfig(&kubeconfig).create().await;
    world.until("prod", State::Active).await;
    let objects = Objects::of(world.api::<ConfigMap>().into_client(), world.namespace());
    objects.create(&["before"]).await;
    objects.until_cached(&world, "what was there", MAX_WAIT).await;

    // Under a new epoch, the agent begins anew, and does not reach the cluster.
    proxy.set(mode);
    world.annotate("prod", ELECT_CACHING_ANNOTATION, "now").await;
    let caching = async |wanted: Option<&str>| {
        eventually(&format!("{wanted:?} is left out"), MAX_UNREAD, async || {
            let account = world.try_object("prod").await?.ok_or("it is gone")?;
            let caching = condition(&account, conditions::CACHING);
            let told = caching.as_ref().filter(|one| one.reason == conditions::LEFT_OUT);
            let is_so = caching.is_some()
                && match wanted {
                    Some(wanted) => told.is_some_and(|one| one.message.starts_with(wanted)),
                    None => told.is_none(),
                };
            if is_so { Ok(()) } else { Err(format!("{caching:?}")) }
        })
        .await;
    };
    caching(Some(why)).await;
    objects.create(&["meanwhile"]).await;
    proxy.set(ProxyMode::Open);
    objects.until_cached(&world, "what came meanwhile", MAX_WAIT).await;
    caching(None).await;
    assert_eq!(world.state("prod").await, Some(State::Active));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "some minutes: ten thousand namespaces are made one by one"]
async fn ten_thousand_namespaces_are_rows_and_fill_the_list_of_the_account() {
    const NAMESPACES: usize = 10_000;
    /// Names in the list of an account, at most.
    const MAX_NAMES: usize = 10_000;
    let world = World::prepare().setting("kubesvc.cache.cacheKinds", json!(["namespace"])).start().await;
    let mut options = StartOptions::without_audit();
    let token = options.add_user("large", &["system:masters"]);
    let plane = must(ControlPlane::reused(options).await);
    let api: Api<Namespace> = Api::all(plane.client().await);
    let made = stream::iter(0..NAMESPACES).map(|number| {
        let namespace = json!({"metadata": {"name": format!("team-{number:05}")}});
        let api = api.clone();
        async move {
            let namespace: Namespace = serde_json::from_value(namespace).map_err(|e| e.to_string())?;
            api.create(&PostParams::default(), &namespace).await.map(drop).map_err(|e| e.to_string())
        }
    });
    let made: Vec<Result<(), String>> = made.buffer_unordered(32).collect().await;
    made.into_iter().for_each(must);
    let _agent = world.agent("agent-1").start().await;
    world.account("prod").zone("east").kubeconfig(&plane.kubeconfig_for_token(&token)).create().await;
    world.until("prod", State::Active).await;
    let all = must(api.list_metadata(&ListParams::default()).await.map_err(|e| e.to_string()));
    let wanted = all.items.len();
    let listed = |row: Option<String>| {
        let names: Value = serde_json::from_str(&row.unwrap_or_default()).unwrap_or_default();
        names.as_array().map(Vec::len).unwrap_or_default()
    };
    let settled = async |what: &str, wanted: usize| {
        eventually(what, MAX_WAIT, async || {
            let rows = world.try_cached_objects().await?.len();
            let names = listed(world.try_row("prod").await?.and_then(|row| row.namespaces));
            if rows == wanted && names == wanted.min(MAX_NAMES) {
                Ok(())
            } else {
                Err(format!("{rows} rows, {names} names"))
            }
        })
        .await;
    };
    settled("all are rows and in the list", wanted).await;
    let one = json!({"metadata": {"name": "one-more"}});
    let one: Namespace = must(serde_json::from_value(one).map_err(|e| e.to_string()));
    must(api.create(&PostParams::default(), &one).await.map_err(|e| e.to_string()));
    settled("one more", wanted + 1).await;
}

/// A server without room for another object: nothing is acknowledged or lost, and the account stays ACTIVE.
async fn is_full_and_gets_room(kind: Kind) {
    // Together 4 MB: more than a server that is full still releases by itself (an extent of 1 MiB or two), a fraction of
    // the room that there is then.
    const OBJECTS: usize = 60;
    let server = must(databases::own_small(kind).await);
    let url = server.fresh_database().await;
    let database = url.rsplit('/').next().expect("it has a name");
    let world =
        World::prepare().database_url(&url).setting("kubesvc.cache.cacheKinds", json!([KIND])).start().await;
    let cluster = world.cluster("spinnaker").await;
    let _agent = world.agent("agent-1").start().await;
    let filled = must(server.fill(database, "kubesvc_cache").await);
    let objects = Objects::of(world.api::<ConfigMap>().into_client(), world.namespace());
    let names: Vec<_> = (0..OBJECTS).map(|number| format!("one-{number}")).collect();
    let data = json!({"data": {"text": "t".repeat(64 * 1024)}});
    for name in &names {
        objects.create(&[name.as_str()]).await;
        let patched = objects.0.patch(name, &PatchParams::default(), &Patch::Merge(&data)).await;
        must(patched.map_err(|e| e.to_string()));
    }
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("prod", State::Active).await;
    let why = crate::faults::until_database(&world, true).await;
    assert!(why.contains("full: make room"), "{why}");
    objects.change("one-1", 7).await;
    objects.delete("one-2").await;

    must(server.make_room(database, filled).await);
    objects.until_cached(&world, "all objects", MAX_RETRY + MAX_WAIT).await;
    crate::faults::until_database(&world, false).await;
    assert_eq!(world.state("prod").await, Some(State::Active));
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_catch_up_when_a_full_mariadb_has_room() {
    is_full_and_gets_room(Kind::MariaDb).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_catch_up_when_a_full_postgresql_has_room() {
    is_full_and_gets_room(Kind::PostgreSql).await;
}
