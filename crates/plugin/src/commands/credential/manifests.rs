//! The objects of a credential in its target cluster, and the kubeconfig and the Secret made of it. Pure.

use clap::ValueEnum;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Namespace, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding};
use kube::Resource;
use kube::api::ApiResource;
use kube::config::Cluster;
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};

use kubesvc_core::credential_expiry::EXPIRES_ANNOTATION;
use kubesvc_core::kubeconfig::{KubeconfigError, render, vet};
use kubesvc_core::{MANAGED_BY_LABEL, PLUGIN_FIELD_MANAGER, WATCH_LABEL};

/// Label with the name of the credential, in both clusters.
const CREDENTIAL_LABEL: &str = "kubesvc.io/credential";
/// The rules of the preset `deploy`, which the agent's chart has too.
const DEPLOY_ROLE: &str = include_str!("../../../../../config/modes/agent/role.yaml");

/// Rights of a credential, as `rbac.preset` of the agent's chart names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Preset {
    /// See workloads and what belongs to them.
    View,
    /// See them, and change them.
    Deploy,
    /// As deploy, and list Secrets, in which Helm keeps its releases.
    Helm,
}

impl Preset {
    fn rules(self) -> Vec<PolicyRule> {
        let role: ClusterRole =
            serde_saphyr::from_str(DEPLOY_ROLE).expect("the role is part of the program; a test reads it");
        let mut rules = role.rules.unwrap_or_default();
        match self {
            Self::View => {
                let reads = |verb: &String| matches!(verb.as_str(), "get" | "list" | "watch");
                rules.retain(|rule| rule.verbs.iter().all(reads));
            }
            Self::Deploy => {}
            Self::Helm => rules.push(PolicyRule {
                api_groups: Some(vec![String::new()]),
                resources: Some(vec!["secrets".to_owned()]),
                verbs: vec!["list".to_owned()],
                ..PolicyRule::default()
            }),
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

/// An object to apply.
#[derive(Clone, Debug)]
pub(super) struct Manifest {
    pub(super) resource: ApiResource,
    pub(super) namespace: Option<String>,
    pub(super) name: String,
    /// The fields that the command owns, metadata included.
    pub(super) object: Value,
}

impl Manifest {
    fn new<K>(credential: &str, namespace: Option<&str>, name: &str, mut object: Value) -> Self
    where
        K: Resource<DynamicType = ()>,
    {
        let resource = ApiResource::erase::<K>(&());
        object["apiVersion"] = json!(resource.api_version);
        object["kind"] = json!(resource.kind);
        let metadata = &mut object["metadata"];
        metadata["name"] = json!(name);
        metadata["labels"][MANAGED_BY_LABEL] = json!(PLUGIN_FIELD_MANAGER);
        metadata["labels"][CREDENTIAL_LABEL] = json!(credential);
        if let Some(namespace) = namespace {
            metadata["namespace"] = json!(namespace);
        }
        Self { resource, namespace: namespace.map(str::to_owned), name: name.to_owned(), object }
    }

    /// `clusterrole.rbac.authorization.k8s.io/NAME`, as kubectl prints it.
    pub(super) fn shown(&self) -> String {
        let ApiResource { group, kind, .. } = &self.resource;
        let group = if group.is_empty() { String::new() } else { format!(".{group}") };
        format!("{}{group}/{}", kind.to_lowercase(), self.name)
    }
}

/// What the target cluster is to have.
#[derive(Clone, Copy, Debug)]
pub(super) struct CredentialRights<'a> {
    /// Name of the credential.
    pub(super) credential: &'a str,
    pub(super) preset: Preset,
    /// Namespaces that the rights are limited to; none: all.
    pub(super) namespaces: &'a [String],
    /// Namespace of the service account.
    pub(super) home: &'a str,
}

impl CredentialRights<'_> {
    /// Name of each object in the target cluster.
    pub(super) fn name(&self) -> String {
        format!("kubesvc-{}", self.credential)
    }

    /// The namespace of the service account.
    pub(super) fn home_manifest(&self) -> Manifest {
        Manifest::new::<Namespace>(self.credential, None, self.home, json!({}))
    }

    /// Service account, roles and bindings, in the order in which they can be made.
    pub(super) fn manifests(&self) -> Vec<Manifest> {
        let (credential, name) = (self.credential, &self.name());
        let account = json!({"automountServiceAccountToken": false});
        let mut all = vec![Manifest::new::<ServiceAccount>(credential, Some(self.home), name, account)];
        let binding = |role: &str| {
            json!({
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role, "name": name},
                "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": self.home}],
            })
        };
        if self.namespaces.is_empty() {
            let rules = json!({"rules": self.preset.rules()});
            all.push(Manifest::new::<ClusterRole>(credential, None, name, rules));
            all.push(Manifest::new::<ClusterRoleBinding>(credential, None, name, binding("ClusterRole")));
        }
        for namespace in self.namespaces {
            let rules = json!({"rules": self.preset.rules_of_a_namespace()});
            all.push(Manifest::new::<Role>(credential, Some(namespace), name, rules));
            all.push(Manifest::new::<RoleBinding>(credential, Some(namespace), name, binding("Role")));
        }
        all
    }
}

/// The Secret with the kubeconfig, under a key.
pub(super) fn secret(
    credential: &str,
    (namespace, name, key): (&str, &str, &str),
    expires: &str,
    kubeconfig: Vec<u8>,
) -> Manifest {
    let fields = json!({
        "metadata": {"labels": {WATCH_LABEL: "true"}, "annotations": {EXPIRES_ANNOTATION: expires}},
        "data": {key: ByteString(kubeconfig)},
    });
    Manifest::new::<Secret>(credential, Some(namespace), name, fields)
}

/// Builds a kubeconfig of the target's cluster entry and a token, and vets it as operator and agent will.
///
/// # Errors
///
/// The entry names something that an account's kubeconfig may not contain, such as a proxy.
pub(super) fn kubeconfig(
    entry: &Cluster,
    context: &str,
    namespace: Option<&String>,
    token: &str,
) -> Result<Vec<u8>, KubeconfigError> {
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
