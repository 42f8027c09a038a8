//! Whether the cluster that an agent reached is the one that an account is bound to.
//!
//! Addresses are no evidence: service-account hosts are alike everywhere (10.96.0.1), and a DNS name outlives the
//! cluster behind it. Nor is the served certificate, which rotates.

use super::observation::ClusterIdentity;
use crate::KubesvcAccountStatus;
use crate::failure::{Failure, FailureClass};
use crate::ids::AgentId;

/// How many characters of a uid or digest stand for it in texts.
const SHORT_DIGITS: usize = 8;

/// What tells which cluster it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evidence {
    /// The uid of the namespace kube-system.
    KubeSystem,
    /// The keys with which the API server signs tokens of service accounts.
    TokenKeys,
    /// The public key of the pinned authority that verified the API server.
    AuthorityKey,
}

/// What a comparison of two clusters says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    /// It is the same cluster, by this evidence.
    Same(Evidence),
    /// It is another cluster.
    Another,
    /// Nothing known of both tells.
    Unknown,
}

/// Compares the cluster that an account is bound to with the one that an agent reached.
///
/// The uid of kube-system decides where both have it. Else token keys and authority may each rotate while the cluster
/// stays: either of them equal is the same cluster, and only both known and different is another one.
fn compare(status: &KubesvcAccountStatus, reached: &ClusterIdentity) -> Comparison {
    let equal = |bound: &Option<String>, reached: &str| {
        let bound = bound.as_deref().filter(|bound| !bound.is_empty() && !reached.is_empty())?;
        Some(bound == reached)
    };
    match equal(&status.cluster_uid, &reached.cluster_uid) {
        Some(true) => return Comparison::Same(Evidence::KubeSystem),
        Some(false) => return Comparison::Another,
        None => {}
    }
    let token_keys = equal(&status.token_keys_digest, &reached.token_keys_digest);
    let authority_key = equal(&status.authority_key_digest, &reached.authority_key_digest);
    match (token_keys, authority_key) {
        (Some(true), _) => Comparison::Same(Evidence::TokenKeys),
        (_, Some(true)) => Comparison::Same(Evidence::AuthorityKey),
        (Some(false), Some(false)) => Comparison::Another,
        _ => Comparison::Unknown,
    }
}

/// Whether the agent reached another cluster than the account is bound to.
pub fn is_another_cluster(status: &KubesvcAccountStatus, reached: &ClusterIdentity) -> bool {
    compare(status, reached) == Comparison::Another
}

/// What the agent's word counts as if it [reached another cluster](is_another_cluster) than the account is bound to.
pub fn mismatch(
    status: &KubesvcAccountStatus,
    agent_id: &AgentId,
    reached: &ClusterIdentity,
) -> Option<Failure> {
    is_another_cluster(status, reached).then(|| {
        let bound = named(
            status.kube_host.as_deref().unwrap_or_default(),
            status.cluster_uid.as_deref().unwrap_or_default(),
            status.token_keys_digest.as_deref().unwrap_or_default(),
        );
        let message = format!(
            "agent {agent_id} reached {}, another cluster than {bound}, which the account is bound to; \
             correct the kubeconfig, or set spec.state to INACTIVE once to unbind the account",
            named(&reached.host, &reached.cluster_uid, &reached.token_keys_digest)
        );
        Failure::new(FailureClass::ClusterMismatch, message)
    })
}

/// A cluster in a sentence: two may have one host.
fn named(host: &str, uid: &str, token_keys: &str) -> String {
    let by = match (short(uid), short(token_keys)) {
        ("", "") => String::new(),
        ("", keys) => format!("token keys {keys}"),
        (uid, _) => format!("kube-system {uid}"),
    };
    match (host, by.as_str()) {
        (host, "") => host.to_owned(),
        ("", by) => by.to_owned(),
        (host, by) => format!("{host} ({by})"),
    }
}

/// How a cluster is named to people: the first characters of the uid of its kube-system, or of a digest.
pub fn short(text: &str) -> &str {
    text.char_indices().nth(SHORT_DIGITS).map_or(text, |(end, _)| &text[..end])
}

/// What the condition ClusterIdentity says of the cluster that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdentityCondition {
    /// The account is bound to this cluster, by this evidence.
    By(Evidence),
    /// Nothing tells whether it is.
    NotReadable,
}

