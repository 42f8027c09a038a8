//! TLS between replicas: this replica's certificate, and the authorities whose certificates count at both ends. TLS 1.3 alone.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use parking_lot::RwLock;
use rustls::CertificateError as CertificateProblem;
use rustls::client::danger::{ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::JoinPeersError;
use super::authority::{self, AuthorityFiles, CERTIFICATE_DAYS};
use crate::certificates::{DAY, dns_names_in_der, seconds_left, verify_signatures_by};
use kubesvc_core::ReplicaId;
use kubesvc_runtime::background_tasks::{AttemptOutcome, BackgroundTasks, TaskSpec};
use kubesvc_runtime::kube_access::{KubeAccess, KubeObjects};
use kubesvc_runtime::telemetry::errors::chain;
use kubesvc_runtime::tls::PemError;
use kubesvc_runtime::tls::identity::{CertificateError, certified_key};

/// Interval between two reads of the Secret.
const SECRET_INTERVAL: Duration = Duration::from_secs(10);

/// TLS as it is now.
pub(super) struct TlsState {
    pub(super) files: AuthorityFiles,
    pub(super) server: Arc<ServerConfig>,
    pub(super) client: Arc<ClientConfig>,
    /// Cancelled once an authority is not trusted any more: connections made under it end.
    pub(super) distrusted: CancellationToken,
    certificate: Vec<u8>,
}

/// TLS as the Secret says.
pub(super) struct PeerTls {
    secrets: KubeObjects<Secret>,
    namespace: String,
    replica_id: ReplicaId,
    current: RwLock<Arc<TlsState>>,
}

impl PeerTls {
    /// Reads or makes the authority in this namespace, and makes the certificate of this replica.
    ///
    /// # Errors
    /// A right is missing, the API server does not answer, or the id of the replica cannot be in a certificate.
    pub(super) async fn open(
        kube: &KubeAccess,
        namespace: &str,
        replica_id: &ReplicaId,
    ) -> Result<Self, JoinPeersError> {
        let secrets = kube.namespaced(namespace);
        let files = authority::keep(&secrets, namespace).await?;
        let state = TlsState::new(files, replica_id)?;
        let (namespace, current) = (namespace.to_owned(), RwLock::new(Arc::new(state)));
        Ok(Self { secrets, namespace, replica_id: replica_id.clone(), current })
    }

    /// TLS as it is now.
    pub(super) fn current(&self) -> Arc<TlsState> {
        Arc::clone(&self.current.read())
    }

    /// Starts the task that reads the Secret, and renews what must be renewed.
    pub(super) fn start(self: &Arc<Self>, background: &BackgroundTasks) {
        let does = "Keeps the certificate of this replica, and the authorities of the others";
        let task = TaskSpec::<()>::new("replicas' certificates", does).every(SECRET_INTERVAL);
        let tls = Arc::clone(self);
        background.start(task, move |_| Arc::clone(&tls).refresh());
    }

    async fn refresh(self: Arc<Self>) -> AttemptOutcome {
        let kept = authority::keep(&self.secrets, &self.namespace).await;
        match kept.and_then(|files| self.take(files)) {
            Ok(()) => AttemptOutcome::Done,
            Err(error) => AttemptOutcome::failed(chain(&error)),
        }
    }

    fn take(&self, files: AuthorityFiles) -> Result<(), JoinPeersError> {
        let (current, now) = (self.current(), jiff::Timestamp::now().as_second());
        let is_fresh = seconds_left(&current.certificate, now) > CERTIFICATE_DAYS * DAY / 2;
        if files == current.files && is_fresh {
            return Ok(());
        }
        let mut next = TlsState::new(files, &self.replica_id)?;
        let (before, after) = (certificates(&current.files.trusted())?, certificates(&next.files.trusted())?);
        let is_trust_lost = before.iter().any(|authority| !after.contains(authority));
        if !is_trust_lost {
            next.distrusted = current.distrusted.clone();
        }
        *self.current.write() = Arc::new(next);
        if before != after {
            info!("the authorities of calls between replicas changed");
        }
        if is_trust_lost {
            current.distrusted.cancel();
        }
        Ok(())
    }
}

impl TlsState {
    fn new(files: AuthorityFiles, replica_id: &ReplicaId) -> Result<Self, JoinPeersError> {
        let now = jiff::Timestamp::now().as_second();
        let (certificate, key) = files.certificate(replica_id.as_str(), now)?;
        let shown = Arc::new(certified_key(&certificate, &key, None)?);
        let mut trusted = RootCertStore::empty();
        for authority in certificates(&files.trusted())? {
            trusted.add(authority).map_err(CertificateError::Mismatch)?;
        }
        let (server, client) = configs(&shown, Arc::new(trusted))?;
        let distrusted = CancellationToken::new();
        Ok(Self { files, server, client, distrusted, certificate })
    }
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    Ok(CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(PemError::Damaged)?)
}

fn configs(
    shown: &Arc<CertifiedKey>,
    trusted: Arc<RootCertStore>,
) -> Result<(Arc<ServerConfig>, Arc<ClientConfig>), CertificateError> {
    let provider = Arc::new(ring::default_provider());
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::clone(&trusted), Arc::clone(&provider)).build();
    let verifier = verifier.map_err(|error| rustls::Error::General(error.to_string()))?;
    let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(shown))));
    // A resumed session would show no certificate.
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.send_tls13_tickets = 0;
    server.alpn_protocols = vec![b"h2".to_vec()];
    let paths = WebPkiServerVerifier::builder_with_provider(trusted, Arc::clone(&provider)).build();
    let paths = paths.map_err(|error| rustls::Error::General(error.to_string()))?;
    let verifier = ReplicaVerifier(paths, Arc::clone(&provider));
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(shown))));
    client.resumption = Resumption::disabled();
    client.alpn_protocols = vec![b"h2".to_vec()];
    Ok((Arc::new(server), Arc::new(client)))
}

