//! The loop of a connected session, and its handling of the agent's frames. It waits for its next event only, never for a
//! call.

use std::future::Future;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use kubesvc_runtime::shutdown::spawn_named;
use tokio::time::timeout;
use tonic::{Status, Streaming};
use tracing::{debug, info, warn};

use crate::hub::AccountObjects;
use crate::hub::agent_admission::draining::Draining;
use crate::hub::agent_admission::hello::millis;
use crate::hub::agent_admission::identification::Identification;
use crate::hub::context::{CredentialReader, HubContext};
use crate::hub::sessions::Sessions;
use crate::hub::sessions::events::SessionEvent;
use crate::hub::sessions::ledger::AnswerEffect;
use crate::hub::sessions::session::Session;
use crate::hub::sessions::session::account_work::AccountWork;
use crate::hub::sessions::session::frame_queue::FrameQueue;
use crate::hub::sessions::wire_conversion::{self, AccountAnswer};
use crate::hub::static_accounts::StaticAccountSync;
use crate::hub::static_accounts::StaticAccounts;
use crate::hub::table_writers::{TableWriters, fences};
use crate::hub::zone_probes::ZoneProbes;
use crate::hub::zone_probes::prober::ZoneProber;
use kubesvc_core::KubesvcAccount;
use kubesvc_core::lifecycle::{AgentReport, is_another_cluster};
use kubesvc_core::wire::ops::{self, agent_frame, hub_frame};

/// Maximum number of accounts checked in one turn.
const MAX_ACCOUNTS_PER_STEP: usize = 200;
/// Time limit for the agent to read a frame; then its stream is cut.
const FRAME_SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// Time until the watch shows an approval that a registration has read.
const APPROVAL_WATCH_DELAY: Duration = Duration::from_millis(500);
/// Time limit for the agent to disconnect after Drain.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);
/// Time for which a replica that stops waits for the answers of an agent's writes.
const MAX_WRITES_WAIT: Duration = Duration::from_secs(10);
/// Time for which answers of writes that an agent sent before its Goodbye may still be under way. The agent waits a little
/// longer for the end of its stream.
const GOODBYE_WRITES_WAIT: Duration = Duration::from_secs(2);

/// Number of answers about accounts that a session was never sent, at which it is cut where agents have identities.
const MAX_FOREIGN_ANSWERS: usize = 10;

/// How a session ended, and the status its stream ends with.
enum LoopEnd {
    /// The agent disconnected.
    Gone(&'static str),
    Goodbye,
    /// The hub ends the stream.
    Cut(&'static str, Status),
}

/// The parts that a session loop uses.
pub(crate) struct SessionParts {
    pub(crate) context: Arc<HubContext>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) credentials: Arc<CredentialReader>,
    /// Reads an account at the API server before it is first sent.
    pub(crate) account_objects: Arc<dyn AccountObjects>,
    pub(crate) draining: Arc<Draining>,
    pub(crate) zone_probes: Arc<ZoneProbes>,
    pub(crate) static_accounts: Arc<StaticAccounts>,
    pub(crate) tables: Arc<TableWriters>,
    pub(crate) identification: Arc<Identification>,
}

pub(crate) struct SessionLoop {
    parts: Arc<SessionParts>,
    session: Arc<Session>,
    frames: FrameQueue,
    accounts: AccountWork,
    prober: ZoneProber,
    static_accounts: StaticAccountSync,
    /// Sequence number of the agent's last handled frame.
    ack: u64,
    next_heartbeat: Instant,
    nonce: u64,
    /// Delay given to an agent that is to say hello anew.
    hello_anew_after: Duration,
    /// When Drain is sent at the latest, once the agent is to be sent away.
    drain_by: Option<Instant>,
    /// Set when Drain is sent; the agent may disconnect by itself until then.
    drain_deadline: Option<Instant>,
    /// Number of answers about accounts that this session was never sent.
    foreign_answers: usize,
    /// The agent's next frame, or the end of its stream, until it may be heard.
    unheard: Option<Option<Result<ops::AgentFrame, Status>>>,
}

impl SessionLoop {
    pub(crate) fn new(
        parts: Arc<SessionParts>,
        session: Arc<Session>,
        frames: FrameQueue,
        max_message_bytes: usize,
    ) -> Self {
        let accounts = AccountWork::new(Arc::clone(&parts), Arc::clone(&session), max_message_bytes);
        let prober = ZoneProber::new(Arc::clone(&parts.zone_probes), Arc::clone(&session));
        let static_accounts =
            StaticAccountSync::new(Arc::clone(&parts.static_accounts), Arc::clone(&session));
        let next_heartbeat = Instant::now() + parts.context.settings.sessions.heartbeat;
        // The watch does not show yet what its registration has read.
        let hello_anew_after =
            if session.is_to_say_hello_anew() { APPROVAL_WATCH_DELAY } else { Duration::ZERO };
        Self {
            parts,
            session,
            frames,
            accounts,
            prober,
            static_accounts,
            ack: 1,
            next_heartbeat,
            nonce: 0,
            hello_anew_after,
            drain_by: None,
            drain_deadline: None,
            foreign_answers: 0,
            unheard: None,
        }
    }

