//! The one stream to the hub: it is dialled for as long as the agent runs.
//!
//! A lost stream, a hub that says nothing, a refusal: all end in dialling again, slower and slower and each agent at
//! its own pace. What is held stays held meanwhile.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tonic::transport::Endpoint;
use tracing::Instrument as _;
use ulid::Ulid;

use crate::agent::accounts::{Accounts, Parts};
use crate::agent::health::{self, Status};
use crate::agent::{AgentError, AgentOptions};
use crate::wire::ops::{Hello, Refused};
use crate::wire::{MAX_MESSAGE_BYTES, PROTOCOL_VERSION};

mod dial;
mod greeting;
mod pace;
mod probes;
mod session;
#[cfg(test)]
mod tests;

use greeting::Greeted;
use pace::Pace;
use session::Session;

/// A stream that lived this long was a good one: the next wait is the shortest again.
const GOOD_AFTER: Duration = Duration::from_secs(30);
/// The longest wait that a hub may ask for.
const MAX_ASKED_WAIT: Duration = Duration::from_secs(600);

/// The link to the hub, and the accounts that came over it.
#[derive(Debug)]
pub struct Link {
    options: AgentOptions,
    endpoint: Endpoint,
    accounts: Accounts,
    status: Arc<Status>,
    /// Names this process; the hub tells a reconnecting agent from a second one by it.
    boot_id: String,
    connect_seq: u64,
    /// The largest message that the hub takes, in bytes, as far as it has said.
    max_message_bytes: usize,
    pace: Pace,
    /// uid of kube-system of the cluster that it runs in, once it was read. It stays the same for as long as the agent runs.
    own_cluster: Option<String>,
}

/// Why there is no stream any more.
#[derive(Debug)]
enum Ended {
    /// The agent was told to stop.
    Stopped,
    /// The hub does not want the agent now.
    Refused(Refused),
    /// The replica is stopping, and asked to be dialled again at this time.
    Drained(Instant),
    /// Anything else.
    Broken(String),
}

impl Link {
    /// A link that has not dialled yet.
    ///
    /// # Errors
    ///
    /// [`AgentError::HubAddress`] if the hub's address is none.
    pub fn new(options: AgentOptions, parts: Parts, status: Arc<Status>) -> Result<Self, AgentError> {
        Ok(Self {
            endpoint: dial::endpoint(&options)?,
            accounts: Accounts::new(parts),
            status,
            boot_id: Ulid::generate().to_string(),
            connect_seq: 0,
            max_message_bytes: MAX_MESSAGE_BYTES,
            own_cluster: None,
            pace: Pace::new(options.backoff),
            options,
        })
    }

    /// Dials and serves until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let AgentOptions { agent_id, zone_id, .. } = &self.options;
        let span = tracing::info_span!("agent", agentId = %agent_id, zoneId = %zone_id);
        self.run_in_span(stop).instrument(span).await;
    }

    async fn run_in_span(mut self, stop: CancellationToken) {
        tracing::info!(
            version = %self.options.version,
            hub = %self.options.hub,
            tls = !self.options.insecure,
            "the agent starts"
        );
        while !stop.is_cancelled() {
            let ended = self.connect_and_serve(&stop).await;
            self.accounts.stream_lost();
            let again_at = self.note(ended);
            tokio::select! {
                () = stop.cancelled() => {}
                () = sleep_until(again_at) => {}
            }
        }
        tracing::info!("the agent has stopped");
    }

    /// One stream, from the first packet to the last.
    async fn connect_and_serve(&mut self, stop: &CancellationToken) -> Ended {
        let greeted = tokio::select! {
            () = stop.cancelled() => return Ended::Stopped,
            greeted = self.greet() => greeted,
        };
        let Greeted { accepted, outbound, inbound } = match greeted {
            Ok(greeted) => greeted,
            Err(ended) => return ended,
        };
        if accepted.protocol != PROTOCOL_VERSION {
            return Ended::Broken(format!(
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
        self.max_message_bytes = match usize::try_from(accepted.max_message_bytes) {
            Ok(told @ 1..) => told.min(MAX_MESSAGE_BYTES),
            _ => MAX_MESSAGE_BYTES,
        };
        if !accepted.approved {
            tracing::warn!(
                "the agent is not approved and is sent no accounts; set spec.approved of its KubesvcAgent object"
            );
        }
        self.status.connected(health::Session {
            session_id: accepted.session_id.clone(),
            replica_id: accepted.replica_id.clone(),
            approved: accepted.approved,
        });
        let since = Instant::now();
        self.accounts.metrics().connections.inc();
        let idle = self.options.keep_alive.idle_timeout;
        let session = Session::new(&accepted, (outbound, inbound), &mut self.accounts, &self.status, idle);
        let ended = session.run(stop).await;
        self.accounts.metrics().disconnections.inc();
        if since.elapsed() > GOOD_AFTER {
            self.pace.reset();
        }
        if !matches!(ended, Ended::Drained(_)) {
            self.pace.was_accepted();
        }
        ended
    }

    async fn greet(&mut self) -> Result<Greeted, Ended> {
        let channel = dial::channel(&self.endpoint, &self.options).await.map_err(Ended::Broken)?;
        if self.own_cluster.is_none() {
            self.own_cluster = self.accounts.own_cluster().await;
        }
        self.connect_seq += 1;
        let held = self.accounts.held().into_iter();
        let hello = Hello {
            cluster_uid: self.own_cluster.clone().unwrap_or_default(),
            ..greeting::hello(&self.options, &self.boot_id, self.connect_seq, self.max_message_bytes, held)
        };
        greeting::greet(channel, hello).await
    }

    /// Tells people why there is no stream, and says when to dial again.
    fn note(&mut self, ended: Ended) -> Instant {
        let (problem, wait) = match ended {
            Ended::Stopped => {
                self.status.disconnected("the agent is stopping");
                return Instant::now();
            }
            Ended::Drained(at) => {
                self.status.disconnected("the replica of the operator is stopping");
                tracing::info!("the replica of the operator is stopping, dialling anew");
                return at;
            }
            Ended::Refused(refused) => {
                let asked = Duration::from_millis(refused.retry_after_ms.into()).min(MAX_ASKED_WAIT);
                let wait = self.pace.after_refusal(asked, refused.permanent);
                let reason = refused.reason().as_str_name();
                (format!("the hub refuses the agent: {reason}: {}", greeting::shown(&refused.message)), wait)
            }
            Ended::Broken(problem) => (problem, self.pace.next()),
        };
        tracing::warn!(
            hub = %self.options.hub,
            "{problem}; trying again in {:.1} s",
            wait.as_secs_f64()
        );
        self.status.disconnected(problem);
        Instant::now() + wait
    }
}
