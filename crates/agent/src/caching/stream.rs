//! All accounts of an agent on one stream: their turns and credit.
//!
//! The driver feeds in assignments, reports of readers, and the hub's frames; after each it calls
//! [`CachingSender::poll`] until that returns [`StreamAction::Wait`].

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::account_sender::{AccountSender, DeliveryNumbers, NextFrame, ReaderCommand};
use super::batch::SentEvents;
use super::batch::{EncodedFrame, MAX_BATCH_EVENTS};
use super::credit::SenderCredit;
use super::lifetime::{Demand, StreamLifetime, earlier};
use super::memory::QueueMemory;
use super::turns::Turns;
use super::unacked::InFlightSize;
use kubesvc_core::wire::MAX_UNCOMMITTED_EVENTS;
use kubesvc_core::wire::common::Fence;
use kubesvc_core::wire::events::closed::Reason;
use kubesvc_core::wire::events::revoked::Reason as RevokedReason;
use kubesvc_core::wire::events::{
    CacheDown, Closed, End, Open, Ping, Resume, SyncBasis, Want, cache_down, cache_up,
};

/// Maximum number of events in flight of one account: a quarter of the stream's limit, as with its credit.
pub const MAX_ACCOUNT_UNCOMMITTED_EVENTS: usize = MAX_UNCOMMITTED_EVENTS / 4;

/// Session to which the stream belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamIdentity {
    /// Id of the session of GetOps.
    pub session_id: String,
    pub agent_id: String,
    pub boot_id: String,
    /// Replica that owns the session.
    pub replica_id: String,
    /// Maximum size of a message to the hub, in bytes.
    pub max_message_bytes: usize,
}

/// Next action of the driver.
#[derive(Debug, PartialEq)]
pub enum StreamAction {
    /// Call `events.Caching/Stream` and send this frame. Later inputs refer to the stream by its number.
    Open {
        stream: u64,
        frame: EncodedFrame,
    },
    Send(EncodedFrame),
    /// End the stream, and report nothing more of it.
    Close,
    /// Wait for an input, at most until this time, if any.
    Wait(Option<Instant>),
}

/// A command for the readers of an account.
#[derive(Debug)]
pub struct AccountCommand {
    pub account_uid: String,
    pub command: ReaderCommand,
}

/// Effects of a frame of the hub.
#[derive(Debug, Default)]
pub struct FrameOutcome {
    /// Commands for readers.
    pub commands: Vec<AccountCommand>,
    /// The hub accepts nothing more of this account under its fence.
    pub revoked: Option<(Fence, RevokedReason)>,
    /// Reason for which the hub closed the stream.
    pub closed: Option<Closed>,
    /// Whether the frame was ignored because its kind is unknown or it names no account.
    pub is_unknown: bool,
}

/// The agent's stream of cached objects.
#[derive(Clone, Debug)]
pub struct CachingSender {
    identity: Option<StreamIdentity>,
    lifetime: StreamLifetime,
    /// Number of the last stream.
    stream: u64,
    credit: SenderCredit,
    memory: QueueMemory,
    accounts: BTreeMap<Arc<str>, AccountSender>,
    turns: Turns,
    /// Events in flight of all accounts.
    in_flight_events: usize,
    /// Frames of ended accounts.
    ends: VecDeque<EncodedFrame>,
    /// Highest numbers of ended deliveries.
    used: DeliveryNumbers,
}

impl CachingSender {
    pub fn new(memory: QueueMemory, now: Instant) -> Self {
        Self {
            identity: None,
            lifetime: StreamLifetime::new(now),
            stream: 0,
            credit: SenderCredit::new(now),
            memory,
            accounts: BTreeMap::new(),
            turns: Turns::default(),
            in_flight_events: 0,
            ends: VecDeque::new(),
            used: DeliveryNumbers::default(),
        }
    }

    /// Records a new session, or its end (`None`), which also ends the stream.
    pub fn session_changed(&mut self, identity: Option<StreamIdentity>) {
        self.lifetime.session_changed(identity.is_some());
        self.identity = identity;
        self.detach();
    }

    /// Assigns an account under a fence. Ends an older delivery; keeps one under the same fence.
    pub fn assign(&mut self, fence: Fence, max_resumable_age: Duration, now: Instant) -> Vec<AccountCommand> {
        let uid: Arc<str> = fence.account_uid.as_str().into();
        if self.accounts.get(&uid).is_some_and(|known| known.fence().caching_epoch >= fence.caching_epoch) {
            return Vec::new();
        }
        let commands = self.end_account(&uid, now);
        let mut delivery = AccountSender::new(fence, max_resumable_age, self.used);
        if self.lifetime.is_open() {
            delivery.attach(self.max_message_bytes());
        }
        self.turns.wake(&uid);
        self.accounts.insert(uid, delivery);
        self.lifetime.assigned(true, now);
        commands
    }

