//! KubesvcAccounts and KubesvcAgents as this process last saw or wrote them: one index for each kind, fed by
//! a watch.

mod agents;
mod guarded;
mod index;
mod overload;
mod secrets;
mod watch;
mod write;

pub use agents::{AgentIndex, ReadError, read_agents, version_of, watch_agents};
pub use index::{AccountIndex, AccountKey};
pub use overload::too_busy;
pub use secrets::{SecretsSeen, watch_secrets};
pub use watch::watch_accounts;
pub use write::{AccountObjects, KubeAccountObjects, WriteError};
