//! kubectl through both doors, and what is left of it: objects, history, audit lines.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::place::{EVERYTHING, Place, READING, kubectl};
use crate::world::MAX_WAIT;
use kubesvc_testkit::controlplane::kubectl_path;
use kubesvc_testkit::must;
use kubesvc_testkit::process::{Process, Streams};
use kubesvc_testkit::wait::eventually;

const CONFIG_MAP: &str =
    r#"{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"a": "1"}}"#;

/// Runs what people do, with the same results as at the cluster itself.
async fn use_account(place: &Place, config: &Path) {
    let direct = place.target.kubeconfig_path();
    for arguments in [
        &["get", "namespaces", "-o", "name"][..],
        &["get", "--raw", "/version"],
        &["api-resources", "--no-headers"],
        &["explain", "deployment.spec.replicas"],
        &["auth", "can-i", "create", "deployments"],
        &["get", "configmap", "none"],
    ] {
        let through = kubectl(config, arguments, "").await;
        let itself = kubectl(&direct, arguments, "").await;
        assert_eq!(through, itself, "{arguments:?}");
    }
    let applied = must(kubectl(config, &["apply", "-f", "-"], CONFIG_MAP).await.ok());
    assert_eq!(applied, "configmap/settings created\n");
    let again = CONFIG_MAP.replace("\"1\"", "\"2\"");
    assert_eq!(
        must(kubectl(config, &["apply", "-f", "-"], &again).await.ok()),
        "configmap/settings configured\n"
    );
    let value = ["get", "configmap", "settings", "-o", "jsonpath={.data.a}"];
    assert_eq!(must(kubectl(config, &value, "").await.ok()), "2");
    must(kubectl(config, &["delete", "configmap", "settings"], "").await.ok());
    assert_eq!(kubectl(&direct, &["get", "configmap", "settings"], "").await.code, Some(1));
}

/// Begins `kubectl get -w`, which prints into the file.
fn watching(place: &Place, config: &Path) -> (Process, std::path::PathBuf) {
    let mut command = Command::new(must(kubectl_path()));
    command.args(["get", "configmaps", "-w", "-o", "name"]).env("KUBECONFIG", config);
    let (output, errors) = (place.world.folder().file("watch.out"), place.world.folder().file("watch.err"));
    let streams = Streams { input: None, output: Some(output.clone()), errors };
    (must(Process::spawn_with("kubectl get -w", &command, &streams)), output)
}

/// A watch shows what happens, and ends at the API server when its caller is killed.
async fn watch_and_be_killed(place: &Place, config: &Path) {
    let (watch, output) = watching(place, config);
    let direct = place.target.kubeconfig_path();
    let begun = std::time::Instant::now();
    eventually("an event", MAX_WAIT, async || {
        must(
            kubectl(&direct, &["create", "configmap", "seen"], "")
                .await
                .ok()
                .or_else(|_| Ok::<_, String>(String::new())),
        );
        let label = format!("n={}", begun.elapsed().as_millis());
        let _ = kubectl(&direct, &["label", "configmap", "seen", &label, "--overwrite"], "").await;
        let seen = std::fs::read_to_string(&output).unwrap_or_default();
        // The first one may be of the list before the watch.
        if seen.matches("configmap/seen").count() > 1 { Ok(()) } else { Err(seen) }
    })
    .await;
    eventually("a watch that runs in the agent", MAX_WAIT, async || {
        if watches(place).await? == 1 { Ok(()) } else { Err("there is none".to_owned()) }
    })
    .await;
    watch.kill();
    let began = std::time::Instant::now();
    eventually("the end of the watch", MAX_WAIT, async || {
        let count = watches(place).await?;
        if count == 0 { Ok(()) } else { Err(format!("{count} watches")) }
    })
    .await;
    assert!(began.elapsed() < Duration::from_secs(3), "it took {:?}", began.elapsed());
    must(kubectl(&direct, &["delete", "configmap", "seen"], "").await.ok());
}

