//! Two threads for what takes long: reading a manifest, and comparing it with what the cluster has. One caller uses one of
//! them, and none that answer probes and agents.

use std::panic::resume_unwind;
use std::sync::Arc;

use kubesvc_runtime::limits::KeyedLimit;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

/// Number of threads.
const THREADS: usize = 2;
/// Number of them that one caller uses at once.
const THREADS_OF_CALLER: usize = 1;
/// Size up to which a document is handled where it is asked for, in bytes: that takes below a millisecond.
const SMALL_BYTES: usize = 32 * 1024;

/// The threads, and who waits for one.
#[derive(Debug)]
pub(super) struct DocumentThreads {
    free: Arc<Semaphore>,
    /// Of callers, by name.
    callers: KeyedLimit<String>,
}

impl Default for DocumentThreads {
    fn default() -> Self {
        Self { free: Arc::new(Semaphore::new(THREADS)), callers: KeyedLimit::new(THREADS_OF_CALLER) }
    }
}

impl DocumentThreads {
    /// Does what the caller with this name asks for, with a document of so many bytes.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        caller: &str,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        if bytes <= SMALL_BYTES {
            return work();
        }
        let of_caller = self.callers.of(caller.to_owned()).acquire_owned().await;
        let of_all = Arc::clone(&self.free).acquire_owned().await;
        let working = spawn_blocking(move || {
            let done = work();
            drop((of_caller, of_all));
            done
        });
        match working.await {
            Ok(done) => done,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                // The process ends.
                Err(_) => std::future::pending().await,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn one_caller_leaves_a_thread_to_others_and_small_documents_need_none() {
        let threads = Arc::<DocumentThreads>::default();
        let (release, released) = mpsc::channel::<()>();
        let (begun, begins) = oneshot::channel();
        let first = tokio::spawn({
            let threads = Arc::clone(&threads);
            async move {
                threads
                    .run("a", SMALL_BYTES + 1, move || {
                        begun.send(()).expect("it is waited for");
                        released.recv().expect("it is released");
                    })
                    .await;
            }
        });
        begins.await.expect("it begins");
        let mut second = std::pin::pin!(threads.run("a", SMALL_BYTES + 1, || 2));
        assert!(futures::poll!(second.as_mut()).is_pending(), "a caller uses one thread");
        assert_eq!(threads.run("a", SMALL_BYTES, || 3).await, 3);
        assert_eq!(threads.run("b", SMALL_BYTES + 1, || 4).await, 4);
        release.send(()).expect("it waits");
        first.await.expect("it ends");
        assert_eq!(second.await, 2);
    }

    #[tokio::test]
    async fn a_panic_is_passed_on_and_gives_the_thread_back() {
        let threads = Arc::<DocumentThreads>::default();
        for _ in 0..=THREADS {
            let threads = Arc::clone(&threads);
            let panics = async move {
                threads.run("a", SMALL_BYTES + 1, || resume_unwind(Box::new("it fails"))).await;
            };
            let ended: Result<(), _> = tokio::spawn(panics).await;
            assert!(ended.expect_err("it fails").is_panic());
        }
        assert_eq!(threads.run("a", SMALL_BYTES + 1, || 1).await, 1);
    }
}
