//! The agent's side of the stream of cached objects, from what scopes read to frames for the hub: pure, without
//! tokio, a clock or a network but for its last two modules. Time and keys come in as arguments.
//!
//! | module | owns |
//! |---|---|
//! | `queue`, [`memory`] | what an account has read and not sent yet, in the order of last change, and its bound |
//! | `batch` | a batch on the wire: its limits, and its bytes; how many events were sent, for metrics |
//! | [`account_sender`] | one account under one fence: what is declared, sent, acknowledged; where each scope goes on |
//! | [`basis`] | the rows of a scope whose list begins |
//! | [`credit`] | how many bytes of the stream may be uncommitted at the hub |
//! | `lifetime` | when the stream is opened, closed and opened again |
//! | `unacked` | the batches of an account that are not acknowledged |
//! | [`stream`], `turns` | all accounts on one stream, in turn |
//! | [`shared`], [`driver`] | the stream's state behind a lock; the task that opens, feeds and reads the stream |
//!
//! A driver calls [`CachingSender`]: it feeds in what the hub and the readers of scopes say, carries out
//! [`ReaderCommand`]s, and sends what [`CachingSender::poll`] returns. Nothing here reads a cluster: a reader (one
//! scope's list and watch) names itself by the [`ReaderId`] that its command gave it, and what a former reader says
//! late is ignored.
//!
//! The hub applies a batch in the order `removed`, `added`, `sync_starts`, events, `synced`, `checkpoints`, `problems`.
//! A batch never holds two of them for one scope that would need another order.

mod account_sender;
mod basis;
mod batch;
mod credit;
mod driver;
mod lifetime;
mod memory;
mod queue;
mod shared;
mod stream;
#[cfg(test)]
mod tests;
mod turns;
mod unacked;

pub use account_sender::{AccountSender, DeliveryNumbers, NextFrame, ReaderCommand, ReaderId};
pub use basis::{BasisError, ScopeBasis};
pub use batch::{EncodedFrame, SentEvents};
pub use driver::{HubConnection, StreamDriver, StreamNotice};
pub use memory::QueueMemory;
pub use shared::SharedStream;
pub use stream::StreamIdentity;
