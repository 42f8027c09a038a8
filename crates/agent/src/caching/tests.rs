//! Tests of the agent's side of the stream of cached objects.

use std::time::{Duration, Instant};

use prost::Message as _;

use super::*;
use kubesvc_core::wire::common::{Fence, Scope};
use kubesvc_core::wire::events::event::{Body, Operation};
use kubesvc_core::wire::events::{
    BasisRow, BasisRows, Batch, Begin, Blob, CacheUp, Event, Resume, ScopeCheckpoint, ScopeDeclaration,
    SyncBasis, blob, cache_up,
};

mod account_sender;
mod basis;
mod lifetime;
mod queue;
mod stream;

const DAY: Duration = Duration::from_secs(86_400);

fn fence(uid: &str, epoch: u64) -> Fence {
    Fence { account_uid: uid.into(), caching_epoch: epoch }
}

fn declaration(scope_id: u32, kind: &str) -> ScopeDeclaration {
    let scope = Scope { kind: kind.into(), ..Scope::default() };
    ScopeDeclaration { scope_id, scope: Some(scope), shape: "s".into(), filter: "f".into() }
}

fn upsert(name: &str, rv: u64) -> Event {
    Event { op: Operation::Upsert.into(), name: name.into(), rv: rv.to_string(), ..Event::default() }
}

fn delete(name: &str, rv: u64) -> Event {
    Event { op: Operation::Delete.into(), ..upsert(name, rv) }
}

/// An upsert with a body of this size, which says to have `size` bytes uncompressed.
fn with_body(event: Event, bytes: usize, size: u32) -> Event {
    let data = vec![b'x'; bytes];
    Event { body: Some(Body::Blob(Blob { encoding: blob::Encoding::Raw.into(), size, data })), ..event }
}

fn decoded(frame: &EncodedFrame) -> cache_up::Frame {
    CacheUp::decode(frame.bytes().clone()).expect("a frame").frame.expect("a known frame")
}

fn batch(frame: &NextFrame) -> Batch {
    let NextFrame::Batch(frame, bytes) = frame else { unreachable!("expected a batch, got {frame:?}") };
    let cache_up::Frame::Batch(batch) = decoded(frame) else { unreachable!("a batch is sent as a batch") };
    assert_eq!(batch.encoded_len(), *bytes, "its length is what it takes of the credit");
    let sent = CacheUp::decode(frame.bytes().clone()).expect("a frame");
    assert_eq!(sent.batch_bytes as usize, *bytes, "and what the hub is told");
    batch
}

fn begin(frame: &NextFrame) -> Begin {
    let NextFrame::Free(frame) = frame else { unreachable!("expected Begin, got {frame:?}") };
    let cache_up::Frame::Begin(begin) = decoded(frame) else { unreachable!("expected Begin") };
    begin
}

fn checkpoint(scope_id: u32, rv: &str) -> ScopeCheckpoint {
    ScopeCheckpoint { scope_id, rv: rv.into(), ..ScopeCheckpoint::default() }
}

fn resume(fence: &Fence, committed_seq: u64, scopes: Vec<ScopeCheckpoint>) -> Resume {
    Resume { fence: Some(fence.clone()), committed_seq, scopes, last: true, ..Resume::default() }
}

/// A frame of a basis of scope 1.
fn basis_frame(fence: &Fence, sync_key: &str, rows: &[(&str, u64)], last: bool) -> SyncBasis {
    let row = |(name, rv): &(&str, u64)| BasisRow {
        name: (*name).into(),
        rv: rv.to_string(),
        ..BasisRow::default()
    };
    let data = BasisRows { rows: rows.iter().map(row).collect() }.encode_to_vec();
    let size = u32::try_from(data.len()).expect("small");
    SyncBasis {
        fence: Some(fence.clone()),
        scope_id: 1,
        sync_key: sync_key.into(),
        last,
        rows: Some(Blob { encoding: blob::Encoding::Raw.into(), size, data }),
    }
}
