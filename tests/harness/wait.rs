//! Waiting for a condition, never for a length of time.

use std::time::{Duration, Instant};

/// How long to pause between two looks.
pub(crate) const STEP: Duration = Duration::from_millis(50);

/// Asks `check` every 50 ms until it answers `Ok`, and fails the test with its last answer when `timeout` is over.
///
/// `check` is an async closure: `async || …`. (Not bounded by `AsyncFnMut`: that can hardly be sent to another thread,
/// so nothing that waits could be spawned.)
///
/// # Panics
///
/// When the time is over. One single call of `check` may not outlast it either.
pub(crate) async fn eventually<T, F, A>(what: &str, timeout: Duration, check: F) -> T
where
    F: FnMut() -> A,
    A: Future<Output = Result<T, String>>,
{
    must(try_eventually(what, timeout, check).await)
}

/// As [`eventually`], but hands the failure back.
///
/// # Errors
///
/// The time is over; the text says how long was waited for what, and the last reason.
pub(crate) async fn try_eventually<T, F, A>(what: &str, timeout: Duration, mut check: F) -> Result<T, String>
where
    F: FnMut() -> A,
    A: Future<Output = Result<T, String>>,
{
    let start = Instant::now();
    let mut last: Option<String> = None;
    loop {
        let left = timeout.saturating_sub(start.elapsed());
        match tokio::time::timeout(left.max(STEP), check()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(reason)) => last = Some(reason),
            Err(_) => {
                last =
                    Some(last.map_or("no answer".into(), |last| format!("no answer; before that: {last}")));
            }
        }
        if start.elapsed() >= timeout {
            let last = last.unwrap_or_default();
            return Err(format!("waited {:.1} s for {what}: {last}", start.elapsed().as_secs_f64()));
        }
        tokio::time::sleep(STEP).await;
    }
}

/// The value; or the test fails with the text as it is, where `expect` would print its line breaks as `\n`.
#[track_caller]
#[expect(clippy::panic, reason = "this is how a test fails")]
pub(crate) fn must<T>(result: Result<T, String>) -> T {
    match result {
        Ok(value) => value,
        Err(reason) => panic!("{reason}"),
    }
}
