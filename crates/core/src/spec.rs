//! The spec of a `KubesvcAccount`: what a person asks for, with every rule that the API server can enforce itself.
#![expect(clippy::duplicated_attributes, reason = "each printer column has a name, a type and a path")]

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::status::{DesiredState, KubesvcAccountStatus};
use crate::ids::ZoneId;

/// Default key of a Secret that holds a kubeconfig.
pub const DEFAULT_SECRET_KEY: &str = "kubeconfig";

/// An account: one Kubernetes cluster, or some of its namespaces, that Spinnaker deploys to. Agents of one zone hold it.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "kubesvc.io",
    version = "v1alpha1",
    kind = "KubesvcAccount",
    plural = "kubesvcaccounts",
    shortname = "ksa",
    category = "spinnaker",
    namespaced,
    status = "KubesvcAccountStatus",
    derive = "PartialEq",
    doc = "An account: one Kubernetes cluster, or some of its namespaces, that Spinnaker deploys to. Agents of one zone hold it. `kubectl wait --for=condition=Ready ksa/NAME` waits until it has reached its desired state.",
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(name = "Zone", type_ = "string", json_path = ".status.zoneId"),
    printcolumn(name = "Agents", type_ = "integer", json_path = ".status.agentCount"),
    printcolumn(name = "Kube-Version", type_ = "string", json_path = ".status.kubeVersion"),
    printcolumn(name = "Retries", type_ = "integer", json_path = ".status.failedCount"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Cluster", type_ = "string", json_path = ".status.cluster", priority = "1"),
    printcolumn(
        name = "Spinnaker",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='SpinnakerRegistered')].reason",
        priority = "1"
    ),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.errorMessage", priority = "1")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("has(self.accountName) == has(oldSelf.accountName) && (!has(self.accountName) || self.accountName == oldSelf.accountName)")
        .message("spec.accountName cannot be changed: delete the account and create it under the new name"),
    validation = Rule::new("!(has(self.namespaces) && self.namespaces.size() > 0 && has(self.omitNamespaces) && self.omitNamespaces.size() > 0)")
        .message("spec.namespaces and spec.omitNamespaces exclude each other: remove one of them"),
    validation = Rule::new("!(has(self.kinds) && self.kinds.size() > 0 && has(self.omitKinds) && self.omitKinds.size() > 0)")
        .message("spec.kinds and spec.omitKinds exclude each other: remove one of them"),
    validation = Rule::new("!(has(self.onlyNamespacedResources) && self.onlyNamespacedResources) || (has(self.namespaces) && self.namespaces.size() > 0)")
        .message("spec.onlyNamespacedResources needs spec.namespaces: list the namespaces to watch"),
    validation = Rule::new("!has(self.context) || (!has(self.kubeconfig.serviceAccount) || !self.kubeconfig.serviceAccount)")
        .message("spec.context has no meaning with spec.kubeconfig.serviceAccount: remove it"),
    validation = Rule::new("!has(self.context) || !has(self.agentKubeconfig) || (!has(self.agentKubeconfig.serviceAccount) || !self.agentKubeconfig.serviceAccount)")
        .message("spec.context has no meaning with spec.agentKubeconfig.serviceAccount: remove it")
)]
pub struct KubesvcAccountSpec {
    /// Name of the account in Spinnaker. Default: the name of the object. Set it for names that are not DNS labels. It is immutable and must be unique among the accounts that the operator watches: the older object wins, and a declared account wins over one from an agent's own file.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 255))]
    #[x_kube(validation = Rule::new("!self.matches('\\\\p{Cc}')").message("spec.accountName must not contain control characters"))]
    pub account_name: Option<String>,

    /// Desired state of the account: ACTIVE (the default) or INACTIVE. An inactive account is kept, and no agent holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<DesiredState>,

