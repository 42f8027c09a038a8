//! A replica that alone does not reach the API server: its agents go to the others as at a stop, and it takes none until it
//! does again.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio_util::sync::CancellationToken;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::hub::Hub;
use crate::hub::admission::server;

impl Hub {
    /// Sends the agents away, spread as the other replicas can take them, or takes them again.
    pub fn set_isolated(&self, cut_off: bool) {
        if cut_off {
            // Each time they are spread anew.
            *self.drain.lock() = None;
            self.drained_agents.store(0, Ordering::Relaxed);
        }
        self.isolated.send_replace(cut_off);
    }

    /// Whether agents are sent away because this replica alone does not reach the API server.
    pub(in crate::hub) fn is_isolated(&self) -> bool {
        *self.isolated.borrow()
    }

    /// Waits until agents are sent away, for whatever reason.
    pub(in crate::hub) async fn sends_away(&self) {
        let mut cut_off = self.isolated.subscribe();
        tokio::select! {
            () = self.stopping.cancelled() => {}
            // The sender lives as long as self.
            _ = cut_off.wait_for(|cut_off| *cut_off) => {}
        }
    }
}

/// Keeps gRPC's health service in step with it until stopped.
pub(in crate::hub) async fn publish_health(hub: Arc<Hub>, health: HealthReporter, stop: CancellationToken) {
    let mut changes = hub.isolated.subscribe();
    // The sender lives as long as the hub.
    while let Some(Ok(())) = stop.run_until_cancelled(changes.changed()).await {
        let cut_off = *changes.borrow_and_update();
        let status = if cut_off { ServingStatus::NotServing } else { ServingStatus::Serving };
        for service in server::SERVICES {
            health.set_service_status(service, status).await;
        }
    }
}
