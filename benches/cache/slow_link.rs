//! A slow link between agent and hub, which notes how long the frames of the agent's session are apart behind it.
//!
//! Each direction carries its bytes at the link's rate, in order. What waits before it is what the sender's kernel takes,
//! and a receive buffer as small as the queue of a router.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    time::{Instant, sleep_until},
};
use tokio_util::task::AbortOnDropHandle;

use crate::session_data::SessionData;

/// Receive buffer before the link, in bytes; a quarter of a second at 2 Mbit/s. The kernel doubles it for itself.
const QUEUE_BYTES: u32 = 64 * 1024;
/// Bytes that go over the link together, at most.
const CHUNK_BYTES: usize = 2 * 1024;
/// How late the link may be behind its rate, and make up for it.
const LATEST: Duration = Duration::from_millis(50);

/// A running link. It ends when it is dropped.
pub(crate) struct SlowLink {
    address: SocketAddr,
    seen: Arc<Seen>,
    _task: AbortOnDropHandle<()>,
}

/// What was seen behind the link.
#[derive(Default)]
struct Seen {
    connections: AtomicUsize,
    bytes: AtomicUsize,
    /// Frames of the session from the agent, and from the hub.
    session: [Mutex<Gaps>; 2],
}

/// When frames came.
#[derive(Clone, Copy, Default)]
struct Gaps {
    last: Option<Instant>,
    longest: Duration,
}

impl SlowLink {
    /// Listens on a free port, and forwards to `hub` with this many bytes a second in each direction.
    pub(crate) async fn start(hub: &str, bytes_per_second: u32) -> Result<Self, String> {
        let text = |error: std::io::Error| error.to_string();
        let hub = hub.parse::<SocketAddr>().map_err(|error| format!("{hub}: {error}"))?;
        let socket = small_socket().map_err(text)?;
        socket.bind((Ipv4Addr::LOCALHOST, 0).into()).map_err(text)?;
        let listener = socket.listen(16).map_err(text)?;
        let address = listener.local_addr().map_err(text)?;
        let seen = Arc::new(Seen::default());
        let shared = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                shared.connections.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(forward(client, hub, bytes_per_second, Arc::clone(&shared)));
            }
        });
        Ok(Self { address, seen, _task: AbortOnDropHandle::new(task) })
    }

    /// Where agents dial it.
    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    /// Connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.seen.connections.load(Ordering::SeqCst)
    }

    /// Bytes in both directions so far.
    pub(crate) fn bytes(&self) -> usize {
        self.seen.bytes.load(Ordering::SeqCst)
    }

    /// The longest time without a frame of the session: from the agent, and from the hub.
    pub(crate) fn longest_silence(&self) -> [Duration; 2] {
        let now = Instant::now();
        self.seen.session.each_ref().map(|gaps| {
            let gaps = *gaps.lock();
            gaps.longest.max(gaps.last.map_or(Duration::ZERO, |last| now - last))
        })
    }
}

fn small_socket() -> std::io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(QUEUE_BYTES)?;
    Ok(socket)
}

async fn forward(client: TcpStream, hub: SocketAddr, bytes_per_second: u32, seen: Arc<Seen>) {
    let Ok(socket) = small_socket() else { return };
    let Ok(server) = socket.connect(hub).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let (up, down) = (SessionData::from_agent(), SessionData::from_hub());
    tokio::select! {
        () = carry(from_client, to_server, bytes_per_second, (up, &seen.session[0]), &seen.bytes) => {}
        () = carry(from_server, to_client, bytes_per_second, (down, &seen.session[1]), &seen.bytes) => {}
    }
}

async fn carry(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    bytes_per_second: u32,
    (mut session, gaps): (SessionData, &Mutex<Gaps>),
    bytes: &AtomicUsize,
) {
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut carried_at = Instant::now();
    while let Ok(read @ 1..) = from.read(&mut chunk).await {
        let length = u32::try_from(read).unwrap_or(u32::MAX);
        // A task that wakes late makes up for it.
        let idle_since = Instant::now().checked_sub(LATEST).unwrap_or(carried_at);
        carried_at = carried_at.max(idle_since) + Duration::from_secs(1) * length / bytes_per_second;
        sleep_until(carried_at).await;
        bytes.fetch_add(read, Ordering::SeqCst);
        if !session.of(&chunk[..read]).is_empty() {
            gaps.lock().seen(Instant::now());
        }
        if to.write_all(&chunk[..read]).await.is_err() {
            return;
        }
    }
}

impl Gaps {
    fn seen(&mut self, now: Instant) {
        self.longest = self.longest.max(self.last.map_or(Duration::ZERO, |last| now - last));
        self.last = Some(now);
    }
}
