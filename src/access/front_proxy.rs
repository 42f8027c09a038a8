//! Callers that the operator's API server passes on: its client certificate, and the headers that say who calls.
//!
//! The ConfigMap `kube-system/extension-apiserver-authentication` says which authority signs that certificate, which
//! names it may have, and which headers count. The headers of a connection without such a certificate say nothing.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use k8s_openapi::api::core::v1::ConfigMap;
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use sha2::{Digest as _, Sha256};
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::Instant;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::answers::QuestionDigest;
use super::{AccessError, Caller, Principal, Via};
use kubesvc_runtime::kube_access::KubeAccess;
use kubesvc_runtime::telemetry::outages::warn_unless_away;

/// Namespace and name of the ConfigMap.
const CONFIG_MAP: (&str, &str) = ("kube-system", "extension-apiserver-authentication");
/// Age at which the ConfigMap is read again.
const MAX_AGE: Duration = Duration::from_secs(60);
/// Minimum age at which it is read again for a certificate that it does not explain.
const MIN_AGE: Duration = Duration::from_secs(2);
/// Maximum number of certificates whose verdict is kept.
const MAX_VERDICTS: usize = 256;
/// Maximum length of a chain of certificates.
const MAX_CHAIN: usize = 8;

/// Recognises callers that the API server passes on.
pub(super) struct FrontProxy {
    kube: KubeAccess,
    known: Mutex<Option<(Arc<FrontProxyRules>, Instant)>>,
    /// Held while the ConfigMap is read.
    reading: AsyncMutex<()>,
}

impl FrontProxy {
    pub(super) fn new(kube: KubeAccess) -> Self {
        Self { kube, known: Mutex::default(), reading: AsyncMutex::default() }
    }

    /// Who calls, if the API server passes the call on; `None` for a direct call.
    pub(super) async fn principal(&self, caller: Caller<'_>) -> Result<Option<Principal>, AccessError> {
        let rules = self.accepts(caller.certificates).await?;
        rules.map(|rules| rules.principal(caller.headers)).transpose()
    }

    /// The rules, if they accept these certificates as those of the API server.
    pub(super) async fn accepts(
        &self,
        certificates: &[Vec<u8>],
    ) -> Result<Option<Arc<FrontProxyRules>>, AccessError> {
        if certificates.is_empty() {
            return Ok(None);
        }
        let rules = self.rules(MAX_AGE).await?;
        if rules.accepts(certificates) {
            return Ok(Some(rules));
        }
        let rules = self.rules(MIN_AGE).await?;
        Ok(rules.accepts(certificates).then_some(rules))
    }

    /// The rules, at most this old unless they cannot be read, or another caller reads them now.
    async fn rules(&self, max_age: Duration) -> Result<Arc<FrontProxyRules>, AccessError> {
        let fresh = || {
            let known = self.known.lock();
            known.as_ref().filter(|(_, at)| at.elapsed() < max_age).map(|(rules, _)| Arc::clone(rules))
        };
        let former = || self.known.lock().as_ref().map(|(rules, _)| Arc::clone(rules));
        if let Some(rules) = fresh() {
            return Ok(rules);
        }
        let _reading = match (self.reading.try_lock(), former()) {
            (Ok(reading), _) => reading,
            (Err(_), Some(former)) => return Ok(former),
            (Err(_), None) => self.reading.lock().await,
        };
        if let Some(rules) = fresh() {
            return Ok(rules);
        }
        let (namespace, name) = CONFIG_MAP;
        let rules = match self.kube.namespaced::<ConfigMap>(namespace).get(name).await {
            Ok(map) => Arc::new(map.map_or_else(FrontProxyRules::default, |map| FrontProxyRules::read(&map))),
            Err(error) => {
                warn_unless_away!("callers that the API server passes on cannot be checked: {error}");
                former().ok_or_else(|| {
                    AccessError::Unavailable(format!(
                        "the operator cannot read ConfigMap {namespace}/{name}; bind it to the Role \
                         extension-apiserver-authentication-reader, as config/gateway does"
                    ))
                })?
            }
        };
        *self.known.lock() = Some((Arc::clone(&rules), Instant::now()));
        Ok(rules)
    }
}

