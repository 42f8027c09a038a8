//! Failures of an account, in classes that determine whether they are retried.

use std::fmt;

/// The class of a failure. The wire protocol has the same classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureClass {
    /// The cluster refused the credential (401).
    Auth,
    /// The credential lacks a permission (403).
    Forbidden,
    /// No connection to the cluster.
    Unreachable,
    /// The cluster's certificate is not trusted, or TLS failed otherwise.
    Tls,
    /// No response in time.
    Timeout,
    /// The kubeconfig is refused.
    BadKubeconfig,
    /// The reference to a credential cannot be resolved as written.
    BadReference,
    /// A Secret, a key of it, or a file does not exist (yet).
    CredentialMissing,
    /// An agent's replica reads another credential than the leader does.
    CredentialDiffers,
    /// The account reached another cluster than it is bound to.
    ClusterMismatch,
    /// The kubeconfig would run a program.
    ExecForbidden,
    /// The cluster's kinds could not be read.
    Discovery,
    /// Something else holds the requested resource.
    Conflict,
    /// No agent that could take the account is connected.
    NoAgent,
    /// Agents of several zones offer to take an account that names none, and only one of the zones can be meant.
    ZoneAmbiguous,
    /// The account names no zone, and no zone may offer to take it.
    ZoneRequired,
    /// The agents of the zone run in different clusters, and the account asks for the cluster they run in.
    ZoneSpansClusters,
    /// Accounts of this namespace may not use this source of a kubeconfig.
    SourceForbidden,
    /// Another object has the same account name, and takes precedence.
    DuplicateName,
    /// The database has a foreign row of this name.
    RowExists,
    /// An internal error of kubesvc.
    Internal,
}

/// Whether a failure is retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// May pass by itself: retried forever, at growing intervals.
    MayPass,
    /// Retried `maxRetries` times; then a person must act (401 and 403).
    NeedsSomeone,
    /// Cannot pass until the object or its credential changes.
    CannotPass,
}

impl FailureClass {
    /// Whether a failure of this class is retried.
    pub fn outlook(self) -> Outlook {
        match self {
            Self::Unreachable
            | Self::Tls
            | Self::Timeout
            | Self::Internal
            | Self::CredentialMissing
            | Self::CredentialDiffers
            | Self::Discovery
            | Self::NoAgent
            | Self::ZoneAmbiguous
            | Self::RowExists
            | Self::Conflict => Outlook::MayPass,
            Self::Auth | Self::Forbidden => Outlook::NeedsSomeone,
            Self::BadKubeconfig
            | Self::BadReference
            | Self::ExecForbidden
            | Self::ClusterMismatch
            | Self::ZoneRequired
            | Self::ZoneSpansClusters
            | Self::SourceForbidden
            | Self::DuplicateName => Outlook::CannotPass,
        }
    }

    /// Whether agents of another zone may succeed despite this failure: it concerns the network between agent and
    /// cluster, or a file that only some agents have.
    pub fn is_of_place(self) -> bool {
        matches!(self, Self::Unreachable | Self::Tls | Self::Timeout | Self::CredentialMissing)
    }

    /// The reason for conditions and Events, in CamelCase.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Auth => "Unauthorized",
            Self::Forbidden => "Forbidden",
            Self::Unreachable => "ClusterUnreachable",
            Self::Tls => "TLSFailed",
            Self::Timeout => "Timeout",
            Self::BadKubeconfig => "KubeconfigRefused",
            Self::BadReference => "ReferenceRefused",
            Self::CredentialMissing => "CredentialMissing",
            Self::CredentialDiffers => "CredentialDiffers",
            Self::ClusterMismatch => "ClusterMismatch",
            Self::ExecForbidden => "ExecForbidden",
            Self::Discovery => "DiscoveryFailed",
            Self::Conflict => "Conflict",
            Self::NoAgent => "NoAgent",
            Self::ZoneAmbiguous => "ZoneAmbiguous",
            Self::ZoneRequired => "ZoneRequired",
            Self::ZoneSpansClusters => "ZoneSpansClusters",
            Self::SourceForbidden => "SourceForbidden",
            Self::DuplicateName => "DuplicateName",
            Self::RowExists => "RowExists",
            Self::Internal => "InternalError",
        }
    }

    /// Returns the class with this [`reason`](Self::reason); used by a new leader to read a status.
    pub fn from_reason(reason: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.reason() == reason)
    }

    /// All classes.
    pub const ALL: [Self; 21] = [
        Self::Auth,
        Self::Forbidden,
        Self::Unreachable,
        Self::Tls,
        Self::Timeout,
        Self::BadKubeconfig,
        Self::BadReference,
        Self::CredentialMissing,
        Self::CredentialDiffers,
        Self::ClusterMismatch,
        Self::ExecForbidden,
        Self::Discovery,
        Self::Conflict,
        Self::NoAgent,
        Self::ZoneAmbiguous,
        Self::ZoneRequired,
        Self::ZoneSpansClusters,
        Self::SourceForbidden,
        Self::DuplicateName,
        Self::RowExists,
        Self::Internal,
    ];
}

/// A failure whose message may be shown: it contains no credential.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// Class of the failure.
    pub class: FailureClass,
    /// What failed, and what to do; at most 1 KiB.
    pub message: String,
}

impl Failure {
    /// Creates a failure. The message is truncated to 1 KiB.
    pub fn new(class: FailureClass, message: impl Into<String>) -> Self {
        let mut message = message.into();
        truncate(&mut message, super::status::MAX_ERROR_MESSAGE_BYTES);
        Self { class, message }
    }
}

/// Truncates a text to at most `max` bytes at a character boundary, ending it with an ellipsis.
pub fn truncate(text: &mut String, max: usize) {
    const ELLIPSIS: &str = "…";
    if text.len() <= max {
        return;
    }
    let mut end = max.saturating_sub(ELLIPSIS.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text.push_str(ELLIPSIS);
}

impl fmt::Display for FailureClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason())
    }
}
