//! Objects that a cluster may have and hardly ever has: the longest names, names that differ in case alone, texts that
//! databases take for something else, bodies as large as etcd takes, and hundreds of kinds.

use std::collections::BTreeMap;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::rbac::v1::Role;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{PostParams, Resource};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use super::load::{ACCOUNT, create_account};
use crate::stories::on_each_database;
use crate::world::{Database, MAX_WAIT, World};
use kubesvc_testkit::{must, wait::eventually};

on_each_database! {
    odd_objects_are_rows,
}

/// Maximum length of a name.
const LONGEST_NAME: usize = 253;
/// Size of a large body, in bytes: etcd takes 1.5 MiB.
const LARGE: usize = 1_000_000;
/// Number of kinds of a cluster with many operators.
const KINDS: usize = 300;
/// Number of CRDs that are created concurrently.
const AT_ONCE: usize = 8;

/// Texts that some database, JSON reader or log takes for something else.
const TEXTS: [&str; 7] = [
    "\u{0}",
    "\u{1f600}\u{10ffff}",
    "'; DROP TABLE kubesvc_cache; --",
    "\\u0000 \\",
    "\"}],{\"",
    "\r\n\t\u{7f}\u{202e}",
    "$1 %s {} ?",
];

fn config_maps() -> Vec<ConfigMap> {
    let texts: BTreeMap<String, String> = TEXTS
        .iter()
        .enumerate()
        .map(|(number, text)| (format!("text-{number}"), (*text).to_owned()))
        .collect();
    let named = |name: &str, data: &BTreeMap<String, String>| {
        let object = json!({"metadata": {"name": name, "annotations": {"text": TEXTS[1]}}, "data": data});
        serde_json::from_value(object).expect("a fixed form")
    };
    let large = BTreeMap::from([("large".to_owned(), "l\u{e9}\n".repeat(LARGE / 4))]);
    vec![
        named(&"n".repeat(LONGEST_NAME), &texts),
        named("texts", &texts),
        named("large", &large),
        named("empty", &BTreeMap::new()),
    ]
}

/// Names of RBAC may have capitals and colons.
fn roles() -> Vec<Role> {
    let names = ["case", "CASE", "Case", "a:b:c", "a;b;c", "system:with spaces and ~"];
    let role = |name: &str| serde_json::from_value(json!({"metadata": {"name": name}, "rules": []}));
    names.into_iter().map(|name| role(name).expect("a fixed form")).collect()
}

/// Creates objects; returns kind, name, uid and version of each, and its content.
async fn create<K>(
    world: &World,
    cached_kind: &str,
    objects: Vec<K>,
) -> Vec<(String, String, String, String, Value)>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + serde::Serialize
        + serde::de::DeserializeOwned
        + std::fmt::Debug,
{
    let api = world.api::<K>();
    let mut created = Vec::new();
    for object in objects {
        let object =
            must(api.create(&PostParams::default(), &object).await.map_err(|error| error.to_string()));
        let (uid, version) =
            (object.uid().unwrap_or_default(), object.resource_version().unwrap_or_default());
        let content = serde_json::to_value(&object).expect("it was JSON");
        created.push((cached_kind.to_owned(), object.name_any(), uid, version, content["data"].clone()));
    }
    created.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
    created
}

async fn odd_objects_are_rows(database: Database) {
    let kinds = json!(["configMap", "role"]);
    let world = World::prepare().database(database).setting("kubesvc.cache.cacheKinds", kinds).start().await;
    let _agent = world.agent("agent-1").start().await;
    let mut expected = create(&world, "configMap", config_maps()).await;
    create_account(&world, None).await;
    // Some are listed, the others watched.
    expected.extend(create(&world, "role", roles()).await);
    eventually("rows of odd objects", MAX_WAIT, async || {
        let read = async { world.open_database().await?.cached_rows().await };
        let mut rows = read.await.map_err(|error| error.to_string())?;
        rows.retain(|row| row.namespace == world.namespace() && row.account == ACCOUNT);
        let rows: BTreeMap<_, _> =
            rows.into_iter().map(|row| ((row.kind.clone(), row.name.clone()), row)).collect();
        for (kind, name, uid, version, content) in &expected {
            let row =
                rows.get(&(kind.clone(), name.clone())).ok_or_else(|| format!("no row of {kind} {name}"))?;
            let body: Value =
                row.body.as_deref().and_then(|body| serde_json::from_str(body).ok()).unwrap_or_default();
            if (row.uid.as_ref(), &row.resource_version, &body["data"]) != (Some(uid), version, content) {
                return Err(format!("the row of {kind} {name} is {row:.300?}"));
            }
        }
        Ok(())
    })
    .await;
    let refused = must(world.operator().metric("kubesvc_cache_refused_rows_total").await);
    assert_eq!(refused, 0);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a minute: make faults"]
async fn three_hundred_kinds_are_watched() {
    let prepare = World::prepare().own_control_plane().setting("kubesvc.cache.cacheKinds", Value::Null);
    let world = prepare.setting("kubesvc.cache.cacheAll", true).start().await;
    let definitions: Api<CustomResourceDefinition> = Api::all(world.control_plane().client().await);
    let made = futures::stream::iter(0..KINDS).map(async |number| {
        let (kind, plural) = (format!("Kind{number}"), format!("kinds{number}"));
        let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let version =
            json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}});
        let definition = json!({
            "metadata": {"name": format!("{plural}.many.example.com")},
            "spec": {
                "group": "many.example.com",
                "scope": "Namespaced",
                "names": {"plural": plural, "kind": kind},
                "versions": [version],
            },
        });
        let definition = serde_json::from_value(definition).expect("a fixed form");
        must(
            definitions.create(&PostParams::default(), &definition).await.map_err(|error| error.to_string()),
        );
    });
    made.buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
    let _agent = world.agent("agent-1").start().await;
    create_account(&world, None).await;
    eventually("all kinds watched", 3 * MAX_WAIT, async || {
        let read = async { world.open_database().await?.scopes().await };
        let scopes = read.await.map_err(|error| error.to_string())?;
        let synced =
            scopes.iter().filter(|scope| scope.1.contains("many.example.com") && scope.2 == "SYNCED");
        let count = synced.count();
        if count == KINDS { Ok(()) } else { Err(format!("{count} of {KINDS}, and {} scopes", scopes.len())) }
    })
    .await;
}
