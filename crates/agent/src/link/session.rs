//! One accepted stream: commands in, reports and heartbeats out.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};
use tonic::Streaming;

use crate::command_executor::CommandExecutor;
use crate::health::AgentStatus;
use crate::hub_token::shown;
use crate::link::dial::{AcceptedStream, Introduction};
use crate::link::probes::Probes;
use crate::link::reauthentication::Reauthentication;
use crate::link::renewal::Renewal;
use crate::link::transport::HubChannel;
use crate::link::{LinkEnd, StopSignals, dial, up_to};
use crate::static_accounts::StaticAccountList;
use kubesvc_core::wire::common::{AccountRef, Failure};
use kubesvc_core::wire::ops::agent_frame::Frame;
use kubesvc_core::wire::ops::{
    AgentFrame, Drain, Draining, Goodbye, Heartbeat, HubFrame, StaticAccounts, StaticAnswers, Working,
    hub_frame,
};
use kubesvc_core::wire::{MAX_BATCH_BYTES, MAX_MESSAGE_BYTES};

/// Interval between heartbeats in each direction, unless the hub sets another one.
const DEFAULT_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);
/// Number of missed heartbeats after which the hub counts as gone.
const MAX_MISSED_HEARTBEATS: u32 = 3;
/// Interval between Working frames for accounts that take long to start.
const WORKING_INTERVAL: Duration = Duration::from_secs(5);
/// Number of waiting reports at which no more commands are read.
const MAX_WAITING_ANSWERS: usize = 10_000;
/// Upper bound on the size of a frame without its accounts, in bytes.
const FRAME_OVERHEAD_BYTES: usize = 1024;
/// Timeout for sending the goodbye.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(3);

/// The session of one stream.
pub(super) struct LinkSession<'a> {
    hub: HubChannel,
    outbound: mpsc::Sender<AgentFrame>,
    inbound: Streaming<HubFrame>,
    accounts: &'a mut CommandExecutor,
    introduction: &'a mut Introduction,
    status: &'a AgentStatus,
    renewal: Renewal,
    /// `None`: there is no token, or the hub takes no other one in a session.
    reauthentication: Option<Reauthentication>,
    reauthentication_due: bool,
    heartbeat: Duration,
    /// Maximum size of the accounts in one frame to this hub, in bytes.
    batch_bytes: usize,
    /// Number of frames sent, including the hello.
    sent: u64,
    /// Sequence number of the last frame of the hub that was processed.
    handled: u64,
    last_frame: Instant,
    /// Maximum time without a frame from the hub, and the error message for it.
    silence_limit: (Duration, String),
    probes: Probes,
    own: watch::Receiver<Arc<StaticAccountList>>,
    /// Frames of the current list of the agent's own accounts that are still to be sent.
    own_frames: VecDeque<StaticAccounts>,
    heartbeats: u64,
    heartbeat_due: bool,
    working: VecDeque<AccountRef>,
    /// Time to leave, once the hub has asked for it.
    leave_at: Option<Instant>,
    draining: DrainingNotice,
}

/// Whether the hub is told that the agent stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DrainingNotice {
    NotDue,
    Due,
    Sent,
}

enum LinkEvent {
    Stop,
    Draining,
    Frame(Result<Option<HubFrame>, tonic::Status>),
    CanSend,
    Progress,
    HeartbeatDue,
    WorkingDue,
    Silent,
    OwnChanged,
    Leave,
    /// There is a connection with another credential.
    Renewed(HubChannel),
    /// There is another token, of which the hub is to be told.
    NewToken,
}