    /// Zone whose agents hold the account: the agents' setting `zoneId`, by default `<deployment>_<namespace>`. If it is absent, the account is FAILED, or, with the setting `kubesvc.agents.offers`, the operator asks the agents which of them can reach the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", length(min = 1, max = 255))]
    #[x_kube(validation = Rule::new("!self.matches('\\\\p{Cc}')").message("spec.zoneId must not contain control characters"))]
    pub zone_id: Option<ZoneId>,

    /// How an agent reaches the cluster: exactly one of secretRef, reference, file and serviceAccount.
    pub kubeconfig: KubeconfigSource,

    /// How agents reach the cluster, if that differs from kubeconfig: exactly one of secretRef, reference, file and serviceAccount. Agents receive only this one; REST and the database still show kubeconfig. `context` and `insecure` apply to both. Default: kubeconfig.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_kubeconfig: Option<KubeconfigSource>,

    /// Context of the kubeconfig to use. Default: its current-context.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 255))]
    #[x_kube(validation = Rule::new("!self.matches('\\\\p{Cc}')").message("spec.context must not contain control characters"))]
    pub context: Option<String>,

    /// Do not verify the certificate of the cluster's API server. Default: false. Do not use it without a good reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub insecure: Option<bool>,

    /// Watch only these namespaces. Cannot be combined with omitNamespaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 1000),
        inner(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))
    )]
    pub namespaces: Vec<String>,

    /// Watch all namespaces except these. Cannot be combined with namespaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 1000),
        inner(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))
    )]
    pub omit_namespaces: Vec<String>,

    /// Cache only these kinds, in the singular: `deployment` in every group that has it, or `Rollout.argoproj.io`. Operations still work on all kinds. Cannot be combined with omitKinds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000), inner(length(min = 1, max = 255)))]
    pub kinds: Vec<String>,

    /// Cache all kinds except these. Cannot be combined with kinds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000), inner(length(min = 1, max = 255)))]
    pub omit_kinds: Vec<String>,

    /// Ignore cluster-scoped resources; requires namespaces. Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub only_namespaced_resources: Option<bool>,

    /// Custom resources to expose if the agent may not list the cluster's definitions (with onlyNamespacedResources).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    pub custom_resource_definitions: Vec<ExposedCustomResource>,

    /// Cache only resources that Spinnaker deployed. Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub only_spinnaker_managed: Option<bool>,

    /// No effect: metrics of pods are not sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<bool>,

    /// No effect: the agent dials directly, whatever proxy its environment names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_proxy: Option<bool>,

    /// Maximum age, in milliseconds, of a stored resource version from which a watch may resume. Default: 300000.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86_400_000_i64))]
    pub max_resumable_resource_age_ms: Option<i64>,

    /// Roles that may see and change the account in Spinnaker: lists under READ and WRITE.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16, "additionalProperties" = {
        "type": "array",
        "maxItems": 1000,
        "items": { "type": "string", "minLength": 1, "maxLength": 255 },
    }))]
    #[x_kube(validation = Rule::new("self.all(key, key in ['READ', 'WRITE'])").message("spec.permissions may have only READ and WRITE, in upper case"))]
    pub permissions: BTreeMap<String, Vec<String>>,

    /// Environment of the account in Spinnaker, for example `production`. Default: the account's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 255))]
    pub environment: Option<String>,

    /// Type of the account in Spinnaker. Default: the account's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 255))]
    pub account_type: Option<String>,

    /// How Spinnaker treats kinds that it does not know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    pub custom_resources: Vec<CustomResourceTreatment>,

    /// Whether the account appears in Spinnaker's Clouddriver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spinnaker: Option<SpinnakerRegistration>,
}

/// Whether the account appears in Spinnaker's Clouddriver.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct SpinnakerRegistration {
    /// `false` keeps the account out of Clouddriver. Otherwise the operator's settings `kubesvc.clouddriver.push` apply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub register: Option<bool>,
}

