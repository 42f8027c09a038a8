//! Clouddriver, as the operator sees it: its account management, called or passed on, and what is known of the accounts registered there.

mod client;
mod proxy;
mod registrations;
#[cfg(test)]
mod tests;
mod tls;

pub use client::{ClientError, ClouddriverAccounts, ClouddriverClient, StoredAccount};
pub use proxy::{ClouddriverProxy, NotAnswered};
pub use registrations::{AccountRegistration, Registrations};
pub use tls::{ClouddriverTlsFiles, RenewedTls};
