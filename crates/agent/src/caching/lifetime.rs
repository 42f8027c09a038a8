//! Lifetime of the stream: opening, closing, reopening, and liveness.

use std::time::{Duration, Instant};

use kubesvc_core::wire::events::closed::Reason;

/// Time after which a stream without accounts is closed.
pub(super) const IDLE_TIME: Duration = Duration::from_secs(60);
/// Delay before an ended stream is reopened; doubles up to [`MAX_REOPEN_DELAY`].
const REOPEN_DELAY: Duration = Duration::from_secs(1);
/// Maximum delay before a stream is reopened, unless the hub names another.
const MAX_REOPEN_DELAY: Duration = Duration::from_secs(30);
/// Maximum delay that the hub may request.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);
/// Lifetime after which a stream counts as stable and the delay is reset.
const STABLE_TIME: Duration = Duration::from_secs(30);
/// Interval between pings.
const PING_INTERVAL: Duration = Duration::from_secs(15);
/// Time limit for the hub's answer to Open or a ping.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(45);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamPhase {
    /// No stream, and none before this time, if any.
    Closed(Option<Instant>),
    /// Open is sent.
    Opening(Instant),
    /// The hub has answered.
    Open(Instant),
}

/// Next action of the lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Demand {
    Open,
    /// End the stream: no accounts, no session, or no answer.
    Close,
    /// Send a ping with this nonce.
    Ping(u64),
    /// Idle until the deadline, if any.
    Wait(Option<Instant>),
}

#[derive(Clone, Debug)]
pub(super) struct StreamLifetime {
    phase: StreamPhase,
    has_session: bool,
    reopen_delay: Duration,
    /// Time since which no account is assigned; `None` while one is.
    idle_since: Option<Instant>,
    next_ping: Instant,
    nonce: u64,
    /// Time of the first unanswered ping.
    unanswered: Option<Instant>,
}

impl StreamLifetime {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            phase: StreamPhase::Closed(None),
            has_session: false,
            reopen_delay: REOPEN_DELAY,
            idle_since: Some(now),
            next_ping: now,
            nonce: 0,
            unanswered: None,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.phase, StreamPhase::Open(_))
    }

    /// Whether a stream is opening or open.
    pub(super) fn is_begun(&self) -> bool {
        !matches!(self.phase, StreamPhase::Closed(_))
    }

    /// Records the start or end of a session. A session's stream ends with it.
    pub(super) fn session_changed(&mut self, has_session: bool) {
        self.has_session = has_session;
        self.phase = StreamPhase::Closed(None);
        self.reopen_delay = REOPEN_DELAY;
    }

    /// Records whether accounts are assigned.
    pub(super) fn assigned(&mut self, is_assigned: bool, now: Instant) {
        self.idle_since = match (is_assigned, self.idle_since) {
            (true, _) => None,
            (false, since) => since.or(Some(now)),
        };
    }

    /// Records the hub's answer to Open. Returns `true` the first time.
    pub(super) fn answered(&mut self, now: Instant) -> bool {
        let is_first = matches!(self.phase, StreamPhase::Opening(_));
        if is_first {
            self.phase = StreamPhase::Open(now);
            self.next_ping = now + PING_INTERVAL;
            self.unanswered = None;
        }
        is_first
    }

    /// Records the hub's answer to a ping.
    pub(super) fn pong(&mut self, nonce: u64) {
        if nonce == self.nonce {
            self.unanswered = None;
        }
    }

    /// Records the end of the stream, by either side; `closed` holds the hub's reason and retry delay.
    pub(super) fn ended(&mut self, closed: Option<(Reason, Duration)>, now: Instant) {
        if let StreamPhase::Open(since) = self.phase
            && now.saturating_duration_since(since) >= STABLE_TIME
        {
            self.reopen_delay = REOPEN_DELAY;
        }
        if !self.is_begun() {
            return;
        }
        let asked = closed.map_or(Duration::ZERO, |(_, retry_after)| retry_after.min(MAX_RETRY_AFTER));
        let delay = if asked.is_zero() { self.reopen_delay } else { asked };
        self.reopen_delay = (self.reopen_delay * 2).min(MAX_REOPEN_DELAY);
        self.phase = StreamPhase::Closed(Some(now + delay));
        if matches!(closed, Some((Reason::SessionEnded, _))) {
            // No stream until GetOps is connected again.
            self.has_session = false;
        }
    }

    pub(super) fn demand(&mut self, now: Instant) -> Demand {
        let idle_end = self.idle_since.map(|since| since + IDLE_TIME);
        match self.phase {
            StreamPhase::Closed(_) if !self.has_session || self.idle_since.is_some() => Demand::Wait(None),
            StreamPhase::Closed(Some(from)) if now < from => Demand::Wait(Some(from)),
            StreamPhase::Closed(_) => {
                self.phase = StreamPhase::Opening(now);
                Demand::Open
            }
            _ if idle_end.is_some_and(|end| now >= end) => {
                self.phase = StreamPhase::Closed(None);
                Demand::Close
            }
            StreamPhase::Opening(since) if now >= since + ANSWER_TIMEOUT => self.close(now),
            StreamPhase::Opening(since) => Demand::Wait(earlier(idle_end, Some(since + ANSWER_TIMEOUT))),
            StreamPhase::Open(_) => self.demand_of_open(now, idle_end),
        }
    }

    fn demand_of_open(&mut self, now: Instant, idle_end: Option<Instant>) -> Demand {
        let timeout = self.unanswered.map(|since| since + ANSWER_TIMEOUT);
        if timeout.is_some_and(|timeout| now >= timeout) {
            return self.close(now);
        }
        if now >= self.next_ping {
            self.nonce += 1;
            self.next_ping = now + PING_INTERVAL;
            self.unanswered.get_or_insert(now);
            return Demand::Ping(self.nonce);
        }
        Demand::Wait(earlier(earlier(idle_end, timeout), Some(self.next_ping)))
    }

    fn close(&mut self, now: Instant) -> Demand {
        self.ended(None, now);
        Demand::Close
    }
}

/// The earlier of two optional times.
pub(super) fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}
