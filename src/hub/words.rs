//! Between the wire's messages and the lifecycle's words.

use secrecy::ExposeSecret;

use crate::account::KubesvcAccount;
use crate::account::failure::{Failure, FailureClass};
use crate::account::lifecycle::{Identity, Word};
use crate::account::spec::Scope;
use crate::secrets::{Credential, CredentialKind};
use crate::wire::common::failure::Class;
use crate::wire::ops::account_result::Outcome;
use crate::wire::{common, ops};

/// The longest part of an identity, in bytes.
const MAX_PART: usize = 2048;
/// How many namespaces are kept of an identity.
const MAX_NAMESPACES: usize = 10_000;

/// An agent's answer about one account.
#[derive(Debug, PartialEq)]
pub(super) struct Answer {
    pub(super) uid: String,
    pub(super) epoch: i64,
    pub(super) word: Word,
    /// The failure is one to drop the account.
    pub(super) of_drop: bool,
    /// The namespaces it saw, where it holds the account.
    pub(super) namespaces: Vec<String>,
}

/// Reads an answer; absent: it names no account, no epoch that could be, or no outcome.
pub(super) fn answer(result: ops::AccountResult) -> Option<Answer> {
    let (uid, epoch) = reference(result.account?)?;
    let mut namespaces = Vec::new();
    let word = match (result.outcome, result.dropped) {
        (Some(Outcome::Failure(failure)), _) => Word::Failed(read_failure(&failure)),
        (_, true) => Word::Dropped,
        (Some(Outcome::Identity(mut identity)), false) => {
            namespaces = std::mem::take(&mut identity.namespaces);
            namespaces.truncate(MAX_NAMESPACES);
            Word::Held(read_identity(&identity))
        }
        (None, false) => return None,
    };
    Some(Answer { uid, epoch, word, of_drop: result.dropped, namespaces })
}

/// Reads a loss; absent: it names no account.
pub(super) fn loss(lost: ops::Lost) -> Option<Answer> {
    let (uid, epoch) = reference(lost.account?)?;
    let failure = lost.failure.as_ref().map_or_else(
        || Failure::new(FailureClass::Internal, "the agent lost the account and gave no reason"),
        read_failure,
    );
    Some(Answer { uid, epoch, word: Word::Lost(failure), of_drop: false, namespaces: Vec::new() })
}

/// Uid and epoch of a reference.
pub(super) fn reference(account: common::AccountRef) -> Option<(String, i64)> {
    let epoch = i64::try_from(account.epoch).ok()?;
    (!account.uid.is_empty()).then_some((account.uid, epoch))
}

/// A failure as the wire has it, in our words.
pub(super) fn read_failure(failure: &common::Failure) -> Failure {
    let class = match failure.class() {
        Class::Auth => FailureClass::Auth,
        Class::Forbidden => FailureClass::Forbidden,
        Class::Unreachable => FailureClass::Unreachable,
        Class::Tls => FailureClass::Tls,
        Class::Timeout => FailureClass::Timeout,
        Class::BadKubeconfig => FailureClass::BadKubeconfig,
        // A file that is not there may come; a path that is not allowed will not.
        Class::BadReference if failure.retryable => FailureClass::CredentialMissing,
        Class::BadReference => FailureClass::BadReference,
        Class::ClusterMismatch => FailureClass::ClusterMismatch,
        Class::ExecForbidden => FailureClass::ExecForbidden,
        Class::Discovery => FailureClass::Discovery,
        Class::Conflict => FailureClass::Conflict,
        Class::NotFound => FailureClass::CredentialMissing,
        Class::Unspecified
        | Class::TooLarge
        | Class::Unimplemented
        | Class::Internal
        | Class::OutcomeUnknown => FailureClass::Internal,
    };
    let message = printable(&failure.message);
    if message.trim().is_empty() {
        return Failure::new(class, format!("the agent gave no reason beyond {class}"));
    }
    Failure::new(class, message)
}

fn read_identity(identity: &ops::ClusterIdentity) -> Identity {
    Identity {
        cluster_uid: part(&identity.kube_system_uid),
        host: part(&identity.host),
        cert_fingerprint: part(&identity.cert_fingerprint),
        version: part(&identity.version),
        namespaces_count: identity.namespaces_count,
    }
}

fn part(text: &str) -> String {
    let mut text = printable(text);
    crate::account::failure::truncate(&mut text, MAX_PART);
    text
}

