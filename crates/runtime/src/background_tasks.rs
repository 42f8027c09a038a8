//! Background work: one driver for all tasks that run repeatedly, and the list of all tasks that run.
//!
//! A task states its name, what activates it and its bounds, and provides a function from the woken keys to an
//! [`AttemptOutcome`]. The driver owns everything else: when an attempt starts, its deadline, the delay after a
//! failure, the tracing span, the duration histogram, and the status in `/health/tasks`. An activation carries no
//! input, since keys only name what to look at again. A task never retries by itself.
//!
//! Composition roots start tasks with [`BackgroundTasks`]. A part with a shorter life, such as a leader, drives its own
//! with [`TaskRegistry::drive`], which propagates panics. The driver never decides what a task does.

mod registry;
mod schedule;
#[cfg(test)]
mod tests;

use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream, FuturesUnordered, SelectAll};
use futures::{Stream, StreamExt as _};
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument as _, debug, info_span, warn};

use crate::shutdown::{EssentialTasks, TaskEnding};
use crate::waits::at;
use crate::work_queue::WorkQueue;
use registry::{ListedTask, TaskEntry};
use schedule::{Schedule, Slot};

pub use registry::{TaskActivity, TaskRegistry, TaskReport};

/// Default time limit for one attempt.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(60);
/// Default first and maximum delay after a failed attempt.
const DEFAULT_RETRY_DELAYS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];

/// Result of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptOutcome<K = ()> {
    /// Applied. The minimum interval of the keys begins.
    Done,
    /// Nothing had to be done. No minimum interval begins.
    Unchanged,
    /// Applies these keys, or the whole batch if there are none, again after the delay. This is not a failure.
    Again(Vec<K>, Duration),
    /// Applies the batch again after the delay, and starts no attempt of the task before. This is not a failure.
    Pause(Duration),
    /// These keys, or the whole batch if there are none, failed for this reason, and are retried after a delay. After
    /// as many consecutive failures as attempts may run concurrently, the whole task pauses, each time for longer.
    Failed(Vec<K>, String),
    /// Failed for this reason, which a retry does not change. The task waits for its next activation.
    Refused(String),
}

impl<K> AttemptOutcome<K> {
    /// [`AttemptOutcome::Failed`] for the whole batch.
    pub fn failed(why: impl Into<String>) -> Self {
        Self::Failed(Vec::new(), why.into())
    }

    fn error(&self) -> Option<&str> {
        match self {
            Self::Failed(_, why) | Self::Refused(why) => Some(why),
            Self::Done | Self::Unchanged | Self::Again(..) | Self::Pause(_) => None,
        }
    }
}

/// Name, activation and bounds of a task.
pub struct TaskSpec<K = ()> {
    name: &'static str,
    description: &'static str,
    period: Option<Duration>,
    at_start: bool,
    wakes: Option<Arc<WorkQueue<K>>>,
    changes: SelectAll<BoxStream<'static, Vec<Slot<K>>>>,
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
    /// Creates a task that nothing activates yet. `description` is one line for people.
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

    /// Runs the task at this interval, with an empty batch.
    pub fn every(self, period: Duration) -> Self {
        Self { period: Some(period), ..self }
    }

    /// Also runs the task when it is started, with an empty batch.
    pub fn at_start(self) -> Self {
        Self { at_start: true, ..self }
    }

    /// Applies the keys of this set. The task must be its only consumer.
    pub fn woken_by(self, wakes: &Arc<WorkQueue<K>>) -> Self {
        Self { wakes: Some(Arc::clone(wakes)), ..self }
    }