    /// Runs until the stream ends.
    pub(crate) async fn run(mut self, mut inbound: Streaming<ops::AgentFrame>) {
        let end = loop {
            if let ControlFlow::Break(end) = self.step(&mut inbound).await {
                break end;
            }
        };
        if matches!(end, LoopEnd::Goodbye) {
            // Its stream of requests ends with the session, and Goodbye may overtake what is on it.
            let _ = timeout(GOODBYE_WRITES_WAIT, self.session.writes_ended()).await;
        }
        let agent = self.session.agent.id.as_str();
        match end {
            LoopEnd::Gone(why) => {
                info!(agentId = agent, zoneId = self.session.agent.zone.as_str(), why, "agent disconnected");
            }
            LoopEnd::Goodbye => {
                let why = "the agent said goodbye";
                info!(agentId = agent, zoneId = self.session.agent.zone.as_str(), why, "agent disconnected");
            }
            LoopEnd::Cut(why, status) => {
                warn!(agentId = agent, zoneId = self.session.agent.zone.as_str(), why, "agent cut off");
                self.frames.end(status);
            }
        }
    }

    async fn step(&mut self, inbound: &mut Streaming<ops::AgentFrame>) -> ControlFlow<LoopEnd> {
        // Before anything else is sent to it.
        if self.session.lost_its_credential() {
            let why = self.session.closed_because().unwrap_or_default();
            return ControlFlow::Break(LoopEnd::Cut(why, self.session.closing_status()));
        }
        // An identity may have been taken away while the process was suspended.
        let may_hear = self.parts.context.knows_identities();
        let can_send = self.frames.has_capacity() && self.drain_deadline.is_none() && may_hear;
        let sink = self.frames.sink();
        let wake_at = self.wake_at();
        tokio::select! {
            () = self.session.until_closed() => {
                let why = self.session.closed_because().unwrap_or_default();
                if self.session.is_to_say_hello_anew() {
                    // Dialled again at once; an end without a word is waited out.
                    let reconnect_after_ms = millis(self.hello_anew_after);
                    let drain = ops::Drain { reconnect_after_ms, ..ops::Drain::default() };
                    self.frames.send_last(hub_frame::Frame::Drain(drain), self.ack);
                }
                return ControlFlow::Break(LoopEnd::Cut(why, self.session.closing_status()));
            }
            () = self.parts.draining.sends_away(), if self.drain_by.is_none() => self.await_writes(),
            () = self.session.writes_ended(), if self.has_to_drain() => self.drain(),
            frame = inbound.next(), if self.unheard.is_none() => self.unheard = Some(frame),
            () = self.parts.context.identities_known(), if !may_hear || self.unheard.is_some() => {}
            permit = sink.reserve(), if may_hear && !self.frames.is_empty() => match permit {
                Ok(permit) => {
                    self.frames.send(permit, self.ack);
                    self.parts.context.metrics.frames_out.inc();
                }
                Err(_) => return ControlFlow::Break(LoopEnd::Gone("the stream is closed")),
            },
            () = self.accounts.prepared(), if can_send && self.accounts.is_preparing() => self.accounts.flush(&mut self.frames),
            again = self.prober.target_ready(), if can_send && self.prober.is_looking_up() => self.accounts.check_later(again),
            answers = self.static_accounts.answers(), if can_send => {
                self.frames.push(hub_frame::Frame::StaticAnswers(ops::StaticAnswers { answers }));
            }
            uids = self.session.wakes.take(MAX_ACCOUNTS_PER_STEP), if can_send => self.check_accounts(uids),
            () = tokio::time::sleep_until(wake_at.into()) => return self.timers(),
        }
        if self.drain_deadline.is_none() {
            self.prober.flush(&mut self.frames);
        }
        if self.parts.context.knows_identities()
            && let Some(frame) = self.unheard.take()
        {
            return self.handle_frame(frame);
        }
        ControlFlow::Continue(())
    }

