//! Compaction of etcd: versions before a given one are forgotten, as they are every few minutes in a cluster.

use super::{ControlPlane, etcd::Etcd};

impl ControlPlane {
    /// Makes etcd forget all versions before this one, as `etcdctl compact --physical` does. An API server that runs keeps
    /// what it has cached; one that starts afterwards does not have the versions any more.
    ///
    /// # Errors
    ///
    /// etcd does not answer, or refuses: it has no such version, or has forgotten it before.
    pub async fn compact(&self, version: u64) -> Result<(), String> {
        Etcd::connect(&self.etcd_socket()).await?.compact(version).await
    }
}
