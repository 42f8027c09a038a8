//! A TCP proxy that a test can make a bad connection of.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::harness::ports;

/// What it does with bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// It passes them on.
    Open,
    /// It passes each piece on after this time.
    Slow(Duration),
    /// It keeps them. Connections stay, and nobody hears anything.
    Held,
    /// It closes all connections, and each new one at once.
    Cut,
}

/// The proxy. Dropping it cuts the line for good.
pub(super) struct Proxy {
    port: u16,
    target: Arc<AtomicU16>,
    line: watch::Sender<Line>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// An open line to a port of this machine.
    pub(super) async fn to(target: u16) -> Self {
        let port = ports::free();
        let listener = TcpListener::bind(("127.0.0.1", port)).await.expect("the port is free");
        let (line, now) = watch::channel(Line::Open);
        let target = Arc::new(AtomicU16::new(target));
        let current = Arc::clone(&target);
        let accepting = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                if *now.borrow() != Line::Cut {
                    tokio::spawn(connect(near, current.load(Ordering::Relaxed), now.clone()));
                }
            }
        });
        Self { port, target, line, accepting }
    }

    /// Where it listens.
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// New connections go to another port; those there are stay as they are.
    pub(super) fn lead_to(&self, target: u16) {
        self.target.store(target, Ordering::Relaxed);
    }

    /// From now on the line is like this.
    pub(super) fn set(&self, line: Line) {
        self.line.send_replace(line);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.set(Line::Cut);
    }
}

async fn connect(near: TcpStream, target: u16, line: watch::Receiver<Line>) {
    let Ok(far) = TcpStream::connect(("127.0.0.1", target)).await else { return };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let (near_read, near_write) = near.into_split();
    let (far_read, far_write) = far.into_split();
    // The end of one direction is the end of both.
    tokio::select! {
        () = pass_on(near_read, far_write, line.clone()) => {}
        () = pass_on(far_read, near_write, line.clone()) => {}
        () = until(line, |line| line == Line::Cut) => {}
    }
}

async fn pass_on(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, line: watch::Receiver<Line>) {
    let mut piece = vec![0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut piece).await {
        until(line.clone(), |line| line != Line::Held).await;
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
