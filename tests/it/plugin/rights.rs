//! The roles for people in `config/people`, on a real API server.

use std::path::PathBuf;

use kubesvc_core::State;
use serde_json::json;

use super::{Scene, run};
use crate::world::{MAX_WAIT, World};
use kubesvc_testkit::controlplane;
use kubesvc_testkit::kubectl::Output;
use kubesvc_testkit::must;
use kubesvc_testkit::wait::eventually;

/// A person with a kubeconfig of their own.
struct Person<'w> {
    world: &'w World,
    kubeconfig: PathBuf,
}

impl<'w> Person<'w> {
    /// A member of a group that exists only in this world, bound to a role of `config/people` in its
    /// namespace.
    async fn with(world: &'w World, role: &str) -> Self {
        let group = format!("{role}-of-{}", world.namespace());
        let identity = must(world.control_plane().client_certificate(&format!("one-{group}"), Some(&group)));
        let text = world.control_plane().kubeconfig_for_certificate(&identity);
        let kubeconfig = must(world.folder().write(&format!("{role}.kubeconfig"), &text));
        let (role, group) = (format!("--clusterrole={role}"), format!("--group={group}"));
        let name = role.replace("--clusterrole=", "people-");
        must(world.kubectl(&["create", "rolebinding", &name, &role, &group]).await.ok());
        let person = Self { world, kubeconfig };
        // The API server takes a moment to apply a binding.
        eventually("rights that hold", MAX_WAIT, async || {
            let answer = person.plugin(&["list"]).await;
            if answer.code == Some(0) { Ok(()) } else { Err(format!("{answer:?}")) }
        })
        .await;
        person
    }

    async fn plugin(&self, arguments: &[&str]) -> Output {
        let all = ["-n", self.world.namespace()].into_iter().chain(arguments.iter().copied());
        run(&self.kubeconfig, all).await
    }

    async fn may(&self, arguments: &[&str]) {
        let answer = self.plugin(arguments).await;
        assert_eq!(answer.code, Some(0), "{arguments:?}: {answer:?}");
        assert!(!answer.stderr.contains("you may not"), "{arguments:?}: {answer:?}");
    }

    async fn may_not(&self, arguments: &[&str], right: &str) {
        let answer = self.plugin(arguments).await;
        assert_eq!(answer.code, Some(1), "{arguments:?}: {answer:?}");
        assert!(answer.stderr.contains(right), "{arguments:?} does not say {right:?}: {answer:?}");
    }

    /// Whether the API server passes a request of this verb on to a Service.
    async fn may_reach(&self, verb: &str, service: &str) -> bool {
        let name = format!("--kubeconfig={}", self.kubeconfig.display());
        let service = format!("services/{service}");
        let asked = [&name, "auth", "can-i", verb, &service, "--subresource=proxy"];
        self.world.kubectl(&asked).await.stdout.trim() == "yes"
    }

    /// Whether the API server allows a verb on a part of accounts, which it need not serve for that.
    async fn may_use(&self, verb: &str, part: &str) -> bool {
        let asked = json!({"verb": verb, "group": "proxy.kubesvc.io", "resource": "accounts", "subresource": part,
            "namespace": self.world.namespace(), "name": "prod"});
        let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked}});
        // Validation would read the definitions of custom resources, which this user may not.
        let arguments = ["create", "--validate=false", "-f", "-", "-o", "jsonpath={.status.allowed}"];
        let answer = controlplane::kubectl_with(&self.kubeconfig, arguments, &review.to_string()).await;
        must(must(answer).ok()) == "true"
    }

    /// Whether the API server itself allows a request.
    async fn is_allowed(&self, verb: &str, resource: &str) -> bool {
        let name = format!("--kubeconfig={}", self.kubeconfig.display());
        let (resource, part) = resource.split_once('/').unwrap_or((resource, ""));
        let part = format!("--subresource={part}");
        let answer = self.world.kubectl(&[&name, "auth", "can-i", verb, resource, &part]).await;
        answer.stdout.trim() == "yes"
    }
}

/// Creates the roles of `config/people`.
pub(super) async fn apply_roles(world: &World) {
    let folder = format!("{}/config/people", env!("CARGO_MANIFEST_DIR"));
    must(world.kubectl(&["apply", "-k", &folder]).await.ok());
}

