//! One account under one fence: turns reports of its readers into numbered batches, and the hub's answers into commands
//! for its readers.
//!
//! Rules that keep the rows correct:
//! * A batch is a prefix of what was read. It is encoded once, kept until it is acknowledged, and resent with the same
//!   bytes under the same number.
//! * Batches form a chain by `prev`. After a new stream, the chain continues if the committed batch is part of it.
//!   Otherwise (a Rewind, lost commits, a new delivery) everything read is discarded, the next batch follows the
//!   committed one under a number never used before, and each scope continues at SQL's checkpoint.
//! * An added scope is started once its batch is committed and the hub has answered for it. If that answer was lost
//!   with a stream, and the new stream's Begin did not name the scope, it is added again.
//! * A delivery has a number, which its answers name, and a later delivery does not reuse numbers of scopes, so that a
//!   late answer is not taken for its own.
//! * Each start of a scope has a new [`ReaderId`]; reports of earlier readers are ignored.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use prost::Message as _;

use super::basis::{BasisError, ScopeBasis};
use super::batch::{BatchBuilder, EncodedFrame, SentEvents, max_event_bytes};
use super::memory::QueueMemory;
use super::queue::PendingQueue;
use super::unacked::{InFlightSize, UnackedBatches};
use kubesvc_core::cache::keys::ScopeKey;
use kubesvc_core::wire::MAX_MESSAGE_BYTES;
use kubesvc_core::wire::common::{Failure, Fence};
use kubesvc_core::wire::events::{
    Begin, Event, LeftOutObjects, Resume, ScopeCheckpoint, ScopeDeclaration, ScopeProblem, SyncBasis,
    SyncStart, Synced, Unread, cache_up,
};

mod answers;
mod readers;

use answers::ResumeAssembly;

/// Maximum number of scopes of an account.
pub const MAX_SCOPES: usize = 5_000;
/// Maximum size of a Begin, in bytes.
const MAX_BEGIN_BYTES: usize = 256 * 1024;

/// One run of a scope's list and watch. Its number is never reused in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReaderId(u64);

#[cfg(test)]
impl ReaderId {
    /// A reader for tests without a delivery.
    pub(crate) const fn of_test(number: u64) -> Self {
        Self(number)
    }
}

/// Highest numbers used. A delivery begins above those of all ended ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeliveryNumbers {
    seq: u64,
    reader: u64,
    scope: u32,
    delivery: u64,
}

impl DeliveryNumbers {
    /// Highest number of a scope.
    pub fn scope(&self) -> u32 {
        self.scope
    }

    /// The maximum of each number.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            seq: self.seq.max(other.seq),
            reader: self.reader.max(other.reader),
            scope: self.scope.max(other.scope),
            delivery: self.delivery.max(other.delivery),
        }
    }
}

/// Commands for the readers of an account, executed in order.
#[derive(Debug)]
pub enum ReaderCommand {
    /// Watch the scope after this version, and stop its earlier reader.
    Watch {
        /// The new reader.
        reader: ReaderId,
        /// The scope.
        scope_id: u32,
        /// Version up to which SQL has the scope.
        resource_version: String,
    },
    /// List the scope against its basis, then watch it. Stops its earlier reader.
    List {
        /// The new reader.
        reader: ReaderId,
        /// The scope.
        scope_id: u32,
        /// Number of rows at the last sync, for the memory of the basis.
        objects: u64,
        /// The rows have another shape: every body is sent, and the basis serves for deletes alone.
        all_bodies: bool,
        /// Last known version of the scope; may be empty. A cluster with an older list has gone back.
        known_version: String,
    },
    /// The basis of a list that the reader has started.
    Basis {
        /// The reader.
        reader: ReaderId,
        /// Key of the list.
        sync_key: String,
        /// The rows, or an error after which the reader restarts its list later.
        rows: Result<ScopeBasis, BasisError>,
    },
    /// Stop the reader, whose scope was removed.
    Stop {
        /// The reader.
        reader: ReaderId,
    },
    /// Stop all readers of the account.
    StopAll,
}

