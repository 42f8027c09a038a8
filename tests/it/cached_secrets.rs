//! What is secret in a cluster reaches no row, log, metric or object of kubesvc, though kubesvc reads the objects that
//! have it: data of Secrets, what `kubectl apply` repeats of it, and defaults in the schemas of CRDs.

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kubesvc_core::State;
use serde_json::{Value, json};

use crate::world::{Agent, CachedRow, MAX_WAIT, World};
use kubesvc_testkit::{must, wait::eventually};

/// A text in everything that is secret, plain and in Base64.
const CANARIES: [&str; 2] = ["canary-that-nobody-may-see", "Y2FuYXJ5LXRoYXQtbm9ib2R5LW1heS1zZWU"];
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

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

fn secret(round: u32) -> Value {
    json!({
        "metadata": {"name": "secret", "annotations": {
            LAST_APPLIED: format!("{{\"data\":{{\"p\":\"{}\"}}}}", CANARIES[1]), "round": round.to_string(),
        }},
        "stringData": {"password": CANARIES[0], "round": round.to_string()},
    })
}

fn config_map(round: u32) -> Value {
    json!({
        "metadata": {"name": "settings", "annotations": {
            LAST_APPLIED: format!("{{\"data\":{{\"p\":\"{}\"}}}}", CANARIES[0]), "round": round.to_string(),
        }},
        "data": {"round": round.to_string()},
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

/// Fails if a secret is in what anyone can see.
async fn nothing_leaks(world: &World, agent: &Agent, rows: &[CachedRow]) {
    let mut seen = vec![("a row".to_owned(), format!("{rows:?}"))];
    seen.extend(world.all_logs());
    seen.push(("the operator's metrics".to_owned(), world.get("/metrics").await.text));
    for path in ["/metrics", "/accounts", "/health"] {
        seen.push((format!("the agent's {path}"), agent.get(path).await.text));
    }
    let objects = must(world.kubectl(&["get", "ksa,ksg,events", "-o", "yaml"]).await.ok());
    seen.push(("an object of kubesvc".to_owned(), objects));
    for (place, text) in seen {
        let place_in_text = CANARIES.iter().find_map(|canary| text.find(canary));
        assert!(
            place_in_text.is_none(),
            "{place}: {:?}",
            place_in_text.map(|at| text[at.saturating_sub(200)..].chars().take(400).collect::<String>())
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_of_a_cluster_reach_no_row_log_metric_or_object() {
    let kinds = json!(["secret", "configMap", "customResourceDefinition"]);
    let world = World::prepare().setting("kubesvc.cache.cacheKinds", kinds).start().await;
    let agent = world.agent("agent-1").start().await;
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
    nothing_leaks(&world, &agent, &rows).await;

    // From the watch.
    let params = PatchParams::default();
    must(secrets.patch("secret", &params, &Patch::Merge(secret(1))).await.map_err(error));
    must(maps.patch("settings", &params, &Patch::Merge(config_map(1))).await.map_err(error));
    let has_changed = |row: &CachedRow| {
        let body: Value =
            row.body.as_deref().and_then(|body| serde_json::from_str(body).ok()).unwrap_or_default();
        body["metadata"]["annotations"]["round"] == "1"
    };
    let rows = until_cached(&world, |rows| rows.iter().filter(|row| has_changed(row)).count() == 2).await;
    nothing_leaks(&world, &agent, &rows).await;

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
    nothing_leaks(&world, &agent, &rows).await;
}
