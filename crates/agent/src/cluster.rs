//! The only way to a cluster: raw HTTP over TLS, with any method and with bodies that are streamed both ways.
//!
//! A [`ClusterClient`] keeps the connections to one cluster with one credential, in one pool for each [`Use`]. Every
//! connection is dialled under the policy of the agent's owner, and every request is built in one place. Redirects are
//! not followed, requests are not retried, responses are not decompressed, and proxy environment variables are not
//! (yet) used. A [`ClusterError`] names the host and the step, without any credential or query.
//!
//! | file | owns |
//! |---|---|
//! | `client.rs` | building, sending, and reading what is small |
//! | `exchange.rs` | a request before it is sent; a response while it arrives, and upgraded connections |
//! | `pool.rs`, `connection.rs` | connections: their bounds, when they open, what they carry, when they close |
//! | `dial.rs`, `tls.rs` | policy, name resolution, TLS |
//! | `authentication.rs` | the credential in requests, and its redaction from what a server says |
//! | `error.rs` | errors, and what they mean |

use std::fmt::{self, Debug};
use std::time::Duration;

use http::StatusCode;
use hyper::body::Bytes;
use url::Url;

use crate::metrics::ClusterRequestCounter;
use kubesvc_core::agent_policy::AgentPolicy;
use kubesvc_core::kubeconfig::{Authentication, VettedKubeconfig};

mod authentication;
mod client;
mod connection;
mod dial;
mod error;
mod exchange;
mod pool;
#[cfg(test)]
pub(super) mod tests;
mod tls;

pub(super) use tls::system_verifier;

pub use client::{ClusterClient, ClusterDocument};
pub use error::ClusterError;
pub use exchange::{ClusterRequest, ClusterResponse, RequestBody, ResponseBody};
pub use pool::{ConnectionBudget, PoolLimits, PoolSlot};
pub use tls::{ServerCertificate, Trust, TrustError};

/// What connections are used for. Each use has its own pools and budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Reading what an account reaches, and probes: few small requests, one after another.
    Activation,
    /// Lists and watches: many responses that last long.
    Watches,
    /// Requests of users: any method, bodies and duration, and upgrades.
    Requests,
}

impl Use {
    /// All uses.
    pub const ALL: [Self; Self::COUNT] = [Self::Activation, Self::Watches, Self::Requests];
    /// Number of uses.
    pub const COUNT: usize = 3;

    /// Position in [`Use::ALL`].
    fn index(self) -> usize {
        self as usize
    }
}

/// Time and size limits for a cluster.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Timeout for the use of a connection, if all are in use or one must be established first.
    pub wait: Duration,
    /// Timeout from name resolution to the end of the TLS handshake.
    pub connect: Duration,
    /// Timeout for a response that is read as a whole, with the wait for a connection.
    pub answer: Duration,
    /// Maximum size of the body of a response that is read as a whole, in bytes.
    pub body: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            wait: Duration::from_secs(30),
            connect: Duration::from_secs(10),
            answer: Duration::from_secs(60),
            body: 16 * 1024 * 1024,
        }
    }
}

/// What the clients of all clusters share. Clones share it too.
#[derive(Clone, Debug)]
pub struct ClusterContext {
    /// Trusted certificates.
    pub trust: Trust,
    /// Bounds on the connections of the process.
    pub budget: ConnectionBudget,
    /// Bounds of the pools of a client.
    pub pool_limits: fn(Use) -> PoolLimits,
    /// Time and size limits.
    pub limits: Limits,
    /// Counts requests by their status.
    pub requests: ClusterRequestCounter,
}

impl Default for ClusterContext {
    fn default() -> Self {
        Self {
            trust: Trust::default(),
            budget: ConnectionBudget::default(),
            pool_limits: PoolLimits::of,
            limits: Limits::default(),
            requests: ClusterRequestCounter::default(),
        }
    }
}

/// Address of a cluster, and the credential for it.
#[derive(Clone)]
pub struct ClusterEndpoint {
    server: Url,
    certificate_authority: Option<Vec<u8>>,
    insecure: bool,
    tls_server_name: Option<String>,
    policy: AgentPolicy,
    /// `None` for anonymous requests.
    authentication: Option<Authentication>,
}

impl ClusterEndpoint {
    /// The cluster of a vetted kubeconfig, subject to the policy.
    pub fn new(kubeconfig: VettedKubeconfig, policy: &AgentPolicy) -> Self {
        Self {
            server: kubeconfig.server,
            certificate_authority: kubeconfig.certificate_authority,
            insecure: kubeconfig.insecure_skip_tls_verify,
            tls_server_name: kubeconfig.tls_server_name,
            policy: policy.clone(),
            authentication: Some(kubeconfig.authentication),
        }
    }

    /// The same cluster, without a credential.
    pub fn anonymous(self) -> Self {
        Self { authentication: None, ..self }
    }

    /// URL of the API server, without a trailing slash.
    pub fn url(&self) -> &str {
        self.server.as_str().trim_end_matches('/')
    }
}

impl Debug for ClusterEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("server", &self.url())
            .field("authentication", &self.authentication)
            .finish_non_exhaustive()
    }
}

/// The next step of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckStep {
    /// Send a GET request; its answer comes with the next call.
    Ask { path: &'static str, accept: &'static str },
    /// The connection may be used.
    Passed,
    /// The connection must not be used; why.
    Failed(String),
}

/// An answer to a request of a check.
#[derive(Clone, Debug)]
pub struct CheckAnswer {
    /// Its status, which is neither 401 nor 429 nor one of 500 and above.
    pub status: StatusCode,
    pub body: Bytes,
}

/// Decides whether a connection may be used. It does not ask without end.
pub trait ConnectionCheck: Debug + Send + Sync {
    /// The next step, given the answers so far, in the order in which they were asked for.
    fn step(&self, answers: &[CheckAnswer], server: &ServerCertificate) -> CheckStep;
}
