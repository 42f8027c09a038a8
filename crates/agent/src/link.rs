//! The one stream to the hub, which the agent dials for as long as it runs.
//!
//! After a lost stream, a silent hub or a refusal, the agent dials again, with increasing and randomized
//! delays. Accounts that are held stay held meanwhile. Another client certificate is shown on a second connection, whose
//! session takes over from the running one; another token is sent in the running session.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;
use ulid::Ulid;

use crate::command_executor::{CommandExecutor, SharedParts};
use crate::health::{self, AgentStatus};
use crate::settings::BackoffSettings;
use crate::{AgentError, AgentOptions};
use kubesvc_core::requests;
use kubesvc_core::wire::{MAX_MESSAGE_BYTES, PROTOCOL_VERSION};
use kubesvc_runtime::telemetry::errors::chain;

mod dial;
mod probes;
mod reauthentication;
mod refusal;
mod renewal;
mod session;
#[cfg(test)]
mod tests;
mod transport;

use dial::{AcceptedStream, CACHING_CAPABILITIES, Introduction};
pub use transport::HubCredentials;

use refusal::HubRefusal;
use renewal::Renewal;
use session::LinkSession;
use transport::HubDialer;

/// Minimum lifetime of a stream that resets the delay before the next dial.
const MIN_GOOD_STREAM_LIFETIME: Duration = Duration::from_secs(30);
/// Maximum delay that a hub may request.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(600);
/// Minimum delay after a refusal that names no time, whatever the settings of the back-off, unless their longest delay is
/// shorter.
const MIN_REFUSED_DELAY: Duration = Duration::from_secs(1);
/// That minimum, if even the longest delay of the settings is shorter than this.
const LEAST_REFUSED_DELAY: Duration = Duration::from_millis(100);

/// The link to the hub, and the accounts received over it.
#[derive(Debug)]
pub struct Link {
    introduction: Introduction,
    dialer: Arc<HubDialer>,
    accounts: CommandExecutor,
    status: Arc<AgentStatus>,
    pace: DialBackoff,
}

/// What the link is told when the agent stops.
#[derive(Clone, Debug)]
pub struct StopSignals {
    /// Cancelled when the agent begins to stop: the hub is told to give it nothing new, and what runs goes on.
    pub draining: CancellationToken,
    /// Cancelled when the link is to say goodbye and end.
    pub leave: CancellationToken,
}

/// Reason why a stream has ended.
#[derive(Debug)]
enum LinkEnd {
    Stopped,
    Refused(HubRefusal),
    /// The hub asked the agent to dial again at this time.
    Drained(Instant),
    /// The hub has accepted another stream of this process in its place.
    TakenOver(Box<AcceptedStream>),
    /// Any other reason.
    Broken(String),
}

impl Link {
    /// Creates a link that has not dialled yet.
    pub fn new(
        options: AgentOptions,
        credentials: HubCredentials,
        parts: SharedParts,
        status: Arc<AgentStatus>,
    ) -> Result<Self, AgentError> {
        Ok(Self {
            dialer: Arc::new(HubDialer::new(&options, credentials)?),
            accounts: CommandExecutor::new(parts),
            status,
            pace: DialBackoff::new(&options.settings.hub.backoff, options.settings.reconnect),
            introduction: Introduction::new(options, Ulid::generate().to_string()),
        })
    }

    /// Dials and serves until it is to leave.
    pub async fn run(self, stop: StopSignals) {
        let AgentOptions { agent_id, zone_id, .. } = &self.introduction.options;
        let span = tracing::info_span!("agent", agentId = %agent_id, zoneId = %zone_id);
        self.run_in_span(stop).instrument(span).await;
    }

    async fn run_in_span(mut self, stop: StopSignals) {
        tracing::info!(
            version = %self.introduction.options.version,
            hub = %self.hub(),
            tls = !self.introduction.options.settings.hub.insecure,
            "starting the agent"
        );
        while !stop.leave.is_cancelled() {
            let ended = self.connect_and_serve(&stop).await;
            self.accounts.stream_lost();
            let again_at = self.note(ended);
            tokio::select! {
                () = stop.leave.cancelled() => {}
                () = sleep_until(again_at) => {}
            }
        }
        tracing::info!("the agent stopped");
    }

