//! Probes whether an account's cluster can be reached from here. No credential is needed and none is sent.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use tokio::time::timeout;

use crate::account::kubeconfig::vet;
use crate::agent::activation::credential::{FileKubeconfig, Purpose};
use crate::agent::activation::{Activator, DefinitionOrigin};
use crate::agent::cluster::{ClusterAccess, ClusterEndpoint};
use crate::agent::failure::{after_send, before_send, refused};
use crate::wire::common::Failure;
use crate::wire::common::failure::Class;
use crate::wire::ops::ProbedCluster;
use crate::wire::ops::probe::Target;

/// Timeout for one probe, not counting the wait for its turn.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

impl Activator {
    /// Returns `Ok` if the target can be reached. `context` is that of the account, if known.
    ///
    /// # Errors
    /// The reason why the target cannot be reached.
    pub async fn probe(
        &self,
        target: &Target,
        context: Option<&str>,
        word: DefinitionOrigin,
    ) -> Result<(), Failure> {
        let probing = async {
            match target {
                Target::Cluster(cluster) => self.answers(&self.probed(cluster)?).await,
                Target::File(path) => {
                    self.permits_files()?;
                    self.is_usable(path, context, word).await
                }
                Target::ServiceAccount(true) => {
                    self.permits_service_account()?;
                    let own = ClusterEndpoint::new(self.own_account().await?, &self.policy);
                    self.answers(&own.anonymous()).await
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
    async fn answers(&self, cluster: &ClusterEndpoint) -> Result<(), Failure> {
        let access = ClusterAccess::connect(cluster, &self.trust, self.limits).await?;
        match access.counted_in(&self.requests).get("/version", "application/json").await {
            Err(failure) if failure.http_status == 0 => Err(failure),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Whether a kubeconfig exists, and is one that an account may have.
    async fn is_usable(
        &self,
        path: &str,
        context: Option<&str>,
        word: DefinitionOrigin,
    ) -> Result<(), Failure> {
        let FileKubeconfig { vetted, .. } = self.read_kubeconfig(path, context, word, Purpose::Check).await?;
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
