//! The life of a session that stands: one loop that never waits for anything but its next turn.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use tonic::{Status, Streaming};
use tracing::{info, warn};

use super::Session;
use super::asker::Asker;
use super::outbox::Outbox;
use super::statics::Statics;
use super::work::Work;
use crate::hub::Hub;
use crate::hub::fences;
use crate::hub::hello::millis;
use crate::wire::ops::{self, hub_frame};

/// How many accounts are looked at in one turn.
const LOOKS: usize = 200;
/// An agent that takes no frame for this long is cut off.
const SLOW: Duration = Duration::from_secs(30);
/// How long an agent may take to leave after Drain.
const DRAIN_WAIT: Duration = Duration::from_secs(3);

/// Why a session ended, and the status that the stream ends with.
pub(super) enum End {
    /// The agent is gone or has said goodbye.
    Gone(&'static str),
    /// We end it.
    Cut(&'static str, Status),
}

pub(super) struct Turns {
    pub(super) hub: Arc<Hub>,
    pub(super) session: Arc<Session>,
    outbox: Outbox,
    pub(super) work: Work,
    pub(super) asker: Asker,
    pub(super) statics: Statics,
    /// The agent's last frame that was handled.
    pub(super) ack: u64,
    next_heartbeat: Instant,
    nonce: u64,
    /// Drain was said; until then the agent may leave by itself.
    leaving_until: Option<Instant>,
}

impl Turns {
    pub(super) fn new(
        hub: Arc<Hub>,
        session: Arc<Session>,
        outbox: Outbox,
        max_message_bytes: usize,
    ) -> Self {
        let work = Work::new(Arc::clone(&hub), Arc::clone(&session), max_message_bytes);
        let asker = Asker::new(Arc::clone(&hub), Arc::clone(&session));
        let statics = Statics::new(Arc::clone(&hub), Arc::clone(&session));
        let next_heartbeat = Instant::now() + hub.settings.heartbeat;
        Self {
            hub,
            session,
            outbox,
            work,
            asker,
            statics,
            ack: 1,
            next_heartbeat,
            nonce: 0,
            leaving_until: None,
        }
    }

    /// Runs until the stream ends, one way or the other.
    pub(super) async fn run(mut self, mut inbound: Streaming<ops::AgentFrame>) {
        let end = loop {
            if let ControlFlow::Break(end) = self.turn(&mut inbound).await {
                break end;
            }
        };
        let agent = &self.session.agent_id;
        match end {
            End::Gone(why) => info!(agentId = agent, zoneId = self.session.zone, why, "agent disconnected"),
            End::Cut(why, status) => {
                warn!(agentId = agent, zoneId = self.session.zone, why, "agent cut off");
                self.outbox.end(status);
            }
        }
    }

    async fn turn(&mut self, inbound: &mut Streaming<ops::AgentFrame>) -> ControlFlow<End> {
        let room = self.outbox.has_room() && self.leaving_until.is_none();
        let sink = self.outbox.sink();
        let wake_at = self.wake_at();
        tokio::select! {
            () = self.session.close.cancelled() => {
                let why = *self.session.closed_because.lock();
                return ControlFlow::Break(End::Cut(why, Status::aborted(why)));
            }
            () = self.hub.sends_away(), if self.leaving_until.is_none() => self.drain(),
            frame = inbound.next() => return self.hear(frame),
            permit = sink.reserve(), if !self.outbox.is_empty() => match permit {
                Ok(permit) => {
                    self.outbox.send(permit, self.ack);
                    self.hub.metrics.frames_out.inc();
                }
                Err(_) => return ControlFlow::Break(End::Gone("the stream is closed")),
            },
            () = self.work.prepared(), if room && self.work.is_preparing() => self.work.flush(&mut self.outbox),
            again = self.asker.looked_up(), if room && self.asker.is_looking_up() => self.work.look_later(again),
            answers = self.statics.answers(), if room => {
                self.outbox.push(hub_frame::Frame::StaticAnswers(ops::StaticAnswers { answers }));
            }
            uids = self.session.wakes.take(LOOKS), if room => self.look_at(uids),
            () = tokio::time::sleep_until(wake_at.into()) => return self.timers(),
        }
        if self.leaving_until.is_none() {
            self.asker.flush(&mut self.outbox);
        }
        ControlFlow::Continue(())
    }

    fn look_at(&mut self, uids: Vec<String>) {
        for uid in &uids {
            let again = self.asker.look(self.work.seat(), uid);
            self.work.look_later(again.map(|at| (at, uid.clone())));
        }
        self.asker.begin();
        let assignment = |uid: &String| fences::assignment(&self.hub, &self.session, uid);
        let assignments: Vec<_> = uids.iter().filter_map(assignment).collect();
        self.work.look_at(uids);
        self.work.flush(&mut self.outbox);
        assignments.into_iter().for_each(|frame| self.outbox.push(frame));
    }

    fn wake_at(&self) -> Instant {
        let watched = self.hub.settings.cuts_off_silent;
        let silence = self.hub.silence_limit().saturating_sub(self.session.silent_for());
        let silence = watched.then(|| Instant::now() + silence);
        let stuck =
            (!self.outbox.is_empty()).then(|| Instant::now() + SLOW.saturating_sub(self.outbox.stuck_for()));
        let times = [silence, stuck, self.leaving_until, self.work.next_look()];
        times.into_iter().flatten().fold(self.next_heartbeat, Instant::min)
    }

    fn timers(&mut self) -> ControlFlow<End> {
        let now = Instant::now();
        if self.leaving_until.is_some_and(|until| until <= now) {
            let why = self.hub.why_away();
            return ControlFlow::Break(End::Cut(why, Status::unavailable(format!("{why}; connect anew"))));
        }
        if self.hub.settings.cuts_off_silent && self.session.silent_for() >= self.hub.silence_limit() {
            let limit = self.hub.silence_limit();
            let status = Status::deadline_exceeded(format!("no frame for {limit:?}; connect anew"));
            return ControlFlow::Break(End::Cut("it was silent for three heartbeats", status));
        }
        if self.outbox.stuck_for() >= SLOW {
            let status = Status::resource_exhausted("the agent reads too slowly; connect anew");
            return ControlFlow::Break(End::Cut("it reads too slowly", status));
        }
        if self.next_heartbeat <= now {
            self.next_heartbeat = now + self.hub.settings.heartbeat;
            self.nonce += 1;
            let unix_ms = jiff::Timestamp::now().as_millisecond();
            self.outbox.push_heartbeat(ops::Heartbeat { nonce: self.nonce, unix_ms, accounts_live: 0 });
        }
        self.work.wake_due();
        ControlFlow::Continue(())
    }

    fn drain(&mut self) {
        self.leaving_until = Some(Instant::now() + DRAIN_WAIT);
        let (place, other) = self.hub.next_to_leave();
        let drain = ops::Drain {
            reconnect_after_ms: millis(place.after),
            jitter_ms: millis(place.jitter),
            replica_id: other.unwrap_or_default(),
        };
        self.outbox.push(hub_frame::Frame::Drain(drain));
    }
}
