//! The refusal of a kubeconfig.

use std::borrow::Cow;

/// Why a kubeconfig is refused: which key, what is wrong with it, and what to use.
///
/// Neither `Display` nor `Debug` shows a value of the file that might be a credential. They may show names of
/// contexts, clusters and users, and lines and columns.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} {problem}; {remedy}")]
pub struct KubeconfigError {
    field: String,
    problem: Cow<'static, str>,
    remedy: Cow<'static, str>,
    kind: KubeconfigErrorKind,
}

/// The failure class of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KubeconfigErrorKind {
    /// It would run a program to authenticate (`exec`, `auth-provider`).
    ExecForbidden,
    /// Anything else.
    BadKubeconfig,
}

impl KubeconfigError {
    pub(super) fn new(
        field: impl Into<String>,
        problem: impl Into<Cow<'static, str>>,
        remedy: impl Into<Cow<'static, str>>,
    ) -> Self {
        let (field, problem, remedy) = (field.into(), problem.into(), remedy.into());
        Self { field, problem, remedy, kind: KubeconfigErrorKind::BadKubeconfig }
    }

    pub(super) fn exec(field: String, problem: &'static str, remedy: &'static str) -> Self {
        Self { kind: KubeconfigErrorKind::ExecForbidden, ..Self::new(field, problem, remedy) }
    }

    /// The key at fault, such as `users[dev].user.exec`; `kubeconfig` if it is the file as a whole.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// The failure class of this refusal.
    pub fn kind(&self) -> KubeconfigErrorKind {
        self.kind
    }

    /// Whether the kubeconfig would have run a program: failure class EXEC_FORBIDDEN instead of BAD_KUBECONFIG.
    pub fn is_exec(&self) -> bool {
        self.kind == KubeconfigErrorKind::ExecForbidden
    }
}
