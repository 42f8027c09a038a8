//! Background work: one driver for everything that runs again and again, and a list of all that runs.
//!
//! A task says what it is called, when it runs, what wakes it, and how it is applied. The driver owns when an attempt
//! begins, its deadline, the delay after a failure, its tracing span, the histogram of durations, and its status in
//! `/health/tasks`. An activation carries no input: keys say only what to look at again. A task never retries by itself;
//! it answers with an [`Outcome`].
//!
//! Composition roots start tasks with [`BackgroundTasks`]; a part with a shorter life, such as a leader's, drives its own
//! with [`TaskRegistry::drive`]. A panic of a driven task is one of whatever drives it: nothing goes on without a task
//! that must go on.

mod queue;
mod registry;
mod retry;
#[cfg(test)]
mod tests;

use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::{self, BoxStream, FuturesUnordered, SelectAll};
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument as _, debug, info_span, warn};

use crate::shutdown::{EssentialTasks, TaskEnding};
use crate::wake_set::WakeSet;
use queue::{Slot, TaskQueue};
use registry::{ListedTask, TaskEntry};
use retry::Retry;

pub use registry::{TaskActivity, TaskRegistry, TaskReport};

/// Time limit for one attempt, unless a task sets another.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(60);
/// First and maximum delay after a failed attempt, unless a task sets others.
const DEFAULT_RETRY_DELAYS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];

/// What came of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome<K = ()> {
    /// It was done. The keys rest for the minimum interval, if the task has one.
    Done,
    /// There was nothing to do, so nothing rests.
    Unchanged,
    /// These keys are applied again after the delay; without keys: all of the attempt. Nothing has failed.
    Again(Vec<K>, Duration),
    /// Why these keys could not be applied; without keys: all of the attempt. They are applied again after a delay. When
    /// as many attempts in a row have failed as may run at once, the whole task waits, each time for longer.
    Failed(Vec<K>, String),
    /// Why it could not be done, and trying again alone will not help. It waits for the next activation.
    Refused(String),
}

impl<K> Outcome<K> {
    /// All of the attempt has failed, and is tried again.
    pub fn failed(why: impl Into<String>) -> Self {
        Self::Failed(Vec::new(), why.into())
    }

    fn error(&self) -> Option<&str> {
        match self {
            Self::Failed(_, why) | Self::Refused(why) => Some(why),
            Self::Done | Self::Unchanged | Self::Again(..) => None,
        }
    }
}

/// A task: its name, what activates it, and its bounds.
pub struct TaskSpec<K = ()> {
    name: &'static str,
    description: &'static str,
    period: Option<Duration>,
    at_start: bool,
    wakes: Option<Arc<WakeSet<K>>>,
    changes: SelectAll<BoxStream<'static, ()>>,
    batch: usize,
    concurrency: usize,
    gather: Duration,
    min_interval: Duration,
    deadline: Option<Duration>,
    retry_delays: [Duration; 2],
    finishes: bool,
    log_failure: fn(&str),
    backlog: Option<Box<dyn Fn() -> usize + Send + Sync>>,
}

