//! The pure core: what an account is, and its lifecycle. No I/O, no clock, no async.
//!
//! | module | owns |
//! |---|---|
//! | [`spec`], [`status`], `account` | the `KubesvcAccount` object, and what can be read off it as a whole |
//! | [`agent_resource`], [`report_outbox`] | the `KubesvcAgent` object, and its reports to the leader |
//! | [`migration`] | the `KubesvcMigration` object |
//! | [`lifecycle`] | the decision: one observation in, at most one action out |
//! | [`conditions`] | a state as conditions for `kubectl wait`, Argo CD and Flux |
//! | `operations` | what callers ask of a cluster, as programs that say the next request; only with the feature of this name, which the operator has |
//! | [`account_row`], [`spinnaker`] | the row and the definition that Spinnaker reads |
//! | [`cache`] | what of a cluster is cached for an account, and how it is named in SQL |
//! | [`cron`] | times that repeat, as cron expressions say them |
//! | [`explain`] | why an account is in its state, and what a person can do |
//! | [`row_adoption`] | the account that a foreign row describes |
//! | [`owned_secret`] | the Secret that kubesvc creates for an account's kubeconfig |
//! | [`age`] | ages in kubectl's format |
//! | [`kubeconfig`] | which kubeconfigs are accepted |
//! | [`agent_policy`] | which servers an agent may dial, and how it may authenticate |
//! | [`secret_reference`] | Spinnaker's secret references: their grammar, and what of them may be shown |
//! | [`source_rules`] | which accounts may use credentials outside their own namespace |
//! | [`identity`] | who an agent is, by the credential that it shows |
//! | [`ids`] | ids, and the epochs of grants and of elections |
//! | [`object_names`] | object names derived from account and agent names |
//! | [`name_precedence`] | which of several objects has an account name |
//! | [`wire`] | the messages between operator and agent, generated from `proto/` |

mod account;
pub mod account_row;
pub mod age;
pub mod agent_policy;
pub mod agent_resource;
pub mod cache;
pub mod conditions;
pub mod crds;
pub mod credential_expiry;
pub mod cron;
pub mod explain;
pub mod failure;
pub mod identity;
pub mod ids;
mod installation;
pub mod json;
pub mod kubeconfig;
pub mod lifecycle;
pub mod migration;
pub mod name_precedence;
pub mod object_names;
#[cfg(feature = "operations")]
pub mod operations;
pub mod owned_secret;
pub mod registration;
pub mod report_outbox;
pub mod requests;
pub mod row_adoption;
pub mod secret_reference;
pub mod source_rules;
pub mod spec;
pub mod spinnaker;
pub mod status;
pub mod wire;

pub use agent_resource::{KubesvcAgent, KubesvcAgentSpec, KubesvcAgentStatus};
pub use ids::{AgentId, AgentKey, BootId, CachingEpoch, GrantEpoch, ReplicaId, SessionId, ZoneId};
pub use installation::{Installation, OPERATOR_ANNOTATION};
pub use migration::{KubesvcMigration, KubesvcMigrationSpec, KubesvcMigrationStatus};
pub use spec::{KubesvcAccount, KubesvcAccountSpec};
pub use status::{
    CachingAssignment, DesiredState, Grant, GrantPhase, KubesvcAccountStatus, ListingAgent, NameHolder, State,
};