/// Reason for which a scope cannot be declared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeclarationError {
    #[error("the account has {MAX_SCOPES} scopes, which is the limit; cache fewer kinds or namespaces")]
    TooManyScopes,
    #[error("the number {0} was given to another scope of the account; take the next free one")]
    NumberUsed(u32),
    /// The number belongs to no scope, or to one of another kind or namespace.
    #[error("the scope number {0} cannot be declared again; add a scope for another kind or namespace")]
    OtherScope(u32),
    #[error("the scope number {0} names no kind")]
    NoKind(u32),
}

/// Next frame of an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextFrame {
    /// A frame that needs no credit.
    Free(EncodedFrame),
    /// A batch that costs this many bytes of credit.
    Batch(EncodedFrame, usize),
    /// The next batch needs at least this many bytes of credit.
    Blocked(usize),
    /// Idle until the deadline, if any.
    Nothing(Option<Instant>),
}

/// State of a delivery on the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Detached,
    /// Begin is being sent, up to this scope so far.
    Beginning(Option<u32>),
    AwaitingResume,
    Streaming,
}

/// Place of an uncommitted declaration of an added scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AddedIn {
    Queue,
    Batch(u64),
}

/// A list that a reader has started.
#[derive(Clone, Debug)]
struct ListAttempt {
    sync_key: String,
    /// Whether its start was put into a batch.
    is_sent: bool,
    /// The frames of its basis so far; `None` once handed over.
    basis: Option<ScopeBasis>,
}

#[derive(Clone, Debug)]
struct SenderScope {
    declaration: Arc<ScopeDeclaration>,
    /// Whether Begin names the scope. An added scope is named once its addition is committed: an earlier batch of the
    /// chain may remove the rows of another scope for the same objects.
    is_declared: bool,
    /// Declaration whose answer is pending.
    added: Option<AddedIn>,
    /// Set on a removed scope, which Begin names until this batch is acknowledged: batches up to it may name the scope.
    leaves_after: Option<u64>,
    /// Whether the last sent Begin names the scope.
    is_begun: bool,
    reader: Option<ReaderId>,
    list: Option<ListAttempt>,
    /// Whether the last report to the hub was a problem; `None` if only a former delivery may have reported one.
    has_problem: Option<bool>,
    /// Objects of which no row can be made, by the last complete list and the watch after it.
    left_out: Option<Box<LeftOutObjects>>,
    /// The rows have another shape until a list is complete.
    all_bodies: bool,
    /// Number of rows at the last sync.
    objects: u64,
}

/// Reason for which the cluster was not reached since the delivery began.
#[derive(Clone, Debug)]
struct UnreadCluster {
    failure: Failure,
    /// Whether it was sent on the current stream.
    is_sent: bool,
}

/// One account under one fence.
#[derive(Clone, Debug)]
pub struct AccountSender {
    fence: Fence,
    max_resumable_age: Duration,
    numbers: DeliveryNumbers,
    queue: PendingQueue,
    /// `None` until the scopes are known.
    scopes: Option<BTreeMap<u32, SenderScope>>,
    /// Reason for which the scopes are not known, if it is to be reported.
    unread: Option<UnreadCluster>,
    /// Lowest number of a scope. An answer to a former delivery's Begin names lower ones.
    first_scope_id: u32,
    readers: BTreeMap<ReaderId, u32>,
    unacked: UnackedBatches,
    /// Reasons for unread scopes and unwatched kinds, by number. Repeated on each stream.
    problems: BTreeMap<u32, ScopeProblem>,
    /// Numbers of unwatched kinds, each as `Kind.group`.
    left_out: BTreeMap<String, u32>,
    /// Number of the batch before the first unacknowledged one.
    acked: u64,
    /// Number of the last batch of the chain.
    head: u64,
    stage: Stage,
    /// Whether the read events do not follow the committed ones, so that scopes restart at SQL's checkpoints.
    must_restart: bool,
    resume: ResumeAssembly,
    max_message_bytes: usize,
    sent: SentEvents,
}

