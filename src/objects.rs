//! The accounts, and the agents' objects, as this process has last seen or written them: an index over a watch each.

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
