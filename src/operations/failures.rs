//! What a request without an answer means for its operation, and whether the operation runs again. Pure.

use std::time::Duration;

use crate::connected_agents::{RequestError, RequestErrorKind as Kind};
use kubesvc_core::operations::{ApiAnswer, ApiRequest, Method, Outcome, OutcomeBody, OutcomeClass};
use kubesvc_core::wire::operations::operation::Verb;

/// First delay before an operation runs again; it doubles up to [`MAX_RETRY_DELAY`].
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// Maximum delay before an operation runs again.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);

/// Maximum delay before it is tried again whether an agent is back.
const MAX_AGENT_DELAY: Duration = Duration::from_secs(1);

/// How a run failed without an answer of the API server that decides.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RunFailure {
    pub(super) outcome: Outcome,
    /// Whether certainly no write of the operation was executed.
    pub(super) before_send: bool,
    /// Whether it may go better a moment later.
    is_passing: bool,
    /// Whether there is no agent now, and one is expected back.
    waits_for_agent: bool,
}

impl RunFailure {
    /// A failure that is no better a moment later.
    fn new(outcome: Outcome, before_send: bool) -> Self {
        Self { outcome, before_send, is_passing: false, waits_for_agent: false }
    }

    /// The failure of a request. `is_write` says whether it may have changed something, `is_begun` whether a write was
    /// sent, in this run or one before, that may have been executed.
    pub(super) fn of_request(error: &RequestError, is_write: bool, is_begun: bool) -> Self {
        let is_unknown = is_write && !error.is_before_send();
        let status = status(error, is_unknown);
        let class = match error.kind {
            _ if is_unknown => OutcomeClass::OutcomeUnknown,
            Kind::TooMany => OutcomeClass::Internal,
            _ => OutcomeClass::of_status(status),
        };
        Self {
            is_passing: is_passing(error),
            waits_for_agent: error.awaits_agent(),
            ..Self::new(Outcome::failed(status, class, &error.message), !is_unknown && !is_begun)
        }
    }

    /// The API server has no time for an operation that was begun.
    pub(super) fn overloaded(answer: &ApiAnswer) -> Self {
        Self::new(overloaded(answer), false)
    }

    /// Whether the API server has no time for it.
    pub(super) fn is_overloaded(&self) -> bool {
        self.outcome.failure.as_ref().is_some_and(|failure| failure.class == OutcomeClass::Overloaded)
    }

    /// The API server gave up a write, or who stands before it did: it may go on with it.
    pub(super) fn of_late_write(answer: &ApiAnswer) -> Self {
        let said = Outcome::refused(answer).failure.map(|failure| failure.message).unwrap_or_default();
        let message = format!("the outcome is unknown: the API server answered {}: {said}", answer.status);
        Self::new(Outcome::failed(504, OutcomeClass::OutcomeUnknown, message), false)
    }

    /// The end of the operation's time.
    pub(super) fn out_of_time(write_in_flight: bool, is_begun: bool) -> Self {
        let (class, message) = if write_in_flight {
            (OutcomeClass::OutcomeUnknown, "the outcome is unknown: the cluster did not answer in time")
        } else {
            (OutcomeClass::Timeout, "the operation was not done in its time")
        };
        Self::new(Outcome::failed(504, class, message), !write_in_flight && !is_begun)
    }

    /// The database does not take the row without which the operation must not go on.
    pub(super) fn not_recorded(is_begun: bool) -> Self {
        let message = "the database cannot be used now, and the operation must be recorded before it is done; try again";
        Self::new(Outcome::failed(503, OutcomeClass::Internal, message), !is_begun)
    }

    /// The operator failed while it ran the operation.
    pub(super) fn panicked(is_begun: bool) -> Self {
        let message = "the operator failed to run the operation; see its log";
        Self::new(Outcome::failed(500, OutcomeClass::Internal, message), !is_begun)
    }

    pub(super) fn is_unknown(&self) -> bool {
        self.outcome.failure.as_ref().is_some_and(|failure| failure.class == OutcomeClass::OutcomeUnknown)
    }