impl<'a> LinkSession<'a> {
    pub(super) fn new(
        stream: AcceptedStream,
        (accounts, introduction): (&'a mut CommandExecutor, &'a mut Introduction),
        status: &'a AgentStatus,
        renewal: Renewal,
        idle_timeout: Duration,
    ) -> Self {
        let takes_tokens = stream.takes_tokens();
        let AcceptedStream { accepted, hub, token, outbound, inbound } = stream;
        let reauthentication =
            hub.service.token().filter(|_| takes_tokens).map(|held| Reauthentication::new(held, token));
        let heartbeat = match accepted.heartbeat_ms {
            0 => DEFAULT_HEARTBEAT_INTERVAL,
            ms => Duration::from_millis(ms.clamp(100, 60_000).into()),
        };
        let mut own = accounts.activators().own.subscribe();
        // Send the current list first.
        own.mark_changed();
        Self {
            silence_limit: silence_limit(heartbeat, idle_timeout),
            probes: Probes::new(),
            own,
            own_frames: VecDeque::new(),
            outbound,
            inbound,
            accounts,
            introduction,
            status,
            renewal,
            hub,
            reauthentication,
            reauthentication_due: false,
            heartbeat,
            batch_bytes: batch_bytes(accepted.max_message_bytes),
            sent: 1,
            handled: 1,
            last_frame: Instant::now(),
            heartbeats: 0,
            heartbeat_due: false,
            working: VecDeque::new(),
            leave_at: None,
            draining: DrainingNotice::NotDue,
        }
    }

