//! Delete, patch, scale and what only reads.

use std::collections::BTreeSet;

use kubesvc_core::operations::{Method, Outcome};
use serde_json::{Value, json};

use super::driver::{ApiServer, body, deploy, failure, on};
use super::manifests::{CUSTOM_GROUP, custom_definition};
use kubesvc_testkit::controlplane;
use kubesvc_testkit::must;
use kubesvc_testkit::namespace::{TestNamespace, random};
use kubesvc_testkit::wait::eventually;

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";

async fn place() -> (ApiServer, TestNamespace) {
    let plane = controlplane::shared().await;
    (ApiServer::new(plane.client().await), plane.namespace().await)
}

fn config_path(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/configmaps/{name}")
}

/// Creates a ConfigMap with a label and maybe finalizers.
async fn config(server: &ApiServer, namespace: &str, name: &str, label: &str, finalizers: &[&str]) {
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "1"},
        "metadata": {"name": name, "labels": {"set": label}, "finalizers": finalizers},
    });
    let path = format!("/api/v1/namespaces/{namespace}/configmaps");
    let (status, said) = server.call(Method::Post, &path, JSON, &object).await;
    assert_eq!(status, 201, "{said}");
}

fn web(namespace: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": namespace},
        "spec": {
            "replicas": 1, "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "app", "image": "1"}]},
            },
        },
    })
}

fn of_config(verb: &str, namespace: &str, name: &str, more: &str) -> String {
    on(verb, "", "ConfigMap", namespace, name, more)
}

#[tokio::test]
async fn delete_says_what_is_not_there_or_not_gone() {
    let (server, namespace) = place().await;
    let n = namespace.name();
    let missing = server.run(&of_config("delete", n, "c", "")).await;
    assert_eq!(failure(&missing), (404, "configmaps \"c\" not found"));
    let ignored = server.run(&of_config("delete", n, "c", "ignore_not_found: true")).await;
    assert_eq!((ignored.status, ignored.failure), (200, None));

    config(&server, n, "c", "x", &[]).await;
    let dry = server.dry_run(&of_config("delete", n, "c", "")).await;
    assert_eq!((dry.status, dry.failure), (200, None));
    assert!(!server.get(&config_path(n, "c")).await.is_null(), "a dry run deletes nothing");
    let deleted = server.run(&of_config("delete", n, "c", "")).await;
    assert_eq!((deleted.status, deleted.failure), (200, None));
    assert!(server.get(&config_path(n, "c")).await.is_null());

    config(&server, n, "held", "x", &["example.com/wait"]).await;
    let open = server.run(&of_config("delete", n, "held", "grace_s: 1")).await;
    assert_eq!(open.status, 202);
    assert_eq!(body(&open)["stillThere"][0]["name"], "held");
    let mut run = server.begin(&of_config("delete", n, "held", ""), false).await.expect("a program");
    while !run.line().is_empty() {
        run.go_on().await;
    }
    let free = json!({"metadata": {"finalizers": null}});
    server.call(Method::Patch, &config_path(n, "held"), MERGE, &free).await;
    assert_eq!(run.end().await.status, 200);
}

#[tokio::test]
async fn delete_spares_what_was_made_anew_under_the_name() {
    let (server, namespace) = place().await;
    let n = namespace.name();
    config(&server, n, "c", "x", &[]).await;
    let mut run = server.begin(&of_config("delete", n, "c", ""), false).await.expect("a program");
    run.go_on().await;
    server.call(Method::Delete, &config_path(n, "c"), JSON, &Value::Null).await;
    config(&server, n, "c", "anew", &[]).await;
    let deleted = run.end().await;
    assert_eq!((deleted.status, deleted.failure), (200, None));
    assert_eq!(server.get(&config_path(n, "c")).await["metadata"]["labels"]["set"], "anew");
}

#[tokio::test]
async fn delete_by_selector_takes_all_of_it_and_nothing_else() {
    let (server, namespace) = place().await;
    let n = namespace.name();
    for (name, label) in [("a", "x"), ("b", "y"), ("c", "z")] {
        config(&server, n, name, label, &[]).await;
    }
    let selected = "label_selector: \"set in (x, y)\"";
    let deleted = server.run(&of_config("delete", n, "", selected)).await;
    assert_eq!((deleted.status, deleted.failure), (200, None));
    for (name, is_gone) in [("a", true), ("b", true), ("c", false)] {
        assert_eq!(server.get(&config_path(n, name)).await.is_null(), is_gone, "{name}");
    }
    let nothing = server.run(&of_config("delete", n, "", selected)).await;
    assert_eq!((nothing.status, nothing.failure), (200, None));
    let malformed = server.run(&of_config("delete", n, "", "label_selector: \"in in in\"")).await;
    assert_eq!(failure(&malformed).0, 400);
}

