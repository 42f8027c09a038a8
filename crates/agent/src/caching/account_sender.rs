//! One account under one fence: from what its readers report to numbered batches, and from the hub's answers to what
//! its readers do.
//!
//! The rules that keep the rows right:
//! * A batch is a prefix of what was read. It is encoded once, kept until it is acknowledged, and sent again with the
//!   same bytes under the same number.
//! * Batches form a chain by `prev`. After a new stream, the chain goes on if the committed batch is one of it.
//!   Otherwise (a Rewind, lost commits, a delivery that has just begun) everything read is discarded, the next batch
//!   follows the committed one under a number never used before, and each scope goes on from SQL's checkpoint.
//! * A scope that is added is begun once its batch is committed and the hub has answered for it. If that answer was
//!   lost with a stream, and the new stream's Begin did not name the scope, it is added again.
//! * A delivery has a number, which its answers name, and numbers of scopes are not used again by a later one, so that a
//!   late answer is not taken for its own.
//! * Each start of a scope has a new [`ReaderId`]; what an earlier reader of it reports is ignored.

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

/// A reader: one run of a scope's list and watch. Its number is never used again in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReaderId(u64);

#[cfg(test)]
impl ReaderId {
    /// The reader of a test that has no delivery.
    pub(crate) const fn of_test(number: u64) -> Self {
        Self(number)
    }
}

/// Highest numbers that were used: a delivery begins above those of all that ended before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeliveryNumbers {
    seq: u64,
    reader: u64,
    scope: u32,
    delivery: u64,
}

impl DeliveryNumbers {
    /// The highest number of a scope.
    pub fn scope(&self) -> u32 {
        self.scope
    }

    /// The higher of each.
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

/// What the readers of an account are to do; executed in the order given.
#[derive(Debug)]
pub enum ReaderCommand {
    /// Watch the scope after this version. An earlier reader of the scope stops.
    Watch {
        /// The new reader.
        reader: ReaderId,
        /// The scope.
        scope_id: u32,
        /// Version up to which SQL has the scope.
        resource_version: String,
    },
    /// List the scope against its basis, then watch it. An earlier reader of the scope stops.
    List {
        /// The new reader.
        reader: ReaderId,
        /// The scope.
        scope_id: u32,
        /// Rows of the scope at its last sync: what the basis takes.
        objects: u64,
        /// The rows are of another shape: every body is sent, and the basis serves for deletes alone.
        all_bodies: bool,
        /// The last version that is known of the scope; empty if none is. A cluster whose list is older has gone back.
        known_version: String,
    },
    /// The basis of a list that the reader has started.
    Basis {
        /// The reader.
        reader: ReaderId,
        /// Key of the list.
        sync_key: String,
        /// The rows, or why there are none: the reader starts its list anew, later.
        rows: Result<ScopeBasis, BasisError>,
    },
    /// The reader stops; its scope is no more.
    Stop {
        /// The reader.
        reader: ReaderId,
    },
    /// All readers of the account stop.
    StopAll,
}

/// A scope that cannot be declared.
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

/// What there is to send of an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextFrame {
    /// A frame that needs no credit.
    Free(EncodedFrame),
    /// A batch that takes this many bytes of credit.
    Batch(EncodedFrame, usize),
    /// The next batch takes at least this many bytes of credit.
    Blocked(usize),
    /// Nothing, before this time if one is given.
    Nothing(Option<Instant>),
}

/// Where a delivery stands with the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// There is no stream.
    Detached,
    /// Begin is being sent, up to this scope so far.
    Beginning(Option<u32>),
    /// Begin is sent.
    AwaitingResume,
    /// Batches are sent.
    Streaming,
}

/// Where the declaration of an added scope is that is not committed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AddedIn {
    Queue,
    Batch(u64),
}

/// A list that a reader has started.
#[derive(Clone, Debug)]
struct ListAttempt {
    sync_key: String,
    /// Its start was put into a batch.
    is_sent: bool,
    /// What has come of its basis; `None`: it was handed over.
    basis: Option<ScopeBasis>,
}

