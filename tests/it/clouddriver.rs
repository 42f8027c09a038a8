//! What stands in for Clouddriver answers as Clouddriver did: its recorded calls, on each database, and faults.

use std::time::Duration;

use kubesvc_testkit::clouddriver::{Clouddriver, Settings};
use kubesvc_testkit::databases::{Kind, shared};
use kubesvc_testkit::wait::eventually;
use kubesvc_testkit::{controlplane, must};
use serde_json::{Value, json};

use crate::world::{Answer, Call, send};

const CREDENTIALS: &str = include_str!("../clouddriver/transcripts/credentials.jsonl");
const OPERATIONS: &str = include_str!("../clouddriver/transcripts/operations.jsonl");
const DATABASES: [Kind; 2] = [Kind::MariaDb, Kind::PostgreSql];
const WAIT: Duration = Duration::from_secs(20);

const OTHER_OPERATION: &str = "of the operations, only deployManifest and deleteManifest are there";
const VERSIONED: &str = "names with versions need Clouddriver's cache, which is not there";
const CACHE: &str = "answered from Clouddriver's cache, which is not there";
const LIVE: &str =
    "manifests are read by kubectl and interpreted by handlers of Clouddriver that are not published";

/// Recorded calls that are not answered here, and why.
const NOT_REPRODUCED: [(&str, &str); 34] = [
    ("deployManifest ConfigMap + Deployment", VERSIONED),
    ("GET /manifests/ops/demo/deployment%20web", LIVE),
    ("GET /manifests/ops/_/namespace%20demo", LIVE),
    ("GET /manifests/ops/demo/deployment%20nosuch", LIVE),
    ("scaleManifest", OTHER_OPERATION),
    ("patchManifest strategic", OTHER_OPERATION),
    ("patchManifest json", OTHER_OPERATION),
    ("patchManifest merge", OTHER_OPERATION),
    ("undoRolloutManifest", OTHER_OPERATION),
    ("rollingRestartManifest", OTHER_OPERATION),
    ("pauseRolloutManifest", OTHER_OPERATION),
    ("resumeRolloutManifest", OTHER_OPERATION),
    ("runJob", OTHER_OPERATION),
    ("deployManifest ReplicaSet behind the Service", VERSIONED),
    ("deployManifest next version of the ReplicaSet", VERSIONED),
    ("disableManifest", OTHER_OPERATION),
    ("enableManifest", OTHER_OPERATION),
    ("cleanupArtifacts", OTHER_OPERATION),
    ("GET /applications", CACHE),
    ("GET /applications/shop", CACHE),
    ("GET /applications/shop/serverGroupManagers", CACHE),
    ("GET /applications/shop/serverGroups", CACHE),
    ("GET /applications/shop/clusters", CACHE),
    ("GET /applications/shop/clusters/ops", CACHE),
    ("GET /applications/shop/clusters/ops/deployment%20web/kubernetes", CACHE),
    ("GET /applications/shop/loadBalancers", CACHE),
    ("GET /securityGroups", CACHE),
    ("GET /applications/shop/rawResources", CACHE),
    ("GET /search?q=web&type=serverGroups&pageSize=10", CACHE),
    ("GET /cache/introspection", CACHE),
    ("GET /manifests/ops/demo/replicaSet/cluster/shop/deployment%20web/dynamic/newest", CACHE),
    ("GET /manifests/ops/demo/replicaSet/cluster/shop/deployment%20web", CACHE),
    ("GET /instances/ops/demo/pod%20job-sncdz-8tzql", CACHE),
    ("POST /cache/kubernetes/manifest", CACHE),
];

/// The account of its YAML file in the recorded calls.
fn recorded_file() -> String {
    "kubernetes: {accounts: [{name: yaml-one, namespaces: [default]}]}".to_owned()
}

/// Accounts are loaded only when a test says so: no answer depends on when a poll is.
async fn without_poller(kind: Kind, accounts: String) -> Clouddriver {
    let database = shared(kind).await.fresh_database().await;
    let settings = Settings { poller: false, accounts, ..Settings::default() };
    must(Clouddriver::start(&database, settings).await)
}

async fn call(clouddriver: &Clouddriver, call: Call) -> Answer {
    must(send(clouddriver.port(), call).await)
}

async fn load(clouddriver: &Clouddriver) {
    assert_eq!(call(clouddriver, Call::new("POST", "/test/load")).await.status, 200);
}

fn entries(transcript: &str) -> impl Iterator<Item = Value> {
    transcript.lines().map(|line| must(serde_json::from_str(line).map_err(|e| format!("{line}: {e}"))))
}

