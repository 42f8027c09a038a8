//! The loop of one stream of cached objects. It always reads, and never blocks on anything but its next event: slow
//! work runs elsewhere, and its result arrives as mail or as a finished read.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::StreamExt as _;
use jiff::Timestamp;
use prost::Message as _;
use tokio::sync::mpsc::Permit;
use tokio::sync::mpsc::error::SendError;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};
use tracing::{debug, info};

use super::account_receiver::{ReceiverEffect, ReceiverError};
use super::credit_pool::StreamId;
use super::metrics::STATES;
use super::opening::CachingStreamEnd;
use super::outbox::{Outbox, OutboxFull};
use super::progress_reads::{BasisRead, FinishedRead, ProgressRead, Reads};
use super::stream_delivery::{AccountEffects, StreamDelivery};
use super::transaction_batching::LaneId;
use super::{CacheDownSender, Caching, LaneOutcome, Mail, Mailbox};
use crate::hub::sessions::events::SessionEvent;
use crate::hub::sessions::session::Session;
use crate::hub::sessions::session::identified::Identified;
use kubesvc_core::CachingEpoch;
use kubesvc_core::lifecycle::CachingReport;
use kubesvc_core::wire::events::cache_down::Frame;
use kubesvc_core::wire::events::cache_up;
use kubesvc_core::wire::events::closed::Reason;
use kubesvc_core::wire::events::{Batch, CacheDown, CacheUp, Credit, Pong, Revoked, SyncBasis, revoked};
use kubesvc_runtime::telemetry::errors::chain;
use kubesvc_store::FenceCheck;

/// Interval between checks of waiting accounts and of the loan.
const TICK_INTERVAL: Duration = Duration::from_secs(1);
/// Time limit for the agent to read a frame, after which its stream is closed.
const FRAME_SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for the last frame to be sent.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time without a change after which left-out objects are shown: after Resume, reports arrive piece by piece.
const REPORT_DELAY: Duration = Duration::from_secs(2);

/// A session's reports of left-out objects, by account uid.
type ShownReports = HashMap<Arc<str>, CachingReport>;

/// Runs a stream from its first frame to its end.
pub(super) async fn run(
    caching: Arc<Caching>,
    mut inbound: Streaming<CacheUp>,
    sink: CacheDownSender,
    identity: Option<Identified>,
) {
    let end = match caching.open(&mut inbound, identity.as_ref()).await {
        Ok(session) => {
            let mut stream = CachingReceiver::new(Arc::clone(&caching), session, sink.clone());
            let end = stream.run(inbound).await;
            info!(agentId = stream.session.agent.id.as_str(), ?end, "stream of objects ended");
            end
        }
        Err(end) => {
            debug!(?end, "stream of objects refused");
            end
        }
    };
    if let CachingStreamEnd::Closed(closed) = end {
        let frame = CacheDown { frame: Some(Frame::Closed(closed)) };
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, sink.send(Ok(frame))).await;
    }
}

/// A stream and its share of the replica's state; dropping it returns everything.
struct CachingReceiver {
    caching: Arc<Caching>,
    session: Arc<Session>,
    id: StreamId,
    outgoing: OutgoingFrames,
    mailbox: Arc<Mailbox>,
    /// Cancelled when the session opens a later stream.
    superseded: CancellationToken,
    delivery: StreamDelivery,
    reads: Reads,
    /// Accounts of the lanes that are open at their shards.
    lanes: HashMap<LaneId, Arc<str>>,
    /// Unpublished reports of left-out objects, with the time of their last change.
    reports: HashMap<Arc<str>, (CachingReport, Instant)>,
    /// Uncommitted bytes.
    pending: u64,
    /// Number of accounts by state, as counted in metrics.
    counted: [i64; STATES.len()],
    ticks: Interval,
}

