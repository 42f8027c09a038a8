//! Starting an account: from its definition to the identity of the cluster that it reaches.

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

/// Time limit for reading the identity of the agent's own cluster.
const OWN_CLUSTER_TIMEOUT: Duration = Duration::from_secs(3);

/// Starts accounts, so many at a time.
#[derive(Clone, Debug)]
pub struct Activator {
    /// The folders under which an account may name a kubeconfig file.
    pub kubeconfig_folders: Arc<[PathBuf]>,
    /// Where the agent's own service account is.
    pub service_account: Arc<ServiceAccountFiles>,
    /// What the agent's owner lets it do.
    pub policy: AgentPolicy,
    /// Programs that log in for kubeconfigs of its owner.
    pub programs: Programs,
    /// Which certificates are trusted.
    pub trust: Trust,
    /// How long a cluster may take, and how much it may say.
    pub limits: Limits,
    /// How long one account may take from its turn on.
    pub deadline: Duration,
    /// How many accounts have their turn at once.
    pub turns: Arc<Semaphore>,
    /// Where requests to clusters are counted.
    pub requests: Requests,
}

/// Whose word a definition is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefinitionOrigin {
    /// Somebody's, over the wire: only what is vetted holds.
    Hub,
    /// The owner's, in the agent's own file: paths may lead anywhere, and kubeconfigs may name files.
    OwnFile,
}

/// An account that was started.
#[derive(Clone, Debug, PartialEq)]
pub struct ActivatedAccount {
    /// What its cluster says of itself.
    pub identity: ClusterIdentity,
    /// The files that its credential was read from.
    pub files: Vec<ReadFile>,
    /// When.
    pub at: Timestamp,
}

impl Activator {
    /// An activator as the agent runs it.
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

    /// Starts a stranger's account, and says what it found.
    pub async fn activate(&self, definition: &Definition) -> Result<ClusterIdentity, Failure> {
        self.start(definition, DefinitionOrigin::Hub).await.map(|reached| reached.identity)
    }

    /// Starts an account: waits for its turn, reaches its cluster, and says what it found there.
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

    /// The uid of kube-system of the cluster that the agent runs in; absent where it has no service account, may not read
    /// it, or gets no answer within [`OWN_CLUSTER_TIMEOUT`].
    pub async fn own_cluster(&self) -> Option<String> {
        let read = async {
            self.permits_service_account().ok()?;
            let cluster = ClusterEndpoint::new(self.own_account().await.ok()?, &self.policy);
            let access = ClusterAccess::connect(&cluster, &self.trust, self.limits).await.ok()?;
            identity::kube_system_uid(&mut access.counted_in(&self.requests)).await.ok()
        };
        timeout(OWN_CLUSTER_TIMEOUT, read).await.ok().flatten().filter(|uid| !uid.is_empty())
    }

    /// Reaches a cluster. Where it refuses what a program gave for an earlier account, the program is run once more.
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
