//! Callers of REST that their client certificate identifies: by the settings' entries, each for one certificate name.
//!
//! The port has verified the certificate, and that the caller has its key.

use std::collections::BTreeMap;

use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::{AccessError, Principal, Via};
use kubesvc_core::identity::Subject;

/// The name in a certificate by which a caller is known.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ShownCertificate {
    /// A URI of its subject alternative name.
    Uri(String),
    /// Its subject, as RFC 4514 writes it.
    Subject(String),
}

/// A caller that a certificate identifies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateUser {
    pub shown: ShownCertificate,
    /// Name of the user in RBAC.
    pub user: String,
    /// Its groups there.
    pub groups: Vec<String>,
}

/// The callers that certificates identify.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateUsers(pub Vec<CertificateUser>);

impl CertificateUsers {
    /// Whether no certificate identifies anybody.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Who shows these certificates in DER, its own first; `None`: nobody that is known.
    ///
    /// # Errors
    /// The certificate is that of several users.
    pub(super) fn principal(&self, certificates: &[Vec<u8>]) -> Result<Option<Principal>, AccessError> {
        let Some(own) = certificates.first().filter(|_| !self.is_empty()) else { return Ok(None) };
        let names = names(own);
        let mut known = self.0.iter().filter(|user| names.contains(&user.shown));
        match (known.next(), known.next()) {
            (None, _) => Ok(None),
            (Some(user), None) => Ok(Some(Principal {
                name: user.user.clone(),
                groups: user.groups.clone(),
                uid: String::new(),
                extra: BTreeMap::new(),
                via: Via::Certificate,
            })),
            (Some(_), Some(_)) => Err(AccessError::Unauthenticated(
                "the client certificate is that of several entries of kubesvc.rest.auth.certificates; keep one"
                    .to_owned(),
            )),
        }
    }
}

/// The names that a certificate has.
fn names(certificate: &[u8]) -> Vec<ShownCertificate> {
    let subject =
        Subject::read(certificate).ok().map(|one| ShownCertificate::Subject(one.as_str().to_owned()));
    let mut names: Vec<_> = subject.into_iter().collect();
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return names };
    let alternative = certificate.subject_alternative_name().ok().flatten();
    let alternative = alternative.iter().flat_map(|extension| &extension.value.general_names);
    names.extend(alternative.filter_map(|name| match name {
        GeneralName::URI(uri) => Some(ShownCertificate::Uri((*uri).to_owned())),
        _ => None,
    }));
    names
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};

    use super::*;

    fn certificate(common_name: &str, uris: &[&str]) -> Vec<Vec<u8>> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "acme");
        params.distinguished_name.push(DnType::CommonName, common_name);
        let uri = |uri: &&str| SanType::URI((*uri).try_into().expect("ASCII"));
        params.subject_alt_names = uris.iter().map(uri).collect();
        let key = KeyPair::generate().expect("a key");
        vec![params.self_signed(&key).expect("a certificate").der().to_vec()]
    }

    #[test]
    fn a_certificate_is_a_user_by_its_exact_name() {
        let user = |shown, user: &str| CertificateUser {
            shown,
            user: user.to_owned(),
            groups: vec!["callers".to_owned()],
        };
        let users = CertificateUsers(vec![
            user(ShownCertificate::Subject("CN=gate,O=acme".to_owned()), "gate"),
            user(ShownCertificate::Uri("spiffe://acme/ns/spin/sa/ci".to_owned()), "ci"),
        ]);
        let named = |common_name: &str, uris: &[&str]| {
            users
                .principal(&certificate(common_name, uris))
                .map(|found| found.map(|principal| principal.name))
        };
        assert_eq!(named("gate", &[]).expect("one"), Some("gate".to_owned()));
        assert_eq!(named("x", &["spiffe://acme/ns/spin/sa/ci"]).expect("one"), Some("ci".to_owned()));
        for (common_name, uri) in [
            ("gate2", "spiffe://acme/ns/spin/sa/ci2"),
            ("gate,O=acme", "spiffe://acme/ns/spin/sa/c"),
            ("GATE", "SPIFFE://acme/ns/spin/sa/ci"),
        ] {
            assert_eq!(named(common_name, &[uri]).expect("nobody"), None, "{common_name} {uri}");
        }
        assert!(named("gate", &["spiffe://acme/ns/spin/sa/ci"]).is_err(), "that of two users");
        assert_eq!(users.principal(&[]).expect("nobody"), None);
        assert_eq!(users.principal(&[b"no certificate".to_vec()]).expect("nobody"), None);
        let principal = users.principal(&certificate("gate", &[])).expect("one").expect("known");
        assert_eq!((principal.groups, principal.via), (vec!["callers".to_owned()], Via::Certificate));
    }
}
