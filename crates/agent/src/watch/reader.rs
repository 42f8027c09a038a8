//! Reader of one scope: executes the actions of the scope's machine and reports their results.
//!
//! A reader owns the scope's requests to the API server: its output goes to its [`ReaderSink`], and its input from
//! elsewhere (the rows of a basis, another client) comes as a [`ReaderInput`]. It has at most one request and one
//! object in memory, and ends when its future is dropped.

use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::channel::mpsc;
use http::header::ACCEPT;
use http::{HeaderValue, Method, StatusCode, Version};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Bytes;
use parking_lot::Mutex;
use tokio::time::timeout;
use ulid::Ulid;

use crate::cluster::{ClusterClient, ClusterRequest, ClusterResponse, PoolSlot, ResponseBody, Use};
use crate::scrub::{
    BodyEncoder, ClusterStatus, Inspected, InspectedObject, ItemSplitter, LineSplitter, ListPage,
    ObjectIdentity, OmittedBody, RawObject, Scrubber, Unidentified, WatchEventType, WatchLine, delete_event,
    read_watch_line,
};
use crate::watch::budget::{LARGE_PIECE_BYTES, LargePieceTurn, ListBudget, ListPermit, ListTurn, SentMemory};
use crate::watch::left_out_objects::LeftOutSet;
use crate::watch::{
    ItemStep, LargePieces, ListReason, ObjectStep, PageRequest, PageStep, RequestFailure, ScopeAction,
    ScopeWatch, SyncEnd, WaitReason, WatchRequest,
};
use kubesvc_core::wire::common::{Failure, Scope};
use kubesvc_core::wire::events::event::Operation;
use kubesvc_core::wire::events::{BasisRow, Event, LeftOutObjects, Synced};
use kubesvc_runtime::waits::at;

#[cfg(test)]
mod tests;

/// Maximum number of bytes read of the body of a refusal.
const MAX_REFUSAL_BYTES: usize = 64 * 1024;
/// Maximum time for which a list waits for room in the queue. The list then restarts once there is room: its response
/// must not stall a connection that others share.
const LIST_ROOM_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time for which a list that has its basis waits for its turn, after a failure. Lists that hold a turn may
/// wait for the memory of that basis; the server keeps the next page for some minutes.
const LIST_TURN_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum time for a large line or item to arrive while others wait for their turn.
const LARGE_PIECE_TIMEOUT: Duration = Duration::from_secs(60);
/// Query of a list that is made for its version. It names none itself, so the answer is not older than the request.
const VERSION_QUERY: &str = "limit=1";
/// Accept header for whole objects.
const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// Accept header for lists of metadata alone: the data of a Secret never leaves the API server.
const METADATA_LIST: HeaderValue =
    HeaderValue::from_static("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1");
/// Accept header for watches of metadata alone.
const METADATA: HeaderValue =
    HeaderValue::from_static("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1");

/// Receiver of what a reader reads.
pub trait ReaderSink: Send + Sync + 'static {
    /// Queues an event. The sink sets its `scope_id`.
    ///
    /// # Errors
    ///
    /// Returns the event if the queue has no room.
    fn event(&self, event: Event) -> Result<(), Box<Event>>;
    /// Records that the scope is read up to a version.
    fn checkpoint(&self, resource_version: String);
    /// Queues the start of a list. Its basis comes as [`ReaderInput::Basis`].
    fn sync_start(&self, sync_key: String);
    /// Queues the end of a list. The sink sets its `scope_id`.
    fn synced(&self, synced: Synced);
    /// Records why the scope is not read; `None` withdraws the reason.
    fn problem(&self, problem: Option<&Failure>);
    /// Records that the scope waits: the credential may have to be read again, or the kind may be gone.
    fn waits(&self, reason: WaitReason);
    /// Records an object, or a part of one, that could not be taken.
    fn left_out(&self, what: OmittedItem);
    /// Records the objects of the scope that are left out; the findings of a list come before its end.
    fn left_out_objects(&self, _objects: LeftOutObjects) {}
    /// Records that this reader has read the scope for the first time, which voids the reports of former readers.
    fn is_read(&self) {}
    fn state(&self, _state: WatchState) {}
    fn list_begins(&self, _reason: ListReason) {}
    fn watch_ended(&self, _why: WatchEnd) {}
    /// Waits until there is room for events again.
    fn room(&self) -> impl Future<Output = ()> + Send;
}