    /// Serves until the stream ends, for any reason. Once the agent drains, the hub is told to give it nothing new.
    pub(super) async fn run(mut self, stop: &StopSignals) -> LinkEnd {
        let mut beat = interval(self.heartbeat);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut working_interval = interval(WORKING_INTERVAL);
        working_interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            match self.next_event(stop, &mut beat, &mut working_interval).await {
                LinkEvent::Stop => return self.stop().await,
                LinkEvent::Draining => self.draining = DrainingNotice::Due,
                LinkEvent::Frame(Ok(Some(frame))) => self.handle(frame),
                LinkEvent::Frame(Ok(None)) => return self.closed("the hub closed the stream"),
                LinkEvent::Frame(Err(status)) if self.leave_at.is_none() => {
                    return dial::broken(&status, &self.hub);
                }
                LinkEvent::Frame(Err(_)) => return self.closed("the hub is gone"),
                LinkEvent::CanSend => self.send_next(),
                LinkEvent::Progress => {}
                LinkEvent::HeartbeatDue => self.heartbeat_due = true,
                LinkEvent::WorkingDue => self.working = self.accounts.slow().into(),
                LinkEvent::Silent => return self.closed(&self.silence_limit.1),
                LinkEvent::OwnChanged => self.queue_own_accounts(),
                LinkEvent::NewToken => self.reauthentication_due = true,
                LinkEvent::Leave => return self.leave().await,
                LinkEvent::Renewed(hub) => {
                    if let Some(next) = self.greet_anew(hub, stop).await {
                        return LinkEnd::TakenOver(Box::new(next));
                    }
                }
            }
        }
    }

    async fn next_event(
        &mut self,
        stop: &StopSignals,
        beat: &mut tokio::time::Interval,
        working_interval: &mut tokio::time::Interval,
    ) -> LinkEvent {
        let waiting_answers = self.accounts.waiting_answers() + self.probes.waiting_answers();
        let has_frame = self.draining == DrainingNotice::Due
            || self.reauthentication_due
            || self.heartbeat_due
            || !self.working.is_empty()
            || waiting_answers > 0
            || !self.own_frames.is_empty();
        let reads = waiting_answers + self.accounts.delayed_answers() < MAX_WAITING_ANSWERS;
        let silent_at = self.last_frame + self.silence_limit.0;
        let is_idle = !has_frame && !self.accounts.is_busy();
        let leave_at = match self.leave_at {
            Some(_) if is_idle => return LinkEvent::Leave,
            Some(at) => at,
            None => silent_at,
        };
        tokio::select! {
            () = stop.leave.cancelled() => LinkEvent::Stop,
            () = stop.draining.cancelled(), if self.draining == DrainingNotice::NotDue => LinkEvent::Draining,
            () = sleep_until(leave_at), if self.leave_at.is_some() => LinkEvent::Leave,
            frame = self.inbound.message(), if reads => LinkEvent::Frame(frame),
            // This is the only sender, so reserved room stays available until it is used.
            _ = self.outbound.reserve(), if has_frame => LinkEvent::CanSend,
            event = progress(self.accounts, &mut self.probes) => event,
            // Send one list completely before the next one.
            Ok(()) = self.own.changed(), if self.own_frames.is_empty() => LinkEvent::OwnChanged,
            _ = beat.tick() => LinkEvent::HeartbeatDue,
            _ = working_interval.tick() => LinkEvent::WorkingDue,
            () = sleep_until(silent_at) => LinkEvent::Silent,
            hub = self.renewal.dialled(), if self.leave_at.is_none() => LinkEvent::Renewed(hub),
            () = due(self.reauthentication.as_mut()), if !self.reauthentication_due => LinkEvent::NewToken,
        }
    }

    /// Says hello on another connection. If the hub accepts it, its session has taken over from this one, which is not served
    /// meanwhile; else this one goes on.
    async fn greet_anew(&mut self, hub: HubChannel, stop: &StopSignals) -> Option<AcceptedStream> {
        let hello = self.introduction.hello(self.accounts.held());
        // This session's own frames wait meanwhile.
        let patience = self.silence_limit.0 / 3;
        let greeted = tokio::select! {
            () = stop.leave.cancelled() => return None,
            greeted = timeout(patience, dial::greet(hub, hello)) => greeted.unwrap_or_else(|_| {
                Err(LinkEnd::Broken(format!("the hub did not answer on another connection within {} ms", patience.as_millis())))
            }),
        };
        greeted.map_err(|problem| self.renewal.refused(&problem)).ok()
    }

    fn handle(&mut self, frame: HubFrame) {
        self.last_frame = Instant::now();
        self.handled = frame.seq;
        match frame.frame {
            Some(hub_frame::Frame::AddAccounts(command)) => {
                self.status.approved();
                self.accounts.add(command);
            }
            Some(hub_frame::Frame::DeleteAccounts(command)) => self.accounts.delete(command),
            Some(hub_frame::Frame::CachingAssignment(assignment)) => self.accounts.cache(&assignment),
            Some(hub_frame::Frame::Drain(drain)) => self.drain(&drain),
            Some(hub_frame::Frame::Heartbeat(_)) => {}
            Some(hub_frame::Frame::Accepted(_) | hub_frame::Frame::Refused(_)) => {
                tracing::warn!("ignored a second answer to the hello from the hub");
            }
            Some(hub_frame::Frame::Probe(probe)) => self.probes.ask(probe, self.accounts),
            Some(hub_frame::Frame::StaticAnswers(answers)) => self.handle_static_answers(answers),
            None => {
                self.accounts.metrics().cached_objects.unknown_frame("operations");
                tracing::debug!(seq = frame.seq, "ignored a frame of an unknown type");
            }
        }
    }

    fn queue_own_accounts(&mut self) {
        let list = self.own.borrow_and_update().clone();
        self.accounts.activators().own.forget_refusals();
        self.own_frames = list.frames(self.batch_bytes).into();
    }

    fn handle_static_answers(&mut self, answers: StaticAnswers) {
        for answer in answers.answers {
            let failure = answer.failure.unwrap_or_default();
            tracing::warn!(
                account = %shown(&answer.name),
                class = %failure.class().as_str_name(),
                "the hub rejected an account from the agent's own file: {}",
                shown(&failure.message)
            );
            let failure = Failure { message: shown(&failure.message), ..failure };
            self.accounts.activators().own.refuse(answer.name, failure);
        }
    }

    /// Processes a Drain: attempts in progress may continue until the time to dial again, and nothing else
    /// keeps the stream open.
    fn drain(&mut self, drain: &Drain) {
        let after = Duration::from_millis(drain.reconnect_after_ms.into()).min(Duration::from_secs(600));
        let jitter = Duration::from_millis(drain.jitter_ms.into()).min(Duration::from_secs(600));
        let other = shown(&drain.replica_id);
        let other = if other.is_empty() { "none" } else { other.as_str() };
        tracing::info!(other, "the hub asks the agent to connect anew");
        self.leave_at.get_or_insert_with(|| Instant::now() + after + up_to(jitter));
    }

    /// Reason for a closed stream. If the hub asked the agent to leave, that was expected.
    fn closed(&self, problem: &str) -> LinkEnd {
        match self.leave_at {
            Some(at) => LinkEnd::Drained(at),
            None => LinkEnd::Broken(problem.to_owned()),
        }
    }

    fn send_next(&mut self) {
        let frame = if self.draining == DrainingNotice::Due {
            self.draining = DrainingNotice::Sent;
            Frame::Draining(Draining {})
        } else if std::mem::take(&mut self.reauthentication_due)
            && let Some(frame) = self.reauthentication.as_mut().and_then(Reauthentication::frame)
        {
            Frame::Reauthenticate(frame)
        } else if std::mem::take(&mut self.heartbeat_due) {
            self.heartbeats += 1;
            Frame::Heartbeat(Heartbeat {
                nonce: self.heartbeats,
                unix_ms: unix_ms(),
                accounts_live: u32::try_from(self.accounts.held_count()).unwrap_or(u32::MAX),
            })
        } else if let Some(account) = self.working.pop_front() {
            Frame::Working(Working { account: Some(account) })
        } else if let Some(accounts) = self.own_frames.pop_front() {
            Frame::StaticAccounts(accounts)
        } else if let Some(answers) = self.accounts.next_answers(self.batch_bytes) {
            answers
        } else if let Some(answer) = self.probes.next_answer() {
            Frame::ProbeResult(answer)
        } else {
            return;
        };
        let frame = self.numbered(frame);
        // If the stream is gone, the next read reports it.
        let _ = self.outbound.try_send(frame);
    }

    fn numbered(&mut self, frame: Frame) -> AgentFrame {
        self.sent += 1;
        AgentFrame { seq: self.sent, ack: self.handled, frame: Some(frame) }
    }

    async fn stop(mut self) -> LinkEnd {
        let goodbye = async {
            if self.draining != DrainingNotice::Sent {
                let frame = self.numbered(Frame::Draining(Draining {}));
                self.outbound.send(frame).await.ok()?;
            }
            while let Some(answers) = self.accounts.next_answers(self.batch_bytes) {
                let frame = self.numbered(answers);
                self.outbound.send(frame).await.ok()?;
            }
            let frame = self.numbered(Frame::Goodbye(Goodbye {}));
            self.outbound.send(frame).await.ok()?;
            close(self.outbound, self.inbound).await
        };
        let _ = timeout(GOODBYE_TIMEOUT, goodbye).await;
        LinkEnd::Stopped
    }

    async fn leave(self) -> LinkEnd {
        let at = self.leave_at.unwrap_or_else(Instant::now);
        let _ = timeout(GOODBYE_TIMEOUT, close(self.outbound, self.inbound)).await;
        LinkEnd::Drained(at)
    }
}

