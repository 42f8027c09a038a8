//! Settings, indexes and clocks that all parts of the hub read and none of them owns, and the reader of credentials that
//! sessions and zone probes share.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::connected_agents::LeaderClock;
use crate::hub::sessions::ledger::HubUptime;
use crate::hub::{CachingRuleSource, HubMetrics, HubSettings};
use crate::informers::{AccountIndex, AgentIndex, IdentityIndex};
use crate::leases::{Leadership, Replicas};
use crate::secrets::{Credential, CredentialSource};
use kubesvc_core::KubesvcAccount;
use kubesvc_core::failure::Failure;
use kubesvc_runtime::listen::connection_limits::ClientAddress;
use kubesvc_runtime::listen::connection_limits::LogRateLimit;

/// Number of heartbeats missed after which an agent's stream is cut.
const MAX_MISSED_HEARTBEATS: u32 = 3;
/// Maximum number of concurrent credential reads.
pub(super) const MAX_CONCURRENT_CREDENTIAL_READS: usize = 64;

/// Shared by all parts. Holds no state of any part.
pub(super) struct HubContext {
    pub(super) settings: HubSettings,
    pub(super) accounts: Arc<AccountIndex>,
    pub(super) agent_index: Arc<AgentIndex>,
    pub(super) ticks: Arc<LeaderClock>,
    pub(super) leadership: Arc<Leadership>,
    pub(super) replicas: Arc<Replicas>,
    pub(super) metrics: HubMetrics,
    /// Rules by which agents choose the objects they stream; absent: they are not asked to stream any.
    pub(super) caching_rules: Option<Arc<dyn CachingRuleSource>>,
    pub(super) log_limit: LogRateLimit,
    /// The identities that decide who the agents are; absent where they do not.
    pub(super) identities: Option<Arc<IdentityIndex>>,
    /// Start of the hub; [`HubUptime`]s count from here.
    pub(super) started: Instant,
    /// Cancelled when the hub stops: sessions drain.
    pub(super) stopping: CancellationToken,
    /// Session tasks, and tasks spawned by sessions.
    pub(super) tasks: TaskTracker,
}

impl HubContext {
    /// Whether agents may stream objects to this replica.
    pub(super) fn streams_objects(&self) -> bool {
        self.caching_rules.is_some()
    }

    /// Whether the identities are known as they are now, where they decide: nothing rests on those of before a suspension of
    /// the process.
    pub(super) fn knows_identities(&self) -> bool {
        self.identities.as_ref().is_none_or(|identities| identities.is_fresh())
    }

    /// Waits until [`Self::knows_identities`].
    pub(super) async fn identities_known(&self) {
        if let Some(identities) = &self.identities {
            identities.fresh().await;
        }
    }

    /// Whether this replica leads. Then the leader reads the sessions in this process.
    pub(super) fn is_leading(&self) -> bool {
        self.leadership.leads()
    }

    /// Whether a log line may be written that was caused by `peer`, or by the hub itself if absent.
    pub(super) fn may_log(&self, reason: &'static str, peer: Option<SocketAddr>) -> bool {
        let address = peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.ip());
        self.log_limit.may_log(reason, ClientAddress::of(address))
    }

    /// Returns the time since the start of the hub.
    pub(super) fn moment(&self) -> HubUptime {
        self.started.elapsed()
    }

    /// Time without a frame after which a session counts as lost.
    pub(super) fn silence_limit(&self) -> Duration {
        self.settings.sessions.heartbeat * MAX_MISSED_HEARTBEATS
    }
}

/// Reader of credentials that bounds the concurrent reads of the whole hub.
pub(super) struct CredentialReader {
    source: Arc<dyn CredentialSource>,
    pub(super) reads: Semaphore,
}

impl CredentialReader {
    pub(super) fn new(source: Arc<dyn CredentialSource>) -> Self {
        Self { source, reads: Semaphore::new(MAX_CONCURRENT_CREDENTIAL_READS) }
    }

    /// Waits for a permit to read.
    pub(super) async fn permit(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.reads.acquire().await.ok()
    }

    /// Reads the credential of an account; `fresh` bypasses the cache.
    pub(super) async fn resolve(&self, account: &KubesvcAccount, fresh: bool) -> Result<Credential, Failure> {
        self.source.resolve(account, fresh).await
    }
}
