//! Which of several replicas leads, as they say themselves.

use k8s_openapi::api::coordination::v1::Lease;

use super::operator::Operator;
use super::{PATIENCE, World};
use crate::harness::wait::eventually;

impl World {
    /// Waits until exactly one of these replicas leads, and all of them say so; its place among them.
    pub(crate) async fn until_one_leads(&self, replicas: &[&Operator]) -> usize {
        eventually("one that leads, and all know it", PATIENCE, async || one_leads(replicas).await).await
    }

    /// A Lease in the operator's namespace. Asks again while the API server gives no answer.
    pub(crate) async fn lease(&self, name: &str) -> Option<Lease> {
        eventually(&format!("Lease {name}"), PATIENCE, async || self.try_lease(name).await).await
    }

    /// As [`World::lease`], asked once.
    ///
    /// # Errors
    ///
    /// The API server gives no answer.
    pub(crate) async fn try_lease(&self, name: &str) -> Result<Option<Lease>, String> {
        self.api::<Lease>().get_opt(name).await.map_err(|e| format!("Lease {name}: {e}"))
    }
}

/// Exactly one of these replicas leads, and all of them say so: its place among them.
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
    /// The value of one of its metrics that have no labels.
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
