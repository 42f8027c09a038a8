//! The loop of a connected session. It waits for its next event only, never for a call.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use tonic::{Status, Streaming};
use tracing::{info, warn};

use crate::hub::admission::draining::Draining;
use crate::hub::admission::hello::millis;
use crate::hub::context::HubContext;
use crate::hub::credentials::Credentials;
use crate::hub::sessions::Sessions;
use crate::hub::sessions::session::Session;
use crate::hub::sessions::session::account_work::AccountWork;
use crate::hub::sessions::session::frame_queue::FrameQueue;
use crate::hub::static_accounts::StaticAccounts;
use crate::hub::static_accounts::sync::StaticAccountSync;
use crate::hub::tables::Tables;
use crate::hub::tables::fences;
use crate::hub::zone_probes::ZoneProbes;
use crate::hub::zone_probes::prober::ZoneProber;
use crate::objects::AccountObjects;
use crate::wire::ops::{self, hub_frame};

/// Maximum number of accounts checked in one turn.
const MAX_ACCOUNTS_PER_TURN: usize = 200;
/// Time limit for the agent to read a frame; then its stream is cut.
const FRAME_SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for the agent to disconnect after Drain.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);

/// How a session ended, and the status its stream ends with.
pub(super) enum LoopEnd {
    /// The agent disconnected or said Goodbye.
    Gone(&'static str),
    /// The hub ends the stream.
    Cut(&'static str, Status),
}

/// The parts that a session loop uses.
pub(in crate::hub) struct SessionParts {
    pub(in crate::hub) context: Arc<HubContext>,
    pub(in crate::hub) sessions: Arc<Sessions>,
    pub(in crate::hub) credentials: Arc<Credentials>,
    /// Reads an account at the API server before it is first sent.
    pub(in crate::hub) account_objects: Arc<dyn AccountObjects>,
    pub(in crate::hub) draining: Arc<Draining>,
    pub(in crate::hub) zone_probes: Arc<ZoneProbes>,
    pub(in crate::hub) static_accounts: Arc<StaticAccounts>,
    pub(in crate::hub) tables: Arc<Tables>,
}

pub(in crate::hub) struct SessionLoop {
    pub(super) parts: Arc<SessionParts>,
    pub(super) session: Arc<Session>,
    frames: FrameQueue,
    pub(super) accounts: AccountWork,
    pub(super) prober: ZoneProber,
    pub(super) static_accounts: StaticAccountSync,
    /// Sequence number of the agent's last handled frame.
    pub(super) ack: u64,
    next_heartbeat: Instant,
    nonce: u64,
    /// Set when Drain is sent; the agent may disconnect by itself until then.
    drain_deadline: Option<Instant>,
}

impl SessionLoop {
    pub(in crate::hub) fn new(
        parts: Arc<SessionParts>,
        session: Arc<Session>,
        frames: FrameQueue,
        max_message_bytes: usize,
    ) -> Self {
        let accounts = AccountWork::new(Arc::clone(&parts), Arc::clone(&session), max_message_bytes);
        let prober = ZoneProber::new(Arc::clone(&parts.zone_probes), Arc::clone(&session));
        let static_accounts =
            StaticAccountSync::new(Arc::clone(&parts.static_accounts), Arc::clone(&session));
        let next_heartbeat = Instant::now() + parts.context.settings.heartbeat;
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
            drain_deadline: None,
        }
    }

    /// Runs until the stream ends.
    pub(in crate::hub) async fn run(mut self, mut inbound: Streaming<ops::AgentFrame>) {
        let end = loop {
            if let ControlFlow::Break(end) = self.turn(&mut inbound).await {
                break end;
            }
        };
        let agent = &self.session.agent.id;
        match end {
            LoopEnd::Gone(why) => {
                info!(agentId = agent, zoneId = self.session.agent.zone, why, "agent disconnected");
            }
            LoopEnd::Cut(why, status) => {
                warn!(agentId = agent, zoneId = self.session.agent.zone, why, "agent cut off");
                self.frames.end(status);
            }
        }
    }

    async fn turn(&mut self, inbound: &mut Streaming<ops::AgentFrame>) -> ControlFlow<LoopEnd> {
        let room = self.frames.has_room() && self.drain_deadline.is_none();
        let sink = self.frames.sink();
        let wake_at = self.wake_at();
        tokio::select! {
            () = self.session.until_closed() => {
                let why = self.session.closed_because().unwrap_or_default();
                return ControlFlow::Break(LoopEnd::Cut(why, Status::aborted(why)));
            }
            () = self.parts.draining.sends_away(), if self.drain_deadline.is_none() => self.drain(),
            frame = inbound.next() => return self.handle_frame(frame),
            permit = sink.reserve(), if !self.frames.is_empty() => match permit {
                Ok(permit) => {
                    self.frames.send(permit, self.ack);
                    self.parts.context.metrics.frames_out.inc();
                }
                Err(_) => return ControlFlow::Break(LoopEnd::Gone("the stream is closed")),
            },
            () = self.accounts.prepared(), if room && self.accounts.is_preparing() => self.accounts.flush(&mut self.frames),
            again = self.prober.looked_up(), if room && self.prober.is_looking_up() => self.accounts.check_later(again),
            answers = self.static_accounts.answers(), if room => {
                self.frames.push(hub_frame::Frame::StaticAnswers(ops::StaticAnswers { answers }));
            }
            uids = self.session.wakes.take(MAX_ACCOUNTS_PER_TURN), if room => self.check_accounts(uids),
            () = tokio::time::sleep_until(wake_at.into()) => return self.timers(),
        }
        if self.drain_deadline.is_none() {
            self.prober.flush(&mut self.frames);
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
        let watched = self.parts.context.settings.cuts_off_silent;
        let silence = self.parts.context.silence_limit().saturating_sub(self.session.silent_for());
        let silence = watched.then(|| Instant::now() + silence);
        let stuck = (!self.frames.is_empty())
            .then(|| Instant::now() + FRAME_SEND_TIMEOUT.saturating_sub(self.frames.stuck_for()));
        let times = [silence, stuck, self.drain_deadline, self.accounts.next_check()];
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
        if self.parts.context.settings.cuts_off_silent
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
            self.next_heartbeat = now + self.parts.context.settings.heartbeat;
            self.nonce += 1;
            let unix_ms = jiff::Timestamp::now().as_millisecond();
            self.frames.push_heartbeat(ops::Heartbeat { nonce: self.nonce, unix_ms, accounts_live: 0 });
        }
        self.accounts.wake_due();
        ControlFlow::Continue(())
    }

    fn drain(&mut self) {
        self.drain_deadline = Some(Instant::now() + DRAIN_TIMEOUT);
        let (place, other) = self.parts.draining.next_redial();
        let drain = ops::Drain {
            reconnect_after_ms: millis(place.after),
            jitter_ms: millis(place.jitter),
            replica_id: other.unwrap_or_default(),
        };
        self.frames.push(hub_frame::Frame::Drain(drain));
    }
}
