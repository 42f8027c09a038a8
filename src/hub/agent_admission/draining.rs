//! Draining of the replica's agents, because it stops or because it alone does not reach the API server. Redial times are
//! spread at the rate at which the other replicas register agents. An isolated replica accepts no agents.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use super::hello::HelloRefusal;
use super::queue::{Drain, RedialTime};
use super::server;
use crate::hub::context::HubContext;
use crate::hub::sessions::Sessions;
use kubesvc_core::wire::ops::refused::Reason;
use kubesvc_runtime::background_tasks::{AttemptOutcome, BackgroundTasks, TaskSpec};

/// Minimum delay given to an agent that is refused by a draining replica.
const MIN_DRAIN_RETRY_DELAY: Duration = Duration::from_secs(1);

/// State of the drain, and the redial times given so far.
pub(crate) struct Draining {
    context: Arc<HubContext>,
    sessions: Arc<Sessions>,
    /// Created for the first redial time.
    plan: Mutex<Option<Drain>>,
    /// Number of redial times given.
    drained_agents: AtomicUsize,
    /// This replica alone does not reach the API server.
    isolated: watch::Sender<bool>,
}

impl Draining {
    pub(super) fn new(context: Arc<HubContext>, sessions: Arc<Sessions>) -> Self {
        Self {
            context,
            sessions,
            plan: Mutex::default(),
            drained_agents: AtomicUsize::new(0),
            isolated: watch::Sender::new(false),
        }
    }

    /// Starts a drain because of isolation, or accepts agents again.
    pub(crate) fn set_isolated(&self, cut_off: bool) {
        if cut_off {
            // Each drain has its own redial times.
            *self.plan.lock() = None;
            self.drained_agents.store(0, Ordering::Relaxed);
        }
        self.isolated.send_replace(cut_off);
    }

    /// Whether this replica alone does not reach the API server.
    pub(crate) fn is_isolated(&self) -> bool {
        *self.isolated.borrow()
    }

    /// Waits until agents are drained, for either reason.
    pub(crate) async fn sends_away(&self) {
        let mut cut_off = self.isolated.subscribe();
        tokio::select! {
            () = self.context.stopping.cancelled() => {}
            // The sender lives as long as self.
            _ = cut_off.wait_for(|cut_off| *cut_off) => {}
        }
    }

    /// Returns the next redial time, and another replica that is alive.
    pub(crate) fn next_redial(&self) -> (RedialTime, Option<String>) {
        let others = self.context.replicas.others();
        let nth = self.drained_agents.fetch_add(1, Ordering::Relaxed);
        let redial = self
            .plan
            .lock()
            .get_or_insert_with(|| Drain {
                agents: *self.sessions.connected.borrow(),
                registration_qps: self.context.settings.admission.registration_qps,
                others: others.len(),
                grace: self.context.settings.admission.orphan_grace,
            })
            .redial_time(nth);
        (redial, others.into_iter().next().map(String::from))
    }

    /// Returns the reason for the drain, for messages.
    pub(crate) fn reason(&self) -> &'static str {
        if self.context.stopping.is_cancelled() {
            "this replica is stopping"
        } else {
            "this replica does not reach its API server"
        }
    }

    /// Refusal of an agent that dials during the drain.
    pub(super) fn refusal(&self) -> HelloRefusal {
        let (redial, other) = self.next_redial();
        let why = self.reason();
        let message = match other {
            Some(other) => format!("{why}; replica {other} is there, connect anew"),
            None => format!("{why}; connect anew"),
        };
        let wait = redial.after + redial.jitter.mul_f64(fastrand::f64());
        HelloRefusal::for_now(Reason::Draining, message, wait.max(MIN_DRAIN_RETRY_DELAY))
    }
}

/// Starts the task that publishes isolation in the gRPC health service.
pub(crate) fn start(background: &BackgroundTasks, draining: &Arc<Draining>, health: &HealthReporter) {
    let task = TaskSpec::new("gRPC health", "Publishes whether this replica accepts agents");
    let task = task.on_change(draining.isolated.subscribe());
    let (draining, health) = (Arc::clone(draining), health.clone());
    background.start(task, move |_: Vec<()>| publish_health(Arc::clone(&draining), health.clone()));
}

async fn publish_health(draining: Arc<Draining>, health: HealthReporter) -> AttemptOutcome {
    let status = if draining.is_isolated() { ServingStatus::NotServing } else { ServingStatus::Serving };
    for service in server::SERVICES {
        health.set_service_status(service, status).await;
    }
    AttemptOutcome::Done
}
