//! State of one scope: its current action, and its reaction to time without reports.

use std::time::{Duration, Instant};

use fastrand::Rng;

use kubesvc_core::account_row::DEFAULT_RESUMABLE_AGE_MS;
use kubesvc_core::wire::common::Failure;
use kubesvc_core::wire::events::ScopeCheckpoint;
use kubesvc_core::wire::ops::CachingRules;

use crate::watch::action::{PageRequest, ScopeAction, WaitReason, WatchRequest};
use crate::watch::failure::RetryDelay;
use crate::watch::list::{List, ListReason, SentObjects};
use crate::watch::{
    DEFAULT_AUDIT_INTERVAL, MAX_AUDIT_INTERVAL, MIN_AUDIT_INTERVAL, PAGE_LIMITS, PAUSED_LIST_SPREAD,
    RESPONSE_IDLE_TIMEOUT, SHORT_WATCH, SILENCE_LIMIT, WATCH_IDLE_MARGIN, WATCH_SECONDS,
};

mod failures;
mod lists;
mod timers;
mod watches;

pub use lists::ItemStep;
pub use watches::ObjectStep;

/// Times set by the hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScopeTiming {
    /// Maximum age of a checkpoint from which a watch resumes.
    pub max_resumable_age: Duration,
    /// Interval between two lists of a watched scope, with a jitter of one fifth.
    pub audit_interval: Duration,
}

impl From<&CachingRules> for ScopeTiming {
    fn from(rules: &CachingRules) -> Self {
        let default_age = u64::try_from(DEFAULT_RESUMABLE_AGE_MS).unwrap_or_default();
        let age = if rules.max_resumable_age_ms == 0 { default_age } else { rules.max_resumable_age_ms };
        let audit = Duration::from_millis(rules.audit_ms).min(MAX_AUDIT_INTERVAL);
        Self {
            max_resumable_age: Duration::from_millis(age),
            audit_interval: if audit.is_zero() {
                DEFAULT_AUDIT_INTERVAL
            } else {
                audit.max(MIN_AUDIT_INTERVAL)
            },
        }
    }
}

/// Starting point of a scope: the hub's checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScopeStart {
    /// Version of the checkpoint; empty if the scope must be listed.
    pub resource_version: String,
    pub age: Duration,
    /// The hub's rows have another shape, so each object is sent.
    pub resend: bool,
}

impl From<&ScopeCheckpoint> for ScopeStart {
    fn from(checkpoint: &ScopeCheckpoint) -> Self {
        let ScopeCheckpoint { rv, age_ms, resend, .. } = checkpoint;
        Self { resource_version: rv.clone(), age: Duration::from_millis(*age_ms), resend: *resend }
    }
}

/// Phase of a scope, regardless of waits.
#[derive(Debug)]
enum ScopePhase {
    /// A list is to begin. If the former one was aborted because something must change, one object is requested first:
    /// a list takes memory and the rows of the hub whether or not the cluster answers it.
    NeedsList { deletes_only: bool, reason: ListReason, sent: SentObjects, asks_first: bool },
    /// The list has begun, and the hub's rows arrive.
    AwaitsBasis(List),
    /// The pages arrive.
    Listing(List),
    /// A watch runs or is to be opened.
    Watching(CurrentWatch),
}

#[derive(Clone, Copy, Debug)]
struct CurrentWatch {
    timeout_seconds: u32,
    /// Whether the cluster's version is checked first. The server or the agent was away, and an etcd restored meanwhile
    /// reuses versions: a watch from a version that is still in the future would be silent and lose what precedes it.
    checks_version: bool,
    /// Start of the response.
    opened: Option<Instant>,
}

/// A wait of the scope.
#[derive(Clone, Copy, Debug)]
struct Hold {
    until: Instant,
    reason: WaitReason,
}