    /// Runs one stream from beginning to end.
    async fn connect_and_serve(&mut self, stop: &StopSignals) -> LinkEnd {
        let greeted = tokio::select! {
            () = stop.leave.cancelled() => return LinkEnd::Stopped,
            greeted = self.greet() => greeted,
        };
        let mut greeted = match greeted {
            Ok(greeted) => greeted,
            Err(ended) => return ended,
        };
        loop {
            match self.serve(greeted, stop).await {
                LinkEnd::TakenOver(next) => {
                    self.accounts.stream_lost();
                    greeted = *next;
                }
                ended => return ended,
            }
        }
    }

    /// Runs an accepted stream to its end.
    async fn serve(&mut self, greeted: AcceptedStream, stop: &StopSignals) -> LinkEnd {
        let accepted = greeted.accepted.clone();
        if accepted.protocol != PROTOCOL_VERSION {
            return LinkEnd::Broken(format!(
                "the hub wants version {} of the protocol, and this agent speaks {PROTOCOL_VERSION}; \
                 run agent and operator in versions that fit",
                accepted.protocol
            ));
        }
        tracing::info!(
            session = %accepted.session_id,
            replica = %accepted.replica_id,
            approved = accepted.approved,
            "connected to the hub"
        );
        self.introduction.max_message_bytes = match usize::try_from(accepted.max_message_bytes) {
            Ok(told @ 1..) => told.min(MAX_MESSAGE_BYTES),
            _ => MAX_MESSAGE_BYTES,
        };
        if !accepted.approved {
            tracing::warn!(
                "the agent is not approved and receives no accounts; set spec.approved in its KubesvcAgent object"
            );
        }
        self.status.connected(health::StreamStatus {
            session_id: accepted.session_id.clone(),
            replica_id: accepted.replica_id.clone(),
            approved: accepted.approved,
        });
        let connection = |capabilities: &[&str]| greeted.connection(capabilities, &self.introduction);
        self.accounts.connected(connection(&CACHING_CAPABILITIES), connection(&[requests::CAPABILITY]));
        self.accounts.tell_refusals_to(greeted.hears_refusals());
        let since = Instant::now();
        self.accounts.metrics().connections.inc();
        if let Some(token) = self.dialer.token() {
            token.accepted();
        }
        let hub = &self.introduction.options.settings.hub;
        let (idle, backoff) = (hub.idle_timeout, DialBackoff::new(&hub.backoff, Duration::ZERO));
        let renewal = Renewal::new(Arc::clone(&self.dialer), &greeted, backoff);
        let agent = (&mut self.accounts, &mut self.introduction);
        let session = LinkSession::new(greeted, agent, &self.status, renewal, idle);
        let ended = session.run(stop).await;
        self.accounts.connected(None, None);
        self.accounts.metrics().disconnections.inc();
        if since.elapsed() > MIN_GOOD_STREAM_LIFETIME {
            self.pace.reset();
        }
        if !matches!(ended, LinkEnd::Drained(_) | LinkEnd::TakenOver(_)) {
            self.pace.was_accepted();
        }
        ended
    }

    async fn greet(&mut self) -> Result<AcceptedStream, LinkEnd> {
        let dialled = self.dialer.channel().await;
        let hub = dialled.map_err(|error| LinkEnd::Broken(chain(&error)))?;
        if self.introduction.own_cluster.is_none() {
            self.introduction.own_cluster = self.accounts.activators().all.own_cluster().await;
        }
        let hello = self.introduction.hello(self.accounts.held());
        dial::greet(hub, hello).await
    }

    fn hub(&self) -> &str {
        &self.introduction.options.settings.hub.grpc
    }

