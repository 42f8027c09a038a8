//! Conversion between the wire's messages and the types of the lifecycle.

use secrecy::ExposeSecret;

use crate::secrets::{Credential, CredentialKind};
use kubesvc_core::failure::{Failure, FailureClass, MAX_ERROR_MESSAGE_BYTES, printable};
use kubesvc_core::lifecycle::{AgentReport, ClusterIdentity};
use kubesvc_core::object_names::is_dns_label;
use kubesvc_core::spec::Scope;
use kubesvc_core::wire::common::failure::Class;
use kubesvc_core::wire::ops::account_result::Outcome;
use kubesvc_core::wire::{common, ops};
use kubesvc_core::{GrantEpoch, KubesvcAccount};

/// Maximum length of a cluster's version, in bytes; longer ones are truncated, since people read them only.
const MAX_VERSION: usize = 64;
/// Maximum length of an identity, in characters; longer ones are refused, since truncation could make two clusters
/// equal.
const MAX_PARTS: [(&str, usize); 5] = [
    ("kube_system_uid", 36),
    ("host", 512),
    ("cert_fingerprint", 128),
    ("token_keys_digest", 64),
    ("authority_key_digest", 64),
];
/// Maximum number of namespaces kept of an identity.
const MAX_NAMESPACES: usize = 10_000;

/// An agent's answer about one account.
#[derive(Debug, PartialEq)]
pub(crate) struct AccountAnswer {
    pub(crate) uid: String,
    pub(crate) epoch: GrantEpoch,
    pub(crate) report: AgentReport,
    /// Whether the failure is one of a drop.
    pub(crate) of_drop: bool,
    /// Namespaces of the account, if held.
    pub(crate) namespaces: Vec<String>,
}

/// Converts an answer; `None` without an account, a valid epoch or an outcome.
pub(crate) fn answer(result: ops::AccountResult) -> Option<AccountAnswer> {
    let (uid, epoch) = reference(result.account?)?;
    let mut namespaces = Vec::new();
    let report = match (result.outcome, result.dropped) {
        (Some(Outcome::Failure(failure)), _) => AgentReport::Failed(read_failure(&failure)),
        (_, true) => AgentReport::Dropped,
        (Some(Outcome::Identity(mut identity)), false) => {
            namespaces = std::mem::take(&mut identity.namespaces);
            namespaces.truncate(MAX_NAMESPACES);
            namespaces.retain(|name| is_dns_label(name));
            let refused = result.refused.as_ref().map(read_failure);
            let refused = refused.map(|failure| Failure { class: FailureClass::Auth, ..failure });
            let held = |read| AgentReport::Held(ClusterIdentity { refused, ..read });
            read_identity(&identity).map_or_else(AgentReport::Failed, held)
        }
        (None, false) => return None,
    };
    Some(AccountAnswer { uid, epoch, report, of_drop: result.dropped, namespaces })
}

/// Converts a loss; `None` without an account.
pub(crate) fn loss(lost: ops::Lost) -> Option<AccountAnswer> {
    let (uid, epoch) = reference(lost.account?)?;
    let failure = lost.failure.as_ref().map_or_else(
        || Failure::new(FailureClass::Internal, "the agent lost the account and gave no reason"),
        read_failure,
    );
    Some(AccountAnswer {
        uid,
        epoch,
        report: AgentReport::Lost(failure),
        of_drop: false,
        namespaces: Vec::new(),
    })
}

/// Returns uid and epoch of a reference.
pub(crate) fn reference(account: common::AccountRef) -> Option<(String, GrantEpoch)> {
    let epoch = GrantEpoch::from_wire(account.epoch)?;
    (!account.uid.is_empty()).then_some((account.uid, epoch))
}

pub(crate) fn read_failure(failure: &common::Failure) -> Failure {
    let class = match failure.class() {
        Class::Auth => FailureClass::Auth,
        Class::Forbidden => FailureClass::Forbidden,
        Class::Unreachable => FailureClass::Unreachable,
        Class::Tls => FailureClass::Tls,
        Class::Timeout => FailureClass::Timeout,
        Class::BadKubeconfig => FailureClass::BadKubeconfig,
        // A missing file may appear; a path that is not allowed will not.
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
        | Class::OutcomeUnknown
        | Class::Overloaded => FailureClass::Internal,
    };
    let message = printable(&failure.message, MAX_ERROR_MESSAGE_BYTES);
    if message.trim().is_empty() {
        return Failure::new(class, format!("the agent gave no reason beyond {class}"));
    }
    Failure::new(class, message)
}

/// Converts the identity of a cluster, or returns a failure if it is malformed.
fn read_identity(identity: &ops::ClusterIdentity) -> Result<ClusterIdentity, Failure> {
    let texts = [
        &identity.kube_system_uid,
        &identity.host,
        &identity.cert_fingerprint,
        &identity.token_keys_digest,
        &identity.authority_key_digest,
    ];
    for (text, (part, most)) in texts.into_iter().zip(MAX_PARTS) {
        let why = if text.chars().nth(most).is_some() {
            format!("has more than {most} characters")
        } else if text.chars().any(char::is_control) {
            "has control characters".to_owned()
        } else {
            continue;
        };
        let message =
            format!("the agent's word about the cluster is refused: its {part} {why}; upgrade the agent");
        return Err(Failure::new(FailureClass::Internal, message));
    }
    Ok(ClusterIdentity {
        cluster_uid: identity.kube_system_uid.clone(),
        token_keys_digest: identity.token_keys_digest.clone(),
        authority_key_digest: identity.authority_key_digest.clone(),
        host: identity.host.clone(),
        cert_fingerprint: identity.cert_fingerprint.clone(),
        version: printable(&identity.version, MAX_VERSION),
        namespaces_count: identity.namespaces_count,
        refused: None,
    })
}

