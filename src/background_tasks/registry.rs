//! What runs in a process, and how it goes: for `/health/tasks` and `/metrics`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use serde::Serialize;
use tokio::time::Instant;
use utoipa::ToSchema;

/// Maximum length, in characters, of an error that is kept.
const MAX_ERROR_LEN: usize = 500;
/// Minimum interval between two log lines about failures of one task.
const MIN_LOG_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TaskLabel {
    task: &'static str,
}

/// The tasks of one process; clones share it.
#[derive(Clone)]
pub struct TaskRegistry(Arc<Registered>);

struct Registered {
    tasks: Mutex<BTreeMap<u64, Arc<TaskEntry>>>,
    durations: Family<TaskLabel, Histogram, fn() -> Histogram>,
    failures: Family<TaskLabel, Counter>,
}

impl Default for TaskRegistry {
    fn default() -> Self {
        // From a millisecond to about a minute.
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
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub description: &'static str,
    /// When it was started. A leader's tasks start when it begins to lead, and are listed as long as it does.
    #[schema(value_type = String, format = DateTime)]
    pub since: Timestamp,
    /// How its runs went; absent for a watch or a server, which is one run without end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activity: Option<TaskActivity>,
}

/// How the runs of a task went since it was started.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskActivity {
    /// Interval between its periodic runs; absent: it runs only when it is woken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period_seconds: Option<f64>,
    /// Runs that have ended.
    pub runs: u64,
    /// Runs among these that failed.
    pub failures: u64,
    /// Runs under way.
    pub running: usize,
    /// What waits to be worked on.
    pub backlog: usize,
    /// When the last run that has ended began.
    #[schema(value_type = Option<String>, format = DateTime)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_run: Option<Timestamp>,
    /// How long it took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_duration_seconds: Option<f64>,
    /// Why the last run that failed did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// When that run ended.
    #[schema(value_type = Option<String>, format = DateTime)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error_at: Option<Timestamp>,
}

impl TaskRegistry {
    /// The tasks that run now, in the order of their names.
    pub fn report(&self) -> Vec<TaskReport> {
        let entries: Vec<_> = self.0.tasks.lock().values().cloned().collect();
        let mut reports: Vec<_> = entries.iter().map(|entry| entry.report()).collect();
        reports.sort_by_key(|report| report.name);
        reports
    }

    /// Adds what is counted of tasks to a registry of metrics.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("kubesvc_background_task");
        let durations = self.0.durations.clone();
        registry.register_with_unit("duration", "Time that runs of a task took", Unit::Seconds, durations);
        registry.register("failures", "Runs of a task that failed", self.0.failures.clone());
    }

    /// Lists a task until what is returned is dropped.
    pub(super) fn enter(&self, entry: TaskEntry) -> ListedTask {
        let entry = Arc::new(entry);
        let mut tasks = self.0.tasks.lock();
        let id = tasks.last_key_value().map_or(0, |(last, _)| last + 1);
        tasks.insert(id, Arc::clone(&entry));
        ListedTask { registry: self.clone(), id, entry }
    }
}

/// A task as it is listed.
pub(super) struct TaskEntry {
    name: &'static str,
    description: &'static str,
    since: Timestamp,
    /// Absent: it is one run without end.
    activity: Option<Mutex<TaskActivity>>,
    logged: Mutex<Option<Instant>>,
    queued: AtomicUsize,
    backlog: Box<dyn Fn() -> usize + Send + Sync>,
}

impl TaskEntry {
    /// A task that is one run without end.
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

    /// A task that runs again and again. `backlog`: what waits for it beside its queue.
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

/// A task that is listed until this is dropped.
pub(super) struct ListedTask {
    registry: TaskRegistry,
    id: u64,
    entry: Arc<TaskEntry>,
}

impl ListedTask {
    /// So many keys wait in its queue.
    pub(super) fn queued(&self, count: usize) {
        self.entry.queued.store(count, Ordering::Relaxed);
    }

    pub(super) fn begins(&self) {
        self.entry.update(|activity| activity.running += 1);
    }

    /// A run has ended. True: it failed, and a line may be written about that.
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
