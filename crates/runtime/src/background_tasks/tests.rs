use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// How many milliseconds after the start which keys were applied.
type Attempts = Vec<(u128, Vec<u32>)>;

/// What was applied since the start.
#[derive(Clone)]
struct Applied(Arc<Mutex<Attempts>>, Instant);

impl Applied {
    fn new() -> Self {
        Self(Arc::default(), Instant::now())
    }

    fn note(&self, keys: Vec<u32>) -> usize {
        let mut all = self.0.lock();
        all.push((self.1.elapsed().as_millis(), keys));
        all.len()
    }

    fn all(&self) -> Attempts {
        self.0.lock().clone()
    }

    /// The seconds of all attempts.
    fn seconds(&self) -> Vec<u128> {
        self.0.lock().iter().map(|(at, _)| at / 1000).collect()
    }
}

fn spec() -> TaskSpec<u32> {
    TaskSpec::new("the task", "Does what the test asks for")
}

/// Drives a task for so many seconds beside something else.
async fn drive<A: Future<Output = AttemptOutcome<u32>>>(
    spec: TaskSpec<u32>,
    seconds: u32,
    apply: impl Fn(Vec<u32>) -> A,
    beside: impl Future<Output = ()>,
) {
    let (registry, stop) = (TaskRegistry::default(), CancellationToken::new());
    let driven = async { tokio::join!(registry.drive(spec, &stop, apply), beside) };
    let _ = timeout(SECOND * seconds, driven).await;
}

fn woken(keys: &[u32]) -> Arc<WorkQueue<u32>> {
    let wakes = Arc::new(WorkQueue::default());
    wakes.wake_all(keys.iter().copied());
    wakes
}

