//! Distance: a TCP proxy that passes every byte on after a time, in both directions, without a limit on their rate.

use std::{sync::Arc, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::{Semaphore, mpsc},
    time::{Instant, sleep_until},
};
use tokio_util::task::AbortOnDropHandle;

/// Bytes on their way in one direction, at most: far more than any window.
const MAX_BYTES: u32 = 256 << 20;

/// A running proxy. It ends when it is dropped.
pub(crate) struct DistantServer {
    address: String,
    _task: AbortOnDropHandle<()>,
}

impl DistantServer {
    /// Listens on a free port, and forwards to `server` with this time for a round trip.
    pub(crate) async fn start(server: &str, round_trip: Duration) -> Result<Self, String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(|e| e.to_string())?;
        let port = listener.local_addr().map_err(|e| e.to_string())?.port();
        let server = server.to_owned();
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(forward(client, server.clone(), round_trip / 2));
            }
        });
        // The name that all certificates have.
        Ok(Self { address: format!("localhost:{port}"), _task: AbortOnDropHandle::new(task) })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }
}

async fn forward(client: TcpStream, server: String, delay: Duration) {
    let Ok(server) = TcpStream::connect(&server).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    tokio::join!(delayed(from_client, to_server, delay), delayed(from_server, to_client, delay));
}

/// Passes bytes on when their time has come. Reading never waits for the other side.
async fn delayed(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, delay: Duration) {
    let (put, mut on_their_way) = mpsc::channel::<(Instant, Vec<u8>)>(1 << 16);
    let room = Arc::new(Semaphore::new(MAX_BYTES as usize));
    let taken = Arc::clone(&room);
    let read = async move {
        let mut buffer = vec![0; 128 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            let Ok(permits) = room.acquire_many(u32::try_from(count).unwrap_or_default()).await else {
                return;
            };
            permits.forget();
            if put.send((Instant::now() + delay, buffer[..count].to_vec())).await.is_err() {
                return;
            }
        }
    };
    let write = async move {
        while let Some((due, bytes)) = on_their_way.recv().await {
            sleep_until(due).await;
            taken.add_permits(bytes.len());
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
        let _ = to.shutdown().await;
    };
    tokio::join!(read, write);
}
