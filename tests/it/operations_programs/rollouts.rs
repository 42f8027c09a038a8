//! Pause, resume, restart, history and undo, with the revisions of a real kube-controller-manager, beside
//! `kubectl rollout` on a twin.

use std::time::Duration;

use serde_json::{Value, json};

use super::driver::{ApiServer, body, deploy, failure, on};
use kubesvc_testkit::controlplane::{ControlPlane, StartOptions};
use kubesvc_testkit::must;
use kubesvc_testkit::namespace::TestNamespace;
use kubesvc_testkit::wait::eventually;

const MAX_WAIT: Duration = Duration::from_secs(60);
const CONTROLLERS: [&str; 5] = [
    "deployment-controller",
    "replicaset-controller",
    "statefulset-controller",
    "daemonset-controller",
    "garbage-collector-controller",
];
const KINDS: [(&str, &str); 3] =
    [("Deployment", "deployments"), ("StatefulSet", "statefulsets"), ("DaemonSet", "daemonsets")];

struct Twins<'p> {
    plane: &'p ControlPlane,
    server: ApiServer,
    ours: TestNamespace,
    theirs: TestNamespace,
}

fn workload(kind: &str, namespace: &str, image: &str) -> Value {
    let mut object = json!({
        "apiVersion": "apps/v1", "kind": kind,
        "metadata": {
            "name": "web", "namespace": namespace,
            "annotations": {"kubernetes.io/change-cause": format!("image {image}")},
        },
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "app", "image": image, "env": [{"name": "IMAGE", "value": image}]}]},
            },
        },
    });
    if kind == "StatefulSet" {
        object["spec"]["serviceName"] = json!("web");
    }
    object
}

fn path(namespace: &str, plural: &str) -> String {
    format!("/apis/apps/v1/namespaces/{namespace}/{plural}/web")
}

fn image(object: &Value) -> &Value {
    &object["spec"]["template"]["spec"]["containers"][0]["image"]
}

