//! The accounts as this process has last seen or written them: an index over one watch.

mod guarded;
mod index;
mod secrets;
mod watch;
mod write;

pub use index::{AccountKey, Accounts};
pub use secrets::watch_secrets;
pub use watch::watch_accounts;
pub use write::{AccountObjects, KubeAccountObjects, WriteError};
