//! The bodies of requests, as the OpenAPI document describes them. They are read by
//! [`spinnaker::Given`](crate::account::spinnaker::Given), which takes more shapes than a schema can say.

#![expect(dead_code, reason = "these types only describe")]

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

/// What an account is to be.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct StateChange {
    /// The account's name: 1 to 255 characters.
    name: String,
    /// ACTIVE or INACTIVE. ACTIVE sets what else is given, too; INACTIVE only checks it.
    #[schema(inline)]
    state: Wish,
    /// The zone whose agents are to hold it.
    zone_id: Option<String>,
    /// A path on the agent, or a secret reference.
    kubeconfig_file: Option<String>,
    /// A kubeconfig.
    kubeconfig_contents: Option<String>,
    /// Use the agent's own service account.
    service_account: Option<bool>,
}

/// What an account can be asked to be.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(super) enum Wish {
    /// Agents of a zone hold it.
    Active,
    /// It is kept, and no agent holds it.
    Inactive,
}

/// One account, or several.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum Definitions {
    /// One.
    One(Box<AccountDefinition>),
    /// Several.
    Several(Vec<AccountDefinition>),
}

/// An account as Clouddriver defines it. Exactly one of kubeconfigContents, kubeconfigFile and serviceAccount says how
/// its cluster is reached. Further fields of Clouddriver's accounts are accepted and have no effect.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct AccountDefinition {
    /// The account's name: 1 to 255 characters.
    name: String,
    /// `kubernetes`.
    r#type: Option<String>,
    /// ACTIVE or INACTIVE; a new account is INACTIVE unless it says otherwise.
    #[schema(inline)]
    state: Option<Wish>,
    /// The zone whose agents are to hold it.
    zone_id: Option<String>,
    /// A kubeconfig. It is stored in a Secret, and never shown.
    kubeconfig_contents: Option<String>,
    /// A path on the agent, or a secret reference: `encryptedFile:`, `encrypted:` or `secret://`.
    kubeconfig_file: Option<String>,
    /// A kubeconfig, path or secret reference for the agent, where it differs from Clouddriver's.
    kubeconfig_agent: Option<String>,
    /// Use the agent's own service account.
    service_account: Option<bool>,
    /// The context of the kubeconfig.
    context: Option<String>,
    /// Do not verify the cluster's certificate.
    insecure: Option<bool>,
    /// Only these namespaces.
    namespaces: Option<Vec<String>>,
    /// All namespaces but these.
    omit_namespaces: Option<Vec<String>>,
    /// Only these kinds are cached.
    kinds: Option<Vec<String>>,
    /// All kinds but these are cached.
    omit_kinds: Option<Vec<String>>,
    /// Leave cluster-wide resources alone; needs namespaces.
    only_namespaced_resources: Option<bool>,
    /// Cache only what Spinnaker deployed.
    only_spinnaker_managed: Option<bool>,
    /// Send pod metrics.
    metrics: Option<bool>,
    /// Ignore the proxy settings in the agent's environment.
    no_proxy: Option<bool>,
    /// How old, in milliseconds, a stored resource version may be for a watch to resume from it.
    max_resumable_resource_age_ms: Option<i64>,
    /// Lists of roles under READ and WRITE; also as a list of such objects.
    permissions: Option<BTreeMap<String, Vec<String>>>,
    /// Spinnaker's environment of the account.
    environment: Option<String>,
    /// Spinnaker's type of the account.
    account_type: Option<String>,
    /// How Spinnaker treats kinds that it does not know.
    custom_resources: Option<Vec<CustomResource>>,
    /// Custom resources to expose where the agent may not list definitions.
    custom_resource_definitions: Option<Vec<ExposedResource>>,
}

/// How Spinnaker treats a kind.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct CustomResource {
    /// `Kind.group`.
    kubernetes_kind: String,
    /// What Spinnaker takes it for, such as `serverGroups`.
    spinnaker_kind: Option<String>,
    /// Order of deployment, in digits.
    deploy_priority: Option<String>,
    /// Whether each deployment makes a new version.
    versioned: Option<bool>,
    /// Whether the kind lives in namespaces.
    namespaced: Option<bool>,
}

/// A custom resource to expose.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ExposedResource {
    /// `Kind.group`.
    kind: String,
    /// Namespaced or Cluster.
    scope: Option<String>,
}

/// Why an agent is to be disconnected.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct DisconnectRequest {
    /// Whether another replica relayed the call.
    cluster_driven: Option<bool>,
    /// Who asks.
    origin: Option<String>,
    /// When, in epoch milliseconds.
    timestamp: Option<i64>,
}