impl CachingReceiver {
    /// Registers the stream. It supersedes an earlier one of the session.
    fn new(caching: Arc<Caching>, session: Arc<Session>, sink: CacheDownSender) -> Self {
        let id = caching.next_stream.fetch_add(1, Ordering::Relaxed);
        let (mailbox, superseded) = (Arc::new(Mailbox::default()), CancellationToken::new());
        let credit = caching.credit.lock().open(id, caching.context.moment());
        mailbox.lend(credit);
        let former = {
            let mut streams = caching.streams.lock();
            streams.mailboxes.insert(id, Arc::clone(&mailbox));
            let former = streams.by_session.insert(session.id.clone(), (id, superseded.clone()));
            if former.is_some() {
                session.caching_reports.lock().clear();
            }
            former
        };
        if let Some((_, former)) = former {
            former.cancel();
        }
        info!(agentId = session.agent.id.as_str(), "stream of objects opened");
        let mut ticks = interval(TICK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            reads: Reads::new(Arc::clone(&caching)),
            caching,
            session,
            id,
            outgoing: OutgoingFrames { sink, outbox: Outbox::default(), waiting_since: None },
            mailbox,
            superseded,
            delivery: StreamDelivery::default(),
            lanes: HashMap::new(),
            reports: HashMap::new(),
            pending: 0,
            counted: [0; STATES.len()],
            ticks,
        }
    }

    async fn run(&mut self, mut inbound: Streaming<CacheUp>) -> CachingStreamEnd {
        loop {
            if let ControlFlow::Break(end) = self.step(&mut inbound).await {
                return end;
            }
        }
    }

    async fn step(&mut self, inbound: &mut Streaming<CacheUp>) -> ControlFlow<CachingStreamEnd> {
        if self.outgoing.outbox.has_room_for_reads() {
            self.reads.start();
        }
        let sink = self.outgoing.sink.clone();
        let handled = tokio::select! {
            () = self.session.ended.cancelled() => {
                let message = "the agent's session has ended; open the stream in the next one";
                return ControlFlow::Break(CachingStreamEnd::closed(Reason::SessionEnded, message));
            }
            () = self.superseded.cancelled() => {
                let message = "a later stream of the session was opened";
                return ControlFlow::Break(CachingStreamEnd::closed(Reason::Superseded, message));
            }
            () = self.caching.draining.sends_away() => return ControlFlow::Break(self.caching.drained()),
            frame = inbound.next() => {
                self.caching.context.identities_known().await;
                self.handle_frame(frame)
            }
            permit = sink.reserve(), if !self.outgoing.outbox.is_empty() => {
                if !self.outgoing.send(permit) {
                    return ControlFlow::Break(CachingStreamEnd::Gone("the stream is closed"));
                }
                Ok(())
            }
            () = self.mailbox.arrived.notified() => self.handle_mail(),
            read = self.reads.ended() => self.handle_read(read),
            _ = self.ticks.tick() => self.tick(),
        };
        self.outgoing.note_waiting();
        match handled {
            Ok(()) => ControlFlow::Continue(()),
            Err(end) => ControlFlow::Break(end),
        }
    }

    fn handle_frame(&mut self, frame: Option<Result<CacheUp, Status>>) -> Result<(), CachingStreamEnd> {
        let CacheUp { batch_bytes, frame } = match frame {
            None => return Err(CachingStreamEnd::Gone("the agent ended it")),
            Some(Err(status)) => return Err(end_of_failed(&status)),
            Some(Ok(frame)) => frame,
        };
        match frame {
            Some(cache_up::Frame::Open(_)) => Err(CachingStreamEnd::malformed("the stream is open already")),
            Some(cache_up::Frame::Begin(begin)) => {
                let lane = self.caching.next_lane();
                let (uid, effects) = self.delivery.begin(begin, lane).map_err(|error| malformed(&error))?;
                self.apply(&uid, effects)?;
                if self.delivery.awaits_fence(&uid) { self.check_assignments() } else { Ok(()) }
            }
            Some(cache_up::Frame::Batch(batch)) => self.handle_batch(batch, batch_bytes.into()),
            Some(cache_up::Frame::Want(want)) => {
                self.caching.credit.lock().want(self.id, u64::from(want.bytes));
                self.caching.lend();
                Ok(())
            }
            Some(cache_up::Frame::End(end)) => {
                let (uid, effects) = self.delivery.end(end).map_err(|error| malformed(&error))?;
                self.apply(&uid, effects)
            }
            Some(cache_up::Frame::Unread(unread)) => {
                let lane = self.caching.next_lane();
                let (uid, effects) = self.delivery.unread(unread, lane).map_err(|error| malformed(&error))?;
                self.apply(&uid, effects)?;
                if self.delivery.awaits_fence(&uid) { self.check_assignments() } else { Ok(()) }
            }
            Some(cache_up::Frame::Ping(ping)) => self.send(Frame::Pong(Pong { nonce: ping.nonce })),
            None => {
                self.caching.context.metrics.ignore("caching_frame");
                Ok(())
            }
        }
    }