#[tokio::test(start_paused = true)]
async fn a_periodic_task_runs_at_each_period_and_at_its_start_only_where_that_is_asked_for() {
    for (spec, expected) in [(spec(), vec![10, 20]), (spec().at_start(), vec![0, 10, 20])] {
        let applied = Applied::new();
        let apply = |keys: Vec<u32>| {
            assert!(keys.is_empty());
            applied.note(keys);
            std::future::ready(AttemptOutcome::Done)
        };
        drive(spec.every(SECOND * 10), 25, apply, async {}).await;
        assert_eq!(applied.seconds(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn woken_keys_are_applied_at_once_in_order_and_in_batches_and_a_periodic_run_alone() {
    let (applied, wakes) = (Applied::new(), woken(&[1, 2, 3]));
    let apply = |keys| {
        applied.note(keys);
        std::future::ready(AttemptOutcome::Done)
    };
    drive(spec().woken_by(&wakes).batch(2).every(SECOND), 1, apply, async {}).await;
    let expected = [(0, vec![1, 2]), (0, vec![3]), (1000, vec![])];
    assert_eq!(applied.all()[..2], expected[..2]);
    assert!(wakes.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_key_woken_during_its_attempt_is_applied_again_after_it_and_never_beside_it() {
    let (applied, wakes) = (Applied::new(), woken(&[1]));
    let again = Arc::clone(&wakes);
    let apply = |keys| {
        applied.note(keys);
        async {
            sleep(SECOND * 3).await;
            AttemptOutcome::Done
        }
    };
    let beside = async {
        sleep(SECOND).await;
        again.wake_all([1, 2]);
    };
    drive(spec().woken_by(&wakes).concurrency(8), 20, apply, beside).await;
    assert_eq!(applied.all(), [(0, vec![1]), (1000, vec![2]), (3000, vec![1])]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_attempt_is_repeated_after_growing_delays_however_often_it_is_woken() {
    let (applied, wakes) = (Applied::new(), woken(&[1]));
    let again = Arc::clone(&wakes);
    let apply = |keys| {
        applied.note(keys);
        std::future::ready(AttemptOutcome::failed("the database is away"))
    };
    let beside = async {
        loop {
            sleep(SECOND / 10).await;
            again.wake(1);
        }
    };
    drive(spec().woken_by(&wakes).retry_delays(SECOND, SECOND * 8), 120, apply, beside).await;
    let all = applied.all();
    let delays: Vec<_> = all.windows(2).map(|two| two[1].0 - two[0].0).collect();
    for (delay, least) in delays.iter().zip([1000, 2000, 4000, 8000, 8000, 8000]) {
        assert!((least..=2 * least + 1).contains(delay), "{delays:?}");
    }
    assert!(delays.len() > 6, "{delays:?}");
}

#[tokio::test(start_paused = true)]
async fn of_a_batch_only_the_keys_that_failed_are_repeated_and_others_do_not_wait_for_them() {
    let (applied, wakes) = (Applied::new(), woken(&[1, 2]));
    let again = Arc::clone(&wakes);
    let apply = |keys| {
        let attempt = applied.note(keys);
        std::future::ready(if attempt == 1 {
            AttemptOutcome::Failed(vec![2], "no".to_owned())
        } else {
            AttemptOutcome::Done
        })
    };
    let beside = async {
        sleep(SECOND / 2).await;
        again.wake(3);
    };
    drive(spec().woken_by(&wakes).batch(9).concurrency(2), 60, apply, beside).await;
    let keys: Vec<_> = applied.all().into_iter().map(|(_, keys)| keys).collect();
    assert_eq!(keys, [vec![1, 2], vec![3], vec![2]]);
}

#[tokio::test(start_paused = true)]
async fn a_task_of_which_every_attempt_fails_pauses_as_a_whole_however_many_keys_wait() {
    let (applied, wakes) = (Applied::new(), woken(&(0..1000).collect::<Vec<_>>()));
    let apply = |keys| {
        applied.note(keys);
        std::future::ready(AttemptOutcome::failed("the API server is away"))
    };
    let spec = spec().woken_by(&wakes).concurrency(4).retry_delays(SECOND, SECOND * 8);
    drive(spec, 60, apply, async {}).await;
    let all = applied.all();
    // Those that are begun before the fourth failure is seen are fewer than four.
    assert!(all[3].0 == 0 && all[7].0 >= 1000, "{all:?}");
    assert!(all.len() < 100, "{}", all.len());
}

#[tokio::test(start_paused = true)]
async fn a_refused_attempt_waits_for_the_next_activation() {
    let (applied, wakes) = (Applied::new(), woken(&[1]));
    let apply = |keys| {
        applied.note(keys);
        std::future::ready(AttemptOutcome::Refused("the row is malformed".to_owned()))
    };
    drive(spec().woken_by(&wakes).every(SECOND * 40), 60, apply, async {}).await;
    assert_eq!(applied.all(), [(0, vec![1]), (40_000, vec![])]);
}

#[tokio::test(start_paused = true)]
async fn requeued_keys_are_applied_after_their_delay() {
    let (applied, wakes) = (Applied::new(), woken(&[1, 2]));
    let again = Arc::clone(&wakes);
    let apply = |keys| {
        let attempt = applied.note(keys);
        std::future::ready(if attempt == 1 {
            AttemptOutcome::Again(vec![2], SECOND * 5)
        } else {
            AttemptOutcome::Done
        })
    };
    let beside = async {
        sleep(SECOND).await;
        again.wake(2);
    };
    drive(spec().woken_by(&wakes).batch(9), 60, apply, beside).await;
    assert_eq!(applied.all(), [(0, vec![1, 2]), (5000, vec![2])]);
}

#[tokio::test(start_paused = true)]
async fn a_paused_task_starts_no_attempt_and_then_applies_the_batch_again() {
    let (applied, wakes) = (Applied::new(), woken(&[1]));
    let again = Arc::clone(&wakes);
    let apply = |keys| {
        let attempt = applied.note(keys);
        std::future::ready(if attempt == 1 {
            AttemptOutcome::Pause(SECOND * 5)
        } else {
            AttemptOutcome::Done
        })
    };
    let beside = async {
        sleep(SECOND).await;
        again.wake(2);
    };
    drive(spec().woken_by(&wakes).concurrency(2), 60, apply, beside).await;
    assert_eq!(applied.all(), [(0, vec![1]), (5000, vec![1]), (5000, vec![2])]);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_succeeds_beside_it_does_not_shorten_a_pause() {
    let (applied, wakes) = (Applied::new(), woken(&[1, 2]));
    let again = Arc::clone(&wakes);
    let apply = |keys: Vec<u32>| {
        let attempt = applied.note(keys.clone());
        async move {
            if keys == [2] {
                sleep(SECOND).await;
            }
            if attempt == 1 { AttemptOutcome::Pause(SECOND * 5) } else { AttemptOutcome::Done }
        }
    };
    let beside = async {
        sleep(SECOND * 2).await;
        again.wake(3);
    };
    drive(spec().woken_by(&wakes).concurrency(2), 60, apply, beside).await;
    assert_eq!(applied.all(), [(0, vec![1]), (0, vec![2]), (5000, vec![1]), (5000, vec![3])]);
}

#[tokio::test(start_paused = true)]
async fn a_key_rests_for_the_minimum_interval_and_other_keys_go_on() {
    let (applied, wakes) = (Applied::new(), Arc::new(WorkQueue::default()));
    let waking = Arc::clone(&wakes);
    let apply = |keys| {
        applied.note(keys);
        std::future::ready(AttemptOutcome::Done)
    };
    let beside = async {
        for key in [1, 1, 1, 2, 1] {
            waking.wake(key);
            sleep(SECOND).await;
        }
    };
    drive(spec().woken_by(&wakes).min_interval(SECOND * 5), 60, apply, beside).await;
    assert_eq!(applied.all(), [(0, vec![1]), (3000, vec![2]), (5000, vec![1])]);
}

#[tokio::test(start_paused = true)]
async fn a_key_of_which_there_was_nothing_to_do_does_not_rest() {
    let (applied, wakes) = (Applied::new(), woken(&[1]));
    let waking = Arc::clone(&wakes);
    let apply = |keys| {
        applied.note(keys);
        std::future::ready(AttemptOutcome::Unchanged)
    };
    let beside = async {
        sleep(SECOND).await;
        waking.wake(1);
    };
    drive(spec().woken_by(&wakes).min_interval(SECOND * 5), 60, apply, beside).await;
    assert_eq!(applied.seconds(), [0, 1]);
}

#[tokio::test(start_paused = true)]
async fn wake_ups_are_gathered_before_an_attempt() {
    let (applied, wakes) = (Applied::new(), woken(&[1]));
    let waking = Arc::clone(&wakes);
    let apply = |keys| {
        applied.note(keys);
        std::future::ready(AttemptOutcome::Done)
    };
    let beside = async {
        sleep(SECOND / 2).await;
        waking.wake(1);
    };
    drive(spec().woken_by(&wakes).gather(SECOND), 60, apply, beside).await;
    assert_eq!(applied.all(), [(1000, vec![1])]);
}

#[tokio::test(start_paused = true)]
async fn a_change_applies_the_keys_that_it_concerns_and_an_event_runs_the_task_once() {
    let (applied, changed) = (Applied::new(), watch::Sender::new(0));
    let apply = |keys| {
        applied.note(keys);
        std::future::ready(AttemptOutcome::Done)
    };
    let spec = spec().batch(9).wake_on_change(changed.subscribe(), || vec![1, 2]);
    let beside = async {
        for _ in 0..2 {
            sleep(SECOND).await;
            changed.send_modify(|count| *count += 1);
        }
    };
    drive(spec.once_after(sleep(SECOND * 5)), 60, apply, beside).await;
    assert_eq!(applied.all(), [(1000, vec![1, 2]), (2000, vec![1, 2]), (5000, vec![])]);
}

#[tokio::test(start_paused = true)]
async fn attempts_run_beside_one_another_up_to_the_bound() {
    let wakes = woken(&(0..20).collect::<Vec<_>>());
    let (now, most, done) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let apply = |_| async {
        most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        sleep(SECOND).await;
        now.fetch_sub(1, Ordering::Relaxed);
        done.fetch_add(1, Ordering::Relaxed);
        AttemptOutcome::Done
    };
    drive(spec().woken_by(&wakes).concurrency(4), 60, apply, async {}).await;
    assert_eq!((most.into_inner(), done.into_inner()), (4, 20));
}

#[tokio::test(start_paused = true)]
async fn a_change_of_a_watched_value_runs_the_task_until_the_value_is_gone() {
    let (applied, value) = (Applied::new(), watch::Sender::new(0));
    let watched = value.subscribe();
    let apply = |keys| {
        applied.note(keys);
        std::future::ready(AttemptOutcome::Done)
    };
    let beside = async move {
        sleep(SECOND).await;
        value.send_replace(1);
        sleep(SECOND).await;
        drop(value);
    };
    drive(spec().on_change(watched).every(SECOND * 10), 15, apply, beside).await;
    assert_eq!(applied.seconds(), [1, 10]);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_exceeds_its_deadline_has_failed_and_is_repeated() {
    let (applied, wakes, registry) = (Applied::new(), woken(&[1]), TaskRegistry::default());
    let stop = CancellationToken::new();
    let apply = |keys| {
        let attempt = applied.note(keys);
        async move {
            if attempt == 1 {
                std::future::pending::<()>().await;
            }
            AttemptOutcome::Done
        }
    };
    let spec = spec().woken_by(&wakes).deadline(SECOND * 5).retry_delays(SECOND, SECOND);
    let looked = async {
        sleep(SECOND * 20).await;
        registry.report()
    };
    let reports = tokio::select! {
        () = registry.drive(spec, &stop, apply) => unreachable!("nobody stops it"),
        reports = looked => reports,
    };
    let activity = reports[0].activity.clone().expect("it is driven");
    assert_eq!((activity.runs, activity.failures), (2, 1));
    assert_eq!(activity.last_error.as_deref(), Some("it has not ended within 5 s"));
    assert!((6..=7).contains(&applied.seconds()[1]), "{:?}", applied.seconds());
}

#[tokio::test(start_paused = true)]
async fn a_stopped_task_is_cancelled_and_gives_its_keys_back_unless_it_is_to_finish() {
    for finishes in [false, true] {
        let (wakes, stop, done) = (woken(&[1, 2]), CancellationToken::new(), AtomicUsize::new(0));
        let apply = |_| async {
            sleep(SECOND * 5).await;
            done.fetch_add(1, Ordering::Relaxed);
            AttemptOutcome::Done
        };
        let spec = spec().woken_by(&wakes);
        let spec = if finishes { spec.finishes() } else { spec };
        let stopped = async {
            sleep(SECOND).await;
            stop.cancel();
        };
        let registry = TaskRegistry::default();
        tokio::join!(registry.drive(spec, &stop, apply), stopped);
        let mut left = wakes.try_take(9);
        left.sort_unstable();
        let expected = if finishes { (1, vec![2]) } else { (0, vec![1, 2]) };
        assert_eq!((done.load(Ordering::Relaxed), left), expected);
        assert!(registry.report().is_empty(), "it is listed no more");
    }
}

#[tokio::test(start_paused = true)]
async fn failures_are_logged_at_most_once_a_minute() {
    static LOGGED: AtomicUsize = AtomicUsize::new(0);
    let apply = |_| std::future::ready(AttemptOutcome::Refused("no".to_owned()));
    let spec = spec().every(SECOND).log_failure(|_| {
        LOGGED.fetch_add(1, Ordering::Relaxed);
    });
    drive(spec, 150, apply, async {}).await;
    assert_eq!(LOGGED.load(Ordering::Relaxed), 3);
}

#[tokio::test(start_paused = true)]
async fn a_task_is_reported_with_its_last_run_error_and_backlog_and_counted() {
    let (wakes, registry, stop) = (woken(&[1, 2, 3, 4]), TaskRegistry::default(), CancellationToken::new());
    let apply = |_| async {
        sleep(SECOND * 2).await;
        AttemptOutcome::Refused("x".repeat(9000))
    };
    let listed = registry.enter(TaskEntry::endless("a watch", "Watches"));
    let driven = registry.drive(spec().woken_by(&wakes).every(SECOND * 30), &stop, apply);
    let _ = timeout(SECOND * 3, driven).await;
    assert_eq!(registry.report().len(), 1);
    let (metrics, looked) = tokio::select! {
        () = registry.drive(spec().woken_by(&wakes).every(SECOND * 30), &stop, apply) => unreachable!("nobody stops it"),
        looked = async {
            sleep(SECOND * 3).await;
            let mut metrics = prometheus_client::registry::Registry::default();
            registry.register(&mut metrics);
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &metrics).expect("text");
            (text, serde_json::to_value(registry.report()).expect("JSON"))
        } => looked,
    };
    let (watch, task) = (&looked[0], &looked[1]["activity"]);
    assert_eq!((&watch["name"], &watch["description"]), (&json!("a watch"), &json!("Watches")));
    assert_eq!(watch["activity"], Value::Null);
    assert_eq!((&task["runs"], &task["failures"], &task["running"]), (&json!(1), &json!(1), &json!(1)));
    assert_eq!((&task["periodSeconds"], &task["lastDurationSeconds"]), (&json!(30.0), &json!(2.0)));
    assert_eq!(task["lastError"].as_str().map(str::len), Some(500));
    assert!(task["backlog"].as_u64() >= Some(1), "{task}");
    assert!(
        metrics.contains(r#"kubesvc_background_task_duration_seconds_count{task="the task"} 2"#),
        "{metrics}"
    );
    assert!(metrics.contains(r#"kubesvc_background_task_failures_total{task="the task"} 2"#), "{metrics}");
    let backlog = format!(r#"kubesvc_background_task_backlog{{task="the task"}} {}"#, task["backlog"]);
    assert!(metrics.contains(&backlog), "{metrics}");
    drop(listed);
    assert!(registry.report().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_last_action_of_a_task_runs_after_its_running_attempts_once_it_is_stopped() {
    let (tracker, stop, applied) = (TaskTracker::new(), CancellationToken::new(), Applied::new());
    let tasks = BackgroundTasks::new(tracker.clone(), stop.clone(), TaskRegistry::default());
    let (attempts, last) = (applied.clone(), applied.clone());
    let apply = move |_| {
        let attempts = attempts.clone();
        async move {
            sleep(SECOND * 5).await;
            attempts.note(vec![1]);
            AttemptOutcome::Done
        }
    };
    tasks.start_and_finish(spec().at_start().finishes(), apply, async move {
        last.note(vec![2]);
    });
    sleep(SECOND).await;
    stop.cancel();
    tracker.close();
    tracker.wait().await;
    assert_eq!(applied.all(), [(5000, vec![1]), (5000, vec![2])]);
    assert_eq!(tasks.failed_task(), None);
}

#[tokio::test(start_paused = true)]
async fn failures_of_a_task_are_counted_from_zero() {
    let (registry, stop) = (TaskRegistry::default(), CancellationToken::new());
    let driven = registry.drive(spec().every(SECOND * 30), &stop, |_| async { AttemptOutcome::Done });
    let _ = timeout(SECOND, driven).await;
    let mut metrics = prometheus_client::registry::Registry::default();
    registry.register(&mut metrics);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &metrics).expect("text");
    assert!(text.contains(r#"kubesvc_background_task_failures_total{task="the task"} 0"#), "{text}");
}

#[tokio::test]
async fn a_task_that_panics_stops_the_others_and_is_named() {
    let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
    let tasks = BackgroundTasks::new(tracker.clone(), stop.clone(), TaskRegistry::default());
    tasks.spawn("a server", "Serves", stop.clone().cancelled_owned());
    tasks.start(spec().at_start().every(SECOND), |_| async {
        assert!(std::hint::black_box(false), "number {}", 7);
        AttemptOutcome::Done
    });
    tracker.close();
    tracker.wait().await;
    assert!(stop.is_cancelled());
    assert_eq!(tasks.failed_task(), Some("the task: it panicked: number 7"));
    assert!(tasks.registry().report().is_empty());
}