    fn check_accounts(&mut self, uids: Vec<String>) {
        for uid in &uids {
            let again = self.prober.check(self.accounts.view(), uid);
            self.accounts.check_later(again.map(|at| (at, uid.clone())));
        }
        self.prober.begin();
        let assignment = |uid: &String| fences::assignment(&self.parts.context, &self.session, uid);
        let assignments: Vec<_> = uids.iter().filter_map(assignment).collect();
        self.accounts.check_accounts(uids);
        self.accounts.flush(&mut self.frames);
        assignments.into_iter().for_each(|frame| self.frames.push(frame));
    }

    fn wake_at(&self) -> Instant {
        let watched = self.parts.context.settings.sessions.cuts_off_silent;
        let silence = self.parts.context.silence_limit().saturating_sub(self.session.silent_for());
        let silence = watched.then(|| Instant::now() + silence);
        let stuck = (!self.frames.is_empty())
            .then(|| Instant::now() + FRAME_SEND_TIMEOUT.saturating_sub(self.frames.stuck_for()));
        let drain_by = self.drain_by.filter(|_| self.has_to_drain());
        let times = [silence, stuck, drain_by, self.drain_deadline, self.accounts.next_check()];
        times.into_iter().flatten().fold(self.next_heartbeat, Instant::min)
    }

    fn timers(&mut self) -> ControlFlow<LoopEnd> {
        let now = Instant::now();
        if self.drain_deadline.is_some_and(|until| until <= now) {
            let why = self.parts.draining.reason();
            return ControlFlow::Break(LoopEnd::Cut(
                why,
                Status::unavailable(format!("{why}; connect anew")),
            ));
        }
        if self.has_to_drain() && self.drain_by.is_some_and(|until| until <= now) {
            self.drain();
        }
        if self.parts.context.settings.sessions.cuts_off_silent
            && self.session.silent_for() >= self.parts.context.silence_limit()
        {
            let limit = self.parts.context.silence_limit();
            let status = Status::deadline_exceeded(format!("no frame for {limit:?}; connect anew"));
            return ControlFlow::Break(LoopEnd::Cut("it was silent for three heartbeats", status));
        }
        if self.frames.stuck_for() >= FRAME_SEND_TIMEOUT {
            let status = Status::resource_exhausted("the agent reads too slowly; connect anew");
            return ControlFlow::Break(LoopEnd::Cut("it reads too slowly", status));
        }
        if self.next_heartbeat <= now {
            self.next_heartbeat = now + self.parts.context.settings.sessions.heartbeat;
            self.nonce += 1;
            let unix_ms = jiff::Timestamp::now().as_millisecond();
            self.frames.push_heartbeat(ops::Heartbeat { nonce: self.nonce, unix_ms, accounts_live: 0 });
            self.session.hear_further_claims();
        }
        self.accounts.wake_due();
        ControlFlow::Continue(())
    }

    /// Begins to send the agent away: a replica that stops waits for the answers of writes, since a connection that
    /// is kept is the surest way to them.
    fn await_writes(&mut self) {
        let time = if self.parts.draining.is_isolated() { Duration::ZERO } else { MAX_WRITES_WAIT };
        self.drain_by = Some(Instant::now() + time);
    }

