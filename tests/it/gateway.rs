//! The API of accounts: real kubectl, a real agent, and a second control plane as the account's cluster.

mod bad_requests;
mod canaries;
mod certificate;
mod doors;
pub(crate) mod place;
pub(crate) mod plugin;
pub(crate) mod refusals;
mod upgrades;