impl IdentityCondition {
    /// Status, reason and message of the condition.
    pub(super) fn condition(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::By(Evidence::KubeSystem) => {
                ("True", "KubeSystem", "the uid of the namespace kube-system tells which cluster it is")
            }
            Self::By(Evidence::TokenKeys) => (
                "True",
                "TokenKeys",
                "the keys with which the API server signs tokens tell which cluster it is",
            ),
            Self::By(Evidence::AuthorityKey) => (
                "True",
                "AuthorityKey",
                "the certificate authority that verified the API server tells which cluster it is",
            ),
            Self::NotReadable => (
                "Unknown",
                "NotReadable",
                "nothing that the agent can read tells whether this is the cluster that the account is bound to; let the \
                 account get the namespace kube-system or /openid/v1/jwks",
            ),
        }
    }
}

/// Writes the cluster that an agent reached and that is not [another one](Comparison::Another) into a status.
///
/// The first evidence binds. Where nothing tells that it is the same cluster, the binding stays as it was.
pub(super) fn bind(status: &mut KubesvcAccountStatus, reached: &ClusterIdentity) -> IdentityCondition {
    let is_bound = [&status.cluster_uid, &status.token_keys_digest, &status.authority_key_digest]
        .into_iter()
        .any(|evidence| evidence.as_ref().is_some_and(|text| !text.is_empty()));
    let recognised = match compare(status, reached) {
        Comparison::Same(evidence) => IdentityCondition::By(evidence),
        Comparison::Unknown | Comparison::Another if is_bound => IdentityCondition::NotReadable,
        _ => strongest(reached).map_or(IdentityCondition::NotReadable, IdentityCondition::By),
    };
    if recognised != IdentityCondition::NotReadable {
        for (bound, reached) in [
            (&mut status.cluster_uid, &reached.cluster_uid),
            (&mut status.token_keys_digest, &reached.token_keys_digest),
            (&mut status.authority_key_digest, &reached.authority_key_digest),
        ] {
            if !reached.is_empty() {
                *bound = Some(reached.clone());
            }
        }
    }
    status.cluster = shown(&reached.host, status.cluster_uid.as_deref().unwrap_or_default());
    recognised
}

fn strongest(reached: &ClusterIdentity) -> Option<Evidence> {
    [
        (&reached.cluster_uid, Evidence::KubeSystem),
        (&reached.token_keys_digest, Evidence::TokenKeys),
        (&reached.authority_key_digest, Evidence::AuthorityKey),
    ]
    .into_iter()
    .find_map(|(text, evidence)| (!text.is_empty()).then_some(evidence))
}