    /// Whether the agent is to be sent away, and is not told yet.
    fn has_to_drain(&self) -> bool {
        self.drain_by.is_some() && self.drain_deadline.is_none()
    }

    fn drain(&mut self) {
        self.drain_deadline = Some(Instant::now() + DRAIN_TIMEOUT);
        let (redial, other) = self.parts.draining.next_redial();
        let drain = ops::Drain {
            reconnect_after_ms: millis(redial.after),
            jitter_ms: millis(redial.jitter),
            replica_id: other.unwrap_or_default(),
        };
        self.frames.push(hub_frame::Frame::Drain(drain));
    }
}

impl SessionLoop {
    /// Handles a frame of the agent, or the end of its stream.
    fn handle_frame(&mut self, frame: Option<Result<ops::AgentFrame, Status>>) -> ControlFlow<LoopEnd> {
        let frame = match frame {
            None => return ControlFlow::Break(LoopEnd::Gone("the agent closed the stream")),
            Some(Err(status)) => {
                debug!(agentId = self.session.agent.id.as_str(), code = ?status.code(), "stream of agent failed");
                return ControlFlow::Break(end_of_failed(&status));
            }
            Some(Ok(frame)) => frame,
        };
        if self.session.lost_its_credential() {
            return ControlFlow::Break(LoopEnd::Cut(
                "the agent lost its identity",
                self.session.closing_status(),
            ));
        }
        self.parts.context.metrics.frames_in.inc();
        self.ack = self.ack.max(frame.seq);
        self.session.frame(self.parts.context.ticks.now());
        if frame.frame.as_ref().is_some_and(is_about_accounts) && !self.session.was_approved() {
            self.parts.context.metrics.ignore("never_approved");
            self.session.ignore_claims();
            return ControlFlow::Continue(());
        }
        match frame.frame {
            Some(agent_frame::Frame::AccountResults(results)) => {
                for result in results.results {
                    self.record_answer(wire_conversion::answer(result));
                }
            }
            Some(agent_frame::Frame::Lost(lost)) => self.record_answer(wire_conversion::loss(lost)),
            Some(agent_frame::Frame::Working(working)) => self.working(working),
            Some(agent_frame::Frame::Heartbeat(_)) => {}
            Some(agent_frame::Frame::Draining(_)) => {
                self.session.record_draining();
                // A draining agent is not probed.
                self.session.wakes.wake_all(self.session.zone_probes.lock().uids());
            }
            Some(agent_frame::Frame::Goodbye(_)) => {
                self.session.record_goodbye();
                return ControlFlow::Break(LoopEnd::Goodbye);
            }
            Some(agent_frame::Frame::Hello(_)) => {
                self.parts.context.metrics.ignore("second_hello");
                warn!(agentId = self.session.agent.id.as_str(), "ignored a second hello on the same stream");
            }
            Some(agent_frame::Frame::Reauthenticate(renewed)) => {
                let token = renewed.token.into();
                self.parts.identification.renew(&self.session, token);
            }
            Some(agent_frame::Frame::StaticAccounts(list)) => self.static_accounts.take_in(list),
            Some(agent_frame::Frame::ProbeResult(result)) => match self.prober.record_answer(result) {
                Ok(again) => self.accounts.check_later(again),
                Err(("late", _)) => self.parts.context.metrics.ignore("late"),
                Err((reason, uid)) => self.count_ignored(reason, &uid),
            },
            // A frame of a later protocol version.
            None => self.parts.context.metrics.ignore("unknown_frame"),
        }
        ControlFlow::Continue(())
    }

    fn working(&mut self, working: ops::Working) {
        let Some((uid, _)) = working.account.and_then(wire_conversion::reference) else {
            return self.parts.context.metrics.ignore("malformed_answer");
        };
        self.session.ledger.lock().working(&uid, self.parts.context.ticks.now());
    }

