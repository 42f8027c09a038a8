//! Crash points: named places just before and just after a write, where the fault tests abort the process. Of a write to
//! the API server, the point after it is passed only if the write succeeded. The transaction that writes objects also has
//! one in it, where all its statements have run and nothing is committed.
//!
//! They exist only with the feature `failpoints`, and are controlled by environment variables:
//!
//! - `KUBESVC_CRASH_AT=name` aborts when that point is passed for the first time, `name#3` for the third.
//! - `KUBESVC_STOP_AT` has the same format and stops the process there (SIGSTOP) until it receives SIGCONT.
//! - `KUBESVC_CRASH_LOG=FILE` appends the name of each point that is passed.
//! - `KUBESVC_AGENTS_GONE_SECONDS` shortens the ten minutes after which the object of a missing agent is removed.

/// Names of all crash points, so that tests can iterate over them.
pub const POINTS: &[&str] = &[
    "finalizer-add:before",
    "finalizer-add:after",
    "finalizer-remove:before",
    "finalizer-remove:after",
    "status:before",
    "status:after",
    "row-insert:before",
    "row-insert:after",
    "row-update:before",
    "row-update:after",
    "row-delete:before",
    "row-delete:after",
    "row-adopt:before",
    "row-adopt:after",
    "agent-object:before",
    "agent-object:after",
    "agent-create:before",
    "agent-create:after",
    "agent-note:before",
    "agent-note:after",
    "agent-left:before",
    "agent-left:after",
    "agent-remove:before",
    "agent-remove:after",
    "agent-report:before",
    "agent-report:after",
    "accepted:before",
    "accepted:after",
    "request-stream:before",
    "request-stream:after",
    "request-open:before",
    "request-open:after",
    "probe:before",
    "probe:after",
    "add-accounts:before",
    "add-accounts:after",
    "delete-accounts:before",
    "delete-accounts:after",
    "rest-secret:before",
    "rest-secret:after",
    "rest-create:before",
    "rest-create:after",
    "rest-patch:before",
    "rest-patch:after",
    "rest-delete:before",
    "rest-delete:after",
    "rest-secret-claim:before",
    "rest-secret-claim:after",
    "adopt-secret:before",
    "adopt-secret:after",
    "adopt-create:before",
    "adopt-create:after",
    "secret-delete:before",
    "secret-delete:after",
    "secret-update:before",
    "secret-update:after",
    "event:before",
    "event:after",
    "static-create:before",
    "static-create:after",
    "static-update:before",
    "static-update:after",
    "gateway-secret:before",
    "gateway-secret:after",
    "gateway-api-service:before",
    "gateway-api-service:after",
    "object-delete:before",
    "object-delete:after",
    "fence:before",
    "fence:after",
    "caching-assignment:before",
    "caching-assignment:after",
    "cache-commit:before",
    "cache-commit:in",
    "cache-commit:after",
    "cache-sweep:before",
    "cache-sweep:after",
    "operation-insert:before",
    "operation-insert:after",
    "operation-write:before",
    "operation-write:after",
    "operation-end:before",
    "operation-end:after",
    "operation-rows:before",
    "operation-rows:after",
    "operation-hand:before",
    "operation-hand:after",
    "operation-settle:before",
    "operation-settle:after",
    "operation-purge:before",
    "operation-purge:after",
    "assignments:before",
    "assignments:after",
    "term:before",
    "term:after",
    "lease:before",
    "lease:after",
    "replica-lease:before",
    "replica-lease:after",
];

/// Returns `usual` seconds or, with the feature `failpoints`, the value of this environment variable, with which
/// fault tests shorten a time.
#[must_use]
pub fn seconds(variable: &str, usual: u64) -> u64 {
    #[cfg(feature = "failpoints")]
    if let Ok(said) = std::env::var(variable) {
        return said.parse().unwrap_or(usual);
    }
    #[cfg(not(feature = "failpoints"))]
    let _ = variable;
    usual
}

/// Passes a crash point. A no-op without the feature `failpoints`.
#[inline]
pub fn point(name: &'static str) {
    #[cfg(feature = "failpoints")]
    armed::pass(name);
    #[cfg(not(feature = "failpoints"))]
    let _ = name;
}

/// Passes the crash point `NAME:before` before a write and, if the write succeeds, `NAME:after` after it. A write
/// without a name has none.
pub async fn around<T, E>(
    name: Option<&'static str>,
    write: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    with_points(|side| pass(name, side), write).await
}

async fn with_points<T, E>(
    pass: impl Fn(&'static str),
    write: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    pass("before");
    let answer = write.await;
    if answer.is_ok() {
        pass("after");
    }
    answer
}

fn pass(name: Option<&'static str>, side: &str) {
    #[cfg(feature = "failpoints")]
    if let Some(name) = name {
        armed::pass(&format!("{name}:{side}"));
    }
    #[cfg(not(feature = "failpoints"))]
    let _ = (name, side);
}

#[cfg(feature = "failpoints")]
mod armed {
    use std::io::Write;
    use std::sync::atomic::{AtomicUsize, Ordering};

    static PASSED: AtomicUsize = AtomicUsize::new(0);
    static STOPPED: AtomicUsize = AtomicUsize::new(0);

    pub(super) fn pass(name: &str) {
        debug_assert!(super::POINTS.contains(&name), "{name} is not in POINTS");
        if let Ok(log) = std::env::var("KUBESVC_CRASH_LOG")
            && let Ok(mut file) = std::fs::OpenOptions::new().create(true).append(true).open(log)
        {
            let _ = writeln!(file, "{name}");
        }
        if is_at(name, "KUBESVC_CRASH_AT", &PASSED) {
            std::process::abort();
        }
        if is_at(name, "KUBESVC_STOP_AT", &STOPPED) {
            // The shell sleeps so that this process waits for it until the signal has taken effect.
            let stop = "kill -STOP $PPID && sleep 0.3";
            let stopped = std::process::Command::new("sh").args(["-c", stop]).status();
            debug_assert!(stopped.is_ok_and(|stopped| stopped.success()), "{name}: it cannot stop itself");
        }
    }

    fn is_at(name: &str, variable: &str, passed: &AtomicUsize) -> bool {
        let Ok(wanted) = std::env::var(variable) else { return false };
        let (wanted, nth) = wanted.split_once('#').unwrap_or((&wanted, "1"));
        wanted == name && passed.fetch_add(1, Ordering::SeqCst) + 1 == nth.parse().unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    #[tokio::test]
    async fn the_point_after_a_write_is_passed_only_if_the_write_succeeds() {
        for (answer, expected) in [(Ok(()), &["before", "after"][..]), (Err(()), &["before"][..])] {
            let passed = Mutex::new(Vec::new());
            let got = with_points(|side| passed.lock().push(side), async move { answer }).await;
            assert_eq!((got, &passed.into_inner()[..]), (answer, expected));
        }
    }
}
