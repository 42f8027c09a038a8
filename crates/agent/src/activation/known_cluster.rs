//! The cluster that an account was activated with: each later connection must lead to it.
//!
//! The uid of kube-system decides where it is known and may be read. Else token keys and authority may each rotate while
//! the cluster stays: either of them equal is the same cluster, and only both known and different is another one. What
//! the hub compares with the account's status follows the same rule.

use http::StatusCode;

use crate::activation::identity::{JSON, JWK_SET, KUBE_SYSTEM_PATH, TOKEN_KEYS_PATH, jwk_set_digest, uid_in};
use crate::cluster::{CheckAnswer, CheckStep, ConnectionCheck, ServerCertificate};
use kubesvc_core::wire::ops::ClusterIdentity;

/// What is known of a cluster; an empty text where that may not be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownCluster {
    kube_system_uid: String,
    token_keys_digest: String,
    /// Digest of the key of the authority that verified the API server.
    authority_key_digest: String,
}

impl From<&ClusterIdentity> for KnownCluster {
    fn from(identity: &ClusterIdentity) -> Self {
        Self {
            kube_system_uid: identity.kube_system_uid.clone(),
            token_keys_digest: identity.token_keys_digest.clone(),
            authority_key_digest: identity.authority_key_digest.clone(),
        }
    }
}

/// Whether two texts are equal; `None` unless both are known.
fn equal(known: &str, found: &str) -> Option<bool> {
    (!known.is_empty() && !found.is_empty()).then(|| known == found)
}

impl KnownCluster {
    fn judge(&self, uid: &str, token_keys: &str, server: &ServerCertificate) -> CheckStep {
        let Self { kube_system_uid, token_keys_digest, authority_key_digest } = self;
        match equal(kube_system_uid, uid) {
            Some(true) => return CheckStep::Passed,
            Some(false) => {
                let why = format!("kube-system has the uid {uid:?}, and had {kube_system_uid:?}");
                return CheckStep::Failed(why);
            }
            None => {}
        }
        let token_keys = equal(token_keys_digest, token_keys);
        let authority = equal(authority_key_digest, &server.authority_key_digest);
        match (token_keys, authority) {
            (Some(false), Some(false)) => {
                CheckStep::Failed("its keys for tokens and its authority are others".to_owned())
            }
            _ => CheckStep::Passed,
        }
    }
}

impl ConnectionCheck for KnownCluster {
    fn step(&self, answers: &[CheckAnswer], server: &ServerCertificate) -> CheckStep {
        let ask_uid = !self.kube_system_uid.is_empty();
        let ask_keys = !self.token_keys_digest.is_empty() && !self.authority_key_digest.is_empty();
        let mut answers = answers.iter();
        let body = |answer: &CheckAnswer| (answer.status == StatusCode::OK).then(|| answer.body.clone());
        let mut uid = String::new();
        if ask_uid {
            let Some(answer) = answers.next() else {
                return CheckStep::Ask { path: KUBE_SYSTEM_PATH, accept: JSON };
            };
            uid = body(answer).and_then(|body| uid_in(&body)).unwrap_or_default();
        }
        if uid.is_empty() && ask_keys {
            let Some(answer) = answers.next() else {
                return CheckStep::Ask { path: TOKEN_KEYS_PATH, accept: JWK_SET };
            };
            let token_keys = body(answer).map(|body| jwk_set_digest(&body)).unwrap_or_default();
            return self.judge("", &token_keys, server);
        }
        self.judge(&uid, "", server)
    }
}

#[cfg(test)]
mod tests {
    use hyper::body::Bytes;

    use super::*;

    const KEYS: &str = r#"{"keys":[{"kty":"EC","crv":"P-256","x":"eA","y":"eQ"}]}"#;
    const OTHER_KEYS: &str = r#"{"keys":[{"kty":"EC","crv":"P-256","x":"eB","y":"eQ"}]}"#;

    fn known(uid: &str) -> KnownCluster {
        KnownCluster {
            kube_system_uid: uid.to_owned(),
            token_keys_digest: jwk_set_digest(KEYS.as_bytes()),
            authority_key_digest: "authority".to_owned(),
        }
    }

    fn server(authority: &str) -> ServerCertificate {
        ServerCertificate { authority_key_digest: authority.to_owned(), ..ServerCertificate::default() }
    }

    fn namespace(uid: &str) -> (u16, String) {
        (200, format!(r#"{{"metadata":{{"name":"kube-system","uid":"{uid}"}}}}"#))
    }

    fn forbidden() -> (u16, String) {
        (403, r#"{"kind":"Status","metadata":{"uid":"no"}}"#.to_owned())
    }

    /// The paths that are asked for, and how the check ends.
    fn checked(
        known: &KnownCluster,
        answers: &[(u16, String)],
        authority: &str,
    ) -> (Vec<&'static str>, bool) {
        let mut paths = Vec::new();
        let mut said = Vec::new();
        loop {
            match known.step(&said, &server(authority)) {
                CheckStep::Passed => return (paths, true),
                CheckStep::Failed(_) => return (paths, false),
                CheckStep::Ask { path, .. } => {
                    let (status, body) = answers[paths.len()].clone();
                    let status = StatusCode::from_u16(status).expect("a status");
                    said.push(CheckAnswer { status, body: Bytes::from(body) });
                    paths.push(path);
                }
            }
        }
    }

    #[test]
    fn uid_of_kube_system_decides_where_it_can_be_read() {
        assert_eq!(checked(&known("a"), &[namespace("a")], "another"), (vec![KUBE_SYSTEM_PATH], true));
        assert_eq!(checked(&known("a"), &[namespace("b")], "authority"), (vec![KUBE_SYSTEM_PATH], false));
    }

    #[test]
    fn without_the_uid_it_takes_other_keys_and_another_authority() {
        let both = vec![KUBE_SYSTEM_PATH, TOKEN_KEYS_PATH];
        let keys = |keys: &str| (200, keys.to_owned());
        let poor = known("");
        let ends = |answer, authority| checked(&poor, &[answer], authority).1;
        assert!(ends(keys(KEYS), "authority") && ends(keys(KEYS), "rotated"));
        assert!(ends(keys(OTHER_KEYS), "authority") && !ends(keys(OTHER_KEYS), "another"));
        assert!(ends(forbidden(), "another"), "nothing tells");
        assert_eq!(checked(&known("a"), &[forbidden(), keys(OTHER_KEYS)], "another"), (both, false));
        assert_eq!(checked(&KnownCluster::default(), &[], "another"), (vec![], true));
    }
}
