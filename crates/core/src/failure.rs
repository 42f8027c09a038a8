//! Failures of an account, in classes that determine whether they are retried.

use std::fmt;

use crate::object_names::is_hidden;

/// Maximum length of a failure's message, and so of `errorMessage`, in bytes.
pub const MAX_ERROR_MESSAGE_BYTES: usize = 1024;

/// Makes [`FailureClass`] of a table, so that a class is one entry of it.
macro_rules! failure_classes {
    ($($class:ident = $reason:literal, $outlook:ident, $meaning:literal $(, $remedy:literal)?;)+) => {
        /// The class of a failure, and with it the reason of FAILED.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum FailureClass {
            $(#[doc = $meaning] $class,)+
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

            /// What went wrong, in a sentence.
            pub fn meaning(self) -> &'static str {
                match self {
                    $(Self::$class => $meaning,)+
                }
            }

            /// What a person does about it, in a sentence.
            pub fn remedy(self) -> &'static str {
                match self {
                    $(Self::$class => [$($remedy,)? "See the message above."][0],)+
                }
            }
        }
    };
}

// Class = its reason, whether it is retried, what went wrong, and the remedy where the account does not decide it.
failure_classes! {
    Auth = "Unauthorized", NeedsSomeone, "The cluster refused the credential (401).",
        "Put a valid credential into the kubeconfig.";
    Forbidden = "Forbidden", NeedsSomeone, "The credential lacks a right in the cluster (403).",
        "Grant the user of the kubeconfig the right that the message names.";
    Unreachable = "ClusterUnreachable", MayPass, "The agent gets no connection to the cluster.",
        "Look at the address in the kubeconfig, the network between agent and cluster, and the cluster.";
    Tls = "TLSFailed", MayPass, "The cluster's certificate is not trusted, or TLS failed otherwise.",
        "Do what the message says about the certificate.";
    Timeout = "Timeout", MayPass, "No answer came in time, from the cluster or from the agent.",
        "Do what the message says of the path, if it does; else see the agent's log.";
    BadKubeconfig = "KubeconfigRefused", CannotPass, "The kubeconfig is refused.",
        "Correct the kubeconfig as the message says.";
    BadReference = "ReferenceRefused", CannotPass,
        "The path or reference of the credential cannot be used as it stands.",
        "Correct spec.kubeconfig, or spec.agentKubeconfig, as the message says.";
    CredentialMissing = "CredentialMissing", MayPass, "A Secret, a key of it, or a file does not exist (yet).";
    FileOnClouddriver = "FileOnClouddriver", CannotPass,
        "The account was migrated, and its kubeconfig is a file that only Clouddriver has.";
    CredentialDiffers = "CredentialDiffers", MayPass, "The replicas of the operator read different credentials.",
        "See that every replica has the same file, and the same Secret.";
    ClusterMismatch = "ClusterMismatch", CannotPass,
        "The account reached another cluster than it is bound to.";
    ExecForbidden = "ExecForbidden", CannotPass,
        "The kubeconfig would run a program to log in; that is never done on an agent.",
        "Use a token, or client-certificate-data with client-key-data, in place of exec.";
    Discovery = "DiscoveryFailed", MayPass, "The cluster's kinds could not be read.", "See the agent's log.";
    Conflict = "Conflict", MayPass, "Something else holds what is asked for.";
    NoAgent = "NoAgent", MayPass, "No agent that could take the account is connected.";
    ZoneAmbiguous = "ZoneAmbiguous", MayPass,
        "Agents of several zones offer to take an account that names none, and only one of the zones can be meant.";
    ZoneRequired = "ZoneRequired", CannotPass,
        "The account names no zone, and no zone may offer to take it.";
    ZoneForbidden = "ZoneForbidden", MayPass,
        "The identity of no agent of the zone allows the account.",
        "Add the account to spec.allow.accounts of the KubesvcIdentity that the message names, or give it another zone.";
    ZoneSpansClusters = "ZoneSpansClusters", CannotPass,
        "The account asks for the cluster its agents are in, and the agents of its zone are in different ones.",
        "Give the agents of each cluster a zoneId of their own, and name it in spec.zoneId.";
    SourceForbidden = "SourceForbidden", CannotPass,
        "Accounts of its namespace may not use this source of a kubeconfig.",
        "Put a kubeconfig into a Secret beside the account, or have the setting that the message names changed.";
    DuplicateName = "DuplicateName", CannotPass,
        "Another object has the same account name, and takes precedence.";
    RowExists = "RowExists", MayPass, "The database has a foreign row of this name.";
    Internal = "InternalError", MayPass, "kubesvc itself failed, or its API server could not be asked.",
        "See the operator's log.";
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
        matches!(
            self,
            Self::Unreachable | Self::Tls | Self::Timeout | Self::CredentialMissing | Self::ZoneForbidden
        )
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