    fn record_answer(&mut self, answer: Option<AccountAnswer>) {
        let Some(answer) = answer else { return self.count_ignored("malformed_answer", "") };
        let AccountAnswer { uid, epoch, report, of_drop, namespaces } = answer;
        let mut reports_namespaces = false;
        if let AgentReport::Held(reached) = &report {
            let account = self.parts.context.accounts.by_uid(&uid);
            let status = account.as_deref().map(KubesvcAccount::status_or_default);
            let zone = Some(&self.session.agent.zone);
            let Some(status) = status.filter(|status| status.granted_zone() == zone) else {
                return self.count_ignored("no_grant", &uid);
            };
            // Without namespaces in the report, only their number is known.
            reports_namespaces = !is_another_cluster(&status, reached)
                && (reached.namespaces_count == 0 || !namespaces.is_empty());
        }
        let (effect, freed) = {
            let mut ledger = self.session.ledger.lock();
            let effect = ledger.record_answer(&uid, epoch, report, of_drop, self.parts.context.moment());
            let name = ledger.entry(&uid).map(|entry| entry.name.clone());
            (effect, name.map(|name| ledger.freed(&name)).unwrap_or_default())
        };
        match effect {
            AnswerEffect::Taken => {
                let tables = &self.parts.tables;
                if reports_namespaces && tables.is_behind_cached_namespaces(&self.session, &uid) {
                    tables.record_old_namespaces(&uid, namespaces);
                } else if reports_namespaces {
                    tables.record_namespaces(&uid, namespaces);
                }
                self.session.wakes.wake_all(freed);
                self.session.wakes.wake(uid.clone());
                self.parts.sessions.publish(&self.session, SessionEvent::AnswerChanged(&uid));
            }
            AnswerEffect::Late => self.parts.context.metrics.ignore("late"),
            AnswerEffect::NeverSent => self.ignore_foreign(&uid),
            AnswerEffect::Future => self.count_ignored("future_epoch", &uid),
        }
    }

    /// Drops what is said about an account that was never sent to this session. Whoever does so again and again is cut, where
    /// agents are bound to identities.
    fn ignore_foreign(&mut self, uid: &str) {
        self.count_ignored("never_sent", uid);
        self.foreign_answers += 1;
        if self.foreign_answers >= MAX_FOREIGN_ANSWERS && self.parts.identification.is_bound() {
            self.session.close("it speaks of accounts that it was never sent");
        }
    }

    fn count_ignored(&self, reason: &'static str, uid: &str) {
        self.parts.context.metrics.ignore(reason);
        if self.parts.context.may_log(reason, self.session.agent.peer) {
            let uid: String = uid.chars().take(64).filter(|c| !c.is_control()).collect();
            warn!(agentId = self.session.agent.id.as_str(), reason, uid, "ignored an answer of the agent");
        }
    }
}

/// Returns how a stream ends that failed.
fn end_of_failed(status: &Status) -> LoopEnd {
    match status.code() {
        tonic::Code::Cancelled | tonic::Code::Unknown | tonic::Code::Unavailable => {
            LoopEnd::Gone("the connection broke")
        }
        code => LoopEnd::Cut("a frame was malformed or too large", Status::new(code, status.message())),
    }
}

/// Whether a frame says something about accounts. It does not count if the agent was never approved.
fn is_about_accounts(frame: &agent_frame::Frame) -> bool {
    matches!(
        frame,
        agent_frame::Frame::AccountResults(_)
            | agent_frame::Frame::Lost(_)
            | agent_frame::Frame::Working(_)
            | agent_frame::Frame::StaticAccounts(_)
            | agent_frame::Frame::ProbeResult(_)
    )
}

/// Runs work as its own task, which is aborted when the returned future is dropped.
///
/// A session loop polls nothing while its agent reads no frames. Work that others wait for, such as a credential read
/// that holds a permit, must not stall with it.
pub(crate) fn detached<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> impl Future<Output = T> + Send {
    let task = spawn_named("detached work of a session", work);
    async move {
        match task.await {
            Ok(done) => done,
            Err(ended) => match ended.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // Aborted only by dropping this future, or by the runtime's shutdown.
                Err(_) => std::future::pending().await,
            },
        }
    }
}
