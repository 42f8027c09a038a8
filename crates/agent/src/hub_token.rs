//! The bearer token that the agent sends to the hub with each stream: where it comes from, until when it holds, and how it
//! is replaced before that.
//!
//! A token is replaced when its source has another one. A file is read every ten seconds and before each dial; a command
//! runs at its interval, when a fifth of the token's life is left, and before a dial that would have no valid token. While
//! the source has none, the last token stays as long as it has not expired. No part of a token is logged.

mod bearer;
mod service;
mod source;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use jiff::Timestamp;
use parking_lot::RwLock;
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

pub use bearer::{BearerToken, TokenLife};
pub use service::{HubService, shown};
use source::{TokenProblem, TokenSource};

use crate::settings::TokenSettings;
use kubesvc_runtime::background_tasks::{AttemptOutcome, BackgroundTasks, TaskSpec};
use kubesvc_runtime::telemetry::errors::chain;

/// Maximum interval between two looks at the clock, which may jump.
const MAX_CLOCK_INTERVAL: Duration = Duration::from_secs(60);
/// First and maximum delay after a source that had no token, before jitter.
const RETRY_DELAYS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];
/// A token is replaced when this part of its life is left.
const RENEWED_PART: i32 = 5;

/// Why the setting of the token cannot be honoured.
#[derive(Debug, thiserror::Error)]
#[error("`{setting}` cannot be honoured; {remedy}")]
pub struct TokenSettingError {
    setting: &'static str,
    remedy: &'static str,
    source: TokenProblem,
}

/// Why there is no token that may be sent.
#[derive(Debug, thiserror::Error)]
pub enum NoTokenError {
    /// There never was one.
    #[error("`{setting}` has given no token yet")]
    Missing { setting: &'static str, source: Option<TokenProblem> },
    /// The last one has expired.
    #[error("the token of `{setting}` expired at {at}, by this machine's clock; {remedy}")]
    Expired { setting: &'static str, at: Timestamp, remedy: &'static str, source: Option<TokenProblem> },
}

/// The token of the agent, as its source had it last.
#[derive(Debug)]
pub struct HubToken {
    source: TokenSource,
    held: RwLock<Option<HeldToken>>,
    /// Counts the tokens.
    number: watch::Sender<u64>,
    /// Held while the source is read.
    reading: Mutex<SourceReading>,
}

#[derive(Debug)]
struct HeldToken {
    token: BearerToken,
    life: TokenLife,
    expires: Option<Instant>,
    renewal: Option<Instant>,
    /// The hub has refused it since it accepted it last.
    refused: bool,
}

#[derive(Debug, Default)]
struct SourceReading {
    last: Option<Instant>,
    /// The problem that was logged last.
    problem: Option<String>,
}

impl HeldToken {
    fn new(token: BearerToken) -> Self {
        let (life, now, clock) = (token.life(), Instant::now(), Timestamp::now());
        let after = |left: jiff::SignedDuration| now.checked_add(left.try_into().unwrap_or_default());
        let (expires, renewal) = match life.expires {
            None => (None, None),
            Some(expires) => {
                let left = expires.duration_since(clock);
                let whole = life.issued.map_or(left, |issued| expires.duration_since(issued));
                (after(left), after(left - whole / RENEWED_PART))
            }
        };
        Self { token, life, expires, renewal, refused: false }
    }

    /// When it expired, if it did. The system's clock counts, and the time since the token was read, since either may have
    /// stood still.
    fn expired(&self) -> Option<Timestamp> {
        let has_passed = self.expires.is_some_and(|at| at <= Instant::now());
        self.life.expires.filter(|at| has_passed || *at <= Timestamp::now())
    }
}

impl HubToken {
    /// Reads the token for the first time. A command that fails may succeed later, so the agent starts without a token then,
    /// and does not dial until it has one.
    ///
    /// # Errors
    /// The setting cannot be honoured as it is written.
    pub async fn read(settings: TokenSettings) -> Result<Arc<Self>, TokenSettingError> {
        let source = TokenSource::new(settings);
        let (held, number) = (RwLock::default(), watch::Sender::new(0));
        let token = Self { source, held, number, reading: Mutex::default() };
        match token.refresh().await {
            Err(problem) if !problem.may_pass() => {
                let (setting, remedy) = (token.setting(), problem.remedy());
                Err(TokenSettingError { setting, remedy, source: problem })
            }
            Ok(()) | Err(_) => Ok(Arc::new(token)),
        }
    }

    /// The setting that names its source.
    pub fn setting(&self) -> &'static str {
        self.source.setting()
    }

    /// Number of the token that a stream is opened with now. It changes when another one is in use.
    pub fn number(&self) -> watch::Receiver<u64> {
        self.number.subscribe()
    }

    /// The value of `authorization` of a stream that is opened now.
    pub fn header(&self) -> Option<HeaderValue> {
        self.held.read().as_ref()?.token.header()
    }

    /// The token and its number.
    pub fn current(&self) -> (u64, Option<BearerToken>) {
        let held = self.held.read();
        (*self.number.borrow(), held.as_ref().map(|held| held.token.clone()))
    }

    /// Removes the token from a text of the hub, or of a proxy before it.
    pub fn removed_from(&self, text: &str) -> String {
        match self.held.read().as_ref() {
            Some(held) => text.replace(held.token.expose(), "***"),
            None => text.to_owned(),
        }
    }

