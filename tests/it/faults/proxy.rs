//! A TCP proxy that a test can make a bad connection of.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::harness::ports;

/// What it does with bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// It passes them on.
    Open,
    /// It passes each piece on after this time.
    Slow(Duration),
    /// It keeps them. Connections stay, and nobody hears anything.
    Held,
    /// It keeps what the near side sends, which goes on hearing the far one.
    Mute,
    /// It closes all connections, and each new one at once.
    Cut,
}

/// The proxy. Dropping it cuts the line for good.
pub(crate) struct Proxy {
    port: u16,
    target: Arc<AtomicU16>,
    line: watch::Sender<Line>,
    /// How often those there were stranded.
    strandings: watch::Sender<usize>,
    /// On how many connections bytes are kept.
    keeping: Arc<AtomicUsize>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// An open line to a port of this machine.
    pub(crate) async fn to(target: u16) -> Self {
        let port = ports::free();
        let listener = TcpListener::bind(("127.0.0.1", port)).await.expect("the port is free");
        let (line, now) = watch::channel(Line::Open);
        let (strandings, stranded) = watch::channel(0);
        let target = Arc::new(AtomicU16::new(target));
        let current = Arc::clone(&target);
        let keeping = Arc::new(AtomicUsize::new(0));
        let keeps = Arc::clone(&keeping);
        let accepting = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                if *now.borrow() != Line::Cut {
                    let (target, keeps) = (current.load(Ordering::Relaxed), Arc::clone(&keeps));
                    let (connected, born) = (connect(near, target, now.clone(), keeps), *stranded.borrow());
                    tokio::spawn(strandable(connected, born, now.clone(), stranded.clone()));
                }
            }
        });
        Self { port, target, line, strandings, keeping, accepting }
    }

    /// Where it listens.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// New connections go to another port; those there are stay as they are.
    pub(crate) fn lead_to(&self, target: u16) {
        self.target.store(target, Ordering::Relaxed);
    }

    /// The far end is gone without a word for all connections that there are: they stay, and nobody ever hears anything
    /// on them. New ones are as the line is.
    pub(crate) fn strand(&self) {
        self.strandings.send_modify(|count| *count += 1);
    }

    /// On how many connections, in how many directions, bytes are kept now.
    pub(crate) fn keeping(&self) -> usize {
        self.keeping.load(Ordering::Relaxed)
    }

    /// From now on the line is like this.
    pub(crate) fn set(&self, line: Line) {
        self.line.send_replace(line);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.set(Line::Cut);
    }
}

/// Counts itself for as long as it is there.
struct Kept(Arc<AtomicUsize>);

impl Kept {
    fn count(among: &Arc<AtomicUsize>) -> Self {
        among.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(among))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Serves a connection until it is stranded; from then on nothing moves on it until the line is cut.
async fn strandable(
    connected: impl Future<Output = ()>,
    born: usize,
    line: watch::Receiver<Line>,
    mut strandings: watch::Receiver<usize>,
) {
    let mut connected = std::pin::pin!(connected);
    let stranded = async { strandings.wait_for(|count| *count > born).await.is_ok() };
    tokio::select! {
        biased;
        true = stranded => until(line, |line| line == Line::Cut).await,
        () = &mut connected => {}
    }
}

async fn connect(near: TcpStream, target: u16, line: watch::Receiver<Line>, keeping: Arc<AtomicUsize>) {
    let Ok(far) = TcpStream::connect(("127.0.0.1", target)).await else { return };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let outwards = |line| matches!(line, Line::Held | Line::Mute);
    let (near_read, near_write) = near.into_split();
    let (far_read, far_write) = far.into_split();
    // The end of one direction is the end of both.
    tokio::select! {
        () = pass_on(near_read, far_write, line.clone(), &keeping, outwards) => {}
        () = pass_on(far_read, near_write, line.clone(), &keeping, |line| line == Line::Held) => {}
        () = until(line, |line| line == Line::Cut) => {}
    }
}

async fn pass_on(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    line: watch::Receiver<Line>,
    keeping: &Arc<AtomicUsize>,
    keeps: fn(Line) -> bool,
) {
    let mut piece = vec![0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut piece).await {
        let kept = keeps(*line.borrow()).then(|| Kept::count(keeping));
        until(line.clone(), |line| !keeps(line)).await;
        drop(kept);
        let slow = match *line.borrow() {
            Line::Slow(by) => by,
            _ => Duration::ZERO,
        };
        tokio::time::sleep(slow).await;
        if to.write_all(&piece[..read]).await.is_err() {
            return;
        }
    }
}

async fn until(mut line: watch::Receiver<Line>, holds: impl Fn(Line) -> bool) {
    // An error: the proxy was dropped, and has cut the line before.
    let _ = line.wait_for(|line| holds(*line)).await;
}
