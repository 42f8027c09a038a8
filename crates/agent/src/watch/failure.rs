//! Causes of failed requests of a scope: the time until a retry, and what to report.

use std::time::Duration;

use fastrand::Rng;
use kubesvc_core::wire::common::Failure;
use kubesvc_core::wire::common::failure::Class;
use kubesvc_runtime::telemetry::errors::chain;

use crate::scrub::{ClusterStatus, LineTooLong, ListError, WatchLineError};
use crate::watch::action::WaitReason;
use crate::wire_failure::after_send;

/// Cause of a failed request. The cluster client keeps credentials out of the texts.
#[derive(Clone, Debug, PartialEq)]
pub enum RequestFailure {
    /// Status from the server: as HTTP status, with `Retry-After` if present, or as a `Status` in the response.
    Status(ClusterStatus),
    /// No response, or a response that broke off.
    Connection(Failure),
    /// Unreadable response, with its defect.
    Unreadable(String),
    /// No connection is left: each request takes one, and other scopes hold all of them.
    TooManyWatches(Failure),
}

impl From<ClusterStatus> for RequestFailure {
    fn from(status: ClusterStatus) -> Self {
        Self::Status(status)
    }
}

impl From<ListError> for RequestFailure {
    fn from(error: ListError) -> Self {
        match error {
            ListError::Status(status) => Self::Status(status),
            ListError::Truncated { .. } => Self::Connection(after_send(Class::Unreachable, chain(&error))),
            other => Self::Unreadable(chain(&other)),
        }
    }
}

impl From<WatchLineError> for RequestFailure {
    fn from(error: WatchLineError) -> Self {
        Self::Unreadable(chain(&error))
    }
}

impl From<LineTooLong> for RequestFailure {
    fn from(error: LineTooLong) -> Self {
        Self::Unreadable(chain(&error))
    }
}

/// Time of the next attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetryTime {
    /// After the scope's own delay.
    Backoff,
    /// After the server's `Retry-After`.
    After(Duration),
    /// After an external change, for which the scope polls.
    Problem(WaitReason),
}

impl RequestFailure {
    /// A failure because no data arrived for `after`.
    pub(super) fn stalled(after: Duration) -> Self {
        let message = format!("the server sent nothing for {} s", after.as_secs());
        Self::Connection(after_send(Class::Timeout, message))
    }

    /// Whether the requested version has expired.
    pub(super) fn is_expired(&self) -> bool {
        matches!(self, Self::Status(status) if status.is_expired())
    }

    pub(super) fn retry(&self) -> RetryTime {
        match self {
            Self::Status(ClusterStatus { retry_after: Some(after), code: 429 | 500..=599, .. }) => {
                RetryTime::After(*after)
            }
            Self::Status(status) => match status.code {
                401 => RetryTime::Problem(WaitReason::Credential),
                404 => RetryTime::Problem(WaitReason::KindMayBeGone),
                408 | 409 | 410 | 429 => RetryTime::Backoff,
                400..=499 => RetryTime::Problem(WaitReason::Refused),
                _ => RetryTime::Backoff,
            },
            Self::Connection(failure) if failure.class() == Class::ClusterMismatch => {
                RetryTime::Problem(WaitReason::OtherCluster)
            }
            Self::Connection(_) => RetryTime::Backoff,
            Self::Unreadable(_) | Self::TooManyWatches(_) => RetryTime::Problem(WaitReason::Refused),
        }
    }

    pub(super) fn to_wire(&self) -> Failure {
        match self {
            Self::Status(status) => {
                let (class, meaning) = meaning(status.code);
                let ClusterStatus { code, reason, message, .. } = status;
                let said = [reason.as_str(), message.as_str()].into_iter().filter(|said| !said.is_empty());
                let said = said.collect::<Vec<_>>().join(": ");
                let text = format!("the server answered {code}: {meaning} ({said})");
                Failure { http_status: (*code).into(), ..after_send(class, text) }
            }
            Self::Connection(failure) | Self::TooManyWatches(failure) => failure.clone(),
            Self::Unreadable(why) => after_send(Class::Discovery, why.as_str()),
        }
    }
}

/// Class of a status, and the remedy.
fn meaning(code: u16) -> (Class, &'static str) {
    match code {
        401 => (Class::Auth, "the credential is refused; renew it"),
        403 => (
            Class::Forbidden,
            "the credential may not list and watch the kind; grant it, or leave the kind out",
        ),
        404 => (Class::NotFound, "the server has no such kind any more"),
        405 => (Class::Unimplemented, "the kind cannot be listed and watched; leave it out"),
        408 | 504 => (Class::Timeout, "the server took too long"),
        413 => (Class::TooLarge, "the server finds it too large"),
        429 | 500..=599 => (Class::Unreachable, "the server has a fault or is overloaded; it is asked again"),
        _ => (Class::Discovery, "the server refuses to list or watch the kind"),
    }
}

/// Delay after the first failure of a scope.
const FIRST_DELAY: Duration = Duration::from_secs(1);
/// Maximum delay.
const MAX_DELAY: Duration = Duration::from_secs(30);
/// Maximum fraction by which a delay is shortened, so that scopes that failed together do not retry together.
const JITTER: f64 = 0.5;

/// Delays after consecutive failures of one scope, doubling, with jitter.
#[derive(Clone, Debug)]
pub(super) struct RetryDelay {
    next: Duration,
}

impl Default for RetryDelay {
    fn default() -> Self {
        Self { next: FIRST_DELAY }
    }
}

impl RetryDelay {
    /// Delay after one more failure.
    pub(super) fn after_failure(&mut self, random: &mut Rng) -> Duration {
        let delay = self.next;
        self.next = (delay * 2).min(MAX_DELAY);
        delay.mul_f64(1.0 - JITTER * random.f64())
    }

    /// Whether nothing has failed since the last success.
    pub(super) fn is_first(&self) -> bool {
        self.next == FIRST_DELAY
    }

    /// Makes the next failure count as the first one.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }
}
