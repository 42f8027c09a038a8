//! A batch on the wire: its limits, and its bytes, encoded once.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Instant;

use prost::bytes::Bytes;
use prost::{Message, encode_length_delimiter, length_delimiter_len};

use super::queue::{QueueItem, QueuedEvent};
use kubesvc_core::wire::common::{Fence, Scope};
use kubesvc_core::wire::events::{Batch, CacheUp, Checkpoint, ScopeProblem, SyncStart, cache_up};

/// Maximum number of events in a batch.
pub const MAX_BATCH_EVENTS: usize = 256;
/// Maximum size of a batch on the wire, in bytes, unless it is a single event.
pub const MAX_BATCH_BYTES: usize = 512 * 1024;
/// Maximum uncompressed size of the bodies of a batch, in bytes, unless it is a single event.
pub const MAX_BATCH_BODY_BYTES: usize = 1024 * 1024;
/// Maximum uncompressed size of a body, in bytes; a larger one is omitted.
pub const MAX_BODY_BYTES: usize = 8 * 1024 * 1024;

/// Tag of `CacheUp.batch`: field 3, length-delimited.
const BATCH_TAG: u8 = 3 << 3 | 2;
/// Tag of `CacheUp.batch_bytes`: field 8, varint.
const BATCH_BYTES_TAG: u8 = 8 << 3;
/// Tag of `Batch.events`: field 4, length-delimited.
const EVENTS_TAG: u8 = 4 << 3 | 2;
/// Tag of `Event.held_ms`: field 12, varint.
const HELD_MS_TAG: u8 = 12 << 3;
/// Upper bound for `prev` and `seq` on the wire, in bytes.
const NUMBERS_BYTES: usize = 22;

/// A `CacheUp`, encoded once so that a resend has the same bytes, regardless of the order of a map's keys.
#[derive(Clone, PartialEq, Eq)]
pub struct EncodedFrame(Bytes);

impl EncodedFrame {
    /// Encodes a frame.
    pub fn encode(frame: cache_up::Frame) -> Self {
        Self(CacheUp { frame: Some(frame), ..CacheUp::default() }.encode_to_vec().into())
    }

    /// The encoded `CacheUp`.
    pub fn bytes(&self) -> &Bytes {
        &self.0
    }
}

impl fmt::Debug for EncodedFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "frame of {} bytes", self.0.len())
    }
}

/// Maximum size of an event, in bytes: 7/8 of the hub's largest message, at most 3.5 MiB.
pub(super) fn max_event_bytes(max_message_bytes: usize) -> usize {
    max_message_bytes.min(kubesvc_core::wire::MAX_MESSAGE_BYTES) / 8 * 7
}

/// Encoded length of a message as a field of a batch.
fn field_len(message: &impl Message) -> usize {
    delimited_len(message.encoded_len())
}

fn delimited_len(len: usize) -> usize {
    1 + length_delimiter_len(len) + len
}

/// Content of a batch for one scope.
#[derive(Clone, Debug, Default)]
struct ScopeInBatch {
    /// Checkpoint after the batch, unless the scope's queue is then empty.
    rv: Option<Box<str>>,
    list_begins: bool,
    is_synced: bool,
    sent: EventCount,
}

/// A batch in assembly, from the head of a queue.
#[derive(Debug)]
pub(super) struct BatchBuilder {
    /// Credit for the batch, in bytes. Only a single event may exceed [`MAX_BATCH_BYTES`].
    credit: usize,
    /// Maximum size of a batch of several events, in bytes.
    max_bytes: usize,
    /// Current size, in bytes.
    bytes: usize,
    events: Vec<u8>,
    event_count: usize,
    body_bytes: usize,
    /// Everything but events and checkpoints.
    rest: Batch,
    scopes: BTreeMap<u32, ScopeInBatch>,
    problems: Vec<(u32, ScopeProblem)>,
    is_closed: bool,
}

/// A batch as sent, kept until it is acknowledged.
#[derive(Clone, Debug)]
pub(super) struct EncodedBatch {
    pub(super) frame: EncodedFrame,
    /// Length of the encoded `Batch`, in bytes: its cost in credit.
    pub(super) bytes: usize,
    pub(super) added: Vec<u32>,
    pub(super) sync_starts: Vec<SyncStart>,
    /// Problems by scope.
    pub(super) problems: Vec<(u32, ScopeProblem)>,
    /// Events by scope.
    pub(super) events: Vec<(u32, EventCount)>,
    pub(super) event_count: usize,
}

