//! The bodies of requests, as the OpenAPI document describes them. They are read by
//! [`AccountInput`](kubesvc_core::spinnaker::AccountInput). What a schema cannot say is told in a description: which
//! fields exclude each other, and what a kubeconfig must be.

#![expect(dead_code, reason = "these types only describe")]

use serde::Serialize;
use utoipa::ToSchema;

use super::view::AccountView;
use kubesvc_core::DesiredState;
use kubesvc_core::spec::{Scope, SpinnakerKind};

/// Names of accounts, without duplicates.
#[derive(Serialize, ToSchema)]
#[schema(min_items = 1, max_items = 1000)]
pub(super) struct AccountNames(Vec<AccountName>);

/// Name of an account: 1 to 255 characters, no control characters.
#[derive(Serialize, ToSchema)]
#[schema(min_length = 1, max_length = 255, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")]
pub(super) struct AccountName(String);

/// Desired states of accounts, without duplicate names.
#[derive(Serialize, ToSchema)]
#[schema(min_items = 1, max_items = 1000)]
pub(super) struct StateChanges(Vec<StateChange>);

/// Desired state of an account. Any other field of an account definition is accepted, too.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct StateChange {
    /// Name of the account: 1 to 255 characters.
    name: AccountName,
    /// ACTIVE or INACTIVE. ACTIVE also sets the other fields that are given; INACTIVE only validates them.
    state: DesiredState,
    /// Zone whose agents are to hold the account.
    #[schema(min_length = 1, max_length = 255, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")]
    zone_id: Option<String>,
    /// Path of a kubeconfig on the agent, or a secret reference.
    #[schema(min_length = 1, max_length = 2048)]
    kubeconfig_file: Option<String>,
    /// Content of a kubeconfig.
    #[schema(min_length = 1, max_length = 262144)]
    kubeconfig_contents: Option<String>,
    /// Use the agent's own service account.
    service_account: Option<bool>,
}

/// Type of an account; there is only one.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum AccountKind {
    /// A Kubernetes cluster, or some namespaces of one.
    Kubernetes,
}

/// One account or a list of accounts, without duplicate names.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum Definitions {
    /// A single account.
    One(Box<AccountDefinition>),
    /// A list of accounts.
    Several(AccountDefinitions),
}

/// List of accounts, without duplicate names.
#[derive(Serialize, ToSchema)]
#[schema(min_items = 1, max_items = 1000)]
pub(super) struct AccountDefinitions(Vec<AccountDefinition>);

/// An account, or an empty object.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum AccountOrNone {
    /// The account.
    Account(Box<AccountView>),
    /// No account has this name.
    None(NoAccount),
}

/// An empty object.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NoAccount {}

/// Definition of an account, as in Clouddriver. Exactly one of kubeconfigContents, kubeconfigFile and serviceAccount
/// specifies how to reach its cluster. Other fields of Clouddriver's accounts are accepted and have no effect.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct AccountDefinition {
    /// Name of the account: 1 to 255 characters.
    name: AccountName,
    /// `kubernetes`.
    #[schema(inline)]
    r#type: Option<AccountKind>,
    /// ACTIVE or INACTIVE. Default of a new account: INACTIVE.
    #[schema(inline)]
    state: Option<DesiredState>,
    /// Zone whose agents are to hold the account.
    #[schema(min_length = 1, max_length = 255, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")]
    zone_id: Option<String>,
    /// Content of a kubeconfig. It is stored in a Secret and never returned.
    #[schema(min_length = 1, max_length = 262144)]
    kubeconfig_contents: Option<String>,
    /// Path of a kubeconfig on the agent, or a secret reference: `encryptedFile:`, `encrypted:` or `secret://`.
    #[schema(min_length = 1, max_length = 2048)]
    kubeconfig_file: Option<String>,
    /// Kubeconfig, path or secret reference for the agent, if it differs from Clouddriver's. It is stored in addition to
    /// the account's own, which is the one that is shown; null or an empty string removes it.
    #[schema(max_length = 262144)]
    kubeconfig_agent: Option<String>,
    /// Use the agent's own service account.
    service_account: Option<bool>,
    /// Context of the kubeconfig.
    #[schema(min_length = 1, max_length = 255)]
    context: Option<String>,
    /// Do not verify the cluster's certificate.
    insecure: Option<bool>,
    /// Only these namespaces.
    #[schema(max_items = 1000)]
    namespaces: Option<Vec<NamespaceName>>,
    /// All namespaces except these.
    #[schema(max_items = 1000)]
    omit_namespaces: Option<Vec<NamespaceName>>,
    /// Cache only these kinds.
    #[schema(max_items = 1000)]
    kinds: Option<Vec<KindName>>,
    /// Cache all kinds except these.
    #[schema(max_items = 1000)]
    omit_kinds: Option<Vec<KindName>>,
    /// Ignore cluster-scoped resources; requires namespaces.
    only_namespaced_resources: Option<bool>,
    /// Cache only resources that Spinnaker deployed.
    only_spinnaker_managed: Option<bool>,
    /// No effect: metrics of pods are not sent.
    metrics: Option<bool>,
    /// No effect: the agent dials directly, whatever proxy its environment names.
    no_proxy: Option<bool>,
    /// Maximum age, in milliseconds, of a stored resource version from which a watch may resume.
    #[schema(minimum = 0, maximum = 86400000)]
    max_resumable_resource_age_ms: Option<i64>,
    /// Roles that may see and change the account in Spinnaker.
    permissions: Option<Permissions>,
    /// Environment of the account in Spinnaker.
    #[schema(min_length = 1, max_length = 255)]
    environment: Option<String>,
    /// Type of the account in Spinnaker.
    #[schema(min_length = 1, max_length = 255)]
    account_type: Option<String>,
    /// How Spinnaker treats kinds that it does not know.
    #[schema(max_items = 1000)]
    custom_resources: Option<Vec<CustomResource>>,
    /// Custom resources to expose if the agent may not list their definitions.
    #[schema(max_items = 1000)]
    custom_resource_definitions: Option<Vec<ExposedResource>>,
}

