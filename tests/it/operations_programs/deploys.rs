//! The modes of deploying: what each does to an object that is there, and what others write in between.

use kubesvc_core::operations::{ApplySettings, Method, Preference};
use serde_json::{Value, json};

use super::driver::{ApiServer, body, deploy, failure};
use kubesvc_testkit::controlplane;
use kubesvc_testkit::must;
use kubesvc_testkit::namespace::TestNamespace;

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";

struct Place {
    server: ApiServer,
    namespace: TestNamespace,
}

impl Place {
    async fn new() -> Self {
        Self::with(ApplySettings::default()).await
    }

    async fn with(settings: ApplySettings) -> Self {
        let plane = controlplane::shared().await;
        Self { server: ApiServer::with(plane.client().await, settings), namespace: plane.namespace().await }
    }

    fn name(&self) -> &str {
        self.namespace.name()
    }

    fn path(&self, of: &str) -> String {
        let base = if of.starts_with("deployments") { "/apis/apps/v1" } else { "/api/v1" };
        format!("{base}/namespaces/{}/{of}", self.name())
    }

    fn config(&self, data: &Value) -> Value {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": self.name()}, "data": data,
        })
    }

    fn secret(&self, fields: &Value) -> Value {
        let mut secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": self.name()},
        });
        for (name, value) in fields.as_object().into_iter().flatten() {
            secret[name] = value.clone();
        }
        secret
    }

    fn web(&self, image: &str) -> Value {
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": self.name()},
            "spec": {
                "selector": {"matchLabels": {"app": "web"}},
                "template": {
                    "metadata": {"labels": {"app": "web"}},
                    "spec": {"containers": [{"name": "app", "image": image}]},
                },
            },
        })
    }

    /// Somebody else's patch.
    async fn patch(&self, of: &str, content_type: &'static str, patch: &Value) {
        let target = format!("{}?fieldManager=other", self.path(of));
        let (status, body) = self.server.call(Method::Patch, &target, content_type, patch).await;
        assert_eq!(status, 200, "{body}");
    }

    async fn kubectl(&self, arguments: &[&str], object: &Value) -> String {
        must(controlplane::shared().await.kubectl_with_input(arguments, &object.to_string()).await.ok())
    }
}

/// Managers of the object itself, with their operations.
fn managers(object: &Value) -> Vec<String> {
    let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut names: Vec<_> = entries
        .iter()
        .map(|entry| format!("{} {}", text(&entry["manager"]), text(&entry["operation"])))
        .collect();
    names.sort();
    names
}

fn containers(object: &Value) -> Vec<String> {
    let containers = object["spec"]["template"]["spec"]["containers"].as_array().cloned().unwrap_or_default();
    containers.iter().map(|one| format!("{}={}", one["name"], one["image"]).replace('"', "")).collect()
}

#[tokio::test]
async fn create_refuses_what_is_there_and_generates_names() {
    let place = Place::new().await;
    let config = place.config(&json!({"a": "1"}));
    let created = place.server.run(&deploy(&config, "mode: CREATE")).await;
    assert_eq!((created.status, managers(body(&created))), (201, vec!["kubesvc Update".to_owned()]));
    let again = place.server.run(&deploy(&config, "mode: CREATE")).await;
    assert_eq!(failure(&again), (409, "configmaps \"c\" already exists"));
    let mut generated = config.clone();
    generated["metadata"] = json!({"generateName": "c-", "namespace": place.name()});
    for _ in 0..2 {
        let made = place.server.run(&deploy(&generated, "")).await;
        assert!(
            body(&made)["metadata"]["name"]
                .as_str()
                .is_some_and(|name| name.starts_with("c-") && name.len() > 2)
        );
    }
    let merged = place.server.run(&deploy(&generated, "mode: APPLY")).await;
    assert!(failure(&merged).1.contains("can only be created"), "{merged:?}");
}

