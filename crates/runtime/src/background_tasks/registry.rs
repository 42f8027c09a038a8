//! Registry of the running tasks, for `/health/tasks` and `/metrics`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use serde::Serialize;
use tokio::time::Instant;
use utoipa::ToSchema;

/// Maximum length of a stored error, in characters.
const MAX_ERROR_LEN: usize = 500;
/// Minimum interval between two log lines for failures of one task.
const MIN_LOG_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TaskLabel {
    task: &'static str,
}

/// Tasks of one process. Clones share it.
#[derive(Clone)]
pub struct TaskRegistry(Arc<Registered>);

struct Registered {
    tasks: Mutex<BTreeMap<u64, Arc<TaskEntry>>>,
    durations: Family<TaskLabel, Histogram, fn() -> Histogram>,
    failures: Family<TaskLabel, Counter>,
}

impl Default for TaskRegistry {
    fn default() -> Self {
        // From 1 ms to about a minute.
        let histogram: fn() -> Histogram = || Histogram::new(exponential_buckets(0.001, 4.0, 9));
        Self(Arc::new(Registered {
            tasks: Mutex::default(),
            durations: Family::new_with_constructor(histogram),
            failures: Family::default(),
        }))
    }
}

impl fmt::Debug for TaskRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.tasks.lock().values().map(|task| task.name)).finish()
    }
}

/// A background task of this process.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskReport {
    /// Name.
    pub name: &'static str,
    /// What it does.
    pub description: &'static str,
    /// Start time. The leader's tasks start when it becomes leader, and are listed while it leads.
    #[schema(value_type = String, format = DateTime)]
    pub since: Timestamp,
    /// Runs since the start; absent for a watch or a server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activity: Option<TaskActivity>,
}

/// Runs of a task since its start.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskActivity {
    /// Interval between periodic runs, in seconds; absent if the task runs only when woken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period_seconds: Option<f64>,
    /// Number of finished runs.
    pub runs: u64,
    /// Number of failed runs.
    pub failures: u64,
    /// Number of runs in progress.
    pub running: usize,
    /// Number of items that wait.
    pub backlog: usize,
    /// Start time of the last finished run.
    #[schema(value_type = Option<String>, format = DateTime)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_run: Option<Timestamp>,
    /// Duration of the last finished run, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_duration_seconds: Option<f64>,
    /// Error of the last failed run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// End time of the last failed run.
    #[schema(value_type = Option<String>, format = DateTime)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error_at: Option<Timestamp>,
}

impl TaskRegistry {
    /// Returns the tasks that run now, by name.
    pub fn report(&self) -> Vec<TaskReport> {
        let entries: Vec<_> = self.0.tasks.lock().values().cloned().collect();
        let mut reports: Vec<_> = entries.iter().map(|entry| entry.report()).collect();
        reports.sort_by_key(|report| report.name);
        reports
    }

    /// Registers the metrics of tasks.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("kubesvc_background_task");
        let durations = self.0.durations.clone();
        registry.register_with_unit("duration", "Time that runs of a task took", Unit::Seconds, durations);
        registry.register("failures", "Runs of a task that failed", self.0.failures.clone());
        registry.register_collector(Box::new(Backlogs(self.clone())));
    }

    /// Lists a task until the returned guard is dropped.
    pub(super) fn enter(&self, entry: TaskEntry) -> ListedTask {
        let entry = Arc::new(entry);
        if entry.activity.is_some() {
            // A counter that begins with its first event shows no increase.
            drop(self.0.failures.get_or_create(&TaskLabel { task: entry.name }));
        }
        let mut tasks = self.0.tasks.lock();
        let id = tasks.last_key_value().map_or(0, |(last, _)| last + 1);
        tasks.insert(id, Arc::clone(&entry));
        ListedTask { registry: self.clone(), id, entry }
    }
}

/// Reports the backlog of each running task at each scrape.
#[derive(Debug)]
struct Backlogs(TaskRegistry);

