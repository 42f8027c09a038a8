//! Work that continues while the loop of its session is blocked.

use std::future::Future;

use tokio_util::task::AbortOnDropHandle;

/// Runs work as a task of its own, which ends with the returned future.
///
/// A session's loop polls nothing while its agent takes no frames. What others wait for, a place among those that read
/// credentials or a look for all sessions, must not stand still with it.
pub(in crate::hub) fn detached<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> impl Future<Output = T> + Send {
    let task = AbortOnDropHandle::new(tokio::spawn(work));
    async move {
        match task.await {
            Ok(done) => done,
            Err(ended) => match ended.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // It is aborted only by whoever would wait for it, or by a runtime that ends.
                Err(_) => std::future::pending().await,
            },
        }
    }
}