    /// Runs the task whenever this value changes, with an empty batch.
    pub fn on_change<T: Send + Sync + 'static>(mut self, watched: watch::Receiver<T>) -> Self {
        self.changes.push(changes(watched).map(|()| vec![None]).boxed());
        self
    }

    /// Applies these keys whenever this value changes.
    pub fn wake_on_change<T: Send + Sync + 'static>(
        mut self,
        watched: watch::Receiver<T>,
        keys: impl Fn() -> Vec<K> + Send + 'static,
    ) -> Self {
        let woken = changes(watched).map(move |()| keys().into_iter().map(Some).collect());
        self.changes.push(woken.boxed());
        self
    }

    /// Also runs the task once this future has completed, with an empty batch.
    pub fn once_after(mut self, event: impl Future<Output = ()> + Send + 'static) -> Self {
        self.changes.push(stream::once(event).map(|()| vec![None]).boxed());
        self
    }

    /// Maximum number of keys in one attempt. Default: 1.
    pub fn batch(self, batch: usize) -> Self {
        Self { batch, ..self }
    }

    /// Maximum number of concurrent attempts. Default: 1. A key is in at most one of them.
    pub fn concurrency(self, concurrency: usize) -> Self {
        Self { concurrency, ..self }
    }

    /// Delay between a wake-up and its attempt, in which further wake-ups are gathered.
    pub fn gather(self, gather: Duration) -> Self {
        Self { gather, ..self }
    }

    /// Minimum interval between two attempts at one key. It does not apply after [`AttemptOutcome::Unchanged`].
    pub fn min_interval(self, min_interval: Duration) -> Self {
        Self { min_interval, ..self }
    }

    /// Time limit for one attempt. An attempt that exceeds it is cancelled and counts as failed.
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline: Some(deadline), ..self }
    }

    /// Removes the time limit, for a task that bounds its own waits or must not be cancelled.
    pub fn without_deadline(self) -> Self {
        Self { deadline: None, ..self }
    }

    /// First and maximum delay after a failed attempt, before jitter of up to as much again.
    pub fn retry_delays(self, first: Duration, longest: Duration) -> Self {
        Self { retry_delays: [first, longest], ..self }
    }

    /// Waits for running attempts when the task is stopped, instead of cancelling them.
    pub fn finishes(self) -> Self {
        Self { finishes: true, ..self }
    }

    /// Logs failures with this function: in the task's span, at most once a minute.
    pub fn log_failure(self, log: fn(&str)) -> Self {
        Self { log_failure: log, ..self }
    }

    /// Logs nothing about failures, because the task does.
    pub fn logs_itself(self) -> Self {
        self.log_failure(|_| {})
    }

    /// Number of items that wait, if that is not the length of the work queue.
    pub fn backlog(self, backlog: impl Fn() -> usize + Send + Sync + 'static) -> Self {
        Self { backlog: Some(Box::new(backlog)), ..self }
    }
}

impl TaskRegistry {
    /// Drives a task until `stop` is cancelled. Cancel-safe: keys that were taken and not applied return to the wake
    /// set.
    pub async fn drive<K, F, A>(&self, spec: TaskSpec<K>, stop: &CancellationToken, apply: F)
    where
        K: Clone + Eq + Hash + Send + 'static,
        F: Fn(Vec<K>) -> A,
        A: Future<Output = AttemptOutcome<K>>,
    {
        let TaskSpec { name, period, batch, concurrency, deadline, wakes, mut changes, .. } = spec;
        let backlog = spec.backlog.unwrap_or_else(|| {
            let wakes = wakes.clone();
            Box::new(move || wakes.as_ref().map_or(0, |wakes| wakes.len()))
        });
        let task = self.enter(TaskEntry::driven(name, spec.description, period, backlog));
        let mut schedule =
            Schedule::new(wakes.clone(), [spec.gather, spec.min_interval], spec.retry_delays, concurrency);
        let mut ticks = period.map(ticks);
        let mut attempts = FuturesUnordered::new();
        if spec.at_start {
            schedule.mark(None, Instant::now());
        }
        loop {
            let paused = schedule.paused_until(Instant::now());
            while paused.is_none() && attempts.len() < concurrency {
                let slots = schedule.take(Instant::now(), batch);
                if slots.is_empty() {
                    break;
                }
                let span = info_span!("background_task", task = name);
                attempts.push(attempt(slots, deadline, &apply, &task).instrument(span));
            }
            task.queued(schedule.len());
            let room = if paused.is_none() { concurrency - attempts.len() } else { 0 };
            let next = paused.or(schedule.next().filter(|_| room > 0));
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(FinishedAttempt { slots, took, outcome }) = attempts.next(), if !attempts.is_empty() => {
                    if task.ended(took, outcome.error()) {
                        let span = info_span!("background_task", task = name);
                        span.in_scope(|| (spec.log_failure)(outcome.error().unwrap_or_default()));
                    }
                    schedule.ended(&slots, outcome, Instant::now());
                }
                () = tick(&mut ticks) => schedule.mark(None, Instant::now()),
                Some(slots) = changes.next(), if !changes.is_empty() => {
                    slots.into_iter().for_each(|slot| schedule.mark(slot, Instant::now()));
                }
                keys = take(wakes.as_deref(), batch.saturating_mul(room)), if room > 0 => {
                    keys.into_iter().for_each(|key| schedule.mark(Some(key), Instant::now()));
                }
                () = at(next) => {}
            }
        }
        if spec.finishes {
            while let Some(FinishedAttempt { slots, took, outcome }) = attempts.next().await {
                task.ended(took, outcome.error());
                if matches!(outcome, AttemptOutcome::Done | AttemptOutcome::Unchanged) {
                    schedule.ended(&slots, outcome, Instant::now());
                }
            }
        }
    }
}

