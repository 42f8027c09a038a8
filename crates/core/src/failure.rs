//! Failures of an account, in classes that determine whether they are retried.

use std::fmt;

use crate::object_names::is_hidden;

/// Maximum length of a failure's message, and so of `errorMessage`, in bytes.
pub const MAX_ERROR_MESSAGE_BYTES: usize = 1024;

/// Makes [`FailureClass`] of a table, so that a class is one line of it.
macro_rules! failure_classes {
    ($($(#[$doc:meta])* $class:ident = $reason:literal, $outlook:ident;)+) => {
        /// The class of a failure, and with it the reason of FAILED.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum FailureClass {
            $($(#[$doc])* $class,)+
        }

        impl FailureClass {
            /// All classes.
            pub const ALL: &[Self] = &[$(Self::$class),+];

            /// The reason as conditions and Events carry it: a word in CamelCase.
            pub fn reason(self) -> &'static str {
                match self {
                    $(Self::$class => $reason,)+
                }
            }

            /// Whether a failure of this class is retried.
            pub(crate) fn outlook(self) -> Outlook {
                match self {
                    $(Self::$class => Outlook::$outlook,)+
                }
            }
        }
    };
}

failure_classes! {
    /// The cluster refused the credential (401).
    Auth = "Unauthorized", NeedsSomeone;
    /// The credential lacks a permission (403).
    Forbidden = "Forbidden", NeedsSomeone;
    /// No connection to the cluster.
    Unreachable = "ClusterUnreachable", MayPass;
    /// The cluster's certificate is not trusted, or TLS failed otherwise.
    Tls = "TLSFailed", MayPass;
    /// No response in time.
    Timeout = "Timeout", MayPass;
    /// The kubeconfig is refused.
    BadKubeconfig = "KubeconfigRefused", CannotPass;
    /// The reference to a credential cannot be resolved as written.
    BadReference = "ReferenceRefused", CannotPass;
    /// A Secret, a key of it, or a file does not exist (yet).
    CredentialMissing = "CredentialMissing", MayPass;
    /// An agent's replica reads another credential than the leader does.
    CredentialDiffers = "CredentialDiffers", MayPass;
    /// The account reached another cluster than it is bound to.
    ClusterMismatch = "ClusterMismatch", CannotPass;
    /// The kubeconfig would run a program.
    ExecForbidden = "ExecForbidden", CannotPass;
    /// The cluster's kinds could not be read.
    Discovery = "DiscoveryFailed", MayPass;
    /// Something else holds the requested resource.
    Conflict = "Conflict", MayPass;
    /// No agent that could take the account is connected.
    NoAgent = "NoAgent", MayPass;
    /// Agents of several zones offer to take an account that names none, and only one of the zones can be meant.
    ZoneAmbiguous = "ZoneAmbiguous", MayPass;
    /// The account names no zone, and no zone may offer to take it.
    ZoneRequired = "ZoneRequired", CannotPass;
    /// The agents of the zone run in different clusters, and the account asks for the cluster they run in.
    ZoneSpansClusters = "ZoneSpansClusters", CannotPass;
    /// Accounts of this namespace may not use this source of a kubeconfig.
    SourceForbidden = "SourceForbidden", CannotPass;
    /// Another object has the same account name, and takes precedence.
    DuplicateName = "DuplicateName", CannotPass;
    /// The database has a foreign row of this name.
    RowExists = "RowExists", MayPass;
    /// An internal error of kubesvc.
    Internal = "InternalError", MayPass;
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
    /// Whether agents of another zone may well succeed where this is said: the network between agent and cluster, or a
    /// file that only some agents have.
    pub(crate) fn depends_on_zone(self) -> bool {
        matches!(self, Self::Unreachable | Self::Tls | Self::Timeout | Self::CredentialMissing)
    }

    /// The class whose [`reason`](Self::reason) this is; how a leader that has just started reads a status.
    pub(crate) fn from_reason(reason: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|class| class.reason() == reason)
    }
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
        truncate(&mut message, MAX_ERROR_MESSAGE_BYTES);
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

/// Replaces each run of control and invisible characters with a space, and truncates the text to at most `max` bytes.
pub fn printable(text: &str, max: usize) -> String {
    let parts = text.split(is_hidden).filter(|part| !part.is_empty());
    let mut text = parts.collect::<Vec<_>>().join(" ");
    truncate(&mut text, max);
    text
}

impl fmt::Display for FailureClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_explained_on_the_page_of_states() {
        let page = include_str!("../../../docs/states.md");
        for class in FailureClass::ALL {
            let row = format!("| `{class}` |");
            assert!(page.contains(&row), "docs/states.md has no row for the reason {class}");
            assert_eq!(FailureClass::from_reason(class.reason()), Some(*class));
        }
    }
}