/// Number of watches that the agent runs for callers.
async fn watches(place: &Place) -> Result<usize, String> {
    let answer = place.agent.try_get("/operations").await?;
    let running = answer.json["operations"].as_array().ok_or_else(|| answer.to_string())?;
    let is_watch = |one: &&Value| one["path"].as_str().is_some_and(|path| path.contains("/configmaps"));
    Ok(running.iter().filter(is_watch).count())
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_uses_an_account_with_a_token_at_the_direct_door() {
    let place = Place::start(false).await;
    let token = place.person("ann", EVERYTHING, Some("kubesvc")).await;
    let config = place.direct(&token);
    use_account(&place, &config).await;
    watch_and_be_killed(&place, &config).await;

    let ann = format!("system:serviceaccount:{}:ann", place.world.namespace());
    let records = eventually("the history of the writes", MAX_WAIT, async || {
        let records = kubectl(&config, &["get", "--raw", &place.operations_path()], "").await;
        let _ = records;
        let answer = super::refusals::get(&place, &place.operations_path(), &token).await?;
        let records = answer.body.as_array().cloned().unwrap_or_default();
        if records.len() >= 3 { Ok(records) } else { Err(format!("{records:?}")) }
    })
    .await;
    let kinds: Vec<_> =
        records.iter().rev().map(|record| record["operationType"].as_str().unwrap_or_default()).collect();
    assert_eq!(kinds, ["Deploy", "Patch", "Delete"]);
    for record in &records {
        assert_eq!(
            (&record["principal"], &record["finalOutcome"]),
            (&ann.as_str().into(), &"completed".into())
        );
        assert_eq!(record["account"], "prod");
    }
    let log = place.world.operator().log_text();
    let lines = audit_lines(&log);
    assert_ids_at_the_cluster(&place, &lines);
    let writes: Vec<_> = lines.iter().filter(|line| line["message"] == "write").collect();
    let verbs: Vec<_> = writes.iter().map(|line| line["verb"].as_str().unwrap_or_default()).collect();
    assert_eq!(verbs, ["create", "patch", "delete"]);
    assert!(
        writes
            .iter()
            .all(|line| line["principal"] == ann && line["via"] == "token" && line["agent"] == "agent-1")
    );
    assert!(
        writes.iter().all(|line| line["bytes"].as_u64() > Some(0)),
        "the answers have objects: {writes:?}"
    );
    assert!(lines.iter().any(|line| line["message"] == "stream-begin" && line["verb"] == "watch"));
    assert!(lines.iter().any(|line| line["message"] == "stream-end" && line["bytes"].as_u64() > Some(0)));
    assert!(!log.contains(&token), "no token is logged");
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_uses_an_account_through_the_operators_api_server_with_its_usual_credential() {
    let place = Place::start(true).await;
    let plane = place.world.control_plane();
    eventually("an available APIService", MAX_WAIT, async || {
        let wait =
            ["wait", "--for=condition=Available", "apiservice/v1alpha1.proxy.kubesvc.io", "--timeout=5s"];
        plane.kubectl(wait).await.ok()
    })
    .await;
    let token = place.person("ann", EVERYTHING, None).await;
    let config = place.aggregated(&token);
    use_account(&place, &config).await;
    watch_and_be_killed(&place, &config).await;
    let reader = place.person("bob", READING, None).await;
    let reader = place.aggregated(&reader);
    must(kubectl(&reader, &["get", "namespaces"], "").await.ok());
    let refused = kubectl(&reader, &["create", "configmap", "x"], "").await;
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("cannot create"), "{refused:?}");
    // What the operator's own API server shows of the group.
    let resources =
        must(plane.kubectl(["api-resources", "--api-group=proxy.kubesvc.io", "--no-headers"]).await.ok());
    assert_eq!(resources, "", "nothing of it can be listed");
    let lines = audit_lines(&place.world.operator().log_text());
    assert_ids_at_the_cluster(&place, &lines);
    let write = lines.iter().find(|line| line["message"] == "write").expect("a write");
    assert_eq!(write["via"], "front-proxy");
    assert!(write["principal"].as_str().is_some_and(|name| name.ends_with(":ann")), "{write}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_ends_when_its_caller_may_no_longer() {
    let place = Place::start(false).await;
    let token = place.person("ann", EVERYTHING, Some("kubesvc")).await;
    let (watch, _) = watching(&place, &place.direct(&token));
    eventually("a watch that runs in the agent", MAX_WAIT, async || {
        if watches(&place).await? == 1 { Ok(()) } else { Err("there is none".to_owned()) }
    })
    .await;
    must(place.world.kubectl(&["delete", "rolebinding", "ann"]).await.ok());
    must(watch.wait(MAX_WAIT).await);
    let log = place.world.operator().log_text();
    let lines = audit_lines(&log);
    let end = lines.iter().find(|line| line["message"] == "stream-end").expect("the end of the stream");
    assert!(end["reason"].as_str().is_some_and(|reason| reason.contains("cannot get")), "{end}");
    eventually("the end of the watch in the agent", MAX_WAIT, async || {
        let count = watches(&place).await?;
        if count == 0 { Ok(()) } else { Err(format!("{count} watches")) }
    })
    .await;
}

/// The cluster's own audit log has each write under the id of the operator's, whatever id its caller gave it.
fn assert_ids_at_the_cluster(place: &Place, lines: &[Value]) {
    let at_cluster: Vec<_> = place.target.writes().into_iter().map(|write| write.audit_id).collect();
    for write in lines.iter().filter(|line| line["message"] == "write") {
        let id = write["requestId"].as_str().unwrap_or_default();
        assert!(at_cluster.iter().any(|one| one == id), "{write} is not in {at_cluster:?}");
    }
}

/// The audit lines in a log.
pub(super) fn audit_lines(log: &str) -> Vec<Value> {
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["target"] == "audit").collect()
}
