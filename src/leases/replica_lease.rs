//! The Lease of this replica, which shows the others that it is alive, and the task that renews it.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::election_rules::Times;
use super::replicas::Replicas;
use super::{BACKLOG, INCARNATION, LeaseObjects, replica_lease};
use kubesvc_runtime::kube_access::{KubeError, WriteOptions};
use kubesvc_runtime::telemetry::outages::api_server_is_away;

/// Delay after a failed write.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Timeout for releasing the Lease.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// Delay before a backlog is published.
const BACKLOG_REPORT_DELAY: Duration = Duration::from_millis(500);
/// Delay before the end of a backlog is published.
const NO_BACKLOG_REPORT_DELAY: Duration = Duration::from_millis(200);

fn is_some(count: &usize) -> bool {
    *count > 0
}

fn is_none(count: &usize) -> bool {
    *count == 0
}

/// Task that renews the Lease of this replica.
pub struct OwnLease {
    leases: LeaseObjects,
    replicas: Arc<Replicas>,
    times: Times,
    backlog: watch::Receiver<usize>,
    lease: Option<Lease>,
}

impl OwnLease {
    /// Creates the task. The Lease also carries this process's incarnation and the number of registrations of
    /// agents that wait here.
    pub fn new(
        leases: LeaseObjects,
        replicas: Arc<Replicas>,
        times: Times,
        backlog: watch::Receiver<usize>,
    ) -> Self {
        Self { leases, replicas, times, backlog, lease: None }
    }

    /// Renews the Lease until `finish` is cancelled, then releases it.
    pub async fn run(mut self, finish: CancellationToken) {
        let mut complained = false;
        loop {
            let pause = match self.renew().await {
                Ok(()) => {
                    self.replicas.renewed();
                    complained = false;
                    self.times.renewal()
                }
                Err(error) if error.is_stale() => Duration::ZERO,
                Err(error) => {
                    let error = super::explain(&error);
                    if !api_server_is_away() && !std::mem::replace(&mut complained, true) {
                        warn!(
                            error,
                            "cannot renew this replica's Lease; other replicas may consider it dead"
                        );
                    }
                    RETRY_DELAY.min(self.times.renewal())
                }
            };
            // Bounds the rate of writes if another client keeps changing the Lease.
            let pause = pause.max(Duration::from_millis(50));
            let published = self.published();
            let mut backlog = self.backlog.clone();
            // The start and the end of a backlog are published soon, because the leader depends on them.
            let (is_other, delay) = if published == 0 {
                (is_some as fn(&usize) -> bool, BACKLOG_REPORT_DELAY)
            } else {
                (is_none as _, NO_BACKLOG_REPORT_DELAY)
            };
            let turned = async {
                if backlog.wait_for(is_other).await.is_err() {
                    std::future::pending::<()>().await;
                }
                tokio::time::sleep(delay).await;
            };
            tokio::select! {
                () = finish.cancelled() => break,
                () = turned => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
        self.release().await;
    }

    /// The backlog published in the Lease.
    fn published(&self) -> usize {
        let annotations = self.lease.as_ref().and_then(|lease| lease.metadata.annotations.as_ref());
        annotations.and_then(|all| all.get(BACKLOG)).and_then(|count| count.parse().ok()).unwrap_or(0)
    }

    async fn renew(&mut self) -> Result<(), KubeError> {
        let name = replica_lease(self.replicas.id());
        if self.lease.is_none() {
            self.lease = self.leases.get(&name, self.times.renewal()).await?;
        }
        let mut lease =
            super::held(self.lease.as_ref(), &name, self.replicas.id().as_str(), self.times.duration);
        let count = self.backlog.borrow().to_string();
        let annotations = lease.metadata.annotations.get_or_insert_default();
        annotations.insert(BACKLOG.to_owned(), count);
        annotations.insert(INCARNATION.to_owned(), self.replicas.incarnation().to_owned());
        let options = WriteOptions::default().at("replica-lease");
        let written = self.leases.put(&lease, self.times.renewal(), options).await;
        // Read it again after a failure: it may have been written, deleted or edited.
        self.lease = None;
        self.lease = Some(written?);
        Ok(())
    }

    async fn release(&mut self) {
        let Some(lease) = self.lease.take() else { return };
        let mut lease = super::released(&lease);
        lease.metadata.annotations.get_or_insert_default().insert(BACKLOG.to_owned(), "0".to_owned());
        if let Err(failed) = self.leases.put(&lease, RELEASE_TIMEOUT, WriteOptions::default()).await {
            debug!(?failed, "cannot release this replica's Lease; it will expire");
        }
    }
}