/// Verifies a certificate under the name of its replica. An address stands for a replica whose name no object says: its
/// certificate is verified under the name that is in it.
#[derive(Debug)]
struct ReplicaVerifier(Arc<WebPkiServerVerifier>, Arc<CryptoProvider>);

impl ServerCertVerifier for ReplicaVerifier {
    fn verify_server_cert(
        &self,
        own: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if matches!(name, ServerName::DnsName(_)) {
            return self.0.verify_server_cert(own, others, name, ocsp, now);
        }
        let name = dns_names_in_der(own).into_iter().next().and_then(|name| ServerName::try_from(name).ok());
        let name = name.ok_or(CertificateProblem::NotValidForName)?;
        self.0.verify_server_cert(own, others, &name, ocsp, now)
    }

    verify_signatures_by!(1);
}

#[cfg(test)]
impl PeerTls {
    /// For tests: a replica with this id, under an authority that all tests of a process share, or one of its own.
    pub(super) fn of_test(replica_id: &ReplicaId, is_stranger: bool) -> Self {
        static SHARED: std::sync::LazyLock<AuthorityFiles> = std::sync::LazyLock::new(made);
        fn made() -> AuthorityFiles {
            let now = jiff::Timestamp::now().as_second();
            AuthorityFiles::default().next(now).ok().flatten().expect("it can be made")
        }
        let nothing = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Ok::<_, std::convert::Infallible>(http::Response::new(kube::client::Body::empty()))
        });
        let files = if is_stranger { made() } else { SHARED.clone() };
        let state = TlsState::new(files, replica_id).expect("the id is good");
        Self {
            secrets: KubeAccess::new(kube::Client::new(nothing, "ns"), "test").namespaced("ns"),
            namespace: "ns".to_owned(),
            replica_id: replica_id.clone(),
            current: RwLock::new(Arc::new(state)),
        }
    }

    /// For tests: a replica that trusts the others, and shows a certificate that they do not trust.
    pub(super) fn with_forged_certificate(replica_id: &ReplicaId) -> Self {
        let (tls, stranger) = (Self::of_test(replica_id, false), Self::of_test(replica_id, true));
        let files = tls.current().files.clone();
        let now = jiff::Timestamp::now().as_second();
        let forged = stranger.current().files.certificate(replica_id.as_str(), now);
        let (certificate, key) = forged.expect("the id is good");
        let shown = Arc::new(certified_key(&certificate, &key, None).expect("they fit"));
        let mut trusted = RootCertStore::empty();
        trusted.add_parsable_certificates(certificates(&files.trusted()).expect("PEM"));
        let (server, client) = configs(&shown, Arc::new(trusted)).expect("they can be used");
        let distrusted = CancellationToken::new();
        let state = TlsState { files, server, client, distrusted, certificate };
        *tls.current.write() = Arc::new(state);
        tls
    }

    /// For tests: trusts another authority from now on, and no longer the former one.
    pub(super) fn replace_authority(&self) {
        let now = jiff::Timestamp::now().as_second();
        let files = AuthorityFiles::default().next(now).ok().flatten().expect("it can be made");
        self.take(files).expect("the id is good");
    }
}