impl Twins<'_> {
    /// Brings both to an image, and waits until controllers made a revision of it.
    async fn roll(&self, kind: &str, plural: &str, image: &str, revision: u64) {
        for namespace in [&self.ours, &self.theirs] {
            let outcome = self.server.run(&deploy(&workload(kind, namespace.name(), image), "")).await;
            assert!(outcome.failure.is_none(), "{outcome:?}");
            self.until_revision(kind, plural, namespace, revision).await;
        }
    }

    async fn until_revision(&self, kind: &str, plural: &str, namespace: &TestNamespace, revision: u64) {
        eventually("a revision", MAX_WAIT, async || {
            let object = self.server.get(&path(namespace.name(), plural)).await;
            let is_observed = object["status"]["observedGeneration"] == object["metadata"]["generation"];
            let history =
                self.server.run(&on("revision_history", "apps", kind, namespace.name(), "web", "")).await;
            let newest = body(&history)["revisions"][0]["revision"].as_u64();
            if is_observed && newest == Some(revision) { Ok(()) } else { Err(format!("{newest:?} {object}")) }
        })
        .await;
    }

    /// What a rollout is: the specification and the annotations, without the names of namespaces.
    async fn both(&self, plural: &str) -> [Value; 2] {
        let mut both = [Value::Null, Value::Null];
        for (namespace, one) in [&self.ours, &self.theirs].into_iter().zip(&mut both) {
            let object = self.server.get(&path(namespace.name(), plural)).await.to_string();
            let object: Value =
                serde_json::from_str(&object.replace(namespace.name(), "NAMESPACE")).expect("JSON");
            *one = json!({"spec": object["spec"], "annotations": object["metadata"]["annotations"]});
        }
        both
    }

    async fn kubectl(&self, arguments: &[&str]) {
        let all = ["-n", self.theirs.name()].into_iter().chain(arguments.iter().copied());
        must(self.plane.kubectl(all).await.ok());
    }

    async fn assert_equal(&self, plural: &str, what: &str) {
        let [ours, theirs] = self.both(plural).await;
        assert_eq!(ours, theirs, "{what} of {plural}");
    }

    async fn roll_back(&self, kind: &str, plural: &str) {
        for (number, image) in [(1, "one"), (2, "two"), (3, "three")] {
            self.roll(kind, plural, image, number).await;
        }
        let n = self.ours.name();
        let history = self.server.run(&on("revision_history", "apps", kind, n, "web", "")).await;
        let revisions = body(&history)["revisions"].as_array().cloned().expect("revisions");
        let numbers: Vec<_> = revisions.iter().filter_map(|revision| revision["revision"].as_u64()).collect();
        assert_eq!(numbers, [3, 2, 1], "{kind}");
        let causes: Vec<_> =
            revisions.iter().filter_map(|revision| revision["changeCause"].as_str()).collect();
        assert_eq!(causes, ["image three", "image two", "image one"], "{kind}");
        let currents: Vec<_> = revisions.iter().map(|revision| revision["current"] == true).collect();
        assert_eq!(currents, [true, false, false], "{kind}");

        let undo = |to: &str| on("undo_rollout", "apps", kind, n, "web", to);
        let before = self.server.get(&path(n, plural)).await;
        let dry = self.server.dry_run(&undo("revisions_back: 1")).await;
        assert_eq!(image(body(&dry)), "two", "{kind}");
        let after = self.server.get(&path(n, plural)).await;
        assert_eq!(after["spec"], before["spec"], "a dry run changes nothing");
        let unknown = self.server.run(&undo("to_revision: 9")).await;
        assert_eq!(failure(&unknown), (404, "there is no revision 9; there are: 1, 2, 3"), "{kind}");
        let same = self.server.run(&undo("to_revision: 3")).await;
        assert_eq!((same.status, image(body(&same))), (200, &json!("three")));

        let target = format!("{}/web", kind.to_lowercase());
        let undone = self.server.run(&undo("revisions_back: 1")).await;
        assert_eq!(image(body(&undone)), "two", "{kind}");
        self.kubectl(&["rollout", "undo", &target]).await;
        for namespace in [&self.ours, &self.theirs] {
            self.until_revision(kind, plural, namespace, 4).await;
        }
        self.assert_equal(plural, "undo").await;
        let undone = self.server.run(&undo("to_revision: 1")).await;
        assert_eq!(image(body(&undone)), "one", "{kind}");
        self.kubectl(&["rollout", "undo", &target, "--to-revision=1"]).await;
        for namespace in [&self.ours, &self.theirs] {
            self.until_revision(kind, plural, namespace, 5).await;
        }
        self.assert_equal(plural, "undo to a revision").await;
    }

    async fn pause_and_restart(&self) {
        let n = self.ours.name();
        let on_web = |verb: &str, more: &str| on(verb, "apps", "Deployment", n, "web", more);
        let paused = self.server.run(&on_web("pause_rollout", "")).await;
        assert_eq!(body(&paused)["spec"]["paused"], true);
        self.kubectl(&["rollout", "pause", "deployment/web"]).await;
        self.assert_equal("deployments", "pause").await;
        let refused = self.server.run(&on_web("undo_rollout", "revisions_back: 1")).await;
        assert_eq!(failure(&refused), (409, "the Deployment is paused: resume its rollout first"));
        let resumed = self.server.run(&on_web("resume_rollout", "")).await;
        assert!(body(&resumed)["spec"]["paused"].is_null());
        self.kubectl(&["rollout", "resume", "deployment/web"]).await;
        self.assert_equal("deployments", "resume").await;
        let paused = self.server.run(&on("pause_rollout", "apps", "DaemonSet", n, "web", "")).await;
        assert_eq!(failure(&paused).0, 400);
        for (kind, plural) in KINDS {
            let restarted = self.server.run(&on("restart_rollout", "apps", kind, n, "web", "")).await;
            let annotations = &body(&restarted)["spec"]["template"]["metadata"]["annotations"];
            assert_eq!(annotations["kubectl.kubernetes.io/restartedAt"], "2026-01-01T00:00:00Z", "{kind}");
            self.until_revision(kind, plural, &self.ours, 6).await;
        }
    }

    /// A foreground delete ends when the garbage collector has taken what the Deployment owns.
    async fn delete(&self) {
        let n = self.ours.name();
        let deleted = self
            .server
            .run(&on("delete", "apps", "Deployment", n, "web", "propagation: FOREGROUND grace_s: 60"))
            .await;
        assert_eq!((deleted.status, &deleted.failure), (200, &None), "{:?}", deleted.body);
        let left = self.server.get(&format!("/apis/apps/v1/namespaces/{n}/replicasets")).await;
        assert_eq!(left["items"], json!([]));
    }
}

#[tokio::test]
async fn rollouts_are_undone_paused_and_restarted_as_by_kubectl() {
    let plane = must(ControlPlane::reused(StartOptions::without_audit()).await);
    let controllers = must(plane.start_controllers(&CONTROLLERS).await);
    let server = ApiServer::new(plane.client().await);
    let twins =
        Twins { plane: &plane, server, ours: plane.namespace().await, theirs: plane.namespace().await };
    for (kind, plural) in KINDS {
        twins.roll_back(kind, plural).await;
    }
    twins.pause_and_restart().await;
    twins.delete().await;
    must(controllers.check_running());
}
