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

/// Adds the points before and after each write.
macro_rules! points {
    ($($write:literal,)+) => {
        &["cache-commit:in", $(concat!($write, ":before"), concat!($write, ":after")),+]
    };
}

/// Names of all crash points, so that tests can iterate over them.
pub const POINTS: &[&str] = points![
    "finalizer-add",
    "finalizer-remove",
    "status",
    "row-insert",
    "row-update",
    "row-delete",
    "row-adopt",
    "agent-object",
    "agent-create",
    "agent-note",
    "agent-left",
    "agent-remove",
    "agent-report",
    "accepted",
    "request-stream",
    "request-open",
    "probe",
    "add-accounts",
    "delete-accounts",
    "rest-secret",
    "rest-create",
    "rest-patch",
    "rest-delete",
    "rest-secret-claim",
    "adopt-secret",
    "adopt-create",
    "secret-delete",
    "secret-update",
    "event",
    "static-create",
    "static-update",
    "gateway-secret",
    "gateway-api-service",
    "hub-secret",
    "hub-ca",
    "object-delete",
    "fence",
    "caching-assignment",
    "cache-commit",
    "cache-sweep",
    "operation-insert",
    "operation-write",
    "operation-end",
    "operation-rows",
    "operation-hand",
    "operation-settle",
    "operation-purge",
    "assignments",
    "term",
    "lease",
    "replica-lease",
    "import-secret",
    "import-create",
    "migration-secret",
    "migration-create",
    "migration-patch",
    "migration-delete",
    "migration-declined",
    "migration-release",
    "migration-status",
    "pushed-row",
    "push-create",
    "push-replace",
    "push-delete",
    "intent-row",
    "credentials-call",
    "intent-end",
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