pub(super) async fn viewers_see_everything_and_change_nothing(scene: &Scene) {
    let Scene { world, cluster, .. } = scene;
    let viewer = Person::with(world, "kubesvc-view").await;
    world.account("viewed").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.account("unheld").zone("nowhere").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("viewed", State::Active).await;
    world.until_reason("unheld", State::Failed, "NoAgent").await;
    for shown in [
        &["list"][..],
        &["list", "-o", "wide"],
        &["list", "-o", "json"],
        &["describe", "viewed"],
        &["describe", "unheld"],
        &["why", "unheld"],
        &["wait", "viewed", "--timeout", "30s"],
        &["agents"],
    ] {
        viewer.may(shown).await;
    }
    assert!(viewer.may_reach("get", "kubesvc-operator:http").await, "for cache");
    for (verb, service) in
        [("create", "kubesvc-operator:http"), ("get", "kubesvc-operator:grpc"), ("get", "other:http")]
    {
        assert!(!viewer.may_reach(verb, service).await, "{verb} {service}");
    }
    let described = viewer.plugin(&["describe", "viewed"]).await.stdout;
    assert!(described.contains("Activating"), "its Events are there: {described}");
    let before = world.object("viewed").await.expect("it is there");
    for (changes, right) in [
        (&["deactivate", "viewed"][..], "you may not patch kubesvcaccounts"),
        (&["activate", "viewed", "--force"], "already"),
        (&["retry", "unheld"], "you may not patch kubesvcaccounts"),
        (&["agents", "revoke", "agent-1"], "you may not patch kubesvcagents"),
        (&["list", "-A"], "in all namespaces"),
    ] {
        if right == "already" {
            viewer.may(changes).await;
        } else {
            viewer.may_not(changes, right).await;
        }
    }
    let after = world.object("viewed").await.expect("it is there");
    assert_eq!(after.metadata.resource_version, before.metadata.resource_version);
    for (verb, resource) in [
        ("get", "secrets"),
        ("list", "secrets"),
        ("create", "kubesvcaccounts"),
        ("delete", "kubesvcaccounts"),
    ] {
        assert!(!viewer.is_allowed(verb, resource).await, "{verb} {resource}");
    }
}

pub(super) async fn operators_change_accounts_and_agents_and_read_no_secret(scene: &Scene) {
    let Scene { world, cluster, .. } = scene;
    let operator = Person::with(world, "kubesvc-operate").await;
    let _agent = world.agent("operated-1").zone("operated").start().await;
    world.account("operated").zone("operated").kubeconfig(&cluster.kubeconfig()).create().await;
    world.account("waiting").zone("nowhere").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("operated", State::Active).await;
    world.until_reason("waiting", State::Failed, "NoAgent").await;
    for command in [
        &["list"][..],
        &["describe", "operated"],
        &["why", "waiting"],
        &["deactivate", "operated", "--wait", "--timeout", "45s"],
        &["activate", "operated", "--wait", "--timeout", "45s"],
        &["retry", "waiting"],
        &["agents", "revoke", "operated-1"],
        &["agents", "approve", "operated-1"],
        &["wait", "operated", "--timeout", "45s"],
    ] {
        operator.may(command).await;
    }
    operator.may_not(&["list", "-A"], "in all namespaces").await;
    assert!(operator.is_allowed("patch", "kubesvcaccounts").await);
    for (verb, resource) in [
        ("get", "secrets"),
        ("list", "secrets"),
        ("create", "kubesvcaccounts"),
        ("delete", "kubesvcaccounts"),
        ("delete", "kubesvcagents"),
        ("patch", "kubesvcaccounts/status"),
    ] {
        assert!(!operator.is_allowed(verb, resource).await, "{verb} {resource}");
    }
}

pub(super) async fn users_of_accounts_have_the_verbs_of_their_role_and_see_no_secret_of_the_operators_cluster(
    world: &World,
) {
    let viewer = Person::with(world, "kubesvc-api-view").await;
    let editor = Person::with(world, "kubesvc-api-edit").await;
    for (verb, part, for_viewers, for_editors) in [
        ("get", "proxy", true, true),
        ("get", "operations", true, true),
        ("create", "proxy", false, true),
        ("update", "proxy", false, true),
        ("patch", "proxy", false, true),
        ("delete", "proxy", false, true),
        ("create", "connect", false, false),
    ] {
        assert_eq!(viewer.may_use(verb, part).await, for_viewers, "{verb} accounts/{part}");
        assert_eq!(editor.may_use(verb, part).await, for_editors, "{verb} accounts/{part}");
    }
    for (verb, resource) in [("get", "secrets"), ("patch", "kubesvcaccounts")] {
        assert!(!editor.is_allowed(verb, resource).await, "{verb} {resource}");
    }
}
