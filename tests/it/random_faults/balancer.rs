//! What a Service is to agents: one address, behind it whichever replica can be reached.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::book::{Book, Target};
use crate::harness::ports;

/// As long as this, one that stands still is dialled all the same: no probe has found out yet.
const UNNOTICED: Duration = Duration::from_secs(3);

/// A balancer. Dropping it closes the address; connections stay.
pub(super) struct Balancer {
    port: u16,
    accepting: JoinHandle<()>,
}

impl Balancer {
    /// One before these ports.
    pub(super) async fn before(targets: Vec<u16>, book: Arc<Book>) -> Self {
        let port = ports::free();
        let listener = TcpListener::bind(("127.0.0.1", port)).await.expect("the port is free");
        let accepting = tokio::spawn(async move {
            let (targets, next) = (Arc::new(targets), Arc::new(AtomicUsize::new(0)));
            while let Ok((near, _)) = listener.accept().await {
                tokio::spawn(connect(near, Arc::clone(&targets), Arc::clone(&next), Arc::clone(&book)));
            }
        });
        Self { port, accepting }
    }

    /// Where it listens.
    pub(super) fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// To the next one in turn that takes a connection.
async fn connect(mut near: TcpStream, targets: Arc<Vec<u16>>, next: Arc<AtomicUsize>, book: Arc<Book>) {
    for _ in 0..targets.len() {
        let place = next.fetch_add(1, Ordering::Relaxed) % targets.len();
        if book.is_halted(Target::Replica(place), UNNOTICED) {
            continue;
        }
        if let Ok(mut far) = TcpStream::connect(("127.0.0.1", targets[place])).await {
            // Whoever closes first ends both; how it ended is told to neither.
            let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
            return;
        }
    }
}