impl Collector for Backlogs {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let backlogs: Family<TaskLabel, Gauge> = Family::default();
        for task in self.0.report() {
            if let Some(activity) = task.activity {
                let backlog = i64::try_from(activity.backlog).unwrap_or(i64::MAX);
                backlogs.get_or_create(&TaskLabel { task: task.name }).inc_by(backlog);
            }
        }
        let help = "Items that wait for a task";
        backlogs.encode(encoder.encode_descriptor("backlog", help, None, backlogs.metric_type())?)
    }
}

/// Entry of a task in the registry.
pub(super) struct TaskEntry {
    name: &'static str,
    description: &'static str,
    since: Timestamp,
    /// `None` for a task that is not driven.
    activity: Option<Mutex<TaskActivity>>,
    logged: Mutex<Option<Instant>>,
    queued: AtomicUsize,
    backlog: Box<dyn Fn() -> usize + Send + Sync>,
}

impl TaskEntry {
    /// Entry of a task that is not driven, such as a watch or a server.
    pub(super) fn endless(name: &'static str, description: &'static str) -> Self {
        Self {
            name,
            description,
            since: Timestamp::now(),
            activity: None,
            logged: Mutex::default(),
            queued: AtomicUsize::default(),
            backlog: Box::new(|| 0),
        }
    }

    /// Entry of a driven task. `backlog` returns the number of items that wait outside of its queue.
    pub(super) fn driven(
        name: &'static str,
        description: &'static str,
        period: Option<Duration>,
        backlog: Box<dyn Fn() -> usize + Send + Sync>,
    ) -> Self {
        let period_seconds = period.map(|period| period.as_secs_f64());
        let activity = TaskActivity { period_seconds, ..TaskActivity::default() };
        Self { activity: Some(Mutex::new(activity)), backlog, ..Self::endless(name, description) }
    }

    fn report(&self) -> TaskReport {
        let backlog = self.queued.load(Ordering::Relaxed) + (self.backlog)();
        let activity = self.activity.as_ref().map(|activity| activity.lock().clone());
        TaskReport {
            name: self.name,
            description: self.description,
            since: self.since,
            activity: activity.map(|activity| TaskActivity { backlog, ..activity }),
        }
    }

    fn update(&self, change: impl FnOnce(&mut TaskActivity)) {
        if let Some(activity) = &self.activity {
            change(&mut activity.lock());
        }
    }
}

/// Guard of a listed task; it is listed until the guard is dropped.
pub(super) struct ListedTask {
    registry: TaskRegistry,
    id: u64,
    entry: Arc<TaskEntry>,
}

impl ListedTask {
    /// Records the length of the task's queue.
    pub(super) fn queued(&self, count: usize) {
        self.entry.queued.store(count, Ordering::Relaxed);
    }

    pub(super) fn begins(&self) {
        self.entry.update(|activity| activity.running += 1);
    }

    /// Records the end of a run. Returns whether it failed and may be logged.
    pub(super) fn ended(&self, took: Duration, error: Option<&str>) -> bool {
        let (now, label) = (Timestamp::now(), TaskLabel { task: self.entry.name });
        self.registry.0.durations.get_or_create(&label).observe(took.as_secs_f64());
        self.entry.update(|activity| {
            activity.running -= 1;
            activity.runs += 1;
            activity.last_run = now.checked_sub(took).ok();
            activity.last_duration_seconds = Some(took.as_secs_f64());
            if let Some(error) = error {
                activity.failures += 1;
                activity.last_error = Some(error.chars().take(MAX_ERROR_LEN).collect());
                activity.last_error_at = Some(now);
            }
        });
        if error.is_none() {
            return false;
        }
        self.registry.0.failures.get_or_create(&label).inc();
        let mut logged = self.entry.logged.lock();
        let may_log = logged.is_none_or(|last| last.elapsed() >= MIN_LOG_INTERVAL);
        if may_log {
            *logged = Some(Instant::now());
        }
        may_log
    }
}

impl Drop for ListedTask {
    fn drop(&mut self) {
        self.registry.0.tasks.lock().remove(&self.id);
    }
}