/// State of a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchState {
    /// Waits for a retry, or for room in the queue.
    Waiting,
    /// Lists, or waits for its turn to list.
    Listing,
    Watching,
}

impl WatchState {
    /// Name for display.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "WAITING",
            Self::Listing => "LISTING",
            Self::Watching => "WATCHING",
        }
    }
}

/// Reason of a watch's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchEnd {
    /// The server ended it at the end of its duration.
    Ended,
    Broken,
    /// The version has expired.
    Expired,
    /// The watch returned an error, or was unreadable.
    Failed,
    /// The queue is full.
    Paused,
    /// The agent aborted it: silence, a list, or another credential.
    GivenUp,
}

impl WatchEnd {
    pub const ALL: [Self; 6] =
        [Self::Ended, Self::Broken, Self::Expired, Self::Failed, Self::Paused, Self::GivenUp];

    /// Value of the metric's label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ended => "ended",
            Self::Broken => "broken",
            Self::Expired => "expired",
            Self::Failed => "failed",
            Self::Paused => "paused",
            Self::GivenUp => "given_up",
        }
    }
}

/// Something of a cluster that could not be taken.
#[derive(Debug)]
pub enum OmittedItem {
    Body(OmittedBody),
    Object(Unidentified),
}

/// Input of a reader.
pub enum ReaderInput {
    /// The hub's rows for a list, or why there are none.
    Basis {
        sync_key: String,
        /// The rows by frame, in any order.
        frames: Box<dyn Iterator<Item = Result<Vec<BasisRow>, Failure>> + Send>,
    },
    /// Client for all further requests.
    Client(ClusterClient),
}

impl std::fmt::Debug for ReaderInput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Basis { .. } => "Basis",
            Self::Client(_) => "Client",
        })
    }
}

/// State that a reader shares with the others of its agent and account.
#[derive(Clone, Debug)]
pub struct ReaderContext {
    /// Encodes bodies, one after another.
    pub encoder: Arc<Mutex<BodyEncoder>>,
    pub budget: ListBudget,
    pub large_pieces: LargePieces,
}

/// The reader of one scope.
#[derive(Debug)]
pub struct ScopeReader<S> {
    client: ClusterClient,
    path: String,
    is_metadata_alone: bool,
    scrubber: Scrubber,
    context: ReaderContext,
    machine: ScopeWatch,
    /// Last known number of rows, for the memory of the basis.
    objects: u64,
    permit: Option<ListPermit>,
    /// Memory for the objects that lists have sent, kept between lists.
    sent_memory: SentMemory,
    /// Slot for a connection, if each request takes one. Kept, so that the same scopes are read all the time.
    slot: Option<PoolSlot>,
    problem: Option<Failure>,
    left_out: LeftOutSet,
    /// Whether the sink knows that the scope is read.
    is_read: bool,
    /// No tokio channel, which would allocate room for 32 inputs; there are few.
    inputs: mpsc::Receiver<ReaderInput>,
    sink: S,
}

/// API path of the objects of a scope.
pub fn objects_path(scope: &Scope) -> String {
    let Scope { group, version, plural, namespace, .. } = scope;
    let api = if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
    if namespace.is_empty() {
        format!("{api}/{plural}")
    } else {
        format!("{api}/namespaces/{namespace}/{plural}")
    }
}

fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

