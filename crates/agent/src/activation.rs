//! Starts accounts: from a definition to the identity of the cluster that it reaches. Also probes clusters.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use secrecy::zeroize::Zeroize;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::cluster::{ClusterClient, ClusterContext, ClusterEndpoint, Use};
use crate::watched_files::ReadFile;
use crate::wire_failure::{after_send, before_send, refused};
use kubesvc_core::agent_policy::AgentPolicy;
use kubesvc_core::kubeconfig::vet;
use kubesvc_core::wire::common::failure::Class;
use kubesvc_core::wire::common::{AccountRef, Failure};
use kubesvc_core::wire::ops::account_spec::Credential;
use kubesvc_core::wire::ops::probe::Target;
use kubesvc_core::wire::ops::{AccountSpec, ClusterIdentity, ProbedCluster};

mod credential;
mod discovery;
mod exec;
mod identity;
mod known_cluster;
mod kubeconfig_files;
#[cfg(test)]
mod tests;

pub use credential::ServiceAccountFiles;
pub use discovery::{DiscoveryTags, ServedKinds};
pub use exec::Programs;
pub use known_cluster::KnownCluster;
pub use kubeconfig_files::MAX_FILE_BYTES;

use credential::{FileKubeconfig, Purpose, ResolvedSource};
use exec::Login;
use identity::ClusterReader;

/// Timeout for reading the identity of the agent's own cluster.
const OWN_CLUSTER_TIMEOUT: Duration = Duration::from_secs(3);

/// Timeout for one probe, not counting the wait for its turn.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout for reading the kinds that a cluster serves.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(120);

/// Starts accounts and probes their clusters, with a limit on concurrency.
#[derive(Clone, Debug)]
pub struct Activator {
    /// Folders below which an account may name a kubeconfig file.
    pub kubeconfig_folders: Arc<[PathBuf]>,
    /// Location of the agent's own service account.
    pub service_account: Arc<ServiceAccountFiles>,
    /// What the agent's owner allows it to do.
    pub policy: AgentPolicy,
    /// Exec programs that log in for the owner's kubeconfigs.
    pub programs: Programs,
    /// What all clients of clusters share.
    pub clusters: ClusterContext,
    /// Timeout for starting one account, not counting the wait for its turn.
    pub deadline: Duration,
    /// Bounds the number of accounts that are started at once.
    pub permits: Arc<Semaphore>,
}

/// An account's definition: an [`AccountSpec`] without the account's reference. A kubeconfig in it is wiped
/// from memory on drop.
#[derive(PartialEq)]
pub struct Definition(AccountSpec);

impl Definition {
    /// Splits a specification into the account reference, if it has one, and the rest.
    pub fn split(mut spec: AccountSpec) -> (Option<AccountRef>, Self) {
        (spec.account.take(), Self(spec))
    }

    /// The specification, without an account reference.
    pub fn spec(&self) -> &AccountSpec {
        &self.0
    }

    /// Whether the same definition may later lead to another credential: a file or a mounted token can change
    /// in place.
    pub fn may_change_unseen(&self) -> bool {
        matches!(self.0.credential, Some(Credential::File(_) | Credential::ServiceAccount(_)))
    }
}

impl Drop for Definition {
    fn drop(&mut self) {
        if let Some(Credential::Kubeconfig(bytes)) = &mut self.0.credential {
            bytes.zeroize();
        }
    }
}

impl fmt::Debug for Definition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Definition").field(&self.0.credential).finish()
    }
}

/// Origin of a definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefinitionOrigin {
    /// The hub, over the wire: only vetted content is used.
    Hub,
    /// The owner, through the agent's own file: paths may lead anywhere, and kubeconfigs may name files.
    OwnFile,
}

/// An account that was started.
#[derive(Clone, Debug, PartialEq)]
pub struct ActivatedAccount {
    /// Identity that the cluster reports.
    pub identity: ClusterIdentity,
    /// Files from which the credential was read.
    pub files: Vec<ReadFile>,
    /// Time of the start.
    pub at: Timestamp,
}

impl Activator {
    /// Creates an activator with default limits.
    pub fn new(kubeconfig_folders: Vec<PathBuf>, concurrency: usize) -> Self {
        Self {
            kubeconfig_folders: kubeconfig_folders.into(),
            service_account: Arc::new(ServiceAccountFiles::from_environment()),
            policy: AgentPolicy::default(),
            programs: Programs::default(),
            clusters: ClusterContext::default(),
            deadline: Duration::from_secs(120),
            permits: Arc::new(Semaphore::new(concurrency.clamp(1, Semaphore::MAX_PERMITS))),
        }
    }