fn request(entry: &Value) -> Call {
    let (method, path) = entry["call"].as_str().and_then(|call| call.split_once(' ')).expect("a call");
    let request = Call::new(method, path).header("X-SPINNAKER-USER", "ann");
    match (&entry["body"], &entry["plainBody"]) {
        (Value::String(body), _) => request.header("content-type", "application/json").bytes(body.as_str()),
        (Value::Null, Value::String(body)) => {
            request.header("content-type", "application/x-www-form-urlencoded").bytes(body.as_str())
        }
        (Value::Null, _) => request,
        (body, _) => request.json(body),
    }
}

/// Whether `actual` has everything of the recorded `expected`; times differ, and lists of accounts have no order.
fn has(actual: &Value, expected: &Value) -> bool {
    match (actual, expected) {
        (Value::Object(actual), Value::Object(expected)) => expected
            .iter()
            .all(|(field, expected)| actual.get(field).is_some_and(|actual| has(actual, expected))),
        (Value::Array(actual), Value::Array(expected)) => {
            expected.iter().all(|expected| actual.iter().any(|actual| has(actual, expected)))
        }
        _ => actual == expected,
    }
}

fn check(entry: &Value, answer: &Answer) {
    let what = &entry["call"];
    assert_eq!(Some(u64::from(answer.status)), entry["status"].as_u64(), "{what}: {answer}");
    if let Some(begin) = entry.get("begins") {
        assert!(has(&answer.json, begin), "{what}: {answer}\nis not {begin}");
        return;
    }
    match entry.get("answer") {
        None => assert_eq!(answer.text, "", "{what}"),
        Some(expected) => {
            let mut actual = answer.json.clone();
            if let Some(fields) = actual.as_object_mut() {
                fields.remove("timestamp");
            }
            assert!(has(&actual, expected) && has(expected, &actual), "{what}: {actual}\nis not {expected}");
        }
    }
}

/// jOOQ's message has the database's own words.
fn in_words_of(kind: Kind, mut entry: Value) -> Value {
    if kind == Kind::PostgreSql
        && entry["status"] == 500
        && entry["answer"]["message"].to_string().contains("jOOQ")
    {
        let answer = entry["answer"].as_object_mut().expect("an object");
        answer.remove("message");
        entry["begins"] = entry["answer"].take();
    }
    entry
}

async fn replay_credentials(kind: Kind) {
    let clouddriver = without_poller(kind, recorded_file()).await;
    for entry in entries(CREDENTIALS) {
        if entry["loads"] == true {
            load(&clouddriver).await;
        }
        let answer = call(&clouddriver, request(&entry)).await;
        check(&in_words_of(kind, entry), &answer);
    }
}

#[tokio::test]
async fn recorded_calls_of_credentials_are_answered_alike_on_mariadb() {
    replay_credentials(Kind::MariaDb).await;
}

#[tokio::test]
async fn recorded_calls_of_credentials_are_answered_alike_on_postgresql() {
    replay_credentials(Kind::PostgreSql).await;
}

#[tokio::test]
async fn recorded_operations_are_run_alike_by_kubectl() {
    let cluster = controlplane::shared().await;
    let namespace = cluster.namespace().await;
    let clouddriver = without_poller(Kind::MariaDb, String::new()).await;
    let here = OPERATIONS
        .replace("KUBECONFIG", &cluster.kubeconfig_path().display().to_string())
        .replace("\"demo\"", &format!("\"{namespace}\""))
        .replace("namespace=demo", &format!("namespace={namespace}"));
    let labelled = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "conf-v000", "labels": {"app.kubernetes.io/name": "shop"}},
    });
    let create = ["-n", namespace.name(), "create", "-f", "-"];
    must(cluster.kubectl_with_input(create, &labelled.to_string()).await.ok());
    let mut left_out: Vec<&str> = NOT_REPRODUCED.iter().map(|(name, _)| *name).collect();
    for (entry, recorded) in entries(&here).zip(entries(OPERATIONS)) {
        let name = recorded["name"].as_str().expect("a name");
        if let Some(place) = left_out.iter().position(|left_out| *left_out == name) {
            left_out.remove(place);
            continue;
        }
        let answer = call(&clouddriver, request(&entry)).await;
        match entry.get("task") {
            None => check(&entry, &answer),
            Some(expected) => {
                let path = answer.json["resourceUri"].as_str().expect("the task's path").to_owned();
                let task = eventually(name, WAIT, async || {
                    let task = send(clouddriver.port(), Call::get(&path)).await?;
                    (task.json["status"]["completed"] == true).then_some(task.json).ok_or(task.text)
                })
                .await;
                assert_eq!(task["history"], expected["history"], "{name}");
                for field in ["status", "resultObjects"] {
                    let of = &expected[field];
                    assert!(of.is_null() || has(&task[field], of), "{name}: {task}\nis not {of}");
                }
            }
        }
        if name == "PUT /credentials" {
            load(&clouddriver).await;
        }
    }
    assert_eq!(left_out, Vec::<&str>::new(), "are no recorded calls");
    let cached = call(&clouddriver, Call::new("POST", "/test/cache/ops")).await;
    assert!(has(&cached.json, &json!([{"kind": "service", "name": "front"}])), "{cached}");
}