#[tokio::test]
async fn replace_takes_the_whole_object_at_the_live_version() {
    let place = Place::new().await;
    let made = place.server.run(&deploy(&place.config(&json!({"a": "1"})), "mode: REPLACE")).await;
    assert_eq!(made.status, 201);
    place
        .patch("configmaps/c", MERGE, &json!({"data": {"other": "1"}, "metadata": {"labels": {"x": "y"}}}))
        .await;
    // Somebody writes between the read and the write: the write is refused, and made again at the new version.
    let text = deploy(&place.config(&json!({"a": "2"})), "mode: REPLACE");
    let mut run = place.server.begin(&text, false).await.expect("a program");
    run.go_on().await;
    assert!(run.line().starts_with("PUT"), "{}", run.line());
    place.patch("configmaps/c", MERGE, &json!({"data": {"other": "2"}})).await;
    let replaced = run.end().await;
    assert_eq!(body(&replaced)["data"], json!({"a": "2"}));
    assert!(body(&replaced)["metadata"]["labels"].is_null());
    assert_eq!(body(&replaced)["metadata"]["uid"], body(&made)["metadata"]["uid"]);
}

#[tokio::test]
async fn recreate_makes_a_new_object_once_the_old_one_is_gone() {
    let place = Place::new().await;
    let mut config = place.config(&json!({"a": "1"}));
    config["metadata"]["finalizers"] = json!(["example.com/wait"]);
    let made = place.server.run(&deploy(&config, "mode: RECREATE")).await;
    assert_eq!(made.status, 201);
    let text = deploy(&place.config(&json!({"a": "2"})), "mode: RECREATE");
    let mut run = place.server.begin(&text, false).await.expect("a program");
    for wanted in ["GET", "DELETE", "GET"] {
        assert!(run.line().starts_with(wanted), "{}", run.line());
        run.go_on().await;
    }
    assert_eq!(run.line(), "", "it waits for the finalizer");
    place.patch("configmaps/c", MERGE, &json!({"metadata": {"finalizers": null}})).await;
    let remade = run.end().await;
    assert_eq!((remade.status, &body(&remade)["data"]), (201, &json!({"a": "2"})));
    assert_ne!(body(&remade)["metadata"]["uid"], body(&made)["metadata"]["uid"]);
    // kubectl goes on from it.
    let config = place.config(&json!({"b": "3"}));
    place.kubectl(&["apply", "-f", "-"], &config).await;
    assert_eq!(place.server.get(&place.path("configmaps/c")).await["data"], json!({"b": "3"}));
}

#[tokio::test]
async fn apply_merges_what_others_write_between_its_read_and_its_write() {
    let place = Place::new().await;
    place.server.run(&deploy(&place.web("1"), "")).await;
    let mut run = place.server.begin(&deploy(&place.web("2"), ""), false).await.expect("a program");
    run.go_on().await;
    let injected =
        json!({"spec": {"template": {"spec": {"containers": [{"name": "injected", "image": "i"}]}}}});
    place.patch("deployments/web", STRATEGIC, &injected).await;
    let applied = run.end().await;
    assert_eq!(containers(body(&applied)), ["injected=i", "app=2"]);
    // Two applies at once: the second removes what only the first had.
    let mut first = place.web("3");
    first["spec"]["minReadySeconds"] = json!(7);
    let mut run = place.server.begin(&deploy(&place.web("4"), ""), false).await.expect("a program");
    run.go_on().await;
    assert_eq!(body(&place.server.run(&deploy(&first, "")).await)["spec"]["minReadySeconds"], 7);
    let applied = run.end().await;
    assert_eq!(containers(body(&applied)), ["injected=i", "app=4"]);
    assert!(body(&applied)["spec"].get("minReadySeconds").is_none(), "{:?}", body(&applied)["spec"]);
}

#[tokio::test]
async fn apply_succeeds_where_a_controller_writes_the_status_all_the_time() {
    let place = Place::new().await;
    place.server.run(&deploy(&place.web("1"), "")).await;
    place.server.take_sent();
    let mut run = place.server.begin(&deploy(&place.web("2"), ""), false).await.expect("a program");
    let mut writes = 0;
    while !run.line().is_empty() {
        if run.line().starts_with("PATCH") {
            writes += 1;
            let status = json!({"status": {"observedGeneration": 1, "replicas": writes}});
            place.patch("deployments/web/status", MERGE, &status).await;
        }
        run.go_on().await;
    }
    assert_eq!(writes, 4);
    assert_eq!(containers(body(&run.end().await)), ["app=2"]);
}

