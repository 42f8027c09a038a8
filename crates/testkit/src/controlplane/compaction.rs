//! Compaction of etcd: versions before a given one are forgotten, as they are every few minutes in a cluster.

use http::{HeaderMap, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixStream;
use tokio_util::task::AbortOnDropHandle;

use super::ControlPlane;

/// gRPC path of etcd's compaction.
const COMPACT: &str = "http://etcd/etcdserverpb.KV/Compact";

impl ControlPlane {
    /// Makes etcd forget all versions before this one, as `etcdctl compact --physical` does. An API server that runs keeps
    /// what it has cached; one that starts afterwards does not have the versions any more.
    ///
    /// # Errors
    ///
    /// etcd does not answer, or refuses: it has no such version, or has forgotten it before.
    pub async fn compact(&self, version: u64) -> Result<(), String> {
        let of = |error: &dyn std::fmt::Display| format!("compaction of etcd at {version}: {error}");
        let stream = UnixStream::connect(self.folder.file("etcd.sock")).await.map_err(|e| of(&e))?;
        let connecting = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (mut etcd, connection) = connecting.await.map_err(|e| of(&e))?;
        let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
        let request = Request::post(COMPACT)
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(Full::new(message(version)))
            .map_err(|e| of(&e))?;
        let answer = etcd.send_request(request).await.map_err(|e| of(&e))?;
        // An answer without a message has its status in the headers.
        let headers = answer.headers().clone();
        let body = answer.into_body().collect().await.map_err(|e| of(&e))?;
        let status = |headers: &HeaderMap| headers.get("grpc-status").cloned();
        let trailers = body.trailers().cloned().unwrap_or_default();
        match status(&headers).or_else(|| status(&trailers)) {
            Some(status) if status == "0" => Ok(()),
            status => Err(of(&format!(
                "{status:?} {:?}",
                headers.get("grpc-message").or(trailers.get("grpc-message"))
            ))),
        }
    }
}

/// `CompactionRequest{revision = 1, physical = 2}` as a message of gRPC.
fn message(version: u64) -> Bytes {
    let mut proto = vec![0x08];
    let mut left = version;
    while left >= 0x80 {
        proto.push(u8::try_from(left & 0x7f).unwrap_or_default() | 0x80);
        left >>= 7;
    }
    proto.push(u8::try_from(left).unwrap_or_default());
    proto.extend([0x10, 1]);
    let length = u32::try_from(proto.len()).unwrap_or_default().to_be_bytes();
    [vec![0], length.to_vec(), proto].concat().into()
}
