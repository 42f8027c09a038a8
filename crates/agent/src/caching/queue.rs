//! Unsent events of an account, in the order of last change.
//!
//! A newer event of an object replaces the older one and moves to the end, so whatever is sent is a prefix of what was
//! read, and a checkpoint never precedes a change that is still queued. An event that was moved for [`MAX_MOVE_TIME`]
//! keeps its place, so that a busy object is sent too; its next event is a second entry. Starts and ends of lists and
//! added and removed scopes keep their place among the events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use prost::Message as _;

use super::batch::{BatchBuilder, MAX_BODY_BYTES};
use super::memory::{QueueMemory, QueueShare};
use kubesvc_core::wire::events::event::{Body, Omitted};
use kubesvc_core::wire::events::{Event, ScopeDeclaration, ScopeProblem, SyncStart, Synced};

/// Time for which newer events of an object move its entry to the end.
pub const MAX_MOVE_TIME: Duration = Duration::from_secs(2);
/// Minimum interval between two batches of an account with checkpoints alone.
pub const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(60);
/// Memory of an entry besides its content, in bytes.
const ENTRY_BYTES: usize = 192;

/// An object of a scope.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct QueueKey {
    pub(super) scope_id: u32,
    namespace: Box<str>,
    name: Box<str>,
}

#[derive(Clone, Debug)]
pub(super) struct QueuedEvent {
    pub(super) key: Arc<QueueKey>,
    pub(super) rv: Box<str>,
    /// Encoded event without `held_ms`.
    pub(super) encoded: Box<[u8]>,
    /// Uncompressed size of the body.
    pub(super) body_bytes: usize,
    /// Read by a watch: once committed, the scope is read up to it.
    pub(super) is_checkpoint: bool,
    pub(super) read_at: Instant,
    /// Time at which the first event of this entry was queued.
    queued_at: Instant,
}

#[derive(Clone, Debug)]
pub(super) enum QueueItem {
    Event(QueuedEvent),
    SyncStart(SyncStart),
    Synced(Synced),
    Added(Arc<ScopeDeclaration>),
    /// A scope as `<namespace>:<group>.<Kind>`.
    Removed(String),
}

impl QueueItem {
    fn scope_id(&self) -> Option<u32> {
        match self {
            Self::Event(event) => Some(event.key.scope_id),
            Self::SyncStart(start) => Some(start.scope_id),
            Self::Synced(synced) => Some(synced.scope_id),
            Self::Added(_) | Self::Removed(_) => None,
        }
    }

    fn bytes(&self) -> usize {
        ENTRY_BYTES
            + match self {
                Self::Event(event) => event.bytes(),
                Self::SyncStart(start) => start.sync_key.len(),
                Self::Synced(synced) => synced.sync_key.len() + synced.rv.len(),
                // The declaration is owned by the delivery.
                Self::Added(_) => 0,
                Self::Removed(key) => key.len(),
            }
    }
}

impl QueuedEvent {
    fn new(event: &Event, is_checkpoint: bool, now: Instant) -> Self {
        let key = QueueKey {
            scope_id: event.scope_id,
            namespace: event.namespace.as_str().into(),
            name: event.name.as_str().into(),
        };
        let body_bytes = match &event.body {
            Some(Body::Blob(blob)) => blob.size as usize,
            Some(Body::Omitted(_)) | None => 0,
        };
        Self {
            key: Arc::new(key),
            rv: event.rv.as_str().into(),
            encoded: event.encode_to_vec().into(),
            body_bytes,
            is_checkpoint,
            read_at: now,
            queued_at: now,
        }
    }

    fn bytes(&self) -> usize {
        self.encoded.len() + self.key.namespace.len() + self.key.name.len() + self.rv.len()
    }

    /// Removes a body that the hub would refuse.
    fn omit_body(&mut self) {
        let Ok(mut event) = Event::decode(&*self.encoded) else { return };
        event.body = event.body.is_some().then_some(Body::Omitted(Omitted::TooLarge.into()));
        self.encoded = event.encode_to_vec().into();
        self.body_bytes = 0;
    }
}

