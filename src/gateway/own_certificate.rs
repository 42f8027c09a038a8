//! The certificate that the operator makes for its API of accounts, if the settings name none. The APIService is told its
//! authorities.

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::ByteString;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::ResourceExt;
use parking_lot::Mutex;
use serde_json::json;
use tracing::info;

use super::{GROUP, VERSION};
use crate::certificates::own_certificate::{
    OwnCertificate, OwnCertificateError, OwnCertificateNames, service_names,
};
use kubesvc_runtime::kube_access::{KubeAccess, WriteOptions};
use kubesvc_runtime::tls::identity::ServingCertificate;

/// Name of the operator's Service, unless the APIService names another one.
const SERVICE_NAME: &str = "kubesvc-operator";
/// Interval between two looks at the Secret while the APIService stays as it is.
const SECRET_INTERVAL: Duration = Duration::from_secs(60);
const NAMES: OwnCertificateNames = OwnCertificateNames {
    secret: "kubesvc-gateway",
    authority: "kubesvc-gateway-ca",
    port: "the gateway",
    crash_point: "gateway-secret",
};

/// Keeps the certificate.
pub struct GatewayCertificate {
    kube: KubeAccess,
    namespace: String,
    certificate: OwnCertificate,
    /// The version of the APIService that was last found to be right (`None` if there was none), and when.
    kept: Mutex<Option<(Option<String>, Instant)>>,
}

impl GatewayCertificate {
    /// Keeps a certificate in a Secret of this namespace.
    pub fn new(kube: KubeAccess, namespace: &str, certificate: Arc<ServingCertificate>) -> Self {
        let certificate = OwnCertificate::new(&kube, namespace, NAMES, certificate);
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
        let authorities = self.certificate.keep(&service_names(host, &self.namespace)).await?;
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
}