/// State machine of one scope. Reports that do not fit its state are late and ignored.
#[derive(Debug)]
pub struct ScopeWatch {
    timing: ScopeTiming,
    random: Rng,
    phase: ScopePhase,
    hold: Option<Hold>,
    is_paused: bool,
    /// Number of the attempt in [`Self::action`].
    attempt: u64,
    position: ReadPosition,
    /// Time since which no data of the response has arrived.
    idle_since: Instant,
    silence: Silence,
    audit_at: Instant,
    /// Whether the watch is the first one after a pause.
    is_after_pause: bool,
    failures: Failures,
}

/// Version up to which a scope is read.
#[derive(Debug)]
struct ReadPosition {
    /// Version up to which everything is queued; for a scope that must be listed, the last known one.
    version: Option<String>,
    /// Whether the version is newer than what was queued.
    is_unsent: bool,
    /// Time of the last queued checkpoint, with or without an event.
    queued_at: Instant,
}

/// Limit of silence of a watch.
#[derive(Debug)]
struct Silence {
    /// Start of the silence; `None` until the next watch has opened.
    since: Option<Instant>,
    limit: Duration,
}

/// Consequences of failures, until the scope is read again.
#[derive(Debug, Default)]
struct Failures {
    retry_delay: RetryDelay,
    /// Delays between lists whose watches had each expired.
    relist_delay: RetryDelay,
    /// Index into [`PAGE_LIMITS`]; beyond it, lists are unlimited.
    page_limit: usize,
    /// Version after which the watch could not be read.
    unreadable_after: Option<String>,
    /// Time since which every attempt has failed.
    since: Option<Instant>,
    problem: Option<Failure>,
    /// Whether the scope was read once.
    is_read: bool,
}

impl ScopeWatch {
    /// Starts a scope. A fresh checkpoint is resumed once the cluster is known not to have gone back behind it. The
    /// seed makes the random times.
    pub fn new(timing: ScopeTiming, start: ScopeStart, seed: u64, now: Instant) -> Self {
        let ScopeStart { resource_version, age, resend } = start;
        let version = Some(resource_version).filter(|version| !version.is_empty());
        let is_fresh = version.is_some() && !resend && age <= timing.max_resumable_age;
        let mut scope = Self {
            timing,
            random: Rng::with_seed(seed),
            phase: ScopePhase::NeedsList {
                deletes_only: resend,
                reason: ListReason::Start,
                sent: SentObjects::default(),
                asks_first: false,
            },
            hold: None,
            is_paused: false,
            attempt: 1,
            position: ReadPosition { version, is_unsent: false, queued_at: now },
            idle_since: now,
            silence: Silence { since: None, limit: SILENCE_LIMIT },
            audit_at: now,
            is_after_pause: false,
            failures: Failures::default(),
        };
        scope.schedule_audit(now);
        if is_fresh {
            scope.resume_watch(now);
        }
        scope
    }

    /// Current action. Call [`tick`](Self::tick) first.
    pub fn action(&self) -> ScopeAction {
        if self.is_paused {
            return ScopeAction::Wait(WaitReason::Paused);
        }
        if let Some(hold) = self.hold {
            return ScopeAction::Wait(hold.reason);
        }
        let attempt = self.attempt;
        match &self.phase {
            ScopePhase::NeedsList { asks_first: true, .. } => ScopeAction::CheckVersion(attempt),
            ScopePhase::NeedsList { .. } => ScopeAction::BeginSync,
            ScopePhase::AwaitsBasis(_) => ScopeAction::AwaitBasis,
            ScopePhase::Listing(list) => ScopeAction::ListPage(PageRequest {
                attempt,
                limit: PAGE_LIMITS.get(self.failures.page_limit).copied(),
                continue_token: list.continue_token.clone(),
            }),
            ScopePhase::Watching(CurrentWatch { checks_version: true, .. }) => {
                ScopeAction::CheckVersion(attempt)
            }
            ScopePhase::Watching(watch) => ScopeAction::Watch(WatchRequest {
                attempt,
                resource_version: self.position.version.clone().unwrap_or_default(),
                timeout_seconds: watch.timeout_seconds,
            }),
        }
    }