/// The text with each run of control characters as one space.
fn printable(text: &str) -> String {
    text.split(char::is_control).filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

/// An account as an agent is sent it. It holds the credential: it must not be logged.
pub(super) fn account_spec(
    account: &KubesvcAccount,
    epoch: i64,
    credential: &Credential,
) -> ops::AccountSpec {
    use ops::account_spec::Credential as Sent;
    let spec = &account.spec;
    ops::AccountSpec {
        account: Some(account_ref(account.uid(), account.account_name(), epoch, account.generation())),
        credential: Some(match &credential.kind {
            CredentialKind::Kubeconfig(bytes) => Sent::Kubeconfig(bytes.expose_secret().to_vec()),
            CredentialKind::File(path) => Sent::File(path.clone()),
            CredentialKind::ServiceAccount => Sent::ServiceAccount(true),
        }),
        context: spec.context.clone().unwrap_or_default(),
        insecure: spec.insecure.unwrap_or_default(),
        namespaces: spec.namespaces.clone(),
        omit_namespaces: spec.omit_namespaces.clone(),
        kinds: spec.kinds.clone(),
        omit_kinds: spec.omit_kinds.clone(),
        only_namespaced_resources: spec.only_namespaced_resources.unwrap_or_default(),
        custom_resource_definitions: spec
            .custom_resource_definitions
            .iter()
            .map(|exposed| ops::CustomResourceDefinition {
                kind: exposed.kind.clone(),
                cluster_scoped: exposed.scope == Some(Scope::Cluster),
            })
            .collect(),
        only_spinnaker_managed: spec.only_spinnaker_managed.unwrap_or_default(),
        metrics: spec.metrics.unwrap_or_default(),
        no_proxy: spec.no_proxy.unwrap_or_default(),
        max_resumable_resource_age_ms: spec
            .max_resumable_resource_age_ms
            .and_then(|age| u64::try_from(age).ok())
            .unwrap_or_default(),
        read_roles: Vec::new(),
        write_roles: Vec::new(),
    }
}

/// An account by reference. Epochs and generations are never negative.
pub(super) fn account_ref(uid: &str, name: &str, epoch: i64, generation: i64) -> common::AccountRef {
    common::AccountRef {
        uid: uid.to_owned(),
        name: name.to_owned(),
        epoch: u64::try_from(epoch).unwrap_or_default(),
        generation: u64::try_from(generation).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(class: i32, retryable: bool, message: &str) -> Failure {
        let message = message.to_owned();
        read_failure(&common::Failure { class, retryable, message, ..Default::default() })
    }

    #[test]
    fn every_class_of_the_wire_has_one_of_ours() {
        use FailureClass as F;
        let expected = [
            F::Internal,
            F::Auth,
            F::Forbidden,
            F::Unreachable,
            F::Tls,
            F::Timeout,
            F::BadKubeconfig,
            F::BadReference,
            F::ClusterMismatch,
            F::ExecForbidden,
            F::Discovery,
            F::Conflict,
            F::CredentialMissing,
            F::Internal,
            F::Internal,
            F::Internal,
            F::Internal,
        ];
        for (class, expected) in (0..).zip(expected) {
            assert_eq!(failed(class, false, "why").class, expected, "class {class}");
        }
        assert_eq!(failed(999, true, "why").class, F::Internal, "an unknown class");
        assert_eq!(failed(Class::BadReference.into(), true, "why").class, F::CredentialMissing);
    }

    #[test]
    fn messages_are_printable_and_short() {
        let failure = failed(1, false, &format!("a\nb\u{1b}[31m{}", "x".repeat(5000)));
        assert!(failure.message.starts_with("a b [31mx"), "{}", failure.message);
        assert!(failure.message.len() <= 1024);
        assert!(!failed(1, false, "\n").message.is_empty());
    }

    #[test]
    fn dropped_with_a_failure_is_a_failure_to_drop() {
        let result = ops::AccountResult {
            account: Some(account_ref("u", "n", 3, 1)),
            outcome: Some(Outcome::Failure(common::Failure::default())),
            dropped: true,
        };
        let answer = answer(result).expect("it is complete");
        assert!(matches!(answer, Answer { epoch: 3, word: Word::Failed(_), of_drop: true, .. }));
    }

    #[test]
    fn an_answer_without_account_or_outcome_is_none() {
        assert_eq!(answer(ops::AccountResult::default()), None);
        let account = Some(account_ref("u", "n", 3, 1));
        assert_eq!(answer(ops::AccountResult { account, ..Default::default() }), None);
        let account = Some(common::AccountRef { uid: "u".into(), epoch: u64::MAX, ..Default::default() });
        assert_eq!(answer(ops::AccountResult { account, dropped: true, outcome: None }), None);
    }
}
