//! The CRDs, and the operator's permissions.

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::rbac::v1::{
    ClusterRole, ClusterRoleBinding, PolicyRule, RoleBinding, RoleRef, Subject,
};
use kube::{Api, Client, api::PostParams};
use serde_json::{Value, json};
use std::path::Path;
use tokio::sync::OnceCell;

use super::World;
use crate::charts;
use kubesvc_testkit::{controlplane::ControlPlane, must, namespace::TestNamespace, wait::eventually};

/// Set once the CRDs are installed in the shared control plane.
static INSTALLED: OnceCell<()> = OnceCell::const_new();
/// What the chart gives the operator, rendered once.
static RIGHTS: OnceCell<Rights> = OnceCell::const_new();

/// Permissions of the operator.
struct Rights {
    /// In each namespace that it watches.
    rules: Vec<PolicyRule>,
    /// ClusterRoles of Kubernetes that hold in the whole cluster.
    cluster_roles: Vec<String>,
}

/// Returns the user name of a namespace's operator: its service account, authenticated by a certificate.
pub(super) fn operator_user(namespace: &str) -> String {
    format!("system:serviceaccount:{namespace}:kubesvc-operator")
}

/// Applies `crds/` to the shared control plane once and waits until it serves all kinds.
pub(crate) async fn install_definitions(shared: &'static ControlPlane) {
    INSTALLED.get_or_init(|| install(shared)).await;
}

/// Applies `crds/` and waits until the API server serves both kinds.
pub(super) async fn install(plane: &ControlPlane) {
    let folder = in_repository("crds");
    must(plane.kubectl(["apply", "--server-side", "-f", &folder]).await.ok());
    let established = ["wait", "--for=condition=Established", "--timeout=45s", "-f", &folder];
    must(plane.kubectl(established).await.ok());
    for kind in ["ksa", "ksg", "ksm"] {
        eventually("a kind that is served", super::MAX_WAIT, async || {
            plane.kubectl(["get", kind]).await.ok()
        })
        .await;
    }
}

pub(crate) fn in_repository(path: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path).display().to_string()
}

/// Grants the operator of this namespace the permissions of the chart: its roles in this namespace only, and what
/// the chart binds to Kubernetes' own roles in the whole cluster.
pub(super) async fn grant(namespace: &TestNamespace) {
    let rights = RIGHTS.get_or_init(async || rights()).await;
    let role = role_name(namespace.name());
    write_role(&namespace.client(), &role, rights.rules.clone()).await;
    let mut binding = RoleBinding {
        role_ref: reference(&role),
        subjects: Some(vec![user(&operator_user(namespace.name()))]),
        ..RoleBinding::default()
    };
    binding.metadata.name = Some(role.clone());
    let answer = namespace.api::<RoleBinding>().create(&PostParams::default(), &binding).await;
    must(answer.map_err(|e| format!("RoleBinding {role}: {e}")));
    let list = ResourceAttributes {
        namespace: Some(namespace.name().to_owned()),
        group: Some("kubesvc.io".to_owned()),
        resource: Some("kubesvcaccounts".to_owned()),
        verb: Some("list".to_owned()),
        ..ResourceAttributes::default()
    };
    let operator = operator_user(namespace.name());
    until_allowed(&namespace.client(), &operator, list).await;
    for cluster_role in &rights.cluster_roles {
        let name = format!("{role}-{cluster_role}");
        bind_in_cluster(&namespace.client(), &name, cluster_role, &operator).await;
    }
    let review = ResourceAttributes {
        group: Some("authorization.k8s.io".to_owned()),
        resource: Some("subjectaccessreviews".to_owned()),
        verb: Some("create".to_owned()),
        ..ResourceAttributes::default()
    };
    until_allowed(&namespace.client(), &operator, review).await;
}

