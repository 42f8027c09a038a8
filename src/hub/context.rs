//! Settings, indexes and clocks that all parts of the hub read and none of them owns.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::sessions::ledger::Moment;
use super::{HubMetrics, HubSettings};
use crate::fleet::Ticks;
use crate::leases::{Leadership, Replicas};
use crate::listen::addresses::Caller;
use crate::listen::log_rate_limit::LogRateLimit;
use crate::objects::{AccountIndex, AgentIndex};

/// Number of heartbeats missed after which an agent's stream is cut.
const MAX_MISSED_HEARTBEATS: u32 = 3;

/// Shared by all parts. Holds no state of any part.
pub(super) struct HubContext {
    pub(super) settings: HubSettings,
    pub(super) accounts: Arc<AccountIndex>,
    pub(super) agent_index: Arc<AgentIndex>,
    pub(super) ticks: Arc<Ticks>,
    pub(super) leadership: Arc<Leadership>,
    pub(super) replicas: Arc<Replicas>,
    pub(super) metrics: HubMetrics,
    pub(super) log_limit: LogRateLimit,
    /// Start of the hub; [`Moment`]s count from here.
    pub(super) started: Instant,
    /// Cancelled when the hub stops: sessions drain.
    pub(super) stopping: CancellationToken,
    /// Session tasks, and tasks spawned by sessions.
    pub(super) tasks: TaskTracker,
}

impl HubContext {
    /// Whether this replica leads. Then the leader reads the sessions in this process.
    pub(super) fn is_leading(&self) -> bool {
        self.leadership.leads()
    }

    /// Whether a log line may be written that was caused by `peer`, or by the hub itself if absent.
    pub(super) fn may_log(&self, reason: &'static str, peer: Option<SocketAddr>) -> bool {
        let address = peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.ip());
        self.log_limit.may_log(reason, Caller::of(address))
    }

    /// Returns the time since the start of the hub.
    pub(super) fn moment(&self) -> Moment {
        self.started.elapsed()
    }

    /// Time without a frame after which a session counts as lost.
    pub(super) fn silence_limit(&self) -> Duration {
        self.settings.heartbeat * MAX_MISSED_HEARTBEATS
    }
}