/// Host and port without the scheme, and the first characters of the uid.
fn shown(host: &str, uid: &str) -> Option<String> {
    let host = host.strip_prefix("https://").unwrap_or(host);
    match (host, short(uid)) {
        ("", _) => None,
        (host, "") => Some(host.to_owned()),
        (host, uid) => Some(format!("{host} ({uid})")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evidence(uid: &str, token_keys: &str, authority_key: &str) -> ClusterIdentity {
        ClusterIdentity {
            cluster_uid: uid.to_owned(),
            token_keys_digest: token_keys.to_owned(),
            authority_key_digest: authority_key.to_owned(),
            host: "https://10.96.0.1".to_owned(),
            cert_fingerprint: "served".to_owned(),
            ..ClusterIdentity::default()
        }
    }

    fn bound_to(identity: &ClusterIdentity) -> KubesvcAccountStatus {
        let mut status = KubesvcAccountStatus::default();
        bind(&mut status, identity);
        status
    }

    #[test]
    fn each_pair_of_evidence_says_same_another_or_unknown() {
        use Comparison::{Another, Same, Unknown};
        use Evidence::{AuthorityKey, KubeSystem, TokenKeys};
        let table = [
            // The uid decides alone where both have it.
            (("u", "k", "a"), ("u", "K", "A"), Same(KubeSystem)),
            (("u", "k", "a"), ("U", "k", "a"), Another),
            // Without it either one equal is the same.
            (("u", "k", "a"), ("", "k", "A"), Same(TokenKeys)),
            (("", "k", "a"), ("u", "K", "a"), Same(AuthorityKey)),
            (("", "k", "a"), ("", "k", ""), Same(TokenKeys)),
            (("", "k", "a"), ("", "", "a"), Same(AuthorityKey)),
            // Only both known and different is another.
            (("", "k", "a"), ("", "K", "A"), Another),
            (("u", "k", "a"), ("", "K", "A"), Another),
            (("", "k", "a"), ("", "K", ""), Unknown),
            (("", "k", "a"), ("", "", "A"), Unknown),
            (("", "k", ""), ("", "", "a"), Unknown),
            (("u", "", ""), ("", "k", "a"), Unknown),
            (("u", "k", "a"), ("", "", ""), Unknown),
            (("", "", ""), ("u", "k", "a"), Unknown),
        ];
        for (bound, reached, expected) in table {
            let status = bound_to(&evidence(bound.0, bound.1, bound.2));
            let reached = evidence(reached.0, reached.1, reached.2);
            assert_eq!(compare(&status, &reached), expected, "{bound:?} {reached:?}");
        }
    }

    #[test]
    fn an_address_and_a_served_certificate_are_no_evidence() {
        let status = bound_to(&evidence("", "k", "a"));
        let moved = ClusterIdentity {
            host: "https://elsewhere.example".to_owned(),
            cert_fingerprint: "another".to_owned(),
            ..evidence("", "k", "A")
        };
        assert_eq!(compare(&status, &moved), Comparison::Same(Evidence::TokenKeys));
        assert_eq!(compare(&status, &evidence("", "K", "A")), Comparison::Another, "at the same address");
    }

    #[test]
    fn what_rotates_is_followed_as_long_as_something_stays() {
        let mut status = bound_to(&evidence("", "k1", "a1"));
        for (token_keys, authority_key) in [("k1", "a2"), ("k2", "a2"), ("k2", "a3")] {
            let recognised = bind(&mut status, &evidence("", token_keys, authority_key));
            assert!(matches!(recognised, IdentityCondition::By(_)), "{token_keys} {authority_key}");
        }
        assert_eq!(bind(&mut status, &evidence("u", "k2", "")), IdentityCondition::By(Evidence::TokenKeys));
        assert_eq!(status.cluster_uid.as_deref(), Some("u"), "what becomes readable is learnt");
        assert_eq!(status.authority_key_digest.as_deref(), Some("a3"));
    }

    #[test]
    fn what_cannot_be_compared_leaves_the_binding_as_it_was() {
        let before = bound_to(&evidence("u", "", ""));
        let mut status = before.clone();
        assert_eq!(bind(&mut status, &evidence("", "k", "a")), IdentityCondition::NotReadable);
        assert_eq!(status, before);
        let mut unbound = KubesvcAccountStatus::default();
        assert_eq!(bind(&mut unbound, &evidence("", "", "")), IdentityCondition::NotReadable);
        assert_eq!(
            bind(&mut unbound, &evidence("", "k", "")),
            IdentityCondition::By(Evidence::TokenKeys),
            "the first binds"
        );
    }

    #[test]
    fn two_clusters_with_one_host_are_told_apart() {
        let uid = |text: &str| evidence(&format!("{text}-a73f-436d-b219-061db81a48e0"), "", "");
        let status = KubesvcAccountStatus {
            kube_host: Some("https://10.96.0.1".to_owned()),
            ..bound_to(&uid("11111111"))
        };
        let failure = mismatch(&status, &"agent-1".into(), &uid("22222222")).expect("another cluster");
        assert!(
            failure.message.starts_with(
                "agent agent-1 reached https://10.96.0.1 (kube-system 22222222), another cluster than \
                 https://10.96.0.1 (kube-system 11111111), which the account is bound to; "
            ),
            "{failure}"
        );
        assert_eq!(status.cluster.as_deref(), Some("10.96.0.1 (11111111)"));
        let keys = mismatch(
            &bound_to(&evidence("", "kkkkkkkkk", "a")),
            &"x".into(),
            &evidence("", "llllllllll", "b"),
        );
        assert!(
            keys.expect("another")
                .message
                .contains("(token keys llllllll), another cluster than token keys kkkkkkkk")
        );
    }
}