impl<S: ReaderSink> ScopeReader<S> {
    /// A reader that begins at its machine's state. `is_metadata_alone` requests metadata only; `objects` is the number
    /// of rows at the last sync.
    pub fn new(
        (client, scope): (ClusterClient, &Scope),
        (scrubber, is_metadata_alone): (Scrubber, bool),
        (machine, objects): (ScopeWatch, u64),
        context: ReaderContext,
        (inputs, sink): (mpsc::Receiver<ReaderInput>, S),
    ) -> Self {
        let path = objects_path(scope);
        Self {
            client,
            path,
            is_metadata_alone,
            scrubber,
            context,
            machine,
            objects,
            permit: None,
            sent_memory: SentMemory::default(),
            slot: None,
            problem: None,
            left_out: LeftOutSet::default(),
            is_read: false,
            inputs,
            sink,
        }
    }

    /// Reads the scope until dropped.
    ///
    /// Short steps are boxed: an account has a reader for each kind, mostly idle in a watch. Unboxed, each would
    /// reserve room for all steps, some 20 KiB.
    pub async fn run(mut self) {
        let mut waits_for = None;
        loop {
            self.tick();
            let action = self.machine.action();
            let reason = match action {
                ScopeAction::Wait(reason) => Some(reason),
                _ => None,
            };
            if let Some(reason) = reason.filter(|_| waits_for != reason) {
                self.sink.waits(reason);
            }
            waits_for = reason;
            match &action {
                ScopeAction::Wait(reason) => {
                    self.sink.state(WatchState::Waiting);
                    // A turn is for lists that proceed, and a connection for scopes that can be read.
                    self.permit.iter_mut().for_each(ListPermit::leave_turn);
                    if reason.needs_change() {
                        self.slot = None;
                    }
                }
                ScopeAction::BeginSync | ScopeAction::AwaitBasis | ScopeAction::ListPage(_) => {
                    self.sink.state(WatchState::Listing);
                }
                // Reported once the response of the watch begins.
                ScopeAction::CheckVersion(_) | ScopeAction::Watch(_) => {}
            }
            match &action {
                // A list that was aborted for lack of room holds neither its response nor a turn.
                ScopeAction::Wait(WaitReason::Paused) => {
                    self.sink.room().await;
                    self.machine.unpause(now());
                }
                ScopeAction::Wait(_) | ScopeAction::AwaitBasis => {
                    let _: Option<()> = self.until_changed(&action, pending()).await;
                }
                ScopeAction::BeginSync => Box::pin(self.begin_sync(&action)).await,
                ScopeAction::ListPage(page) => Box::pin(self.list_page(&action, page)).await,
                ScopeAction::CheckVersion(_) => Box::pin(self.check_version(&action)).await,
                ScopeAction::Watch(watch) => self.watch(&action, watch).await,
            }
        }
    }

    /// Advances time, and reports what changed.
    fn tick(&mut self) {
        if let Some(version) = self.machine.tick(now()) {
            self.sink.checkpoint(version);
        }
        if !self.machine.is_listing() {
            self.permit = None;
        }
        if self.machine.sent_objects().unwrap_or_default() == 0 {
            self.sent_memory = SentMemory::default();
        }
        if self.machine.problem() != self.problem.as_ref() {
            self.problem = self.machine.problem().cloned();
            self.sink.problem(self.problem.as_ref());
            self.is_read |= self.problem.is_none();
        }
        if !self.is_read && self.machine.is_read() {
            self.is_read = true;
            self.sink.is_read();
        }
    }

    /// Waits for a step of the action; `None` if the action changed meanwhile.
    async fn until_changed<T>(&mut self, action: &ScopeAction, step: impl Future<Output = T>) -> Option<T> {
        let mut step = std::pin::pin!(step);
        loop {
            self.tick();
            if !self.machine.action().continues(action) {
                return None;
            }
            let due = self.machine.next_tick();
            tokio::select! {
                result = &mut step => return Some(result),
                Some(input) = self.inputs.next() => self.take(input),
                () = at(due) => {}
            }
        }
    }

    fn take(&mut self, input: ReaderInput) {
        match input {
            ReaderInput::Basis { sync_key, frames } => self.take_basis(&sync_key, frames),
            ReaderInput::Client(client) => {
                self.client = client;
                self.slot = None;
                self.machine.reconnect(now());
            }
        }
    }

