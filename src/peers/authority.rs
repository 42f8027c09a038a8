//! What all replicas share: the Secret `kubesvc-replicas`, with the authority that signs their certificates, the authority that
//! will sign next, and the key under which they agree on the versions of files.
//!
//! The first replica makes the Secret by create. A new authority is made when a third of the time of the one that signs is
//! left. It is trusted for at least 24 h before it signs, so that no replica meets a certificate whose authority it has not
//! read yet.

use hmac::{Hmac, KeyInit, Mac};
use k8s_openapi::api::core::v1::Secret;
use rcgen::ExtendedKeyUsagePurpose;
use rustls::pki_types::ServerName;
use sha2::Sha256;

use super::JoinPeersError;
use crate::certificates::kept_secret::{KeptSecret, SecretFiles};
use crate::certificates::{Authority, DAY, LeafRequest, first_text, seconds_left, valid_from};
use kubesvc_runtime::kube_access::{KubeError, KubeObjects, WriteOptions};
use kubesvc_runtime::tls::identity::certified_key;

pub(super) const SECRET_NAME: &str = "kubesvc-replicas";
/// Common name of an authority.
const AUTHORITY_NAME: &str = "kubesvc-replicas-ca";
/// Validity of an authority, in days.
const AUTHORITY_DAYS: i64 = 3650;
/// Validity of a replica's certificate, in days.
pub(super) const CERTIFICATE_DAYS: i64 = 7;
/// Age of an authority, by its certificate, from which on it signs. The certificate begins up to two days before it is made.
const SIGNING_AGE: i64 = 3 * DAY;
/// Age of an authority, likewise, from which on the former one is not trusted any more.
const SUCCESSION_AGE: i64 = SIGNING_AGE + 2 * DAY;
/// Length of the key of versions, in bytes.
const VERSION_KEY_BYTES: usize = 32;
/// What the Secret has. Deliberately without `Debug`.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct AuthorityFiles {
    /// The authority that signs, before the former one.
    authorities: Vec<u8>,
    key: Vec<u8>,
    /// The authority that signs next.
    next_authority: Vec<u8>,
    next_key: Vec<u8>,
    /// The key of versions.
    version_key: Vec<u8>,
}

impl SecretFiles for AuthorityFiles {
    fn fields(&mut self) -> impl Iterator<Item = (&'static str, &mut Vec<u8>)> {
        let fields = [
            ("ca.crt", &mut self.authorities),
            ("ca.key", &mut self.key),
            ("next.crt", &mut self.next_authority),
            ("next.key", &mut self.next_key),
            ("version.key", &mut self.version_key),
        ];
        fields.into_iter()
    }
}

impl AuthorityFiles {
    /// What the Secret must have instead; `None` if it is good. `now` is in epoch seconds.
    pub(super) fn next(&self, now: i64) -> Result<Option<Self>, JoinPeersError> {
        let mut files = self.clone();
        let age = |authority: &[u8]| valid_from(authority).map_or(0, |from| now - from);
        let is_usable = certified_key(first_text(&self.authorities), &self.key, None).is_ok()
            && seconds_left(&self.authorities, now) > 0;
        let has_next = certified_key(&self.next_authority, &self.next_key, None).is_ok();
        if !is_usable {
            let (certificate, authority) = Authority::make(AUTHORITY_NAME, AUTHORITY_DAYS, now)?;
            (files.authorities, files.key) = (certificate, authority.key_pem());
            (files.next_authority, files.next_key) = Default::default();
        } else if has_next && age(&self.next_authority) >= SIGNING_AGE {
            files.authorities = [&self.next_authority, first_text(&self.authorities)].concat();
            files.key.clone_from(&self.next_key);
            (files.next_authority, files.next_key) = Default::default();
        } else if !has_next && seconds_left(&self.authorities, now) < AUTHORITY_DAYS * DAY / 3 {
            let (certificate, authority) = Authority::make(AUTHORITY_NAME, AUTHORITY_DAYS, now)?;
            (files.next_authority, files.next_key) = (certificate, authority.key_pem());
        } else if age(&self.authorities) >= SUCCESSION_AGE {
            files.authorities = first_text(&self.authorities).to_vec();
        }
        if files.version_key.len() < VERSION_KEY_BYTES {
            files.version_key = random_bytes()?;
        }
        Ok((files != *self).then_some(files))
    }

    /// The authorities whose certificates count, as PEM.
    pub(super) fn trusted(&self) -> Vec<u8> {
        [self.authorities.as_slice(), &self.next_authority].concat()
    }

    /// Makes a certificate for a replica, which it shows at both ends of a connection. Returns it with its key.
    pub(super) fn certificate(
        &self,
        replica_id: &str,
        now: i64,
    ) -> Result<(Vec<u8>, Vec<u8>), JoinPeersError> {
        // It is the name that the others verify.
        if !matches!(ServerName::try_from(replica_id), Ok(ServerName::DnsName(_))) {
            return Err(JoinPeersError::Name { replica: replica_id.to_owned() });
        }
        let authority = Authority::read(AUTHORITY_NAME, &self.key).ok_or(JoinPeersError::Unfit)?;
        let leaf = LeafRequest {
            common_name: "kubesvc-replica",
            names: &[replica_id.to_owned()],
            usages: vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
            days: CERTIFICATE_DAYS,
        };
        Ok(authority.sign(leaf, now)?)
    }