#[tokio::test]
async fn propagation_and_grace_reach_the_api_server() {
    let (server, namespace) = place().await;
    let n = namespace.name();
    let path = format!("/apis/apps/v1/namespaces/{n}/deployments/web");
    // Nothing collects garbage here: what holds an object until its dependents are gone stays on it.
    for (propagation, finalizers) in
        [("FOREGROUND", json!(["foregroundDeletion"])), ("ORPHAN", json!(["orphan"]))]
    {
        server.run(&deploy(&web(n), "")).await;
        let more = format!("propagation: {propagation} grace_s: 1");
        let outcome = server.run(&on("delete", "apps", "Deployment", n, "web", &more)).await;
        assert_eq!(outcome.status, 202);
        assert_eq!(server.get(&path).await["metadata"]["finalizers"], finalizers);
        server.call(Method::Patch, &path, MERGE, &json!({"metadata": {"finalizers": null}})).await;
    }
    // A pod on a node ends when its kubelet says so.
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": n},
        "spec": {"nodeName": "nowhere", "containers": [{"name": "c", "image": "i"}]},
    });
    server.run(&deploy(&pod, "")).await;
    let outcome = server.run(&on("delete", "", "Pod", n, "p", "grace_s: 1")).await;
    assert_eq!(outcome.status, 202, "{outcome:?}");
    let held = server.get(&format!("/api/v1/namespaces/{n}/pods/p")).await;
    assert_eq!(held["metadata"]["deletionGracePeriodSeconds"], 1);
    let outcome = server.run(&on("delete", "", "Pod", n, "p", "grace_s: 0")).await;
    assert_eq!(outcome.status, 200);
}

#[tokio::test]
async fn three_kinds_of_patches_do_what_each_says() {
    let (server, namespace) = place().await;
    let n = namespace.name();
    server.run(&deploy(&web(n), "")).await;
    let patch = async |kind: &str, data: &Value, more: &str| -> Outcome {
        let data = Value::String(data.to_string());
        let more = format!("{kind} body {{ data: {data} }} {more}");
        server.run(&on("patch", "apps", "Deployment", n, "web", &more)).await
    };
    let sidecar =
        json!({"spec": {"template": {"spec": {"containers": [{"name": "sidecar", "image": "s"}]}}}});
    let patched = patch("", &sidecar, "record: true").await;
    let containers = &body(&patched)["spec"]["template"]["spec"]["containers"];
    assert_eq!(containers.as_array().map(Vec::len), Some(2));
    let cause = body(&patched)["metadata"]["annotations"]["kubernetes.io/change-cause"].as_str();
    assert!(cause.is_some_and(|cause| cause.contains("01J00000000000000000000000")), "{cause:?}");
    let patched = patch("type: MERGE", &sidecar, "").await;
    let containers = &body(&patched)["spec"]["template"]["spec"]["containers"];
    assert_eq!(containers.as_array().map(Vec::len), Some(1));
    let replace = json!([{"op": "replace", "path": "/spec/replicas", "value": 4}]);
    assert_eq!(body(&patch("type: JSON", &replace, "record: true").await)["spec"]["replicas"], 4);
    let before = server.get(&format!("/apis/apps/v1/namespaces/{n}/deployments/web")).await;
    let untrue = json!([{"op": "test", "path": "/spec/replicas", "value": 9}]);
    assert_eq!(failure(&patch("type: JSON", &untrue, "").await).0, 422);
    let invalid = patch("type: MERGE", &json!({"spec": {"replicas": -1}}), "").await;
    let said = "Deployment.apps \"web\" is invalid: spec.replicas: Invalid value: -1: must be greater than or equal to 0";
    assert_eq!(failure(&invalid), (422, said));
    let data = Value::String(json!({"spec": {"replicas": 9}}).to_string());
    let text = on("patch", "apps", "Deployment", n, "web", &format!("body {{ data: {data} }}"));
    assert_eq!(body(&server.dry_run(&text).await)["spec"]["replicas"], 9);
    assert_eq!(server.get(&format!("/apis/apps/v1/namespaces/{n}/deployments/web")).await, before);
}