#[tokio::test]
async fn secret_is_never_repeated_and_loses_keys_that_are_no_longer_given() {
    let place = Place::new().await;
    let path = place.path("secrets/s");
    for mode in ["", "mode: APPLY"] {
        let fields = json!({"data": {"a": "b2xk"}, "stringData": {"gone": "canary", "kept": "1"}});
        let applied = place.server.run(&deploy(&place.secret(&fields), mode)).await;
        assert_eq!(body(&applied)["data"], json!({"a": "b2xk", "gone": "Y2FuYXJ5", "kept": "MQ=="}));
        let applied =
            place.server.run(&deploy(&place.secret(&json!({"stringData": {"kept": "2"}})), mode)).await;
        assert_eq!(body(&applied)["data"], json!({"kept": "Mg=="}));
        let object = place.server.get(&path).await;
        assert_eq!(managers(&object), ["kubesvc Apply"]);
        assert!(object["metadata"]["annotations"][LAST_APPLIED].is_null(), "{object}");
    }
    // What kubectl applied is taken over, and the annotation with the Secret in it goes.
    place.server.call(Method::Delete, &path, "application/json", &Value::Null).await;
    let by_kubectl = place.secret(&json!({"stringData": {"gone": "canary", "kept": "1"}}));
    place.kubectl(&["apply", "-f", "-"], &by_kubectl).await;
    let applied = place.server.run(&deploy(&place.secret(&json!({"stringData": {"kept": "2"}})), "")).await;
    assert_eq!(body(&applied)["data"], json!({"kept": "Mg=="}));
    let object = place.server.get(&path).await;
    assert!(object["metadata"]["annotations"][LAST_APPLIED].is_null(), "{object}");
    // Other modes send the Secret as it is.
    for mode in ["mode: REPLACE", "mode: RECREATE"] {
        let fields = json!({"stringData": {"kept": "3"}});
        let applied = place.server.run(&deploy(&place.secret(&fields), mode)).await;
        assert_eq!(body(&applied)["data"], json!({"kept": "Mw=="}), "{mode}");
        let object = place.server.get(&path).await;
        assert!(object["metadata"]["annotations"][LAST_APPLIED].is_null(), "{mode} {object}");
    }
}

#[tokio::test]
async fn dry_run_changes_nothing_and_returns_the_object() {
    let place = Place::new().await;
    let path = place.path("deployments/web");
    let modes = ["mode: APPLY", "mode: SERVER_SIDE", "mode: CREATE", "mode: REPLACE", "mode: RECREATE"];
    for mode in modes {
        let outcome = place.server.dry_run(&deploy(&place.web("1"), mode)).await;
        assert_eq!(containers(body(&outcome)), ["app=1"], "{mode}");
        assert!(place.server.get(&path).await.is_null(), "{mode}");
    }
    place.kubectl(&["apply", "-f", "-"], &place.web("1")).await;
    let before = place.server.get(&path).await;
    for mode in modes.iter().filter(|mode| !mode.contains("CREATE") || mode.contains("RECREATE")) {
        let outcome = place.server.dry_run(&deploy(&place.web("2"), mode)).await;
        assert_eq!(containers(body(&outcome)), ["app=2"], "{mode}");
        assert_eq!(body(&outcome)["metadata"]["name"], "web");
        assert_eq!(place.server.get(&path).await, before, "{mode}");
    }
    let created = place.server.dry_run(&deploy(&place.web("2"), "mode: CREATE")).await;
    assert_eq!(failure(&created).0, 409);
}

#[tokio::test]
async fn server_side_apply_tells_conflicts_and_takes_over_what_was_applied_client_side() {
    let place = Place::new().await;
    let path = place.path("configmaps/c");
    place.kubectl(&["apply", "-f", "-"], &place.config(&json!({"a": "1", "gone": "1"}))).await;
    let applied = place.server.run(&deploy(&place.config(&json!({"a": "2"})), "mode: SERVER_SIDE")).await;
    assert_eq!(body(&applied)["data"], json!({"a": "2"}));
    assert_eq!(managers(&place.server.get(&path).await), ["kubesvc Apply"]);
    place.patch("configmaps/c", MERGE, &json!({"data": {"a": "taken"}})).await;
    let refused = place.server.run(&deploy(&place.config(&json!({"a": "3"})), "mode: SERVER_SIDE")).await;
    let said = "Apply failed with 1 conflict: conflict with \"other\" using v1: .data.a";
    assert_eq!(failure(&refused), (409, said));
    let forced =
        place.server.run(&deploy(&place.config(&json!({"a": "3"})), "mode: SERVER_SIDE force: true")).await;
    assert_eq!(body(&forced)["data"], json!({"a": "3"}));
    // kubectl, client-side, goes on from what was applied last.
    place.kubectl(&["apply", "-f", "-"], &place.config(&json!({"b": "4"}))).await;
    assert_eq!(place.server.get(&path).await["data"], json!({"b": "4"}));
}

