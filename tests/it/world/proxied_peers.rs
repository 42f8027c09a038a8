//! Which of several replicas leads, according to the replicas themselves.

use k8s_openapi::api::coordination::v1::Lease;

use super::operator::Operator;
use super::{MAX_WAIT, World};
use kubesvc_testkit::wait::eventually;

impl World {
    /// Waits until exactly one of these replicas leads and all of them report it. Returns its index.
    pub(crate) async fn until_one_leads(&self, replicas: &[&Operator]) -> usize {
        eventually("one that leads, and all know it", MAX_WAIT, async || one_leads(replicas).await).await
    }

    /// Returns a Lease in the operator's namespace. Retries while the API server does not answer.
    pub(crate) async fn lease(&self, name: &str) -> Option<Lease> {
        eventually(&format!("Lease {name}"), MAX_WAIT, async || self.try_lease(name).await).await
    }

    /// Like [`World::lease`], without retries.
    ///
    /// # Errors
    ///
    /// The API server does not answer.
    pub(crate) async fn try_lease(&self, name: &str) -> Result<Option<Lease>, String> {
        self.api::<Lease>().get_opt(name).await.map_err(|e| format!("Lease {name}: {e}"))
    }
}

/// Returns the index of the leader if exactly one of these replicas leads and all of them report it.
pub(crate) async fn one_leads(replicas: &[&Operator]) -> Result<usize, String> {
    let mut leading = Vec::new();
    for (at, replica) in replicas.iter().enumerate() {
        if replica.metric("kubesvc_leader").await? == 1 {
            leading.push(at);
        }
    }
    let [leader] = leading[..] else { return Err(format!("{leading:?} lead")) };
    for replica in replicas {
        let health = replica.get("/health").await?;
        if health.status != 200 || health.json["leader"] != replicas[leader].replica_id() {
            return Err(format!("{} says {health}", replica.replica_id()));
        }
    }
    Ok(leader)
}

impl Operator {
    /// Returns the value of a metric without labels.
    ///
    /// # Errors
    ///
    /// There is no answer, or no such metric.
    pub(crate) async fn metric(&self, name: &str) -> Result<u64, String> {
        let text = self.get("/metrics").await?.text;
        let value =
            text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok());
        value.ok_or_else(|| format!("no {name} in {text}"))
    }
}
