//! Watches, takes, renews and releases the leader's Lease. [`Candidate`] decides what to do.

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::election_rules::{Candidate, LeaseAction, Moment, Times};
use super::leadership::{Leadership, Mandate};
use super::{LEADER_LEASE, LeaseObjects};
use kubesvc_core::ReplicaId;
use kubesvc_runtime::kube_access::{KubeError, WriteOptions};
use kubesvc_runtime::telemetry::outages::{api_server_is_away, warn_unless_away};

/// Maximum random increase of the pause between two attempts, as a factor, so that replicas do not retry in
/// step.
const MAX_JITTER_FACTOR: f64 = 1.2;
/// Timeout for releasing the Lease.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum time for which a replica that stops waits for the answer to a write that it has sent.
const LAST_ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// Task that keeps a [`Leadership`] up to date.
pub struct Elector {
    leases: LeaseObjects,
    id: ReplicaId,
    times: Times,
    leadership: Arc<Leadership>,
    /// Notified when another replica has written or deleted the Lease.
    changed: Arc<Notify>,
    candidate: Candidate,
    /// The Lease as last read or written.
    lease: Option<Lease>,
    begun: Instant,
    /// Time of the next read.
    next_read: Moment,
    complained: bool,
}

impl Elector {
    /// Creates the elector of this replica. `changed` is notified when another replica has written or deleted
    /// the Lease; without it, the elector notices at its next read.
    pub fn new(
        leases: LeaseObjects,
        replica_id: &ReplicaId,
        times: Times,
        leadership: Arc<Leadership>,
        changed: Arc<Notify>,
    ) -> Self {
        Self {
            leases,
            id: replica_id.to_owned(),
            times,
            leadership,
            changed,
            candidate: Candidate::new(replica_id, times),
            lease: None,
            begun: Instant::now(),
            next_read: Moment::ZERO,
            complained: false,
        }
    }

    /// Competes for the Lease until `finish` is cancelled, then releases it. The caller has stopped the
    /// leader's work by then.
    pub async fn run(mut self, finish: CancellationToken) {
        while !finish.is_cancelled() {
            self.step(&finish).await;
            let pause = self.pause();
            let (leadership, changed) = (Arc::clone(&self.leadership), Arc::clone(&self.changed));
            tokio::select! {
                () = finish.cancelled() => {}
                () = leadership.resigned.notified() => self.let_go().await,
                () = changed.notified() => self.next_read = Moment::ZERO,
                () = tokio::time::sleep(pause) => {}
            }
        }
        self.let_go().await;
    }

    fn now(&self) -> Moment {
        self.begun.elapsed()
    }

    /// Performs the action that is due now. `finish` ends a read at once. A write that was sent may take the Lease, so its
    /// answer is awaited for up to [`LAST_ANSWER_TIMEOUT`], and the Lease can be released.
    async fn step(&mut self, finish: &CancellationToken) {
        if self.now() >= self.next_read
            && (self.candidate.renewed().is_none() || self.next_read.is_zero())
            && finish.run_until_cancelled(self.read()).await.is_none()
        {
            return;
        }
        match self.candidate.step(self.now()) {
            LeaseAction::Wait(_) => {}
            LeaseAction::Lost => self.lose(),
            LeaseAction::Acquire | LeaseAction::Renew => self.write(finish).await,
        }
        if self.candidate.step(self.now()) == LeaseAction::Lost {
            self.lose();
        }
    }

    fn pause(&self) -> Duration {
        let left = match self.candidate.step(self.now()) {
            LeaseAction::Wait(left) => left,
            LeaseAction::Acquire | LeaseAction::Renew | LeaseAction::Lost => Duration::ZERO,
        };
        match self.candidate.renewed() {
            Some(_) => left,
            None => left.min(self.next_read.saturating_sub(self.now())),
        }
    }

    /// Timeout for one request: a leader must not wait beyond its renew deadline.
    fn within(&self) -> Duration {
        let left = self.candidate.end().map(|end| end.saturating_sub(self.now()));
        left.unwrap_or(self.times.renew_deadline).min(self.times.renew_deadline)
    }