#[tokio::test]
async fn dry_run_of_a_server_side_apply_meets_the_conflicts_of_the_run() {
    let place = Place::new().await;
    let path = place.path("configmaps/c");
    let text = deploy(&place.config(&json!({"a": "2", "b": "2"})), "mode: SERVER_SIDE");
    for (taken, said) in [
        (json!({"a": "taken"}), "Apply failed with 1 conflict: conflict with \"other\" using v1: .data.a"),
        (
            json!({"a": "taken", "b": "taken"}),
            "Apply failed with 2 conflicts: conflicts with \"other\" using v1:\n- .data.a\n- .data.b",
        ),
    ] {
        place.kubectl(&["apply", "-f", "-"], &place.config(&json!({"a": "1", "b": "1"}))).await;
        let outcome = place.server.dry_run(&text).await;
        assert_eq!(body(&outcome)["data"], json!({"a": "2", "b": "2"}), "kubectl is not in its way");
        place.patch("configmaps/c", MERGE, &json!({"data": taken})).await;
        let before = place.server.get(&path).await;
        let dry = place.server.dry_run(&text).await;
        assert_eq!(failure(&dry), (409, said));
        assert_eq!(place.server.get(&path).await, before);
        let outcome = place.server.run(&text).await;
        assert_eq!(failure(&outcome), failure(&dry));
        place.server.call(Method::Delete, &path, "application/json", &Value::Null).await;
    }
}

#[tokio::test]
async fn managed_fields_are_cleared_where_the_owner_wants_that() {
    let clears = ApplySettings { clear_managed_fields: Preference::Always, ..ApplySettings::default() };
    let place = Place::with(clears).await;
    place.kubectl(&["create", "-f", "-"], &place.config(&json!({"a": "1"}))).await;
    place
        .patch("configmaps/c", MERGE, &json!({"data": {"a": "taken"}, "metadata": {"labels": {"x": "y"}}}))
        .await;
    let applied = place.server.run(&deploy(&place.config(&json!({"a": "2"})), "mode: SERVER_SIDE")).await;
    assert_eq!(body(&applied)["data"], json!({"a": "2"}));
    let object = place.server.get(&place.path("configmaps/c")).await;
    assert_eq!(managers(&object), ["before-first-apply Update", "kubesvc Apply"], "{object}");
}

#[tokio::test]
async fn refusals_are_the_api_servers_own_words() {
    let place = Place::new().await;
    let mut unknown = place.web("1");
    unknown["spec"]["replica"] = json!(3);
    let mut invalid = place.web("1");
    invalid["spec"]["template"]["metadata"]["labels"] = json!({"app": "other"});
    let mut nowhere = place.web("1");
    nowhere["metadata"]["namespace"] = json!("nowhere-at-all");
    for object in [&unknown, &invalid, &nowhere] {
        let collection = format!(
            "/apis/apps/v1/namespaces/{}/deployments",
            object["metadata"]["namespace"].as_str().unwrap_or_default()
        );
        for (mode, query) in [("mode: CREATE", "kubesvc"), ("mode: APPLY", "kubectl-client-side-apply")] {
            let target = format!("{collection}?fieldManager={query}&fieldValidation=Strict");
            let (status, said) = place.server.call(Method::Post, &target, "application/json", object).await;
            let refused = place.server.run(&deploy(object, mode)).await;
            assert_eq!(failure(&refused), (status, said["message"].as_str().unwrap_or_default()), "{mode}");
        }
    }
    // The same of an object that is there.
    place.server.run(&deploy(&place.web("1"), "")).await;
    for mode in ["mode: APPLY", "mode: SERVER_SIDE", "mode: REPLACE"] {
        let refused = place.server.run(&deploy(&invalid, mode)).await;
        let (status, said) = failure(&refused);
        assert_eq!(status, 422, "{said}");
        assert!(
            said.starts_with("Deployment.apps \"web\" is invalid: spec.template.metadata.labels"),
            "{said}"
        );
        let refused = place.server.run(&deploy(&unknown, mode)).await;
        assert!(
            failure(&refused).1.contains("unknown field")
                || failure(&refused).1.contains("field not declared"),
            "{mode}: {refused:?}"
        );
    }
}
