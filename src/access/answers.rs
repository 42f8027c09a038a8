//! Answers to questions about callers and agents, kept for some seconds.

use std::sync::Arc;
use std::time::Duration;

use moka::sync::Cache;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::AccessError;

/// How long a yes is kept, unless the cache is made for another time.
const YES_LIFETIME: Duration = Duration::from_secs(10);
/// How long a no is kept.
const NO_LIFETIME: Duration = Duration::from_secs(1);
/// Maximum number of answers of each kind; those used least go first.
const MAX_ANSWERS: u64 = 20_000;

/// Digest of a question. A token is never a key itself.
pub(crate) type QuestionDigest = [u8; 32];

/// Why a question has no yes.
pub(crate) trait NotGranted: Clone + Send + Sync + 'static {
    /// Whether that is an answer. That nobody could be asked is none.
    fn is_answer(&self) -> bool;
}

impl NotGranted for AccessError {
    fn is_answer(&self) -> bool {
        !matches!(self, Self::Unavailable(_) | Self::Busy)
    }
}

/// An answer, and when it came.
type CachedAnswer<T, E> = OnceCell<(Result<T, E>, Instant)>;

/// Answers by the digest of their question. Concurrent callers with one question ask once. Failures to ask are not cached.
pub(crate) struct AnswerCache<T, E = AccessError> {
    answers: Cache<QuestionDigest, Arc<CachedAnswer<T, E>>>,
    yes_lifetime: Duration,
}

impl<T: Clone + Send + Sync + 'static, E: NotGranted> AnswerCache<T, E> {
    pub(crate) fn new() -> Self {
        Self::keeping(YES_LIFETIME)
    }

    /// A cache that keeps a yes for this time.
    pub(crate) fn keeping(yes_lifetime: Duration) -> Self {
        let answers = Cache::builder().max_capacity(MAX_ANSWERS).time_to_live(yes_lifetime * 2).build();
        Self { answers, yes_lifetime }
    }

    /// Returns the answer that is kept, or asks.
    pub(crate) async fn get(
        &self,
        question: QuestionDigest,
        ask: impl Future<Output = Result<T, E>> + Send,
    ) -> Result<T, E> {
        if let Some(kept) = self.answers.get(&question)
            && kept.get().is_some_and(|(answer, at)| self.is_outdated(answer, *at))
        {
            self.answers.invalidate(&question);
        }
        let kept = self.answers.get_with(question, Arc::default);
        let asked = async {
            match ask.await {
                Err(error) if !error.is_answer() => Err(error),
                answer => Ok((answer, Instant::now())),
            }
        };
        kept.get_or_try_init(|| asked).await?.0.clone()
    }

    fn is_outdated(&self, answer: &Result<T, E>, at: Instant) -> bool {
        at.elapsed() >= if answer.is_ok() { self.yes_lifetime } else { NO_LIFETIME }
    }
}