    fn take_basis(&mut self, sync_key: &str, frames: impl Iterator<Item = Result<Vec<BasisRow>, Failure>>) {
        if !self.machine.awaits_basis(sync_key) {
            return;
        }
        let (mut count, mut has_memory) = (0, true);
        for frame in frames {
            let rows = match frame {
                Ok(rows) => rows,
                Err(failure) => return self.give_up_list(&RequestFailure::Connection(failure)),
            };
            count += rows.len() as u64;
            has_memory = has_memory && self.permit.as_mut().is_some_and(|permit| permit.reserve(count));
            if !has_memory {
                // Rows are only counted.
                continue;
            }
            let failure = rows.iter().find_map(|row| {
                let BasisRow { namespace, name, uid, rv } = row;
                self.machine.basis_row(sync_key, namespace, name, uid, rv).err()
            });
            if let Some(too_large) = failure {
                return self.give_up_list(&RequestFailure::Unreadable(too_large.to_string()));
            }
        }
        if has_memory {
            return self.machine.basis_end(sync_key, now());
        }
        // More rows than at the last sync: the list waits for their memory before it has a basis, as all lists do.
        self.objects = count;
        self.machine.relist(false);
    }

    /// Restarts the list later.
    fn give_up_list(&mut self, why: &RequestFailure) {
        self.machine.relist(false);
        self.machine.failed(why, now());
    }

    async fn begin_sync(&mut self, action: &ScopeAction) {
        if let Err(failure) = self.take_slot(self.client.speaks_http1(Use::Watches)) {
            return self.failed(failure);
        }
        let permit = self.context.budget.clone().acquire(self.objects);
        let Some(permit) = self.until_changed(action, permit).await else { return };
        let sync_key = Ulid::generate().to_string();
        let reason = self.machine.list_reason();
        if self.machine.begin_sync(sync_key.clone(), now()) {
            self.permit = Some(permit);
            self.left_out.list_begins();
            reason.into_iter().for_each(|reason| self.sink.list_begins(reason));
            self.sink.sync_start(sync_key);
        }
    }

    /// Takes a slot, if each request takes a connection.
    fn take_slot(&mut self, is_http1: bool) -> Result<(), RequestFailure> {
        if is_http1 && self.slot.is_none() {
            let slot = self.client.slot(Use::Watches);
            self.slot = Some(slot.map_err(|error| RequestFailure::TooManyWatches(error.into()))?);
        }
        Ok(())
    }

    /// Takes or returns a slot according to a response's protocol, which is unknown before the first one.
    fn adjust_slot(&mut self, version: Version) -> Result<(), RequestFailure> {
        if version == Version::HTTP_2 {
            self.slot = None;
            return Ok(());
        }
        self.take_slot(true)
    }

    /// Sends a request. Returns the body of a response with status 200, and reports any other to the machine.
    async fn response(
        &mut self,
        action: &ScopeAction,
        query: &str,
        accept: HeaderValue,
    ) -> Option<ResponseBody> {
        if let Err(failure) = self.take_slot(self.client.speaks_http1(Use::Watches)) {
            self.failed(failure);
            return None;
        }
        let separator = if query.is_empty() { "" } else { "?" };
        let request = ClusterRequest::new(Method::GET, format!("{}{separator}{query}", self.path));
        let client = self.client.clone();
        let sent = client.send(Use::Watches, request.header(ACCEPT, accept));
        let failure = match self.until_changed(action, sent).await? {
            Ok(response) if response.status() == StatusCode::OK => {
                match self.adjust_slot(response.version()) {
                    Ok(()) => return Some(response.into_body()),
                    Err(failure) => failure,
                }
            }
            Ok(response) => RequestFailure::Status(self.until_changed(action, refusal(response)).await?),
            Err(error) => RequestFailure::Connection(error.into()),
        };
        self.failed(failure);
        None
    }

