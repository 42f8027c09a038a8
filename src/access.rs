//! Who calls, and what they may do: the port that REST and the gateway ask, and what answers it.
//!
//! | module | owns |
//! |---|---|
//! | [`reviews`] | [`KubeAccessReviews`]: TokenReview and SubjectAccessReview at the operator's API server |
//! | [`front_proxy`] | callers that this API server passes on: its client certificate, and the headers with the user |
//! | [`certificate_users`] | callers of REST that their client certificate identifies |
//! | [`answers`] | answers that are kept for some seconds |
//! | [`callers`] | how many short requests of one caller run, whichever way they came |
//! | [`heads`] | heads of callers that are not authenticated yet |
//! | [`audit`] | one line for each write, stream and refusal |

mod answers;
pub mod audit;
pub(crate) mod callers;
mod certificate_users;
mod front_proxy;
mod heads;
mod reviews;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use async_trait::async_trait;
use http::{HeaderMap, StatusCode};

pub(crate) use answers::{AnswerCache, NotGranted};
pub use callers::{CallerCounts, ShortRequest, TooManyOfCaller};
pub use certificate_users::{CertificateUser, CertificateUsers, ShownCertificate};
pub use heads::{HeldHead, TooManyHeads, UnknownHeads, compact, head_bytes};
pub use reviews::{AccessMode, KubeAccessReviews};

/// API group of the resources that rights are given on.
pub const ACCESS_GROUP: &str = "proxy.kubesvc.io";
/// API group of kubesvc's objects.
const OBJECT_GROUP: &str = "kubesvc.io";

/// How a caller became known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// The API server of the operator's cluster says who it is, with the certificate of its front proxy.
    FrontProxy,
    /// A bearer token, reviewed by that API server.
    Token,
    /// A client certificate that the settings name.
    Certificate,
    /// Nobody was asked: the setting `operations.auth` is `none`.
    Nobody,
    /// Another replica, which has reviewed it, relays its request.
    Relayed,
    /// A record has its name: it called a replica that is gone.
    Record,
}

impl Via {
    /// Its name in audit lines.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::FrontProxy => "front-proxy",
            Self::Token => "token",
            Self::Certificate => "certificate",
            Self::Nobody => "none",
            Self::Relayed => "relayed",
            Self::Record => "record",
        }
    }
}

/// A caller, as the operator's API server knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    pub name: String,
    pub groups: Vec<String>,
    /// Id of the user, which may be empty.
    pub uid: String,
    /// What else the authenticator says.
    pub extra: BTreeMap<String, Vec<String>>,
    /// How it became known.
    pub via: Via,
}

/// What a call shows of its caller.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'c> {
    pub headers: &'c HeaderMap,
    /// The client's certificates on this connection in DER, its own first; empty: none.
    pub certificates: &'c [Vec<u8>],
}

/// What a right is given on, as RBAC has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessResource {
    /// `accounts/proxy` of group `proxy.kubesvc.io`: the API of an account, and operations on it.
    Proxy,
    /// `accounts/connect`: exec, attach, port-forward, proxies and tokens of service accounts.
    Connect,
    /// `accounts/cache`: what is cached of an account.
    Cache,
    /// `kubesvcaccounts` of group `kubesvc.io`.
    Accounts,
    /// `kubesvcaccounts/sources`: credentials that are read with the rights of the operator or an agent.
    AccountSources,
    /// `kubesvcaccounts/clouddriver`: Clouddriver's account management.
    AccountClouddriver,
    /// `kubesvcaccounts/users`: whose word counts about the users for whom it calls.
    AccountUsers,
    /// `kubesvcagents`.
    Agents,
    /// Secrets.
    Secrets,
    /// A path that is no resource, such as `/metrics`.
    Path(&'static str),
}

impl AccessResource {
    /// Its API group, resource and subresource; of a path, the path.
    fn names(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Proxy => (ACCESS_GROUP, "accounts", "proxy"),
            Self::Connect => (ACCESS_GROUP, "accounts", "connect"),
            Self::Cache => (ACCESS_GROUP, "accounts", "cache"),
            Self::Accounts => (OBJECT_GROUP, "kubesvcaccounts", ""),
            Self::AccountSources => (OBJECT_GROUP, "kubesvcaccounts", "sources"),
            Self::AccountClouddriver => (OBJECT_GROUP, "kubesvcaccounts", "clouddriver"),
            Self::AccountUsers => (OBJECT_GROUP, "kubesvcaccounts", "users"),
            Self::Agents => (OBJECT_GROUP, "kubesvcagents", ""),
            Self::Secrets => ("", "secrets", ""),
            Self::Path(path) => ("", path, ""),
        }
    }

    /// Its subresource in RBAC.
    pub fn subresource(self) -> &'static str {
        self.names().2
    }

    /// How RBAC writes it: `kubesvcaccounts/sources`.
    pub fn name(self) -> String {
        match self.names() {
            (_, resource, "") => resource.to_owned(),
            (_, resource, subresource) => format!("{resource}/{subresource}"),
        }
    }
}

/// What a caller wants to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RequestedAccess {
    /// Verb of RBAC, such as `get`, `create` or `use`.
    pub verb: &'static str,
    pub resource: AccessResource,
    /// Namespace of the object; empty for a path.
    pub namespace: String,
    /// Name of the object; empty: all of them, or one that is to be made.
    pub object: String,
}

impl fmt::Display for RequestedAccess {
    /// As `verb resource (API group) of object in namespace`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verb, resource, namespace, object } = self;
        if let AccessResource::Path(path) = resource {
            return write!(f, "{verb} the path {path}");
        }
        write!(f, "{verb} {} in API group {:?}", resource.name(), resource.names().0)?;
        if !object.is_empty() {
            write!(f, " of object {object:?}")?;
        }
        write!(f, " in namespace {namespace:?}")
    }
}

/// Why a call is refused.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AccessError {
    /// The caller is not known (401).
    #[error("{0}")]
    Unauthenticated(String),
    /// The caller may not do that (403).
    #[error("{0}")]
    Denied(String),
    /// The API server cannot be asked (503).
    #[error("{0}")]
    Unavailable(String),
    /// Too many callers wait for an answer of the API server (503, to be tried again).
    #[error("too many callers wait until it is known who they are and what they may do; try again")]
    Busy,
}

impl AccessError {
    /// Status that the caller is given.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Unauthenticated(_) => StatusCode::UNAUTHORIZED,
            Self::Denied(_) => StatusCode::FORBIDDEN,
            Self::Unavailable(_) | Self::Busy => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// Decides who calls and what they may do. No answer is ever "yes" because nobody could be asked.
#[async_trait]
pub trait Access: Send + Sync {
    /// Finds out who calls.
    ///
    /// # Errors
    /// The caller is not known, or cannot be looked up.
    async fn authenticate(&self, caller: Caller<'_>) -> Result<Principal, AccessError>;

    /// Whether the caller's token was good within the last hour. A flood of others costs it nothing.
    fn was_known(&self, _caller: Caller<'_>) -> bool {
        false
    }

    /// Whether these certificates alone say who calls. Nobody is asked.
    fn is_certified(&self, _certificates: &[Vec<u8>]) -> bool {
        false
    }

    /// Whether these certificates, which a connection has shown, are those of the API server that passes calls on. `false`
    /// if nobody can be asked.
    async fn is_front_proxy(&self, _certificates: &[Vec<u8>]) -> bool {
        false
    }

    /// Checks what a caller may do.
    ///
    /// # Errors
    /// It may not, or nobody can be asked.
    async fn authorize(&self, principal: &Principal, access: &RequestedAccess) -> Result<(), AccessError>;
}