    /// Logs why the stream has ended, and returns the time of the next dial.
    fn note(&mut self, ended: LinkEnd) -> Instant {
        let (problem, wait) = match ended {
            LinkEnd::Stopped => {
                self.status.disconnected("the agent is stopping");
                return Instant::now();
            }
            LinkEnd::Drained(at) => {
                self.status.disconnected("the hub asked the agent to connect anew");
                tracing::info!("connecting anew, as the hub asks");
                return at;
            }
            LinkEnd::Refused(HubRefusal { problem, retry_after, permanent, of_credential }) => {
                if of_credential && let Some(token) = self.dialer.token() {
                    token.refused();
                }
                (problem, self.pace.after_refusal(retry_after, permanent))
            }
            LinkEnd::Broken(problem) => (problem, self.pace.next()),
            // It is served in place of the one that ended.
            LinkEnd::TakenOver(_) => return Instant::now(),
        };
        tracing::warn!(
            hub = %self.hub(),
            "{problem}; retrying in {:.1} s",
            wait.as_secs_f64()
        );
        self.status.disconnected(problem);
        Instant::now() + wait
    }
}

/// Back-off before the agent dials again: increasing delays between dials.
#[derive(Debug)]
struct DialBackoff {
    backoff: BackoffSettings,
    /// Minimum delay after a stream that the hub had accepted, before jitter.
    reconnect: Duration,
    next: Duration,
    /// Whether the last stream was accepted, so that the next dial is a reconnection.
    reconnects: bool,
}

impl DialBackoff {
    fn new(backoff: &BackoffSettings, reconnect: Duration) -> Self {
        let jitter = if backoff.jitter.is_finite() { backoff.jitter.clamp(0.0, 1.0) } else { 0.0 };
        let multiplier = if backoff.multiplier.is_finite() { backoff.multiplier.max(1.0) } else { 1.0 };
        let backoff = BackoffSettings { jitter, multiplier, ..*backoff };
        Self { next: backoff.base.min(backoff.max), backoff, reconnect, reconnects: false }
    }

    /// Returns the delay after one more failure.
    fn next(&mut self) -> Duration {
        let wait = self.next;
        let least = if std::mem::take(&mut self.reconnects) { self.reconnect } else { Duration::ZERO };
        let longer = Duration::try_from_secs_f64(wait.as_secs_f64() * self.backoff.multiplier);
        self.next = longer.unwrap_or(self.backoff.max).min(self.backoff.max);
        self.varied(wait.max(least))
    }

    /// Records that the hub accepted the stream: the next delay is one before a reconnection.
    fn was_accepted(&mut self) {
        self.reconnects = true;
    }

    /// The maximum delay, for a problem that only a person can fix.
    fn longest(&self) -> Duration {
        self.varied(self.backoff.max)
    }

    /// Returns the delay after a refusal; `asked` is zero if the hub named no time. A hub that names a time
    /// is reachable, so that is no failure that should increase the back-off.
    fn after_refusal(&mut self, asked: Duration, permanent: bool) -> Duration {
        match (asked.is_zero(), permanent) {
            (false, _) => asked + a_little_of(asked),
            (true, true) => self.longest(),
            (true, false) => {
                let least = MIN_REFUSED_DELAY.min(self.backoff.max).max(LEAST_REFUSED_DELAY);
                self.next().max(least)
            }
        }
    }

    /// Makes the next failure count as the first one.
    fn reset(&mut self) {
        self.next = self.backoff.base.min(self.backoff.max);
    }

    fn varied(&self, wait: Duration) -> Duration {
        wait.mul_f64(1.0 + self.backoff.jitter * (2.0 * fastrand::f64() - 1.0))
    }
}

/// Random addition to a delay that the hub requested: at most a twentieth of it, and at most one second,
/// because the hub chose that time for this agent alone.
fn a_little_of(asked: Duration) -> Duration {
    up_to((asked / 20).min(Duration::from_secs(1)))
}

/// A random delay up to `most`.
fn up_to(most: Duration) -> Duration {
    most.mul_f64(fastrand::f64())
}
