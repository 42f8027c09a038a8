//! The hub over a real port, with a real client.
#![expect(clippy::panic, reason = "this is how a test fails")]

mod accounts;
mod background;
pub(in crate::hub) mod caching;
mod connect;
mod fakes;
mod floods;
mod identities;
mod local_agents;
mod mass_delete_guard;
mod offers;
mod pace;
mod port;
mod report_outbox_writer;
mod requests;
mod settings;
mod static_accounts;
mod support;
mod tls;
