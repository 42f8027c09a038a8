//! One line at the start of an outage of the API server and one at its end, whoever of the process notices it first.
//!
//! The client that the operator talks through tells of each call ([`Noticing`]): what was answered, even with a refusal,
//! and what was not. While an outage lasts, whoever has something to say about it says so with [`warn_unless_away`],
//! at debug. Errors of another kind, such as a missing right, neither begin an outage nor last through one.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use parking_lot::Mutex;
use tower::{BoxError, Layer, Service};
use tracing::{debug, info, warn};

use super::errors::chain;
use crate::watch_backoff::{WatchOutage, is_absence};

/// An outage is over when for so long after an answer no call has failed: an API server that starts answers some calls
/// and not others.
const SETTLE: Duration = Duration::from_secs(3);
/// A call that was given up counts as failed if it had waited for so long, and nothing else was answered meanwhile.
const PATIENCE: Duration = Duration::from_secs(3);

/// What this process knows of its API server. There is one, as there is one log.
static API_SERVER: Mutex<Reach> = Mutex::new(Reach::new());

/// Whether calls to the API server fail, and since when. A function of what is told, and of the moments it is told for.
#[derive(Debug)]
struct Reach {
    /// The first call that failed.
    away_since: Option<Instant>,
    /// The first answer since, after which none has failed.
    back_since: Option<Instant>,
    /// The last answer of all.
    answered: Option<Instant>,
    /// Calls that failed in this outage.
    failed: u64,
}

/// An outage that is over.
#[derive(Debug, PartialEq, Eq)]
struct Over {
    lasted: Duration,
    failed: u64,
}

impl Reach {
    const fn new() -> Self {
        Self { away_since: None, back_since: None, answered: None, failed: 0 }
    }

    /// A call has failed. True: it is the first of an outage.
    fn fails(&mut self, now: Instant) -> bool {
        let is_first = self.away_since.is_none();
        self.away_since.get_or_insert(now);
        self.back_since = None;
        self.failed = self.failed.saturating_add(1);
        is_first
    }

    /// A call was given up that began at this moment, and has no answer. True: it is the first of an outage.
    fn is_given_up(&mut self, began: Instant, now: Instant) -> bool {
        let others_were_answered = self.answered.is_some_and(|answered| answered >= began);
        !others_were_answered && now.duration_since(began) >= PATIENCE && self.fails(now)
    }

    /// A call was answered. True: it may be the end of an outage, so it is to be looked at after [`SETTLE`].
    fn answers(&mut self, now: Instant) -> bool {
        self.answered = Some(now);
        if self.away_since.is_none() || self.back_since.is_some() {
            return false;
        }
        self.back_since = Some(now);
        true
    }

    /// The outage that is over, if one is.
    fn settles(&mut self, now: Instant) -> Option<Over> {
        let (since, back) = (self.away_since?, self.back_since?);
        if now.duration_since(back) < SETTLE {
            return None;
        }
        let over = Over { lasted: back.duration_since(since), failed: self.failed };
        (self.away_since, self.back_since, self.failed) = (None, None, 0);
        Some(over)
    }
}

/// Whether an outage of the API server lasts, which was said.
pub fn api_server_is_away() -> bool {
    API_SERVER.lock().away_since.is_some()
}

/// Logs a warning about something that the API server did not do; at debug while its outage lasts, which was said once.
macro_rules! warn_unless_away {
    ($($line:tt)+) => {
        if $crate::telemetry::outages::api_server_is_away() {
            tracing::debug!($($line)+)
        } else {
            tracing::warn!($($line)+)
        }
    };
}
pub(crate) use warn_unless_away;

fn begins(error: &str) {
    warn!(
        error,
        "the API server does not answer; agents keep what they hold, and what is to be written waits; tried again until it \
         answers"
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
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    runtime.spawn(async {
        tokio::time::sleep(SETTLE).await;
        if let Some(Over { lasted, failed }) = API_SERVER.lock().settles(Instant::now()) {
            info!(seconds = lasted.as_secs(), failed, "the API server answers again");
        }
    });
}

/// Layers a client so that its calls tell whether the API server answers.
#[derive(Clone, Copy, Debug)]
pub struct Noticing;

/// A client whose calls tell whether the API server answers; see [`Noticing`].
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
        let mut asking = Asking(Some(Instant::now()));
        let answer = self.0.call(request);
        async move {
            let answer = answer.await;
            asking.is_answered();
            match &answer {
                Ok(answer) if is_absence(answer.status().as_u16()) => fails(&answer.status()),
                // Others may be answered, such as those that need no webhook.
                Ok(answer) if answer.status().is_server_error() => {}
                Ok(_) => answers(),
                Err(error) => fails(&chain(error.as_ref())),
            }
            answer
        }
        .boxed()
    }
}

/// A call that has no answer yet, and since when.
struct Asking(Option<Instant>);

impl Asking {
    fn is_answered(&mut self) {
        self.0 = None;
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        if let Some(began) = self.0
            && API_SERVER.lock().is_given_up(began, Instant::now())
        {
            begins(&format!("no answer within {} s", began.elapsed().as_secs()));
        }
    }
}

/// Logs that a watch shows nothing any more, or shows again what is so. `what` it watches. One that ended with the API
/// server, or was cut, is begun anew, and the call that begins it tells of the outage.
pub fn log_transition(what: &str, outage: &WatchOutage) {
    match outage {
        WatchOutage::Begun { problem, of_api_server: true } => {
            debug!(error = chain(problem), "{what} are watched anew as soon as the API server answers");
        }
        WatchOutage::Begun { problem, of_api_server: false } => {
            warn!(
                error = chain(problem),
                "{what} cannot be watched; tried again until the API server lets them be"
            );
        }
        WatchOutage::Over { lasted, of_api_server: true } => {
            debug!(seconds = lasted.as_secs(), "{what} are watched again");
        }
        WatchOutage::Over { lasted, of_api_server: false } => {
            info!(seconds = lasted.as_secs(), "{what} are watched again");
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
        assert_eq!(reach.settles(at(begun, 61)), None);
        assert!(reach.answers(at(begun, 62)));
        assert!(!reach.answers(at(begun, 63)), "it is looked at already");
        assert_eq!(reach.settles(at(begun, 64)), None, "it may be only starting");
        assert_eq!(reach.settles(at(begun, 65)), Some(Over { lasted: Duration::from_secs(61), failed: 61 }));
        assert_eq!(reach.settles(at(begun, 66)), None);
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
        assert_eq!(reach.settles(at(begun, 13)), None);
        assert!(reach.answers(at(begun, 12)));
        assert_eq!(reach.settles(at(begun, 15)), Some(Over { lasted: Duration::from_secs(12), failed: 2 }));
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
