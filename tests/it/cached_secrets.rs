//! What is secret in a cluster reaches no row, frame, log, metric or object of kubesvc, nor the operator's memory, though
//! kubesvc reads the objects that have it: data of Secrets, what `kubectl apply` repeats of it, and defaults in the schemas
//! of CRDs. Data of Secrets do not even reach the agent's memory.
//!
//! | file | searches |
//! |---|---|
//! | `frames.rs` | what passed between agent and hub |
//! | `memory.rs` | the memory of a process |

mod frames;
mod memory;

use std::sync::atomic::{AtomicU32, Ordering};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kubesvc_core::State;
use serde_json::{Value, json};

use self::frames::{Passed, is_in};
use crate::faults::proxy::Proxy;
use crate::world::{Agent, CachedRow, MAX_WAIT, World};
use kubesvc_testkit::{must, wait::eventually};

/// A text in everything that is secret but data of Secrets, plain and in Base64.
const CANARIES: [&str; 2] = ["canary-that-nobody-may-see", "Y2FuYXJ5LXRoYXQtbm9ib2R5LW1heS1zZWU"];
/// The same in data of Secrets.
const DATA_CANARIES: [&str; 2] = ["canary-in-data-of-a-secret", "Y2FuYXJ5LWluLWRhdGEtb2YtYS1zZWNyZX"];
/// Texts in the data of a config map, which is cached: a search that does not find them finds nothing. The second one is in
/// a body that is compressed.
const CONTROLS: [&str; 2] = ["short-text-that-is-cached", "long-text-that-is-cached"];
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Length of a text that makes a body large enough to be compressed.
const PADDING: usize = 4096;
/// Annotation that says how often an object was changed.
const ROUND: &str = "caching.spinnaker.io/round";

fn canaries() -> impl Iterator<Item = &'static str> {
    CANARIES.into_iter().chain(DATA_CANARIES)
}

/// A CRD with a field named as the data of a Secret, and a secret as its default.
fn definition(group: &str) -> CustomResourceDefinition {
    let data = json!({"type": "string", "default": CANARIES[0]});
    let schema = json!({"type": "object", "properties": {"data": data}});
    let version =
        json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}});
    let definition = json!({
        "metadata": {"name": format!("vaults.{group}")},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": "vaults", "singular": "vault", "kind": "Vault", "listKind": "VaultList"},
            "versions": [version],
        },
    });
    serde_json::from_value(definition).expect("a fixed object")
}

/// Bodies are compressed from the second round on.
fn padding(round: u32) -> String {
    if round == 0 { String::new() } else { "padding ".repeat(PADDING / 8) }
}

fn secret(round: u32) -> Value {
    let mut metadata = json!({"name": "secret", "annotations": {
        LAST_APPLIED: format!("{{\"data\":{{\"p\":\"{}\"}}}}", CANARIES[1]),
        // Of Secrets, only annotations under a few prefixes are kept, and short ones.
        "kapp.k14s.io/original": format!("{{\"data\":{{\"p\":\"{}\"}}}}", CANARIES[1]),
        ROUND: round.to_string(),
    }});
    for (at, part) in padding(round).as_bytes().chunks(1024).enumerate() {
        let text = String::from_utf8_lossy(part);
        metadata["annotations"][format!("meta.helm.sh/padding-{at}")] = text.into();
    }
    json!({
        "metadata": metadata,
        "stringData": {"password": DATA_CANARIES[0], "round": round.to_string()},
    })
}

fn config_map(round: u32) -> Value {
    json!({
        "metadata": {"name": "settings", "annotations": {
            LAST_APPLIED: format!("{{\"data\":{{\"p\":\"{}\"}}}}", CANARIES[0]), ROUND: round.to_string(),
            "padding": padding(round),
        }},
        "data": {"control": format!("{}-{round}", CONTROLS[round.min(1) as usize]), "round": round.to_string()},
    })
}

/// Waits until the rows of these three objects are as they should be.
async fn until_cached(world: &World, holds: impl Fn(&[CachedRow]) -> bool) -> Vec<CachedRow> {
    let definition = format!("vaults.{}.example.com", world.namespace());
    eventually("the rows of the objects with secrets", MAX_WAIT, async || {
        let read = async { world.open_database().await?.cached_rows().await };
        let mut rows = read.await.map_err(|error| error.to_string())?;
        rows.retain(|row| row.namespace == world.namespace() || row.name == definition);
        rows.retain(|row| [definition.as_str(), "secret", "settings"].contains(&row.name.as_str()));
        if holds(&rows) { Ok(rows) } else { Err(format!("{rows:?}")) }
    })
    .await
}