    /// Handles a batch of `sent_bytes` bytes by its agent's count. The same number is deducted and returned as credit,
    /// since decoding drops the fields of a newer agent. An agent that overstates it spends its own credit.
    fn handle_batch(&mut self, batch: Batch, sent_bytes: u64) -> Result<(), CachingStreamEnd> {
        let bytes = u64::try_from(batch.encoded_len()).unwrap_or(u64::MAX).max(sent_bytes);
        let taken = self.caching.credit.lock().take(self.id, bytes, self.caching.context.moment());
        taken.map_err(|exceeded| CachingStreamEnd::malformed(exceeded.to_string()))?;
        self.count_pending(bytes, 0);
        let (uid, effects) = self.delivery.batch(batch, bytes).map_err(|error| malformed(&error))?;
        self.apply(&uid, effects)
    }

    fn handle_mail(&mut self) -> Result<(), CachingStreamEnd> {
        let Mail { outcomes, credit } = self.mailbox.take();
        self.send_credit(credit)?;
        for LaneOutcome { uid, lane, seq, check } in outcomes {
            let superseded = match check {
                FenceCheck::Higher(_) => self.caching.superseded(&self.session, &uid),
                _ => revoked::Reason::Superseded,
            };
            let effects = self.delivery.outcome(&uid, lane, seq, check, superseded);
            self.apply(&uid, effects)?;
        }
        Ok(())
    }

    fn handle_read(&mut self, read: FinishedRead) -> Result<(), CachingStreamEnd> {
        match read {
            FinishedRead::Progress(ProgressRead { uid, lane, added, .. }, stored) => {
                let superseded = self.caching.superseded(&self.session, &uid);
                let now_ms = Timestamp::now().as_millisecond();
                let added = added.as_deref();
                let effects = self.delivery.progress((&uid, lane), added, &stored, now_ms, superseded);
                self.apply(&uid, effects)
            }
            FinishedRead::Basis(mut basis, rows, is_last) => {
                if self.delivery.on_lane(&basis.uid, basis.lane).is_none() {
                    return Ok(());
                }
                let full: Vec<SyncBasis> = rows.iter().filter_map(|row| basis.frames.push(row)).collect();
                full.into_iter().try_for_each(|frame| self.send(Frame::SyncBasis(frame)))?;
                if is_last {
                    return self.send(Frame::SyncBasis(basis.frames.finish()));
                }
                self.reads.read_next_page(*basis);
                Ok(())
            }
        }
    }

    fn tick(&mut self) -> Result<(), CachingStreamEnd> {
        if self.outgoing.waiting_since.is_some_and(|since| since.elapsed() >= FRAME_SEND_TIMEOUT) {
            return Err(CachingStreamEnd::closed(
                Reason::Overloaded,
                "the agent reads too slowly; open the stream anew",
            ));
        }
        if self.caching.credit.lock().is_overdue(self.id, self.caching.context.moment()) {
            let message = "bytes that were lent lay unused for 60 s; ask for what is sent at once";
            return Err(CachingStreamEnd::closed(Reason::Overloaded, message));
        }
        self.count_accounts();
        self.show_reports();
        self.check_assignments()
    }

