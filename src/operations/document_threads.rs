//! Two threads for what takes long: reading a manifest, and comparing it with what the cluster has. One caller uses one of
//! them, and none that answer probes and agents. Large documents have bounded memory together.

use std::panic::resume_unwind;
use std::sync::Arc;

use kubesvc_runtime::limits::KeyedLimit;
use kubesvc_runtime::listen::bodies::{BodyMemory, BodyPermit, NoRoom};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

/// Number of threads.
const THREADS: usize = 2;
/// Number of them that one caller uses at once.
const THREADS_OF_CALLER: usize = 1;
/// Size up to which a document is handled where it is asked for, in bytes: that takes below a millisecond.
const SMALL_BYTES: usize = 32 * 1024;

/// Size up to which a document is not counted, in bytes. As a value, one has several times the bytes of its text.
const COUNTED_BYTES: usize = 256 * 1024;
/// Texts of the larger ones together, in KiB. One caller has a quarter.
const LARGE_KIB: usize = 16 * 1024;

/// The threads, and who waits for one.
#[derive(Debug)]
pub(super) struct DocumentThreads {
    large: BodyMemory<String>,
    free: Arc<Semaphore>,
    /// Of callers, by name.
    callers: KeyedLimit<String>,
}

impl Default for DocumentThreads {
    fn default() -> Self {
        let (free, callers) = (Arc::new(Semaphore::new(THREADS)), KeyedLimit::new(THREADS_OF_CALLER));
        Self { large: BodyMemory::new(LARGE_KIB), free, callers }
    }
}

impl DocumentThreads {
    /// Takes the memory of a document until the permit is dropped.
    ///
    /// # Errors
    /// None was free in time.
    pub(super) async fn hold(&self, caller: &str, bytes: usize) -> Result<BodyPermit, NoRoom> {
        let mut permit = self.large.permit(caller.to_owned());
        if bytes > COUNTED_BYTES {
            permit.grow(bytes).await?;
        }
        Ok(permit)
    }

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

    #[tokio::test(start_paused = true)]
    async fn a_caller_holds_four_mib_of_large_documents_and_any_number_of_small_ones() {
        let threads = DocumentThreads::default();
        let mib = 1024 * 1024;
        let held = threads.hold("a", 4 * mib).await.expect("there is room");
        threads.hold("a", mib).await.expect_err("it has its part");
        let _other = threads.hold("b", 4 * mib).await.expect("another has its own");
        let _small = threads.hold("a", COUNTED_BYTES).await.expect("it is not counted");
        drop(held);
        threads.hold("a", mib).await.expect("it was given back");
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
