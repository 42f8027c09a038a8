//! The pure core: what an account is and how it lives. No I/O, no clock, no async.
//!
//! | module | owns |
//! |---|---|
//! | [`spec`], [`status`] | the `KubesvcAccount` object |
//! | [`agent_resource`], [`outbox`] | the `KubesvcAgent` object, and what it tells the leader |
//! | [`caching_election`] | which agent streams the objects of an account |
//! | [`definition`] | what of a spec reaches an agent, and when it has changed |
//! | [`lifecycle`] | the decision: one observation in, at most one action out |
//! | [`conditions`] | how a state reads to `kubectl wait`, Argo CD and Flux |
//! | [`row`], [`spinnaker`] | the row and the definition that Spinnaker reads |
//! | [`explain`] | why an account is where it is, and what to do, for a person |
//! | [`adoption`] | the account that a row of somebody else's tells of |
//! | [`owned_secret`] | the Secret of our own making that holds an account's kubeconfig |
//! | [`gitops_owner`] | which GitOps tool keeps an object |
//! | [`age`] | how long ago, as kubectl writes it |
//! | [`kubeconfig`] | which kubeconfigs are taken and which are refused |
//! | [`policy`] | which servers an agent may dial, and which ways in it may use |
//! | [`secret_reference`] | Spinnaker's secret references: their grammar, and what of them may be shown |
//! | [`source_rules`] | which accounts may use credentials that are not in their own namespace |
//! | [`ids`] | ids, and the epochs of grants and of elections |
//! | [`names`] | object names derived from account and agent names |
//! | [`zones`] | which zones matter to an account |
//! | [`name_precedence`] | which of several objects with one account name has it |

pub mod adoption;
pub mod age;
pub mod agent_resource;
pub mod caching_election;
pub mod conditions;
pub mod crds;
pub mod definition;
pub mod explain;
pub mod failure;
pub mod gitops_owner;
pub mod ids;
pub mod kubeconfig;
pub mod lifecycle;
pub mod name_precedence;
pub mod names;
pub mod outbox;
pub mod owned_secret;
pub mod policy;
pub mod row;
pub mod secret_reference;
pub mod source_rules;
pub mod spec;
pub mod spinnaker;
pub mod state;
pub mod status;
pub mod zones;

pub use agent_resource::{KubesvcAgent, KubesvcAgentSpec, KubesvcAgentStatus};
pub use ids::{BootId, CachingEpoch, GrantEpoch, SessionId};
pub use spec::{KubesvcAccount, KubesvcAccountSpec};
pub use state::{DesiredState, GrantPhase, State};
pub use status::{CachingAssignment, Grant, KubesvcAccountStatus, ListingAgent, NameHolder};

/// The API group of all kubesvc objects, and the prefix of its labels and annotations.
pub const GROUP: &str = "kubesvc.io";
/// The finalizer that keeps an account until its agents have let go of it and its rows are gone.
pub const FINALIZER: &str = "kubesvc.io/account";
/// The field manager of every write; it must not start with `kubectl`, or Flux drops what it set.
pub const FIELD_MANAGER: &str = "kubesvc-operator";
/// The field manager of what a person changes with the kubectl plugin; it too must not start with `kubectl`.
pub const PLUGIN_FIELD_MANAGER: &str = "kubesvc-plugin";
/// Where an account came from: `rest`, `agent`, `migrated`; absent means declared by a person or a GitOps tool.
pub const ORIGIN_LABEL: &str = "kubesvc.io/origin";
/// The origin of an account of an agent's own file.
pub const ORIGIN_AGENT: &str = "agent";
/// The origin of an account that was made by REST.
pub const ORIGIN_REST: &str = "rest";
/// The origin of an account that was a row of somebody else's.
pub const ORIGIN_MIGRATED: &str = "migrated";
/// A new value asks for a new try at once; `status.retryHandled` keeps the last one handled.
pub const RETRY_ANNOTATION: &str = "kubesvc.io/retry";
/// A new value has the agent that streams the account's objects elected anew; `status.electionHandled` keeps the last one
/// handled.
pub const ELECT_CACHING_ANNOTATION: &str = "kubesvc.io/elect-caching";
/// On a Secret of ours: which account's object it was made for. The label has the object's name as far as a label may, the
/// annotation of the same key namespace and name in full.
pub const ACCOUNT_LABEL: &str = "kubesvc.io/account";
/// Kubernetes' label for the tool that keeps an object.
pub const MANAGED_BY_LABEL: &str = "app.kubernetes.io/managed-by";
/// Its value on the Secrets of ours.
pub const MANAGED_BY: &str = "kubesvc";
/// On a Secret of ours: a request that makes the account is about to replace its contents.
pub const CLAIMED_ANNOTATION: &str = "kubesvc.io/claimed";
/// On a Secret of ours: the uid of the account that its contents were written for by somebody who had seen that account.
pub const CONTENTS_OF_ANNOTATION: &str = "kubesvc.io/contents-of";
/// The same of the kubeconfig for agents, where the Secret has one.
pub const AGENT_CONTENTS_OF_ANNOTATION: &str = "kubesvc.io/agent-contents-of";
/// Any value stops the waiting for agents when an account is deleted.
pub const FORCE_DELETE_ANNOTATION: &str = "kubesvc.io/force-delete";
/// Secrets with this label set to `true` are watched, so that a changed credential is seen at once.
pub const WATCH_LABEL: &str = "kubesvc.io/watch";
/// Marks a KubesvcAgent with its zone.
pub const ZONE_LABEL: &str = "kubesvc.io/zone";

/// Why no account is made in a namespace, and what to do.
pub fn not_watched(namespace: &str) -> String {
    format!(
        "the operator does not watch the namespace {namespace:?}, where it would be made; add it to kubesvc.watchNamespaces"
    )
}
