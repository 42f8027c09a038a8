//! Timers of a scope: due checkpoints, stalled responses, silent watches, and audit lists for events that a watch may
//! have lost.

use std::time::Instant;

use crate::watch::failure::RequestFailure;
use crate::watch::list::ListReason;
use crate::watch::machine::{CurrentWatch, ScopePhase, ScopeWatch};
use crate::watch::{CHECKPOINT_INTERVAL, MAX_SILENCE_LIMIT, RESPONSE_IDLE_TIMEOUT, SHORT_WATCH};

impl ScopeWatch {
    /// Time at which [`tick`](Self::tick) is due; `None` if only a report changes the state.
    pub fn next_tick(&self) -> Option<Instant> {
        let mut due = Vec::with_capacity(5);
        if let ScopePhase::Watching(_) = self.phase
            && self.position.is_unsent
        {
            due.push(self.position.queued_at + CHECKPOINT_INTERVAL);
        }
        if self.is_paused {
            return due.into_iter().min();
        }
        if let Some(hold) = self.hold {
            due.push(hold.until);
            return due.into_iter().min();
        }
        match &self.phase {
            ScopePhase::NeedsList { asks_first: true, .. } | ScopePhase::Listing(_) => {
                due.push(self.idle_since + RESPONSE_IDLE_TIMEOUT);
            }
            ScopePhase::NeedsList { .. } | ScopePhase::AwaitsBasis(_) => {}
            ScopePhase::Watching(watch) => {
                due.push(self.idle_since + watch.idle_limit());
                due.push(self.audit_at);
                due.extend(self.silence.since.map(|since| since + self.silence.limit));
                if !self.is_read() || self.failures.problem.is_some() {
                    due.extend(watch.opened.map(|opened| opened + SHORT_WATCH));
                }
            }
        }
        due.into_iter().min()
    }

    /// Advances time. Returns a version to queue as a checkpoint, if one is due.
    pub fn tick(&mut self, now: Instant) -> Option<String> {
        let checkpoint = self.due_checkpoint(now);
        if self.is_paused {
            return checkpoint;
        }
        if let Some(hold) = self.hold {
            if now < hold.until {
                return checkpoint;
            }
            self.hold = None;
            self.begin_attempt(now);
        }
        match &self.phase {
            ScopePhase::NeedsList { asks_first: true, .. } | ScopePhase::Listing(_) => {
                if now >= self.idle_since + RESPONSE_IDLE_TIMEOUT {
                    self.failed(&RequestFailure::stalled(RESPONSE_IDLE_TIMEOUT), now);
                }
            }
            ScopePhase::NeedsList { .. } | ScopePhase::AwaitsBasis(_) => {}
            ScopePhase::Watching(watch) => self.tick_watch(*watch, now),
        }
        checkpoint
    }

    fn tick_watch(&mut self, watch: CurrentWatch, now: Instant) {
        if watch.has_lived(now) {
            self.succeeded();
            self.failures.relist_delay.reset();
        }
        if self.silence.since.is_some_and(|since| now >= since + self.silence.limit) {
            self.silence.limit = (self.silence.limit * 2).min(MAX_SILENCE_LIMIT);
            self.start_list(false, ListReason::Silent);
        } else if now >= self.audit_at {
            self.start_list(false, ListReason::Audit);
        } else if now >= self.idle_since + watch.idle_limit() {
            self.failed(&RequestFailure::stalled(watch.idle_limit()), now);
        }
    }

    /// Version to queue as a checkpoint without an event, if one is due.
    pub(super) fn due_checkpoint(&mut self, now: Instant) -> Option<String> {
        // During a list, a checkpoint would make the scope look complete.
        let is_watching = matches!(self.phase, ScopePhase::Watching(_));
        if !is_watching || !self.position.is_unsent || now < self.position.queued_at + CHECKPOINT_INTERVAL {
            return None;
        }
        self.queued(now);
        self.position.version.clone()
    }
}