    /// Ends the streaming of an account under this epoch or an older one.
    pub fn unassign(&mut self, fence: &Fence, now: Instant) -> Vec<AccountCommand> {
        let known = self.accounts.get(fence.account_uid.as_str());
        if known.is_none_or(|known| known.fence().caching_epoch > fence.caching_epoch) {
            return Vec::new();
        }
        let commands = self.end_account(&fence.account_uid, now);
        self.lifetime.assigned(!self.accounts.is_empty(), now);
        commands
    }

    /// Ends a delivery. The hub is notified if it knows the delivery on this stream.
    fn end_account(&mut self, uid: &str, now: Instant) -> Vec<AccountCommand> {
        let Some((key, mut delivery)) = self.accounts.remove_entry(uid) else { return Vec::new() };
        self.turns.forget(&key);
        self.used = self.used.max(delivery.numbers());
        self.settle(delivery.in_flight(), now);
        if delivery.is_begun() {
            let end = End { fence: Some(delivery.fence().clone()) };
            self.ends.push_back(EncodedFrame::encode(cache_up::Frame::End(end)));
        }
        for_account(uid, delivery.end(&mut self.memory))
    }

    /// An account and the memory of its queue, for a change after which it may have something to send.
    pub fn account(&mut self, uid: &str) -> Option<(&mut AccountSender, &mut QueueMemory)> {
        let (key, _) = self.accounts.get_key_value(uid)?;
        self.turns.wake(key);
        self.accounts.get_mut(uid).map(|delivery| (delivery, &mut self.memory))
    }

    pub fn inspect(&self, uid: &str) -> Option<(&AccountSender, &QueueMemory)> {
        self.accounts.get(uid).map(|delivery| (delivery, &self.memory))
    }

    /// Settles bytes and events that were committed or discarded.
    fn settle(&mut self, freed: InFlightSize, now: Instant) {
        self.in_flight_events -= freed.events;
        if freed.bytes > 0 {
            self.credit.settle(freed.bytes, now);
        }
    }

    /// Takes the events sent since the last call.
    pub(super) fn take_sent(&mut self) -> Option<SentEvents> {
        let served = self.accounts.get_mut(self.turns.served()?)?;
        Some(served.take_sent()).filter(|sent| !sent.is_empty())
    }

    /// Bytes of all accounts that are read and not known to be committed.
    pub fn pending_bytes(&self) -> usize {
        self.accounts.values().map(|account| account.waiting_bytes() + account.in_flight_bytes()).sum()
    }

    fn max_message_bytes(&self) -> usize {
        self.identity
            .as_ref()
            .map_or(kubesvc_core::wire::MAX_MESSAGE_BYTES, |identity| identity.max_message_bytes)
    }

    fn detach(&mut self) {
        self.ends.clear();
        self.accounts.values_mut().for_each(AccountSender::detach);
        self.in_flight_events = 0;
    }

    /// Handles a stream that ended without a Closed frame, or could not be opened.
    pub fn ended(&mut self, stream: u64, now: Instant) {
        if stream == self.stream && self.lifetime.is_begun() {
            self.lifetime.ended(None, now);
            self.detach();
        }
    }

    /// Handles a frame of the hub on a stream.
    pub fn frame(&mut self, stream: u64, frame: CacheDown, now: Instant) -> FrameOutcome {
        if stream != self.stream || !self.lifetime.is_begun() {
            return FrameOutcome::default();
        }
        let unknown = || FrameOutcome { is_unknown: true, ..FrameOutcome::default() };
        match frame.frame {
            None => unknown(),
            Some(cache_down::Frame::Credit(credit)) => {
                if self.lifetime.answered(now) {
                    self.attach(now);
                }
                self.credit.granted(credit.bytes as usize, now);
                FrameOutcome::default()
            }
            Some(cache_down::Frame::Pong(pong)) => {
                self.lifetime.pong(pong.nonce);
                FrameOutcome::default()
            }
            Some(cache_down::Frame::Closed(closed)) => {
                let reason = Reason::try_from(closed.reason).unwrap_or(Reason::Malformed);
                let retry_after = Duration::from_millis(closed.retry_after_ms.into());
                self.lifetime.ended(Some((reason, retry_after)), now);
                self.detach();
                FrameOutcome { closed: Some(closed), ..FrameOutcome::default() }
            }
            Some(frame) => self.account_frame(frame, now).unwrap_or_else(unknown),
        }
    }

