//! What a Service does in a cluster: one address for agents, and each new connection goes to a replica that lives.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

use kubesvc_testkit::ports;

/// It balances until it is dropped.
pub(crate) struct Balancer {
    port: u16,
    _accepting: AbortOnDropHandle<()>,
}

impl Balancer {
    /// One in front of these ports, each in its turn.
    ///
    /// # Errors
    ///
    /// No port can be listened at.
    pub(crate) async fn to(targets: Vec<u16>) -> Result<Self, String> {
        let port = ports::free();
        let listener =
            TcpListener::bind(("127.0.0.1", port)).await.map_err(|e| format!("port {port}: {e}"))?;
        let (targets, turn) = (Arc::new(targets), Arc::new(AtomicUsize::new(0)));
        let accepting = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let (targets, first) = (Arc::clone(&targets), turn.fetch_add(1, Ordering::Relaxed));
                tokio::spawn(pass_on(near, targets, first));
            }
        });
        Ok(Self { port, _accepting: AbortOnDropHandle::new(accepting) })
    }

    /// Where agents dial it.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

/// To the first from `first` on that listens; if none does, the connection ends.
async fn pass_on(mut near: TcpStream, targets: Arc<Vec<u16>>, first: usize) {
    for step in 0..targets.len() {
        let target = targets[(first + step) % targets.len()];
        if let Ok(mut far) = TcpStream::connect(("127.0.0.1", target)).await {
            let _ = (near.set_nodelay(true), far.set_nodelay(true));
            // Both ends see how it ended.
            let _ = copy_bidirectional(&mut near, &mut far).await;
            return;
        }
    }
}