    /// Records that the hub refuses the token: before the next dial, a command is run for another one.
    pub fn refused(&self) {
        if let Some(held) = self.held.write().as_mut() {
            held.refused = true;
        }
    }

    /// Records that the hub has accepted a stream with the token.
    pub fn accepted(&self) {
        if let Some(held) = self.held.write().as_mut() {
            held.refused = false;
        }
    }

    /// Makes sure, before the hub is dialled, that there is a token which has not expired.
    ///
    /// # Errors
    /// There is none.
    pub async fn prepare(&self) -> Result<(), NoTokenError> {
        let is_asked_for = match self.source.command() {
            None => self.source.may_change(),
            // Nothing else tells when a token without an end is another one.
            Some(command) => {
                let held = self.held.read();
                held.as_ref().is_none_or(|held| {
                    let is_endless = held.life.expires.is_none() && command.refresh.is_zero();
                    held.refused || held.expired().is_some() || is_endless
                })
            }
        };
        let problem = if is_asked_for { self.refresh().await.err() } else { None };
        let setting = self.setting();
        let (is_held, expired) = {
            let held = self.held.read();
            (held.is_some(), held.as_ref().and_then(HeldToken::expired))
        };
        match (is_held, expired) {
            (true, None) => Ok(()),
            (true, Some(at)) => {
                let remedy = match self.source.may_change() {
                    true => "it has no newer one",
                    false => "set it to another one",
                };
                Err(NoTokenError::Expired { setting, at, remedy, source: problem })
            }
            (false, _) => Err(NoTokenError::Missing { setting, source: problem }),
        }
    }

    /// Reads the source, and takes another token. A problem is logged once.
    async fn refresh(&self) -> Result<(), TokenProblem> {
        let mut reading = self.reading.lock().await;
        let read = self.source.read().await;
        reading.last = Some(Instant::now());
        let setting = self.setting();
        match read {
            Ok(token) => {
                if reading.problem.take().is_some() {
                    tracing::info!("{setting} has a token again");
                }
                self.take(token);
                Ok(())
            }
            Err(problem) => {
                let text = chain(&problem);
                let has_token = self.held.read().is_some();
                // The start ends with a problem that does not pass.
                if reading.problem.as_ref() != Some(&text) && (has_token || problem.may_pass()) {
                    let rest =
                        if has_token { "the last one stays until it expires" } else { "there is none yet" };
                    tracing::warn!("{setting} has no token, and {rest}: {text}");
                    reading.problem = Some(text);
                }
                Err(problem)
            }
        }
    }

    fn take(&self, token: BearerToken) {
        let mut held = self.held.write();
        match held.as_mut() {
            Some(same) if same.token == token => {}
            before => {
                let is_first = before.is_none();
                *held = Some(HeldToken::new(token));
                drop(held);
                self.number.send_modify(|number| *number += 1);
                if !is_first {
                    tracing::info!("{} has another token", self.setting());
                }
            }
        }
    }

    /// Looks for other tokens for as long as the agent runs: every `pace`, or when a command is due. The task fails while
    /// there is none, or the hub refuses it.
    pub fn watch(self: &Arc<Self>, pace: Duration, background: &BackgroundTasks) {
        let task =
            TaskSpec::new("token for the hub", "Looks for another token before the present one expires");
        let task = task.at_start().without_deadline().retry_delays(RETRY_DELAYS[0], RETRY_DELAYS[1]);
        let token = Arc::clone(self);
        background.start(task.logs_itself(), move |_: Vec<()>| {
            let token = Arc::clone(&token);
            async move { token.look(pace).await }
        });
    }

    /// Reads the source if it is due.
    async fn look(&self, pace: Duration) -> AttemptOutcome {
        let left = match self.left_until_due(pace).await {
            Some(left) => left,
            None => match self.refresh().await {
                Ok(()) => pace,
                Err(problem) => {
                    return AttemptOutcome::failed(format!("{}: {}", self.setting(), chain(&problem)));
                }
            },
        };
        let is_refused = self.held.read().as_ref().is_some_and(|held| held.refused);
        match is_refused {
            true => AttemptOutcome::failed(format!("{}: the hub does not accept the token", self.setting())),
            false => AttemptOutcome::Again(Vec::new(), left),
        }
    }

    /// Time until the source is to be looked at again, at most a minute; `None`: now.
    async fn left_until_due(&self, pace: Duration) -> Option<Duration> {
        if !self.source.may_change() {
            return Some(pace);
        }
        let last = self.reading.lock().await.last?;
        let due = match self.source.command() {
            None => Some(last + pace),
            Some(command) => {
                let held = self.held.read();
                let held = held.as_ref()?;
                if held.expired().is_some() {
                    Some(last + pace)
                } else {
                    let at_interval = (!command.refresh.is_zero()).then(|| last + command.refresh);
                    // A command that prints the same token again is not run at once.
                    let of_life = held.renewal.map(|at| at.max(last + pace));
                    at_interval.into_iter().chain(of_life).min()
                }
            }
        };
        let left = due.map_or(MAX_CLOCK_INTERVAL, |due| due.saturating_duration_since(Instant::now()));
        (!left.is_zero()).then(|| left.min(MAX_CLOCK_INTERVAL))
    }
}
