//! Why something about an account failed, in classes that say what may be done about it.

use std::fmt;

/// The class of a failure. The wire has the same ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureClass {
    /// The cluster refused the credential (401).
    Auth,
    /// The credential lacks a right (403).
    Forbidden,
    /// No connection to the cluster.
    Unreachable,
    /// The cluster's certificate is not trusted, or TLS failed otherwise.
    Tls,
    /// No answer in time.
    Timeout,
    /// The kubeconfig is refused.
    BadKubeconfig,
    /// The reference to a credential cannot be resolved as it stands.
    BadReference,
    /// A Secret, a key of it, or a file is not there (yet).
    CredentialMissing,
    /// The replica of an agent reads another credential than the leader does.
    CredentialDiffers,
    /// The account reached another cluster than it is bound to.
    ClusterMismatch,
    /// The kubeconfig would run a program.
    ExecForbidden,
    /// The cluster's kinds could not be read.
    Discovery,
    /// Something else holds what is asked for.
    Conflict,
    /// No agent is connected that could take the account.
    NoAgent,
    /// Agents of several zones offer to take the account, it names none, and only one of them can be meant.
    ZoneAmbiguous,
    /// The account names no zone, and no zone may offer to take it.
    ZoneRequired,
    /// The agents of the zone are in different clusters, and the account asks for the one they are in.
    ZoneSpansClusters,
    /// Accounts of its namespace may not use this source of a kubeconfig.
    SourceForbidden,
    /// Another object has the same account name, and takes precedence.
    DuplicateName,
    /// The database holds a row of this name that is not ours.
    RowExists,
    /// A fault of ours.
    Internal,
}

/// Whether a failure is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// It may pass by itself: tried again for ever, slower and slower.
    MayPass,
    /// It is tried `maxRetries` times, then someone must act (401 and 403).
    NeedsSomeone,
    /// It cannot pass until the object or its credential changes.
    CannotPass,
}

impl FailureClass {
    /// Whether a failure of this class is tried again.
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

    /// Whether agents of another zone may well succeed where this is said: the network between agent and cluster, or a
    /// file that only some agents have.
    pub fn is_of_place(self) -> bool {
        matches!(self, Self::Unreachable | Self::Tls | Self::Timeout | Self::CredentialMissing)
    }

    /// The reason as conditions and Events carry it: a word in CamelCase.
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

    /// The class whose [`reason`](Self::reason) this is; how a leader that has just started reads a status.
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

/// A failure that a person may read: no credential is in its message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// What kind of failure.
    pub class: FailureClass,
    /// What happened to what, and what to do, in at most 1 KiB.
    pub message: String,
}

impl Failure {
    /// A failure; the message is cut at 1 KiB.
    pub fn new(class: FailureClass, message: impl Into<String>) -> Self {
        let mut message = message.into();
        truncate(&mut message, super::status::MAX_ERROR_MESSAGE_BYTES);
        Self { class, message }
    }
}

/// Cuts a text to at most `max` bytes, at a character's boundary, and shows that it was cut.
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
