//! The hub over a real port, with a real client.
#![expect(clippy::panic, reason = "this is how a test fails")]

mod accounts;
mod connect;
mod fakes;
mod fleet;
mod floods;
mod mass_delete_guard;
mod offers;
mod outbox_writer;
mod pace;
mod port;
mod static_accounts;
mod support;