/// Converts an account for its agent. Contains the credential: must not be logged.
pub(crate) fn account_spec(
    account: &KubesvcAccount,
    epoch: GrantEpoch,
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

/// Converts a reference. Epochs and generations are never negative.
pub(crate) fn account_ref(uid: &str, name: &str, epoch: GrantEpoch, generation: i64) -> common::AccountRef {
    common::AccountRef {
        uid: uid.to_owned(),
        name: name.to_owned(),
        epoch: epoch.to_wire(),
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

    fn said_to_be(change: impl FnOnce(&mut ops::ClusterIdentity)) -> AccountAnswer {
        let mut identity = ops::ClusterIdentity {
            kube_system_uid: "6360df66-a73f-436d-b219-061db81a48e0".into(),
            host: "https://one.example:6443".into(),
            cert_fingerprint: vec!["5A"; 32].join(":"),
            version: "v1.36.3".into(),
            namespaces: vec!["default".into()],
            ..Default::default()
        };
        change(&mut identity);
        let account = Some(account_ref("u", "n", GrantEpoch(3), 1));
        let result =
            ops::AccountResult { account, outcome: Some(Outcome::Identity(identity)), ..Default::default() };
        answer(result).expect("it is complete")
    }

    /// Each would have been a row that no database takes: the account ACTIVE, and its row stuck at ACTIVATING.
    #[test]
    fn a_cluster_that_cannot_be_is_a_failure_that_names_the_part_and_is_never_cut_short() {
        assert!(matches!(said_to_be(|_| {}).report, AgentReport::Held(_)));
        type Change = fn(&mut ops::ClusterIdentity);
        let cases: [(&str, Change); 7] = [
            ("kube_system_uid has more than 36", |one| one.kube_system_uid = "u".repeat(37)),
            ("host has more than 512", |one| one.host = "h".repeat(513)),
            ("cert_fingerprint has more than 128", |one| one.cert_fingerprint = "A".repeat(129)),
            ("token_keys_digest has more than 64", |one| one.token_keys_digest = "a".repeat(65)),
            ("authority_key_digest has control", |one| one.authority_key_digest = "a\0".into()),
            ("host has control", |one| one.host = "https://a\0b".into()),
            ("kube_system_uid has control", |one| one.kube_system_uid = "a\nb".into()),
        ];
        for (said, change) in cases {
            let answer = said_to_be(change);
            assert!(
                matches!(&answer.report, AgentReport::Failed(failure) if failure.message.contains(said)),
                "{answer:?}"
            );
        }
    }

    #[test]
    fn version_is_truncated_and_invalid_namespaces_are_skipped() {
        let answer = said_to_be(|one| {
            one.version = format!("v1\u{7}{}", "9".repeat(5000));
            one.namespaces.extend(["../etc".into(), "a\0b".into(), "x".repeat(1 << 20), String::new()]);
        });
        assert_eq!(answer.namespaces, ["default"]);
        let AgentReport::Held(identity) = answer.report else { unreachable!("{answer:?}") };
        assert!(identity.version.starts_with("v1 9") && identity.version.len() <= 64, "{identity:?}");
    }

    #[test]
    fn held_account_is_unauthorized_whatever_class_the_agent_gives() {
        let identity = ops::ClusterIdentity::default();
        let result = ops::AccountResult {
            account: Some(account_ref("u", "n", GrantEpoch(3), 1)),
            outcome: Some(Outcome::Identity(identity)),
            refused: Some(common::Failure { message: "a\nb".into(), ..Default::default() }),
            ..Default::default()
        };
        let report = answer(result).expect("it is complete").report;
        let refused = Some(Failure::new(FailureClass::Auth, "a b"));
        assert_eq!(report, AgentReport::Held(ClusterIdentity { refused, ..ClusterIdentity::default() }));
    }

    #[test]
    fn dropped_with_a_failure_is_a_failure_to_drop() {
        let result = ops::AccountResult {
            account: Some(account_ref("u", "n", GrantEpoch(3), 1)),
            outcome: Some(Outcome::Failure(common::Failure::default())),
            dropped: true,
            ..Default::default()
        };
        let answer = answer(result).expect("it is complete");
        assert!(matches!(
            answer,
            AccountAnswer { epoch: GrantEpoch(3), report: AgentReport::Failed(_), of_drop: true, .. }
        ));
    }

    #[test]
    fn an_answer_without_account_or_outcome_is_none() {
        assert_eq!(answer(ops::AccountResult::default()), None);
        let account = Some(account_ref("u", "n", GrantEpoch(3), 1));
        assert_eq!(answer(ops::AccountResult { account, ..Default::default() }), None);
        let account = Some(common::AccountRef { uid: "u".into(), epoch: u64::MAX, ..Default::default() });
        assert_eq!(answer(ops::AccountResult { account, dropped: true, ..Default::default() }), None);
    }
}
