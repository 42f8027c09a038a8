//! Who calls, and what they may do with an account's API: the port that REST and the gateway ask, and what answers it.
//!
//! | module | owns |
//! |---|---|
//! | [`reviews`] | [`KubeAccessReviews`]: TokenReview and SubjectAccessReview at the operator's API server |
//! | [`front_proxy`] | callers that this API server passes on: its client certificate, and the headers with the user |
//! | [`answers`] | answers that are kept for some seconds |
//! | [`callers`] | how many short requests of one caller run, whichever way they came |
//! | [`heads`] | heads of callers that are not authenticated yet |
//! | [`audit`] | one line for each write, stream and refusal |

mod answers;
pub mod audit;
pub(crate) mod callers;
mod front_proxy;
mod heads;
mod reviews;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use async_trait::async_trait;
use http::{HeaderMap, StatusCode};

pub use callers::{CallerCounts, ShortRequest, TooManyOfCaller};
pub use heads::{HeldHead, TooManyHeads, UnknownHeads, compact, head_bytes};
pub use reviews::{AccessMode, KubeAccessReviews};

/// API group of the resources that rights are given on.
pub const ACCESS_GROUP: &str = "proxy.kubesvc.io";

/// How a caller became known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// The API server of the operator's cluster says who it is, with the certificate of its front proxy.
    FrontProxy,
    /// A bearer token, reviewed by that API server.
    Token,
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

/// A resource on which rights are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccountResource {
    /// `accounts/proxy`: the API of an account, and operations on it.
    Proxy,
    /// `accounts/connect`: exec, attach, port-forward, proxies and tokens of service accounts.
    Connect,
}

impl AccountResource {
    /// Its subresource in RBAC.
    pub fn subresource(self) -> &'static str {
        match self {
            Self::Proxy => "proxy",
            Self::Connect => "connect",
        }
    }
}

/// What a caller wants to do with an account.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AccountAccess {
    /// Verb of RBAC: `get`, `create`, `update`, `patch` or `delete`.
    pub verb: &'static str,
    pub resource: AccountResource,
    /// Namespace of the account's object.
    pub namespace: String,
    /// Name of the account's object.
    pub object: String,
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

    /// Whether these certificates, which a connection has shown, are those of the API server that passes calls on. `false`
    /// if nobody can be asked.
    async fn is_front_proxy(&self, _certificates: &[Vec<u8>]) -> bool {
        false
    }

    /// Checks what a caller may do.
    ///
    /// # Errors
    /// It may not, or nobody can be asked.
    async fn authorize(&self, principal: &Principal, access: &AccountAccess) -> Result<(), AccessError>;
}
