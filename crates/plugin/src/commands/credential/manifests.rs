//! The objects that a credential consists of in its target cluster, and the kubeconfig and the Secret made of it. Pure.

use std::collections::BTreeMap;

use clap::ValueEnum;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Namespace, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding};
use kube::api::ApiResource;
use kube::config::Cluster;
use serde_json::{Value, json};

use kubesvc_core::credential_expiry::EXPIRES_ANNOTATION;
use kubesvc_core::kubeconfig::{KubeconfigError, render, vet};
use kubesvc_core::{MANAGED_BY_LABEL, PLUGIN_FIELD_MANAGER, WATCH_LABEL};

/// Label with the name of the credential, in both clusters.
pub(crate) const CREDENTIAL_LABEL: &str = "kubesvc.io/credential";
/// Annotation of the Secret: uid of `kube-system` of the target cluster.
pub(crate) const CLUSTER_ANNOTATION: &str = "kubesvc.io/credential-cluster";
/// Namespace of service accounts with rights in all namespaces.
pub(crate) const DEFAULT_HOME: &str = "kubesvc";

/// The rules of the preset `deploy`, which the agent's chart has too.
const DEPLOY_ROLE: &str = include_str!("../../../../../config/modes/agent/role.yaml");

/// Rights of a credential, as `rbac.preset` of the agent's chart names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Preset {
    /// See workloads and what belongs to them.
    View,
    /// See them, and change them.
    Deploy,
    /// As deploy, and list Secrets, in which Helm keeps its releases.
    Helm,
}

impl Preset {
    /// The rules of this preset for a ClusterRole.
    pub(crate) fn rules(self) -> Vec<PolicyRule> {
        let role: ClusterRole =
            serde_saphyr::from_str(DEPLOY_ROLE).expect("the role is part of the program; a test reads it");
        let mut rules = role.rules.unwrap_or_default();
        if self == Self::View {
            let reads = |verb: &String| matches!(verb.as_str(), "get" | "list" | "watch");
            rules.retain(|rule| rule.verbs.iter().all(reads));
        }
        if self == Self::Helm {
            rules.push(PolicyRule {
                api_groups: Some(vec![String::new()]),
                resources: Some(vec!["secrets".to_owned()]),
                verbs: vec!["list".to_owned()],
                ..PolicyRule::default()
            });
        }
        rules
    }

    /// The rules for a Role: without definitions, which belong to no namespace, so that the administrator of a namespace
    /// may grant them.
    fn rules_of_a_namespace(self) -> Vec<PolicyRule> {
        let mut rules = self.rules();
        rules.retain(|rule| !rule.api_groups.iter().flatten().any(|group| group == "apiextensions.k8s.io"));
        rules
    }
}

/// A kind of object that the command writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Namespace,
    ServiceAccount,
    ClusterRole,
    ClusterRoleBinding,
    Role,
    RoleBinding,
    Secret,
}

impl Kind {
    /// The resource of the API.
    pub(crate) fn resource(self) -> ApiResource {
        match self {
            Self::Namespace => ApiResource::erase::<Namespace>(&()),
            Self::ServiceAccount => ApiResource::erase::<ServiceAccount>(&()),
            Self::ClusterRole => ApiResource::erase::<ClusterRole>(&()),
            Self::ClusterRoleBinding => ApiResource::erase::<ClusterRoleBinding>(&()),
            Self::Role => ApiResource::erase::<Role>(&()),
            Self::RoleBinding => ApiResource::erase::<RoleBinding>(&()),
            Self::Secret => ApiResource::erase::<Secret>(&()),
        }
    }

    /// Plural, as RBAC names it.
    pub(crate) fn plural(self) -> &'static str {
        match self {
            Self::Namespace => "namespaces",
            Self::ServiceAccount => "serviceaccounts",
            Self::ClusterRole => "clusterroles",
            Self::ClusterRoleBinding => "clusterrolebindings",
            Self::Role => "roles",
            Self::RoleBinding => "rolebindings",
            Self::Secret => "secrets",
        }
    }

    /// Whether it grants what another object contains, so that it cannot be tried before that object is there.
    pub(crate) fn is_binding(self) -> bool {
        matches!(self, Self::ClusterRoleBinding | Self::RoleBinding)
    }
}

/// An object as it is to be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Manifest {
    pub(crate) kind: Kind,
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
    /// The fields that the command owns, metadata included.
    pub(crate) object: Value,
}

