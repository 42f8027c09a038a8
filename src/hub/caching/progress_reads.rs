//! Database reads of a stream: progress of accounts, and the rows of scopes whose list begins. Reads are repeated until
//! they succeed; they end with the stream.

use std::collections::VecDeque;
use std::sync::Arc;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use kubesvc_core::CachingEpoch;
use kubesvc_core::wire::common::Fence;
use kubesvc_store::{BasisRow, StoreError, StoredProgress};
use tokio::sync::Semaphore;
use tracing::warn;

use super::basis::BasisFrames;
use super::scopes::DeclaredScope;
use super::transaction_batching::LaneId;
use super::{Caching, MAX_PROGRESS_READS, with_timeout};

/// Number of rows in one page of a basis.
pub(super) const BASIS_PAGE: u32 = 2_000;

/// A pending read of an account's progress.
pub(super) struct ProgressRead {
    pub(super) uid: Arc<str>,
    pub(super) epoch: CachingEpoch,
    pub(super) lane: LaneId,
    /// The added scopes to answer; `None` for all, after Begin.
    pub(super) added: Option<Vec<u32>>,
}

/// A basis in transfer, page by page.
pub(super) struct BasisRead {
    pub(super) uid: Arc<str>,
    pub(super) lane: LaneId,
    account: Arc<str>,
    scope: Arc<DeclaredScope>,
    pub(super) frames: BasisFrames,
    after: Option<BasisRow>,
}

impl BasisRead {
    pub(super) fn new(
        (uid, lane): (Arc<str>, LaneId),
        account: Arc<str>,
        scope: Arc<DeclaredScope>,
        (fence, sync_key): (Fence, String),
        takes_zstd: bool,
    ) -> Self {
        let frames = BasisFrames::new(fence, scope.id, sync_key, takes_zstd);
        Self { uid, lane, account, scope, frames, after: None }
    }

    /// Whether this is a basis of the same scope.
    fn is_of(&self, other: &Self) -> bool {
        self.uid == other.uid && self.scope.key == other.scope.key
    }
}

pub(super) enum FinishedRead {
    Progress(ProgressRead, StoredProgress),
    /// A page of a basis, and whether it is the last one.
    Basis(Box<BasisRead>, Vec<BasisRow>, bool),
}

/// The reads of one stream.
pub(super) struct Reads {
    caching: Arc<Caching>,
    waiting: VecDeque<ProgressRead>,
    /// Bases are read one at a time.
    waiting_bases: VecDeque<BasisRead>,
    running: FuturesUnordered<BoxFuture<'static, FinishedRead>>,
    is_basis_running: bool,
}

impl Reads {
    pub(super) fn new(caching: Arc<Caching>) -> Self {
        Self {
            caching,
            waiting: VecDeque::new(),
            waiting_bases: VecDeque::new(),
            running: FuturesUnordered::new(),
            is_basis_running: false,
        }
    }

    /// Adds a read, or merges it with a waiting one of the lane.
    pub(super) fn read_progress(&mut self, read: ProgressRead) {
        let waiting = self.waiting.iter_mut().find(|waiting| waiting.lane == read.lane);
        match (waiting, read) {
            (Some(ProgressRead { added: Some(waiting), .. }), ProgressRead { added: Some(added), .. }) => {
                waiting.extend(added);
            }
            (_, read) => self.waiting.push_back(read),
        }
    }

    /// Adds a basis. It replaces a waiting one of an earlier list of the scope.
    pub(super) fn read_basis(&mut self, read: BasisRead) {
        self.waiting_bases.retain(|waiting| !waiting.is_of(&read));
        self.waiting_bases.push_back(read);
    }

    /// Queues the next page of a basis.
    pub(super) fn read_next_page(&mut self, read: BasisRead) {
        // A later list of the scope may have begun meanwhile.
        if !self.waiting_bases.iter().any(|waiting| waiting.is_of(&read)) {
            self.waiting_bases.push_front(read);
        }
    }

    /// Drops the waiting reads of a lane.
    pub(super) fn drop_lane(&mut self, lane: LaneId) {
        self.waiting.retain(|waiting| waiting.lane != lane);
        self.waiting_bases.retain(|waiting| waiting.lane != lane);
    }

    /// Starts waiting reads up to their limits of concurrency.
    pub(super) fn start(&mut self) {
        while self.running.len() < MAX_PROGRESS_READS {
            let Some(read) = self.waiting.pop_front() else { break };
            self.running.push(progress(Arc::clone(&self.caching), read).boxed());
        }
        if !self.is_basis_running
            && let Some(read) = self.waiting_bases.pop_front()
        {
            self.is_basis_running = true;
            self.running.push(basis_page(Arc::clone(&self.caching), read).boxed());
        }
    }

    /// Waits for the next read to end; forever if none runs.
    pub(super) async fn ended(&mut self) -> FinishedRead {
        match self.running.next().await {
            None => std::future::pending().await,
            Some(read) => {
                self.is_basis_running &= !matches!(read, FinishedRead::Basis(..));
                read
            }
        }
    }
}

async fn progress(caching: Arc<Caching>, read: ProgressRead) -> FinishedRead {
    let store = &caching.ports.store;
    let stored = until_read(&caching, &caching.progress_reads, || store.resume(&read.uid, read.epoch)).await;
    FinishedRead::Progress(read, stored)
}

async fn basis_page(caching: Arc<Caching>, mut read: BasisRead) -> FinishedRead {
    let kind = read.scope.rows(&read.account, &*caching.ports.mapper).map(|rows| rows.kind().to_owned());
    // Without a valid row there is no basis; the reason is logged with the scope's first batch.
    let Ok(kind) = kind else { return FinishedRead::Basis(Box::new(read), Vec::new(), true) };
    let (store, namespace) = (&caching.ports.store, &read.scope.key.namespace);
    let page = until_read(&caching, &caching.basis_reads, || {
        store.basis(&read.account, &kind, namespace, read.after.as_ref(), BASIS_PAGE)
    });
    let mut page = page.await;
    let is_last = page.len() < usize::try_from(BASIS_PAGE).unwrap_or(usize::MAX);
    read.after = page.last().cloned().filter(|_| !is_last);
    page.shrink_to_fit();
    FinishedRead::Basis(Box::new(read), page, is_last)
}

/// Reads until the database answers.
async fn until_read<T, F>(caching: &Caching, permits: &Semaphore, read: impl Fn() -> F) -> T
where
    F: Future<Output = Result<T, StoreError>>,
{
    let mut failures = 0;
    loop {
        let answer = {
            // The semaphore is never closed.
            let _permit = permits.acquire().await.ok();
            with_timeout(read()).await
        };
        match answer {
            Ok(answer) => {
                caching.retries.succeeded_after(failures);
                return answer;
            }
            Err(error) => {
                failures += 1;
                if caching.context.may_log("cache_reads", None) {
                    warn!(error = error.in_full(), "cannot read the progress of accounts; retrying");
                }
                caching.retries.wait(failures).await;
            }
        }
    }
}