/// Field of the account's own kubeconfig.
pub const OWN_SOURCE: &str = "spec.kubeconfig";
/// Field of the agents' kubeconfig, if that is a different one.
pub const AGENT_SOURCE: &str = "spec.agentKubeconfig";

impl KubesvcAccountSpec {
    /// The kubeconfig that agents use: their own if there is one, else the account's.
    pub fn agent_source(&self) -> &KubeconfigSource {
        self.agent_kubeconfig.as_ref().unwrap_or(&self.kubeconfig)
    }

    /// The field of [`agent_source`](Self::agent_source).
    pub fn agent_source_field(&self) -> &'static str {
        if self.agent_kubeconfig.is_some() { AGENT_SOURCE } else { OWN_SOURCE }
    }

    /// All kubeconfigs of the spec with their fields: the account's own, then the agents'.
    pub fn sources(&self) -> impl Iterator<Item = (&'static str, &KubeconfigSource)> {
        let agent = self.agent_kubeconfig.as_ref().map(|source| (AGENT_SOURCE, source));
        [(OWN_SOURCE, &self.kubeconfig)].into_iter().chain(agent)
    }

    /// Names of fields that are set but have no effect in this version.
    pub fn without_effect(&self) -> Vec<&'static str> {
        let set = [("metrics", self.metrics == Some(true)), ("noProxy", self.no_proxy.is_some())];
        set.into_iter().filter_map(|(name, is_set)| is_set.then_some(name)).collect()
    }

    /// A digest of the parts that agents receive: 16 hex digits. It covers no credential; a Secret counts by
    /// its version, which is stored beside the digest in the status.
    pub(crate) fn definition_digest(&self) -> String {
        let definition = SentDefinition {
            kubeconfig: self.agent_source(),
            context: self.context.as_deref(),
            insecure: self.insecure.unwrap_or_default(),
            namespaces: &self.namespaces,
            omit_namespaces: &self.omit_namespaces,
            kinds: &self.kinds,
            omit_kinds: &self.omit_kinds,
            only_namespaced_resources: self.only_namespaced_resources.unwrap_or_default(),
            custom_resource_definitions: &self.custom_resource_definitions,
            only_spinnaker_managed: self.only_spinnaker_managed.unwrap_or_default(),
            metrics: self.metrics.unwrap_or_default(),
            no_proxy: self.no_proxy.unwrap_or_default(),
            max_resumable_resource_age_ms: self.max_resumable_resource_age_ms,
        };
        let bytes = serde_json::to_vec(&definition).expect("strings, numbers and lists are JSON");
        hex::encode(&Sha256::digest(bytes)[..8])
    }
}

/// The parts of a spec that `AddAccounts` carries. `permissions`, `environment`, `accountType` and `customResources`
/// are only for Spinnaker: changing them updates the row and involves no agent.
#[derive(Serialize)]
struct SentDefinition<'a> {
    kubeconfig: &'a KubeconfigSource,
    context: Option<&'a str>,
    insecure: bool,
    namespaces: &'a [String],
    omit_namespaces: &'a [String],
    kinds: &'a [String],
    omit_kinds: &'a [String],
    only_namespaced_resources: bool,
    custom_resource_definitions: &'a [ExposedCustomResource],
    only_spinnaker_managed: bool,
    metrics: bool,
    no_proxy: bool,
    max_resumable_resource_age_ms: Option<i64>,
}

/// How an agent reaches the cluster: exactly one of its fields.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.secretRef), has(self.reference), has(self.file), has(self.serviceAccount) && self.serviceAccount].filter(present, present).size() == 1")
    .message("exactly one of secretRef, reference, file and serviceAccount: true is needed"))]
pub struct KubeconfigSource {
    /// A Secret in the namespace of the account.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretKeyReference>,

