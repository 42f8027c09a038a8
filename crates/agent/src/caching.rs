//! The agent's side of the stream of cached objects, from the events of readers to frames for the hub. Pure except for
//! the last two modules: no tokio, clock or network; time and keys are arguments.
//!
//! | module | owns |
//! |---|---|
//! | `queue`, [`memory`] | the unsent events of an account, in the order of last change, and their memory bound |
//! | `batch` | a batch on the wire: limits and bytes; the number of sent events, for metrics |
//! | [`account_sender`] | one account under one fence: scopes declared, batches sent and acknowledged, checkpoints |
//! | [`basis`] | the rows of a scope whose list begins |
//! | [`credit`] | the stream's limit of uncommitted bytes at the hub |
//! | `lifetime` | opening, closing and reopening of the stream |
//! | `unacked` | the unacknowledged batches of an account |
//! | [`stream`], `turns` | all accounts on one stream, in turn |
//! | [`shared`], [`driver`] | the stream's state behind a lock; the task that opens, feeds and reads the stream |
//!
//! A driver calls [`CachingSender`]: it feeds in the frames of the hub and the reports of readers, executes
//! [`ReaderCommand`]s, and sends what [`CachingSender::poll`] returns. Nothing here reads a cluster: a reader (one
//! scope's list and watch) identifies itself by the [`ReaderId`] of its command, and late reports of a former reader
//! are ignored.
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
