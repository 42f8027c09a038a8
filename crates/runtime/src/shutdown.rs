//! Graceful shutdown: the first signal cancels a token, a second one ends the process at once. Also the tasks that must
//! run until then: one that ends early stops the program.

use std::any::Any;
use std::fmt::Display;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::FutureExt as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use tracing::{Instrument as _, error, info, info_span, warn};

/// Time for tasks to finish after the first signal.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(18);

/// Cancels `stop` at SIGTERM or SIGINT; at the second one, or after the grace, ends the process.
///
/// # Errors
/// If the signals cannot be caught.
pub fn on_signal(stop: CancellationToken) -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let waiting = spawn_named("signals", async move {
        wait(&mut terminate, &mut interrupt).await;
        info!("stopping");
        stop.cancel();
        tokio::select! {
            () = wait(&mut terminate, &mut interrupt) => warn!("received a second signal; exiting at once"),
            () = tokio::time::sleep(SHUTDOWN_GRACE) => warn!("not everything finished in time; exiting"),
        }
        std::process::exit(1);
    });
    drop(waiting.detach());
    Ok(())
}

async fn wait(terminate: &mut tokio::signal::unix::Signal, interrupt: &mut tokio::signal::unix::Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// Starts a task that belongs to no set of tasks, in a span with its name below the caller's. A panic is logged with the
/// name, and passed on to the one that awaits the handle. Dropping the handle aborts the task; a task that outlives its
/// caller is [detached](AbortOnDropHandle::detach).
pub fn spawn_named<T: Send + 'static>(
    name: &'static str,
    task: impl Future<Output = T> + Send + 'static,
) -> AbortOnDropHandle<T> {
    AbortOnDropHandle::new(tokio::spawn(guarded(name, task).instrument(info_span!("task", task = name))))
}

/// Logs a panic of a task and passes it on. The task is on the heap: a wrapper around a large future copies it, and in
/// an unoptimised build some copies fill a worker's stack.
fn guarded<T>(name: &'static str, task: impl Future<Output = T> + Send) -> impl Future<Output = T> + Send {
    let task = Box::pin(task);
    async move {
        AssertUnwindSafe(task).catch_unwind().await.unwrap_or_else(|panic| {
            error!(task = name, error = panic_message(panic.as_ref()), "a task has panicked");
            std::panic::resume_unwind(panic)
        })
    }
}

/// Tasks that must run until shutdown. One that ends earlier, by itself, with an error or by a panic, stops the program:
/// a restart is better than a process that looks alive and has lost a part.
#[derive(Clone, Debug)]
pub struct EssentialTasks {
    tasks: TaskTracker,
    stop: CancellationToken,
    failed: Arc<OnceLock<String>>,
}

/// What an essential task may return.
pub trait TaskEnding {
    /// The reason for which it ended; `None` if it gives none.
    fn why(self) -> Option<String>;
}

impl TaskEnding for () {
    fn why(self) -> Option<String> {
        None
    }
}

impl<E: Display> TaskEnding for Result<(), E> {
    fn why(self) -> Option<String> {
        self.err().map(|error| error.to_string())
    }
}

impl EssentialTasks {
    /// Spawns on `tasks`; the early end of one cancels `stop`.
    pub fn new(tasks: TaskTracker, stop: CancellationToken) -> Self {
        Self { tasks, stop, failed: Arc::default() }
    }

    /// Starts one; `what` names it for the log.
    pub fn spawn<T: TaskEnding + Send>(
        &self,
        what: &'static str,
        task: impl Future<Output = T> + Send + 'static,
    ) {
        let Self { stop, failed, .. } = self.clone();
        self.tasks.spawn(async move {
            let why = match AssertUnwindSafe(task).catch_unwind().await {
                Ok(ending) => ending.why(),
                Err(panic) => Some(format!("it panicked: {}", panic_message(panic.as_ref()))),
            };
            let stopping = stop.is_cancelled();
            if stopping && why.is_none() {
                return;
            }
            let why = why.unwrap_or_else(|| "it ended by itself".to_owned());
            error!(task = what, error = why, "an essential task has ended; stopping the program");
            if !stopping {
                let _ = failed.set(format!("{what}: {why}"));
                stop.cancel();
            }
        });
    }

    /// Name and reason of the first task that ended early.
    pub fn failed_task(&self) -> Option<&str> {
        self.failed.get().map(String::as_str)
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a task beside another one until both have ended, and returns the failed one.
    async fn after<T: TaskEnding + Send>(task: impl Future<Output = T> + Send + 'static) -> Option<String> {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let essential = EssentialTasks::new(tasks.clone(), stop.clone());
        essential.spawn("another", stop.clone().cancelled_owned());
        essential.spawn("the task", task);
        tasks.close();
        tasks.wait().await;
        assert!(stop.is_cancelled());
        essential.failed_task().map(str::to_owned)
    }

    #[tokio::test]
    async fn a_task_that_ends_before_its_time_ends_the_others_and_is_named() {
        assert_eq!(after(async {}).await.as_deref(), Some("the task: it ended by itself"));
        let failed = after(async { Err::<(), _>("the port is gone") }).await;
        assert_eq!(failed.as_deref(), Some("the task: the port is gone"));
        let panicked = after(async {
            assert!(std::hint::black_box(false), "number {}", 7);
        });
        assert_eq!(panicked.await.as_deref(), Some("the task: it panicked: number 7"));
    }

    #[test]
    fn guarded_future_is_small_however_large_the_task_is() {
        let large = async {
            let held = [0_u8; 64 * 1024];
            std::future::pending::<()>().await;
            std::hint::black_box(&held);
        };
        assert!(size_of_val(&large) > 64 * 1024);
        assert!(size_of_val(&guarded("the task", large)) < 256);
    }

    #[tokio::test]
    async fn panic_of_a_named_task_reaches_the_one_that_awaits_it() {
        let ended = spawn_named("the task", async {
            assert!(std::hint::black_box(false), "number {}", 7);
        });
        let panic = ended.await.expect_err("it panics").into_panic();
        assert_eq!(panic_message(panic.as_ref()), "number 7");
    }

    #[tokio::test]
    async fn named_task_ends_when_its_handle_is_dropped_and_runs_on_when_it_is_detached() {
        let (held, aborted) = tokio::sync::oneshot::channel::<()>();
        let task = spawn_named("the task", async move {
            std::future::pending::<()>().await;
            drop(held);
        });
        drop(task);
        aborted.await.expect_err("dropped without a message");
        let (done, ended) = tokio::sync::oneshot::channel();
        drop(spawn_named("the task", async move { done.send(7) }).detach());
        assert_eq!(ended.await, Ok(7));
    }

    #[tokio::test]
    async fn a_task_that_ends_because_all_stop_is_no_fault() {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let essential = EssentialTasks::new(tasks.clone(), stop.clone());
        essential.spawn("the task", stop.clone().cancelled_owned());
        stop.cancel();
        tasks.close();
        tasks.wait().await;
        assert_eq!(essential.failed_task(), None);
    }
}
