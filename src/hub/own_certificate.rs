//! The certificate that the operator makes for the port of agents, if the settings name none. Agents read its authorities
//! from a ConfigMap, which they mount or copy.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tracing::info;

use crate::certificates::own_certificate::{
    OwnCertificate, OwnCertificateError, OwnCertificateNames, service_names,
};
use kubesvc_runtime::kube_access::{KubeAccess, KubeError, KubeObjects, WriteOptions, unless_stale};
use kubesvc_runtime::tls::identity::ServingCertificate;

/// Name of the ConfigMap with the authorities, and its key.
const AUTHORITIES: (&str, &str) = ("kubesvc-hub-ca", "ca.crt");
/// Names of the Services for agents, besides the one of the settings: that of `config` and of the charts, and the one
/// under which existing agents dial.
const SERVICES: [&str; 2] = ["kubesvc-operator", "spin-clouddriver-grpc"];
/// Name of the Secret.
pub const HUB_SECRET: &str = "kubesvc-hub";
const NAMES: OwnCertificateNames = OwnCertificateNames {
    secret: HUB_SECRET,
    authority: "kubesvc-hub-ca",
    port: "the hub",
    crash_point: "hub-secret",
};

/// Keeps the certificate.
pub struct HubCertificate {
    certificate: OwnCertificate,
    config_maps: KubeObjects<ConfigMap>,
    hosts: Vec<String>,
}

impl HubCertificate {
    /// Keeps a certificate in a Secret of this namespace. `service` is the operator's Service there.
    pub fn new(kube: &KubeAccess, namespace: &str, service: &str, shown: Arc<ServingCertificate>) -> Self {
        let certificate = OwnCertificate::new(kube, namespace, NAMES, shown);
        Self { certificate, config_maps: kube.namespaced(namespace), hosts: hosts(service, namespace) }
    }

    /// Reads the certificate, makes or renews it if needed, and writes its authorities for agents.
    ///
    /// # Errors
    /// The API server refuses or does not answer, or there is no usable certificate.
    pub async fn keep(&self) -> Result<(), OwnCertificateError> {
        let authorities = self.certificate.keep(&self.hosts).await?;
        self.tell(&String::from_utf8_lossy(&authorities)).await?;
        Ok(())
    }

    async fn tell(&self, authorities: &str) -> Result<(), KubeError> {
        let (name, key) = AUTHORITIES;
        let found = self.config_maps.get(name).await?;
        let told = found.as_ref().and_then(|found| found.data.as_ref()?.get(key));
        if told.is_some_and(|told| told == authorities) {
            return Ok(());
        }
        let options = WriteOptions { urgency: None, crash_point: Some("hub-ca") };
        let mut data = found.as_ref().and_then(|found| found.data.clone()).unwrap_or_default();
        data.insert(key.to_owned(), authorities.to_owned());
        let data = Some(data);
        let written = match found {
            Some(found) => self.config_maps.replace(&ConfigMap { data, ..found }, options).await,
            None => {
                let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
                let object = ConfigMap { metadata, data, ..ConfigMap::default() };
                self.config_maps.create(&object, options).await
            }
        };
        // If it is stale, another replica was faster; the next call looks again.
        if unless_stale(written)?.is_some() {
            info!("wrote the authorities of the hub's certificate into ConfigMap {name}");
        }
        Ok(())
    }
}

/// The names of the Services, each once.
fn hosts(service: &str, namespace: &str) -> Vec<String> {
    let is_label = |name: &str| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    };
    let services = SERVICES.into_iter().chain(Some(service).filter(|name| is_label(name)));
    let mut hosts: Vec<String> = Vec::new();
    for name in services.flat_map(|service| service_names(service, namespace)) {
        if !hosts.contains(&name) {
            hosts.push(name);
        }
    }
    hosts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_certificate_has_the_names_of_each_service_once() {
        let with = hosts("eu-operator", "armory");
        for name in
            ["kubesvc-operator.armory.svc", "spin-clouddriver-grpc", "eu-operator.armory", "localhost"]
        {
            assert_eq!(with.iter().filter(|one| *one == name).count(), 1, "{name}: {with:?}");
        }
        assert_eq!(hosts("kubesvc-operator", "ns"), hosts("no name of a host", "ns"));
    }
}