impl BatchBuilder {
    /// An empty batch for a hub with messages of at most `max_message_bytes`.
    pub(super) fn new(fence: &Fence, credit: usize, max_message_bytes: usize) -> Self {
        let rest = Batch { fence: Some(fence.clone()), ..Batch::default() };
        let bytes = rest.encoded_len() + NUMBERS_BYTES;
        Self {
            credit,
            max_bytes: MAX_BATCH_BYTES.min(max_event_bytes(max_message_bytes)),
            bytes,
            events: Vec::new(),
            event_count: 0,
            body_bytes: 0,
            rest,
            scopes: BTreeMap::new(),
            problems: Vec::new(),
            is_closed: false,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.event_count == 0
            && self.scopes.is_empty()
            && self.rest.added.is_empty()
            && self.rest.removed.is_empty()
    }

    /// Whether `extra` more bytes fit.
    fn fits(&self, extra: usize) -> bool {
        let bytes = self.bytes + extra;
        bytes <= self.credit && (bytes <= self.max_bytes || self.is_empty())
    }

    /// Size of a batch of this item alone, in bytes.
    pub(super) fn bytes_with(&self, item: &QueueItem) -> usize {
        self.bytes + self.item_len(item)
    }

    fn item_len(&self, item: &QueueItem) -> usize {
        match item {
            QueueItem::Event(event) => event_len(event) + self.checkpoint_growth(event),
            QueueItem::SyncStart(start) => field_len(start),
            QueueItem::Synced(synced) => field_len(synced),
            QueueItem::Added(declaration) => field_len(declaration.as_ref()),
            QueueItem::Removed(key) => delimited_len(key.len()),
        }
    }

    /// Bytes by which an event enlarges the scope's checkpoint.
    fn checkpoint_growth(&self, event: &QueuedEvent) -> usize {
        let known = self.scopes.get(&event.key.scope_id).and_then(|scope| scope.rv.as_ref());
        let before = known.map_or(0, |rv| checkpoint_len(event.key.scope_id, rv));
        checkpoint_len(event.key.scope_id, &event.rv).saturating_sub(before)
    }

    /// Adds the next item of the queue; `false` if it belongs to the next batch.
    pub(super) fn add(&mut self, item: &QueueItem, now: Instant) -> bool {
        if self.is_closed || !self.is_in_order(item) || !self.fits(self.item_len(item)) {
            return false;
        }
        if let QueueItem::Event(event) = item {
            return self.add_event(event, now);
        }
        self.bytes += self.item_len(item);
        match item {
            QueueItem::Event(_) => {}
            QueueItem::SyncStart(start) => {
                let scope = self.scopes.entry(start.scope_id).or_default();
                scope.list_begins = true;
                scope.rv = None;
                self.rest.sync_starts.push(start.clone());
            }
            QueueItem::Synced(synced) => {
                let scope = self.scopes.entry(synced.scope_id).or_default();
                scope.is_synced = true;
                scope.rv = None;
                self.rest.synced.push(synced.clone());
            }
            QueueItem::Added(declaration) => self.rest.added.push(declaration.as_ref().clone()),
            QueueItem::Removed(key) => self.rest.removed.push(key.clone()),
        }
        true
    }

    /// Whether the hub's order of application equals the queue's order, with this item included.
    fn is_in_order(&self, item: &QueueItem) -> bool {
        let scope = |id: &u32| self.scopes.get(id);
        match item {
            QueueItem::Event(event) => scope(&event.key.scope_id).is_none_or(|scope| !scope.is_synced),
            QueueItem::SyncStart(SyncStart { scope_id, .. }) => {
                scope(scope_id).is_none_or(|scope| !scope.is_synced && !scope.list_begins)
            }
            QueueItem::Synced(synced) => {
                scope(&synced.scope_id).is_none_or(|scope| !scope.is_synced && !scope.list_begins)
            }
            QueueItem::Added(_) => self.rest.removed.is_empty(),
            QueueItem::Removed(_) => self.rest.added.is_empty(),
        }
    }

    fn add_event(&mut self, event: &QueuedEvent, now: Instant) -> bool {
        let is_within = self.event_count < MAX_BATCH_EVENTS
            && (self.body_bytes + event.body_bytes <= MAX_BATCH_BODY_BYTES || self.event_count == 0);
        if !is_within {
            return false;
        }
        self.is_closed = self.bytes + event_len(event) > self.max_bytes;
        self.bytes += self.checkpoint_growth(event);
        let before = self.events.len();
        event.encode(now, &mut self.events);
        let bytes = self.events.len() - before;
        self.bytes += bytes;
        self.event_count += 1;
        self.body_bytes += event.body_bytes;
        let scope = self.scopes.entry(event.key.scope_id).or_default();
        scope.sent.events += 1;
        scope.sent.bytes += u64::try_from(bytes).unwrap_or(u64::MAX);
        if event.is_checkpoint && !scope.list_begins {
            scope.rv = Some(event.rv.clone());
        }
        true
    }

    /// Whether the batch completes the scope's list, whose version then is the checkpoint.
    pub(super) fn is_synced(&self, scope_id: u32) -> bool {
        self.scopes.get(&scope_id).is_some_and(|scope| scope.is_synced)
    }

    /// Adds the checkpoint of a scope whose queue is empty after the batch; `false` if there is no room.
    pub(super) fn add_last_read(&mut self, scope_id: u32, rv: &str) -> bool {
        let before = self.scopes.get(&scope_id).and_then(|scope| scope.rv.as_ref());
        let before = before.map_or(0, |known| checkpoint_len(scope_id, known));
        let extra = checkpoint_len(scope_id, rv).saturating_sub(before);
        if before == 0 && (self.is_closed || !self.fits(extra)) {
            return false;
        }
        self.bytes += extra;
        self.scopes.entry(scope_id).or_default().rv = Some(rv.into());
        true
    }

    /// Adds why a scope is not read; `false` if there is no room.
    pub(super) fn add_problem(&mut self, scope_id: u32, problem: &ScopeProblem) -> bool {
        let extra = field_len(problem);
        if self.is_closed || !self.fits(extra) {
            return false;
        }
        self.bytes += extra;
        self.problems.push((scope_id, problem.clone()));
        true
    }

    /// Numbers the batch; `None` if it is empty.
    pub(super) fn finish(mut self, prev: u64, seq: u64) -> Option<EncodedBatch> {
        if self.is_empty() && self.problems.is_empty() {
            return None;
        }
        self.rest.prev = prev;
        self.rest.seq = seq;
        let sent = self.scopes.iter().map(|(scope_id, scope)| (*scope_id, scope.sent));
        let events = sent.filter(|(_, sent)| sent.events > 0).collect();
        let checkpoint = |(scope_id, scope): (u32, ScopeInBatch)| {
            scope.rv.map(|rv| Checkpoint { scope_id, rv: rv.into() })
        };
        self.rest.checkpoints = self.scopes.into_iter().filter_map(checkpoint).collect();
        self.rest.problems = self.problems.iter().map(|(_, problem)| problem.clone()).collect();
        let bytes = self.rest.encoded_len() + self.events.len();
        let mut frame = Vec::with_capacity(bytes + 16);
        frame.push(BATCH_TAG);
        encode_length_delimiter(bytes, &mut frame).expect("a vector grows");
        self.rest.encode(&mut frame).expect("a vector grows");
        // Fields may come in any order, and the events are already encoded.
        frame.extend_from_slice(&self.events);
        frame.push(BATCH_BYTES_TAG);
        encode_length_delimiter(bytes, &mut frame).expect("a vector grows");
        let added = self.rest.added.iter().map(|declaration| declaration.scope_id).collect();
        let sync_starts = self.rest.sync_starts;
        let (problems, event_count) = (self.problems, self.event_count);
        let frame = EncodedFrame(frame.into());
        Some(EncodedBatch { frame, bytes, added, sync_starts, problems, events, event_count })
    }
}

fn checkpoint_len(scope_id: u32, rv: &str) -> usize {
    // Two tags, a varint, a length, and the text, in a field of the batch.
    delimited_len(rv.len() + 2 + length_delimiter_len(rv.len()) + length_delimiter_len(scope_id as usize))
}

/// Upper bound for an event in a batch, in bytes.
fn event_len(event: &QueuedEvent) -> usize {
    delimited_len(event.encoded.len() + 1 + length_delimiter_len(u32::MAX as usize))
}

impl QueuedEvent {
    /// Appends the event as a field of a batch, with the time for which the agent has held it.
    fn encode(&self, now: Instant, out: &mut Vec<u8>) {
        let held = now.saturating_duration_since(self.read_at).as_millis();
        let held = usize::try_from(held).unwrap_or(usize::MAX).min(u32::MAX as usize);
        let held_len = if held == 0 { 0 } else { 1 + length_delimiter_len(held) };
        out.push(EVENTS_TAG);
        encode_length_delimiter(self.encoded.len() + held_len, out).expect("a vector grows");
        out.extend_from_slice(&self.encoded);
        if held != 0 {
            out.push(HELD_MS_TAG);
            encode_length_delimiter(held, out).expect("a vector grows");
        }
    }
}

/// Number of events, and their size in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventCount {
    pub events: u64,
    /// Size as sent, in bytes.
    pub bytes: u64,
}

/// Sent events by kind and group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SentEvents(BTreeMap<(String, String), EventCount>);

impl SentEvents {
    pub(super) fn add(&mut self, scope: &Scope, count: EventCount) {
        let sent = self.0.entry((scope.kind.clone(), scope.group.clone())).or_default();
        sent.events += count.events;
        sent.bytes += count.bytes;
    }

    /// Kind, group and number.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, EventCount)> {
        self.0.iter().map(|((kind, group), count)| (kind.as_str(), group.as_str(), *count))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
