//! The etcd of a control plane, as `etcdctl` uses it.
//! Source of the messages: `api/etcdserverpb/rpc.proto` of etcd 3; those of its fields that are used here.

use std::path::Path;

use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

/// Bound on an answer, in bytes: all objects of a control plane.
const MAX_ANSWER: usize = 256 << 20;

#[derive(Clone, PartialEq, prost::Message)]
struct Range {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    range_end: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RangeAnswer {
    #[prost(message, repeated, tag = "2")]
    kvs: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "5")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Put {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Compaction {
    #[prost(uint64, tag = "1")]
    revision: u64,
    #[prost(bool, tag = "2")]
    physical: bool,
}

/// An answer of which nothing is read.
#[derive(Clone, PartialEq, prost::Message)]
struct Done {}

/// A connection to etcd.
pub(super) struct Etcd(Grpc<Channel>);

impl Etcd {
    pub(super) async fn connect(socket: &Path) -> Result<Self, String> {
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()));
        let channel = endpoint.map_err(|e| e.to_string())?.connect().await;
        Ok(Self(Grpc::new(channel.map_err(|e| format!("etcd: {e}"))?).max_decoding_message_size(MAX_ANSWER)))
    }

    /// Returns all keys of the API server with their values.
    pub(super) async fn all(&mut self) -> Result<Vec<(Vec<u8>, Vec<u8>)>, String> {
        let range = Range { key: b"/registry/".into(), range_end: b"/registry0".into() };
        let RangeAnswer { kvs } = self.call("Range", range).await?;
        Ok(kvs.into_iter().map(|KeyValue { key, value }| (key, value)).collect())
    }

    pub(super) async fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        let Done {} = self.call("Put", Put { key: key.into(), value: value.into() }).await?;
        Ok(())
    }

    pub(super) async fn delete(&mut self, key: &[u8]) -> Result<(), String> {
        let Done {} = self.call("DeleteRange", Range { key: key.into(), range_end: Vec::new() }).await?;
        Ok(())
    }

    /// Forgets all versions before this one.
    pub(super) async fn compact(&mut self, revision: u64) -> Result<(), String> {
        let Done {} = self.call("Compact", Compaction { revision, physical: true }).await?;
        Ok(())
    }

    async fn call<A, B>(&mut self, method: &str, message: A) -> Result<B, String>
    where
        A: prost::Message + 'static,
        B: prost::Message + Default + 'static,
    {
        let of = |error: &dyn std::fmt::Display| format!("etcd: {method}: {error}");
        let path = format!("/etcdserverpb.KV/{method}");
        let path = PathAndQuery::try_from(path).map_err(|e| of(&e))?;
        self.0.ready().await.map_err(|e| of(&e))?;
        let answer = self.0.unary(tonic::Request::new(message), path, ProstCodec::default()).await;
        Ok(answer.map_err(|e| of(&e))?.into_inner())
    }
}
