//! Clouddriver, as the operator sees it: its account management, and what is known of the accounts registered there.

mod client;
mod registrations;
#[cfg(test)]
mod tests;

pub use client::{ClientError, ClouddriverAccounts, ClouddriverClient, ClouddriverTlsFiles, StoredAccount};
pub use registrations::{AccountRegistration, Registrations};
