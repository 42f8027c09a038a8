//! Starts accounts: from a definition to the identity of the cluster that it reaches.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::account::policy::AgentPolicy;
use crate::agent::cluster::{ClusterAccess, ClusterEndpoint, Limits, Trust};
use crate::agent::definition::Definition;
use crate::agent::failure::after_send;
use crate::agent::metrics::Requests;
use crate::agent::watched_files::ReadFile;
use crate::wire::common::Failure;
use crate::wire::common::failure::Class;
use crate::wire::ops::{AccountSpec, ClusterIdentity};

mod credential;
mod discovery;
mod exec;
mod files;
mod identity;
mod kinds;
mod owned_kubeconfig;
mod probe;
#[cfg(test)]
mod tests;

pub use credential::ServiceAccountFiles;
pub use exec::Programs;
pub use files::MAX_FILE_BYTES;

use credential::ResolvedSource;

/// Timeout for reading the identity of the agent's own cluster.
const OWN_CLUSTER_TIMEOUT: Duration = Duration::from_secs(3);

/// Starts accounts, with a limit on concurrency.
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
    /// Trusted certificates.
    pub trust: Trust,
    /// Time and size limits for a cluster's answers.
    pub limits: Limits,
    /// Timeout for starting one account, not counting the wait for its turn.
    pub deadline: Duration,
    /// Bounds the number of accounts that are started at once.
    pub turns: Arc<Semaphore>,
    /// Counts requests to clusters.
    pub requests: Requests,
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
            trust: Trust::default(),
            limits: Limits::default(),
            deadline: Duration::from_secs(120),
            turns: Arc::new(Semaphore::new(concurrency.clamp(1, Semaphore::MAX_PERMITS))),
            requests: Requests::default(),
        }
    }

    /// Starts an account that came from the hub, and returns the identity of its cluster.
    pub async fn activate(&self, definition: &Definition) -> Result<ClusterIdentity, Failure> {
        self.start(definition, DefinitionOrigin::Hub).await.map(|reached| reached.identity)
    }

    /// Starts an account: waits for its turn, reaches its cluster, and returns what it found there.
    pub async fn start(
        &self,
        definition: &Definition,
        word: DefinitionOrigin,
    ) -> Result<ActivatedAccount, Failure> {
        let Ok(_turn) = self.turns.acquire().await else {
            return Err(after_send(Class::Internal, "the agent is stopping"));
        };
        match timeout(self.deadline, self.reach(definition.spec(), word)).await {
            Ok(result) => result,
            Err(_) => Err(after_send(
                Class::Timeout,
                format!("the cluster could not be read within {} s", self.deadline.as_secs()),
            )),
        }
    }

    /// The uid of the kube-system namespace of the cluster that the agent runs in. `None` if the agent has no
    /// service account or may not use it, may not read the namespace, or gets no answer within
    /// [`OWN_CLUSTER_TIMEOUT`].
    pub async fn own_cluster(&self) -> Option<String> {
        let read = async {
            self.permits_service_account().ok()?;
            let cluster = ClusterEndpoint::new(self.own_account().await.ok()?, &self.policy);
            let access = ClusterAccess::connect(&cluster, &self.trust, self.limits).await.ok()?;
            identity::kube_system_uid(&mut access.counted_in(&self.requests)).await.ok()
        };
        timeout(OWN_CLUSTER_TIMEOUT, read).await.ok().flatten().filter(|uid| !uid.is_empty())
    }

    /// Reaches a cluster. If the cluster rejects a cached credential from a program, the program is run once
    /// more.
    async fn reach(&self, spec: &AccountSpec, word: DefinitionOrigin) -> Result<ActivatedAccount, Failure> {
        let source = self.source(spec, word).await?;
        let login = source.login.clone();
        let result = self.look(source, spec).await;
        let (Err(failure), Some(login)) = (&result, login) else { return result };
        if failure.http_status != 401 {
            return result;
        }
        self.programs.forget(&login).await;
        if login.fresh {
            return result;
        }
        self.look(self.source(spec, word).await?, spec).await
    }

    async fn look(&self, source: ResolvedSource, spec: &AccountSpec) -> Result<ActivatedAccount, Failure> {
        let ResolvedSource { cluster, files, .. } = source;
        let access = ClusterAccess::connect(&cluster, &self.trust, self.limits).await?;
        let mut access = access.counted_in(&self.requests);
        let version = identity::version(&mut access).await?;
        let kube_system_uid = identity::kube_system_uid(&mut access).await?;
        let token_keys_digest = identity::token_keys_digest(&mut access).await?;
        let namespaces = identity::namespaces(&mut access, spec).await?;
        let served = discovery::served_kinds(&mut access).await?;
        let identity = ClusterIdentity {
            kube_system_uid,
            host: access.url().to_owned(),
            cert_fingerprint: access.fingerprint().to_owned(),
            version,
            namespaces_count: namespaces.count,
            namespaces: namespaces.names,
            kinds: kinds::chosen(&served, spec),
            token_keys_digest,
            authority_key_digest: access.authority_key_digest().to_owned(),
        };
        Ok(ActivatedAccount { identity, files, at: Timestamp::now() })
    }
}