    fn attach(&mut self, now: Instant) {
        self.credit = SenderCredit::new(now);
        let max_message_bytes = self.max_message_bytes();
        self.accounts.values_mut().for_each(|delivery| delivery.attach(max_message_bytes));
        self.accounts.keys().for_each(|uid| self.turns.wake(uid));
    }

    /// Handles a frame of one account; `None` if it names none. Frames of another fence are late.
    fn account_frame(&mut self, frame: cache_down::Frame, now: Instant) -> Option<FrameOutcome> {
        use cache_down::Frame;
        let fence = match &frame {
            Frame::Resume(Resume { fence, .. }) | Frame::SyncBasis(SyncBasis { fence, .. }) => fence.clone(),
            Frame::Ack(ack) => ack.fence.clone(),
            Frame::Revoked(revoked) => revoked.fence.clone(),
            Frame::Rewind(rewind) => rewind.fence.clone(),
            Frame::Relist(relist) => relist.fence.clone(),
            Frame::Credit(_) | Frame::Closed(_) | Frame::Pong(_) => None,
        }?;
        let uid = &fence.account_uid;
        let Some((delivery, memory)) = self.account(uid).filter(|(known, _)| *known.fence() == fence) else {
            return Some(FrameOutcome::default());
        };
        let before = delivery.in_flight();
        let commands = match frame {
            Frame::Resume(resume) => delivery.resume(resume, memory),
            Frame::SyncBasis(basis) => delivery.basis(basis).into_iter().collect(),
            Frame::Relist(relist) => delivery.relist(relist.scope_id).into_iter().collect(),
            Frame::Ack(ack) => {
                delivery.ack(ack.seq);
                Vec::new()
            }
            Frame::Rewind(_) => delivery.rewind(memory),
            Frame::Revoked(revoked) => return Some(self.revoke(&fence, revoked.reason, now)),
            Frame::Credit(_) | Frame::Closed(_) | Frame::Pong(_) => Vec::new(),
        };
        let freed = before.minus(delivery.in_flight());
        self.settle(freed, now);
        let commands = for_account(uid, commands);
        Some(FrameOutcome { commands, ..FrameOutcome::default() })
    }

    fn revoke(&mut self, fence: &Fence, reason: i32, now: Instant) -> FrameOutcome {
        let ends = self.ends.len();
        let commands = self.end_account(&fence.account_uid, now);
        // The hub knows that the accounts ended.
        self.ends.truncate(ends);
        self.lifetime.assigned(!self.accounts.is_empty(), now);
        let reason = match RevokedReason::try_from(reason) {
            Ok(RevokedReason::Unspecified) | Err(_) => RevokedReason::Superseded,
            Ok(reason) => reason,
        };
        FrameOutcome { commands, revoked: Some((fence.clone(), reason)), ..FrameOutcome::default() }
    }

    /// Next action of the driver, called until it returns [`StreamAction::Wait`].
    pub fn poll(&mut self, now: Instant) -> StreamAction {
        let until = match self.lifetime.demand(now) {
            Demand::Open => return self.open(),
            Demand::Close => {
                self.detach();
                return StreamAction::Close;
            }
            Demand::Ping(nonce) => {
                return StreamAction::Send(EncodedFrame::encode(cache_up::Frame::Ping(Ping { nonce })));
            }
            Demand::Wait(until) => until,
        };
        if !self.lifetime.is_open() {
            return StreamAction::Wait(until);
        }
        if let Some(end) = self.ends.pop_front() {
            return StreamAction::Send(end);
        }
        match self.next_turn(now) {
            Ok(frame) => StreamAction::Send(frame),
            Err(due) => StreamAction::Wait(earlier(until, due)),
        }
    }

    fn open(&mut self) -> StreamAction {
        self.stream += 1;
        let identity = self.identity.clone();
        let open = identity.map_or_else(Open::default, |identity| Open {
            session_id: identity.session_id,
            agent_id: identity.agent_id,
            boot_id: identity.boot_id,
            replica_id: identity.replica_id,
        });
        let frame = EncodedFrame::encode(cache_up::Frame::Open(open));
        StreamAction::Open { stream: self.stream, frame }
    }

