//! Why a call about operations is refused.

use http::StatusCode;

use crate::access::AccessError;
use kubesvc_core::operations::InvalidOperation;
use kubesvc_store::StoreError;

/// Why a call about operations is refused. Nothing was done.
#[derive(Clone, Debug, thiserror::Error)]
pub enum OperationRefusal {
    /// It is refused before it is known what is asked: a parameter, a header or the body (400, 408, 413, 415, 503).
    #[error("{why}")]
    Malformed {
        /// Status that the caller is given.
        status: StatusCode,
        /// Why, without what was sent.
        why: String,
    },
    /// Its manifest or patch is none (400, 413).
    #[error("operation: {0}")]
    Document(InvalidOperation),
    /// The operation has an id, and its call names another one (400).
    #[error("the operation has an op_id, and clientRequestId is given: give one")]
    TwoIds,
    /// No account has this name (404).
    #[error("account {0:?} does not exist")]
    NoAccount(String),
    /// No operation has this id (404).
    #[error("operation {0:?} is not known; it may have been purged from the history")]
    NoOperation(String),
    /// The caller's header X-SPINNAKER-ACCOUNTS does not list the account (403).
    #[error("account {0:?} is not in the list of the header X-SPINNAKER-ACCOUNTS")]
    NotAmongAccounts(String),
    /// The caller is not known or may not do that, or nobody can be asked (401, 403, 503).
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The account takes no requests (409).
    #[error("{0}")]
    NotUsable(String),
    /// The id was given to another operation (409), of which the caller may be allowed to know nothing.
    #[error("operation {0} is another one: use an id for one account, caller and content, or leave it out")]
    AnotherOperation(String),
    /// The operation has a result (409).
    #[error("operation {0} has a result; only one that is open or unknown is settled by hand")]
    AlreadySettled(String),
    /// Too many run (429).
    #[error("{0}")]
    TooMany(String),
    /// It cannot be recorded, or its id cannot be looked up (503).
    #[error("the database cannot be used now; try again")]
    Database(#[source] StoreError),
    /// The replica stops or has not read the accounts yet, or the operation with the id was not begun after all (503).
    #[error("{0}")]
    Unavailable(&'static str),
}

impl OperationRefusal {
    /// Status that the caller is given.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Malformed { status, .. } => *status,
            Self::Document(error) if error.is_too_large() => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Document(_) | Self::TwoIds => StatusCode::BAD_REQUEST,
            Self::NoAccount(_) | Self::NoOperation(_) => StatusCode::NOT_FOUND,
            Self::NotAmongAccounts(_) => StatusCode::FORBIDDEN,
            Self::Access(error) => error.status(),
            Self::NotUsable(_) | Self::AnotherOperation(_) | Self::AlreadySettled(_) => StatusCode::CONFLICT,
            Self::TooMany(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::Database(_) | Self::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// Why, as audit lines say it: what is wrong with the contents may repeat them.
    pub(super) fn audited(&self) -> String {
        match self {
            Self::Document(_) => "the body is malformed".to_owned(),
            other => other.to_string(),
        }
    }

    /// How it is counted.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Malformed { status: StatusCode::PAYLOAD_TOO_LARGE, .. } => "too_large",
            Self::Malformed { status: StatusCode::UNSUPPORTED_MEDIA_TYPE, .. } => "media_type",
            Self::Malformed { status: StatusCode::REQUEST_TIMEOUT, .. } => "too_slow",
            Self::Malformed { status: StatusCode::SERVICE_UNAVAILABLE, .. } => "unavailable",
            Self::Document(error) if error.is_too_large() => "too_large",
            Self::Malformed { .. } | Self::Document(_) | Self::TwoIds => "malformed",
            Self::NoAccount(_) | Self::NoOperation(_) => "not_found",
            Self::NotAmongAccounts(_) => "not_among_accounts",
            Self::Access(AccessError::Unauthenticated(_)) => "unauthenticated",
            Self::Access(AccessError::Denied(_)) => "denied",
            Self::Access(AccessError::Unavailable(_) | AccessError::Busy) => "access_unavailable",
            Self::NotUsable(_) => "not_usable",
            Self::AnotherOperation(_) => "another_operation",
            Self::AlreadySettled(_) => "already_settled",
            Self::TooMany(_) => "too_many",
            Self::Database(_) => "database",
            Self::Unavailable(_) => "unavailable",
        }
    }
}