/// Maximum size of the accounts in one frame, for a hub with this message limit; 0 if the hub named none.
fn batch_bytes(max_message_bytes: u32) -> usize {
    let max = match max_message_bytes {
        0 => MAX_MESSAGE_BYTES,
        told => usize::try_from(told).unwrap_or(MAX_MESSAGE_BYTES),
    };
    MAX_BATCH_BYTES.min(max.saturating_sub(FRAME_OVERHEAD_BYTES))
}

/// Maximum time without a frame from the hub, and the error message for it.
fn silence_limit(heartbeat: Duration, idle_timeout: Duration) -> (Duration, String) {
    let missed = heartbeat * MAX_MISSED_HEARTBEATS;
    if idle_timeout.is_zero() || idle_timeout >= missed {
        return (missed, format!("the hub said nothing for {MAX_MISSED_HEARTBEATS} heartbeats"));
    }
    let seconds = idle_timeout.as_secs_f64();
    (idle_timeout, format!("the hub said nothing for {seconds} s (clouddriver.keepAliveOperationSeconds)"))
}

/// Waits until the hub is to be told of another token.
async fn due(reauthentication: Option<&mut Reauthentication>) {
    match reauthentication {
        Some(reauthentication) => reauthentication.due().await,
        None => std::future::pending().await,
    }
}

async fn progress(accounts: &mut CommandExecutor, probes: &mut Probes) -> LinkEvent {
    let ended = tokio::select! {
        () = accounts.progress() => None,
        ended = probes.ended() => Some(ended),
    };
    if let Some((task, result)) = ended {
        probes.take(task, result, accounts);
    }
    LinkEvent::Progress
}

/// Closes the outbound side and waits for the hub to close the other, so that the last frames arrive.
async fn close(outbound: mpsc::Sender<AgentFrame>, mut inbound: Streaming<HubFrame>) -> Option<()> {
    drop(outbound);
    while let Ok(Some(_)) = inbound.message().await {}
    Some(())
}

fn unix_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
