//! Reaction of a scope to a failure: the next step, its time, and what to report.

use std::time::{Duration, Instant};

use crate::watch::action::WaitReason;
use crate::watch::failure::{RequestFailure, RetryTime};
use crate::watch::list::{ListReason, SentObjects};
use crate::watch::machine::{ScopePhase, ScopeWatch};
use crate::watch::{
    MAX_LIST_WAIT, MAX_PAGE_FAILURE, MAX_RETRY_AFTER, PAGE_LIMITS, PROBLEM_DELAY, PROBLEM_RETRY_INTERVAL,
};

impl ScopeWatch {
    /// Handles a failed request: no response, a status other than 200, a response that is unreadable or ended early, or
    /// an error in the watch.
    pub fn failed(&mut self, failure: &RequestFailure, now: Instant) {
        if failure.is_expired() && self.expired(now) {
            return;
        }
        self.note_problem(failure, now);
        if let ScopePhase::Watching(watch) = &self.phase
            && watch.has_lived(now)
        {
            self.failures.retry_delay.reset();
        }
        let is_unreadable = matches!(failure, RequestFailure::Unreadable(_));
        let (delay, reason) = self.retry_after(failure.retry());
        let fails_for_long = match &mut self.phase {
            ScopePhase::Listing(list) => now >= *list.failing_since.get_or_insert(now) + MAX_PAGE_FAILURE,
            _ => false,
        };
        match &mut self.phase {
            // The wait may last for days, so the list keeps no rows.
            ScopePhase::Listing(_) if reason.needs_change() || delay > MAX_LIST_WAIT || fails_for_long => {
                self.give_list_up();
            }
            ScopePhase::Listing(list) if list.can_repeat_page() => list.page_failed(),
            ScopePhase::Listing(_) => self.start_list(false, ListReason::Retry),
            ScopePhase::Watching(_) => {
                // Second failure at the same version: a list skips what cannot be read.
                if is_unreadable
                    && self.failures.unreadable_after.is_some()
                    && self.failures.unreadable_after == self.position.version
                {
                    self.start_list(false, ListReason::Retry);
                } else {
                    if is_unreadable {
                        self.failures.unreadable_after = self.position.version.clone();
                    }
                    self.resume_watch(now);
                }
            }
            ScopePhase::NeedsList { asks_first, sent, .. } if reason.needs_change() => {
                // Refused again, possibly for days.
                if std::mem::replace(asks_first, true) {
                    *sent = SentObjects::default();
                }
            }
            ScopePhase::NeedsList { .. } | ScopePhase::AwaitsBasis(_) => {}
        }
        self.attempt += 1;
        self.hold(delay, reason, now);
    }

    /// Aborts the list and releases its rows. The next list begins once the cluster answers.
    fn give_list_up(&mut self) {
        self.start_list(false, ListReason::Retry);
        if let ScopePhase::NeedsList { asks_first, .. } = &mut self.phase {
            *asks_first = true;
        }
    }

    /// Handles an expired version by listing the scope anew. Returns whether the failure is fully handled.
    fn expired(&mut self, now: Instant) -> bool {
        match &self.phase {
            ScopePhase::Listing(list) => {
                let is_in_mid_list = list.continue_token.is_some();
                let had_limit = self.failures.page_limit < PAGE_LIMITS.len();
                self.start_list(false, ListReason::Expired);
                self.failures.page_limit = (self.failures.page_limit + 1).min(PAGE_LIMITS.len());
                // A list without a limit, or its first page, has no version that could expire.
                is_in_mid_list && had_limit
            }
            ScopePhase::Watching(watch) => {
                if watch.has_lived(now) {
                    self.failures.relist_delay.reset();
                }
                self.start_list(false, ListReason::Expired);
                // The first time at once; repeatedly, as lists expire before they are watched, at growing intervals.
                let is_first = self.failures.relist_delay.is_first();
                let delay = self.failures.relist_delay.after_failure(&mut self.random);
                if std::mem::take(&mut self.is_after_pause) {
                    let delay = self.spread();
                    self.hold(delay, WaitReason::Spread, now);
                } else if !is_first {
                    self.hold(delay, WaitReason::Retry, now);
                }
                true
            }
            ScopePhase::NeedsList { .. } | ScopePhase::AwaitsBasis(_) => false,
        }
    }

    fn retry_after(&mut self, retry: RetryTime) -> (Duration, WaitReason) {
        match retry {
            RetryTime::Backoff => {
                (self.failures.retry_delay.after_failure(&mut self.random), WaitReason::Retry)
            }
            RetryTime::After(asked) => {
                // Jitter.
                let little = Duration::from_secs(1).mul_f64(self.random.f64());
                (asked.min(MAX_RETRY_AFTER) + little, WaitReason::Retry)
            }
            RetryTime::Problem(reason) => (PROBLEM_RETRY_INTERVAL, reason),
        }
    }

    /// Reports the failure: at once, or after the scope has failed for [`PROBLEM_DELAY`].
    fn note_problem(&mut self, failure: &RequestFailure, now: Instant) {
        let since = *self.failures.since.get_or_insert(now);
        let is_lasting = matches!(failure.retry(), RetryTime::Problem(_)) || now >= since + PROBLEM_DELAY;
        if is_lasting {
            self.failures.problem = Some(failure.to_wire());
        }
    }
}
