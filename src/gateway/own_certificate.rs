//! The certificate that the operator makes for its API of accounts, if the settings name none.
//!
//! A Secret has an authority and a certificate, so that all replicas show the same one. It is renewed after two thirds of
//! its time; so is the authority, and both authorities are trusted meanwhile. The APIService is told the authorities.

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::ByteString;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::ResourceExt;
use parking_lot::Mutex;
use rcgen::ExtendedKeyUsagePurpose;
use serde_json::json;
use tracing::info;

use super::{GROUP, VERSION};
use crate::certificates::kept_secret::{KeptSecret, SecretFiles};
use crate::certificates::{Authority, DAY, LeafRequest, dns_names, first_text, seconds_left};
use kubesvc_runtime::kube_access::{KubeAccess, KubeError, WriteOptions};
use kubesvc_runtime::tls::identity::{CertificateError, ServingCertificate, certified_key};

/// Name of the Secret.
const SECRET_NAME: &str = "kubesvc-gateway";
/// Name of the operator's Service, unless the APIService names another one.
const SERVICE_NAME: &str = "kubesvc-operator";
/// Interval between two looks at the Secret while the APIService stays as it is.
const SECRET_INTERVAL: Duration = Duration::from_secs(60);
/// Validity of an authority, in days.
const AUTHORITY_DAYS: i64 = 3650;
/// Validity of a certificate, in days.
const CERTIFICATE_DAYS: i64 = 365;
/// Common name of an authority.
const AUTHORITY_NAME: &str = "kubesvc-gateway-ca";
/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum OwnCertificateError {
    /// A request to the API server failed.
    #[error(transparent)]
    Kube(#[from] KubeError),
    /// The certificate cannot be made.
    #[error("a certificate for the gateway cannot be made")]
    Making(#[from] rcgen::Error),
    /// What was made cannot be used.
    #[error("Secret {SECRET_NAME} has no usable certificate; delete it, and it is made anew")]
    Unfit(#[from] CertificateError),
    /// Other clients write the Secret again and again.
    #[error("Secret {SECRET_NAME} is written by others at the same time")]
    Contended,
}

/// Keeps the certificate.
pub struct OwnCertificate {
    kube: KubeAccess,
    namespace: String,
    certificate: Arc<ServingCertificate>,
    /// The version of the APIService that was last found to be right (`None` if there was none), and when.
    kept: Mutex<Option<(Option<String>, Instant)>>,
}

impl OwnCertificate {
    /// Keeps a certificate in a Secret of this namespace.
    pub fn new(kube: KubeAccess, namespace: &str, certificate: Arc<ServingCertificate>) -> Self {
        Self { kube, namespace: namespace.to_owned(), certificate, kept: Mutex::default() }
    }

    /// Reads the certificate, makes or renews it if needed, and tells the APIService its authorities. One call a minute
    /// does so; the others only look whether the APIService is another one, such as one that was applied just now.
    ///
    /// # Errors
    /// The API server refuses or does not answer, or there is no usable certificate.
    pub async fn keep(&self) -> Result<(), OwnCertificateError> {
        let name = format!("{VERSION}.{GROUP}");
        // Without one there is only the direct door.
        let service = self.kube.all::<APIService>().get(&name).await;
        let (service, problem) = match service {
            Ok(service) if self.is_kept(service.as_ref()) => return Ok(()),
            Ok(service) => (service, None),
            Err(error) => (None, Some(error)),
        };
        let reference = service.as_ref().and_then(|service| service.spec.as_ref()?.service.as_ref());
        let reference =
            reference.filter(|reference| reference.namespace.as_deref() == Some(self.namespace.as_str()));
        let host = reference.and_then(|reference| reference.name.as_deref()).unwrap_or(SERVICE_NAME);
        let authorities = self.keep_secret(&names(host, &self.namespace)).await?;
        if let Some(error) = problem {
            return Err(error.into());
        }
        let version = service.as_ref().and_then(ResourceExt::resource_version);
        if let Some(spec) = service.and_then(|service| service.spec) {
            let is_ours =
                spec.service.is_some_and(|one| one.namespace.as_deref() == Some(self.namespace.as_str()));
            let is_told = spec.ca_bundle.is_some_and(|told| told.0 == authorities);
            if is_ours && !is_told && spec.insecure_skip_tls_verify != Some(true) {
                let patch = json!({"spec": {"caBundle": ByteString(authorities)}});
                let options = WriteOptions { urgency: None, crash_point: Some("gateway-api-service") };
                self.kube.all::<APIService>().patch(&name, &patch, options).await?;
                info!("told APIService {name} the authority of the gateway's certificate");
                return Ok(());
            }
        }
        *self.kept.lock() = Some((version, Instant::now()));
        Ok(())
    }

    fn is_kept(&self, service: Option<&APIService>) -> bool {
        let version = service.and_then(ResourceExt::resource_version);
        let kept = self.kept.lock();
        kept.as_ref().is_some_and(|(kept, at)| *kept == version && at.elapsed() < SECRET_INTERVAL)
    }

    /// Returns the authorities, as PEM.
    async fn keep_secret(&self, names: &[String]) -> Result<Vec<u8>, OwnCertificateError> {
        let secret = KeptSecret {
            secrets: &self.kube.namespaced(&self.namespace),
            name: SECRET_NAME,
            type_: "kubernetes.io/tls",
            content: "a certificate for the gateway",
            write: WriteOptions { urgency: None, crash_point: Some("gateway-secret") },
        };
        let next = |files: &Files| {
            Ok::<_, OwnCertificateError>(files.next(names, jiff::Timestamp::now().as_second())?)
        };
        self.take(secret.keep(next).await?.ok_or(OwnCertificateError::Contended)?)
    }

    fn take(&self, files: Files) -> Result<Vec<u8>, OwnCertificateError> {
        if self.certificate.set(certified_key(&files.certificate, &files.key, None)?) {
            info!("the gateway has a certificate");
        }
        Ok(files.authorities)
    }
}

/// The names of a Service, and those of a forwarded port.
fn names(service: &str, namespace: &str) -> Vec<String> {
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
    fn next(&self, names: &[String], now: i64) -> Result<Option<Self>, rcgen::Error> {
        let authority = Authority::read(AUTHORITY_NAME, &self.authority_key);
        let is_good = authority.is_some() && seconds_left(&self.authorities, now) > AUTHORITY_DAYS * DAY / 3;
        let (authorities, authority) = match authority {
            Some(authority) if is_good => (self.authorities.clone(), authority),
            _ => {
                let (mut authorities, authority) = Authority::make(AUTHORITY_NAME, AUTHORITY_DAYS, now)?;
                // The other replicas show a certificate of the former one for another while.
                if seconds_left(&self.authorities, now) > 0 {
                    authorities.extend(first_text(&self.authorities));
                }
                (authorities, authority)
            }
        };
        let covers = |chain: &[u8]| {
            let covered = dns_names(chain);
            names.iter().all(|name| covered.contains(name))
        };
        let is_usable = certified_key(&self.certificate, &self.key, None).is_ok();
        let is_fresh = seconds_left(&self.certificate, now) > CERTIFICATE_DAYS * DAY / 3;
        if is_good && is_usable && is_fresh && covers(&self.certificate) {
            return Ok(None);
        }
        let leaf = LeafRequest {
            common_name: "kubesvc-gateway",
            names,
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

    fn made(before: &Files, service: &str, now: i64) -> Option<Files> {
        before.next(&names(service, "ns"), now).expect("certificates can be made")
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
            Files { key: other.key, ..files.clone() },
            Files { certificate: b"no".to_vec(), ..files.clone() },
            Files { authority_key: Vec::new(), ..files.clone() },
            Files { authorities: Vec::new(), ..files },
        ] {
            let repaired = made(&broken, "svc", NOW).expect("it is replaced");
            assert!(made(&repaired, "svc", NOW).is_none());
        }
    }
}