    /// A Spinnaker secret reference: `encryptedFile:ENGINE!…`, `encrypted:ENGINE!…` or `secret://ENGINE?…`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048))]
    #[x_kube(
        validation = Rule::new("self.startsWith('encrypted:') || self.startsWith('encryptedFile:') || self.startsWith('secret://')")
            .message("reference must start with encrypted:, encryptedFile: or secret://"),
        validation = Rule::new("!self.matches('\\\\p{Cc}')").message("reference must not contain control characters")
    )]
    pub reference: Option<String>,

    /// Absolute path of a kubeconfig on the agent, in a directory that the agent's settings allow.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    #[x_kube(
        validation = Rule::new("self.startsWith('/')").message("file must be an absolute path"),
        validation = Rule::new("!self.split('/').exists(part, part == '..')").message("file must not contain .. as a part"),
        validation = Rule::new("!self.matches('\\\\p{Cc}')").message("file must not contain control characters")
    )]
    pub file: Option<String>,

    /// Use the agent's own service account, for the cluster that the agent runs in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account: Option<bool>,
}

/// A key of a Secret in the namespace of the account. Label the Secret `kubesvc.io/watch: "true"` so that its changes are seen at once.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyReference {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub name: String,
    /// Key in the Secret. Default: kubeconfig.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[-._a-zA-Z0-9]+$"))]
    pub key: Option<String>,
}

impl SecretKeyReference {
    /// The key to read: the given one, or [`DEFAULT_SECRET_KEY`].
    pub fn key(&self) -> &str {
        self.key.as_deref().unwrap_or(DEFAULT_SECRET_KEY)
    }
}

/// A custom resource that is exposed even if the agent may not list definitions.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ExposedCustomResource {
    /// `Kind.group`.
    #[schemars(length(min = 1, max = 320))]
    pub kind: String,
    /// Scope of the kind: Namespaced (the default) or Cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
}

/// Scope of the kind: Namespaced (the default) or Cluster.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(description = "Scope of a kind."))]
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Objects of the kind are in namespaces.
    #[default]
    Namespaced,
    /// Objects of the kind are cluster-scoped.
    Cluster,
}

/// How Spinnaker treats a kind that it does not know.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct CustomResourceTreatment {
    /// The kind, as `Kind.group`.
    #[schemars(length(min = 1, max = 320))]
    pub kubernetes_kind: String,
    /// Spinnaker's classification of the kind. Default: unclassified.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spinnaker_kind: Option<SpinnakerKind>,
    /// Deployment priority among several manifests, in digits; lower values are deployed first. Default: "100".
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 9))]
    #[x_kube(validation = Rule::new("self.matches('^[0-9]+$')").message("spec.customResources[].deployPriority must be digits, as a string"))]
    pub deploy_priority: Option<String>,
    /// Whether Spinnaker creates a new version at each deployment. Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub versioned: Option<bool>,
    /// Whether the kind is namespaced. Default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespaced: Option<bool>,
}

/// Clouddriver's classification of the kind. Default: unclassified.
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(description = "Spinnaker's classification of a kind."))]
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum SpinnakerKind {
    /// Running instances, such as pods.
    Instances,
    /// Configuration, such as ConfigMaps.
    Configs,
    /// Groups of instances, such as ReplicaSets.
    ServerGroups,
    /// Services and ingresses.
    LoadBalancers,
    /// Network policies.
    SecurityGroups,
    /// Managers of server groups, such as Deployments.
    ServerGroupManagers,
    /// Anything else.
    #[default]
    Unclassified,
}

impl SpinnakerKind {
    /// All classes, with their names.
    pub const NAMED: [(&str, Self); 7] = [
        ("instances", Self::Instances),
        ("configs", Self::Configs),
        ("serverGroups", Self::ServerGroups),
        ("loadBalancers", Self::LoadBalancers),
        ("securityGroups", Self::SecurityGroups),
        ("serverGroupManagers", Self::ServerGroupManagers),
        ("unclassified", Self::Unclassified),
    ];

    /// The name of the class.
    pub fn name(self) -> &'static str {
        Self::NAMED[self as usize].0
    }
}
