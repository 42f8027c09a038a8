//! What all databases share: statements, connections, transactions, and error classes.

pub(super) mod batches;
pub(super) mod driver;
pub(super) mod error_class;
pub(super) mod pools;
pub(super) mod session;
pub(super) mod statement;
pub(super) mod table;
