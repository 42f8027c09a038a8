//! The API of accounts: real kubectl, a real agent, and a second control plane as the account's cluster.

mod aggregated;
mod direct;
mod errors;
mod place;
mod upgrades;