    /// Reports a failure to the machine, with the credential removed from the server's text.
    fn failed(&mut self, failure: RequestFailure) {
        let failure = match failure {
            RequestFailure::Status(status) => RequestFailure::Status(ClusterStatus {
                message: self.client.without_credential(&status.message),
                reason: self.client.without_credential(&status.reason),
                ..status
            }),
            failure => failure,
        };
        self.machine.failed(&failure, now());
    }

    async fn list_page(&mut self, action: &ScopeAction, page: &PageRequest) {
        if self.permit.as_ref().is_some_and(|permit| !permit.has_turn()) {
            let turn = timeout(LIST_TURN_TIMEOUT, self.context.budget.clone().turn());
            match self.until_changed(action, turn).await {
                Some(Ok(turn)) => self.retake_turn(turn),
                // The list waits for its turn before it has a basis, as all lists do.
                Some(Err(_)) => return self.machine.relist(false),
                None => return,
            }
        }
        if let Some(page) = self.read_page(action, &page.query()).await {
            self.page_end(page).await;
        }
    }

    /// Resumes the list with a new turn.
    fn retake_turn(&mut self, turn: ListTurn) {
        if let Some(permit) = &mut self.permit {
            permit.retake_turn(turn);
        }
        self.machine.progress(now());
    }

    async fn check_version(&mut self, action: &ScopeAction) {
        if let Some(page) = self.read_page(action, VERSION_QUERY).await {
            self.machine.version_checked(&page.resource_version, now());
        }
    }

