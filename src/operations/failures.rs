//! What a request without an answer means for its operation, and whether the operation runs again. Pure.

use std::time::Duration;

use crate::connected_agents::RequestError;
use kubesvc_core::operations::{Outcome, OutcomeClass};

/// First delay before an operation runs again; it doubles up to [`MAX_RETRY_DELAY`].
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// Maximum delay before an operation runs again.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);

/// How a run failed without an answer of the API server.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RunFailure {
    pub(super) outcome: Outcome,
    /// Whether certainly no write of the operation was executed.
    pub(super) before_send: bool,
    /// Whether it may go better a moment later.
    is_passing: bool,
}

/// What is known of an operation's writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SentWrites {
    /// Whether one was sent, in this run or one before.
    pub(super) any: bool,
    /// Whether one of this run was answered.
    pub(super) answered: bool,
}

impl RunFailure {
    /// The failure of a request. `is_write` says whether it may have changed something.
    pub(super) fn of_request(error: &RequestError, is_write: bool, writes: SentWrites) -> Self {
        let is_unknown = is_write && !error.is_before_send();
        let class = class(error, is_unknown);
        Self {
            outcome: Outcome::failed(status(error, is_unknown), class, error.to_string()),
            before_send: !is_unknown && !writes.any,
            is_passing: is_passing(error),
        }
    }

    /// The end of the operation's time.
    pub(super) fn out_of_time(write_in_flight: bool, writes: SentWrites) -> Self {
        let (class, message) = if write_in_flight {
            (OutcomeClass::OutcomeUnknown, "the outcome is unknown: the cluster did not answer in time")
        } else {
            (OutcomeClass::Timeout, "the operation was not done in its time")
        };
        Self {
            outcome: Outcome::failed(504, class, message),
            before_send: !write_in_flight && !writes.any,
            is_passing: false,
        }
    }

    /// The database does not take the row without which the operation must not go on.
    pub(super) fn not_recorded(writes: SentWrites) -> Self {
        let message = "the database cannot be used now, and the operation must be recorded before it is done; try again";
        Self {
            outcome: Outcome::failed(503, OutcomeClass::Internal, message),
            before_send: !writes.any,
            is_passing: false,
        }
    }

    pub(super) fn is_unknown(&self) -> bool {
        self.outcome.failure.as_ref().is_some_and(|failure| failure.class == OutcomeClass::OutcomeUnknown)
    }

    /// The end of the operation. What was half done when it failed for good is unknown.
    pub(super) fn into_outcome(self, writes: SentWrites) -> (Outcome, bool) {
        let is_half_done = writes.answered && self.is_passing && !self.is_unknown();
        if !is_half_done {
            return (self.outcome, self.before_send);
        }
        let message = self.outcome.failure.map(|failure| failure.message).unwrap_or_default();
        let message = format!("the outcome is unknown: it was begun, then {message}");
        (Outcome::failed(504, OutcomeClass::OutcomeUnknown, message), false)
    }
}

/// Decides whether a run that failed is followed by another one, and after which delay. `runs` is the number of runs so
/// far, `left` the rest of the operation's time.
pub(super) fn run_again(
    failure: &RunFailure,
    writes: SentWrites,
    may_run_again: bool,
    (runs, max_retries): (u32, u32),
    left: Duration,
) -> Option<Duration> {
    let is_safe = may_run_again || !writes.any;
    let is_useful = failure.is_unknown() || failure.is_passing;
    let delay = RETRY_DELAY.saturating_mul(1 << (runs.saturating_sub(1)).min(16)).min(MAX_RETRY_DELAY);
    (is_safe && is_useful && runs <= max_retries && delay < left).then_some(delay)
}

fn class(error: &RequestError, is_unknown: bool) -> OutcomeClass {
    match error {
        _ if is_unknown => OutcomeClass::OutcomeUnknown,
        RequestError::NoAccount => OutcomeClass::NotFound,
        RequestError::NotUsable { .. } | RequestError::AgentTooOld { .. } => OutcomeClass::Conflict,
        RequestError::Invalid { is_too_large: true, .. } => OutcomeClass::TooLarge,
        RequestError::Invalid { .. } => OutcomeClass::Invalid,
        RequestError::Forbidden(_) => OutcomeClass::Forbidden,
        RequestError::NoAnswer { is_timeout: true, .. } | RequestError::Unknown(_) => OutcomeClass::Timeout,
        _ => OutcomeClass::Internal,
    }
}

