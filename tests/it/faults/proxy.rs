//! A TCP proxy that a test can turn into a bad connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use kubesvc_testkit::ports;

/// Maximum number of pieces on their way in one direction of a connection.
const MAX_PIECES: usize = 64;

/// What the proxy does with bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProxyMode {
    /// Forwards them.
    Open,
    /// Forwards each piece this long after it arrived.
    Slow(Duration),
    /// Keeps them. Connections stay open, and neither side receives anything.
    Held,
    /// Keeps what the near side sends; the near side still receives what the far side sends.
    Mute,
    /// Closes all connections, and each new one at once.
    Cut,
}

/// The proxy. Dropping it cuts all connections permanently.
pub(crate) struct Proxy {
    port: u16,
    target: Arc<AtomicU16>,
    line: watch::Sender<ProxyMode>,
    /// Number of times that the existing connections were stranded.
    strandings: watch::Sender<usize>,
    /// Number of connections on which bytes are being kept.
    keeping: Arc<AtomicUsize>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// Starts an open proxy to a port of this machine.
    pub(crate) async fn to(target: u16) -> Self {
        let port = ports::free();
        let listener = TcpListener::bind(("127.0.0.1", port)).await.expect("the port is free");
        let (line, now) = watch::channel(ProxyMode::Open);
        let (strandings, stranded) = watch::channel(0);
        let target = Arc::new(AtomicU16::new(target));
        let current = Arc::clone(&target);
        let keeping = Arc::new(AtomicUsize::new(0));
        let keeps = Arc::clone(&keeping);
        let accepting = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                if *now.borrow() != ProxyMode::Cut {
                    let (target, keeps) = (current.load(Ordering::Relaxed), Arc::clone(&keeps));
                    let (connected, born) = (connect(near, target, now.clone(), keeps), *stranded.borrow());
                    tokio::spawn(strandable(connected, born, now.clone(), stranded.clone()));
                }
            }
        });
        Self { port, target, line, strandings, keeping, accepting }
    }

    /// Port of the proxy.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Makes new connections go to another port; existing ones are not affected.
    pub(crate) fn lead_to(&self, target: u16) {
        self.target.store(target, Ordering::Relaxed);
    }

    /// Strands all existing connections, as if the far end had disappeared silently: they stay open, and
    /// nothing ever arrives on them. New connections behave as set.
    pub(crate) fn strand(&self) {
        self.strandings.send_modify(|count| *count += 1);
    }

    /// Number of connections, counted for each direction, on which bytes are being kept now.
    pub(crate) fn keeping(&self) -> usize {
        self.keeping.load(Ordering::Relaxed)
    }

    /// Sets how the proxy behaves from now on.
    pub(crate) fn set(&self, line: ProxyMode) {
        self.line.send_replace(line);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.set(ProxyMode::Cut);
    }
}

/// Counts itself while it exists.
struct ConnectionGuard(Arc<AtomicUsize>);

impl ConnectionGuard {
    fn count(among: &Arc<AtomicUsize>) -> Self {
        among.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(among))
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Serves a connection until it is stranded; after that, nothing moves on it until the proxy cuts it.
async fn strandable(
    connected: impl Future<Output = ()>,
    born: usize,
    line: watch::Receiver<ProxyMode>,
    mut strandings: watch::Receiver<usize>,
) {
    let mut connected = std::pin::pin!(connected);
    let stranded = async { strandings.wait_for(|count| *count > born).await.is_ok() };
    tokio::select! {
        biased;
        true = stranded => until(line, |line| line == ProxyMode::Cut).await,
        () = &mut connected => {}
    }
}

async fn connect(near: TcpStream, target: u16, line: watch::Receiver<ProxyMode>, keeping: Arc<AtomicUsize>) {
    let Ok(far) = TcpStream::connect(("127.0.0.1", target)).await else { return };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let outwards = |line| matches!(line, ProxyMode::Held | ProxyMode::Mute);
    let (near_read, near_write) = near.into_split();
    let (far_read, far_write) = far.into_split();
    // The end of one direction ends both.
    tokio::select! {
        () = pass_on(near_read, far_write, line.clone(), &keeping, outwards) => {}
        () = pass_on(far_read, near_write, line.clone(), &keeping, |line| line == ProxyMode::Held) => {}
        () = until(line, |line| line == ProxyMode::Cut) => {}
    }
}

async fn pass_on(
    from: OwnedReadHalf,
    to: OwnedWriteHalf,
    line: watch::Receiver<ProxyMode>,
    keeping: &Arc<AtomicUsize>,
    keeps: fn(ProxyMode) -> bool,
) {
    let (pieces, arrived) = mpsc::channel(MAX_PIECES);
    tokio::select! {
        () = take_in(from, pieces) => {}
        () = hand_over(arrived, to, line, keeping, keeps) => {}
    }
}

/// Reads pieces as they arrive. At the end of the input, waits until all of them are forwarded.
async fn take_in(mut from: OwnedReadHalf, pieces: mpsc::Sender<(Instant, Vec<u8>)>) {
    let mut piece = vec![0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut piece).await {
        if pieces.send((Instant::now(), piece[..read].to_vec())).await.is_err() {
            return;
        }
    }
    drop(pieces);
    std::future::pending::<()>().await;
}

/// Forwards pieces. Each is delayed from its own arrival: a slow connection has latency, and loses no throughput.
async fn hand_over(
    mut arrived: mpsc::Receiver<(Instant, Vec<u8>)>,
    mut to: OwnedWriteHalf,
    line: watch::Receiver<ProxyMode>,
    keeping: &Arc<AtomicUsize>,
    keeps: fn(ProxyMode) -> bool,
) {
    while let Some((at, piece)) = arrived.recv().await {
        let kept = keeps(*line.borrow()).then(|| ConnectionGuard::count(keeping));
        until(line.clone(), |line| !keeps(line)).await;
        drop(kept);
        let slow = match *line.borrow() {
            ProxyMode::Slow(by) => by,
            _ => Duration::ZERO,
        };
        tokio::time::sleep_until(at + slow).await;
        if to.write_all(&piece).await.is_err() {
            return;
        }
    }
}

async fn until(mut line: watch::Receiver<ProxyMode>, holds: impl Fn(ProxyMode) -> bool) {
    // On an error, the proxy was dropped, which cuts everything.
    let _ = line.wait_for(|line| holds(*line)).await;
}