/// What the ConfigMap says.
#[derive(Default)]
pub(super) struct FrontProxyRules {
    /// `None`: the API server passes nothing on.
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    /// Common names; empty: any.
    allowed_names: Vec<String>,
    user_headers: Vec<String>,
    uid_headers: Vec<String>,
    group_headers: Vec<String>,
    extra_prefixes: Vec<String>,
    verdicts: Mutex<HashMap<QuestionDigest, bool>>,
}

impl FrontProxyRules {
    pub(super) fn read(map: &ConfigMap) -> Self {
        let text = |key: &str| map.data.as_ref().and_then(|data| data.get(key)).map(String::as_str);
        let list = |key: &str| -> Vec<String> {
            text(key).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
        };
        let lower = |key: &str| list(key).iter().map(|name| name.to_ascii_lowercase()).collect();
        Self {
            verifier: text("requestheader-client-ca-file").and_then(verifier),
            allowed_names: list("requestheader-allowed-names"),
            user_headers: lower("requestheader-username-headers"),
            uid_headers: lower("requestheader-uid-headers"),
            group_headers: lower("requestheader-group-headers"),
            extra_prefixes: lower("requestheader-extra-headers-prefix"),
            verdicts: Mutex::default(),
        }
    }

    /// Whether the certificates are those of the API server.
    fn accepts(&self, chain: &[Vec<u8>]) -> bool {
        let mut digest = Sha256::new();
        for certificate in chain {
            digest.update(certificate.len().to_be_bytes());
            digest.update(certificate);
        }
        let digest = digest.finalize().into();
        if let Some(verdict) = self.verdicts.lock().get(&digest) {
            return *verdict;
        }
        let verdict = self.verify(chain);
        let mut verdicts = self.verdicts.lock();
        if verdicts.len() >= MAX_VERDICTS {
            verdicts.clear();
        }
        verdicts.insert(digest, verdict);
        verdict
    }

    fn verify(&self, chain: &[Vec<u8>]) -> bool {
        let Some((own, others)) = chain.split_first().filter(|(_, others)| others.len() < MAX_CHAIN) else {
            return false;
        };
        let others: Vec<_> = others.iter().map(|one| CertificateDer::from(one.as_slice())).collect();
        let is_signed = self.verifier.as_ref().is_some_and(|verifier| {
            let own = CertificateDer::from(own.as_slice());
            verifier.verify_client_cert(&own, &others, UnixTime::now()).is_ok()
        });
        is_signed && (self.allowed_names.is_empty() || self.allows_name_of(own))
    }

    fn allows_name_of(&self, certificate: &[u8]) -> bool {
        let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return false };
        let names = certificate.subject().iter_common_name();
        let name = names.last().and_then(|name| name.as_str().ok());
        name.is_some_and(|name| self.allowed_names.iter().any(|allowed| allowed == name))
    }

    /// Who calls, as the headers say.
    fn principal(&self, headers: &HeaderMap) -> Result<Principal, AccessError> {
        let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let first = |names: &[String]| {
            names.iter().filter_map(|name| headers.get(name)).map(text).find(|value| !value.is_empty())
        };
        let Some(name) = first(&self.user_headers) else {
            return Err(AccessError::Unauthenticated(
                "the API server passed the request on without the name of a user".to_owned(),
            ));
        };
        let groups = self.group_headers.iter().flat_map(|name| headers.get_all(name)).map(text).collect();
        let mut extra = BTreeMap::<_, Vec<_>>::new();
        for (name, value) in headers {
            let key =
                self.extra_prefixes.iter().find_map(|prefix| name.as_str().strip_prefix(prefix.as_str()));
            if let Some(key) = key {
                let key = percent_decode_str(key).decode_utf8_lossy().into_owned();
                extra.entry(key).or_default().push(text(value));
            }
        }
        let uid = first(&self.uid_headers).unwrap_or_default();
        Ok(Principal { name, groups, uid, extra, via: Via::FrontProxy })
    }
}

/// Checks certificates for clients by the authorities in a PEM file; `None` if it has none.
fn verifier(pem: &str) -> Option<Arc<dyn ClientCertVerifier>> {
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_slice_iter(pem.as_bytes()).filter_map(Result::ok);
    roots.add_parsable_certificates(certificates);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().ok()
}