/// Version up to which a scope is read.
#[derive(Clone, Debug, Default)]
struct ScopeProgress {
    /// Number of queued entries.
    queued: usize,
    /// Key of the running list. Until it is synced, the scope has no checkpoint.
    list: Option<String>,
    /// Version up to which the scope is read and after which it continues.
    read: Option<String>,
}

/// The queue of one account.
#[derive(Clone, Debug, Default)]
pub(super) struct PendingQueue {
    items: BTreeMap<u64, QueueItem>,
    next_place: u64,
    /// Position of the newest entry of each object.
    places: BTreeMap<Arc<QueueKey>, u64>,
    scopes: BTreeMap<u32, ScopeProgress>,
    /// Scopes that are read further than the sent checkpoints.
    unsent_checkpoints: BTreeSet<u32>,
    problems: BTreeMap<u32, ScopeProblem>,
    share: QueueShare,
    /// Size of the last refused event, in bytes; 0 if none was refused since half of the queue was free.
    refused: usize,
    /// Time of the last batch.
    cut_at: Option<Instant>,
}

impl PendingQueue {
    pub(super) fn bytes(&self) -> usize {
        self.share.bytes()
    }

    /// Whether an event was refused, and less than half of the queue was free since.
    pub(super) fn is_full(&self, memory: &QueueMemory) -> bool {
        self.refused > 0 && !self.is_half_free(memory)
    }

    /// Whether half of the queue is free, with room for the last refused event.
    pub(super) fn is_half_free(&self, memory: &QueueMemory) -> bool {
        let bytes = self.share.bytes();
        let is_accepted = self.share.allows(bytes + self.refused, !self.has_events(), memory);
        bytes <= self.share.capacity(memory) / 2 && is_accepted
    }

    fn has_events(&self) -> bool {
        !self.places.is_empty()
    }

    pub(super) fn last_read(&self, scope_id: u32) -> Option<&str> {
        self.scopes.get(&scope_id).and_then(|scope| scope.read.as_deref())
    }

    /// Starts a watch after `rv`, which SQL has.
    pub(super) fn watch_from(&mut self, scope_id: u32, rv: &str) {
        let scope = self.scopes.entry(scope_id).or_default();
        scope.list = None;
        scope.read = Some(rv.to_owned());
    }

    /// Queues an event.
    ///
    /// # Errors
    ///
    /// Returns the event if there is no room; it then counts as unread.
    pub(super) fn event(
        &mut self,
        mut event: Event,
        now: Instant,
        memory: &mut QueueMemory,
    ) -> Result<(), Box<Event>> {
        if matches!(&event.body, Some(Body::Blob(blob)) if blob.size as usize > MAX_BODY_BYTES) {
            event.body = Some(Body::Omitted(Omitted::TooLarge.into()));
        }
        event.held_ms = 0;
        let scope = self.scopes.entry(event.scope_id).or_default();
        let is_checkpoint = scope.list.is_none() && scope.read.is_some();
        let mut queued = QueuedEvent::new(&event, is_checkpoint, now);
        let replaced = self.replaceable(&queued.key, now);
        let replaced_bytes = replaced.map_or(0, |(_, _, bytes)| bytes);
        let needed = ENTRY_BYTES + queued.bytes();
        let bytes = self.share.bytes() - replaced_bytes + needed;
        let is_alone = self.places.len() == usize::from(replaced.is_some());
        if !self.share.allows(bytes, is_alone, memory) {
            self.refused = needed;
            return Err(Box::new(event));
        }
        self.refused = 0;
        if let Some((place, queued_at, _)) = replaced {
            queued.queued_at = queued_at;
            self.take(place, memory);
        }
        if is_checkpoint {
            self.read_to(event.scope_id, event.rv);
        }
        let key = queued.key.clone();
        let place = self.push(QueueItem::Event(queued), memory);
        self.places.insert(key, place);
        Ok(())
    }

    /// Entry that a newer event of its object replaces: its position, the time since which it is moved, and its bytes.
    fn replaceable(&self, key: &QueueKey, now: Instant) -> Option<(u64, Instant, usize)> {
        let place = *self.places.get(key)?;
        let item = self.items.get(&place)?;
        let QueueItem::Event(event) = item else { return None };
        let moved_for = now.saturating_duration_since(event.queued_at);
        (moved_for < MAX_MOVE_TIME).then(|| (place, event.queued_at, item.bytes()))
    }

