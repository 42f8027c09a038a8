//! Answers of the API server about callers, kept for some seconds.

use std::sync::Arc;
use std::time::Duration;

use moka::sync::Cache;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::AccessError;

/// How long a yes is kept.
pub(super) const YES_LIFETIME: Duration = Duration::from_secs(10);
/// How long a no is kept.
pub(super) const NO_LIFETIME: Duration = Duration::from_secs(1);
/// Maximum number of answers of each kind; those used least go first.
const MAX_ANSWERS: u64 = 20_000;

/// Digest of a question. A token is never a key itself.
pub(super) type QuestionDigest = [u8; 32];

/// An answer, and when it came.
type CachedAnswer<T> = OnceCell<(Result<T, AccessError>, Instant)>;

/// Answers by the digest of their question. Concurrent callers with one question ask once. That nobody could be asked is
/// no answer, and is not kept.
pub(super) struct AnswerCache<T>(Cache<QuestionDigest, Arc<CachedAnswer<T>>>);

impl<T: Clone + Send + Sync + 'static> AnswerCache<T> {
    pub(super) fn new() -> Self {
        Self(Cache::builder().max_capacity(MAX_ANSWERS).time_to_live(YES_LIFETIME * 2).build())
    }

    /// Returns the answer that is kept, or asks.
    pub(super) async fn get(
        &self,
        question: QuestionDigest,
        ask: impl Future<Output = Result<T, AccessError>> + Send,
    ) -> Result<T, AccessError> {
        if let Some(kept) = self.0.get(&question)
            && kept.get().is_some_and(|(answer, at)| is_outdated(answer, *at))
        {
            self.0.invalidate(&question);
        }
        let kept = self.0.get_with(question, Arc::default);
        let asked = async {
            match ask.await {
                Err(unavailable @ (AccessError::Unavailable(_) | AccessError::Busy)) => Err(unavailable),
                answer => Ok((answer, Instant::now())),
            }
        };
        kept.get_or_try_init(|| asked).await?.0.clone()
    }
}

fn is_outdated<T>(answer: &Result<T, AccessError>, at: Instant) -> bool {
    at.elapsed() >= if answer.is_ok() { YES_LIFETIME } else { NO_LIFETIME }
}
