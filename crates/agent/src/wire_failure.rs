//! Failures in their wire form.

use kubesvc_core::failure::MAX_ERROR_MESSAGE_BYTES;
use kubesvc_core::failure::truncate;
use kubesvc_core::kubeconfig::KubeconfigError;
use kubesvc_core::wire::common::Failure;
use kubesvc_core::wire::common::failure::Class;

/// A failure before anything was sent to the cluster. Its class decides whether it can be retried.
pub(super) fn before_send(class: Class, message: impl Into<String>) -> Failure {
    Failure { before_send: true, ..after_send(class, message) }
}

/// A failure after something was sent to the cluster.
pub(super) fn after_send(class: Class, message: impl Into<String>) -> Failure {
    let mut message = message.into();
    truncate(&mut message, MAX_ERROR_MESSAGE_BYTES);
    Failure { class: class.into(), retryable: may_pass(class), message, http_status: 0, before_send: false }
}

/// The failure of something that the agent's policy forbids.
pub(super) fn forbidden(why: &str) -> Failure {
    before_send(Class::Forbidden, format!("policy: {why}"))
}

/// The failure of a refused kubeconfig.
pub(super) fn refused(refusal: &KubeconfigError) -> Failure {
    let class = if refusal.is_exec() { Class::ExecForbidden } else { Class::BadKubeconfig };
    before_send(class, format!("the kubeconfig is refused: {refusal}"))
}

fn may_pass(class: Class) -> bool {
    matches!(
        class,
        Class::Unspecified
            | Class::Unreachable
            | Class::Tls
            | Class::Timeout
            | Class::Discovery
            | Class::Conflict
            | Class::TooLarge
            | Class::Internal
            | Class::OutcomeUnknown
            | Class::Overloaded
    )
}