#[tokio::test]
async fn accounts_appear_at_a_poll_and_leave_at_another() {
    for kind in DATABASES {
        let database = shared(kind).await.fresh_database().await;
        let settings = Settings { accounts: recorded_file(), ..Settings::default() };
        let mut clouddriver = must(Clouddriver::start(&database, settings.clone()).await);
        let listed = async |clouddriver: &Clouddriver, expected: &[&str]| {
            let port = clouddriver.port();
            eventually(&format!("{expected:?} in {kind:?}"), WAIT, async || {
                let answer = send(port, Call::get("/credentials")).await?;
                let all = answer.json.as_array().ok_or(&answer.text)?;
                let mut names: Vec<&str> =
                    all.iter().filter_map(|account| account["name"].as_str()).collect();
                names.sort_unstable();
                if names == expected { Ok(()) } else { Err(answer.text) }
            })
            .await;
        };
        listed(&clouddriver, &["yaml-one"]).await;
        let stored = json!({"type": "kubernetes", "name": "stored", "environment": "one"});
        let answer = call(&clouddriver, Call::new("PUT", "/credentials").json(&stored)).await;
        assert_eq!(answer.status, 200, "{answer}");
        must(
            clouddriver
                .tables()
                .insert("raw", &json!({"type": "kubernetes", "name": "raw"}).to_string())
                .await,
        );
        listed(&clouddriver, &["raw", "stored", "yaml-one"]).await;
        let before = must(clouddriver.tables().checksum().await);
        clouddriver.kill();
        must(clouddriver.set_accounts("kubernetes: {accounts: []}"));
        must(clouddriver.restart().await);
        listed(&clouddriver, &["raw", "stored"]).await;
        assert_eq!(must(clouddriver.tables().checksum().await), before, "reading writes nothing");
        let row = must(clouddriver.tables().row("stored").await).expect("a row");
        assert_eq!((row.id.as_str(), row.last_modified_by.as_str()), ("stored", "anonymous"));
        assert_eq!(call(&clouddriver, Call::new("DELETE", "/credentials/stored")).await.status, 200);
        assert_ne!(must(clouddriver.tables().checksum().await), before);
        listed(&clouddriver, &["raw"]).await;
        // Storage off: stored accounts are neither loaded nor changed.
        must(clouddriver.restart_with(Settings { storage: false, ..settings }).await);
        listed(&clouddriver, &[]).await;
        let answer = call(&clouddriver, Call::new("PUT", "/credentials").json(&stored)).await;
        assert_eq!((answer.status, &answer.json["exception"]), (400, &json!(CONFIGURATION)), "{answer}");
    }
}

/// The error of a Clouddriver without storage.
const CONFIGURATION: &str = "com.netflix.spinnaker.kork.exceptions.ConfigurationException";

#[tokio::test]
async fn only_administrators_change_accounts_where_fiat_is_on() {
    let database = shared(Kind::PostgreSql).await.fresh_database().await;
    let admins = Some(vec!["kubesvc".to_owned()]);
    let settings = Settings { admins, load_delay: Duration::from_secs(4), ..Settings::default() };
    let clouddriver = must(Clouddriver::start(&database, settings).await);
    let put = Call::new("PUT", "/credentials").json(&json!({"type": "kubernetes", "name": "one"}));
    let refused = call(&clouddriver, put.clone().header("X-SPINNAKER-USER", "ann")).await;
    assert_eq!((refused.status, &refused.json["message"]), (403, &json!("Access is denied")), "{refused}");
    let stored = call(&clouddriver, put.header("X-SPINNAKER-USER", "kubesvc")).await;
    assert_eq!(stored.status, 200, "{stored}");
    let row = must(clouddriver.tables().row("one").await).expect("a row");
    assert_eq!(row.last_modified_by, "kubesvc");
    clouddriver.pause();
    let answer =
        tokio::time::timeout(Duration::from_millis(300), send(clouddriver.port(), Call::get("/credentials")));
    assert!(answer.await.is_err(), "it is paused");
    clouddriver.resume();
    eventually("the account after the delay", WAIT, async || {
        let answer = send(clouddriver.port(), Call::get("/credentials/one")).await?;
        (answer.status == 200).then_some(()).ok_or(answer.text)
    })
    .await;
    must(clouddriver.stop().await);
}