/// Fails if a secret is in what anyone can see, in what passed between agent and hub, or in memory.
async fn nothing_leaks(world: &World, agent: &Agent, hub: &Proxy, rows: &[CachedRow]) {
    let mut seen = vec![("a row".to_owned(), format!("{rows:?}"))];
    seen.extend(world.all_logs());
    seen.push(("the operator's metrics".to_owned(), world.get("/metrics").await.text));
    for path in ["/metrics", "/accounts", "/health"] {
        seen.push((format!("the agent's {path}"), agent.get(path).await.text));
    }
    let objects = must(world.kubectl(&["get", "ksa,ksg,events", "-o", "yaml"]).await.ok());
    seen.push(("an object of kubesvc".to_owned(), objects));
    for (place, text) in seen {
        let place_in_text = canaries().find_map(|canary| text.find(canary));
        assert!(
            place_in_text.is_none(),
            "{place}: {:?}",
            place_in_text.map(|at| text[at.saturating_sub(200)..].chars().take(400).collect::<String>())
        );
    }
    let passed = Passed::read(hub.recorded());
    let in_frames: Vec<_> = canaries().filter(|canary| is_in(canary, passed.all())).collect();
    assert!(in_frames.is_empty(), "between agent and hub: {in_frames:?}");
    let all: Vec<_> = canaries().collect();
    let found = must(memory::found_in(world.operator().id(), &all));
    assert!(found.is_empty(), "the operator's memory: {found:?}");
    let found = must(memory::found_in(agent.process_id(), &DATA_CANARIES));
    assert!(found.is_empty(), "the agent's memory: {found:?}");
}

/// Fails if the searches do not find what is cached.
async fn controls_are_found(world: &World, agent: &Agent, hub: &Proxy, maps: &Api<ConfigMap>) {
    let passed = Passed::read(hub.recorded());
    let as_bytes = |all: &'_ [Vec<u8>], text| is_in(text, all.iter().map(Vec::as_slice));
    assert!(as_bytes(&passed.raw, CONTROLS[0]), "no body is found between agent and hub");
    assert!(as_bytes(&passed.decompressed, CONTROLS[1]), "no compressed body is found between agent and hub");
    // Memory that is free is used again: a text may be found only soon after it passed.
    let round = AtomicU32::new(2);
    for (program, process) in [("operator", world.operator().id()), ("agent", agent.process_id())] {
        eventually(&format!("a text that is cached, in the memory of the {program}"), MAX_WAIT, async || {
            let patch = Patch::Merge(config_map(round.fetch_add(1, Ordering::Relaxed)));
            let patched = maps.patch("settings", &PatchParams::default(), &patch).await;
            patched.map_err(|error| error.to_string())?;
            let found = memory::found_in(process, &[CONTROLS[1]])?;
            if found.is_empty() { Err("it is not found".to_owned()) } else { Ok(()) }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_of_a_cluster_reach_no_row_frame_log_metric_object_or_memory() {
    let kinds = json!(["secret", "configMap", "customResourceDefinition"]);
    let world = World::prepare().setting("kubesvc.cache.cacheKinds", kinds).start().await;
    let hub = Proxy::recording(world.operator().hub_port()).await;
    let agent = world.agent("agent-1").hub_port(hub.port()).start().await;
    let error = |error: kube::Error| error.to_string();
    let (secrets, maps) = (world.api::<Secret>(), world.api::<ConfigMap>());
    let definitions: Api<CustomResourceDefinition> = Api::all(world.control_plane().client().await);
    let post = PostParams::default();
    let made: Secret = serde_json::from_value(secret(0)).expect("a fixed object");
    must(secrets.create(&post, &made).await.map_err(error));
    let map: ConfigMap = serde_json::from_value(config_map(0)).expect("a fixed object");
    must(maps.create(&post, &map).await.map_err(error));
    let group = format!("{}.example.com", world.namespace());
    must(definitions.create(&post, &definition(&group)).await.map_err(error));
    let cluster = world.cluster("spinnaker").await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("prod", State::Active).await;

    // From the list.
    let rows = until_cached(&world, |rows| rows.len() == 3).await;
    nothing_leaks(&world, &agent, &hub, &rows).await;

    // From the watch.
    let params = PatchParams::default();
    must(secrets.patch("secret", &params, &Patch::Merge(secret(1))).await.map_err(error));
    must(maps.patch("settings", &params, &Patch::Merge(config_map(1))).await.map_err(error));
    let has_changed = |row: &CachedRow| {
        let body: Value =
            row.body.as_deref().and_then(|body| serde_json::from_str(body).ok()).unwrap_or_default();
        body["metadata"]["annotations"][ROUND] == "1"
    };
    let rows = until_cached(&world, |rows| rows.iter().filter(|row| has_changed(row)).count() == 2).await;
    nothing_leaks(&world, &agent, &hub, &rows).await;

    controls_are_found(&world, &agent, &hub, &maps).await;

    // And at their end.
    must(secrets.delete("secret", &DeleteParams::default()).await.map(drop).map_err(error));
    must(
        definitions
            .delete(&format!("vaults.{group}"), &DeleteParams::default())
            .await
            .map(drop)
            .map_err(error),
    );
    let rows = until_cached(&world, |rows| rows.len() == 1).await;
    nothing_leaks(&world, &agent, &hub, &rows).await;
}