    /// The next frame of an account, round robin; else a Want; else the time of the next one.
    fn next_turn(&mut self, now: Instant) -> Result<EncodedFrame, Option<Instant>> {
        self.turns.wake_due(now);
        let stream_takes_events = self.in_flight_events + MAX_BATCH_EVENTS <= MAX_UNCOMMITTED_EVENTS;
        let mut blocked = BlockedAccounts::default();
        let mut last = self.turns.served().cloned();
        for _ in 0..self.turns.ready_count() {
            let Some(uid) = self.turns.next_after(last.as_deref()) else { break };
            last = Some(Arc::clone(&uid));
            let Some(delivery) = self.accounts.get_mut(&uid) else { continue };
            let in_flight = delivery.in_flight();
            let takes_events =
                stream_takes_events && in_flight.events + MAX_BATCH_EVENTS <= MAX_ACCOUNT_UNCOMMITTED_EVENTS;
            let credit = if takes_events { blocked.credit_for(&self.credit, in_flight.bytes) } else { 0 };
            let mut next = match self.turns.still_needed(&uid, credit) {
                Some(needed) => NextFrame::Blocked(needed),
                None => delivery.next_frame(credit, now, &mut self.memory),
            };
            if let NextFrame::Blocked(needed) = next {
                self.turns.block(&uid, credit, needed);
                // Credit would not help: the account waits for an acknowledgement.
                if !takes_events {
                    continue;
                }
                // One batch at least, regardless of the account's share.
                let is_alone =
                    in_flight.bytes == 0 && needed > credit && needed <= blocked.rest(&self.credit);
                if is_alone
                    && let batch @ NextFrame::Batch(..) = delivery.next_frame(needed, now, &mut self.memory)
                {
                    next = batch;
                }
            }
            match next {
                NextFrame::Free(frame) => {
                    self.turns.serve(&uid);
                    return Ok(frame);
                }
                NextFrame::Batch(frame, bytes) => {
                    self.in_flight_events += delivery.in_flight().minus(in_flight).events;
                    self.credit.spend(bytes, now);
                    self.turns.serve(&uid);
                    return Ok(frame);
                }
                NextFrame::Nothing(until) => self.turns.rest(&uid, until),
                NextFrame::Blocked(needed) => blocked.add(needed, delivery.waiting_bytes(), in_flight.bytes),
            }
        }
        let frame = self.credit_frame(&blocked, now);
        frame.ok_or_else(|| earlier(self.turns.next_due(), self.give_back_at(&blocked)))
    }

    fn give_back_at(&self, blocked: &BlockedAccounts) -> Option<Instant> {
        self.credit.give_back_at().filter(|_| blocked.count == 0)
    }

    /// A Want for the waiting bytes, or of 0 bytes to return unused credit.
    fn credit_frame(&mut self, blocked: &BlockedAccounts, now: Instant) -> Option<EncodedFrame> {
        let bytes = if blocked.count > 0 {
            self.credit.ask(blocked.wanted())?
        } else {
            self.give_back_at(blocked).filter(|at| *at <= now)?;
            self.credit.give_back();
            0
        };
        Some(EncodedFrame::encode(cache_up::Frame::Want(Want { bytes })))
    }
}

/// Accounts that wait for credit, in their turn.
#[derive(Debug, Default)]
struct BlockedAccounts {
    count: usize,
    /// Number of waiting bytes.
    waiting: usize,
    /// Largest stream credit with which one of them could send everything: an account may hold a quarter.
    for_one: usize,
    /// Need of the first of them, for which lent credit is reserved.
    reserved: usize,
}

impl BlockedAccounts {
    fn add(&mut self, needed: usize, waiting: usize, in_flight: usize) {
        self.count += 1;
        let waiting = waiting.max(needed);
        self.waiting += waiting;
        let held = waiting + in_flight;
        let total = if held > super::credit::BASE_CREDIT_BYTES { held.saturating_mul(4) } else { held };
        self.for_one = self.for_one.max(total.max(needed));
        if self.count == 1 {
            self.reserved = needed;
        }
    }

    /// Stream credit with which all of them could send.
    fn wanted(&self) -> usize {
        self.waiting.max(self.for_one)
    }

    /// Remaining credit: loans are reserved for the first waiting account, if it needs them.
    fn rest(&self, credit: &SenderCredit) -> usize {
        credit.available().min(credit.available_beside(self.reserved))
    }

    fn credit_for(&self, credit: &SenderCredit, in_flight: usize) -> usize {
        self.rest(credit).min(credit.account_allowance(in_flight))
    }
}

fn for_account(uid: &str, commands: Vec<ReaderCommand>) -> Vec<AccountCommand> {
    commands.into_iter().map(|command| AccountCommand { account_uid: uid.to_owned(), command }).collect()
}
