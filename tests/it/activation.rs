//! The life cycle of an account on real parts, from the first activation to its end.

mod agent_policy;
mod agents;
mod changes;
mod credentials;
mod deletion;
mod first;
mod restarts;

use kubesvc_core::State;

use crate::world::{Cluster, World};

/// Number of the operator's writes to an account, none of which was refused.
fn writes(world: &World, account: &str) -> usize {
    let writes = world.writes_to(account);
    let refused: Vec<_> = writes.iter().filter(|write| write.code >= 300).collect();
    assert!(refused.is_empty(), "refused writes to {account}: {refused:#?}");
    writes.len()
}

/// Takes another account through its activation. By then, everything that had to be written before has been
/// written.
async fn activate_another(world: &World, cluster: &Cluster, name: &str, zone: &str) {
    world.account(name).zone(zone).kubeconfig(&cluster.kubeconfig()).create().await;
    world.until(name, State::Active).await;
}