    /// Digest of the parts under the key of versions. It reveals nothing without the key.
    pub(super) fn digest(&self, parts: &[&[u8]]) -> [u8; 32] {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.version_key).expect("HMAC takes a key of any length");
        mac.update(b"kubesvc-digest-1\n");
        for part in parts {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        }
        mac.finalize().into_bytes().into()
    }
}

fn random_bytes() -> Result<Vec<u8>, JoinPeersError> {
    let mut bytes = vec![0; VERSION_KEY_BYTES];
    let random = rustls::crypto::ring::default_provider().secure_random;
    random.fill(&mut bytes).map_err(|_| JoinPeersError::NoRandomness)?;
    Ok(bytes)
}

/// Reads the Secret in this namespace, and makes or renews what it must have.
///
/// # Errors
/// A right is missing, or the API server does not answer.
pub(super) async fn keep(
    secrets: &KubeObjects<Secret>,
    namespace: &str,
) -> Result<AuthorityFiles, JoinPeersError> {
    let secret = KeptSecret {
        secrets,
        name: SECRET_NAME,
        type_: "Opaque",
        content: "the authority of calls between replicas",
        write: WriteOptions::default(),
    };
    let next = |files: &AuthorityFiles| files.next(jiff::Timestamp::now().as_second());
    secret.keep(next).await?.ok_or_else(|| JoinPeersError::Contended { secret: path(namespace) })
}

/// The Secret of this namespace, as people name it.
fn path(namespace: &str) -> String {
    format!("{namespace}/{SECRET_NAME}")
}

impl From<KubeError> for JoinPeersError {
    fn from(error: KubeError) -> Self {
        let request = error.request();
        match error.code() {
            Some(403) => Self::SecretForbidden { verb: request.verb, secret: path(&request.namespace) },
            _ => Self::Secret(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_750_000_000;

    fn next(files: &AuthorityFiles, now: i64) -> Option<AuthorityFiles> {
        files.next(now).unwrap_or_else(|error| unreachable!("{error}"))
    }

    fn made() -> AuthorityFiles {
        next(&AuthorityFiles::default(), NOW).expect("there was none")
    }

    #[test]
    fn an_authority_is_made_once_and_what_cannot_be_used_is_made_anew() {
        let files = made();
        assert!(next(&files, NOW).is_none() && next(&files, NOW + 2000 * DAY).is_none());
        let other = made();
        assert!(files != other, "never the same");
        for broken in [
            AuthorityFiles { key: other.key.clone(), ..files.clone() },
            AuthorityFiles { authorities: b"no".to_vec(), ..files.clone() },
            AuthorityFiles { key: Vec::new(), ..files.clone() },
        ] {
            let repaired = next(&broken, NOW).expect("it is replaced");
            assert!(next(&repaired, NOW).is_none() && repaired.authorities != files.authorities);
            assert!(repaired.version_key == files.version_key, "versions of files stay as they are");
        }
        let short = AuthorityFiles { version_key: vec![1; 8], ..files.clone() };
        let repaired = next(&short, NOW).expect("a key is made");
        assert!(repaired.key == files.key && repaired.version_key.len() == VERSION_KEY_BYTES);
    }

    #[test]
    fn a_new_authority_is_trusted_for_a_day_before_it_signs_and_the_former_one_for_a_day_after() {
        let files = made();
        for hour in [0, 7, 23] {
            let renewal = NOW + 2500 * DAY + hour * 3600;
            let announced = next(&files, renewal).expect("it is announced");
            assert!(announced.key == files.key && announced.trusted().starts_with(&files.authorities));
            assert!(announced.trusted().len() > files.trusted().len());
            assert!(next(&announced, renewal + DAY - 1).is_none(), "it does not sign yet");
            let signing = next(&announced, renewal + 2 * DAY).expect("it signs");
            assert!(signing.key == announced.next_key && signing.trusted().ends_with(&files.authorities));
            assert!(signing.trusted().starts_with(&announced.next_authority));
            assert!(next(&signing, renewal + 2 * DAY + DAY / 2).is_none(), "the former one is trusted still");
            let alone = next(&signing, renewal + 5 * DAY).expect("the former one goes");
            assert!(alone.trusted() == announced.next_authority && next(&alone, renewal + 5 * DAY).is_none());
        }
    }

    #[test]
    fn digests_depend_on_the_key_and_on_where_each_part_ends() {
        let files = made();
        let digest = files.digest(&[b"a", b"bc"]);
        assert_eq!(digest, files.digest(&[b"a", b"bc"]));
        assert_ne!(digest, files.digest(&[b"ab", b"c"]));
        assert_ne!(digest, made().digest(&[b"a", b"bc"]));
    }

    #[test]
    fn a_replica_whose_id_cannot_be_in_a_certificate_is_named() {
        let refused = made().certificate("ü", NOW).map(drop).expect_err("no name of a host");
        assert!(
            refused.to_string().contains("\"ü\"") && refused.to_string().contains("POD_NAME"),
            "{refused}"
        );
    }
}