/// Waits until a user may do this: under load, the API server's authorizer follows roles and bindings late.
async fn until_allowed(client: &Client, user: &str, attributes: ResourceAttributes) {
    let question = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.to_owned()),
            resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    eventually(&format!("the rights of {user}"), super::MAX_WAIT, async || {
        let answer = reviews.create(&PostParams::default(), &question).await.map_err(|e| e.to_string())?;
        let status = answer.status.unwrap_or_default();
        if status.allowed { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await;
}

fn role_name(namespace: &str) -> String {
    format!("{namespace}-operator")
}

/// Reads the roles that the chart binds to the operator's service account. `config/rbac` has the same ones, which
/// the tests of the chart compare.
fn rights() -> Rights {
    let objects = charts::objects("kubesvc", &[]);
    let of_kind = |kinds: &'static [&'static str]| {
        objects.iter().filter(|object| kinds.iter().any(|kind| object["kind"] == *kind))
    };
    let bound: Vec<&Value> = of_kind(&["ClusterRoleBinding", "RoleBinding"])
        .filter(|binding| binding["subjects"][0]["kind"] == "ServiceAccount")
        .map(|binding| &binding["roleRef"]["name"])
        .collect();
    let rules: Vec<PolicyRule> = of_kind(&["ClusterRole", "Role"])
        .filter(|role| bound.contains(&&role["metadata"]["name"]))
        .filter_map(|role| role["rules"].as_array())
        .flatten()
        .map(|rule| serde_json::from_value(rule.clone()).expect("a rule as RBAC has them"))
        .collect();
    assert!(!rules.is_empty(), "the chart binds no role with rules to a service account");
    let cluster_roles = of_kind(&["ClusterRoleBinding"])
        .filter_map(|binding| binding["roleRef"]["name"].as_str())
        .filter(|role| role.starts_with("system:"))
        .map(str::to_owned)
        .collect();
    Rights { rules, cluster_roles }
}

/// Creates or replaces a ClusterRole.
pub(super) async fn write_role(client: &Client, name: &str, rules: Vec<PolicyRule>) {
    let roles: Api<ClusterRole> = Api::all(client.clone());
    let mut role = ClusterRole { rules: Some(rules), ..ClusterRole::default() };
    role.metadata.name = Some(name.to_owned());
    let answer = match must(roles.get_opt(name).await.map_err(|e| e.to_string())) {
        Some(old) => {
            role.metadata.resource_version = old.metadata.resource_version;
            roles.replace(name, &PostParams::default(), &role).await
        }
        None => roles.create(&PostParams::default(), &role).await,
    };
    must(answer.map_err(|e| format!("ClusterRole {name}: {e}")));
}

/// Binds a user in the whole cluster to a ClusterRole.
async fn bind_in_cluster(client: &Client, name: &str, role: &str, whom: &str) {
    let mut binding = ClusterRoleBinding {
        role_ref: reference(role),
        subjects: Some(vec![user(whom)]),
        ..ClusterRoleBinding::default()
    };
    binding.metadata.name = Some(name.to_owned());
    let answer =
        Api::<ClusterRoleBinding>::all(client.clone()).create(&PostParams::default(), &binding).await;
    must(answer.map_err(|e| format!("ClusterRoleBinding {name}: {e}")));
}

/// Binds a user in all namespaces to the ClusterRole with the binding's name.
pub(super) async fn bind_everywhere(client: &Client, role: &str, whom: &str) {
    bind_in_cluster(client, role, role, whom).await;
    let list = ResourceAttributes {
        resource: Some("namespaces".to_owned()),
        verb: Some("list".to_owned()),
        ..ResourceAttributes::default()
    };
    until_allowed(client, whom, list).await;
}

const RBAC: &str = "rbac.authorization.k8s.io";

fn reference(role: &str) -> RoleRef {
    RoleRef { api_group: RBAC.to_owned(), kind: "ClusterRole".to_owned(), name: role.to_owned() }
}

fn user(name: &str) -> Subject {
    Subject {
        api_group: Some(RBAC.to_owned()),
        kind: "User".to_owned(),
        name: name.to_owned(),
        namespace: None,
    }
}

impl World {
    /// Gives the operator its rights in all namespaces, as the chart does for `watchNamespaces: ["*"]`.
    pub(crate) async fn may_watch_all(&self) {
        let (role, operator) = (role_name(self.namespace()), operator_user(self.namespace()));
        bind_in_cluster(&self.client, &role, &role, &operator).await;
        let list = ResourceAttributes {
            group: Some("kubesvc.io".to_owned()),
            resource: Some("kubesvcaccounts".to_owned()),
            verb: Some("list".to_owned()),
            ..ResourceAttributes::default()
        };
        until_allowed(&self.client, &operator, list).await;
    }

    /// Revokes the operator's permission to write the status of accounts until [`World::allow_status_writes`]:
    /// changes of the spec stay unhandled, and callers can observe that.
    pub(crate) async fn forbid_status_writes(&self) {
        let rules = &RIGHTS.get().expect("a world has started").rules;
        let (status, rest) = split(rules);
        assert!(!status.is_empty(), "no rule speaks of the status of accounts: {rules:?}");
        write_role(&self.client, &role_name(self.namespace()), rest).await;
        self.until_rights(false).await;
    }

    /// Grants that permission again.
    pub(crate) async fn allow_status_writes(&self) {
        let rules = RIGHTS.get().expect("a world has started").rules.clone();
        write_role(&self.client, &role_name(self.namespace()), rules).await;
        self.until_rights(true).await;
    }

    /// Revokes all of the operator's permissions on these resources, given by their plurals.
    pub(crate) async fn forbid(&self, resources: &[&str]) {
        let mut rules = RIGHTS.get().expect("a world has started").rules.clone();
        for rule in &mut rules {
            if let Some(of_rule) = &mut rule.resources {
                of_rule.retain(|one| !resources.contains(&one.as_str()));
            }
        }
        rules.retain(|rule| rule.resources.as_ref().is_none_or(|of_rule| !of_rule.is_empty()));
        write_role(&self.client, &role_name(self.namespace()), rules).await;
        let user = operator_user(self.namespace());
        for resource in resources {
            eventually("the change of rights", super::MAX_WAIT, async || {
                let answer = self.kubectl(&["auth", "can-i", "list", resource, "--as", user.as_str()]).await;
                if answer.stdout.trim() == "no" { Ok(()) } else { Err(format!("{answer:?}")) }
            })
            .await;
        }
    }

    /// Waits until the authorizer has followed the change of the role.
    async fn until_rights(&self, wanted: bool) {
        let user = operator_user(self.namespace());
        let question = [
            "auth",
            "can-i",
            "update",
            "kubesvcaccounts.kubesvc.io",
            "--subresource=status",
            "--as",
            user.as_str(),
        ];
        eventually("the change of rights", super::MAX_WAIT, async || {
            let answer = self.kubectl(&question).await;
            if (answer.stdout.trim() == "yes") == wanted { Ok(()) } else { Err(format!("{answer:?}")) }
        })
        .await;
    }
}

/// Splits the rules into those without the status of accounts and those that contain it. A rule for all resources is
/// expanded.
fn split(rules: &[PolicyRule]) -> (Vec<PolicyRule>, Vec<PolicyRule>) {
    const STATUS: &str = "kubesvcaccounts/status";
    let (mut status, mut rest) = (Vec::new(), Vec::new());
    for rule in rules {
        let resources = rule.resources.clone().unwrap_or_default();
        if resources.iter().any(|one| one == "*") {
            status.push(rule.clone());
            rest.extend(written_out());
        } else if resources.iter().any(|one| one == STATUS) {
            status.push(rule.clone());
            let left: Vec<_> = resources.into_iter().filter(|one| one != STATUS).collect();
            if !left.is_empty() {
                rest.push(PolicyRule { resources: Some(left), ..rule.clone() });
            }
        } else {
            rest.push(rule.clone());
        }
    }
    (status, rest)
}

fn written_out() -> Vec<PolicyRule> {
    let rules = json!([
        {"apiGroups": ["kubesvc.io"], "resources": ["kubesvcaccounts", "kubesvcagents", "kubesvcagents/status"], "verbs": ["*"]},
        {"apiGroups": [""], "resources": ["secrets", "events"], "verbs": ["*"]},
        {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["*"]},
    ]);
    serde_json::from_value(rules).expect("fixed rules")
}
