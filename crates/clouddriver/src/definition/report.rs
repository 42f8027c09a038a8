//! What a conversion tells people: refusals, warnings, and fields without effect. Contains no credential.

use std::fmt;

use kubesvc_core::spinnaker::Ignored;

/// The kind of a problem, as a word in CamelCase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The name is none that an account can have.
    InvalidName,
    /// A field has the wrong type or value, or contradicts another.
    InvalidField,
    /// The entry uses Clouddriver's own identity.
    NotPortable,
    /// The entry names no credential.
    NoCredential,
    /// The secret reference is malformed.
    ReferenceRefused,
    /// The kubeconfig is refused.
    KubeconfigRefused,
    /// The kubeconfig would run a program.
    ExecForbidden,
    /// Accounts of the namespace may not use the credential.
    SourceForbidden,
}

impl Reason {
    /// The reason as reports show it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidName => "InvalidName",
            Self::InvalidField => "InvalidField",
            Self::NotPortable => "NotPortable",
            Self::NoCredential => "NoCredential",
            Self::ReferenceRefused => "ReferenceRefused",
            Self::KubeconfigRefused => "KubeconfigRefused",
            Self::ExecForbidden => "ExecForbidden",
            Self::SourceForbidden => "SourceForbidden",
        }
    }
}

/// One reason why an entry becomes no account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryProblem {
    /// Its kind.
    pub reason: Reason,
    /// The field, what is wrong, and what to do.
    pub message: String,
}

impl EntryProblem {
    pub(super) fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }

    /// A field with an invalid value.
    pub(super) fn field(message: impl Into<String>) -> Self {
        Self::new(Reason::InvalidField, message)
    }
}

/// Why an entry becomes no account: everything that is wrong with it, at least one problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryRefusal {
    /// The problems, in the order in which the entry was examined.
    pub problems: Vec<EntryProblem>,
}

impl EntryRefusal {
    /// A refusal for one reason.
    pub fn of(reason: Reason, message: impl Into<String>) -> Self {
        Self { problems: vec![EntryProblem::new(reason, message)] }
    }

    /// The reason of the first problem.
    pub fn reason(&self) -> Reason {
        self.problems.first().map_or(Reason::InvalidField, |problem| problem.reason)
    }
}

impl fmt::Display for EntryRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{}", problem.message)?;
        }
        Ok(())
    }
}

/// What a person should know about an entry, whether it becomes an account or not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Fields that have no effect in kubesvc.
    pub without_effect: Ignored,
    /// Sentences about what was changed, dropped or may surprise.
    pub warnings: Vec<String>,
}

impl Report {
    pub(super) fn warn(&mut self, warning: impl Into<String>) {
        let warning = warning.into();
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }
}