fn changes<T: Send + Sync + 'static>(watched: watch::Receiver<T>) -> impl Stream<Item = ()> + Send {
    stream::unfold(watched, |mut watched| async {
        watched.changed().await.ok()?;
        Some(((), watched))
    })
}

/// A finished attempt.
struct FinishedAttempt<K> {
    slots: Vec<Slot<K>>,
    took: Duration,
    outcome: AttemptOutcome<K>,
}

async fn attempt<K: Clone, A: Future<Output = AttemptOutcome<K>>>(
    slots: Vec<Slot<K>>,
    deadline: Option<Duration>,
    apply: impl Fn(Vec<K>) -> A,
    task: &ListedTask,
) -> FinishedAttempt<K> {
    task.begins();
    let begun = Instant::now();
    let applying = apply(slots.iter().flatten().cloned().collect());
    let outcome = match deadline {
        None => applying.await,
        Some(deadline) => timeout(deadline, applying).await.unwrap_or_else(|_| {
            AttemptOutcome::failed(format!("it has not ended within {} s", deadline.as_secs_f64()))
        }),
    };
    if let Some(error) = outcome.error() {
        debug!(error, "a background task has failed");
    }
    FinishedAttempt { slots, took: begun.elapsed(), outcome }
}

/// After a process was suspended, one tick is due, however long that took.
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

async fn take<K: Eq + Hash>(wakes: Option<&WorkQueue<K>>, max: usize) -> Vec<K> {
    match wakes {
        Some(wakes) => wakes.take(max).await,
        None => std::future::pending().await,
    }
}

/// Runs blocking work, such as file reads, and propagates its panics.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(ended) => match ended.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down, and drops the caller.
            Err(_) => std::future::pending().await,
        },
    }
}

/// Starter of tasks that must run until the process stops. If one ends earlier, by itself, with an error or by a panic,
/// it stops all others.
#[derive(Clone, Debug)]
pub struct BackgroundTasks {
    essential: EssentialTasks,
    stop: CancellationToken,
    registry: TaskRegistry,
}

impl BackgroundTasks {
    /// Starts tasks on `tasks`. A task that ends early cancels `stop`.
    pub fn new(tasks: TaskTracker, stop: CancellationToken, registry: TaskRegistry) -> Self {
        Self { essential: EssentialTasks::new(tasks, stop.clone()), stop, registry }
    }

    /// Starts a task that is not periodic, such as a watch or a server.
    pub fn spawn<T: TaskEnding + Send>(
        &self,
        name: &'static str,
        description: &'static str,
        task: impl Future<Output = T> + Send + 'static,
    ) {
        let listed = self.registry.enter(TaskEntry::endless(name, description));
        // On the heap: the wrappers below copy it, and in an unoptimised build that fills a worker's stack.
        let task = Box::pin(task);
        self.essential.spawn(name, async move {
            let _listed = listed;
            task.await
        });
    }

    /// Starts a driven task.
    pub fn start<K, A>(&self, spec: TaskSpec<K>, apply: impl Fn(Vec<K>) -> A + Send + Sync + 'static)
    where
        K: Clone + Eq + Hash + Send + 'static,
        A: Future<Output = AttemptOutcome<K>> + Send + 'static,
    {
        self.start_and_finish(spec, apply, async {});
    }

    /// Starts a driven task. Once it is stopped and no attempt runs, `last` runs; it bounds its own time.
    pub fn start_and_finish<K, A>(
        &self,
        spec: TaskSpec<K>,
        apply: impl Fn(Vec<K>) -> A + Send + Sync + 'static,
        last: impl Future<Output = ()> + Send + 'static,
    ) where
        K: Clone + Eq + Hash + Send + 'static,
        A: Future<Output = AttemptOutcome<K>> + Send + 'static,
    {
        let (name, registry, stop) = (spec.name, self.registry.clone(), self.stop.clone());
        self.essential.spawn(name, async move {
            registry.drive(spec, &stop, apply).await;
            last.await;
        });
    }

    /// Registry of the tasks that run.
    pub fn registry(&self) -> &TaskRegistry {
        &self.registry
    }

    /// Name of the first task that ended early, and why.
    pub fn failed_task(&self) -> Option<&str> {
        self.essential.failed_task()
    }
}