    async fn read(&mut self) {
        let read = self.leases.get(LEADER_LEASE, self.within()).await;
        let now = self.now();
        self.next_read = now + jittered(self.times.retry_period);
        match read {
            Ok(lease) => {
                self.candidate.saw(lease.as_ref().map(super::record), now);
                self.lease = lease;
                self.complained = false;
            }
            Err(failed) => self.complain("read", &failed),
        }
        if self.candidate.renewed().is_none() {
            let holder = self.candidate.holder(now).filter(|holder| *holder != &self.id);
            if self.leadership.follows(holder)
                && let Some(leader) = holder
            {
                info!(leader = leader.as_str(), "another replica leads");
            }
        }
    }

    async fn write(&mut self, finish: &CancellationToken) {
        let sent = self.now();
        let lease = super::held(self.lease.as_ref(), LEADER_LEASE, self.id.as_str(), self.times.duration);
        let options = WriteOptions::default().at("lease");
        let write = self.leases.put(&lease, self.within(), options);
        let Some(written) = answer_of(write, finish).await else { return };
        match written {
            Ok(lease) => {
                self.candidate.wrote(super::record(&lease), sent);
                self.lease = Some(lease);
                self.complained = false;
                self.lead(sent);
            }
            Err(failed) => {
                let pause = match self.candidate.renewed() {
                    Some(_) => self.times.retry_period.min(self.within()),
                    None => jittered(self.times.retry_period),
                };
                if failed.is_stale() {
                    // Find out at once who holds it; the pause applies to the next write.
                    let _ = finish.run_until_cancelled(self.read()).await;
                } else {
                    self.complain("write", &failed);
                }
                self.candidate.pause(self.now(), pause);
            }
        }
    }

    /// Records that this replica holds the Lease as of `sent`.
    fn lead(&mut self, sent: Moment) {
        if let Some(mandate) = self.leadership.mandate() {
            mandate.renewed(sent);
        } else if self.candidate.end().is_some_and(|end| self.now() < end) {
            info!(lease = LEADER_LEASE, "acquired the Lease");
            let deadline = self.times.renew_deadline;
            let mandate = Mandate::by_lease(self.leases.clone(), &self.id, self.begun, sent, deadline);
            self.leadership.take(mandate);
        }
    }

    fn lose(&mut self) {
        self.candidate.step_down();
        self.next_read = Moment::ZERO;
        if self.leadership.mandate().is_some() {
            warn!(lease = LEADER_LEASE, "lost the Lease: this replica no longer leads");
            self.leadership.lose();
        }
    }

    /// Releases the Lease if this replica holds it, so that another replica can take it at once. Does not
    /// compete for it again for two retry periods.
    async fn let_go(&mut self) {
        let led = self.candidate.renewed().is_some();
        self.candidate.step_down();
        self.candidate.pause(self.now(), self.times.retry_period * 2);
        self.leadership.lose();
        self.next_read = Moment::ZERO;
        if let Some(lease) = self.lease.take().filter(|_| led) {
            match self.release(&lease).await {
                Ok(()) => info!(lease = LEADER_LEASE, "released the Lease"),
                Err(error) => {
                    let (lease, error) = (LEADER_LEASE, super::explain(&error));
                    warn_unless_away!(
                        lease,
                        error,
                        "cannot release the Lease; other replicas wait until it expires"
                    );
                }
            }
        }
    }

    /// Writes the Lease without a holder, unless another replica holds it.
    async fn release(&self, lease: &Lease) -> Result<(), KubeError> {
        let put = async |lease: &Lease| {
            let released = super::released(lease);
            self.leases.put(&released, RELEASE_TIMEOUT, WriteOptions::default()).await.map(drop)
        };
        match put(lease).await {
            Err(error) if error.is_stale() => {}
            answer => return answer,
        }
        // A renewal from this replica may have been in flight.
        match self.leases.get(LEADER_LEASE, RELEASE_TIMEOUT).await? {
            Some(now) if super::holder(&now) == self.id => put(&now).await,
            _ => Ok(()),
        }
    }