    /// Reads a page, and queues its items if the scope is listed. `None`: it failed, or the action changed.
    async fn read_page(&mut self, action: &ScopeAction, query: &str) -> Option<ListPage> {
        let accept = if self.is_metadata_alone { METADATA_LIST } else { JSON };
        let mut body = self.response(action, query, accept).await?;
        let mut items = ItemSplitter::default();
        let mut turn = None;
        let failure = 'page: loop {
            let chunk = match self.until_changed(action, body.frame()).await? {
                Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
                Some(Err(error)) => break RequestFailure::Connection(error.into()),
                None => match items.finish() {
                    Ok(page) => return Some(page),
                    Err(error) => break error.into(),
                },
            };
            self.machine.progress(now());
            items.push(chunk);
            loop {
                match items.next_item() {
                    Ok(None) => break,
                    Ok(Some(item)) => {
                        if let Some(event) = self.listed(&item)
                            && !self.queue_listed(action, event).await
                        {
                            return None;
                        }
                    }
                    Err(error) => break 'page error.into(),
                }
            }
            if let Err(failure) = self.take_turn(action, items.pending_bytes(), &mut turn).await? {
                break failure;
            }
        };
        self.failed(failure);
        None
    }

    /// Waits for a turn once a line or item in memory has become large. `None`: the action changed meanwhile.
    async fn take_turn(
        &mut self,
        action: &ScopeAction,
        pending_bytes: usize,
        turn: &mut Option<(LargePieceTurn, Instant)>,
    ) -> Option<Result<(), RequestFailure>> {
        if pending_bytes <= LARGE_PIECE_BYTES {
            *turn = None;
        } else if let Some((_, since)) = turn {
            if now() >= *since + LARGE_PIECE_TIMEOUT {
                return Some(Err(RequestFailure::stalled(LARGE_PIECE_TIMEOUT)));
            }
        } else {
            let waiting = self.context.large_pieces.clone().turn();
            let taken = Box::pin(self.until_changed(action, waiting)).await?;
            self.machine.progress(now());
            *turn = Some((taken, now()));
        }
        Some(Ok(()))
    }

    /// Event for an item of a page, if it is to be sent.
    fn listed(&mut self, item: &Bytes) -> Option<Event> {
        self.reserve_sent();
        match self.scrubber.inspect(&RawObject::read(item), Operation::Upsert) {
            Inspected::Object(object) => match self.machine.item(object.identity(), None, now()) {
                ItemStep::Upsert => Some(encode(*object, &self.context.encoder, &self.sink)),
                ItemStep::Skip => None,
            },
            Inspected::Excluded(exclusion, identity) => {
                self.machine.item(&identity, Some(exclusion), now());
                None
            }
            Inspected::Unidentified(unidentified) => {
                self.machine.unidentified_item(now());
                self.left_out.listed(&unidentified);
                self.sink.left_out(OmittedItem::Object(unidentified));
                None
            }
        }
    }

    /// Takes memory to remember one more sent object.
    fn reserve_sent(&mut self) {
        let Some(objects) = self.machine.sent_objects() else { return };
        if !self.sent_memory.reserve(&self.context.budget, objects + 1) {
            self.machine.remember_no_more();
        }
    }

    /// Queues an event of a list. Returns whether the page goes on; if there is no room for long, the scope pauses.
    async fn queue_listed(&mut self, action: &ScopeAction, event: Event) -> bool {
        let Err(event) = self.sink.event(event) else { return true };
        match timeout(LIST_ROOM_TIMEOUT, queue_again(&self.sink, event)).await {
            Ok(()) => {
                // The response stalled because the queue was full.
                self.machine.progress(now());
                self.tick();
                self.machine.action().continues(action)
            }
            Err(_) => {
                self.machine.pause(now());
                false
            }
        }
    }

    async fn page_end(&mut self, page: ListPage) {
        if let PageStep::Complete(end) = self.machine.page_end(page, now()) {
            let SyncEnd { leftover, synced } = *end;
            self.objects = synced.kept.saturating_add(synced.sent);
            for gone in leftover {
                queue(&self.sink, delete_event(0, gone.into())).await;
            }
            self.left_out.list_ends();
            self.sink.left_out_objects(self.left_out.told());
            self.sink.synced(synced);
        }
    }

    async fn watch(&mut self, action: &ScopeAction, watch: &WatchRequest) {
        let accept = if self.is_metadata_alone { METADATA } else { JSON };
        let Some(mut body) = Box::pin(self.response(action, &watch.query(), accept)).await else { return };
        self.machine.watch_opened(now());
        self.sink.state(WatchState::Watching);
        let mut lines = LineSplitter::default();
        let mut turn = None;
        while let Some(frame) = self.until_changed(action, body.frame()).await {
            // An incomplete last line is sent again.
            let Some(Ok(frame)) = frame else {
                self.sink.watch_ended(if frame.is_none() { WatchEnd::Ended } else { WatchEnd::Broken });
                return self.machine.watch_ended(now());
            };
            self.machine.progress(now());
            lines.push(frame.into_data().unwrap_or_default());
            loop {
                let event = match lines.next_line() {
                    Ok(None) => break,
                    Ok(Some(line)) => match self.line(&line) {
                        Ok(event) => event,
                        Err(failure) => return self.watch_failed(failure),
                    },
                    Err(error) => return self.watch_failed(error.into()),
                };
                if let Some(Err(event)) = event.map(|event| self.sink.event(event)) {
                    // The event counts as read, so the watch resumes after it.
                    self.machine.pause(now());
                    drop((body, lines, turn));
                    self.sink.watch_ended(WatchEnd::Paused);
                    self.sink.state(WatchState::Waiting);
                    Box::pin(queue_again(&self.sink, event)).await;
                    return self.machine.unpause(now());
                }
            }
            match self.take_turn(action, lines.pending_bytes(), &mut turn).await {
                Some(Ok(())) => {}
                Some(Err(failure)) => return self.watch_failed(failure),
                None => break,
            }
        }
        self.sink.watch_ended(WatchEnd::GivenUp);
    }

    fn watch_failed(&mut self, failure: RequestFailure) {
        let is_expired = failure.is_expired();
        self.sink.watch_ended(if is_expired { WatchEnd::Expired } else { WatchEnd::Failed });
        self.failed(failure);
    }

    /// Event for a line of a watch, if any.
    fn line(&mut self, line: &Bytes) -> Result<Option<Event>, RequestFailure> {
        match read_watch_line(line)? {
            WatchLine::Object(change, object) => Ok(self.watched(change, &object)),
            WatchLine::Bookmark { resource_version } => {
                if let Some(version) = self.machine.bookmark(&resource_version, now()) {
                    self.sink.checkpoint(version);
                }
                Ok(None)
            }
            WatchLine::Error(status) => Err(status.into()),
        }
    }

    fn watched(&mut self, change: WatchEventType, object: &RawObject<'_>) -> Option<Event> {
        let operation = if change == WatchEventType::Deleted { Operation::Delete } else { Operation::Upsert };
        match self.scrubber.inspect(object, operation) {
            Inspected::Object(object) => {
                let ObjectIdentity { namespace, name, .. } = object.identity();
                if self.left_out.resolved(namespace, name) {
                    self.sink.left_out_objects(self.left_out.told());
                }
                match self.machine.object(change, object.identity(), None, now()) {
                    ObjectStep::Upsert | ObjectStep::Delete => {
                        Some(encode(*object, &self.context.encoder, &self.sink))
                    }
                    ObjectStep::Skip => None,
                }
            }
            Inspected::Excluded(exclusion, identity) => {
                if self.left_out.resolved(&identity.namespace, &identity.name) {
                    self.sink.left_out_objects(self.left_out.told());
                }
                match self.machine.object(change, &identity, Some(exclusion), now()) {
                    ObjectStep::Delete => Some(delete_event(0, identity)),
                    ObjectStep::Upsert | ObjectStep::Skip => None,
                }
            }
            Inspected::Unidentified(unidentified) => {
                let version = self.machine.unidentified_object(now());
                let is_news = match change {
                    WatchEventType::Deleted => {
                        self.left_out.resolved(&unidentified.namespace, &unidentified.name)
                    }
                    WatchEventType::Added | WatchEventType::Modified => self.left_out.watched(&unidentified),
                };
                if is_news {
                    self.sink.left_out_objects(self.left_out.told());
                }
                // A row of an earlier state would be mistaken for the object.
                let version = version.filter(|_| unidentified.has_name());
                let row = version.map(|resource_version| ObjectIdentity {
                    namespace: unidentified.namespace.clone(),
                    name: unidentified.name.clone(),
                    uid: String::new(),
                    resource_version,
                });
                self.sink.left_out(OmittedItem::Object(unidentified));
                row.map(|row| delete_event(0, row))
            }
        }
    }
}