    /// Starts an account: waits for its turn, reaches its cluster, and returns what it found there.
    pub async fn start(
        &self,
        definition: &Definition,
        origin: DefinitionOrigin,
    ) -> Result<ActivatedAccount, Failure> {
        let Ok(_permit) = self.permits.acquire().await else {
            return Err(after_send(Class::Internal, "the agent is stopping"));
        };
        match timeout(self.deadline, self.reach(definition.spec(), origin)).await {
            Ok(result) => result,
            Err(_) => Err(too_slow(self.deadline)),
        }
    }

    /// A client of an account's cluster, with the credential as it is now, that sends nothing to another cluster than
    /// the known one.
    ///
    /// # Errors
    /// The credential or the cluster cannot be read, or it is another cluster.
    pub async fn connect(
        &self,
        definition: &Definition,
        origin: DefinitionOrigin,
        known: &Arc<KnownCluster>,
    ) -> Result<ClusterClient, Failure> {
        match timeout(self.deadline, self.open(definition.spec(), origin, known)).await {
            Ok(result) => result,
            Err(_) => Err(too_slow(self.deadline)),
        }
    }

    async fn open(
        &self,
        spec: &AccountSpec,
        origin: DefinitionOrigin,
        known: &Arc<KnownCluster>,
    ) -> Result<ClusterClient, Failure> {
        let source = self.source(spec, origin).await?;
        let login = source.login.clone();
        let result = self.open_source(source, known).await;
        if !self.can_log_in_again(result.as_ref().err(), login).await {
            return result;
        }
        self.open_source(self.source(spec, origin).await?, known).await
    }

    async fn open_source(
        &self,
        source: ResolvedSource,
        known: &Arc<KnownCluster>,
    ) -> Result<ClusterClient, Failure> {
        let check = Arc::clone(known);
        let client = ClusterClient::checked(source.cluster, &self.clusters, check)?;
        // Whether the credential is accepted. Over the connection that the watches will use, so that no other is kept.
        identity::kube_system_uid(&mut ClusterReader::over_watches(client.clone())).await?;
        Ok(client)
    }

    /// The kinds that a cluster serves, with the tags of this answer; `None` if they are those of the given tags.
    pub async fn changed_kinds(
        client: ClusterClient,
        known: &DiscoveryTags,
    ) -> Result<Option<ServedKinds>, Failure> {
        let mut reader = ClusterReader::beside_watches(client);
        match timeout(DISCOVERY_TIMEOUT, discovery::changed_kinds(&mut reader, known)).await {
            Ok(changed) => changed,
            Err(_) => Err(too_slow(DISCOVERY_TIMEOUT)),
        }
    }

    /// The uid of the kube-system namespace of the cluster that the agent runs in. `None` if the agent has no
    /// service account or may not use it, may not read the namespace, or gets no answer within
    /// [`OWN_CLUSTER_TIMEOUT`].
    pub async fn own_cluster(&self) -> Option<String> {
        let read = async {
            self.permits_service_account().ok()?;
            let cluster = ClusterEndpoint::new(self.own_account().await.ok()?, &self.policy);
            let client = ClusterClient::new(cluster, &self.clusters).ok()?;
            identity::kube_system_uid(&mut ClusterReader::new(client)).await.ok()
        };
        timeout(OWN_CLUSTER_TIMEOUT, read).await.ok().flatten().filter(|uid| !uid.is_empty())
    }

    /// Reaches a cluster. If the cluster rejects a cached credential from a program, the program is run once
    /// more.
    async fn reach(&self, spec: &AccountSpec, origin: DefinitionOrigin) -> Result<ActivatedAccount, Failure> {
        let source = self.source(spec, origin).await?;
        let login = source.login.clone();
        let result = self.identify(source, spec).await;
        if !self.can_log_in_again(result.as_ref().err(), login).await {
            return result;
        }
        self.identify(self.source(spec, origin).await?, spec).await
    }

    /// Whether the cluster has rejected a credential that a program printed some time ago. It is forgotten then.
    async fn can_log_in_again(&self, failure: Option<&Failure>, login: Option<Login>) -> bool {
        let is_rejected = failure.is_some_and(|failure| failure.http_status == 401);
        let Some(login) = login.filter(|_| is_rejected) else { return false };
        self.programs.forget(&login).await;
        !login.fresh
    }