impl Manifest {
    fn new(kind: Kind, namespace: Option<&str>, name: &str, cluster: &str, fields: Value) -> Self {
        let resource = kind.resource();
        let mut object = json!({
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": name, "labels": labels(cluster)},
        });
        if let Some(namespace) = namespace {
            object["metadata"]["namespace"] = json!(namespace);
        }
        if let (Some(into), Value::Object(fields)) = (object.as_object_mut(), fields) {
            into.extend(fields);
        }
        Self { kind, namespace: namespace.map(str::to_owned), name: name.to_owned(), object }
    }

    /// `clusterrole.rbac.authorization.k8s.io/NAME`, as kubectl prints it.
    pub(crate) fn shown(&self) -> String {
        let resource = self.kind.resource();
        let group = if resource.group.is_empty() { String::new() } else { format!(".{}", resource.group) };
        format!("{}{group}/{}", resource.kind.to_lowercase(), self.name)
    }
}

fn labels(cluster: &str) -> BTreeMap<&'static str, &str> {
    BTreeMap::from([(MANAGED_BY_LABEL, PLUGIN_FIELD_MANAGER), (CREDENTIAL_LABEL, cluster)])
}

/// What the target cluster is to have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant<'a> {
    /// Name of the credential.
    pub(crate) cluster: &'a str,
    pub(crate) preset: Preset,
    /// Namespaces that the rights are limited to; none: all.
    pub(crate) namespaces: &'a [String],
    /// Namespace of the service account.
    pub(crate) home: &'a str,
}

impl Grant<'_> {
    /// Name of each object in the target cluster.
    pub(crate) fn name(&self) -> String {
        format!("kubesvc-{}", self.cluster)
    }

    /// The namespace of the service account.
    pub(crate) fn home_manifest(&self) -> Manifest {
        Manifest::new(Kind::Namespace, None, self.home, self.cluster, json!({}))
    }

    /// Service account, roles and bindings, in the order in which they can be made.
    pub(crate) fn manifests(&self) -> Vec<Manifest> {
        let name = self.name();
        let new = |kind, namespace, fields| Manifest::new(kind, namespace, &name, self.cluster, fields);
        let mut all =
            vec![new(Kind::ServiceAccount, Some(self.home), json!({"automountServiceAccountToken": false}))];
        let binding = |role: &str| {
            json!({
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role, "name": name},
                "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": self.home}],
            })
        };
        if self.namespaces.is_empty() {
            all.push(new(Kind::ClusterRole, None, json!({"rules": self.preset.rules()})));
            all.push(new(Kind::ClusterRoleBinding, None, binding("ClusterRole")));
        }
        for namespace in self.namespaces {
            let rules = json!({"rules": self.preset.rules_of_a_namespace()});
            all.push(new(Kind::Role, Some(namespace), rules));
            all.push(new(Kind::RoleBinding, Some(namespace), binding("Role")));
        }
        all
    }
}

/// Where the kubeconfig of the credential is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SecretPlace {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) key: String,
}

/// The Secret with the kubeconfig; without it, in a dry run, its metadata.
pub(crate) fn secret(
    place: &SecretPlace,
    cluster: &str,
    cluster_uid: Option<&str>,
    expires: Option<&str>,
    kubeconfig: Option<&[u8]>,
) -> Manifest {
    let mut fields = json!({"type": "Opaque"});
    if let Some(bytes) = kubeconfig {
        fields["data"] = json!({&place.key: ByteString(bytes.to_vec())});
    }
    let mut manifest = Manifest::new(Kind::Secret, Some(&place.namespace), &place.name, cluster, fields);
    let metadata = &mut manifest.object["metadata"];
    metadata["labels"][WATCH_LABEL] = json!("true");
    for (annotation, value) in [(CLUSTER_ANNOTATION, cluster_uid), (EXPIRES_ANNOTATION, expires)] {
        if let Some(value) = value {
            metadata["annotations"][annotation] = json!(value);
        }
    }
    manifest
}

/// Builds a kubeconfig of the target's cluster entry and a token, and vets it as operator and agent will.
///
/// # Errors
///
/// The entry names something that an account's kubeconfig may not contain, such as a proxy.
pub(crate) fn kubeconfig(
    entry: &Cluster,
    context: &str,
    namespace: Option<&str>,
    token: &str,
) -> Result<Vec<u8>, KubeconfigError> {
    use secrecy::ExposeSecret as _;

    let document = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "cluster", "cluster": entry}],
        "users": [{"name": "user", "user": {"token": token}}],
        "contexts": [{"name": context, "context": {"cluster": "cluster", "user": "user", "namespace": namespace}}],
        "current-context": context,
    });
    let vetted = vet(document.to_string().as_bytes(), None)?;
    Ok(render(&vetted).expose_secret().to_vec())
}
