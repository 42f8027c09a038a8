//! A certificate that the operator makes for one of its ports, if the settings name none.
//!
//! A Secret has an authority and a certificate, so that all replicas show the same one. It is renewed after two thirds of
//! its time; so is the authority, and both authorities are trusted meanwhile. Whoever keeps the certificate tells its
//! callers the authorities.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use rcgen::ExtendedKeyUsagePurpose;
use tracing::info;

use super::kept_secret::{KeptSecret, SecretFiles};
use super::{Authority, DAY, LeafRequest, dns_names, first_text, is_signed_by, seconds_left};
use kubesvc_runtime::kube_access::{KubeAccess, KubeError, KubeObjects, WriteOptions};
use kubesvc_runtime::tls::identity::{CertificateError, ServingCertificate, certified_key};

/// Validity of an authority, in days.
const AUTHORITY_DAYS: i64 = 3650;
/// Validity of a certificate, in days.
const CERTIFICATE_DAYS: i64 = 365;

/// What a certificate is called.
#[derive(Clone, Copy, Debug)]
pub struct OwnCertificateNames {
    /// Name of the Secret, and common name of the certificate.
    pub secret: &'static str,
    /// Common name of an authority.
    pub authority: &'static str,
    /// The port, for messages: `the gateway`.
    pub port: &'static str,
    /// Name of the crash points of the write.
    pub crash_point: &'static str,
}

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum OwnCertificateError {
    /// A request to the API server failed.
    #[error(transparent)]
    Kube(#[from] KubeError),
    /// The certificate cannot be made.
    #[error("a certificate for {port} cannot be made")]
    Making {
        /// Which one.
        port: &'static str,
        /// Why.
        source: rcgen::Error,
    },
    /// What was made cannot be used.
    #[error("Secret {secret} has no usable certificate; delete it, and it is made anew")]
    Unfit {
        /// Its name.
        secret: &'static str,
        /// Why.
        source: CertificateError,
    },
    /// Other clients write the Secret again and again.
    #[error("Secret {0} is written by others at the same time")]
    Contended(&'static str),
}

/// Keeps a certificate.
pub struct OwnCertificate {
    secrets: KubeObjects<Secret>,
    names: OwnCertificateNames,
    certificate: Arc<ServingCertificate>,
}

impl OwnCertificate {
    /// Keeps a certificate in a Secret of this namespace.
    pub fn new(
        kube: &KubeAccess,
        namespace: &str,
        names: OwnCertificateNames,
        certificate: Arc<ServingCertificate>,
    ) -> Self {
        Self { secrets: kube.namespaced(namespace), names, certificate }
    }

    /// Reads the certificate, makes or renews it if needed, and shows it from now on. `hosts` are its names. Returns the
    /// authorities, as PEM.
    ///
    /// # Errors
    /// The API server refuses or does not answer, or there is no usable certificate.
    pub async fn keep(&self, hosts: &[String]) -> Result<Vec<u8>, OwnCertificateError> {
        let OwnCertificateNames { secret: name, port, crash_point, .. } = self.names;
        let secret = KeptSecret {
            secrets: &self.secrets,
            name,
            type_: "kubernetes.io/tls",
            content: "a certificate",
            write: WriteOptions { urgency: None, crash_point: Some(crash_point) },
        };
        let next = |files: &Files| {
            let next = files.next(self.names, hosts, jiff::Timestamp::now().as_second());
            next.map_err(|source| OwnCertificateError::Making { port, source })
        };
        let files = secret.keep(next).await?.ok_or(OwnCertificateError::Contended(name))?;
        let certified = certified_key(&files.certificate, &files.key, None)
            .map_err(|source| OwnCertificateError::Unfit { secret: name, source })?;
        if self.certificate.set(certified) {
            info!("{port} has a certificate");
        }
        Ok(files.authorities)
    }
}

/// The names of a Service, and those of a forwarded port.
pub fn service_names(service: &str, namespace: &str) -> Vec<String> {
    let mut names: Vec<_> = ["", ".svc", ".svc.cluster.local"]
        .iter()
        .map(|domain| format!("{service}.{namespace}{domain}"))
        .collect();
    names.extend([service.to_owned(), "localhost".to_owned()]);
    names
}

/// What the Secret has.
#[derive(Clone, Default)]
struct Files {
    /// The authority that signs, and former ones.
    authorities: Vec<u8>,
    authority_key: Vec<u8>,
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl SecretFiles for Files {
    fn fields(&mut self) -> impl Iterator<Item = (&'static str, &mut Vec<u8>)> {
        let fields = [
            ("ca.crt", &mut self.authorities),
            ("ca.key", &mut self.authority_key),
            ("tls.crt", &mut self.certificate),
            ("tls.key", &mut self.key),
        ];
        fields.into_iter()
    }
}

impl Files {
    /// What it must have instead; `None` if it is good. `now` is in epoch seconds.
    fn next(
        &self,
        names: OwnCertificateNames,
        hosts: &[String],
        now: i64,
    ) -> Result<Option<Self>, rcgen::Error> {
        let authority = Authority::read(names.authority, &self.authority_key);
        // A Secret that was restored in part may have a key of another authority.
        let has_its_key = authority.as_ref().is_some_and(|authority| authority.has_made(&self.authorities));
        let is_good = has_its_key && seconds_left(&self.authorities, now) > AUTHORITY_DAYS * DAY / 3;
        let (authorities, authority) = match authority {
            Some(authority) if is_good => (self.authorities.clone(), authority),
            _ => {
                let (mut authorities, authority) = Authority::make(names.authority, AUTHORITY_DAYS, now)?;
                // The other replicas show a certificate of the former one for another while.
                if seconds_left(&self.authorities, now) > 0 {
                    authorities.extend(first_text(&self.authorities));
                }
                (authorities, authority)
            }
        };
        let covers = |chain: &[u8]| {
            let covered = dns_names(chain);
            hosts.iter().all(|name| covered.contains(name))
        };
        let is_usable = certified_key(&self.certificate, &self.key, None).is_ok()
            && is_signed_by(&self.certificate, &authorities);
        let is_fresh = seconds_left(&self.certificate, now) > CERTIFICATE_DAYS * DAY / 3;
        if is_good && is_usable && is_fresh && covers(&self.certificate) {
            return Ok(None);
        }
        let leaf = LeafRequest {
            common_name: names.secret,
            names: hosts,
            usages: vec![ExtendedKeyUsagePurpose::ServerAuth],
            days: CERTIFICATE_DAYS,
        };
        let (certificate, key) = authority.sign(leaf, now)?;
        Ok(Some(Self { authorities, authority_key: authority.key_pem(), certificate, key }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_750_000_000;
    const NAMES: OwnCertificateNames = OwnCertificateNames {
        secret: "kubesvc-port",
        authority: "kubesvc-port-ca",
        port: "the port",
        crash_point: "port-secret",
    };

    fn made(before: &Files, service: &str, now: i64) -> Option<Files> {
        before.next(NAMES, &service_names(service, "ns"), now).expect("certificates can be made")
    }

    #[test]
    fn a_certificate_is_made_once_and_again_when_its_time_is_nearly_over() {
        let files = made(&Files::default(), "svc", NOW).expect("there was none");
        assert!(made(&files, "svc", NOW).is_none() && made(&files, "svc", NOW + 200 * DAY).is_none());
        assert!(dns_names(&files.certificate).contains(&"svc.ns.svc".to_owned()));
        let renewed = made(&files, "svc", NOW + 300 * DAY).expect("it is renewed");
        assert_eq!(renewed.authorities, files.authorities, "under the same authority");
        assert_ne!(renewed.certificate, files.certificate);
        assert!(made(&renewed, "svc", NOW + 300 * DAY).is_none());
        assert!(made(&files, "other", NOW).is_some(), "another Service");
    }

    #[test]
    fn both_authorities_are_trusted_when_the_authority_is_renewed() {
        let files = made(&Files::default(), "svc", NOW).expect("there was none");
        let later = NOW + 3000 * DAY;
        let renewed = made(&files, "svc", later).expect("it is renewed");
        assert!(
            renewed.authorities.ends_with(&files.authorities) && renewed.authorities != files.authorities
        );
        assert!(made(&renewed, "svc", later).is_none());
    }

    #[test]
    fn what_cannot_be_used_is_replaced() {
        let files = made(&Files::default(), "svc", NOW).expect("there was none");
        let other = made(&Files::default(), "svc", NOW).expect("there was none");
        for broken in [
            Files { key: other.key.clone(), ..files.clone() },
            Files { certificate: b"no".to_vec(), ..files.clone() },
            Files { authority_key: Vec::new(), ..files.clone() },
            // Restored in part.
            Files { authorities: other.authorities.clone(), ..files.clone() },
            Files { certificate: other.certificate.clone(), key: other.key.clone(), ..files.clone() },
            Files { authorities: Vec::new(), ..files },
        ] {
            let repaired = made(&broken, "svc", NOW).expect("it is replaced");
            assert!(made(&repaired, "svc", NOW).is_none());
        }
    }
}
