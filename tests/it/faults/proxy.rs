//! A TCP proxy that a test can turn into a bad connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
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
    /// Keeps what the far side sends; the far side still receives what the near side sends.
    Deaf,
    /// Closes all connections, and each new one at once.
    Cut,
}

/// What was forwarded: the bytes of each direction of each connection. `None` unless they are recorded.
type Recordings = Option<Arc<Mutex<Vec<Recording>>>>;
/// The bytes of one direction of a connection.
type Recording = Arc<Mutex<Vec<u8>>>;

/// The proxy. Dropping it cuts all connections permanently.
pub(crate) struct Proxy {
    port: u16,
    target: Arc<AtomicU16>,
    line: watch::Sender<ProxyMode>,
    /// Number of times that the existing connections were stranded.
    strandings: watch::Sender<usize>,
    /// Number of times that the existing connections were cut.
    cuts: watch::Sender<usize>,
    /// Number of connections on which bytes are being kept.
    keeping: Arc<AtomicUsize>,
    recordings: Recordings,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// Starts an open proxy to a port of this machine.
    pub(crate) async fn to(target: u16) -> Self {
        Self::at("127.0.0.1", target).await
    }

    /// Like [`Proxy::to`], listening on an address of this machine.
    pub(crate) async fn at(address: &str, target: u16) -> Self {
        Self::start(address, target, None).await
    }

    /// Like [`Proxy::to`], and records what passes.
    pub(crate) async fn recording(target: u16) -> Self {
        Self::start("127.0.0.1", target, Some(Arc::default())).await
    }

    /// What passed in each direction of each connection so far.
    pub(crate) fn recorded(&self) -> Vec<Vec<u8>> {
        let recordings = self.recordings.as_ref().expect("the proxy records");
        recordings.lock().iter().map(|recording| recording.lock().clone()).collect()
    }

    async fn start(address: &str, target: u16, recordings: Recordings) -> Self {
        let port = ports::free();
        let listener = TcpListener::bind((address, port)).await.expect("the port is free");
        let (line, now) = watch::channel(ProxyMode::Open);
        let (strandings, stranded) = watch::channel(0);
        let (cuts, cut) = watch::channel(0);
        let target = Arc::new(AtomicU16::new(target));
        let current = Arc::clone(&target);
        let keeping = Arc::new(AtomicUsize::new(0));
        let keeps = Arc::clone(&keeping);
        let records = recordings.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                if *now.borrow() != ProxyMode::Cut {
                    let (target, keeps) = (current.load(Ordering::Relaxed), Arc::clone(&keeps));
                    let connected = connect(near, target, now.clone(), keeps, records.clone());
                    let born = *stranded.borrow();
                    let connection = strandable(connected, born, now.clone(), stranded.clone());
                    let (mut cut, born) = (cut.clone(), *cut.borrow());
                    tokio::spawn(async move {
                        // First, so that nothing is forwarded that was kept until the cut.
                        tokio::select! {
                            biased;
                            _ = cut.wait_for(|count| *count > born) => {}
                            () = connection => {}
                        }
                    });
                }
            }
        });
        Self { port, target, line, strandings, cuts, keeping, recordings, accepting }
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

    /// Closes all existing connections; new ones behave as set.
    ///
    /// [`ProxyMode::Cut`] closes those alone whose tasks run before the mode changes again.
    pub(crate) fn cut(&self) {
        self.cuts.send_modify(|count| *count += 1);
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

async fn connect(
    near: TcpStream,
    target: u16,
    line: watch::Receiver<ProxyMode>,
    keeping: Arc<AtomicUsize>,
    recordings: Recordings,
) {
    let record = || {
        recordings.as_ref().map(|recordings| {
            let recording = Recording::default();
            recordings.lock().push(Arc::clone(&recording));
            recording
        })
    };
    let Ok(far) = TcpStream::connect(("127.0.0.1", target)).await else { return };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let outwards = |line| matches!(line, ProxyMode::Held | ProxyMode::Mute);
    let inwards = |line| matches!(line, ProxyMode::Held | ProxyMode::Deaf);
    let (near_read, near_write) = near.into_split();
    let (far_read, far_write) = far.into_split();
    // The end of one direction ends both.
    tokio::select! {
        () = pass_on(near_read, far_write, line.clone(), (&keeping, record()), outwards) => {}
        () = pass_on(far_read, near_write, line.clone(), (&keeping, record()), inwards) => {}
        () = until(line, |line| line == ProxyMode::Cut) => {}
    }
}

async fn pass_on(
    from: OwnedReadHalf,
    to: OwnedWriteHalf,
    line: watch::Receiver<ProxyMode>,
    (keeping, recording): (&Arc<AtomicUsize>, Option<Recording>),
    keeps: fn(ProxyMode) -> bool,
) {
    let (pieces, arrived) = mpsc::channel(MAX_PIECES);
    tokio::select! {
        () = take_in(from, pieces, recording) => {}
        () = hand_over(arrived, to, line, keeping, keeps) => {}
    }
}

/// Reads pieces as they arrive. At the end of the input, waits until all of them are forwarded.
async fn take_in(
    mut from: OwnedReadHalf,
    pieces: mpsc::Sender<(Instant, Vec<u8>)>,
    recording: Option<Recording>,
) {
    let mut piece = vec![0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut piece).await {
        if let Some(recording) = &recording {
            recording.lock().extend_from_slice(&piece[..read]);
        }
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