fn status(error: &RequestError, is_unknown: bool) -> u16 {
    match error {
        _ if is_unknown => 504,
        RequestError::NoAccount => 404,
        RequestError::NotUsable { .. } | RequestError::AgentTooOld { .. } => 409,
        error => error.status().as_u16(),
    }
}

fn is_passing(error: &RequestError) -> bool {
    match error {
        RequestError::NoAgent { .. }
        | RequestError::TooMany(_)
        | RequestError::NotSent(_)
        | RequestError::Unknown(_)
        | RequestError::Cut(_) => true,
        RequestError::NoAnswer { is_timeout, .. } => !is_timeout,
        RequestError::NoAccount
        | RequestError::NotUsable { .. }
        | RequestError::AgentTooOld { .. }
        | RequestError::Invalid { .. }
        | RequestError::Forbidden(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEFT: Duration = Duration::from_secs(10);
    const NONE: SentWrites = SentWrites { any: false, answered: false };
    const SENT: SentWrites = SentWrites { any: true, answered: false };
    const HALF: SentWrites = SentWrites { any: true, answered: true };

    fn unknown() -> RunFailure {
        RunFailure::of_request(&RequestError::Unknown("gone".into()), true, SENT)
    }

    fn no_agent(writes: SentWrites) -> RunFailure {
        let error = RequestError::NoAgent { account: "a".into(), zone: "z".into(), is_expected: true };
        RunFailure::of_request(&error, true, writes)
    }

    #[test]
    fn unknown_runs_again_only_if_it_may_be_done_twice() {
        assert!(unknown().is_unknown() && !unknown().before_send);
        assert!(run_again(&unknown(), SENT, true, (1, 3), LEFT).is_some());
        assert!(run_again(&unknown(), SENT, false, (1, 3), LEFT).is_none());
        assert!(run_again(&unknown(), SENT, true, (4, 3), LEFT).is_none(), "as often as the settings say");
        assert!(run_again(&unknown(), SENT, true, (1, 0), LEFT).is_none());
        assert!(run_again(&unknown(), SENT, true, (3, 3), Duration::from_millis(100)).is_none(), "no time");
    }

    #[test]
    fn what_was_not_sent_runs_again_whatever_it_is() {
        let failure = no_agent(NONE);
        assert!(failure.before_send);
        assert!(run_again(&failure, NONE, false, (1, 3), LEFT).is_some());
        assert!(run_again(&no_agent(HALF), HALF, false, (1, 3), LEFT).is_none(), "one write was done before");
        let forbidden = RunFailure::of_request(&RequestError::Forbidden("no".into()), true, NONE);
        assert!(run_again(&forbidden, NONE, true, (1, 3), LEFT).is_none());
        assert_eq!(forbidden.outcome.status, 403);
    }

    #[test]
    fn an_operation_that_stops_half_way_has_an_unknown_outcome() {
        let (outcome, before_send) = no_agent(HALF).into_outcome(HALF);
        assert_eq!((outcome.status, before_send), (504, false));
        assert_eq!(outcome.failure.map(|failure| failure.class), Some(OutcomeClass::OutcomeUnknown));
        let (outcome, before_send) = no_agent(NONE).into_outcome(NONE);
        assert_eq!((outcome.status, before_send), (503, true));
    }

    #[test]
    fn a_read_without_an_answer_leaves_nothing_unknown() {
        let cut = RequestError::Cut("half of it".into());
        let failure = RunFailure::of_request(&cut, false, NONE);
        assert!(!failure.is_unknown() && failure.before_send);
        let late = RequestError::NoAnswer { message: "late".into(), is_timeout: true };
        let failure = RunFailure::of_request(&late, false, NONE);
        assert_eq!(failure.outcome.failure.map(|failure| failure.class), Some(OutcomeClass::Timeout));
    }

    #[test]
    fn the_delay_grows_and_has_a_bound() {
        let delay = |runs| run_again(&unknown(), SENT, true, (runs, 1000), Duration::MAX).unwrap_or_default();
        assert_eq!(delay(1), RETRY_DELAY);
        assert_eq!(delay(2), RETRY_DELAY * 2);
        assert_eq!(delay(900), MAX_RETRY_DELAY);
    }
}
