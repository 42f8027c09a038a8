//! Waiting for a condition instead of a fixed time.

use std::time::{Duration, Instant};

/// Interval between two checks.
pub(crate) const STEP: Duration = Duration::from_millis(50);

/// Calls `check` every 50 ms until it returns `Ok`. Fails the test with the last error after `timeout`.
///
/// `check` is an async closure: `async || …`. (The bound is not `AsyncFnMut`, because such a future can hardly be
/// sent to another thread, so that nothing that waits could be spawned.)
///
/// # Panics
///
/// Panics after `timeout`. A single call of `check` is bounded by it as well.
pub(crate) async fn eventually<T, F, A>(what: &str, timeout: Duration, check: F) -> T
where
    F: FnMut() -> A,
    A: Future<Output = Result<T, String>>,
{
    must(try_eventually(what, timeout, check).await)
}

/// Like [`eventually`], but returns the failure.
///
/// # Errors
///
/// The timeout has elapsed. The message says how long it waited, for what, and the last reason.
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

/// Returns the value, or fails the test with the text unescaped; `expect` would print line breaks as `
/// `.
#[track_caller]
#[expect(clippy::panic, reason = "this is how a test fails")]
pub(crate) fn must<T>(result: Result<T, String>) -> T {
    match result {
        Ok(value) => value,
        Err(reason) => panic!("{reason}"),
    }
}
