//! The life of a session that stands: one loop that never waits for anything but its next turn.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use tonic::{Status, Streaming};
use tracing::{debug, info, warn};

use super::Session;
use super::outbox::Outbox;
use super::work::Work;
use crate::account::lifecycle::Word;
use crate::hub::Hub;
use crate::hub::hello::millis;
use crate::hub::ledger::Heard;
use crate::hub::words::{self, Answer};
use crate::wire::ops::{self, agent_frame, hub_frame};

/// How many accounts are looked at in one turn.
const LOOKS: usize = 200;
/// An agent that takes no frame for this long is cut off.
const SLOW: Duration = Duration::from_secs(30);
/// How long an agent may take to leave after Drain.
const DRAIN_WAIT: Duration = Duration::from_secs(3);
/// When an agent should come again after Drain, and up to how much later.
const RECONNECT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(4));

/// Why a session ended, and the status that the stream ends with.
enum End {
    /// The agent is gone or has said goodbye.
    Gone(&'static str),
    /// We end it.
    Cut(&'static str, Status),
}

pub(super) struct Turns {
    hub: Arc<Hub>,
    session: Arc<Session>,
    outbox: Outbox,
    work: Work,
    /// The agent's last frame that was handled.
    ack: u64,
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
        let next_heartbeat = Instant::now() + hub.settings.heartbeat;
        Self { hub, session, outbox, work, ack: 1, next_heartbeat, nonce: 0, leaving_until: None }
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
            () = self.hub.stopping.cancelled(), if self.leaving_until.is_none() => self.drain(),
            frame = inbound.next() => return self.hear(frame),
            permit = sink.reserve(), if !self.outbox.is_empty() => match permit {
                Ok(permit) => {
                    self.outbox.send(permit, self.ack);
                    self.hub.metrics.frames_out.inc();
                }
                Err(_) => return ControlFlow::Break(End::Gone("the stream is closed")),
            },
            () = self.work.prepared(), if room && self.work.is_preparing() => self.work.flush(&mut self.outbox),
            uids = self.session.wakes.take(LOOKS), if room => {
                self.work.look_at(uids);
                self.work.flush(&mut self.outbox);
            }
            () = tokio::time::sleep_until(wake_at.into()) => return self.timers(),
        }
        ControlFlow::Continue(())
    }

    fn wake_at(&self) -> Instant {
        let silence = Instant::now() + self.hub.silence_limit().saturating_sub(self.session.silent_for());
        let stuck =
            (!self.outbox.is_empty()).then(|| Instant::now() + SLOW.saturating_sub(self.outbox.stuck_for()));
        let times = [stuck, self.leaving_until, self.work.next_look()];
        times.into_iter().flatten().fold(self.next_heartbeat.min(silence), Instant::min)
    }

    fn timers(&mut self) -> ControlFlow<End> {
        let now = Instant::now();
        if self.leaving_until.is_some_and(|until| until <= now) {
            return ControlFlow::Break(End::Cut(
                "the replica is stopping",
                Status::unavailable("this replica is stopping; connect anew"),
            ));
        }
        if self.session.silent_for() >= self.hub.silence_limit() {
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
        let (after, jitter) = RECONNECT;
        let drain = ops::Drain { reconnect_after_ms: millis(after), jitter_ms: millis(jitter) };
        self.outbox.push(hub_frame::Frame::Drain(drain));
    }

    fn hear(&mut self, frame: Option<Result<ops::AgentFrame, Status>>) -> ControlFlow<End> {
        let frame = match frame {
            None => return ControlFlow::Break(End::Gone("the agent closed the stream")),
            Some(Err(status)) => {
                debug!(agentId = self.session.agent_id, code = ?status.code(), "stream of agent failed");
                return ControlFlow::Break(match status.code() {
                    tonic::Code::Cancelled | tonic::Code::Unknown | tonic::Code::Unavailable => {
                        End::Gone("the connection broke")
                    }
                    code => {
                        End::Cut("a frame was malformed or too large", Status::new(code, status.message()))
                    }
                });
            }
            Some(Ok(frame)) => frame,
        };
        self.hub.metrics.frames_in.inc();
        self.ack = self.ack.max(frame.seq);
        self.session.frame(self.hub.ticks.now());
        match frame.frame {
            Some(agent_frame::Frame::AccountResults(results)) => {
                for result in results.results {
                    self.take_in(words::answer(result));
                }
            }
            Some(agent_frame::Frame::Lost(lost)) => self.take_in(words::loss(lost)),
            Some(agent_frame::Frame::Working(working)) => self.working(working),
            Some(agent_frame::Frame::Heartbeat(_)) => {}
            Some(agent_frame::Frame::Draining(_)) => self.work.agent_drains(),
            Some(agent_frame::Frame::Goodbye(_)) => {
                return ControlFlow::Break(End::Gone("the agent said goodbye"));
            }
            Some(agent_frame::Frame::Hello(_)) => {
                self.hub.metrics.ignore("second_hello");
                warn!(agentId = self.session.agent_id, "a second hello on the same stream is ignored");
            }
            Some(agent_frame::Frame::StaticAccounts(_) | agent_frame::Frame::ProbeResult(_)) => {
                self.hub.metrics.ignore("unasked");
            }
            // A frame of a later version of the protocol.
            None => self.hub.metrics.ignore("unknown_frame"),
        }
        ControlFlow::Continue(())
    }

    fn working(&mut self, working: ops::Working) {
        let Some((uid, _)) = working.account.and_then(words::reference) else {
            return self.hub.metrics.ignore("malformed_answer");
        };
        self.session.ledger.lock().working(&uid, self.hub.ticks.now());
    }

    fn take_in(&mut self, answer: Option<Answer>) {
        let Some(answer) = answer else { return self.ignore("malformed_answer", "") };
        let Answer { uid, epoch, word, of_drop, namespaces } = answer;
        let held = matches!(word, Word::Held(_));
        if held && !self.is_granted_here(&uid) {
            return self.ignore("no_grant", &uid);
        }
        let (heard, freed) = {
            let mut ledger = self.session.ledger.lock();
            let heard = ledger.hear(&uid, epoch, word, of_drop, self.hub.moment());
            let name = ledger.entry(&uid).map(|entry| entry.name.clone());
            (heard, name.map(|name| ledger.freed(&name)).unwrap_or_default())
        };
        match heard {
            Heard::Taken => {
                if held {
                    self.hub.tell_namespaces(&uid, namespaces);
                }
                self.session.wakes.wake_all(freed);
                self.session.wakes.wake(uid.clone());
                self.hub.leader.wake(uid);
            }
            Heard::Late => self.hub.metrics.ignore("late"),
            Heard::NeverSent => self.ignore("never_sent", &uid),
            Heard::Future => self.ignore("future_epoch", &uid),
        }
    }

    fn is_granted_here(&self, uid: &str) -> bool {
        let account = self.hub.accounts.by_uid(uid);
        account.is_some_and(|account| {
            account.status_or_default().granted_zone() == Some(self.session.zone.as_str())
        })
    }

    fn ignore(&self, reason: &'static str, uid: &str) {
        self.hub.metrics.ignore(reason);
        if self.hub.complaints.may_speak() {
            let uid: String = uid.chars().take(64).filter(|c| !c.is_control()).collect();
            warn!(agentId = self.session.agent_id, reason, uid, "an answer of the agent is ignored");
        }
    }
}