/// Defines a custom kind of its own, and waits until it is served.
async fn define(server: &ApiServer) -> (String, String) {
    let suffix = random(6);
    let (plural, kind) = (format!("w{suffix}s"), format!("W{suffix}"));
    let definition = custom_definition(&plural, &kind);
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let (status, said) = server.call(Method::Post, path, JSON, &definition).await;
    assert_eq!(status, 201, "{said}");
    let path = format!("/apis/{CUSTOM_GROUP}/v1");
    eventually("a custom kind", std::time::Duration::from_secs(30), async || {
        let list = server.get(&path).await.to_string();
        if list.contains(&kind) { Ok(()) } else { Err(list) }
    })
    .await;
    (plural, kind)
}

#[tokio::test]
async fn scale_sets_the_replicas_of_what_can_be_scaled() {
    let (server, namespace) = place().await;
    let n = namespace.name();
    server.run(&deploy(&web(n), "")).await;
    let dry = server.dry_run(&on("scale", "apps", "Deployment", n, "web", "replicas: 7")).await;
    assert_eq!(body(&dry)["spec"]["replicas"], 7);
    let scaled = server.run(&on("scale", "apps", "Deployment", n, "web", "replicas: 0")).await;
    assert_eq!((body(&scaled)["kind"].as_str(), &body(&scaled)["spec"]), (Some("Scale"), &json!({})));
    let path = format!("/apis/apps/v1/namespaces/{n}/deployments/web");
    assert_eq!(server.get(&path).await["spec"]["replicas"], 0);
    let (plural, kind) = define(&server).await;
    let custom = json!({
        "apiVersion": format!("{CUSTOM_GROUP}/v1"), "kind": kind, "metadata": {"name": "g", "namespace": n},
        "spec": {"replicas": 1},
    });
    assert_eq!(server.run(&deploy(&custom, "")).await.status, 201);
    let scaled = server.run(&on("scale", CUSTOM_GROUP, &kind, n, "g", "replicas: 5")).await;
    assert_eq!(body(&scaled)["spec"]["replicas"], 5);
    let path = format!("/apis/{CUSTOM_GROUP}/v1/namespaces/{n}/{plural}/g");
    assert_eq!(server.get(&path).await["spec"]["replicas"], 5);
    config(&server, n, "c", "x", &[]).await;
    let unscalable = server.run(&of_config("scale", n, "c", "replicas: 1")).await;
    assert_eq!(failure(&unscalable), (404, "the server could not find the requested resource"));
    let missing = server.run(&on("scale", "apps", "Deployment", n, "none", "replicas: 1")).await;
    assert_eq!(failure(&missing), (404, "deployments.apps \"none\" not found"));
}

#[tokio::test]
async fn empty_maps_of_custom_kinds_stay_when_managers_move() {
    let (server, namespace) = place().await;
    let n = namespace.name();
    let (plural, kind) = define(&server).await;
    let path = format!("/apis/{CUSTOM_GROUP}/v1/namespaces/{n}/{plural}/g");
    let custom = |spec: &Value| {
        json!({
            "apiVersion": format!("{CUSTOM_GROUP}/v1"), "kind": kind, "metadata": {"name": "g", "namespace": n},
            "spec": spec,
        })
    };
    let before = json!({"map": {"a": "1", "selector": {"x": "1"}, "empty": {}}, "empty": {}});
    let after = json!({"map": {"a": "1", "selector": {}, "empty": {}}, "empty": {}});
    for (first, second) in [(&before, &after), (&after, &after)] {
        for object in [first, second] {
            server.run(&deploy(&custom(object), "mode: APPLY")).await;
        }
        let held = server.get(&path).await;
        assert_eq!(&held["spec"], second);
        let applied = server.run(&deploy(&custom(second), "mode: SERVER_SIDE force: true")).await;
        assert_eq!(&body(&applied)["spec"], second, "{held:#}");
    }
}

#[tokio::test]
async fn kind_is_found_once_it_is_defined() {
    let (server, namespace) = place().await;
    let n = namespace.name();
    let (_, first) = define(&server).await;
    let target = |kind: &str| on("list", CUSTOM_GROUP, kind, n, "", "");
    assert_eq!(body(&server.run(&target(&first)).await)["items"], json!([]));
    let unknown = server.run(&target("Unheard")).await;
    assert_eq!(
        failure(&unknown),
        (404, format!("the cluster serves no kind \"Unheard\" in {CUSTOM_GROUP}/v1").as_str())
    );
    let group = server.run(&on("get", "no.such.group", "Kind", n, "x", "")).await;
    assert_eq!(failure(&group), (404, "the cluster serves no group \"no.such.group\""));
    let (_, second) = define(&server).await;
    server.take_sent();
    assert_eq!(body(&server.run(&target(&second)).await)["items"], json!([]));
    assert_eq!(server.take_sent()[0], format!("GET /apis/{CUSTOM_GROUP}/v1"), "the list is read again");
    assert_eq!(body(&server.run(&target(&first)).await)["items"], json!([]));
    assert_eq!(server.take_sent().len(), 1, "what is known is not read again");
}

