//! The Lease of this replica, by which the others know that it is alive.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::election::Times;
use super::objects::{self, BACKLOG, Failed, LeaseObjects, replica_lease};
use crate::crash;

/// The pause after a write that did not succeed.
const PAUSE: Duration = Duration::from_secs(1);
/// How long the API server may take for the release.
const RELEASE_WAIT: Duration = Duration::from_secs(2);

/// Renews the Lease of this replica.
pub struct OwnLease {
    leases: LeaseObjects,
    id: String,
    times: Times,
    backlog: watch::Receiver<usize>,
    lease: Option<Lease>,
}

impl OwnLease {
    /// The Lease of this replica, which says beside that how many registrations of agents wait here.
    pub fn new(
        leases: LeaseObjects,
        replica_id: &str,
        times: Times,
        backlog: watch::Receiver<usize>,
    ) -> Self {
        Self { leases, id: replica_id.to_owned(), times, backlog, lease: None }
    }

    /// Renews it until `finish`, then releases it.
    pub async fn run(mut self, finish: CancellationToken) {
        let mut complained = false;
        loop {
            let pause = match self.renew().await {
                Ok(()) => {
                    complained = false;
                    self.times.renewal()
                }
                Err(Failed::Changed) => Duration::ZERO,
                Err(Failed::Api(error)) => {
                    if !std::mem::replace(&mut complained, true) {
                        warn!(
                            error,
                            "cannot write the Lease of this replica; the others may take it for dead"
                        );
                    }
                    PAUSE.min(self.times.renewal())
                }
            };
            // Whoever takes a name that is no Lease of ours from under us is not fought with all speed.
            let pause = pause.max(Duration::from_millis(50));
            let told = self.told();
            let mut backlog = self.backlog.clone();
            let emptied = async {
                // That nothing waits any more is told at once: others wait for it.
                if told == 0 || backlog.wait_for(|count| *count == 0).await.is_err() {
                    std::future::pending::<()>().await;
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            };
            tokio::select! {
                () = finish.cancelled() => break,
                () = emptied => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
        self.release().await;
    }

    /// The backlog that the Lease tells of.
    fn told(&self) -> usize {
        let annotations = self.lease.as_ref().and_then(|lease| lease.metadata.annotations.as_ref());
        annotations.and_then(|all| all.get(BACKLOG)).and_then(|count| count.parse().ok()).unwrap_or(0)
    }

    async fn renew(&mut self) -> Result<(), Failed> {
        let name = replica_lease(&self.id);
        if self.lease.is_none() {
            self.lease = self.leases.get(&name, self.times.renewal()).await?;
        }
        let mut lease = objects::held(self.lease.as_ref(), &name, &self.id, self.times.duration);
        let count = self.backlog.borrow().to_string();
        lease.metadata.annotations.get_or_insert_default().insert(BACKLOG.to_owned(), count);
        crash::point("replica-lease:before");
        let written = self.leases.put(&lease, self.times.renewal()).await;
        crash::point("replica-lease:after");
        // After a failure it is read again: it may have been written, deleted or edited.
        self.lease = None;
        self.lease = Some(written?);
        Ok(())
    }

    async fn release(&mut self) {
        let Some(lease) = self.lease.take() else { return };
        let mut lease = objects::released(&lease);
        lease.metadata.annotations.get_or_insert_default().insert(BACKLOG.to_owned(), "0".to_owned());
        if let Err(failed) = self.leases.put(&lease, RELEASE_WAIT).await {
            debug!(?failed, "the Lease of this replica is not released; it runs out");
        }
    }
}