    /// Records that a scope is read up to a version without an event.
    pub(super) fn bookmark(&mut self, scope_id: u32, rv: String) {
        if self.scopes.get(&scope_id).is_some_and(|scope| scope.list.is_none() && scope.read.is_some()) {
            self.read_to(scope_id, rv);
        }
    }

    fn read_to(&mut self, scope_id: u32, rv: String) {
        self.scopes.entry(scope_id).or_default().read = Some(rv);
        self.unsent_checkpoints.insert(scope_id);
    }

    pub(super) fn sync_start(&mut self, start: SyncStart, memory: &mut QueueMemory) {
        let scope = self.scopes.entry(start.scope_id).or_default();
        scope.list = Some(start.sync_key.clone());
        scope.read = None;
        self.unsent_checkpoints.remove(&start.scope_id);
        self.push(QueueItem::SyncStart(start), memory);
    }

    /// Queues the end of a list; `false` if another list is running.
    pub(super) fn synced(&mut self, synced: Synced, memory: &mut QueueMemory) -> bool {
        let scope = self.scopes.entry(synced.scope_id).or_default();
        if scope.list.as_ref() != Some(&synced.sync_key) {
            return false;
        }
        scope.list = None;
        scope.read = Some(synced.rv.clone());
        self.push(QueueItem::Synced(synced), memory);
        true
    }

    /// Queues a scope that is now watched.
    pub(super) fn added(&mut self, declaration: Arc<ScopeDeclaration>, memory: &mut QueueMemory) {
        self.push(QueueItem::Added(declaration), memory);
    }

    /// Queues a removed scope, as `<namespace>:<group>.<Kind>`.
    pub(super) fn removed(&mut self, key: String, memory: &mut QueueMemory) {
        self.push(QueueItem::Removed(key), memory);
    }

    /// Cancels an unsent removal.
    pub(super) fn keep(&mut self, key: &str, memory: &mut QueueMemory) {
        self.discard(memory, |item| matches!(item, QueueItem::Removed(removed) if removed == key));
    }

    /// Records why a scope is not read; the latest reason wins.
    pub(super) fn problem(&mut self, scope_id: u32, problem: ScopeProblem, memory: &mut QueueMemory) {
        let bytes = self.share.bytes() + ENTRY_BYTES + problem.encoded_len();
        let before = self.problems.insert(scope_id, problem);
        self.share.set(bytes - before.map_or(0, |before| ENTRY_BYTES + before.encoded_len()), memory);
    }

    /// Discards the queued events of a scope.
    pub(super) fn forget(&mut self, scope_id: u32, memory: &mut QueueMemory) {
        self.discard(memory, |item| match item {
            QueueItem::Added(declaration) => declaration.scope_id == scope_id,
            item => item.scope_id() == Some(scope_id),
        });
        self.take_problem(scope_id, memory);
        self.scopes.remove(&scope_id);
        self.unsent_checkpoints.remove(&scope_id);
    }

    /// Restores why a scope is not read, from a discarded batch.
    pub(super) fn problem_again(&mut self, scope_id: u32, problem: ScopeProblem, memory: &mut QueueMemory) {
        if !self.problems.contains_key(&scope_id) {
            self.problem(scope_id, problem, memory);
        }
    }

    /// Discards the added scopes, since Begin names them.
    pub(super) fn forget_added(&mut self, memory: &mut QueueMemory) {
        self.discard(memory, |item| matches!(item, QueueItem::Added(_)));
    }

    /// Discards everything that was read. Added and removed scopes and problems stay.
    pub(super) fn forget_read(&mut self, memory: &mut QueueMemory) {
        self.discard(memory, |item| item.scope_id().is_some());
        self.scopes.clear();
        self.unsent_checkpoints.clear();
        self.refused = 0;
    }

    pub(super) fn clear(&mut self, memory: &mut QueueMemory) {
        self.share.set(0, memory);
        *self = Self { next_place: self.next_place, ..Self::default() };
    }

