//! The Leases of this replica: the leader's, for which it is a candidate, and its own.

use std::sync::Arc;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::run_location::RunLocation;
use super::settings::may_have_peers;
use crate::background_tasks::BackgroundTasks;
use crate::config::operator::OperatorSettings;
use crate::hub::Hub;
use crate::leases::{Elector, Leadership, LeaseObjects, OwnLease, Replicas, Times};

/// The Leases, and what is derived from them.
pub(super) struct ReplicaLeases {
    /// `None` if this is the only replica.
    pub(super) leases: Option<LeaseObjects>,
    replica_id: String,
    times: Times,
    pub(super) leadership: Arc<Leadership>,
    pub(super) replicas: Arc<Replicas>,
}

impl ReplicaLeases {
    pub(super) fn new(settings: &OperatorSettings, location: &RunLocation) -> Self {
        let election = settings.leader_election;
        let times = Times {
            duration: election.duration,
            renew_deadline: election.renew_deadline,
            retry_period: election.retry_period,
        };
        let (id, replica_id) = (&location.replica_id, location.replica_id.clone());
        if may_have_peers(settings) {
            let leases = Some(LeaseObjects::new(location.client.clone(), &location.namespace));
            let (leadership, replicas) = (Leadership::unknown(), Replicas::unknown(id, times));
            return Self { leases, replica_id, times, leadership, replicas };
        }
        let (leadership, replicas) = (Leadership::alone(id), Replicas::alone(id));
        Self { leases: None, replica_id, times, leadership, replicas }
    }

    /// Starts the tasks that maintain the Leases: the leader's until `releasing`, and this replica's own until its
    /// agents have `left`.
    pub(super) fn start(
        self,
        background: &BackgroundTasks,
        hub: &Hub,
        releasing: &CancellationToken,
        left: &CancellationToken,
    ) {
        let Some(leases) = self.leases else { return };
        let changed = Arc::new(Notify::new());
        let (watched, told) = (leases.clone(), Arc::clone(&changed));
        let (replicas, until) = (Arc::clone(&self.replicas), releasing.clone());
        background.spawn("watch of Leases", "Sees which replicas are alive, and who leads", async move {
            replicas.run(watched, told, until).await;
        });
        let own = OwnLease::new(leases.clone(), self.replicas, self.times, hub.backlog());
        background.spawn("own Lease", "Renews the Lease of this replica", own.run(left.clone()));
        let elector = Elector::new(leases, &self.replica_id, self.times, self.leadership, changed);
        let electing = elector.run(releasing.clone());
        background.spawn("leader election", "Takes, renews and releases the leader's Lease", electing);
    }
}