fn encode(object: InspectedObject<'_>, encoder: &Mutex<BodyEncoder>, sink: &impl ReaderSink) -> Event {
    let scrubbed = object.into_event(0, &mut encoder.lock());
    if let Some(omitted) = scrubbed.omitted {
        sink.left_out(OmittedItem::Body(omitted));
    }
    scrubbed.event
}

/// Queues an event as soon as there is room.
pub(crate) async fn queue(sink: &impl ReaderSink, event: Event) {
    if let Err(refused) = sink.event(event) {
        queue_again(sink, refused).await;
    }
}

/// Queues a refused event once there is room.
async fn queue_again(sink: &impl ReaderSink, mut event: Box<Event>) {
    loop {
        sink.room().await;
        match sink.event(*event) {
            Ok(()) => return,
            Err(refused) => event = refused,
        }
    }
}

/// Status of a response other than 200. A body that is no `Status` is not shown: otherwise anyone who can name an
/// address could read what it serves.
async fn refusal(response: ClusterResponse) -> ClusterStatus {
    let code = response.status().as_u16();
    let header = response.headers().get(http::header::RETRY_AFTER);
    let seconds = header.and_then(|value| value.to_str().ok()).and_then(|value| value.parse().ok());
    let body = Limited::new(response.into_body(), MAX_REFUSAL_BYTES).collect().await;
    let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let status = ClusterStatus::read(&body).unwrap_or_default();
    let retry_after = seconds.map(Duration::from_secs).or(status.retry_after);
    ClusterStatus { code, retry_after, ..status }
}
