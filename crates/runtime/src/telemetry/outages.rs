//! Logs one line at the start and one at the end of an API server outage, whichever call notices it first.
//!
//! The operator's API client reports the outcome of each call through [`Noticing`]: answered, even with a
//! refusal, or not answered. During an outage, code with a warning of its own uses [`warn_unless_away`],
//! which logs at debug level. Other errors, such as missing permissions, neither start nor prolong an outage.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use parking_lot::Mutex;
use tower::{BoxError, Layer, Service};
use tracing::{debug, info, warn};

use super::errors::chain;
use crate::shutdown::spawn_named;
use crate::watch_backoff::{WatchOutage, is_absence};

/// Time without a failed call, after an answer, that ends an outage. An API server that is starting answers
/// only some calls.
const RECOVERY_TIME: Duration = Duration::from_secs(3);
/// Minimum time that an abandoned call must have waited to count as failed, provided that no other call was
/// answered meanwhile.
const MIN_ABANDONED_WAIT: Duration = Duration::from_secs(3);

/// State of the API server as this process knows it. Global, because the log is too.
static API_SERVER: Mutex<Reach> = Mutex::new(Reach::new());

/// Whether calls to the API server fail, and since when. Depends only on the recorded outcomes and their
/// times.
#[derive(Debug)]
struct Reach {
    /// Time of the first failed call.
    away_since: Option<Instant>,
    /// Time of the first answer after which no call has failed.
    back_since: Option<Instant>,
    /// Time of the last answer.
    answered: Option<Instant>,
    /// Number of failed calls in this outage.
    failed: u64,
}

/// An outage that has ended.
#[derive(Debug, PartialEq, Eq)]
struct Over {
    lasted: Duration,
    failed: u64,
}

impl Reach {
    const fn new() -> Self {
        Self { away_since: None, back_since: None, answered: None, failed: 0 }
    }

    /// Records a failed call. Returns true if it starts an outage.
    fn fails(&mut self, now: Instant) -> bool {
        let is_first = self.away_since.is_none();
        self.away_since.get_or_insert(now);
        self.back_since = None;
        self.failed = self.failed.saturating_add(1);
        is_first
    }

    /// Records a call that began at `began` and was abandoned without an answer. Returns true if it starts an
    /// outage.
    fn is_given_up(&mut self, began: Instant, now: Instant) -> bool {
        let others_were_answered = self.answered.is_some_and(|answered| answered >= began);
        !others_were_answered && now.duration_since(began) >= MIN_ABANDONED_WAIT && self.fails(now)
    }

    /// Records an answered call. Returns true if it may end an outage, so that the caller must check again
    /// after [`RECOVERY_TIME`].
    fn answers(&mut self, now: Instant) -> bool {
        self.answered = Some(now);
        if self.away_since.is_none() || self.back_since.is_some() {
            return false;
        }
        self.back_since = Some(now);
        true
    }

    /// Returns the outage that has ended, if one has.
    fn ends(&mut self, now: Instant) -> Option<Over> {
        let (since, back) = (self.away_since?, self.back_since?);
        if now.duration_since(back) < RECOVERY_TIME {
            return None;
        }
        let over = Over { lasted: back.duration_since(since), failed: self.failed };
        (self.away_since, self.back_since, self.failed) = (None, None, 0);
        Some(over)
    }
}

/// Whether an API server outage is in progress. Its start has been logged.
pub fn api_server_is_away() -> bool {
    API_SERVER.lock().away_since.is_some()
}

/// Logs a warning about something that the API server did not do; during an outage, which has been logged
/// already, at debug level.
#[macro_export]
macro_rules! warn_unless_away {
    ($($line:tt)+) => {
        if $crate::telemetry::outages::api_server_is_away() {
            tracing::debug!($($line)+)
        } else {
            tracing::warn!($($line)+)
        }
    };
}
pub use warn_unless_away;

fn begins(error: &str) {
    warn!(
        error,
        "the API server does not answer; agents keep their accounts, and writes are retried until it answers"
    );
}

fn fails(error: &dyn fmt::Display) {
    if API_SERVER.lock().fails(Instant::now()) {
        begins(&error.to_string());
    }
}

fn answers() {
    if !API_SERVER.lock().answers(Instant::now()) {
        return;
    }
    if tokio::runtime::Handle::try_current().is_err() {
        return;
    }
    let recovery = spawn_named("end of an API server outage", async {
        tokio::time::sleep(RECOVERY_TIME).await;
        if let Some(Over { lasted, failed }) = API_SERVER.lock().ends(Instant::now()) {
            info!(seconds = lasted.as_secs(), failed, "the API server answers again");
        }
    });
    drop(recovery.detach());
}

/// Layer that records for each call of a client whether the API server answers.
#[derive(Clone, Copy, Debug)]
pub struct Noticing;