    /// Drops the running request and repeats it over another client.
    pub fn reconnect(&mut self, now: Instant) {
        match &mut self.phase {
            ScopePhase::Listing(list) if !list.can_repeat_page() => self.start_list(false, ListReason::Retry),
            ScopePhase::Listing(list) => list.page_failed(),
            ScopePhase::Watching(watch) => {
                let watch = *watch;
                self.restart_watch(watch, now);
            }
            ScopePhase::NeedsList { .. } | ScopePhase::AwaitsBasis(_) => {}
        }
        self.hold = None;
        self.begin_attempt(now);
    }

    /// Lists the scope anew, on the hub's request or because the hub's state is not as expected. With `deletes_only`,
    /// each object is sent, because the cluster may reuse versions.
    pub fn relist(&mut self, deletes_only: bool) {
        self.start_list(deletes_only, ListReason::Retry);
    }

    /// Closes the running request until [`unpause`](Self::unpause), because the queue is full: a watch resumes at its
    /// version, a list restarts.
    pub fn pause(&mut self, now: Instant) {
        if std::mem::replace(&mut self.is_paused, true) {
            return;
        }
        match self.phase {
            ScopePhase::Watching(watch) => self.restart_watch(watch, now),
            ScopePhase::AwaitsBasis(_) | ScopePhase::Listing(_) => self.start_list(false, ListReason::Paused),
            ScopePhase::NeedsList { .. } => {}
        }
        self.silence.since = None;
    }

    pub fn unpause(&mut self, now: Instant) {
        if std::mem::take(&mut self.is_paused) {
            self.is_after_pause = true;
            self.begin_attempt(now);
        }
    }

    /// Records that bytes of the response arrived.
    pub fn progress(&mut self, now: Instant) {
        self.idle_since = now;
    }

    /// Reason for which the scope is not read, if it is to be reported.
    pub fn problem(&self) -> Option<&Failure> {
        self.failures.problem.as_ref()
    }

    /// Whether the scope was read, and no attempt has failed since.
    pub fn is_read(&self) -> bool {
        self.failures.is_read && self.failures.since.is_none()
    }

    /// Reason of the list that is to begin, if any.
    pub fn list_reason(&self) -> Option<ListReason> {
        match self.phase {
            ScopePhase::NeedsList { reason, .. } => Some(reason),
            _ => None,
        }
    }

    /// Version up to which everything is queued, while the scope is watched.
    #[cfg(test)]
    pub(super) fn watched_version(&self) -> Option<&str> {
        match self.phase {
            ScopePhase::Watching(_) => self.position.version.as_deref(),
            _ => None,
        }
    }

    /// Whether the scope uses the agent's budgets for lists.
    pub fn is_listing(&self) -> bool {
        matches!(self.phase, ScopePhase::AwaitsBasis(_) | ScopePhase::Listing(_))
    }

    /// Makes a list the next step, and aborts the running one. After a deletes-only list the new one is deletes-only
    /// too, because the former has sent only a part of the objects.
    fn start_list(&mut self, deletes_only: bool, reason: ListReason) {
        let sent = match &mut self.phase {
            // Versions may be reused.
            _ if deletes_only => SentObjects::default(),
            ScopePhase::NeedsList { sent, .. } => sent.take(),
            ScopePhase::AwaitsBasis(list) | ScopePhase::Listing(list) => list.sent.take(),
            ScopePhase::Watching(_) => SentObjects::default(),
        };
        let deletes_only = deletes_only
            || match &self.phase {
                ScopePhase::NeedsList { deletes_only, .. } => *deletes_only,
                ScopePhase::AwaitsBasis(list) | ScopePhase::Listing(list) => list.deletes_only,
                ScopePhase::Watching(_) => false,
            };
        let asks_first = matches!(self.phase, ScopePhase::NeedsList { asks_first: true, .. });
        self.phase = ScopePhase::NeedsList { deletes_only, reason, sent, asks_first };
        self.silence.since = None;
        self.attempt += 1;
    }