/// Key of the scope in the table: `<namespace>:<group>.<Kind>`.
fn scope_key(declaration: &ScopeDeclaration) -> Option<String> {
    declaration.scope.as_ref().map(|scope| ScopeKey::from(scope).to_string())
}

impl SenderScope {
    fn key(&self) -> String {
        scope_key(&self.declaration).unwrap_or_default()
    }
}

impl AccountSender {
    /// A delivery whose scopes are not known yet. Checkpoints of age `max_resumable_age` or more are not resumed.
    pub fn new(fence: Fence, max_resumable_age: Duration, numbers: DeliveryNumbers) -> Self {
        Self {
            fence,
            max_resumable_age,
            numbers: DeliveryNumbers { delivery: numbers.delivery + 1, ..numbers },
            queue: PendingQueue::default(),
            scopes: None,
            unread: None,
            first_scope_id: numbers.scope.saturating_add(1),
            readers: BTreeMap::new(),
            unacked: UnackedBatches::default(),
            problems: BTreeMap::new(),
            left_out: BTreeMap::new(),
            acked: 0,
            head: 0,
            stage: Stage::Detached,
            must_restart: true,
            resume: ResumeAssembly::default(),
            max_message_bytes: MAX_MESSAGE_BYTES,
            sent: SentEvents::default(),
        }
    }

    /// Fence of the delivery.
    pub fn fence(&self) -> &Fence {
        &self.fence
    }

    /// Highest numbers used so far.
    pub fn numbers(&self) -> DeliveryNumbers {
        self.numbers
    }

    /// Whether the hub has received a frame of this delivery on the current stream.
    pub(super) fn is_begun(&self) -> bool {
        let said_unread = self.unread.as_ref().is_some_and(|unread| unread.is_sent);
        said_unread || !matches!(self.stage, Stage::Detached | Stage::Beginning(None))
    }

    /// Bytes sent on the current stream and not known to be committed.
    pub fn in_flight_bytes(&self) -> usize {
        self.in_flight().bytes
    }

    /// Size of what is in flight, with the number of events.
    pub(super) fn in_flight(&self) -> InFlightSize {
        self.unacked.in_flight()
    }

    /// Takes the events sent since the last call, each batch once.
    pub(super) fn take_sent(&mut self) -> SentEvents {
        std::mem::take(&mut self.sent)
    }

    /// Bytes that wait to be sent.
    pub fn waiting_bytes(&self) -> usize {
        self.queue.bytes() + self.unacked.unsent_bytes()
    }

    /// Attaches a new stream to a hub that accepts messages of at most `max_message_bytes`.
    pub fn attach(&mut self, max_message_bytes: usize) {
        self.max_message_bytes = max_message_bytes;
        self.unacked.unsend();
        // A batch cannot be split again, so this hub would never accept it.
        self.must_restart |=
            self.unacked.iter().any(|unacked| unacked.batch.frame.bytes().len() > max_message_bytes);
        self.begin();
    }

    /// Detaches the ended stream. Events that are read meanwhile wait.
    pub fn detach(&mut self) {
        self.stage = Stage::Detached;
        self.unacked.unsend();
        self.unread.iter_mut().for_each(|unread| unread.is_sent = false);
        self.resume = ResumeAssembly::default();
    }

    /// Reports that the cluster was not reached, so that its scopes are not known. Ignored once they are.
    pub fn unread(&mut self, failure: Failure) {
        let is_known = self.unread.as_ref().is_some_and(|unread| unread.failure == failure);
        if self.scopes.is_none() && !is_known {
            self.unread = Some(UnreadCluster { failure, is_sent: false });
        }
    }

    fn begin(&mut self) {
        self.stage = Stage::Beginning(None);
        self.resume = ResumeAssembly::default();
        self.scopes.iter_mut().flat_map(BTreeMap::values_mut).for_each(|scope| scope.is_begun = false);
    }