/// Name of a namespace.
#[derive(Serialize, ToSchema)]
#[schema(max_length = 63, pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
pub(super) struct NamespaceName(String);

/// A kind, as `Kind` or `Kind.group`.
#[derive(Serialize, ToSchema)]
#[schema(min_length = 1, max_length = 255)]
pub(super) struct KindName(String);

/// Roles with READ and WRITE permission: one object, or a list of objects.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum Permissions {
    /// One object.
    One(Rights),
    /// Several objects, merged.
    Several(Vec<Rights>),
}

/// Roles with READ and WRITE permission.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE", deny_unknown_fields)]
pub(super) struct Rights {
    /// Roles that may see the account.
    read: Option<Vec<Role>>,
    /// Roles that may change the account.
    write: Option<Vec<Role>>,
}

/// Name of a role; a number is read as its digits.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum Role {
    /// As text.
    Name(String),
    /// As a number.
    Number(f64),
}

/// How Spinnaker treats a kind.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct CustomResource {
    /// `Kind.group`.
    #[schema(min_length = 1, max_length = 320)]
    kubernetes_kind: String,
    /// Spinnaker's classification of the kind.
    #[schema(inline)]
    spinnaker_kind: Option<SpinnakerKind>,
    /// Deployment priority.
    deploy_priority: Option<Priority>,
    /// Whether each deployment creates a new version.
    versioned: Option<bool>,
    /// Whether the kind is namespaced.
    namespaced: Option<bool>,
}

/// Deployment priority: at most nine digits, as text or as a number.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum Priority {
    /// As text.
    Digits(Digits),
    /// As a number.
    Number(Rank),
}

/// Digits of a number.
#[derive(Serialize, ToSchema)]
#[schema(min_length = 1, max_length = 9, pattern = "^[0-9]*$")]
pub(super) struct Digits(String);

/// A number of at most nine digits.
#[derive(Serialize, ToSchema)]
#[schema(minimum = 0, maximum = 999999999)]
pub(super) struct Rank(i64);

/// A custom resource to expose.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ExposedResource {
    /// `Kind.group`.
    #[schema(min_length = 1, max_length = 320)]
    kind: String,
    /// Scope of the kind, case-insensitive.
    #[schema(inline)]
    scope: Option<Scope>,
}

/// Details of a request to disconnect an agent.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct DisconnectRequest {
    /// Whether another replica relayed the call.
    cluster_driven: Option<bool>,
    /// Sender of the request.
    origin: Option<String>,
    /// Time of the request, in milliseconds since the Unix epoch.
    timestamp: Option<i64>,
}

/// An operation to run.
#[derive(Serialize, ToSchema)]
pub(super) struct OperationRequest {
    /// The operation: a text in protobuf's text format, or the same as an object. `docs/operations.md` has an example of
    /// each verb.
    #[schema(value_type = Object)]
    operation: serde_json::Value,
}

/// A result that a person found out.
#[derive(Serialize, ToSchema)]
pub(super) struct OperationResultRequest {
    /// `op_id: "…" status: 200`, and `message: "…"` where it failed.
    result: String,
}
