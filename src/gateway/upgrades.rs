//! Upgraded connections (exec, attach, port-forward, WebSocket): bytes both ways, until either side ends.

use std::io;

use futures::StreamExt as _;
use hyper::body::Bytes;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::answers::AuditedStream;
use crate::connected_agents::{ByteStream, RequestError};

/// Maximum size of one read from the caller, in bytes.
const READ_BYTES: usize = 32 * 1024;
/// Maximum number of reads that wait to be sent.
const WAITING_READS: usize = 4;

/// What the caller sends after the connection is upgraded.
pub(super) type FromCaller = mpsc::Sender<io::Result<Bytes>>;

/// The two ends of what the caller sends.
pub(super) fn from_caller() -> (FromCaller, ByteStream<io::Error>) {
    let (sender, receiver) = mpsc::channel(WAITING_READS);
    (sender, ReceiverStream::new(receiver).boxed())
}

/// Passes bytes on both ways until the cluster ends, an error, or the caller may go on no longer.
pub(super) async fn pass_on(
    upgrade: OnUpgrade,
    to_cluster: FromCaller,
    from_cluster: ByteStream<RequestError>,
    mut stream: AuditedStream,
) {
    let Ok(upgraded) = upgrade.await else {
        "the caller left before the connection was upgraded".clone_into(&mut stream.reason.lock());
        return;
    };
    let (reader, writer) = tokio::io::split(TokioIo::new(upgraded));
    let refused = stream.refused.clone();
    let mut bytes = 0;
    let both = async {
        let sending = send(reader, to_cluster);
        let receiving = receive(from_cluster, writer, &mut bytes);
        tokio::pin!(sending, receiving);
        tokio::select! {
            ended = &mut receiving => ended,
            sent = &mut sending => match sent {
                // The caller has said everything, and may wait for the rest.
                Ok(()) => receiving.await,
                Err(error) => Err(error),
            },
        }
    };
    let ended = refused.run_until_cancelled(both).await;
    stream.bytes = bytes;
    if let Some(Err(why)) = ended {
        *stream.reason.lock() = why.to_string();
    }
}

/// Why an upgraded connection ended early.
#[derive(Debug, thiserror::Error)]
enum BrokenUpgrade {
    /// The caller's side.
    #[error("the caller's connection broke: {0}")]
    Caller(io::Error),
    /// The cluster's side.
    #[error(transparent)]
    Cluster(#[from] RequestError),
}

async fn send(mut reader: ReadHalf<TokioIo<Upgraded>>, to_cluster: FromCaller) -> Result<(), BrokenUpgrade> {
    loop {
        let mut part = Vec::with_capacity(READ_BYTES);
        match reader.read_buf(&mut part).await {
            Ok(0) => return Ok(()),
            Ok(_) => {
                if to_cluster.send(Ok(part.into())).await.is_err() {
                    // The cluster takes no more; its answer says why.
                    return Ok(());
                }
            }
            Err(error) => {
                let _ = to_cluster.send(Err(error.kind().into())).await;
                return Err(BrokenUpgrade::Caller(error));
            }
        }
    }
}

async fn receive(
    mut from_cluster: ByteStream<RequestError>,
    mut writer: WriteHalf<TokioIo<Upgraded>>,
    bytes: &mut u64,
) -> Result<(), BrokenUpgrade> {
    while let Some(part) = from_cluster.next().await {
        let part = part?;
        *bytes += part.len() as u64;
        writer.write_all(&part).await.map_err(BrokenUpgrade::Caller)?;
    }
    let _ = writer.shutdown().await;
    Ok(())
}
