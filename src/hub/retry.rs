//! Requests to an API server that may not answer: repeated over another connection.

use std::time::Duration;

/// Time limit for one answer: several times what the objects of 10,000 agents need.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of attempts.
const MAX_ATTEMPTS: usize = 3;

/// Repeats a request until it is answered; `None` without an answer in 15 s. An abandoned request closes its
/// connection, so the next one uses another.
pub(super) async fn ask_with_retries<T, E, F>(question: impl Fn() -> F) -> Option<Result<T, E>>
where
    F: Future<Output = Result<T, E>>,
{
    for _ in 0..MAX_ATTEMPTS {
        if let Ok(answer) = tokio::time::timeout(ANSWER_TIMEOUT, question()).await {
            return Some(answer);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Asks one that is silent for the first so many times.
    async fn asked(silent: usize) -> (Option<Result<&'static str, ()>>, usize) {
        let asked = AtomicUsize::new(0);
        let question = || {
            let hangs = asked.fetch_add(1, Ordering::Relaxed) < silent;
            async move {
                if hangs {
                    std::future::pending::<()>().await;
                }
                Ok("heard")
            }
        };
        let answer = ask_with_retries(question).await;
        (answer, asked.load(Ordering::Relaxed))
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_without_an_answer_is_repeated() {
        assert_eq!(asked(0).await, (Some(Ok("heard")), 1));
        assert_eq!(asked(2).await, (Some(Ok("heard")), 3));
    }

    #[tokio::test(start_paused = true)]
    async fn requests_without_an_answer_end_after_the_last_attempt() {
        let begun = tokio::time::Instant::now();
        assert_eq!(asked(usize::MAX).await, (None, MAX_ATTEMPTS));
        assert_eq!(begun.elapsed(), Duration::from_secs(15));
    }

    #[tokio::test(start_paused = true)]
    async fn a_bad_answer_is_an_answer() {
        let answer = ask_with_retries(|| std::future::ready(Err::<(), _>("no right"))).await;
        assert_eq!(answer, Some(Err("no right")));
    }
}