    fn discard(&mut self, memory: &mut QueueMemory, unwanted: impl Fn(&QueueItem) -> bool) {
        let places: Vec<u64> =
            self.items.iter().filter(|(_, item)| unwanted(item)).map(|(place, _)| *place).collect();
        for place in places {
            self.take(place, memory);
        }
    }

    fn push(&mut self, item: QueueItem, memory: &mut QueueMemory) -> u64 {
        if let Some(scope) = item.scope_id() {
            self.scopes.entry(scope).or_default().queued += 1;
        }
        self.share.set(self.share.bytes() + item.bytes(), memory);
        let place = self.next_place;
        self.next_place += 1;
        self.items.insert(place, item);
        place
    }

    fn take(&mut self, place: u64, memory: &mut QueueMemory) {
        let Some(item) = self.items.remove(&place) else { return };
        self.share.set(self.share.bytes() - item.bytes(), memory);
        if let Some(scope) = item.scope_id().and_then(|scope| self.scopes.get_mut(&scope)) {
            scope.queued -= 1;
        }
        if let QueueItem::Event(event) = item
            && self.places.get(&event.key) == Some(&place)
        {
            self.places.remove(&event.key);
        }
    }

    fn take_problem(&mut self, scope_id: u32, memory: &mut QueueMemory) {
        if let Some(problem) = self.problems.remove(&scope_id) {
            self.share.set(self.share.bytes() - ENTRY_BYTES - problem.encoded_len(), memory);
        }
    }

    /// Time at which there is something to send, which may be past; `None` if nothing waits.
    pub(super) fn due_at(&self, now: Instant) -> Option<Instant> {
        if !self.items.is_empty() || !self.problems.is_empty() {
            return Some(now);
        }
        let is_sendable = |scope: &u32| self.scopes.get(scope).is_some_and(|scope| scope.read.is_some());
        if !self.unsent_checkpoints.iter().any(is_sendable) {
            return None;
        }
        Some(self.cut_at.map_or(now, |cut_at| (cut_at + CHECKPOINT_INTERVAL).max(now)))
    }

    /// Minimum size of the next batch, in bytes; `None` if only checkpoints or problems wait.
    pub(super) fn min_bytes(&self, batch: &BatchBuilder) -> Option<usize> {
        self.items.first_key_value().map(|(_, item)| batch.bytes_with(item))
    }

    /// Moves as much as fits from the head of the queue into a batch.
    pub(super) fn cut(
        &mut self,
        mut batch: BatchBuilder,
        max_event_bytes: usize,
        now: Instant,
        memory: &mut QueueMemory,
    ) -> BatchBuilder {
        while let Some(mut first) = self.items.first_entry() {
            if let QueueItem::Event(event) = first.get_mut()
                && event.encoded.len() > max_event_bytes
            {
                let before = event.bytes();
                event.omit_body();
                let freed = before.saturating_sub(event.bytes());
                self.share.set(self.share.bytes().saturating_sub(freed), memory);
            }
            // The end of a list withdraws earlier problems of its scope.
            if let QueueItem::Synced(Synced { scope_id, .. }) = *first.get()
                && let Some(problem) = self.problems.get(&scope_id)
            {
                if batch.add_problem(scope_id, problem) {
                    self.take_problem(scope_id, memory);
                    continue;
                }
                if !batch.is_empty() {
                    break;
                }
            }
            if !batch.add(first.get(), now) {
                break;
            }
            let place = *first.key();
            self.take(place, memory);
        }
        self.add_checkpoints(&mut batch);
        let sent: Vec<u32> = self
            .problems
            .iter()
            .take_while(|(scope, problem)| batch.add_problem(**scope, problem))
            .map(|(scope, _)| *scope)
            .collect();
        sent.into_iter().for_each(|scope| self.take_problem(scope, memory));
        self.cut_at = Some(now);
        batch
    }

    /// Adds the last read version of each scope without queued entries.
    fn add_checkpoints(&mut self, batch: &mut BatchBuilder) {
        let scopes = &self.scopes;
        self.unsent_checkpoints.retain(|id| {
            let Some(scope) = scopes.get(id) else { return false };
            let Some(read) = &scope.read else { return false };
            let is_sent = scope.queued == 0 && !batch.is_synced(*id) && batch.add_last_read(*id, read);
            !is_sent
        });
    }
}
