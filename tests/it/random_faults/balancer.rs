//! The equivalent of a Service for agents: one address in front of all reachable replicas.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::fault_log::{FaultLog, Target};
use kubesvc_testkit::ports;

/// Time for which a paused replica is still dialled, because no probe has noticed yet.
const UNNOTICED: Duration = Duration::from_secs(3);

/// A balancer. Dropping it closes the address; connections stay open.
pub(super) struct Balancer {
    port: u16,
    accepting: JoinHandle<()>,
}

impl Balancer {
    /// Starts a balancer in front of these ports.
    pub(super) async fn before(targets: Vec<u16>, fault_log: Arc<FaultLog>) -> Self {
        let port = ports::free();
        let listener = TcpListener::bind(("127.0.0.1", port)).await.expect("the port is free");
        let accepting = tokio::spawn(async move {
            let (targets, next) = (Arc::new(targets), Arc::new(AtomicUsize::new(0)));
            while let Ok((near, _)) = listener.accept().await {
                tokio::spawn(connect(near, Arc::clone(&targets), Arc::clone(&next), Arc::clone(&fault_log)));
            }
        });
        Self { port, accepting }
    }

    /// Port of the balancer.
    pub(super) fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Connects to the next replica in turn that accepts a connection.
async fn connect(
    mut near: TcpStream,
    targets: Arc<Vec<u16>>,
    next: Arc<AtomicUsize>,
    fault_log: Arc<FaultLog>,
) {
    for _ in 0..targets.len() {
        let place = next.fetch_add(1, Ordering::Relaxed) % targets.len();
        if fault_log.is_halted(Target::Replica(place), UNNOTICED) {
            continue;
        }
        if let Ok(mut far) = TcpStream::connect(("127.0.0.1", targets[place])).await {
            // Either side may close both; the other side does not learn how it ended.
            let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
            return;
        }
    }
}