impl<K: Clone + Eq + Hash + Send + 'static> TaskSpec<K> {
    /// A task that nothing activates yet. The description says in a line what it does.
    pub fn new(name: &'static str, description: &'static str) -> Self {
        Self {
            name,
            description,
            period: None,
            at_start: false,
            wakes: None,
            changes: SelectAll::new(),
            batch: 1,
            concurrency: 1,
            gather: Duration::ZERO,
            min_interval: Duration::ZERO,
            deadline: Some(DEFAULT_DEADLINE),
            retry_delays: DEFAULT_RETRY_DELAYS,
            finishes: false,
            log_failure: |error| warn!(error, "a background task has failed"),
            backlog: None,
        }
    }

    /// Runs it without keys at this interval.
    pub fn every(self, period: Duration) -> Self {
        Self { period: Some(period), ..self }
    }

    /// Runs it without keys once it is started.
    pub fn at_start(self) -> Self {
        Self { at_start: true, ..self }
    }

    /// Applies the keys of this set, which nobody else takes.
    pub fn woken_by(self, wakes: &Arc<WakeSet<K>>) -> Self {
        Self { wakes: Some(Arc::clone(wakes)), ..self }
    }

    /// Runs it without keys whenever this changes.
    pub fn on_change<T: Send + Sync + 'static>(mut self, watched: watch::Receiver<T>) -> Self {
        let changes = stream::unfold(watched, |mut watched| async {
            watched.changed().await.ok()?;
            Some(((), watched))
        });
        self.changes.push(changes.boxed());
        self
    }

    /// Maximum number of keys in one attempt; 1 unless it is set.
    pub fn batch(self, batch: usize) -> Self {
        Self { batch, ..self }
    }

    /// Maximum number of attempts at once; 1 unless it is set. A key is in one of them at a time.
    pub fn concurrency(self, concurrency: usize) -> Self {
        Self { concurrency, ..self }
    }

    /// Time for which further wake-ups are gathered before an attempt.
    pub fn gather(self, gather: Duration) -> Self {
        Self { gather, ..self }
    }

    /// Minimum interval between two attempts at one key, unless there was nothing to do.
    pub fn min_interval(self, min_interval: Duration) -> Self {
        Self { min_interval, ..self }
    }

    /// Time limit for one attempt. One that takes longer is cancelled, and has failed.
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline: Some(deadline), ..self }
    }

    /// It bounds itself what it waits for, or must not be cancelled.
    pub fn without_deadline(self) -> Self {
        Self { deadline: None, ..self }
    }

    /// First and maximum delay after a failed attempt, before the jitter that at most doubles it.
    pub fn retry_delays(self, first: Duration, longest: Duration) -> Self {
        Self { retry_delays: [first, longest], ..self }
    }

    /// When it is stopped, the attempts under way are waited for, and not cancelled.
    pub fn finishes(self) -> Self {
        Self { finishes: true, ..self }
    }

    /// How a failure is logged: in the span of the task, at most once a minute.
    pub fn log_failure(self, log: fn(&str)) -> Self {
        Self { log_failure: log, ..self }
    }

    /// It says itself what people have to know of its failures.
    pub fn logs_itself(self) -> Self {
        self.log_failure(|_| {})
    }

    /// What waits for it, where that is not the keys of its wake set.
    pub fn backlog(self, backlog: impl Fn() -> usize + Send + Sync + 'static) -> Self {
        Self { backlog: Some(Box::new(backlog)), ..self }
    }
}

impl TaskRegistry {
    /// Drives a task until `stop`: applies what is due, each key by one attempt at a time. To be cancelled at any time:
    /// keys that were taken and are not done go back to the wake set.
    pub async fn drive<K, F, A>(&self, spec: TaskSpec<K>, stop: &CancellationToken, apply: F)
    where
        K: Clone + Eq + Hash + Send + 'static,
        F: Fn(Vec<K>) -> A,
        A: Future<Output = Outcome<K>>,
    {
        let TaskSpec { name, period, batch, concurrency, min_interval, deadline, wakes, mut changes, .. } =
            spec;
        let backlog = spec.backlog.unwrap_or_else(|| {
            let wakes = wakes.clone();
            Box::new(move || wakes.as_ref().map_or(0, |wakes| wakes.len()))
        });
        let task = self.enter(TaskEntry::driven(name, spec.description, period, backlog));
        let mut queue = TaskQueue::new(wakes.clone(), spec.gather);
        let mut retry = Retry::new(spec.retry_delays, concurrency);
        let mut ticks = period.map(ticks);
        let mut attempts = FuturesUnordered::new();
        if spec.at_start {
            queue.mark(None, Instant::now());
        }
        loop {
            let paused = retry.paused_until(Instant::now());
            while paused.is_none() && attempts.len() < concurrency {
                let slots = queue.take(Instant::now(), batch);
                if slots.is_empty() {
                    break;
                }
                let span = info_span!("background_task", task = name);
                attempts.push(attempt(slots, deadline, &apply, &task).instrument(span));
            }
            task.queued(queue.len());
            let room = if paused.is_none() { concurrency - attempts.len() } else { 0 };
            let next = paused.or(queue.next().filter(|_| room > 0));
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(ended) = attempts.next(), if !attempts.is_empty() => {
                    let Attempt { slots, took, outcome } = ended;
                    if task.ended(took, outcome.error()) {
                        let span = info_span!("background_task", task = name);
                        span.in_scope(|| (spec.log_failure)(outcome.error().unwrap_or_default()));
                    }
                    let now = Instant::now();
                    let rest = if outcome == Outcome::Unchanged { Duration::ZERO } else { min_interval };
                    let (keys, after) = match outcome {
                        Outcome::Failed(keys, _) => (Some(keys), retry.failed(now)),
                        outcome => {
                            retry.succeeded();
                            match outcome {
                                Outcome::Again(keys, after) => (Some(keys), after),
                                _ => (None, Duration::ZERO),
                            }
                        }
                    };
                    let again = keys.map(|keys| {
                        if keys.is_empty() { slots.clone() } else { keys.into_iter().map(Some).collect() }
                    });
                    queue.end(&slots, rest, (again.unwrap_or_default(), after), now);
                }
                () = tick(&mut ticks) => queue.mark(None, Instant::now()),
                Some(()) = changes.next(), if !changes.is_empty() => queue.mark(None, Instant::now()),
                keys = take(wakes.as_deref(), batch.saturating_mul(room)), if room > 0 => {
                    keys.into_iter().for_each(|key| queue.mark(Some(key), Instant::now()));
                }
                () = at(next) => {}
            }
        }
        if spec.finishes {
            while let Some(Attempt { slots, took, outcome }) = attempts.next().await {
                task.ended(took, outcome.error());
                if matches!(outcome, Outcome::Done | Outcome::Unchanged) {
                    queue.end(&slots, Duration::ZERO, (Vec::new(), Duration::ZERO), Instant::now());
                }
            }
        }
    }
}