    /// Publishes settled reports of left-out objects.
    fn show_reports(&mut self) {
        let settled = self.reports.extract_if(|_, (_, since)| since.elapsed() >= REPORT_DELAY);
        for (uid, (report, _)) in settled.collect::<Vec<_>>() {
            let is_new =
                |shown: &mut ShownReports| shown.insert(Arc::clone(&uid), report.clone()) != Some(report);
            if self.change_shown_reports(is_new).unwrap_or_default() {
                self.publish(SessionEvent::CachingReportChanged(&uid));
            }
        }
    }

    /// Changes the session's published reports of left-out objects. Does nothing once the session has a later stream,
    /// whose reports count.
    fn change_shown_reports<T>(&self, change: impl FnOnce(&mut ShownReports) -> T) -> Option<T> {
        let streams = self.caching.streams.lock();
        let is_current = streams.by_session.get(&self.session.id).is_some_and(|(id, _)| *id == self.id);
        is_current.then(|| change(&mut self.session.caching_reports.lock()))
    }

    fn publish(&self, event: SessionEvent<'_>) {
        self.caching.sessions.publish(&self.session, event);
    }

    fn check_assignments(&mut self) -> Result<(), CachingStreamEnd> {
        let Self { caching, session, .. } = self;
        let checked = self.delivery.check_assignments(|uid, epoch| caching.assignment(session, uid, epoch));
        checked.into_iter().try_for_each(|(uid, effects): AccountEffects| self.apply(&uid, effects))
    }

    /// Executes the decisions about an account.
    fn apply(&mut self, uid: &Arc<str>, effects: Vec<ReceiverEffect>) -> Result<(), CachingStreamEnd> {
        for effect in effects {
            match effect {
                ReceiverEffect::Send(Frame::Revoked(revoked)) => {
                    self.send(Frame::Revoked(revoked.clone()))?;
                    self.note_revoked(uid, &revoked);
                }
                ReceiverEffect::Send(frame) => self.send(frame)?,
                ReceiverEffect::ReadProgress { lane, added } => {
                    if let Some(account) = self.delivery.on_lane(uid, lane) {
                        let (uid, epoch) = (Arc::clone(uid), account.epoch());
                        self.reads.read_progress(ProgressRead { uid, epoch, lane, added });
                    }
                }
                ReceiverEffect::OpenLane(lane) => {
                    self.lanes.insert(lane, Arc::clone(uid));
                    self.caching.shard(uid).open_lane(lane);
                }
                ReceiverEffect::CloseLane(lane) => {
                    self.lanes.remove(&lane);
                    self.forget_report(uid);
                    self.caching.shard(uid).close_lane(lane);
                    self.reads.drop_lane(lane);
                }
                ReceiverEffect::Queue(batch) => {
                    self.caching.shard(uid).push(*batch, &self.session.agent.id, &self.mailbox);
                }
                ReceiverEffect::Release(bytes) => {
                    self.count_pending(0, bytes);
                    let credit =
                        self.caching.credit.lock().give_back(self.id, bytes, self.caching.context.moment());
                    self.send_credit(credit)?;
                    self.caching.lend();
                }
                ReceiverEffect::SendBasis { lane, scope, sync_key } => {
                    if let Some(account) = self.delivery.on_lane(uid, lane) {
                        let of = (account.fence(), sync_key);
                        let name = Arc::clone(account.account());
                        let takes_zstd = self.session.agent.takes_zstd;
                        let basis = BasisRead::new((Arc::clone(uid), lane), name, scope, of, takes_zstd);
                        self.reads.read_basis(basis);
                    }
                }
                ReceiverEffect::Report(report) => {
                    let is_same = self.reports.get(uid).is_some_and(|(waiting, _)| *waiting == report);
                    if !is_same {
                        self.reports.insert(Arc::clone(uid), (report, Instant::now()));
                    }
                }
                ReceiverEffect::NamespacesWritten => self.publish(SessionEvent::NamespacesWritten(uid)),
                ReceiverEffect::CountRewind => {
                    self.caching.metrics.rewinds.inc();
                }
            }
        }
        Ok(())
    }

