//! The bodies of requests, as the OpenAPI document describes them. They are read by
//! [`spinnaker::Given`](crate::account::spinnaker::Given). What a schema cannot say is told in a description: which
//! fields exclude each other, and what a kubeconfig must be.

#![expect(dead_code, reason = "these types only describe")]

use serde::Serialize;
use utoipa::ToSchema;

use super::view::AccountView;

/// Names of accounts, none of them twice.
#[derive(Serialize, ToSchema)]
#[schema(min_items = 1, max_items = 1000)]
pub(super) struct AccountNames(Vec<AccountName>);

/// A name of an account: 1 to 255 characters, none of them a control character.
#[derive(Serialize, ToSchema)]
#[schema(min_length = 1, max_length = 255, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")]
pub(super) struct AccountName(String);

/// What accounts are to be, each named once.
#[derive(Serialize, ToSchema)]
#[schema(min_items = 1, max_items = 1000)]
pub(super) struct StateChanges(Vec<StateChange>);

/// What an account is to be. Any field of an account's definition may stand beside these.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct StateChange {
    /// The account's name: 1 to 255 characters.
    name: AccountName,
    /// ACTIVE or INACTIVE. ACTIVE sets what else is given, too; INACTIVE only checks it.
    state: Wish,
    /// The zone whose agents are to hold it.
    #[schema(min_length = 1, max_length = 255, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")]
    zone_id: Option<String>,
    /// A path on the agent, or a secret reference.
    #[schema(min_length = 1, max_length = 2048)]
    kubeconfig_file: Option<String>,
    /// A kubeconfig.
    #[schema(min_length = 1, max_length = 262144)]
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

/// The kind of account that there is.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum AccountKind {
    /// A Kubernetes cluster, or some namespaces of one.
    Kubernetes,
}

/// One account, or several, each named once.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum Definitions {
    /// One.
    One(Box<AccountDefinition>),
    /// Several.
    Several(AccountDefinitions),
}

/// Accounts, each named once.
#[derive(Serialize, ToSchema)]
#[schema(min_items = 1, max_items = 1000)]
pub(super) struct AccountDefinitions(Vec<AccountDefinition>);

/// An account, or nothing in its place.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum AccountOrNone {
    /// The account.
    Account(Box<AccountView>),
    /// There is none of that name.
    None(NoAccount),
}

/// An empty object.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NoAccount {}

/// An account as Clouddriver defines it. Exactly one of kubeconfigContents, kubeconfigFile and serviceAccount says how
/// its cluster is reached. Further fields of Clouddriver's accounts are accepted and have no effect.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct AccountDefinition {
    /// The account's name: 1 to 255 characters.
    name: AccountName,
    /// `kubernetes`.
    #[schema(inline)]
    r#type: Option<AccountKind>,
    /// ACTIVE or INACTIVE; a new account is INACTIVE unless it says otherwise.
    #[schema(inline)]
    state: Option<Wish>,
    /// The zone whose agents are to hold it.
    #[schema(min_length = 1, max_length = 255, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")]
    zone_id: Option<String>,
    /// A kubeconfig. It is stored in a Secret, and never shown.
    #[schema(min_length = 1, max_length = 262144)]
    kubeconfig_contents: Option<String>,
    /// A path on the agent, or a secret reference: `encryptedFile:`, `encrypted:` or `secret://`.
    #[schema(min_length = 1, max_length = 2048)]
    kubeconfig_file: Option<String>,
    /// A kubeconfig, path or secret reference for the agent, where it differs from Clouddriver's. It stands beside the
    /// account's own, which is what is shown; null or an empty text takes it away.
    #[schema(max_length = 262144)]
    kubeconfig_agent: Option<String>,
    /// Use the agent's own service account.
    service_account: Option<bool>,
    /// The context of the kubeconfig.
    #[schema(min_length = 1, max_length = 255)]
    context: Option<String>,
    /// Do not verify the cluster's certificate.
    insecure: Option<bool>,
    /// Only these namespaces.
    #[schema(max_items = 1000)]
    namespaces: Option<Vec<NamespaceName>>,
    /// All namespaces but these.
    #[schema(max_items = 1000)]
    omit_namespaces: Option<Vec<NamespaceName>>,
    /// Only these kinds are cached.
    #[schema(max_items = 1000)]
    kinds: Option<Vec<KindName>>,
    /// All kinds but these are cached.
    #[schema(max_items = 1000)]
    omit_kinds: Option<Vec<KindName>>,
    /// Leave cluster-wide resources alone; needs namespaces.
    only_namespaced_resources: Option<bool>,
    /// Cache only what Spinnaker deployed.
    only_spinnaker_managed: Option<bool>,
    /// Send pod metrics.
    metrics: Option<bool>,
    /// Ignore the proxy settings in the agent's environment.
    no_proxy: Option<bool>,
    /// How old, in milliseconds, a stored resource version may be for a watch to resume from it.
    #[schema(minimum = 0, maximum = 86400000)]
    max_resumable_resource_age_ms: Option<i64>,
    /// Who may see and change it in Spinnaker.
    permissions: Option<Permissions>,
    /// Spinnaker's environment of the account.
    #[schema(min_length = 1, max_length = 255)]
    environment: Option<String>,
    /// Spinnaker's type of the account.
    #[schema(min_length = 1, max_length = 255)]
    account_type: Option<String>,
    /// How Spinnaker treats kinds that it does not know.
    #[schema(max_items = 1000)]
    custom_resources: Option<Vec<CustomResource>>,
    /// Custom resources to expose where the agent may not list definitions.
    #[schema(max_items = 1000)]
    custom_resource_definitions: Option<Vec<ExposedResource>>,
}

/// A name of a namespace.
#[derive(Serialize, ToSchema)]
#[schema(max_length = 63, pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
pub(super) struct NamespaceName(String);

/// A kind, as `Kind` or `Kind.group`.
#[derive(Serialize, ToSchema)]
#[schema(min_length = 1, max_length = 255)]
pub(super) struct KindName(String);

/// Roles under READ and WRITE; also as a list of such objects.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum Permissions {
    /// One object.
    One(Rights),
    /// Several, taken together.
    Several(Vec<Rights>),
}

/// Roles that may READ and WRITE.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE", deny_unknown_fields)]
pub(super) struct Rights {
    /// Who may see it.
    read: Option<Vec<Role>>,
    /// Who may change it.
    write: Option<Vec<Role>>,
}

/// A role's name; a number counts as its digits.
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
    /// What Spinnaker takes it for.
    #[schema(inline)]
    spinnaker_kind: Option<SpinnakerKind>,
    /// Order of deployment.
    deploy_priority: Option<Priority>,
    /// Whether each deployment makes a new version.
    versioned: Option<bool>,
    /// Whether the kind lives in namespaces.
    namespaced: Option<bool>,
}

/// What Spinnaker takes a kind for.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) enum SpinnakerKind {
    Instances,
    Configs,
    ServerGroups,
    LoadBalancers,
    SecurityGroups,
    ServerGroupManagers,
    Unclassified,
}

/// An order of deployment: at most nine digits, as text or as a number.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum Priority {
    /// As text.
    Digits(Digits),
    /// As a number.
    Number(Rank),
}

/// A number in digits.
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
    /// Whether it lives in namespaces; in any case of letters.
    #[schema(inline)]
    scope: Option<ResourceScope>,
}

/// Where objects of a kind live.
#[derive(Serialize, ToSchema)]
pub(super) enum ResourceScope {
    /// In namespaces.
    Namespaced,
    /// In the cluster as a whole.
    Cluster,
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