    async fn identify(
        &self,
        source: ResolvedSource,
        spec: &AccountSpec,
    ) -> Result<ActivatedAccount, Failure> {
        let ResolvedSource { cluster, files, .. } = source;
        // The connections end with the reader: an account that is merely held has none.
        let mut reader = ClusterReader::new(ClusterClient::new(cluster, &self.clusters)?);
        let version = identity::version(&mut reader).await?;
        let kube_system_uid = identity::kube_system_uid(&mut reader).await?;
        let token_keys_digest = identity::token_keys_digest(&mut reader).await?;
        let namespaces = identity::namespaces(&mut reader, spec).await?;
        // A cluster whose kinds cannot be read is of no use.
        discovery::served_kinds(&mut reader).await?;
        let server = reader.server().cloned().unwrap_or_default();
        let identity = ClusterIdentity {
            kube_system_uid,
            host: reader.url().to_owned(),
            cert_fingerprint: server.fingerprint,
            version,
            namespaces_count: namespaces.count,
            namespaces: namespaces.names,
            token_keys_digest,
            authority_key_digest: server.authority_key_digest,
        };
        Ok(ActivatedAccount { identity, files, at: Timestamp::now() })
    }
}

fn too_slow(limit: Duration) -> Failure {
    after_send(Class::Timeout, format!("the cluster could not be read within {} s", limit.as_secs()))
}

/// Probes whether the cluster of an account can be reached from here. No credential is needed and none is sent.
impl Activator {
    /// Returns `Ok` if the target can be reached. `context` is that of the account, if known.
    pub async fn probe(
        &self,
        target: &Target,
        context: Option<&str>,
        origin: DefinitionOrigin,
    ) -> Result<(), Failure> {
        let probing = async {
            match target {
                Target::Cluster(cluster) => self.answers(self.probed(cluster)?).await,
                Target::File(path) => {
                    self.permits_files()?;
                    self.is_usable(path, context, origin).await
                }
                Target::ServiceAccount(true) => {
                    self.permits_service_account()?;
                    let own = ClusterEndpoint::new(self.own_account().await?, &self.policy);
                    self.answers(own.anonymous()).await
                }
                Target::ServiceAccount(false) => {
                    Err(before_send(Class::BadReference, "the probe asks for nothing"))
                }
            }
        };
        let too_slow =
            || Err(after_send(Class::Timeout, format!("no answer within {} s", PROBE_TIMEOUT.as_secs())));
        timeout(PROBE_TIMEOUT, probing).await.unwrap_or_else(|_| too_slow())
    }

    /// Whether an API server answers. Any HTTP response over TLS is enough: authentication comes later.
    async fn answers(&self, cluster: ClusterEndpoint) -> Result<(), Failure> {
        let client = ClusterClient::new(cluster, &self.clusters)?;
        match client.get(Use::Activation, "/version", "application/json").await {
            Err(error) if error.http_status() == 0 => Err(error.into()),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Whether a kubeconfig exists, and is one that an account may have.
    async fn is_usable(
        &self,
        path: &str,
        context: Option<&str>,
        origin: DefinitionOrigin,
    ) -> Result<(), Failure> {
        let FileKubeconfig { vetted, .. } =
            self.read_kubeconfig(path, context, origin, Purpose::Check).await?;
        match vetted {
            Ok(_) => Ok(()),
            // The account may name a context that the probe does not.
            Err(refusal) if context.is_none() && refusal.field() == "current-context" => Ok(()),
            Err(refusal) => Err(refused(&refusal)),
        }
    }

    /// The cluster to probe, vetted like that of any kubeconfig.
    fn probed(&self, cluster: &ProbedCluster) -> Result<ClusterEndpoint, Failure> {
        let mut body = json!({"server": cluster.server, "insecure-skip-tls-verify": cluster.insecure});
        if !cluster.certificate_authority.is_empty() {
            body["certificate-authority-data"] = STANDARD.encode(&cluster.certificate_authority).into();
        }
        if !cluster.tls_server_name.is_empty() {
            body["tls-server-name"] = cluster.tls_server_name.as_str().into();
        }
        let config = json!({
            "current-context": "probe",
            "contexts": [{"name": "probe", "context": {"cluster": "probe", "user": "nobody"}}],
            "clusters": [{"name": "probe", "cluster": body}],
            // Vetting requires a credential; it is removed afterwards.
            "users": [{"name": "nobody", "user": {"token": "none"}}],
        });
        let vetted = vet(config.to_string().as_bytes(), None).map_err(|refusal| refused(&refusal))?;
        Ok(ClusterEndpoint::new(vetted, &self.policy).anonymous())
    }
}
