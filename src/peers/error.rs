//! Why a replica cannot join the others.

use std::time::Duration;

/// What is missing, and what to do. Nothing of the key is in it.
#[derive(Debug, thiserror::Error)]
pub enum JoinPeersError {
    /// The API server refuses to say what the operator may do, or cannot be reached.
    #[error("the API server does not say whether the operator may {right}")]
    Review {
        /// What was asked about.
        right: String,
        /// Why not.
        #[source]
        source: kube::Error,
    },
    /// The API server does not answer what the operator may do.
    #[error("the API server did not say whether the operator may {right} within {} s", .within.as_secs())]
    ReviewTimeout {
        /// What was asked about.
        right: String,
        /// How long it had.
        within: Duration,
    },
    /// The operator may not look for the other replicas.
    #[error("{0}")]
    Denied(String),
    /// The operator may not use the Secret.
    #[error(
        "the operator may not {verb} Secret {secret}, whose key signs calls between replicas; apply config/rbac, or set \
         kubesvc.cluster: local for one replica"
    )]
    SecretForbidden {
        /// The verb as RBAC has it.
        verb: &'static str,
        /// Namespace and name.
        secret: String,
    },
    /// The API server does not take the request. Its message is left out: it may hold something of the Secret.
    #[error("cannot {verb} Secret {secret}: the API server answered {code} {reason}")]
    SecretRefused {
        /// The verb as RBAC has it.
        verb: &'static str,
        /// Namespace and name.
        secret: String,
        /// The HTTP status.
        code: u16,
        /// Its reason.
        reason: String,
    },
    /// The API server cannot be reached.
    #[error("cannot {verb} Secret {secret}: the API server cannot be reached")]
    Unreachable {
        /// The verb as RBAC has it.
        verb: &'static str,
        /// Namespace and name.
        secret: String,
    },
    /// The API server says nothing.
    #[error("Secret {secret}: the API server does not answer")]
    Silent {
        /// Namespace and name.
        secret: String,
    },
    /// Somebody deletes the Secret as often as it is made.
    #[error("Secret {secret} is made and deleted all the time; let it be")]
    Contended {
        /// Namespace and name.
        secret: String,
    },
    /// The Secret holds no good key.
    #[error(
        "Secret {secret} must have {min_bytes} random bytes or more under {field:?}; delete it, and it is made anew"
    )]
    Unfit {
        /// Namespace and name.
        secret: String,
        /// The key of the Secret.
        field: &'static str,
        /// How long it must be.
        min_bytes: usize,
    },
    /// No key can be made.
    #[error("the system gives no random numbers")]
    NoRandomness,
}