    /// The next frame; a batch only within `credit` bytes.
    pub fn next_frame(&mut self, credit: usize, now: Instant, memory: &mut QueueMemory) -> NextFrame {
        match self.stage {
            Stage::Detached | Stage::AwaitingResume => NextFrame::Nothing(None),
            Stage::Beginning(after) => self.next_begin(after),
            Stage::Streaming => match self.unacked.next_unsent() {
                Some(unsent) if unsent.bytes > credit => NextFrame::Blocked(unsent.bytes),
                Some(unsent) => {
                    let next = NextFrame::Batch(unsent.frame.clone(), unsent.bytes);
                    self.unacked.send_next();
                    next
                }
                None => self.next_batch(credit, now, memory),
            },
        }
    }

    fn next_begin(&mut self, after: Option<u32>) -> NextFrame {
        let Some(scopes) = &mut self.scopes else { return self.next_unread() };
        let (fence, delivery) = (Some(self.fence.clone()), self.numbers.delivery);
        let mut begin = Begin { fence, delivery, scopes: Vec::new(), last: true };
        let mut bytes = begin.encoded_len();
        let mut up_to = after;
        let from = after.map_or(0, |after| after.saturating_add(1));
        for (id, scope) in scopes.range_mut(from..) {
            if !scope.is_declared {
                continue;
            }
            bytes += scope.declaration.encoded_len() + 4;
            if bytes > MAX_BEGIN_BYTES.min(self.max_message_bytes) && !begin.scopes.is_empty() {
                begin.last = false;
                break;
            }
            scope.is_begun = true;
            up_to = Some(*id);
            begin.scopes.push(scope.declaration.as_ref().clone());
        }
        self.stage = if begin.last { Stage::AwaitingResume } else { Stage::Beginning(up_to) };
        NextFrame::Free(EncodedFrame::encode(cache_up::Frame::Begin(begin)))
    }

    fn next_unread(&mut self) -> NextFrame {
        let Some(unread) = self.unread.as_mut().filter(|unread| !unread.is_sent) else {
            return NextFrame::Nothing(None);
        };
        unread.is_sent = true;
        let unread = Unread { fence: Some(self.fence.clone()), failure: Some(unread.failure.clone()) };
        NextFrame::Free(EncodedFrame::encode(cache_up::Frame::Unread(unread)))
    }

    fn next_batch(&mut self, credit: usize, now: Instant, memory: &mut QueueMemory) -> NextFrame {
        match self.queue.due_at(now) {
            Some(due) if due <= now => {}
            due => return NextFrame::Nothing(due),
        }
        let batch = BatchBuilder::new(&self.fence, credit, self.max_message_bytes);
        let needed = self.queue.min_bytes(&batch);
        let batch = self.queue.cut(batch, max_event_bytes(self.max_message_bytes), now, memory);
        let seq = self.numbers.seq + 1;
        let Some(batch) = batch.finish(self.head, seq) else {
            return NextFrame::Blocked(needed.unwrap_or(credit + 1).max(credit + 1));
        };
        self.numbers.seq = seq;
        for start in &batch.sync_starts {
            let scope = self.scope_mut(start.scope_id).and_then(|scope| scope.list.as_mut());
            if let Some(list) = scope.filter(|list| list.sync_key == start.sync_key) {
                list.is_sent = true;
            }
        }
        for added in &batch.added {
            if let Some(scope) = self.scope_mut(*added) {
                scope.added = Some(AddedIn::Batch(seq));
            }
        }
        for (scope_id, count) in &batch.events {
            let scope = self.scopes.as_ref().and_then(|scopes| scopes.get(scope_id));
            if let Some(scope) = scope.and_then(|scope| scope.declaration.scope.as_ref()) {
                self.sent.add(scope, *count);
            }
        }
        let (frame, bytes) = (batch.frame.clone(), batch.bytes);
        self.unacked.push(seq, batch);
        self.unacked.send_next();
        self.head = seq;
        NextFrame::Batch(frame, bytes)
    }

    fn scope_mut(&mut self, scope_id: u32) -> Option<&mut SenderScope> {
        self.scopes.as_mut()?.get_mut(&scope_id)
    }
}
