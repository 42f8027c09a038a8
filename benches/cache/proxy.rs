//! A TCP proxy between agent and hub that counts bytes and can cut the connections.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tokio_util::task::AbortOnDropHandle;

/// A running proxy. It ends when it is dropped.
pub(crate) struct Proxy {
    address: String,
    bytes: Arc<AtomicU64>,
    is_cut: Arc<AtomicBool>,
    cuts: watch::Sender<u64>,
    _task: AbortOnDropHandle<()>,
}

impl Proxy {
    /// Listens on a free port, and forwards to `hub`.
    pub(crate) async fn start(hub: &str) -> Result<Self, String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(|e| e.to_string())?;
        let address = listener.local_addr().map_err(|e| e.to_string())?.to_string();
        let (bytes, is_cut) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (cuts, cut) = watch::channel(0);
        let (hub, counted, refuses) = (hub.to_owned(), Arc::clone(&bytes), Arc::clone(&is_cut));
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if refuses.load(Ordering::SeqCst) {
                    continue;
                }
                tokio::spawn(forward(client, hub.clone(), Arc::clone(&counted), cut.clone()));
            }
        });
        Ok(Self { address, bytes, is_cut, cuts, _task: AbortOnDropHandle::new(task) })
    }

    /// Where agents dial it.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Bytes in both directions so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::SeqCst)
    }

    /// Ends all connections, and takes no new ones.
    pub(crate) fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Takes connections again.
    pub(crate) fn mend(&self) {
        self.is_cut.store(false, Ordering::SeqCst);
    }
}

async fn forward(client: TcpStream, hub: String, bytes: Arc<AtomicU64>, mut cut: watch::Receiver<u64>) {
    cut.mark_unchanged();
    let Ok(server) = TcpStream::connect(&hub).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    tokio::select! {
        () = copy(from_client, to_server, &bytes) => {}
        () = copy(from_server, to_client, &bytes) => {}
        _ = cut.changed() => {}
    }
}

async fn copy(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, bytes: &AtomicU64) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        bytes.fetch_add(read as u64, Ordering::SeqCst);
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
