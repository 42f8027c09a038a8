//! The API of accounts: real kubectl, a real agent, and a second control plane as the account's cluster.

mod doors;
mod place;
mod plugin;
mod refusals;
mod upgrades;