#[tokio::test]
async fn lists_come_in_pages_and_reads_say_what_is_missing() {
    let (server, namespace) = place().await;
    let n = namespace.name();
    for number in 0..7 {
        config(&server, n, &format!("c{number}"), if number < 4 { "x" } else { "y" }, &[]).await;
    }
    let mut names = BTreeSet::new();
    let (mut next, mut pages) = (String::new(), 0);
    loop {
        let page = server.run(&of_config("list", n, "", &format!("limit: 3 continue: {next:?}"))).await;
        let page = body(&page);
        let items = page["items"].as_array().expect("items");
        assert!(items.len() <= 3);
        names.extend(items.iter().map(|item| item["metadata"]["name"].to_string()));
        pages += 1;
        page["metadata"]["continue"].as_str().unwrap_or_default().clone_into(&mut next);
        if next.is_empty() {
            break;
        }
    }
    assert_eq!((names.len(), pages), (7, 3));
    let selected = server.run(&of_config("list", n, "", "label_selector: \"set=y\"")).await;
    assert_eq!(body(&selected)["items"].as_array().map(Vec::len), Some(3));
    let named = server.run(&of_config("list", n, "c5", "")).await;
    assert_eq!(body(&named)["items"][0]["metadata"]["name"], "c5");
    let spoiled = server.run(&of_config("list", n, "", "continue: \"nonsense\"")).await;
    assert_eq!(failure(&spoiled).0, 400);
    let got = server.run(&of_config("get", n, "c5", "")).await;
    assert_eq!(body(&got)["data"], json!({"a": "1"}));
    let missing = server.run(&of_config("get", n, "none", "")).await;
    assert_eq!(failure(&missing), (404, "configmaps \"none\" not found"));
    let cluster_wide = server.run(&on("get", "", "Namespace", "", n, "")).await;
    assert_eq!(body(&cluster_wide)["metadata"]["name"], n);
    let role = server.run(&on("list", "rbac.authorization.k8s.io", "ClusterRole", "", "", "limit: 1")).await;
    assert_eq!(body(&role)["items"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn discovery_has_every_kind_that_kubectl_lists() {
    let (server, _) = place().await;
    let found = server.run("account { name: \"a\" } discovery {}").await;
    let kinds = body(&found)["kinds"].as_array().expect("kinds");
    assert!(body(&found)["failed"].is_null());
    let plane = controlplane::shared().await;
    let listed =
        must(plane.kubectl(["api-resources", "--no-headers", "--cached=false", "-o", "wide"]).await.ok());
    let mut missing = Vec::new();
    for line in listed.lines().filter(|line| !line.contains(CUSTOM_GROUP)) {
        let words: Vec<_> = line.split_whitespace().collect();
        let is_known = kinds
            .iter()
            .any(|kind| kind["plural"] == words[0] && words.contains(&kind["kind"].as_str().unwrap_or("?")));
        if !is_known {
            missing.push(line);
        }
    }
    assert!(listed.lines().count() > 50 && missing.is_empty(), "{missing:#?}");
    let deployment = kinds.iter().find(|kind| kind["kind"] == "Deployment").expect("Deployments");
    assert_eq!((&deployment["group"], &deployment["namespaced"]), (&json!("apps"), &json!(true)));
    assert!(deployment["verbs"].as_array().is_some_and(|verbs| verbs.contains(&json!("patch"))));
}

#[tokio::test]
async fn logs_of_a_pod_on_no_node_are_refused_in_the_api_servers_words() {
    let (server, namespace) = place().await;
    let n = namespace.name();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": n},
        "spec": {"containers": [{"name": "c", "image": "i"}, {"name": "d", "image": "i"}]},
    });
    server.run(&deploy(&pod, "")).await;
    let (status, said) = server
        .call(
            Method::Get,
            &format!("/api/v1/namespaces/{n}/pods/p/log?limitBytes=1048577"),
            JSON,
            &Value::Null,
        )
        .await;
    let refused = server.run(&on("logs", "", "Pod", n, "p", "")).await;
    assert_eq!(failure(&refused), (status, said["message"].as_str().unwrap_or_default()));
    assert!(failure(&refused).1.contains("a container name must be specified"), "{refused:?}");
    let missing = server.run(&on("logs", "", "Pod", n, "none", "")).await;
    assert_eq!(failure(&missing), (404, "pods \"none\" not found"));
}