/// An attempt that has ended.
struct Attempt<K> {
    slots: Vec<Slot<K>>,
    took: Duration,
    outcome: Outcome<K>,
}

async fn attempt<K: Clone, A: Future<Output = Outcome<K>>>(
    slots: Vec<Slot<K>>,
    deadline: Option<Duration>,
    apply: impl Fn(Vec<K>) -> A,
    task: &ListedTask,
) -> Attempt<K> {
    task.begins();
    let begun = Instant::now();
    let applying = apply(slots.iter().flatten().cloned().collect());
    let outcome = match deadline {
        None => applying.await,
        Some(deadline) => timeout(deadline, applying).await.unwrap_or_else(|_| {
            Outcome::failed(format!("it has not ended within {} s", deadline.as_secs_f64()))
        }),
    };
    if let Some(error) = outcome.error() {
        debug!(error, "a background task has failed");
    }
    Attempt { slots, took: begun.elapsed(), outcome }
}

/// A process that slept finds one tick gone, however long it slept.
fn ticks(period: Duration) -> Interval {
    let mut ticks = interval_at(Instant::now() + period, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

async fn tick(ticks: &mut Option<Interval>) {
    match ticks {
        Some(ticks) => drop(ticks.tick().await),
        None => std::future::pending().await,
    }
}

async fn take<K: Eq + Hash>(wakes: Option<&WakeSet<K>>, max: usize) -> Vec<K> {
    match wakes {
        Some(wakes) => wakes.take(max).await,
        None => std::future::pending().await,
    }
}

async fn at(next: Option<Instant>) {
    match next {
        Some(next) => sleep_until(next).await,
        None => std::future::pending().await,
    }
}

/// Runs what blocks, such as reading files. A panic of it is one of the caller.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(ended) => match ended.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime ends, and the caller with it.
            Err(_) => std::future::pending().await,
        },
    }
}

/// Tasks that must go on until everything stops: one that ends sooner, by itself, with an error or by a panic, stops
/// everything. Each is listed as long as it runs.
#[derive(Clone, Debug)]
pub(crate) struct BackgroundTasks {
    essential: EssentialTasks,
    stop: CancellationToken,
    registry: TaskRegistry,
}

impl BackgroundTasks {
    /// Tasks among `tasks`, whose early end cancels `stop`.
    pub(crate) fn new(tasks: TaskTracker, stop: CancellationToken, registry: TaskRegistry) -> Self {
        Self { essential: EssentialTasks::new(tasks, stop.clone()), stop, registry }
    }

    /// Starts what is one run without end, such as a watch or a server.
    pub(crate) fn spawn<T: TaskEnding + Send>(
        &self,
        name: &'static str,
        description: &'static str,
        task: impl Future<Output = T> + Send + 'static,
    ) {
        let listed = self.registry.enter(TaskEntry::endless(name, description));
        self.essential.spawn(name, async move {
            let _listed = listed;
            task.await
        });
    }

    /// Starts a task, which is driven until everything stops.
    pub(crate) fn start<K, A>(&self, spec: TaskSpec<K>, apply: impl Fn(Vec<K>) -> A + Send + Sync + 'static)
    where
        K: Clone + Eq + Hash + Send + 'static,
        A: Future<Output = Outcome<K>> + Send + 'static,
    {
        let (name, registry, stop) = (spec.name, self.registry.clone(), self.stop.clone());
        self.essential.spawn(name, async move { registry.drive(spec, &stop, apply).await });
    }

    /// The list of what runs.
    pub(crate) fn registry(&self) -> &TaskRegistry {
        &self.registry
    }

    /// The first one that has ended before its time, and why.
    pub(crate) fn failed_task(&self) -> Option<&str> {
        self.essential.failed_task()
    }
}
