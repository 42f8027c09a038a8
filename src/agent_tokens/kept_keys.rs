//! The keys of one issuer as they were last read, and when they are read again: at intervals, and for a token whose key is not
//! among them, at most once a minute.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use tokio::sync::{Mutex, Semaphore};
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use super::TokenError;
use super::key_set::KeySet;
use super::key_sources::{KeySource, KeySourceError};
use kubesvc_runtime::telemetry::errors::chain;

/// Minimum interval between two reads that tokens cause.
const UNKNOWN_KEY_INTERVAL: Duration = Duration::from_secs(60);
/// Time limit for one read, of all its files and answers.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Minimum interval between two reads after one that failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);
/// Age of fetched keys from which on they are not used: an issuer may have withdrawn them.
const MAX_FETCHED_AGE: Duration = Duration::from_secs(24 * 3600);
/// Maximum number of tokens that wait for a read.
const MAX_WAITING_TOKENS: usize = 64;

/// Keys, and whose they are.
#[derive(Debug)]
pub(super) struct PublishedKeys {
    pub(super) issuer: String,
    pub(super) keys: KeySet,
    /// Digest of what was read.
    pub(super) digest: [u8; 32],
}

/// The keys of one issuer.
pub(super) struct KeptKeys {
    source: Box<dyn KeySource>,
    kept: RwLock<KeysInUse>,
    /// When a token last caused a read. Held while one is under way, so that all tokens wait for the same.
    asked: Mutex<Option<Instant>>,
    waiting: Semaphore,
}

#[derive(Default)]
struct KeysInUse {
    keys: Option<Arc<PublishedKeys>>,
    read_at: Option<Instant>,
    tried_at: Option<Instant>,
    /// Why the last read brought nothing, or that it has not ended.
    problem: Option<String>,
}

impl KeptKeys {
    pub(super) fn new(source: impl KeySource + 'static) -> Self {
        Self {
            source: Box::new(source),
            kept: RwLock::default(),
            asked: Mutex::default(),
            waiting: Semaphore::new(MAX_WAITING_TOKENS),
        }
    }

    /// The keys that were last read; `None` if none were, or too long ago.
    pub(super) fn current(&self) -> Option<Arc<PublishedKeys>> {
        let kept = self.kept.read();
        let is_outdated =
            !self.source.is_local() && kept.read_at.is_some_and(|at| at.elapsed() >= MAX_FETCHED_AGE);
        kept.keys.clone().filter(|_| !is_outdated)
    }

    /// Keys newer than these, for a token whose key is not among them. `None`: they are the newest, as of less than a minute
    /// ago.
    ///
    /// # Errors
    /// They cannot be read now.
    pub(super) async fn newer_than(
        &self,
        known: Option<&Arc<PublishedKeys>>,
    ) -> Result<Option<Arc<PublishedKeys>>, TokenError> {
        let unavailable = |why: &str| {
            TokenError::Unavailable(format!("the keys of {} are not known: {why}", self.source.name()))
        };
        let _place = self.waiting.try_acquire().map_err(|_| unavailable("too many tokens wait for them"))?;
        let mut asked = self.asked.lock().await;
        let newer = |current: Option<Arc<PublishedKeys>>| {
            current.filter(|current| known.is_none_or(|known| !Arc::ptr_eq(known, current)))
        };
        if let Some(newer) = newer(self.current()) {
            return Ok(Some(newer));
        }
        if asked.is_none_or(|at| at.elapsed() >= UNKNOWN_KEY_INTERVAL) {
            *asked = Some(Instant::now());
            // The problem is kept, and told below.
            let _ = self.read().await;
        }
        match (newer(self.current()), &self.kept.read().problem) {
            (Some(newer), _) => Ok(Some(newer)),
            (None, Some(problem)) => Err(unavailable(problem)),
            (None, None) => Ok(None),
        }
    }

    /// Reads the keys, if it is time to. Returns whether others are known now.
    ///
    /// # Errors
    /// They cannot be read; those that were read before stay in use.
    pub(super) async fn read_if_due(&self) -> Result<bool, KeySourceError> {
        let is_due = {
            let kept = self.kept.read();
            match (&kept.problem, kept.tried_at) {
                (_, None) => true,
                (Some(_), Some(at)) => at.elapsed() >= RETRY_INTERVAL.min(self.source.interval()),
                (None, Some(at)) => at.elapsed() >= self.source.interval(),
            }
        };
        if is_due { self.read().await } else { Ok(false) }
    }

    /// Reads the keys. Returns whether others are known now.
    ///
    /// # Errors
    /// They cannot be read; those that were read before stay in use.
    pub(super) async fn read(&self) -> Result<bool, KeySourceError> {
        let last_problem = {
            let mut kept = self.kept.write();
            kept.tried_at = Some(Instant::now());
            kept.problem.replace("a read has not ended".to_owned())
        };
        let read = timeout(READ_TIMEOUT, self.source.read());
        let read = read.await.unwrap_or_else(|_| Err(KeySourceError::Slow(READ_TIMEOUT)));
        let mut kept = self.kept.write();
        match read {
            Ok(read) => {
                (kept.problem, kept.read_at) = (None, Some(Instant::now()));
                let is_first = kept.keys.is_none();
                let is_same = kept.keys.as_ref().is_some_and(|keys| keys.digest == read.digest);
                if is_same {
                    return Ok(false);
                }
                self.say(&read, is_first);
                kept.keys = Some(Arc::new(read));
                Ok(true)
            }
            Err(error) => {
                let problem = chain(&error);
                if last_problem.as_ref() != Some(&problem) {
                    let state =
                        if kept.keys.is_some() { "those read before stay in use" } else { "its tokens wait" };
                    warn!("the keys of {} cannot be read, and {state}: {problem}", self.source.name());
                }
                kept.problem = Some(problem);
                Err(error)
            }
        }
    }

    fn say(&self, read: &PublishedKeys, is_first: bool) {
        let name = self.source.name();
        if !is_first {
            info!("{name} has other keys from now on");
        }
        if let Some(first) = read.keys.left_out().first() {
            let others = read.keys.left_out().len() - 1;
            warn!("of the keys of {name}, {first}, and is not used; {others} more are not used either");
        }
    }
}
