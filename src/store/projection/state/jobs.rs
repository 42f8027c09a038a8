//! What is wanted of one account's row, and who waits for it.

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::account::row::AccountRow;
use crate::store::StoreError;

pub(super) type Done = oneshot::Sender<Result<(), StoreError>>;
pub(super) type Wait = oneshot::Receiver<Result<(), StoreError>>;

/// What a row shall be.
#[derive(Clone, Debug)]
pub(in crate::store::projection) enum DesiredRow {
    Row(Arc<AccountRow>),
    /// As `Row`, in place of somebody else's of that name.
    Adopt(Arc<AccountRow>),
    Gone,
}

impl DesiredRow {
    pub(super) fn row(&self) -> Option<&Arc<AccountRow>> {
        match self {
            Self::Row(row) | Self::Adopt(row) => Some(row),
            Self::Gone => None,
        }
    }

    pub(super) fn is(&self, row: &AccountRow) -> bool {
        self.row().is_some_and(|held| **held == *row)
    }

    /// A newer word. Somebody else's row that was to go still is.
    pub(super) fn replace(&mut self, newer: Self) {
        *self = match (&self, newer) {
            (Self::Adopt(_), Self::Row(row)) => Self::Adopt(row),
            (_, newer) => newer,
        };
    }
}

/// What a write does to the table, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store::projection) enum WriteKind {
    Insert = 0,
    Update = 1,
    Delete = 2,
    Adopt = 3,
}

/// What is wanted, and who waits for it.
#[derive(Debug)]
pub(in crate::store::projection) struct RowJob {
    pub(in crate::store::projection) want: DesiredRow,
    pub(super) waiters: Vec<Done>,
}

impl RowJob {
    pub(super) fn answer(self, answer: &Result<(), StoreError>) {
        for done in self.waiters {
            let _ = done.send(answer.clone());
        }
    }
}

/// A job that was taken to be written.
#[derive(Debug)]
pub(in crate::store::projection) struct WriteTask {
    pub(in crate::store::projection) uid: String,
    pub(in crate::store::projection) kind: WriteKind,
    pub(in crate::store::projection) job: RowJob,
}
