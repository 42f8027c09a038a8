//! Work that continues while its session loop is blocked.

use std::future::Future;

use tokio_util::task::AbortOnDropHandle;

/// Runs work as its own task, which is aborted when the returned future is dropped.
///
/// A session loop polls nothing while its agent reads no frames. Work that others wait for, such as a credential read
/// that holds a permit, must not stall with it.
pub(in crate::hub) fn detached<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> impl Future<Output = T> + Send {
    let task = AbortOnDropHandle::new(tokio::spawn(work));
    async move {
        match task.await {
            Ok(done) => done,
            Err(ended) => match ended.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // Aborted only by dropping this future, or by the runtime's shutdown.
                Err(_) => std::future::pending().await,
            },
        }
    }
}