#[derive(Clone, Debug)]
struct SenderScope {
    declaration: Arc<ScopeDeclaration>,
    /// Begin names it. A scope that was added is named once that is committed: what comes before it in the chain may
    /// remove the rows of another scope for the same objects.
    is_declared: bool,
    /// It waits for the answer to this.
    added: Option<AddedIn>,
    /// It is no more, and is named until this batch is acknowledged, since batches up to it may name it.
    leaves_after: Option<u64>,
    /// Named by the Begin that was sent last.
    is_begun: bool,
    reader: Option<ReaderId>,
    list: Option<ListAttempt>,
    /// Whether the hub was told why the scope is not read, or that it is; `None`: a former delivery may have.
    has_problem: Option<bool>,
    /// Its objects of which no row can be made, as its last complete list and the watch after it have them.
    left_out: Option<Box<LeftOutObjects>>,
    /// The rows are of another shape until a list is complete.
    all_bodies: bool,
    /// Rows at the last sync.
    objects: u64,
}

/// Why the cluster could not be reached since the delivery began.
#[derive(Clone, Debug)]
struct UnreadCluster {
    failure: Failure,
    /// Said on the current stream.
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
    /// Why the scopes are not known, if that is to be said.
    unread: Option<UnreadCluster>,
    /// Lowest number of a scope. An answer to the Begin of a former delivery names lower ones.
    first_scope_id: u32,
    readers: BTreeMap<ReaderId, u32>,
    unacked: UnackedBatches,
    /// Why scopes are not read and kinds not watched, by number. Each stream is told anew.
    problems: BTreeMap<u32, ScopeProblem>,
    /// Numbers of kinds that are not watched, each as `Kind.group`.
    left_out: BTreeMap<String, u32>,
    /// The batch that the first unacknowledged one follows.
    acked: u64,
    /// The last batch of the chain.
    head: u64,
    stage: Stage,
    /// What was read does not follow what is committed: scopes go on from SQL's checkpoints.
    must_restart: bool,
    resume: ResumeAssembly,
    max_message_bytes: usize,
    sent: SentEvents,
}

/// The scope of a declaration as the table has it: `<namespace>:<group>.<Kind>`.
fn scope_key(declaration: &ScopeDeclaration) -> Option<String> {
    declaration.scope.as_ref().map(|scope| ScopeKey::from(scope).to_string())
}

impl SenderScope {
    fn key(&self) -> String {
        scope_key(&self.declaration).unwrap_or_default()
    }
}

impl AccountSender {
    /// A delivery whose scopes are not known yet. A checkpoint of `max_resumable_age` or more is not resumed.
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

    /// The fence.
    pub fn fence(&self) -> &Fence {
        &self.fence
    }

    /// Highest numbers used so far.
    pub fn numbers(&self) -> DeliveryNumbers {
        self.numbers
    }

    /// Whether the hub has had a frame of this delivery on the current stream.
    pub(super) fn is_begun(&self) -> bool {
        let said_unread = self.unread.as_ref().is_some_and(|unread| unread.is_sent);
        said_unread || !matches!(self.stage, Stage::Detached | Stage::Beginning(None))
    }

    /// Bytes that were sent on the current stream and are not known to be committed.
    pub fn in_flight_bytes(&self) -> usize {
        self.in_flight().bytes
    }

    /// The same with their events.
    pub(super) fn in_flight(&self) -> InFlightSize {
        self.unacked.in_flight()
    }

    /// Takes what was sent since the last call, each batch once.
    pub(super) fn take_sent(&mut self) -> SentEvents {
        std::mem::take(&mut self.sent)
    }

    /// Bytes that wait to be sent.
    pub fn waiting_bytes(&self) -> usize {
        self.queue.bytes() + self.unacked.unsent_bytes()
    }

    /// A new stream is open, to a hub that takes messages of at most `max_message_bytes`.
    pub fn attach(&mut self, max_message_bytes: usize) {
        self.max_message_bytes = max_message_bytes;
        self.unacked.unsend();
        // A batch cannot be cut anew, so this hub would never take it.
        self.must_restart |=
            self.unacked.iter().any(|unacked| unacked.batch.frame.bytes().len() > max_message_bytes);
        self.begin();
    }

    /// The stream ended. What is read meanwhile waits.
    pub fn detach(&mut self) {
        self.stage = Stage::Detached;
        self.unacked.unsend();
        self.unread.iter_mut().for_each(|unread| unread.is_sent = false);
        self.resume = ResumeAssembly::default();
    }

    /// The cluster could not be reached so far, so its scopes are not known. Ignored once they are.
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

    /// What to send next: a batch only within `credit` bytes.
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