/// A client wrapped by [`Noticing`].
#[derive(Clone, Debug)]
pub struct Noticed<S>(S);

impl<S> Layer<S> for Noticing {
    type Service = Noticed<S>;

    fn layer(&self, inner: S) -> Noticed<S> {
        Noticed(inner)
    }
}

impl<S, Q, B> Service<Q> for Noticed<S>
where
    S: Service<Q, Response = http::Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Q) -> Self::Future {
        let mut pending_call = PendingCall(Some(Instant::now()));
        let answer = self.0.call(request);
        async move {
            let answer = answer.await;
            pending_call.is_answered();
            match &answer {
                Ok(answer) if is_absence(answer.status().as_u16()) => fails(&answer.status()),
                // Other calls may succeed, such as those without a webhook.
                Ok(answer) if answer.status().is_server_error() => {}
                Ok(_) => answers(),
                Err(error) => fails(&chain(error.as_ref())),
            }
            answer
        }
        .boxed()
    }
}

/// A call without an answer yet, and its start time.
struct PendingCall(Option<Instant>);

impl PendingCall {
    fn is_answered(&mut self) {
        self.0 = None;
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        if let Some(began) = self.0
            && API_SERVER.lock().is_given_up(began, Instant::now())
        {
            begins(&format!("no answer within {} s", began.elapsed().as_secs()));
        }
    }
}

/// Logs that a watch has failed or works again. `what` names the watched objects. A watch that was cut, or
/// that ended with the API server, is restarted, and the call that restarts it reports the outage.
pub fn log_transition(what: &str, outage: &WatchOutage) {
    match outage {
        WatchOutage::Begun { problem, of_api_server: true } => {
            debug!(
                error = chain(problem),
                "lost the watch of {what}; restarting it when the API server answers"
            );
        }
        WatchOutage::Begun { problem, of_api_server: false } => {
            warn!(error = chain(problem), "cannot watch {what}; retrying until the API server allows it");
        }
        WatchOutage::Over { lasted, of_api_server: true } => {
            debug!(seconds = lasted.as_secs(), "watching {what} again");
        }
        WatchOutage::Over { lasted, of_api_server: false } => {
            info!(seconds = lasted.as_secs(), "watching {what} again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(begun: Instant, seconds: u64) -> Instant {
        begun + Duration::from_secs(seconds)
    }

    #[test]
    fn an_outage_begins_once_and_ends_once_however_many_calls_fail() {
        let (mut reach, begun) = (Reach::new(), Instant::now());
        assert!(!reach.answers(at(begun, 0)), "there is none");
        let said = (1..=60).filter(|second| reach.fails(at(begun, *second))).count();
        assert_eq!(said, 1);
        assert!(!reach.is_given_up(at(begun, 50), at(begun, 61)), "that was said");
        assert_eq!(reach.ends(at(begun, 61)), None);
        assert!(reach.answers(at(begun, 62)));
        assert!(!reach.answers(at(begun, 63)), "it is looked at already");
        assert_eq!(reach.ends(at(begun, 64)), None, "it may be only starting");
        assert_eq!(reach.ends(at(begun, 65)), Some(Over { lasted: Duration::from_secs(61), failed: 61 }));
        assert_eq!(reach.ends(at(begun, 66)), None);
        assert!(reach.fails(at(begun, 70)), "this is another one");
    }

    #[test]
    fn two_calls_that_fail_at_one_moment_begin_one_outage() {
        let (mut reach, begun) = (Reach::new(), Instant::now());
        assert_eq!([reach.fails(begun), reach.fails(begun)], [true, false]);
    }

    #[test]
    fn an_api_server_that_answers_and_fails_in_turn_while_it_starts_is_back_once_it_only_answers() {
        let (mut reach, begun) = (Reach::new(), Instant::now());
        assert!(reach.fails(begun));
        assert!(reach.answers(at(begun, 10)));
        assert!(!reach.fails(at(begun, 11)));
        assert_eq!(reach.ends(at(begun, 13)), None);
        assert!(reach.answers(at(begun, 12)));
        assert_eq!(reach.ends(at(begun, 15)), Some(Over { lasted: Duration::from_secs(12), failed: 2 }));
    }

    #[test]
    fn a_call_that_is_given_up_counts_only_if_nothing_else_was_answered_meanwhile() {
        let (mut reach, begun) = (Reach::new(), Instant::now());
        assert!(!reach.is_given_up(begun, at(begun, 1)), "it was given up soon");
        reach.answers(at(begun, 5));
        assert!(!reach.is_given_up(at(begun, 4), at(begun, 20)), "the API server is there");
        assert!(reach.is_given_up(at(begun, 6), at(begun, 20)));
    }
}