    /// Makes a watch from the version the next step.
    fn start_watch(&mut self, now: Instant) {
        let timeout_seconds = self.random.u32(WATCH_SECONDS);
        self.phase =
            ScopePhase::Watching(CurrentWatch { timeout_seconds, checks_version: false, opened: None });
        self.begin_attempt(now);
    }

    /// Makes a watch the next step, after a check of the cluster's version.
    fn resume_watch(&mut self, now: Instant) {
        self.start_watch(now);
        if let ScopePhase::Watching(watch) = &mut self.phase {
            watch.checks_version = true;
        }
    }

    /// Restarts a watch that the server has not ended. A pending version check stays pending.
    fn restart_watch(&mut self, watch: CurrentWatch, now: Instant) {
        if watch.checks_version {
            self.resume_watch(now);
        } else {
            self.start_watch(now);
        }
    }

    fn begin_attempt(&mut self, now: Instant) {
        self.attempt += 1;
        self.idle_since = now;
    }

    /// Waits. The wait does not count as silence of the watch.
    fn hold(&mut self, delay: Duration, reason: WaitReason, now: Instant) {
        self.hold = Some(Hold { until: now + delay, reason });
        self.silence.since = None;
    }

    fn schedule_audit(&mut self, now: Instant) {
        let factor = 0.8 + 0.4 * self.random.f64();
        self.audit_at = now + self.timing.audit_interval.mul_f64(factor);
    }

    /// Random delay of a list after too long a pause.
    fn spread(&mut self) -> Duration {
        PAUSED_LIST_SPREAD.mul_f64(self.random.f64())
    }

    /// Takes the list out of the state, if there is one.
    fn take_list(&mut self) -> Option<List> {
        let (reason, sent) = (ListReason::Retry, SentObjects::default());
        let nothing = ScopePhase::NeedsList { deletes_only: false, reason, sent, asks_first: false };
        match std::mem::replace(&mut self.phase, nothing) {
            ScopePhase::AwaitsBasis(list) | ScopePhase::Listing(list) => Some(list),
            other => {
                self.phase = other;
                None
            }
        }
    }

    /// Records that the scope is read.
    fn succeeded(&mut self) {
        self.failures.retry_delay.reset();
        self.failures.since = None;
        self.failures.problem = None;
        self.failures.is_read = true;
    }

    /// Records that the version is queued.
    fn queued(&mut self, now: Instant) {
        self.position.is_unsent = false;
        self.position.queued_at = now;
    }
}

impl CurrentWatch {
    /// Whether the watch has outlived [`SHORT_WATCH`].
    fn has_lived(&self, now: Instant) -> bool {
        self.opened.is_some_and(|opened| now >= opened + SHORT_WATCH)
    }

    /// Whether the watch's duration is over, less the [`SHORT_WATCH`] in which it may have begun before its response.
    fn is_over(&self, now: Instant) -> bool {
        let time = Duration::from_secs(self.timeout_seconds.into()).saturating_sub(SHORT_WATCH);
        self.opened.is_some_and(|opened| now >= opened + time)
    }

    /// Maximum time without data of the response.
    fn idle_limit(&self) -> Duration {
        match self.opened {
            Some(_) => Duration::from_secs(self.timeout_seconds.into()) + WATCH_IDLE_MARGIN,
            None => RESPONSE_IDLE_TIMEOUT,
        }
    }
}

/// Whether the list is older than what was read before. Versions are numbers only by convention, so this is a hint; at
/// worst each object is sent.
fn has_gone_back(known: Option<&str>, listed: Option<&str>) -> bool {
    let number = |version: Option<&str>| version.and_then(|version| version.parse::<u64>().ok());
    matches!((number(known), number(listed)), (Some(known), Some(listed)) if listed < known)
}