    /// The end of the operation. What was half done when it failed for good is unknown.
    pub(super) fn into_outcome(self, is_begun: bool) -> (Outcome, bool) {
        if !is_begun || self.is_unknown() {
            return (self.outcome, self.before_send);
        }
        (half_done(self.outcome), false)
    }
}

/// The end of an operation that was begun before it failed like this.
fn half_done(failed: Outcome) -> Outcome {
    let message = failed.failure.map(|failure| failure.message).unwrap_or_default();
    let message = format!("the outcome is unknown: it was begun, then {message}");
    Outcome::failed(504, OutcomeClass::OutcomeUnknown, message)
}

/// The end of an operation whose last run ended like this, after an earlier one had begun: what is no longer found may be
/// what that one did.
pub(super) fn after_begun_run(verb: &Verb, outcome: Outcome) -> Outcome {
    match verb {
        Verb::Delete(_) if outcome.status == 404 => Outcome::done(200, OutcomeBody::Empty),
        // The revision that a workload is brought back to gets a new number.
        Verb::UndoRollout(_) if outcome.status == 404 => half_done(outcome),
        _ => outcome,
    }
}

/// The runs of an operation so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Runs {
    /// Runs that failed.
    failed: u32,
    /// Runs that found no agent where one is expected back: nothing was sent.
    waited: u32,
    /// Maximum number of runs after the first one.
    max_retries: u32,
}

impl Runs {
    pub(super) fn new(max_retries: u32) -> Self {
        Self { failed: 0, waited: 0, max_retries }
    }

    /// Decides after which delay a run that failed is followed by another one, if at all: as often as the settings say, or,
    /// where an agent is expected back, until the time of the operation is over, of which `left` is left. `is_safe`: nothing
    /// was begun, or the operation may be done twice.
    pub(super) fn again(&mut self, failure: &RunFailure, is_safe: bool, left: Duration) -> Option<Duration> {
        let delay = if failure.waits_for_agent {
            self.waited += 1;
            delay_after(self.waited).min(MAX_AGENT_DELAY)
        } else {
            self.failed += 1;
            let is_useful = failure.is_unknown() || failure.is_passing;
            (is_useful && self.failed <= self.max_retries).then(|| delay_after(self.failed))?
        };
        (is_safe && delay < left).then_some(delay)
    }
}

/// What an answer means for the one who asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerMeaning {
    /// It is what the program waits for.
    Answer,
    /// The API server is busy: the request is made as a new one after this delay.
    Later(Duration),
    /// The API server is busy, and the request is not made again.
    Overloaded,
    /// The write may have been executed.
    Unknown,
}

/// Decides what the answer to a request means. `tries` is the number of times that it was made, `left` the rest of the
/// operation's time.
pub(super) fn of_answer(
    answer: &ApiAnswer,
    request: &ApiRequest,
    (tries, left): (u32, Duration),
) -> AnswerMeaning {
    // Done twice, these may do something else than done once.
    let is_single =
        request.method == Method::Post || request.content_type == Some("application/json-patch+json");
    let may_be_made_again = match (answer.status, answer.retry_after) {
        (408 | 504, _) if !request.method.reads() => return AnswerMeaning::Unknown,
        (429, _) => true,
        (503, Some(_)) => !is_single,
        _ => return AnswerMeaning::Answer,
    };
    let delay = answer.retry_after.unwrap_or_default().max(delay_after(tries));
    if may_be_made_again && delay < left { AnswerMeaning::Later(delay) } else { AnswerMeaning::Overloaded }
}

/// The end of an operation for which the API server had no time.
pub(super) fn overloaded(answer: &ApiAnswer) -> Outcome {
    let mut outcome = Outcome::refused(answer);
    if let Some(failure) = &mut outcome.failure {
        failure.class = OutcomeClass::Overloaded;
    }
    outcome
}