    /// Counts a failed request and logs the first one, until a request succeeds again.
    fn complain(&mut self, what: &str, failed: &KubeError) {
        self.leadership.failed_renewals.inc();
        let error = super::explain(failed);
        if !api_server_is_away() && !std::mem::replace(&mut self.complained, true) {
            warn!(lease = LEADER_LEASE, error, "cannot {what} the Lease; retrying");
        }
    }
}

/// Waits for the answer to a write; `None` if there is none [`LAST_ANSWER_TIMEOUT`] after `finish`.
async fn answer_of<T>(write: impl Future<Output = T>, finish: &CancellationToken) -> Option<T> {
    let too_late = async {
        finish.cancelled().await;
        tokio::time::sleep(LAST_ANSWER_TIMEOUT).await;
    };
    tokio::select! {
        answer = write => Some(answer),
        () = too_late => None,
    }
}

/// Returns `pause` multiplied by a random factor between 1 and 2.2.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(1.0 + fastrand::f64() * MAX_JITTER_FACTOR)
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use kube::Client;
    use parking_lot::Mutex;
    use serde_json::json;

    use super::*;
    use crate::leases::holder;
    use kubesvc_runtime::kube_access::KubeAccess;

    /// An API server without a Lease at first, whose answer to the first write waits.
    #[derive(Default)]
    struct SlowApiServer {
        /// The holders that were written.
        holders: Mutex<Vec<String>>,
        first_answer: Notify,
    }

    impl SlowApiServer {
        async fn answer(
            &self,
            request: http::Request<kube::client::Body>,
        ) -> http::Result<http::Response<kube::client::Body>> {
            let is_read = request.method() == http::Method::GET;
            let sent = request.into_body().collect().await.expect("a body").to_bytes();
            let (code, body) = if is_read {
                let missing = json!({
                    "kind": "Status", "status": "Failure", "message": "none", "reason": "NotFound", "code": 404,
                    "details": {"name": LEADER_LEASE, "group": "coordination.k8s.io", "kind": "leases"},
                });
                (404, missing.to_string().into_bytes())
            } else {
                let mut lease: Lease = serde_json::from_slice(&sent).expect("a Lease");
                let writes = {
                    let mut holders = self.holders.lock();
                    holders.push(holder(&lease).to_owned());
                    holders.len()
                };
                if writes == 1 {
                    self.first_answer.notified().await;
                }
                lease.metadata.resource_version = Some(writes.to_string());
                (200, serde_json::to_vec(&lease).expect("it is written as JSON"))
            };
            http::Response::builder().status(code).body(kube::client::Body::from(body))
        }

        fn elector(self: &Arc<Self>) -> Elector {
            let server = Arc::clone(self);
            let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
                let server = Arc::clone(&server);
                async move { server.answer(request).await }
            });
            let access = KubeAccess::new(Client::new(service, "ns"), "test");
            let leases = LeaseObjects::new(&access, "ns");
            Elector::new(leases, &"r-0".into(), Times::default(), Leadership::unknown(), Arc::default())
        }

        async fn until_written(&self) {
            while self.holders.lock().is_empty() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn lease_that_is_being_taken_at_the_end_is_released() {
        let (server, finish) = (Arc::<SlowApiServer>::default(), CancellationToken::new());
        let electing = tokio::spawn(server.elector().run(finish.clone()));
        server.until_written().await;
        finish.cancel();
        tokio::task::yield_now().await;
        server.first_answer.notify_one();
        electing.await.expect("no panic");
        assert_eq!(*server.holders.lock(), ["r-0", ""]);
    }

    #[tokio::test(start_paused = true)]
    async fn write_without_an_answer_holds_up_the_end_for_three_seconds() {
        let (server, finish) = (Arc::<SlowApiServer>::default(), CancellationToken::new());
        let electing = tokio::spawn(server.elector().run(finish.clone()));
        server.until_written().await;
        let since = tokio::time::Instant::now();
        finish.cancel();
        electing.await.expect("no panic");
        assert_eq!(since.elapsed(), LAST_ANSWER_TIMEOUT);
    }
}