/// The API group of all kubesvc objects, and the prefix of its labels and annotations.
pub const GROUP: &str = "kubesvc.io";
/// The finalizer that keeps an account until its agents have dropped it and its rows are deleted.
pub const FINALIZER: &str = "kubesvc.io/account";
/// The field manager of every write. It must not start with `kubectl`, or Flux drops the fields it set.
pub const FIELD_MANAGER: &str = "kubesvc-operator";
/// The field manager of changes made with the kubectl plugin. It must not start with `kubectl` either.
pub const PLUGIN_FIELD_MANAGER: &str = "kubesvc-plugin";
/// Label: the origin of an account, one of `rest`, `agent`, `migrated`. Absent: declared by a person or a GitOps
/// tool.
pub const ORIGIN_LABEL: &str = "kubesvc.io/origin";
/// The origin of an account from an agent's own file.
pub const ORIGIN_AGENT: &str = "agent";
/// The origin of an account created by REST.
pub const ORIGIN_REST: &str = "rest";
/// The origin of an account that was a foreign row, or an entry of a credentials source.
pub const ORIGIN_MIGRATED: &str = "migrated";
/// Annotation of a migrated account: the name of its credentials source.
pub const SOURCE_ANNOTATION: &str = "kubesvc.io/source";
/// Annotation of an account that was made for a write at `/credentials`: which write that was.
pub const WRITE_ANNOTATION: &str = "kubesvc.io/clouddriver-write";
/// Annotation of a migrated account: a keyed hash of its entry in the source, in hex.
pub const SOURCE_HASH_ANNOTATION: &str = "kubesvc.io/source-hash";
/// Annotation of a migrated account: the fields of its entry that have no effect, as JSON. Never a credential.
pub const CLOUDDRIVER_DEFINITION_ANNOTATION: &str = "kubesvc.io/clouddriver-definition";
/// Annotation: a new value requests an immediate retry; `status.retryHandled` keeps the last one handled.
pub const RETRY_ANNOTATION: &str = "kubesvc.io/retry";
/// Annotation: a new value requests a new election of the agent that streams the account's objects;
/// `status.electionHandled` keeps the last one handled.
pub const ELECT_CACHING_ANNOTATION: &str = "kubesvc.io/elect-caching";
/// Label and annotation on a Secret of kubesvc: the account's object it was created for. The label has the object's
/// name as far as a label allows, the annotation namespace and name in full.
pub(crate) const ACCOUNT_LABEL: &str = "kubesvc.io/account";
/// Kubernetes' label for the tool that manages an object.
pub const MANAGED_BY_LABEL: &str = "app.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY_LABEL`] on the Secrets of kubesvc.
pub(crate) const MANAGED_BY: &str = "kubesvc";
/// Annotation on a Secret of kubesvc: a request that creates the account is about to replace its contents.
pub(crate) const CLAIMED_ANNOTATION: &str = "kubesvc.io/claimed";
/// Annotation on a Secret of kubesvc: the uid of the account that its contents were written for, if the writer had
/// seen that account.
pub(crate) const CONTENTS_OF_ANNOTATION: &str = "kubesvc.io/contents-of";
/// Like [`CONTENTS_OF_ANNOTATION`], for the kubeconfig for agents if the Secret has one.
pub(crate) const AGENT_CONTENTS_OF_ANNOTATION: &str = "kubesvc.io/agent-contents-of";
/// Annotation of a migration: any value lets a roll-back take back accounts that the sources no longer have.
pub const FORCE_ROLLBACK_ANNOTATION: &str = "kubesvc.io/force-rollback";
/// Annotation: any value ends the wait for agents when an account is deleted.
pub const FORCE_DELETE_ANNOTATION: &str = "kubesvc.io/force-delete";
/// Label: Secrets with the value `true` are watched, so that a changed credential is noticed immediately.
pub const WATCH_LABEL: &str = "kubesvc.io/watch";
/// Label: the zone of a KubesvcAgent.
pub const ZONE_LABEL: &str = "kubesvc.io/zone";

/// Annotation of a KubesvcAgent: who approved it, [`APPROVED_AUTOMATICALLY`] or a user's name.
pub const APPROVED_BY_ANNOTATION: &str = "kubesvc.io/approved-by";
/// Value of [`APPROVED_BY_ANNOTATION`] if the operator did, because `kubesvc.agents.approval` is `auto`.
pub const APPROVED_AUTOMATICALLY: &str = "auto";

/// Why no account can be created in a namespace, and what to do.
pub fn not_watched(namespace: &str) -> String {
    format!(
        "the operator does not watch the namespace {namespace:?}, where it would be made; add it to kubesvc.watchNamespaces"
    )
}