/// Decides whether a request without an answer is made again within its run, and after which delay: the operation was
/// begun, and the request itself changed nothing. `tries` is the number of tries so far.
pub(super) fn ask_again(
    error: &RequestError,
    is_write: bool,
    is_begun: bool,
    (tries, left): (u32, Duration),
) -> Option<Duration> {
    let is_safe = !is_write || error.is_before_send();
    let delay = delay_after(tries);
    (is_begun && is_safe && is_passing(error) && delay < left).then_some(delay)
}

fn delay_after(tries: u32) -> Duration {
    RETRY_DELAY.saturating_mul(1 << tries.saturating_sub(1).min(16)).min(MAX_RETRY_DELAY)
}

/// Status for a request without an answer.
pub(super) fn status(error: &RequestError, is_unknown: bool) -> u16 {
    match error.kind {
        _ if is_unknown => 504,
        Kind::NoAccount => 404,
        Kind::NotUsable | Kind::AgentTooOld => 409,
        _ => error.status().as_u16(),
    }
}

fn is_passing(error: &RequestError) -> bool {
    use Kind::{Cut, NoAgent, NoAnswer, NotSent, TooMany, Unknown};
    matches!(error.kind, NoAgent | TooMany | NotSent | Unknown | NoAnswer | Cut)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEFT: Duration = Duration::from_secs(10);

    fn unknown() -> RunFailure {
        RunFailure::of_request(&RequestError::unknown("gone"), true, true)
    }

    fn no_agent(is_begun: bool) -> RunFailure {
        let error = RequestError::no_agent("a", &"z".into(), true);
        RunFailure::of_request(&error, true, is_begun)
    }

    /// What follows the run of this number, of as many as may follow the first one.
    fn run_again(
        failure: &RunFailure,
        is_safe: bool,
        (number, max_retries): (u32, u32),
        left: Duration,
    ) -> Option<Duration> {
        Runs { failed: number - 1, waited: number - 1, max_retries }.again(failure, is_safe, left)
    }

    #[test]
    fn unknown_runs_again_only_if_it_may_be_done_twice() {
        assert!(unknown().is_unknown() && !unknown().before_send);
        assert!(run_again(&unknown(), true, (1, 3), LEFT).is_some());
        assert!(run_again(&unknown(), false, (1, 3), LEFT).is_none());
        assert!(run_again(&unknown(), true, (4, 3), LEFT).is_none(), "as often as the settings say");
        assert!(run_again(&unknown(), true, (1, 0), LEFT).is_none());
        assert!(run_again(&unknown(), true, (3, 3), Duration::from_millis(100)).is_none(), "no time");
    }

    #[test]
    fn what_was_not_sent_runs_again_whatever_it_is() {
        let failure = RunFailure::of_request(&RequestError::new(Kind::NotSent, "full"), true, false);
        assert!(failure.before_send);
        assert!(run_again(&failure, true, (1, 3), LEFT).is_some());
        assert!(run_again(&failure, false, (1, 3), LEFT).is_none(), "one write was done before");
        let forbidden = RunFailure::of_request(&RequestError::new(Kind::Forbidden, "no"), true, false);
        assert!(run_again(&forbidden, true, (1, 3), LEFT).is_none());
        assert_eq!(forbidden.outcome.status, 403);
    }

    #[test]
    fn an_operation_that_stops_half_way_has_an_unknown_outcome() {
        let forbidden = RunFailure::of_request(&RequestError::new(Kind::Forbidden, "no"), false, true);
        for failure in [no_agent(true), RunFailure::out_of_time(false, true), forbidden] {
            let (outcome, before_send) = failure.into_outcome(true);
            assert_eq!((outcome.status, before_send), (504, false));
            assert_eq!(outcome.failure.map(|failure| failure.class), Some(OutcomeClass::OutcomeUnknown));
        }
        let (outcome, before_send) = no_agent(false).into_outcome(false);
        assert_eq!((outcome.status, before_send), (503, true));
    }

    #[test]
    fn a_read_without_an_answer_leaves_nothing_unknown() {
        let cut = RequestError::cut("half of it");
        let failure = RunFailure::of_request(&cut, false, false);
        assert!(!failure.is_unknown() && failure.before_send);
        let late = RequestError::new(Kind::Timeout, "late");
        let failure = RunFailure::of_request(&late, false, false);
        assert_eq!(failure.outcome.failure.map(|failure| failure.class), Some(OutcomeClass::Timeout));
    }

    #[test]
    fn an_operation_that_was_begun_waits_for_an_agent() {
        let away = RequestError::no_agent("a", &"z".into(), true);
        let again = |error: &RequestError, is_write, is_begun| {
            ask_again(error, is_write, is_begun, (1, LEFT)).is_some()
        };
        assert!(again(&away, false, true) && again(&away, true, true));
        assert!(!again(&away, false, false), "nothing was begun");
        let lost = RequestError::new(Kind::NoAnswer, "the replica is gone");
        assert!(again(&lost, false, true));
        let unknown = RequestError::unknown("gone");
        assert!(!again(&unknown, true, true), "the write may have been executed");
        assert!(!again(&RequestError::new(Kind::Forbidden, "no"), false, true));
        assert!(ask_again(&away, false, true, (5, Duration::from_secs(1))).is_none(), "no time");
    }

    #[test]
    fn an_operation_waits_for_an_agent_that_is_expected_until_its_time_is_over() {
        assert!(no_agent(false).waits_for_agent && !unknown().waits_for_agent);
        assert!(run_again(&no_agent(false), true, (1_000, 0), LEFT).is_some(), "however often it was tried");
        assert!(run_again(&no_agent(true), false, (1, 3), LEFT).is_none(), "one write was done before");
        assert!(run_again(&no_agent(false), true, (9, 3), Duration::from_millis(500)).is_none(), "no time");
        let mut runs = Runs::new(1);
        assert!((0..9).all(|_| runs.again(&no_agent(false), true, LEFT).is_some()));
        assert!(runs.again(&unknown(), true, LEFT).is_some(), "those that found no agent are not counted");
        assert!(runs.again(&unknown(), true, LEFT).is_none());
    }

    #[test]
    fn a_busy_or_late_api_server_is_waited_for_where_the_request_may_be_made_again() {
        use AnswerMeaning::{Answer, Later, Overloaded, Unknown};
        const SECOND: Duration = Duration::from_secs(1);
        let request =
            |method, content_type| ApiRequest { method, content_type, ..ApiRequest::get("/x".into()) };
        let merge = request(Method::Patch, Some("application/merge-patch+json"));
        let json = request(Method::Patch, Some("application/json-patch+json"));
        let (get, post) = (request(Method::Get, None), request(Method::Post, Some("application/json")));
        for (status, after, asked, expected) in [
            (504, None, &merge, Unknown),
            (408, None, &post, Unknown),
            (504, Some(SECOND), &request(Method::Delete, None), Unknown),
            (504, None, &get, Answer),
            (429, Some(SECOND), &merge, Later(SECOND)),
            (429, Some(SECOND), &post, Later(SECOND)),
            (429, None, &json, Later(RETRY_DELAY)),
            (429, Some(LEFT), &merge, Overloaded),
            (503, Some(SECOND), &merge, Later(SECOND)),
            (503, Some(SECOND), &get, Later(SECOND)),
            (503, Some(SECOND), &post, Overloaded),
            (503, Some(SECOND), &json, Overloaded),
            (503, None, &merge, Answer),
            (500, Some(SECOND), &merge, Answer),
            (200, None, &merge, Answer),
        ] {
            let answer = ApiAnswer { status, retry_after: after, ..ApiAnswer::default() };
            assert_eq!(of_answer(&answer, asked, (1, LEFT)), expected, "{status} {after:?} {asked:?}");
        }
    }

    #[test]
    fn the_delay_grows_and_has_a_bound() {
        let delay = |runs| run_again(&unknown(), true, (runs, 1000), Duration::MAX).unwrap_or_default();
        assert_eq!(delay(1), RETRY_DELAY);
        assert_eq!(delay(2), RETRY_DELAY * 2);
        assert_eq!(delay(900), MAX_RETRY_DELAY);
    }
}