    /// Requests that the fence of a missing account be raised again. The agent drops its assignment, and gets it again
    /// if only the row of the fence was missing.
    fn note_revoked(&self, uid: &str, revoked: &Revoked) {
        let epoch = revoked.fence.as_ref().and_then(|fence| CachingEpoch::from_wire(fence.caching_epoch));
        let Some(epoch) = epoch.filter(|_| revoked.reason() == revoked::Reason::AccountGone) else { return };
        let is_lost = self.session.cached.lock().fence_lost(uid, epoch);
        if is_lost {
            self.publish(SessionEvent::FenceLost(uid));
        }
    }

    /// Forgets the report of an account that is not streamed at present; its object keeps the published one.
    fn forget_report(&mut self, uid: &str) {
        self.reports.remove(uid);
        self.change_shown_reports(|shown| shown.remove(uid));
    }

    fn send(&mut self, frame: Frame) -> Result<(), CachingStreamEnd> {
        let too_slow = |full: OutboxFull| CachingStreamEnd::closed(Reason::Overloaded, full.to_string());
        self.outgoing.outbox.push(frame).map_err(too_slow)
    }

    fn send_credit(&mut self, bytes: u64) -> Result<(), CachingStreamEnd> {
        match u32::try_from(bytes).unwrap_or(u32::MAX) {
            0 => Ok(()),
            bytes => self.send(Frame::Credit(Credit { bytes })),
        }
    }

    fn count_pending(&mut self, taken: u64, released: u64) {
        let gauge = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        self.pending = (self.pending + taken).saturating_sub(released);
        self.caching.metrics.pending_bytes.inc_by(gauge(taken));
        self.caching.metrics.pending_bytes.dec_by(gauge(released));
    }

    fn count_accounts(&mut self) {
        for ((state, name), counted) in STATES.into_iter().zip(&mut self.counted) {
            let now = i64::try_from(self.delivery.count(state)).unwrap_or(i64::MAX);
            self.caching.metrics.add_accounts(name, now - std::mem::replace(counted, now));
        }
    }
}

impl Drop for CachingReceiver {
    fn drop(&mut self) {
        for (lane, uid) in &self.lanes {
            self.caching.shard(uid).close_lane(*lane);
        }
        {
            let mut streams = self.caching.streams.lock();
            streams.mailboxes.remove(&self.id);
            if streams.by_session.get(&self.session.id).is_some_and(|(id, _)| *id == self.id) {
                streams.by_session.remove(&self.session.id);
                // Without a stream, the accounts' objects keep their last report.
                self.session.caching_reports.lock().clear();
            }
        }
        self.caching.credit.lock().close(self.id);
        self.caching.lend();
        self.count_pending(0, self.pending);
        for ((_, name), counted) in STATES.into_iter().zip(self.counted) {
            self.caching.metrics.add_accounts(name, -counted);
        }
    }
}

/// Frames on their way to the agent.
struct OutgoingFrames {
    sink: CacheDownSender,
    outbox: Outbox,
    /// Time since which the oldest frame could not be sent.
    waiting_since: Option<Instant>,
}

impl OutgoingFrames {
    /// Sends the oldest frame. Returns whether the agent still accepts frames.
    fn send(&mut self, permit: Result<Permit<'_, Result<CacheDown, Status>>, SendError<()>>) -> bool {
        let Ok(permit) = permit else { return false };
        self.waiting_since = None;
        if let Some(frame) = self.outbox.pop() {
            permit.send(Ok(frame));
        }
        true
    }

    /// Updates [`Self::waiting_since`].
    fn note_waiting(&mut self) {
        if self.outbox.is_empty() {
            self.waiting_since = None;
        } else {
            self.waiting_since.get_or_insert_with(Instant::now);
        }
    }
}

fn malformed(error: &ReceiverError) -> CachingStreamEnd {
    CachingStreamEnd::malformed(chain(error))
}

/// The end of a stream whose next frame cannot be read.
fn end_of_failed(status: &Status) -> CachingStreamEnd {
    match status.code() {
        tonic::Code::Cancelled | tonic::Code::Unknown | tonic::Code::Unavailable => {
            CachingStreamEnd::Gone("the connection broke")
        }
        _ => CachingStreamEnd::malformed(format!("a frame cannot be read: {}", status.message())),
    }
}
