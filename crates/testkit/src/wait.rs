//! Waiting for a condition instead of a fixed time, and telling the progress of long work.

use std::{
    io::{IsTerminal, stderr},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

/// Interval between two checks.
pub const STEP: Duration = Duration::from_millis(50);

/// Calls `check` every 50 ms until it returns `Ok`. Fails the test with the last error after `timeout`.
///
/// `check` is an async closure: `async || …`. (The bound is not `AsyncFnMut`, because such a future can hardly be
/// sent to another thread, so that nothing that waits could be spawned.)
///
/// # Panics
///
/// Panics after `timeout`. A single call of `check` is bounded by it as well.
pub async fn eventually<T, F, A>(what: &str, timeout: Duration, check: F) -> T
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
pub async fn try_eventually<T, F, A>(what: &str, timeout: Duration, mut check: F) -> Result<T, String>
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
pub fn must<T>(result: Result<T, String>) -> T {
    match result {
        Ok(value) => value,
        Err(reason) => panic!("{reason}"),
    }
}

/// Interval between two lines where there is no terminal.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(15);

/// A long piece of work, and its progress on standard error: a spinner on a terminal, otherwise a line every 15 s.
#[derive(Debug)]
pub struct Progress {
    what: String,
    start: Instant,
    said: Instant,
    spinner: Option<ProgressBar>,
}

impl Progress {
    /// Announces the work.
    pub fn start(what: &str) -> Self {
        let spinner = stderr().is_terminal().then(|| {
            let style =
                ProgressStyle::with_template("{spinner} {msg} ({elapsed})").expect("a fixed template");
            ProgressBar::new_spinner().with_style(style).with_message(what.to_owned())
        });
        if spinner.is_none() {
            eprintln!("{what} …");
        }
        let now = Instant::now();
        Self { what: what.into(), start: now, said: now, spinner }
    }

    /// Updates the output. Call it often while the work runs.
    pub fn tick(&mut self) {
        match &self.spinner {
            Some(spinner) => spinner.tick(),
            None if self.said.elapsed() >= PROGRESS_INTERVAL => {
                self.said = Instant::now();
                eprintln!("{} … {} s", self.what, self.start.elapsed().as_secs());
            }
            None => {}
        }
    }

    /// Announces the end of the work.
    pub fn finish(self, how: &str) {
        if let Some(spinner) = &self.spinner {
            spinner.finish_and_clear();
        }
        eprintln!("{}: {how} after {} s", self.what, self.start.elapsed().as_secs());
    }
}
